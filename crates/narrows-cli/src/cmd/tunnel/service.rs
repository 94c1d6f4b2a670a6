//! A tunnel as a service: what the service manager and probes are told of it.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use narrows_host::manager::Manager;
use narrows_tunnel::Tunnel;
use narrows_tunnel::settings::Report;
use narrows_watch::http::{self, OK, Page, UNAVAILABLE};
use serde_json::json;

use crate::args::tunnel::TunnelArgs;
use crate::report;

/// Interval at which the thread of the tunnel is asked whether it moves.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Time without an answer after which it is said to hang: a turn of it takes milliseconds, and memory
/// that is returned to the system some more.
const SILENCE_MAX: Duration = Duration::from_secs(15);

pub(super) struct Service {
    manager: Manager,
    /// How often the manager wants to hear that all is well.
    watchdog: Option<Duration>,
    barked: Instant,
    state: Arc<Mutex<State>>,
    /// The manager was told that the tunnel is ready.
    told: bool,
    is_watched: bool,
    asked: Instant,
    beats: u64,
}

/// What probes are told.
struct State {
    /// What a person is told of it; an error if it can carry no connections.
    can_carry: Result<String, String>,
    /// When the thread of the tunnel last answered.
    alive: Instant,
}

impl Service {
    /// Begins to answer probes, if there are to be any.
    pub(super) fn start(args: &TunnelArgs) -> Result<Self> {
        let manager = Manager::of_process();
        let now = Instant::now();
        let can_carry = Err("the tunnel is not up yet".to_owned());
        let state = Arc::new(Mutex::new(State { can_carry, alive: now }));
        if let Some(address) = &args.health {
            let at = super::resolve(address)?.remove(0);
            let shown = Arc::clone(&state);
            let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at} for --health"))?;
            let bound = listener.local_addr()?;
            http::serve(listener, move |request| page(&request.path, &lock(&shown)))?;
            if args.json {
                report::out(json!({ "health": bound.to_string() }))?;
            } else if !args.quiet {
                report::note(format_args!("probes are answered on {bound}"));
            }
        }
        let watchdog = manager.watchdog_every();
        let is_watched = args.health.is_some() || watchdog.is_some();
        Ok(Self { manager, watchdog, barked: now, state, told: false, is_watched, asked: now, beats: 0 })
    }

    /// The listeners of the tunnel are there.
    pub(super) fn listens(&mut self, args: &TunnelArgs) {
        if args.listen.is_some() {
            lock(&self.state).can_carry = Ok("waiting for tunnels".into());
        }
        // Who goes on trying does its service when it listens: it may take long until the other end is there.
        if args.listen.is_some() || args.keep_trying {
            self.tell_ready();
        }
    }

    /// What the tunnel reports.
    pub(super) fn hear(&mut self, report: &Report) {
        match report {
            Report::Up => {
                lock(&self.state).can_carry = Ok("the tunnel is up".into());
                self.tell_ready();
            }
            Report::Lost { why } => {
                let status = format!("the tunnel is lost: {why}");
                if self.told {
                    self.manager.status(&status);
                }
                lock(&self.state).can_carry = Err(status);
            }
            _ => {}
        }
    }

    fn tell_ready(&mut self) {
        self.told = true;
        self.manager.ready(&self.status());
    }

    fn status(&self) -> String {
        match &lock(&self.state).can_carry {
            Ok(status) | Err(status) => status.clone(),
        }
    }

    pub(super) fn reloading(&self) {
        self.manager.reloading();
    }

    pub(super) fn reloaded(&self) {
        self.manager.ready(&self.status());
    }

    /// It ends, when open connections have ended or after `limit`.
    pub(super) fn stopping(&self, limit: Duration) {
        let status = format!("it stops: open connections have {} s", limit.as_secs());
        // Probes hear it first: who hears it from the manager may ask.
        lock(&self.state).can_carry = Err(status.clone());
        self.manager.stopping(&status);
    }

    /// Asks the tunnel whether it moves, and tells the manager.
    pub(super) fn look(&mut self, tunnel: &Tunnel) {
        if !self.is_watched {
            return;
        }
        let beats = tunnel.counters.beats.get();
        if beats != self.beats {
            self.beats = beats;
            lock(&self.state).alive = Instant::now();
            if self.watchdog.is_some_and(|every| self.barked.elapsed() >= every.min(ASK_EVERY)) {
                self.barked = Instant::now();
                self.manager.alive();
            }
        }
        if self.asked.elapsed() >= self.watchdog.map_or(ASK_EVERY, |every| ASK_EVERY.min(every / 2)) {
            self.asked = Instant::now();
            tunnel.beat();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn page(path: &str, state: &State) -> Option<Page> {
    let hangs = state.alive.elapsed() > SILENCE_MAX;
    match path {
        _ if hangs && matches!(path, "/healthz" | "/readyz") => {
            Some(Page::text(UNAVAILABLE, "the tunnel does not move\n"))
        }
        "/healthz" => Some(Page::text(OK, "ok\n")),
        "/readyz" => Some(match &state.can_carry {
            Ok(status) => Page::text(OK, format!("{status}\n")),
            Err(status) => Page::text(UNAVAILABLE, format!("{status}\n")),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_told_whether_it_moves_and_whether_it_can_carry() {
        let mut state = State { can_carry: Err("not yet".into()), alive: Instant::now() };
        let status = |path: &str, state: &State| page(path, state).map(|page| page.status);
        assert_eq!(status("/healthz", &state), Some(OK));
        assert_eq!(page("/readyz", &state), Some(Page::text(UNAVAILABLE, "not yet\n")));
        state.can_carry = Ok("up".into());
        assert_eq!(page("/readyz", &state), Some(Page::text(OK, "up\n")));
        let Some(long_ago) = Instant::now().checked_sub(2 * SILENCE_MAX) else { return };
        state.alive = long_ago;
        assert_eq!((status("/healthz", &state), status("/readyz", &state)), (Some(UNAVAILABLE), Some(UNAVAILABLE)));
        assert_eq!(status("/", &state), None);
    }
}
