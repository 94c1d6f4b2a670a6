//! The part `run`: the cost of `narrows run` for a connection on the loopback device, and a check
//! that nothing is lost. Client and server are this program itself (`ends.rs`), with neither end,
//! the client, the server or both under `narrows run`.

use std::io::{self, BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use narrows_sim::rng::Rng;
use serde_json::{Value, json};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{Args, median, program};
use crate::cases::stage::policy_beside;

mod age;
pub(super) mod ends;

/// Measured round trips of a slice, and warm-up round trips before them.
pub(super) const PINGS: usize = 1000;
pub(super) const WARM_UP: usize = 300;
const PING_SIZES: [usize; 2] = [1, 1024];
const BULK_BYTES: u64 = 2 << 30;
const CONNECTS: usize = 300;
const CONNECTIONS: usize = 2000;
const IDLE: usize = 1000;
/// Most bytes that a program writes before it is killed.
const KILL_BYTES: usize = 2 << 20;
/// Programs killed concurrently, because most of the time is spent starting programs.
const KILL_THREADS: usize = 4;
/// Timeout of reads, so that a lost connection does not block for ever.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Native,
    Client,
    Server,
    Both,
}

const VARIANTS: [Variant; 4] = [Variant::Native, Variant::Client, Variant::Server, Variant::Both];

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Client => "client",
            Self::Server => "server",
            Self::Both => "both",
        }
    }

    fn client(self) -> bool {
        matches!(self, Self::Client | Self::Both)
    }

    fn server(self) -> bool {
        matches!(self, Self::Server | Self::Both)
    }
}

type Part = fn(&Args) -> Result<Value>;

/// Runs all parts, or the one named by `which`.
pub(super) fn run(args: &Args, which: Option<&str>) -> Result<Value> {
    let all: [(&str, Part); 7] = [
        ("latency", latency),
        ("bulk", bulk),
        ("connect", connect),
        ("memory", memory),
        ("many", many),
        ("kill", kill),
        ("age", age::age),
    ];
    let mut results = serde_json::Map::new();
    for (name, part) in all.iter().filter(|(name, _)| which.is_none_or(|w| w == *name)) {
        results.insert((*name).into(), part(args)?);
    }
    ensure!(!results.is_empty(), "there is no part 'run-{}'", which.unwrap_or_default());
    Ok(Value::Object(results))
}

// --- parts ---

fn latency(args: &Args) -> Result<Value> {
    let mut rows = Vec::new();
    let mut added = serde_json::Map::new();
    let mut samples = vec![vec![Vec::<Value>::new(); VARIANTS.len()]; PING_SIZES.len()];
    for _ in 0..args.rounds {
        for (i, size) in PING_SIZES.iter().enumerate() {
            for (j, variant) in VARIANTS.into_iter().enumerate() {
                let server = Server::start(args, variant)?;
                let output = client(args, variant, &["ping", &server.port, &size.to_string()])?;
                samples[i][j].push(json!(numbers(&output)?));
            }
        }
    }
    for (size, samples) in PING_SIZES.iter().zip(samples) {
        let mut native = 0.0;
        for (variant, slices) in VARIANTS.into_iter().zip(samples) {
            let all: Vec<f64> =
                slices.iter().flat_map(|s| s.as_array().into_iter().flatten()).filter_map(Value::as_f64).collect();
            let (p50, p99) = (quantile(&all, 0.5) / 1e3, quantile(&all, 0.99) / 1e3);
            if variant == Variant::Native {
                native = p50;
            }
            let ends = usize::from(variant.client()) + usize::from(variant.server());
            let per_end = (p50 - native) / ends.max(1) as f64;
            println!(
                "run      {size:>4} bytes there and back, {:<6} p50 {p50:6.1} us, p99 {p99:6.1} us, added per end {per_end:5.1} us",
                variant.name()
            );
            if ends > 0 {
                added.insert(format!("{size}-{}", variant.name()), json!(per_end));
            }
            rows.push(
                json!({ "bytes": size, "under": variant.name(), "p50_us": p50, "p99_us": p99, "samples_ns": slices }),
            );
        }
    }
    Ok(json!({ "added_per_end_us": added, "rows": rows }))
}

/// Throughput of one connection, which one pump serves.
fn bulk(args: &Args) -> Result<Value> {
    let mut samples = vec![Vec::new(); VARIANTS.len()];
    for _ in 0..args.rounds {
        for (variant, samples) in VARIANTS.into_iter().zip(&mut samples) {
            let server = Server::start(args, variant)?;
            let output = client(args, variant, &["bulk", &server.port, &BULK_BYTES.to_string()])?;
            let seconds = *numbers(&output)?.first().context("no time")? as f64 * 1e-9;
            samples.push(BULK_BYTES as f64 * 1e-9 / seconds);
        }
    }
    Ok(rows("GB/s in writes of 64 KiB", "gb_per_s", &samples))
}

fn connect(args: &Args) -> Result<Value> {
    let mut result = serde_json::Map::new();
    for how in ["blocking", "nonblocking"] {
        let mut samples = vec![Vec::new(); VARIANTS.len()];
        for _ in 0..args.rounds {
            for (variant, samples) in VARIANTS.into_iter().zip(&mut samples) {
                let server = Server::start(args, variant)?;
                let output = client(args, variant, &["connect", &server.port, how, &CONNECTS.to_string()])?;
                samples.extend(numbers(&output)?.iter().map(|ns| *ns as f64 / 1e3));
            }
        }
        result.insert(how.into(), rows(&format!("us, socket and {how} connect"), "us", &samples));
    }
    Ok(Value::Object(result))
}

/// Memory of a supervisor with many idle connections.
fn memory(args: &Args) -> Result<Value> {
    let server = Server::start(args, Variant::Native)?;
    let mut measured = Vec::new();
    for (count, used) in [(0, "no"), (IDLE, "no"), (IDLE, "yes")] {
        let mut command = under(args, true, &["--supervisor=parent"]);
        command.args(own(&["idle", &server.port, &count.to_string(), used])?).stdin(Stdio::piped());
        let mut child = Ended(command.stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().context("a pipe")?).read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the connections were not made: {line}");
        // Time for the supervisor to return memory to the kernel.
        std::thread::sleep(Duration::from_millis(300));
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.0.id()))?;
        let resident = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        measured.push(resident.context("the process status has no resident memory")? as f64 * 1024.0);
        drop(child.0.stdin.take());
        ensure!(child.0.wait()?.success(), "the program failed");
    }
    let each = |bytes: f64| (bytes - measured[0]) / IDLE as f64;
    let (fresh, used) = (each(measured[1]), each(measured[2]));
    println!(
        "run      resident bytes of the supervisor for each of {IDLE} idle connections: {fresh:.0}, after 100 KB each way {used:.0}"
    );
    Ok(json!({ "connections": IDLE, "fresh_bytes": fresh, "used_bytes": used, "resident_bytes": measured }))
}

/// Many connections at once, each with different bytes.
fn many(args: &Args) -> Result<Value> {
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        for variant in VARIANTS {
            let server = Server::start(args, variant)?;
            let words = ["many", &server.port, &CONNECTIONS.to_string(), &round.to_string()];
            let output = numbers(&client(args, variant, &words)?)?;
            let [right, bytes, ns] = output[..] else { bail!("the client did not print three numbers") };
            println!(
                "run      {right} of {CONNECTIONS} connections right, {}: {bytes} bytes in {:.2} s",
                variant.name(),
                ns as f64 * 1e-9
            );
            ensure!(right as usize == CONNECTIONS, "connections have wrong bytes");
            samples.push(json!({ "under": variant.name(), "right": right, "bytes": bytes, "ns": ns }));
        }
    }
    Ok(json!({ "connections": CONNECTIONS, "samples": samples }))
}

/// Programs that are killed right after their last write: all of it must arrive, then a clean end.
fn kill(args: &Args) -> Result<Value> {
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let one = |number: usize, listener: &TcpListener| -> Result<()> {
        let mut rng = Rng(number as u64 + 1);
        let len = 1 + rng.below(KILL_BYTES);
        let port = listener.local_addr()?.port().to_string();
        let mut command = under(args, true, &[]);
        command.args(own(&["kill", &port, &len.to_string(), &number.to_string()])?).stdin(Stdio::null());
        let mut child = Ended(command.spawn()?);
        let mut socket = accept(listener)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (mut hash, mut got, mut part) = (Xxh3::new(), 0, vec![0; 100_000]);
        let slow = number.is_multiple_of(4);
        for turn in 0.. {
            match socket.read(&mut part).with_context(|| format!("after {got} of {len} bytes"))? {
                0 => break,
                n => {
                    hash.update(&part[..n]);
                    got += n;
                }
            }
            // Read slowly at first, so that much is still in flight when the program is gone.
            if slow && turn < 5 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        child.0.wait()?;
        ensure!(got == len, "{got} of {len} bytes arrived");
        ensure!(hash.digest() == xxh3_64(&ends::noise(len, number as u64)), "wrong bytes arrived");
        Ok(())
    };
    let mut listeners = Vec::new();
    for _ in 0..KILL_THREADS {
        listeners.push(TcpListener::bind("127.0.0.1:0")?);
    }
    std::thread::scope(|scope| {
        for listener in &listeners {
            scope.spawn(|| {
                let _ = listener.set_nonblocking(true);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= args.kills {
                        return;
                    }
                    if let Err(error) = one(number, listener) {
                        eprintln!("bench: kill {number}: {error:#}");
                        if let Ok(mut wrong) = wrong.lock() {
                            wrong.push(json!({ "run": number, "error": format!("{error:#}") }));
                        }
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap_or_default();
    println!("run      {} programs killed after their last write, {} lost something", args.kills, wrong.len());
    Ok(json!({ "runs": args.kills, "wrong": wrong }))
}

fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(e) => return Err(e).context("no connection came"),
        }
    }
}

// --- common ---

/// A command prefix: `narrows run ... --`, or `env`, which changes nothing.
fn under(args: &Args, swapped: bool, more: &[&str]) -> Command {
    if !swapped {
        return Command::new("env");
    }
    let mut command = Command::new(program());
    let policy = policy_beside(&args.run_flags).split_whitespace();
    command.args(["run", "--loopback"]).args(policy).args(more).args(args.run_flags.split_whitespace()).arg("--");
    command
}

/// The command line of this program in the role of one end.
fn own(words: &[&str]) -> Result<Vec<String>> {
    let exe = std::env::current_exe()?.to_string_lossy().into_owned();
    let words = words.iter().map(|w| (*w).to_owned());
    Ok([exe, "bench".to_owned(), "--end".to_owned()].into_iter().chain(words).collect())
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Server {
    port: String,
    _child: Ended,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(args: &Args, variant: Variant) -> Result<Self> {
        let mut command = under(args, variant.server(), &[]);
        command.args(own(&["serve"])?).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = Ended(command.spawn().context("cannot run the server")?);
        let mut stdout = BufReader::new(child.0.stdout.take().context("a pipe")?);
        let mut port = String::new();
        stdout.read_line(&mut port)?;
        ensure!(port.trim().parse::<u16>().is_ok(), "the server does not print its port");
        Ok(Self { port: port.trim().to_owned(), _child: child, _stdout: stdout })
    }
}

fn client(args: &Args, variant: Variant, words: &[&str]) -> Result<String> {
    let mut command = under(args, variant.client(), &[]);
    let output = command.args(own(words)?).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the client failed ({})", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn numbers(text: &str) -> Result<Vec<u64>> {
    text.split_whitespace().map(|w| w.parse().with_context(|| format!("'{w:.20}' is not a number"))).collect()
}

fn rows(what: &str, unit: &str, samples: &[Vec<f64>]) -> Value {
    let rows = VARIANTS.into_iter().zip(samples).map(|(variant, samples)| {
        println!("run      {:9.2} {what}, {} (p99 {:.2})", median(samples), variant.name(), quantile(samples, 0.99));
        json!({ "under": variant.name(), "median": median(samples), "p99": quantile(samples, 0.99), "samples": samples })
    });
    json!({ "unit": unit, "rows": rows.collect::<Vec<_>>() })
}

fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len() as f64) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_samples() {
        let samples: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!((quantile(&samples, 0.5), quantile(&samples, 0.99), quantile(&[7.0], 0.99)), (50.0, 99.0, 7.0));
        assert!(quantile(&[], 0.5).is_nan());
        assert_eq!(numbers("1 2\n3\n").unwrap(), [1, 2, 3]);
        assert!(numbers("1 x").is_err());
    }
}
