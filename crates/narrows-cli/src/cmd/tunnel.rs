//! `narrows tunnel`: connections of one network that continue in another.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_copy::direct::keys::{self, Keys, Token};
use narrows_copy::direct::proof;
use narrows_host::{calibration, means, signals};
use narrows_tunnel::Tunnel;
use narrows_tunnel::certificates::{Files, Stamp};
use narrows_tunnel::engine;
use narrows_tunnel::forward::{self, Forward};
use narrows_tunnel::limits::FLOWS_MAX;
use narrows_tunnel::rules::Rules;
use narrows_tunnel::settings::{PROTOCOL, Report, Settings, Uplink};
use rustls::pki_types::ServerName;
use serde_json::json;

use crate::args::tunnel::TunnelArgs;
use crate::watch::Metrics;
use crate::{files, logs, report};

mod seen;

/// Default port of an acceptor; not assigned by IANA.
const PORT: u16 = 7702;
/// Interval at which signals are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Interval at which files of certificates are looked at.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Descriptors for everything but connections.
const DESCRIPTORS_KEPT: usize = 256;

/// Runs `narrows tunnel` until it is over or a signal comes.
pub(crate) fn run(args: &TunnelArgs) -> Result<ExitCode> {
    logs::start("tunnel", &args.watch, logs::usual(args.quiet, args.verbose))?;
    let metrics = Metrics::bind(args.watch.metrics.as_deref())?;
    let mut settings = settings(args)?;
    settings.tells_ends = logs::is_on();
    let mut token = None;
    if let Some(address) = &args.listen {
        let config = match certificates(args) {
            Some(files) => files.server()?,
            None => {
                let keys = load_keys(args)?;
                token = Some(keys.token()?.to_string());
                proof::server_config(&keys, PROTOCOL)?
            }
        };
        settings.listen = resolve(address)?.into_iter().map(|a| (a, Arc::clone(&config))).collect();
    }
    if args.stdio {
        settings.stdio = Some(relay_stdio()?.into());
    }
    let tunnel = Tunnel::start(settings)?;
    seen::begin(args, &tunnel, metrics)?;
    if let Some((path, text)) = args.token_out.as_ref().zip(token.take_if(|_| args.token_out.is_some())) {
        // It listens already: whoever finds the file can connect.
        keys::write_token(path, &text).with_context(|| format!("the token file {}", path.display()))?;
    }
    if let Some(token) = token.filter(|_| !args.quiet) {
        tell_token(args, &token)?;
    }
    let mut renewal = Renewal::new(args)?;
    let stopped = Stopped::watch(renewal.is_some())?;
    watch(args, &tunnel, &stopped, renewal.as_mut())
}

fn settings(args: &TunnelArgs) -> Result<Settings> {
    let misuse = |e: Error| anyhow::Error::from(e);
    let forwards = |texts: &[String]| texts.iter().map(|t| Forward::parse(t)).collect::<narrows::Result<Vec<_>>>();
    let rules = |texts: &[String]| match texts {
        [] if args.stdio => Ok(Rules::any()),
        texts => Rules::parse(texts).map_err(misuse),
    };
    let policy = args.policy.clone().unwrap_or_default();
    if !matches!(policy.name(), "balance" | "fixed") {
        return Err(Error::misuse("--policy: a tunnel supports only `balance` and `fixed:METHOD`").into());
    }
    let settings = Settings {
        carriers: usize::from(args.carriers),
        local: forwards(&args.local)?,
        remote: forwards(&args.remote)?,
        dynamic: args.dynamic.iter().map(|t| forward::listener(t)).collect::<narrows::Result<_>>()?,
        allow: rules(&args.allow)?,
        allow_listen: rules(&args.allow_listen)?,
        engine: engine::Settings { policy, calibration: calibration::load(args.verbose) },
        flows_max: means::descriptors().saturating_sub(DESCRIPTORS_KEPT).clamp(16, FLOWS_MAX),
        keeps_trying: args.keep_trying,
        send_proxy: args.send_proxy,
        proxy_from: args.proxy_from.clone(),
        ..Settings::default()
    };
    let Some(to) = &args.to else {
        if args.listen.is_some() || args.stdio {
            return Ok(settings);
        }
        let text = "name the other end, narrows://HOST:PORT or [USER@]HOST, or be it yourself: --listen ADDR:PORT";
        return Err(Error::misuse(text).into());
    };
    if args.local.is_empty() && args.remote.is_empty() && args.dynamic.is_empty() {
        return Err(Error::misuse("nothing to forward: give -L, -R or -D, such as -L 5432:localhost:5432").into());
    }
    Ok(Settings { uplink: Some(uplink(args, to)?), ..settings })
}

fn uplink(args: &TunnelArgs, to: &OsStr) -> Result<Uplink> {
    let address = to.to_str().and_then(|to| to.strip_prefix("narrows://"));
    match (&args.shell, address) {
        (_, None) if to.is_empty() || to.as_encoded_bytes().starts_with(b"-") => {
            Err(Error::misuse("WHERE is narrows://HOST:PORT, or a host that ssh reaches").into())
        }
        (shell, None) => {
            let shell = shell.as_deref().unwrap_or(OsStr::new("ssh"));
            let command = narrows_copy::carrier::shell_words(shell)?;
            let far = format!("{} tunnel --stdio", args.remote_narrows);
            Ok(Uplink::Shell { command: command.into_iter().chain([to.to_owned(), OsString::from(far)]).collect() })
        }
        (None, Some(address)) => {
            let (host, port) = host_and_port(address)?;
            let (config, name) = match certificates(args) {
                Some(files) => (files.client()?, host.clone()),
                None => (proof::client_config(&load_token(args)?, PROTOCOL)?, proof::NAME.to_owned()),
            };
            let cannot = || Error::misuse(format!("{host} is no name that a certificate can have"));
            let name = ServerName::try_from(name).map_err(|_| cannot())?;
            Ok(Uplink::Tls { host, port, config, name })
        }
        (Some(_), Some(_)) => Err(Error::misuse("-e is for hosts that ssh reaches; narrows:// needs none").into()),
    }
}

/// `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn host_and_port(address: &str) -> Result<(String, u16)> {
    let wrong = || Error::misuse(format!("narrows://{address} is not narrows://HOST:PORT"));
    let address = address.trim_end_matches('/');
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("")).ok_or_else(wrong)?)
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let port = if port.is_empty() { PORT } else { port.parse().map_err(|_| wrong())? };
    if host.is_empty() || port == 0 { Err(wrong().into()) } else { Ok((host.to_owned(), port)) }
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>> {
    let cannot = || format!("cannot listen on {address}");
    let found: Vec<_> = address.to_socket_addrs().with_context(cannot)?.collect();
    if found.is_empty() { Err(anyhow!("{}: the name has no address", cannot())) } else { Ok(found) }
}

fn load_keys(args: &TunnelArgs) -> Result<Keys> {
    let path = match &args.key_file {
        Some(path) => path.clone(),
        None => {
            let (state, home) = (std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
            // Not the key of `serve`: who may copy files may not therefore reach services.
            keys::default_path(state.as_deref(), home.as_deref())?.with_file_name("tunnel.key")
        }
    };
    Ok(Keys::load(&path)?)
}

fn load_token(args: &TunnelArgs) -> Result<Token> {
    if let Some(path) = &args.token_file {
        return Ok(Token::load(path)?);
    }
    let text = std::env::var("NARROWS_TOKEN").ok().filter(|text| !text.is_empty());
    let text = text.context(Error::misuse(
        "narrows:// needs the token that `narrows tunnel --listen` writes: give --token-file FILE",
    ))?;
    Ok(Token::parse(&text)?)
}

fn tell_token(args: &TunnelArgs, token: &str) -> Result<()> {
    if args.json {
        return report::out(json!({ "token": token }));
    }
    report::out(token)?;
    if keys::is_for_others(io::stdout()) {
        report::note(
            "the token was written to a file that other users may read, which clients refuse; use --token-out FILE",
        );
    }
    Ok(())
}

fn certificates(args: &TunnelArgs) -> Option<Files> {
    let (cert, key, ca) = (args.cert.clone()?, args.key.clone()?, args.ca.clone()?);
    Some(Files { cert, key, ca, names: args.allow_name.clone() })
}

/// Reads certificates again when they change.
struct Renewal {
    files: Files,
    stamp: Stamp,
    serves: bool,
    quiet: bool,
    looked: Instant,
    asked: Arc<AtomicBool>,
}

impl Renewal {
    fn new(args: &TunnelArgs) -> Result<Option<Self>> {
        let Some(files) = certificates(args) else { return Ok(None) };
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(libc::SIGHUP, Arc::clone(&asked))?;
        let (stamp, looked) = (files.stamp(), Instant::now());
        Ok(Some(Self { files, stamp, serves: args.listen.is_some(), quiet: args.quiet, looked, asked }))
    }

    fn look(&mut self, tunnel: &Tunnel) {
        let asked = self.asked.swap(false, Ordering::Relaxed);
        if !asked && self.looked.elapsed() < RENEW_EVERY {
            return;
        }
        self.looked = Instant::now();
        let stamp = self.files.stamp();
        if !asked && stamp == self.stamp {
            return;
        }
        let (server, client) =
            if self.serves { (Some(self.files.server()), None) } else { (None, Some(self.files.client())) };
        match (server.transpose(), client.transpose()) {
            (Ok(server), Ok(client)) => {
                tunnel.reload(server, client);
                self.stamp = stamp;
                if !self.quiet {
                    report::note("the certificates were read again");
                }
            }
            // A file may be half written: it is tried again when it changes, or at the next signal.
            (Err(e), _) | (_, Err(e)) => {
                if stamp != std::mem::replace(&mut self.stamp, stamp.clone()) || asked {
                    report::note(format_args!("the certificates of before are used: {e}"));
                }
            }
        }
    }
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
fn watch(args: &TunnelArgs, tunnel: &Tunnel, stopped: &Stopped, mut renewal: Option<&mut Renewal>) -> Result<ExitCode> {
    let mut draining = false;
    loop {
        match tunnel.reports.recv_timeout(LOOK_EVERY) {
            Ok(Report::Over { error: None }) => return Ok(ExitCode::SUCCESS),
            Ok(Report::Over { error: Some(error) }) => return Err(anyhow!("{error}")),
            Ok(report) => tell(args, report)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("the tunnel failed; this is a bug")),
        }
        if let Some(renewal) = &mut renewal {
            renewal.look(tunnel);
        }
        if let Some(signal) = stopped.received().filter(|_| !draining) {
            if signal != libc::SIGTERM || args.drain == 0 {
                signals::die_of(signal);
            }
            draining = true;
            tunnel.drain(Duration::from_secs(args.drain.into()));
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
            _ => None,
        };
        line.map_or(Ok(()), report::out)?;
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
        Report::Flow { text } | Report::Peer { text } => (text, 2),
        Report::Over { .. } | Report::Ended(_) => return Ok(()),
    };
    let most = if args.verbose { 2 } else { u8::from(!args.quiet) };
    if level <= most && !(args.json && level == 1) {
        report::note(text);
    }
    Ok(())
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
