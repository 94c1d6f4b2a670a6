//! The command that draws the picture of the README from results of `bench`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use narrows_plot::{Axis, Colour, Plot};
use serde_json::Value;

use crate::stats::median;

/// Draw goodput against plain from results of `bench`, as SVG
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Results of `narrows-lab bench --parts links`; if several contain a link, the last one counts
    #[arg(required = true, value_name = "RESULT")]
    results: Vec<PathBuf>,
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// Policies shown: fixed methods from fast to small in greys from light to dark, `balance` in
/// colour. A method that was not measured on a link has no bar there.
const SHOWN: [(&str, &str, Colour); 6] = [
    ("fixed:lz4", "LZ4", Colour::Grey(0.0)),
    ("fixed:zstd:level=1", "zstd 1", Colour::Grey(0.25)),
    ("fixed:zstd", "zstd 3", Colour::Grey(0.5)),
    ("fixed:zstd:level=9", "zstd 9", Colour::Grey(0.75)),
    ("fixed:xz", "xz", Colour::Grey(1.0)),
    ("balance", "narrows", Colour::Main),
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
    // 0 is unshaped, which is the fastest.
    links.sort_by_key(|link| link.checked_sub(1).unwrap_or(u64::MAX));
    links.dedup();
    ensure!(!links.is_empty(), "the results have no links");
    fs::write(&args.output, draw(&cells, &links)).with_context(|| format!("cannot write {}", args.output.display()))
}

fn draw(cells: &[Value], links: &[u64]) -> String {
    let name = |link: &u64| if *link == 0 { "unshaped".to_owned() } else { format!("{link} Mbit/s") };
    let x = Axis::names("", &links.iter().map(name).collect::<Vec<_>>());
    let title = "Goodput against plain, geometric mean over the kinds of data";
    let mut plot = Plot::new(title, x, Axis::linear("Goodput / goodput of plain")).level(1.0);
    for (policy, name, colour) in SHOWN {
        let gains: Vec<_> = links.iter().enumerate().map(|(i, link)| (i as f64, gain(cells, *link, policy))).collect();
        plot = plot.bars(name, colour, &gains);
    }
    plot.svg()
}

/// Geometric mean over pools of plain time / time, each the median of its rounds; NaN if it was not
/// measured.
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
        assert!(svg.contains("10 Mbit/s") && svg.matches("<rect").count() == 1 + SHOWN.len() + 2, "{svg}");
    }
}
