//! What whoever watches an agent is told.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use narrows::stream::Control;
use narrows_watch::account::{Account, Times};
use narrows_watch::metric::Families;
use narrows_watch::process;
use narrows_watch::status::{Amounts, Connection, Status, Traffic};

/// Numbers of an agent, and the connections of its gateway.
pub struct Watched {
    begun: Instant,
    supervisors: AtomicUsize,
    channels: AtomicUsize,
    flows: AtomicUsize,
    refused: AtomicU64,
    gate: Mutex<Gate>,
}

#[derive(Default)]
struct Gate {
    next: u64,
    live: BTreeMap<u64, Live>,
    ended: Amounts,
    account: Account,
}

struct Live {
    peer: IpAddr,
    port: u16,
    begun: Instant,
    control: Arc<Control>,
}

/// A connection of the gateway, which is over when this is dropped.
pub(crate) struct Entry {
    watched: Arc<Watched>,
    id: u64,
    pub(crate) has_failed: bool,
}

impl Default for Watched {
    fn default() -> Self {
        let (supervisors, channels, flows) = Default::default();
        Self { begun: Instant::now(), supervisors, channels, flows, refused: AtomicU64::new(0), gate: Mutex::default() }
    }
}

impl Watched {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the agent's present numbers.
    pub(crate) fn look(&self, supervisors: usize, channels: usize, flows: usize) {
        self.supervisors.store(supervisors, Ordering::Relaxed);
        self.channels.store(channels, Ordering::Relaxed);
        self.flows.store(flows, Ordering::Relaxed);
    }

    /// The gateway did not take a connection.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The gateway connects a client to a port.
    pub(crate) fn begin(self: &Arc<Self>, peer: IpAddr, port: u16, control: &Arc<Control>) -> Entry {
        let mut gate = self.gate();
        gate.next += 1;
        let id = gate.next;
        gate.live.insert(id, Live { peer, port, begun: Instant::now(), control: Arc::clone(control) });
        Entry { watched: Arc::clone(self), id, has_failed: false }
    }

    /// The status of the agent, which is named `program`.
    pub fn status(&self, program: &str) -> Status {
        let gate = self.gate();
        let (mut account, ended, mut totals) = (gate.account.clone(), gate.ended, gate.ended);
        let mut connections = Vec::with_capacity(gate.live.len());
        for (id, live) in &gate.live {
            let (connection, sent) = live.connection(*id);
            account.merge(&sent);
            totals.connections += 1;
            totals.add(&connection);
            connections.push(connection);
        }
        drop(gate);
        let mut metrics = Families::default();
        let n = |number: &AtomicUsize| number.load(Ordering::Relaxed) as f64;
        let help = "Supervisors of this host that report what their programs accept.";
        metrics.gauge("narrows_agent_supervisors_open", help, n(&self.supervisors));
        let help = "Side channels of other hosts, and clients of the gateway that have not named a port.";
        metrics.gauge("narrows_agent_channels_open", help, n(&self.channels));
        metrics.gauge("narrows_agent_flows_known", "Connections that supervisors reported.", n(&self.flows));
        let open = connections.len() as f64;
        metrics.gauge("narrows_agent_gateway_connections_open", "Connections that the gateway carries.", open);
        let help = "Connections that the gateway did not take: a port that is not allowed, no place, no answer.";
        metrics.counter("narrows_agent_gateway_refused_total", help, self.refused.load(Ordering::Relaxed) as f64);
        let status = process::status("agent", program, self.begun.elapsed());
        Status { ended, totals, metrics, ..status }.with_account(&account).with_connections(connections)
    }
}

impl Live {
    fn connection(&self, id: u64) -> (Connection, Account) {
        // The gateway sends to the client what it receives from the server.
        let (sent, received) = (self.control.send_summary(), self.control.receive_summary());
        let account = Account::of(&sent);
        let connection = Connection {
            id,
            peer: self.peer.to_canonical().to_string(),
            target: format!("localhost:{}", self.port),
            accepted: true,
            age_s: self.begun.elapsed().as_secs_f64(),
            outcome: "compressed".into(),
            out: Traffic::sent(sent.raw_bytes, sent.wire_bytes, &account),
            back: Traffic::received(received.raw_bytes, received.wire_bytes, Some(&received)),
            times: (account.times != Times::default()).then_some(account.times),
            ..Connection::default()
        };
        (connection, account)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut gate = self.watched.gate();
        let Some(live) = gate.live.remove(&self.id) else { return };
        let (connection, sent) = live.connection(self.id);
        gate.ended.connections += 1;
        gate.ended.failed += u64::from(self.has_failed);
        gate.ended.add(&connection);
        gate.account.merge(&sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_over_still_counts() {
        let watched = Arc::new(Watched::default());
        let mut entry = watched.begin(IpAddr::from([10, 0, 0, 1]), 80, &Arc::default());
        let status = watched.status("a");
        assert_eq!((status.connections[0].target.as_str(), status.totals.connections), ("localhost:80", 1));
        entry.has_failed = true;
        drop(entry);
        let status = watched.status("a");
        assert_eq!((status.connections.len(), status.ended.connections, status.ended.failed), (0, 1, 1));
    }
}
