//! Delta transfer: finds the parts of a file that the receiver has already. Both ends cut the file
//! into chunks at content-defined borders (FastCDC, Xia et al. 2016), so that an insertion or
//! removal moves no other border, and compare the chunks by hash. Missing data next to a known
//! chunk is then compared in short pieces, at the positions that follow from the position of that
//! chunk in the old file.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use fastcdc::v2020::FastCDC;
use narrows::entry::{Chunk, PIECE_LEN, PieceHash, REGION_LEN_MAX};
use xxhash_rust::xxh3::xxh3_64;

mod cutter;
mod outline;

use cutter::Cutter;
pub(crate) use cutter::{CHUNK_LENS, read_at};
pub(crate) use outline::{Outline, Span};

use crate::holes::has_hole;

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
    /// A hole.
    Hole { len: u64 },
}

impl Piece {
    /// Length in bytes.
    pub(crate) fn len(self) -> u64 {
        match self {
            Self::Have { len, .. } | Self::Need { len } | Self::Hole { len } => len,
        }
    }
}

/// Appends a piece, merged with the last one if it continues it.
pub(crate) fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match (pieces.last_mut(), piece) {
        (Some(Piece::Need { len: before }), Piece::Need { len }) => *before = before.saturating_add(len),
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
        let cutter = |file: &OwnedFd| {
            let len = rustix::fs::fstat(file).map_or(0, |s| s.st_size as u64);
            Cutter::new(len, has_hole(file, len))
        };
        let files = files.into_iter().map(|file| (cutter(&file), file)).map(|(cutter, file)| (file, cutter));
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
        let mut end = offset;
        for chunk in chunks {
            let begin = end;
            end = end.saturating_add(chunk.covers());
            // What was in the place of a long hole is not read.
            if chunk.is_hole() && chunk.covers() > 2 * AHEAD {
                self.cover(begin.saturating_add(AHEAD));
                self.files.iter_mut().for_each(|(_, cutter)| cutter.skip_to(end - AHEAD));
            }
        }
        self.cover(end.saturating_add(AHEAD));
        let (mut pieces, mut there) = (Vec::new(), Vec::with_capacity(chunks.len()));
        for chunk in chunks {
            if chunk.is_hole() {
                there.push(true);
                pieces.push(Piece::Hole { len: chunk.covers() });
                continue;
            }
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
        let Self { files, index, order } = self;
        let mut add = |number: usize, offset: u64, chunk: &Chunk| {
            if index.insert(chunk.hash, (number, offset, chunk.len)).is_none() {
                order.push_back(chunk.hash);
            }
            if order.len() > INDEX_MAX
                && let Some(oldest) = order.pop_front()
            {
                index.remove(&oldest);
            }
        };
        for (number, (file, cutter)) in files.iter_mut().enumerate() {
            while cutter.offset() < end {
                let begin = cutter.offset();
                let Ok(sections) = cutter.next(file) else { break };
                let after = sections.first().map_or(cutter.offset(), |section| section.at);
                if let Some(zeros) = zeros().filter(|zeros| after - begin >= zeros.covers()) {
                    add(number, begin, zeros);
                }
                for section in &sections {
                    let mut offset = section.at;
                    for chunk in &section.chunks {
                        add(number, offset, chunk);
                        offset += chunk.covers();
                    }
                }
                if sections.is_empty() {
                    break;
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

/// The chunk of zeros that a file has where another has a hole.
fn zeros() -> Option<&'static Chunk> {
    static ZEROS: OnceLock<Option<Chunk>> = OnceLock::new();
    let cut = || {
        let bytes = [0; 2 * CHUNK_LENS.2];
        let chunk = FastCDC::new(&bytes, CHUNK_LENS.0, CHUNK_LENS.1, CHUNK_LENS.2).next()?;
        Some(Chunk { len: chunk.length as u32, hash: xxh3_64(&bytes[..chunk.length]) })
    };
    ZEROS.get_or_init(cut).as_ref()
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
    use crate::store::plan::DeltaPlan;
    use narrows_test::noise_of;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    /// Block of the file systems that tests run on.
    const PAGE: usize = 4096;

    fn file(bytes: &[u8]) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.into()
    }

    /// A file with holes where the bytes are a whole page of zeros.
    fn sparse_file(bytes: &[u8]) -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (i, page) in bytes.chunks(PAGE).enumerate().filter(|(_, page)| page.iter().any(|b| *b != 0)) {
            file.write_all_at(page, (i * PAGE) as u64).unwrap();
        }
        file.into()
    }

    fn transfer(old: &[u8], new: &[u8]) -> (Vec<u8>, usize) {
        let (got, sent, _) = transfer_of(file(old), old, file(new), new, false);
        (got, sent)
    }

    /// Plays both ends; returns the file as the receiver has it, how much of it was sent, and how many bytes
    /// became holes.
    fn transfer_of(
        old_file: OwnedFd,
        old: &[u8],
        source: OwnedFd,
        new: &[u8],
        sparse: bool,
    ) -> (Vec<u8>, usize, usize) {
        let mut outline = Outline::new(new.len() as u64, sparse);
        let mut plan = DeltaPlan::new(vec![old_file]);
        let mut holes = 0;
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
            let mut take_here = |plan: &mut DeltaPlan, got: &mut Vec<u8>| take_here(plan, got, old, &mut holes);
            for Span { offset: at, len, hole } in needed {
                assert!(!hole, "of a plan with room");
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
        take_here(&mut plan, &mut got, old, &mut holes);
        assert_eq!(plan.needed(), None);
        assert_eq!(outline.len(), new.len() as u64);
        if !sparse {
            assert_eq!(outline.digest(), *blake3::hash(new).as_bytes());
        }
        (got, sent, holes)
    }

    fn take_here(plan: &mut DeltaPlan, got: &mut Vec<u8>, old: &[u8], holes: &mut usize) {
        while let Some(piece) = plan.take_here() {
            match piece {
                Piece::Have { offset, len, .. } => {
                    got.extend_from_slice(&old[offset as usize..(offset + len) as usize]);
                }
                Piece::Hole { len } => {
                    got.resize(got.len() + len as usize, 0);
                    *holes += len as usize;
                }
                Piece::Need { .. } => unreachable!("it is not here"),
            }
        }
    }

    #[test]
    fn of_files_with_holes_little_more_than_the_change_is_needed_and_holes_stay_holes() {
        let mut old = vec![0; 40 << 20];
        for (at, len) in [(0, 3 << 20), (5 << 20, 100_000), (9 << 20, 9 << 20), (30 << 20, 1 << 20)] {
            old[at..at + len].copy_from_slice(&noise_of(at as u64 + 1, len));
        }
        let mut changed = old.clone();
        changed[1_000_000] ^= 1;
        changed[12_000_000] ^= 1;
        let mut filled = old.clone();
        filled[25 << 20..][..50_000].copy_from_slice(&noise_of(99, 50_000));
        let mut emptied = old.clone();
        emptied[10 << 20..][..2 << 20].fill(0);
        let mut longer = old.clone();
        longer.resize(60 << 20, 0);
        let none = vec![0; 8 << 20];
        let piece = PIECE_LEN as usize;
        // At the border of a range of data that became shorter or longer chunks may differ.
        let border = CHUNK_LENS.2;
        for (new, needed_max) in [
            (old.clone(), 0),
            (changed, 2 * piece),
            (filled, 50_000 + PAGE),
            (emptied, 8 * border),
            (longer, 0),
            (old[..(35 << 20) + 5].to_vec(), 0),
            (none.clone(), 0),
        ] {
            let (got, needed, holes) = transfer_of(sparse_file(&old), &old, sparse_file(&new), &new, true);
            assert!(got == new);
            assert!(needed <= needed_max, "{needed} {needed_max}");
            let empty = new.chunks(PAGE).filter(|page| page.iter().all(|b| *b == 0)).map(<[u8]>::len).sum::<usize>();
            assert!(holes.abs_diff(empty) < 64 << 10, "{holes} {empty}");
        }
        // Of nothing but holes all is needed that has data, and none of the other way round.
        let (got, needed, _) = transfer_of(sparse_file(&none), &none, sparse_file(&old), &old, true);
        assert!(got == old && needed == (13 << 20) + 100_000usize.next_multiple_of(PAGE));
        // One end has zeros where the other one has a hole.
        let (got, needed, _) = transfer_of(file(&old), &old, sparse_file(&old), &old, true);
        assert!(got == old && needed <= 20 * border, "{needed}");
        let (got, needed, _) = transfer_of(sparse_file(&old), &old, file(&old), &old, false);
        assert!(got == old && needed <= 40 * border, "{needed}");
    }

    #[test]
    fn little_more_than_the_change_is_needed() {
        // More than one section, and none of a whole length.
        let old = noise_of(1, 18_000_001);
        let mut changed = old.clone();
        for at in [100_000, 2_000_000, 5_999_999] {
            changed[at] ^= 1;
        }
        let mut inserted = old.clone();
        inserted.splice(1_000_000..1_000_000, noise_of(2, 777));
        let removed = [&old[..500_000], &old[600_001..]].concat();
        let moved = [&old[9 << 20..], &old[..9 << 20]].concat();
        let longer = [&old[..], &noise_of(3, 50_000)].concat();
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
        let new = noise_of(5, 300_000);
        for old in [noise_of(6, 300_000), Vec::new()] {
            let (got, needed) = transfer(&old, &new);
            assert!(got == new && needed == new.len());
        }
        assert_eq!(transfer(&new, &[]), (Vec::new(), 0));
        let zeros = vec![0; 1 << 20];
        let (got, needed) = transfer(&zeros, &zeros);
        assert!(got == zeros && needed == 0);
    }
}
