//! The answers as an HTML page with charts.

use narrows_classic::Planned;
use narrows_plot::{Axis, Colour, Figure, Plot, Strips, page};
use narrows_sim::table::STORE_NS_PER_BYTE;

use super::judge::{Answer, Row};
use super::show::{About, Speed, goodput_mbit, headline};
use crate::Rate;

/// Range of rates of the sweep in Mbit/s: from a radio link to more than one core can copy, four
/// rates per decade.
const SWEEP_MBIT: (f64, f64) = (1.0, 25_000.0);
const SWEEP_STEP: f64 = 1.778_279_41;
/// Rate of `store` in the chart of methods, in MB/s.
const STORE_MB_PER_S: f64 = 1e3 / STORE_NS_PER_BYTE;

/// The rates of the last chart.
pub fn sweep() -> Vec<Rate> {
    let rates = std::iter::successors(Some(SWEEP_MBIT.0), |r| Some(r * SWEEP_STEP));
    rates.take_while(|r| *r <= SWEEP_MBIT.1).map(|mbit| Rate(mbit * 125_000.0)).collect()
}

/// The HTML page.
pub fn html(about: &About, tables: &str, speeds: &[Speed], answers: &[Answer], sweep: &[Answer]) -> String {
    let mut figures = vec![methods(speeds)];
    figures.extend(answers.iter().map(|a| choices(speeds, a)));
    figures.push(goodput(about, sweep));
    page("Attainable goodput on this link", &headline(about), tables, &figures)
}

fn methods(speeds: &[Speed]) -> Figure {
    let store = ("store", (STORE_MB_PER_S, 1.0));
    let shown = speeds.iter().filter(|s| s.encode_mb_per_s.is_finite());
    let points: Vec<_> =
        std::iter::once(store).chain(shown.map(|s| (s.method.as_str(), (s.encode_mb_per_s, s.ratio)))).collect();
    let front = hull(&points.iter().map(|p| p.1).collect::<Vec<_>>());
    let x = Axis::log("Encoding on one core, MB/s");
    let mut plot = Plot::new("The methods on this data", x, Axis::log("Ratio, raw bytes / wire bytes")).line(
        "hull of the methods",
        Colour::Muted,
        &front,
    );
    for (i, (name, at)) in points.iter().enumerate() {
        plot = plot.mark(name, colour(i, points.len()), *at);
    }
    Figure {
        svg: plot.svg(),
        caption: "Each method alone on this data, in blocks of 128 KiB: further right is faster, higher is smaller on the wire. \
                  Which of those near the line is best depends on the link and the cores; those far below it are seldom worth \
                  their time. Single blocks differ from this mean, which a schedule exploits."
            .into(),
    }
}

fn choices(speeds: &[Speed], answer: &Answer) -> Figure {
    let names: Vec<String> =
        ["store", "constant"].map(String::from).into_iter().chain(speeds.iter().map(|s| s.method.clone())).collect();
    let rate = answer.rate.mbit();
    let mut strips =
        Strips::new(&format!("The choice over the data at {rate} Mbit/s"), Axis::linear("Position in the data, MB"));
    for (i, name) in names.iter().enumerate() {
        let colour = if i == 0 { Colour::Muted } else { colour(i - 1, names.len() - 1) };
        strips = strips.kind(name, colour);
    }
    for row in [&answer.best].into_iter().chain(&answer.policies) {
        strips = strips.strip(&row.name, &pieces(&row.blocks, &names));
    }
    Figure {
        svg: strips.svg(),
        caption: "The method of each part of the data, from the first byte to the last. Above: the best schedule, found by a \
                  search with full knowledge. Below: the choices of policies, which know only the past. From yellow to violet, \
                  methods are slower and their output smaller; grey is sent uncompressed."
            .into(),
    }
}

fn pieces(blocks: &[Planned], names: &[String]) -> Vec<(f64, f64, usize)> {
    let mut at = 0;
    let piece = |Planned { raw_len, method, .. }: &Planned| {
        let from = at;
        at += raw_len;
        let name = method.to_string();
        let kind = names.iter().position(|n| *n == name).unwrap_or(usize::MAX);
        (from as f64 * 1e-6, at as f64 * 1e-6, kind)
    };
    blocks.iter().map(piece).collect()
}

fn goodput(about: &About, sweep: &[Answer]) -> Figure {
    let line = |row: &dyn Fn(&Answer) -> &Row| -> Vec<(f64, f64)> {
        sweep.iter().map(|a| (a.rate.mbit(), goodput_mbit(about, row(a)))).collect()
    };
    let mut plot = Plot::new(
        "Goodput against link rate",
        Axis::log("Link rate, Mbit/s"),
        Axis::log("Goodput, Mbit/s of raw bytes"),
    )
    .line("lower bound on time", Colour::Limit, &line(&|a| &a.bound))
    .line("best schedule, T*", Colour::Other(1), &line(&|a| &a.best))
    .line("best fixed method", Colour::Other(0), &line(&|a| a.best_fixed()))
    .line("plain", Colour::Muted, &line(&|a| a.plain()));
    let count = sweep.first().map_or(0, |a| a.policies.len());
    for i in 0..count {
        let colour = if i == 0 { Colour::Main } else { Colour::Other(i + 1) };
        plot = plot.line(&sweep[0].policies[i].name, colour, &line(&|a| &a.policies[i]));
    }
    Figure {
        svg: plot.svg(),
        caption: "Data that arrives per second on links from 1 Mbit/s to 25 Gbit/s. On slow links the link is the bottleneck, and \
                  the smallest output wins; further right the CPU is, and fast methods or none win. The best fixed method is \
                  chosen for each link separately, in hindsight."
            .into(),
    }
}

/// Colour of the i-th method; methods are ordered from fast and large to slow and small.
fn colour(i: usize, count: usize) -> Colour {
    Colour::Scale(i as f64 / (count.max(2) - 1) as f64)
}

/// The upper right convex hull of (speed, ratio) in logarithms, from the left.
fn hull(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sorted: Vec<_> = points.iter().copied().filter(|p| p.0 > 0.0 && p.1 > 0.0).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let top = sorted.iter().map(|p| p.1).fold(0.0, f64::max);
    // Methods to the left of the one with the best ratio are slower and not better.
    let begin = sorted.iter().rposition(|p| p.1 == top).unwrap_or(0);
    let mut hull: Vec<(f64, f64)> = Vec::new();
    for p in sorted.into_iter().skip(begin) {
        while let [.., a, b] = hull[..] {
            let (ab, ap) = ((b.0.ln() - a.0.ln(), b.1.ln() - a.1.ln()), (p.0.ln() - a.0.ln(), p.1.ln() - a.1.ln()));
            if ab.0 * ap.1 - ab.1 * ap.0 < 0.0 {
                break;
            }
            hull.pop();
        }
        hull.push(p);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hull_leaves_out_what_is_under_it() {
        let points = [(1.0, 10.0), (0.5, 9.0), (10.0, 6.0), (10.0, 2.0), (20.0, 1.1), (100.0, 3.0), (1000.0, 1.0)];
        assert_eq!(hull(&points), [(1.0, 10.0), (10.0, 6.0), (100.0, 3.0), (1000.0, 1.0)]);
        assert!(hull(&[]).is_empty());
    }

    #[test]
    fn the_sweep_has_its_ends() {
        let rates: Vec<f64> = sweep().iter().map(|r| r.mbit()).collect();
        assert!((rates[0] - 1.0).abs() < 1e-9 && (17_000.0..25_000.0).contains(&rates[rates.len() - 1]), "{rates:?}");
    }
}
