//! `narrows demo`: measures plain, fixed methods and `balance` on shaped links inside this process.

use std::fs;
use std::io::{self, Cursor, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use indicatif::ProgressBar;
use narrows::codec::Method;
use narrows::policy::PolicySpec;
use narrows::sender::Summary;
use narrows::stream::{self, ReceiveOptions, SendOptions};
use narrows::transport::Link;
use serde_json::json;

use crate::args::DemoArgs;
use crate::report;
use crate::shaper::Shaper;

/// Link rates in Mbit/s; `None` is unshaped loopback.
const LINKS: [Option<f64>; 4] = [Some(10.0), Some(100.0), Some(1000.0), None];
/// Maximum length of the data, which is held in memory. At 1000 Mbit/s and unshaped, all of it is
/// sent.
const DATA_MAX: usize = 128 << 20;
/// Lengths of the pieces in which kinds of data alternate.
const PIECES: [usize; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Maximum length taken from one file, so that one large file does not dominate the sample.
const FILE_MAX: usize = 2 << 20;
/// Maximum length of the gathered sample; it is repeated if a link needs more.
const SAMPLE_MAX: usize = 32 << 20;

#[derive(Clone, Copy)]
enum Contender {
    Plain,
    Fixed(Method),
    Balance,
}

const CONTENDERS: [Contender; 4] =
    [Contender::Plain, Contender::Fixed(Method::lz4_accel(1)), Contender::Fixed(Method::zstd(3)), Contender::Balance];

struct Outcome {
    goodput_mb_s: f64,
    ratio: f64,
    mix: String,
}

/// Runs `narrows demo`.
pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let sample = if args.files.is_empty() { found_files()? } else { named_files(&args.files)? };
    let (amount, cores) = (report::bytes(sample.len() as f64), report::count(stream::cores(), "core", "cores"));
    report::note(format_args!("{amount} of distinct data, {cores}; every byte that arrives is verified"));
    // Shown on a terminal only.
    let progress = ProgressBar::new_spinner();
    let mut rows = Vec::new();
    if !args.json {
        report::out("goodput in MB/s (raw bytes delivered; in brackets: relative to plain)\n")?;
        let head = ["link", "plain", "lz4", "zstd 3", "balance", "ratio", "methods of balance"];
        report::out(format_args!(
            "{:<14} {:>10} {:>16} {:>16} {:>16} {:>7}  {}",
            head[0], head[1], head[2], head[3], head[4], head[5], head[6]
        ))?;
    }
    for link in LINKS {
        let name = link.map_or("unshaped".to_string(), |mbit| format!("{mbit:.0} Mbit/s"));
        let rate = link.map(|mbit| mbit * 125_000.0);
        let wanted = rate.map_or(DATA_MAX as f64, |r| r * args.seconds.clamp(0.1, 60.0)) as usize;
        let data = Arc::new(repeat(&sample, wanted.min(DATA_MAX)));
        let mut outcomes = Vec::new();
        for contender in CONTENDERS {
            progress.set_message(format!("{name}: {}", contender.name()));
            progress.tick();
            outcomes.push(measure(contender, &data, rate)?);
        }
        if args.json {
            let figures: Vec<_> = CONTENDERS
                .iter()
                .zip(&outcomes)
                .map(|(c, o)| json!({"name": c.name(), "goodput_mb_per_s": o.goodput_mb_s, "ratio": o.ratio, "mix": o.mix}))
                .collect();
            rows.push(json!({"link": name, "raw_bytes": data.len(), "contenders": figures}));
        } else {
            progress.suspend(|| print_row(&name, &outcomes))?;
        }
    }
    progress.finish_and_clear();
    if args.json {
        report::out(serde_json::to_string_pretty(&json!({ "links": rows }))?)?;
    }
    Ok(())
}

fn print_row(name: &str, outcomes: &[Outcome]) -> Result<()> {
    let plain = outcomes[0].goodput_mb_s;
    let cell = |o: &Outcome| format!("{:.1} ({:.2}x)", o.goodput_mb_s, o.goodput_mb_s / plain);
    let balance = &outcomes[3];
    report::out(format_args!(
        "{name:<14} {plain:>10.1} {:>16} {:>16} {:>16} {:>7.2}  {}",
        cell(&outcomes[1]),
        cell(&outcomes[2]),
        cell(balance),
        balance.ratio,
        balance.mix
    ))
}

impl Contender {
    fn name(self) -> String {
        match self {
            Self::Plain => "plain".into(),
            Self::Fixed(method) => method.to_string(),
            Self::Balance => "balance".into(),
        }
    }
}

fn measure(contender: Contender, data: &Arc<Vec<u8>>, rate: Option<f64>) -> Result<Outcome> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let shaper = rate.map(|r| Shaper::start(address, r)).transpose()?;
    let target = shaper.as_ref().map_or(address, |s| s.address);
    let sink = Compare { data: Arc::clone(data), at: 0 };
    let (elapsed, summary) = match contender {
        Contender::Plain => (plain(listener, target, data, sink)?, None),
        Contender::Fixed(method) => through(listener, target, data, sink, PolicySpec::fixed(method, false))?,
        Contender::Balance => through(listener, target, data, sink, PolicySpec::balance())?,
    };
    if let Some(shaper) = shaper {
        shaper.join()?;
    }
    Ok(Outcome {
        goodput_mb_s: data.len() as f64 / elapsed.as_secs_f64() / 1e6,
        ratio: summary.as_ref().map_or(1.0, Summary::ratio),
        mix: summary.as_ref().map_or_else(String::new, report::mix_words),
    })
}

/// Sends the bytes uncompressed, as a minimal program would.
fn plain(listener: TcpListener, to: SocketAddr, data: &Arc<Vec<u8>>, mut sink: Compare) -> Result<Duration> {
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
    let whole = receiver.join().map_err(|_| anyhow!("the receiver failed"))??;
    let elapsed = begun.elapsed();
    if whole { Ok(elapsed) } else { Err(anyhow!("the plain transfer lost bytes")) }
}

fn through(
    listener: TcpListener,
    to: SocketAddr,
    data: &Arc<Vec<u8>>,
    sink: Compare,
    policy: PolicySpec,
) -> Result<(Duration, Option<Summary>)> {
    let receiver = std::thread::spawn(move || -> Result<u64> {
        let (socket, _) = listener.accept()?;
        let summary = stream::receive(sink, Link::tcp(socket)?, ReceiveOptions::default())?;
        Ok(summary.raw_bytes)
    });
    let options = SendOptions::new(policy.clone()).raw_len(data.len() as u64);
    let begun = Instant::now();
    let link = Link::tcp(TcpStream::connect(to)?)?;
    let source = Cursor::new(Shared(Arc::clone(data)));
    let sent = stream::send(source, link, options);
    let elapsed = begun.elapsed();
    let received = receiver.join().map_err(|_| anyhow!("the receiver failed"))??;
    if received != data.len() as u64 {
        return Err(anyhow!("{policy}: bytes were lost"));
    }
    Ok((elapsed, Some(sent?.0)))
}

struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A sink that compares the received bytes with the sent ones.
struct Compare {
    data: Arc<Vec<u8>>,
    at: usize,
}

impl Write for Compare {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.data.get(self.at..self.at + bytes.len()) != Some(bytes) {
            return Err(io::Error::other("the received bytes differ from the sent bytes"));
        }
        self.at += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn named_files(files: &[PathBuf]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for path in files {
        let file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let room = (DATA_MAX - out.len()) as u64;
        file.take(room).read_to_end(&mut out).with_context(|| format!("cannot read {}", path.display()))?;
    }
    if out.is_empty() { Err(anyhow!("the files are empty")) } else { Ok(out) }
}

/// Texts, programs, sources and pictures found on this host, mixed in pieces.
fn found_files() -> Result<Vec<u8>> {
    let kinds: [&[&str]; 4] = [
        &["/usr/share/doc", "/usr/share/man", "/etc"],
        &["/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"],
        &["/usr/include", "/usr/share/perl", "/usr/lib/python3", "/usr/share"],
        &["/usr/share/icons", "/usr/share/pixmaps", "/var/lib"],
    ];
    let mut pools: Vec<Vec<u8>> = kinds.iter().map(|folders| pool(folders)).filter(|p| !p.is_empty()).collect();
    if pools.is_empty() {
        pools.push(fs::read(std::env::current_exe()?)?);
    }
    let mut out = Vec::new();
    let mut at = vec![0; pools.len()];
    for turn in 0.. {
        let (kind, piece) = (turn % pools.len(), PIECES[turn % PIECES.len()]);
        let rest = &pools[kind][at[kind]..];
        out.extend_from_slice(&rest[..rest.len().min(piece)]);
        at[kind] += rest.len().min(piece);
        if at.iter().zip(&pools).all(|(at, pool)| *at == pool.len()) || out.len() >= SAMPLE_MAX {
            break;
        }
    }
    Ok(out)
}

fn pool(folders: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for folder in folders {
        gather(Path::new(folder), &mut out, 4);
    }
    out
}

fn gather(folder: &Path, out: &mut Vec<u8>, depth: usize) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    for path in paths {
        if out.len() >= SAMPLE_MAX / 4 {
            return;
        }
        let Ok(data) = path.symlink_metadata() else { continue };
        if data.is_dir() && depth > 0 {
            gather(&path, out, depth - 1);
        } else if data.is_file()
            && let Ok(file) = fs::File::open(&path)
        {
            let before = out.len();
            if file.take(FILE_MAX as u64).read_to_end(out).is_err() {
                out.truncate(before);
            }
        }
    }
}

fn repeat(sample: &[u8], len: usize) -> Vec<u8> {
    sample.iter().copied().cycle().take(len.max(1)).collect()
}
