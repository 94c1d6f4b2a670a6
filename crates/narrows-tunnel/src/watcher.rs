//! A tunnel as other threads see it: its status, its metrics, and the trace of one of its flows.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::time::{Duration, Instant};

use narrows_watch::metric::Families;
use narrows_watch::process;
use narrows_watch::status::{Amounts, Outcome, Status};

use super::counters::{Counter, Counters};
use super::pump::{Inlet, Order, Snapshot};

/// Time in which the pump answers: it does after a turn, unless the host is overloaded.
const PATIENCE: Duration = Duration::from_secs(1);
/// Lines of a trace that wait for their reader; further ones are lost.
const LINES_MAX: usize = 4096;

/// Sees a tunnel from any thread.
#[derive(Clone)]
pub struct Watcher {
    inlet: Inlet,
    counters: Arc<Counters>,
    begun: Instant,
}

impl Watcher {
    pub(super) fn new(inlet: Inlet, counters: Arc<Counters>) -> Self {
        Self { inlet, counters, begun: Instant::now() }
    }

    /// The status of the tunnel, which is named `program`.
    pub fn status(&self, program: &str) -> Status {
        let (answer, answers) = channel();
        self.inlet.send(Order::Snapshot(answer));
        // Counters are there even if nobody answers in time.
        let snapshot = answers.recv_timeout(PATIENCE).ok();
        let c = &*self.counters;
        let status = process::status("tunnel", program, self.begun.elapsed());
        let totals = Amounts {
            connections: c.flows_opened.get() + c.flows_refused_here.get(),
            failed: c.flows_reset.get() + c.flows_refused.get(),
            out_raw_bytes: c.raw_bytes_out.get(),
            out_wire_bytes: c.wire_bytes_out.get(),
            back_raw_bytes: c.raw_bytes_in.get(),
            back_wire_bytes: c.wire_bytes_in.get(),
        };
        let metrics = metrics(c, snapshot.as_ref());
        let outcomes = [("refused", &c.flows_refused), ("reset", &c.flows_reset), ("damaged", &c.flows_damaged)];
        let outcome = |(name, count): (&str, &Counter)| Outcome { outcome: name.into(), connections: count.get() };
        let outcomes = outcomes.into_iter().map(outcome).filter(|o| o.connections > 0).collect();
        let Snapshot { connections, account, .. } = snapshot.unwrap_or_default();
        let mut live = Amounts { connections: connections.len() as u64, ..Amounts::default() };
        connections.iter().for_each(|connection| live.add(connection));
        // The pump counts on meanwhile, so a difference may be a little less than nothing.
        let ended = Amounts {
            connections: totals.connections.saturating_sub(live.connections),
            failed: totals.failed,
            out_raw_bytes: totals.out_raw_bytes.saturating_sub(live.out_raw_bytes),
            out_wire_bytes: totals.out_wire_bytes.saturating_sub(live.out_wire_bytes),
            back_raw_bytes: totals.back_raw_bytes.saturating_sub(live.back_raw_bytes),
            back_wire_bytes: totals.back_wire_bytes.saturating_sub(live.back_wire_bytes),
        };
        Status { totals, ended, outcomes, metrics, ..status }.with_account(&account).with_connections(connections)
    }

    /// Every decision about a flow as a line of JSON, for this time. The number is that of the status;
    /// without such a flow the receiver ends at once.
    pub fn trace(&self, id: u64, limit: Duration) -> Receiver<String> {
        let (lines, receiver) = sync_channel(LINES_MAX);
        self.inlet.send(Order::Trace { id, limit, lines });
        receiver
    }
}

/// What only tunnels have. Families are there from the start, so that a dashboard finds them.
fn metrics(c: &Counters, snapshot: Option<&Snapshot>) -> Families {
    let mut all = Families::default();
    let n = |counter: &Counter| counter.get() as f64;
    if let Some(is_up) = snapshot.and_then(|s| s.is_up) {
        all.gauge("narrows_tunnel_up", "1 while the other end of this dialer answers.", f64::from(u8::from(is_up)));
    }
    all.gauge("narrows_tunnel_flows_open", "Connections that are carried now.", n(&c.flows_now));
    let help = "Connections whose target was reached, or whose flow was opened.";
    all.counter("narrows_tunnel_flows_opened_total", help, n(&c.flows_opened));
    let help = "Connections that failed: refused by a rule or the target, reset by an end or a lost carrier, damaged, or \
                turned away by a limit.";
    let failed = [
        ("refused", n(&c.flows_refused)),
        ("reset", n(&c.flows_reset)),
        ("damaged", n(&c.flows_damaged)),
        ("over_limit", n(&c.flows_over_limit)),
    ];
    all.counters("narrows_tunnel_flows_failed_total", help, "reason", failed);
    all.gauge("narrows_tunnel_carriers_open", "Connections with other ends that carry flows.", n(&c.carriers_now));
    all.counter("narrows_tunnel_carriers_opened_total", "Carriers that were up.", n(&c.carriers_up));
    all.counter("narrows_tunnel_carriers_lost_total", "Carriers that were lost or closed.", n(&c.carriers_lost));
    all.gauge("narrows_tunnel_sessions_open", "Other ends that are connected.", n(&c.sessions_now));
    all.counter("narrows_tunnel_dials_failed_total", "Attempts to connect that failed.", n(&c.dials_failed));
    let help = "Connections that have not proved themselves yet.";
    all.gauge("narrows_tunnel_strangers_open", help, n(&c.strangers_now));
    let help = "Connections that never proved themselves: refused keys, broken, too late, turned away by a limit.";
    let strangers = [
        ("refused", n(&c.strangers_refused)),
        ("broken", n(&c.strangers_broken)),
        ("late", n(&c.strangers_late)),
        ("over_limit", n(&c.strangers_over_limit)),
    ];
    all.counters("narrows_tunnel_strangers_total", help, "reason", strangers);
    let help = "Lines about other ends and connections that were not told: nobody took them in time, or one host had too many.";
    let lost = [("full", n(&c.reports_lost)), ("over_rate", n(&c.lines_left_out))];
    all.counters("narrows_tunnel_lines_lost_total", help, "reason", lost);
    all.gauge("narrows_tunnel_held_bytes", "Memory that data of flows takes.", n(&c.bytes_held));
    let rtt = snapshot.map_or(&[][..], |s| &s.rtt_ns);
    let rtt = rtt.iter().map(|(carrier, ns)| (carrier.to_string(), *ns as f64 / 1e9));
    let help = "Last measured round trip to the other end, by carrier of a dialer.";
    all.gauges("narrows_tunnel_carrier_rtt_seconds", help, "carrier", rtt);
    let help = "Time until the target of a connection was reached, at a dialer with the way to the other end.";
    all.histogram("narrows_tunnel_connect_seconds", help, c.reached.buckets());
    all.histogram("narrows_tunnel_flow_seconds", "How long connections were open.", c.lasted.buckets());
    all
}
