//! What sending flows did, added up over those that are over and those that live.

use narrows::policy::print_method;
use narrows::sender::{MixRow, Summary};
use serde::{Deserialize, Serialize};

/// Bytes by method, and times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Account {
    pub mix: Vec<MixRow>,
    pub times: Times,
}

/// Frames and bytes of one method.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MethodAmount {
    pub name: String,
    pub frames: u64,
    pub raw_bytes: u64,
    pub wire_bytes: u64,
}

/// Where the time of sending flows went, as in [`Summary`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    pub encode_cpu_ns: u64,
    pub link_busy_ns: u64,
    pub link_dry_ns: u64,
    pub idle_ns: u64,
    pub search_idle_ns: u64,
    pub confirm_ns: u64,
    pub decode_cpu_ns: u64,
    pub decode_threads: u64,
    pub receiver_blocked_ns: u64,
    pub receiver_limited_ns: u64,
    /// Estimate of the link's rate; of several flows the largest.
    pub rate_bytes_per_s: f64,
}

impl Account {
    /// An account of one flow.
    pub fn of(summary: &Summary) -> Self {
        let mut account = Self::default();
        account.add(summary);
        account
    }

    /// Adds what a flow did.
    pub fn add(&mut self, summary: &Summary) {
        self.times.merge(&Times::of(summary));
        summary.mix.iter().for_each(|row| self.add_row(row));
    }

    /// Adds another account.
    pub fn merge(&mut self, other: &Self) {
        self.times.merge(&other.times);
        other.mix.iter().for_each(|row| self.add_row(row));
    }

    fn add_row(&mut self, row: &MixRow) {
        match self.mix.iter_mut().find(|r| r.method == row.method && r.linked == row.linked) {
            Some(known) => {
                known.frames += row.frames;
                known.raw_bytes += row.raw_bytes;
                known.wire_bytes += row.wire_bytes;
            }
            // There are as many as the policy's list has methods, a few dozen.
            None => self.mix.push(row.clone()),
        }
    }

    /// The methods with their names, those with the most raw bytes first.
    pub fn methods(&self) -> Vec<MethodAmount> {
        let method = |row: &MixRow| MethodAmount {
            name: print_method(row.method, row.linked),
            frames: row.frames,
            raw_bytes: row.raw_bytes,
            wire_bytes: row.wire_bytes,
        };
        let mut methods: Vec<_> = self.mix.iter().map(method).collect();
        methods.sort_by(|a, b| b.raw_bytes.cmp(&a.raw_bytes).then_with(|| a.name.cmp(&b.name)));
        methods
    }
}

impl Times {
    pub fn of(s: &Summary) -> Self {
        Self {
            encode_cpu_ns: s.encode_cpu_ns,
            link_busy_ns: s.link_busy_ns,
            link_dry_ns: s.link_dry_ns,
            idle_ns: s.idle_ns,
            search_idle_ns: s.search_idle_ns,
            confirm_ns: s.confirm_ns,
            decode_cpu_ns: s.decode_cpu_ns,
            decode_threads: s.decode_threads,
            receiver_blocked_ns: s.receiver_blocked_ns,
            receiver_limited_ns: s.receiver_limited_ns,
            rate_bytes_per_s: if s.rate_bytes_per_s.is_finite() { s.rate_bytes_per_s } else { 0.0 },
        }
    }

    /// Adds those of another flow, or of a later time.
    pub fn merge(&mut self, other: &Self) {
        self.encode_cpu_ns += other.encode_cpu_ns;
        self.link_busy_ns += other.link_busy_ns;
        self.link_dry_ns += other.link_dry_ns;
        self.idle_ns += other.idle_ns;
        self.search_idle_ns += other.search_idle_ns;
        self.confirm_ns += other.confirm_ns;
        self.decode_cpu_ns += other.decode_cpu_ns;
        self.decode_threads = self.decode_threads.max(other.decode_threads);
        self.receiver_blocked_ns += other.receiver_blocked_ns;
        self.receiver_limited_ns += other.receiver_limited_ns;
        self.rate_bytes_per_s = self.rate_bytes_per_s.max(other.rate_bytes_per_s);
    }

    /// As a summary, from which a bottleneck can be found.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        summary.encode_cpu_ns = self.encode_cpu_ns;
        summary.link_busy_ns = self.link_busy_ns;
        summary.link_dry_ns = self.link_dry_ns;
        summary.idle_ns = self.idle_ns;
        summary.search_idle_ns = self.search_idle_ns;
        summary.confirm_ns = self.confirm_ns;
        summary.decode_cpu_ns = self.decode_cpu_ns;
        summary.decode_threads = self.decode_threads;
        summary.receiver_blocked_ns = self.receiver_blocked_ns;
        summary.receiver_limited_ns = self.receiver_limited_ns;
        summary.rate_bytes_per_s = self.rate_bytes_per_s;
        summary
    }

    /// What came since an earlier look.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            encode_cpu_ns: self.encode_cpu_ns.saturating_sub(before.encode_cpu_ns),
            link_busy_ns: self.link_busy_ns.saturating_sub(before.link_busy_ns),
            link_dry_ns: self.link_dry_ns.saturating_sub(before.link_dry_ns),
            idle_ns: self.idle_ns.saturating_sub(before.idle_ns),
            search_idle_ns: self.search_idle_ns.saturating_sub(before.search_idle_ns),
            confirm_ns: self.confirm_ns.saturating_sub(before.confirm_ns),
            decode_cpu_ns: self.decode_cpu_ns.saturating_sub(before.decode_cpu_ns),
            decode_threads: self.decode_threads,
            receiver_blocked_ns: self.receiver_blocked_ns.saturating_sub(before.receiver_blocked_ns),
            receiver_limited_ns: self.receiver_limited_ns.saturating_sub(before.receiver_limited_ns),
            rate_bytes_per_s: self.rate_bytes_per_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use narrows::codec::Method;

    use super::*;

    #[test]
    fn flows_add_up_by_method() {
        let summary = |raw_bytes| {
            let mut summary = Summary::default();
            summary.count_frame(Method::STORE, false, raw_bytes, 0, 2);
            (summary.link_busy_ns, summary.rate_bytes_per_s) = (5, 7.0);
            summary
        };
        let mut account = Account::of(&summary(10));
        account.merge(&Account::of(&summary(30)));
        assert_eq!(account.methods().iter().map(|m| (m.frames, m.raw_bytes)).collect::<Vec<_>>(), [(2, 40)]);
        assert_eq!((account.times.link_busy_ns, account.times.rate_bytes_per_s), (10, 7.0));
        assert_eq!(account.times.since(&Times { link_busy_ns: 4, ..Times::default() }).link_busy_ns, 6);
        assert_eq!(Times::of(&account.times.summary()), account.times);
    }
}
