//! Earlier raw bytes of a flow that are read back in short pieces, instead of being kept.

use std::sync::Arc;

use crate::stored::{self, Stored};

/// Length of a piece in bytes: reading one takes hardly longer than the system call, and a long
/// repeat needs one call for 16 KiB.
const PIECE: usize = 16 << 10;
/// Pieces that stay. Repeats go on where the one before ended, and some alternate between places.
const PIECES: usize = 64;

/// Raw bytes of the flow up to its end, `reach` at most.
pub(super) struct Reread {
    stored: Arc<dyn Stored>,
    reach: usize,
    pieces: Vec<Piece>,
    /// Raw offset after the last byte.
    end: u64,
}

/// Bytes from `number` times the length of a piece on.
struct Piece {
    number: u64,
    bytes: Vec<u8>,
}

impl Reread {
    pub(super) fn new(stored: Arc<dyn Stored>, reach: usize) -> Self {
        Self { stored, reach, pieces: Vec::new(), end: 0 }
    }

    pub(super) fn reach(&self) -> usize {
        self.reach
    }

    pub(super) fn memory(&self) -> usize {
        self.pieces.len() * PIECE
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// So many more bytes are part of the flow.
    pub(super) fn advance(&mut self, len: u64) {
        self.end += len;
    }

    /// The bytes from `at` on that lie in one piece; none if they are out of reach or cannot be read.
    pub(super) fn from(&mut self, at: u64) -> &[u8] {
        let end = self.end;
        if at >= end || end - at > self.reach as u64 {
            return &[];
        }
        let rest = usize::try_from(end - at).unwrap_or(usize::MAX);
        let within = (at % PIECE as u64) as usize;
        let bytes = self.piece(at / PIECE as u64).get(within..).unwrap_or_default();
        &bytes[..bytes.len().min(rest)]
    }

    /// The bytes before `at` that lie in one piece; none if they are out of reach or cannot be read.
    pub(super) fn before(&mut self, at: u64) -> &[u8] {
        let oldest = self.end.saturating_sub(self.reach as u64);
        if at > self.end || at <= oldest {
            return &[];
        }
        let kept = usize::try_from(at - oldest).unwrap_or(usize::MAX);
        let within = ((at - 1) % PIECE as u64) as usize + 1;
        let bytes = self.piece((at - 1) / PIECE as u64).get(..within).unwrap_or_default();
        &bytes[bytes.len().saturating_sub(kept)..]
    }

    fn piece(&mut self, number: u64) -> &[u8] {
        if self.pieces.is_empty() {
            self.pieces.resize_with(PIECES, || Piece { number: u64::MAX, bytes: Vec::new() });
        }
        let piece = &mut self.pieces[(number % PIECES as u64) as usize];
        if piece.number != number {
            piece.bytes.resize(PIECE, 0);
            // The last piece of a file is shorter.
            let len = stored::read_some(&*self.stored, &mut piece.bytes, number * PIECE as u64);
            piece.bytes.truncate(len);
            piece.number = number;
        }
        &piece.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    struct Bytes(Vec<u8>);

    impl Stored for Bytes {
        fn read_raw(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
            let rest = self.0.get(at as usize..).unwrap_or_default();
            // Like a file system that gives less than was asked for.
            let n = rest.len().min(out.len()).min(5000);
            out[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        }
    }

    #[test]
    fn it_is_the_bytes_before_the_end_within_reach() {
        let all: Vec<u8> = (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
        let mut reread = Reread::new(Arc::new(Bytes(all.clone())), 1 << 15);
        reread.advance(60_000);
        let oldest = 60_000 - (1 << 15);
        for at in (0..61_000).step_by(7) {
            let kept = (oldest..60_000).contains(&at);
            let from = reread.from(at as u64);
            assert_eq!(!from.is_empty(), kept, "{at}");
            assert!(all[at..60_000.max(at)].starts_with(from));
            let before = reread.before(at as u64 + 1);
            assert_eq!(!before.is_empty(), kept, "before {at}");
            assert!(all[oldest.min(at)..=at].ends_with(before));
        }
        assert!(reread.memory() <= PIECES * PIECE);
    }

    #[test]
    fn what_cannot_be_read_is_not_there() {
        let mut reread = Reread::new(Arc::new(Bytes(vec![1; 20_000])), 1 << 20);
        reread.advance(50_000);
        assert_eq!(reread.from(19_990), [1; 10]);
        assert!(reread.from(20_000).is_empty() && reread.from(40_000).is_empty() && reread.before(50_000).is_empty());
    }
}
