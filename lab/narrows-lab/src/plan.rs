//! The command `plan`: what the models of `narrows plan` predict, over what is measured.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use narrows::codec::{DEFAULT_METHODS, Method as Codec};
use narrows::stream::{self, thread_cpu_ns};
use narrows_link::Backend;
use narrows_plan::method::{Measured, Method, Piece};
use narrows_plan::network::{Limit, goodput, goodput_one_host};
use narrows_plan::threshold::Cores;
use narrows_sim::measure::{Bench, measurable};
use narrows_sim::table::STORE_NS_PER_BYTE;
use serde_json::{Value, json};

use crate::pools;
use crate::race::scratch;
use crate::race::tools::Tool;
use crate::race::track::{Load, Track};
use crate::report::About;
use crate::stats::{median, shuffled};
use crate::stop;

mod disk;

use disk::Disk;

/// Compare the predictions of `narrows plan` with measured transfers
///
/// Measures every method on a sample of each kind of data, predicts by the overlapped model how long
/// `send`, `cp` and `pipe` take over links of a given rate and onto a disk of a given rate, and runs
/// them, interleaved. Both ends of a link share the cores of this host, and the prediction knows it.
/// Needs root for links (tbf between two network namespaces), and for disks also a loop device and
/// the throttling of cgroup version 1; what is not there is left out and named.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory with one directory for each kind of data
    #[arg(long, value_name = "DIR")]
    corpus: PathBuf,
    /// Kinds of data
    #[arg(long, value_delimiter = ',', default_value = "climate,database,json,media")]
    pools: Vec<String>,
    /// Mbit/s of the links
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000")]
    links: Vec<u32>,
    /// MB/s of the disks
    #[arg(long, value_delimiter = ',', default_value = "5,50")]
    disks: Vec<u32>,
    /// Rounds of every comparison
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Write the result with every sample to this file, and a page beside it as .md
    #[arg(long, short, value_name = "FILE.json")]
    output: Option<PathBuf>,
}

/// Policies on links and disks, besides a copy by TLS on links.
const POLICIES: [&str; 5] = ["balance", "fixed:store", "fixed:lz4", "fixed:zstd:level=3", "fixed:zstd:level=9"];
const COPY: &str = "narrows-cp-tls";
/// Raw bytes by rate in MB/s, so that plain takes one to four seconds: starting is no large part.
const LENGTHS: [(f64, usize); 3] = [(2.0, 4 << 20), (20.0, 24 << 20), (f64::INFINITY, 96 << 20)];
/// Payload of a TCP segment over the bytes that a shaper counts for it: 1,448 of 1,514.
const PAYLOAD_SHARE: f64 = 1448.0 / 1514.0;
/// Blocks that methods are measured on, spread evenly over the data.
const SAMPLE_BLOCKS: usize = 32;
const BLOCK: usize = 128 << 10;
const LIMIT: Duration = Duration::from_secs(60);
/// The goal for a prediction.
const NEAR: f64 = 0.15;

/// What data cross.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Medium {
    Link { mbit: u32 },
    Disk { mb_per_s: u32 },
}

impl Medium {
    fn words(self) -> String {
        match self {
            Self::Link { mbit } => format!("link of {mbit} Mbit/s"),
            Self::Disk { mb_per_s } => format!("disk of {mb_per_s} MB/s"),
        }
    }

    /// Payload in MB/s.
    fn mb_per_s(self) -> f64 {
        match self {
            Self::Link { mbit } => f64::from(mbit) / 8.0 * PAYLOAD_SHARE,
            Self::Disk { mb_per_s } => f64::from(mb_per_s),
        }
    }

    fn goodput(self, method: &Method) -> (f64, Limit) {
        let cores = stream::cores() as f64;
        let (rate, limit) = match self {
            Self::Link { .. } => goodput_one_host(self.mb_per_s(), method, cores),
            Self::Disk { .. } => goodput(self.mb_per_s(), method, Cores { encode: cores, decode: f64::INFINITY }),
        };
        (rate.value, limit)
    }
}

/// One way to send one kind of data.
struct Cell {
    medium: Medium,
    pool: String,
    way: String,
    raw_len: usize,
    /// Of the model, without start-up.
    predicted_s: f64,
    /// The method that the prediction is of, and what limits it.
    method: String,
    limit: Limit,
    /// Seconds of the same for one byte.
    empty_s: f64,
    seconds: Vec<f64>,
}

impl Cell {
    fn measured_s(&self) -> f64 {
        median(&self.seconds)
    }

    /// Prediction over measurement, of the model alone.
    fn alone(&self) -> f64 {
        self.predicted_s / self.measured_s()
    }

    /// The same with the time of an empty transfer added to the prediction.
    fn with_start(&self) -> f64 {
        (self.predicted_s + self.empty_s) / self.measured_s()
    }

    fn json(&self) -> Value {
        json!({
            "medium": self.medium.words(), "pool": self.pool, "way": self.way, "raw_bytes": self.raw_len,
            "predicted_s": self.predicted_s, "predicted_method": self.method, "limited_by": self.limit.name(),
            "empty_s": self.empty_s, "seconds": self.seconds,
            "prediction_over_measurement": self.alone(), "with_start_up": self.with_start(),
        })
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!((1..=100).contains(&args.rounds), "--rounds is from 1 to 100");
    let stop = stop::on_signals()?;
    let folder = scratch::folder()?;
    let (mut cells, mut left_out) = (Vec::new(), Vec::new());
    let media = args.links.iter().map(|mbit| Medium::Link { mbit: *mbit });
    let media = media.chain(args.disks.iter().map(|mb_per_s| Medium::Disk { mb_per_s: *mb_per_s }));
    for medium in media {
        let measured = match medium {
            Medium::Link { mbit } => {
                Track::start(&format!("rate={mbit}mbit,burst=64K"), Backend::Kernel, false, stop.clone())
                    .and_then(|mut track| on_link(args, medium, &mut track, folder.path()))
            }
            Medium::Disk { mb_per_s } => Disk::start(folder.path(), mb_per_s)
                .and_then(|disk| on_disk(args, medium, &disk, folder.path(), &|| stop.load(Ordering::Relaxed))),
        };
        match measured {
            Ok(more) => {
                more.iter().for_each(|c| println!("{}", line(c)));
                cells.extend(more);
            }
            Err(error) => {
                let words = format!("{}: {error:#}", medium.words()).replace('\n', " ");
                eprintln!("plan: left out: {words}");
                left_out.push(words);
            }
        }
        ensure!(!stop.load(Ordering::Relaxed), "interrupted");
    }
    ensure!(!cells.is_empty(), "nothing could be measured");
    let page = page(&cells, &left_out, args.rounds);
    println!("\n{page}");
    if let Some(path) = &args.output {
        let cells: Vec<Value> = cells.iter().map(Cell::json).collect();
        let text =
            serde_json::to_string(&json!({ "about": About::new().json(), "left_out": left_out, "cells": cells }))?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        let page_path = path.with_extension("md");
        fs::write(&page_path, page).with_context(|| format!("cannot write {}", page_path.display()))?;
    }
    Ok(())
}

fn line(c: &Cell) -> String {
    format!(
        "{:<20} {:<10} {:<20} {:>7.3} s predicted, {:>7.3} s measured: {:.2}, with start-up {:.2}",
        c.medium.words(),
        c.pool,
        c.way,
        c.predicted_s,
        c.measured_s(),
        c.alone(),
        c.with_start()
    )
}

/// One kind of data, and the methods on it.
struct Pool {
    name: String,
    bytes: Vec<u8>,
    methods: Vec<Method>,
}

/// The kinds of data in the length for a medium, with their methods.
fn data(args: &Args, medium: Medium) -> Result<Vec<Pool>> {
    let len = LENGTHS.iter().find(|l| medium.mb_per_s() < l.0).map_or(LENGTHS[2].1, |l| l.1);
    let of = |pool: &String| {
        let bytes = pools::named_bytes(&args.corpus, pool, len)?;
        let methods = methods(&bytes);
        Ok(Pool { name: pool.clone(), bytes, methods })
    };
    args.pools.iter().map(of).collect()
}

/// Every method on blocks that are spread evenly over the data, as `narrows plan` measures them.
fn methods(bytes: &[u8]) -> Vec<Method> {
    let blocks: Vec<&[u8]> = bytes.chunks(BLOCK).collect();
    let step = blocks.len().div_ceil(SAMPLE_BLOCKS).max(1);
    let mut bench = Bench::new(thread_cpu_ns);
    let mut piece = |method: Codec, block: &[u8]| {
        let cost = bench.cost(method, &[], block);
        let copied_ns = block.len() as f64 * STORE_NS_PER_BYTE;
        let decode_ns = if cost.decode_ns > 0.0 { cost.decode_ns } else { copied_ns };
        Piece { raw_len: block.len() as f64, wire_len: cost.wire_len, encode_ns: cost.encode_ns, decode_ns }
    };
    let measured = measurable(DEFAULT_METHODS).into_iter().filter_map(|m| {
        let pieces = blocks.iter().skip(step / 2).step_by(step).map(|b| piece(m, b)).collect();
        Measured { name: m.to_string(), class: String::new(), pieces }.method()
    });
    std::iter::once(Method::none()).chain(measured).collect()
}

/// Seconds by the overlapped model for a policy: that of its method, or for one that chooses, and for
/// a copy, that of the best method.
fn predict(medium: Medium, way: &str, methods: &[Method], len: usize) -> Result<(f64, String, Limit)> {
    let fixed = way.split_once("fixed:").map(|(_, method)| method.parse::<Codec>()).transpose()?;
    let is_it = |m: &&Method| match fixed {
        Some(Codec::STORE) => m.is_none(),
        Some(codec) => m.name == codec.to_string(),
        None => true,
    };
    let rate = |m: &Method| medium.goodput(m);
    let best = methods.iter().filter(is_it).max_by(|a, b| rate(a).0.total_cmp(&rate(b).0));
    let best = best.with_context(|| format!("{way} was not measured"))?;
    let (mb_per_s, limit) = rate(best);
    Ok((len as f64 / 1e6 / mb_per_s, best.name.clone(), limit))
}

fn on_link(args: &Args, medium: Medium, track: &mut Track, folder: &std::path::Path) -> Result<Vec<Cell>> {
    let names = POLICIES.iter().map(|p| if *p == "balance" { "narrows".to_owned() } else { format!("narrows:{p}") });
    let tools: Vec<Tool> = names
        .chain([COPY.to_owned()])
        .map(|name| Tool::parse(&name))
        .collect::<Result<_, _>>()
        .map_err(anyhow::Error::msg)?;
    for tool in &tools {
        track.prepare(tool)?;
    }
    let empty = Load::new(folder, "empty", b"x")?;
    let mut empty_s = Vec::new();
    for tool in &tools {
        let laps: Result<Vec<f64>> = (0..3).map(|_| Ok(track.lap(tool, &empty, LIMIT)?.seconds)).collect();
        empty_s.push(median(&laps?));
    }
    let mut cells = Vec::new();
    for Pool { name, bytes, methods } in data(args, medium)? {
        let load = Load::new(folder, "load", &bytes)?;
        let mut seconds = vec![vec![f64::NAN; args.rounds]; tools.len()];
        for (round, i) in shuffled(tools.len(), args.rounds as u32, 1) {
            seconds[i][round as usize] = track.lap(&tools[i], &load, LIMIT)?.seconds;
        }
        for ((tool, seconds), empty_s) in tools.iter().zip(seconds).zip(&empty_s) {
            let (predicted_s, method, limit) = predict(medium, &tool.name, &methods, bytes.len())?;
            let way = match tool.name.strip_prefix("narrows") {
                Some("") => "send".into(),
                Some("-cp-tls") => "cp, TLS".into(),
                Some(policy) => format!("send, {}", policy.trim_start_matches(":fixed:")),
                None => tool.name.clone(),
            };
            let (pool, raw_len, empty_s) = (name.clone(), bytes.len(), *empty_s);
            cells.push(Cell { medium, pool, way, raw_len, predicted_s, method, limit, empty_s, seconds });
        }
    }
    Ok(cells)
}

fn on_disk(
    args: &Args,
    medium: Medium,
    disk: &Disk,
    folder: &std::path::Path,
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<Cell>> {
    let empty = Load::new(folder, "empty", b"x")?;
    let empty_s: Result<Vec<f64>> = (0..3).map(|_| disk.store(&empty.path, "balance", folder)).collect();
    let empty_s = median(&empty_s?);
    let mut cells = Vec::new();
    for Pool { name, bytes, methods } in data(args, medium)? {
        let load = Load::new(folder, "load", &bytes)?;
        let mut seconds = vec![vec![f64::NAN; args.rounds]; POLICIES.len()];
        for (round, i) in shuffled(POLICIES.len(), args.rounds as u32, 1) {
            ensure!(!stopped(), "interrupted");
            seconds[i][round as usize] = disk.store(&load.path, POLICIES[i], folder)?;
        }
        for (policy, seconds) in POLICIES.iter().zip(seconds) {
            let (predicted_s, method, limit) = predict(medium, policy, &methods, bytes.len())?;
            let way = match policy.strip_prefix("fixed:") {
                Some(method) => format!("pipe, {method}"),
                None => "pipe".into(),
            };
            let (pool, raw_len) = (name.clone(), bytes.len());
            cells.push(Cell { medium, pool, way, raw_len, predicted_s, method, limit, empty_s, seconds });
        }
    }
    Ok(cells)
}

/// The result in words: medians by medium and by way, then every cell beyond the goal.
fn page(cells: &[Cell], left_out: &[String], rounds: usize) -> String {
    let mut text = format!(
        "# Predictions of `narrows plan` over measured transfers\n\n\
         Seconds by the overlapped model, from methods measured on a sample of the data, over seconds measured; medians of \n\
         {rounds} interleaved rounds. Above 1 the transfer was faster than predicted. `alone` is the model as it is; `with\n\
         start-up` has the time of a transfer of one byte added. A prediction for `send`, `cp` and `pipe` without a method is\n\
         that of the best method. Both ends of a link share the cores of one host, and the model counts them so.\n\n"
    );
    let ratios = |of: &dyn Fn(&Cell) -> bool, f: fn(&Cell) -> f64| -> Vec<f64> {
        cells.iter().filter(|c| of(c)).map(f).filter(|x| x.is_finite()).collect()
    };
    let error = |values: &[f64]| median(&values.iter().map(|v| (v - 1.0).abs()).collect::<Vec<_>>());
    let mut row = |what: &str, of: &dyn Fn(&Cell) -> bool| {
        let (alone, with) = (ratios(of, Cell::alone), ratios(of, Cell::with_start));
        let near = alone.iter().filter(|v| (*v - 1.0).abs() <= NEAR).count();
        let _ = writeln!(
            text,
            "| {what} | {:.2} | {:.0} % | {near} of {} | {:.2} | {:.0} % |",
            median(&alone),
            100.0 * error(&alone),
            alone.len(),
            median(&with),
            100.0 * error(&with)
        );
    };
    row("HEAD", &|_| false);
    row("all", &|_| true);
    let mut media: Vec<Medium> = cells.iter().map(|c| c.medium).collect();
    media.dedup();
    for medium in media {
        row(&medium.words(), &|c| c.medium == medium);
    }
    let mut ways: Vec<&str> = cells.iter().map(|c| c.way.as_str()).collect();
    ways.sort_unstable();
    ways.dedup();
    for way in ways {
        row(way, &|c| c.way == way);
    }
    let mut pools: Vec<&str> = cells.iter().map(|c| c.pool.as_str()).collect();
    pools.sort_unstable();
    pools.dedup();
    for pool in pools {
        row(&format!("data: {pool}"), &|c| c.pool == pool);
    }
    let head = "| cells | alone, median | error, median | within 15 % | with start-up, median | error, median |\n\
                | --- | --- | --- | --- | --- | --- |";
    let first = text.lines().find(|l| l.starts_with("| HEAD")).unwrap_or_default().to_owned();
    text = text.replace(&first, head);
    let mut far: Vec<&Cell> = cells.iter().filter(|c| (c.alone() - 1.0).abs() > NEAR).collect();
    far.sort_by(|a, b| (b.alone().ln().abs()).total_cmp(&a.alone().ln().abs()));
    let _ = writeln!(
        text,
        "\n## Where not within 15 %\n\n\
         | medium | data | way | predicted | of method | limited by | measured | alone | with start-up |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for c in far {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.3} s | {} | {} | {:.3} s | {:.2} | {:.2} |",
            c.medium.words(),
            c.pool,
            c.way,
            c.predicted_s,
            c.method,
            c.limit.name(),
            c.measured_s(),
            c.alone(),
            c.with_start()
        );
    }
    for words in left_out {
        let _ = writeln!(text, "\nLeft out: {words}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(name: &str, ratio: f64) -> Method {
        Method::exact(name, 100.0, 400.0, ratio)
    }

    #[test]
    fn a_policy_that_chooses_is_predicted_by_the_best_method_and_a_fixed_one_by_its_own() {
        let methods = [Method::none(), method("lz4", 2.0), method("zstd", 3.0)];
        let disk = Medium::Disk { mb_per_s: 10 };
        let of = |way: &str| predict(disk, way, &methods, 60_000_000).unwrap();
        assert_eq!(of("balance"), (2.0, "zstd".into(), Limit::Link));
        assert_eq!(of("narrows:fixed:lz4"), (3.0, "lz4".into(), Limit::Link));
        assert_eq!(of("fixed:store").0, 6.0);
        assert!(predict(disk, "fixed:xz", &methods, 1).is_err());
    }

    #[test]
    fn the_page_names_what_is_far_off() {
        let cell = |seconds: f64, way: &str| Cell {
            medium: Medium::Link { mbit: 10 },
            pool: "json".into(),
            way: way.into(),
            raw_len: 1,
            predicted_s: 1.0,
            method: "zstd".into(),
            limit: Limit::Link,
            empty_s: 0.5,
            seconds: vec![seconds],
        };
        let page = page(&[cell(1.1, "send"), cell(2.0, "cp, TLS")], &["disks: none".into()], 3);
        assert!(page.contains("| send | 0.91 | 9 % | 1 of 1 |"), "{page}");
        assert!(
            page.contains("| link of 10 Mbit/s | json | cp, TLS | 1.000 s | zstd | link | 2.000 s | 0.50 | 0.75 |")
        );
        assert!(page.contains("Left out: disks: none") && !page.contains("HEAD"));
    }
}
