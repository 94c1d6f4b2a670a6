//! `narrows recv`: one stream from a `narrows send`.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use narrows::receiver::ReceiverConfig;
use narrows::stream::{self, Control, ReceiveOptions};
use narrows::transport::Link;
use serde_json::json;

use crate::args::RecvArgs;
use crate::cmd::send::warn_if_public;
use crate::flow::{self, Target};
use crate::progress::Bar;
use crate::report::{self, PeerFlow};

pub(crate) fn run(args: &RecvArgs) -> Result<()> {
    // What cannot be written is told before anybody connects. The temporary file is made when somebody has: until then
    // a signal simply ends the program, and nothing is left behind.
    let to_stdout = matches!(Target::open(args.output.as_deref())?, Target::Stdout);
    let listener = TcpListener::bind(&args.listen).with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let say = |json: serde_json::Value, line: String| {
        if args.talk.json && to_stdout {
            eprintln!("{json}");
        } else if args.talk.json {
            println!("{json}");
        } else if !args.talk.quiet {
            eprintln!("{line}");
        }
    };
    say(json!({ "listening": address.to_string() }), format!("narrows: listening on {address}"));
    let control = Arc::new(Control::default());
    let (socket, _) = listener.accept().context("cannot accept a connection")?;
    drop(listener);
    flow::stop_on_signals(&control)?;
    let target = Target::open(args.output.as_deref())?;
    warn_if_public(&socket, args.talk.quiet);

    let bar = Bar::receiving(&control, !args.talk.quiet && !to_stdout);
    let options = ReceiveOptions {
        receiver: ReceiverConfig::default(),
        threads: flow::threads(args.threads),
        stall_timeout: flow::seconds(args.timeout),
    };
    let begun = Instant::now();
    let sink = target.file()?;
    let received = stream::receive(sink, Link::tcp(socket)?, options, || target.commit(args.fsync), &control);
    let elapsed = begun.elapsed();
    bar.end();
    let summary = received.map_err(|e| {
        let closed = e.source.as_ref().is_some_and(|s| s.kind() == std::io::ErrorKind::BrokenPipe);
        let error = anyhow::Error::from(e);
        if closed && to_stdout {
            error.context(flow::StdoutClosed)
        } else {
            error.context(PeerFlow("the transfer failed"))
        }
    })?;
    say(report::receive_json(&summary, elapsed), report::receive_line(&summary, elapsed));
    Ok(())
}
