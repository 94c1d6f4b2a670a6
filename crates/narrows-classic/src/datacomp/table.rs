//! Datacomp's table: one record for each method in each opportunity. Records have a fixed size, so
//! the file is an array.

use std::ops::{Index, IndexMut};

use narrows::codec::{CodecId, Level, Method};
use narrows::{Error, Result};

/// Lengths of blocks.
pub(super) const SIZES: [usize; 5] = [32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];
/// The number of LZO, a codec that only the laboratory has.
const LZO: CodecId = CodecId(8);
/// Families of methods with three strengths each; null (`store`) has one.
const FAMILIES: [CodecId; 5] = [CodecId::STORE, LZO, CodecId::ZLIB, CodecId::BZIP2, CodecId::XZ];
pub(super) const STRENGTHS: [&[Level]; 5] = [&[0], &[1, 2, 3], &[1, 6, 9], &[1, 5, 9], &[1, 6, 9]];
const STRENGTHS_MAX: usize = 3;
/// Numbers of threads: one, and all.
const THREADS: usize = 2;

/// Levels of Table I.
const LOADS: usize = 4;
const FREQUENCIES: usize = 5;
const BANDWIDTHS: usize = 5;
const BYTECOUNTS: usize = 4;
const OPPORTUNITIES: usize = LOADS * FREQUENCIES * BANDWIDTHS * BYTECOUNTS;
const VARIANTS: usize = FAMILIES.len() * STRENGTHS_MAX * SIZES.len() * THREADS;

/// Maximum number of events in an average.
const EVENTS_MAX: u32 = 20;

const MAGIC: &[u8; 16] = b"narrows-datacomp";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 24;
const RECORD_LEN: usize = 12;

/// The monitored situation, each measure as a level of the paper's Table I.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opportunity {
    /// CPU load, 0 (idle) to 3 (full).
    pub load: usize,
    /// CPU frequency, 0 (lowest) to 4 (highest).
    pub frequency: usize,
    /// Bandwidth of the link, 0 (up to 768 kbit/s) to 4 (above 200 Mbit/s).
    pub bandwidth: usize,
    /// Compressibility by the count of frequent byte values, 0 (100 values and more) to 3 (under
    /// 34).
    pub bytecount: usize,
}

impl Opportunity {
    /// `load` is a share from 0 to 1, `bytecount` a number of byte values up to 256. The CPU
    /// frequency is always assumed to be the highest.
    pub fn new(load: f32, abw_bytes_per_s: f64, bytecount: usize) -> Self {
        let percent = (100.0 * load).round();
        let load = [33.0, 66.0, 99.0].iter().filter(|most| percent > **most).count();
        let bits_per_s = 8.0 * abw_bytes_per_s;
        let bandwidth = [768e3, 2e6, 20e6, 200e6].iter().filter(|most| bits_per_s > **most).count();
        let bytecount = match bytecount {
            ..34 => 3,
            34..67 => 2,
            67..100 => 1,
            100.. => 0,
        };
        Self { load, frequency: FREQUENCIES - 1, bandwidth, bytecount }
    }

    pub(super) fn place(self) -> usize {
        ((self.load * FREQUENCIES + self.frequency) * BANDWIDTHS + self.bandwidth) * BYTECOUNTS + self.bytecount
    }
}

/// Effective output rates of one method in one opportunity, in units of 100 bytes/s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) average: u32,
    pub(super) count: u32,
    pub(super) sum: u32,
}

impl Record {
    /// One kilobit/s is more than one unit, and the sum of twenty events at 20 GB/s fits 32 bits.
    pub(super) const UNIT_BYTES_PER_S: f64 = 100.0;
    const EVENT_MAX: f64 = (u32::MAX / (EVENTS_MAX + 1)) as f64;

    pub(super) fn add(&mut self, bytes_per_s: f64) {
        let event = (bytes_per_s / Self::UNIT_BYTES_PER_S).clamp(0.0, Self::EVENT_MAX) as u32;
        if self.count >= EVENTS_MAX {
            self.sum = self.sum.saturating_sub(self.average);
        } else {
            self.count += 1;
        }
        self.sum = self.sum.saturating_add(event);
        self.average = self.sum / self.count;
    }

    pub(super) fn boost(&mut self) {
        self.average = self.average.saturating_add(self.average / 10);
    }
}

/// The coordinates of a record in the table, all of them indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordIndex {
    pub(super) opportunity: usize,
    pub(super) family: usize,
    pub(super) strength: usize,
    pub(super) size: usize,
    pub(super) threads: usize,
}

impl RecordIndex {
    pub(super) fn method(self) -> Method {
        method(self.family, STRENGTHS[self.family][self.strength])
    }

    pub(super) fn place(self) -> usize {
        let variant =
            ((self.family * STRENGTHS_MAX + self.strength) * SIZES.len() + self.size) * THREADS + self.threads;
        self.opportunity * VARIANTS + variant
    }
}

pub(super) fn method(family: usize, level: Level) -> Method {
    Method::new(FAMILIES[family], level)
}

/// Index of the smallest size that holds `len` bytes, or of the largest size.
pub(super) fn size_of(len: usize) -> usize {
    SIZES.iter().position(|s| len <= *s).unwrap_or(SIZES.len() - 1)
}

/// The records of all variants in an opportunity, lightest family first.
pub(super) fn variants(opportunity: usize) -> impl Iterator<Item = RecordIndex> {
    (0..VARIANTS).filter_map(move |v| {
        let (threads, v) = (v % THREADS, v / THREADS);
        let (size, v) = (v % SIZES.len(), v / SIZES.len());
        let (strength, family) = (v % STRENGTHS_MAX, v / STRENGTHS_MAX);
        (strength < STRENGTHS[family].len()).then_some(RecordIndex { opportunity, family, strength, size, threads })
    })
}

/// The table: a record for each variant in each opportunity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTable(Vec<Record>);

impl Default for EventTable {
    fn default() -> Self {
        Self(vec![Record::default(); OPPORTUNITIES * VARIANTS])
    }
}

impl EventTable {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The contents of the table's file: magic, version and number of records, then average, count
    /// and sum of each record. All numbers are 32 bits, little-endian.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + RECORD_LEN * self.0.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(self.0.len() as u32).to_le_bytes());
        for record in &self.0 {
            for number in [record.average, record.count, record.sum] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        out
    }

    /// Reads a file that [`EventTable::bytes`] wrote.
    ///
    /// # Errors
    /// The bytes are no table of this version, or an average counts more events than allowed.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let number = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let is_table = bytes.len() >= HEADER_LEN && bytes.starts_with(MAGIC) && number(16) == VERSION;
        let records = OPPORTUNITIES * VARIANTS;
        if !is_table || number(20) as usize != records || bytes.len() != HEADER_LEN + RECORD_LEN * records {
            return Err(Error::misuse("not a datacomp table of this version; name a new file to create one"));
        }
        let record = |i: usize| {
            let at = HEADER_LEN + RECORD_LEN * i;
            Record { average: number(at), count: number(at + 4), sum: number(at + 8) }
        };
        let table = Self((0..records).map(record).collect());
        if table.0.iter().any(|r| r.count > EVENTS_MAX) {
            return Err(Error::misuse(format!(
                "broken datacomp table: an average of more than {EVENTS_MAX} events; name a new file to create one"
            )));
        }
        Ok(table)
    }
}

impl Index<RecordIndex> for EventTable {
    type Output = Record;
    fn index(&self, index: RecordIndex) -> &Record {
        &self.0[index.place()]
    }
}

impl IndexMut<RecordIndex> for EventTable {
    fn index_mut(&mut self, index: RecordIndex) -> &mut Record {
        &mut self.0[index.place()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_table_1() {
        assert_eq!(OPPORTUNITIES, 400, "approximately 400");
        let levels = |load: f32, mbit: f64, bytecount: usize| {
            let o = Opportunity::new(load, mbit * 125e3, bytecount);
            assert_eq!(o.frequency, 4);
            (o.load, o.bandwidth, o.bytecount)
        };
        assert_eq!(levels(0.0, 0.1, 1), (0, 0, 3));
        assert_eq!(levels(0.33, 0.768, 33), (0, 0, 3));
        assert_eq!(levels(0.34, 0.8, 34), (1, 1, 2));
        assert_eq!(levels(0.66, 2.0, 66), (1, 1, 2));
        assert_eq!(levels(0.67, 2.1, 67), (2, 2, 1));
        assert_eq!(levels(0.99, 20.0, 99), (2, 2, 1));
        assert_eq!(levels(1.0, 21.0, 101), (3, 3, 0));
        assert_eq!(levels(1.0, 201.0, 256), (3, 4, 0));
    }

    #[test]
    fn every_record_has_a_place_of_its_own() {
        let mut seen = vec![false; OPPORTUNITIES * VARIANTS];
        let mut count = 0;
        for record in (0..OPPORTUNITIES).flat_map(variants) {
            assert!(!std::mem::replace(&mut seen[record.place()], true), "{record:?}");
            count += 1;
        }
        // One null and four families of three strengths, five sizes, two numbers of threads.
        assert_eq!(count, 400 * (1 + 4 * 3) * 5 * 2);
    }

    /// Units of 100 bytes/s: events of 1000, 3000 and 8000 make averages of 1000, 2000 and 4000; a
    /// boost makes 4400 of it and leaves the sum of 12000; the next event of 4000 makes (12000 +
    /// 4000) / 4. When twenty are counted, each event takes the place of an average one.
    #[test]
    fn averages_are_as_worked_by_hand() {
        let mut record = Record::default();
        for (event, average) in [(100e3, 1000), (300e3, 2000), (800e3, 4000)] {
            record.add(event);
            assert_eq!(record.average, average);
        }
        record.boost();
        assert_eq!(record, Record { average: 4400, count: 3, sum: 12_000 });
        record.add(400e3);
        assert_eq!(record, Record { average: 4000, count: 4, sum: 16_000 });
        for _ in 4..20 {
            record.add(400e3);
        }
        assert_eq!(record, Record { average: 4000, count: 20, sum: 80_000 });
        record.add(800e3);
        assert_eq!(record, Record { average: 4200, count: 20, sum: 84_000 });
        record.boost();
        record.add(420e3);
        // 84000 - 4620 + 4200.
        assert_eq!(record, Record { average: 4179, count: 20, sum: 83_580 });
        for _ in 0..50 {
            record.add(1e18);
            record.boost();
        }
        assert!(record.count == 20 && record.average > 100_000_000);
    }

    #[test]
    fn a_table_reads_as_it_was_written_and_nothing_else_does() {
        let mut table = EventTable::default();
        table.0[777] = Record { average: 5, count: 2, sum: 11 };
        let bytes = table.bytes();
        assert_eq!(EventTable::parse(&bytes).unwrap(), table);
        for bad in [&bytes[..bytes.len() - 1], &bytes[1..], &[], &bytes[..24], &[bytes.clone(), vec![0]].concat()] {
            assert!(EventTable::parse(bad).is_err());
        }
        let mut newer = bytes.clone();
        newer[16] = 2;
        assert!(EventTable::parse(&newer).is_err());
        for (count, is_good) in [(20, true), (21, false), (u32::MAX, false)] {
            let mut counted = bytes.clone();
            counted[HEADER_LEN + 4..HEADER_LEN + 8].copy_from_slice(&count.to_le_bytes());
            assert_eq!(EventTable::parse(&counted).is_ok(), is_good, "{count} events");
        }
    }
}
