//! Cuts a file into chunks, several sections in parallel, since cutting and hashing take longer
//! than reading.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::{Builder, ScopedJoinHandle};

use fastcdc::v2020::FastCDC;
use narrows::entry::{CHUNK_LEN_MAX, Chunk};
use narrows::stream;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

/// Shortest, mean and longest chunk in bytes. A changed byte costs about one chunk before its
/// pieces are compared, and each chunk costs 10 bytes in the list.
pub(crate) const CHUNK_LENS: (usize, usize, usize) = (2 << 10, 8 << 10, 32 << 10);
const _: () = assert!(CHUNK_LENS.2 <= CHUNK_LEN_MAX as usize);
/// Length of a section in bytes. Its border is not content-defined, so it costs a chunk if
/// something was inserted before it.
pub(super) const SECTION_LEN: usize = 4 << 20;
/// Maximum number of sections in parallel, and thus of buffers.
const THREADS_MAX: usize = 4;

/// A part of the file that is cut independently.
pub(super) struct Section {
    pub(super) bytes: Vec<u8>,
    pub(super) chunks: Vec<Chunk>,
}

/// Cuts one file from its beginning to its end.
pub(super) struct Cutter {
    at: u64,
    limit: u64,
    threads: usize,
}

impl Cutter {
    /// Cuts the first `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self { at: 0, limit, threads: stream::cores().min(THREADS_MAX) }
    }

    /// Offset of the next section.
    pub(super) fn offset(&self) -> u64 {
        self.at
    }

    /// The next sections, in order; none at the end.
    pub(super) fn next(&mut self, file: &OwnedFd) -> io::Result<Vec<Section>> {
        let section = SECTION_LEN as u64;
        let places = (0..self.threads as u64).map(|i| self.at.saturating_add(i * section));
        let places: Vec<_> =
            places.filter(|at| *at < self.limit).map(|at| (at, (self.limit - at).min(section) as usize)).collect();
        let sections = match &places[..] {
            [] => return Ok(Vec::new()),
            [(at, len)] => vec![cut(file, *at, *len)?],
            places => std::thread::scope(|scope| {
                let start = |at: u64, len| Builder::new().spawn_scoped(scope, move || cut(file, at, len)).ok();
                let threads: Vec<_> = places.iter().map(|(at, len)| (start(*at, *len), *at, *len)).collect();
                let failed = || Err(io::Error::other("a thread failed; this is a bug"));
                let result = |(thread, at, len): (Option<ScopedJoinHandle<'_, _>>, _, _)| match thread {
                    Some(thread) => thread.join().unwrap_or_else(|_| failed()),
                    // The thread could not be started.
                    None => cut(file, at, len),
                };
                threads.into_iter().map(result).collect::<io::Result<Vec<_>>>()
            })?,
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
    Ok(Section { bytes, chunks })
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
