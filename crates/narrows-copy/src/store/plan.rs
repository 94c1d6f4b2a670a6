//! The plan of a file in delta transfer: which content is sent, and which is present.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use narrows::entry::{Chunk, PieceHash, Region};

use crate::delta::{self, Basis, Piece};
use narrows_host::shares::Share;

/// Maximum number of planned pieces that have not arrived; content beyond them is requested as a
/// whole. Our senders announce 16,384 chunks ahead of the content, and as many pieces of them.
const PIECES_MAX: usize = 64 << 10;
/// Memory of their tree, two thirds full, in bytes.
const PIECES_LEN_MAX: usize = PIECES_MAX * size_of::<(u64, Piece)>() * 3 / 2;

/// The content of a file of which some is present, in order.
pub(crate) struct DeltaPlan {
    basis: Basis,
    /// Pieces by their offsets, without gaps. In a tree, a record of pieces costs only what it
    /// names, however many pieces there are.
    pieces: BTreeMap<u64, Piece>,
    /// Offset of the first piece.
    begin: u64,
    /// Offset of the next chunks.
    end: u64,
    /// File and end of the present content that was used last.
    taken: Option<(usize, u64)>,
    _memory: Option<Share>,
}

impl DeltaPlan {
    /// A plan based on these earlier versions of the file.
    pub(crate) fn new(files: Vec<OwnedFd>) -> Self {
        Self { basis: Basis::new(files), pieces: BTreeMap::new(), begin: 0, end: 0, taken: None, _memory: None }
    }

    /// Upper limit of the memory of a plan based on these files, in bytes.
    pub(super) fn len_max(files: &[OwnedFd]) -> usize {
        Basis::len_max(files) + PIECES_LEN_MAX
    }

    /// Holds a share of memory as long as the plan exists.
    pub(super) fn taking(self, memory: Share) -> Self {
        Self { _memory: Some(memory), ..self }
    }

    /// The earlier versions.
    pub(super) fn files(&self) -> impl Iterator<Item = &OwnedFd> {
        self.basis.files()
    }

    /// The earlier version with this number.
    pub(super) fn file(&self, file: usize) -> &OwnedFd {
        self.basis.file(file)
    }

    /// Plans the next chunks; returns the runs that say which are present. Chunks beyond the length
    /// of the file are not planned, so their content fails.
    pub(crate) fn chunks(&mut self, chunks: &[Chunk], file_len: u64) -> Vec<u32> {
        if self.end > file_len {
            return vec![0, chunks.len() as u32];
        }
        let begin = self.end;
        let len = chunks.iter().fold(0, |len: u64, chunk| len.saturating_add(chunk.covers()));
        self.end = self.end.saturating_add(len);
        if self.pieces.len() >= PIECES_MAX {
            match self.pieces.last_entry().map(|last| last.into_mut()) {
                Some(Piece::Need { len: before }) => *before = before.saturating_add(len),
                _ => self.put(begin, [Piece::Need { len }]),
            }
            return vec![0, chunks.len() as u32];
        }
        let (pieces, runs) = self.basis.find(begin, chunks);
        self.put(begin, pieces);
        runs
    }

    fn put(&mut self, mut at: u64, pieces: impl IntoIterator<Item = Piece>) {
        for piece in pieces {
            self.pieces.insert(at, piece);
            at = at.saturating_add(piece.len());
        }
    }

    /// Plans the pieces of regions; returns the runs that say which are present. Regions that do
    /// not match the plan are answered as needed.
    pub(crate) fn pieces(&mut self, regions: &[Region], hashes: &[PieceHash]) -> Vec<u32> {
        if self.pieces.len() >= PIECES_MAX {
            return vec![0, hashes.len() as u32];
        }
        let mut there = Vec::with_capacity(hashes.len());
        let mut rest = hashes;
        for region in regions {
            let (hashes, others) = rest.split_at(region.pieces());
            rest = others;
            let found = self.look_for(*region, hashes);
            match &found[..] {
                [] => there.resize(there.len() + hashes.len(), false),
                found => there.extend(found.iter().map(|piece| matches!(piece, Piece::Have { .. }))),
            }
            let mut planned = Vec::with_capacity(found.len());
            found.into_iter().for_each(|piece| delta::push(&mut planned, piece));
            self.put(region.offset, planned);
        }
        delta::runs(there.into_iter())
    }

    /// Looks up the pieces of a region; returns none if the region does not match a needed piece.
    fn look_for(&self, region: Region, hashes: &[PieceHash]) -> Vec<Piece> {
        match self.pieces.get(&region.offset) {
            Some(Piece::Need { len }) if *len == u64::from(region.len) => {}
            _ => return Vec::new(),
        }
        let before = match self.pieces.range(..region.offset).next_back() {
            Some((_, Piece::Have { file, offset, len })) => Some((*file, offset + len)),
            Some((_, Piece::Need { .. } | Piece::Hole { .. })) => None,
            None => self.taken,
        };
        let after = match self.pieces.get(&(region.offset + u64::from(region.len))) {
            Some(Piece::Have { file, offset, .. }) => Some((*file, *offset)),
            _ => None,
        };
        self.basis.find_pieces(region.len, hashes, before, after)
    }

    /// Removes and returns the next piece if it is present, or is a hole.
    pub(crate) fn take_here(&mut self) -> Option<Piece> {
        let piece = *self.pieces.first_key_value()?.1;
        self.taken = match piece {
            Piece::Need { .. } => return None,
            Piece::Have { file, offset, len } => Some((file, offset + len)),
            Piece::Hole { .. } => None,
        };
        self.pieces.pop_first();
        self.begin = self.begin.saturating_add(piece.len());
        Some(piece)
    }

    /// Length of the next piece if the sender has to send it.
    pub(crate) fn needed(&self) -> Option<u64> {
        match self.pieces.first_key_value() {
            Some((_, Piece::Need { len })) => Some(*len),
            _ => None,
        }
    }

    /// Counts `len` bytes of the next piece as received.
    pub(crate) fn came(&mut self, len: u64) {
        let Some(left) = self.needed().and_then(|needed| needed.checked_sub(len)) else { return };
        self.pieces.pop_first();
        self.begin += len;
        self.taken = None;
        if left > 0 {
            self.pieces.insert(self.begin, Piece::Need { len: left });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::Outline;
    use std::io::Write;

    #[test]
    fn however_many_chunks_come_few_pieces_are_kept_and_all_of_the_file_is_planned_for() {
        let mut old = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..200_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        old.write_all(&content).unwrap();
        let old = OwnedFd::from(old);
        let there = Outline::new(content.len() as u64, false).next(&old).unwrap()[0];
        let mut plan = DeltaPlan::new(vec![old]);
        // Present and missing pieces alternate, so that no two can be merged.
        let chunks = [there, Chunk { len: 1, hash: 7 }].repeat(2048);
        for _ in 0..100 {
            plan.chunks(&chunks, u64::MAX);
        }
        assert!(plan.pieces.len() >= PIECES_MAX && plan.pieces.len() <= PIECES_MAX + chunks.len());
        assert_eq!(plan.pieces.values().map(|p| p.len()).sum::<u64>(), 100 * 2048 * (u64::from(there.len) + 1));
    }

    /// A record names a few bytes of a long plan: it costs what it names.
    #[test]
    fn pieces_cost_the_same_however_many_are_planned_for() {
        let mut old = tempfile::tempfile().unwrap();
        old.write_all(&[0; 1 << 20]).unwrap();
        let old = OwnedFd::from(old);
        let there = Outline::new(1 << 20, false).next(&old).unwrap()[0];
        let mut plan = DeltaPlan::new(vec![old]);
        let chunks = [there, Chunk { len: 1, hash: 7 }].repeat(2048);
        for _ in 0..15 {
            plan.chunks(&chunks, u64::MAX);
        }
        assert!(plan.pieces.len() > 60_000);
        let whole = plan.end;
        let begun = std::time::Instant::now();
        // Guards against quadratic time, with which this many pieces took a minute.
        for i in 0..100_000 {
            let region = Region { offset: 1 + i % whole, len: 1 };
            assert_eq!(plan.pieces(&[region], &[[7; 6]]), [0, 1]);
        }
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
        assert_eq!(plan.pieces.values().map(|p| p.len()).sum::<u64>(), whole);
    }
}
