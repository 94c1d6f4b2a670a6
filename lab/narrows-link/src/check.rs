//! Self-check of the emulation: measures whether a link has the configured rate, delay and loss.
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
/// Offered load when the rate is measured, as a multiple of that rate.
const OFFERED: f64 = 1.15;
/// A delayed sender catches up on the packets of at most this time, or of `CATCH_UP_PACKETS` if
/// that is more: half of what the queues of the measured links hold.
const CATCH_UP: Duration = Duration::from_millis(50);
const CATCH_UP_PACKETS: u64 = 64;
/// Rate of delay probes: low enough that probes never queue behind each other. The interval is not
/// a whole number of ms, so that probes fall at all phases of the timer ticks.
const PROBES_PER_S: f64 = 1e9 / 2_137_000.0;
const SENDER_TURN: Duration = Duration::from_micros(200);
/// Silence after which no further packet is expected.
const SILENCE: Duration = Duration::from_millis(400);
const RATE_TOLERANCE: f64 = 0.02;
const DELAY_TOLERANCE_MS: f64 = 0.5;
const CORES_MAX: f64 = 1.5;
const IN_FLIGHT: u64 = 10_000;
/// Packets per burst on a link with a rate: enough that some queue while others travel.
const TOGETHER: u64 = 4;
/// Standard deviations of the two-sided 99 % interval of a normal distribution.
const SIGMAS: f64 = 2.576;

/// One quantity, measured several times.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Description of the quantity.
    pub what: String,
    /// Unit of `low`, `high` and `samples`.
    pub unit: &'static str,
    /// Lower bound for the median of the samples.
    pub low: f64,
    /// Upper bound for the median of the samples.
    pub high: f64,
    /// Measured values, void ones included.
    pub samples: Vec<f64>,
    /// Idle cores of this machine directly before each sample.
    pub free_cores: Vec<f64>,
    /// Packets that devices dropped during each sample. Any drop voids the sample, as it is not the
    /// link's fault.
    pub device_dropped: Vec<u64>,
}

impl Finding {
    /// A finding without samples.
    pub fn new(what: impl Into<String>, unit: &'static str, low: f64, high: f64) -> Self {
        let (samples, free_cores, device_dropped) = (Vec::new(), Vec::new(), Vec::new());
        Self { what: what.into(), unit, low, high, samples, free_cores, device_dropped }
    }

    /// Adds a sample and the state of the machine while it was taken.
    pub fn add(&mut self, sample: f64, free_cores: f64, device_dropped: u64) {
        self.samples.push(sample);
        self.free_cores.push(free_cores);
        self.device_dropped.push(device_dropped);
    }

    fn valid(&self) -> Vec<f64> {
        self.samples.iter().zip(&self.device_dropped).filter(|(_, dropped)| **dropped == 0).map(|(s, _)| *s).collect()
    }

    /// Median of the valid samples; NaN if all are void.
    pub fn median(&self) -> f64 {
        median(&self.valid())
    }

    /// Whether at least half of the samples are void, which is too many for a verdict.
    pub fn is_void(&self) -> bool {
        2 * self.valid().len() <= self.samples.len()
    }

    /// Whether the finding is not void and its median lies within the bounds.
    pub fn passes(&self) -> bool {
        !self.is_void() && (self.low..=self.high).contains(&self.median())
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

/// Measures all quantities. Passes each finding to `tell` as soon as it is complete.
pub fn run(backend: Backend, rounds: usize, mut tell: impl FnMut(&Finding)) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for delay_ms in [0.1, 10.0, 100.0] {
        findings.push(delay(backend, rounds, delay_ms)?);
        tell(&findings[findings.len() - 1]);
    }
    findings.push(delay_of_bursts(backend, rounds)?);
    tell(&findings[findings.len() - 1]);
    for (mbit, delay_ms) in [(1, 0), (10, 0), (100, 0), (1000, 0), (100, 20)] {
        let before = findings.len();
        findings.extend(rate(backend, rounds, mbit, delay_ms)?);
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

/// One-way delay of an otherwise idle link.
fn delay(backend: Backend, rounds: usize, delay_ms: f64) -> Result<Finding> {
    const PROBES: u64 = 150;
    let link = link(&format!("delay={delay_ms}ms"), backend)?;
    let what = format!("one-way delay at {delay_ms} ms, median of {PROBES} packets");
    let mut finding = Finding::new(what, "ms", delay_ms, delay_ms + DELAY_TOLERANCE_MS);
    for _ in 0..rounds {
        let free = free_cores();
        let sent = flood(&link, Side::Client, 10, PROBES_PER_S, 1, PROBES)?;
        let delays: Vec<f64> = sent.delays_ms().map(|(_, ms)| ms).collect();
        finding.add(median(&delays), free, sent.device_dropped);
    }
    Ok(finding)
}

/// One-way delay of a link with a rate: the packets of a burst that queue must not delay later
/// packets that find the link free.
fn delay_of_bursts(backend: Backend, rounds: usize) -> Result<Finding> {
    const DELAY_MS: f64 = 50.0;
    const MBIT: u32 = 10;
    /// Together twice as long as the delay. In a steady stream any pump polls its device often
    /// enough, so only the beginnings test anything; therefore there are several.
    const BURSTS: u64 = 12;
    const BEGINNINGS: usize = 4;
    let link = link(&format!("rate={MBIT}mbit,delay={DELAY_MS}ms"), backend)?;
    let what =
        format!("one-way delay at {MBIT} Mbit/s and {DELAY_MS} ms, in bursts of {TOGETHER}, without their turns");
    let mut finding = Finding::new(what, "ms", DELAY_MS, DELAY_MS + DELAY_TOLERANCE_MS);
    let turn_ms = PACKET_BITS / f64::from(MBIT) / 1e3;
    for _ in 0..rounds {
        let free = free_cores();
        let (mut delays, mut device_dropped) = (Vec::new(), 0);
        for _ in 0..BEGINNINGS {
            let sent = flood(&link, Side::Client, PAYLOAD, PROBES_PER_S, TOGETHER, BURSTS * TOGETHER)?;
            delays.extend(sent.delays_ms().map(|(number, ms)| ms - turn_ms * (number % TOGETHER + 1) as f64));
            device_dropped += sent.device_dropped;
        }
        finding.add(median(&delays), free, device_dropped);
    }
    Ok(finding)
}

/// Rate of both directions, one after the other, and the CPU time that the pumps need for it.
fn rate(backend: Backend, rounds: usize, mbit: u32, delay_ms: u32) -> Result<Vec<Finding>> {
    let link = link(&format!("rate={mbit}mbit,delay={delay_ms}ms,queue=100ms"), backend)?;
    let bits = f64::from(mbit) * 1e6;
    let bounds = (bits * (1.0 - RATE_TOLERANCE) / 1e6, bits * (1.0 + RATE_TOLERANCE) / 1e6);
    let at = if delay_ms > 0 { format!(" and {delay_ms} ms") } else { String::new() };
    let mut rate =
        Finding::new(format!("rate at {mbit} Mbit/s{at}, worse of both directions"), "Mbit/s", bounds.0, bounds.1);
    let mut cores = Finding::new(format!("cores to carry {mbit} Mbit/s"), "cores", 0.0, CORES_MAX);
    let seconds = if mbit == 1 { 3.0 } else { 1.5 };
    for _ in 0..rounds {
        let free = free_cores_for(mbit);
        let mut seen = Vec::new();
        let (mut used, mut device_dropped) = (0.0f64, 0);
        for side in [Side::Client, Side::Server] {
            let per_s = bits * OFFERED / PACKET_BITS;
            let (cpu, begun) = (link.counters().cpu, Instant::now());
            let sent = flood(&link, side, PAYLOAD, per_s, 1, (per_s * seconds) as u64)?;
            used = used.max((link.counters().cpu - cpu).as_secs_f64() / (begun.elapsed() - SILENCE).as_secs_f64());
            // The first tenth fills the queue.
            seen.push(mbit_per_s(&sent.arrivals[sent.arrivals.len() / 10..]));
            device_dropped += sent.device_dropped;
        }
        rate.add(worst(&seen, f64::from(mbit)), free, device_dropped);
        cores.add(used, free, device_dropped);
    }
    Ok(if mbit == 1000 { vec![rate, cores] } else { vec![rate] })
}

/// Mean rate of the arrivals; 0 if there are too few to have a rate.
fn mbit_per_s(arrivals: &[(u64, Instant)]) -> f64 {
    match arrivals {
        [first, .., last] if last.1 > first.1 => {
            (arrivals.len() - 1) as f64 * PACKET_BITS / (last.1 - first.1).as_secs_f64() / 1e6
        }
        _ => 0.0,
    }
}

/// The value farthest from `ordered`.
fn worst(seen: &[f64], ordered: f64) -> f64 {
    seen.iter().copied().max_by(|a, b| (a - ordered).abs().total_cmp(&(b - ordered).abs())).unwrap_or(0.0)
}

/// Share of lost packets. The link's random numbers are the same in each run, so failures
/// reproduce.
fn loss(backend: Backend, rounds: usize, spec: &str, share: f64, burst: f64) -> Result<Finding> {
    const PACKETS: u64 = 20_000;
    let (leave, enter) = (1.0 / burst, share / burst / (1.0 - share));
    // Losses of neighbouring packets are correlated in bursts, which raises the variance.
    let correlation = if burst > 1.0 { 1.0 - leave - enter } else { 0.0 };
    let variance = share * (1.0 - share) * (1.0 + correlation) / (1.0 - correlation);
    let half = SIGMAS * (variance / PACKETS as f64).sqrt() * 100.0;
    let what = format!("{spec}, share of {PACKETS} packets that is lost");
    let mut finding = Finding::new(what, "%", share * 100.0 - half, share * 100.0 + half);
    let link = link(&format!("delay=1ms,{spec}"), backend)?;
    for _ in 0..rounds {
        let free = free_cores();
        let sent = flood(&link, Side::Client, 100, 25_000.0, 1, PACKETS)?;
        finding.add(100.0 - sent.arrivals.len() as f64 / PACKETS as f64 * 100.0, free, sent.device_dropped);
    }
    Ok(finding)
}

/// Packets in flight: all of them leave before the first one arrives.
fn in_flight(backend: Backend, rounds: usize) -> Result<Finding> {
    let what = "packets in flight at once, all of which arrive";
    let mut finding = Finding::new(what, "packets", IN_FLIGHT as f64, IN_FLIGHT as f64);
    let link = link("delay=300ms", backend)?;
    for _ in 0..rounds {
        let free = free_cores();
        let sent = flood(&link, Side::Client, PAYLOAD, 50_000.0, 1, IN_FLIGHT)?;
        let first = sent.arrivals.first().map(|a| a.1);
        let together = sent.departures.iter().filter(|d| first.is_some_and(|f| **d < f)).count();
        finding.add(together.min(sent.arrivals.len()) as f64, free, sent.device_dropped);
    }
    Ok(finding)
}

fn link(spec: &str, backend: Backend) -> Result<Emulation> {
    Emulation::start_with(&spec.parse::<Profile>()?, backend)
}

struct Sent {
    departures: Vec<Instant>,
    /// Number and time of each packet that arrived, in order of arrival.
    arrivals: Vec<(u64, Instant)>,
    /// Packets dropped by devices, in both directions.
    device_dropped: u64,
}

impl Sent {
    /// Number and delay of each packet that arrived.
    fn delays_ms(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let took = |number: u64, at: Instant| at.saturating_duration_since(self.departures[number as usize]);
        self.arrivals.iter().map(move |(number, at)| (*number, took(*number, *at).as_secs_f64() * 1e3))
    }
}

/// Sends `count` packets from `side` at `per_s` packets per second, in bursts of `together`, and
/// records what arrives at the other side.
fn flood(link: &Emulation, side: Side, payload: usize, per_s: f64, together: u64, count: u64) -> Result<Sent> {
    let system = |e| Error::System(format!("cannot send probes: {e}"));
    let other = if side == Side::Client { Side::Server } else { Side::Client };
    let (from, to) = (link.probe_socket(side).map_err(system)?, link.probe_socket(other).map_err(system)?);
    sys::set_receive_buffer(to.as_fd()).map_err(system)?;
    to.set_read_timeout(Some(SILENCE)).map_err(system)?;
    let address = to.local_addr().map_err(system)?;
    let done = AtomicBool::new(false);
    let dropped_before = device_dropped(link);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| arrivals(&to, &done));
        let mut departures = Vec::with_capacity(count as usize);
        let mut packet = vec![0; payload];
        let begun = Instant::now();
        sys::wake_exactly();
        let mut given_up = 0;
        let catch_up = CATCH_UP_PACKETS.max((per_s * CATCH_UP.as_secs_f64()) as u64);
        while (departures.len() as u64) < count {
            let owed = ((begun.elapsed().as_secs_f64() * per_s) as u64 + 1 - given_up).next_multiple_of(together);
            let sent = departures.len() as u64;
            given_up += owed.saturating_sub(sent + catch_up);
            for number in sent..owed.min(sent + catch_up).min(count) {
                packet[..8].copy_from_slice(&number.to_be_bytes());
                departures.push(Instant::now());
                // If the device's queue is full the packet is lost, as in a real network.
                let _ = from.send_to(&packet, address);
            }
            let next = Duration::from_secs_f64(departures.len() as f64 / per_s);
            let early = (begun + next).saturating_duration_since(Instant::now());
            std::thread::sleep(if per_s > 2000.0 { SENDER_TURN } else { early });
        }
        done.store(true, Ordering::Release);
        let arrivals = receiver.join().map_err(|_| Error::System("the receiver of probes broke down".into()))?;
        // The receiver's silence lasted longer than the counters take to update.
        Ok(Sent { departures, arrivals, device_dropped: device_dropped(link) - dropped_before })
    })
}

fn device_dropped(link: &Emulation) -> u64 {
    let counters = link.counters();
    counters.up.device_dropped + counters.down.device_dropped
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

/// Waits a while for the two free cores that a measurement of `mbit` needs, and returns how many
/// are free.
pub fn free_cores_for(mbit: u32) -> f64 {
    /// Long enough for another process's compilation to end; a simulation may run for hours.
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

/// Idle cores of this machine, averaged over 200 ms.
fn free_cores() -> f64 {
    let idle = || {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let fields: Vec<u64> =
            text.lines().next().unwrap_or("").split_whitespace().filter_map(|f| f.parse().ok()).collect();
        // Guest times are included in other fields. Fields 4 and 5 are idle and iowait.
        (fields.iter().take(8).sum::<u64>(), fields.iter().skip(3).take(2).sum::<u64>())
    };
    let before = idle();
    std::thread::sleep(Duration::from_millis(200));
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    cores * idle_share(before, idle())
}

/// Idle share of all CPU time. The subtraction saturates because the kernel's iowait may decrease.
fn idle_share(before: (u64, u64), after: (u64, u64)) -> f64 {
    after.1.saturating_sub(before.1) as f64 / after.0.saturating_sub(before.0).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_judged_by_its_median() {
        let mut finding = Finding::new("rate", "Mbit/s", 98.0, 102.0);
        assert!(!finding.passes(), "nothing was measured");
        for (sample, free) in [(50.0, 3.0), (99.0, 1.0), (101.0, 3.0)] {
            finding.add(sample, free, 0);
        }
        assert!(finding.passes() && !finding.lacked_cores());
        for _ in 0..3 {
            finding.add(90.0, 0.5, 0);
        }
        assert!(!finding.passes() && finding.lacked_cores());
    }

    #[test]
    fn samples_in_which_a_device_dropped_packets_do_not_count() {
        let mut finding = Finding::new("rate", "Mbit/s", 98.0, 102.0);
        finding.add(100.0, 3.0, 5);
        assert!(finding.is_void() && !finding.passes(), "all are void");
        finding.add(100.0, 3.0, 0);
        assert!(finding.is_void() && !finding.passes(), "half of them are void");
        finding.add(101.0, 3.0, 0);
        assert!(!finding.is_void() && finding.passes());
        finding.add(50.0, 3.0, 1);
        finding.add(99.0, 3.0, 0);
        assert_eq!(finding.median(), 100.0);
    }

    #[test]
    fn a_direction_in_which_nothing_arrives_is_the_worst() {
        let start = Instant::now();
        let every =
            |ms: u64, count: u64| (0..count).map(|i| (i, start + Duration::from_millis(i * ms))).collect::<Vec<_>>();
        assert_eq!(mbit_per_s(&[]), 0.0);
        assert_eq!(mbit_per_s(&every(1, 1)), 0.0);
        assert_eq!(mbit_per_s(&every(0, 2)), 0.0);
        assert!((mbit_per_s(&every(12, 100)) - 1.0).abs() < 1e-9);
        assert_eq!(worst(&[10.01, 0.0], 10.0), 0.0);
        assert_eq!(worst(&[10.01, 9.95], 10.0), 9.95);
    }

    #[test]
    fn a_count_that_falls_is_no_time() {
        assert_eq!(idle_share((1000, 500), (1100, 480)), 0.0);
        assert_eq!(idle_share((1000, 500), (1100, 550)), 0.5);
        assert_eq!(idle_share((1000, 500), (990, 490)), 0.0);
    }
}
