//! What a tunnel has done, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use narrows_watch::histogram::Histogram;

use super::standing::Standing;

/// Declares the counters once: as fields, and as a list of names and values.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the start, and present numbers. Any thread may read them.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// Time until a target was reached, at a dialer with the way to the other end.
            pub reached: Histogram,
            /// How long connections were open.
            pub lasted: Histogram,
            standing: Mutex<Standing>,
        }

        impl Counters {
            /// All of them, by name.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }

            /// How the other end of a dialer is now.
            pub fn standing(&self) -> MutexGuard<'_, Standing> {
                self.standing.lock().unwrap_or_else(PoisonError::into_inner)
            }
        }
    };
}

counters! {
    /// Connections that were carried, and how they ended.
    flows_opened,
    flows_refused,
    /// Those of them that this end refused: they were never opened.
    flows_refused_here,
    flows_reset,
    flows_damaged,
    /// Connections that a limit turned away: no place, or too many of one host in a second.
    flows_over_limit,
    flows_over_rate,
    /// Connections that are open.
    flows_now,
    /// Bytes of local connections, and what was sent for them.
    raw_bytes_out,
    wire_bytes_out,
    /// Bytes given to local connections, and what came for them.
    raw_bytes_in,
    wire_bytes_in,
    /// Carriers that were up, that were lost, and that are up.
    carriers_up,
    carriers_lost,
    carriers_now,
    sessions_now,
    /// Sessions that a limit turned away, and those whose other end is not trusted any more.
    sessions_over_limit,
    sessions_distrusted,
    /// Carriers and listeners of dialers whose host has too many.
    attached_over_limit,
    /// Attempts of dialers to connect that failed.
    dials_failed,
    /// Connections that proved nothing: refused keys, no tunnel, too slow, turned away by a limit.
    strangers_refused,
    strangers_broken,
    strangers_late,
    strangers_over_limit,
    /// Those of hosts that began too many in a second.
    strangers_over_rate,
    strangers_now,
    /// SOCKS clients and others that have not said where to, those that said it too late, and those that
    /// a limit turned away.
    undecided_now,
    undecided_late,
    undecided_over_limit,
    /// Names that were not looked up, because too many were under way.
    lookups_over_limit,
    /// Connections that could not be accepted, usually since no descriptor was free.
    accepts_failed,
    /// Memory that flows hold, and how often that reached its limit.
    bytes_held,
    memory_full,
    /// Reports that were lost since nobody took them in time, and lines that a host had too many of.
    reports_lost,
    lines_left_out,
    /// Answers to the owner's question whether the thread moves.
    beats,
}

/// A number that one thread changes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }

    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}
