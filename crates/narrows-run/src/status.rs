//! The status of a supervisor, for `narrows status` and `narrows top`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use narrows_watch::account::Times;
use narrows_watch::metric::Families;
use narrows_watch::process;
use narrows_watch::status::{Amounts, Connection, Outcome, Share, Status, Traffic};

use super::account::{self, LiveConnection};
use super::proof;
use super::shared::{Inlet, Order, Shared};

/// Time in which the pumps answer. They do within a turn.
const PATIENCE: Duration = Duration::from_secs(1);

/// The status of this supervisor of `program`.
pub fn describe(program: &str, shared: &Shared, pumps: &[Inlet]) -> Status {
    let (answer, answers) = channel();
    pumps.iter().for_each(|pump| pump.send(Order::Snapshot { answer: answer.clone() }));
    drop(answer);
    let begun = Instant::now();
    let mut live = Vec::new();
    // A pump that does not answer in time is left out.
    while let Ok(some) = answers.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
        live.extend(some);
    }
    let ended = &shared.totals;
    let mut account = ended.sent();
    live.iter().for_each(|connection| account.merge(&connection.sent));
    let connections: Vec<_> = live.iter().map(connection).collect();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let ended = Amounts {
        connections: count(&ended.connections),
        failed: count(&ended.failed),
        out_raw_bytes: count(&ended.out_raw_bytes),
        out_wire_bytes: count(&ended.out_wire_bytes),
        back_raw_bytes: count(&ended.back_raw_bytes),
        back_wire_bytes: count(&ended.back_wire_bytes),
    };
    let mut totals = ended;
    totals.connections += connections.len() as u64;
    connections.iter().for_each(|connection| totals.add(connection));
    let outcomes = shared.totals.outcomes();
    let outcomes: Vec<_> = outcomes.iter().map(|(o, n)| Outcome { outcome: o.to_string(), connections: *n }).collect();
    let mut metrics = Families::default();
    let help = "Connections of the program that are over or were never taken over, by what became of them.";
    let of = outcomes.iter().map(|o| (o.outcome.as_str(), o.connections as f64));
    metrics.counters("narrows_run_connections_ended_total", help, "outcome", of);
    let status = process::status("run", program, shared.begun.elapsed());
    Status { ended, totals, outcomes, metrics, ..status }.with_account(&account).with_connections(connections)
}

fn connection(live: &LiveConnection) -> Connection {
    let traffic = |t: &account::Traffic| {
        let share = |(name, share): &(String, u8)| Share { name: name.clone(), share_percent: *share };
        Traffic {
            raw_bytes: t.raw_bytes,
            wire_bytes: t.wire_bytes,
            ratio: t.raw_bytes as f64 / t.wire_bytes.max(1) as f64,
            framed: t.framed,
            methods: t.methods.iter().map(share).collect(),
        }
    };
    let peer = proof::address(&live.peer).map(|a| std::net::SocketAddr::new(a.ip().to_canonical(), a.port()));
    Connection {
        id: live.id,
        peer: peer.map_or("an unknown peer".into(), |p| p.to_string()),
        accepted: live.accepted,
        age_s: live.age.as_secs_f64(),
        outcome: live.outcome.to_string(),
        encrypted: live.encrypted,
        within_host: live.within_host,
        out: traffic(&live.out),
        back: traffic(&live.back),
        times: (live.sent.times != Times::default()).then_some(live.sent.times),
        ..Connection::default()
    }
}
