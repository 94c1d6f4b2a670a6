//! A scavenger alone and beside a greedy flow, on a link in virtual time.

use std::collections::VecDeque;

use super::*;

const SEGMENT: f64 = 1448.0;
const STEP_S: f64 = 0.001;

/// A flow that fills whatever queue there is, as CUBIC (RFC 9438) does.
struct Greedy {
    window: f64,
    /// Window before the last loss, and when that was; 0 while it starts.
    most: f64,
    lost_s: f64,
}

impl Greedy {
    fn new(now: f64) -> Self {
        Self { window: 10.0 * SEGMENT, most: 0.0, lost_s: now }
    }

    fn delivered(&mut self, now: f64, rtt: f64, bytes: f64) {
        if self.most == 0.0 {
            return self.window += bytes;
        }
        let (since, most) = (now - self.lost_s, self.most / SEGMENT);
        let knee = (0.3 * most / 0.4).cbrt();
        let cubic = 0.4 * (since - knee).powi(3) + most;
        let reno = 0.7 * most + 0.53 * since / rtt;
        self.window += (cubic.max(reno) * SEGMENT - self.window).max(0.0) * (STEP_S / rtt).min(1.0);
    }

    fn lost(&mut self, now: f64, rtt: f64) {
        if self.most == 0.0 || now - self.lost_s >= rtt {
            (self.most, self.lost_s) = (self.window, now);
            self.window = (0.7 * self.window).max(2.0 * SEGMENT);
        }
    }
}

struct Link {
    bytes_per_s: f64,
    base_s: f64,
    /// Length of its queue.
    queue_s: f64,
}

fn link(mbit: f64, base_ms: f64, queue_ms: f64) -> Link {
    Link { bytes_per_s: mbit * 125_000.0, base_s: base_ms / 1e3, queue_s: queue_ms / 1e3 }
}

/// What reaches the sender at a time: how long the queue was, losses of the scavenger and at all, bytes that
/// arrived of the greedy flow and of the scavenger.
struct Heard(f64, f64, f64, bool, f64, f64);

/// Shares of the link in consecutive seconds, and the lowest allowed rate.
struct Course {
    own: Vec<f64>,
    other: Vec<f64>,
    rate_min: f64,
}

impl Course {
    fn own(&self, seconds: std::ops::Range<usize>) -> f64 {
        self.own[seconds.clone()].iter().sum::<f64>() / seconds.len() as f64
    }
}

/// Runs a scavenger for `seconds`, beside a greedy flow in `greedy`. `uses`: the share of its allowance that it
/// has something to send for, in each millisecond.
fn run(link: &Link, seconds: usize, greedy: std::ops::Range<usize>, uses: impl Fn(usize) -> f64) -> Course {
    let mut scavenger = Scavenger::new();
    let mut other: Option<Greedy> = None;
    let capacity = link.bytes_per_s * STEP_S;
    let most = link.queue_s * link.bytes_per_s;
    let mut queue: VecDeque<(f64, f64)> = VecDeque::new();
    let (mut queued, mut written, mut acked, mut owed) = (0.0, 0.0, 0.0, 0.0);
    let (mut again, mut rtt) = (0, link.base_s);
    let mut on_way: VecDeque<Heard> = VecDeque::new();
    let mut course = Course { own: vec![0.0; seconds], other: vec![0.0; seconds], rate_min: f64::MAX };
    for step in 0..seconds * 1000 {
        let now = step as f64 * STEP_S;
        let second = step / 1000;
        match (greedy.contains(&second), &other) {
            (true, None) => other = Some(Greedy::new(now)),
            (false, Some(_)) => other = None,
            _ => {}
        }
        let now_rtt = link.base_s + queued / link.bytes_per_s;
        course.rate_min = course.rate_min.min(scavenger.rate());
        let own_in = scavenger.rate() * STEP_S * uses(step);
        let other_in = other.as_ref().map_or(0.0, |other| other.window / now_rtt * STEP_S);
        written += own_in;
        // What does not fit is lost.
        let all = own_in + other_in;
        let fits = ((most + capacity - queued) / all).clamp(0.0, 1.0);
        queue.push_back((own_in * fits, other_in * fits));
        queued += all * fits;
        owed += own_in * (1.0 - fits) / SEGMENT;
        let lost = if owed >= 1.0 { owed.floor() } else { 0.0 };
        owed -= lost;
        // What is first goes first.
        let (mut left, mut own_out, mut other_out) = (queued.min(capacity), 0.0, 0.0);
        queued -= left;
        while left > 1e-6
            && let Some((own, others)) = queue.front_mut()
        {
            let part = (left / (*own + *others)).min(1.0);
            own_out += *own * part;
            other_out += *others * part;
            left -= (*own + *others) * part;
            (*own, *others) = (*own * (1.0 - part), *others * (1.0 - part));
            if part >= 1.0 {
                queue.pop_front();
            }
        }
        course.own[second] += own_out / link.bytes_per_s;
        course.other[second] += other_out / link.bytes_per_s;
        let delay = queued / link.bytes_per_s;
        on_way.push_back(Heard(now + link.base_s, delay, lost, fits < 1.0, other_out, own_out));
        while on_way.front().is_some_and(|heard| heard.0 <= now)
            && let Some(Heard(_, delay, lost, is_full, other_in, own_in)) = on_way.pop_front()
        {
            acked += own_in;
            again += lost as u32;
            // An acknowledgment for two segments, an eighth of each sample, as Linux.
            let weight = (own_in / (2.0 * SEGMENT) / 8.0).min(1.0);
            rtt += (link.base_s + delay - rtt) * weight;
            if let Some(other) = &mut other {
                other.delivered(now, now_rtt, other_in);
                if is_full {
                    other.lost(now, now_rtt);
                }
            }
        }
        if step % 10 == 0 {
            let ns = |s: f64| (s * 1e9) as u64;
            let path = Path {
                rtt_ns: ns(rtt),
                rtt_min_ns: ns(link.base_s),
                segment_bytes: SEGMENT as u32,
                sent_again: again,
                acked: acked as u64,
            };
            scavenger.look(ns(now), path, written as u64);
        }
    }
    course
}

/// A line of a home, of an office and between sites, with queues from short to bloated.
fn links() -> [Link; 8] {
    [
        link(1.0, 40.0, 200.0),
        link(10.0, 20.0, 100.0),
        link(10.0, 20.0, 30.0),
        link(10.0, 200.0, 100.0),
        link(100.0, 5.0, 5.0),
        link(100.0, 40.0, 50.0),
        link(100.0, 40.0, 10.0),
        link(1000.0, 5.0, 20.0),
    ]
}

#[test]
fn alone_it_fills_the_link() {
    for (i, link) in links().iter().enumerate() {
        let course = run(link, 150, 0..0, |_| 1.0);
        // Looks at the shortest round trip are in it, at 60 and 120 s.
        assert!(course.own(5..150) > 0.95, "{i}: {}", course.own(5..150));
        let first = if link.base_s > 0.1 { 0.5 } else { 0.7 };
        assert!(course.own(0..3) > first, "{i}: {}", course.own(0..3));
    }
}

#[test]
fn beside_a_greedy_flow_it_keeps_a_small_share_and_comes_back_when_that_ends() {
    for (i, link) in links().iter().enumerate() {
        let course = run(link, 90, 20..50, |_| 1.0);
        let share = course.own(30..50);
        // A floor of two segments is a tenth of 1 Mbit/s. In a queue of 10 ms there is little to see: losses
        // alone make it yield.
        let most = match link {
            Link { bytes_per_s: ..200_000.0, .. } => 0.15,
            Link { queue_s, .. } if *queue_s <= 0.01 => 0.4,
            _ => 0.1,
        };
        assert!(share < most, "{i}: {share}");
        assert!(course.own(30..50) + course.other[30..50].iter().sum::<f64>() / 20.0 > 0.95, "{i}: the link idles");
        assert!(course.own(70..90) > 0.9, "{i}: {}", course.own(70..90));
        assert!(course.own[20..90].iter().all(|share| *share > 0.0), "{i}: it stands still");
        assert!(course.rate_min >= RATE_MIN, "{i}");
    }
}

/// What the source cannot fill is no sign of others, and no reason to want more.
#[test]
fn a_slow_source_leaves_the_window_as_it_is() {
    let course = run(&link(100.0, 40.0, 50.0), 30, 0..0, |_| 0.3);
    // The first windows, before the round trip is known and after.
    assert!(course.rate_min >= 10.0 * SEGMENT / 0.1 * 0.9, "{}", course.rate_min);
    assert!(course.own(20..30) > 0.3 * 10.0 * SEGMENT / 0.04 * 0.9 / 12.5e6, "{}", course.own(20..30));
    assert!(course.own(20..30) < 0.2, "{}", course.own(20..30));
}

/// Threads wake late, and disks pause.
#[test]
fn a_source_that_is_late_now_and_then_does_not_lose_the_link() {
    for (i, link) in links().iter().enumerate() {
        // Between 0.6 and 1, anew every 20 ms.
        let late = |step: usize| 0.6 + 0.4 * ((step / 20 * 7919 % 1009) as f64 / 1009.0);
        let course = run(link, 60, 0..0, late);
        assert!(course.own(10..60) > 0.6, "{i}: {}", course.own(10..60));
    }
}

#[test]
fn a_path_that_says_nothing_sensible_stops_nothing() {
    let mut scavenger = Scavenger::new();
    let path =
        |rtt_ns, rtt_min_ns, sent_again, acked| Path { rtt_ns, rtt_min_ns, segment_bytes: 1448, sent_again, acked };
    for (i, path) in [
        path(0, 0, 0, 0),
        path(u64::MAX, 0, 7, u64::MAX),
        path(1, u64::MAX, 0, 0),
        path(u64::MAX, u64::MAX, u32::MAX, 5),
        path(40_000_000, 40_000_000, 0, 1 << 40),
    ]
    .into_iter()
    .cycle()
    .take(1000)
    .enumerate()
    {
        scavenger.look(i as u64 * 50_000_000, path, u64::MAX / 1000 * i as u64);
        let rate = scavenger.rate();
        assert!(rate.is_finite() && rate >= RATE_MIN, "{i}: {rate}");
    }
    scavenger.look(0, path(1, 1, 0, 0), 0);
}
