//! `cold` in virtual time alone: predictions against stored samples, or `balance` against the other
//! choices that there were.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use narrows::codec::DEFAULT_METHODS;
use serde_json::{Value, json};

use super::super::Args;
use super::{data, mean_and_worst, median_of_finite, pools_len, predict, rate_name, tables::costs};

/// Tools whose stored samples are predicted.
const TOOLS: &[&str] = &["nc", "narrows:fixed:zstd:level=1", "narrows"];
/// Start of an empty transfer where `balance` is judged, in seconds: the least of the stored bench.
const START_S: f64 = 0.015;

pub(in crate::bench) fn run(args: &Args) -> Result<Value> {
    match &args.samples {
        Some(path) => predict_samples(args, path),
        None => judge(args),
    }
}

struct Sample {
    mbit: u32,
    len: usize,
    pool: String,
    tool: &'static str,
    /// Whether the start of programs is fitted on this sample: it is, on every second pool.
    fitted: bool,
    measured_s: f64,
    /// Without the start.
    predicted_s: f64,
}

/// The state of the machine sets how long programs take to start, so that is fitted for each link; the
/// constants of the world are not.
fn predict_samples(args: &Args, path: &Path) -> Result<Value> {
    let corpus = args.corpus.as_deref().context("`cold-virtual` needs --corpus")?;
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let stored: Value = serde_json::from_str(&text)?;
    let cells = stored["parts"]["cold"]["cells"].as_array().context("the file has no cells of `cold`")?;
    let mut samples = Vec::new();
    let pools: Vec<(String, Vec<u8>)> = data(corpus, args, 0)?;
    let mut names: Vec<&String> = pools.iter().map(|p| &p.0).collect();
    names.sort();
    names.dedup();
    for (pool, bytes) in &pools {
        let table = costs(pool, bytes, args.tables.as_deref())?;
        let of_pool = cells.iter().filter(|c| c["pool"] == **pool && c["raw_bytes"] == bytes.len());
        for cell in of_pool {
            let mbit = cell["mbit_per_s"].as_u64().unwrap_or_default() as u32;
            for tool in TOOLS {
                let Some(seconds) = cell["seconds"][tool].as_array() else { continue };
                let Some(policy) = predict::policy_of(tool) else { continue };
                samples.push(Sample {
                    mbit,
                    len: bytes.len(),
                    pool: pool.clone(),
                    tool,
                    fitted: names.iter().position(|n| *n == pool).is_some_and(|i| i % 2 == 0),
                    measured_s: median_of_finite(&seconds.iter().filter_map(Value::as_f64).collect::<Vec<_>>()),
                    predicted_s: predict::seconds(&table, mbit, policy, 0.0)?,
                });
            }
        }
    }
    let mut starts = BTreeMap::new();
    for s in &samples {
        let same = |o: &&Sample| o.fitted && o.mbit == s.mbit && (o.tool == "nc") == (s.tool == "nc");
        let left: Vec<f64> = samples.iter().filter(same).map(|o| o.measured_s - o.predicted_s).collect();
        starts.insert((s.mbit, s.tool == "nc"), median_of_finite(&left));
    }
    let mut groups: BTreeMap<_, Vec<(f64, String)>> = BTreeMap::new();
    for s in &samples {
        let start_s = starts[&(s.mbit, s.tool == "nc")];
        let ratio = (s.predicted_s + start_s) / s.measured_s;
        let half = if s.fitted { "fitted" } else { "quoted" };
        groups.entry((s.mbit, s.len, s.tool, half)).or_default().push((ratio, s.pool.clone()));
    }
    println!("virtual over measured time");
    for ((mbit, len, tool, half), ratios) in groups {
        println!("  {:<11} {:<7} {tool:<27} {half} {}", rate_name(mbit), pools_len(len), mean_and_worst(ratios));
    }
    let starts: Vec<_> =
        starts.iter().map(|((mbit, nc), s)| json!({ "mbit_per_s": mbit, "nc": nc, "start_s": s })).collect();
    Ok(json!({ "starts": starts }))
}

/// `balance` against the best fixed method, plain and the oracle, which has cores and link to itself.
fn judge(args: &Args) -> Result<Value> {
    let corpus = args.corpus.as_deref().context("`cold-virtual` needs --corpus")?;
    let mut cells = Vec::new();
    for &mbit in &args.links {
        let mut groups: BTreeMap<usize, [Vec<(f64, String)>; 3]> = BTreeMap::new();
        for (pool, bytes) in data(corpus, args, mbit)? {
            let table = costs(&pool, &bytes, args.tables.as_deref())?;
            let own_s = predict::seconds(&table, mbit, "balance", START_S)?;
            let fixed: Result<Vec<(f64, String)>> = DEFAULT_METHODS
                .iter()
                .map(|m| Ok((predict::seconds(&table, mbit, &format!("fixed:{m}"), START_S)?, m.to_string())))
                .collect();
            let fixed = fixed?;
            let plain_s = fixed[0].0;
            let best = fixed.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).context("there are methods")?;
            let oracle_s = predict::oracle(&table, mbit, START_S);
            let group = groups.entry(bytes.len()).or_default();
            for (ratios, other_s) in group.iter_mut().zip([best.0, plain_s, oracle_s]) {
                ratios.push((other_s / own_s, pool.clone()));
            }
            cells.push(json!({ "pool": pool, "raw_bytes": bytes.len(), "mbit_per_s": mbit, "balance_s": own_s,
                "best_fixed": best.1, "best_fixed_s": best.0, "plain_s": plain_s, "oracle_s": oracle_s }));
        }
        for (len, group) in groups {
            for (what, ratios) in ["best fixed", "plain", "oracle"].into_iter().zip(group) {
                println!(
                    "{:<11} {:<7} {what:<10} over balance {}",
                    rate_name(mbit),
                    pools_len(len),
                    mean_and_worst(ratios)
                );
            }
        }
    }
    Ok(json!({ "cells": cells }))
}
