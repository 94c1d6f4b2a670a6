//! `narrows tunnel`: connections of one network that continue in another.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_trust::keys;
use narrows_host::{calibration, means, signals, words};
use narrows_trust::ends::Client;
use narrows_tunnel::Tunnel;
use narrows_tunnel::engine;
use narrows_tunnel::forward::{self, Forward};
use narrows_tunnel::limits::FLOWS_MAX;
use narrows_tunnel::reason::Reason;
use narrows_tunnel::rules::Rules;
use narrows_tunnel::session::Timing;
use narrows_tunnel::settings::{BeforeListening, Change, Report, Settings, Trust, Uplink};
use narrows_watch::page::Metrics;
use narrows_watch::{logs, outlet};
use rustls::pki_types::ServerName;
use serde_json::json;

use crate::args::tunnel::{TunnelArgs, TunnelCommand};
use crate::{files, report};

mod config;
mod known;
mod proof;
mod renewal;
mod seen;
mod service;

use renewal::Renewal;
use service::Service;

/// Default port of an acceptor; not assigned by IANA.
pub(crate) const PORT: u16 = 7702;
/// Interval at which signals are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Connections with the other end that are kept open: one for calm flows, one that bulk finds.
const CARRIERS: u8 = 2;
/// Descriptors for everything but connections.
const DESCRIPTORS_KEPT: usize = 256;

/// Runs `narrows tunnel` until it is over or a signal comes.
pub(crate) fn run(flags: &TunnelArgs) -> Result<ExitCode> {
    if let Some(TunnelCommand::CheckConfig { file }) = &flags.command {
        return config::check(file);
    }
    let args = match config::with_file(flags) {
        Ok(args) => args,
        Err(faults) => return Ok(faults.tell()),
    };
    let args = &args;
    logs::start("tunnel", &args.watch.log(), logs::usual(args.quiet, args.verbose))?;
    outlet::start(args.json)?;
    let metrics = Metrics::bind(args.watch.metrics.as_deref())?;
    let mut renewal = Renewal::new(flags, args)?;
    let mut settings = settings(args)?;
    settings.tells_ends = logs::is_on();
    let (mut token, mut trust) = (None, Trust::default());
    if let Some(address) = &args.listen {
        let proof = proof::server(args)?;
        (token, trust) = (proof.token, proof.trust);
        settings.listen = resolve(address)?.into_iter().map(|a| (a, Arc::clone(&proof.config))).collect();
    }
    if let Some(to) = &args.to {
        let (uplink, of_server) = uplink(args, to)?;
        (settings.uplink, trust) = (Some(uplink), of_server);
    }
    if args.stdio {
        settings.stdio = Some(relay_stdio()?.into());
    }
    // Before the port answers: whoever waits for the port finds the file.
    let file = args.token_out.clone().zip(token.clone());
    settings.before_listening = file.map(|(path, text)| -> BeforeListening {
        Box::new(move || {
            let written = keys::write_token(&path, &text);
            let about = || format!("the token file {}", path.display());
            written.with_context(about).map_err(|e| io::Error::other(report::one_line(&e)))
        })
    });
    let mut service = Service::start(args)?;
    let tunnel = Tunnel::start(settings)?;
    service.watches(&tunnel);
    seen::begin(args, &tunnel, metrics)?;
    renewal.has_read(trust, token.clone());
    let stopped = Stopped::watch(renewal.hears_hangup())?;
    if let Some(token) = token.filter(|_| !args.quiet && args.token_out.is_none()) {
        tell_token(args, &token)?;
    }
    service.listens(args);
    watch(&tunnel, &stopped, &mut renewal, &mut service)
}

fn settings(args: &TunnelArgs) -> Result<Settings> {
    let forwards = |texts: &[String]| texts.iter().map(|t| Forward::parse(t)).collect::<narrows::Result<Vec<_>>>();
    let Change { allow, allow_listen, proxy_from, send_proxy, limits, hello_within_ns } = renewal::change(args)?;
    let flows_max = args.limits.connections.map_or(FLOWS_MAX, |n| n as usize);
    let kept = DESCRIPTORS_KEPT + limits.strangers + limits.undecided + limits.attached;
    Ok(Settings {
        carriers: usize::from(args.carriers.unwrap_or(CARRIERS)),
        local: forwards(&args.local)?,
        remote: forwards(&args.remote)?,
        dynamic: args.dynamic.iter().map(|t| forward::listener(t)).collect::<narrows::Result<_>>()?,
        allow,
        allow_listen,
        engine: engine::Settings {
            policy: args.policy.clone().unwrap_or_default(),
            calibration: calibration::load(args.verbose),
        },
        flows_max: means::descriptors().saturating_sub(kept).max(16).min(flows_max),
        limits,
        timing: Timing { hello_within_ns, ..Timing::default() },
        keeps_trying: args.keep_trying,
        send_proxy,
        proxy_from,
        ..Settings::default()
    })
}

fn rules(args: &TunnelArgs, texts: &[String]) -> Result<Rules> {
    match texts {
        [] if args.stdio => Ok(Rules::any()),
        texts => Ok(Rules::parse(texts)?),
    }
}

/// Whether the other end is reached without a remote shell.
fn is_direct(args: &TunnelArgs) -> bool {
    args.to.as_ref().is_some_and(|to| to.as_encoded_bytes().starts_with(b"narrows://"))
}

fn uplink(args: &TunnelArgs, to: &OsStr) -> Result<(Uplink, Trust)> {
    let address = to.to_str().and_then(|to| to.strip_prefix("narrows://"));
    match (&args.shell, address) {
        (_, None) if to.is_empty() || to.as_encoded_bytes().starts_with(b"-") => {
            Err(Error::misuse("WHERE is narrows://HOST:PORT, or a host that ssh reaches").into())
        }
        // To ssh it would be the name of a host.
        (None, None) if to.to_string_lossy().contains("://") || has_port(&to.to_string_lossy()) => {
            let to = narrows_host::words::shown(to.as_encoded_bytes());
            let text = format!("'{to}' is no host for ssh: write narrows://HOST:PORT for a `narrows tunnel --listen`");
            Err(Error::misuse(text).into())
        }
        (shell, None) => {
            let shell = shell.as_deref().unwrap_or(OsStr::new("ssh"));
            let command = narrows_copy::carrier::shell_words(shell)?;
            let far = format!("{} tunnel --stdio", args.remote_narrows.as_deref().unwrap_or("narrows"));
            let command = command.into_iter().chain([to.to_owned(), OsString::from(far)]).collect();
            Ok((Uplink::Shell { command }, Trust::default()))
        }
        (None, Some(address)) => {
            let (host, port) = host_and_port(address)?;
            let proof = proof::client(args)?;
            let name = expected_name(&proof, &host)?;
            Ok((Uplink::Tls { host, port, config: proof.config, name }, proof.trust))
        }
        (Some(_), Some(_)) => Err(Error::misuse(NO_SHELL).into()),
    }
}

/// What is said of `-e` with `narrows://`.
const NO_SHELL: &str = "-e is for hosts that ssh reaches; narrows:// needs none";

/// The name that the server has to prove.
fn expected_name(proof: &Client, host: &str) -> Result<ServerName<'static>> {
    let cannot = || Error::misuse(format!("{host} is no name that a certificate can have"));
    Ok(proof.expected_name(host).ok_or_else(cannot)?)
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn host_and_port(address: &str) -> Result<(String, u16)> {
    let shown = words::shown(address.as_bytes());
    let wrong = || Error::misuse(format!("narrows://{shown} is not narrows://HOST:PORT"));
    let address = address.trim_end_matches('/');
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("")).ok_or_else(wrong)?)
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let port = if port.is_empty() { PORT } else { port.parse().map_err(|_| wrong())? };
    // With a zone, such as fe80::1%eth0.
    let is_host = !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || ".-_:%".contains(c));
    if is_host && port != 0 { Ok((host.to_owned(), port)) } else { Err(wrong().into()) }
}

/// Whether it ends as an address with a port does, and is not of version 6 alone.
fn has_port(to: &str) -> bool {
    let port = to.rsplit_once(':').filter(|(host, _)| !host.is_empty() && (!host.contains(':') || host.ends_with(']')));
    port.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>> {
    let cannot = || format!("cannot listen on {address}");
    if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
        return Err(Error::misuse(format!("{}: it is not ADDR:PORT, such as 0.0.0.0:{PORT}", cannot())).into());
    }
    let found: Vec<_> = address.to_socket_addrs().with_context(cannot)?.collect();
    if found.is_empty() { Err(anyhow!("{}: the name has no address", cannot())) } else { Ok(found) }
}

fn tell_token(args: &TunnelArgs, token: &str) -> Result<()> {
    if args.json {
        return outlet::json(json!({ "token": token }));
    }
    report::out(token)?;
    if keys::is_for_others(io::stdout()) {
        report::note(
            "the token was written to a file that other users may read, which clients refuse; use --token-out FILE",
        );
    }
    Ok(())
}

/// Signals that end a tunnel.
struct Stopped(Arc<AtomicUsize>);

impl Stopped {
    /// `renews`: SIGHUP is for something else.
    fn watch(renews: bool) -> Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
            let is_for_renewal = renews && number == libc::SIGHUP;
            if !is_for_renewal && !signals::is_ignored(number) {
                // The second one ends it at once.
                signal_hook::flag::register_conditional_default(number, Arc::clone(&again))?;
                signal_hook::flag::register(number, Arc::clone(&again))?;
                signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
            }
        }
        Ok(Self(signal))
    }

    fn received(&self) -> Option<i32> {
        i32::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0)
    }
}

/// Tells what the tunnel reports, until it is over.
fn watch(tunnel: &Tunnel, stopped: &Stopped, renewal: &mut Renewal, service: &mut Service) -> Result<ExitCode> {
    let mut draining = false;
    loop {
        match tunnel.reports.recv_timeout(LOOK_EVERY) {
            Ok(Report::Over { error: None }) => return Ok(ExitCode::SUCCESS),
            Ok(Report::Over { error: Some(error) }) => return Err(anyhow!("{error}")),
            Ok(report) => tell(renewal.args(), report)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("the tunnel failed; this is a bug")),
        }
        renewal.look(tunnel, service);
        service.look(tunnel);
        if let Some(signal) = stopped.received().filter(|_| !draining) {
            let limit = Duration::from_secs(renewal.args().drain_timeout.unwrap_or(0).into());
            let limit = if signal == libc::SIGTERM { limit } else { Duration::ZERO };
            service.stopping(limit);
            if limit.is_zero() {
                // A shell that still asks for a password would stay.
                tunnel.stop();
                outlet::end();
                signals::die_of(signal);
            }
            draining = true;
            tunnel.drain(limit);
        }
    }
}

fn tell(args: &TunnelArgs, said: Report) -> Result<()> {
    if args.json {
        let line = match &said {
            Report::Serving { address } => Some(json!({ "serving": address })),
            Report::Listening { from, to } => Some(json!({ "listening": from, "to": to })),
            Report::RemoteListening { from, to } => Some(json!({ "remote": from, "to": to })),
            Report::Up => Some(json!({ "up": true })),
            Report::Lost { .. } => Some(json!({ "up": false })),
            Report::Refused { text } => Some(json!({ "refused": text })),
            Report::Unreached { to, reason, text } => {
                Some(json!({ "unreached": to, "reason": reason.to_string(), "why": text }))
            }
            _ => None,
        };
        line.map_or(Ok(()), outlet::json)?;
    }
    if logs::is_on() {
        seen::log(&said);
        return Ok(());
    }
    let (text, level) = match said {
        Report::Serving { address } => (format!("waiting for tunnels on {address}"), 1),
        Report::Listening { from, to } => (format!("{from} -> {to}"), 1),
        Report::RemoteListening { from, to } => (format!("other end: {from} -> {to}"), 1),
        Report::RemoteRefused { from, why } => (format!("the other end does not listen on {from}: {why}"), 0),
        Report::Up => ("the tunnel is up".into(), 1),
        Report::Lost { why } => (format!("the tunnel is lost: {why}; trying again"), 0),
        // A verbose end tells it as `Peer`.
        Report::Refused { text } => (text, if args.verbose { 3 } else { 1 }),
        // A verbose end tells each as `Flow`.
        Report::Unreached { to, reason, text } => (unreached(&to, reason, &text), if args.verbose { 3 } else { 1 }),
        Report::Flow { text } | Report::Peer { text } => (text, 2),
        Report::Missed { count } => {
            (format!("lost {}: there were too many", report::count(count, "message", "messages")), 1)
        }
        Report::Over { .. } | Report::Ended(_) => return Ok(()),
    };
    let most = if args.verbose { 2 } else { u8::from(!args.quiet) };
    if level <= most && !(args.json && level == 1) {
        report::note(text);
    }
    Ok(())
}

/// What is said of a target that was not reached, and what to do about it.
fn unreached(to: &str, reason: Reason, text: &str) -> String {
    let why = if text.is_empty() { reason.to_string() } else { text.to_owned() };
    let advice = match reason {
        Reason::Refused => "start what should listen there, or correct the target",
        Reason::Unreachable | Reason::Timeout => "check whether its host is up, and reached from there",
        Reason::Forbidden => "allow it at the other end, with --allow",
        Reason::Busy => "close some connections, or raise the limits of the other end",
        _ => "-v tells more",
    };
    format!("cannot reach {to}: {why}; {advice} (told once a minute for each target; -v tells all)")
}

/// A socket whose bytes two threads carry to stdout and from stdin, whatever these are.
fn relay_stdio() -> Result<UnixStream> {
    let (mut input, mut output) = (files::stdin()?, files::stdout()?);
    let (near, far) = UnixStream::pair()?;
    let mut from_input = far.try_clone()?;
    let mut to_output = far;
    std::thread::Builder::new().name("narrows-stdin".into()).spawn(move || {
        let _ = pass(&mut input, &mut from_input);
        let _ = from_input.shutdown(Shutdown::Write);
    })?;
    std::thread::Builder::new().name("narrows-stdout".into()).spawn(move || {
        // Without a reader there is no other end.
        if pass(&mut to_output, &mut output).is_err() {
            let _ = to_output.shutdown(Shutdown::Both);
        }
    })?;
    Ok(near)
}

/// Passes bytes on as they come.
fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(&buffer[..n])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
