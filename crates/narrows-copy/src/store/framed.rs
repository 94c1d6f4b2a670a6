//! Storing content that comes as frames (format.md section 18): as it came, or decoded.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;

use narrows::entry::{Answer, Entry, EntryKind, KnownFrame, SUMS_MAX};
use narrows::frame::SUMS_LOG;
use narrows_host::means::share_of_descriptors;
use rustix::fs::{Mode, OFlags};
use xxhash_rust::xxh3::xxh3_64;

use super::content::{Content, OpenFile};
use super::session::Session;
use crate::delta::{DELTA_MIN, read_at};
use crate::frames::{Decoder, Form, KnownFrames, Reader, SUFFIX, into_io, totals};

/// Frames of shorter files are not looked for: they are sent again within a round trip.
pub(super) const RESUMED_MIN: u64 = 64 << 10;
/// Files of which frames are known at a time; each has two descriptors. Our senders ask about 16.
const KNOWN_MAX: usize = 64;
/// The same as a divisor of the descriptors of this process, for a low limit.
const KNOWN_SHARE: usize = 16;
/// Most bytes of a file that are held to be written at once: a block of a small file with all around it.
/// Less than [`RESUMED_MIN`], so nothing that would be kept is held.
const HELD_MAX: usize = 16 << 10;
const _: () = assert!((HELD_MAX as u64) < RESUMED_MIN);
/// Length of a stretch of a sum.
const STRETCH: usize = 1 << SUMS_LOG;
/// Most sums of one answer: nothing else is done while they are made.
const SUMS_AT_ONCE: usize = 256;
const _: () = assert!(SUMS_AT_ONCE <= SUMS_MAX);

/// How the content of a file is taken.
pub(super) enum Framed {
    /// It is stored as it came.
    AsItCame(Box<Reader>),
    /// It is decoded.
    Decoded(Box<Decoder>),
}

impl Framed {
    fn reader(&mut self) -> &mut Reader {
        match self {
            Self::AsItCame(reader) => reader,
            Self::Decoded(decoder) => decoder.reader(),
        }
    }
}

/// What is here of a file whose sender asked.
pub(super) enum Here {
    Frames(KnownFrames),
    Raw(OwnedFd),
}

impl Here {
    /// The files that it lies in.
    pub(super) fn files(&self) -> Vec<&OwnedFd> {
        match self {
            Self::Frames(known) => known.files().collect(),
            Self::Raw(file) => vec![file],
        }
    }
}

/// Gives an entry the name under which a file is stored as it came.
pub(super) fn rename(entry: &mut Entry, form: Form) {
    let is_file = matches!(entry.kind, EntryKind::File { .. } | EntryKind::Stream | EntryKind::HardLink { .. });
    if form == Form::AsTheyCame && is_file && !entry.path.is_empty() {
        entry.path.extend_from_slice(SUFFIX);
    }
}

impl OpenFile {
    /// Takes content as frames.
    pub(super) fn write_framed(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(mut framed) = self.framed.take() else { return Ok(()) };
        let result = match &mut framed {
            Framed::AsItCame(reader) => {
                reader.push(bytes, |_| Ok(())).map_err(into_io).and_then(|()| self.append_frames(bytes))
            }
            Framed::Decoded(decoder) => decoder.push(bytes, |raw| self.append_or_skip(raw)),
        };
        let too_long = result.is_ok() && framed.reader().raw_len() > self.announced();
        self.framed = Some(framed);
        if too_long { Err(io::Error::other("more data arrived than was announced")) } else { result }
    }

    /// Adds bytes of a stored file. A short one is written at once: its preface, block and end come one
    /// by one.
    fn append_frames(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.at == 0 && self.held.len() + bytes.len() <= HELD_MAX {
            self.held.extend_from_slice(bytes);
            return Ok(());
        }
        self.write_held()?;
        self.append_plain(bytes)
    }

    /// Writes what is held.
    pub(super) fn write_held(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        self.append_plain(&held)
    }

    /// Takes the next `len` raw bytes from what is here.
    pub(super) fn have(&mut self, len: u64) -> io::Result<()> {
        let wrong = || io::Error::other("it refers to content that is not here; copy it again");
        let (Some(mut framed), Some(here)) = (self.framed.take(), self.here.take()) else { return Err(wrong()) };
        let reader = framed.reader();
        let fits =
            reader.is_between_frames() && reader.raw_len().checked_add(len).is_some_and(|end| end <= self.announced());
        let result = match (&mut framed, &here) {
            _ if !fits => Err(wrong()),
            (Framed::AsItCame(reader), Here::Frames(known)) => known.take(reader.raw_len(), len, |frame| {
                reader.push(frame, |_| Ok(())).map_err(into_io)?;
                self.append_frames(frame)
            }),
            (Framed::Decoded(decoder), Here::Raw(file)) => {
                decoder.reader().leave_out(len);
                self.has_copied = true;
                self.copy_raw(file, len)
            }
            _ => Err(wrong()),
        };
        (self.framed, self.here) = (Some(framed), Some(here));
        result
    }

    fn copy_raw(&mut self, file: &OwnedFd, mut len: u64) -> io::Result<()> {
        let mut buffer = vec![0; len.min(STRETCH as u64) as usize];
        while len > 0 {
            let want = len.min(buffer.len() as u64) as usize;
            let n = read_at(file, &mut buffer[..want], self.at)?;
            if n == 0 {
                return Err(io::Error::other("the earlier version changed meanwhile; copy it again"));
            }
            self.append_or_skip(&buffer[..n])?;
            len -= n as u64;
        }
        Ok(())
    }

    /// Compares totals once all has come.
    pub(super) fn complete_framed(&mut self) -> io::Result<()> {
        let Some(mut framed) = self.framed.take() else { return Ok(()) };
        let result = self.compare_framed(framed.reader());
        self.framed = Some(framed);
        result
    }

    fn compare_framed(&mut self, reader: &Reader) -> io::Result<()> {
        reader.finish().map_err(into_io)?;
        let whole = match self.entry.kind {
            EntryKind::File { len, .. } => reader.raw_len() == len,
            _ => true,
        };
        if !whole {
            return Err(io::Error::other("its length differs from the announced one"));
        }
        let (log, sums) = reader.sums();
        if self.has_copied && (log != SUMS_LOG || !self.has_sums(sums)?) {
            self.is_other = true;
            return Err(io::Error::other("its content is not what was read; copy it again"));
        }
        Ok(())
    }

    fn has_sums(&self, sums: &[u64]) -> io::Result<bool> {
        // A hole at the end has no bytes yet.
        rustix::fs::ftruncate(&self.partial.file, self.at)?;
        let mut buffer = vec![0; STRETCH];
        for (i, sum) in sums.iter().enumerate() {
            let n = read_at(&self.partial.file, &mut buffer, (i * STRETCH) as u64)?;
            if xxh3_64(&buffer[..n]) != *sum {
                return Ok(false);
            }
        }
        Ok(sums.len() as u64 == self.at.div_ceil(STRETCH as u64))
    }

    fn announced(&self) -> u64 {
        if let EntryKind::File { len, .. } = self.entry.kind { len } else { u64::MAX }
    }
}

impl Content {
    /// How the content of the next file is taken.
    pub(super) fn framed(&mut self, session: &Session) -> Option<Framed> {
        match session.options.form {
            Form::Raw => None,
            Form::AsTheyCame => Some(Framed::AsItCame(Box::new(Reader::new(false)))),
            Form::Decoded => {
                let mut decoder = self.decoder.take().unwrap_or_else(|| Box::new(Decoder::new()));
                decoder.begin();
                Some(Framed::Decoded(decoder))
            }
        }
    }

    /// Answers what is here of a file.
    pub(super) fn asked(&mut self, id: u64, from: u64, session: &mut Session) {
        let answer = self.known(id, from, session);
        session.report.answers.put(&answer.unwrap_or(Answer::Frames { id, frames: Vec::<KnownFrame>::new() }));
        // The sender waits for it.
        session.report.answers.send();
    }

    fn known(&mut self, id: u64, from: u64, session: &mut Session) -> Option<Answer> {
        let form = session.options.form;
        if form == Form::Raw || !self.pending.contains_key(&id) {
            return None;
        }
        if !self.here.contains_key(&id) {
            if self.here.len() >= share_of_descriptors(KNOWN_MAX, KNOWN_SHARE) {
                return None;
            }
            let files = self.earlier_files(id, session)?;
            let here = match form {
                Form::AsTheyCame => {
                    let memory = session.room.reserve(KnownFrames::len_max(&files))?;
                    Here::Frames(KnownFrames::new(files, memory))
                }
                _ => Here::Raw(files.into_iter().next()?),
            };
            self.here.insert(id, here);
        }
        Some(match self.here.get_mut(&id)? {
            Here::Frames(known) => Answer::Frames { id, frames: known.tell(from) },
            Here::Raw(file) => Answer::Sums { id, sums: sums(file, from).ok()? },
        })
    }
}

impl Session {
    /// Whether an earlier state of a file with `stored` bytes is worth asking about.
    pub(super) fn is_resumable(&self, stored: i64) -> bool {
        let least = if self.options.form == Form::AsTheyCame { RESUMED_MIN } else { DELTA_MIN };
        stored as u64 >= least
    }
}

/// Raw length of a file that is stored as it came.
pub(super) fn stored_len(folder: &OwnedFd, name: &OsStr) -> Option<u64> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty()).ok()?;
    totals(&file).ok().map(|totals| totals.raw_total)
}

/// The sums of a file from number `from` on, for one answer.
fn sums(file: &OwnedFd, from: u64) -> io::Result<Vec<u64>> {
    let (mut sums, mut buffer) = (Vec::new(), vec![0; STRETCH]);
    for i in 0..SUMS_AT_ONCE as u64 {
        let at = from.checked_add(i).and_then(|at| at.checked_mul(STRETCH as u64)).unwrap_or(u64::MAX >> 1);
        let n = read_at(file, &mut buffer, at)?;
        if n == 0 {
            break;
        }
        sums.push(xxh3_64(&buffer[..n]));
        if n < buffer.len() {
            break;
        }
    }
    Ok(sums)
}
