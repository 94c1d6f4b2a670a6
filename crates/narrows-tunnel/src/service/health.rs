//! A tunnel as a service: what the service manager and probes are told of it.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use narrows_host::manager::Manager;
use narrows_host::words;
use narrows_watch::http::{self, OK, Page, UNAVAILABLE};
use narrows_watch::outlet;
use serde_json::json;

use super::options::Options;
use crate::Tunnel;
use crate::counters::Counters;

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
    /// How it was when the manager was last told of it.
    status: Result<String, String>,
    is_watched: bool,
    asked: Instant,
    beats: u64,
}

/// What probes are told.
#[derive(Default)]
struct State {
    /// Of a dialer, which knows how its other end is.
    counters: Option<Arc<Counters>>,
    /// What a person is told of it otherwise; an error if it can carry no connections.
    fixed: Option<Result<String, String>>,
    /// When the thread of the tunnel last answered.
    alive: Option<Instant>,
}

impl State {
    /// What a person is told of it; an error if it cannot carry all connections.
    fn can_carry(&self) -> Result<String, String> {
        match (&self.fixed, &self.counters) {
            (Some(fixed), _) => fixed.clone(),
            (None, Some(counters)) => counters.standing().can_carry(),
            (None, None) => Err("the tunnel is not up yet".into()),
        }
    }
}

impl Service {
    /// Begins to answer probes, if there are to be any.
    pub(super) fn start(args: &Options) -> Result<Self> {
        let manager = Manager::of_process();
        let now = Instant::now();
        let state = Arc::new(Mutex::new(State { alive: Some(now), ..State::default() }));
        if let Some(address) = &args.health {
            let at = super::address::resolve(address)?.remove(0);
            let shown = Arc::clone(&state);
            let listener = TcpListener::bind(at).with_context(|| format!("cannot listen on {at} for --health"))?;
            let bound = listener.local_addr()?;
            http::serve(listener, move |request| page(&request.path, &lock(&shown)))?;
            if args.json {
                outlet::json(json!({ "health": bound.to_string() }))?;
            } else if !args.quiet {
                words::note(format_args!("probes are answered on {bound}"));
            }
        }
        let watchdog = manager.watchdog_every();
        let is_watched = args.health.is_some() || watchdog.is_some();
        let status = lock(&state).can_carry();
        Ok(Self { manager, watchdog, barked: now, state, told: false, status, is_watched, asked: now, beats: 0 })
    }

    /// The tunnel that probes ask for. They see how it is without the thread that tells of it.
    pub(super) fn watches(&self, tunnel: &Tunnel) {
        lock(&self.state).counters = Some(Arc::clone(&tunnel.counters));
    }

    /// The listeners of the tunnel are there.
    pub(super) fn listens(&mut self, args: &Options) {
        if args.listen.is_some() {
            lock(&self.state).fixed = Some(Ok("waiting for tunnels".into()));
        }
        // Who goes on trying does its service when it listens: it may take long until the other end is there.
        if args.listen.is_some() || args.keep_trying {
            self.tell_ready();
        }
    }

    /// Tells the manager how the tunnel is, if that has changed.
    fn tell_state(&mut self, tunnel: &Tunnel) {
        let status = lock(&self.state).can_carry();
        if status == self.status {
            return;
        }
        self.status = status;
        if self.told {
            self.manager.status(&self.status());
        } else if tunnel.counters.standing().is_up() {
            self.tell_ready();
        }
    }

    fn tell_ready(&mut self) {
        self.told = true;
        self.status = lock(&self.state).can_carry();
        self.manager.ready(&self.status());
    }

    fn status(&self) -> String {
        match lock(&self.state).can_carry() {
            Ok(status) | Err(status) => status,
        }
    }

    pub(super) fn reloading(&self) {
        self.manager.reloading();
    }

    pub(super) fn reloaded(&self) {
        self.manager.ready(&self.status());
    }

    /// It ends, when open connections have ended or after `limit`.
    pub(super) fn stopping(&mut self, limit: Duration) {
        let status = format!("it stops: open connections have {} s", limit.as_secs());
        // Probes hear it first: who hears it from the manager may ask.
        lock(&self.state).fixed = Some(Err(status.clone()));
        self.manager.stopping(&status);
        self.status = Err(status);
    }

    /// Asks the tunnel whether it moves, and tells the manager.
    pub(super) fn look(&mut self, tunnel: &Tunnel) {
        self.tell_state(tunnel);
        if !self.is_watched {
            return;
        }
        let beats = tunnel.counters.beats.get();
        if beats != self.beats {
            self.beats = beats;
            lock(&self.state).alive = Some(Instant::now());
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
    let hangs = state.alive.is_some_and(|alive| alive.elapsed() > SILENCE_MAX);
    match path {
        _ if hangs && matches!(path, "/healthz" | "/readyz") => {
            Some(Page::text(UNAVAILABLE, "the tunnel does not move\n"))
        }
        "/healthz" => Some(Page::text(OK, "ok\n")),
        "/readyz" => Some(match state.can_carry() {
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
        let mut state = State { alive: Some(Instant::now()), ..State::default() };
        let status = |path: &str, state: &State| page(path, state).map(|page| page.status);
        assert_eq!(status("/healthz", &state), Some(OK));
        assert_eq!(page("/readyz", &state), Some(Page::text(UNAVAILABLE, "the tunnel is not up yet\n")));
        state.fixed = Some(Ok("up".into()));
        assert_eq!(page("/readyz", &state), Some(Page::text(OK, "up\n")));
        let Some(long_ago) = Instant::now().checked_sub(2 * SILENCE_MAX) else { return };
        state.alive = Some(long_ago);
        assert_eq!((status("/healthz", &state), status("/readyz", &state)), (Some(UNAVAILABLE), Some(UNAVAILABLE)));
        assert_eq!(status("/", &state), None);
    }
}
