//! `narrows cp` against scp, rsync and tar with zstd, through the bench's own OpenSSH server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::relay::{Relay, Shape};
use super::{Args, median, mixed, program};
use narrows_sim::rng::Rng;

use crate::race::net::Net;
use crate::race::servers::{Server, Sshd};

/// (Mbit/s, raw bytes of one copy): some seconds for the slowest tool.
const FILE_BYTES: [(u32, usize); 4] = [(10, 13 << 20), (100, 200 << 20), (1000, 200 << 20), (0, 200 << 20)];
const SMALL_FILES: [(u32, usize); 4] = [(10, 1000), (100, 10_000), (1000, 10_000), (0, 10_000)];
const RTTS_MS: [u64; 2] = [0, 40];
/// Timeout of a copy in seconds.
const PATIENCE_S: &str = "300";

/// The copied data, and the state of the target before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    File,
    SmallFiles,
    /// Copy again after 1 % of the data has changed.
    FileAgain,
    SmallFilesAgain,
}

impl Work {
    const ALL: [Self; 4] = [Self::File, Self::SmallFiles, Self::FileAgain, Self::SmallFilesAgain];

    fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::SmallFiles => "small",
            Self::FileAgain => "file-again",
            Self::SmallFilesAgain => "small-again",
        }
    }

    fn again(self) -> bool {
        matches!(self, Self::FileAgain | Self::SmallFilesAgain)
    }
}

/// The first of [`TOOLS`] are ours.
const OURS: usize = 3;
/// A tool as a line of shell: `$SRC/` is copied to `$DST/` on `127.0.0.1` by `$SSH`.
const TOOLS: [(&str, &str); 9] = [
    ("narrows", "$NARROWS cp -q -r -e \"$SSH\" --remote-narrows $NARROWS $SRC/ 127.0.0.1:$DST/"),
    ("narrows-tls", "$NARROWS cp -q -r --token-file $TOKEN $SRC/ narrows://127.0.0.1:$PORT$DST/"),
    ("narrows-nosync", "$NARROWS cp -q -r --fsync none -e \"$SSH\" --remote-narrows $NARROWS $SRC/ 127.0.0.1:$DST/"),
    ("scp", "scp -q -r -p -F none $SCP $SRC/. 127.0.0.1:$DST/"),
    ("scp-C", "scp -C -q -r -p -F none $SCP $SRC/. 127.0.0.1:$DST/"),
    ("rsync", "rsync -a -e \"$SSH\" $SRC/ 127.0.0.1:$DST/"),
    ("rsync-z", "rsync -a -z -e \"$SSH\" $SRC/ 127.0.0.1:$DST/"),
    ("rsync-zstd", "rsync -a --zc=zstd --zl=$LEVEL -e \"$SSH\" $SRC/ 127.0.0.1:$DST/"),
    ("tar-zstd", "tar -C $SRC -cf - . | zstd -q -1 -T0 | $SSH 127.0.0.1 \"zstd -dcq | tar -C $DST -xf -\""),
];

pub(super) fn run(args: &Args) -> Result<Value> {
    let folder = tempfile::tempdir()?;
    let sshd = Sshd::start(&Net::Local, folder.path())?;
    let server = Server::start(&Net::Local, folder.path(), &program())?;
    let mut cells = Vec::new();
    for mbit in &args.links {
        let source = Sources::make(args, folder.path(), *mbit)?;
        for rtt_ms in RTTS_MS.into_iter().filter(|ms| *mbit > 0 || *ms == 0) {
            let shape = Shape { mbit: *mbit, rtt: Duration::from_millis(rtt_ms) };
            let relays = [Relay::start(sshd.port, shape)?, Relay::start(server.port, shape)?];
            for work in
                Work::ALL.into_iter().filter(|w| args.pools.is_empty() || args.pools.iter().any(|p| p == w.name()))
            {
                cells.push(cell(args, (&sshd, &server), &relays, &source, work, (*mbit, rtt_ms))?);
            }
        }
    }
    Ok(json!({ "cells": cells }))
}

fn cell(
    args: &Args,
    (sshd, server): (&Sshd, &Server),
    relays: &[Relay; 2],
    source: &Sources,
    work: Work,
    (mbit, rtt_ms): (u32, u64),
) -> Result<Value> {
    let mut seconds = vec![Vec::new(); TOOLS.len()];
    let mut bytes = vec![Vec::new(); TOOLS.len()];
    let mut cpu = vec![Vec::new(); TOOLS.len()];
    for round in 0..args.rounds {
        for (i, (name, line)) in TOOLS.iter().enumerate() {
            // scp needs five round trips per file, which would take half an hour.
            let small = matches!(work, Work::SmallFiles | Work::SmallFilesAgain);
            let endless = name.starts_with("scp") && rtt_ms > 0 && small;
            // These are measured only for their CPU cost, which does not depend on the link.
            let slow = matches!(*name, "scp-C" | "rsync-z") && (work, mbit) != (Work::File, 0);
            if endless || slow {
                seconds[i].push(f64::INFINITY);
                bytes[i].push(0);
                cpu[i].push(f64::NAN);
                continue;
            }
            let target = source.target(work)?;
            let _ = relays.each_ref().map(Relay::take_bytes);
            // Without shaping, bypass the relay, which would only cost time.
            let port = |own, relay: &Relay| if mbit == 0 { own } else { relay.port };
            let (ssh_port, port) = (port(sshd.port, &relays[0]), port(server.port, &relays[1]));
            let level = if mbit >= 100 || mbit == 0 { "1" } else { "3" };
            let begun = Instant::now();
            let ran = Command::new("timeout")
                .args([PATIENCE_S, "bash", "-c", &format!("TIMEFORMAT='%U %S'; time {{ set -e; {line}; }}")])
                .env("NARROWS", program())
                .env("SSH", sshd.ssh(ssh_port))
                .env("SCP", sshd.options(ssh_port, "-P"))
                .env("PORT", port.to_string())
                .env("TOKEN", &server.token)
                .env("LEVEL", level)
                .env("SRC", source.of(work))
                .env("DST", &target)
                .stdin(Stdio::null())
                .output()?;
            seconds[i].push(begun.elapsed().as_secs_f64());
            bytes[i].push(relays.iter().map(Relay::take_bytes).sum());
            let said = String::from_utf8_lossy(&ran.stderr);
            ensure!(ran.status.success(), "{name} failed: {said}");
            // User and system time at this end: the tool, its shell and their children.
            cpu[i].push(said.lines().last().unwrap_or_default().split(' ').filter_map(|s| s.parse::<f64>().ok()).sum());
            if round == 0 {
                let same = Command::new("diff").args(["-r", "-q"]).arg(source.of(work)).arg(&target).status()?;
                ensure!(same.success(), "{name} copied something else");
            }
            fs::remove_dir_all(&target)?;
        }
    }
    let times: Vec<f64> = seconds.iter().map(|s| median(s)).collect();
    let best = (OURS..TOOLS.len()).min_by(|a, b| times[*a].total_cmp(&times[*b])).context("there are peers")?;
    println!(
        "cp  {mbit:>4} Mbit/s {rtt_ms:>2} ms {:<11} of the best peer {:.2}, by TLS {:.2}",
        work.name(),
        times[0] / times[best],
        times[1] / times[best]
    );
    let raw_gb = source.bytes(work)? as f64 / 1e9;
    for (i, (name, _)) in TOOLS.iter().enumerate() {
        let megabytes = bytes[i].iter().sum::<u64>() as f64 / args.rounds as f64 / 1e6;
        println!(
            "      {name:<14} {:>7.2} s  {megabytes:>7.2} MB  {:>6.1} CPU s/GB here{}",
            times[i],
            median(&cpu[i]) / raw_gb,
            if i == best { "  best peer" } else { "" }
        );
    }
    let tools: serde_json::Map<_, _> = TOOLS
        .iter()
        .zip(seconds.iter().zip(&bytes).zip(&cpu))
        .map(|((name, _), ((s, b), c))| {
            ((*name).to_owned(), json!({ "seconds": s, "wire_bytes": b, "sender_cpu_seconds": c }))
        })
        .collect();
    Ok(
        json!({ "mbit_per_s": mbit, "rtt_ms": rtt_ms, "work": work.name(), "raw_bytes": source.bytes(work)?, "of_best_peer": times[0] / times[best], "tls_of_best_peer": times[1] / times[best], "best_peer": TOOLS[best].0, "tools": tools }),
    )
}

/// The trees that are copied, made once per link.
struct Sources {
    folder: PathBuf,
}

impl Sources {
    fn make(args: &Args, folder: &Path, mbit: u32) -> Result<Self> {
        let folder = folder.join(format!("data-{mbit}"));
        let of = |table: &[(u32, usize)]| table.iter().find(|t| t.0 == mbit).map_or(table[1].1, |t| t.1);
        let data = mixed(args, of(&FILE_BYTES))?;
        let mut rng = Rng(3);
        // Runs of whole MiB of one kind, as in a folder of different files.
        let mut pieces: Vec<&[u8]> = data.chunks(1 << 20).collect();
        for i in (1..pieces.len()).rev() {
            pieces.swap(i, rng.next_u64() as usize % (i + 1));
        }
        let file = pieces.concat();
        let mut changed = file.clone();
        for _ in 0..file.len() / 4096 / 100 {
            let at = rng.next_u64() as usize % (file.len() / 4096) * 4096;
            changed[at..at + 4096.min(file.len() - at)]
                .iter_mut()
                .for_each(|b| *b = b.wrapping_add(rng.next_u64() as u8));
        }
        let middle = changed.len() / 2;
        changed.splice(middle..middle, (0..1000).map(|i| i as u8));
        for (name, content) in [("file", &file), ("file-again", &changed)] {
            fs::create_dir_all(folder.join(name))?;
            fs::write(folder.join(name).join("file"), content)?;
        }
        let count = of(&SMALL_FILES);
        for i in 0..count {
            let len = 1000 + rng.next_u64() as usize % 19_000;
            let at = rng.next_u64() as usize % (file.len() - len);
            for (name, change) in [("small", false), ("small-again", i % 100 == 7)] {
                let path = folder.join(name).join(format!("{}/{}", i / 1000, i / 100 % 10));
                fs::create_dir_all(&path)?;
                let mut content = file[at..at + len].to_vec();
                if change {
                    content.truncate(len / 2);
                    content.extend_from_slice(b"changed");
                }
                let path = path.join(format!("name-{i}.dat"));
                fs::write(&path, content)?;
                let time = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + u64::from(change));
                fs::File::options().append(true).open(&path)?.set_modified(time)?;
            }
        }
        Ok(Self { folder })
    }

    fn of(&self, work: Work) -> PathBuf {
        self.folder.join(work.name())
    }

    fn bytes(&self, work: Work) -> Result<u64> {
        let du = Command::new("du").args(["-sb", "--"]).arg(self.of(work)).output()?;
        Ok(String::from_utf8_lossy(&du.stdout).split('\t').next().unwrap_or_default().parse()?)
    }

    /// A folder to copy to: empty, or in the state before the copy.
    fn target(&self, work: Work) -> Result<PathBuf> {
        let target = self.folder.join("target");
        if work.again() {
            let before = if work == Work::FileAgain { Work::File } else { Work::SmallFiles };
            let copied = Command::new("cp").arg("-a").arg(self.of(before)).arg(&target).status()?;
            ensure!(copied.success(), "cannot prepare {}", target.display());
        } else {
            fs::create_dir(&target)?;
        }
        // Flush earlier writes, so that they do not slow down the measured copy.
        ensure!(Command::new("sync").arg("-f").arg(&target).status()?.success(), "sync failed");
        Ok(target)
    }
}
