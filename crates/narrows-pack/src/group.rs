//! Groups of small files, whose contents are under one hash.

use std::collections::VecDeque;
use std::sync::Arc;

use narrows::entry::{Group, RECORD_LEN_MAX};
use narrows::frame::varint;
use narrows::{Error, Result};

/// Groups that are kept, 256 KiB each at most: files of a folder with a few suffixes are in so many.
const HELD_MAX: usize = 16;
/// Longest length of a record.
const LEN_MAX: usize = 4;

/// A group that was compared with its hash.
#[derive(Debug)]
pub(crate) struct Grouped {
    /// Raw offset of its record.
    at: u64,
    /// Number, raw offset, and place in the body of each file, by number.
    files: Vec<(u64, u64, std::ops::Range<usize>)>,
    body: Vec<u8>,
}

impl Grouped {
    /// Reads the record at raw offset `at`, which begins with `head`. `read` reads raw bytes.
    pub(crate) fn read(at: u64, head: &[u8], read: impl FnOnce(u64, usize) -> Result<Vec<u8>>) -> Result<Self> {
        let bad = || Error::corrupt("the directory leads to a group that is none");
        let (len, header) = varint(head.get(1..).unwrap_or_default(), LEN_MAX)?.ok_or_else(bad)?;
        let len = usize::try_from(len).ok().filter(|len| *len <= RECORD_LEN_MAX).ok_or_else(bad)?;
        let begin = at + 1 + header as u64;
        let body = read(begin, len)?;
        let group = Group::parse(&body)?;
        let mut files: Vec<_> = group.files().map(|(id, at, len)| (id, begin + at as u64, at..at + len)).collect();
        files.sort_by_key(|(id, ..)| *id);
        Ok(Self { at, files, body })
    }

    /// Raw offset and content of the file with this number.
    pub(crate) fn content(&self, id: u64) -> Option<(u64, &[u8])> {
        let (_, raw, place) = &self.files[self.files.binary_search_by_key(&id, |(id, ..)| *id).ok()?];
        Some((*raw, &self.body[place.clone()]))
    }
}

/// Groups that were read last.
#[derive(Default)]
pub(crate) struct Groups(VecDeque<Arc<Grouped>>);

impl Groups {
    /// The group at this raw offset.
    pub(crate) fn find(&mut self, at: u64) -> Option<Arc<Grouped>> {
        let i = self.0.iter().position(|group| group.at == at)?;
        let group = self.0.remove(i)?;
        self.0.push_back(Arc::clone(&group));
        Some(group)
    }

    pub(crate) fn put(&mut self, group: &Arc<Grouped>) {
        if self.0.len() == HELD_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Arc::clone(group));
    }
}
