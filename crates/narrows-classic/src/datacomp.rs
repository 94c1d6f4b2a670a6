//! `datacomp`: a table of the output rate of each method in each kind of situation (Datacomp,
//! 2016).
//!
//! A situation, called an *opportunity*, consists of CPU load, CPU frequency, bandwidth and
//! compressibility, each in a few levels. In each opportunity every method is tried twice; then the
//! one with the best average is used. Bytes that do not look compressible are sent raw, 256 KiB at
//! a time. `docs/experiments/seed-policies.md` lists the decisions that the paper leaves open.

use std::fmt;
use std::sync::Arc;

use narrows::codec::{Codecs, Method};
use narrows::monitor::{Limits, View};
use narrows::policy::{Choice, Outcome, Policy, PolicySettings, PolicySetup, Registered};
use narrows::{Error, Result};

mod table;

pub use table::{EventTable, Opportunity};
use table::{Record, RecordIndex, SIZES, STRENGTHS, variants};

/// Minimum length to compress.
const LEN_MIN: usize = 1024;
/// Maximum bytes for which one bytecount is valid; if it is above `STORE_ABOVE`, this many are
/// stored.
const COUNTED_MAX: usize = 256 << 10;
const STORE_ABOVE: usize = 100;
/// Number of times that every method is used before averages are compared.
const TRIES: u32 = 2;
/// One choice in this many is preceded by a boost: as often as an average is renewed.
const BOOST_EVERY: u64 = 20;
/// Number of latest blocks whose choice is remembered until the outcome comes; more than two
/// windows.
const REMEMBERED: usize = 64;
/// Gain of the CPU load estimate for each job.
const LOAD_GAIN: f32 = 0.125;

/// The policy: the method with the best recorded output rate in the present opportunity.
pub struct Datacomp {
    table: EventTable,
    learns: bool,
    /// Codecs of the flow, bit n for codec n.
    codecs: u64,
    cores: usize,
    /// By record: number of choices whose outcome has not come.
    in_flight: Vec<u8>,
    pending: Box<[Option<Event>; REMEMBERED]>,
    /// Share of the time in which other processes had the cores of our workers.
    load: f32,
    bytecount: usize,
    counted_until: u64,
    store_until: u64,
    choices: u64,
    rng: u64,
    why: Why,
}

/// A choice whose outcome has not come.
#[derive(Clone, Copy)]
struct Event {
    seq: u64,
    record: RecordIndex,
    abw_bytes_per_s: f64,
}

#[derive(Default)]
struct Why {
    opportunity: usize,
    average: u32,
    tried: u32,
}

impl Datacomp {
    const BLOCK_MAX: usize = SIZES[SIZES.len() - 1];

    /// A policy for one flow, with methods of these codecs. If `learns`, it tries methods and updates the
    /// table; else it only reads it.
    pub fn new(table: EventTable, learns: bool, cores: usize, codecs: &Codecs) -> Self {
        Self {
            in_flight: vec![0; table.len()],
            table,
            learns,
            codecs: codecs.bits(),
            cores: cores.max(1),
            pending: Box::new([None; REMEMBERED]),
            load: 0.0,
            bytecount: 0,
            counted_until: 0,
            store_until: 0,
            choices: 0,
            rng: 1,
            why: Why::default(),
        }
    }

    /// All methods of the table that these codecs have.
    fn methods(codecs: &Codecs) -> Vec<Method> {
        let mut methods = Vec::new();
        for (family, strengths) in STRENGTHS.iter().enumerate() {
            let known = strengths.iter().map(|level| table::method(family, *level));
            methods.extend(known.filter(|m| codecs.get(m.codec).is_some()));
        }
        methods
    }

    /// Determines the bytecount of the coming bytes, unless it is still valid.
    fn count(&mut self, view: &View<'_>) {
        if view.raw_offset < self.counted_until {
            return;
        }
        let bytes = &view.upcoming[..view.upcoming.len().min(COUNTED_MAX)];
        self.bytecount = bytecount(bytes);
        self.counted_until = view.raw_offset.saturating_add(bytes.len() as u64);
        if self.bytecount > STORE_ABOVE {
            self.store_until = view.raw_offset.saturating_add(COUNTED_MAX as u64);
            self.counted_until = self.store_until;
        }
    }

    /// The records that may be used now, in the order of the table.
    fn candidates<'a>(&self, view: &View<'a>, opportunity: usize) -> impl Iterator<Item = RecordIndex> + use<'a> {
        let limits = Limits { codecs: view.limits.codecs & self.codecs, ..view.limits };
        let size_max = table::size_of(view.gathered.min(limits.block_max));
        let threads = if self.cores > 1 { 2 } else { 1 };
        variants(opportunity).filter(move |r| {
            let method = r.method();
            r.size <= size_max && r.threads < threads && limits.allows(method)
        })
    }

    fn pick(&mut self, view: &View<'_>, opportunity: usize) -> Option<RecordIndex> {
        if self.learns {
            let tries = |r: &RecordIndex| self.table[*r].count + u32::from(self.in_flight[r.place()]);
            if let Some(untried) = self.candidates(view, opportunity).find(|r| tries(r) < TRIES) {
                return Some(untried);
            }
            if self.choices.is_multiple_of(BOOST_EVERY) {
                self.boost(view, opportunity);
            }
        }
        let used = self.candidates(view, opportunity).filter(|r| self.table[*r].count > 0);
        used.reduce(|best, r| if self.table[r].average > self.table[best].average { r } else { best })
    }

    /// Raises the average of a random candidate, so that it may be tried again.
    fn boost(&mut self, view: &View<'_>, opportunity: usize) {
        let count = self.candidates(view, opportunity).count();
        self.rng = self.rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chosen = (self.rng >> 33) as usize % count.max(1);
        if let Some(record) = self.candidates(view, opportunity).nth(chosen) {
            self.table[record].boost();
        }
    }

    fn remember(&mut self, event: Event) {
        let place = event.record.place();
        self.in_flight[place] = self.in_flight[place].saturating_add(1);
        let slot = &mut self.pending[event.seq as usize % REMEMBERED];
        if let Some(old) = slot.replace(event) {
            self.in_flight[old.record.place()] -= 1;
        }
    }

    fn store(&self, view: &View<'_>, len: usize) -> Choice {
        Choice::new(Method::STORE, len.min(view.limits.block_max).max(1))
    }

    fn finished(&mut self, seq: u64, raw_len: usize, wire_len: usize, wall_ns: u64) {
        let slot = &mut self.pending[seq as usize % REMEMBERED];
        let Some(event) = slot.take_if(|e| e.seq == seq) else { return };
        self.in_flight[event.record.place()] -= 1;
        if !self.learns || raw_len == 0 {
            return;
        }
        // A length between two sizes counts as the larger one.
        let record = RecordIndex { size: table::size_of(raw_len), ..event.record };
        let threads = if event.record.threads > 0 { self.cores } else { 1 };
        let (raw, wire) = (raw_len as f64, wire_len.max(1) as f64);
        let output_bytes_per_s = wire / (wall_ns.max(1) as f64 * 1e-9) * threads as f64;
        self.table[record].add(event.abw_bytes_per_s.min(output_bytes_per_s) * raw / wire);
    }
}

/// Bytecount: the number of byte values that appear at least as often as if all values were equally
/// frequent.
fn bytecount(bytes: &[u8]) -> usize {
    let mut counts = [0u32; 256];
    bytes.iter().for_each(|b| counts[usize::from(*b)] += 1);
    let threshold = (bytes.len() / 256).max(1) as u32;
    counts.iter().filter(|c| **c >= threshold).count()
}

impl Policy for Datacomp {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        if view.raw_offset < self.store_until {
            return self.store(view, (self.store_until - view.raw_offset) as usize);
        }
        if view.gathered < LEN_MIN {
            return self.store(view, view.gathered);
        }
        self.count(view);
        if view.raw_offset < self.store_until {
            return self.store(view, COUNTED_MAX);
        }
        let rate = view.link.rate_bytes_per_s;
        let abw_bytes_per_s = if rate.is_finite() { rate.max(0.0) } else { 0.0 };
        let opportunity = Opportunity::new(self.load, abw_bytes_per_s, self.bytecount).place();
        self.choices += 1;
        let Some(record) = self.pick(view, opportunity) else { return self.store(view, Self::BLOCK_MAX) };
        self.why = Why { opportunity, average: self.table[record].average, tried: self.table[record].count };
        self.remember(Event { seq: view.seq, record, abw_bytes_per_s });
        let threads_max = if record.threads == 0 { Some(1) } else { None };
        Choice { threads_max, ..Choice::new(record.method(), SIZES[record.size].min(view.limits.block_max)) }
    }

    fn learn(&mut self, outcome: &Outcome) {
        let Outcome::Encoded { seq, raw_len, wire_len, wall_ns, cpu_ns, .. } = *outcome else { return };
        if wall_ns > 0 {
            let taken = 1.0 - (cpu_ns as f32 / wall_ns as f32).min(1.0);
            self.load += LOAD_GAIN * (taken - self.load);
        }
        self.finished(seq, raw_len, wire_len, wall_ns);
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(Self::BLOCK_MAX)
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.learns.then(|| self.table.bytes())
    }

    fn explain(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("bytecount", self.bytecount as f64),
            ("opportunity", self.why.opportunity as f64),
            ("average_eor_bytes_per_s", f64::from(self.why.average) * Record::UNIT_BYTES_PER_S),
            ("events", f64::from(self.why.tried)),
        ]
    }
}

#[derive(Debug)]
struct Settings {
    file: Option<String>,
    /// Whether the table is trained and adapted; else it is only read.
    learns: bool,
    /// Contents of the file.
    table: Option<EventTable>,
    /// Those of which it tries methods.
    codecs: Codecs,
}

impl Settings {
    fn parse(rest: &str, codecs: &Codecs) -> Result<Self> {
        let rest = rest.strip_prefix(':').unwrap_or_default();
        // The mode is parsed from the end, since the name of a file may have commas.
        let (rest, learns) = match rest.rsplit_once("mode=") {
            Some((rest, "train")) => (rest.trim_end_matches(','), true),
            Some((rest, "read")) => (rest.trim_end_matches(','), false),
            _ => (rest, true),
        };
        let file = match rest.strip_prefix("table=") {
            Some(file) if !file.is_empty() => Some(file.to_owned()),
            None if rest.is_empty() => None,
            _ => {
                return Err(Error::misuse(format!(
                    "'{rest}' is not a setting of datacomp; it takes table=FILE and then mode=train or mode=read"
                )));
            }
        };
        if file.is_none() && !learns {
            return Err(Error::misuse("datacomp needs a table to read: datacomp:table=FILE,mode=read"));
        }
        Ok(Self { file, learns, table: None, codecs: codecs.clone() })
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("datacomp")?;
        if let Some(file) = &self.file {
            write!(f, ":table={file}")?;
        }
        f.write_str(if self.learns { "" } else { ",mode=read" })
    }
}

impl PolicySettings for Settings {
    fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        Box::new(Datacomp::new(self.table.clone().unwrap_or_default(), self.learns, setup.cores, setup.codecs))
    }

    fn block_max(&self) -> usize {
        Datacomp::BLOCK_MAX
    }

    fn methods(&self) -> Vec<Method> {
        Datacomp::methods(&self.codecs)
    }

    fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    fn keeps(&self) -> bool {
        self.file.is_some() && self.learns
    }

    fn load(&self, bytes: &[u8]) -> Result<Arc<dyn PolicySettings>> {
        let (file, codecs) = (self.file.clone(), self.codecs.clone());
        Ok(Arc::new(Self { file, learns: self.learns, table: Some(EventTable::parse(bytes)?), codecs }))
    }

    fn contents(&self) -> Option<Vec<u8>> {
        self.table.as_ref().map(EventTable::bytes)
    }
}

pub(crate) const ENTRY: Registered = Registered {
    name: "datacomp",
    usage: "datacomp[:table=FILE][,mode=train|read]",
    about: "Datacomp (2016): the method with the best recorded rate in the situation",
    examples: &["datacomp", "datacomp:table=FILE", "datacomp:table=FILE,mode=read"],
    parse: |rest, codecs| Ok(Arc::new(Settings::parse(rest, codecs)?)),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytecounts_are_those_of_the_text() {
        assert_eq!(bytecount(&[7; 5000]), 1, "one byte repeated");
        // Every value equally often: all of them reach the threshold.
        let all: Vec<u8> = (0..=255).cycle().take(2560).collect();
        assert_eq!(bytecount(&all), 256);
        // 1024 bytes: the threshold is 4. Four values reach it, the 50 that come once do not.
        let mut some = vec![b'a'; 900];
        some.extend_from_slice(&[b'b'; 66]);
        some.extend_from_slice(&[1, 1, 1, 1, 2, 2, 2, 2]);
        some.extend(100..150);
        assert_eq!((some.len(), bytecount(&some)), (1024, 4));
        let mut state = 1u64;
        let noise: Vec<u8> = (0..1 << 20)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        assert!((110..150).contains(&bytecount(&noise)), "near 127");
        assert_eq!(bytecount(&[]), 0);
    }
}
