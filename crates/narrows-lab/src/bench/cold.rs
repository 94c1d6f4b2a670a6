//! Short transfers with everything cold: each program from its start to the end of both ends, over
//! shaped links, beside the prediction of virtual time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use narrows::block::Block;
use narrows::codec::DEFAULT_METHODS;
use narrows::monitor::cost::Prior;
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows::stream;
use narrows_link::Backend;
use narrows_sim::judge::possible;
use narrows_sim::measure::{linkable, measurable, measure};
use narrows_sim::table::{CLASSES, Table};
use narrows_sim::world::{self, Conditions};
use serde_json::{Value, json};

use super::Args;
use crate::pools::{self, Half};
use crate::race::scratch;
use crate::race::tools::Tool;
use crate::race::track::{Load, Track};
use crate::stats::{median, shuffled};
use crate::stop;

/// Tools that the best one of a cell is chosen from; those of Narrows show what its engine reaches
/// with one method.
const TOOLS: &str = "narrows,narrows:fixed:zstd:level=1,narrows:fixed:zstd:level=3,narrows:fixed:lz4,nc,zstd-1,zstd-3,zstd-9,\
     zstd-adapt,zstd-long,lz4,pipe,cat";
/// A cell whose plain transfer takes longer is left out: the first seconds are measured, and the
/// whole bench should end.
const PLAIN_MAX_S: f64 = 4.5;
const LIMIT: Duration = Duration::from_secs(60);
/// Payload of a TCP segment over the bytes that a shaper counts for it: 1,448 of 1,514.
const PAYLOAD_SHARE: f64 = 1448.0 / 1514.0;
/// Rate of an unshaped link in the prediction, in bytes/s: about that of loopback.
const UNSHAPED_BYTES_PER_S: f64 = 3e9;
/// Share of a measured time that must remain when the time of an empty transfer is taken off.
const LEAST_SHARE: f64 = 0.2;
/// Width of the search for the best schedule, and nanoseconds of a decision, as in `narrows oracle`.
const BEAM: usize = 16;
const DECISION_NS: f64 = 2000.0;

/// Seconds of every tool in every round of one cell, and the prediction.
struct Cell {
    pool: String,
    len: usize,
    mbit: u32,
    delay_ms: f64,
    seconds: BTreeMap<String, Vec<f64>>,
    /// Predicted seconds of `narrows` and of its fixed methods, and of the best schedule.
    predicted: BTreeMap<String, f64>,
    /// Seconds of the same link for a file of one byte: start-up and end of both programs.
    empty_s: f64,
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
            let own = Tool::parse("narrows").map_err(anyhow::Error::msg)?;
            let laps: Result<Vec<f64>> = (0..5).map(|_| Ok(track.lap(&own, &empty, LIMIT)?.seconds)).collect();
            let empty_s = median(&laps?);
            for (pool, bytes) in data(corpus, args, mbit)? {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let load = Load::new(folder.path(), "load", &bytes)?;
                let mut seconds = vec![vec![f64::NAN; args.rounds]; present.len()];
                for (round, i) in shuffled(present.len(), args.rounds as u32, 1) {
                    match track.lap(&present[i], &load, LIMIT) {
                        Ok(lap) => seconds[i][round as usize] = lap.seconds,
                        Err(_) if track.stopped() => break,
                        Err(error) => eprintln!("bench: {pool}: {error:#}"),
                    }
                }
                let seconds = present.iter().map(|t| t.name.clone()).zip(seconds).collect();
                let table = match tables.entry((pool.clone(), bytes.len())) {
                    Entry::Occupied(table) => table.into_mut(),
                    Entry::Vacant(place) => place.insert(costs(&bytes)?),
                };
                let predicted = predict(table, mbit, &present)?;
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

/// Costs of every method on these bytes.
fn costs(bytes: &[u8]) -> Result<Table> {
    let methods = measurable(DEFAULT_METHODS);
    let block = Block::from_vec(bytes.to_vec());
    let measured = measure("cold", &block, (&methods, &linkable(&methods)), stream::cores(), &|_| (), &|| false)
        .context("measured")?;
    // As text and back, which is how stored tables are read.
    Table::from_text(&measured.to_text(), block)
}

/// Seconds in virtual time of the tools of Narrows, and of the best schedule found (`oracle`).
fn predict(table: &Table, mbit: u32, tools: &[Tool]) -> Result<BTreeMap<String, f64>> {
    let rate = if mbit == 0 { UNSHAPED_BYTES_PER_S } else { f64::from(mbit) * 125_000.0 * PAYLOAD_SHARE };
    let setup = PolicySetup { methods: DEFAULT_METHODS, ..PolicySetup::new(stream::cores(), Prior::shipped()) };
    let mut out = BTreeMap::new();
    for tool in tools {
        let policy = match tool.name.split_once(':') {
            None if tool.name == "narrows" => "balance",
            Some(("narrows", policy)) => policy,
            _ => continue,
        };
        let spec: PolicySpec = policy.parse()?;
        let conditions = conditions(table.len(), rate, spec.block_max());
        out.insert(tool.name.clone(), world::run(table, &conditions, spec.build(&setup)).seconds);
    }
    out.insert("oracle".into(), possible(table, &conditions(table.len(), rate, CLASSES[3]), 3, BEAM).oracle);
    Ok(out)
}

fn conditions(len: usize, rate: f64, block_max: usize) -> Conditions {
    Conditions {
        len,
        cores: stream::cores(),
        decoders: stream::cores(),
        link: Speed::constant(rate),
        cpu: Speed::constant(1.0),
        receiver: Speed::constant(1.0),
        block_max,
        decision_ns: DECISION_NS,
        seed: 1,
        trace: false,
        expected_link: None,
    }
}

impl Cell {
    fn name(&self) -> String {
        let rate = if self.mbit == 0 { "unshaped".into() } else { format!("{} Mbit/s", self.mbit) };
        format!("{} {} {rate} {} ms", self.pool, pools_len(self.len), self.delay_ms)
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

    /// Predicted over measured time, the time of an empty transfer taken off the measured one; NaN if
    /// less than a fifth of it remains, which noise would decide.
    fn real(&self, tool: &str) -> f64 {
        let measured_s = self.median_s(tool);
        let seconds = Some(measured_s - self.empty_s).filter(|s| *s > LEAST_SHARE * measured_s).unwrap_or(f64::NAN);
        self.predicted.get(tool).map_or(f64::NAN, |p| p / seconds)
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

fn pools_len(len: usize) -> String {
    if len >= 1 << 20 { format!("{} MiB", len >> 20) } else { format!("{} KB", len / 1000) }
}

/// For each rate the mean and the worst cells of every figure.
fn summary(cells: &[Cell]) -> String {
    let mut rates: Vec<u32> = cells.iter().map(|c| c.mbit).collect();
    rates.sort_unstable();
    rates.dedup();
    let mut text = String::new();
    for mbit in rates {
        text += &format!("{}\n", if mbit == 0 { "unshaped".into() } else { format!("{mbit} Mbit/s") });
        let mut row = |what: &str, figure: &dyn Fn(&Cell) -> f64| {
            let mut all: Vec<(f64, String)> =
                cells.iter().filter(|c| c.mbit == mbit).map(|c| (figure(c), c.name())).collect();
            all.retain(|a| a.0.is_finite());
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            if all.is_empty() {
                return;
            }
            let mean = (all.iter().map(|a| a.0.ln()).sum::<f64>() / all.len() as f64).exp();
            let worst: Vec<String> = all.iter().take(3).map(|(x, name)| format!("{x:.2} {name}")).collect();
            text += &format!("  {what:<28} mean {mean:.3}  worst {}\n", worst.join("; "));
        };
        row("virtual time over real", &|c| c.real("narrows"));
        row("the same, best fixed method", &|c| c.best_fixed().map_or(f64::NAN, |f| c.real(f)));
        row("best program over send", &|c| c.best_program().map_or(f64::NAN, |b| c.over(b, "narrows")));
        row("best fixed method over send", &|c| c.best_fixed().map_or(f64::NAN, |b| c.over(b, "narrows")));
        row("nc over send", &|c| c.over("nc", "narrows"));
        row("cat | nc over pipe | nc", &|c| c.over("cat", "pipe"));
    }
    text
}

impl Half {
    fn name(self) -> &'static str {
        match self {
            Self::Tuning => "tuning",
            Self::Quoted => "quoted",
            Self::Both => "both",
        }
    }
}
