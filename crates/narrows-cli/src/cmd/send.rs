//! `narrows send`: sends one stream to a `narrows recv`.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use narrows::transport::Link;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use crate::args::{SendArgs, parse_address, reach};
use crate::files::{self, Source};
use crate::progress::Bar;
use crate::report;
use crate::transfer::Transfer;
use narrows_host::peers::Peer;
use narrows_host::signals;

/// Warning for connections that leave this host.
pub(crate) const NOT_ENCRYPTED: &str = "warning: this connection is neither encrypted nor authenticated; anybody on its \
                                        way can read and change it";

/// Time limit of one attempt to connect; the system's own limit is minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to connect.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// Runs `narrows send`.
pub(crate) fn run(args: &SendArgs) -> Result<()> {
    let address = args.to.strip_prefix("tcp://").filter(|address| parse_address(address).is_ok());
    let address = address
        .ok_or_else(|| narrows::Error::misuse(format!("'{}' is not an address; write tcp://HOST:PORT", args.to)))?;
    let transfer = Transfer::begin()?;
    files::refuse_same(&args.file, [args.flow.trace.as_deref()])?;
    let source = Source::open(Some(&args.file))?;
    let sending = transfer.sending(args.flow.clone(), args.verbosity.verbose, true);
    let sending = sending.with_peer(args.memory.of(|| peer(address)));
    let options = sending.options(args.timeout)?.check(!args.no_check).raw_len(source.raw_len());
    let options = options.from_file(source.is_regular()).reach(reach(args.long));
    let options = match source.stored()? {
        Some(stored) => options.read_back(stored),
        None => options,
    };
    let socket = connect(address, Duration::from_secs_f64(args.retry_connect))?;
    if !args.verbosity.quiet && socket.peer_addr().is_ok_and(|a| !a.ip().is_loopback()) {
        report::note(NOT_ENCRYPTED);
    }

    let (input, witness) = (source.name(), source.witness()?);
    let bar = Bar::sending(&transfer.control, source.raw_len(), !args.verbosity.quiet);
    let sent = sending.send(source, Link::tcp(socket)?, options, bar).map_err(|e| {
        if input.is_to_blame() {
            input.blame(e)
        } else {
            anyhow::Error::from(e).context(format!("cannot send to {address}"))
        }
    })?;
    sending.finish(&sent)?;
    witness.is_unchanged().context("what was sent is stored there")?;
    if args.verbosity.json {
        report::out(report::send_json(&sent.summary, sent.elapsed))?;
    } else if !args.verbosity.quiet {
        report::note(report::line(&sent.summary, sent.elapsed));
    }
    Ok(())
}

/// The peer at a valid `HOST:PORT`.
fn peer(address: &str) -> Option<Peer> {
    let (host, port) = address.rsplit_once(':')?;
    Some(Peer::tcp(host, port.parse().ok()?))
}

fn connect(address: &str, retry: Duration) -> Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match try_connect(address) {
            Ok(socket) => return Ok(socket),
            Err(e) if signals::received().is_some() => return Err(e),
            Err(e) if begun.elapsed() >= retry => {
                return Err(e)
                    .with_context(|| format!("cannot connect to {address}; does `narrows recv` listen there?"));
            }
            Err(_) => std::thread::sleep(RETRY_EVERY),
        }
    }
}

fn try_connect(address: &str) -> Result<TcpStream> {
    let found = match address.parse() {
        Ok(address) => vec![address],
        Err(_) => {
            let name = address.to_owned();
            signals::interruptible(move || name.to_socket_addrs())??.collect()
        }
    };
    let mut last = anyhow!("the name has no address");
    for address in found {
        match connect_to(address) {
            // If nobody listens on a local port, the system may assign it to this socket, which
            // then connects to itself.
            Ok(socket) if socket.local_addr().is_ok_and(|own| own == address) => bail!("nobody listens there"),
            Ok(socket) => return Ok(socket),
            Err(e) => last = e,
        }
    }
    Err(last)
}

fn connect_to(address: SocketAddr) -> Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            if !signals::ready(&socket, PollFlags::OUT, Some(CONNECT_TIMEOUT))? {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            sockopt::socket_error(&socket)?.map_err(io::Error::from)?;
        }
        Err(e) => return Err(io::Error::from(e).into()),
    }
    let socket = TcpStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}
