//! Cuts a file into chunks, several sections in parallel, since cutting and hashing take longer
//! than reading.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::thread::{Builder, ScopedJoinHandle};

use fastcdc::v2020::FastCDC;
use narrows::entry::{CHUNK_LEN_MAX, Chunk};
use narrows::stream;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::holes::next_data;

/// Shortest, mean and longest chunk in bytes. A changed byte costs about one chunk before its
/// pieces are compared, and each chunk costs 10 bytes in the list.
pub(crate) const CHUNK_LENS: (usize, usize, usize) = (2 << 10, 8 << 10, 32 << 10);
const _: () = assert!(CHUNK_LENS.2 <= CHUNK_LEN_MAX as usize);
/// Length of a section in bytes. Its border is not content-defined, so it costs a chunk if
/// something was inserted before it.
pub(super) const SECTION_LEN: usize = 4 << 20;
/// Maximum number of sections in parallel, and thus of buffers.
const THREADS_MAX: usize = 4;

/// Bytes up to which one thread cuts faster than several that have to be started, and data ranges between
/// holes that are cut at once.
const ALONE_LEN: usize = 1 << 20;
const RANGES_MAX: usize = 1024;

/// A part of the file that is cut independently.
pub(super) struct Section {
    pub(super) at: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) chunks: Vec<Chunk>,
}

/// Cuts one file from its beginning to its end.
pub(super) struct Cutter {
    at: u64,
    limit: u64,
    threads: usize,
    /// The range of data that was found last, if holes are left out.
    data: Option<Range<u64>>,
}

impl Cutter {
    /// Cuts the first `limit` bytes. If they are `sparse`, holes are left out: no section has any of them.
    pub(super) fn new(limit: u64, sparse: bool) -> Self {
        Self { at: 0, limit, threads: stream::cores().min(THREADS_MAX), data: sparse.then_some(0..0) }
    }

    /// Offset of the next section, or of a hole before it.
    pub(super) fn offset(&self) -> u64 {
        self.at
    }

    /// Cuts nothing before that offset any more.
    pub(super) fn skip_to(&mut self, at: u64) {
        self.at = self.at.max(at.min(self.limit));
    }

    /// Begin and length of the next sections; none at the end.
    fn places(&mut self, file: &OwnedFd) -> io::Result<Vec<(u64, usize)>> {
        let (mut places, mut at, mut room) = (Vec::new(), self.at, self.threads * SECTION_LEN);
        while at < self.limit && room > 0 && places.len() < RANGES_MAX {
            let mut end = self.limit;
            if let Some(data) = &mut self.data {
                if at >= data.end {
                    let (begin, end) = next_data(file, at, self.limit)?;
                    *data = begin..end;
                }
                (at, end) = (at.max(data.start), data.end);
                if at >= end {
                    break;
                }
            }
            let len = (end - at).min(SECTION_LEN.min(room) as u64) as usize;
            places.push((at, len));
            (at, room) = (at + len as u64, room - len);
        }
        if places.is_empty() {
            // What is left is a hole.
            self.at = at.max(self.at).min(self.limit);
        }
        Ok(places)
    }

    /// The next sections, in order; none at the end.
    pub(super) fn next(&mut self, file: &OwnedFd) -> io::Result<Vec<Section>> {
        let places = self.places(file)?;
        let groups = match places.iter().map(|(_, len)| len).sum::<usize>() {
            0..=ALONE_LEN => 1,
            _ => self.threads,
        };
        let groups: Vec<_> = places.chunks(places.len().div_ceil(groups).max(1)).collect();
        let sections = match &groups[..] {
            [] => return Ok(Vec::new()),
            [places] => cut_all(file, places)?,
            groups => std::thread::scope(|scope| {
                let start = |places| Builder::new().spawn_scoped(scope, move || cut_all(file, places)).ok();
                let threads: Vec<_> = groups.iter().map(|places| (start(*places), *places)).collect();
                let failed = || Err(io::Error::other("a thread failed; this is a bug"));
                let result = |(thread, places): (Option<ScopedJoinHandle<'_, _>>, _)| match thread {
                    Some(thread) => thread.join().unwrap_or_else(|_| failed()),
                    // The thread could not be started.
                    None => cut_all(file, places),
                };
                threads.into_iter().map(result).collect::<io::Result<Vec<_>>>()
            })?
            .into_iter()
            .flatten()
            .collect(),
        };
        let mut whole = Vec::new();
        for (section, (at, len)) in sections.into_iter().zip(&places) {
            let short = section.bytes.len() < *len;
            self.at = at + section.bytes.len() as u64;
            if short {
                // The file ends here.
                self.limit = self.at;
            }
            if !section.bytes.is_empty() {
                whole.push(section);
            }
            if short {
                break;
            }
        }
        Ok(whole)
    }
}

fn cut_all(file: &OwnedFd, places: &[(u64, usize)]) -> io::Result<Vec<Section>> {
    places.iter().map(|(at, len)| cut(file, *at, *len)).collect()
}

fn cut(file: &OwnedFd, at: u64, len: usize) -> io::Result<Section> {
    let mut bytes = vec![0; len];
    let read = read_at(file, &mut bytes, at)?;
    bytes.truncate(read);
    let mut chunks = Vec::with_capacity(bytes.len() / CHUNK_LENS.1 + 1);
    if !bytes.is_empty() {
        for chunk in FastCDC::new(&bytes, CHUNK_LENS.0, CHUNK_LENS.1, CHUNK_LENS.2) {
            let content = &bytes[chunk.offset..chunk.offset + chunk.length];
            chunks.push(Chunk { len: chunk.length as u32, hash: xxh3_64(content) });
        }
    }
    Ok(Section { at, bytes, chunks })
}

/// Reads until the buffer is full or the file ends; returns the number of bytes read.
pub(crate) fn read_at(file: &OwnedFd, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(file, &mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(filled)
}
