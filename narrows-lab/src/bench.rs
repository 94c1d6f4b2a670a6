//! Real time: real codecs over real sockets, interleaved with the peers people use. Figures, never verdicts in CI.

use std::fs;
use std::io::{self, Cursor, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use narrows::codec::{CodecId, Method};
use narrows::monitor::cost::Prior;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows::receiver::ReceiverConfig;
use narrows::sender::SenderConfig;
use narrows::stream::{self, ReceiveOptions, SendOptions};
use narrows::transport::Link;
use serde_json::{Value, json};

use crate::report::About;

/// Compare Narrows with plain, fixed methods and other programs in real time
///
/// Parts: `store` (2 GiB over loopback against nc), `pipe` (against zstd -3), `links` (every pool over shaped links, in a
/// network namespace of its own, against plain and fixed methods), `latency` (a lone 100-byte write), `memory`.
/// All runs are interleaved, every byte is compared, and every sample is kept in the result.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Parts to run
    #[arg(long, value_delimiter = ',', default_value = "store,pipe,latency,memory,links")]
    parts: Vec<String>,
    /// Directory with one directory for each kind of data
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// Rounds of every comparison
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Mbit/s of the shaped links; 0 is unshaped
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,0")]
    links: Vec<u32>,
    /// Only these pools
    #[arg(long, value_delimiter = ',')]
    pools: Vec<String>,
    /// Where the result goes, every sample in it
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Directory with a prior for each pool, made without it: NAME.prior; the shipped one is used where there is none
    #[arg(long, value_name = "DIR")]
    priors: Option<PathBuf>,
    /// For the command itself: this process is in the shaped namespace
    #[arg(long, hide = true)]
    inside: Option<u32>,
}

/// What is compared on shaped links, besides plain and `balance`: every default method but those that cannot be the
/// best there, since four cores of them are slower than the link.
const FIXED: [Method; 11] = [
    Method::STORE,
    Method::lz4_accel(64),
    Method::lz4_accel(16),
    Method::lz4_accel(1),
    Method::zstd(1),
    Method::zstd(3),
    Method::zstd(6),
    Method::zstd(9),
    Method::zstd(15),
    Method::new(CodecId::BZIP2, 9),
    Method::new(CodecId::XZ, 6),
];

fn fixed(mbit: u32) -> &'static [Method] {
    match mbit {
        0 => &FIXED[..6],
        1..=10 => &FIXED[4..],
        11..=100 => &FIXED[3..],
        _ => &FIXED[..9],
    }
}

/// Bytes per run on a link: a few seconds of plain on slow ones, 32 MB from 1000 Mbit/s up.
const LINK_BYTES: [(u32, usize); 4] = [(10, 3 << 20), (100, 16 << 20), (1000, 32 << 20), (0, 32 << 20)];
const STORE_BYTES: u64 = 2 << 30;
const LATENCY_WRITES: usize = 400;

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(mbit) = args.inside {
        return inside(args, mbit);
    }
    let mut parts = serde_json::Map::new();
    for part in &args.parts {
        eprintln!("bench: {part}");
        let result = match part.as_str() {
            "store" => store(args.rounds)?,
            "pipe" => pipe(args)?,
            "latency" => latency(args.rounds)?,
            "memory" => memory()?,
            "links" => links(args)?,
            _ => bail!("there is no part '{part}'"),
        };
        parts.insert(part.clone(), result);
    }
    if let Some(path) = &args.output {
        let text = serde_json::to_string(&json!({ "about": About::new().json(), "parts": parts }))?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

// --- store ---

fn store(rounds: usize) -> Result<Value> {
    let file = temporary("store", STORE_BYTES)?;
    let mut samples = Vec::new();
    for _ in 0..rounds {
        let nc = timed_pair("nc", &["-l", "127.0.0.1", "7713"], "nc", &["-N", "127.0.0.1", "7713"], &file.0)?;
        let recv = ["recv", "--listen", "127.0.0.1:7713", "-o", "-", "-q"];
        let send = ["send", "-", "tcp://127.0.0.1:7713", "-q", "--policy", "fixed:store", "--retry-connect", "2"];
        let ours = timed_pair(&program(), &recv, &program(), &send, &file.0)?;
        println!("store  nc {nc:.3} s  narrows {ours:.3} s  {:.3} of nc", nc / ours);
        samples.push(json!({ "nc_s": nc, "narrows_s": ours }));
    }
    Ok(json!({ "bytes": STORE_BYTES, "median_of_nc": median_ratio(&samples, "nc_s", "narrows_s"), "samples": samples }))
}

/// Wall time from the start of the sender until both have ended.
fn timed_pair(listen: &str, listen_args: &[&str], send: &str, send_args: &[&str], file: &Path) -> Result<f64> {
    let spawn = |program: &str, args: &[&str], stdin: Stdio| {
        let mut command = Command::new(program);
        command.args(args).stdin(stdin).stdout(Stdio::null());
        command.spawn().with_context(|| format!("cannot run {program}"))
    };
    let mut listener = spawn(listen, listen_args, Stdio::null())?;
    std::thread::sleep(Duration::from_millis(150));
    let begun = Instant::now();
    let mut sender = spawn(send, send_args, fs::File::open(file)?.into())?;
    ensure!(sender.wait()?.success() && listener.wait()?.success(), "{send} failed");
    Ok(begun.elapsed().as_secs_f64())
}

// --- pipe ---

fn pipe(args: &Args) -> Result<Value> {
    let data = mixed(args, 64 << 20)?;
    let input = temporary_with("pipe", &data)?;
    let mut rows = Vec::new();
    for threads in [1, stream::cores()] {
        let mut samples = Vec::new();
        for _ in 0..args.rounds {
            let t = threads.to_string();
            let zstd = timed_filter("zstd", &["-3", "-c", "-q", &format!("-T{t}")], &input.0)?;
            let ours = ["pipe", "--policy", "fixed:zstd:level=3", "--block-max", "2M", "--threads", &t];
            let ours = timed_filter(&program(), &ours, &input.0)?;
            println!(
                "pipe   {threads} threads: zstd -3 {:.3} s ratio {:.3}, narrows {:.3} s ratio {:.3}: {:.3} of zstd",
                zstd.0,
                data.len() as f64 / zstd.1 as f64,
                ours.0,
                data.len() as f64 / ours.1 as f64,
                zstd.0 / ours.0
            );
            samples
                .push(json!({ "zstd_s": zstd.0, "zstd_bytes": zstd.1, "narrows_s": ours.0, "narrows_bytes": ours.1 }));
        }
        rows.push(json!({ "threads": threads, "median_of_zstd": median_ratio(&samples, "zstd_s", "narrows_s"), "samples": samples }));
    }
    Ok(json!({ "raw_bytes": data.len(), "rows": rows }))
}

fn timed_filter(program: &str, args: &[&str], input: &Path) -> Result<(f64, usize)> {
    let begun = Instant::now();
    let mut child = Command::new(program)
        .args(args)
        .stdin(fs::File::open(input)?)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let mut out = child.stdout.take().context("a pipe")?;
    let (mut buf, mut len) = (vec![0; 1 << 20], 0);
    loop {
        match out.read(&mut buf)? {
            0 => break,
            n => len += n,
        }
    }
    ensure!(child.wait()?.success(), "{program} failed");
    Ok((begun.elapsed().as_secs_f64(), len))
}

// --- latency ---

/// Median time of a lone 100-byte write through two programs, against the same through two plain ones.
fn latency(rounds: usize) -> Result<Value> {
    let ours = program();
    let mut rows = Vec::new();
    for _ in 0..rounds {
        let cat = through_pipes(("cat", &[]), ("cat", &[]))?;
        let pipe = through_pipes((&ours, &["pipe", "-c", "-f"]), (&ours, &["pipe", "-d"]))?;
        let nc = through_tcp(("nc", &["-l", "127.0.0.1", "7714"]), ("nc", &["-N", "127.0.0.1", "7714"]))?;
        let recv: &[&str] = &["recv", "--listen", "127.0.0.1:7714", "-o", "-", "-q"];
        let tcp = through_tcp((&ours, recv), (&ours, &["send", "-", "tcp://127.0.0.1:7714", "-q"]))?;
        println!(
            "latency  cat|cat {cat:.1} us, pipe|pipe {pipe:.1} us (+{:.1}); nc {nc:.1} us, send/recv {tcp:.1} us (+{:.1})",
            pipe - cat,
            tcp - nc
        );
        rows.push(json!({ "cat_us": cat, "pipe_us": pipe, "nc_us": nc, "tcp_us": tcp }));
    }
    Ok(json!({ "write_bytes": 100, "writes": LATENCY_WRITES, "samples": rows }))
}

type Program<'a> = (&'a str, &'a [&'a str]);

fn through_pipes(first: Program<'_>, second: Program<'_>) -> Result<f64> {
    let mut a = Command::new(first.0).args(first.1).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let between = a.stdout.take().context("a pipe")?;
    let mut b = Command::new(second.0).args(second.1).stdin(between).stdout(Stdio::piped()).spawn()?;
    let result = ping(&mut a, &mut b);
    ensure!(a.wait()?.success() && b.wait()?.success(), "{} failed", first.0);
    result
}

fn through_tcp(listen: Program<'_>, send: Program<'_>) -> Result<f64> {
    let mut b = Command::new(listen.0).args(listen.1).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    std::thread::sleep(Duration::from_millis(150));
    let mut a = Command::new(send.0).args(send.1).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let result = ping(&mut a, &mut b);
    ensure!(a.wait()?.success() && b.wait()?.success(), "{} failed", send.0);
    result
}

fn ping(first: &mut Child, last: &mut Child) -> Result<f64> {
    let mut to = first.stdin.take().context("a pipe")?;
    let mut from = last.stdout.take().context("a pipe")?;
    let mut micros = Vec::new();
    let mut buf = [0; 100];
    for i in 0..LATENCY_WRITES {
        std::thread::sleep(Duration::from_millis(2));
        let message: Vec<u8> = (0..100).map(|j| (i + j) as u8).collect();
        let begun = Instant::now();
        to.write_all(&message)?;
        from.read_exact(&mut buf)?;
        micros.push(begun.elapsed().as_secs_f64() * 1e6);
        ensure!(buf[..] == message[..], "the bytes changed");
    }
    drop(to);
    ensure!(from.read(&mut buf)? == 0, "bytes after the end");
    Ok(median(micros))
}

// --- memory ---

/// Peak resident memory of a bulk flow at 4 threads into a slow reader, which fills every queue.
fn memory() -> Result<Value> {
    let file = temporary("memory", 48 << 20)?;
    let args = ["pipe", "--threads", "4", file.0.to_str().context("a path")?];
    let mut child = Command::new(program()).args(args).stdout(Stdio::piped()).spawn()?;
    let mut out = child.stdout.take().context("a pipe")?;
    let (mut buf, mut peak_kib) = (vec![0; 16 << 10], 0u64);
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok());
        peak_kib = peak_kib.max(kib.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(3));
        if out.read(&mut buf)? == 0 {
            break;
        }
    }
    ensure!(child.wait()?.success(), "narrows failed");
    println!("memory   peak {:.1} MiB resident, 4 threads, default methods, slow reader", peak_kib as f64 / 1024.0);
    Ok(json!({ "peak_resident_bytes": peak_kib * 1024 }))
}

// --- links ---

/// One process per link, in a network namespace of its own whose loopback is shaped.
fn links(args: &Args) -> Result<Value> {
    let corpus = args.corpus.as_ref().context("--corpus is needed for the links")?;
    let mut cells = Vec::new();
    for mbit in &args.links {
        let mut command = Command::new("unshare");
        command.args(["-r", "-n"]).arg(std::env::current_exe()?).arg("bench");
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
    print_links(&cells);
    Ok(json!({ "cells": cells }))
}

fn print_links(cells: &[Value]) {
    let get = |c: &Value, key: &str| c[key].as_f64().unwrap_or(0.0);
    println!("links: medians of paired ratios; plain and the best fixed method of the cell are 1.00");
    println!(
        "{:>6} {:<10} {:>9} {:>9} {:>9}  {:<16} ratio",
        "Mbit/s", "pool", "plain MB/s", "of plain", "of best", "best fixed"
    );
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
    let mean = |key: &str| cells.iter().map(|c| get(c, key)).sum::<f64>() / cells.len().max(1) as f64;
    let below = cells.iter().filter(|c| get(c, "of_plain") < 0.97).count();
    println!(
        "mean of plain {:.3}, of best fixed {:.3}; {below} of {} cells below 0.97 of plain",
        mean("of_plain"),
        mean("of_best_fixed"),
        cells.len()
    );
}

fn inside(args: &Args, mbit: u32) -> Result<()> {
    let sh = |line: &str| -> Result<()> {
        ensure!(Command::new("sh").args(["-c", line]).status()?.success(), "{line} failed");
        Ok(())
    };
    // Frames of an Ethernet, so that the shaper sees what it would see on one.
    sh("ip link set lo up")?;
    if mbit > 0 {
        sh("ip link set lo mtu 1500")?;
        sh(&format!("tc qdisc add dev lo root tbf rate {mbit}mbit burst 64k latency 20ms"))?;
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
        let data = Arc::new(crate::pools::folder_bytes(&pool, bytes)?);
        let prior = match args.priors.as_ref().map(|d| fs::read_to_string(d.join(format!("{name}.prior")))) {
            Some(Ok(text)) => Prior::parse(&text)?,
            _ => Prior::shipped().clone(),
        };
        println!("{}", cell(mbit, &name, &data, &prior, args.rounds)?);
    }
    Ok(())
}

fn cell(mbit: u32, pool: &str, data: &Arc<Vec<u8>>, prior: &Prior, rounds: usize) -> Result<Value> {
    let specs: Vec<PolicySpec> = std::iter::once(PolicySpec::Balance)
        .chain(fixed(mbit).iter().map(|&method| PolicySpec::Fixed { method, linked: false }))
        .collect();
    let mut plain_s = Vec::new();
    let mut seconds = vec![Vec::new(); specs.len()];
    let mut ratio = 1.0;
    for _ in 0..rounds {
        plain_s.push(plain(data)?);
        for (i, spec) in specs.iter().enumerate() {
            let (s, r) = through(data, spec, prior)?;
            seconds[i].push(s);
            if i == 0 {
                ratio = r;
            }
        }
    }
    let ratios = |of: &[f64], by: &[f64]| median(of.iter().zip(by).map(|(a, b)| a / b).collect());
    let best = (1..specs.len())
        .min_by(|a, b| median(seconds[*a].clone()).total_cmp(&median(seconds[*b].clone())))
        .context("a method")?;
    // Plain is a fixed method too: the one that people use.
    let best_is_plain = median(plain_s.clone()) < median(seconds[best].clone());
    let best_s = if best_is_plain { &plain_s } else { &seconds[best] };
    Ok(json!({
        "mbit_per_s": mbit,
        "pool": pool,
        "raw_bytes": data.len(),
        "plain_mb_per_s": data.len() as f64 / median(plain_s.clone()) / 1e6,
        "of_plain": ratios(&plain_s, &seconds[0]),
        "best_fixed": if best_is_plain { "plain".to_string() } else { specs[best].to_string() },
        "of_best_fixed": ratios(best_s, &seconds[0]),
        "ratio": ratio,
        "plain_s": plain_s,
        "seconds": specs.iter().zip(&seconds).map(|(s, t)| (s.to_string(), json!(t))).collect::<serde_json::Map<_, _>>(),
    }))
}

/// The bytes as they are, as nc sends them.
fn plain(data: &Arc<Vec<u8>>) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = listener.local_addr()?;
    let mut sink = Compare { data: Arc::clone(data), at: 0 };
    let receiver = std::thread::spawn(move || -> io::Result<bool> {
        let (mut socket, _) = listener.accept()?;
        let mut buf = vec![0; 64 << 10];
        loop {
            match socket.read(&mut buf)? {
                0 => return Ok(sink.at == sink.data.len()),
                n => sink.write_all(&buf[..n])?,
            }
        }
    });
    let begun = Instant::now();
    let mut socket = TcpStream::connect(to)?;
    for piece in data.chunks(64 << 10) {
        socket.write_all(piece)?;
    }
    socket.shutdown(std::net::Shutdown::Write)?;
    let whole = receiver.join().map_err(|_| anyhow::anyhow!("the receiver failed"))??;
    ensure!(whole, "plain bytes were lost");
    Ok(begun.elapsed().as_secs_f64())
}

fn through(data: &Arc<Vec<u8>>, spec: &PolicySpec, prior: &Prior) -> Result<(f64, f64)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let to = listener.local_addr()?;
    let threads = stream::cores();
    let sink = Compare { data: Arc::clone(data), at: 0 };
    let receiver = std::thread::spawn(move || -> Result<u64> {
        let options = ReceiveOptions { receiver: ReceiverConfig::default(), threads, stall_timeout: None };
        let link = Link::tcp(listener.accept()?.0)?;
        Ok(stream::receive(sink, link, options, || Ok(()), &Arc::default())?.raw_bytes)
    });
    let block_max = if *spec == PolicySpec::Balance { 512 << 10 } else { 128 << 10 };
    let sender = SenderConfig { block_max, history: 0, raw_len: Some(data.len() as u64), ..SenderConfig::default() };
    let policy = spec.build(&PolicySetup::new(threads, prior));
    let options = SendOptions { sender, policy, threads, stall_timeout: None, trace: None };
    let begun = Instant::now();
    let link = Link::tcp(TcpStream::connect(to)?)?;
    let (summary, _) = stream::send(Cursor::new(Shared(Arc::clone(data))), link, options, &Arc::default())?;
    let elapsed = begun.elapsed().as_secs_f64();
    let received = receiver.join().map_err(|_| anyhow::anyhow!("the receiver failed"))??;
    ensure!(received == data.len() as u64, "{spec}: bytes were lost");
    Ok((elapsed, summary.ratio()))
}

struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A sink that compares what comes with what was sent.
struct Compare {
    data: Arc<Vec<u8>>,
    at: usize,
}

impl Write for Compare {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.data.get(self.at..self.at + bytes.len()) != Some(bytes) {
            return Err(io::Error::other("the bytes that arrived are not those that were sent"));
        }
        self.at += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// --- common ---

/// The program that stands beside this one.
fn program() -> String {
    let beside = std::env::current_exe().map(|p| p.with_file_name("narrows")).unwrap_or_default();
    beside.to_string_lossy().into_owned()
}

struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A file of text-like and random pieces, in the page cache.
fn temporary(name: &str, len: u64) -> Result<Temporary> {
    let file = temporary_with(name, &[])?;
    let mut out = io::BufWriter::new(fs::File::create(&file.0)?);
    let mut rng = crate::units::Rng(1);
    let mut piece = vec![0u8; 1 << 20];
    let mut left = len;
    while left > 0 {
        for (i, b) in piece.iter_mut().enumerate() {
            let x = rng.next();
            *b = if i / 65_536 % 2 == 0 { b' ' + (x % 23) as u8 } else { x as u8 };
        }
        let n = left.min(piece.len() as u64) as usize;
        out.write_all(&piece[..n])?;
        left -= n as u64;
    }
    out.flush()?;
    Ok(file)
}

fn temporary_with(name: &str, data: &[u8]) -> Result<Temporary> {
    let path = std::env::temp_dir().join(format!("narrows-bench-{}-{name}", std::process::id()));
    fs::write(&path, data).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Temporary(path))
}

/// Data for the filter: a share of every pool, or generated where there is no corpus.
fn mixed(args: &Args, len: usize) -> Result<Vec<u8>> {
    let Some(corpus) = &args.corpus else { return Ok(fs::read(&temporary("mixed", len as u64)?.0)?) };
    let mut out = Vec::new();
    let mut pools: Vec<_> =
        fs::read_dir(corpus)?.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_dir()).collect();
    pools.sort();
    for pool in &pools {
        out.extend(crate::pools::folder_bytes(pool, len / pools.len())?);
    }
    Ok(out)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn median_ratio(samples: &[Value], of: &str, by: &str) -> f64 {
    median(samples.iter().filter_map(|s| Some(s[of].as_f64()? / s[by].as_f64()?)).collect())
}
