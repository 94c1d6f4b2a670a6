//! `narrows serve`: the remote end of `narrows cp`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use narrows::stream::Control;
use narrows::transport::Link;
use narrows_copy::carriers;
use narrows_copy::direct::listener::{Means, Server};
use narrows_copy::hello::{self, Request, Task};
use narrows_copy::measure;
use narrows_copy::serve::{self, Manner, Reachable};
use narrows_copy::served::Served;
use narrows_host::bound::Bound;
use narrows_host::manager::Manager;
use narrows_host::{means, signals};
use narrows_trust::keys::{self, Keys};
use narrows_watch::copy::{OneCopy, publish_copy};
use narrows_watch::page::{self, Metrics};
use narrows_watch::{Describe, logs, outlet};
use serde_json::json;

use crate::args::ServeArgs;
use crate::{files, report};

/// Interval at which signals are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Connections that may wait to be accepted, as the standard library has it.
const BACKLOG: i32 = 128;

/// Runs `narrows serve`.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    match &args.listen {
        Some(address) => listen(args, address),
        None if args.stdio => stdio(args.store_as_is),
        None => Err(narrows::Error::misuse(
            "serve needs --listen HOST:PORT and --dir DIR, the folder to serve; or --stdio, as `cp` starts it",
        )
        .into()),
    }
}

fn stdio(as_is: bool) -> Result<()> {
    let (input, output) = (files::stdin()?, files::stdout()?);
    let (task, session) = match hello::read(&input)? {
        Request::Copy(task, session) => (*task, session),
        Request::Join(session) => return Ok(carriers::join(session, &input, &output)?),
        Request::Measure(task) => {
            return match measure::serve(task, Link::pipes(output, input), None, &|| false) {
                // The client is gone, by a signal too; what else is wrong with the link it says itself.
                Err(narrows_copy::Error::Link(_)) => Ok(()),
                served => Ok(served?),
            };
        }
    };
    means::allow_descriptors();
    let (link, bond) = Link::pipes(output, input).bonded()?;
    // If this fails, the copy has one carrier.
    let _ = carriers::accept(session, bond);
    let control = Arc::new(Control::default());
    let (program, peer, control_seen) = ("--stdio".into(), "the client".into(), Arc::clone(&control));
    let outcome = if matches!(task, Task::Put { .. }) { "stores" } else { "reads" };
    let copy = OneCopy { kind: "serve", program, peer, accepted: true, outcome, control: control_seen };
    publish_copy(copy, || None);
    serve::run(task, link, Manner::Remote, &Reachable::Everything, as_is, &control).map_err(|e| {
        // The client reports the failure to the user; stderr is for failures that it could not be
        // told.
        if serve::was_told(&e) { report::Told.into() } else { e.context("the copy failed").into() }
    })
}

fn listen(args: &ServeArgs, address: &str) -> Result<()> {
    logs::start("serve", &args.watch.log(), logs::usual(args.verbosity.quiet, args.verbosity.verbose))?;
    // Its threads tell things while they hold places.
    outlet::start(false)?;
    let metrics = Metrics::bind(args.watch.metrics.as_deref())?;
    let dir = args.dir.as_deref().context("--listen needs --dir, the folder to serve")?;
    let served = Served::open(dir, args.read_only).with_context(|| format!("cannot serve {}", dir.display()))?;
    let served = served.with_set_id(args.set_id).as_it_comes(args.store_as_is);
    let keys = if args.insecure { None } else { Some(load_keys(args)?) };
    let means = Means { memory: means::memory(), descriptors: means::descriptors() };
    let server = Server::new(served, keys.as_ref(), means, args.verbosity.verbose)?;

    let cannot = || format!("cannot listen on {address}");
    let socket = Bound::to(address).with_context(cannot)?;
    let bound = socket.address().with_context(cannot)?;
    ensure!(
        keys.is_some() || bound.ip().is_loopback(),
        "--insecure serves this host only; listen on 127.0.0.1 or [::1]"
    );
    let mut token = keys.as_ref().map(Keys::token).transpose()?.map(|t| t.to_string());
    // Before the port answers: whoever waits for the port finds the file. It has its address already, so that
    // nothing is written for a port of another server.
    if let Some((path, text)) = args.token_out.as_ref().zip(token.take_if(|_| args.token_out.is_some())) {
        keys::write_token(path, &text).with_context(|| format!("the token file {}", path.display()))?;
    }
    let listener = socket.listen(BACKLOG).with_context(cannot)?;
    let control = Arc::new(Control::default());
    signals::stop(&control)?;
    if args.verbosity.json {
        report::out(json!({ "listening": bound.to_string(), "token": token }))?;
    } else {
        // Clients need the port that the system chose, so it is printed even with --quiet.
        if !args.verbosity.quiet || address.ends_with(":0") {
            report::note(format_args!("serving {} on {bound}", dir.display()));
        }
        if let Some(token) = token.filter(|_| !args.verbosity.quiet) {
            report::out(token)?;
            if keys::is_for_others(std::io::stdout()) {
                report::note(
                    "the token was written to a file that other users may read, which cp refuses; use --token-out FILE",
                );
            }
        }
    }
    if rustix::process::geteuid().is_root() && !args.read_only {
        report::note("serving as root: whoever has the token can write programs that run as root; use another user");
    }
    let (described, program) = (Arc::clone(&server), dir.display().to_string());
    let describe: Describe = Arc::new(move || described.status(&program));
    page::publish(&describe);
    let metrics = metrics.start(&describe)?;
    if let Some(metrics) = metrics {
        page::tell(&metrics, args.verbosity.quiet);
    }
    let serving = Arc::clone(&server);
    std::thread::Builder::new().name("narrows-accept".into()).spawn(move || serving.run(&listener))?;
    let manager = Manager::of_process();
    manager.ready(&format!("serving {} on {bound}", dir.display()));
    loop {
        if let Some(signal) = signals::received() {
            manager.stopping("");
            server.stop();
            outlet::end();
            signals::die_of(signal);
        }
        server.look();
        std::thread::sleep(LOOK_EVERY);
    }
}

fn load_keys(args: &ServeArgs) -> Result<Keys> {
    let path = args.key_file.clone().map_or_else(|| keys::path_of_user(keys::SERVE), Ok)?;
    Ok(Keys::load(&path)?)
}
