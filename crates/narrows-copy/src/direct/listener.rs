//! The server of direct copies: accepts and authenticates clients, and serves one folder.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narrows::stream::Control;
use narrows::transport::bond::Bond;
use narrows::transport::{Link, tls};
use narrows::upgrade::host_of;
use narrows_host::lines::Lines;
use narrows_host::shares::{Share, Shares};
use narrows_host::words;
use narrows_trust::keys::Keys;
use narrows_trust::proof;
use narrows_watch::account::Account;
use narrows_watch::status::Amounts;
use rustls::ServerConfig;

use super::{PATIENCE, PROTOCOL, UntilDeadline, is_this_host, watch};
use crate::error::{Blame, Error, Result};
use crate::hello::{self, Request, Session};
use crate::measure::{self, MeasureTask};
use crate::serve::{self, Manner, Reachable};
use crate::served::Served;

mod watched;

/// Maximum number of connections that are not authenticated yet. Beyond it the oldest connection of
/// the host with the most of them is closed, so that waiting clients do not lock others out. Each
/// costs a thread and two descriptors.
const STRANGERS_MAX: usize = 128;
/// Maximum number of concurrent copies, of which one host gets at most half.
const COPIES_MAX: usize = 128;
/// Memory reserved for one copy, in bytes: 20 to 32 MiB of data in transit, buffers, unread
/// answers, and tables of codecs.
const MEMORY_OF_COPY: u64 = 128 << 20;
/// Descriptors reserved for one copy: carriers, folders, and a batch of files, which is shorter if
/// fewer are available.
const DESCRIPTORS_OF_COPY: usize = 64;
/// Memory of a connection that is not authenticated, in bytes: the stack of a thread, and a
/// request.
const MEMORY_OF_STRANGER: u64 = 8 << 20;
/// Minimum number of concurrent copies, however little memory there is.
const COPIES_MIN: usize = 2;
/// Maximum number of clients at a time that are told that the server is busy; further ones are
/// disconnected without a message.
const TOLD_MAX: usize = 16;
/// Time after which a copy that has sent nothing at all is closed if another one needs its place.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// Time without progress after which a copy is closed if another one needs its place. Disks and
/// people pause for seconds; files that were stored are not copied again.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Interval at which progress is recorded.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause if no descriptor or thread is free, until some copy ends.
const BREATH: Duration = Duration::from_millis(100);
/// Time that stopped copies get to flush their complete files to the disk.
const LAST_WORK: Duration = Duration::from_secs(3);

/// Resources of the process for all copies.
#[derive(Debug, Clone, Copy)]
pub struct Means {
    /// Memory in bytes.
    pub memory: u64,
    /// Number of descriptors.
    pub descriptors: usize,
}

impl Means {
    fn copies(self) -> usize {
        let by_memory = usize::try_from(self.memory / MEMORY_OF_COPY).unwrap_or(usize::MAX);
        COPIES_MAX.min(by_memory).min(self.descriptors / DESCRIPTORS_OF_COPY).max(COPIES_MIN)
    }

    fn strangers(self) -> usize {
        let by_memory = usize::try_from(self.memory / MEMORY_OF_STRANGER).unwrap_or(usize::MAX);
        STRANGERS_MAX.min(by_memory).min(self.descriptors / 8).max(COPIES_MIN)
    }
}

/// A server of direct copies.
pub struct Server {
    served: Served,
    /// `None` if all users of this host are trusted.
    tls: Option<Arc<ServerConfig>>,
    verbose: bool,
    strangers_max: usize,
    told_max: usize,
    places: Shares,
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stopping: bool,
    connections: u64,
    strangers: VecDeque<Stranger>,
    copies: HashMap<u64, Copy>,
    looked: Option<Instant>,
    /// Copies that are over, and what they sent.
    ended: Amounts,
    account: Account,
    /// Connections and copies that were closed or refused for want of room.
    turned_away: u64,
    /// What was told of failed connections.
    lines: Lines,
}

struct Stranger {
    id: u64,
    host: IpAddr,
    socket: TcpStream,
}

/// A copy, or a measurement, which has no carriers.
struct Copy {
    session: Option<Session>,
    bond: Option<Bond>,
    control: Arc<Control>,
    host: IpAddr,
    /// `None` if the client is only told that the server is busy, or if the copy was closed to make
    /// room.
    place: Option<Share>,
    /// The client, and what it wants.
    peer: SocketAddr,
    wants: &'static str,
    begun: Instant,
    failed: bool,
    /// Bytes transferred in both directions, and the time of the last change.
    moved: u64,
    since: Instant,
}

impl Copy {
    fn look(&mut self, now: Instant) {
        let moved = self.control.receive_summary().wire_bytes + self.control.send_summary().wire_bytes;
        if moved != self.moved {
            (self.moved, self.since) = (moved, now);
        }
    }

    /// By how much its time without progress exceeds the limit; `None` if it does not.
    fn overdue(&self, now: Instant) -> Option<Duration> {
        let may = if self.moved == 0 { SILENT_MAX } else { IDLE_MAX };
        now.duration_since(self.since).checked_sub(may)
    }
}

impl State {
    /// Removes the connection to close: the oldest one of the host with the most strangers.
    fn take_stranger(&mut self) -> Option<Stranger> {
        let mut of_host: HashMap<IpAddr, usize> = HashMap::new();
        self.strangers.iter().for_each(|s| *of_host.entry(s.host).or_default() += 1);
        let most = of_host.values().max().copied()?;
        let at = self.strangers.iter().position(|s| of_host[&s.host] == most)?;
        self.strangers.remove(at)
    }

    /// Closes the copy that has been without progress for the longest time, among all or those of
    /// the host `of`. Returns whether there was one over its limit.
    fn end_idle(&mut self, of: Option<IpAddr>, now: Instant) -> bool {
        self.copies.values_mut().for_each(|copy| copy.look(now));
        let held = self.copies.values_mut().filter(|c| c.place.is_some() && of.is_none_or(|host| c.host == host));
        let idle = held.filter_map(|c| Some((c.overdue(now)?, c))).max_by_key(|(overdue, _)| *overdue);
        let Some((_, copy)) = idle else { return false };
        copy.place = None;
        copy.control.stop();
        self.turned_away += 1;
        true
    }
}

impl Server {
    /// Without `keys`, all users of this host are trusted.
    pub fn new(served: Served, keys: Option<&Keys>, means: Means, verbose: bool) -> Result<Arc<Self>> {
        let tls = keys.map(|keys| proof::server_config(keys, PROTOCOL)).transpose()?;
        let (strangers_max, copies_max) = (means.strangers(), means.copies());
        let (told_max, places) = (TOLD_MAX.min(copies_max), Shares::new(copies_max));
        let (begun, state) = (Instant::now(), Mutex::default());
        Ok(Arc::new(Self { served, tls, verbose, strangers_max, told_max, places, begun, state }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves until the program ends.
    pub fn run(self: Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((socket, peer)) => self.take(socket, peer),
                Err(_) => std::thread::sleep(BREATH),
            }
        }
    }

    /// Stops all copies and waits up to [`LAST_WORK`] for them to end.
    pub fn stop(&self) {
        let begun = Instant::now();
        let mut state = self.lock();
        state.stopping = true;
        state.copies.values().for_each(|c| c.control.stop());
        drop(state);
        while begun.elapsed() < LAST_WORK && !self.lock().copies.is_empty() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Records the progress of the copies; to be called regularly.
    pub fn look(&self) {
        let mut state = self.lock();
        let now = Instant::now();
        if state.looked.is_none_or(|at| now.duration_since(at) >= LOOK_EVERY) {
            state.looked = Some(now);
            state.copies.values_mut().for_each(|copy| copy.look(now));
        }
    }

    /// A place for one more copy from this host. A copy without progress over its limit makes room.
    fn place(&self, state: &mut State, host: IpAddr) -> Option<Share> {
        let now = Instant::now();
        let mut place = self.places.of(host);
        // A host that already has places takes none from other hosts.
        let has_some = state.copies.values().any(|copy| copy.host == host && copy.place.is_some());
        let got = place.grow(1) || state.end_idle(has_some.then_some(host), now) && place.grow(1);
        got.then_some(place)
    }

    fn take(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        let Ok(held) = socket.try_clone() else { return };
        let mut state = self.lock();
        if state.stopping {
            return;
        }
        let id = state.connections;
        state.connections += 1;
        state.strangers.push_back(Stranger { id, host: host_of(peer.ip()), socket: held });
        let goes = (state.strangers.len() > self.strangers_max).then(|| state.take_stranger()).flatten();
        state.turned_away += u64::from(goes.is_some());
        drop(state);
        if let Some(stranger) = goes {
            let _ = stranger.socket.shutdown(Shutdown::Both);
        }
        let server = Arc::clone(self);
        let work = move || {
            let place = Place { server: &server, id };
            if let Err(e) = server.converse(id, socket, peer) {
                server.tell(peer, &e);
            }
            drop(place);
        };
        if std::thread::Builder::new().name("narrows-serve".into()).spawn(work).is_err() {
            self.known(id);
            std::thread::sleep(BREATH);
        }
    }

    /// Tells why a connection ended, unless there were many.
    fn tell(&self, peer: SocketAddr, error: &Error) {
        let mut state = self.lock();
        let now = Instant::now();
        let (more, may_tell) = (state.lines.left_out(now), state.lines.may_tell(now));
        drop(state);
        if let Some(more) = more {
            words::note(format_args!("{more} more connections failed in a second"));
        }
        if may_tell {
            words::note(format_args!("{peer}: {error}"));
        }
    }

    /// Whether the copy lost its place to another one, or never had one.
    fn was_ended(&self, id: u64) -> bool {
        self.lock().copies.get(&id).is_some_and(|copy| copy.place.is_none())
    }

    fn known(&self, id: u64) {
        self.lock().strangers.retain(|other| other.id != id);
    }

    fn converse(&self, id: u64, socket: TcpStream, peer: SocketAddr) -> Result<()> {
        let met = self.meet(socket, peer);
        self.known(id);
        let (request, link) = match met {
            Ok(met) => met,
            // Port scans are too common on the internet to report each.
            Err(_) if !self.verbose => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut state = self.lock();
        let (task, session) = match request {
            Request::Copy(task, session) => (*task, session),
            // A carrier that arrives too late is dropped: the copy is over, or continues without
            // it.
            Request::Join(session) => {
                let copy = state.copies.values().find(|copy| copy.session == Some(session));
                let bond = copy.and_then(|copy| copy.bond.as_ref());
                return Ok(bond.map_or(Ok(()), |bond| bond.add(link))?);
            }
            Request::Measure(task) => {
                drop(state);
                return self.measure(id, task, link, peer);
            }
        };
        let wants = watched::word(&task);
        let (link, bond) = link.bonded()?;
        let control = Arc::new(Control::default());
        let host = host_of(peer.ip());
        let place = self.place(&mut state, host);
        state.turned_away += u64::from(place.is_none());
        let told = state.copies.values().filter(|c| c.place.is_none()).count();
        if state.stopping || place.is_none() && told >= self.told_max {
            return Ok(());
        }
        let reachable = if place.is_some() { Reachable::Within(&self.served, host) } else { Reachable::Busy };
        let (moved, since) = (0, Instant::now());
        let (begun, failed) = (since, false);
        let held = Arc::clone(&control);
        let (session, bond) = (Some(session), Some(bond));
        let copy = Copy { session, bond, control: held, host, place, peer, wants, begun, failed, moved, since };
        state.copies.insert(id, copy);
        drop(state);
        let served = serve::run(task, link, Manner::Remote, &reachable, self.served.is_as_it_comes(), &control);
        if served.is_err()
            && let Some(copy) = self.lock().copies.get_mut(&id)
        {
            copy.failed = true;
        }
        if served.is_err() && self.was_ended(id) && !self.verbose {
            return Ok(());
        }
        served.map_err(|e| e.context("the copy failed"))?;
        if self.verbose {
            words::note(format_args!("{peer}: a copy is complete"));
        }
        Ok(())
    }

    /// Takes part in a measurement. It has a place as a copy has, and as it moves nothing that counts,
    /// gives it to a copy that needs one after [`SILENT_MAX`].
    fn measure(&self, id: u64, task: MeasureTask, link: Link, peer: SocketAddr) -> Result<()> {
        let (host, control) = (host_of(peer.ip()), Arc::new(Control::default()));
        let mut state = self.lock();
        let place = self.place(&mut state, host);
        state.turned_away += u64::from(place.is_none());
        let busy = place.is_none().then_some(serve::BUSY);
        if state.stopping {
            return Ok(());
        }
        if place.is_some() {
            let (begun, held) = (Instant::now(), Arc::clone(&control));
            let (session, bond, wants) = (None, None, "measures");
            let (failed, moved, since) = (false, 0, begun);
            let copy = Copy { session, bond, control: held, host, place, peer, wants, begun, failed, moved, since };
            state.copies.insert(id, copy);
        }
        drop(state);
        measure::serve(task, link, busy, &|| control.is_stopped()).map_err(|e| e.context("the measurement failed"))
    }

    /// Authenticates the client and reads its request.
    fn meet(&self, socket: TcpStream, peer: SocketAddr) -> Result<(Request, Link)> {
        let deadline = Instant::now() + PATIENCE;
        watch(&socket).blame(Error::Local)?;
        let Some(config) = &self.tls else {
            if !is_this_host(peer.ip()) {
                return Err(Error::Trust("it is not on this host".into()));
            }
            return match hello::read(UntilDeadline { socket: &socket, deadline }) {
                Ok(request) => Ok((request, Link::tcp(socket).blame(Error::Local)?)),
                Err(e) => {
                    let _ = (&socket).write_all(words(&e).as_bytes());
                    Err(e)
                }
            };
        };
        let connection = proof::server_connection(config)?;
        let session = tls::handshake(connection.into(), socket, deadline);
        let mut session = match session.as_ref().map_err(io::Error::kind) {
            Err(io::ErrorKind::PermissionDenied) => session.blame_for(Error::Trust, "the client has another token"),
            _ => session.blame_for(Error::Link, "the TLS handshake failed; it is not a narrows client"),
        }?;
        match hello::read(session.reader(deadline)) {
            Ok(request) => Ok((request, Link::tls(session).blame(Error::Local)?)),
            Err(e) => {
                let _ = session.send(words(&e).as_bytes(), deadline);
                Err(e)
            }
        }
    }
}

/// Releases what a connection holds of the limits of the server, however its thread ends.
struct Place<'a> {
    server: &'a Server,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.server.known(self.id);
        let mut state = self.server.lock();
        if let Some(copy) = state.copies.remove(&self.id) {
            state.count(&copy);
        }
    }
}

/// The error text for a client that cannot be told within the protocol; it shows the text as output
/// of the remote end.
fn words(e: &Error) -> String {
    format!("narrows serve: {e}\n")
}
