//! Bottleneck attribution: the stage of a flow that the other stages waited for most of the time.

use std::time::Duration;

use narrows::receiver::RecvSummary;
use narrows::sender::Summary;
use serde_json::{Value, json};

/// Share of the time from which a part is named alone.
const NAMED: f64 = 0.5;
/// Parts that work in parallel are all busy at times. A part that was busy for less than this share
/// of a time span did not hold up the others. Between this share and [`TO_BLAME`] the blame grows
/// linearly.
const BLAMELESS: f64 = 0.5;
/// A part that was busy for at least this share of a time span held up the others during all of it.
const TO_BLAME: f64 = 0.75;
/// Shorter flows get no attribution: most of their time is start-up, which says nothing about
/// longer flows.
const TOLD_FROM: Duration = Duration::from_millis(200);

/// A stage of a flow that can be its bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Encoding, or decoding if this end receives.
    Cpu,
    /// Transfer over the link.
    Link,
    /// Decoding and storing at the other end.
    Receiver,
    /// Scanning, reading and hashing the files to send.
    Source,
    /// Waiting for answers of a receiver that was not busy.
    RoundTrips,
    /// Storing on this host.
    Disk,
    /// The program that reads stdout.
    Stdout,
    /// The link or the sender behind it: a receiver cannot tell them apart.
    LinkOrSender,
}

impl Part {
    fn words(self) -> &'static str {
        match self {
            Self::Cpu => "the CPU here",
            Self::Link => "the link",
            Self::Receiver => "the receiver",
            Self::Source => "the source",
            Self::RoundTrips => "round trips",
            Self::Disk => "the disk here",
            Self::Stdout => "the reader of stdout",
            Self::LinkOrSender => "the link or the sender",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Link => "link",
            Self::Receiver => "receiver",
            Self::Source => "source",
            Self::RoundTrips => "round_trips",
            Self::Disk => "disk",
            Self::Stdout => "stdout",
            Self::LinkOrSender => "link_or_sender",
        }
    }
}

/// Share of each part in the time of a flow, largest first; the shares add up to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Bottleneck(Vec<(Part, f64)>);

impl Bottleneck {
    /// Attribution for a sender. `answers_ns` is the part of the idle time spent waiting for
    /// answers.
    pub fn of_sending(s: &Summary, answers_ns: u64, within_host: bool) -> Self {
        let answers_ns = answers_ns.min(s.idle_ns);
        let decode_ns = s.decode_cpu_ns / s.decode_threads.max(1);
        // A receiver that reads nothing also fills the link and delays answers.
        let blame = blame(s.receiver_blocked_ns.max(decode_ns), s.link_busy_ns + answers_ns);
        let (link, answers) = (s.link_busy_ns as f64, answers_ns as f64);
        let stopped = (blame * link).max(s.receiver_limited_ns.min(s.link_busy_ns) as f64);
        // While the next bytes were searched for repeats there was nothing to send either.
        let search_ns = s.search_idle_ns.min(s.idle_ns - answers_ns);
        let mut cpu = (s.link_dry_ns + search_ns) as f64;
        let mut receiver = s.confirm_ns as f64 + stopped + blame * answers;
        let (mut link, mut trips) = (link - stopped, (1.0 - blame) * answers);
        if within_host {
            // Within a host, moving bytes is CPU work, and answers have no travel time.
            cpu += std::mem::take(&mut link);
            receiver += std::mem::take(&mut trips);
        }
        let source = (s.idle_ns - answers_ns - search_ns) as f64;
        let (own, far) = ([(Part::Cpu, cpu), (Part::Source, source)], [(Part::Link, link), (Part::RoundTrips, trips)]);
        Self::shares(own.into_iter().chain(far).chain([(Part::Receiver, receiver)]))
    }

    /// Attribution for a receiver that took `elapsed` with `threads` decoding threads. `from` is
    /// the part that delivers the data, `sink` the part that takes it.
    pub fn of_receiving(s: &RecvSummary, threads: usize, elapsed: Duration, (from, sink): (Part, Part)) -> Self {
        let flow_ns = (elapsed.as_nanos() as u64).saturating_sub(s.commit_ns);
        let flow = flow_ns as f64;
        let stored = blame(s.sink_ns, flow_ns) * flow;
        let decoded = blame(s.decode_cpu_ns / threads.max(1) as u64, flow_ns) * flow;
        let rest = (flow - stored - decoded).max(0.0);
        Self::shares([(sink, s.commit_ns as f64 + stored), (Part::Cpu, decoded), (from, rest)])
    }

    fn shares(parts: impl IntoIterator<Item = (Part, f64)>) -> Self {
        let mut parts: Vec<_> = parts.into_iter().filter(|p| p.1 > 0.0).collect();
        let all: f64 = parts.iter().map(|p| p.1).sum();
        parts.iter_mut().for_each(|p| p.1 /= all);
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self(parts)
    }

    /// The part with a share of [`NAMED`] or more, if there is one.
    fn named(&self) -> Option<Part> {
        self.0.first().filter(|p| p.1 >= NAMED).map(|p| p.0)
    }

    /// The named part as a word, `mixed`, or nothing if there was no time.
    pub fn key(&self) -> &'static str {
        if self.0.is_empty() { "" } else { self.named().map_or("mixed", Part::key) }
    }

    /// Text such as `bound by the link 91 %`; `None` for a flow shorter than [`TOLD_FROM`].
    pub fn words(&self, elapsed: Duration) -> Option<String> {
        if elapsed < TOLD_FROM {
            return None;
        }
        let told = if self.named().is_some() { 1 } else { 2 };
        let words = |(part, share): &(Part, f64)| format!("{} {:.0} %", part.words(), 100.0 * share);
        let words: Vec<_> = self.0.iter().take(told).map(words).collect();
        (!words.is_empty()).then(|| format!("bound by {}", words.join(", ")))
    }

    /// Adds `bound_by` (the named part, or `mixed`) and `bound_shares` (all shares) to a JSON
    /// report.
    pub fn put(&self, json: &mut Value) {
        let shares = self.0.iter().map(|(part, share)| (part.key().to_owned(), json!(share)));
        json["bound_by"] = self.named().map_or("mixed", Part::key).into();
        json["bound_shares"] = Value::Object(shares.collect());
    }
}

/// How far a part that was busy for `busy_ns` held up the span `time_ns`: 0 to 1.
fn blame(busy_ns: u64, time_ns: u64) -> f64 {
    let busy = busy_ns as f64 / time_ns.max(1) as f64;
    ((busy - BLAMELESS) / (TO_BLAME - BLAMELESS)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn sent(f: impl Fn(&mut Summary)) -> Summary {
        let mut s = Summary::default();
        s.decode_threads = 4;
        f(&mut s);
        s
    }

    #[test]
    fn the_part_that_the_others_waited_for_is_named() {
        let s = SECOND;
        for (summary, answers_ns, far, near) in [
            (sent(|f| f.link_busy_ns = 9 * s), 0, Some(Part::Link), Some(Part::Cpu)),
            (sent(|f| (f.link_busy_ns, f.link_dry_ns) = (s, 9 * s)), 0, Some(Part::Cpu), Some(Part::Cpu)),
            (sent(|f| (f.idle_ns, f.link_busy_ns) = (9 * s, s)), 0, Some(Part::Source), Some(Part::Source)),
            // The search for repeats keeps the rest waiting.
            (
                sent(|f| (f.idle_ns, f.search_idle_ns, f.link_busy_ns) = (9 * s, 8 * s, s)),
                0,
                Some(Part::Cpu),
                Some(Part::Cpu),
            ),
            // Waiting for answers: far away, or at a receiver that is busy.
            (sent(|f| f.idle_ns = 9 * s), 9 * s, Some(Part::RoundTrips), Some(Part::Receiver)),
            (
                sent(|f| (f.idle_ns, f.receiver_blocked_ns) = (9 * s, 8 * s)),
                9 * s,
                Some(Part::Receiver),
                Some(Part::Receiver),
            ),
            // A full link behind which a disk is full, keeps up, or nearly does.
            (
                sent(|f| (f.link_busy_ns, f.receiver_blocked_ns) = (9 * s, 8 * s)),
                0,
                Some(Part::Receiver),
                Some(Part::Receiver),
            ),
            (sent(|f| (f.link_busy_ns, f.receiver_blocked_ns) = (9 * s, 4 * s)), 0, Some(Part::Link), Some(Part::Cpu)),
            // So may decoding be, on four threads.
            (
                sent(|f| (f.link_busy_ns, f.decode_cpu_ns) = (9 * s, 30 * s)),
                0,
                Some(Part::Receiver),
                Some(Part::Receiver),
            ),
            (sent(|f| (f.link_busy_ns, f.decode_cpu_ns) = (9 * s, 12 * s)), 0, Some(Part::Link), Some(Part::Cpu)),
            // TCP says that the receiver's window was closed.
            (
                sent(|f| (f.link_busy_ns, f.receiver_limited_ns) = (9 * s, 8 * s)),
                0,
                Some(Part::Receiver),
                Some(Part::Receiver),
            ),
            // A long time until it is on the disk.
            (sent(|f| (f.link_busy_ns, f.confirm_ns) = (s, 2 * s)), 0, Some(Part::Receiver), Some(Part::Receiver)),
            (sent(|f| (f.link_busy_ns, f.link_dry_ns, f.idle_ns) = (4 * s, 3 * s, 3 * s)), 0, None, Some(Part::Cpu)),
            (sent(|_| ()), 0, None, None),
        ] {
            for (within_host, part) in [(false, far), (true, near)] {
                let bottleneck = Bottleneck::of_sending(&summary, answers_ns, within_host);
                assert_eq!(bottleneck.named(), part, "{within_host} {summary:?}: {bottleneck:?}");
                let all: f64 = bottleneck.0.iter().map(|p| p.1).sum();
                assert!(bottleneck.0.is_empty() || (all - 1.0).abs() < 1e-9, "{bottleneck:?}");
            }
        }
    }

    #[test]
    fn a_receiving_end_knows_its_own_part() {
        let received = |sink_ns, commit_ns, decode_cpu_ns| {
            let mut received = RecvSummary::default();
            (received.sink_ns, received.commit_ns, received.decode_cpu_ns) = (sink_ns, commit_ns, decode_cpu_ns);
            received
        };
        let s = SECOND;
        for (summary, part) in [
            (received(9 * s, 0, 0), Some(Part::Disk)),
            (received(4 * s, 0, 0), Some(Part::LinkOrSender)),
            (received(s, 6 * s, 0), Some(Part::Disk)),
            (received(s, 0, 36 * s), Some(Part::Cpu)),
            (received(s, 0, 9 * s), Some(Part::LinkOrSender)),
            (received(9 * s, 0, 36 * s), Some(Part::Disk)),
            // Longer than it was: clocks differ.
            (received(0, 99 * s, 0), Some(Part::Disk)),
        ] {
            let bottleneck =
                Bottleneck::of_receiving(&summary, 4, Duration::from_secs(10), (Part::LinkOrSender, Part::Disk));
            assert_eq!(bottleneck.named(), part, "{summary:?}: {bottleneck:?}");
        }
    }

    #[test]
    fn what_is_mixed_is_told_by_its_largest_parts() {
        let long = Duration::from_secs(9);
        let mixed = sent(|f| (f.link_busy_ns, f.link_dry_ns, f.idle_ns) = (4 * SECOND, 3 * SECOND, 2 * SECOND));
        let bottleneck = Bottleneck::of_sending(&mixed, 0, false);
        assert_eq!(bottleneck.words(long).unwrap(), "bound by the link 44 %, the CPU here 33 %");
        let mut json = json!({});
        bottleneck.put(&mut json);
        assert_eq!(json["bound_by"], "mixed");
        assert_eq!(json["bound_shares"].as_object().unwrap().len(), 3);
        let link = Bottleneck::of_sending(&sent(|f| f.link_busy_ns = SECOND), 0, false);
        assert_eq!(link.words(long).unwrap(), "bound by the link 100 %");
        assert_eq!(link.words(Duration::from_millis(100)), None);
        assert_eq!(Bottleneck::of_sending(&Summary::default(), 0, false).words(long), None);
    }
}
