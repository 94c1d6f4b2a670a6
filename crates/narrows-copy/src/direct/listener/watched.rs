//! The status of a server of copies.

use std::time::Instant;

use narrows_watch::account::{Account, Times};
use narrows_watch::metric::Families;
use narrows_watch::process;
use narrows_watch::status::{Connection, Status, Traffic};

use super::{Copy, Server, State};
use crate::hello::Task;

/// What a client wants, as a word.
pub(super) fn word(task: &Task) -> &'static str {
    match task {
        Task::Put { .. } => "stores",
        Task::Get(_) => "reads",
    }
}

impl Copy {
    fn connection(&self, id: u64, now: Instant) -> (Connection, Account) {
        let (sent, received) = (self.control.send_summary(), self.control.receive_summary());
        let account = Account::of(&sent);
        let back = Traffic::received(received.raw_bytes, received.wire_bytes, Some(&received));
        let connection = Connection {
            id,
            peer: self.peer.to_string(),
            accepted: true,
            age_s: now.duration_since(self.begun).as_secs_f64(),
            outcome: if self.place.is_some() { self.wants } else { "turned away" }.into(),
            within_host: self.peer.ip().is_loopback(),
            out: Traffic::sent(sent.raw_bytes, sent.wire_bytes, &account),
            back,
            times: (account.times != Times::default()).then_some(account.times),
            ..Connection::default()
        };
        (connection, account)
    }
}

impl State {
    /// A copy is over.
    pub(super) fn count(&mut self, copy: &Copy) {
        let (connection, account) = copy.connection(0, Instant::now());
        self.ended.connections += 1;
        self.ended.failed += u64::from(copy.failed);
        self.ended.add(&connection);
        self.account.merge(&account);
    }
}

impl Server {
    /// The status of the server, which is named `program`.
    pub fn status(&self, program: &str) -> Status {
        let state = self.lock();
        let now = Instant::now();
        let mut account = state.account.clone();
        let mut totals = state.ended;
        let mut connections = Vec::with_capacity(state.copies.len());
        for (id, copy) in &state.copies {
            let (connection, of_copy) = copy.connection(*id, now);
            account.merge(&of_copy);
            totals.connections += 1;
            totals.add(&connection);
            connections.push(connection);
        }
        let ended = state.ended;
        let (open, strangers) = (connections.len() as f64, state.strangers.len() as f64);
        let (all, turned_away) = (state.connections as f64, state.turned_away as f64);
        drop(state);
        let mut metrics = Families::default();
        metrics.gauge("narrows_serve_copies_open", "Copies that are under way.", open);
        let results = [("complete", ended.connections - ended.failed), ("failed", ended.failed)];
        let results = results.map(|(result, n)| (result, n as f64));
        metrics.counters("narrows_serve_copies_ended_total", "Copies that are over, by result.", "result", results);
        let help = "Connections that clients opened: copies, their further carriers, and strangers.";
        metrics.counter("narrows_serve_connections_accepted_total", help, all);
        let help = "Connections that have not proved themselves yet.";
        metrics.gauge("narrows_serve_strangers_open", help, strangers);
        let help = "Connections and copies that were closed or refused because others needed the place.";
        metrics.counter("narrows_serve_turned_away_total", help, turned_away);
        let status = process::status("serve", program, self.begun.elapsed());
        Status { totals, ended, metrics, ..status }.with_account(&account).with_connections(connections)
    }
}
