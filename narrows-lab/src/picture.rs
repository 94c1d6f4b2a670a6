//! The picture of the README, from the result of `bench`.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::experiment::median;

/// Draw goodput against plain from results of `bench`, as SVG
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Results of `narrows-lab bench --parts links`; of a link that is in several the last one counts
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 352.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 68.0;
const BOTTOM: f64 = 44.0;
/// Shown of the fixed methods; grey from light to dark, `balance` in colour.
/// A method that was not tried on a link has no bar there.
const SHOWN: [(&str, &str, &str); 6] = [
    ("fixed:lz4", "LZ4", "#d5d8dc"),
    ("fixed:zstd:level=1", "zstd 1", "#b3b8be"),
    ("fixed:zstd", "zstd 3", "#8f959c"),
    ("fixed:zstd:level=9", "zstd 9", "#6c7278"),
    ("fixed:xz", "xz", "#484d52"),
    ("balance", "narrows", "#0a7f6f"),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut cells: Vec<Value> = Vec::new();
    for path in &args.results {
        let cannot = || format!("cannot use {}", path.display());
        let result: Value = serde_json::from_str(&fs::read_to_string(path).with_context(cannot)?)?;
        let new = result["parts"]["links"]["cells"].as_array().context("it has no links").with_context(cannot)?;
        cells.retain(|c| new.iter().all(|n| n["mbit_per_s"] != c["mbit_per_s"]));
        cells.extend(new.iter().cloned());
    }
    let mut links: Vec<u64> = cells.iter().filter_map(|c| c["mbit_per_s"].as_u64()).collect();
    // Unshaped is the fastest.
    links.sort_by_key(|link| link.checked_sub(1).unwrap_or(u64::MAX));
    links.dedup();
    ensure!(!links.is_empty(), "the results have no links");
    fs::write(&args.output, draw(&cells, &links)).with_context(|| format!("cannot write {}", args.output.display()))
}

fn draw(cells: &[Value], links: &[u64]) -> String {
    let rows: Vec<Vec<f64>> = links.iter().map(|link| SHOWN.map(|s| gain(cells, *link, s.0)).to_vec()).collect();
    let top = rows.iter().flatten().fold(1.0f64, |a, b| if b.is_finite() { a.max(*b) } else { a }).ceil();
    let y = |gain: f64| HEIGHT - BOTTOM - gain / top * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" fill=\"#222\">Goodput against plain, geometric mean over the kinds of data</text>\n"
    );
    for (i, (_, name, colour)) in SHOWN.iter().enumerate() {
        let x = LEFT + 92.0 * i as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"33\" width=\"11\" height=\"11\" fill=\"{colour}\"/><text x=\"{}\" y=\"43\" fill=\"#444\">{name}</text>",
            x + 16.0
        );
    }
    for step in 0..=top as u32 {
        let (at, strong) = (y(f64::from(step)), step == 1);
        let colour = if strong { "#888" } else { "#e6e6e6" };
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\"/>",
            WIDTH - 12.0
        );
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#666\">{step}x</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let group = (WIDTH - LEFT - 12.0) / links.len() as f64;
    let bar = group * 0.8 / SHOWN.len() as f64;
    for (g, (link, gains)) in links.iter().zip(&rows).enumerate() {
        let x0 = LEFT + group * (g as f64 + 0.1);
        for (i, gain) in gains.iter().enumerate().filter(|(_, gain)| gain.is_finite()) {
            let (x, at) = (x0 + bar * i as f64, y(*gain));
            let height = HEIGHT - BOTTOM - at;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{at:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
                bar - 2.0,
                SHOWN[i].2
            );
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" fill=\"#333\">{gain:.2}</text>",
                x + bar / 2.0 - 1.0,
                at - 4.0
            );
        }
        let name = if *link == 0 { "unshaped".to_string() } else { format!("{link} Mbit/s") };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#222\">{name}</text>",
            x0 + group * 0.4,
            HEIGHT - 20.0
        );
    }
    svg + "</svg>\n"
}

/// Geometric mean over pools of plain time / time, each the median of its rounds; NaN if it was not tried.
fn gain(cells: &[Value], link: u64, policy: &str) -> f64 {
    let logs: Vec<f64> = cells
        .iter()
        .filter(|c| c["mbit_per_s"].as_u64() == Some(link))
        .map(|c| (middle(&c["plain_s"]) / middle(&c["seconds"][policy])).ln())
        .filter(|l| l.is_finite())
        .collect();
    (logs.iter().sum::<f64>() / logs.len() as f64).exp()
}

fn middle(values: &Value) -> f64 {
    median(&values.as_array().map(|v| v.iter().filter_map(Value::as_f64).collect::<Vec<_>>()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_stands_for_every_method_that_was_tried() {
        let cell: Value = serde_json::json!({
            "mbit_per_s": 10, "plain_s": [2.0, 2.0, 3.0], "seconds": { "balance": [1.0], "fixed:lz4": [1.5] }
        });
        assert!((gain(std::slice::from_ref(&cell), 10, "balance") - 2.0).abs() < 1e-9);
        let svg = draw(&[cell], &[10]);
        assert!(svg.contains("10 Mbit/s") && svg.matches("<rect").count() == 1 + SHOWN.len() + 2);
    }
}
