//! Repeats far back in a flow: finds raw bytes that came before, further back than blocks reach.
//!
//! ```text
//! piece ─> Past (ring of the reach), or a file that is read back
//!       └> anchors (gear hash, one position in 128 or fewer) ─> Index ─> candidates
//!                        compare, extend both ways  <───────────────────────┘
//!                                 └> literals and repeats, in order
//! ```
//!
//! Every repeat was compared byte by byte, so hashes only cost time where they mislead. The time is
//! linear in the input, whatever the input is; [`Judge`] says when it is worth it.

use std::sync::Arc;

use crate::block::Block;
use crate::past::Past;
use crate::stored::Stored;

mod anchors;
mod index;
mod judge;
mod reread;

pub use judge::Judge;

use anchors::Anchors;
use index::Index;
use reread::Reread;

/// Shortest repeat that is reported, in bytes. The instruction for one takes five to nine bytes on
/// the wire, and the literals around it lose their context; shorter ones gain little or nothing.
pub const REPEAT_MIN: usize = 96;
/// Shortest distance of a repeat, in bytes. Nearer ones are found by the codecs themselves, and
/// among them are all repeats of short periods.
pub const DISTANCE_MIN: usize = 64 << 10;
/// Most candidates that one anchor is compared with. They are compared to their ends, of which only
/// the longest is used, so this bounds the time.
const CANDIDATES_MAX: usize = 4;

/// A part of the input, in order.
#[derive(Debug)]
pub enum Part {
    /// Bytes that did not come before, as far as is known.
    Literals(Block),
    /// Bytes that came before.
    Repeat {
        /// How far back they begin, in bytes; at least their length.
        distance: u64,
        /// The bytes.
        raw: Block,
    },
}

/// The bytes that repeats are compared with.
enum Before {
    Kept(Past),
    Stored(Reread),
}

/// Finds repeats in one flow. It holds the reach, unless that is read back, and an index of at most
/// 8 MiB.
pub struct Finder {
    past: Before,
    index: Index,
    anchors: Anchors,
    /// A repeat that reached the end of the last piece, by its distance.
    open: Option<u64>,
    /// Bytes compared, for the test that bounds them.
    #[cfg(test)]
    compared: std::cell::Cell<usize>,
}

impl Finder {
    /// A finder of repeats up to `reach` bytes back, a power of two from 1 MiB on.
    pub fn new(reach: usize) -> Self {
        Self::with(Before::Kept(Past::new(reach)), reach)
    }

    /// As [`Finder::new`], but the flow is read back from where it is stored. If it was changed
    /// there meanwhile, repeats may be false: only a check of the raw bytes tells.
    pub fn read_back(stored: Arc<dyn Stored>, reach: usize) -> Self {
        Self::with(Before::Stored(Reread::new(stored, reach)), reach)
    }

    fn with(past: Before, reach: usize) -> Self {
        Self {
            past,
            index: Index::new(reach),
            anchors: Anchors::new(index::spacing_bits(0, reach)),
            open: None,
            #[cfg(test)]
            compared: std::cell::Cell::new(0),
        }
    }

    /// Bytes of memory that it holds: reach and index.
    pub fn memory(&self) -> usize {
        self.past.memory() + self.index.memory()
    }

    /// Takes the next bytes of the flow and appends their parts, which are over the same buffer.
    pub fn push(&mut self, raw: &Block, parts: &mut Vec<Part>) {
        let base = self.past.end();
        self.past.push(raw);
        self.anchors.widen(index::spacing_bits(base, self.past.reach()));
        self.anchors.scan(raw);
        let mut emit = Emit { raw, base, done: 0, parts };
        if let Some(distance) = self.open.take() {
            let len = self.forward(raw, 0, base, distance);
            // It goes on at least this far, or is over.
            if len > 0 && len >= raw.len().min(REPEAT_MIN) {
                emit.repeat(0, len, distance);
            }
        }
        for at in 0..self.anchors.found.len() {
            if at % index::AHEAD == 0 {
                let ahead = self.anchors.found[at..].iter().take(index::AHEAD);
                self.index.fetch(ahead.map(|&(_, hash)| hash));
            }
            let (end, hash) = self.anchors.found[at];
            let bucket = self.index.bucket(hash);
            if end > emit.done
                && let Some(best) = self.best(&bucket, raw, base, emit.done, end)
            {
                emit.repeat(best.begin, best.len, best.distance);
            }
            self.index.insert(hash, base + end as u64);
        }
        self.open = emit.end();
    }

    /// Leaves out the next `len` bytes of the flow: they are not looked at, and no repeat begins in
    /// them.
    pub fn skip(&mut self, len: u64) {
        self.past.skip(len);
        self.anchors.restart();
        self.open = None;
    }

    /// The longest repeat around position `end` of `raw`, not before `done`.
    fn best(&mut self, bucket: &index::Bucket, raw: &[u8], base: u64, done: usize, end: usize) -> Option<Match> {
        let at = base + end as u64;
        let mut best: Option<Match> = None;
        for distance in bucket.distances(at).take(CANDIDATES_MAX) {
            if distance < DISTANCE_MIN as u64 || distance >= at {
                continue;
            }
            let before = self.backward(&raw[done..end], at, distance);
            if before == 0 {
                continue;
            }
            let len = before + self.forward(raw, end, at, distance);
            if len >= REPEAT_MIN && best.as_ref().is_none_or(|b| len > b.len) {
                best = Some(Match { begin: end - before, len, distance });
            }
        }
        best
    }

    /// How many bytes of `raw` from `from` on, offset `at` of the flow, equal those `distance`
    /// before. At most `distance`, so that the repeat does not overlap itself.
    fn forward(&mut self, raw: &[u8], from: usize, at: u64, distance: u64) -> usize {
        let rest = &raw[from..];
        let rest = &rest[..rest.len().min(usize::try_from(distance).unwrap_or(usize::MAX))];
        let mut len = 0;
        while len < rest.len() {
            let earlier = self.past.from(at + len as u64 - distance);
            let n = earlier.len().min(rest.len() - len);
            let equal = equal_front(&earlier[..n], &rest[len..len + n]);
            len += equal;
            if equal < n || n == 0 {
                break;
            }
        }
        #[cfg(test)]
        self.compared.set(self.compared.get() + len + 1);
        len
    }

    /// How many bytes at the end of `raw`, which ends at offset `at` of the flow, equal those
    /// `distance` before.
    fn backward(&mut self, raw: &[u8], at: u64, distance: u64) -> usize {
        let mut len = 0;
        while len < raw.len() {
            let earlier = self.past.before(at - len as u64 - distance);
            let n = earlier.len().min(raw.len() - len);
            let end = raw.len() - len;
            let equal = equal_back(&earlier[earlier.len() - n..], &raw[end - n..end]);
            len += equal;
            if equal < n || n == 0 || at - distance == len as u64 {
                break;
            }
        }
        #[cfg(test)]
        self.compared.set(self.compared.get() + len + 1);
        len
    }
}

impl Before {
    fn reach(&self) -> usize {
        match self {
            Self::Kept(past) => past.reach(),
            Self::Stored(reread) => reread.reach(),
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Kept(past) => past.memory(),
            Self::Stored(reread) => reread.memory(),
        }
    }

    fn end(&self) -> u64 {
        match self {
            Self::Kept(past) => past.end(),
            Self::Stored(reread) => reread.end(),
        }
    }

    fn push(&mut self, raw: &[u8]) {
        match self {
            Self::Kept(past) => past.push(raw),
            Self::Stored(reread) => reread.advance(raw.len() as u64),
        }
    }

    fn skip(&mut self, len: u64) {
        match self {
            Self::Kept(past) => past.skip(len),
            Self::Stored(reread) => reread.advance(len),
        }
    }

    fn from(&mut self, at: u64) -> &[u8] {
        match self {
            Self::Kept(past) => past.from(at),
            Self::Stored(reread) => reread.from(at),
        }
    }

    fn before(&mut self, at: u64) -> &[u8] {
        match self {
            Self::Kept(past) => past.before(at),
            Self::Stored(reread) => reread.before(at),
        }
    }
}

struct Match {
    begin: usize,
    len: usize,
    distance: u64,
}

/// Cuts a piece into parts.
struct Emit<'a> {
    raw: &'a Block,
    base: u64,
    /// Bytes of the piece in parts so far.
    done: usize,
    parts: &'a mut Vec<Part>,
}

impl Emit<'_> {
    fn repeat(&mut self, begin: usize, len: usize, distance: u64) {
        self.literals(begin);
        let len = len.min(usize::try_from(distance).unwrap_or(usize::MAX));
        debug_assert!(distance <= self.base + begin as u64);
        self.parts.push(Part::Repeat { distance, raw: self.raw.slice(begin..begin + len) });
        self.done = begin + len;
    }

    fn literals(&mut self, end: usize) {
        if self.done < end {
            self.parts.push(Part::Literals(self.raw.slice(self.done..end)));
            self.done = end;
        }
    }

    /// Ends the piece. Returns the distance of a repeat that may go on in the next one.
    fn end(mut self) -> Option<u64> {
        let open = match self.parts.last() {
            Some(Part::Repeat { distance, .. }) if self.done == self.raw.len() => Some(*distance),
            _ => None,
        };
        self.literals(self.raw.len());
        open
    }
}

/// Number of equal bytes at the front of two slices of one length.
fn equal_front(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 32;
    let steps = a.chunks_exact(STEP).zip(b.chunks_exact(STEP)).take_while(|(a, b)| a == b).count();
    let begin = steps * STEP;
    begin + a[begin..].iter().zip(&b[begin..]).take_while(|(a, b)| a == b).count()
}

/// Number of equal bytes at the back of two slices of one length.
fn equal_back(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 32;
    let steps = a.rchunks_exact(STEP).zip(b.rchunks_exact(STEP)).take_while(|(a, b)| a == b).count();
    let end = a.len() - steps * STEP;
    steps * STEP + a[..end].iter().rev().zip(b[..end].iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use narrows_test::noise_of;

    use super::*;

    /// The parts of `flow` in pieces of `step` bytes: literal and repeated bytes. Checks that they
    /// are the flow, and that every repeat is true and allowed.
    fn check(flow: &[u8], step: usize, reach: usize) -> (usize, usize) {
        let (mut finder, mut parts) = (Finder::new(reach), Vec::new());
        for piece in flow.chunks(step) {
            finder.push(&Block::from_vec(piece.to_vec()), &mut parts);
        }
        verify(flow, &parts, reach)
    }

    fn verify(flow: &[u8], parts: &[Part], reach: usize) -> (usize, usize) {
        let (mut at, mut literals, mut repeated) = (0, 0, 0);
        for part in parts {
            let raw = match part {
                Part::Literals(raw) => {
                    literals += raw.len();
                    raw
                }
                Part::Repeat { distance, raw } => {
                    let distance = *distance as usize;
                    assert!((DISTANCE_MIN.max(raw.len())..=reach.min(at)).contains(&distance));
                    assert!(flow[at - distance..][..raw.len()] == raw[..], "a false repeat at {at}");
                    repeated += raw.len();
                    raw
                }
            };
            assert!(!raw.is_empty() && flow[at..].starts_with(raw));
            at += raw.len();
        }
        assert_eq!(at, flow.len());
        (literals, repeated)
    }

    #[test]
    fn it_finds_nearly_all_that_repeats() {
        // A release of 1 MiB, and the same with a changed byte every 500 to 8,000, and with bytes
        // inserted and removed, so that the distance changes.
        let first = noise_of(1, 1 << 20);
        let (mut second, mut true_len) = (Vec::new(), 0);
        let mut at = 0;
        for i in 0.. {
            let len = 500 + i * 7919 % 7500;
            if at + len + 100 > first.len() {
                break;
            }
            second.extend_from_slice(&first[at..at + len]);
            true_len += len;
            match i % 3 {
                0 => second.push(first[at + len].wrapping_add(1)),
                1 => second.extend(noise_of(i as u64, i % 90)),
                _ => {}
            }
            at += len + 1 + i % 50;
        }
        let flow = [first, second].concat();
        for step in [64 << 10, 300_000, flow.len()] {
            let (_, repeated) = check(&flow, step, 4 << 20);
            assert!(repeated * 100 >= true_len * 97, "pieces of {step}: {repeated} of {true_len}");
        }
        // In pieces of 10,000 bytes it misses some at every border.
        assert!(check(&flow, 10_000, 4 << 20).1 * 100 >= true_len * 90);
    }

    #[test]
    fn it_finds_nothing_where_nothing_is() {
        assert_eq!(check(&noise_of(2, 3 << 20), 100_000, 1 << 20).1, 0);
    }

    #[test]
    fn what_left_the_reach_is_not_found_again() {
        let first = noise_of(3, 200_000);
        let flow = [&first[..], &noise_of(4, 1 << 20), &first].concat();
        assert_eq!(check(&flow, 64 << 10, 1 << 20).1, 0);
        let (_, repeated) = check(&flow, 64 << 10, 2 << 20);
        assert!(repeated > 199_000, "{repeated}");
    }

    #[test]
    fn what_was_left_out_is_not_referred_to() {
        let flow = noise_of(5, 600_000);
        let flow = [&flow[..], &flow].concat();
        let (mut finder, mut parts) = (Finder::new(4 << 20), Vec::new());
        for (i, piece) in flow.chunks(100_000).enumerate() {
            if i < 3 {
                finder.skip(piece.len() as u64);
                parts.push(Part::Literals(Block::from_vec(piece.to_vec())));
            } else {
                finder.push(&Block::from_vec(piece.to_vec()), &mut parts);
            }
        }
        for part in &parts {
            if let Part::Repeat { distance, .. } = part {
                assert_eq!(*distance, 600_000);
            }
        }
        let (_, repeated) = verify(&flow, &parts, 4 << 20);
        assert!((299_000..=300_000).contains(&repeated), "{repeated}");
    }

    #[test]
    fn memory_is_bounded_by_reach_and_index() {
        let mut finder = Finder::new(1 << 20);
        let piece = Block::from_vec(noise_of(6, 1 << 20));
        let mut parts = Vec::new();
        for _ in 0..8 {
            finder.push(&piece, &mut parts);
            parts.clear();
            assert!(finder.memory() <= (2 << 20) + (8 << 20));
        }
    }

    #[test]
    fn short_periods_are_left_to_the_codecs() {
        for period in [1, 2, 37, 5000, 100_003, 300_007] {
            let flow: Vec<u8> = noise_of(7, period).into_iter().cycle().take(3 << 20).collect();
            let (literals, repeated) = check(&flow, 1 << 16, 4 << 20);
            assert_eq!(literals + repeated, flow.len());
            assert_eq!(repeated > 0, period > 1000, "period {period}: {repeated}");
        }
    }

    #[test]
    fn bytes_that_were_made_against_it_are_compared_a_few_times_only() {
        // 64 bytes that choose an anchor, again and again after different bytes: all anchors have
        // one hash. Then long runs of them that are equal up to a byte.
        let noise = noise_of(8, 1 << 20);
        let mut anchors = Anchors::new(7);
        anchors.scan(&noise);
        let end = anchors.found[0].0;
        let key = &noise[end - 64..end];
        let same_hash: Vec<u8> = noise.chunks(64).take(8000).flat_map(|other| [key, other].concat()).collect();
        let mut almost = Vec::new();
        for i in 0..12 {
            let mut copy = noise[..300_000].to_vec();
            (0..12 - i).for_each(|j| copy[20_000 * (j + 1)] ^= 1 + i as u8);
            almost.extend(copy);
        }
        let ones = vec![1; 2 << 20];
        let pages = [&ones[..300_000], &noise[..4096]].concat().repeat(8);
        for (name, flow) in [("hash", same_hash), ("almost", almost), ("runs", ones), ("pages", pages)] {
            let (mut finder, mut parts) = (Finder::new(4 << 20), Vec::new());
            for piece in flow.chunks(256 << 10) {
                finder.push(&Block::from_vec(piece.to_vec()), &mut parts);
            }
            verify(&flow, &parts, 4 << 20);
            let times = finder.compared.get() as f64 / flow.len() as f64;
            assert!(times < 5.0, "{name}: each byte was compared {times:.1} times");
        }
    }
}
