//! Age of bytes on arrival over a link that its program saturates: the queueing between a write and
//! a read.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use super::{Args, Variant, ends, median, numbers, own, quantile, under};

/// Named links, slow ones and a fast one.
const LINKS: [&str; 5] = ["1m", "4g", "wifi", "lan-100", "lan-1000"];
const SECONDS: u64 = 8;
const PORT: u16 = 7820;
/// A record begins with the time at which it was written.
const RECORD: usize = 4096;
const DATA: usize = 8 << 20;

/// Measures age in ms and goodput of noise and of text, natively and with both ends under `narrows
/// run`.
pub(super) fn age(args: &Args) -> Result<Value> {
    let mut rows = Vec::new();
    for link in LINKS {
        for kind in ["noise", "text"] {
            let mut native_ms = f64::NAN;
            for variant in [Variant::Native, Variant::Both] {
                let (mut ages, mut goodputs) = (Vec::new(), Vec::new());
                for _ in 0..args.rounds {
                    let (age_ms, mbit) = one(args, link, kind, variant)?;
                    ages.push(age_ms);
                    goodputs.push(mbit);
                }
                let (age_ms, mbit) = (median(&ages), median(&goodputs));
                if variant == Variant::Native {
                    native_ms = age_ms;
                }
                println!(
                    "run      age of {kind:<5} over {link:<8} {:<6} p50 {age_ms:7.0} ms ({:+6.0}), {mbit:7.1} Mbit/s",
                    variant.name(),
                    age_ms - native_ms
                );
                rows.push(json!({
                    "link": link, "data": kind, "under": variant.name(), "p50_ms": age_ms, "mbit_per_s": mbit,
                    "samples_ms": ages, "samples_mbit_per_s": goodputs,
                }));
            }
        }
    }
    Ok(json!({ "seconds": SECONDS, "record_bytes": RECORD, "rows": rows }))
}

fn one(args: &Args, link: &str, kind: &str, variant: Variant) -> Result<(f64, f64)> {
    let words = |words: &[&str]| -> Result<Vec<String>> {
        let under = under(args, variant == Variant::Both, &[]);
        let program = std::iter::once(under.get_program()).chain(under.get_args());
        let program = program.map(|word| word.to_string_lossy().into_owned());
        Ok(program.chain(own(words)?).collect())
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["link", "--profile", link, "--server-delay", "500", "--server"]);
    command.arg(words(&["age-serve"])?.join(" ")).arg("--").args(words(&["age", kind])?);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot make the link")?;
    ensure!(output.status.success(), "the link failed ({})", output.status);
    let [p50_us, bytes, us] = numbers(&String::from_utf8(output.stdout)?)?[..] else { anyhow::bail!("other words") };
    Ok((p50_us as f64 / 1e3, bytes as f64 * 8.0 / us as f64))
}

// --- ends ---

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_micros() as u64)
}

fn address() -> Result<SocketAddr> {
    let host: IpAddr = std::env::var("NARROWS_LINK_SERVER").context("no link")?.parse()?;
    Ok(SocketAddr::new(host, PORT))
}

/// Receives records. Sends back the median age in us, all bytes, and the time from the first record
/// to the last.
pub(super) fn serve() -> Result<()> {
    let (mut socket, _) = TcpListener::bind(address()?)?.accept()?;
    let (mut record, mut ages, mut begun) = (vec![0; RECORD], Vec::new(), None);
    while socket.read_exact(&mut record).is_ok() {
        let written: [u8; 8] = record[..8].try_into()?;
        ages.push(now_us().saturating_sub(u64::from_le_bytes(written)) as f64);
        begun.get_or_insert_with(Instant::now);
    }
    let us = begun.map_or(1, |at| at.elapsed().as_micros().max(1));
    let words = format!("{} {} {us}\n", quantile(&ages, 0.5) as u64, ages.len() * RECORD);
    Ok(socket.write_all(words.as_bytes())?)
}

/// Writes whenever the socket is writable, as programs with an event loop do.
pub(super) fn client(kind: &str) -> Result<()> {
    let mut socket = TcpStream::connect(address()?)?;
    let data = if kind == "text" { text() } else { ends::noise(DATA, 7) };
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let mut records = data.chunks_exact(RECORD).cycle();
    while Instant::now() < end {
        // If poll fails, the following write reports the error.
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], None);
        let mut record = records.next().context("data")?.to_vec();
        record[..8].copy_from_slice(&now_us().to_le_bytes());
        socket.write_all(&record)?;
    }
    socket.shutdown(std::net::Shutdown::Write)?;
    let mut words = String::new();
    socket.read_to_string(&mut words)?;
    print!("{words}");
    Ok(())
}

/// Lines like those of a log.
fn text() -> Vec<u8> {
    let numbers = ends::noise(DATA, 3);
    let lines = numbers.chunks_exact(8).map(|n| {
        let [a, b, c, d, ..] = *n else { unreachable!("chunks of eight") };
        format!("10.{a}.{b}.1 - - \"GET /page/{c}/item{d} HTTP/1.1\" 200 {}\n", u32::from(c) * 37)
    });
    lines.flat_map(String::into_bytes).take(DATA).collect()
}
