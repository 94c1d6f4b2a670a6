//! The negotiation in virtual time: whatever happens to connection, side channel and supervisors,
//! each program gets the bytes that the other wrote, or an error, and no byte is held longer than a
//! round trip of the side channel.

mod upgrade_world;

use narrows::upgrade::marker::{DIRECT_MAGIC, MAGIC};
use narrows::upgrade::message::Reason;
use narrows::upgrade::{FlowLimits, WhyPlain};
use upgrade_world::{Act, End, MS, Outcome, Setup, Slow, Who, run};

/// Runs a setup and checks that everything arrives, and that the connection ends as the programs
/// ended it.
fn well(setup: &Setup) -> Outcome {
    let outcome = run(setup);
    assert_eq!((outcome.client.end, outcome.server.end), (End::Eof, End::Eof), "{setup:?}");
    let held_max = outcome.client.held_max_ns.max(outcome.server.held_max_ns);
    // A direct connection has no side channel to ask: the peer's marker, which comes at once, or
    // its next byte decides.
    let bound = if setup.direct { FlowLimits::default().hold_max_ns } else { 2 * (setup.side_ns + setup.jitter_ns) };
    assert!(held_max <= bound, "held for {held_max} ns: {setup:?}");
    outcome
}

fn plain(setup: &Setup) -> Option<WhyPlain> {
    let outcome = well(setup);
    assert_eq!((outcome.client.switched_at, outcome.server.switched_at), (None, None), "{setup:?}");
    assert_eq!(outcome.client.held_max_ns, 0, "nothing is held at a plain connection");
    outcome.client.why_plain
}

#[test]
fn with_a_side_channel_that_is_there_the_first_byte_goes_in_frames() {
    let outcome = well(&Setup::default());
    assert_eq!((outcome.server.switched_at, outcome.client.switched_at), (Some(0), Some(0)));
    assert_eq!(outcome.dials, 1);
}

#[test]
fn without_one_the_first_round_trips_are_plain_and_nothing_waits() {
    let outcome = well(&Setup { warm: false, side_ns: 30 * MS, ..Setup::default() });
    assert_eq!((outcome.server.switched_at, outcome.client.switched_at), (Some(7), Some(0)));
    assert_eq!((outcome.client.held_max_ns, outcome.server.held_max_ns), (0, 0));
}

#[test]
fn a_server_that_speaks_first_is_heard_at_once_and_switches_later() {
    let mut setup = Setup { warm: false, side_ns: 30 * MS, ..Setup::default() };
    setup.acts.push((0, Who::Server, Act::Write(b"220 welcome\r\n".to_vec())));
    let outcome = well(&setup);
    assert_eq!((outcome.server.switched_at, outcome.client.switched_at), (Some(7), Some(13)));
}

#[test]
fn an_idle_connection_is_switched_without_a_byte_of_its_programs() {
    let acts = vec![(9000 * MS, Who::Client, Act::End), (9000 * MS, Who::Server, Act::End)];
    let outcome = well(&Setup { acts, ..Setup::default() });
    assert_eq!((outcome.server.switched_at, outcome.client.switched_at), (Some(0), Some(0)));
}

#[test]
fn who_is_not_proved_stays_plain_and_hears_why() {
    let good = Setup::default;
    let no = |reason| Some(WhyPlain::Refused(reason));
    for (setup, why) in [
        (Setup { service: false, warm: false, ..good() }, Some(WhyPlain::NoService)),
        (Setup { server: false, ..good() }, no(Reason::NotHere)),
        (Setup { client: false, ..good() }, None),
        (Setup { nat: true, ..good() }, None),
        (Setup { clock_off_ms: 501, ..good() }, no(Reason::Proof)),
        (Setup { clock_off_ms: -501, ..good() }, no(Reason::Proof)),
        (Setup { syn_clock: false, ..good() }, no(Reason::Proof)),
        // The connection ends before the claim is settled.
        (Setup { accept_ns: 11_000 * MS, ..good() }, no(Reason::NotAccepted)),
    ] {
        assert_eq!(plain(&setup), why, "{setup:?}");
    }
    for clock_off_ms in [-500, 500] {
        assert!(well(&Setup { clock_off_ms, ..good() }).server.switched_at.is_some());
    }
}

#[test]
fn a_claim_may_come_long_before_its_connection_is_accepted_or_long_after() {
    for (accept_ns, side_ns) in [(300 * MS, 10 * MS), (0, 80 * MS), (9 * MS, MS)] {
        for warm in [false, true] {
            let outcome = well(&Setup { accept_ns, side_ns, warm, ..Setup::default() });
            assert!(outcome.server.switched_at.is_some() && outcome.client.switched_at.is_some());
        }
    }
}

#[test]
fn forged_claims_switch_nothing() {
    for when in [0, 5 * MS, 10 * MS, 12 * MS, 40 * MS, 200 * MS] {
        // Claims from another host do not count at all.
        let other_host = Setup { forged: vec![(when, false, 0)], ..Setup::default() };
        assert!(well(&other_host).server.switched_at.is_some());
        for off_ms in [0, 3, 100_000, i32::MIN] {
            let forged = vec![(when, true, off_ms), (when + 1, true, off_ms), (when + MS, true, 0)];
            well(&Setup { forged: forged.clone(), ..Setup::default() });
            // Forged claims for a client without narrows, even with the right clock.
            plain(&Setup { forged, client: false, ..Setup::default() });
        }
    }
}

#[test]
fn a_host_without_narrows_is_asked_once() {
    let outcome = well(&Setup { service: false, warm: false, ..Setup::default() });
    assert_eq!(outcome.dials, 1);
}

#[test]
fn either_supervisor_may_die_at_any_step() {
    for base in schedules() {
        let steps = run(&base).steps;
        for step in 1..=steps {
            for who in [Who::Client, Who::Server] {
                // The world compares the bytes, and checks that no end of stream is seen where
                // there was none.
                run(&Setup { kill: Some((who, step)), ..base.clone() });
            }
        }
    }
}

#[test]
fn the_side_channel_may_break_at_any_step_and_come_back_or_not() {
    let (mut errors, mut runs) = (0, 0);
    for base in schedules() {
        let steps = run(&base).steps;
        for step in 1..=steps {
            for heals_ns in [0, 60 * MS, u64::MAX] {
                let outcome = run(&Setup { break_at: Some((step, heals_ns)), ..base.clone() });
                assert!(outcome.client.held_max_ns <= FlowLimits::default().hold_max_ns);
                assert!(outcome.server.held_max_ns <= FlowLimits::default().doubt_max_ns);
                runs += 1;
                errors += u32::from(outcome.client.end == End::Error);
            }
        }
    }
    // A connection fails only if bytes look like a marker and the side channel cannot be asked
    // about them.
    assert!(errors * 20 < runs, "{errors} of {runs} connections failed");
}

#[test]
fn what_is_in_doubt_for_good_is_data_after_a_while_and_a_side_channel_that_comes_back_removes_the_doubt() {
    let acts = vec![
        (50 * MS, Who::Client, Act::Write(vec![1, 2, MAGIC[0]])),
        (200_000 * MS, Who::Client, Act::End),
        (200_000 * MS, Who::Server, Act::End),
    ];
    let base = Setup { acts, ..Setup::default() };
    let steps = run(&base).steps;
    let broken = |heals_ns| {
        let at = |step| run(&Setup { break_at: Some((step, heals_ns)), ..base.clone() });
        (1..=steps).map(at).collect::<Vec<_>>()
    };
    // READY is lost, and neither end can find out whether it was.
    let lost = broken(u64::MAX);
    assert!(lost.iter().all(|o| o.server.end == End::Eof));
    assert!(lost.iter().any(|o| o.server.held_max_ns == FlowLimits::default().doubt_max_ns));
    let healed = broken(0);
    assert!(healed.iter().all(|o| o.server.end == End::Eof));
    assert!(healed.iter().any(|o| o.dials == 2 && o.client.switched_at.is_some()), "the same claim again");
}

/// The client gave up while no side channel was available, and the server may be armed. Bytes there
/// that look like a marker, long after, are neither held for long nor reset.
#[test]
fn a_claim_that_was_given_up_is_settled_as_soon_as_there_is_a_side_channel_again() {
    for accept_ns in [0, 100 * MS] {
        let acts = vec![
            (20_000 * MS, Who::Client, Act::Write(vec![1, 2, MAGIC[0]])),
            (30_000 * MS, Who::Client, Act::End),
            (30_000 * MS, Who::Server, Act::End),
        ];
        let base = Setup { acts, accept_ns, ..Setup::default() };
        for step in 1..=run(&base).steps {
            for heals_ns in [2500 * MS, 6000 * MS, 12_000 * MS] {
                well(&Setup { break_at: Some((step, heals_ns)), ..base.clone() });
            }
        }
    }
}

/// A connection on which, long after its beginning, the client's program writes bytes that may
/// begin a marker.
fn long() -> Setup {
    let acts = vec![
        (60_000 * MS, Who::Client, Act::Write(vec![1, 2, MAGIC[0]])),
        (90_000 * MS, Who::Client, Act::End),
        (90_000 * MS, Who::Server, Act::End),
    ];
    Setup { acts, ..Setup::default() }
}

/// A client that gave a claim up without withdrawing it may still send the marker; one that has
/// withdrawn it may not.
#[test]
fn an_answer_that_comes_when_it_was_given_up_finds_a_server_that_still_looks_for_the_marker() {
    for dial_s in 5..10 {
        for down_ms in (0..10_000).step_by(250) {
            let slow = vec![Slow { dial_ns: dial_s * 1000 * MS, from_ns: 0, up_ns: 0, down_ns: down_ms * MS }];
            well(&Setup { warm: false, slow, ..long() });
        }
    }
    // The greeting takes longer than a claim waits.
    let slow = vec![Slow { dial_ns: 7000 * MS, down_ns: 9000 * MS, ..Slow::default() }];
    assert!(well(&Setup { warm: false, slow, ..long() }).client.switched_at.is_some());
}

#[test]
fn what_was_stuck_on_a_side_channel_that_was_given_up_changes_nothing() {
    for up_ms in (15_000..40_000).step_by(500) {
        // Either everything is stuck, or the client's first messages arrived in time.
        for from_ms in [0, 5000] {
            for data_ms in [10, 8000, 14_000] {
                let slow = vec![Slow { from_ns: from_ms * MS, up_ns: up_ms * MS, ..Slow::default() }];
                let setup = Setup { slow, data_ns: data_ms * MS, warm: from_ms > 0, ..long() };
                assert!(well(&setup).client.switched_at.is_some(), "{setup:?}");
            }
        }
    }
}

/// The server may have been armed by the previous agent.
#[test]
fn an_agent_that_knows_of_nothing_yet_does_not_leave_a_server_armed_in_vain() {
    for when_ms in 0..45 {
        for gone_ms in [0, 100, 2500] {
            for unknown_ms in [0, 500, 1500, 6000] {
                let restart = Some((when_ms * MS, gone_ms * MS, unknown_ms * MS));
                well(&Setup { restart, ..long() });
                // Nothing that the next agent sends arrives.
                let slow = vec![Slow::default(), Slow { down_ns: 30_000 * MS, ..Slow::default() }];
                well(&Setup { restart, slow, ..long() });
            }
        }
    }
}

/// Rules 1 and 3 of format.md section 11: the world compares every byte.
#[test]
fn no_order_and_no_delay_on_side_channels_brings_a_program_what_none_wrote() {
    const RUNS: u64 = 6000;
    let (mut switched, mut late, mut errors) = (0, 0, 0);
    for seed in 0..RUNS {
        let setup = slow_setup(seed);
        let outcome = run(&setup);
        switched += u64::from(outcome.server.switched_at.is_some());
        late += u64::from(outcome.server.switched_at.is_some_and(|at| at > 0) && outcome.dials > 1);
        errors += u64::from(outcome.client.end == End::Error || outcome.server.end == End::Error);
    }
    // Otherwise this test proves nothing.
    assert!(switched > RUNS / 3 && late > RUNS / 20, "switched {switched}, {late} of them late");
    // Errors occur where no side channel can be asked for 3 s while bytes are held.
    assert!(errors < RUNS / 20, "{errors} connections failed");
}

#[test]
fn bytes_are_right_and_in_time_whatever_the_programs_say_and_however_it_is_cut() {
    let (mut switched, mut held) = (0, 0);
    for seed in 0..3000 {
        let setup = random_setup(seed);
        let outcome = well(&setup);
        switched += u32::from(outcome.server.switched_at.is_some()) + u32::from(outcome.client.switched_at.is_some());
        held += u32::from(outcome.client.held_max_ns + outcome.server.held_max_ns > 0);
    }
    // Otherwise this test proves nothing.
    assert!(switched > 2000 && held > 200, "switched {switched}, held {held}");
}

#[test]
fn a_direct_connection_is_frames_from_the_first_byte_and_a_plain_client_is_let_through() {
    let setup = Setup { direct: true, ..Setup::default() };
    let outcome = well(&setup);
    assert_eq!((outcome.server.switched_at, outcome.client.switched_at, outcome.dials), (Some(0), Some(0), 0));
    let mut greeting = setup.clone();
    greeting.acts.push((0, Who::Server, Act::Write(b"220 welcome\r\n".to_vec())));
    assert_eq!(well(&greeting).client.switched_at, Some(13));
    for seed in 0..500 {
        let random = random_setup(seed);
        let begins = |(_, who, act): &(u64, Who, Act)| {
            *who == Who::Client && matches!(act, Act::Write(bytes) if bytes.starts_with(&DIRECT_MAGIC))
        };
        if !random.client && random.acts.iter().any(begins) {
            // A client that begins with these bytes is a direct client.
            continue;
        }
        let accept_ns = random.accept_ns.min(20 * MS);
        let outcome = well(&Setup { direct: true, server: true, forged: vec![], accept_ns, ..random });
        // A server that ended before the client's bytes arrived has nothing to switch.
        assert!(outcome.server.switched_at.is_some() || outcome.client.switched_at.is_none());
    }
    for n in 0..=DIRECT_MAGIC.len() - 1 {
        let mut setup = Setup { direct: true, client: false, ..Setup::default() };
        setup.acts.insert(0, (20 * MS, Who::Client, Act::Write(DIRECT_MAGIC[..n].to_vec())));
        assert!(well(&setup).server.switched_at.is_none());
    }
}

/// Setups of connections that tests then disturb.
fn schedules() -> Vec<Setup> {
    let good = Setup::default;
    let mut all = vec![
        good(),
        Setup { warm: false, ..good() },
        Setup { warm: false, side_ns: 70 * MS, ..good() },
        Setup { accept_ns: 100 * MS, ..good() },
        Setup { direct: true, ..good() },
    ];
    // Only setups that switch: in those that stay plain there is nothing to disturb.
    let switching = |s: &Setup| s.client && s.server && s.service && !s.nat && s.clock_off_ms == 0 && s.syn_clock;
    all.extend((0..400).map(random_setup).filter(switching).take(40));
    all
}

fn random_setup(seed: u64) -> Setup {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let mut random = move |below: u64| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % below.max(1)
    };
    let mut acts = Vec::new();
    for who in [Who::Client, Who::Server] {
        let mut when = random(60 * MS);
        for _ in 0..random(12) {
            acts.push((when, who, Act::Write(data(&mut random))));
            let pause = if random(4) == 0 { 300 * MS } else { 8 * MS };
            when += random(pause);
        }
        acts.push((when + random(30 * MS), who, Act::End));
    }
    let forged = |random: &mut dyn FnMut(u64) -> u64| {
        (0..random(3)).map(|_| (random(100 * MS), random(2) == 0, 1000 * (1 + random(2) as i32))).collect()
    };
    Setup {
        seed,
        client: random(12) > 0,
        server: random(12) > 0,
        service: random(12) > 0,
        direct: false,
        data_ns: 1 + random(20 * MS),
        side_ns: 1 + random(40 * MS),
        jitter_ns: random(10 * MS),
        cut: random(4) > 0,
        warm: random(2) == 0,
        accept_ns: if random(3) == 0 { random(200 * MS) } else { 0 },
        nat: random(12) == 0,
        clock_off_ms: if random(12) == 0 { 700 } else { 0 },
        syn_clock: random(12) > 0,
        acts,
        kill: None,
        break_at: None,
        slow: vec![],
        restart: None,
        line_ns: 0,
        forged: if random(5) == 0 { forged(&mut random) } else { vec![] },
    }
}

/// Side channels that take seconds, break and come back, and agents that follow one another.
fn slow_setup(seed: u64) -> Setup {
    let mut setup = random_setup(seed);
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95) | 1;
    let mut random = move |below: u64| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % below.max(1)
    };
    let second = 1000 * MS;
    let mut span = |often: u64, max: u64| if random(often) == 0 { random(max * second) } else { 0 };
    for _ in 0..span(1, 4) / second {
        let (dial_ns, from_ns) = (span(3, 11), span(2, 12));
        setup.slow.push(Slow { dial_ns, from_ns, up_ns: span(2, 25), down_ns: span(2, 18) });
    }
    if span(3, 2) > 0 {
        setup.restart = Some((span(1, 20), span(2, 4), span(2, 8)));
    }
    if span(3, 2) > 0 {
        let step = 1 + span(1, 40) / second;
        setup.break_at = Some((step as usize, span(2, 20)));
    }
    if span(4, 2) > 0 {
        setup.data_ns = 1 + span(1, 12);
    }
    if span(4, 2) > 0 {
        setup.accept_ns = span(1, 14);
    }
    setup.line_ns = span(2, 4) / 4;
    let stretch = 1 + span(1, 300) / second;
    setup.acts.iter_mut().for_each(|(when, ..)| *when *= stretch);
    (setup.client, setup.service, setup.nat, setup.clock_off_ms, setup.syn_clock) = (true, true, false, 0, true);
    setup
}

/// Data that programs write: often it looks like the beginning of a marker, especially at the end
/// of a write.
fn data(random: &mut impl FnMut(u64) -> u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..random(60)).map(|_| random(256) as u8).collect();
    if random(2) == 0 {
        let magic = if random(4) == 0 { DIRECT_MAGIC } else { MAGIC };
        bytes.extend_from_slice(&magic[..random(9) as usize]);
    }
    if random(3) == 0 {
        bytes.extend((0..random(4)).map(|_| random(256) as u8));
    }
    if bytes.is_empty() {
        bytes.push(MAGIC[0]);
    }
    bytes
}
