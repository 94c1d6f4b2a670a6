//! Rates of processes, from two of their answers, and a history of some more.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::account::Times;
use crate::bottleneck::Bottleneck;
use crate::status::{Amounts, Connection, Status, Traffic};

/// Values of a history: a minute at the usual interval, and as many as 80 columns show.
const HISTORY: usize = 60;

/// Answers of all processes at one moment.
#[derive(Default)]
pub(crate) struct Look {
    pub(crate) processes: Vec<Status>,
    pub(crate) left_out: usize,
}

/// The latest answers, and what came before.
#[derive(Default)]
pub(crate) struct World {
    pub(super) at: Option<Instant>,
    pub(super) now: Look,
    pub(super) before: HashMap<i32, Before>,
    pub(crate) all: Rates,
    pub(crate) histories: Histories,
    pub(crate) processes: Vec<ProcessRow>,
    pub(crate) flows: Vec<FlowRow>,
    /// Shares of the methods of what was sent since the last look, in percent, the largest first.
    pub(crate) methods: Vec<(String, f64)>,
    pub(crate) bound: String,
}

/// What is kept of a process for the next difference.
pub(super) struct Before {
    age_s: f64,
    cpu_s: f64,
    totals: Amounts,
    times: Times,
    methods: HashMap<String, u64>,
    flows: HashMap<u64, (Traffic, Traffic, Times)>,
}

/// Amounts per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) out_raw: f64,
    pub(crate) out_wire: f64,
    pub(crate) back_raw: f64,
    pub(crate) back_wire: f64,
    /// Cores.
    pub(crate) cpu: f64,
}

/// The latest values, oldest first.
#[derive(Default)]
pub(crate) struct Histories {
    pub(crate) goodput: VecDeque<f64>,
    pub(crate) wire: VecDeque<f64>,
    pub(crate) ratio: VecDeque<f64>,
    pub(crate) cpu: VecDeque<f64>,
}

/// A line of the table of processes.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessRow {
    pub(crate) kind: String,
    pub(crate) pid: i32,
    pub(crate) program: String,
    pub(crate) memory: u64,
    pub(crate) open: u64,
    pub(crate) rates: Rates,
    pub(crate) bound: String,
    pub(crate) age_s: f64,
}

/// A line of the table of flows.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlowRow {
    pub(crate) kind: String,
    pub(crate) pid: i32,
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) rates: Rates,
    /// Raw / wire since the last look, or in all if nothing moved.
    pub(crate) ratio: f64,
    pub(crate) method: String,
    pub(crate) bound: String,
    pub(crate) age_s: f64,
    /// Share of a copy that is done.
    pub(crate) done: Option<f64>,
}

impl Rates {
    pub(crate) fn goodput(&self) -> f64 {
        self.out_raw + self.back_raw
    }

    pub(crate) fn wire(&self) -> f64 {
        self.out_wire + self.back_wire
    }

    /// Raw / wire; 0 if nothing moved.
    pub(crate) fn ratio(&self) -> f64 {
        if self.wire() > 0.0 { self.goodput() / self.wire() } else { 0.0 }
    }

    fn add(&mut self, other: &Self) {
        self.out_raw += other.out_raw;
        self.out_wire += other.out_wire;
        self.back_raw += other.back_raw;
        self.back_wire += other.back_wire;
        self.cpu += other.cpu;
    }
}

impl World {
    /// Whether there are two looks, and so rates.
    pub(crate) fn has_rates(&self) -> bool {
        !self.histories.goodput.is_empty()
    }

    pub(crate) fn left_out(&self) -> usize {
        self.now.left_out
    }

    /// Connections of all processes, those too that are not listed.
    pub(crate) fn connections(&self) -> u64 {
        self.processes.iter().map(|p| p.open).sum()
    }

    /// Takes new answers.
    pub(crate) fn look(&mut self, look: Look, at: Instant) {
        let elapsed = self.at.map(|before| at.duration_since(before));
        self.at = Some(at);
        self.now = look;
        let mut all = Rates::default();
        let (mut times, mut sent) = (Times::default(), HashMap::<String, f64>::new());
        self.processes.clear();
        self.flows.clear();
        for process in &self.now.processes {
            // A number may be taken by another process.
            let before = self.before.get(&process.pid).filter(|before| before.age_s <= process.age_s);
            // The process's own clock is nearer to its numbers than that of whoever asked.
            let seconds = before.map_or(0.0, |before| process.age_s - before.age_s);
            let seconds = if seconds > 0.0 { seconds } else { elapsed.unwrap_or(Duration::ZERO).as_secs_f64() };
            let rates = before.map_or(Rates::default(), |before| {
                let amounts = |a: &Amounts| [a.out_raw_bytes, a.out_wire_bytes, a.back_raw_bytes, a.back_wire_bytes];
                let cpu = per_second((process.cpu_s - before.cpu_s).max(0.0), seconds);
                Rates { cpu, ..rates(amounts(&before.totals), amounts(&process.totals), seconds) }
            });
            all.add(&rates);
            if let Some(before) = before {
                times.merge(&process.times.since(&before.times));
                for method in &process.methods {
                    let earlier = before.methods.get(&method.name).copied().unwrap_or(0);
                    *sent.entry(method.name.clone()).or_default() += method.raw_bytes.saturating_sub(earlier) as f64;
                }
            }
            let since = before.map(|before| process.times.since(&before.times));
            self.processes.push(ProcessRow {
                kind: process.kind.clone(),
                pid: process.pid,
                program: process.program.clone(),
                memory: process.memory_bytes,
                open: process.connections.len() as u64 + process.connections_left_out,
                rates,
                bound: since.map_or_else(String::new, |since| bound(&since)),
                age_s: process.age_s,
            });
            let flows = process.connections.iter().map(|c| flow(process, c, before, seconds));
            self.flows.extend(flows);
        }
        self.all = all;
        self.bound = bound(&times);
        self.methods = shares(sent);
        if elapsed.is_some() {
            self.histories.push(&all);
        }
        self.before = self.now.processes.iter().map(|p| (p.pid, Before::of(p))).collect();
    }
}

impl Before {
    fn of(process: &Status) -> Self {
        let flow = |c: &Connection| (c.id, (c.out.clone(), c.back.clone(), c.times.unwrap_or_default()));
        Self {
            age_s: process.age_s,
            cpu_s: process.cpu_s,
            totals: process.totals,
            times: process.times,
            methods: process.methods.iter().map(|m| (m.name.clone(), m.raw_bytes)).collect(),
            flows: process.connections.iter().map(flow).collect(),
        }
    }
}

impl Histories {
    fn push(&mut self, rates: &Rates) {
        let values = [rates.goodput(), rates.wire(), rates.ratio(), rates.cpu];
        for (history, value) in
            [&mut self.goodput, &mut self.wire, &mut self.ratio, &mut self.cpu].into_iter().zip(values)
        {
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(value);
        }
    }
}

fn flow(process: &Status, c: &Connection, before: Option<&Before>, seconds: f64) -> FlowRow {
    let amounts = |out: &Traffic, back: &Traffic| [out.raw_bytes, out.wire_bytes, back.raw_bytes, back.wire_bytes];
    // A flow that is new since the last look began with nothing.
    let earlier = before.map(|before| before.flows.get(&c.id));
    let from = earlier.map(|known| known.map_or([0; 4], |(out, back, _)| amounts(out, back)));
    let now = amounts(&c.out, &c.back);
    let rates = from.map_or(Rates::default(), |from| rates(from, now, seconds));
    let in_all = (now[0] + now[2]) as f64 / (now[1] + now[3]).max(1) as f64;
    let ratio = if rates.wire() > 0.0 { rates.ratio() } else { in_all };
    let first = |traffic: &Traffic| traffic.methods.first().map(|m| short(&m.name));
    let sends = rates.out_wire >= rates.back_wire;
    let (one, other) = if sends { (&c.out, &c.back) } else { (&c.back, &c.out) };
    let method = first(one).or_else(|| first(other)).unwrap_or_else(|| "raw".into());
    let times = c.times.map(|times| match earlier.flatten() {
        Some((_, _, before)) => times.since(before),
        None => times,
    });
    let name = match (c.target.is_empty(), c.accepted) {
        // The target comes first: it is what is left in a narrow column.
        (false, _) => format!("{} < {}", c.target, c.peer),
        (true, true) => format!("< {}", c.peer),
        (true, false) => format!("> {}", c.peer),
    };
    let done = c.progress.filter(|p| p.bytes_total > 0).map(|p| p.bytes as f64 / p.bytes_total as f64);
    FlowRow {
        kind: process.kind.clone(),
        pid: process.pid,
        id: c.id,
        name,
        rates,
        ratio,
        method,
        bound: times.filter(|_| sends).map_or_else(String::new, |times| bound(&times)),
        age_s: c.age_s,
        done: done.map(|done| done.clamp(0.0, 1.0)),
    }
}

/// Amounts out raw, out wire, back raw, back wire as rates.
fn rates(before: [u64; 4], now: [u64; 4], seconds: f64) -> Rates {
    let rate = |i: usize| per_second(now[i].saturating_sub(before[i]) as f64, seconds);
    Rates { out_raw: rate(0), out_wire: rate(1), back_raw: rate(2), back_wire: rate(3), cpu: 0.0 }
}

fn per_second(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}

fn bound(times: &Times) -> String {
    Bottleneck::of_sending(&times.summary(), 0, false).key().to_owned()
}

fn shares(sent: HashMap<String, f64>) -> Vec<(String, f64)> {
    let all: f64 = sent.values().sum();
    let mut shares: Vec<_> = sent.into_iter().filter(|(_, n)| *n > 0.0).map(|(m, n)| (m, 100.0 * n / all)).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    shares
}

/// `zstd:1,link` for `zstd:level=1,link`.
pub(crate) fn short(method: &str) -> String {
    match method.split_once(':') {
        Some((codec, setting)) => {
            let value = setting.split_once('=').map_or(setting, |(_, value)| value);
            format!("{codec}:{value}")
        }
        None => method.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::account::MethodAmount;

    use super::*;

    fn process(age_s: f64, bytes: u64) -> Status {
        let traffic = |raw, wire| Traffic::new(raw, wire, Some(vec![(raw, "zstd:level=1".into())]));
        let connection = Connection { id: 3, out: traffic(4 * bytes, bytes), ..Connection::default() };
        let totals = Amounts { out_raw_bytes: 4 * bytes, out_wire_bytes: bytes, ..Amounts::default() };
        let times = Times { link_busy_ns: bytes, ..Times::default() };
        let method = MethodAmount { name: "zstd:level=1".into(), raw_bytes: 4 * bytes, ..MethodAmount::default() };
        let connections = vec![Connection { times: Some(times), ..connection }];
        Status {
            pid: 7,
            age_s,
            cpu_s: age_s / 2.0,
            connections,
            totals,
            times,
            methods: vec![method],
            ..Status::default()
        }
    }

    fn look(process: Status) -> Look {
        Look { processes: vec![process], left_out: 0 }
    }

    #[test]
    fn rates_are_differences_by_the_process_s_own_clock() {
        let (mut world, now) = (World::default(), Instant::now());
        world.look(look(process(10.0, 1000)), now);
        assert!(!world.has_rates() && world.flows[0].rates == Rates::default());
        world.look(look(process(12.0, 3000)), now + Duration::from_secs(9));
        assert_eq!((world.all.goodput(), world.all.wire(), world.all.cpu), (4000.0, 1000.0, 0.5));
        assert_eq!((world.flows[0].ratio, world.flows[0].method.as_str()), (4.0, "zstd:1"));
        assert_eq!((world.bound.as_str(), world.methods[0].1), ("link", 100.0));
        assert_eq!(world.histories.goodput, [4000.0]);
        // Another process with the number of one that has ended.
        world.look(look(process(1.0, 100)), now + Duration::from_secs(10));
        assert_eq!(world.all, Rates::default());
    }

    #[test]
    fn a_history_has_a_length() {
        let (mut world, now) = (World::default(), Instant::now());
        (0..200).for_each(|i| world.look(look(process(i as f64, i)), now + Duration::from_secs(i)));
        assert_eq!(world.histories.cpu.len(), HISTORY);
    }
}
