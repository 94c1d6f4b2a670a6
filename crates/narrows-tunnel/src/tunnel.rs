//! A running tunnel, as its owner sees it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use super::counters::Counters;
use super::pump::{self, Inlet, Order};
use super::reports::{self, Reports};
use super::settings::{Change, Report, Settings, Trust};
use super::watcher::Watcher;

/// Most time for [`Tunnel::stop`]: who has asked the program to end does not want to wait.
const STOPPING: Duration = Duration::from_millis(500);

/// A tunnel that runs on a thread of its own until it is over or the process ends.
pub struct Tunnel {
    inlet: Inlet,
    /// What it has to tell, in order; the last is [`Report::Over`].
    pub reports: Reports,
    /// What it has done.
    pub counters: Arc<Counters>,
}

impl Tunnel {
    /// Starts a tunnel. Its listeners are there when this returns.
    ///
    /// # Errors
    /// If a listener is not possible, or the system gives no thread or descriptor.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let counters = Arc::new(Counters::default());
        let (tell, reports) = reports::pair(Arc::clone(&counters));
        let inlet = pump::start(settings, tell, Arc::clone(&counters))?;
        Ok(Self { inlet, reports, counters })
    }

    /// Proves further connections to and from other ends in this way; those that are there stay.
    pub fn reload(&self, server: Option<Arc<ServerConfig>>, client: Option<Arc<ClientConfig>>) {
        self.inlet.send(Order::Reload { server, client, name: None });
    }

    /// As [`Tunnel::reload`], for a dialer that also expects another name: who goes from a token to
    /// certificates does.
    pub fn reload_client(&self, client: Arc<ClientConfig>, name: ServerName<'static>) {
        self.inlet.send(Order::Reload { server: None, client: Some(client), name: Some(name) });
    }

    /// Ends at once, for a program that ends: connections are reset, and remote shells were asked to
    /// end when this returns.
    pub fn stop(&self) {
        self.drain(Duration::ZERO);
        let begun = Instant::now();
        while let Ok(report) = self.reports.recv_timeout(STOPPING.saturating_sub(begun.elapsed())) {
            if matches!(report, Report::Over { .. }) {
                return;
            }
        }
    }

    /// Sessions whose other end is not trusted so open nothing more; connections that are open go on.
    pub fn judge(&self, trust: Trust) {
        self.inlet.send(Order::Judge(trust));
    }

    /// Goes on with other rules and limits.
    pub fn change(&self, change: Change) {
        self.inlet.send(Order::Change(Box::new(change)));
    }

    /// Asks whether the tunnel still moves: then it counts `beats` soon.
    pub fn beat(&self) {
        self.inlet.send(Order::Beat);
    }

    /// What other threads see of it.
    pub fn watcher(&self) -> Watcher {
        Watcher::new(self.inlet.clone(), Arc::clone(&self.counters))
    }

    /// Opens nothing more, and is over when all connections have ended, or after `limit`.
    pub fn drain(&self, limit: Duration) {
        self.inlet.send(Order::Drain(limit));
    }
}
