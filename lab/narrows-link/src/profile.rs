//! Link profiles: named links, and links described by keys and values.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::loss::Loss;
use crate::shaper::{Shape, Timetable};
use crate::trace::Trace;
use crate::units;

/// Without `queue=` a direction's queue holds what the link carries in this time or in a round
/// trip, whichever is longer. Home routers hold more, switches less; with less, the start of a TCP
/// connection alone loses hundreds of packets.
const QUEUE_TIME: Duration = Duration::from_millis(20);
/// Minimum length of the default queue in full packets: the two bursts of 64 KB in which a TCP
/// stack hands packets over, and some room.
const QUEUE_PACKETS: u64 = 96;
/// A longer queue is taken for a mistake in the description: a second at 2 Gbit/s.
const QUEUE_MAX: u64 = 256 << 20;
const MTU_MIN: u32 = 576;
/// Ethernet jumbo frames, which common devices support.
pub(crate) const MTU_MAX: u32 = 9000;
/// Limit on steps: enough for a schedule that is written by hand or by a small program.
const STEPS_MAX: usize = 10_000;
/// Minimum time between changes, and between the last one and the repetition. After a pause the
/// shaper replays every change that it missed, and no recorded link has microsecond resolution.
const STEP_MIN: Duration = Duration::from_millis(1);
/// A trace file of this length holds ten million opportunities.
const TRACE_FILE_MAX: u64 = 128 << 20;

/// One direction of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Direction {
    /// Bits per second of IP packets, their headers included; `None` is unlimited.
    pub rate_bits_per_s: Option<u64>,
    /// Delivery opportunities instead of a rate.
    pub trace: Option<Arc<Trace>>,
    /// Bytes that pass at once after the link was idle. At 0 every packet takes its transmission
    /// time, as on a wire.
    pub burst_bytes: u64,
    /// One-way delay.
    pub delay: Duration,
    /// Each packet's delay is uniform between delay - jitter and delay + jitter.
    pub jitter: Duration,
    /// Whether jitter may let packets overtake each other.
    pub reorder: bool,
    /// Loss model. Lost packets occupy the link first, as on a radio link.
    pub loss: Loss,
    /// Length of the queue; `None` is the default of [`Profile`].
    pub queue: Option<Queue>,
}

/// Length of a direction's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Bytes of IP packets.
    Bytes(u64),
    /// As many bytes as the link carries in this time.
    Time(Duration),
}

impl Default for Direction {
    fn default() -> Self {
        Self {
            rate_bits_per_s: None,
            trace: None,
            burst_bytes: 0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: false,
            loss: Loss::NONE,
            queue: None,
        }
    }
}

/// A link between two hosts: client to server is up, server to client is down.
///
/// As text it is a name (`wifi`), or keys and values (`rate=100mbit,delay=20ms`), or a name with
/// overrides (`wifi,loss=0%`). A key with the prefix `up.` or `down.` applies to one direction.
/// Changes follow, separated by semicolons, each with its time
/// (`rate=100mbit;5s:rate=10mbit;10s:rate=100mbit`); `repeat=15s` restarts the schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    text: String,
    /// Client to server.
    pub up: Direction,
    /// Server to client.
    pub down: Direction,
    /// Longest IP packet in bytes, for both directions.
    pub mtu: u32,
    /// The congestion control of both hosts; `None` keeps the kernel's.
    pub congestion: Option<String>,
    /// Changes while the link runs, by rising time.
    pub steps: Vec<Step>,
    /// Period after which the schedule restarts; `None` keeps the last step.
    pub repeat: Option<Duration>,
}

/// A change of a running link: both directions from `at` on.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Time since the link was started.
    pub at: Duration,
    /// Client to server.
    pub up: Direction,
    /// Server to client.
    pub down: Direction,
}

/// Name, description and origin of each named link.
///
/// The delays of the 2023 text are one way, its loss is per direction. The other two texts give no
/// delay: 0.1 ms is that of a cable with two hosts' network stacks.
const NAMED: [(&str, &str, &str); 13] = [
    ("ethernet-1g", "rate=1gbit,delay=0.1ms", "edge links, 2023, table 5.3"),
    ("wifi", "rate=40mbit,delay=10ms,loss=1%", "edge links, 2023, table 5.3"),
    ("4g", "down.rate=20mbit,up.rate=6mbit,delay=25ms", "edge links, 2023, table 5.3"),
    ("5g", "down.rate=300mbit,up.rate=64mbit,delay=13ms", "edge links, 2023, table 5.3"),
    ("lan-10", "rate=10mbit,delay=0.1ms", "two servers, 2013"),
    ("lan-100", "rate=100mbit,delay=0.1ms", "two servers, 2013"),
    ("lan-1000", "rate=1gbit,delay=0.1ms", "two servers, 2013"),
    ("1m", "rate=1mbit,delay=0.1ms", "a shaped LAN, 2016"),
    ("6m", "rate=6mbit,delay=0.1ms", "a shaped LAN, 2016"),
    ("100m", "rate=100mbit,delay=0.1ms", "a shaped LAN, 2016"),
    ("1g", "rate=1gbit,delay=0.1ms", "a shaped LAN, 2016"),
    ("lte-trace", "down.trace=lte-down,up.trace=lte-up,delay=20ms,queue=256kib", "synthetic"),
    ("none", "delay=0", "nothing is shaped"),
];

impl Profile {
    /// Names of all named links.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|n| n.0)
    }

    /// Name, description by keys and origin of every named link.
    pub fn table() -> &'static [(&'static str, &'static str, &'static str)] {
        &NAMED
    }

    /// The shapes of one direction, from the start and after every step.
    pub(crate) fn timetable(&self, side: impl Fn(&Direction, &Direction) -> Direction) -> Timetable {
        let shape = |up: &Direction, down: &Direction| {
            let round_trip = up.delay + down.delay;
            side(up, down).shape(round_trip, self.mtu)
        };
        let mut changes = vec![(0, shape(&self.up, &self.down))];
        changes.extend(self.steps.iter().map(|s| (nanoseconds(s.at), shape(&s.up, &s.down))));
        Timetable::new(changes, self.repeat.map(nanoseconds))
    }

    pub(crate) fn timetable_up(&self) -> Timetable {
        self.timetable(|up, _| up.clone())
    }

    pub(crate) fn timetable_down(&self) -> Timetable {
        self.timetable(|_, down| down.clone())
    }

    /// Applies `KEY=VALUE`. `bursts` collects `loss-burst` per direction, as it may precede `loss`.
    fn apply(&mut self, item: &str, bursts: &mut [Option<f64>; 2], in_step: bool) -> Result<(), String> {
        let (key, value) = item.split_once('=').ok_or_else(|| {
            let names: Vec<_> = Self::names().collect();
            format!("'{item}' is neither a profile ({}) nor KEY=VALUE", names.join(", "))
        })?;
        let (key, value) = (key.trim(), value.trim());
        if !in_step && key == "mtu" {
            let mtu = value.parse().ok().filter(|m| (MTU_MIN..=MTU_MAX).contains(m));
            self.mtu = mtu.ok_or_else(|| format!("'{value}' is not an MTU from {MTU_MIN} to {MTU_MAX}"))?;
            return Ok(());
        }
        if !in_step && key == "congestion" {
            let word = !value.is_empty() && value.len() < 16 && value.bytes().all(|b| b.is_ascii_alphanumeric());
            self.congestion = Some(value.to_owned()).filter(|_| word);
            return if word {
                Ok(())
            } else {
                Err(format!("'{value}' is not a congestion control such as cubic or bbr"))
            };
        }
        let (sides, key) = match key.split_once('.') {
            None => (0..2, key),
            Some(("up", key)) => (0..1, key),
            Some(("down", key)) => (1..2, key),
            Some((prefix, _)) => return Err(format!("'{prefix}.' is neither 'up.' nor 'down.'")),
        };
        for side in sides {
            let direction = if side == 0 { &mut self.up } else { &mut self.down };
            direction.apply(key, value, &mut bursts[side])?;
        }
        Ok(())
    }

    /// Applies `KEY=VALUE,KEY=VALUE` and checks the result.
    fn apply_all(&mut self, items: &str, in_step: bool) -> Result<(), String> {
        let mut bursts = [None, None];
        for item in items.split(',').filter(|i| !i.trim().is_empty()) {
            self.apply(item.trim(), &mut bursts, in_step)?;
        }
        for (direction, burst) in [&mut self.up, &mut self.down].into_iter().zip(bursts) {
            if let Some(len) = burst {
                let share = direction.loss.share();
                direction.loss = Loss::bursts(share, len).ok_or_else(|| {
                    format!(
                        "a loss of {:.0}% in bursts of {len} packets is impossible: too few packets are left between bursts",
                        share * 100.0
                    )
                })?;
            }
            direction.check(self.mtu)?;
        }
        Ok(())
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|why| Error::Description(format!("link '{text:.200}': {why}")))
    }
}

fn parse(text: &str) -> Result<Profile, String> {
    let mut profile = Profile {
        text: text.trim().to_owned(),
        up: Direction::default(),
        down: Direction::default(),
        mtu: 1500,
        congestion: None,
        steps: Vec::new(),
        repeat: None,
    };
    let mut parts = text.split([';', '\n']).map(str::trim).filter(|p| !p.is_empty() && !p.starts_with('#'));
    let base = parts.next().ok_or("the description is empty: give a name or KEY=VALUE")?;
    let (first, rest) = base.split_once(',').unwrap_or((base, ""));
    match NAMED.iter().find(|n| n.0 == first.trim()) {
        Some((_, keys, _)) => {
            profile.apply_all(keys, false)?;
            profile.apply_all(rest, false)?;
        }
        None => profile.apply_all(base, false)?,
    }
    let mut now = profile.clone();
    for part in parts {
        if let Some(period) = part.strip_prefix("repeat=") {
            profile.repeat = Some(units::time(period.trim())?);
            continue;
        }
        let (at, changes) =
            part.split_once([':', ' ']).ok_or_else(|| format!("'{part}' is not a step such as 5s:rate=10mbit"))?;
        let at = units::time(at.trim())?;
        let before = profile.steps.last().map_or(Duration::ZERO, |last| last.at);
        if at < before + STEP_MIN {
            return Err(format!("the step '{part}' must come after the previous one by 1 ms at least"));
        }
        if profile.steps.len() == STEPS_MAX {
            return Err(format!("more than {STEPS_MAX} steps"));
        }
        now.apply_all(changes, true)?;
        profile.steps.push(Step { at, up: now.up.clone(), down: now.down.clone() });
    }
    let last = profile.steps.last().map_or(Duration::ZERO, |s| s.at);
    if profile.repeat.is_some_and(|period| period < last + STEP_MIN) {
        return Err("'repeat' must come after the last step, by 1 ms at least".into());
    }
    Ok(profile)
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Direction {
    fn apply(&mut self, key: &str, value: &str, burst: &mut Option<f64>) -> Result<(), String> {
        match key {
            "rate" if matches!(value, "unlimited" | "none") => (self.rate_bits_per_s, self.trace) = (None, None),
            "rate" => (self.rate_bits_per_s, self.trace) = (Some(units::rate(value)?), None),
            "trace" => (self.rate_bits_per_s, self.trace) = (None, Some(trace(value)?)),
            "burst" => self.burst_bytes = units::bytes(value)?,
            "delay" => self.delay = units::time(value)?,
            "jitter" => self.jitter = units::time(value)?,
            "reorder" => {
                self.reorder = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(format!("'{value}' is neither yes nor no")),
                }
            }
            "loss" => self.loss = Loss::independent(units::share(value)?),
            "loss-burst" => {
                let len = value.parse().ok().filter(|len| (1.0..=1e6).contains(len));
                *burst = Some(len.ok_or_else(|| format!("'{value}' is not a mean burst length: packets, at least 1"))?);
            }
            "gilbert" => {
                let shares = value.split('/').map(units::share).collect::<Result<Vec<_>, _>>()?;
                let [enter, leave, bad, good] = shares[..] else {
                    return Err(format!(
                        "'{value}' is not ENTER/LEAVE/LOSS-IN-BAD/LOSS-IN-GOOD such as 1%/25%/100%/0%"
                    ));
                };
                self.loss = Loss::gilbert_elliott(enter, leave, bad, good);
            }
            "queue" => self.queue = Some(queue(value)?),
            "mtu" | "congestion" => return Err(format!("'{key}' applies to both directions and cannot change")),
            _ => {
                return Err(format!(
                    "there is no key '{key}': rate, trace, burst, delay, jitter, reorder, loss, loss-burst, gilbert, queue, mtu, \
                     congestion"
                ));
            }
        }
        Ok(())
    }

    fn check(&self, mtu: u32) -> Result<(), String> {
        if self.jitter > self.delay {
            return Err(format!("a jitter of {:?} needs a delay of at least as much", self.jitter));
        }
        let queue = self.queue_bytes(Duration::ZERO, mtu);
        if queue < u64::from(mtu) {
            return Err(format!("a queue of {queue} bytes cannot hold a packet of {mtu} bytes"));
        }
        if queue > QUEUE_MAX {
            return Err(format!("a queue of {queue} bytes is longer than {QUEUE_MAX}"));
        }
        Ok(())
    }

    /// Mean rate of the direction in bits per second; `None` if it is unlimited.
    pub fn mean_bits_per_s(&self) -> Option<f64> {
        self.trace.as_ref().map(|t| t.mean_bits_per_s()).or(self.rate_bits_per_s.map(|r| r as f64))
    }

    pub(crate) fn queue_bytes(&self, round_trip: Duration, mtu: u32) -> u64 {
        let carried = |time: Duration| self.mean_bits_per_s().map(|rate| (rate / 8.0 * time.as_secs_f64()) as u64);
        match self.queue {
            Some(Queue::Bytes(bytes)) => bytes,
            // On a link without a rate no packet ever queues.
            Some(Queue::Time(time)) => carried(time).unwrap_or(QUEUE_MAX),
            None => {
                let least = QUEUE_PACKETS * u64::from(mtu);
                carried(round_trip.max(QUEUE_TIME)).map_or(QUEUE_MAX, |bytes| bytes.clamp(least, QUEUE_MAX))
            }
        }
    }

    fn shape(&self, round_trip: Duration, mtu: u32) -> Shape {
        Shape {
            rate_bits_per_s: self.rate_bits_per_s,
            trace: self.trace.clone(),
            burst_bytes: self.burst_bytes,
            delay_ns: nanoseconds(self.delay),
            jitter_ns: nanoseconds(self.jitter),
            reorder: self.reorder,
            loss: self.loss,
            queue_bytes: self.queue_bytes(round_trip, mtu),
        }
    }
}

fn queue(value: &str) -> Result<Queue, String> {
    let time = value.ends_with('s') && !value.ends_with("bits");
    if time { units::time(value).map(Queue::Time) } else { units::bytes(value).map(Queue::Bytes) }
}

/// `lte-down` and `lte-up` are built in, everything else is a file.
fn trace(name: &str) -> Result<Arc<Trace>, String> {
    match name {
        "lte-down" => return Ok(Trace::lte_down()),
        "lte-up" => return Ok(Trace::lte_up()),
        _ => {}
    }
    let text = read_text(name.as_ref(), TRACE_FILE_MAX).map_err(|e| format!("cannot read the trace '{name}': {e}"))?;
    Trace::parse(&text).map(Arc::new).map_err(|why| format!("the trace '{name}': {why}"))
}

/// Reads a text file of at most `len_max` bytes. Does not rely on the file's metadata: devices and
/// pipes have no length there.
///
/// # Errors
/// If the file cannot be read, is longer, or is not UTF-8.
pub fn read_text(path: &Path, len_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(len_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > len_max {
        return Err(io::Error::other(format!("it is longer than {len_max} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text in UTF-8"))
}

/// Cannot overflow: times are at most a minute each.
fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_link_can_be_described() {
        for name in Profile::names() {
            let profile: Profile = name.parse().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(profile.to_string(), name);
        }
        let four: Profile = "4g".parse().unwrap();
        assert_eq!((four.up.rate_bits_per_s, four.down.rate_bits_per_s), (Some(6_000_000), Some(20_000_000)));
        assert_eq!((four.up.delay, four.down.delay), (Duration::from_millis(25), Duration::from_millis(25)));
    }

    #[test]
    fn what_differs_from_a_name_is_said_behind_it() {
        let profile: Profile = "wifi, down.loss=0%, mtu=1400, congestion=cubic".parse().unwrap();
        assert_eq!((profile.up.loss, profile.down.loss), (Loss::independent(0.01), Loss::NONE));
        assert_eq!((profile.mtu, profile.congestion.as_deref()), (1400, Some("cubic")));
        assert_eq!(profile.up.rate_bits_per_s, Some(40_000_000));
    }

    #[test]
    fn bursts_need_not_come_after_the_loss() {
        for text in ["loss=2%,loss-burst=5", "loss-burst=5,loss=2%"] {
            assert_eq!(Some(text.parse::<Profile>().unwrap().up.loss), Loss::bursts(0.02, 5.0), "{text}");
        }
        let full: Profile = "gilbert=1%/25%/90%/0.1%".parse().unwrap();
        assert_eq!(full.down.loss, Loss::gilbert_elliott(0.01, 0.25, 0.9, 0.001));
    }

    #[test]
    fn steps_change_what_they_name_and_keep_the_rest() {
        let profile: Profile = "rate=100mbit,delay=5ms;2s:rate=10mbit;4s:down.loss=1%;repeat=6s".parse().unwrap();
        assert_eq!(profile.steps.len(), 2);
        assert_eq!(profile.steps[1].down.rate_bits_per_s, Some(10_000_000));
        assert_eq!(profile.steps[1].down.delay, Duration::from_millis(5));
        assert_eq!((profile.steps[1].down.loss, profile.steps[1].up.loss), (Loss::independent(0.01), Loss::NONE));
        assert_eq!(profile.repeat, Some(Duration::from_secs(6)));
        // The same as lines of a file.
        let lines: Profile =
            "rate=100mbit,delay=5ms\n# slower\n2s rate=10mbit\n4s down.loss=1%\nrepeat=6s".parse().unwrap();
        assert_eq!((lines.steps, lines.repeat), (profile.steps, profile.repeat));
    }

    #[test]
    fn queues_hold_a_round_trip_but_never_too_few_packets() {
        let bytes = |text: &str| {
            let p: Profile = text.parse().unwrap();
            p.up.queue_bytes(p.up.delay + p.down.delay, p.mtu)
        };
        assert_eq!(bytes("rate=100mbit,delay=50ms"), 1_250_000);
        assert_eq!(bytes("rate=100mbit,delay=1ms"), 250_000);
        assert_eq!(bytes("rate=1mbit"), 96 * 1500);
        assert_eq!(bytes("rate=8mbit,queue=100ms"), 100_000);
        assert_eq!(bytes("rate=8mbit,queue=64kib"), 65536);
    }

    #[test]
    fn files_without_end_are_not_read_to_it() {
        let error = read_text("/dev/zero".as_ref(), 1000).unwrap_err().to_string();
        assert!(error.contains("longer than 1000 bytes"), "{error}");
        assert_eq!(read_text("/dev/null".as_ref(), 0).unwrap(), "");
    }

    #[test]
    fn bad_descriptions_say_what_is_wrong() {
        for (text, why) in [
            ("", "the description is empty"),
            ("wlan", "'wlan' is neither a profile (ethernet-1g, wifi,"),
            ("wifi,fast", "'fast' is neither a profile"),
            ("speed=1mbit", "no key 'speed'"),
            ("left.rate=1mbit", "'left.' is neither"),
            ("rate=0mbit", "rate of '0mbit' is impossible"),
            ("rate=10", "has no unit"),
            ("loss=2", "share of '2' is impossible"),
            ("loss=-1%", "impossible"),
            ("loss=50%,loss-burst=0.5", "not a mean burst length"),
            ("loss=95%,loss-burst=2", "too few packets are left"),
            ("gilbert=1%/2%", "is not ENTER/LEAVE"),
            ("jitter=5ms", "needs a delay"),
            ("reorder=maybe", "neither yes nor no"),
            ("queue=100b", "cannot hold a packet"),
            ("rate=100gbit,queue=50s", "longer than"),
            ("mtu=100", "not an MTU"),
            ("up.mtu=1500", "applies to both directions"),
            ("congestion=../x", "not a congestion control"),
            ("trace=no-such-file", "cannot read the trace"),
            ("rate=1mbit;rate=2mbit", "not a step such as"),
            ("rate=1mbit;5s:rate=2mbit;5s:rate=3mbit", "must come after"),
            ("rate=1mbit;0s:rate=2mbit", "must come after"),
            ("rate=1mbit;5s:mtu=1400", "cannot change"),
            ("rate=1mbit;5s:rate=2mbit;repeat=5s", "after the last step"),
            ("rate=1mbit;5s:rate=2mbit;5.0009s:rate=3mbit", "by 1 ms at least"),
            ("rate=1mbit;0.9ms:rate=2mbit", "by 1 ms at least"),
            ("rate=1mbit;5s:rate=2mbit;repeat=5.0009s", "by 1 ms at least"),
            ("rate=1mbit;repeat=1ns", "by 1 ms at least"),
            ("rate=1mbit;repeat=0", "by 1 ms at least"),
        ] {
            let error = text.parse::<Profile>().map(drop).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{text:?}: {error}");
        }
    }
}
