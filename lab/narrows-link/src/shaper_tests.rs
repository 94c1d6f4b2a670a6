//! Tests of the shaper in virtual time.

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
const LEN: usize = 1500;

fn wire(mbit: u64) -> Shape {
    Shape {
        rate_bits_per_s: (mbit > 0).then_some(mbit * 1_000_000),
        trace: None,
        burst_bytes: 0,
        delay_ns: 0,
        jitter_ns: 0,
        reorder: false,
        loss: Loss::NONE,
        queue_bytes: 1 << 20,
    }
}

fn shaper(shape: Shape) -> Shaper<u64> {
    Shaper::new(Timetable::new(vec![(0, shape)], None), 1, LEN)
}

/// All items that come out until `end`, each with its time.
fn drain(shaper: &mut Shaper<u64>, end: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    while let Some(at) = shaper.next_ns().filter(|at| *at <= end) {
        while let Some((item, _)) = shaper.pop(at) {
            out.push((at, item));
        }
    }
    out
}

/// Sends packets 0, 1, 2 ... at a constant interval and returns what comes out until `end`.
fn stream(shaper: &mut Shaper<u64>, every_ns: u64, end: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    for (i, at) in (0..end).step_by(every_ns as usize).enumerate() {
        out.extend(drain(shaper, at));
        let _ = shaper.push(at, LEN, i as u64);
    }
    out.extend(drain(shaper, end));
    out
}

#[test]
fn a_lone_packet_takes_its_time_on_the_wire_and_the_delay() {
    let mut link = shaper(Shape { delay_ns: 20 * MS, ..wire(10) });
    link.push(5 * MS, LEN, 0).unwrap();
    // 12,000 bits at 10 Mbit/s are 1.2 ms.
    assert_eq!(drain(&mut link, S), [(5 * MS + 1_200_000 + 20 * MS, 0)]);
}

#[test]
fn a_link_without_rate_and_delay_delivers_at_once() {
    let mut link = shaper(wire(0));
    for i in 0..5 {
        link.push(i, LEN, i).unwrap();
        assert_eq!(link.pop(i), Some((i, LEN as u64)));
    }
}

#[test]
fn the_rate_is_exact_over_a_million_packets() {
    // At 7 Mbit/s a packet does not take a whole number of nanoseconds.
    for mbit in [7, 1000] {
        let mut link = shaper(wire(mbit));
        let (mut last, mut count) = (0, 0u64);
        while count < 1_000_000 {
            while link.push(last, LEN, 0).is_ok() {}
            for (at, _) in drain(&mut link, last + S) {
                (last, count) = (at, count + 1);
            }
        }
        let expected = count as f64 * 12_000.0 / (mbit as f64 * 1e6);
        assert!((last as f64 / 1e9 / expected - 1.0).abs() < 1e-6, "{mbit}: {last} for {expected}");
    }
}

#[test]
fn who_asks_late_gets_the_same_rate() {
    let mut link = shaper(wire(100));
    for i in 0..500 {
        link.push(0, LEN, i).unwrap();
    }
    // Polled every 7 ms at 120 us a packet: 58 or 59 packets each time.
    let counts: Vec<_> = (1..8).map(|i| std::iter::from_fn(|| link.pop(i * 7 * MS)).count()).collect();
    assert_eq!(counts, [58, 58, 59, 58, 58, 59, 58]);
}

#[test]
fn a_burst_passes_after_idleness_and_no_more() {
    let mut link = shaper(Shape { burst_bytes: 15_000, ..wire(12) });
    for i in 0..20 {
        link.push(S, LEN, i).unwrap();
    }
    let out = drain(&mut link, 2 * S);
    // 12 Mbit/s: a packet each ms. The burst covers the first ten.
    assert_eq!(out.iter().filter(|o| o.0 == S).count(), 10);
    assert_eq!(out.last(), Some(&(S + 10 * MS, 19)));
}

#[test]
fn the_queue_holds_its_bytes_and_drops_the_rest() {
    let mut link = shaper(Shape { queue_bytes: 10 * LEN as u64, ..wire(1) });
    let refused: Vec<_> = (0..15).filter_map(|i| link.push(0, LEN, i).err()).collect();
    assert_eq!(refused, [10, 11, 12, 13, 14]);
    assert_eq!(link.counters().queue_dropped, 5);
    // 12 ms later one has left.
    link.push(12 * MS, LEN, 20).unwrap();
    assert_eq!(link.push(12 * MS, LEN, 21), Err(21));
    assert_eq!(drain(&mut link, S).len(), 11);
    assert_eq!((link.counters().packets, link.counters().bytes), (11, 11 * LEN as u64));
}

#[test]
fn jitter_keeps_the_order_unless_it_may_not() {
    let shape = Shape { delay_ns: 20 * MS, jitter_ns: 10 * MS, ..wire(0) };
    let kept = stream(&mut shaper(shape.clone()), MS, 10 * S);
    // All but those of the last 30 ms.
    assert!((9_970..10_000).contains(&kept.len()), "{}", kept.len());
    assert!(kept.is_sorted_by(|a, b| a.1 < b.1));
    let mixed = stream(&mut shaper(Shape { reorder: true, ..shape }), MS, 10 * S);
    assert!(mixed.is_sorted_by(|a, b| a.0 <= b.0) && !mixed.is_sorted_by(|a, b| a.1 < b.1));
    let delays: Vec<_> = mixed.iter().map(|(at, i)| at - i * MS).collect();
    let mean = delays.iter().sum::<u64>() as f64 / delays.len() as f64;
    assert!((mean / (20.0 * MS as f64) - 1.0).abs() < 0.02, "{mean}");
    assert!(delays.iter().all(|d| (10 * MS..=30 * MS).contains(d)));
    assert!(delays.iter().any(|d| *d < 11 * MS) && delays.iter().any(|d| *d > 29 * MS));
}

#[test]
fn losses_have_their_share_take_their_time_and_come_back() {
    let mut link = shaper(Shape { loss: Loss::independent(0.1), ..wire(12) });
    let out = stream(&mut link, MS, 20 * S);
    let lost = link.lost_items().count();
    assert_eq!(out.len() + lost, 20_000);
    assert_eq!(link.counters().lost, lost as u64);
    // 2000 expected, with four standard deviations.
    assert!((1830..2170).contains(&lost), "{lost}");
    // Packets after a lost one do not arrive earlier.
    assert!(out.iter().all(|(at, i)| *at == (i + 1) * MS));
}

#[test]
fn a_trace_delivers_at_its_opportunities_and_wastes_those_nobody_uses() {
    let trace = Arc::new(Trace::parse("2\n2\n5\n10\n").unwrap());
    let mut link = shaper(Shape { trace: Some(trace), delay_ns: MS, ..wire(0) });
    for i in 0..5 {
        link.push(0, LEN, i).unwrap();
    }
    let at: Vec<_> = drain(&mut link, S).iter().map(|o| o.0 / MS).collect();
    assert_eq!(at, [3, 3, 6, 11, 13]);
    // At 12.5 ms the opportunities at 12 of the second repetition are past: one was used, the other
    // wasted. 15, 20 and 22 follow.
    link.push(125 * MS / 10, LEN, 5).unwrap();
    link.push(151 * MS / 10, LEN, 6).unwrap();
    link.push(201 * MS / 10, LEN, 7).unwrap();
    let at: Vec<_> = drain(&mut link, S).iter().map(|o| o.0 / MS).collect();
    assert_eq!(at, [16, 21, 23]);
}

#[test]
fn small_packets_share_an_opportunity_and_long_ones_take_several() {
    let trace = Arc::new(Trace::parse("1\n2\n3\n4\n").unwrap());
    let mut link = shaper(Shape { trace: Some(trace), ..wire(0) });
    for (i, len) in [500, 500, 500, 100, 3000].into_iter().enumerate() {
        link.push(0, len, i as u64).unwrap();
    }
    // The last one uses 1400 of the second, 1500 of the third and 100 of the fourth.
    assert_eq!(drain(&mut link, S), [(MS, 0), (MS, 1), (MS, 2), (2 * MS, 3), (4 * MS, 4)]);
}

#[test]
fn the_schedule_changes_the_rate_within_a_packet_and_repeats() {
    // 12 Mbit/s: 1 ms a packet; 1.2 Mbit/s: 10 ms.
    let slow = Shape { rate_bits_per_s: Some(1_200_000), ..wire(0) };
    let timetable = Timetable::new(vec![(0, wire(12)), (10 * MS + MS / 2, slow)], Some(100 * MS));
    let mut link: Shaper<u64> = Shaper::new(timetable, 1, LEN);
    for i in 0..30 {
        link.push(0, LEN, i).unwrap();
    }
    let at: Vec<_> = drain(&mut link, S).iter().map(|o| o.0).collect();
    assert_eq!(at[..10], (1..=10).map(|i| i * MS).collect::<Vec<_>>()[..]);
    // Half of the eleventh took 0.5 ms, the other half takes 5.
    assert_eq!(at[10], 15 * MS + MS / 2);
    assert_eq!(at[11], 25 * MS + MS / 2);
    // The packet that began at 95.5 has 5.5 ms of service left at 100, which then take 0.55 ms.
    assert_eq!(at[18], 95 * MS + MS / 2);
    assert_eq!(at[19], 100 * MS + MS / 2 + MS / 20);
    assert_eq!(at[20], 101 * MS + MS / 2 + MS / 20);
}

#[test]
fn a_new_plan_frees_what_waited_for_the_old_one() {
    let mut link = shaper(wire(1));
    for i in 0..100 {
        link.push(0, LEN, i).unwrap();
    }
    assert_eq!(drain(&mut link, 12 * MS).len(), 1);
    link.set_timetable(12 * MS, Timetable::new(vec![(0, wire(1000))], None));
    let out = drain(&mut link, S);
    assert_eq!(out.len(), 99);
    assert_eq!(out.last().map(|o| o.0), Some(12 * MS + 99 * 12_000));
    // Change to a trace and back.
    for i in 0..3 {
        link.push(S, LEN, i).unwrap();
    }
    let trace = Some(Arc::new(Trace::parse("7\n").unwrap()));
    link.set_timetable(S, Timetable::new(vec![(0, Shape { trace, ..wire(0) })], None));
    let at = link.next_ns().unwrap();
    assert!(at > S && at.is_multiple_of(7 * MS), "{at}");
    assert_eq!(drain(&mut link, at).len(), 1);
    link.set_timetable(at, Timetable::new(vec![(0, wire(0))], None));
    assert_eq!(drain(&mut link, at).len(), 2);
}

#[test]
fn ten_thousand_packets_are_in_flight() {
    let mut link = shaper(Shape { delay_ns: 120 * MS, ..wire(1000) });
    let out = stream(&mut link, 12_000, 121 * MS);
    assert!((80..=84).contains(&out.len()), "{}", out.len());
    assert_eq!(link.line.len() + link.queue.len() + out.len(), (121 * MS).div_ceil(12_000) as usize);
    assert!(link.line.len() >= 10_000 - 10, "{}", link.line.len());
}

#[test]
fn memory_is_limited_whatever_the_delay() {
    // Short packets take whole buffers; each packet also takes a few words in the queue or the
    // line.
    for (buffer, len) in [(9000, 9000), (9000, 28), (1500, 28)] {
        let shape = Shape { delay_ns: 60 * S, queue_bytes: u64::MAX, ..wire(0) };
        let mut link: Shaper<u64> = Shaper::new(Timetable::new(vec![(0, shape)], None), 1, buffer);
        let held = (0..1_000_000).take_while(|i| link.push(0, len, *i).is_ok()).count();
        assert!(held * buffer < MEMORY_MAX && (held + 1) * (buffer + 100) > MEMORY_MAX, "{buffer} {len}: {held}");
    }
}
