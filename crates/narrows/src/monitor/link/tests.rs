//! Tests of the rate estimates from writes and looks.

use super::*;

/// A link of `rate` that is kept busy, looked at every millisecond for `ms`.
fn keep_busy(m: &mut LinkMonitor, from_ns: u64, ms: u64, rate: f64) -> u64 {
    let per_ms = (rate / 1000.0) as u64;
    for i in 0..ms {
        let at = from_ns + i * 1_000_000;
        let sample = LinkSample {
            begin_ns: at,
            end_ns: at + 1000,
            unsent_before: 100_000,
            unsent_after: 100_000 + per_ms,
            accepted: per_ms,
            busy_ns: None,
            unacked: None,
            delivery_bytes_per_s: None,
            rtt_ns: None,
        };
        m.observe(&sample);
    }
    from_ns + ms * 1_000_000
}

#[test]
fn looks_do_not_shorten_the_time_that_the_link_stands_dry() {
    let mut m = LinkMonitor::default();
    let t = keep_busy(&mut m, 0, 100, 12.5e6);
    let look = |at_ns, unsent| LinkSample {
        begin_ns: at_ns,
        end_ns: at_ns,
        unsent_before: unsent,
        unsent_after: unsent,
        ..LinkSample::default()
    };
    m.observe(&look(t, 12_500));
    for after_ms in [5, 6, 20] {
        m.observe(&look(t + after_ms * 1_000_000, 0));
        let dry_ns = m.dry_at_ns().abs_diff(t + 1_000_000);
        assert!(dry_ns < 500_000, "{dry_ns} ns off after {after_ms} ms");
    }
}

#[test]
fn a_busy_link_is_rated_and_a_step_is_followed() {
    let mut m = LinkMonitor::default();
    let t = keep_busy(&mut m, 0, 100, 12.5e6);
    assert!((m.rate_bytes_per_s() / 12.5e6 - 1.0).abs() < 0.05, "{}", m.rate_bytes_per_s());
    keep_busy(&mut m, t, 200, 1.25e6);
    assert!((m.rate_bytes_per_s() / 1.25e6 - 1.0).abs() < 0.1, "{}", m.rate_bytes_per_s());
}

/// A link whose far end opens its window in steps of half a buffer, fed as the driver does it.
/// Returns the rate that is believed after so many seconds.
fn feed_in_steps(rate: f64, window: f64, seconds: f64) -> f64 {
    let mut m = LinkMonitor::default();
    let (mut unsent, mut room, mut taken) = (0.0f64, window, 0.0f64);
    let mut now_ns = 0u64;
    let mut leave = |unsent: &mut f64, ns: f64| {
        taken = (taken + rate * ns / 1e9).min(window - room);
        if taken >= window / 2.0 {
            room += taken;
            taken = 0.0;
        }
        let n = unsent.min(room);
        *unsent -= n;
        room -= n;
    };
    while (now_ns as f64) < seconds * 1e9 {
        let backlog = (m.rate_bytes_per_s() * 0.004).clamp(32_768.0, 1_048_576.0);
        let before = unsent;
        let accepted = if before < backlog { (m.rate_bytes_per_s() * 0.01).clamp(16_384.0, 1e6) as u64 } else { 0 };
        unsent += accepted as f64;
        leave(&mut unsent, 10_000.0);
        m.observe(&LinkSample {
            begin_ns: now_ns,
            end_ns: now_ns + 10_000,
            unsent_before: before as u64,
            unsent_after: unsent as u64,
            accepted,
            busy_ns: None,
            unacked: None,
            delivery_bytes_per_s: None,
            rtt_ns: None,
        });
        let wait = if accepted > 0 { 1_000 } else { 1_000_000 };
        leave(&mut unsent, wait as f64);
        now_ns += 10_000 + wait;
    }
    m.rate_bytes_per_s()
}

#[test]
fn a_window_that_opens_in_steps_is_not_taken_for_a_link_that_stands_still() {
    // A step beyond `SILENCE_NS` cannot be told from a link that stands still; one below 1 ms is
    // beyond this model.
    for rate in [1.25e6, 12.5e6, 125e6] {
        for window in [20e3, 100e3, 500e3].into_iter().filter(|w| (0.8e-3..0.06).contains(&(w / 2.0 / rate))) {
            let believed = feed_in_steps(rate, window, 4.0) / rate;
            assert!((0.5..2.0).contains(&believed), "{rate} through a window of {window}: {believed}");
        }
    }
}

#[test]
fn idle_time_is_no_evidence() {
    let mut m = LinkMonitor::default();
    keep_busy(&mut m, 0, 100, 12.5e6);
    let before = m.rate_bytes_per_s();
    m.observe(&LinkSample { begin_ns: 200_000_000, end_ns: 200_000_000, ..LinkSample::default() });
    m.observe(&LinkSample { begin_ns: 3_600_000_000_000, end_ns: 3_600_000_000_000, ..LinkSample::default() });
    let small =
        LinkSample { begin_ns: 3_600_000_000_000, end_ns: 3_600_000_005_000, accepted: 100, ..LinkSample::default() };
    m.observe(&small);
    assert!((m.rate_bytes_per_s() / before - 1.0).abs() < 1e-9);
}

#[test]
fn silence_lowers_the_rate_before_any_byte_has_left() {
    let mut m = LinkMonitor::default();
    m.observe(&LinkSample { end_ns: 1000, accepted: 8192, unsent_after: 8192, ..LinkSample::default() });
    m.observe(&LinkSample {
        begin_ns: 70_000_000,
        end_ns: 70_000_000,
        unsent_before: 8192,
        unsent_after: 8192,
        ..LinkSample::default()
    });
    assert!(m.rate_bytes_per_s() < 400_000.0);
}

/// Writes of 16 KiB every 10 us of which nothing stays unsent.
fn absorb(m: &mut LinkMonitor, from_ns: u64, count: u64) -> u64 {
    for i in 0..count {
        let begin_ns = from_ns + i * 10_000;
        let end_ns = begin_ns + 5_000;
        m.observe(&LinkSample { begin_ns, end_ns, accepted: 16_384, ..LinkSample::default() });
    }
    from_ns + count * 10_000
}

#[test]
fn a_link_that_takes_everything_from_the_start_is_fast() {
    let mut m = LinkMonitor::default();
    absorb(&mut m, 0, 2);
    assert!(m.view(0).known && m.rate_bytes_per_s() > 1e9);
}

#[test]
fn a_buffer_that_fills_is_not_taken_for_the_link() {
    let mut m = LinkMonitor::default();
    let t = absorb(&mut m, 0, 4);
    let t = keep_busy(&mut m, t, 100, 12.5e6);
    assert!((m.rate_bytes_per_s() / 12.5e6 - 1.0).abs() < 0.05, "{}", m.rate_bytes_per_s());
    let t = absorb(&mut m, t + 60_000_000, 30);
    assert!(m.rate_bytes_per_s() < 15e6, "what a queue takes after a pause is no evidence");
    absorb(&mut m, t, 3000);
    assert!(m.rate_bytes_per_s() > 300e6, "but a link that goes on taking is: {}", m.rate_bytes_per_s());
}

/// A link of `rate` behind a queue in which everything that is unsent vanishes at once,
/// acknowledged every `every_ms`.
fn acknowledged(m: &mut LinkMonitor, rate: f64, every_ms: u64, ms: u64) {
    let (mut accepted, mut acked) = (m.accepted_bytes(), m.acked());
    for i in 1..=ms {
        let crossed = acked as f64 + rate * if i % every_ms == 0 { every_ms as f64 / 1e3 } else { 0.0 };
        acked = (crossed as u64).min(accepted);
        let begin_ns = m.last_ns + 990_000;
        accepted += 400_000;
        m.observe(&LinkSample {
            begin_ns,
            end_ns: begin_ns + 10_000,
            unsent_before: 10_000,
            unsent_after: 10_000,
            accepted: 400_000,
            unacked: Some(accepted - acked),
            ..LinkSample::default()
        });
    }
}

#[test]
fn a_queue_behind_the_host_is_not_taken_for_the_link() {
    for every_ms in [1, 25] {
        let mut m = LinkMonitor::default();
        acknowledged(&mut m, 12.5e6, every_ms, 300);
        let believed = m.rate_bytes_per_s() / 12.5e6;
        assert!((0.7..1.4).contains(&believed), "acknowledged every {every_ms} ms: {believed}");
        acknowledged(&mut m, 125e6, every_ms, 500);
        let believed = m.rate_bytes_per_s() / 125e6;
        assert!((0.7..1.4).contains(&believed), "after a step: {believed}");
    }
}

#[test]
fn memory_is_told_from_a_burst_and_from_a_shaper() {
    let delivered = |rate: u64, unacked: u64| {
        let mut m = LinkMonitor::default();
        for i in 0..20 {
            m.observe(&LinkSample {
                begin_ns: i * 20_000,
                end_ns: i * 20_000 + 10_000,
                accepted: 32_768,
                unacked: Some(unacked),
                delivery_bytes_per_s: Some(rate),
                ..LinkSample::default()
            });
        }
        m
    };
    assert!(delivered(5_000_000_000, 0).view(0).in_memory);
    assert!(!delivered(1_000_000_000, 0).view(0).in_memory);
    let mut shaped = delivered(5_000_000_000, 0);
    acknowledged(&mut shaped, 12.5e6, 1, 20);
    assert!(!shaped.view(0).in_memory);
}

#[test]
fn a_link_is_unanswered_until_something_crossed_it() {
    let mut m = LinkMonitor::default();
    assert!(m.view(0).unanswered, "nothing was sent");
    let look = |at_ns: u64, accepted, unacked| LinkSample {
        begin_ns: at_ns,
        end_ns: at_ns,
        accepted,
        unacked,
        ..LinkSample::default()
    };
    m.observe(&look(1000, 20_000, Some(20_000)));
    assert!(m.view(0).unanswered, "nothing came back");
    m.observe(&look(2000, 0, Some(18_552)));
    assert!(!m.view(0).unanswered);
    let mut silent = LinkMonitor::default();
    silent.observe(&look(1000, 20_000, None));
    assert!(!silent.view(0).unanswered, "a link that never tells is not waited for");
}

/// Bytes are acknowledged while a write waits for a core that others have.
#[test]
fn a_write_that_waited_for_a_core_was_not_short() {
    let mut m = LinkMonitor::default();
    let rtt_ns = Some(50_000);
    let at = |begin_ns, end_ns, unsent, accepted, unacked| LinkSample {
        begin_ns,
        end_ns,
        unsent_before: unsent,
        unsent_after: unsent,
        accepted,
        unacked: Some(unacked),
        rtt_ns,
        ..LinkSample::default()
    };
    for ms in 0..50 {
        let now_ns = ms * 1_000_000;
        m.observe(&at(now_ns, now_ns + 1000, 100_000, 125_000, 100_000));
    }
    for ms in 50..250 {
        let now_ns = ms * 1_000_000;
        m.observe(&at(now_ns, now_ns, 60_000, 60_000, 60_000));
        m.observe(&at(now_ns + 20_000, now_ns + 980_000, 0, 65_000, 0));
    }
    assert!((0.8..1.2).contains(&(m.rate_bytes_per_s() / 125e6)), "{}", m.rate_bytes_per_s());
}

#[test]
fn a_round_trip_that_waits_for_a_core_is_no_queue() {
    let mut m = LinkMonitor::default();
    let look = |rtt_ns, unacked| LinkSample {
        begin_ns: 1000,
        end_ns: 1000,
        accepted: unacked,
        unacked: Some(unacked),
        rtt_ns: Some(rtt_ns),
        ..LinkSample::default()
    };
    m.observe(&look(28_000, 0));
    m.observe(&look(28_000 + QUEUE_MIN_NS, 90_000));
    assert_eq!(m.unsent_bytes(), 0);
    m.observe(&look(400_000, 90_000));
    assert!(m.unsent_bytes() > 60_000, "{}", m.unsent_bytes());
}
