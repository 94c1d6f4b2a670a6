//! What may become of a connection, given who was killed when.
//!
//! Nothing but a kill may break one. Where a program was killed, what it had written arrives, then an end; unless it had not
//! read all that came to it: then TCP resets, which may take bytes along. Where a supervisor was killed there is an error, and
//! never an end before the end. A socket tells an error once, TCP's too: whoever gets it for a write reads an end.

use std::collections::{BTreeMap, HashMap};

use super::content::{HEAD_LEN, Key, Plan};
use super::host::Side;
use super::record::{End, Entry, Field};

/// A killed process takes a while to go, the longer the busier the machine is; until then it has its listener.
const DYING_NS: u64 = 300_000_000;
/// With --peer a client sends frames without asking, also to a server whose supervisor was killed; until that server is gone.
const DIRECT_NS: u64 = 10_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    Program,
    /// Its supervisor follows, while it passes on what the program had written.
    ProgramFirst,
    SupervisorThen,
    Supervisor,
    /// A program whose supervisor had been killed: as without narrows.
    Orphan,
}

impl Victim {
    pub(super) const ALL: [Self; 5] =
        [Self::Program, Self::ProgramFirst, Self::SupervisorThen, Self::Supervisor, Self::Orphan];
}

#[derive(Debug, Clone)]
pub(super) struct Kill {
    pub(super) pair: u64,
    pub(super) side: Side,
    pub(super) life: u64,
    pub(super) victim: Victim,
    pub(super) before_ns: u64,
    pub(super) after_ns: u64,
}

impl Kill {
    pub(super) fn label(&self) -> String {
        let side = self.side.name();
        match self.victim {
            Victim::Program => format!("{side} program"),
            Victim::ProgramFirst | Victim::SupervisorThen => format!("{side} program, then its supervisor"),
            Victim::Supervisor => format!("{side}'s supervisor"),
            Victim::Orphan => format!("{side} program left by its supervisor"),
        }
    }

    fn takes_program(&self) -> bool {
        matches!(self.victim, Victim::Program | Victim::ProgramFirst | Victim::Orphan)
    }
}

/// One end of a connection; of a program's life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) side: Side,
    pub(super) pair: u64,
    pub(super) life: u64,
    pub(super) entry: Entry,
}

#[derive(Debug, Clone)]
pub(super) struct Connection {
    client: Option<Place>,
    server: Option<Place>,
}

/// Of a run.
pub(super) struct Judge<'a> {
    /// By pair and side, in time.
    kills: HashMap<(u64, Side), Vec<&'a Kill>>,
    direct: &'a dyn Fn(u64) -> bool,
    plan: fn(u64) -> Plan,
    /// Nothing runs any more, so nothing may be unfinished.
    complete: bool,
}

/// How connections ended, of those that a kind of kill met, or `None` for those that nothing met.
pub(super) type Outcomes = BTreeMap<Option<String>, BTreeMap<&'static str, u64>>;

#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) outcomes: Outcomes,
    pub(super) faults: Vec<String>,
    pub(super) connections: u64,
    pub(super) bytes: u64,
    /// Connections to servers that were being restarted.
    pub(super) refused: u64,
    /// That programs made after their supervisor had been killed, both ways whole.
    pub(super) plain_after_kill: u64,
}

/// Puts the ends together.
pub(super) fn pair_up(places: Vec<Place>) -> Vec<Connection> {
    let mut by_key: HashMap<Key, Connection> = HashMap::new();
    let mut all = Vec::new();
    for place in places {
        match place.entry.key() {
            Some(key) => {
                let whole = by_key.entry(key).or_insert(Connection { client: None, server: None });
                match place.side {
                    Side::Client => whole.client = Some(place),
                    Side::Server => whole.server = Some(place),
                }
            }
            None => all.push(Connection { client: None, server: Some(place) }),
        }
    }
    all.extend(by_key.into_values());
    all
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        kills: &'a [Kill],
        direct: &'a dyn Fn(u64) -> bool,
        plan: fn(u64) -> Plan,
        complete: bool,
    ) -> Self {
        let mut by_place: HashMap<(u64, Side), Vec<&Kill>> = HashMap::new();
        for kill in kills {
            by_place.entry((kill.pair, kill.side)).or_default().push(kill);
        }
        Self { kills: by_place, direct, plan, complete }
    }

    pub(super) fn all(&self, connections: &[Connection]) -> Verdict {
        let mut verdict = Verdict::default();
        for connection in connections {
            self.one(connection, &mut verdict);
        }
        verdict
    }

    fn one(&self, connection: &Connection, verdict: &mut Verdict) {
        let Connection { client, server } = connection;
        let Some(key) = client.or(*server).and_then(|p| p.entry.key()) else {
            if let Some(server) = server {
                self.nameless(server, verdict);
            }
            return;
        };
        let Some(client) = client else {
            // The client may be known a moment later.
            if self.complete {
                verdict.faults.push(format!("{key:?}: the server has a connection that no client made"));
            }
            return;
        };
        verdict.connections += 1;
        let meeting = self.meeting(client, server.as_ref());
        if client.entry.get(Field::Open) == 0 {
            let end = client.entry.read_end();
            match end {
                // Killed within the call.
                None if !meeting.is_empty() || !self.complete => {}
                Some(End::Errno(libc::ECONNREFUSED)) => verdict.refused += 1,
                Some(End::Errno(libc::ECONNRESET)) if !meeting.is_empty() => verdict.refused += 1,
                // A server without supervisor took it and was killed: the frames that it got by --peer break the connection.
                Some(End::Errno(0)) if (self.direct)(client.pair) && !meeting.is_empty() => verdict.refused += 1,
                _ => verdict.faults.push(format!("{key:?}: not connected: {}", word(end))),
            }
            return;
        }
        let plan = (self.plan)(key.seed);
        if server.is_none() && client.entry.get(Field::Written) >= HEAD_LEN as u64 {
            let excused = meeting.iter().any(|k| k.side == Side::Server || !k.takes_program());
            if !excused && self.complete {
                verdict.faults.push(format!("{key:?}: the server never heard of it"));
            }
        }
        let up = HEAD_LEN as u64 + plan.up.len;
        let ways = [(Some(client), server.as_ref(), up), (server.as_ref(), Some(client), plan.down.len)];
        let (mut whole, careless) = (true, plan.careless);
        for (from, to, len) in ways {
            let written = from.map_or(0, |p| p.entry.get(Field::Written));
            let Some(to) = to else { continue };
            verdict.bytes += to.entry.get(Field::Read);
            let outcome = self.way(from, to, written, len, &meeting);
            if to.side == Side::Client && careless {
                continue;
            }
            match outcome {
                Ok(Some(outcome)) => {
                    whole &= outcome == "all";
                    let begun = client.entry.get(Field::Begun);
                    let met = meeting.iter().filter(|k| k.after_ns > begun);
                    let first = met.min_by_key(|k| k.before_ns).map(|k| k.label());
                    *verdict.outcomes.entry(first).or_default().entry(outcome).or_default() += 1;
                }
                Ok(None) => whole = false,
                Err(fault) => {
                    let side = to.side.name();
                    let what = format!(
                        "{key:?}, life {} of the {side}, which read {} of {len}",
                        to.life,
                        to.entry.get(Field::Read)
                    );
                    let kills: Vec<_> =
                        meeting.iter().map(|k| format!("{} {} life {}", k.before_ns, k.label(), k.life)).collect();
                    verdict
                        .faults
                        .push(format!("{what}: {fault}; written {written}; {}; {to:?}; {from:?}", kills.join(", ")));
                }
            }
        }
        let begun = client.entry.get(Field::Begun);
        let orphaned = |p: &Place| {
            let kills = self.of(p).into_iter().filter(|k| k.victim == Victim::Supervisor);
            kills.into_iter().any(|k| k.after_ns < begun)
        };
        if whole && (orphaned(client) || server.as_ref().is_some_and(orphaned)) {
            verdict.plain_after_kill += 1;
        }
    }

    /// What became of the bytes from one end to the other; `None` if it is not over.
    fn way(
        &self,
        from: Option<&Place>,
        to: &Place,
        written: u64,
        len: u64,
        meeting: &[&Kill],
    ) -> Result<Option<&'static str>, String> {
        let read_end = match to.entry.get(Field::ReadEndAt) {
            0 => u64::MAX,
            at => at,
        };
        let before = |k: &&Kill, at: u64| k.before_ns < at;
        let written_end = from.map_or(u64::MAX, |p| p.entry.get(Field::WriteEndAt));
        let broken_before = |at: u64| meeting.iter().any(|k| before(k, at));
        // What the writing end was told.
        match from.and_then(|p| p.entry.write_end()) {
            Some(End::Hang) => return Err("writing hung".into()),
            Some(End::Errno(libc::ECONNRESET | libc::EPIPE)) if broken_before(written_end) => {}
            Some(End::Errno(e)) => return Err(format!("writing was told {}", End::Errno(e))),
            _ => {}
        }
        let meeting: Vec<&Kill> = meeting.iter().copied().filter(|k| before(k, read_end)).collect();
        let (broken, read) = (!meeting.is_empty(), to.entry.get(Field::Read));
        let killed = |place: &Place| meeting.iter().any(|k| k.side == place.side && k.takes_program());
        let sender_killed = meeting.iter().any(|k| k.side != to.side && k.takes_program());
        // From then on the connection was a supervisor's: its death is a reset.
        let held_since = |side: Side| match [Some(to), from].into_iter().flatten().find(|p| p.side == side) {
            Some(place) => place.entry.get(if side == Side::Client { Field::Open } else { Field::Begun }),
            None => u64::MAX,
        };
        let writer = |k: &&&Kill| k.side != to.side && k.takes_program();
        let supervisor_first = || {
            let killed_ns = meeting.iter().filter(writer).map(|k| k.before_ns).min().unwrap_or(u64::MAX);
            let supervisors = meeting.iter().filter(|k| k.victim == Victim::Supervisor);
            supervisors.into_iter().any(|k| k.before_ns > held_since(k.side) && k.after_ns < killed_ns)
        };
        let told = to.entry.write_end().filter(|_| to.entry.get(Field::WriteEndAt) <= read_end);
        // A long write that waits takes the error of a supervisor that dies, and only the next one tells (decision 9).
        let own = meeting.iter().any(|k| k.side == to.side && !k.takes_program());
        match to.entry.read_end() {
            None if killed(to) => Ok(Some("reader killed")),
            None if to.entry.is_closed() || self.complete => Err("its reader has no end".into()),
            None => Ok(None),
            Some(End::Whole) if read == len => Ok(Some("all")),
            Some(End::Whole) => Err("whole, says its reader, and it is not".into()),
            Some(End::Short) if broken && told == Some(End::Errno(libc::ECONNRESET)) => {
                Ok(Some("ECONNRESET for a write, then an end"))
            }
            Some(End::Short) if own && told == Some(End::Errno(libc::EPIPE)) => {
                Ok(Some("EPIPE for a write, then an end"))
            }
            Some(End::Short) if !sender_killed => Err("an end before the end, though its writer was not killed".into()),
            Some(End::Short) if read < written => {
                Err(format!("an end, {} bytes of what was written are lost", written - read))
            }
            Some(End::Short) if supervisor_first() => {
                Err("an end, though a supervisor was killed before its writer".into())
            }
            Some(End::Short) => Ok(Some("all that was written, an end")),
            Some(End::Errno(libc::ECONNRESET)) if !broken => Err("reset, though nobody was killed".into()),
            Some(End::Errno(libc::ECONNRESET)) => {
                let supervisors = meeting.iter().any(|k| !k.takes_program());
                // A killed program that has read all that was ever sent to it goes with an end.
                let quiet = from.is_some_and(|f| {
                    sender_killed && !killed(to) && to.entry.get(Field::Attempted) == f.entry.get(Field::Read)
                });
                if quiet && !supervisors {
                    return Err("reset, though all that was killed is its writer, which had read all".into());
                }
                Ok(Some("ECONNRESET"))
            }
            Some(End::Foreign) if (self.direct)(to.pair) => Ok(Some("frames for a server without supervisor")),
            Some(end) => Err(end.to_string()),
        }
    }

    /// A server's connection that ended before it was told which one it is.
    fn nameless(&self, server: &Place, verdict: &mut Verdict) {
        let entry = &server.entry;
        let (begun, ended) = (entry.get(Field::Begun), entry.get(Field::ReadEndAt));
        let ended = if ended == 0 { u64::MAX } else { ended };
        let near = |k: &&&Kill| k.after_ns + DYING_NS > begun && k.before_ns < ended;
        let own: Vec<_> = self.of(server).into_iter().filter(|k| near(&k)).collect();
        let clients = self.kills.get(&(server.pair, Side::Client)).into_iter().flatten();
        let theirs: Vec<_> = clients.filter(|k| near(k)).collect();
        let excused = match entry.read_end() {
            None => !own.is_empty() || !self.complete,
            Some(End::Short) => theirs.iter().any(|k| k.takes_program()),
            Some(End::Errno(libc::ECONNRESET)) => !own.is_empty() || !theirs.is_empty(),
            Some(End::Foreign) => {
                let kills = self.of(server);
                (self.direct)(server.pair)
                    && kills.iter().any(|k| k.victim == Victim::Supervisor && k.before_ns < ended)
            }
            Some(_) => false,
        };
        if !excused {
            verdict.faults.push(format!("a connection without a name: {}; {server:?}", word(entry.read_end())));
        }
    }

    fn of(&self, place: &Place) -> Vec<&'a Kill> {
        let kills = self.kills.get(&(place.pair, place.side)).into_iter().flatten();
        kills.filter(|k| k.life == place.life).copied().collect()
    }

    /// The kills of its programs and supervisors while it was there.
    fn meeting(&self, client: &Place, server: Option<&Place>) -> Vec<&'a Kill> {
        let begun = client.entry.get(Field::Begun);
        let mut meeting = Vec::new();
        let ended = [Some(client), server].into_iter().flatten().map(|p| p.entry.get(Field::Closed));
        // Whoever was killed did not close it.
        let ended = ended.map(|at| if at == 0 { u64::MAX } else { at }).max().unwrap_or(u64::MAX);
        let within = |k: &&Kill, from: u64| k.after_ns + DYING_NS > from && k.before_ns < ended;
        meeting.extend(self.of(client).into_iter().filter(|k| within(k, begun)));
        match server {
            Some(server) => meeting.extend(self.of(server).into_iter().filter(|k| within(k, begun))),
            // Whichever it was that did not hear of it.
            None => {
                let from = if (self.direct)(client.pair) { begun.saturating_sub(DIRECT_NS) } else { begun };
                let kills = self.kills.get(&(client.pair, Side::Server)).into_iter().flatten();
                meeting.extend(kills.filter(|k| within(k, from)));
            }
        }
        meeting
    }
}

fn word(end: Option<End>) -> String {
    end.map_or("no end".into(), |e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a plan with something to send each way and no carelessness.
    fn seed() -> u64 {
        let fine = |p: &Plan| p.up.len > 1000 && p.down.len > 1000;
        (0..).find(|s| fine(&Plan::of(*s))).unwrap()
    }

    fn key() -> Key {
        Key { pair: 3, life: 1, number: 7, seed: seed() }
    }

    fn up() -> u64 {
        HEAD_LEN as u64 + Plan::of(seed()).up.len
    }

    const SECOND: u64 = 1_000_000_000;

    /// The client began at second 10; both read everything and closed at second 20.
    fn whole() -> [Place; 2] {
        let down = Plan::of(seed()).down.len;
        let place = |side, entry| Place { side, pair: 3, life: 1, entry };
        let open = |sent, got| {
            let entry =
                Entry::default().with_key(key()).with(Field::Begun, 10 * SECOND).with(Field::Open, 10 * SECOND + 1);
            let entry = entry.with(Field::Attempted, sent).with(Field::Written, sent).with(Field::Read, got);
            entry.with_read_end(End::Whole, 20 * SECOND).with(Field::Closed, 20 * SECOND)
        };
        [place(Side::Client, open(up(), down)), place(Side::Server, open(down, up()))]
    }

    /// The server's reading ended otherwise, at second 15.
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
        Judge::new(kills, &|_| false, Plan::of, true).all(&pair_up(places.to_vec()))
    }

    fn faults(places: &[Place], kills: &[Kill]) -> String {
        judged(places, kills).faults.join("\n")
    }

    #[test]
    fn connections_that_nobody_met_are_whole() {
        let verdict = judged(&whole(), &[]);
        assert_eq!((verdict.faults.len(), verdict.connections), (0, 1));
        assert_eq!(verdict.outcomes[&None]["all"], 2);
        // A kill of another life, or afterwards, met nobody.
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
            (End::Foreign, "bytes of no client"),
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
        // Killed only after the end was seen, or the reader was.
        assert!(
            faults(&cut(End::Short, up() - 1), &[kill(Side::Client, Victim::Program, 16)]).contains("was not killed")
        );
        assert!(
            faults(&cut(End::Short, up() - 1), &[kill(Side::Server, Victim::Program, 14)]).contains("was not killed")
        );
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
        for (errno, at, fine) in [(libc::ECONNRESET, 14, true), (libc::ECONNRESET, 16, false), (libc::EPIPE, 14, false)]
        {
            server.entry = server.entry.with(Field::WriteEnd, 1000 + errno as u64).with(Field::WriteEndAt, at * SECOND);
            assert_eq!(!faults(&[client, server], &kills).contains("was not killed"), fine, "{errno} at {at}");
        }
        assert!(faults(&[client, server], &[]).contains("was not killed"));
        // But where it is the reader's own supervisor that was killed, and the kernel has not told who wrote.
        let own = [kill(Side::Server, Victim::Supervisor, 13)];
        assert!(!faults(&[client, server], &own).contains("was not killed"));
    }

    #[test]
    fn who_writes_is_told_of_kills_only() {
        let [mut client, server] = whole();
        client.entry =
            client.entry.with(Field::WriteEnd, 1000 + libc::EPIPE as u64).with(Field::WriteEndAt, 15 * SECOND);
        assert!(faults(&[client, server], &[]).contains("writing was told EPIPE"));
        assert_eq!(faults(&[client, server], &[kill(Side::Server, Victim::Program, 14)]), "");
    }

    #[test]
    fn a_connection_that_is_not_heard_of_is_a_fault() {
        let [client, server] = whole();
        assert!(faults(&[client], &[]).contains("never heard of it"));
        assert_eq!(faults(&[client], &[kill(Side::Server, Victim::Program, 10)]), "");
        assert!(faults(&[server], &[]).contains("no client made"));
        let mut nameless = server;
        nameless.entry = Entry::default().with(Field::Begun, 10 * SECOND).with_read_end(End::Short, 15 * SECOND);
        assert!(faults(&[nameless], &[]).contains("without a name"));
        assert_eq!(faults(&[nameless], &[kill(Side::Client, Victim::Program, 12)]), "");
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
        assert!(Judge::new(&[], &direct, Plan::of, false).all(&connections).faults.is_empty());
        assert_eq!(Judge::new(&[], &direct, Plan::of, true).all(&connections).faults.len(), 2);
    }
}
