//! The link's check of itself: does it have the rate, delay and loss that it was told?
//!
//! Probes are UDP packets between two sockets of this process, so both ends read one clock.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Backend, Emulation, Error, Profile, Result, Side, sys};

/// A full packet is 1500 bytes with the headers of IP and UDP.
const PAYLOAD: usize = 1472;
const PACKET_BITS: f64 = 12_000.0;
/// What is offered to a link whose rate is measured, as a multiple of that rate.
const OFFERED: f64 = 1.15;
/// A sender that was held up makes good what it would have sent in this time, and so many packets at least: half of
/// what the queues of the measured links hold.
const CATCH_UP: Duration = Duration::from_millis(50);
const CATCH_UP_PACKETS: u64 = 64;
const SENDER_TURN: Duration = Duration::from_micros(200);
/// Silence after which nothing more is expected.
const SILENCE: Duration = Duration::from_millis(400);
const RATE_TOLERANCE: f64 = 0.02;
const DELAY_TOLERANCE_MS: f64 = 0.5;
const CORES_MAX: f64 = 1.5;
const IN_FLIGHT: u64 = 10_000;
/// Two-sided 99 % of a normal distribution.
const SIGMAS: f64 = 2.576;

/// One figure, measured several times.
#[derive(Clone, Debug)]
pub struct Finding {
    pub what: String,
    pub unit: &'static str,
    /// The median of the samples must lie between these.
    pub low: f64,
    pub high: f64,
    pub samples: Vec<f64>,
    /// Cores of this machine that nobody used directly before each sample.
    pub free_cores: Vec<f64>,
}

impl Finding {
    pub fn new(what: impl Into<String>, unit: &'static str, low: f64, high: f64) -> Self {
        Self { what: what.into(), unit, low, high, samples: Vec::new(), free_cores: Vec::new() }
    }

    pub fn add(&mut self, sample: f64, free_cores: f64) {
        self.samples.push(sample);
        self.free_cores.push(free_cores);
    }

    pub fn median(&self) -> f64 {
        median(&self.samples)
    }

    pub fn passes(&self) -> bool {
        (self.low..=self.high).contains(&self.median())
    }

    /// Whether the machine was too busy for a verdict: the check itself needs two cores.
    pub fn lacked_cores(&self) -> bool {
        median(&self.free_cores) < 2.0
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// All figures by own probes; each is told as soon as it is there.
pub fn run(backend: Backend, rounds: usize, mut tell: impl FnMut(&Finding)) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for delay_ms in [0.1, 10.0, 100.0] {
        findings.push(delay(backend, rounds, delay_ms)?);
        tell(&findings[findings.len() - 1]);
    }
    for mbit in [1, 10, 100, 1000] {
        let before = findings.len();
        findings.extend(rate(backend, rounds, mbit)?);
        findings[before..].iter().for_each(&mut tell);
    }
    for (spec, share, burst) in [("loss=1%", 0.01, 1.0), ("loss=2%,loss-burst=5", 0.02, 5.0)] {
        findings.push(loss(backend, rounds, spec, share, burst)?);
        tell(&findings[findings.len() - 1]);
    }
    findings.push(in_flight(backend, rounds)?);
    tell(&findings[findings.len() - 1]);
    Ok(findings)
}

/// One way, without anything else on the link.
fn delay(backend: Backend, rounds: usize, delay_ms: f64) -> Result<Finding> {
    const PROBES: u64 = 150;
    let link = link(&format!("delay={delay_ms}ms"), backend)?;
    let what = format!("one-way delay at {delay_ms} ms, median of {PROBES} packets");
    let mut finding = Finding::new(what, "ms", delay_ms, delay_ms + DELAY_TOLERANCE_MS);
    for _ in 0..rounds {
        let free = free_cores();
        // 2 ms and a bit, so that probes fall everywhere between the ticks of timers.
        let sent = flood(&link, Side::Client, 10, 1e9 / 2_137_000.0, PROBES)?;
        let delays: Vec<f64> = sent
            .arrivals
            .iter()
            .map(|(number, at)| at.saturating_duration_since(sent.departures[*number as usize]).as_secs_f64() * 1e3)
            .collect();
        finding.add(median(&delays), free);
    }
    Ok(finding)
}

/// Both directions one after the other, and the CPU of carrying the fastest.
fn rate(backend: Backend, rounds: usize, mbit: u32) -> Result<Vec<Finding>> {
    let link = link(&format!("rate={mbit}mbit,queue=100ms"), backend)?;
    let bits = f64::from(mbit) * 1e6;
    let bounds = (bits * (1.0 - RATE_TOLERANCE) / 1e6, bits * (1.0 + RATE_TOLERANCE) / 1e6);
    let mut rate =
        Finding::new(format!("rate at {mbit} Mbit/s, worse of both directions"), "Mbit/s", bounds.0, bounds.1);
    let mut cores = Finding::new(format!("cores to carry {mbit} Mbit/s"), "cores", 0.0, CORES_MAX);
    let seconds = if mbit == 1 { 3.0 } else { 1.5 };
    for _ in 0..rounds {
        let free = free_cores_for(mbit);
        let mut worst = bits / 1e6;
        let mut used = 0.0f64;
        for side in [Side::Client, Side::Server] {
            let per_s = bits * OFFERED / PACKET_BITS;
            let (cpu, begun) = (link.counters().cpu, Instant::now());
            let sent = flood(&link, side, PAYLOAD, per_s, (per_s * seconds) as u64)?;
            used = used.max((link.counters().cpu - cpu).as_secs_f64() / (begun.elapsed() - SILENCE).as_secs_f64());
            // The first tenth fills the queue.
            let counted = &sent.arrivals[sent.arrivals.len() / 10..];
            let (Some(first), Some(last)) = (counted.first(), counted.last()) else { continue };
            let seen = (counted.len() - 1) as f64 * PACKET_BITS / (last.1 - first.1).as_secs_f64() / 1e6;
            if (seen - bits / 1e6).abs() > (worst - bits / 1e6).abs() {
                worst = seen;
            }
        }
        rate.add(worst, free);
        cores.add(used, free);
    }
    Ok(if mbit == 1000 { vec![rate, cores] } else { vec![rate] })
}

/// The link's random numbers are the same in each run, so a failure stays one.
fn loss(backend: Backend, rounds: usize, spec: &str, share: f64, burst: f64) -> Result<Finding> {
    const PACKETS: u64 = 20_000;
    let (leave, enter) = (1.0 / burst, share / burst / (1.0 - share));
    // Neighbours that share their fate tell less: the variance grows with their correlation.
    let correlation = if burst > 1.0 { 1.0 - leave - enter } else { 0.0 };
    let variance = share * (1.0 - share) * (1.0 + correlation) / (1.0 - correlation);
    let half = SIGMAS * (variance / PACKETS as f64).sqrt() * 100.0;
    let what = format!("{spec}, share of {PACKETS} packets that is lost");
    let mut finding = Finding::new(what, "%", share * 100.0 - half, share * 100.0 + half);
    let link = link(&format!("delay=1ms,{spec}"), backend)?;
    for _ in 0..rounds {
        let free = free_cores();
        let sent = flood(&link, Side::Client, 100, 25_000.0, PACKETS)?;
        finding.add(100.0 - sent.arrivals.len() as f64 / PACKETS as f64 * 100.0, free);
    }
    Ok(finding)
}

/// All of them leave before the first one arrives.
fn in_flight(backend: Backend, rounds: usize) -> Result<Finding> {
    let what = "packets in flight at once, all of which arrive";
    let mut finding = Finding::new(what, "packets", IN_FLIGHT as f64, IN_FLIGHT as f64);
    let link = link("delay=300ms", backend)?;
    for _ in 0..rounds {
        let free = free_cores();
        let sent = flood(&link, Side::Client, PAYLOAD, 50_000.0, IN_FLIGHT)?;
        let first = sent.arrivals.first().map(|a| a.1);
        let together = sent.departures.iter().filter(|d| first.is_some_and(|f| **d < f)).count();
        finding.add(together.min(sent.arrivals.len()) as f64, free);
    }
    Ok(finding)
}

fn link(spec: &str, backend: Backend) -> Result<Emulation> {
    Emulation::start_with(&spec.parse::<Profile>()?, backend)
}

struct Sent {
    departures: Vec<Instant>,
    /// Number and time of those that arrived, in their order.
    arrivals: Vec<(u64, Instant)>,
}

/// Sends so many packets from `side` at so many per second, and notes what arrives at the other side.
fn flood(link: &Emulation, side: Side, payload: usize, per_s: f64, count: u64) -> Result<Sent> {
    let system = |e| Error::System(format!("cannot send probes: {e}"));
    let other = if side == Side::Client { Side::Server } else { Side::Client };
    let (from, to) = (link.probe_socket(side).map_err(system)?, link.probe_socket(other).map_err(system)?);
    sys::set_receive_buffer(to.as_fd()).map_err(system)?;
    to.set_read_timeout(Some(SILENCE)).map_err(system)?;
    let address = to.local_addr().map_err(system)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| arrivals(&to, &done));
        let mut departures = Vec::with_capacity(count as usize);
        let mut packet = vec![0; payload];
        let begun = Instant::now();
        sys::wake_exactly();
        let mut given_up = 0;
        let catch_up = CATCH_UP_PACKETS.max((per_s * CATCH_UP.as_secs_f64()) as u64);
        while (departures.len() as u64) < count {
            let owed = (begun.elapsed().as_secs_f64() * per_s) as u64 + 1 - given_up;
            let sent = departures.len() as u64;
            given_up += owed.saturating_sub(sent + catch_up);
            for number in sent..owed.min(sent + catch_up).min(count) {
                packet[..8].copy_from_slice(&number.to_be_bytes());
                departures.push(Instant::now());
                // A full device loses it, as a network does.
                let _ = from.send_to(&packet, address);
            }
            let next = Duration::from_secs_f64(departures.len() as f64 / per_s);
            let early = (begun + next).saturating_duration_since(Instant::now());
            std::thread::sleep(if per_s > 2000.0 { SENDER_TURN } else { early });
        }
        done.store(true, Ordering::Release);
        let arrivals = receiver.join().map_err(|_| Error::System("the receiver of probes broke down".into()))?;
        Ok(Sent { departures, arrivals })
    })
}

fn arrivals(to: &UdpSocket, done: &AtomicBool) -> Vec<(u64, Instant)> {
    let mut arrivals = Vec::new();
    let mut buf = [0; PAYLOAD];
    loop {
        match to.recv(&mut buf) {
            Ok(len) if len >= 8 => {
                let number = buf[..8].try_into().map_or(0, u64::from_be_bytes);
                arrivals.push((number, Instant::now()));
            }
            Ok(_) => {}
            Err(_) if done.load(Ordering::Acquire) => return arrivals,
            Err(_) => {}
        }
    }
}

/// Waits a while for the two free cores that a measurement of `mbit` needs, and says how many there are.
pub fn free_cores_for(mbit: u32) -> f64 {
    /// Others' compilations end, their simulations do not.
    const TRIES: usize = 60;
    let mut free = free_cores();
    for _ in 0..TRIES {
        if free >= 2.0 || mbit < 1000 {
            break;
        }
        free = free_cores();
    }
    free
}

/// Cores that nobody uses, over a fifth of a second.
fn free_cores() -> f64 {
    let idle = || {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let fields: Vec<u64> =
            text.lines().next().unwrap_or("").split_whitespace().filter_map(|f| f.parse().ok()).collect();
        // The guests' times are within others; idle and waiting for disks are the fourth and fifth.
        (fields.iter().take(8).sum::<u64>(), fields.iter().skip(3).take(2).sum::<u64>())
    };
    let before = idle();
    std::thread::sleep(Duration::from_millis(200));
    let after = idle();
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    cores * (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_judged_by_its_median() {
        let mut finding = Finding::new("rate", "Mbit/s", 98.0, 102.0);
        assert!(!finding.passes(), "nothing was measured");
        for (sample, free) in [(50.0, 3.0), (99.0, 1.0), (101.0, 3.0)] {
            finding.add(sample, free);
        }
        assert!(finding.passes() && !finding.lacked_cores());
        for _ in 0..3 {
            finding.add(90.0, 0.5);
        }
        assert!(!finding.passes() && finding.lacked_cores());
    }
}
