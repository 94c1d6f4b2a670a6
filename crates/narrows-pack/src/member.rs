//! The content of a member.

use std::io::{self, Read};

use std::sync::Arc;

use narrows::entry::{DIGEST_LEN, EntryKind, GROUP};
use narrows::{Error, Result};
use narrows_file::ReadAt;

use crate::group::Grouped;
use crate::item::{Content, END_LEN, Extent, Item, List, parse_extents};
use crate::pack::Pack;

/// Kind and length of an end record, before its body.
const END_HEADER: [u8; 2] = [5, END_LEN as u8 - 2];

/// Where the content of a file is.
#[derive(Debug, Clone)]
pub struct Extents {
    /// Where each ends in the file, and the extent.
    extents: Vec<(u64, Extent)>,
    len: u64,
    end_at: u64,
    /// Number of the entry.
    id: u64,
}

impl Extents {
    /// Those of an item, which is a file.
    ///
    /// # Errors
    /// The source fails, the pack is damaged, or the item is no file.
    pub fn of<R: ReadAt>(pack: &Pack<R>, item: &Item) -> Result<Self> {
        let (Content::File { end_at, list }, EntryKind::File { len, .. }) = (&item.content, &item.entry.kind) else {
            return Err(Error::misuse("it has no content"));
        };
        let stored;
        let list = match list {
            List::Here(list) => list,
            List::There { at, len } => {
                stored = pack.read(*at, *len)?;
                &stored
            }
        };
        let mut at = 0;
        let place = |extent: Extent| {
            at += extent.len;
            (at, extent)
        };
        let extents = parse_extents(list, *end_at, *len, pack.trailer().content_end)?;
        Ok(Self { extents: extents.into_iter().map(place).collect(), len: *len, end_at: *end_at, id: item.id })
    }

    /// What they take in memory.
    #[cfg(feature = "mount")]
    pub(crate) fn memory(&self) -> usize {
        std::mem::size_of_val(&self.extents[..])
    }

    #[cfg(all(test, feature = "mount"))]
    pub(crate) fn of_holes(count: usize) -> Self {
        let extents = (1..=count as u64).map(|end| (end, Extent { raw: None, len: 1 })).collect();
        Self { extents, len: count as u64, end_at: 0, id: 0 }
    }

    /// Bytes of it that are no holes.
    #[cfg(feature = "mount")]
    pub(crate) fn stored_len(&self) -> u64 {
        self.iter().filter(|(raw, _)| raw.is_some()).map(|(_, len)| len).sum()
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Raw offset of its first byte that is stored, or of its end.
    pub fn raw_begin(&self) -> u64 {
        self.extents.iter().find_map(|(_, e)| e.raw).unwrap_or(self.end_at)
    }

    /// The extents in order: raw offset, `None` for a hole, and length.
    pub fn iter(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        self.extents.iter().map(|(_, e)| (e.raw, e.len))
    }

    /// Reads from `offset` on: as much as there is, `buf` at most. 0 is the end.
    ///
    /// # Errors
    /// The source fails, or the pack is damaged there.
    pub fn read_at<R: ReadAt>(&self, pack: &Pack<R>, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        let mut i = self.extents.partition_point(|(end, _)| *end <= offset);
        while done < buf.len()
            && let Some((end, extent)) = self.extents.get(i)
        {
            let left = end - (offset + done as u64);
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len() - done);
            let out = &mut buf[done..done + n];
            match extent.raw {
                None => out.fill(0),
                Some(raw) => {
                    let at = raw + (extent.len - left);
                    if pack.file.read_at(out, at)? < n {
                        return Err(Error::corrupt("the content of a file is not there"));
                    }
                }
            }
            done += n;
            i += 1;
        }
        Ok(done)
    }

    /// What the content is compared with.
    fn end<R: ReadAt>(&self, pack: &Pack<R>) -> Result<End> {
        let record = pack.read(self.end_at, END_LEN as usize)?;
        if record.first() == Some(&GROUP) {
            return pack.group(self.end_at, &record).map(End::Group);
        }
        match record.strip_prefix(&END_HEADER).and_then(|body| body.split_first()) {
            Some((1 | 2, digest)) => Ok(End::Digest(digest.try_into().map_err(|_| no_end())?)),
            _ => Err(no_end()),
        }
    }

    /// The digest of the content of a group, if it has this file there.
    fn digest_in(&self, group: &Grouped) -> Option<[u8; DIGEST_LEN]> {
        let begin = self.extents.first().map(|(_, extent)| extent.raw);
        let is_one = self.extents.len() == usize::from(self.len > 0);
        let content = group.content(self.id).filter(|_| is_one)?;
        let is_there = content.1.len() as u64 == self.len && begin.is_none_or(|raw| raw == Some(content.0));
        is_there.then(|| blake3::hash(content.1).into())
    }
}

/// What the content of a file is compared with.
enum End {
    /// The digest of its end record.
    Digest([u8; DIGEST_LEN]),
    /// The group that it is in.
    Group(Arc<Grouped>),
}

/// Finds the extents of many files, each of which is asked for twice at most: for a hard link that comes
/// before it, and for itself. Lists do not overlap, so all of them are no longer than the directory. A list
/// that many entries lead to would be much work for a few bytes.
pub(crate) struct Lists<'a, R> {
    pack: &'a Pack<R>,
    /// Bytes of lists that may follow.
    left: u64,
}

impl<'a, R: ReadAt> Lists<'a, R> {
    pub(crate) fn new(pack: &'a Pack<R>) -> Self {
        Self { pack, left: pack.directory_len().saturating_mul(2) }
    }

    /// As [`Extents::of`].
    pub(crate) fn of(&mut self, item: &Item) -> Result<Extents> {
        self.count(item)?;
        Extents::of(self.pack, item)
    }

    /// Counts the list of an item, whose extents are found in another way.
    pub(crate) fn count(&mut self, item: &Item) -> Result<()> {
        if let Content::File { list, .. } = &item.content {
            let len = match list {
                List::Here(list) => list.len(),
                List::There { len, .. } => *len,
            };
            let left = self.left.checked_sub(len as u64);
            self.left = left.ok_or_else(|| Error::corrupt("files of the pack share their lists of extents"))?;
        }
        Ok(())
    }
}

fn no_end() -> Error {
    Error::corrupt("the directory leads to a place where no file ends")
}

impl<R: ReadAt> Pack<R> {
    /// The content of an entry, which is a file or a hard link to one.
    ///
    /// # Errors
    /// The source fails, the pack is damaged, or the entry has no content.
    pub fn member(&self, item: &Item) -> Result<Member<'_, R>> {
        Ok(Member { pack: self, extents: Extents::of(self, &self.file_of(item)?)? })
    }
}

/// The content of a file.
pub struct Member<'a, R> {
    pack: &'a Pack<R>,
    extents: Extents,
}

impl<'a, R: ReadAt> Member<'a, R> {
    /// Its extents.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// Reads from `offset` on, as [`Extents::read_at`]. Every block is compared with its check; that the
    /// directory leads to the right ones, only [`Member::reader`] finds out.
    ///
    /// # Errors
    /// Those of [`Extents::read_at`].
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.extents.read_at(self.pack, buf, offset)
    }

    /// Reads it from its beginning to its end, where the digest of the file is compared.
    pub fn reader(self) -> MemberReader<'a, R> {
        MemberReader { member: self, at: 0, extent: 0, hash: blake3::Hasher::new(), compared: false }
    }
}

/// Reads a member, and compares its digest at the end.
pub struct MemberReader<'a, R> {
    member: Member<'a, R>,
    at: u64,
    extent: usize,
    hash: blake3::Hasher,
    compared: bool,
}

/// A piece of a member.
pub(crate) enum Piece {
    /// So many bytes were read.
    Data(usize),
    /// So many zero bytes that take no room.
    Hole(u64),
    /// The digest, which was compared.
    End([u8; DIGEST_LEN]),
    /// The digest of what was read. All of that is whole, but what it would be compared with cannot be read.
    Unproven([u8; DIGEST_LEN], Error),
}

impl<R: ReadAt> MemberReader<'_, R> {
    /// The next bytes, or a whole hole.
    pub(crate) fn piece(&mut self, buf: &mut [u8]) -> Result<Piece> {
        let Extents { extents, .. } = &self.member.extents;
        let Some((end, extent)) = extents.get(self.extent).copied() else {
            let own = *self.hash.finalize().as_bytes();
            let end = match self.member.extents.end(self.member.pack) {
                Err(e) if e.source.is_none() => return Ok(Piece::Unproven(own, e)),
                end => end?,
            };
            let digest = match end {
                End::Digest(digest) => digest,
                End::Group(group) => self.member.extents.digest_in(&group).ok_or_else(no_end)?,
            };
            if own != digest {
                return Err(Error::corrupt("the content of a file is not what was packed"));
            }
            self.compared = true;
            return Ok(Piece::End(digest));
        };
        let left = end - self.at;
        let piece = if extent.raw.is_none() {
            self.at = end;
            Piece::Hole(left)
        } else {
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            let n = self.member.read_at(&mut buf[..n], self.at)?;
            self.hash.update(&buf[..n]);
            self.at += n as u64;
            Piece::Data(n)
        };
        if self.at == end {
            self.extent += 1;
        }
        Ok(piece)
    }
}

impl<R: ReadAt> Read for MemberReader<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() || self.compared {
            return Ok(0);
        }
        if let Some((end, Extent { raw: None, .. })) = self.member.extents.extents.get(self.extent).copied() {
            let n = usize::try_from(end - self.at).unwrap_or(usize::MAX).min(buf.len());
            buf[..n].fill(0);
            self.at += n as u64;
            self.extent += usize::from(self.at == end);
            return Ok(n);
        }
        let damaged = |e: Error| io::Error::new(io::ErrorKind::InvalidData, e);
        match self.piece(buf).map_err(damaged)? {
            Piece::Data(n) => Ok(n),
            Piece::Hole(_) | Piece::End(_) => Ok(0),
            Piece::Unproven(_, e) => Err(damaged(e)),
        }
    }
}
