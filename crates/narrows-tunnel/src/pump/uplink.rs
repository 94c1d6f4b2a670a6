//! The other end of a dialer: carriers are opened, kept, and opened again when they are lost.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::Pump;
use super::remote::{NO_ANSWER, Remote};
use crate::backoff::Backoff;
use crate::frame::{NOISE_MAX, Parser};
use crate::hello::{Hello, PROGRAM_LEN};
use crate::limits::CARRIERS_MAX;
use crate::reason::Reason;
use crate::session::Role;
use crate::settings::{Report, Uplink};
use crate::socket;
use crate::standing::Link;
use crate::target::Endpoint;
use crate::wire::Wire;

/// A carrier that was up so long shows that the other end can be reached and wants it: the next loss
/// is not one more of a series.
pub(super) const STEADY_NS: u64 = 2_000_000_000;
/// While there is no session, connections of this end wait so long in the queues of their listeners;
/// then they are reset.
const HOLD_NS: u64 = 5_000_000_000;

pub(super) struct UplinkState {
    to: Uplink,
    dialer: [u8; 16],
    /// Number of the present or last session.
    number: u32,
    /// Its place, while there is one.
    session: Option<usize>,
    slots: [Slot; CARRIERS_MAX],
    backoffs: [Backoff; CARRIERS_MAX],
    /// Where its first carrier was connected: a name may lead to several servers.
    address: Option<SocketAddr>,
    /// When the session was first up.
    up_ns: u64,
    /// It was up once.
    was_up: bool,
    /// The loss was reported.
    is_lost: bool,
    hold_until_ns: u64,
    /// Listeners were told that holding is over.
    gave_up: bool,
    /// By their number.
    remotes: Vec<Remote>,
}

/// A carrier's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Idle,
    /// To be tried again at this time.
    Waiting(u64),
    /// Being made, or there and not answered yet.
    Dialing,
    /// Answered at this time.
    Up(u64),
}

impl UplinkState {
    pub(super) fn to(&self) -> &Uplink {
        &self.to
    }

    fn is_up(&self) -> bool {
        self.slots.iter().any(|slot| matches!(slot, Slot::Up(_)))
    }

    /// Further carriers prove themselves so, and expect this name of the acceptor.
    pub(super) fn expect(&mut self, client: Arc<ClientConfig>, expected: Option<ServerName<'static>>, now_ns: u64) {
        if let Uplink::Tls { config, name, .. } = &mut self.to {
            *config = client;
            *name = expected.unwrap_or_else(|| name.clone());
        }
        self.begin_anew(now_ns);
    }

    /// The next session is not to be taken for one that ends the present one: the acceptor may hear of
    /// it before it hears that this end leaves.
    pub(super) fn rename(&mut self) {
        let mut fresh = [0; 16 - PROGRAM_LEN];
        // With the old name, open connections would be reset. Listeners stay with the program.
        if rustix::rand::getrandom(&mut fresh, rustix::rand::GetRandomFlags::empty()).is_ok() {
            self.dialer[PROGRAM_LEN..].copy_from_slice(&fresh);
        }
    }

    /// A session has no carrier any more. If it was the present one, the next carrier begins another.
    pub(super) fn ended(&mut self, at: usize) {
        if self.session == Some(at) {
            self.session = None;
            // Further carriers are wanted again when the first one is there.
            let waiting = self.slots[1..].iter_mut().filter(|slot| matches!(slot, Slot::Waiting(_)));
            waiting.for_each(|slot| *slot = Slot::Idle);
        }
    }

    /// Tries at once what waits, and from the beginning: what was wrong at this end may be right now.
    fn begin_anew(&mut self, now_ns: u64) {
        self.backoffs = Default::default();
        for slot in self.slots.iter_mut().filter(|slot| matches!(slot, Slot::Waiting(_))) {
            *slot = Slot::Waiting(now_ns);
        }
    }

    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        let retry = self.slots.iter().filter_map(|s| if let Slot::Waiting(at) = s { Some(*at) } else { None }).min();
        let hold = (!self.is_up() && !self.gave_up).then_some(self.hold_until_ns);
        let remotes = self.remotes.iter().filter_map(|remote| remote.retry_ns).min();
        [retry, hold, remotes].into_iter().flatten().min()
    }
}

impl Pump {
    pub(super) fn open_uplink(&mut self) -> std::io::Result<()> {
        let Some(to) = self.settings.uplink.clone() else { return Ok(()) };
        let mut dialer = [0; 16];
        if rustix::rand::getrandom(&mut dialer, rustix::rand::GetRandomFlags::empty())? != dialer.len() {
            return Err(std::io::Error::other("the system gives no random bytes"));
        }
        self.uplink = Some(UplinkState {
            to,
            dialer,
            number: 0,
            session: None,
            slots: [Slot::Idle; CARRIERS_MAX],
            backoffs: Default::default(),
            address: None,
            up_ns: 0,
            was_up: false,
            is_lost: false,
            hold_until_ns: HOLD_NS,
            gave_up: false,
            remotes: self.settings.remote.iter().map(|_| Remote::default()).collect(),
        });
        self.tend_uplink();
        Ok(())
    }

    pub(super) fn is_uplink(&self, at: usize) -> bool {
        self.uplink.as_ref().is_some_and(|uplink| uplink.session == Some(at))
    }

    /// The session that connections of this end are carried by.
    pub(super) fn uplink_session(&self) -> Option<usize> {
        let uplink = self.uplink.as_ref().filter(|uplink| uplink.is_up())?;
        uplink.session.filter(|at| self.sessions.get(*at).is_some_and(|s| !s.session.is_leaving()))
    }

    /// Whether a connection of this end is accepted now, be it to be reset.
    pub(super) fn may_accept(&self) -> bool {
        self.uplink.as_ref().is_none_or(|uplink| uplink.is_up() || self.now_ns >= uplink.hold_until_ns)
    }

    pub(super) fn uplink_on_time(&mut self) {
        let now_ns = self.now_ns;
        let Some(uplink) = &mut self.uplink else { return };
        if !uplink.is_up() && !uplink.gave_up && now_ns >= uplink.hold_until_ns {
            uplink.gave_up = true;
            self.hub.wake_listeners();
        }
        self.listen_again();
        self.tend_uplink();
    }

    /// Asks again for listeners that were refused or not answered, when it is time.
    fn listen_again(&mut self) {
        let now_ns = self.now_ns;
        let session = self.uplink_session().filter(|_| self.end.draining_until_ns.is_none());
        let Some(uplink) = &mut self.uplink else { return };
        let due = uplink.remotes.iter_mut().enumerate();
        let due: Vec<usize> = due.filter_map(|(i, remote)| remote.is_due(now_ns).then_some(i)).collect();
        // Without a session, all are asked for when there is one.
        let Some(at) = session.filter(|_| !due.is_empty()) else { return };
        for i in due {
            let from = &self.settings.remote[i].from;
            let Some(remote) = self.uplink.as_mut().and_then(|uplink| uplink.remotes.get_mut(i)) else { return };
            let lacks_answer = remote.lacks_answer();
            remote.is_asked(now_ns);
            if let Some(place) = self.sessions.get_mut(at) {
                place.session.listen(i as u64, from);
            }
            if lacks_answer {
                let from = from.to_string();
                self.counters.standing().refused.insert(i, format!("{from}: {NO_ANSWER}"));
                self.reports.tell(Report::RemoteRefused { from, why: NO_ANSWER.into() });
            }
        }
        self.sessions.touch(at);
    }

    /// Opens carriers that are wanted and not there.
    fn tend_uplink(&mut self) {
        let now_ns = self.now_ns;
        let Some(uplink) = &mut self.uplink else { return };
        let of_session = uplink.session.and_then(|at| self.sessions.get(at)).map_or(1, |s| s.session.carriers_wanted());
        // Until the first one is there, others would only fail as it does. A remote shell may ask for
        // a password each time.
        let alone = !uplink.is_up() || matches!(uplink.to, Uplink::Shell { .. });
        let wanted = if alone { 1 } else { of_session.max(self.settings.carriers).min(CARRIERS_MAX) };
        let any = uplink.slots.contains(&Slot::Dialing);
        for number in 0..CARRIERS_MAX {
            let Some(uplink) = &mut self.uplink else { return };
            let due = match uplink.slots[number] {
                Slot::Idle => number < wanted && !(alone && any),
                Slot::Waiting(at_ns) => at_ns <= now_ns,
                Slot::Dialing | Slot::Up(_) => false,
            };
            if due && self.end.draining_until_ns.is_none() {
                uplink.slots[number] = Slot::Dialing;
                self.dial(number as u8);
            }
        }
    }

    fn dial(&mut self, number: u8) {
        let Some(uplink) = &self.uplink else { return };
        match uplink.to.clone() {
            Uplink::Tls { host, port, .. } => {
                let address = uplink.address.filter(|_| uplink.is_up());
                self.dial_host(number, &host, port, address);
            }
            Uplink::Shell { command } => match start_shell(&command) {
                Ok((child, socket)) => {
                    let session = self.session_for_uplink();
                    let parser = Parser::new(NOISE_MAX);
                    self.add_carrier(session, number, Wire::plain(socket), Some(child), parser, None);
                }
                Err(e) => {
                    let program = command.first().map_or_else(String::new, |p| p.to_string_lossy().into_owned());
                    let why = format!("cannot start {program}: {}", narrows_host::words::e_text(&e));
                    self.dial_lost(number, &why);
                }
            },
        }
    }

    /// A socket is connected to the acceptor.
    pub(super) fn dialed(&mut self, number: u8, socket: OwnedFd) {
        let Some(UplinkState { to: Uplink::Tls { config, name, .. }, .. }) = &self.uplink else { return };
        let connection = match ClientConnection::new(Arc::clone(config), name.clone()) {
            Ok(connection) => connection,
            Err(e) => return self.dial_lost(number, &e.to_string()),
        };
        let session = self.session_for_uplink();
        if let Some(uplink) = self.uplink.as_mut().filter(|uplink| !uplink.is_up()) {
            uplink.address = socket::peer(&socket);
        }
        self.add_carrier(session, number, Wire::tls(socket, connection.into()), None, Parser::new(0), None);
    }

    fn session_for_uplink(&mut self) -> usize {
        let Some(uplink) = &mut self.uplink else { return 0 };
        if let Some(at) = uplink.session {
            return at;
        }
        uplink.number += 1;
        let hello = Hello { carrier: 0, attempt: 0, dialer: uplink.dialer, session: uplink.number, instance: 0 };
        let at = self.begin_session(Role::Dialer, hello, None, None);
        if let Some(uplink) = &mut self.uplink {
            uplink.session = Some(at);
        }
        at
    }

    /// The acceptor has answered on a carrier.
    pub(super) fn uplink_up(&mut self, at: usize, number: u8) {
        // One that says at once that it wants no flows is a failure, and the next event.
        let leaves = self.sessions.get(at).is_none_or(|s| s.session.is_leaving());
        if !self.is_uplink(at) || leaves {
            return;
        }
        let now_ns = self.now_ns;
        let Some(uplink) = &mut self.uplink else { return };
        let first = !uplink.is_up();
        uplink.slots[usize::from(number)] = Slot::Up(now_ns);
        if first {
            uplink.up_ns = now_ns;
            (uplink.was_up, uplink.is_lost, uplink.gave_up) = (true, false, false);
            for remote in &mut uplink.remotes {
                *remote = Remote::default();
                remote.is_asked(now_ns);
            }
            {
                let mut standing = self.counters.standing();
                standing.link = Link::Up;
                let asked = self.settings.remote.iter().enumerate();
                standing.refused = asked.map(|(i, forward)| (i, format!("{}: no answer yet", forward.from))).collect();
            }
            let binds: Vec<Endpoint> = self.settings.remote.iter().map(|f| f.from.clone()).collect();
            if let Some(place) = self.sessions.get_mut(at) {
                binds.iter().enumerate().for_each(|(i, bind)| place.session.listen(i as u64, bind));
            }
            self.reports.tell(Report::Up);
            self.hub.wake_listeners();
        }
        self.tend_uplink();
    }

    /// A carrier of some session is gone.
    pub(super) fn uplink_lost(&mut self, at: usize, number: u8, why: &str) {
        if self.is_uplink(at) {
            self.dial_lost(number, why);
        }
    }

    /// A carrier is gone, or did not come.
    pub(super) fn dial_lost(&mut self, number: u8, why: &str) {
        let now_ns = self.now_ns;
        // All end, and nobody is to come back.
        let drains = self.end.draining_until_ns.is_some();
        let Some(uplink) = &mut self.uplink else { return };
        let was_up = matches!(uplink.slots[usize::from(number)], Slot::Up(_));
        let backoff = &mut uplink.backoffs[usize::from(number)];
        if let Slot::Up(since_ns) = uplink.slots[usize::from(number)]
            && now_ns >= since_ns + STEADY_NS
        {
            backoff.reset();
        }
        let wait_ns = backoff.next_ns(random());
        uplink.slots[usize::from(number)] = Slot::Waiting(now_ns + wait_ns);
        if was_up && !uplink.is_up() {
            uplink.hold_until_ns = now_ns + HOLD_NS;
        }
        if !was_up {
            self.counters.dials_failed.add(1);
        }
        let name = match &uplink.to {
            Uplink::Tls { host, port, .. } => Endpoint::Tcp { host: host.clone(), port: *port }.to_string(),
            Uplink::Shell { .. } => "the other end".into(),
        };
        let why = format!("{name}: {why}");
        if drains {
            return;
        }
        if !uplink.was_up && !self.settings.keeps_trying {
            self.end.over.get_or_insert(Some(why));
        } else if !uplink.is_up() {
            self.counters.standing().link = Link::Lost(why.clone());
            if !std::mem::replace(&mut uplink.is_lost, true) {
                self.reports.tell(Report::Lost { why });
            }
        }
    }

    /// The acceptor opens nothing more: its session goes on for what is open, and another is begun.
    pub(super) fn leave_uplink(&mut self, at: usize, why: &str) {
        let now_ns = self.now_ns;
        let Some(place) = self.sessions.get(at) else { return };
        let Some(uplink) = &mut self.uplink else { return };
        // One that is full says so to each attempt: these are failures, of which nobody is to wait for
        // the end.
        let was_steady = uplink.is_up() && now_ns >= uplink.up_ns + STEADY_NS;
        uplink.session = None;
        for (slot, carrier) in uplink.slots.iter_mut().zip(place.carriers) {
            if carrier.is_some() || matches!(slot, Slot::Waiting(_)) {
                *slot = Slot::Idle;
            }
        }
        let number = uplink.slots.iter().position(|slot| *slot == Slot::Idle).unwrap_or(0);
        if was_steady {
            uplink.backoffs[number].reset();
            uplink.hold_until_ns = now_ns + HOLD_NS;
            uplink.gave_up = false;
        }
        self.dial_lost(number as u8, why);
    }

    /// Where the connections of an own listener at the acceptor go.
    pub(super) fn remote_target(&self, number: u64) -> Option<Endpoint> {
        let forward = self.settings.remote.get(usize::try_from(number).ok()?)?;
        Some(forward.to.clone())
    }

    /// The acceptor of a session has answered a request for a listener, or closed it.
    pub(super) fn remote_listening(&mut self, at: usize, number: u64, result: Result<String, (Reason, String)>) {
        // Of a session that ends, the next one's count.
        let Some(i) = usize::try_from(number).ok().filter(|_| self.is_uplink(at)) else { return };
        let (now_ns, random) = (self.now_ns, random());
        let Some(forward) = self.settings.remote.get(i) else { return };
        let Some(remote) = self.uplink.as_mut().and_then(|uplink| uplink.remotes.get_mut(i)) else { return };
        let shown = |text: &str| narrows_host::words::shown(text.as_bytes());
        match result {
            Ok(address) => {
                self.counters.standing().refused.remove(&i);
                if remote.stands(now_ns) {
                    self.reports.tell(Report::RemoteListening { from: shown(&address), to: forward.to.to_string() });
                }
            }
            Err((reason, text)) => {
                let why = if text.is_empty() { reason.to_string() } else { shown(&text) };
                let from = forward.from.to_string();
                self.counters.standing().refused.insert(i, format!("{from}: {why}"));
                if remote.fails(&why, now_ns, random) {
                    self.reports.tell(Report::RemoteRefused { from, why });
                }
            }
        }
    }
}

/// Any number, so that many clients do not come back at the same time.
fn random() -> u64 {
    let mut random = [0; 8];
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    u64::from_le_bytes(random)
}

/// Starts a program with one end of a socket pair as its standard input and output.
fn start_shell(command: &[std::ffi::OsString]) -> std::io::Result<(std::process::Child, OwnedFd)> {
    let (near, far) = UnixStream::pair()?;
    let (program, words) = command.split_first().ok_or_else(|| std::io::Error::other("the command is empty"))?;
    let output = OwnedFd::from(far.try_clone()?);
    let started = Command::new(program).args(words).stdin(Stdio::from(OwnedFd::from(far))).stdout(output).spawn()?;
    Ok((started, near.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_change_of_its_proof_a_dialer_tries_at_once_and_waits_briefly_again() {
        let mut uplink = UplinkState {
            to: Uplink::Shell { command: Vec::new() },
            dialer: [0; 16],
            number: 0,
            session: None,
            slots: [Slot::Waiting(30_000_000_000), Slot::Idle, Slot::Dialing, Slot::Up(0)],
            backoffs: Default::default(),
            address: None,
            up_ns: 0,
            was_up: true,
            is_lost: true,
            hold_until_ns: 0,
            gave_up: true,
            remotes: Vec::new(),
        };
        let first_ns = uplink.backoffs[0].next_ns(0);
        for _ in 0..20 {
            uplink.backoffs[0].next_ns(0);
        }
        uplink.begin_anew(7);
        assert!(uplink.slots == [Slot::Waiting(7), Slot::Idle, Slot::Dialing, Slot::Up(0)]);
        assert_eq!((uplink.next_wakeup_ns(), uplink.backoffs[0].next_ns(0)), (Some(7), first_ns));
    }
}
