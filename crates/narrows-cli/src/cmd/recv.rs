//! `narrows recv`: receives one stream from a `narrows send`.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};
use narrows::stream::ReceiveOptions;
use narrows::transport::Link;
use rustix::event::PollFlags;
use serde_json::{Value, json};

use crate::args::{RecvArgs, reach_max, reach_max_of_file};
use crate::files::Target;
use crate::flow;
use crate::progress::Bar;
use crate::report;
use crate::transfer::{Received, Transfer};
use narrows_host::signals;

/// Runs `narrows recv`.
pub(crate) fn run(args: &RecvArgs) -> Result<()> {
    let transfer = Transfer::begin()?;
    // Opened first, so that an output that cannot be written is reported before a sender connects.
    let target = Target::open(args.output.as_deref())?;
    let to_stdout = target.is_stdout();
    let say = |json: Value, line: String, wanted: bool| {
        match (args.verbosity.json, to_stdout) {
            (true, false) => report::out(json)?,
            (true, true) => report::note_json(&json),
            (false, _) if wanted => report::note(line),
            (false, _) => {}
        }
        anyhow::Ok(())
    };

    let cannot = || format!("cannot listen on {}", args.listen);
    let listener = TcpListener::bind(&args.listen).with_context(cannot)?;
    let address = listener.local_addr().with_context(cannot)?;
    // The sender needs the port that the system chose, so it is printed even with --quiet.
    let wanted = !args.verbosity.quiet || args.listen.ends_with(":0");
    say(json!({ "listening": address.to_string() }), format!("listening on {address}"), wanted)?;
    if !args.verbosity.quiet && !address.ip().is_loopback() {
        report::note(super::send::NOT_ENCRYPTED);
    }
    let (socket, peer) = accept(&listener)?;
    drop(listener);

    let output = target.name();
    let sink = target.sink()?;
    let bar = Bar::receiving(&transfer.control, !args.verbosity.quiet && !to_stdout);
    let options = ReceiveOptions::default()
        .threads(flow::threads(args.threads))
        .stall_timeout(flow::seconds(args.timeout))
        .reach_max(reach_max(args.long))
        .to_file(target.is_regular());
    let options = match target.stored()? {
        Some(stored) => options.read_back(stored, reach_max_of_file(args.long)),
        None => options,
    };
    let received = transfer.receive(sink, Link::tcp(socket)?, options, || target.commit(args.fsync), bar);
    let Received { summary, elapsed } = received.map_err(|e| {
        if output.is_to_blame() {
            output.blame(e)
        } else {
            anyhow::Error::from(e).context(format!("cannot receive from {peer}"))
        }
    })?;
    say(report::receive_json(&summary, elapsed), report::receive_line(&summary, elapsed), !args.verbosity.quiet)
}

fn accept(listener: &TcpListener) -> Result<(TcpStream, SocketAddr)> {
    const CANNOT: &str = "cannot accept a connection";
    listener.set_nonblocking(true).context(CANNOT)?;
    loop {
        signals::ready(listener, PollFlags::IN, None)?;
        match listener.accept() {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
            accepted => return accepted.context(CANNOT),
        }
    }
}
