//! A tunnel as a service: its settings as they are typed, its proof, its file, what it tells of itself, and how it
//! ends.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use narrows::Error;
use narrows_host::{calibration, means, shell, signals, words};
use narrows_trust::ends::Client;
use narrows_trust::keys;
use narrows_watch::page::Metrics;
use narrows_watch::{logs, outlet};
use rustls::pki_types::ServerName;

use crate::Tunnel;
use crate::engine;
use crate::forward::{self, Forward};
use crate::limits::FLOWS_MAX;
use crate::rules::Rules;
use crate::session::Timing;
use crate::settings::{BeforeListening, Change, Report, Settings, Trust, Uplink};

mod address;
mod config;
mod health;
mod known;
mod options;
mod proof;
mod renewal;
mod seen;
mod stdio;
mod tell;

pub use address::PORT;
pub use options::{Limits, Options};

use address::{has_port, host_and_port, resolve};
use health::Service;
use renewal::Renewal;

/// Interval at which signals are checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Connections with the other end that are kept open: one for calm flows, one that bulk finds.
const CARRIERS: u8 = 2;
/// Descriptors for everything but connections.
const DESCRIPTORS_KEPT: usize = 256;

/// Says what is wrong with a file for [`Options::config`], a line each, and returns the exit status.
///
/// # Errors
/// None; faults of the file are told.
pub fn check_config(file: &Path) -> Result<ExitCode> {
    config::check(file)
}

/// Runs a tunnel until it is over or a signal comes, and returns the exit status.
///
/// # Errors
/// The settings cannot be followed, or the tunnel failed.
pub fn run(flags: &Options) -> Result<ExitCode> {
    let args = match config::with_file(flags) {
        Ok(args) => args,
        Err(faults) => return Ok(faults.tell()),
    };
    let args = &args;
    logs::start("tunnel", &args.log, logs::usual(args.quiet, args.verbose))?;
    outlet::start(args.json)?;
    let metrics = Metrics::bind(args.metrics.as_deref())?;
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
        settings.stdio = Some(stdio::relay_stdio()?.into());
    }
    // Before the port answers: whoever waits for the port finds the file.
    let file = args.token_out.clone().zip(token.clone());
    settings.before_listening = file.map(|(path, text)| -> BeforeListening {
        Box::new(move || {
            let written = keys::write_token(&path, &text);
            let about = || format!("the token file {}", path.display());
            written.with_context(about).map_err(|e| io::Error::other(words::one_line(&e)))
        })
    });
    let mut service = Service::start(args)?;
    let tunnel = Tunnel::start(settings)?;
    service.watches(&tunnel);
    seen::begin(args, &tunnel, metrics)?;
    renewal.has_read(trust, token.clone());
    let stopped = Stopped::watch(renewal.hears_hangup())?;
    if let Some(token) = token.filter(|_| !args.quiet && args.token_out.is_none()) {
        tell::token(args, &token)?;
    }
    service.listens(args);
    watch(&tunnel, &stopped, &mut renewal, &mut service)
}

fn settings(args: &Options) -> Result<Settings> {
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

fn rules(args: &Options, texts: &[String]) -> Result<Rules> {
    match texts {
        [] if args.stdio => Ok(Rules::any()),
        texts => Ok(Rules::parse(texts)?),
    }
}

/// Whether the other end is reached without a remote shell.
fn is_direct(args: &Options) -> bool {
    args.to.as_ref().is_some_and(|to| to.as_encoded_bytes().starts_with(b"narrows://"))
}

fn uplink(args: &Options, to: &OsStr) -> Result<(Uplink, Trust)> {
    let address = to.to_str().and_then(|to| to.strip_prefix("narrows://"));
    match (&args.shell, address) {
        (_, None) if to.is_empty() || to.as_encoded_bytes().starts_with(b"-") => {
            Err(Error::misuse("WHERE is narrows://HOST:PORT, or a host that ssh reaches").into())
        }
        // To ssh it would be the name of a host.
        (None, None) if to.to_string_lossy().contains("://") || has_port(&to.to_string_lossy()) => {
            let to = words::shown(to.as_encoded_bytes());
            let text = format!("'{to}' is no host for ssh: write narrows://HOST:PORT for a `narrows tunnel --listen`");
            Err(Error::misuse(text).into())
        }
        (shell, None) => {
            let shell = shell.as_deref().unwrap_or(OsStr::new("ssh"));
            let command = shell::words(shell).map_err(|why| anyhow!(why))?;
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
            Ok(report) => tell::report(renewal.args(), report)?,
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
