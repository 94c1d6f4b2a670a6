//! Short transfers with everything cold: each program from its start to the end of both ends, over
//! shaped links, beside the prediction of virtual time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use narrows_link::Backend;
use narrows_sim::table::Table;
use serde_json::{Value, json};

use super::Args;
use crate::pools::{self, Half};
use crate::race::scratch;
use crate::race::tools::Tool;
use crate::race::track::{Load, Track};
use crate::stats::{median, shuffled};
use crate::stop;
use tables::costs;

pub(super) mod foresee;
mod predict;
mod tables;

/// Tools that the best one of a cell is chosen from; those of Narrows show what its engine reaches
/// with one method.
const TOOLS: &str = "narrows,narrows:fixed:zstd:level=1,narrows:fixed:zstd:level=3,narrows:fixed:lz4,nc,zstd-1,zstd-3,zstd-9,\
     zstd-adapt,zstd-long,lz4,pipe,cat";
/// A cell whose plain transfer takes longer is left out: the first seconds are measured, and the
/// whole bench should end.
const PLAIN_MAX_S: f64 = 4.5;
const LIMIT: Duration = Duration::from_secs(60);
/// Tools whose empty transfers are measured too: what of a time is the start and end of programs.
const STARTERS: [&str; 2] = ["narrows", "nc"];

/// Seconds of every tool in every round of one cell, and the prediction.
struct Cell {
    pool: String,
    len: usize,
    mbit: u32,
    delay_ms: f64,
    seconds: BTreeMap<String, Vec<f64>>,
    /// Predicted seconds of `narrows`, of its fixed methods and of nc, and of the best schedule.
    predicted: BTreeMap<String, f64>,
    /// Median seconds of the starters for a file of one byte, in the same rounds: start and end of both
    /// programs.
    empty_s: BTreeMap<String, f64>,
}

pub(super) fn run(args: &Args) -> Result<Value> {
    let stop = stop::on_signals()?;
    let corpus = args.corpus.as_deref().context("`cold` needs --corpus")?;
    let tools: Vec<Tool> = match args.tools.is_empty() {
        true => TOOLS.split(',').map(Tool::parse).collect::<Result<_, _>>(),
        false => args.tools.iter().map(|t| Tool::parse(t)).collect::<Result<_, _>>(),
    }
    .map_err(anyhow::Error::msg)?;
    ensure!(tools.iter().any(|t| t.name == "narrows"), "`cold` judges the tool narrows; name it in --tools");
    let folder = scratch::folder()?;
    let mut cells = Vec::new();
    // Measuring a table takes longer than the transfers; it is the same on every link.
    let mut tables: BTreeMap<(String, usize), Table> = BTreeMap::new();
    for &mbit in &args.links {
        for &delay_ms in &args.delays {
            let mut track = Track::start(&profile(mbit, delay_ms), backend(delay_ms), false, stop.clone())?;
            let mut present = Vec::new();
            for tool in &tools {
                match track.prepare(tool) {
                    Ok(()) => present.push(tool.clone()),
                    Err(error) => eprintln!("bench: {} is skipped: {error:#}", tool.name),
                }
            }
            let empty = Load::new(folder.path(), "empty", b"x")?;
            // They take part in every round, since the state of a machine changes within minutes.
            let starters: Vec<usize> =
                (0..present.len()).filter(|i| STARTERS.contains(&present[*i].name.as_str())).collect();
            for (pool, bytes) in data(corpus, args, mbit)? {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let load = Load::new(folder.path(), "load", &bytes)?;
                let mut seconds = vec![vec![f64::NAN; args.rounds]; present.len() + starters.len()];
                for (round, i) in shuffled(seconds.len(), args.rounds as u32, 1) {
                    let (tool, load) = match i.checked_sub(present.len()) {
                        None => (&present[i], &load),
                        Some(i) => (&present[starters[i]], &empty),
                    };
                    match track.lap(tool, load, LIMIT) {
                        Ok(lap) => seconds[i][round as usize] = lap.seconds,
                        Err(_) if track.stopped() => break,
                        Err(error) => eprintln!("bench: {pool}: {error:#}"),
                    }
                }
                let empties = seconds.split_off(present.len());
                let names = starters.iter().map(|i| present[*i].name.clone());
                let empty_s = names.zip(empties.iter().map(|s| median_of_finite(s))).collect();
                let seconds = present.iter().map(|t| t.name.clone()).zip(seconds).collect();
                let table = match tables.entry((pool.clone(), bytes.len())) {
                    Entry::Occupied(table) => table.into_mut(),
                    Entry::Vacant(place) => place.insert(costs(&pool, &bytes, args.tables.as_deref())?),
                };
                let predicted = predicted(table, mbit, &present, &empty_s)?;
                let cell = Cell { pool, len: bytes.len(), mbit, delay_ms, seconds, predicted, empty_s };
                println!("{}", cell.line());
                cells.push(cell);
            }
        }
    }
    print!("{}", summary(&cells));
    Ok(
        json!({ "rounds": args.rounds, "half": args.half.name(), "cells": cells.iter().map(Cell::json).collect::<Vec<_>>() }),
    )
}

/// A link without delay is shaped by the kernel, which takes little of the cores that the programs
/// need; delay needs the emulator of this crate.
fn backend(delay_ms: f64) -> Backend {
    if delay_ms < 1.0 { Backend::Kernel } else { Backend::Auto }
}

fn profile(mbit: u32, delay_ms: f64) -> String {
    let rate = if mbit == 0 { String::new() } else { format!("rate={mbit}mbit,") };
    match delay_ms < 1.0 {
        // The cable of two hosts: what their network stacks take is the delay.
        true if mbit == 0 => "delay=0ms".into(),
        true => format!("{rate}burst=64K"),
        // Each way half of the round trip.
        false => format!("{rate}delay={}ms", delay_ms / 2.0),
    }
}

/// Every pool and length that this link carries in a few seconds.
fn data(corpus: &Path, args: &Args, mbit: u32) -> Result<Vec<(String, Vec<u8>)>> {
    let plain_s = |len: usize| if mbit == 0 { 0.0 } else { len as f64 * 8e-6 / f64::from(mbit) };
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(corpus)?.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_dir()).collect();
    folders.sort();
    let mut out = Vec::new();
    for &len in args.sizes.iter().filter(|len| plain_s(**len) <= PLAIN_MAX_S) {
        for folder in &folders {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if args.pools.is_empty() || args.pools.contains(&name) {
                out.push((name, pools::half_bytes(folder, len, args.half)?));
            }
        }
        if args.pools.is_empty() || args.pools.iter().any(|p| p == "random") {
            out.push(("random".into(), pools::named_bytes(corpus, "random", len)?));
        }
    }
    Ok(out)
}

/// Seconds in virtual time of the tools of Narrows and of nc, and of the best schedule found.
fn predicted(
    table: &Table,
    mbit: u32,
    tools: &[Tool],
    empty_s: &BTreeMap<String, f64>,
) -> Result<BTreeMap<String, f64>> {
    let own_s = empty_s.get("narrows").copied().unwrap_or(f64::NAN);
    let mut out = BTreeMap::new();
    for tool in tools {
        let Some(policy) = predict::policy_of(&tool.name) else { continue };
        let start_s = empty_s.get(&tool.name).copied().unwrap_or(own_s);
        out.insert(tool.name.clone(), predict::seconds(table, mbit, policy, start_s)?);
    }
    out.insert("oracle".into(), predict::oracle(table, mbit, own_s));
    Ok(out)
}

impl Cell {
    fn name(&self) -> String {
        format!("{} {} {} {} ms", self.pool, pools_len(self.len), rate_name(self.mbit), self.delay_ms)
    }

    fn median_s(&self, tool: &str) -> f64 {
        self.seconds.get(tool).map_or(f64::NAN, |s| median_of_finite(s))
    }

    /// The median over rounds of the time of `other` over that of `own`.
    fn over(&self, other: &str, own: &str) -> f64 {
        let (Some(a), Some(b)) = (self.seconds.get(other), self.seconds.get(own)) else { return f64::NAN };
        median_of_finite(&a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>())
    }

    /// The quickest program of others, chosen afterwards.
    fn best_program(&self) -> Option<&str> {
        let others = self.seconds.keys().filter(|t| !t.starts_with("narrows") && *t != "pipe" && *t != "cat");
        others.map(String::as_str).min_by(|a, b| self.median_s(a).total_cmp(&self.median_s(b)))
    }

    fn best_fixed(&self) -> Option<&str> {
        let own = self.seconds.keys().filter(|t| t.starts_with("narrows:"));
        own.map(String::as_str).min_by(|a, b| self.median_s(a).total_cmp(&self.median_s(b)))
    }

    /// Predicted over measured time, the start of programs in both.
    fn real(&self, tool: &str) -> f64 {
        self.predicted.get(tool).map_or(f64::NAN, |p| p / self.median_s(tool))
    }

    fn line(&self) -> String {
        let best = self.best_program().unwrap_or("");
        let fixed = self.best_fixed().unwrap_or("");
        format!(
            "{:<36} {:>8.1} ms  of virtual {:.2} (fixed {:.2})  of {best} {:.2}  of {} {:.2}  of nc {:.2}  pipe of cat {:.2}",
            self.name(),
            self.median_s("narrows") * 1e3,
            self.real("narrows"),
            self.real(fixed),
            self.over(best, "narrows"),
            fixed.trim_start_matches("narrows:fixed:"),
            self.over(fixed, "narrows"),
            self.over("nc", "narrows"),
            self.over("cat", "pipe"),
        )
    }

    fn json(&self) -> Value {
        json!({
            "pool": self.pool, "raw_bytes": self.len, "mbit_per_s": self.mbit, "rtt_ms": self.delay_ms,
            "empty_s": self.empty_s, "predicted_s": self.predicted, "seconds": self.seconds,
            "of_virtual": finite(self.real("narrows")), "best_program": self.best_program(),
            "of_best_program": finite(self.over(self.best_program().unwrap_or(""), "narrows")),
            "of_nc": finite(self.over("nc", "narrows")), "pipe_of_cat": finite(self.over("cat", "pipe")),
        })
    }
}

fn finite(x: f64) -> Option<f64> {
    Some(x).filter(|x| x.is_finite())
}

fn median_of_finite(values: &[f64]) -> f64 {
    median(&values.iter().copied().filter(|x| x.is_finite()).collect::<Vec<_>>())
}

fn rate_name(mbit: u32) -> String {
    if mbit == 0 { "unshaped".into() } else { format!("{mbit} Mbit/s") }
}

fn pools_len(len: usize) -> String {
    if len >= 1 << 20 { format!("{} MiB", len >> 20) } else { format!("{} KB", len / 1000) }
}

/// Mean, median and the worst cells of ratios, above 1 being better; and the highest, for predictions.
fn mean_and_worst(mut ratios: Vec<(f64, String)>) -> String {
    ratios.retain(|r| r.0.is_finite());
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some(highest) = ratios.last() else { return "no figure".into() };
    let mean = (ratios.iter().map(|r| r.0.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let median = median(&ratios.iter().map(|r| r.0).collect::<Vec<_>>());
    let worst: Vec<String> = ratios.iter().take(3).map(|(x, name)| format!("{x:.2} {name}")).collect();
    format!("mean {mean:.3}  median {median:.3}  worst {}  highest {:.2} {}", worst.join("; "), highest.0, highest.1)
}

/// A figure of a cell, with its name.
type Figure<'a> = (&'a str, &'a dyn Fn(&Cell) -> f64);

/// Two tables, for each rate and length: real against programs, and real against the prediction.
fn summary(cells: &[Cell]) -> String {
    let mut groups: Vec<(u32, usize)> = cells.iter().map(|c| (c.mbit, c.len)).collect();
    groups.sort_unstable();
    groups.dedup();
    let table = |title: &str, rows: &[Figure<'_>]| {
        let mut text = format!("{title}\n");
        for (mbit, len) in &groups {
            for (what, figure) in rows {
                let of_group = cells.iter().filter(|c| (c.mbit, c.len) == (*mbit, *len));
                let ratios = of_group.map(|c| (figure(c), format!("{} {} ms", c.pool, c.delay_ms))).collect();
                let (rate, len) = (rate_name(*mbit), pools_len(*len));
                text += &format!("  {rate:<11} {len:<7} {what:<28} {}\n", mean_and_worst(ratios));
            }
        }
        text
    };
    let programs = table(
        "real against programs",
        &[
            ("best program over send", &|c| c.best_program().map_or(f64::NAN, |b| c.over(b, "narrows"))),
            ("best fixed method over send", &|c| c.best_fixed().map_or(f64::NAN, |b| c.over(b, "narrows"))),
            ("nc over send", &|c| c.over("nc", "narrows")),
            ("cat | nc over pipe | nc", &|c| c.over("cat", "pipe")),
        ],
    );
    let prediction = table(
        "prediction against real",
        &[
            ("virtual over real, send", &|c| c.real("narrows")),
            ("the same, best fixed method", &|c| c.best_fixed().map_or(f64::NAN, |f| c.real(f))),
            ("the same, nc", &|c| c.real("nc")),
        ],
    );
    programs + &prediction
}

impl Half {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tuning => "tuning",
            Self::Quoted => "quoted",
            Self::Both => "both",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pools at one rate: what is predicted is held against what was measured, start included, and
    /// the worst cell is named first.
    #[test]
    fn both_tables_name_their_worst_cells() {
        let cell = |pool: &str, own_s: f64| Cell {
            pool: pool.into(),
            len: 375_000,
            mbit: 100,
            delay_ms: 0.1,
            seconds: [("narrows", own_s), ("nc", 0.04)].map(|(tool, s)| (tool.to_owned(), vec![s])).into(),
            predicted: [("narrows".to_owned(), 0.018)].into(),
            empty_s: [("narrows".to_owned(), 0.012)].into(),
        };
        let text = summary(&[cell("text", 0.02), cell("logs", 0.03)]);
        let row = |what: &str| text.lines().find(|l| l.contains(what)).unwrap().to_owned();
        assert!(row("nc over send").contains("worst 1.33 logs 0.1 ms; 2.00 text"), "{text}");
        assert!(row("virtual over real, send").contains("worst 0.60 logs 0.1 ms; 0.90 text"), "{text}");
        assert!(row("the same, nc").contains("no figure"), "{text}");
    }
}
