//! `narrows send`: one stream to a `narrows recv`.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use narrows::stream::{self, Control};
use narrows::transport::Link;

use crate::args::SendArgs;
use crate::flow::{self, Source};
use crate::host::{self, Background};
use crate::progress::Bar;
use crate::report::{self, PeerFlow};

/// One try to connect takes this long at most; the system's own limit is minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &SendArgs) -> Result<()> {
    let address = args
        .to
        .strip_prefix("tcp://")
        .ok_or_else(|| narrows::Error::misuse(format!("'{}' is not an address such as tcp://HOST:PORT", args.to)))?;
    let source = Source::open(Some(&args.file))?;
    let calibration = host::load(args.talk.verbose);
    let mut options = flow::send_options(&args.flow, calibration.as_ref(), args.timeout)?;
    options.sender.check = !args.no_check;
    options.sender.raw_len = source.len();
    let control = Arc::new(Control::default());
    flow::stop_on_signals(&control)?;
    let socket = connect(address, Duration::from_secs_f64(args.retry_connect.clamp(0.0, 1e6)))?;
    warn_if_public(&socket, args.talk.quiet);

    let bar = Bar::sending(&control, source.len(), !args.talk.quiet);
    let background = Background::start(calibration.is_none());
    let begun = Instant::now();
    let sent = stream::send(source, Link::tcp(socket)?, options, &control);
    let elapsed = begun.elapsed();
    bar.end();
    background.end();
    let (summary, policy) = sent.map_err(|e| anyhow::Error::from(e).context(PeerFlow("the transfer failed")))?;
    host::refresh(calibration, &policy.learned(), args.talk.verbose);
    if args.talk.json {
        println!("{}", report::send_json(&summary, elapsed));
    } else if !args.talk.quiet {
        eprintln!("{}", report::line(&summary, elapsed));
    }
    Ok(())
}

fn connect(address: &str, retry: Duration) -> Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match try_connect(address) {
            Ok(socket) => return Ok(socket),
            Err(e) if begun.elapsed() >= retry => {
                return Err(e)
                    .with_context(|| format!("cannot connect to {address}; does `narrows recv` listen there?"));
            }
            Err(_) => std::thread::sleep(RETRY_EVERY),
        }
    }
}

fn try_connect(address: &str) -> Result<TcpStream> {
    let mut last = anyhow!("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(socket) => return Ok(socket),
            Err(e) => last = e.into(),
        }
    }
    Err(last)
}

pub(crate) fn warn_if_public(socket: &TcpStream, quiet: bool) {
    if !quiet && socket.peer_addr().is_ok_and(|a| !a.ip().is_loopback()) {
        eprintln!(
            "narrows: warning: this connection is neither encrypted nor authenticated; anybody on its way can read and change it"
        );
    }
}
