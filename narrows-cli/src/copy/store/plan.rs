//! What of a file comes, and what is here.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use narrows::entry::{Chunk, PieceHash, Region};

use crate::copy::delta::{self, Basis, Piece};

/// Pieces that are planned for and did not come; what is beyond is needed as one. Our senders announce 16,384 chunks ahead
/// of the content, and as many pieces of them.
const PIECES_MAX: usize = 64 << 10;

/// The content of a file of which something is here, in order.
pub(crate) struct Plan {
    basis: Basis,
    pieces: VecDeque<Piece>,
    /// Where the first of them begins, and where the next chunks do.
    begin: u64,
    end: u64,
    /// Where what was taken last from here ends.
    taken: Option<(usize, u64)>,
}

impl Plan {
    /// By these earlier states of the file.
    pub(crate) fn new(files: Vec<OwnedFd>) -> Self {
        Self { basis: Basis::new(files), pieces: VecDeque::new(), begin: 0, end: 0, taken: None }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &OwnedFd> {
        self.basis.files()
    }

    pub(super) fn file(&self, file: usize) -> &OwnedFd {
        self.basis.file(file)
    }

    /// Plans for the next chunks, and says which are here.
    /// More than the file has is not planned for: what comes of it fails.
    pub(crate) fn chunks(&mut self, chunks: &[Chunk], file_len: u64) -> Vec<u32> {
        if self.end > file_len {
            return vec![0, chunks.len() as u32];
        }
        let begin = self.end;
        let len: u64 = chunks.iter().map(|c| u64::from(c.len)).sum();
        self.end += len;
        if self.pieces.len() >= PIECES_MAX {
            match self.pieces.back_mut() {
                Some(Piece::Need { len: before }) => *before += len,
                _ => self.pieces.push_back(Piece::Need { len }),
            }
            return vec![0, chunks.len() as u32];
        }
        let (pieces, runs) = self.basis.find(begin, chunks);
        self.pieces.extend(pieces);
        runs
    }

    /// Says which pieces of regions are here, and plans with them.
    pub(crate) fn pieces(&mut self, regions: &[Region], hashes: &[PieceHash]) -> Vec<u32> {
        if self.pieces.len() >= PIECES_MAX {
            return vec![0, hashes.len() as u32];
        }
        let mut there = vec![false; hashes.len()];
        let (mut planned, mut at) = (Vec::with_capacity(self.pieces.len() + hashes.len()), self.begin);
        let mut before = self.taken;
        let (mut next, mut first) = (0, 0);
        for (i, piece) in self.pieces.iter().enumerate() {
            let len = piece.len();
            // Regions that are not what is needed are answered as needed.
            while let Some(region) = regions.get(next).filter(|r| r.offset < at) {
                (next, first) = (next + 1, first + region.pieces());
            }
            let region = regions.get(next).filter(|r| r.offset == at && u64::from(r.len) == len);
            match (piece, region) {
                (Piece::Need { .. }, Some(region)) => {
                    let after = match self.pieces.get(i + 1) {
                        Some(Piece::Have { file, offset, .. }) => Some((*file, *offset)),
                        _ => None,
                    };
                    let hashes = &hashes[first..first + region.pieces()];
                    let found = self.basis.find_pieces(region.len, hashes, before, after);
                    for (there, piece) in there[first..].iter_mut().zip(&found) {
                        *there = matches!(piece, Piece::Have { .. });
                    }
                    found.into_iter().for_each(|piece| delta::push(&mut planned, piece));
                    (next, first) = (next + 1, first + region.pieces());
                }
                // Not joined with what is needed before it: that may be another record's region.
                _ => planned.push(*piece),
            }
            before = match piece {
                Piece::Have { file, offset, len } => Some((*file, offset + len)),
                Piece::Need { .. } => None,
            };
            at += len;
        }
        self.pieces = planned.into();
        delta::runs(there.into_iter())
    }

    /// What comes next, if it is here: it is then done.
    pub(crate) fn take_here(&mut self) -> Option<(usize, u64, u64)> {
        let Some(&Piece::Have { file, offset, len }) = self.pieces.front() else { return None };
        self.pieces.pop_front();
        self.begin += len;
        self.taken = Some((file, offset + len));
        Some((file, offset, len))
    }

    /// How much of what the sender sends comes next.
    pub(crate) fn needed(&self) -> Option<u64> {
        match self.pieces.front() {
            Some(Piece::Need { len }) => Some(*len),
            _ => None,
        }
    }

    /// So much of it came.
    pub(crate) fn came(&mut self, len: u64) {
        if let Some(Piece::Need { len: left }) = self.pieces.front_mut() {
            *left -= len;
            self.begin += len;
            self.taken = None;
            if *left == 0 {
                self.pieces.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::delta::Outline;
    use std::io::Write;

    #[test]
    fn however_many_chunks_come_few_pieces_are_kept_and_all_of_the_file_is_planned_for() {
        let mut old = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..200_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        old.write_all(&content).unwrap();
        let old = OwnedFd::from(old);
        let there = Outline::new(content.len() as u64).next(&old).unwrap()[0];
        let mut plan = Plan::new(vec![old]);
        // What is there and what is not, by turns: no two pieces can be one.
        let chunks = [there, Chunk { len: 1, hash: 7 }].repeat(2048);
        for _ in 0..100 {
            plan.chunks(&chunks, u64::MAX);
        }
        assert!(plan.pieces.len() >= PIECES_MAX && plan.pieces.len() <= PIECES_MAX + chunks.len());
        assert_eq!(plan.pieces.iter().map(|p| p.len()).sum::<u64>(), 100 * 2048 * (u64::from(there.len) + 1));
    }
}
