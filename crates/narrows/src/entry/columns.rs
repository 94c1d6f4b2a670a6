//! Entries by columns (format.md section 8.4): what many entries have alike stands together, so that it
//! compresses to next to nothing.

use super::{
    Entry, Fields, PATH_LEN_MAX, RECORD_LEN_MAX, kind_number, parser, put_bytes, put_kind_fields, unzigzag, zigzag,
};
use crate::error::Result;
use crate::frame::put_varint;

/// Most bytes of an entry without its attributes, and of the lengths of columns: rest of the path, target, and
/// numbers.
pub(super) const WITHOUT_XATTRS_MAX: usize = 3 * PATH_LEN_MAX;

/// One for each field.
const COLUMNS: usize = 11;
const SHARED: usize = 0;
const REST_LEN: usize = 1;
const REST: usize = 2;
const KIND: usize = 3;
const OF_KIND: usize = 4;
const MODE: usize = 5;
const UID: usize = 6;
const GID: usize = 7;
const SECONDS: usize = 8;
const NANOSECONDS: usize = 9;
const XATTRS: usize = 10;

/// Writes entries by columns, each after the one before it.
#[derive(Debug, Default)]
pub struct EntryColumns {
    columns: [Vec<u8>; COLUMNS],
    path: Vec<u8>,
    mtime: (i64, u32),
}

impl EntryColumns {
    /// The path of the first entry shares bytes with `before`.
    pub fn after(before: &[u8]) -> Self {
        Self { path: before.to_vec(), ..Self::default() }
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// `Corrupt` or `Limit` if the path or the attributes are not allowed. Nothing is appended then.
    pub fn put(&mut self, entry: &Entry) -> Result<()> {
        super::check_path(&entry.path)?;
        let mut xattrs = Vec::new();
        super::put_xattrs(&entry.xattrs, &mut xattrs);
        if xattrs.len() + WITHOUT_XATTRS_MAX > RECORD_LEN_MAX {
            return Err(super::too_many_xattrs());
        }
        let shared = self.path.iter().zip(&entry.path).take_while(|(a, b)| a == b).count();
        let rest = &entry.path[shared..];
        self.columns[REST].extend_from_slice(rest);
        self.columns[KIND].push(kind_number(&entry.kind));
        put_kind_fields(&mut self.columns[OF_KIND], &entry.kind);
        self.columns[XATTRS].append(&mut xattrs);
        let seconds = zigzag(entry.mtime_s.wrapping_sub(self.mtime.0));
        let nanoseconds = zigzag(i64::from(entry.mtime_ns) - i64::from(self.mtime.1));
        for (column, value) in [
            (SHARED, shared as u64),
            (REST_LEN, rest.len() as u64),
            (MODE, entry.mode.into()),
            (UID, entry.uid.into()),
            (GID, entry.gid.into()),
            (SECONDS, seconds),
            (NANOSECONDS, nanoseconds),
        ] {
            put_varint(&mut self.columns[column], value);
        }
        self.path.clone_from(&entry.path);
        self.mtime = (entry.mtime_s, entry.mtime_ns);
        Ok(())
    }

    /// Bytes that [`EntryColumns::finish`] appends, lengths of columns aside.
    pub fn len(&self) -> usize {
        self.columns.iter().map(Vec::len).sum()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.columns[KIND].is_empty()
    }

    /// Appends the columns.
    pub fn finish(self, out: &mut Vec<u8>) {
        self.columns.iter().for_each(|column| put_bytes(out, column));
    }
}

/// Reads entries from columns, one by one: few bytes may be many long paths.
#[derive(Debug)]
pub struct EntryRows<'a> {
    columns: [Fields<'a>; COLUMNS],
    path: Vec<u8>,
    mtime: (i64, u32),
}

impl<'a> EntryRows<'a> {
    /// Takes the columns from the front of `bytes`. The path of the first entry shares bytes with `before`.
    ///
    /// # Errors
    /// `Corrupt` if they break off.
    pub fn take(bytes: &mut &'a [u8], before: &[u8]) -> Result<Self> {
        let mut f = Fields(bytes);
        let mut columns = [const { Fields(&[]) }; COLUMNS];
        for column in &mut columns {
            *column = Fields(f.bytes()?);
        }
        *bytes = f.0;
        Ok(Self { columns, path: before.to_vec(), mtime: (0, 0) })
    }

    /// The next entry; `None` after the last one. A hard link may refer to entries below `known`.
    ///
    /// # Errors
    /// `Corrupt`, `Limit` or `Unsupported` if the fields violate the format.
    pub fn next(&mut self, known: u64) -> Result<Option<Entry>> {
        let c = &mut self.columns;
        if c[KIND].0.is_empty() {
            return c.iter().try_for_each(Fields::end).map(|()| None);
        }
        let (shared, rest_len) = (c[SHARED].number()?, c[REST_LEN].number()?);
        parser::path(shared, c[REST].take(rest_len)?, &mut self.path)?;
        let kind = c[KIND].byte()?;
        let kind = parser::kind(kind, &mut c[OF_KIND], known)?;
        let [mode, uid, gid] = [c[MODE].number32()?, c[UID].number32()?, c[GID].number32()?];
        let seconds = self.mtime.0.wrapping_add(unzigzag(c[SECONDS].number()?));
        let nanoseconds = i64::from(self.mtime.1).checked_add(unzigzag(c[NANOSECONDS].number()?));
        let nanoseconds = nanoseconds.and_then(|ns| u32::try_from(ns).ok()).ok_or_else(parser::out_of_range)?;
        parser::check_range(mode, nanoseconds)?;
        self.mtime = (seconds, nanoseconds);
        let xattrs = parser::xattrs(&mut c[XATTRS])?;
        let path = self.path.clone();
        Ok(Some(Entry { path, kind, mode, uid, gid, mtime_s: seconds, mtime_ns: nanoseconds, xattrs }))
    }

    /// The path of the last entry.
    pub(super) fn into_path(self) -> Vec<u8> {
        self.path
    }
}

#[cfg(test)]
mod tests {
    use super::super::EntryKind;
    use super::*;
    use crate::error::Error;

    fn entries() -> Vec<Entry> {
        let entry = |path: &str, kind, mtime_s, mtime_ns| Entry {
            path: path.into(),
            kind,
            mode: 0o644,
            uid: 1,
            gid: u32::MAX,
            mtime_s,
            mtime_ns,
            xattrs: vec![],
        };
        let file = |len| EntryKind::File { len, linked: false };
        vec![
            entry("", EntryKind::Folder, 0, 0),
            entry("a", file(0), i64::MIN, 999_999_999),
            Entry { xattrs: vec![(b"user.x".to_vec(), vec![0; 70])], ..entry("a/b", file(u64::MAX), i64::MAX, 0) },
            entry("a/bc", EntryKind::HardLink { of: 2 }, -1, 1),
            entry("link", EntryKind::Symlink { target: b"../any".to_vec() }, 1, 7),
            entry("null", EntryKind::CharDevice { major: 1, minor: 3 }, 1, 7),
        ]
    }

    fn bytes() -> Vec<u8> {
        let (mut columns, mut out) = (EntryColumns::after(b"a/c"), Vec::new());
        entries().iter().for_each(|entry| columns.put(entry).unwrap());
        columns.finish(&mut out);
        out
    }

    fn read(mut bytes: &[u8]) -> Result<Vec<Entry>> {
        let mut rows = EntryRows::take(&mut bytes, b"a/c")?;
        let mut all = Vec::new();
        while let Some(entry) = rows.next(u64::MAX)? {
            all.push(entry);
        }
        if bytes.is_empty() { Ok(all) } else { Err(Error::corrupt("more")) }
    }

    #[test]
    fn entries_come_back_from_columns() {
        assert_eq!(read(&bytes()).unwrap(), entries());
        assert!(read(&[0; COLUMNS]).unwrap().is_empty());
    }

    #[test]
    fn columns_of_other_lengths_are_refused_and_no_byte_makes_a_panic() {
        let good = bytes();
        for at in 0..good.len() {
            assert!(read(&good[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(read(&bad).map_or(true, |all| all != entries()), "byte {at}");
            }
        }
        for short in 0..COLUMNS {
            let mut columns = EntryColumns::after(b"a/c");
            entries().iter().for_each(|entry| columns.put(entry).unwrap());
            columns.columns[short].push(0);
            let mut out = Vec::new();
            columns.finish(&mut out);
            assert!(read(&out).is_err(), "column {short}");
        }
    }

    #[test]
    fn attributes_that_fit_no_record_are_refused_and_leave_nothing() {
        let mut columns = EntryColumns::default();
        let long = Entry { xattrs: vec![(b"user.x".to_vec(), vec![0; RECORD_LEN_MAX])], ..entries().remove(1) };
        assert!(columns.put(&long).is_err() && columns.is_empty());
        assert_eq!(columns.len(), 0);
    }
}
