//! Connections to an acceptor whose other end has not proved itself, or not said what it is.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use narrows::upgrade::host_of;
use narrows_host::shares::ALONE;
use rustls::ServerConnection;

use super::changes::as_told;
use super::{Kind, Pump};
use crate::engine::Key;
use crate::frame::{NOISE_MAX, Parser};
use crate::hello::Hello;
use crate::limits::{ALL_GREETINGS_BURST, ALL_GREETINGS_PER_S};
use crate::lines::Subject;
use crate::rate::{Greetings, Rates};
use crate::reason::Reason;
use crate::session::Role;
use crate::settings::Report;
use crate::socket;
use crate::wire::Wire;

/// Refused strangers are told of at most this often: anybody can make them.
const COMPLAINT_NS: u64 = 1_000_000_000;
/// Bytes read of a stranger before others get their turn, and at all before its hello, which has 41.
const TURN: usize = 64 << 10;
const BEFORE_HELLO_MAX: usize = NOISE_MAX;
/// Time in which a peer that was refused may read why, and bytes that it may still send.
const FAREWELL_NS: u64 = 1_000_000_000;
const FAREWELL_BYTES: usize = 1 << 20;
/// First byte of a record of TLS that begins a handshake.
const HANDSHAKE: u8 = 22;
const NO_TUNNEL: &str = "the TLS handshake failed; it is no tunnel";

pub(super) struct Stranger {
    pub(super) wire: Wire,
    parser: Parser,
    host: IpAddr,
    /// Bytes that came of it.
    heard: usize,
    /// It was refused, and is only kept to hear why.
    leaving: bool,
    /// It may begin a handshake.
    is_admitted: bool,
}

/// Whether a stranger may go on.
enum Admission {
    /// It has said nothing.
    Silent,
    Granted,
    NoTunnel,
    /// Too many handshakes were begun.
    OverRate,
}

/// What all strangers have together.
pub(super) struct Strangers {
    /// The oldest one first.
    all: VecDeque<(Key, IpAddr)>,
    /// Connections of each host.
    pub(super) rates: Rates,
    /// Handshakes of all hosts.
    greetings: Greetings,
    /// When a refused one may be told of again.
    complains_ns: u64,
}

impl Strangers {
    pub(super) fn new(greetings_per_s: u32) -> Self {
        let rates = Rates::new(greetings_per_s, greetings_per_s);
        let greetings = Greetings::new(ALL_GREETINGS_BURST, ALL_GREETINGS_PER_S);
        Self { all: VecDeque::new(), rates, greetings, complains_ns: 0 }
    }

    /// What becomes of a stranger: a handshake is what it can ask for at others' cost, and it begins with
    /// the first byte.
    fn admit(&mut self, stranger: &mut Stranger, now_ns: u64) -> Admission {
        if stranger.is_admitted {
            return Admission::Granted;
        }
        let first = socket::peek(&stranger.wire.socket);
        if first == Ok(None) {
            return Admission::Silent;
        }
        stranger.is_admitted = true;
        match first {
            // TLS lets other records, such as alerts, come before a handshake: it could follow uncounted.
            Ok(Some(byte)) if byte != HANDSHAKE => Admission::NoTunnel,
            Ok(_) if !self.greetings.allow(stranger.host, now_ns) => Admission::OverRate,
            _ => Admission::Granted,
        }
    }
}

impl Pump {
    /// The carrier that is there already.
    pub(super) fn open_stdio(&mut self) {
        if let Some(socket) = self.settings.stdio.take() {
            self.end.is_stdio = true;
            self.add_stranger(Wire::plain(socket), ALONE, true);
        }
    }

    /// Somebody has connected to listener `i`.
    pub(super) fn meet(&mut self, i: usize, socket: OwnedFd, address: IpAddr) {
        let host = host_of(address);
        if !self.strangers.rates.allow(host, self.now_ns) {
            self.counters.strangers_over_rate.add(1);
            return socket::abort(socket);
        }
        let Some((_, config)) = self.settings.listen.get(i) else { return };
        let Ok(connection) = ServerConnection::new(config.clone()) else { return };
        self.add_stranger(Wire::tls(socket, connection.into()), host, false);
    }

    fn add_stranger(&mut self, wire: Wire, host: IpAddr, is_admitted: bool) {
        // Without a limit for the process, connections would lack the descriptors.
        while self.strangers.all.len() >= self.settings.limits.strangers.min(self.settings.flows_max / 8).max(1) {
            self.turn_one_away();
        }
        let stranger = Stranger { wire, parser: Parser::new(0), host, heard: 0, leaving: false, is_admitted };
        let key = self.hub.add(Kind::Stranger(Box::new(stranger)));
        self.strangers.all.push_back((key, host));
        self.counters.strangers_now.set(self.strangers.all.len() as u64);
        let at_ns = self.now_ns + self.settings.timing.hello_within_ns;
        // Who reaches the standard streams is known, and may be asked for a password first.
        if !self.end.is_stdio {
            self.hub.set_timer(key, Some(at_ns));
        }
        self.hub.queue(key);
    }

    fn turn_one_away(&mut self) {
        if let Some(key) = oldest_of_most(&self.strangers.all) {
            self.counters.strangers_over_limit.add(1);
            self.close(key);
        }
    }

    /// Moves the handshake of a stranger.
    pub(super) fn stranger_ready(&mut self, key: Key) {
        let now_ns = self.now_ns;
        let Some(Kind::Stranger(stranger)) = self.hub.kind(key) else { return };
        match self.strangers.admit(stranger, now_ns) {
            Admission::Silent => return,
            Admission::Granted => {}
            Admission::NoTunnel => {
                let host = stranger.host;
                self.counters.strangers_broken.add(1);
                self.reports.tell_refusal(Some(host), Subject::Peers, format!("{host}: {NO_TUNNEL}"), now_ns);
                return self.close(key);
            }
            Admission::OverRate => {
                self.counters.strangers_over_rate.add(1);
                socket::break_on_close(&stranger.wire.socket);
                return self.close(key);
            }
        }
        let mut moved = 0;
        while moved < TURN {
            let Some(Kind::Stranger(stranger)) = self.hub.kind(key) else { return };
            if stranger.leaving {
                // Read and thrown away, so that closing does not take the last words back.
                match stranger.wire.read(&self.work.engine.buffers) {
                    Ok(None) => return,
                    Ok(Some(bytes)) if !bytes.is_empty() && stranger.heard < FAREWELL_BYTES => {
                        moved += bytes.len();
                        stranger.heard += bytes.len();
                    }
                    _ => return self.close(key),
                }
                continue;
            }
            let read = stranger.wire.read(&self.work.engine.buffers);
            let flushed = stranger.wire.flush(now_ns);
            match read.and_then(|read| flushed.map(|_| read)) {
                Ok(None) => return,
                Ok(Some(bytes)) if bytes.is_empty() => {
                    self.counters.strangers_broken.add(1);
                    return self.close(key);
                }
                Ok(Some(bytes)) => {
                    moved += bytes.len();
                    stranger.heard += bytes.len();
                    stranger.parser.push(bytes);
                }
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    return self.turn_down(key, &narrows_host::words::e_text(&e));
                }
                Err(_) => {
                    self.counters.strangers_broken.add(1);
                    return self.part(key, NO_TUNNEL);
                }
            }
            match Hello::expect(&mut stranger.parser) {
                Ok(None) if stranger.heard > BEFORE_HELLO_MAX => {
                    self.counters.strangers_broken.add(1);
                    return self.part(key, "the client does not say what it is");
                }
                Ok(None) => {}
                Ok(Some(hello)) => return self.join(key, hello),
                Err(e) => {
                    self.counters.strangers_broken.add(1);
                    return self.part(key, &e.to_string());
                }
            }
        }
        self.hub.queue(key);
    }

    /// Parts from one whose token or certificate is not accepted.
    fn turn_down(&mut self, key: Key, why: &str) {
        self.counters.strangers_refused.add(1);
        if self.now_ns >= self.strangers.complains_ns {
            self.strangers.complains_ns = self.now_ns + COMPLAINT_NS;
            if let Some(Kind::Stranger(stranger)) = self.hub.kind(key) {
                let text = format!("{}: {why}", stranger.host);
                self.reports.tell(Report::Refused { text });
            }
        }
        self.part(key, why);
    }

    /// Says good-bye, and waits a little for it to be read.
    fn part(&mut self, key: Key, why: &str) {
        let now_ns = self.now_ns;
        let Some(Kind::Stranger(stranger)) = self.hub.kind(key) else { return };
        stranger.wire.farewell(now_ns);
        stranger.leaving = true;
        let host = stranger.host;
        self.reports.tell_refusal(Some(host), Subject::Peers, format!("{host}: {why}"), self.now_ns);
        self.hub.set_timer(key, Some(now_ns + FAREWELL_NS));
        if self.end.is_stdio {
            self.end.over = Some(Some(why.to_owned()));
        }
    }

    pub(super) fn stranger_on_time(&mut self, key: Key) {
        if let Some(Kind::Stranger(stranger)) = self.hub.kind(key)
            && !stranger.leaving
        {
            self.counters.strangers_late.add(1);
        }
        self.close(key);
    }

    /// Closes a place without a word.
    pub(super) fn close(&mut self, key: Key) {
        self.hub.take(key);
        self.forget_stranger(key);
        if self.end.is_stdio && self.sessions.is_empty() {
            self.end.over.get_or_insert(None);
        }
    }

    fn forget_stranger(&mut self, key: Key) {
        self.strangers.all.retain(|(other, _)| *other != key);
        self.counters.strangers_now.set(self.strangers.all.len() as u64);
    }

    /// A stranger has proved itself: its connection becomes a carrier of its session.
    fn join(&mut self, key: Key, hello: Hello) {
        let known = self.sessions.of_dialers.get(&hello.dialer).copied();
        let present = known.and_then(|at| self.sessions.get(at)).map(|s| s.hello.session);
        let Some(Kind::Stranger(stranger)) = self.hub.kind(key) else { return };
        let host = stranger.host;
        // Its handshake may have been before the present trust.
        if let Some(why) = self.refusal(Role::Acceptor, key) {
            if let Some(Kind::Stranger(stranger)) = self.hub.kind(key) {
                let mut words = hello.greet();
                let body = Reason::Forbidden.to_bytes(&as_told(&why));
                crate::frame::put(&mut words, crate::frame::Kind::Goaway, 0, &body);
                let _ = stranger.wire.push(&words);
            }
            return self.turn_down(key, &why);
        }
        let refuse = |pump: &mut Self, reason: Reason| {
            if let Some(Kind::Stranger(stranger)) = pump.hub.kind(key) {
                let mut words = hello.greet();
                crate::frame::put(&mut words, crate::frame::Kind::Goaway, 0, &reason.to_bytes(""));
                let _ = stranger.wire.push(&words);
            }
            pump.part(key, &reason.to_string());
        };
        if present.is_some_and(|present| present > hello.session) {
            return refuse(self, Reason::Replaced);
        }
        if self.end.draining_until_ns.is_some() {
            return refuse(self, Reason::Leaving);
        }
        self.strangers.greetings.note(host, self.now_ns);
        let mut attached = self.carriers.attached.of(host);
        let is_further = present == Some(hello.session);
        if !self.end.is_stdio && !attached.grow(1) {
            self.counters.attached_over_limit.add(1);
            // The session goes on without it, which a goaway would end.
            return if is_further { self.part(key, &Reason::Busy.to_string()) } else { refuse(self, Reason::Busy) };
        }
        let at = match (known, present) {
            (Some(at), Some(present)) if present == hello.session => at,
            (known, _) => {
                if let Some(at) = known {
                    // The dialer has noticed its loss before this end did.
                    self.drop_session(at, Reason::Replaced);
                }
                let mut share = self.sessions.hosts.of(host);
                if !share.grow(1) {
                    self.counters.sessions_over_limit.add(1);
                    return refuse(self, Reason::Busy);
                }
                let mut instance = [0; 8];
                let _ = rustix::rand::getrandom(&mut instance, rustix::rand::GetRandomFlags::empty());
                let hello = Hello { instance: u64::from_le_bytes(instance), ..hello };
                let at = self.begin_session(Role::Acceptor, hello, Some(host), Some(share));
                self.sessions.of_dialers.insert(hello.dialer, at);
                self.reports.tell(Report::Peer { text: format!("{host}: a client is connected") });
                at
            }
        };
        self.forget_stranger(key);
        let Some(Kind::Stranger(stranger)) = self.hub.take(key) else { return };
        let Stranger { wire, parser, .. } = *stranger;
        self.add_carrier(at, hello.place(), wire, None, parser, Some(attached));
    }
}

/// The oldest of the host that has most of them: who makes room for another one.
pub(super) fn oldest_of_most(all: &VecDeque<(Key, IpAddr)>) -> Option<Key> {
    let mut of_host: HashMap<IpAddr, usize> = HashMap::new();
    all.iter().for_each(|(_, host)| *of_host.entry(*host).or_default() += 1);
    let most = of_host.values().max().copied()?;
    all.iter().find(|(_, host)| of_host[host] == most).map(|(key, _)| *key)
}
