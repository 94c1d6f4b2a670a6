//! Connection statistics: live connections for `narrows status`, and totals of all that have ended.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use narrows::policy::print_method;
use narrows_watch::account::Account;

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::wire::RawAddress;

/// Methods listed per direction.
const NAMED_MAX: usize = 3;

/// Traffic of one direction of a connection so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes as the program sees them.
    pub raw_bytes: u64,
    /// Bytes on the network, including plain ones.
    pub wire_bytes: u64,
    /// Whether the direction carries frames.
    pub framed: bool,
    /// Methods of the bytes in frames (for received ones, codecs) with their share in percent,
    /// largest first.
    pub methods: Vec<(String, u8)>,
}

/// Outcome of the negotiation with the other end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Frames in both directions.
    Framed,
    /// Frames in one direction; the other has ended, or has not switched yet.
    Half,
    /// No frames, and why.
    Plain(String),
}

/// Snapshot of a connection.
#[derive(Debug, Clone)]
pub struct LiveConnection {
    pub id: u64,
    pub peer: RawAddress,
    pub accepted: bool,
    pub age: Duration,
    pub outcome: Outcome,
    pub encrypted: bool,
    /// Both ends are on this host, so the data is stored and not compressed.
    pub within_host: bool,
    /// From the program, and to it.
    pub out: Traffic,
    pub back: Traffic,
    /// What was sent in frames.
    pub sent: Account,
}

/// Totals of all connections that are over.
#[derive(Default)]
pub struct Totals {
    pub connections: AtomicU64,
    pub failed: AtomicU64,
    pub out_raw_bytes: AtomicU64,
    pub out_wire_bytes: AtomicU64,
    pub back_raw_bytes: AtomicU64,
    pub back_wire_bytes: AtomicU64,
    outcomes: Mutex<BTreeMap<Outcome, u64>>,
    sent: Mutex<Account>,
}

impl Totals {
    pub fn add(&self, connection: &LiveConnection, failed: bool) {
        let count = |counter: &AtomicU64, n| {
            counter.fetch_add(n, Ordering::Relaxed);
        };
        count(&self.connections, 1);
        count(&self.failed, u64::from(failed));
        count(&self.out_raw_bytes, connection.out.raw_bytes);
        count(&self.out_wire_bytes, connection.out.wire_bytes);
        count(&self.back_raw_bytes, connection.back.raw_bytes);
        count(&self.back_wire_bytes, connection.back.wire_bytes);
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).merge(&connection.sent);
        self.count(connection.outcome.clone());
    }

    /// A connection that was never handed over.
    pub fn add_plain(&self, why: &str) {
        self.count(Outcome::Plain(why.into()));
    }

    fn count(&self, outcome: Outcome) {
        *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).entry(outcome).or_default() += 1;
    }

    /// What they sent in frames.
    pub fn sent(&self) -> Account {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of connections per outcome.
    pub fn outcomes(&self) -> BTreeMap<Outcome, u64> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Traffic {
    pub fn out(direction: &Outgoing) -> Self {
        let mix = direction
            .summary()
            .map(|s| s.mix.iter().map(|row| (row.raw_bytes, print_method(row.method, row.linked))).collect());
        Self::new(direction.bytes, direction.wire_bytes(), mix)
    }

    pub fn back(direction: &Incoming) -> Self {
        let mix = direction.summary().map(|s| {
            let name =
                |row: &narrows::receiver::RecvMixRow| row.codec.codec().map_or("unknown", |c| c.name()).to_string();
            s.mix.iter().map(|row| (row.raw_bytes, name(row))).collect()
        });
        Self::new(direction.bytes, direction.wire_bytes(), mix)
    }

    fn new(raw_bytes: u64, wire_bytes: u64, mix: Option<Vec<(u64, String)>>) -> Self {
        let framed = mix.is_some();
        let mut mix = mix.unwrap_or_default();
        mix.sort_by(|a, b| b.cmp(a));
        let all: u64 = mix.iter().map(|row| row.0).sum();
        let share = |n: u64| ((100 * n + all / 2) / all.max(1)) as u8;
        let methods =
            mix.into_iter().map(|(n, name)| (name, share(n))).filter(|row| row.1 > 0).take(NAMED_MAX).collect();
        Self { raw_bytes, wire_bytes, framed, methods }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Framed => f.write_str("compressed"),
            Self::Half => f.write_str("compressed one way"),
            Self::Plain(why) => write!(f, "plain ({why})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_and_the_small_ones_left_out() {
        let mix = vec![(1, "c".to_string()), (600, "a".into()), (399, "b".into())];
        let traffic = Traffic::new(1000, 100, Some(mix));
        assert_eq!(traffic.methods, [("a".to_string(), 60), ("b".into(), 40)]);
        assert_eq!(Traffic::new(5, 5, None), Traffic { raw_bytes: 5, wire_bytes: 5, ..Traffic::default() });
        assert_eq!(Traffic::new(0, 32, Some(vec![])).methods, []);
    }

    #[test]
    fn totals_add_up() {
        let totals = Totals::default();
        let out = Traffic::new(10, 4, None);
        let connection = LiveConnection {
            id: 1,
            peer: [0; 28],
            accepted: false,
            age: Duration::ZERO,
            outcome: Outcome::Half,
            encrypted: false,
            within_host: false,
            back: Traffic::default(),
            out,
            sent: Account::default(),
        };
        totals.add(&connection, true);
        totals.add(&connection, false);
        totals.add_plain("loopback");
        assert_eq!(totals.connections.into_inner(), 2);
        assert_eq!(totals.failed.into_inner(), 1);
        assert_eq!(totals.out_wire_bytes.into_inner(), 8);
        let outcomes = totals.outcomes.into_inner().unwrap();
        assert_eq!(
            outcomes.into_iter().collect::<Vec<_>>(),
            [(Outcome::Half, 2), (Outcome::Plain("loopback".into()), 1)]
        );
    }
}
