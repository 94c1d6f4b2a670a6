//! Records of the ends of connections, in files that survive however a program ends.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

use super::content::Key;
use super::host::Side;

/// Numbers in a slot. Each connection of a program has one slot.
const FIELDS: usize = 16;
const SLOT_LEN: usize = 8 * FIELDS;

#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    /// Time at which this end accepted the connection or began to connect.
    Begun,
    /// Time at which the connection was established.
    Open,
    /// Number of the pair plus 1, so that 0 means unknown.
    Pair,
    Life,
    Number,
    Seed,
    /// Bytes in all `write` calls that were begun.
    Attempted,
    /// Bytes that `write` has returned as written.
    Written,
    /// Bytes read, all of them correct.
    Read,
    WriteEnd,
    WriteEndAt,
    ReadEnd,
    ReadEndAt,
    /// Time at which this end closed the connection.
    Closed,
}

/// How a direction ended, as seen by one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All was written, or all was read up to the end of the stream.
    Whole,
    /// An end of stream before everything was read.
    Short,
    /// A byte other than the one written at that position.
    Wrong,
    /// More bytes than the connection's behaviour says.
    TooMuch,
    /// The first bytes are not the head of a client.
    Foreign,
    /// No progress for a minute.
    Hang,
    Errno(i32),
}

impl End {
    fn code(self) -> u64 {
        match self {
            Self::Whole => 1,
            Self::Short => 2,
            Self::Wrong => 3,
            Self::TooMuch => 4,
            Self::Foreign => 5,
            Self::Hang => 6,
            Self::Errno(e) => 1000 + u64::try_from(e).unwrap_or(0),
        }
    }

    fn of(code: u64) -> Option<Self> {
        Some(match code {
            0 => return None,
            1 => Self::Whole,
            2 => Self::Short,
            3 => Self::Wrong,
            4 => Self::TooMuch,
            5 => Self::Foreign,
            6 => Self::Hang,
            e => Self::Errno(e.saturating_sub(1000) as i32),
        })
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Short => f.write_str("an end of stream before all bytes"),
            Self::Wrong => f.write_str("a wrong byte"),
            Self::TooMuch => f.write_str("more bytes than were written"),
            Self::Foreign => f.write_str("bytes that no client sends"),
            Self::Hang => f.write_str("a hang"),
            Self::Errno(libc::ECONNRESET) => f.write_str("ECONNRESET"),
            Self::Errno(libc::EPIPE) => f.write_str("EPIPE"),
            Self::Errno(libc::ECONNREFUSED) => f.write_str("ECONNREFUSED"),
            Self::Errno(e) => write!(f, "errno {e}"),
        }
    }
}

impl From<&std::io::Error> for End {
    fn from(e: &std::io::Error) -> Self {
        Self::Errno(e.raw_os_error().unwrap_or(0))
    }
}

/// Time since boot, which is the same for all processes and is never set.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[derive(Debug, Clone)]
pub(super) struct Slot {
    file: Arc<File>,
    number: u64,
}

impl Slot {
    pub(super) fn new(file: &Arc<File>, number: u64) -> Self {
        Self { file: Arc::clone(file), number }
    }

    /// Writes a field by a separate system call, because data in the kernel survives the program.
    pub(super) fn set(&self, field: Field, value: u64) {
        let at = self.number * SLOT_LEN as u64 + 8 * field as u64;
        // Errors are ignored: on a full disk the judge sees that an end is missing.
        let _ = self.file.write_all_at(&value.to_le_bytes(), at);
    }

    pub(super) fn set_key(&self, key: Key) {
        let fields = [(Field::Life, key.life), (Field::Number, key.number), (Field::Seed, key.seed)];
        fields.into_iter().for_each(|(field, value)| self.set(field, value));
        self.set(Field::Pair, key.pair + 1);
    }

    pub(super) fn end_writing(&self, end: End) {
        self.set(Field::WriteEndAt, now_ns());
        self.set(Field::WriteEnd, end.code());
    }

    pub(super) fn end_reading(&self, end: End) {
        self.set(Field::ReadEndAt, now_ns());
        self.set(Field::ReadEnd, end.code());
    }
}

/// The content of a slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entry([u64; FIELDS]);

impl Entry {
    pub(super) fn get(&self, field: Field) -> u64 {
        self.0[field as usize]
    }

    pub(super) fn key(&self) -> Option<Key> {
        let pair = self.get(Field::Pair).checked_sub(1)?;
        Some(Key { pair, life: self.get(Field::Life), number: self.get(Field::Number), seed: self.get(Field::Seed) })
    }

    pub(super) fn write_end(&self) -> Option<End> {
        End::of(self.get(Field::WriteEnd))
    }

    pub(super) fn read_end(&self) -> Option<End> {
        End::of(self.get(Field::ReadEnd))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.get(Field::Closed) > 0
    }

    #[cfg(test)]
    pub(super) fn with(mut self, field: Field, value: u64) -> Self {
        self.0[field as usize] = value;
        self
    }

    #[cfg(test)]
    pub(super) fn with_read_end(self, end: End, at: u64) -> Self {
        self.with(Field::ReadEnd, end.code()).with(Field::ReadEndAt, at)
    }

    #[cfg(test)]
    pub(super) fn with_key(self, key: Key) -> Self {
        let named = self.with(Field::Pair, key.pair + 1).with(Field::Life, key.life);
        named.with(Field::Number, key.number).with(Field::Seed, key.seed)
    }
}

/// Path of the record of one life of a program.
pub(super) fn path(folder: &Path, pair: u64, side: Side, life: u64) -> PathBuf {
    folder.join(format!("{pair}-{}-{life}.record", side.name()))
}

/// Reads all used slots of a file. The program may be writing it, so the file is read twice: an end
/// counts only if the first read had it, so that all fields before it are in the second.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>> {
    let (ends, mut entries) = (read_once(path)?, read_once(path)?);
    for (number, entry) in entries.iter_mut().enumerate() {
        for field in [Field::WriteEnd, Field::ReadEnd, Field::Closed] {
            entry.0[field as usize] = ends.get(number).map_or(0, |e| e.get(field));
        }
    }
    entries.retain(|e| e.get(Field::Begun) > 0);
    Ok(entries)
}

fn read_once(path: &Path) -> Result<Vec<Entry>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        // The program was killed before it created the file.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut entries = Vec::new();
    for slot in bytes.chunks(SLOT_LEN) {
        let mut entry = Entry::default();
        for (field, bytes) in entry.0.iter_mut().zip(slot.chunks_exact(8)) {
            *field = bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        }
        entries.push(entry);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_on_record_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        assert!(read(&path).unwrap().is_empty());
        let file = Arc::new(File::create(&path).unwrap());
        let key = Key { pair: 0, life: 5, number: 2, seed: 9 };
        let slot = Slot::new(&file, 2);
        slot.set_key(key);
        slot.set(Field::Begun, 1);
        slot.end_reading(End::Errno(libc::ECONNRESET));
        slot.end_writing(End::Whole);
        let all = read(&path).unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].key(), Some(key));
        assert_eq!(all[0].read_end(), Some(End::Errno(libc::ECONNRESET)));
        assert_eq!((all[0].write_end(), all[0].is_closed()), (Some(End::Whole), false));
    }
}
