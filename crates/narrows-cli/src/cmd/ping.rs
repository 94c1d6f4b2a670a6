//! `narrows ping`: measures round trips of messages.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use narrows::Error;
use narrows::stream::Control;
use narrows_host::signals;
use narrows_ping::client::Client;
use narrows_ping::messages::{self, Set};
use narrows_ping::method::Method;
use narrows_ping::server::Server;
use narrows_ping::show::Measured;
use narrows_ping::socket::Place;
use narrows_ping::wire::Wire;
use narrows_ping::{dictionary, hello};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::json;

use crate::args::ping::PingArgs;
use crate::{files, report};

/// Maximum number of round trips of a run; each is kept until the end, in 8 bytes.
const TRIPS_MAX: usize = 20_000_000;
/// Maximum total length of generated messages, the same as for a file of messages.
const MADE_UP_MAX: usize = 256 << 20;
/// Default message sizes in bytes.
const SIZES: [usize; 4] = [500, 700, 1000, 1400];

/// Runs `narrows ping`, as client or server.
pub(crate) fn run(args: &PingArgs) -> Result<()> {
    if let Some(core) = args.core {
        let mut only = CpuSet::new();
        only.set(usize::from(core));
        sched_setaffinity(None, &only).with_context(|| format!("cannot run on core {core}"))?;
    }
    match (&args.serve, &args.to) {
        (Some(place), _) => serve(args, place),
        (None, Some(place)) => measure(args, place),
        (None, None) => Err(Error::misuse("the address of the server is missing").into()),
    }
}

fn serve(args: &PingArgs, place: &Place) -> Result<()> {
    signals::stop(&Arc::new(Control::default()))?;
    let server = Server::bind(place, args.quiet)?;
    if args.json {
        report::out(json!({ "listening": server.to_string() }))?;
    } else if !args.quiet || server.address().is_some_and(|a| !place.to_string().ends_with(&format!(":{}", a.port()))) {
        // Clients need the port that the system chose, so it is printed even with --quiet.
        report::note(format_args!("listening on {server}"));
    }
    if !args.quiet && server.address().is_some_and(|a| !a.ip().is_loopback()) {
        report::note(super::send::NOT_ENCRYPTED);
    }
    server.run(args.once)
}

fn measure(args: &PingArgs, place: &Place) -> Result<()> {
    for input in args.dict.iter().chain(&args.messages) {
        files::refuse_same(input, [args.trace.as_deref()])?;
    }
    let dictionary = args.dict.as_deref().map(dictionary::load).transpose()?;
    let client = Client {
        place: place.clone(),
        methods: Method::parse_list(&args.methods, dictionary.is_some())?,
        policy: hello::policy(&args.policy.to_string())?,
        history: args.history,
        dictionary,
        wire: args.link_rate.map(|bits_per_s| Wire { bits_per_s, hops: args.hops }),
        polls: args.poll,
        rounds: usize::from(args.rounds),
        trace: args.trace.as_deref().map(files::create).transpose()?,
    };
    let sets = sets(args)?;
    let count: usize = sets.iter().map(|s| s.messages.len()).sum();
    let trips = count * client.methods.len() * client.rounds;
    if trips > TRIPS_MAX {
        return Err(Error::misuse(format!(
            "{trips} round trips exceed the limit of {TRIPS_MAX}; reduce --count, --rounds, --sizes or --methods"
        ))
        .into());
    }
    let here = client.announce()?;
    if !args.quiet && here.leaves_host() {
        report::note(super::send::NOT_ENCRYPTED);
    }
    let bar = bar(trips, args.quiet);
    let mut measured = Vec::new();
    for (i, set) in sets.iter().enumerate() {
        let trips = client.measure(set, &|n| bar.inc(n)).with_context(|| format!("cannot ping {place}"))?;
        let of = Measured { set, trips };
        if !args.json {
            let table =
                bar.suspend(|| report::out(format_args!("{}{}", if i == 0 { "" } else { "\n" }, of.table(&client))));
            table?;
        }
        measured.push(of);
    }
    bar.finish_and_clear();
    drop(here);
    if !args.json {
        return Ok(());
    }
    let link = client.wire.map(|w| json!({ "emulated": true, "bits_per_s": w.bits_per_s, "hops": w.hops }));
    report::out(json!({
        "to": place.to_string(),
        "link": link.unwrap_or_else(|| json!({ "emulated": false })),
        "polls": client.polls,
        "rounds": client.rounds,
        "history": client.history,
        "dictionary_bytes": client.dictionary.as_ref().map(|d| d.content().len()),
        "policy": client.policy.to_string(),
        "sets": measured.iter().map(|m| m.json(&client)).collect::<Vec<_>>(),
    }))
}

fn sets(args: &PingArgs) -> Result<Vec<Set>> {
    let count = args.count as usize;
    let sizes = match (&args.messages, &args.sizes[..]) {
        (None, []) => &SIZES,
        (_, sizes) => sizes,
    };
    let source = match &args.messages {
        Some(path) => messages::read(path, args.lines)?,
        None => {
            let len = count.saturating_mul(sizes.iter().copied().max().unwrap_or(0)).max(1);
            ensure!(len <= MADE_UP_MAX, Error::misuse("the messages exceed 256 MiB; reduce --count or --sizes"));
            messages::made_up(len)
        }
    };
    let sets = messages::sets(&source, sizes, count)?;
    for set in sets.iter().filter(|s| s.messages.len() < count && !args.quiet) {
        let n = report::count(set.messages.len(), "message", "messages");
        let size = set.size.map_or(String::new(), |s| format!(" of {}", report::count(s, "byte", "bytes")));
        report::note(format_args!("the input has only {n}{size}"));
    }
    Ok(sets)
}

fn bar(trips: usize, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(trips as u64);
    let template = "{bar:16.cyan} {human_pos}/{human_len} round trips ETA {eta}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
