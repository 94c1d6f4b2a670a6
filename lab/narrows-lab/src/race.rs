//! The command `race`: Narrows against other programs on the same link, interleaved, with every
//! byte compared.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::report::About;
use crate::stats::{Summary, shuffled};
use crate::units::parse_len;
use crate::{pools, stop};
use narrows_host::whole::write_whole;
use net::Net;
use tools::Tool;
use track::{Load, Track};

pub(crate) mod net;
pub(crate) mod scratch;
pub(crate) mod servers;
pub(crate) mod tools;
pub(crate) mod track;

/// Race Narrows against other programs over a link
///
/// Sends FILE completely, or LEN bytes of a folder (one kind of data). Tools: narrows and
/// narrows:POLICY (`send` and `recv`), narrows-cp (through ssh) and narrows-cp-tls, nc, socat, scp,
/// scp-C, rsync, rsync-z, rsync-zstd, tar-zstd, and zstd-1, zstd-3, zstd-adapt, lz4 and gzip each
/// piped through nc; also gzip-1-then-nc and gzip-9-then-nc, which compress the whole file before
/// they send it. Tools that are not installed are skipped and listed. scp and similar tools use the
/// race's own OpenSSH server, which needs root.
///
/// All tools run once per round in a shuffled order. The time is from the start of the sender until
/// both ends have ended; then the received bytes are compared with those sent. A ratio is the other
/// tool's time over ours, the median over rounds: above 1 we are faster.
///
/// Exit status: 0, 1 if a tool failed, bytes changed or the race was interrupted, 2 for wrong
/// usage.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Data to send: files, or folders with one kind of data each
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Links: profiles of `narrows-lab link`, or `none` for this host's loopback (may be repeated)
    #[arg(long, value_name = "PROFILE", default_value = "none", value_parser = parse_link)]
    link: Vec<String>,
    /// Tools of Narrows; the others are compared with the first one
    #[arg(long, value_name = "TOOL,..", value_delimiter = ',', default_value = "narrows", value_parser = Tool::parse)]
    ours: Vec<Tool>,
    /// Tools to race against
    #[arg(long, value_name = "TOOL,..", value_delimiter = ',', default_value = tools::PEERS, value_parser = Tool::parse)]
    against: Vec<Tool>,
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Bytes of a folder's data
    #[arg(long, value_name = "LEN", default_value = "32M", value_parser = parse_len)]
    bytes: usize,
    /// Send from the server to the client of the link
    #[arg(long)]
    down: bool,
    /// Limit on the time of a run; a longer one fails
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Write every sample to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn parse_link(text: &str) -> Result<String, String> {
    Net::check(text).map(|()| text.to_owned())
}

/// Seconds of each tool and round of one file on one link.
struct Cell {
    link: String,
    file: String,
    len: u64,
    seconds: BTreeMap<String, Vec<f64>>,
    failed: BTreeMap<String, String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let stop = stop::on_signals()?;
    for file in &args.files {
        ensure!(file.exists(), "there is no {}", file.display());
    }
    let mut tools: Vec<Tool> = Vec::new();
    for tool in args.ours.iter().chain(&args.against) {
        if !tools.contains(tool) {
            tools.push(tool.clone());
        }
    }
    let folder = scratch::folder()?;
    let (mut cells, mut skipped) = (Vec::new(), BTreeMap::new());
    for link in &args.link {
        let mut track = Track::new(link, args.down, stop.clone())?;
        let mut present = Vec::new();
        for tool in &tools {
            match track.prepare(tool) {
                Ok(()) => present.push(tool.clone()),
                Err(error) => {
                    let known = skipped.insert(tool.name.clone(), format!("{error:#}"));
                    if known.is_none() {
                        eprintln!("race: {} is skipped: {error:#}", tool.name);
                    }
                }
            }
        }
        ensure!(present.iter().any(|t| t.name == args.ours[0].name), "{} cannot run", args.ours[0].name);
        for file in &args.files {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let cell = race(args, &track, &present, link, file, folder.path())?;
            print!("{}", table(&cell, &present, &args.ours[0].name));
            cells.push(cell);
            if let Some(path) = &args.json {
                write_whole(&absolute(path)?, (result(args, &cells, &skipped).to_string() + "\n").as_bytes())?;
            }
        }
    }
    print!("{}", worst(&cells, &args.ours[0].name));
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted; the results so far are above");
    }
    let failed = cells.iter().map(|c| c.failed.len()).sum::<usize>();
    ensure!(failed == 0, "{failed} runs of tools failed");
    Ok(())
}

/// The absolute path, so that its folder has a name.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{} is not a valid path", path.display()))
}

fn race(args: &Args, track: &Track, tools: &[Tool], link: &str, file: &Path, folder: &Path) -> Result<Cell> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bytes = match file.is_dir() {
        true => pools::folder_bytes(file, args.bytes)?,
        false => fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
    };
    ensure!(!bytes.is_empty(), "{} is empty", file.display());
    let load = Load::new(folder, "load", &bytes)?;
    let mut cell =
        Cell { link: link.to_owned(), file: name, len: load.len, seconds: BTreeMap::new(), failed: BTreeMap::new() };
    // Seconds by tool and round; NaN for a failed run.
    let mut seconds = vec![vec![f64::NAN; args.rounds as usize]; tools.len()];
    for (round, i) in shuffled(tools.len(), args.rounds, 1) {
        if track.stopped() {
            break;
        }
        if cell.failed.contains_key(&tools[i].name) {
            continue;
        }
        match track.lap(&tools[i], &load, Duration::from_secs(args.timeout)) {
            Ok(lap) => seconds[i][round as usize] = lap.seconds,
            Err(_) if track.stopped() => break,
            Err(error) => {
                eprintln!("race: {link}, {}: {error:#}", cell.file);
                cell.failed.insert(tools[i].name.clone(), format!("{error:#}"));
            }
        }
    }
    for (tool, seconds) in tools.iter().zip(seconds) {
        cell.seconds.insert(tool.name.clone(), seconds);
    }
    Ok(cell)
}

impl Cell {
    /// Statistics of the time of `tool` over ours, paired by round.
    fn against(&self, tool: &str, ours: &str) -> Option<Summary> {
        let pairs = self.seconds.get(tool)?.iter().zip(self.seconds.get(ours)?);
        Summary::of(&pairs.map(|(other, own)| other / own).collect::<Vec<_>>())
    }

    /// The quickest tool that is not ours, and its time over ours.
    fn best_other(&self, ours: &str) -> Option<(&str, Summary)> {
        let others = self.seconds.keys().filter(|t| !t.starts_with("narrows"));
        let all = others.filter_map(|t| Some((t.as_str(), Summary::of(&self.seconds[t])?.median)));
        let best = all.min_by(|a, b| a.1.total_cmp(&b.1))?.0;
        Some((best, self.against(best, ours)?))
    }
}

fn table(cell: &Cell, tools: &[Tool], ours: &str) -> String {
    let mut text = format!("{}, {}, {} bytes\n", cell.link, cell.file, cell.len);
    text += &format!("  {:<16} {:>9} {:>19} {:>9} {:>8}\n", "tool", "s", "min to max", "Mbit/s", "time/own");
    let mut rows: Vec<_> = tools.iter().filter_map(|t| Some((t, Summary::of(&cell.seconds[&t.name])?))).collect();
    rows.sort_by(|a, b| a.1.median.total_cmp(&b.1.median));
    for (tool, s) in rows {
        let ratio = cell.against(&tool.name, ours).map_or("-".into(), |r| format!("{:.3}", r.median));
        text += &format!(
            "  {:<16} {:>9.4} {:>19} {:>9.1} {ratio:>8}\n",
            tool.name,
            s.median,
            format!("{:.4} to {:.4}", s.min, s.max),
            cell.len as f64 * 8e-6 / s.median
        );
    }
    for (tool, error) in &cell.failed {
        text += &format!("  {tool:<16} FAILED: {error}\n");
    }
    if let Some((best, s)) = cell.best_other(ours) {
        text += &format!("  {ours}: {:.3} of the best other ({best}; {:.3} to {:.3})", s.median, s.min, s.max);
        if let Some(plain) = cell.against("nc", ours) {
            text += &format!(", {:.3} of nc ({:.3} to {:.3})", plain.median, plain.min, plain.max);
        }
        text.push('\n');
    }
    text
}

/// Geometric means over cells, each with the worst cells by name.
fn worst(cells: &[Cell], ours: &str) -> String {
    let mut text = String::new();
    let list = |what: &str, of: &dyn Fn(&Cell) -> Option<(String, f64)>| {
        let mut all: Vec<_> =
            cells.iter().filter_map(|c| of(c).map(|(who, x)| (x, format!("{}, {}{who}", c.link, c.file)))).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mean = (all.iter().map(|a| a.0.ln()).sum::<f64>() / all.len() as f64).exp();
        let rows = all.iter().take(5).map(|(x, name)| format!("  {x:.3} {name}\n")).collect::<String>();
        if all.is_empty() { String::new() } else { format!("{what}: geometric mean {mean:.3}; least:\n{rows}") }
    };
    text += &list(&format!("{ours} against the best other"), &|c| {
        c.best_other(ours).map(|(who, s)| (format!(" ({who})"), s.median))
    });
    text += &list(&format!("{ours} against nc"), &|c| c.against("nc", ours).map(|s| (String::new(), s.median)));
    text
}

fn result(args: &Args, cells: &[Cell], skipped: &BTreeMap<String, String>) -> Value {
    let ours = &args.ours[0].name;
    let cell = |c: &Cell| {
        let of_plain = c.against("nc", ours).map(|s| s.json());
        let best = c.best_other(ours);
        json!({
            "link": c.link, "file": c.file, "raw_bytes": c.len, "seconds": c.seconds, "failed": c.failed,
            "of_plain": of_plain, "best_other": best.map(|b| b.0), "of_best_other": best.map(|b| b.1.json()),
        })
    };
    json!({
        "about": About::new().json(), "rounds": args.rounds, "down": args.down, "judged": ours, "skipped": skipped,
        "cells": cells.iter().map(cell).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_pairs_and_the_worst_cell_is_named() {
        let seconds = |own: [f64; 3], nc: [f64; 3]| {
            BTreeMap::from([("narrows".to_owned(), own.to_vec()), ("nc".to_owned(), nc.to_vec())])
        };
        let cell = |file: &str, seconds| Cell {
            link: "none".into(),
            file: file.into(),
            len: 1_000_000,
            seconds,
            failed: BTreeMap::new(),
        };
        let cells =
            [cell("text", seconds([1.0, 2.0, 1.0], [2.0, 4.0, f64::NAN])), cell("noise", seconds([1.0; 3], [0.9; 3]))];
        assert_eq!(cells[0].best_other("narrows").unwrap().1.median, 2.0);
        let text = worst(&cells, "narrows");
        let first = text.lines().nth(1).unwrap();
        assert!(first.contains("0.900") && first.contains("noise"), "{text}");
        let tools: Vec<_> = ["nc", "narrows"].map(|t| Tool::parse(t).unwrap()).to_vec();
        assert!(table(&cells[0], &tools, "narrows").contains("2.000 of nc"));
    }
}
