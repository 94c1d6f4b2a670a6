//! The server of direct copies: accepts, checks who is there, and serves one folder.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use narrows::stream::Control;
use narrows::transport::bond::Bond;
use narrows::transport::{Link, tls};
use rustls::ServerConfig;

use super::keys::Keys;
use super::{PATIENCE, UntilDeadline, is_this_host, proof, watch};
use crate::copy::hello::{self, Request, Session};
use crate::copy::serve::{self, Manner, Reachable};
use crate::copy::served::Served;
use crate::report;

/// Connections that have not proved who they are. Beyond it the oldest has to go, so that those who only wait keep nobody
/// out; each costs a thread and two descriptors.
const STRANGERS_MAX: usize = 128;
/// Copies at a time: each has threads and buffers of some 20 MiB.
const COPIES_MAX: usize = 64;
/// Clients at a time that are told so when there are as many copies; others are let go without a word.
const TOLD_MAX: usize = 16;
/// No descriptor or thread was free; some copy will end.
const BREATH: Duration = Duration::from_millis(100);
/// Copies that are stopped bring what is whole to the disk.
const LAST_WORK: Duration = Duration::from_secs(3);

pub(crate) struct Server {
    served: Served,
    /// `None`: everybody on this host is trusted.
    tls: Option<Arc<ServerConfig>>,
    verbose: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stopping: bool,
    connections: u64,
    strangers: VecDeque<(u64, TcpStream)>,
    copies: HashMap<u64, Copy>,
}

struct Copy {
    session: Session,
    bond: Bond,
    control: Arc<Control>,
}

impl Server {
    /// `keys`: none if everybody on this host is trusted.
    pub(crate) fn new(served: Served, keys: Option<&Keys>, verbose: bool) -> Result<Arc<Self>> {
        let tls = keys.map(proof::server).transpose()?;
        Ok(Arc::new(Self { served, tls, verbose, state: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves until the program ends.
    pub(crate) fn run(self: Arc<Self>, listener: &TcpListener) {
        loop {
            match listener.accept() {
                Ok((socket, peer)) => self.take(socket, peer),
                Err(_) => std::thread::sleep(BREATH),
            }
        }
    }

    /// Ends the copies in order.
    pub(crate) fn stop(&self) {
        let begun = Instant::now();
        let mut state = self.lock();
        state.stopping = true;
        state.copies.values().for_each(|c| c.control.stop());
        drop(state);
        while begun.elapsed() < LAST_WORK && !self.lock().copies.is_empty() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn take(self: &Arc<Self>, socket: TcpStream, peer: SocketAddr) {
        let Ok(held) = socket.try_clone() else { return };
        let mut state = self.lock();
        if state.stopping {
            return;
        }
        let id = state.connections;
        state.connections += 1;
        state.strangers.push_back((id, held));
        let oldest = (state.strangers.len() > STRANGERS_MAX).then(|| state.strangers.pop_front());
        drop(state);
        if let Some(Some((_, socket))) = oldest {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let server = Arc::clone(self);
        let work = move || {
            let place = Place { server: &server, id };
            if let Err(e) = server.converse(id, socket, peer) {
                report::note(format_args!("{peer}: {}", report::one_line(&e)));
            }
            drop(place);
        };
        if std::thread::Builder::new().name("narrows-serve".into()).spawn(work).is_err() {
            self.known(id);
            std::thread::sleep(BREATH);
        }
    }

    fn known(&self, id: u64) {
        self.lock().strangers.retain(|(other, _)| *other != id);
    }

    fn converse(&self, id: u64, socket: TcpStream, peer: SocketAddr) -> Result<()> {
        let met = self.meet(socket, peer);
        self.known(id);
        let (request, link) = match met {
            Ok(met) => met,
            // The internet is full of them.
            Err(_) if !self.verbose => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut state = self.lock();
        let (task, session) = match request {
            Request::Copy(task, session) => (task, session),
            // One that comes too late is dropped; the copy is over or does without.
            Request::Join(session) => {
                let copy = state.copies.values().find(|copy| copy.session == session);
                return Ok(copy.map_or(Ok(()), |copy| copy.bond.add(link))?);
            }
        };
        let (link, bond) = link.bonded()?;
        let control = Arc::new(Control::default());
        let copies = state.copies.len();
        if state.stopping || copies >= COPIES_MAX + TOLD_MAX {
            return Ok(());
        }
        let full = copies >= COPIES_MAX;
        state.copies.insert(id, Copy { session, bond, control: Arc::clone(&control) });
        drop(state);
        let reachable = if full { Reachable::Busy } else { Reachable::Within(&self.served) };
        serve::run(task, link, Manner::Remote, &reachable, &control).context("the copy failed")?;
        if self.verbose {
            report::note(format_args!("{peer}: a copy is complete"));
        }
        Ok(())
    }

    /// Checks who is there, and reads what is wanted.
    fn meet(&self, socket: TcpStream, peer: SocketAddr) -> Result<(Request, Link)> {
        let deadline = Instant::now() + PATIENCE;
        watch(&socket)?;
        let Some(config) = &self.tls else {
            ensure!(is_this_host(peer.ip()), "it is not on this host");
            return match hello::read(UntilDeadline { socket: &socket, deadline }) {
                Ok(request) => Ok((request, Link::tcp(socket)?)),
                Err(e) => {
                    let _ = (&socket).write_all(words(&e).as_bytes());
                    Err(e)
                }
            };
        };
        let connection = proof::server_connection(config)?;
        let mut session = tls::handshake(connection.into(), socket, deadline).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => anyhow::Error::from(e).context("it has another token"),
            _ => anyhow::Error::from(e).context("it does not speak TLS as a client of this program does"),
        })?;
        match hello::read(session.reader(deadline)) {
            Ok(request) => Ok((request, Link::tls(session)?)),
            Err(e) => {
                let _ = session.send(words(&e).as_bytes(), deadline);
                Err(e)
            }
        }
    }
}

/// What a connection has of the server's limits, whatever becomes of its thread.
struct Place<'a> {
    server: &'a Server,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.server.known(self.id);
        self.server.lock().copies.remove(&self.id);
    }
}

/// For a client that cannot be told within the protocol: it shows this as what the remote end says.
fn words(e: &anyhow::Error) -> String {
    format!("narrows serve: {}\n", report::one_line(e))
}
