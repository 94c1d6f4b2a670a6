//! Settings of a tunnel that are read again while it runs: its file and its token at SIGHUP,
//! certificates also when they change.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use narrows_host::means;
use narrows_host::words;
use narrows_trust::certificates::Stamp;
use narrows_trust::ends::{Client, Server};
use narrows_trust::keys;
use rustls::pki_types::ServerName;

use super::health::Service;
use super::options::Options;
use super::{config, known, proof};
use crate::Tunnel;
use crate::limits::Limits;
use crate::session::Timing;
use crate::settings::{Change, Trust};

/// Interval at which files of certificates are looked at.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Interval at which other ends are judged again: a certificate that was valid may have expired.
const JUDGE_EVERY: Duration = Duration::from_secs(60);

pub(super) struct Renewal {
    /// What the command line says.
    flags: Options,
    /// What is in use.
    args: Options,
    trust: Trust,
    token: Option<String>,
    stamp: Option<Stamp>,
    looked: Instant,
    judged: Instant,
    asked: Arc<AtomicBool>,
    /// A thread reads everything again: a token may come by a pipe, and signals are heard meanwhile.
    reading: Option<Receiver<Result<Next>>>,
}

/// What was read again.
struct Next {
    args: Options,
    /// Keys that have changed, and stay as they are.
    fixed: Vec<&'static str>,
    change: Change,
    stamp: Option<Stamp>,
    proof: Proof,
}

/// How this end proves itself.
enum Proof {
    Server(Server),
    /// And the name that it expects.
    Client(Client, ServerName<'static>),
    /// A shell does it.
    None,
}

impl Proof {
    fn read(args: &Options) -> Result<Self> {
        if args.listen.is_some() {
            return Ok(Self::Server(proof::server(args)?));
        }
        if !super::is_direct(args) {
            return Ok(Self::None);
        }
        let proof = proof::client(args)?;
        let address = args.to.as_ref().and_then(|to| to.to_str()?.strip_prefix("narrows://"));
        let (host, _) = super::address::host_and_port(address.unwrap_or_default())?;
        // A token and certificates prove different names.
        let name = super::expected_name(&proof, &host)?;
        Ok(Self::Client(proof, name))
    }
}

impl Next {
    /// All or nothing of the file. `present`: the settings in use.
    fn read(flags: &Options, present: &Options) -> Result<Self> {
        let mut args = config::with_file(flags).map_err(|faults| anyhow!("{faults}"))?;
        let fixed: Vec<_> = known::all().filter(|k| !k.is_live && !(k.is_same)(&args, present)).collect();
        fixed.iter().for_each(|key| (key.take)(&mut args, present));
        let change = change(&args)?;
        let stamp = stamp(&args);
        let proof = Proof::read(&args)?;
        Ok(Self { args, fixed: fixed.iter().map(|key| key.name).collect(), change, stamp, proof })
    }
}

impl Renewal {
    /// `args`: those in use. What they name is to be read after this.
    pub(super) fn new(flags: &Options, args: &Options) -> Result<Self> {
        let now = Instant::now();
        let renewal = Self {
            flags: flags.clone(),
            args: args.clone(),
            trust: Trust::default(),
            token: None,
            // Before they are read: what changes meanwhile is then read again.
            stamp: stamp(args),
            looked: now,
            judged: now,
            asked: Arc::default(),
            reading: None,
        };
        if renewal.hears_hangup() {
            signal_hook::flag::register(libc::SIGHUP, Arc::clone(&renewal.asked))?;
        }
        Ok(renewal)
    }

    /// What was read first: whom the tunnel trusts, and its token.
    pub(super) fn has_read(&mut self, trust: Trust, token: Option<String>) {
        (self.trust, self.token) = (trust, token);
    }

    /// The settings in use.
    pub(super) fn args(&self) -> &Options {
        &self.args
    }

    /// Whether SIGHUP is for it, and does not end the tunnel.
    pub(super) fn hears_hangup(&self) -> bool {
        self.flags.config.is_some() || self.stamp.is_some()
    }

    /// Reads again what is to be read again.
    pub(super) fn look(&mut self, tunnel: &Tunnel, service: &Service) {
        if let Some(reading) = &self.reading {
            let read = match reading.try_recv() {
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => Err(anyhow!("they could not be read; this is a bug")),
                Ok(read) => read,
            };
            self.reading = None;
            let done = read.and_then(|next| self.take(next, tunnel));
            service.reloaded();
            match done {
                Ok(()) => self.tell("the configuration was read again"),
                Err(e) => {
                    words::note(format_args!("the settings of before are used: {}", words::one_line(&e)));
                }
            }
        } else if self.asked.swap(false, Ordering::Relaxed) {
            service.reloading();
            self.begin_reading();
        } else if self.looked.elapsed() >= RENEW_EVERY {
            self.looked = Instant::now();
            self.look_at_files(tunnel);
        }
    }

    fn look_at_files(&mut self, tunnel: &Tunnel) {
        if self.stamp.is_none() {
            return;
        }
        let now = stamp(&self.args);
        if now != self.stamp {
            self.stamp = now;
            let args = self.args.clone();
            match Proof::read(&args).and_then(|proof| self.prove(proof, &args, tunnel)) {
                Ok(()) => self.tell("the certificates were read again"),
                // A file may be half written: it is tried again when it changes, or at the next signal.
                Err(e) => words::note(format_args!("the certificates of before are used: {}", words::one_line(&e))),
            }
        } else if self.judged.elapsed() >= JUDGE_EVERY {
            self.judged = Instant::now();
            tunnel.judge(self.trust.clone());
        }
    }

    fn begin_reading(&mut self) {
        let (tell, reading) = channel();
        let (flags, present) = (self.flags.clone(), self.args.clone());
        let failed = tell.clone();
        // Nobody hears it when the program ends.
        let read = move || drop(tell.send(Next::read(&flags, &present)));
        if let Err(e) = std::thread::Builder::new().name("narrows-reload".into()).spawn(read) {
            let _ = failed.send(Err(e.into()));
        }
        self.reading = Some(reading);
    }

    fn take(&mut self, next: Next, tunnel: &Tunnel) -> Result<()> {
        let Next { args, fixed, change, stamp, proof } = next;
        self.prove(proof, &args, tunnel)?;
        tunnel.change(change);
        (self.stamp, self.args) = (stamp, args);
        if !fixed.is_empty() {
            words::note(format_args!("a restart is needed for what changed in: {}", fixed.join(", ")));
        }
        Ok(())
    }

    /// Proves this end to others, and others to this one.
    fn prove(&mut self, proof: Proof, args: &Options, tunnel: &Tunnel) -> Result<()> {
        match proof {
            Proof::Server(proof) => {
                if let Some((path, token)) = args.token_out.as_ref().zip(proof.token.clone())
                    && self.token.as_ref() != Some(&token)
                {
                    keys::write_token(path, &token)?;
                }
                (self.token, self.trust) = (proof.token, proof.trust);
                tunnel.reload(Some(proof.config), None);
            }
            Proof::Client(proof, name) => {
                self.trust = proof.trust;
                tunnel.reload_client(proof.config, name);
            }
            Proof::None => {}
        }
        self.judged = Instant::now();
        tunnel.judge(self.trust.clone());
        Ok(())
    }

    fn tell(&self, text: &str) {
        if !self.args.quiet {
            words::note(text);
        }
    }
}

/// How the files of certificates look, if there are any.
fn stamp(args: &Options) -> Option<Stamp> {
    proof::certificates(args).map(|files| files.stamp())
}

/// What of the settings may change.
pub(super) fn change(args: &Options) -> Result<Change> {
    let limits = &args.limits;
    let seconds = limits.handshake_seconds.map(|s| u64::from(s) * 1_000_000_000);
    Ok(Change {
        allow: super::rules(args, &args.allow)?,
        allow_listen: super::rules(args, &args.allow_listen)?,
        proxy_from: args.proxy_from.iter().map(IpAddr::to_canonical).collect(),
        send_proxy: args.send_proxy,
        hello_within_ns: seconds.unwrap_or(Timing::default().hello_within_ns),
        limits: limits_of(args),
    })
}

fn limits_of(args: &Options) -> Limits {
    let (given, usual) = (&args.limits, Limits::default());
    // Where descriptors are few, most of them are for connections that are carried.
    let share = (means::descriptors() / 8).max(16);
    Limits {
        memory: given.memory_mib.map_or(usual.memory, |mib| (mib as usize) << 20),
        strangers: given.handshakes.map_or(usual.strangers, |n| n as usize).min(share),
        undecided: usual.undecided.min(share),
        attached: usual.attached.min(share),
        greetings_per_s: given.handshakes_per_second.unwrap_or(usual.greetings_per_s),
        flows_per_s: given.connections_per_second.unwrap_or(usual.flows_per_s),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of clients are compared with it in their short form.
    #[test]
    fn an_address_of_version_4_may_be_written_as_one_of_version_6() {
        let args = Options { proxy_from: vec!["::ffff:127.0.0.1".parse().unwrap()], ..Options::default() };
        assert_eq!(change(&args).unwrap().proxy_from, ["127.0.0.1".parse::<IpAddr>().unwrap()]);
    }
}
