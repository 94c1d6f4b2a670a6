use super::*;

const SECOND: u64 = 1_000_000_000;

fn tuple(port: u16) -> Tuple {
    Tuple::new(core::net::SocketAddr::new(client(), port), "10.0.0.2:5432".parse().unwrap())
}

fn client() -> IpAddr {
    "10.0.0.1".parse().unwrap()
}

fn claim(id: u64, port: u16, clock_ms: u32) -> Claim {
    Claim { id, tuple: tuple(port), clock_ms, nonce: [id as u8; 16] }
}

/// A witness with side channels 1 and 2 from the client's host.
fn witness() -> Witness {
    witness_with([1; 32])
}

fn witness_with(secret: [u8; 32]) -> Witness {
    let limits = WitnessLimits { waiting_max: 2, channels_per_host_max: 3, ..WitnessLimits::default() };
    let mut witness = Witness::new(limits, secret);
    witness.listening(5432);
    for channel in [1, 2] {
        witness.opened(channel, client(), 0);
        greet(&mut witness, channel);
    }
    witness
}

fn greet(witness: &mut Witness, channel: ChannelId) {
    let mut wire = GREETING.to_vec();
    Message::Hello(Hello { version: VERSION, purpose: Purpose::SideChannel }).write(&mut wire);
    witness.receive(channel, &wire, 0);
    outputs(witness);
}

#[test]
fn idle_channels_shut_nobody_out_and_addresses_of_one_host_are_counted_together() {
    let limits = WitnessLimits { channels_max: 4, channels_per_host_max: 2, ..WitnessLimits::default() };
    let mut witness = Witness::new(limits, [1; 32]);
    for (channel, address) in [(1, "2001:db8::1"), (2, "2001:db8::2:1"), (3, "2001:db8::3")] {
        witness.opened(channel, address.parse().unwrap(), channel);
    }
    assert_eq!(outputs(&mut witness), [Output::Hangup(1)]);
    for (channel, last) in [(4, 1), (5, 2), (6, 3)] {
        witness.opened(channel, IpAddr::from([10, 0, 0, last]), channel);
    }
    assert_eq!(outputs(&mut witness), [Output::Hangup(2)]);
    assert_eq!(witness.deadlines.len(), 4);
}

/// A host that opens gateway connections and sends no request gets no more of them than others,
/// keeps them no longer than the greeting's deadline, and displaces no side channel.
#[test]
fn who_asks_a_gateway_for_nothing_makes_room_and_has_one_time_for_all() {
    let limits = WitnessLimits { channels_max: 4, channels_per_host_max: 3, ..WitnessLimits::default() };
    let mut witness = Witness::new(limits, [1; 32]);
    witness.opened(1, client(), 0);
    greet(&mut witness, 1);
    let mut hello = GREETING.to_vec();
    Message::Hello(Hello { version: VERSION, purpose: Purpose::Gateway }).write(&mut hello);
    let attacker = IpAddr::from([10, 0, 0, 9]);
    for channel in 2..8 {
        witness.opened(channel, attacker, channel);
        witness.receive(channel, &hello, channel);
    }
    assert_eq!(outputs(&mut witness), [2, 3, 4].map(Output::Hangup), "the oldest of its own");
    for (channel, last) in [(10, 10), (11, 11)] {
        witness.opened(channel, IpAddr::from([10, 0, 0, last]), 20);
    }
    assert_eq!(outputs(&mut witness), [5, 6].map(Output::Hangup), "the side channel was there before them");
    // Sending a byte now and then does not extend the deadline.
    let mut dial = Vec::new();
    Message::Dial { port: 80 }.write(&mut dial);
    witness.receive(10, &hello, SECOND);
    witness.receive(10, &dial[..4], 9 * SECOND);
    witness.receive(11, &hello, SECOND);
    assert_eq!(witness.next_wakeup_ns(), Some(10 * SECOND + 7));
    witness.receive(11, &dial, 9 * SECOND);
    assert_eq!(outputs(&mut witness), [Output::Gateway { channel: 11, port: 80 }]);
    witness.on_time(10 * SECOND + 20);
    assert_eq!(outputs(&mut witness), [7, 10].map(Output::Hangup));
    assert_eq!((witness.next_wakeup_ns(), witness.channels.len()), (None, 1));
}

/// A side channel cannot dial; a gateway client cannot claim and must wait for its answer.
#[test]
fn a_connection_is_for_one_purpose() {
    let dial = Message::Dial { port: 80 };
    assert_eq!(tell(&mut witness(), 1, &dial), [Output::Hangup(1)]);
    for wrong in [&[Message::Claim(claim(0, 40000, 0))][..], &[dial.clone(), dial]] {
        let mut witness = Witness::new(WitnessLimits::default(), [1; 32]);
        witness.opened(1, client(), 0);
        let mut wire = GREETING.to_vec();
        Message::Hello(Hello { version: VERSION, purpose: Purpose::Gateway }).write(&mut wire);
        wrong.iter().for_each(|message| message.write(&mut wire));
        witness.receive(1, &wire, 0);
        assert_eq!(outputs(&mut witness), [Output::Hangup(1)]);
    }
}

#[test]
fn claims_that_wait_are_few_in_all_and_of_a_host() {
    for (of_host, in_all) in [(3, 9), (9, 3)] {
        let limits = WitnessLimits {
            waiting_max: 2,
            waiting_per_host_max: of_host,
            waiting_in_all_max: in_all,
            ..WitnessLimits::default()
        };
        let mut witness = Witness { limits, ..witness() };
        for id in 0..3 {
            assert_eq!(tell(&mut witness, 1 + id % 2, &Message::Claim(claim(id, 40000 + id as u16, 0))), []);
        }
        assert_eq!(tell(&mut witness, 2, &Message::Claim(claim(3, 50000, 0))), [no(2, 3, Reason::Busy)]);
        witness.lost(1);
        assert_eq!(tell(&mut witness, 2, &Message::Claim(claim(4, 50000, 0))), []);
        witness.lost(2);
        assert!(witness.waiting.is_empty() && witness.waiting_of_host.is_empty() && witness.deadlines.is_empty());
    }
}

fn outputs(witness: &mut Witness) -> Vec<Output> {
    std::iter::from_fn(|| witness.poll()).collect()
}

fn tell(witness: &mut Witness, channel: ChannelId, message: &Message) -> Vec<Output> {
    let mut wire = Vec::new();
    message.write(&mut wire);
    witness.receive(channel, &wire, 0);
    outputs(witness)
}

fn no(channel: ChannelId, id: u64, reason: Reason) -> Output {
    let mut wire = Vec::new();
    Message::No { id, reason }.write(&mut wire);
    Output::Send(channel, wire)
}

fn is_claimed(outputs: &[Output]) -> bool {
    matches!(outputs, [Output::Flow(7, Event::Claimed(_))])
}

/// The answer of a flow to its claim.
fn armed(outputs: &[Output]) -> Word {
    let [Output::Flow(7, Event::Claimed(key))] = outputs else { panic!("{outputs:?}") };
    Word::Armed { tag: key.tag() }
}

/// A supervisor is slow, and its agent dies between the claim and the answer. The next agent has
/// another key; if it accepted the answer as its own, its client would use that key for its marker,
/// and the marker would reach the server's program.
#[test]
fn an_answer_to_the_agent_before_makes_nobody_ready() {
    let claimed = |secret| {
        let mut witness = witness_with([secret; 32]);
        witness.accepted(7, tuple(40000), Some(1000));
        let claimed = tell(&mut witness, 1, &Message::Claim(claim(4, 40000, 1000)));
        (witness, armed(&claimed))
    };
    let ((_, before), (mut next, answer)) = (claimed(1), claimed(2));
    assert_ne!(before, answer);
    next.say(7, before);
    assert_eq!(outputs(&mut next), []);
    next.say(7, answer);
    assert!(matches!(&outputs(&mut next)[..], [Output::Send(1, _)]));
}

#[test]
fn a_forger_has_one_guess() {
    let mut witness = witness();
    witness.accepted(7, tuple(40000), Some(1000));
    let wrong = Message::Claim(claim(0, 40000, 9000));
    assert_eq!(tell(&mut witness, 2, &wrong), [no(2, 0, Reason::Proof)]);
    let right = Message::Claim(claim(1, 40000, 1000));
    assert_eq!(tell(&mut witness, 2, &right), [no(2, 1, Reason::Proof)]);
}

#[test]
fn the_flow_arms_before_its_peer_hears_and_a_repeated_claim_gets_the_same_answer() {
    let mut witness = witness();
    assert_eq!(tell(&mut witness, 1, &Message::Claim(claim(4, 40000, 1000))), []);
    witness.accepted(7, tuple(40000), Some(1100));
    let claimed = outputs(&mut witness);
    witness.say(7, armed(&claimed));
    let Some(Output::Send(1, ready)) = witness.poll() else { panic!("no answer") };
    let again = tell(&mut witness, 1, &Message::Claim(claim(4, 40000, 1000)));
    assert_eq!(again, [Output::Send(1, ready.clone()), Output::Flow(7, Event::Restored)]);
    // On another channel, which is the flow's from then on.
    let moved = tell(&mut witness, 2, &Message::Claim(claim(4, 40000, 1000)));
    assert_eq!(moved, [Output::Send(2, ready), Output::Flow(7, Event::Restored)]);
    witness.lost(1);
    witness.say(7, Word::Query { offset: 3 });
    assert!(matches!(&outputs(&mut witness)[..], [Output::Send(2, _)]));
    // A claim with another nonce is another claim, whatever it knows.
    let other = Claim { nonce: [9; 16], ..claim(5, 40000, 1000) };
    assert_eq!(tell(&mut witness, 2, &Message::Claim(other)), [no(2, 5, Reason::Taken)]);
    assert_eq!(tell(&mut witness, 2, &Message::Withdraw { id: 4 }), [Output::Flow(7, Event::Withdrawn)]);
}

#[test]
fn a_claim_waits_for_its_connection_but_not_for_ever_and_not_without_a_listener() {
    let mut witness = witness();
    assert_eq!(tell(&mut witness, 1, &Message::Claim(claim(0, 40000, 0))), []);
    assert_eq!(witness.next_wakeup_ns(), Some(10 * SECOND));
    witness.on_time(10 * SECOND);
    assert_eq!(outputs(&mut witness), [no(1, 0, Reason::NotAccepted)]);
    witness.accepted(7, tuple(40000), Some(0));
    assert_eq!(outputs(&mut witness), []);
    // A claim that was withdrawn, or lost with its channel.
    tell(&mut witness, 1, &Message::Claim(claim(1, 40001, 0)));
    tell(&mut witness, 1, &Message::Withdraw { id: 1 });
    tell(&mut witness, 2, &Message::Claim(claim(2, 40002, 0)));
    witness.lost(2);
    witness.accepted(8, tuple(40001), Some(0));
    witness.accepted(9, tuple(40002), Some(0));
    assert_eq!((outputs(&mut witness), witness.next_wakeup_ns()), (vec![], None));
    witness.listening_ended(5432);
    let late = tell(&mut witness, 1, &Message::Claim(claim(3, 40003, 0)));
    assert_eq!(late, [no(1, 3, Reason::NotHere)]);
}

/// The agent changed between the arming of the flow and the answer to its client.
#[test]
fn a_flow_that_declines_hears_that_its_client_was_never_ready() {
    let mut witness = witness();
    witness.accepted(7, tuple(40000), Some(1000));
    assert!(is_claimed(&tell(&mut witness, 1, &Message::Claim(claim(4, 40000, 1000)))));
    witness.say(7, Word::Decline);
    assert_eq!(outputs(&mut witness), [no(1, 4, Reason::Ended)]);
    assert_eq!(tell(&mut witness, 1, &Message::Withdraw { id: 4 }), [Output::Flow(7, Event::Withdrawn)]);
    assert_eq!(tell(&mut witness, 1, &Message::Withdraw { id: 4 }), []);
}

/// The answer was lost with its channel.
#[test]
fn a_flow_that_declined_says_so_to_the_same_claim_by_another_channel() {
    let mut witness = witness();
    witness.accepted(7, tuple(40000), Some(1000));
    let claimed = tell(&mut witness, 1, &Message::Claim(claim(4, 40000, 1000)));
    witness.lost(1);
    witness.say(7, Word::Decline);
    assert_eq!(tell(&mut witness, 2, &Message::Claim(claim(4, 40000, 1000))), [no(2, 4, Reason::Ended)]);
    // A late answer to an earlier agent.
    witness.say(7, armed(&claimed));
    assert_eq!(outputs(&mut witness), []);
    assert_eq!(tell(&mut witness, 2, &Message::Withdraw { id: 4 }), [Output::Flow(7, Event::Withdrawn)]);
    assert_eq!(tell(&mut witness, 2, &Message::Claim(claim(4, 40000, 1000))), [no(2, 4, Reason::Proof)]);
}

/// A delayed claim arrives after its client has repeated it on another channel.
#[test]
fn an_older_channel_takes_no_claim_from_a_newer_one() {
    let late = |witness: &mut Witness| {
        for message in [Message::Claim(claim(4, 40000, 1000)), Message::Withdraw { id: 4 }] {
            assert_eq!(tell(witness, 1, &message), []);
        }
    };
    let mut witness = witness();
    tell(&mut witness, 2, &Message::Claim(claim(4, 40000, 1000)));
    late(&mut witness);
    witness.accepted(7, tuple(40000), Some(1000));
    let claimed = outputs(&mut witness);
    assert!(is_claimed(&claimed));
    late(&mut witness);
    witness.say(7, armed(&claimed));
    assert!(matches!(&outputs(&mut witness)[..], [Output::Send(2, _)]));
    late(&mut witness);
    witness.say(7, Word::Query { offset: 3 });
    assert!(matches!(&outputs(&mut witness)[..], [Output::Send(2, _)]));
}

#[test]
fn of_two_claims_to_one_connection_the_newest_of_a_channel_counts_and_the_first_of_two_channels() {
    let mut witness = witness();
    tell(&mut witness, 1, &Message::Claim(claim(0, 40000, 5000)));
    let newer = tell(&mut witness, 1, &Message::Claim(claim(1, 40000, 100)));
    assert_eq!(newer, [no(1, 0, Reason::NotAccepted)], "addresses that are used again");
    let other = tell(&mut witness, 2, &Message::Claim(claim(2, 40000, 9000)));
    assert_eq!(other, [no(2, 2, Reason::Taken)]);
    witness.accepted(7, tuple(40000), Some(100));
    assert!(is_claimed(&outputs(&mut witness)));
    // The connection ends before it is armed.
    witness.ended(7);
    assert_eq!(outputs(&mut witness), [no(1, 1, Reason::Ended)]);
}

#[test]
fn everything_has_a_limit_and_what_makes_no_sense_is_hung_up() {
    let mut witness = witness();
    for id in 0..2 {
        assert_eq!(tell(&mut witness, 1, &Message::Claim(claim(id, 40000 + id as u16, 0))), []);
    }
    assert_eq!(tell(&mut witness, 1, &Message::Claim(claim(2, 50000, 0))), [no(1, 2, Reason::Busy)]);
    witness.opened(3, "::ffff:10.0.0.1".parse().unwrap(), 0);
    greet(&mut witness, 3);
    // More channels than a host may have: the one without claims for longest makes room.
    witness.opened(4, client(), 1);
    assert_eq!(outputs(&mut witness), [Output::Hangup(2)]);
    greet(&mut witness, 4);
    for (channel, port) in [(3, 40002), (4, 40003)] {
        tell(&mut witness, channel, &Message::Claim(claim(0, port, 0)));
    }
    witness.opened(5, client(), 2);
    assert_eq!(outputs(&mut witness), [Output::Hangup(5)], "all are in use");
    tell(&mut witness, 4, &Message::Withdraw { id: 0 });
    tell(&mut witness, 3, &Message::Withdraw { id: 0 });
    witness.opened(2, client(), 3);
    assert_eq!(outputs(&mut witness), [Output::Hangup(3)]);
    greet(&mut witness, 2);
    witness.lost(4);
    witness.opened(3, client(), 0);
    // A channel without a greeting.
    witness.on_time(10 * SECOND);
    assert_eq!(outputs(&mut witness).last(), Some(&Output::Hangup(3)));
    let ready = Message::Ready { id: 0, key: [0; 16] };
    assert_eq!(tell(&mut witness, 1, &ready), [Output::Hangup(1)]);
    tell(&mut witness, 2, &Message::Claim(claim(0, 40000, 0)));
    let reused = tell(&mut witness, 2, &Message::Claim(claim(0, 40009, 0)));
    assert_eq!(reused, [Output::Hangup(2)], "a number that is used twice");
    assert_eq!(tell(&mut witness, 2, &Message::Claim(claim(1, 40000, 0))), []);
}
