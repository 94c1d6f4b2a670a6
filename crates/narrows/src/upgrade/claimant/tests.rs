use super::*;

const SECOND: u64 = 1_000_000_000;

fn tuple() -> Tuple {
    Tuple::new("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:5432".parse().unwrap())
}

fn claimant() -> Claimant {
    Claimant::new(ClaimantLimits { claims_max: 2, ..ClaimantLimits::default() }, [1; 32])
}

fn outputs(claimant: &mut Claimant) -> Vec<Output> {
    std::iter::from_fn(|| claimant.poll()).collect()
}

fn hello() -> Vec<u8> {
    let mut wire = GREETING.to_vec();
    Message::Hello(Hello { version: VERSION, purpose: Purpose::SideChannel }).write(&mut wire);
    wire
}

fn wire(message: &Message) -> Vec<u8> {
    let mut wire = Vec::new();
    message.write(&mut wire);
    wire
}

fn up(now_ns: u64) -> Claimant {
    let mut claimant = claimant();
    claimant.claim(1, tuple(), 5, now_ns);
    claimant.connected(now_ns);
    claimant.receive(&hello(), now_ns);
    outputs(&mut claimant);
    claimant
}

#[test]
fn a_host_without_narrows_is_left_alone_for_a_second_and_longer_each_time() {
    let mut claimant = claimant();
    let mut now = 0;
    for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 960, 960] {
        claimant.claim(1, tuple(), 5, now);
        assert_eq!(outputs(&mut claimant), [Output::Dial]);
        claimant.lost(now);
        claimant.ended(1);
        let plain = Output::Flow(1, Event::Plain(WhyPlain::NoService));
        assert_eq!(outputs(&mut claimant), std::slice::from_ref(&plain));
        now += wait * SECOND;
        claimant.claim(1, tuple(), 5, now - 1);
        assert_eq!(outputs(&mut claimant), [plain], "asked again before {wait} s");
    }
    // After a success the pauses begin again.
    claimant.claim(1, tuple(), 5, now);
    claimant.connected(now);
    claimant.receive(&hello(), now);
    claimant.lost(now);
    claimant.ended(1);
    outputs(&mut claimant);
    claimant.claim(1, tuple(), 5, now + SECOND);
    assert_eq!(outputs(&mut claimant), [Output::Dial]);
}

/// A client that starts before its server, and retries until the server is up.
#[test]
fn a_host_that_refused_the_connection_too_is_asked_again_at_once() {
    let mut claimant = claimant();
    for (flow, first) in [(1, true), (2, false), (3, true)] {
        claimant.claim(flow, tuple(), 5, 0);
        assert_eq!(outputs(&mut claimant), [Output::Dial]);
        // Either of the two may fail first.
        if first {
            claimant.never_connected(flow);
            claimant.lost(0);
        } else {
            claimant.lost(0);
            claimant.never_connected(flow);
        }
        outputs(&mut claimant);
    }
    // One of two connections came up: the host is there, without Narrows.
    claimant.claim(4, tuple(), 5, 0);
    claimant.claim(5, tuple(), 5, 0);
    claimant.lost(0);
    claimant.never_connected(4);
    outputs(&mut claimant);
    claimant.claim(6, tuple(), 5, SECOND - 1);
    assert_eq!(outputs(&mut claimant), [Output::Flow(6, Event::Plain(WhyPlain::NoService))]);
    claimant.claim(6, tuple(), 5, SECOND);
    assert_eq!(outputs(&mut claimant), [Output::Dial]);
}

#[test]
fn a_side_channel_that_lasted_is_waited_for_while_an_agent_follows_another() {
    let mut claimant = up(0);
    let mut now = 2 * SECOND;
    claimant.lost(now);
    while now < 4 * SECOND {
        assert_eq!(outputs(&mut claimant), [Output::Dial]);
        claimant.lost(now);
        assert_eq!(outputs(&mut claimant), []);
        now = claimant.next_wakeup_ns().unwrap();
        claimant.on_time(now);
    }
    assert_eq!(outputs(&mut claimant), [Output::Dial]);
    claimant.lost(now);
    assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Plain(WhyPlain::NoService))]);
    assert_eq!(claimant.claims(), 0);
}

/// Otherwise its server might look for a marker for ever.
#[test]
fn a_claim_that_was_given_up_is_said_again_when_somebody_is_there() {
    let lost = || {
        let mut claimant = up(0);
        claimant.lost(0);
        assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Plain(WhyPlain::NoService))]);
        assert_eq!(claimant.next_wakeup_ns(), Some(SECOND));
        claimant
    };
    let mut claimant = lost();
    claimant.on_time(SECOND);
    claimant.connected(SECOND);
    let mut again = hello();
    let nonce = derive(&[1; 32], &[b"narrows claim", &0u64.to_le_bytes()]);
    Message::Claim(Claim { id: 0, tuple: tuple(), clock_ms: 5, nonce }).write(&mut again);
    assert_eq!(outputs(&mut claimant), [Output::Dial, Output::Send(again)]);
    claimant.receive(&[hello(), wire(&Message::No { id: 0, reason: Reason::Ended })].concat(), SECOND);
    let no = Output::Flow(1, Event::Plain(WhyPlain::Refused(Reason::Ended)));
    assert_eq!(outputs(&mut claimant), [Output::Send(wire(&Message::Withdraw { id: 0 })), no]);
    // Not if its connection is over.
    let mut claimant = lost();
    claimant.ended(1);
    assert_eq!(claimant.next_wakeup_ns(), None);
    // Not for ever.
    let mut claimant = lost();
    let mut dials = 0;
    while let Some(at) = claimant.next_wakeup_ns() {
        claimant.on_time(at);
        dials += outputs(&mut claimant).len();
        claimant.lost(at);
    }
    assert_eq!(dials, 10);
}

#[test]
fn a_service_that_says_nothing_or_something_else_is_hung_up() {
    let mut claimant = claimant();
    claimant.claim(1, tuple(), 5, 0);
    claimant.connected(SECOND);
    outputs(&mut claimant);
    assert_eq!(claimant.next_wakeup_ns(), Some(11 * SECOND));
    claimant.on_time(11 * SECOND);
    let plain = Output::Flow(1, Event::Plain(WhyPlain::NoService));
    assert_eq!(outputs(&mut claimant), [Output::Hangup, plain.clone()]);
    for wrong in [
        b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
        [hello(), hello()[8..].to_vec()].concat(),
        [hello(), wire(&Message::Withdraw { id: 0 })].concat(),
    ] {
        let mut claimant = self::claimant();
        claimant.claim(1, tuple(), 5, 0);
        claimant.connected(0);
        outputs(&mut claimant);
        claimant.receive(&wrong, 0);
        assert_eq!(outputs(&mut claimant), [Output::Hangup, plain.clone()]);
    }
}

#[test]
fn a_claim_without_an_answer_is_kept_and_not_withdrawn() {
    let mut claimant = up(0);
    assert_eq!(claimant.next_wakeup_ns(), Some(15 * SECOND));
    claimant.on_time(15 * SECOND);
    let late = Output::Flow(1, Event::Plain(WhyPlain::TimedOut));
    let out = [late.clone(), Output::Hangup, Output::Dial];
    assert_eq!(outputs(&mut claimant), out, "who says nothing is gone, and perhaps back soon");
    // A greeting has its own deadline, and an answer within it counts.
    let mut claimant = self::claimant();
    claimant.claim(1, tuple(), 5, 0);
    claimant.connected(7 * SECOND);
    outputs(&mut claimant);
    claimant.on_time(15 * SECOND);
    assert_eq!((outputs(&mut claimant), claimant.next_wakeup_ns()), (vec![late], Some(17 * SECOND)));
    claimant.receive(&[hello(), wire(&Message::Ready { id: 0, key: [1; 16] })].concat(), 16 * SECOND);
    assert!(matches!(outputs(&mut claimant)[..], [Output::Flow(1, Event::Ready(_))]));
}

/// A server that gets WITHDRAW stops looking for the marker.
#[test]
fn what_is_withdrawn_is_never_ready() {
    let ready = || wire(&Message::Ready { id: 0, key: [1; 16] });
    let withdraw = || Output::Send(wire(&Message::Withdraw { id: 0 }));
    let mut claimant = up(0);
    claimant.ended(1);
    claimant.receive(&ready(), 1);
    assert_eq!(outputs(&mut claimant), [withdraw()]);
    assert_eq!(claimant.claims(), 0);
    // A claim repeated after it was given up is withdrawn too.
    let mut claimant = up(0);
    claimant.lost(0);
    claimant.on_time(SECOND);
    claimant.connected(SECOND);
    outputs(&mut claimant);
    claimant.ended(1);
    claimant.receive(&[hello(), ready()].concat(), SECOND);
    assert_eq!(outputs(&mut claimant), [withdraw()]);
    // A claim that its flow withdraws while no channel is up is withdrawn as soon as one is.
    let mut claimant = up(0);
    claimant.receive(&ready(), 0);
    claimant.lost(SECOND);
    outputs(&mut claimant);
    claimant.say(1, Word::Withdraw);
    claimant.connected(2 * SECOND);
    let out = outputs(&mut claimant);
    let [Output::Send(said)] = &out[..] else { panic!("{out:?}") };
    assert!(said.ends_with(&wire(&Message::Withdraw { id: 0 })) && said.len() > hello().len() + 60);
    claimant.receive(&[hello(), ready()].concat(), 2 * SECOND);
    assert_eq!((outputs(&mut claimant), claimant.next_wakeup_ns()), (vec![], None));
}

/// An agent before the refusing one may have armed its server.
#[test]
fn a_no_to_a_claim_that_was_said_before_is_asked_about_again_but_not_for_ever() {
    for reason in [Reason::NotHere, Reason::NotAccepted, Reason::Busy, Reason::Taken] {
        let no = wire(&Message::No { id: 0, reason });
        let mut claimant = up(0);
        claimant.lost(2 * SECOND);
        claimant.connected(2 * SECOND);
        claimant.receive(&hello(), 2 * SECOND);
        outputs(&mut claimant);
        claimant.receive(&no, 2 * SECOND);
        assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Plain(WhyPlain::NoService))]);
        let mut said = 2;
        while let Some(at) = claimant.next_wakeup_ns() {
            claimant.on_time(at);
            let out = outputs(&mut claimant);
            assert!(matches!(&out[..], [Output::Send(claim)] if claim.len() == 67), "{out:?}");
            said += 1;
            claimant.receive(&no, at);
        }
        assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Plain(WhyPlain::Refused(reason)))]);
        assert_eq!((said, claimant.entries.len(), claimant.by_flow.len()), (8, 0, 0));
    }
    // Not for ever either if each side channel breaks after the claim.
    let mut claimant = up(0);
    claimant.lost(0);
    let (mut now, mut said) = (0, 1);
    while let Some(at) = claimant.next_wakeup_ns() {
        now = now.max(at);
        claimant.on_time(now);
        claimant.connected(now);
        claimant.receive(&hello(), now);
        said += 1;
        claimant.lost(now);
    }
    assert_eq!((said, claimant.by_flow.len()), (8, 0));
}

#[test]
fn what_is_not_settled_is_claimed_again_in_the_same_words() {
    let mut claimant = claimant();
    claimant.claim(1, tuple(), 5, 0);
    claimant.connected(0);
    let Some(Output::Send(first)) = outputs(&mut claimant).pop() else { panic!("nothing is said") };
    claimant.receive(&hello(), 0);
    claimant.receive(&wire(&Message::Ready { id: 0, key: [2; 16] }), 0);
    outputs(&mut claimant);
    claimant.lost(2 * SECOND);
    claimant.connected(2 * SECOND);
    assert_eq!(outputs(&mut claimant), [Output::Dial, Output::Send(first)]);
    claimant.receive(&hello(), 3 * SECOND);
    claimant.receive(&wire(&Message::Ready { id: 0, key: [2; 16] }), 3 * SECOND);
    assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Restored)]);
    // Another key would belong to another connection.
    claimant.receive(&wire(&Message::Ready { id: 0, key: [3; 16] }), 3 * SECOND);
    assert_eq!(outputs(&mut claimant)[0], Output::Hangup);
    let mut settled = up(0);
    settled.receive(&wire(&Message::Ready { id: 0, key: [2; 16] }), 0);
    settled.say(1, Word::Settled);
    outputs(&mut settled);
    settled.lost(2 * SECOND);
    assert_eq!(outputs(&mut settled), []);
}

#[test]
fn a_peer_that_fails_at_every_claim_is_not_dialled_without_end() {
    let mut claimant = up(0);
    claimant.lost(SECOND - 1);
    assert_eq!(outputs(&mut claimant), [Output::Flow(1, Event::Plain(WhyPlain::NoService))]);
}

#[test]
fn claims_have_a_limit_and_nonces_of_their_own() {
    let mut claimant = up(0);
    let mut claims = Vec::new();
    for flow in 2..5 {
        claimant.claim(flow, tuple(), 5, 0);
        claims.extend(outputs(&mut claimant));
    }
    assert!(matches!(claims[0], Output::Send(_)));
    assert_eq!(claims[1], Output::Flow(3, Event::Plain(WhyPlain::Busy)));
    let Output::Send(second) = &claims[0] else { unreachable!() };
    let nonce = derive(&[1; 32], &[b"narrows claim", &0u64.to_le_bytes()]);
    assert!(!second.ends_with(&nonce));
    claimant.receive(&wire(&Message::No { id: 0, reason: Reason::Taken }), 0);
    claimant.claim(9, tuple(), 5, 0);
    let out = outputs(&mut claimant);
    assert_eq!(out[0], Output::Flow(1, Event::Plain(WhyPlain::Refused(Reason::Taken))));
    assert!(matches!(out[1], Output::Send(_)), "a place is free again");
}
