//! The server of `narrows ping`: answers each message with the same message, encoded again.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use narrows_host::lines::Lines;
use narrows_host::signals;
use narrows_host::words;
use rustix::event::PollFlags;

use crate::end::End;
use crate::hello::Hello;
use crate::socket::{BufferedSocket, Place, TIMEOUT};
use crate::wire::Wire;

/// Maximum number of connections, enough for a dozen clients: a client has one for each of its
/// methods, about twenty.
const CONNECTIONS_MAX: usize = 256;
/// Time limit between two messages. Meanwhile the client sends with its other methods, perhaps over
/// a slow link.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// Interval at which the server checks whether the last client has gone.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Pause after an `accept` that failed for lack of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A listening server.
pub struct Server {
    listener: ListenSocket,
    open: Arc<AtomicUsize>,
    quiet: bool,
    lines: Arc<Mutex<Lines>>,
}

impl Server {
    /// Listens on an address.
    ///
    /// # Errors
    /// The address cannot be had.
    pub fn bind(place: &Place, quiet: bool) -> Result<Self> {
        let cannot = || format!("cannot listen on {place}");
        let listener = match place {
            Place::Tcp(address) => ListenSocket::Tcp(TcpListener::bind(address).with_context(cannot)?),
            Place::Unix(path) => {
                // Removes the socket of a killed server.
                if UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
                    let _ = fs::remove_file(path);
                }
                ListenSocket::Unix(UnixListener::bind(path).with_context(cannot)?, path.clone())
            }
        };
        match &listener {
            ListenSocket::Tcp(l) => l.set_nonblocking(true),
            ListenSocket::Unix(l, _) => l.set_nonblocking(true),
        }
        .with_context(cannot)?;
        Ok(Self { listener, open: Arc::default(), quiet, lines: Arc::default() })
    }

    /// The TCP address; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.listener {
            ListenSocket::Tcp(l) => l.local_addr().ok(),
            ListenSocket::Unix(..) => None,
        }
    }

    /// Serves until a signal arrives, or with `once` until the first client and all that connected
    /// meanwhile have gone.
    ///
    /// # Errors
    /// A signal came.
    pub fn run(&self, once: bool) -> Result<()> {
        let mut served = false;
        loop {
            if once && served && self.open.load(Ordering::Acquire) == 0 {
                return Ok(());
            }
            if let Some(more) = lock(&self.lines).left_out(Instant::now()).filter(|_| !self.quiet) {
                words::note(format_args!("{more} more clients failed in a second"));
            }
            if !signals::ready(self, PollFlags::IN, Some(LOOK_EVERY))? {
                continue;
            }
            match self.accept() {
                Ok((socket, from)) => {
                    served = true;
                    self.begin(socket, from);
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
                Err(e) => {
                    words::note(format_args!("cannot accept a connection: {}", words::one_line(&anyhow!(e))));
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    fn accept(&self) -> io::Result<(BufferedSocket, String)> {
        match &self.listener {
            ListenSocket::Tcp(l) => {
                let (socket, from) = l.accept()?;
                Ok((BufferedSocket::tcp(socket)?, from.to_string()))
            }
            ListenSocket::Unix(l, path) => {
                let (socket, _) = l.accept()?;
                Ok((BufferedSocket::unix(socket)?, format!("unix:{}", path.display())))
            }
        }
    }

    fn begin(&self, mut socket: BufferedSocket, from: String) {
        let place = Counted::new(&self.open);
        let is_full = self.open.load(Ordering::Acquire) > CONNECTIONS_MAX;
        let (quiet, lines) = (self.quiet, Arc::clone(&self.lines));
        let serve = move || {
            let _place = place;
            let served =
                if is_full { refuse(&mut socket, &anyhow!("too many connections")) } else { connection(socket) };
            if let Err(error) = served
                && !quiet
                && lock(&lines).may_tell(Instant::now())
            {
                words::note(format_args!("{from}: {}", words::one_line(&error)));
            }
        };
        if let Err(e) = std::thread::Builder::new().name("narrows-ping".into()).spawn(serve) {
            words::note(format_args!("cannot start a thread for a client: {}", words::one_line(&anyhow!(e))));
        }
    }
}

fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Server {
    fn drop(&mut self) {
        if let ListenSocket::Unix(_, path) = &self.listener {
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.listener {
            ListenSocket::Tcp(l) => l.as_fd(),
            ListenSocket::Unix(l, _) => l.as_fd(),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.listener, self.address()) {
            (ListenSocket::Unix(_, path), _) => write!(f, "unix:{}", path.display()),
            (_, Some(address)) => address.fmt(f),
            (_, None) => f.write_str("an unknown address"),
        }
    }
}

/// Counts an open connection until it is dropped, however its thread ends.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(open))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn refuse(socket: &mut BufferedSocket, error: &anyhow::Error) -> Result<()> {
    Hello::answer(socket, Some(&words::one_line(error)))?;
    // Further data is read, because closing with unread data would reset the connection before the
    // client has read the reason.
    let begun = Instant::now();
    while begun.elapsed() < TIMEOUT && socket.more(Duration::from_secs(1)).unwrap_or(false) {
        socket.take(usize::MAX);
    }
    Ok(())
}

fn connection(mut socket: BufferedSocket) -> Result<()> {
    let begun = Hello::hear(&mut socket).and_then(|hello| {
        let Some(hello) = hello else { return Ok(None) };
        let end = hello.method.map(|method| End::new(&hello, method, true)).transpose()?;
        socket.poll(hello.polls && end.is_some());
        Ok(Some((hello.wire, end)))
    });
    let (wire, end) = match begun {
        Ok(Some(begun)) => begun,
        Ok(None) => return Ok(()),
        Err(error) => {
            refuse(&mut socket, &error)?;
            return Err(error.context("refused"));
        }
    };
    Hello::answer(&mut socket, None)?;
    match end {
        Some(end) => echo(socket, end, wire),
        None => {
            // The connection stays open as long as the client runs.
            ensure!(!socket.more(IDLE_MAX)?, "the client sent messages on a connection without a method");
            Ok(())
        }
    }
}

fn echo(mut socket: BufferedSocket, mut end: End, wire: Option<Wire>) -> Result<()> {
    let (mut message, mut out) = (Vec::new(), Vec::new());
    loop {
        let is_between = socket.came().is_empty();
        if !socket.more(if is_between { IDLE_MAX } else { TIMEOUT })? {
            return Ok(());
        }
        loop {
            let (taken, is_whole) = end.decode(socket.came(), &mut message)?;
            socket.take(taken);
            if !is_whole {
                break;
            }
            out.clear();
            let (ready, _) = end.encode(&message, Instant::now(), &mut out)?;
            if let Some(wire) = wire {
                wire.hold(out.len(), ready);
            }
            socket.write(&out)?;
        }
    }
}
