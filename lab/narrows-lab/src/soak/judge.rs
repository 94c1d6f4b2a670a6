//! Decides which outcomes of a connection are allowed, given which processes were killed when.
//!
//! Only a kill may break a connection. If a program was killed, the bytes that it had written
//! arrive, then an end of stream; unless it had unread input: then TCP resets, which may discard
//! bytes. If a supervisor was killed there is an error, and never an early end of stream. A socket
//! reports an error only once, as in plain TCP: a program that gets it from a write then reads an
//! end of stream.

use std::collections::{BTreeMap, HashMap};

use super::content::{Behaviour, HEAD_LEN, Key};
use super::host::Side;
use super::record::{End, Entry, Field};

/// A killed process keeps its listener until the kernel has torn it down: 1.7 s were seen while
/// builds had both cores.
const DYING_NS: u64 = 2_000_000_000;
/// With --peer a client sends frames without negotiating, also to a server whose supervisor was
/// killed, until that server is gone.
const DIRECT_NS: u64 = 10_000_000_000;

/// Tolerance between the records of two threads of one end: each records the result of a call after
/// the call, and may be descheduled in between.
const NOTED_NS: u64 = 50_000_000;
/// Longest time that a connection waits in the accept queue of a busy server. If the server is
/// killed, the connection is lost with it.
const QUEUED_NS: u64 = 5_000_000_000;

/// Time until a killed server is replaced: three attempts of half a minute. Used only if no later
/// server was seen.
const STARTS_NS: u64 = 90_000_000_000;
/// Longest time between a client's reading the server's port and its connecting.
const PORT_NS: u64 = 1_000_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Victim {
    Program,
    /// A program whose supervisor is killed next, while it passes on what the program had written.
    ProgramFirst,
    SupervisorThen,
    Supervisor,
    /// A program whose supervisor had been killed before: it runs as without narrows.
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

/// One end of a connection, within one life of a program.
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
    /// Further ends that claim this connection, which must have only one at each side.
    more: Vec<Place>,
}

/// The judge of a run.
pub(super) struct Judge<'a> {
    /// By pair and side, in order of time.
    kills: HashMap<(u64, Side), Vec<&'a Kill>>,
    direct: &'a dyn Fn(u64) -> bool,
    behaviour: fn(u64) -> Behaviour,
    /// Whether the run is over, so that nothing may be unfinished.
    complete: bool,
}

/// Counts of outcomes by the kind of kill that hit the connection; `None` for connections without a
/// kill.
pub(super) type Outcomes = BTreeMap<Option<String>, BTreeMap<&'static str, u64>>;

#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) outcomes: Outcomes,
    pub(super) faults: Vec<String>,
    pub(super) connections: u64,
    pub(super) bytes: u64,
    /// Connections to servers that were being restarted.
    pub(super) refused: u64,
    /// Connections that programs made after their supervisor had been killed, complete in both
    /// directions.
    pub(super) plain_after_kill: u64,
}

/// Matches the ends of each connection.
pub(super) fn pair_up(places: Vec<Place>) -> Vec<Connection> {
    let mut by_key: HashMap<Key, Connection> = HashMap::new();
    let mut all = Vec::new();
    for place in places {
        match place.entry.key() {
            Some(key) => {
                let whole = by_key.entry(key).or_insert(Connection { client: None, server: None, more: Vec::new() });
                let end = match place.side {
                    Side::Client => &mut whole.client,
                    Side::Server => &mut whole.server,
                };
                match end {
                    Some(_) => whole.more.push(place),
                    None => *end = Some(place),
                }
            }
            None => all.push(Connection { client: None, server: Some(place), more: Vec::new() }),
        }
    }
    all.extend(by_key.into_values());
    all
}

impl<'a> Judge<'a> {
    pub(super) fn new(
        kills: &'a [Kill],
        direct: &'a dyn Fn(u64) -> bool,
        behaviour: fn(u64) -> Behaviour,
        complete: bool,
    ) -> Self {
        let mut by_place: HashMap<(u64, Side), Vec<&Kill>> = HashMap::new();
        for kill in kills {
            by_place.entry((kill.pair, kill.side)).or_default().push(kill);
        }
        Self { kills: by_place, direct, behaviour, complete }
    }

    pub(super) fn all(&self, connections: &[Connection]) -> Verdict {
        let mut verdict = Verdict::default();
        let seen = Seen::new(connections);
        for connection in connections {
            self.one(connection, &seen, &mut verdict);
        }
        verdict
    }

    fn one(&self, connection: &Connection, seen: &Seen, verdict: &mut Verdict) {
        let Connection { client, server, more } = connection;
        let Some(key) = client.or(*server).and_then(|p| p.entry.key()) else {
            if let Some(server) = server {
                self.nameless(server, verdict);
            }
            return;
        };
        for again in more {
            let side = again.side.name();
            verdict.faults.push(format!("{key:?}: the {side} has it a second time, in life {}", again.life));
        }
        let Some(client) = client else {
            // The client's record may appear a moment later.
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
                // The client was killed within `connect`.
                None if !meeting.is_empty() || !self.complete => {}
                Some(End::Errno(libc::ECONNREFUSED)) if self.is_replaced(client, seen) => verdict.refused += 1,
                // EPIPE: an end came and a reset after it before the call looked, as from TCP.
                Some(End::Errno(libc::ECONNRESET | libc::EPIPE)) if !meeting.is_empty() => verdict.refused += 1,
                // A server without supervisor accepted and was killed: the frames that it got by
                // --peer break the connection.
                Some(End::Errno(0)) if (self.direct)(client.pair) && !meeting.is_empty() => verdict.refused += 1,
                _ => verdict.faults.push(format!("{key:?}: not connected: {}", word(end))),
            }
            return;
        }
        let behaviour = (self.behaviour)(key.seed);
        if server.is_none() && client.entry.get(Field::Written) >= HEAD_LEN as u64 {
            let (begun, closed) = (client.entry.get(Field::Begun), client.entry.get(Field::Closed));
            let servers = self.kills.get(&(client.pair, Side::Server)).into_iter().flatten();
            let mut queued = servers.filter(|k| k.after_ns > begun && k.before_ns < closed.saturating_add(QUEUED_NS));
            let met = meeting.iter().any(|k| k.side == Side::Server || !k.takes_program());
            let excused = met || queued.any(|k| k.takes_program());
            if !excused && self.complete {
                verdict.faults.push(format!("{key:?}: the server never heard of it"));
            }
        }
        let up = HEAD_LEN as u64 + behaviour.up.len;
        let ways = [(Some(client), server.as_ref(), up), (server.as_ref(), Some(client), behaviour.down.len)];
        let (mut whole, careless) = (true, behaviour.careless);
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

    /// Outcome of the direction from one end to the other; `None` if it is not over.
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
        // The error that the writing end got.
        match from.and_then(|p| p.entry.write_end()) {
            Some(End::Hang) => return Err("writing hung".into()),
            Some(End::Errno(libc::ECONNRESET | libc::EPIPE)) if broken_before(written_end) => {}
            Some(End::Errno(e)) => return Err(format!("writing failed with {}", End::Errno(e))),
            _ => {}
        }
        let meeting: Vec<&Kill> = meeting.iter().copied().filter(|k| before(k, read_end)).collect();
        let (broken, read) = (!meeting.is_empty(), to.entry.get(Field::Read));
        let killed = |place: &Place| meeting.iter().any(|k| k.side == place.side && k.takes_program());
        let sender_killed = meeting.iter().any(|k| k.side != to.side && k.takes_program());
        // Time from which a supervisor held the connection, so that its death is a reset.
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
        let told =
            to.entry.write_end().filter(|_| to.entry.get(Field::WriteEndAt) <= read_end.saturating_add(NOTED_NS));
        // A blocked long write consumes the error of a killed supervisor; only the next write
        // reports it (decision 9).
        let own = meeting.iter().any(|k| k.side == to.side && !k.takes_program());
        match to.entry.read_end() {
            None if killed(to) => Ok(Some("reader killed")),
            None if to.entry.is_closed() || self.complete => Err("its reader has no end".into()),
            None => Ok(None),
            Some(End::Whole) if read == len => Ok(Some("all")),
            Some(End::Whole) => Err("its reader reports the whole stream, and it is not".into()),
            Some(End::Short) if broken && told == Some(End::Errno(libc::ECONNRESET)) => {
                Ok(Some("ECONNRESET for a write, then an end"))
            }
            Some(End::Short) if own && told == Some(End::Errno(libc::EPIPE)) => {
                Ok(Some("EPIPE for a write, then an end"))
            }
            Some(End::Short) if !sender_killed => Err("an early end, though its writer was not killed".into()),
            Some(End::Short) if read < written => {
                Err(format!("an early end, {} bytes of what was written are lost", written - read))
            }
            Some(End::Short) if supervisor_first() => {
                Err("an early end, though a supervisor was killed before its writer".into())
            }
            Some(End::Short) => Ok(Some("all that was written, an end")),
            Some(End::Errno(libc::ECONNRESET)) if !broken => Err("reset, though nobody was killed".into()),
            Some(End::Errno(libc::ECONNRESET)) => {
                let supervisors = meeting.iter().any(|k| !k.takes_program());
                // A killed program without unread input closes with a regular end, not a reset.
                let quiet = from.is_some_and(|f| {
                    sender_killed && !killed(to) && to.entry.get(Field::Attempted) == f.entry.get(Field::Read)
                });
                if quiet && !supervisors {
                    return Err("reset, though only its writer was killed, which had read all".into());
                }
                Ok(Some("ECONNRESET"))
            }
            Some(End::Foreign) if (self.direct)(to.pair) => Ok(Some("frames for a server without supervisor")),
            Some(end) => Err(end.to_string()),
        }
    }

    /// Judges a server's connection that ended before the client's key arrived.
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
            // The connection may have waited in the accept queue since the kill.
            Some(End::Short) => {
                let mut clients = self.kills.get(&(server.pair, Side::Client)).into_iter().flatten();
                clients.any(|k| k.takes_program() && k.after_ns + QUEUED_NS > begun && k.before_ns < ended)
            }
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

    /// Whether the server's program was killed and no replacement is known to have run before this
    /// client.
    fn is_replaced(&self, client: &Place, seen: &Seen) -> bool {
        let (begun, ended) = (client.entry.get(Field::Begun), client.entry.get(Field::ReadEndAt));
        let kills = self.kills.get(&(client.pair, Side::Server)).into_iter().flatten();
        let mut programs = kills.filter(|k| k.takes_program() && k.before_ns < ended);
        programs.any(|k| begun < seen.next_server(client.pair, k).saturating_add(PORT_NS))
    }

    fn of(&self, place: &Place) -> Vec<&'a Kill> {
        let kills = self.kills.get(&(place.pair, place.side)).into_iter().flatten();
        kills.filter(|k| k.life == place.life).copied().collect()
    }

    /// The kills of a connection's programs and supervisors during its lifetime.
    fn meeting(&self, client: &Place, server: Option<&Place>) -> Vec<&'a Kill> {
        let begun = client.entry.get(Field::Begun);
        let mut meeting = Vec::new();
        let ended = [Some(client), server].into_iter().flatten().map(|p| p.entry.get(Field::Closed));
        // A killed program did not record a close.
        let ended = ended.map(|at| if at == 0 { u64::MAX } else { at }).max().unwrap_or(u64::MAX);
        let within = |k: &&Kill, from: u64| k.after_ns + DYING_NS > from && k.before_ns < ended;
        meeting.extend(self.of(client).into_iter().filter(|k| within(k, begun)));
        match server {
            Some(server) => meeting.extend(self.of(server).into_iter().filter(|k| within(k, begun))),
            // The server's life is unknown, so kills of any life count.
            None => {
                let from = if (self.direct)(client.pair) { begun.saturating_sub(DIRECT_NS) } else { begun };
                let kills = self.kills.get(&(client.pair, Side::Server)).into_iter().flatten();
                meeting.extend(kills.filter(|k| within(k, from)));
            }
        }
        meeting
    }
}

/// Times of servers' first connections, by pair and life.
struct Seen(BTreeMap<(u64, u64), u64>);

impl Seen {
    fn new(connections: &[Connection]) -> Self {
        let mut first = BTreeMap::new();
        for server in connections.iter().filter_map(|c| c.server) {
            let (at, begun) =
                (first.entry((server.pair, server.life)).or_insert(u64::MAX), server.entry.get(Field::Begun));
            *at = begun.min(*at);
        }
        Self(first)
    }

    /// Upper bound of the time at which the next server after that kill began to listen.
    fn next_server(&self, pair: u64, kill: &Kill) -> u64 {
        let later = self.0.range((pair, kill.life + 1)..=(pair, u64::MAX)).map(|(_, at)| *at);
        later.min().unwrap_or(u64::MAX).min(kill.after_ns.saturating_add(STARTS_NS))
    }
}

impl Verdict {
    /// Adds a fault for everything that did not occur in a complete run: a run without events
    /// proves nothing.
    pub(super) fn wants_something(&mut self) {
        let whole = self.outcomes.get(&None).and_then(|ends| ends.get("all")).copied().unwrap_or(0);
        for (what, count) in [
            ("connection", self.connections),
            ("byte arrived", self.bytes),
            ("connection that no kill met is whole", whole),
        ] {
            if count == 0 {
                self.faults.push(format!("no {what}"));
            }
        }
    }
}

fn word(end: Option<End>) -> String {
    end.map_or("no end".into(), |e| e.to_string())
}

#[cfg(test)]
mod tests;
