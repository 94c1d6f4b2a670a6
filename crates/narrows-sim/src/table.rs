//! Tables of measured costs, of every method on every block of a pool: file format, cleaning, and
//! the cost of any cut.
//!
//! Each pool has one text file, `NAME.table`, beside its bytes in `NAME.pool`:
//!
//! ```text
//! narrows-table 1
//! pool NAME
//! len 3145728
//! xxh3 0123456789abcdef
//! methods lz4:accel=64;lz4:accel=16;...
//! linked lz4;zstd:level=1;...                   methods measured again with 64 KiB of history; may be absent
//! linked 262144 zstd;...                        the same with so much; one row for each length
//! 8192 0 ENCODE_NS,DECODE_NS,WIRE_LEN ...       block length, offset, one triple a column; as measured, not cleaned
//! ```

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use narrows::block::Block;
use narrows::codec::{Codecs, Method};
use narrows::frame;
use narrows::monitor::cost::STORE_BYTES_PER_S;
use narrows::monitor::data::is_constant;
use narrows::sender::worthwhile_len;
use xxhash_rust::xxh3::xxh3_64;

/// Block lengths that are measured, in bytes.
pub const CLASSES: [usize; 4] = [8 << 10, 32 << 10, 128 << 10, 512 << 10];
/// Bytes before a linked block that it refers to if its column says nothing else, as far as there
/// are any: the baseline of the format.
pub const HISTORY: usize = frame::BASELINE_HISTORY;
/// Time to copy and check raw bytes, as `balance` assumes it.
pub const STORE_NS_PER_BYTE: f64 = 1e9 / STORE_BYTES_PER_S as f64;

const MAGIC: &str = "narrows-table 1";
/// A time this many times longer than the row's other methods imply comes from a pre-empted run.
const CAP: f64 = 3.0;

/// Cost of one method on one block.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// CPU time of encoding.
    pub encode_ns: f64,
    /// CPU time of decoding.
    pub decode_ns: f64,
    /// Bytes on the wire, without the frame's header.
    pub wire_len: f64,
}

/// The measured costs of one pool, and its bytes.
pub struct Table {
    /// Name of the pool.
    pub pool: String,
    /// The codecs that the methods are of.
    pub codecs: Codecs,
    /// The measured methods; `store` and `constant` need no measuring.
    pub methods: Vec<Method>,
    /// The methods that were also measured on linked blocks, each with the bytes of history; short
    /// blocks refer to fewer ([`histories`]).
    pub linked: Vec<(Method, usize)>,
    /// The pool's bytes.
    pub bytes: Block,
    /// By class, then block, then column: the methods, then the linked methods.
    rows: [Vec<Vec<Cost>>; CLASSES.len()],
    /// Computed from the rows at the first request for a cut that was not measured.
    parts: OnceLock<Parts>,
}

/// Costs of the measured blocks, divided among the pieces of the shortest class in them.
struct Parts {
    /// Prefix sums by class, then method, then piece: the cost of all pieces before it.
    before: [Vec<Vec<Cost>>; CLASSES.len()],
}

impl Cost {
    /// Adds `share` times `other`.
    fn add(self, other: Self, share: f64) -> Self {
        Self {
            encode_ns: self.encode_ns + share * other.encode_ns,
            decode_ns: self.decode_ns + share * other.decode_ns,
            wire_len: self.wire_len + share * other.wire_len,
        }
    }
}

impl Table {
    /// A table without rows and without linked methods. The caller adds every block of every class by [`Table::push`].
    pub fn new(pool: &str, bytes: Block, methods: Vec<Method>) -> Self {
        Self::of(&Codecs::default(), pool, bytes, methods)
    }

    /// As [`Table::new`], with methods of these codecs.
    pub fn of(codecs: &Codecs, pool: &str, bytes: Block, methods: Vec<Method>) -> Self {
        Self {
            pool: pool.to_owned(),
            codecs: codecs.clone(),
            methods,
            linked: Vec::new(),
            bytes,
            rows: Default::default(),
            parts: OnceLock::new(),
        }
    }

    /// The table restricted to some of its methods; ignores methods that it does not have.
    pub fn only(&self, methods: &[Method]) -> Self {
        let places: Vec<usize> = (0..self.methods.len()).filter(|i| methods.contains(&self.methods[*i])).collect();
        let linked = (0..self.linked.len()).filter(|i| methods.contains(&self.linked[*i].0));
        let linked: Vec<usize> = linked.map(|i| self.methods.len() + i).collect();
        let methods = places.iter().map(|i| self.methods[*i]).collect();
        let mut small = Self::of(&self.codecs, &self.pool, self.bytes.clone(), methods);
        small.linked = linked.iter().map(|i| self.linked[*i - self.methods.len()]).collect();
        let places = [places, linked].concat();
        for (class, rows) in self.rows.iter().enumerate() {
            rows.iter().for_each(|row| small.push(class, places.iter().map(|i| row[*i]).collect()));
        }
        small
    }

    /// Number of costs of each block.
    pub fn columns(&self) -> usize {
        self.methods.len() + self.linked.len()
    }

    /// Method of a column, and the history of its blocks; 0 if they are not linked.
    ///
    /// # Panics
    /// If there are fewer columns.
    pub fn column(&self, i: usize) -> (Method, usize) {
        match i.checked_sub(self.methods.len()) {
            None => (self.methods[i], 0),
            Some(i) => self.linked[i],
        }
    }

    /// Appends the next block of a class.
    pub fn push(&mut self, class: usize, costs: Vec<Cost>) {
        self.rows[class].push(costs);
    }

    /// Length of the pool in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the pool has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The blocks of one class in order, each with the costs of every method.
    pub fn blocks(&self, class: usize) -> &[Vec<Cost>] {
        &self.rows[class]
    }

    /// The bytes of a block of a class; the last one may be shorter than the class.
    pub fn block(&self, class: usize, index: usize) -> &[u8] {
        let begin = index * CLASSES[class];
        &self.bytes[begin..(begin + CLASSES[class]).min(self.len())]
    }

    /// The content of the table's file.
    pub fn to_text(&self) -> String {
        let mut text = format!("{MAGIC}\npool {}\nlen {}\n", self.pool, self.len());
        let methods: Vec<_> = self.methods.iter().map(|m| self.codecs.print(*m)).collect();
        let _ = writeln!(text, "xxh3 {:016x}\nmethods {}", xxh3_64(&self.bytes), methods.join(";"));
        for same in self.linked.chunk_by(|a, b| a.1 == b.1) {
            let methods: Vec<_> = same.iter().map(|(m, _)| self.codecs.print(*m)).collect();
            let history = if same[0].1 == HISTORY { String::new() } else { format!("{} ", same[0].1) };
            let _ = writeln!(text, "linked {history}{}", methods.join(";"));
        }
        for (class_len, rows) in CLASSES.iter().zip(&self.rows) {
            for (i, row) in rows.iter().enumerate() {
                let _ = write!(text, "{class_len} {}", i * class_len);
                for c in row {
                    let _ = write!(text, " {},{},{}", c.encode_ns, c.decode_ns, c.wire_len);
                }
                text.push('\n');
            }
        }
        text
    }

    /// Writes `POOL.pool` and `POOL.table` into a directory.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, directory: &Path) -> Result<()> {
        fs::write(directory.join(format!("{}.pool", self.pool)), &*self.bytes)?;
        fs::write(directory.join(format!("{}.table", self.pool)), self.to_text())?;
        Ok(())
    }

    /// Reads a table of methods of these codecs and its pool, and cleans the times.
    ///
    /// # Errors
    /// If a file cannot be read, is malformed, or the pool is not the measured one.
    pub fn load(path: &Path, codecs: &Codecs) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let bytes_path = path.with_extension("pool");
        let bytes = fs::read(&bytes_path).with_context(|| format!("cannot read {}", bytes_path.display()))?;
        let table = Self::from_text_with(&text, Block::from_vec(bytes), codecs);
        let table = table.with_context(|| format!("{} is not a valid table", path.display()))?;
        if !table.len().is_multiple_of(CLASSES[CLASSES.len() - 1]) {
            bail!("{} is not of whole blocks of every length", path.display());
        }
        Ok(table)
    }

    /// Parses the text of a table of these bytes, and cleans the times.
    ///
    /// # Errors
    /// If the text is malformed or was measured on other bytes.
    pub fn from_text(text: &str, bytes: Block) -> Result<Self> {
        Self::from_text_with(text, bytes, Codecs::shipped())
    }

    fn from_text_with(text: &str, bytes: Block, codecs: &Codecs) -> Result<Self> {
        let mut table = Self::parse(text, bytes, codecs)?;
        let len = table.len();
        for (rows, class_len) in table.rows.iter_mut().zip(CLASSES) {
            clean(rows);
            for (i, row) in rows.iter_mut().enumerate() {
                let raw_len = class_len.min(len - i * class_len);
                // As in the engine: a block that hardly shrinks is sent raw.
                for cost in row.iter_mut().filter(|c| c.wire_len > worthwhile_len(raw_len) as f64) {
                    (cost.wire_len, cost.decode_ns) = (raw_len as f64, 0.0);
                }
            }
        }
        Ok(table)
    }

    fn parse(text: &str, bytes: Block, codecs: &Codecs) -> Result<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(MAGIC) {
            bail!("the first line is not '{MAGIC}'");
        }
        let mut field = |key: &str| -> Result<&str> {
            let line = lines.next().unwrap_or_default();
            line.strip_prefix(key).and_then(|l| l.strip_prefix(' ')).with_context(|| format!("no row '{key}'"))
        };
        let pool = field("pool")?.to_owned();
        let len: usize = field("len")?.parse()?;
        let hash = u64::from_str_radix(field("xxh3")?, 16)?;
        if len == 0 || len != bytes.len() || hash != xxh3_64(&bytes) {
            bail!("the table was measured on other bytes than the pool has");
        }
        // An empty list is valid: `store` and `constant` need no measuring.
        let list = field("methods")?;
        let methods = if list.is_empty() { Vec::new() } else { codecs.parse_list(list)? };
        let mut table = Self::of(codecs, &pool, bytes, methods);
        let mut lines = lines.peekable();
        while let Some(row) = lines.peek().and_then(|l| l.strip_prefix("linked ")) {
            let (history, list) = row.split_once(' ').map_or((Ok(HISTORY), row), |(len, list)| (len.parse(), list));
            let history = history.context("a history has a number of bytes")?;
            table.linked.extend(codecs.parse_list(list)?.into_iter().map(|m| (m, history)));
            lines.next();
        }
        for line in lines {
            let mut words = line.split(' ');
            let class_len: usize = words.next().unwrap_or_default().parse()?;
            let at: usize = words.next().unwrap_or_default().parse()?;
            let class = CLASSES.iter().position(|c| *c == class_len).context("an unknown block length")?;
            let costs: Vec<Cost> = words.map(parse_cost).collect::<Result<_>>()?;
            if costs.len() != table.columns() || at != table.rows[class].len() * class_len {
                bail!("the row of offset {at} is out of order or has a wrong number of costs");
            }
            table.push(class, costs);
        }
        for (class_len, rows) in CLASSES.iter().zip(&table.rows) {
            if rows.len() != len.div_ceil(*class_len) {
                bail!("blocks of {class_len} bytes are missing");
            }
        }
        Ok(table)
    }

    /// The cost of the block of `len` bytes at `offset` of the repeated pool.
    ///
    /// For a measured cut this is the measurement. Any other cut is the sum of its pieces, each
    /// with its part of the measured block around it. The sums of the two classes next to the cut's
    /// length are interpolated over the logarithm of the length.
    pub fn cost(&self, offset: u64, len: usize, method: Method) -> Cost {
        self.cost_of(offset, len, method, 0)
    }

    /// The same, of a block that is linked to `history_len` bytes, if that is not 0. It costs what
    /// was measured with at most so many, or what a separate one does if nothing was.
    pub fn cost_of(&self, offset: u64, len: usize, method: Method, history_len: usize) -> Cost {
        let n = len as f64;
        let store = Cost { encode_ns: n * STORE_NS_PER_BYTE, decode_ns: n * STORE_NS_PER_BYTE, wire_len: n };
        if method == Method::STORE || len == 0 {
            return store;
        }
        if method == Method::CONSTANT {
            return if self.is_constant(offset, len) { Cost { wire_len: 1.0, ..store } } else { store };
        }
        // Near the beginning a long history is what there is.
        let held = |measured: usize| (measured as u64).min(offset) as usize;
        let linked = (0..self.linked.len()).filter(|i| self.linked[*i].0 == method && history_len > 0);
        let m = match linked.filter(|i| held(self.linked[*i].1) <= history_len).max_by_key(|i| self.linked[*i].1) {
            Some(i) => self.methods.len() + i,
            None => {
                self.methods.iter().position(|x| *x == method).expect("a policy chooses from the methods of the table")
            }
        };
        let offset = (offset % self.len() as u64) as usize;
        let above = CLASSES.iter().position(|c| *c >= len).unwrap_or(CLASSES.len() - 1);
        let index = offset / CLASSES[above];
        if offset.is_multiple_of(CLASSES[above]) && len == CLASSES[above].min(self.len() - offset) {
            return self.rows[above][index][m];
        }
        let high = self.span(above, offset, len, m);
        if above == 0 || CLASSES[above] <= len {
            return high;
        }
        let low = self.span(above - 1, offset, len, m);
        let (low_len, high_len) = (CLASSES[above - 1] as f64, CLASSES[above] as f64);
        let share = (n / low_len).ln() / (high_len / low_len).ln();
        // An arithmetic mean, so that a bound for both classes also bounds lengths between them.
        Cost::default().add(low, 1.0 - share).add(high, share)
    }

    /// Whether one byte fills the block of `len` bytes at `offset` of the repeated pool.
    fn is_constant(&self, offset: u64, len: usize) -> bool {
        let begin = (offset % self.len() as u64) as usize;
        let (head, more) = (len.min(self.len() - begin), len.saturating_sub(self.len() - begin));
        let rest = &self.bytes[..more.min(self.len())];
        is_constant(&self.bytes[begin..begin + head])
            && (rest.is_empty() || rest[0] == self.bytes[begin] && is_constant(rest))
    }

    /// The part of a block's cost that falls to the piece at `index`; the block is the one of
    /// `class` that contains the piece.
    pub fn part(&self, class: usize, index: usize, m: usize) -> Cost {
        let before = &self.parts().before[class][m];
        before[index + 1].add(before[index], -1.0)
    }

    /// Sum of the parts of all pieces in a cut, which may wrap around the end of the pool.
    fn span(&self, class: usize, offset: usize, len: usize, m: usize) -> Cost {
        let before = &self.parts().before[class][m];
        let until = |at: usize| {
            let index = (at / CLASSES[0]).min(before.len() - 2);
            let piece_len = CLASSES[0].min(self.len() - index * CLASSES[0]);
            let share = (at - index * CLASSES[0]) as f64 / piece_len as f64;
            before[index].add(before[index], -share).add(before[index + 1], share)
        };
        let (mut sum, mut at, mut left) = (Cost::default(), offset, len);
        while left > 0 {
            let end = (at + left).min(self.len());
            sum = sum.add(until(end), 1.0).add(until(at), -1.0);
            left -= end - at;
            at = 0;
        }
        sum
    }

    /// Divides each block's cost among its pieces in proportion to their costs as separate blocks:
    /// a piece that does not shrink gets the larger part of the bytes.
    fn parts(&self) -> &Parts {
        self.parts.get_or_init(|| {
            let mut parts = Parts { before: Default::default() };
            for (class, class_len) in CLASSES.into_iter().enumerate() {
                for m in 0..self.columns() {
                    let mut before = vec![Cost::default()];
                    for (pieces, whole) in self.rows[0].chunks(class_len / CLASSES[0]).zip(&self.rows[class]) {
                        let total = pieces.iter().fold(Cost::default(), |sum, p| sum.add(p[m], 1.0));
                        let even = 1.0 / pieces.len() as f64;
                        let of =
                            |whole: f64, piece: f64, total: f64| whole * if total > 0.0 { piece / total } else { even };
                        for piece in pieces {
                            let part = Cost {
                                encode_ns: of(whole[m].encode_ns, piece[m].encode_ns, total.encode_ns),
                                decode_ns: of(whole[m].decode_ns, piece[m].decode_ns, total.decode_ns),
                                wire_len: of(whole[m].wire_len, piece[m].wire_len, total.wire_len),
                            };
                            before.push(before[before.len() - 1].add(part, 1.0));
                        }
                    }
                    parts.before[class].push(before);
                }
            }
            parts
        })
    }
}

/// Loads all tables of a directory, or those named in `only`, sorted by name. Their methods are of these
/// codecs.
///
/// # Errors
/// If there are none, one is missing or invalid, or they differ in methods.
pub fn load_all(directory: &Path, only: &[String], codecs: &Codecs) -> Result<Vec<Table>> {
    let list = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths: Vec<PathBuf> = list.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    paths.retain(|p| p.extension().is_some_and(|e| e == "table"));
    paths.sort();
    let tables: Vec<Table> = paths.iter().map(|p| Table::load(p, codecs)).collect::<Result<_>>()?;
    if let Some(missing) = only.iter().find(|name| !tables.iter().any(|t| t.pool == **name)) {
        bail!("{} has no table of a pool '{missing}'", directory.display());
    }
    let tables: Vec<_> = tables.into_iter().filter(|t| only.is_empty() || only.contains(&t.pool)).collect();
    if tables.is_empty() {
        bail!("{} has no tables; `narrows-lab tables` makes them", directory.display());
    }
    if tables.iter().any(|t| t.methods != tables[0].methods || t.linked != tables[0].linked) {
        bail!("the tables of {} have different methods", directory.display());
    }
    Ok(tables)
}

fn parse_cost(word: &str) -> Result<Cost> {
    let mut parts = word.split(',').map(|p| p.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0));
    let mut next = || parts.next().flatten().with_context(|| format!("'{word}' is not a triple of numbers"));
    Ok(Cost { encode_ns: next()?, decode_ns: next()?, wire_len: next()? })
}

/// Caps the times of pre-empted runs. A row's level is the median over methods of (time in this row
/// / median of the method).
fn clean(rows: &mut [Vec<Cost>]) {
    let times: [fn(&mut Cost) -> &mut f64; 2] = [|c| &mut c.encode_ns, |c| &mut c.decode_ns];
    let Some(count) = rows.first().map(Vec::len) else { return };
    for time in times {
        let typical: Vec<f64> =
            (0..count).map(|m| median(rows.iter_mut().map(|row| *time(&mut row[m])).collect())).collect();
        for row in rows.iter_mut() {
            let shares = row.iter_mut().zip(&typical).map(|(c, t)| *time(c) / t.max(1.0)).collect();
            let level = median(shares).max(0.05);
            for (cost, t) in row.iter_mut().zip(&typical) {
                let t = if *t > 0.0 { *t } else { f64::INFINITY };
                let at_most = CAP * t * level + 2000.0;
                let value = time(cost);
                *value = value.min(at_most);
            }
        }
    }
}

/// Median of the positive values; 0 if there are none.
fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|v| *v > 0.0);
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A table for tests and examples: 1 MiB of zeros with two methods; the second is twice as slow and half as large.
pub fn example() -> Table {
    let len = 1 << 20;
    let mut table = Table::new("small", Block::from_vec(vec![0; len]), vec![Method::lz4_accel(1), Method::zstd(3)]);
    for (class, class_len) in CLASSES.iter().enumerate() {
        for i in 0..len / class_len {
            let n = *class_len as f64;
            let wire_len = n * if i % 2 == 0 { 0.5 } else { 0.3 };
            let first = Cost { encode_ns: 2.0 * n, decode_ns: n, wire_len };
            let second = Cost { encode_ns: 4.0 * n, decode_ns: n, wire_len: wire_len / 2.0 };
            table.push(class, vec![first, second]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let table = example();
        table.save(directory.path()).unwrap();
        let back = &load_all(directory.path(), &[], Codecs::shipped()).unwrap()[0];
        assert_eq!(back.rows, table.rows);
        assert_eq!((&back.pool, &back.methods), (&table.pool, &table.methods));
        assert!(load_all(directory.path(), &["other".into()], Codecs::shipped()).is_err());
        fs::write(directory.path().join("small.pool"), vec![1; 1 << 20]).unwrap();
        assert!(load_all(directory.path(), &[], Codecs::shipped()).is_err(), "other bytes than were measured");
    }

    #[test]
    fn linked_columns_are_written_read_and_selected() {
        let directory = tempfile::tempdir().unwrap();
        let plain = example();
        let mut table = Table::new("small", plain.bytes.clone(), plain.methods.clone());
        table.linked = vec![(Method::zstd(3), HISTORY), (Method::zstd(3), 1 << 20)];
        for class in 0..CLASSES.len() {
            for row in plain.blocks(class) {
                let linked = Cost { wire_len: row[1].wire_len / 2.0, ..row[1] };
                let long = Cost { wire_len: row[1].wire_len / 4.0, ..row[1] };
                table.push(class, vec![row[0], row[1], linked, long]);
            }
        }
        table.save(directory.path()).unwrap();
        let back = &load_all(directory.path(), &[], Codecs::shipped()).unwrap()[0];
        assert_eq!((&back.rows, &back.linked), (&table.rows, &table.linked));
        assert_eq!(
            (back.columns(), back.column(1), back.column(2)),
            (4, (Method::zstd(3), 0), (Method::zstd(3), HISTORY))
        );
        let of = |history| back.cost_of(2 << 20, 40_000, Method::zstd(3), history).wire_len;
        let alone = of(0);
        for (history, share) in [(HISTORY, 0.5), (256 << 10, 0.5), (1 << 20, 0.25), (4 << 20, 0.25), (1000, 1.0)] {
            assert!((of(history) / alone - share).abs() < 1e-9, "{history}");
        }
        let lz4 = Method::lz4_accel(1);
        assert_eq!(back.cost_of(0, 8192, lz4, HISTORY), back.cost(0, 8192, lz4), "not measured");
        assert_eq!(back.only(&[lz4]).columns(), 1);
        assert_eq!(back.only(&[Method::zstd(3)]).cost_of(0, 8192, Method::zstd(3), HISTORY), back.rows[0][0][3]);
        let short = table.to_text().replace("linked zstd\n", "");
        assert_ne!(short, table.to_text());
        assert!(Table::from_text(&short, table.bytes.clone()).is_err(), "a cost without a column");
    }

    #[test]
    fn measured_cuts_are_exact_and_others_lie_between() {
        let table = example();
        let lz4 = Method::lz4_accel(1);
        assert_eq!(table.cost(32 << 10, 32 << 10, lz4), table.rows[1][1][0]);
        assert_eq!(table.cost((1 << 20) + (32 << 10), 32 << 10, lz4), table.rows[1][1][0], "the pool repeats");
        let half = table.cost(0, 4096, lz4);
        assert_eq!(half.wire_len, 2048.0, "under the smallest class it is in proportion");
        // 16 KiB from 24 KiB on: one block of 8 KiB of each kind, and parts of both blocks of 32
        // KiB.
        let cut = table.cost(24 << 10, 16 << 10, lz4);
        assert!((cut.encode_ns / 32_768.0 - 1.0).abs() < 1e-9);
        // As separate blocks the pieces shrink to 0.3 and 0.5 of their bytes; their proportional
        // parts of the blocks of 32 KiB give 0.375.
        assert!((cut.wire_len / 16_384.0 - 0.3875).abs() < 1e-9);
        let next = table.cost((1 << 20) - 4096, 8192, lz4);
        assert!((next.encode_ns / 16_384.0 - 1.0).abs() < 1e-9, "a cut may go round the end of the pool");
        assert_eq!(table.cost(7, 100, Method::STORE).wire_len, 100.0);
        assert_eq!(table.cost(7, 100_000, Method::CONSTANT).wire_len, 1.0);
        assert_eq!(table.cost((1 << 20) - 7, 100_000, Method::CONSTANT).wire_len, 1.0);
        let mut bytes = vec![0; 1 << 20];
        bytes[99_999] = 1;
        let other = Table { bytes: Block::from_vec(bytes), ..table };
        for (offset, wire_len) in [(0, 100_000.0), ((1 << 20) - 7, 100_007.0), (100_000, 1.0)] {
            let cost = other.cost(offset, 100_000.max(wire_len as usize), Method::CONSTANT);
            assert_eq!(cost.wire_len, wire_len, "what is not one byte alone is sent as it is: {offset}");
        }
    }

    #[test]
    fn a_table_of_no_methods_reads_too() {
        let mut table = Table::new("none", Block::from_vec(vec![7; 9000]), Vec::new());
        for (class, class_len) in CLASSES.into_iter().enumerate() {
            (0..9000usize.div_ceil(class_len)).for_each(|_| table.push(class, Vec::new()));
        }
        let back = Table::from_text(&table.to_text(), table.bytes.clone()).unwrap();
        assert!(back.methods.is_empty() && back.blocks(0).len() == 2);
        assert_eq!(back.cost(100, 5000, Method::STORE).wire_len, 5000.0);
        let cut = table.to_text().replace("8192 8192\n", "");
        assert!(Table::from_text(&cut, table.bytes.clone()).is_err(), "a block is missing");
    }

    #[test]
    fn some_methods_of_a_table_are_a_table() {
        let table = example();
        let small = table.only(&[Method::zstd(3), Method::zstd(9)]);
        assert_eq!(small.methods, [Method::zstd(3)]);
        assert_eq!(small.cost(0, 8192, Method::zstd(3)), table.cost(0, 8192, Method::zstd(3)));
    }

    #[test]
    fn what_is_left_at_the_end_is_a_block_of_its_own() {
        let len = (32 << 10) + 1000;
        let mut table = Table::new("tail", Block::from_vec(vec![7; len]), vec![Method::zstd(3)]);
        for (class, class_len) in CLASSES.into_iter().enumerate() {
            for i in 0..len.div_ceil(class_len) {
                let n = table.block(class, i).len() as f64;
                table.push(class, vec![Cost { encode_ns: n * (1.0 + class as f64), decode_ns: n, wire_len: n / 2.0 }]);
            }
        }
        let table = Table::from_text(&table.to_text(), table.bytes.clone()).unwrap();
        assert_eq!(table.cost(32 << 10, 1000, Method::zstd(3)).encode_ns, 1000.0);
        assert_eq!(
            table.cost(0, len, Method::zstd(3)),
            table.blocks(2)[0][0],
            "the whole is a block of 128K that is cut short"
        );
        assert!(Table::from_text(&table.to_text(), Block::from_vec(vec![8; len])).is_err());
    }

    #[test]
    fn cleaning_caps_what_one_run_in_many_took_too_long() {
        let cost = |encode_ns| Cost { encode_ns, decode_ns: 10_000.0, wire_len: 5.0 };
        let mut rows = vec![vec![cost(10_000.0), cost(20_000.0), cost(40_000.0)]; 9];
        rows[4][1].encode_ns = 900_000.0;
        // A block that is slow for all methods is not changed.
        rows[5] = vec![cost(80_000.0), cost(170_000.0), cost(330_000.0)];
        let hard = rows[5].clone();
        clean(&mut rows);
        assert_eq!(rows[4][1].encode_ns, 3.0 * 20_000.0 + 2000.0);
        assert_eq!(rows[5], hard);
    }
}
