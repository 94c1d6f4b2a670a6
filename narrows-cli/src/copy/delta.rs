//! What of a file is there already: both ends cut at places that the content chooses (FastCDC, Xia et al. 2016), so that
//! what was inserted or removed moves no other border, and compare the pieces by hash.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;

use fastcdc::v2020::FastCDC;
use narrows::entry::{CHUNK_LEN_MAX, CHUNKS_MAX, Chunk};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

/// Smaller files are sent whole: a list of chunks and its answer cost more than they save on most links.
pub(crate) const DELTA_MIN: u64 = 256 << 10;
/// Shortest, mean and longest chunk. A changed byte costs about one chunk; the list costs 10 bytes for each.
const CHUNK_LENS: (usize, usize, usize) = (1 << 10, 4 << 10, 32 << 10);
const _: () = assert!(CHUNK_LENS.2 <= CHUNK_LEN_MAX as usize);
const BUFFER_LEN: usize = 1 << 20;
/// How far behind the place that is asked for the index reaches: what was inserted or removed may be as long.
const AHEAD: u64 = 64 << 20;
/// Chunks in the index, about 1 GiB of the file and 24 MiB of memory. Beyond it the oldest are forgotten.
const INDEX_MAX: usize = 256 << 10;

/// Cuts an open file from its beginning to its end.
pub(crate) struct Chunker {
    buffer: Vec<u8>,
    /// What of the buffer is to be cut.
    begin: usize,
    end: usize,
    /// Where in the file the buffer's `begin` is.
    at: u64,
    limit: u64,
    ended: bool,
}

impl Chunker {
    /// Of the first `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self { buffer: Vec::new(), begin: 0, end: 0, at: 0, limit, ended: false }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    /// The next chunk with its bytes.
    pub(crate) fn next(&mut self, file: &OwnedFd) -> io::Result<Option<(Chunk, &[u8])>> {
        if self.end - self.begin < CHUNK_LENS.2 && !self.ended {
            self.fill(file)?;
        }
        if self.begin == self.end {
            return Ok(None);
        }
        let cutter = FastCDC::new(&self.buffer[..self.end], CHUNK_LENS.0, CHUNK_LENS.1, CHUNK_LENS.2);
        let (_, cut) = cutter.cut(self.begin, self.end - self.begin);
        let bytes = &self.buffer[self.begin..cut];
        self.begin = cut;
        self.at += bytes.len() as u64;
        Ok(Some((Chunk { len: bytes.len() as u32, hash: xxh3_64(bytes) }, bytes)))
    }

    fn fill(&mut self, file: &OwnedFd) -> io::Result<()> {
        self.buffer.resize(BUFFER_LEN, 0);
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        while self.end < BUFFER_LEN && !self.ended {
            let read_at = self.at + self.end as u64;
            let room = ((self.limit - read_at.min(self.limit)) as usize).min(BUFFER_LEN - self.end);
            match rustix::io::pread(file, &mut self.buffer[self.end..self.end + room], read_at) {
                Ok(0) => self.ended = true,
                Ok(n) => self.end += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Earlier states of a file, at the receiver.
pub(crate) struct Basis {
    files: Vec<(OwnedFd, Chunker)>,
    /// Where a chunk is: file, offset, length.
    index: HashMap<u64, (usize, u64, u32)>,
    order: VecDeque<u64>,
}

/// Content of the new file, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece {
    Have { file: usize, offset: u64, len: u64 },
    Need { len: u64 },
}

impl Basis {
    pub(crate) fn new(files: Vec<OwnedFd>) -> Self {
        let files = files.into_iter().map(|file| (file, Chunker::new(u64::MAX))).collect();
        Self { files, index: HashMap::new(), order: VecDeque::new() }
    }

    pub(crate) fn file(&self, file: usize) -> &OwnedFd {
        &self.files[file].0
    }

    /// Which of the chunks, which begin at `offset` of the new file, are there: pieces, and runs for the answer.
    pub(crate) fn find(&mut self, offset: u64, chunks: &[Chunk]) -> (Vec<Piece>, Vec<u32>) {
        let len: u64 = chunks.iter().map(|c| u64::from(c.len)).sum();
        self.cover(offset.saturating_add(len).saturating_add(AHEAD));
        let (mut pieces, mut runs) = (Vec::new(), Vec::new());
        for chunk in chunks {
            let found = self.index.get(&chunk.hash).filter(|(_, _, len)| *len == chunk.len);
            // Runs alternate and begin with what is there.
            while runs.is_empty() || found.is_none() != runs.len().is_multiple_of(2) {
                runs.push(0);
            }
            if let Some(run) = runs.last_mut() {
                *run += 1;
            }
            let len = u64::from(chunk.len);
            match (found, pieces.last_mut()) {
                (Some((file, at, _)), Some(Piece::Have { file: last, offset, len: before }))
                    if file == last && *offset + *before == *at =>
                {
                    *before += len;
                }
                (Some(&(file, offset, _)), _) => pieces.push(Piece::Have { file, offset, len }),
                (None, Some(Piece::Need { len: before })) => *before += len,
                (None, _) => pieces.push(Piece::Need { len }),
            }
        }
        (pieces, runs)
    }

    /// Takes the files up to `end` into the index. What cannot be read is not there.
    fn cover(&mut self, end: u64) {
        for (number, (file, chunker)) in self.files.iter_mut().enumerate() {
            while chunker.offset() < end {
                let offset = chunker.offset();
                let Ok(Some((chunk, _))) = chunker.next(file) else { break };
                if self.index.insert(chunk.hash, (number, offset, chunk.len)).is_none() {
                    self.order.push_back(chunk.hash);
                }
                if self.order.len() > INDEX_MAX
                    && let Some(oldest) = self.order.pop_front()
                {
                    self.index.remove(&oldest);
                }
            }
        }
    }
}

/// The sender's side of one file: which chunks it has, and which are needed.
pub(crate) struct Outline {
    chunker: Chunker,
    hash: blake3::Hasher,
    /// Chunks that were sent and whose content was not: lengths, by record.
    sent: VecDeque<Vec<u32>>,
    answered: VecDeque<Vec<u32>>,
    whole: bool,
    /// Where the content of the front record begins.
    at: u64,
}

impl Outline {
    pub(crate) fn new(len: u64) -> Self {
        let chunker = Chunker::new(len);
        let hash = blake3::Hasher::new();
        Self { chunker, hash, sent: VecDeque::new(), answered: VecDeque::new(), whole: false, at: 0 }
    }

    /// Records whose content was not sent.
    pub(crate) fn ahead(&self) -> usize {
        self.sent.len()
    }

    pub(crate) fn is_answered(&self) -> bool {
        !self.answered.is_empty()
    }

    /// Everything was cut.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Up to where it is known what is needed.
    pub(crate) fn settled(&self) -> u64 {
        self.at
    }

    pub(crate) fn len(&self) -> u64 {
        self.chunker.offset()
    }

    pub(crate) fn digest(&self) -> [u8; 32] {
        self.hash.finalize().into()
    }

    /// Chunks for the next record; none at the end of the file.
    pub(crate) fn next(&mut self, file: &OwnedFd) -> io::Result<Vec<Chunk>> {
        let mut chunks = Vec::new();
        while chunks.len() < CHUNKS_MAX {
            let Some((chunk, bytes)) = self.chunker.next(file)? else {
                self.whole = true;
                break;
            };
            self.hash.update(bytes);
            chunks.push(chunk);
        }
        if !chunks.is_empty() {
            self.sent.push_back(chunks.iter().map(|c| c.len).collect());
        }
        Ok(chunks)
    }

    /// Takes the answer for the next record that has none.
    pub(crate) fn answer(&mut self, runs: Vec<u32>) {
        // One too many shows as one that does not fit.
        if self.answered.len() <= self.sent.len() {
            self.answered.push_back(runs);
        }
    }

    /// Offsets and lengths of what is needed of the front record, which is then done. `None` if the answer does not fit.
    pub(crate) fn needed(&mut self) -> Option<Vec<(u64, u64)>> {
        let (lens, runs) = (self.sent.pop_front()?, self.answered.pop_front()?);
        let count: u64 = runs.iter().map(|r| u64::from(*r)).sum();
        if count != lens.len() as u64 {
            return None;
        }
        let (mut needed, mut lens) = (Vec::new(), lens.into_iter());
        for (i, run) in runs.into_iter().enumerate() {
            let len: u64 = lens.by_ref().take(run as usize).map(u64::from).sum();
            if i % 2 == 1 && len > 0 {
                needed.push((self.at, len));
            }
            self.at += len;
        }
        Some(needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> OwnedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.into()
    }

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// Plays both ends; returns the file as the receiver has it, and how much of it was needed.
    fn transfer(old: &[u8], new: &[u8]) -> (Vec<u8>, usize) {
        let source = file(new);
        let mut outline = Outline::new(new.len() as u64);
        let mut basis = Basis::new(vec![file(old)]);
        let (mut got, mut sent) = (Vec::new(), 0);
        let mut offset = 0;
        loop {
            let chunks = outline.next(&source).unwrap();
            if chunks.is_empty() {
                break;
            }
            let (pieces, runs) = basis.find(offset, &chunks);
            offset += chunks.iter().map(|c| u64::from(c.len)).sum::<u64>();
            outline.answer(runs);
            let mut data: Vec<u8> = Vec::new();
            for (at, len) in outline.needed().unwrap() {
                data.extend_from_slice(&new[at as usize..(at + len) as usize]);
            }
            sent += data.len();
            let mut data = &data[..];
            for piece in pieces {
                match piece {
                    Piece::Have { offset, len, .. } => {
                        got.extend_from_slice(&old[offset as usize..(offset + len) as usize]);
                    }
                    Piece::Need { len } => {
                        let (front, rest) = data.split_at(len as usize);
                        got.extend_from_slice(front);
                        data = rest;
                    }
                }
            }
            assert!(data.is_empty());
        }
        assert_eq!(outline.len(), new.len() as u64);
        assert_eq!(outline.digest(), *blake3::hash(new).as_bytes());
        (got, sent)
    }

    #[test]
    fn little_more_than_the_change_is_needed() {
        let old = noise(6 << 20, 1);
        let mut changed = old.clone();
        for at in [100_000, 2_000_000, 5_999_999] {
            changed[at] ^= 1;
        }
        let mut inserted = old.clone();
        inserted.splice(1_000_000..1_000_000, noise(777, 2));
        let removed = [&old[..500_000], &old[600_001..]].concat();
        let moved = [&old[3 << 20..], &old[..3 << 20]].concat();
        let longer = [&old[..], &noise(50_000, 3)].concat();
        for (new, needed_max) in [
            (old.clone(), 0),
            (changed, 4 * CHUNK_LENS.2),
            (inserted, 2 * CHUNK_LENS.2),
            (removed, 2 * CHUNK_LENS.2),
            (moved, 3 * CHUNK_LENS.2),
            (old[..4 << 20].to_vec(), CHUNK_LENS.2),
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
