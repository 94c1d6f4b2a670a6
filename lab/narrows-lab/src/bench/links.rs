//! Every kind of data over shaped links: `send` and `recv` against nc, and `balance` against fixed
//! methods.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::policy::PolicySpec;
use serde_json::{Value, json};

use super::{Args, listening, median, program, temporary_with, timed_pair};

/// Methods that can be the best fixed one at this rate: the others are slower on four cores than
/// the link, or compress less than one that is fast enough.
fn fixed(mbit: u32) -> Vec<Method> {
    // No pool consists of one repeated byte.
    let all: Vec<_> = DEFAULT_METHODS.iter().copied().filter(|m| *m != Method::CONSTANT).collect();
    match mbit {
        0 => all[..6].to_vec(),
        1..=10 => all[4..].to_vec(),
        11..=100 => all[3..].to_vec(),
        _ => all[..9].to_vec(),
    }
}

/// Bytes per run: a few seconds of plain on slow links, 32 MB from 1000 Mbit/s up.
const LINK_BYTES: [(u32, usize); 4] = [(10, 8 << 20), (100, 16 << 20), (1000, 32 << 20), (0, 32 << 20)];
/// Minimum queue of the shaper in bytes, which otherwise holds 20 ms: with less, slow start alone
/// loses hundreds of packets.
const QUEUE_MIN: u32 = 128 << 10;
const ADDRESS: &str = "127.0.0.1:7715";

/// Runs one process per link, in its own network namespace with a shaped loopback.
pub(super) fn run(args: &Args) -> Result<Value> {
    let corpus = args.corpus.as_ref().context("--corpus is needed for the links")?;
    let mut cells = Vec::new();
    for mbit in &args.links {
        // A separate cache, so that runs do not change this host's, and every link begins with the
        // same state.
        let cache = tempfile::tempdir()?;
        let calibrated = Command::new(program()).arg("calibrate").env("XDG_CACHE_HOME", cache.path()).output()?;
        ensure!(calibrated.status.success(), "narrows calibrate failed");
        let mut command = Command::new("unshare");
        command.args(["-r", "-n"]).arg(std::env::current_exe()?).arg("bench").env("XDG_CACHE_HOME", cache.path());
        command.args(["--inside", &mbit.to_string(), "--rounds", &args.rounds.to_string()]);
        command.arg("--corpus").arg(corpus);
        if !args.pools.is_empty() {
            command.args(["--pools", &args.pools.join(",")]);
        }
        if let Some(priors) = &args.priors {
            command.arg("--priors").arg(priors);
        }
        let output = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).output().context("cannot run unshare")?;
        ensure!(output.status.success(), "the shaped part failed; it needs unshare, ip and tc");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let cell: Value = serde_json::from_str(line)?;
            cells.push(cell);
        }
    }
    print(&cells);
    Ok(json!({ "cells": cells }))
}

fn print(cells: &[Value]) {
    let get = |c: &Value, key: &str| c[key].as_f64().unwrap_or(0.0);
    println!("links: medians of paired ratios; nc and the best fixed method of the cell are 1.00");
    println!("{:>6} {:<10} {:>9} {:>9} {:>9}  {:<16} ratio", "Mbit/s", "pool", "nc MB/s", "of nc", "of best", "best");
    for c in cells {
        println!(
            "{:>6} {:<10} {:>9.1} {:>9.2} {:>9.2}  {:<16} {:.2}",
            c["mbit_per_s"],
            c["pool"].as_str().unwrap_or(""),
            get(c, "plain_mb_per_s"),
            get(c, "of_plain"),
            get(c, "of_best_fixed"),
            c["best_fixed"].as_str().unwrap_or(""),
            get(c, "ratio")
        );
    }
    let mut links: Vec<u64> = cells.iter().filter_map(|c| c["mbit_per_s"].as_u64()).collect();
    links.dedup();
    for mbit in links {
        let cells: Vec<_> = cells.iter().filter(|c| c["mbit_per_s"].as_u64() == Some(mbit)).collect();
        let mean = |key: &str| cells.iter().map(|c| get(c, key)).sum::<f64>() / cells.len().max(1) as f64;
        let worst = cells.iter().map(|c| get(c, "of_plain")).fold(f64::INFINITY, f64::min);
        println!(
            "{mbit:>6} Mbit/s: of nc mean {:.3}, worst {worst:.3}; of the best fixed method mean {:.3}",
            mean("of_plain"),
            mean("of_best_fixed")
        );
    }
}

/// Prints the cells of one link, one JSON line each. This process is in the link's namespace.
pub(super) fn inside(args: &Args, mbit: u32) -> Result<()> {
    let sh = |line: &str| -> Result<()> {
        ensure!(Command::new("sh").args(["-c", line]).status()?.success(), "{line} failed");
        Ok(())
    };
    sh("ip link set lo up")?;
    if mbit > 0 {
        // The MTU of Ethernet, so that the shaper sees the same packets as on a real link.
        sh("ip link set lo mtu 1500")?;
        sh(&format!("tc qdisc add dev lo root tbf rate {mbit}mbit burst 64k limit {}", (mbit * 2500).max(QUEUE_MIN)))?;
    }
    let corpus = args.corpus.as_ref().context("--corpus is needed")?;
    let mut pools: Vec<_> =
        fs::read_dir(corpus)?.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_dir()).collect();
    pools.sort();
    let bytes = LINK_BYTES.iter().find(|l| l.0 == mbit).map_or(16 << 20, |l| l.1);
    for pool in pools {
        let name = pool.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !args.pools.is_empty() && !args.pools.contains(&name) {
            continue;
        }
        let data = crate::pools::folder_bytes(&pool, bytes)?;
        let file = temporary_with(&format!("link-{mbit}"), &data)?;
        let prior = args.priors.as_ref().map(|d| d.join(format!("{name}.prior"))).filter(|p| p.is_file());
        println!("{}", Cell { mbit, pool: &name, data: &data, file: &file.0, prior }.measure(args.rounds)?);
    }
    Ok(())
}

struct Cell<'a> {
    mbit: u32,
    pool: &'a str,
    data: &'a [u8],
    file: &'a Path,
    prior: Option<PathBuf>,
}

impl Cell<'_> {
    fn measure(&self, rounds: usize) -> Result<Value> {
        let fixed = fixed(self.mbit).into_iter().map(|method| PolicySpec::fixed(method, false));
        let specs: Vec<String> =
            std::iter::once(PolicySpec::balance()).chain(fixed).map(|spec| spec.to_string()).collect();
        let ratio = self.compare(&specs[0])?;
        let mut plain_s = Vec::new();
        let mut seconds = vec![Vec::new(); specs.len()];
        for _ in 0..rounds {
            let (host, port) = ADDRESS.split_once(':').context("an address")?;
            plain_s.push(timed_pair("nc", &["-l", host, port], "nc", &["-N", host, port], self.file)?);
            for (spec, seconds) in specs.iter().zip(&mut seconds) {
                let recv = ["recv", "--listen", ADDRESS, "-o", "-", "-q"];
                let send = self.send(spec);
                let send: Vec<_> = send.iter().map(String::as_str).collect();
                seconds.push(timed_pair(&program(), &recv, &program(), &send, self.file)?);
            }
        }
        let ratios = |of: &[f64], by: &[f64]| median(&of.iter().zip(by).map(|(a, b)| a / b).collect::<Vec<_>>());
        let best = (1..specs.len())
            .min_by(|a, b| median(&seconds[*a]).total_cmp(&median(&seconds[*b])))
            .context("a method")?;
        // nc counts as a fixed method too: the one that people use.
        let best_is_plain = median(&plain_s) < median(&seconds[best]);
        let best_s = if best_is_plain { &plain_s } else { &seconds[best] };
        Ok(json!({
            "mbit_per_s": self.mbit,
            "pool": self.pool,
            "raw_bytes": self.data.len(),
            "plain_mb_per_s": self.data.len() as f64 / median(&plain_s) / 1e6,
            "of_plain": ratios(&plain_s, &seconds[0]),
            "best_fixed": if best_is_plain { "nc" } else { &specs[best] },
            "of_best_fixed": ratios(best_s, &seconds[0]),
            "ratio": ratio,
            "prior": if self.prior.is_some() { "made without this pool" } else { "shipped" },
            "plain_s": plain_s,
            "seconds": specs.iter().zip(&seconds).map(|(s, t)| (s.clone(), json!(t))).collect::<serde_json::Map<_, _>>(),
        }))
    }

    fn send(&self, spec: &str) -> Vec<String> {
        let file = self.file.to_string_lossy().into_owned();
        let mut send = ["send", &file, &format!("tcp://{ADDRESS}"), "-q", "--policy", spec].map(String::from).to_vec();
        if let Some(prior) = &self.prior {
            send.extend(["--prior".into(), prior.to_string_lossy().into_owned()]);
        }
        send
    }

    /// One run without timing, which compares the received bytes. Returns the ratio.
    fn compare(&self, spec: &str) -> Result<f64> {
        let out = self.file.with_extension("received");
        let out_name = out.to_string_lossy();
        let mut recv: Child =
            listening(&program(), &["recv", "--listen", ADDRESS, "-o", &out_name, "-q"], Stdio::null())?;
        let mut send = self.send(spec);
        send.retain(|a| a != "-q");
        let sent = Command::new(program()).args(&send).arg("--json").output()?;
        ensure!(sent.status.success() && recv.wait()?.success(), "narrows failed");
        let same = fs::read(&out)? == self.data;
        fs::remove_file(&out)?;
        ensure!(same, "{}: other bytes arrived than were sent", self.pool);
        let summary: Value = serde_json::from_slice(&sent.stdout)?;
        summary["ratio"].as_f64().context("the summary has a ratio")
    }
}
