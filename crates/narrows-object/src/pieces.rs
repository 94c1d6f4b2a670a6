//! The parts of an object that are in memory or on their way, and what is fetched before it is asked for.

use std::io;
use std::ops::Range;

use bytes::Bytes;
use tokio::task::AbortHandle;

/// Longest piece, and so the most that one request reads: at 1 Gbit/s it comes in 34 ms, about as long
/// as its request takes to be answered.
pub(crate) const PIECE: u64 = 4 << 20;
/// Shortest piece: it costs as much time as its request.
const PIECE_MIN: u64 = 64 << 10;
/// Bytes that are on their way or wait, for a reader that goes on where it was: four requests at a
/// time, each of which gets some 90 MB/s of a large store.
const AHEAD: u64 = 4 * PIECE;
/// Bytes in memory: what is read ahead, and as much of what was read last.
const KEPT: u64 = 2 * AHEAD;
/// Readers that are followed at a time.
const READERS: usize = 8;

/// Where a piece is.
pub(crate) enum State {
    /// On its way.
    Pending(Option<AbortHandle>),
    /// Here.
    Ready(Bytes),
    /// Not to be had.
    Failed(io::Error),
}

pub(crate) struct Piece {
    pub(crate) range: Range<u64>,
    pub(crate) state: State,
    used: u64,
}

/// A reader that goes on where it was.
struct Reader {
    /// Where it will read next.
    next: u64,
    /// Bytes that it has read in order.
    seen: u64,
    /// Bytes before this one were asked for.
    asked: u64,
}

/// The pieces of one object.
#[derive(Default)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    readers: Vec<Reader>,
    clock: u64,
}

impl Pieces {
    /// The piece with the byte at `offset`.
    pub(crate) fn at(&mut self, offset: u64) -> Option<&mut Piece> {
        self.clock += 1;
        let piece = self.pieces.iter_mut().find(|piece| piece.range.contains(&offset))?;
        piece.used = self.clock;
        Some(piece)
    }

    /// Ranges to fetch so that all of `range` is here or on its way, of an object of `len` bytes.
    pub(crate) fn missing(&self, range: Range<u64>, len: u64) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        let mut at = range.start;
        let end = range.end.max(at.saturating_add(PIECE_MIN)).min(len);
        while at < range.end.min(end) {
            if let Some(piece) = self.pieces.iter().find(|piece| piece.range.contains(&at)) {
                at = piece.range.end;
                continue;
            }
            let next = self.pieces.iter().map(|p| p.range.start).filter(|begin| *begin > at).min();
            let to = end.min(at + PIECE).min(next.unwrap_or(u64::MAX));
            found.push(at..to);
            at = to;
        }
        found
    }

    /// Notes a read, and returns the bytes to fetch for the reads that are to be expected. `in_order`:
    /// the reader said that it goes on.
    pub(crate) fn note(&mut self, read: Range<u64>, len: u64, in_order: bool) -> Range<u64> {
        let known = self.readers.iter().position(|reader| reader.next == read.start);
        let mut reader = match known {
            Some(at) => self.readers.remove(at),
            None => Reader { next: read.start, seen: 0, asked: read.start },
        };
        reader.next = read.end;
        reader.seen += read.end - read.start;
        let window = if in_order { AHEAD } else { AHEAD.min(reader.seen * 2 * u64::from(known.is_some())) };
        let begin = reader.asked.max(if in_order { read.start } else { read.end });
        let mut end = begin;
        // Whole pieces, however short the reads are.
        while end + PIECE <= read.end.saturating_add(window) && end < len {
            end = (end + PIECE).min(len);
        }
        if end > begin {
            reader.asked = end;
        }
        if self.readers.len() >= READERS {
            self.readers.remove(0);
        }
        self.readers.push(reader);
        begin..end
    }

    /// Adds a piece.
    pub(crate) fn put(&mut self, range: Range<u64>, state: State) {
        self.clock += 1;
        let used = self.clock;
        self.pieces.push(Piece { range, state, used });
        self.forget();
    }

    /// The result of a piece that was on its way.
    pub(crate) fn arrived(&mut self, range: &Range<u64>, result: io::Result<Bytes>) {
        if let Some(piece) = self.pieces.iter_mut().find(|p| p.range == *range && matches!(p.state, State::Pending(_)))
        {
            piece.state = result.map_or_else(State::Failed, State::Ready);
        }
        self.forget();
    }

    /// Takes the error of a piece, so that the next read asks for it once more.
    pub(crate) fn take_failed(&mut self, offset: u64) -> Option<io::Error> {
        let at = self.pieces.iter().position(|p| p.range.contains(&offset) && matches!(p.state, State::Failed(_)))?;
        self.readers.clear();
        match self.pieces.swap_remove(at).state {
            State::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Ends what is on its way.
    pub(crate) fn abort(&self) {
        for piece in &self.pieces {
            if let State::Pending(Some(task)) = &piece.state {
                task.abort();
            }
        }
    }

    /// Lets go of what was used longest ago.
    fn forget(&mut self) {
        let is_ready = |piece: &Piece| matches!(piece.state, State::Ready(_));
        let len = |piece: &Piece| piece.range.end - piece.range.start;
        while self.pieces.iter().filter(|p| is_ready(p)).map(len).sum::<u64>() > KEPT {
            let oldest = self.pieces.iter().enumerate().filter(|(_, p)| is_ready(p)).min_by_key(|(_, p)| p.used);
            let Some((at, _)) = oldest else { break };
            self.pieces.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 100 << 20;

    fn ready(pieces: &mut Pieces, range: Range<u64>) {
        let bytes = Bytes::from(vec![0; (range.end - range.start) as usize]);
        pieces.put(range, State::Ready(bytes));
    }

    #[test]
    fn what_is_missing_is_asked_for_once() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.missing(10..20, LEN).first(), Some(&(10..10 + PIECE_MIN)));
        assert_eq!(pieces.missing(10..20, 15).first(), Some(&(10..15)));
        ready(&mut pieces, 100..200);
        assert_eq!(pieces.missing(50..300, LEN), [50..100, 200..50 + PIECE_MIN]);
        assert!(pieces.missing(120..180, LEN).is_empty());
        assert_eq!(pieces.missing(200..200 + 2 * PIECE, LEN), [200..200 + PIECE, 200 + PIECE..200 + 2 * PIECE]);
    }

    #[test]
    fn single_reads_fetch_nothing_ahead_and_long_ones_whole_pieces() {
        let mut pieces = Pieces::default();
        for at in [5 << 20, 50 << 20, 1 << 20] {
            assert!(pieces.note(at..at + 4096, LEN, false).is_empty());
        }
        let (mut at, mut ahead) = (0, Vec::new());
        while at < LEN {
            ahead.push(pieces.note(at..at + (1 << 20), LEN, false));
            at += 1 << 20;
        }
        ahead.retain(|range| !range.is_empty());
        assert!(ahead.iter().all(|r| (r.end - r.start).is_multiple_of(PIECE) || r.end == LEN), "{ahead:?}");
        assert!(ahead.windows(2).all(|pair| pair[0].end <= pair[1].start), "nothing is asked for twice: {ahead:?}");
        assert_eq!(ahead.last().unwrap().end, LEN);
        let mut pieces = Pieces::default();
        assert_eq!(pieces.note(0..4096, LEN, true), 0..AHEAD);
    }

    #[test]
    fn memory_is_bounded() {
        let mut pieces = Pieces::default();
        for i in 0..100 {
            ready(&mut pieces, i * PIECE..(i + 1) * PIECE);
        }
        assert_eq!(pieces.pieces.len() as u64, KEPT / PIECE);
        assert!(pieces.at(99 * PIECE).is_some() && pieces.at(0).is_none());
    }
}
