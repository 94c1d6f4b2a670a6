//! Reports for who watches: the state of connections, their ends, and the trace of single ones.

use std::sync::mpsc::{Sender, SyncSender, TrySendError};
use std::time::Duration;

use narrows_host::words::shown;
use narrows_watch::account::Account;
use narrows_watch::status::{Connection, Traffic};
use serde_json::json;

use super::conn::{Conn, Stage};
use super::{Flows, Hub, Kind, Pump};
use crate::counters::Counters;
use crate::engine::Key;
use crate::limits::CARRIERS_MAX;
use crate::lines::Subject;
use crate::reason::Reason;
use crate::session::{Role, is_of_dialer};
use crate::settings::{Ended, Report};

/// What is told of a connection.
pub(super) struct About {
    /// Unique within the process.
    id: u64,
    /// The client and the target, as their ends name them.
    from: Box<str>,
    to: Box<str>,
    begun_ns: u64,
    /// The target was reached.
    is_open: bool,
}

impl About {
    /// Which connection it is, for people.
    pub(super) fn name(&self) -> String {
        named(&self.to, &self.from)
    }

    /// Where it goes, for people.
    pub(super) fn target(&self) -> &str {
        &self.to
    }

    /// The target was reached.
    pub(super) fn reached(&mut self, counters: &Counters, now_ns: u64) {
        if !std::mem::replace(&mut self.is_open, true) {
            counters.reached.observe(Duration::from_nanos(now_ns.saturating_sub(self.begun_ns)));
        }
    }
}

/// A target and the client that wants it, who may have no address.
pub(super) fn named(to: &str, client: &str) -> String {
    if client.is_empty() { to.to_owned() } else { format!("{to} (for {client})") }
}

/// A tunnel at one moment.
#[derive(Default)]
pub(crate) struct Snapshot {
    pub(crate) connections: Vec<Connection>,
    /// What all streams did, those that are over too.
    pub(crate) account: Account,
    /// Round trips of a dialer's carriers in ns.
    pub(crate) rtt_ns: Vec<(u8, u64)>,
    /// Whether the other end of a dialer answers; `None` for an acceptor.
    pub(crate) is_up: Option<bool>,
}

/// The trace of a connection.
pub(super) struct Tracing {
    key: Key,
    until_ns: u64,
    lines: SyncSender<String>,
}

impl Flows {
    /// What will be told of a new connection. Both texts may be those of a peer.
    pub(super) fn about(&mut self, from: &str, to: String, now_ns: u64) -> Box<About> {
        self.numbered += 1;
        let text = |text: &str| shown(text.as_bytes()).into_boxed_str();
        let (from, to) = (text(from), text(&to));
        Box::new(About { id: self.numbered, from, to, begun_ns: now_ns, is_open: false })
    }

    /// Sends every decision about a connection to `lines`, beginning with what it is.
    pub(super) fn begin_trace(&mut self, hub: &mut Hub, id: u64, until_ns: u64, lines: SyncSender<String>) {
        let is_it = |kind: &Kind| matches!(kind, Kind::Conn(conn) if conn.about.id == id);
        let key = hub.iter().find_map(|(key, kind)| is_it(kind).then_some(key));
        // Without it, the end of `lines` tells that there is none.
        let Some((key, Kind::Conn(conn))) = key.and_then(|key| Some((key, hub.kind(key)?))) else { return };
        let first = json!({ "event": "flow", "id": id, "from": &*conn.about.from, "to": &*conn.about.to });
        if lines.try_send(first.to_string()).is_ok() {
            conn.up.set_trace(true);
            self.traces.push(Tracing { key, until_ns, lines });
        }
    }

    /// Passes on what traced connections have decided.
    pub(super) fn send_traces(&mut self, hub: &mut Hub, now_ns: u64) {
        for at in (0..self.traces.len()).rev() {
            let Tracing { key, until_ns, .. } = self.traces[at];
            let is_over = now_ns >= until_ns;
            let lines = match hub.kind(key) {
                Some(Kind::Conn(conn)) => Some(conn.up.take_trace()),
                _ => None,
            };
            let lines = lines.filter(|_| !is_over);
            let goes_on = lines.is_some_and(|lines| {
                // Observations of the link come after every write, and are no decisions.
                let mut lines = lines.lines().filter(|line| !line.starts_with("{\"event\":\"link\""));
                // Who reads too slowly misses some.
                lines.all(|line| {
                    !matches!(self.traces[at].lines.try_send(line.to_owned()), Err(TrySendError::Disconnected(_)))
                })
            });
            if !goes_on {
                self.traces.swap_remove(at);
                let others = self.traces.iter().any(|trace| trace.key == key);
                if let (Some(Kind::Conn(conn)), false) = (hub.kind(key), others) {
                    conn.up.set_trace(false);
                }
            }
        }
    }
}

impl Pump {
    /// A connection is over.
    pub(super) fn tell_end(&mut self, conn: &Conn, reason: Option<Reason>) {
        let about = &conn.about;
        let lasted = Duration::from_nanos(self.now_ns.saturating_sub(about.begun_ns));
        if about.is_open {
            self.counters.lasted.observe(lasted);
        }
        if self.settings.tells_ends {
            let [out_raw, out_wire, back_raw, back_wire] = conn.amounts();
            let ended = Report::Ended(Box::new(Ended {
                id: about.id,
                from: about.from.to_string(),
                to: about.to.to_string(),
                lasted,
                out: [out_raw, out_wire],
                back: [back_raw, back_wire],
                reason,
            }));
            let host = self.sessions.host(conn.session);
            if about.is_open {
                self.reports.tell_end(ended);
            } else if self.reports.may_tell(host, Subject::Flows, self.now_ns) {
                self.reports.tell(ended);
            }
        }
    }

    /// Answers how everything is.
    pub(super) fn tell_state(&mut self, answer: &Sender<Snapshot>) {
        let mut account = self.work.engine.account().borrow().clone();
        let mut connections = Vec::with_capacity(self.flows.open);
        for (_, kind) in self.hub.iter() {
            let Kind::Conn(conn) = kind else { continue };
            conn.up.live().into_iter().for_each(|summary| account.add(summary));
            account.times.decode_cpu_ns += conn.down.live_decode_cpu_ns();
            connections.push(self.connection(conn));
        }
        let session = self.uplink_session().and_then(|at| self.sessions.get(at));
        let carriers = session.into_iter().flat_map(|place| {
            let up = (0..CARRIERS_MAX as u8).filter(|n| place.session.is_up(*n));
            up.map(|n| (n, place.session.rtt_ns(n)))
        });
        let rtt_ns = carriers.filter(|(_, rtt_ns)| *rtt_ns > 0).collect();
        let is_up = self.uplink.as_ref().map(|_| self.uplink_session().is_some());
        // Whoever asked may have given up.
        let _ = answer.send(Snapshot { connections, account, rtt_ns, is_up });
    }

    fn connection(&self, conn: &Conn) -> Connection {
        let about = &conn.about;
        let [out_raw, out_wire, back_raw, back_wire] = conn.amounts();
        let account = conn.up.account();
        let out = Traffic::sent(out_raw, out_wire, &account);
        let back = Traffic::received(back_raw, back_wire, conn.down.summary().as_ref());
        let encrypted = conn.up.is_encrypted();
        let outcome = match &conn.stage {
            Stage::Finding { .. } | Stage::Knocking { .. } | Stage::Connecting { .. } => "connecting",
            Stage::Open(_) | Stage::Closed if encrypted => "raw (encrypted)",
            Stage::Open(_) | Stage::Closed if out.framed || back_wire != back_raw => "compressed",
            Stage::Open(_) | Stage::Closed => "raw (short)",
        };
        // Flows of a dialer were accepted at its end, those of an acceptor's listeners there.
        let role = if is_of_dialer(conn.flow) { Role::Dialer } else { Role::Acceptor };
        let here = self.sessions.get(conn.session).map(|place| place.role);
        Connection {
            id: about.id,
            peer: about.from.to_string(),
            target: about.to.to_string(),
            accepted: here == Some(role),
            age_s: self.now_ns.saturating_sub(about.begun_ns) as f64 / 1e9,
            outcome: outcome.into(),
            encrypted,
            within_host: false,
            times: (!account.mix.is_empty()).then_some(account.times),
            out,
            back,
            progress: None,
        }
    }
}
