//! Delta transfer: finds the parts of a file that the receiver has already. Both ends cut the file
//! into chunks at content-defined borders (FastCDC, Xia et al. 2016), so that an insertion or
//! removal moves no other border, and compare the chunks by hash. Missing data next to a known
//! chunk is then compared in short pieces, at the positions that follow from the position of that
//! chunk in the old file.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use narrows::entry::{Chunk, PIECE_LEN, PieceHash, REGION_LEN_MAX};
use xxhash_rust::xxh3::xxh3_64;

mod cutter;
mod outline;

use cutter::Cutter;
pub(crate) use cutter::{CHUNK_LENS, read_at};
pub(crate) use outline::Outline;

/// Smaller files are sent whole: a list of chunks and its answer cost more than they save on most links.
pub(crate) const DELTA_MIN: u64 = 256 << 10;
/// Bytes that the index reaches beyond the requested position, which is the longest insertion or
/// removal that is handled.
const AHEAD: u64 = 64 << 20;
/// Maximum number of chunks in the index: about 2 GiB of the file, and 24 MiB of memory. Beyond it
/// the oldest chunks are dropped.
const INDEX_MAX: usize = 256 << 10;

/// Earlier versions of a file at the receiver, with an index of their chunks.
pub(crate) struct Basis {
    files: Vec<(OwnedFd, Cutter)>,
    /// Position of a chunk by its hash: file, offset, length.
    index: HashMap<u64, (usize, u64, u32)>,
    order: VecDeque<u64>,
}

/// A piece of the content of the new file; pieces are in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Present in an earlier version.
    Have { file: usize, offset: u64, len: u64 },
    /// To be sent.
    Need { len: u64 },
}

impl Piece {
    /// Length in bytes.
    pub(crate) fn len(self) -> u64 {
        match self {
            Self::Have { len, .. } | Self::Need { len } => len,
        }
    }
}

/// Appends a piece, merged with the last one if it continues it.
pub(crate) fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (Some(Piece::Need { len: before }), Piece::Need { len }) => *before += len,
        (Some(Piece::Have { file: last, offset, len: before }), Piece::Have { file, offset: at, len })
            if *last == file && *offset + *before == at =>
        {
            *before += len;
        }
        _ => pieces.push(piece),
    }
}

impl Basis {
    pub(crate) fn new(files: Vec<OwnedFd>) -> Self {
        let len = |file: &OwnedFd| rustix::fs::fstat(file).map_or(0, |s| s.st_size as u64);
        let files = files.into_iter().map(|file| (len(&file), file)).map(|(len, file)| (file, Cutter::new(len)));
        let files = files.collect();
        Self { files, index: HashMap::new(), order: VecDeque::new() }
    }

    /// Upper limit of the memory of the index of these files, in bytes: 41 for each chunk, in
    /// tables that may just have grown.
    pub(crate) fn len_max(files: &[OwnedFd]) -> usize {
        let len: u64 = files.iter().map(|f| rustix::fs::fstat(f).map_or(0, |s| s.st_size as u64)).sum();
        (len / CHUNK_LENS.0 as u64).min(INDEX_MAX as u64) as usize * 96
    }

    /// The files in order.
    pub(crate) fn files(&self) -> impl Iterator<Item = &OwnedFd> {
        self.files.iter().map(|(file, _)| file)
    }

    /// The file with this number.
    pub(crate) fn file(&self, file: usize) -> &OwnedFd {
        &self.files[file].0
    }

    /// Looks up the chunks that begin at `offset` of the new file. Returns the pieces, and the runs
    /// for the answer.
    pub(crate) fn find(&mut self, offset: u64, chunks: &[Chunk]) -> (Vec<Piece>, Vec<u32>) {
        let len: u64 = chunks.iter().map(|c| u64::from(c.len)).sum();
        self.cover(offset.saturating_add(len).saturating_add(AHEAD));
        let (mut pieces, mut there) = (Vec::new(), Vec::with_capacity(chunks.len()));
        for chunk in chunks {
            let found = self.index.get(&chunk.hash).filter(|(_, _, len)| *len == chunk.len);
            there.push(found.is_some());
            let len = u64::from(chunk.len);
            push(
                &mut pieces,
                found.map_or(Piece::Need { len }, |&(file, offset, _)| Piece::Have { file, offset, len }),
            );
        }
        (pieces, runs(there.into_iter()))
    }

    /// Extends the index up to offset `end` of the files. Data that cannot be read counts as
    /// missing.
    fn cover(&mut self, end: u64) {
        for (number, (file, cutter)) in self.files.iter_mut().enumerate() {
            while cutter.offset() < end {
                let mut offset = cutter.offset();
                let Ok(sections) = cutter.next(file) else { break };
                if sections.is_empty() {
                    break;
                }
                for chunk in sections.iter().flat_map(|s| &s.chunks) {
                    if self.index.insert(chunk.hash, (number, offset, chunk.len)).is_none() {
                        self.order.push_back(chunk.hash);
                    }
                    offset += u64::from(chunk.len);
                    if self.order.len() > INDEX_MAX
                        && let Some(oldest) = self.order.pop_front()
                    {
                        self.index.remove(&oldest);
                    }
                }
            }
        }
    }

    /// Looks up the pieces of a region in an old file: following the data that precedes the region
    /// (`left`), or preceding the data that follows it (`right`). Pieces found there are returned
    /// as present, the others as needed.
    pub(crate) fn find_pieces(
        &self,
        len: u32,
        hashes: &[PieceHash],
        left: Option<(usize, u64)>,
        right: Option<(usize, u64)>,
    ) -> Vec<Piece> {
        let right = right.and_then(|(file, at)| Some((file, at.checked_sub(len.into())?)));
        let old = [left, right].map(|place| {
            let (file, at) = place?;
            let mut bytes = vec![0; len.min(REGION_LEN_MAX) as usize];
            let n = read_at(&self.files[file].0, &mut bytes, at).ok()?;
            bytes.truncate(n);
            Some((file, at, bytes))
        });
        let mut pieces = Vec::new();
        for (i, hash) in hashes.iter().enumerate() {
            let at = i * PIECE_LEN as usize;
            let len = (len as usize - at).min(PIECE_LEN as usize);
            let found = old
                .iter()
                .flatten()
                .find(|(_, _, bytes)| bytes.get(at..at + len).is_some_and(|b| piece_hash(b) == *hash));
            let len = len as u64;
            pieces.push(match found {
                Some((file, begin, _)) => Piece::Have { file: *file, offset: begin + at as u64, len },
                None => Piece::Need { len },
            });
        }
        pieces
    }
}

/// Hash of a piece: the first 6 bytes of its XXH3 hash, little endian.
pub(crate) fn piece_hash(piece: &[u8]) -> PieceHash {
    let [a, b, c, d, e, f, ..] = xxh3_64(piece).to_le_bytes();
    [a, b, c, d, e, f]
}

/// Run lengths that alternate between present and missing, beginning with present.
pub(crate) fn runs(there: impl Iterator<Item = bool>) -> Vec<u32> {
    let mut runs = Vec::new();
    for there in there {
        while runs.is_empty() || there == runs.len().is_multiple_of(2) {
            runs.push(0);
        }
        if let Some(run) = runs.last_mut() {
            *run += 1;
        }
    }
    runs
}

/// Expands the runs of an answer to `count` flags, true for present; `None` if the runs cover
/// another number.
fn each(runs: &[u32], count: usize) -> Option<Vec<bool>> {
    let sum: u64 = runs.iter().map(|r| u64::from(*r)).sum();
    (sum == count as u64).then(|| {
        let runs = runs.iter().enumerate();
        runs.flat_map(|(i, run)| std::iter::repeat_n(i % 2 == 0, *run as usize)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::cutter::SECTION_LEN;
    use super::*;
    use crate::store::DeltaPlan;
    use std::io::Write;

    fn file(bytes: &[u8]) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.into()
    }

    fn noise(len: usize, number: u64) -> Vec<u8> {
        let mut x = number | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// Plays both ends; returns the file as the receiver has it, and how much of it was sent.
    fn transfer(old: &[u8], new: &[u8]) -> (Vec<u8>, usize) {
        let source = file(new);
        let mut outline = Outline::new(new.len() as u64);
        let mut plan = DeltaPlan::new(vec![file(old)]);
        let (mut got, mut sent) = (Vec::new(), 0);
        let mut turn = 0;
        loop {
            // Some records are ahead, as they are on a link.
            let chunks = if outline.ahead() < 3 { outline.next(&source).unwrap() } else { Vec::new() };
            if !chunks.is_empty() {
                outline.answer(&plan.chunks(&chunks, new.len() as u64));
            }
            turn += 1;
            if turn % 2 == 0 || outline.is_whole() {
                while let Some((regions, hashes)) = outline.compare(&source).unwrap() {
                    outline.answer(&plan.pieces(&regions, &hashes));
                }
            }
            if outline.ahead() == 0 && outline.is_whole() {
                break;
            }
            if !outline.is_answered() {
                continue;
            }
            let needed = outline.needed().unwrap();
            let take_here = |plan: &mut DeltaPlan, got: &mut Vec<u8>| {
                while let Some((_, offset, len)) = plan.take_here() {
                    got.extend_from_slice(&old[offset as usize..(offset + len) as usize]);
                }
            };
            for (at, len) in needed {
                let (mut at, end) = (at as usize, (at + len) as usize);
                while at < end {
                    take_here(&mut plan, &mut got);
                    let n = (plan.needed().expect("more came than was asked for") as usize).min(end - at);
                    plan.came(n as u64);
                    got.extend_from_slice(&new[at..at + n]);
                    (at, sent) = (at + n, sent + n);
                }
            }
            if outline.ahead() == 0 {
                take_here(&mut plan, &mut got);
            }
        }
        while let Some((_, offset, len)) = plan.take_here() {
            got.extend_from_slice(&old[offset as usize..(offset + len) as usize]);
        }
        assert_eq!(plan.needed(), None);
        assert_eq!(outline.len(), new.len() as u64);
        assert_eq!(outline.digest(), *blake3::hash(new).as_bytes());
        (got, sent)
    }

    #[test]
    fn little_more_than_the_change_is_needed() {
        // More than one section, and none of a whole length.
        let old = noise(18_000_001, 1);
        let mut changed = old.clone();
        for at in [100_000, 2_000_000, 5_999_999] {
            changed[at] ^= 1;
        }
        let mut inserted = old.clone();
        inserted.splice(1_000_000..1_000_000, noise(777, 2));
        let removed = [&old[..500_000], &old[600_001..]].concat();
        let moved = [&old[9 << 20..], &old[..9 << 20]].concat();
        let longer = [&old[..], &noise(50_000, 3)].concat();
        let piece = PIECE_LEN as usize;
        // If something moved, chunks may differ at each section border and at the place of the
        // change.
        let borders = 2 * old.len().div_ceil(SECTION_LEN) * CHUNK_LENS.2;
        for (new, needed_max) in [
            (old.clone(), 0),
            (changed, 3 * piece),
            (inserted, 777 + 4 * piece),
            (removed, 4 * piece),
            (moved, borders),
            (old[..4 << 20].to_vec(), 0),
            (longer, 50_000 + 2 * CHUNK_LENS.2),
        ] {
            let (got, needed) = transfer(&old, &new);
            assert!(got == new);
            assert!(needed <= needed_max, "{needed} {needed_max}");
        }
    }

    #[test]
    fn what_was_never_there_is_needed_whole() {
        let new = noise(300_000, 5);
        for old in [noise(300_000, 6), Vec::new()] {
            let (got, needed) = transfer(&old, &new);
            assert!(got == new && needed == new.len());
        }
        assert_eq!(transfer(&new, &[]), (Vec::new(), 0));
        let zeros = vec![0; 1 << 20];
        let (got, needed) = transfer(&zeros, &zeros);
        assert!(got == zeros && needed == 0);
    }
}
