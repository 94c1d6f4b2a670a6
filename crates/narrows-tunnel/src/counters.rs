//! What a tunnel has done, for whoever watches it.

use std::sync::atomic::{AtomicU64, Ordering};

use narrows_watch::histogram::Histogram;

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
        }

        impl Counters {
            /// All of them, by name.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// Connections that were carried, and how they ended.
    flows_opened,
    flows_refused,
    flows_reset,
    flows_damaged,
    /// Connections that a limit turned away.
    flows_over_limit,
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
    /// Attempts of dialers to connect that failed.
    dials_failed,
    /// Connections that proved nothing: refused keys, no tunnel, too slow, turned away by a limit.
    strangers_refused,
    strangers_broken,
    strangers_late,
    strangers_over_limit,
    strangers_now,
    /// Memory that flows hold.
    bytes_held,
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
