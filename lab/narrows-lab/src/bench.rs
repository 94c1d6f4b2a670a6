//! Benchmarks in real time: real codecs over real sockets, interleaved with the tools that people
//! use. Only figures, never pass or fail in CI.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use narrows::stream;
use serde_json::{Value, json};

use crate::report::About;
use crate::stats::median;
use crate::units::parse_len;

mod arrays;
mod cold;
mod copy;
mod links;
mod relay;
mod run;
mod typed;

/// Compare Narrows with plain, fixed methods and other programs in real time
///
/// Parts run by default: `store` (2 GiB over loopback against nc), `pipe` (against zstd -3),
/// `links` (`send` and `recv` with every pool over shaped links in a separate network namespace,
/// against nc and fixed methods), `latency` (a single 100-byte write), `memory`.
///
/// Other parts: `arrays` (arrays of numbers, exact and within bounds, against the libraries that a
/// Python has), `cold` (short transfers over shaped links, each program from its start to its end,
/// beside the prediction of virtual time), `cold-virtual` (the same in virtual time alone: predictions
/// of stored samples, or `balance` against fixed methods, plain and oracle), `typed` (numbers in plain
/// bytes: probe and split codec on every kind of data), `file` (`pipe` with default settings into a file against zstd -3, for every kind of
/// data), `cp` (against scp, rsync and tar with zstd through its own OpenSSH server; needs root)
/// and `run` (the cost of `narrows run` for a connection over loopback, and a check that nothing is
/// lost). `run` consists of `run-latency`, `run-bulk`, `run-connect`, `run-memory`, `run-many`,
/// `run-kill`, and `run-age`, the age of bytes that arrive over emulated links.
///
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
    /// For `cold`: raw bytes of each transfer
    #[arg(long, value_delimiter = ',', default_value = "100000,375000,1M,4M,16M", value_parser = parse_len)]
    sizes: Vec<usize>,
    /// For `cold`: round trips in milliseconds; below 1 the kernel alone shapes the link
    #[arg(long, value_name = "MS", value_delimiter = ',', default_value = "0.1,10,40")]
    delays: Vec<f64>,
    /// For `cold`, `typed` and `arrays`: the files that constants may be tuned on, or those that are quoted
    #[arg(long, value_enum, default_value_t = crate::pools::Half::Both)]
    half: crate::pools::Half,
    /// For `cold`: directory where measured cost tables are kept
    #[arg(long, value_name = "DIR")]
    tables: Option<PathBuf>,
    /// For `cold-virtual`: a result of `cold` to predict
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// For `cold`: tools as in `narrows-lab race`
    #[arg(long, value_name = "TOOL,..", value_delimiter = ',')]
    tools: Vec<String>,
    /// Only these pools; for `cp` only these copies: file, small, file-again, small-again
    #[arg(long, value_delimiter = ',')]
    pools: Vec<String>,
    /// Write the result with every sample to this file
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Directory with a prior for each pool, trained without it: NAME.prior; the default is the
    /// shipped prior
    #[arg(long, value_name = "DIR")]
    priors: Option<PathBuf>,
    /// For `arrays`: a Python with numpy, netCDF4 and the libraries to compare with
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
    /// For `arrays`: a Python with zfpy, whose wheel keeps numcodecs from loading
    #[arg(long, value_name = "PYTHON")]
    zfp_python: Option<PathBuf>,
    /// For `run`: flags of `narrows run`, separated by spaces
    #[arg(long, value_name = "FLAGS", default_value = "", allow_hyphen_values = true)]
    run_flags: String,
    /// For `run`: number of programs that are killed right after their last write
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    kills: usize,
    /// Internal: the role of this process as one end of `run`
    #[arg(long, hide = true, num_args = 1..)]
    end: Vec<String>,
    /// Internal: this process is in the shaped namespace
    #[arg(long, hide = true)]
    inside: Option<u32>,
}

/// Time that a program is given to begin to listen.
const LISTENS_AFTER: Duration = Duration::from_millis(100);
const STORE_BYTES: u64 = 2 << 30;
const LATENCY_WRITES: usize = 400;

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(mbit) = args.inside {
        return links::inside(args, mbit);
    }
    if !args.end.is_empty() {
        return run::ends::run(&args.end);
    }
    let mut parts = serde_json::Map::new();
    for part in &args.parts {
        eprintln!("bench: {part}");
        let result = match part.as_str() {
            "store" => store(args.rounds)?,
            "pipe" => pipe(args)?,
            "file" => file(args)?,
            "latency" => latency(args.rounds)?,
            "memory" => memory()?,
            "links" => links::run(args)?,
            "cold" => cold::run(args)?,
            "arrays" => arrays::run(args)?,
            "cold-virtual" => cold::foresee::run(args)?,
            "typed" => typed::run(args)?,
            "cp" => copy::run(args)?,
            "run" => run::run(args, None)?,
            one if one.starts_with("run-") => run::run(args, one.strip_prefix("run-"))?,
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
    let mut listener = listening(listen, listen_args, Stdio::null())?;
    let begun = Instant::now();
    let mut sender = Command::new(send)
        .args(send_args)
        .stdin(fs::File::open(file)?)
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {send}"))?;
    ensure!(sender.wait()?.success() && listener.wait()?.success(), "{send} failed");
    Ok(begun.elapsed().as_secs_f64())
}

fn listening(program: &str, args: &[&str], stdout: Stdio) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(stdout);
    let child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    std::thread::sleep(LISTENS_AFTER);
    Ok(child)
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

// --- file ---

/// Length of each kind of data.
const FILE_BYTES: usize = 32 << 20;

fn file(args: &Args) -> Result<Value> {
    let corpus = args.corpus.as_deref().context("`file` needs --corpus")?;
    let output = temporary_with("out", &[])?;
    let out = output.0.to_str().context("a path")?;
    let mut rows = Vec::new();
    for pool in crate::pools::make(corpus, FILE_BYTES, crate::pools::Half::Both)? {
        if !args.pools.is_empty() && !args.pools.contains(&pool.name) {
            continue;
        }
        let input = temporary_with("file", &pool.bytes)?;
        let input = input.0.to_str().context("a path")?;
        for threads in [1, stream::cores()] {
            let t = format!("-T{threads}");
            let mut samples = Vec::new();
            for _ in 0..args.rounds {
                let zstd = timed_file("zstd", &["-3", "-q", "-f", &t, input, "-o", out], &output.0)?;
                let ours = timed_file(&program(), &["pipe", "-f", &t, input, "-o", out], &output.0)?;
                samples.push(
                    json!({ "zstd_s": zstd.0, "zstd_bytes": zstd.1, "narrows_s": ours.0, "narrows_bytes": ours.1 }),
                );
            }
            let speed = median_ratio(&samples, "zstd_s", "narrows_s");
            let size = median_ratio(&samples, "narrows_bytes", "zstd_bytes");
            println!("file   {:<10} {threads} threads: {speed:.3} of zstd's speed, {size:.4} of its size", pool.name);
            rows.push(json!({
                "data": pool.name, "threads": threads, "speed_of_zstd": speed, "size_of_zstd": size, "samples": samples
            }));
        }
    }
    Ok(json!({ "raw_bytes": FILE_BYTES, "rows": rows }))
}

fn timed_file(program: &str, args: &[&str], output: &Path) -> Result<(f64, u64)> {
    let begun = Instant::now();
    let ended = Command::new(program).args(args).status().with_context(|| format!("cannot run {program}"))?;
    ensure!(ended.success(), "{program} failed");
    Ok((begun.elapsed().as_secs_f64(), output.metadata()?.len()))
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

/// Median time of a single 100-byte write through two programs, compared with two plain ones.
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
    Ok(median(&micros))
}

// --- memory ---

/// Peak resident memory of a bulk flow at 4 threads into a slow reader, which fills every queue.
fn memory() -> Result<Value> {
    let file = temporary("memory", 48 << 20)?;
    let args = ["pipe", "-c", "--threads", "4", file.0.to_str().context("a path")?];
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

// --- common ---

/// The `narrows` program in the folder of this one.
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
    let mut rng = narrows_sim::rng::Rng(1);
    let mut piece = vec![0u8; 1 << 20];
    let mut left = len;
    while left > 0 {
        for (i, b) in piece.iter_mut().enumerate() {
            let x = rng.next_u64();
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

/// Data for the filter: an equal share of every pool, or generated data if there is no corpus.
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

fn median_ratio(samples: &[Value], of: &str, by: &str) -> f64 {
    median(&samples.iter().filter_map(|s| Some(s[of].as_f64()? / s[by].as_f64()?)).collect::<Vec<_>>())
}
