//! The gateway of a host: carries connections to servers that do not run under Narrows (format.md
//! section 11.7). A client's supervisor requests a port of this host over the service port; after
//! the answer, frames run to the client and plain bytes to the server. Until the client has
//! requested a port, its connection belongs to the agent (`agent.rs`) and costs one descriptor.
//!
//! Each connection has threads of its own: gateways are for few, long connections. Any failure on
//! either side is a reset on both, never an end of stream.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use narrows::frame::{BASELINE_HISTORY, NAMED_CODECS};
use narrows::policy::PolicySpec;
use narrows::stream::{self, Control, MESSAGE_HISTORY, ReceiveOptions, SendOptions};
use narrows::transport::Link;
use narrows::upgrade::gateway::{NO_PLACE, answer};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::agent_watch::Watched;
use narrows_host::shares::{Share, Shares};

/// Maximum connections at a time, over all hosts. Each has seven threads.
const CONNECTIONS_MAX: usize = 128;
/// Descriptors per connection.
const DESCRIPTORS: usize = 5;
/// Memory limit of one direction of a connection.
const MEMORY_MAX: usize = 4 << 20;
/// Time limit for sending the answer, which fits into any socket that nothing was sent to.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Time limit for connecting to the server. A server on this host answers at once, but a busy one
/// may not accept for a while.
const DIAL_MAX: Duration = Duration::from_secs(10);
/// Dead peers are noticed after some ten minutes, as in programs that enable keepalive.
const PROBE_AFTER: Duration = Duration::from_secs(300);

pub(crate) struct Gateways {
    /// Ports of this host that may be requested.
    allowed: BTreeSet<u16>,
    policy: PolicySpec,
    places: Shares,
    watched: Arc<Watched>,
}

impl Gateways {
    pub(crate) fn new(
        allowed: BTreeSet<u16>,
        policy: PolicySpec,
        descriptors_max: usize,
        watched: Arc<Watched>,
    ) -> Self {
        let places = Shares::new(CONNECTIONS_MAX.min(descriptors_max / DESCRIPTORS));
        Self { allowed, policy, places, watched }
    }

    /// Takes over the connection of a client at `from`, which requests `port` and waits for the
    /// answer.
    pub(crate) fn take(&self, socket: OwnedFd, from: IpAddr, port: u16) {
        // Any failure before the answer closes the connection, and the client then connects to the
        // server itself.
        let client = TcpStream::from(socket);
        let mut place = self.places.of(from);
        if !self.allowed.contains(&port) {
            // Answered as if nobody listened.
            self.watched.refused();
            refuse(&client, Errno::CONNREFUSED.raw_os_error() as u16);
        } else if !place.grow(1) {
            self.watched.refused();
            refuse(&client, NO_PLACE);
        } else {
            let (policy, watched) = (self.policy.clone(), Arc::clone(&self.watched));
            let work = move || serve(client, from, port, policy, place, &watched);
            let _ = Builder::new().name("narrows-gate".into()).spawn(work);
        }
    }
}

/// Never waits: this is the agent's thread.
fn refuse(mut client: &TcpStream, errno: u16) {
    let _ = client.write(&answer(errno));
}

fn serve(client: TcpStream, from: IpAddr, port: u16, policy: PolicySpec, place: Share, watched: &Arc<Watched>) {
    let dialed = dial(port);
    let errno = dialed.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::ETIMEDOUT) as u16);
    let told = client
        .set_nonblocking(false)
        .and_then(|()| client.set_write_timeout(Some(ANSWER_MAX)))
        .and_then(|()| (&client).write_all(&answer(errno)));
    match (dialed, told) {
        (Ok(server), Ok(())) => {
            let control = Arc::default();
            let mut entry = watched.begin(from, port, &control);
            entry.has_failed = carry_both(client, server, policy, control).unwrap_or(true);
        }
        _ => watched.refused(),
    }
    drop(place);
}

fn dial(port: u16) -> io::Result<TcpStream> {
    let at = |ip: IpAddr| TcpStream::connect_timeout(&SocketAddr::new(ip, port), DIAL_MAX);
    // A server may listen on either address; the error of the first one counts.
    at(Ipv4Addr::LOCALHOST.into()).or_else(|e| at(Ipv6Addr::LOCALHOST.into()).map_err(|_| e))
}

/// State shared by both directions, so that either can fail both.
struct Ends {
    client: TcpStream,
    server: TcpStream,
    failed: AtomicBool,
    control: Arc<Control>,
}

impl Ends {
    /// Makes both ends see a reset once the last holder of the sockets is gone. That is soon,
    /// because reads and writes fail from then on.
    fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        self.control.stop();
        for socket in [&self.client, &self.server] {
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            let _ = socket.shutdown(Shutdown::Read);
        }
    }
}

/// Reads from the server. An end of stream that `fail` caused is reported as a reset.
struct FromServer(Arc<Ends>);

impl Read for FromServer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = (&self.0.server).read(buffer)?;
        if n == 0 && self.0.failed.load(Ordering::Acquire) { Err(ErrorKind::ConnectionReset.into()) } else { Ok(n) }
    }
}

struct ToServer(Arc<Ends>);

impl Write for ToServer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0.server).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Frames with the client, plain bytes with the server, until both directions have ended. Returns
/// whether it failed.
fn carry_both(client: TcpStream, server: TcpStream, spec: PolicySpec, control: Arc<Control>) -> io::Result<bool> {
    for socket in [&client, &server] {
        socket.set_read_timeout(None)?;
        socket.set_write_timeout(None)?;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
        // A client that reads slowly is not gone.
        sockopt::set_tcp_user_timeout(socket, 0)?;
        // If this process dies, the peers must see a reset and not an end of stream.
        sockopt::set_socket_linger(socket, Some(Duration::ZERO))?;
    }
    let (write, read) = Link::tcp(client.try_clone()?)?.split();
    let ends = Arc::new(Ends { client, server, failed: AtomicBool::new(false), control });
    let there = direction(&ends, move |ends| {
        let options = ReceiveOptions::default().memory_max(MEMORY_MAX).history_max(BASELINE_HISTORY).threads(1);
        stream::receive(ToServer(Arc::clone(ends)), read, options.control(&ends.control))?;
        Ok(ends.server.shutdown(Shutdown::Write)?)
    })?;
    let back = direction(&ends, move |ends| {
        let options = SendOptions::new(spec).memory_max(MEMORY_MAX).history(MESSAGE_HISTORY).threads(1);
        // The client has said nothing of its codecs.
        let options = options.codecs(!NAMED_CODECS);
        stream::send(FromServer(Arc::clone(ends)), write, options.control(&ends.control))?;
        Ok(ends.client.shutdown(Shutdown::Write)?)
    });
    let back = match back {
        Ok(back) => back.join().is_ok(),
        Err(_) => {
            ends.fail();
            false
        }
    };
    let is_fine = there.join().is_ok() && back && !ends.failed.load(Ordering::Acquire);
    if is_fine {
        for socket in [&ends.client, &ends.server] {
            sockopt::set_socket_linger(socket, None)?;
        }
    }
    Ok(!is_fine)
}

/// Runs one direction on a thread; if it fails, both fail.
fn direction(
    ends: &Arc<Ends>,
    work: impl FnOnce(&Arc<Ends>) -> narrows::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let ends = Arc::clone(ends);
    Builder::new().name("narrows-gate".into()).spawn(move || {
        // A panic is a failure too.
        if !matches!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&ends))), Ok(Ok(()))) {
            ends.fail();
        }
    })
}
