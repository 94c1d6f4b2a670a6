//! The storing end of `cp SRC -`: writes the content of one file to an open output as it arrives,
//! in order, after every block is verified.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use narrows::entry::{Answer, DIGEST_LEN, EndState, Entry, EntryKind, Record, RecordParser, Wanted};
use narrows::stream::Notes;

use super::shown;

/// Zeros for the content of holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Result of the copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// The file is complete, and its content is what the sender read.
    pub whole: bool,
    /// The file changed while it was read.
    pub changed: bool,
    /// Number of failures.
    pub failed: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// The sink for the engine. A clone of it is kept by the caller of [`Outlet::finish`].
#[derive(Clone)]
pub struct Outlet(Arc<Mutex<State>>);

struct State {
    parser: RecordParser,
    file: File,
}

struct File {
    output: Box<dyn Write + Send>,
    notes: Notes,
    on_failure: Box<dyn Fn(&str) + Send>,
    /// Number of entries received.
    entries: u64,
    /// Name of the output, for messages.
    name: String,
    /// The sender requested the copy: a file of unknown length may come, and failures are reported
    /// to it.
    asked_by_sender: bool,
    /// Number and length of the requested file; the length is `None` if unknown.
    asked: Option<(u64, Option<u64>)>,
    /// The content of the requested file is being received.
    open: bool,
    hash: blake3::Hasher,
    written: Written,
}

impl Outlet {
    /// Writes to `output`; `on_failure` is called with every failure.
    pub fn new(output: impl Write + Send + 'static, notes: Notes, on_failure: impl Fn(&str) + Send + 'static) -> Self {
        let file = File {
            output: Box::new(output),
            notes,
            on_failure: Box::new(on_failure),
            entries: 0,
            name: "stdout".into(),
            asked_by_sender: false,
            asked: None,
            open: false,
            hash: blake3::Hasher::new(),
            written: Written::default(),
        };
        Self(Arc::new(Mutex::new(State { parser: RecordParser::default(), file })))
    }

    /// Sets the name of the output, which is `stdout` by default.
    pub fn named(self, name: &str) -> Self {
        name.clone_into(&mut self.lock().file.name);
        self
    }

    /// Declares that the sender requested the copy: the length may be unknown, and failures are
    /// reported to it.
    pub fn for_sender(self) -> Self {
        self.lock().file.asked_by_sender = true;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the copy after all data was received.
    ///
    /// # Errors
    /// The entry stream is incomplete.
    pub fn finish(&self) -> io::Result<()> {
        let state = &mut *self.lock();
        if !state.parser.is_finished() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the copy ended early"));
        }
        let written = state.file.written;
        if !written.whole && written.failed == 0 {
            state.file.failed("the file did not arrive");
        }
        Ok(())
    }

    /// The result so far.
    pub fn written(&self) -> Written {
        self.lock().file.written
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let State { parser, file } = &mut *self.lock();
        let mut output = Ok(());
        let parsed = parser.push(bytes, |record| {
            output = file.take(record);
            // This error only ends the parsing; the error of the output is returned.
            if output.is_err() { Err(narrows::Error::misuse("the output failed")) } else { Ok(()) }
        });
        output?;
        parsed.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().file.output.flush()
    }
}

impl File {
    fn take(&mut self, record: Record<'_>) -> io::Result<()> {
        match record {
            Record::Entry(entry) => self.announced(&entry),
            // Content that was not requested is ignored.
            Record::Begin { id } => self.open = self.asked.is_some_and(|(asked, _)| asked == id),
            Record::Data(bytes) => return self.write(bytes),
            Record::Hole(len) => return self.hole(len),
            Record::Repeat { .. } | Record::Have { .. } => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the sender refers to content that cannot be read again",
                ));
            }
            Record::End { state, digest } => self.end(state, &digest),
            // The text is from the peer and may contain anything.
            Record::Failed { text } | Record::Refused { text, .. } => self.failed(&shown(text.as_bytes())),
            Record::Chunks { .. }
            | Record::Pieces { .. }
            | Record::Ask { .. }
            | Record::Total { .. }
            | Record::Finish { .. } => {}
        }
        Ok(())
    }

    fn failed(&mut self, text: &str) {
        self.written.failed += 1;
        (self.on_failure)(text);
    }

    fn announced(&mut self, entry: &Entry) {
        let id = self.entries;
        self.entries += 1;
        match entry.kind {
            EntryKind::File { len, .. } if self.asked.is_none() => {
                self.asked = Some((id, Some(len)));
                self.answer(Wanted::Whole);
            }
            EntryKind::Stream if self.asked.is_none() && self.asked_by_sender => {
                self.asked = Some((id, None));
                self.answer(Wanted::Whole);
            }
            _ => {
                if entry.kind.has_content() {
                    self.answer(Wanted::Refused);
                }
                let what = if self.asked.is_some() { "only one file was requested" } else { "it is not a file" };
                let text = format!("cannot write {} to {}: {what}", shown(&entry.path), self.name);
                self.failed(&text);
                if self.asked_by_sender {
                    self.tell(&Answer::Failed { id, text });
                }
            }
        }
    }

    fn answer(&self, wanted: Wanted) {
        self.tell(&Answer::Files { count: 1, wanted });
    }

    fn tell(&self, answer: &Answer) {
        let mut note = Vec::new();
        answer.put(&mut note);
        self.notes.send(&note);
    }

    // --- content ---

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.open || !self.fits(bytes.len() as u64) {
            return Ok(());
        }
        self.hash.update(bytes);
        self.written.bytes += bytes.len() as u64;
        self.output.write_all(bytes)
    }

    fn hole(&mut self, mut len: u64) -> io::Result<()> {
        if !self.open || !self.fits(len) {
            return Ok(());
        }
        while len > 0 {
            let piece = len.min(ZEROS.len() as u64);
            self.output.write_all(&ZEROS[..piece as usize])?;
            self.written.bytes += piece;
            len -= piece;
        }
        Ok(())
    }

    /// Whether `len` more bytes fit into the announced length; if not, writing stops and the file
    /// fails.
    fn fits(&mut self, len: u64) -> bool {
        let announced = self.asked.map_or(0, |(_, len)| len.unwrap_or(u64::MAX));
        let fits = len <= announced - self.written.bytes;
        if !fits {
            self.open = false;
            self.failed("more data arrived than was announced; do not use the output");
        }
        fits
    }

    fn end(&mut self, state: EndState, digest: &[u8; DIGEST_LEN]) {
        // Only the first end of the requested file counts.
        if !std::mem::take(&mut self.open) || self.written.whole {
            return;
        }
        let (id, len) = self.asked.unwrap_or_default();
        let len = len.unwrap_or(self.written.bytes);
        let wrong = if state == EndState::Partial {
            // The sender reports the reason.
            return;
        } else if self.written.bytes != len {
            "its length differs from the announced one"
        } else if self.hash.finalize().as_bytes() != digest {
            "its content is not what was read"
        } else {
            self.written.whole = true;
            self.written.changed = state == EndState::Changed;
            if self.written.changed {
                (self.on_failure)("the file changed while it was read");
            }
            return;
        };
        let text = format!("{wrong}; do not use the output");
        self.failed(&text);
        self.tell(&Answer::NotStored { id, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narrows::entry::RecordWriter;

    fn entry(kind: EntryKind) -> Entry {
        Entry { path: b"f".to_vec(), kind, mode: 0, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() }
    }

    #[derive(Clone, Default)]
    struct Heap(Arc<Mutex<Vec<u8>>>);

    impl Write for Heap {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The output and the result for the records of a file of `len` bytes with `content` and a
    /// hole.
    fn run(len: u64, digest_of: &[u8], state: EndState, content: &[&[u8]], hole: u64) -> (Vec<u8>, Written) {
        let writer = &mut RecordWriter::default();
        let mut records = Vec::new();
        let id = writer.entry(&entry(EntryKind::File { len, linked: false }), &mut records).unwrap();
        writer.begin(id, &mut records);
        content.iter().for_each(|bytes| writer.data(bytes, &mut records));
        if hole > 0 {
            writer.hole(hole, &mut records);
        }
        writer.end(state, blake3::hash(digest_of).as_bytes(), &mut records);
        writer.finish(&mut records);
        let heap = Heap::default();
        let mut outlet = Outlet::new(heap.clone(), Notes::default(), |_| ());
        records.chunks(7).for_each(|piece| outlet.write_all(piece).unwrap());
        outlet.finish().unwrap();
        let out = heap.0.lock().unwrap().clone();
        (out, outlet.written())
    }

    #[test]
    fn only_a_file_that_is_what_was_read_counts_as_whole() {
        let whole = Written { whole: true, changed: false, failed: 0, bytes: 6 };
        assert_eq!(run(6, b"abcd", EndState::Whole, &[b"ab", b"cd"], 2), (b"abcd\0\0".to_vec(), whole));
        let (_, changed) = run(6, b"abcd", EndState::Changed, &[b"ab", b"cd"], 2);
        assert_eq!(changed, Written { changed: true, ..whole });
        for (len, digest_of, state, hole) in [
            (6, &b"abcX"[..], EndState::Whole, 2),
            (7, b"abcd", EndState::Whole, 2),
            (5, b"abcd", EndState::Whole, 2),
            (3, b"abcd", EndState::Whole, 0),
            (6, b"abcd", EndState::Partial, 2),
            (6, b"abcd", EndState::Whole, u64::MAX),
        ] {
            let (out, written) = run(len, digest_of, state, &[b"ab", b"cd"], hole);
            assert!(!written.whole && written.failed > 0, "{len} {state:?} {hole}: {written:?}");
            assert!(out.len() as u64 <= len && written.bytes == out.len() as u64, "{len} {hole}");
        }
    }

    #[test]
    fn what_is_no_file_and_what_comes_beside_it_is_refused() {
        for kind in
            [EntryKind::Folder, EntryKind::Fifo, EntryKind::Stream, EntryKind::Symlink { target: b"x".to_vec() }]
        {
            let writer = &mut RecordWriter::default();
            let mut records = Vec::new();
            writer.entry(&entry(kind.clone()), &mut records).unwrap();
            writer.begin(0, &mut records);
            writer.data(b"secret", &mut records);
            writer.end(EndState::Whole, blake3::hash(b"secret").as_bytes(), &mut records);
            writer.finish(&mut records);
            let heap = Heap::default();
            let mut outlet = Outlet::new(heap.clone(), Notes::default(), |_| ());
            outlet.write_all(&records).unwrap();
            outlet.finish().unwrap();
            assert_eq!((heap.0.lock().unwrap().len(), outlet.written().failed), (0, 1), "{kind:?}");
        }
        // Nothing at all.
        let mut records = Vec::new();
        RecordWriter::default().finish(&mut records);
        let mut outlet = Outlet::new(Heap::default(), Notes::default(), |_| ());
        assert!(outlet.finish().is_err(), "the end must come");
        outlet.write_all(&records).unwrap();
        outlet.finish().unwrap();
        assert_eq!(outlet.written().failed, 1);
    }
}
