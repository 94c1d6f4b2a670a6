use super::*;

/// Seed of a behaviour that sends in both directions and is not careless.
fn seed() -> u64 {
    let fine = |p: &Behaviour| p.up.len > 1000 && p.down.len > 1000;
    (0..).find(|s| fine(&Behaviour::of(*s))).unwrap()
}

fn key() -> Key {
    Key { pair: 3, life: 1, number: 7, seed: seed() }
}

fn up() -> u64 {
    HEAD_LEN as u64 + Behaviour::of(seed()).up.len
}

const SECOND: u64 = 1_000_000_000;

/// Both ends of a complete connection: the client began at second 10; both read everything and
/// closed at second 20.
fn whole() -> [Place; 2] {
    let down = Behaviour::of(seed()).down.len;
    let place = |side, entry| Place { side, pair: 3, life: 1, entry };
    let open = |sent, got| {
        let entry = Entry::default().with_key(key()).with(Field::Begun, 10 * SECOND).with(Field::Open, 10 * SECOND + 1);
        let entry = entry.with(Field::Attempted, sent).with(Field::Written, sent).with(Field::Read, got);
        entry.with_read_end(End::Whole, 20 * SECOND).with(Field::Closed, 20 * SECOND)
    };
    [place(Side::Client, open(up(), down)), place(Side::Server, open(down, up()))]
}

/// The same connection, except that the server's reading ended with `end` at second 15.
fn cut(end: End, read: u64) -> [Place; 2] {
    let [mut client, mut server] = whole();
    client.entry = client.entry.with(Field::ReadEnd, 0).with(Field::ReadEndAt, 0).with(Field::Closed, 0);
    server.entry = server.entry.with_read_end(end, 15 * SECOND).with(Field::Read, read);
    [client, server]
}

fn kill(side: Side, victim: Victim, second: u64) -> Kill {
    Kill { pair: 3, side, life: 1, victim, before_ns: second * SECOND, after_ns: second * SECOND + 1 }
}

fn judged(places: &[Place], kills: &[Kill]) -> Verdict {
    Judge::new(kills, &|_| false, Behaviour::of, true).all(&pair_up(places.to_vec()))
}

fn faults(places: &[Place], kills: &[Kill]) -> String {
    judged(places, kills).faults.join("\n")
}

#[test]
fn connections_that_nobody_met_are_whole() {
    let verdict = judged(&whole(), &[]);
    assert_eq!((verdict.faults.len(), verdict.connections), (0, 1));
    assert_eq!(verdict.outcomes[&None]["all"], 2);
    // A kill of another life, or after the end, does not affect the connection.
    let other = Kill { life: 2, ..kill(Side::Client, Victim::Program, 15) };
    assert_eq!(judged(&whole(), &[other, kill(Side::Server, Victim::Program, 30)]).outcomes[&None]["all"], 2);
}

#[test]
fn every_other_end_is_a_fault_then() {
    for (end, words) in [
        (End::Short, "its writer was not killed"),
        (End::Errno(libc::ECONNRESET), "reset, though nobody was killed"),
        (End::Errno(libc::EPIPE), "EPIPE"),
        (End::Wrong, "a wrong byte"),
        (End::TooMuch, "more bytes than"),
        (End::Hang, "a hang"),
        (End::Foreign, "bytes that no client sends"),
        (End::Whole, "and it is not"),
    ] {
        let found = faults(&cut(end, up() - 1), &[]);
        assert!(found.contains(words), "{end}: {found}");
    }
}

#[test]
fn what_a_killed_program_wrote_must_be_there() {
    let program = [kill(Side::Client, Victim::Program, 14)];
    let [mut client, server] = cut(End::Short, 1000);
    client.entry = client.entry.with(Field::Written, 1000);
    assert_eq!(faults(&[client, server], &program), "");
    client.entry = client.entry.with(Field::Written, 1001);
    assert!(faults(&[client, server], &program).contains("1 bytes of what was written are lost"));
    // The kill came after the end was seen, or it was the reader that was killed.
    assert!(faults(&cut(End::Short, up() - 1), &[kill(Side::Client, Victim::Program, 16)]).contains("was not killed"));
    assert!(faults(&cut(End::Short, up() - 1), &[kill(Side::Server, Victim::Program, 14)]).contains("was not killed"));
}

#[test]
fn a_reset_of_a_killed_program_needs_bytes_that_it_had_not_read() {
    let program = [kill(Side::Client, Victim::Program, 14)];
    let reset = cut(End::Errno(libc::ECONNRESET), 1000);
    assert!(faults(&reset, &program).contains("which had read all"));
    let [mut client, server] = reset;
    client.entry = client.entry.with(Field::Read, 1);
    assert_eq!(faults(&[client, server], &program), "");
}

#[test]
fn a_killed_supervisor_is_a_reset_and_never_an_end() {
    for side in Side::BOTH {
        let mut kills = vec![kill(side, Victim::Supervisor, 13)];
        let verdict = judged(&cut(End::Errno(libc::ECONNRESET), 1000), &kills);
        let met = Some(format!("{}'s supervisor", side.name()));
        // The client never saw an end, and nobody killed it.
        assert_eq!(verdict.outcomes[&met]["ECONNRESET"], 1);
        assert!(verdict.faults.iter().all(|f| f.contains("its reader has no end")), "{:?}", verdict.faults);
        assert!(faults(&cut(End::Short, up() - 1), &kills).contains("was not killed"));
        kills.push(kill(Side::Client, Victim::Orphan, 14));
        let [mut client, server] = cut(End::Short, 1000);
        client.entry = client.entry.with(Field::Written, 1000);
        assert!(faults(&[client, server], &kills).contains("a supervisor was killed before its writer"));
    }
}

#[test]
fn an_error_is_told_once() {
    let kills = [kill(Side::Client, Victim::Supervisor, 13)];
    let [client, mut server] = cut(End::Short, 1000);
    for (errno, at, fine) in [(libc::ECONNRESET, 14, true), (libc::ECONNRESET, 16, false), (libc::EPIPE, 14, false)] {
        server.entry = server.entry.with(Field::WriteEnd, 1000 + errno as u64).with(Field::WriteEndAt, at * SECOND);
        assert_eq!(!faults(&[client, server], &kills).contains("was not killed"), fine, "{errno} at {at}");
    }
    assert!(faults(&[client, server], &[]).contains("was not killed"));
    // Recorded late by a thread that had to wait for a core.
    server.entry = server.entry.with(Field::WriteEnd, 1000 + libc::ECONNRESET as u64);
    server.entry = server.entry.with(Field::WriteEndAt, 15 * SECOND + NOTED_NS);
    assert!(!faults(&[client, server], &kills).contains("was not killed"));
    server.entry = server.entry.with(Field::WriteEnd, 1000 + libc::EPIPE as u64).with(Field::WriteEndAt, 14 * SECOND);
    // Allowed if the reader's own supervisor was killed and the kernel did not report it to the
    // writer.
    let own = [kill(Side::Server, Victim::Supervisor, 13)];
    assert!(!faults(&[client, server], &own).contains("was not killed"));
}

#[test]
fn who_writes_is_told_of_kills_only() {
    let [mut client, server] = whole();
    client.entry = client.entry.with(Field::WriteEnd, 1000 + libc::EPIPE as u64).with(Field::WriteEndAt, 15 * SECOND);
    assert!(faults(&[client, server], &[]).contains("writing failed with EPIPE"));
    assert_eq!(faults(&[client, server], &[kill(Side::Server, Victim::Program, 14)]), "");
}

#[test]
fn a_connection_that_is_not_heard_of_is_a_fault() {
    let [client, server] = whole();
    assert!(faults(&[client], &[]).contains("never heard of it"));
    assert_eq!(faults(&[client], &[kill(Side::Server, Victim::Program, 10)]), "");
    // The connection waited until the server was killed.
    assert_eq!(faults(&[client], &[kill(Side::Server, Victim::Program, 24)]), "");
    assert!(faults(&[client], &[kill(Side::Server, Victim::Program, 26)]).contains("never heard of it"));
    assert!(faults(&[server], &[]).contains("no client made"));
    let mut nameless = server;
    nameless.entry = Entry::default().with(Field::Begun, 10 * SECOND).with_read_end(End::Short, 15 * SECOND);
    assert!(faults(&[nameless], &[]).contains("without a name"));
    for second in [6, 12] {
        assert_eq!(faults(&[nameless], &[kill(Side::Client, Victim::Program, second)]), "");
    }
    assert!(faults(&[nameless], &[kill(Side::Client, Victim::Program, 4)]).contains("without a name"));
}

#[test]
fn a_server_refuses_only_while_it_is_replaced() {
    let [mut client, server] = whole();
    let begins = |second: u64| {
        let entry = Entry::default().with_key(Key { number: 8, ..key() }).with(Field::Begun, second * SECOND);
        entry
            .with_read_end(End::Errno(libc::ECONNREFUSED), second * SECOND + 1)
            .with(Field::Closed, second * SECOND + 2)
    };
    client.entry = begins(9);
    let next = Place { life: 2, ..server };
    let connection = |second| Place { entry: begins(second), ..client };
    let killed = [kill(Side::Server, Victim::Program, 8)];
    let others = [kill(Side::Server, Victim::Supervisor, 8), kill(Side::Client, Victim::Program, 8)];
    let refused = |second, kills: &[Kill]| judged(&[connection(second), next, whole()[0]], kills);
    assert_eq!((faults(&[connection(9), next, whole()[0]], &killed), refused(9, &killed).refused), (String::new(), 1));
    assert!(faults(&[connection(9)], &[]).contains("not connected: ECONNREFUSED"));
    assert!(faults(&[connection(9)], &others).contains("not connected: ECONNREFUSED"));
    // Refused before the kill, and when the next server had a connection already.
    assert!(faults(&[connection(7)], &killed).contains("ECONNREFUSED"));
    assert_eq!(refused(12, &killed).refused, 0);
    assert_eq!(judged(&[connection(12)], &killed).refused, 1);
    assert_eq!(judged(&[connection(120)], &killed).refused, 0);
}

#[test]
fn no_end_has_a_connection_twice() {
    let [client, server] = whole();
    let again = Place { life: 2, ..server };
    assert!(faults(&[client, server, again], &[]).contains("the server has it a second time, in life 2"));
    assert!(faults(&[client, server, server], &[]).contains("a second time"));
}

#[test]
fn a_run_in_which_nothing_happened_is_a_fault() {
    let mut verdict = judged(&whole(), &[]);
    verdict.wants_something();
    assert!(verdict.faults.is_empty());
    let mut verdict = judged(&[], &[]);
    verdict.wants_something();
    assert_eq!(verdict.faults.len(), 3);
    let mut verdict = judged(&whole(), &[kill(Side::Client, Victim::Program, 21)]);
    verdict.outcomes.clear();
    verdict.wants_something();
    assert_eq!(verdict.faults, ["no connection that no kill met is whole"]);
}

#[test]
fn programs_left_by_their_supervisor_go_on() {
    let verdict = judged(&whole(), &[kill(Side::Client, Victim::Supervisor, 8)]);
    assert_eq!((verdict.faults.len(), verdict.plain_after_kill), (0, 1));
}

#[test]
fn what_is_not_over_is_no_fault_until_all_is() {
    let [mut client, mut server] = whole();
    for place in [&mut client, &mut server] {
        place.entry = place.entry.with(Field::ReadEnd, 0).with(Field::Closed, 0);
    }
    let direct = |_| false;
    let connections = pair_up(vec![client, server]);
    assert!(Judge::new(&[], &direct, Behaviour::of, false).all(&connections).faults.is_empty());
    assert_eq!(Judge::new(&[], &direct, Behaviour::of, true).all(&connections).faults.len(), 2);
}
