//! Checking a variable: every chunk that Narrows wrote is decoded and compared with its own check.

use std::collections::BTreeMap;
use std::num::NonZero;

use narrows::{Error, ErrorKind};
use narrows_array::Kept;

use crate::filter::Decoders;
use crate::store::Store;
use crate::variable::{Chunk, Variable, product, words};
use crate::{limits, parallel};

/// Damaged chunks that are listed; all are counted.
pub(crate) const LISTED_MAX: usize = 100;
/// The name of chunks that Narrows was left out for.
const LEFT_OUT: &str = "left out";

/// A chunk that cannot be decoded to what was written.
#[derive(Debug, Clone)]
pub struct Damage {
    /// Its first element along each axis; `None` if it is the index of the chunks.
    pub origin: Option<Vec<u64>>,
    /// What is wrong.
    pub why: String,
}

/// Least and greatest of a number that chunks state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// Least.
    pub low: f64,
    /// Greatest.
    pub high: f64,
}

/// What the chunks of a variable say.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Chunks that are stored.
    pub chunks: u64,
    /// Bytes of them as stored.
    pub wire_bytes: u64,
    /// Bytes of their elements that are within the array.
    pub raw_bytes: u64,
    /// Chunks and raw bytes by pipeline.
    pub mix: BTreeMap<String, (u64, u64)>,
    /// The absolute bound, if chunks state one; chunks may differ.
    pub abs: Option<Range>,
    /// The bound as a share of the value.
    pub rel: Option<Range>,
    /// The least error that the share allows.
    pub floor: Option<Range>,
    /// Chunks of Narrows that state a bound; the others are exact.
    pub bounded: u64,
    /// Whether some values were to be kept exactly.
    pub keeps: bool,
    /// The largest error that a chunk says.
    pub worst_abs: f64,
    /// The largest share of a value that a chunk says.
    pub worst_rel: Option<f64>,
    /// Elements that are exact because they would have missed the bound.
    pub exceptions: u64,
    /// The first ones of those that are damaged.
    pub damaged: Vec<Damage>,
    /// All of them.
    pub damaged_count: u64,
    /// Why chunks were not decoded, if they were not and need not be damaged.
    pub unseen: Option<String>,
}

impl Found {
    /// Raw bytes for each byte stored.
    pub fn ratio(&self) -> f64 {
        self.raw_bytes as f64 / self.wire_bytes.max(1) as f64
    }

    fn damage(&mut self, origin: Option<Vec<u64>>, error: &Error) {
        self.damaged_count += 1;
        if self.damaged.len() < LISTED_MAX {
            self.damaged.push(Damage { origin, why: words(error) });
        }
    }

    fn bound(&mut self, kept: &Kept) {
        self.bounded += 1;
        self.keeps |= kept.keeps;
        self.exceptions += kept.exceptions as u64;
        self.worst_abs = self.worst_abs.max(kept.worst_abs.into());
        if let Some(worst) = kept.worst_rel {
            self.worst_rel = Some(self.worst_rel.unwrap_or(0.0).max(worst.into()));
        }
        for (range, value) in [(&mut self.abs, kept.abs), (&mut self.rel, kept.rel), (&mut self.floor, kept.floor)] {
            if let Some(v) = value {
                merge(range, Some(Range { low: v, high: v }));
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.wire_bytes += other.wire_bytes;
        self.chunks += other.chunks;
        self.raw_bytes += other.raw_bytes;
        for (name, (chunks, bytes)) in other.mix {
            let entry = self.mix.entry(name).or_default();
            *entry = (entry.0 + chunks, entry.1 + bytes);
        }
        merge(&mut self.abs, other.abs);
        merge(&mut self.rel, other.rel);
        merge(&mut self.floor, other.floor);
        self.bounded += other.bounded;
        self.keeps |= other.keeps;
        self.worst_abs = self.worst_abs.max(other.worst_abs);
        self.worst_rel = self.worst_rel.into_iter().chain(other.worst_rel).reduce(f64::max);
        self.exceptions += other.exceptions;
        self.damaged_count += other.damaged_count;
        self.damaged.extend(other.damaged);
    }
}

fn merge(range: &mut Option<Range>, other: Option<Range>) {
    *range = match (*range, other) {
        (Some(a), Some(b)) => Some(Range { low: a.low.min(b.low), high: a.high.max(b.high) }),
        (a, b) => a.or(b),
    };
}

/// Checks a variable. Chunks without Narrows are counted, not decoded.
pub fn check(store: &Store, variable: &Variable, threads: NonZero<usize>) -> Found {
    let mut found = Found::default();
    if let (Some(trouble), true) = (&variable.trouble, variable.is_damaged) {
        found.damage(None, &Error::corrupt(trouble.clone()));
    }
    let chunks = match store.chunks(variable) {
        Ok(chunks) => chunks,
        Err(error) => {
            match error.kind {
                ErrorKind::Unsupported | ErrorKind::Limit => found.unseen = Some(words(&error)),
                _ => found.damage(None, &error),
            }
            return found;
        }
    };
    let unknown = variable.filters.iter().find(|f| !f.is_known());
    if variable.is_narrows() && !chunks.is_empty() {
        found.unseen = unknown.map(|f| format!("this program cannot undo {}", f.name));
    }
    if !variable.is_narrows() || found.unseen.is_some() {
        for chunk in &chunks {
            count(variable, chunk, &mut found);
        }
        return found;
    }
    let work = |(found, decoders): &mut (Found, Decoders), i: usize| {
        let chunk = &chunks[i];
        let raw_bytes = count(variable, chunk, found);
        let name = match store.decode(variable, chunk, decoders) {
            Ok(decoded) => match decoded.narrows {
                Some((info, pipeline)) => {
                    if let Some(kept) = &info.bound {
                        found.bound(kept);
                    }
                    pipeline.to_string()
                }
                None => LEFT_OUT.to_owned(),
            },
            Err(error) => return found.damage(Some(chunk.origin.clone()), &error),
        };
        let entry = found.mix.entry(name).or_default();
        *entry = (entry.0 + 1, entry.1 + raw_bytes);
    };
    for (part, _) in
        parallel::run(chunks.len(), limits::threads(variable.chunk_raw_len(), threads), Default::default, work)
    {
        found.merge(part);
    }
    found.damaged.sort_by(|a, b| a.origin.cmp(&b.origin));
    found.damaged.truncate(LISTED_MAX);
    found
}

fn count(variable: &Variable, chunk: &Chunk, found: &mut Found) -> u64 {
    let raw_bytes = product(&variable.inner(&chunk.origin)).saturating_mul(variable.element.bytes as u64);
    found.chunks += 1;
    found.wire_bytes = found.wire_bytes.saturating_add(chunk.len);
    found.raw_bytes = found.raw_bytes.saturating_add(raw_bytes);
    raw_bytes
}
