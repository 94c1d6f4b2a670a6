//! Pages of a directory: leaves with entries, and pages that lead to others (format.md section 17.2).

use narrows::entry::{Entry, EntryKind, check_path};
use narrows::frame::{put_varint, varint};
use narrows::{Error, Result};

use crate::columns::{self, COLUMNS};
use crate::trailer::{PAGE_MAX, Trailer};

/// First byte of a leaf by rows, which packs of version 1 have.
pub(crate) const LEAF: u8 = 1;
pub(crate) const INNER: u8 = 2;
/// Length of an end record: kind, length, state, digest.
pub(crate) const END_LEN: u64 = 35;
/// Longest list of extents that stands in a page, in bytes. A longer one would make a page of many
/// entries slow to read for the sake of one.
pub(crate) const LIST_INLINE_MAX: usize = 512;
/// Longest list of extents in bytes, which a reader holds in memory: a file of 4 TiB without repeats.
pub(crate) const LIST_MAX: usize = 32 << 20;
/// Most extents of a file, 24 bytes of memory each.
pub(crate) const EXTENTS_MAX: usize = 4 << 20;

/// Most weight of a leaf ([`Item::weight`]), so that few bytes with long shared paths do not become much
/// memory. An entry with the most attributes, 87,381, weighs 5.6 MB; a writer adds 1 MiB at most.
pub(crate) const LEAF_WEIGHT_MAX: usize = 8 << 20;
/// Most weight of an inner page, twice that at which a writer ends it. A reader has one of each level in
/// memory.
pub(crate) const INNER_WEIGHT_MAX: usize = 2 << 20;
/// Weight of an entry, or of a page below, without its path and attributes: what it takes in memory.
const ENTRY_WEIGHT: usize = 256;
/// Weight of an attribute: what it takes in memory without its bytes.
const XATTR_WEIGHT: usize = 64;

/// An entry as the directory has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The entry. The number of a hard link's file is that of the entry stream.
    pub entry: Entry,
    /// Its number in the entry stream.
    pub id: u64,
    /// Where its content is.
    pub content: Content,
}

impl Item {
    /// What it takes in memory, as pages are limited by: bytes that stand in the page itself are left out.
    pub(crate) fn weight(&self) -> usize {
        ENTRY_WEIGHT + self.entry.path.len() + XATTR_WEIGHT * self.entry.xattrs.len()
    }
}

/// Where the content of an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// It has none.
    None,
    /// A file.
    File {
        /// Raw offset of its end record, which has the digest.
        end_at: u64,
        /// Its extents.
        list: List,
    },
    /// That of another file, whose path this is.
    Of(Vec<u8>),
}

/// The list of a file's extents, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List {
    /// It stands in the page.
    Here(Vec<u8>),
    /// It stands elsewhere in the directory.
    There {
        /// Raw offset.
        at: u64,
        /// Length in bytes.
        len: usize,
    },
}

/// A piece of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Raw offset of its bytes; `None` is a hole.
    pub(crate) raw: Option<u64>,
    /// Length in bytes.
    pub(crate) len: u64,
}

/// A page below an inner one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Child {
    /// The first path in it.
    pub(crate) first: Vec<u8>,
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl Child {
    /// As [`Item::weight`].
    pub(crate) fn weight(&self) -> usize {
        ENTRY_WEIGHT + self.first.len()
    }
}

/// A parsed page.
#[derive(Debug)]
pub(crate) enum Page {
    Leaf(Vec<Item>),
    Inner(Vec<Child>),
}

/// Writes items into a leaf by rows, each after the one before it.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct RowsWriter {
    pub(crate) bytes: Vec<u8>,
    path: Vec<u8>,
    id: u64,
    end_at: u64,
}

#[cfg(test)]
impl RowsWriter {
    /// Appends an item. `directory` is where the directory begins.
    pub(crate) fn put(&mut self, item: &Item, directory: u64) -> Result<()> {
        if self.bytes.is_empty() {
            self.bytes.push(LEAF);
        }
        let out = &mut self.bytes;
        item.entry.put(&self.path, out)?;
        put_varint(out, zigzag(item.id, self.id));
        self.id = item.id;
        match &item.content {
            Content::None => {}
            Content::Of(path) => put_bytes(out, path),
            Content::File { end_at, list } => {
                put_varint(out, zigzag(*end_at, self.end_at));
                self.end_at = *end_at;
                match list {
                    List::Here(list) => {
                        put_varint(out, (list.len() as u64) << 1);
                        out.extend_from_slice(list);
                    }
                    List::There { at, len } => {
                        put_varint(out, (*len as u64) << 1 | 1);
                        put_varint(out, at - directory);
                    }
                }
            }
        }
        self.path.clone_from(&item.entry.path);
        Ok(())
    }
}

/// Appends a child to an inner page. `before` is the path of the child before it.
pub(crate) fn put_child(child: &Child, before: &[u8], directory: u64, out: &mut Vec<u8>) {
    if out.is_empty() {
        out.push(INNER);
    }
    let shared = before.iter().zip(&child.first).take_while(|(a, b)| a == b).count();
    put_varint(out, shared as u64);
    put_bytes(out, &child.first[shared..]);
    put_varint(out, child.at - directory);
    put_varint(out, child.len);
}

/// Encodes extents. Offsets are differences from where the bytes would be if they stood right before
/// the end record, one extent right behind the other.
pub(crate) fn put_extents(extents: &[Extent], end_at: u64, out: &mut Vec<u8>) {
    let len: u64 = extents.iter().filter(|e| e.raw.is_some()).map(|e| e.len).sum();
    let mut expected = end_at.wrapping_sub(len);
    for extent in extents {
        put_varint(out, extent.len << 1 | u64::from(extent.raw.is_none()));
        if let Some(raw) = extent.raw {
            put_varint(out, zigzag(raw, expected));
            expected = raw.wrapping_add(extent.len);
        }
    }
}

/// Decodes the extents of a file of `len` bytes, all of which are within `content_end` raw bytes.
pub(crate) fn parse_extents(mut bytes: &[u8], end_at: u64, len: u64, content_end: u64) -> Result<Vec<Extent>> {
    let bad = || Error::corrupt("the extents of a file are not those of its length");
    let mut found = Vec::new();
    let (mut all, mut data) = (0u64, 0u64);
    while !bytes.is_empty() {
        let word = number(&mut bytes)?;
        let extent_len = word >> 1;
        if extent_len == 0 || found.len() == EXTENTS_MAX {
            return Err(bad());
        }
        all = all.checked_add(extent_len).filter(|all| *all <= len).ok_or_else(bad)?;
        let difference = if word & 1 == 0 { Some(number(&mut bytes)?) } else { None };
        data = data.wrapping_add(if difference.is_some() { extent_len } else { 0 });
        found.push((difference, extent_len));
    }
    if all != len {
        return Err(bad());
    }
    let mut expected = end_at.wrapping_sub(data);
    let place = |(difference, len): (Option<u64>, u64)| {
        let raw = difference.map(|d| unzigzag(d, expected));
        if let Some(raw) = raw {
            raw.checked_add(len).filter(|end| *end <= content_end).ok_or_else(bad)?;
            expected = raw + len;
        }
        Ok(Extent { raw, len })
    };
    found.into_iter().map(place).collect()
}

impl Page {
    /// The first path in it.
    pub(crate) fn first(&self) -> Option<&[u8]> {
        match self {
            Self::Leaf(items) => items.first().map(|item| &item.entry.path[..]),
            Self::Inner(children) => children.first().map(|child| &child.first[..]),
        }
    }

    /// What it takes in memory, its own bytes included.
    pub(crate) fn weight(&self, len: usize) -> usize {
        len + match self {
            Self::Leaf(items) => items.iter().map(Item::weight).sum::<usize>(),
            Self::Inner(children) => children.iter().map(Child::weight).sum(),
        }
    }

    /// Parses the page at raw offset `at`, `level` levels above the leaves.
    pub(crate) fn parse(bytes: &[u8], at: u64, level: u8, trailer: &Trailer) -> Result<Self> {
        let bad = || Error::corrupt("a page of the directory is not what leads to it says");
        let (kind, mut rest) = bytes.split_first().ok_or_else(bad)?;
        let mut weight = 0;
        let mut add = |more: usize, most: usize| {
            weight += more;
            if weight > most { Err(Error::corrupt("a page of the directory has too much in it")) } else { Ok(()) }
        };
        match (*kind, level) {
            (LEAF, 0) => {
                let (mut path, mut id, mut end_at) = (Vec::new(), 0, 0);
                let mut items = Vec::new();
                while !rest.is_empty() {
                    let item = take_item(&mut rest, &mut path, &mut id, &mut end_at, at, trailer)?;
                    add(item.weight(), LEAF_WEIGHT_MAX)?;
                    items.push(item);
                }
                Ok(Self::Leaf(items))
            }
            (COLUMNS, 0) => {
                let mut items = Vec::new();
                columns::parse(rest, at, trailer, |item| {
                    add(item.weight(), LEAF_WEIGHT_MAX)?;
                    items.push(item);
                    Ok(())
                })?;
                Ok(Self::Leaf(items))
            }
            (INNER, 1..) => {
                let mut children = Vec::new();
                let mut path = Vec::new();
                while !rest.is_empty() {
                    let child = take_child(&mut rest, &mut path, at, trailer)?;
                    add(child.weight(), INNER_WEIGHT_MAX)?;
                    children.push(child);
                }
                if children.is_empty() { Err(bad()) } else { Ok(Self::Inner(children)) }
            }
            _ => Err(bad()),
        }
    }
}

fn take_item(
    rest: &mut &[u8],
    path: &mut Vec<u8>,
    id: &mut u64,
    last_end: &mut u64,
    page: u64,
    trailer: &Trailer,
) -> Result<Item> {
    let entry = Entry::take(rest, path)?;
    *id = unzigzag(number(rest)?, *id);
    if *id >= trailer.entries {
        return Err(Error::corrupt("the directory has an entry that the entry stream has not"));
    }
    let content = match &entry.kind {
        EntryKind::File { .. } => {
            let end_at = end_within(unzigzag(number(rest)?, *last_end), trailer)?;
            *last_end = end_at;
            let word = number(rest)?;
            let len = list_len(word >> 1)?;
            let list = if word & 1 == 0 {
                List::Here(bytes(rest, len)?.to_vec())
            } else {
                list_there(number(rest)?, len, page, trailer)?
            };
            Content::File { end_at, list }
        }
        EntryKind::HardLink { .. } => {
            let len = usize::try_from(number(rest)?).unwrap_or(usize::MAX);
            let path = bytes(rest, len)?;
            check_path(path)?;
            Content::Of(path.to_vec())
        }
        EntryKind::Stream => return Err(Error::corrupt("the directory has a file of unknown length")),
        _ => Content::None,
    };
    Ok(Item { entry, id: *id, content })
}

fn take_child(rest: &mut &[u8], path: &mut Vec<u8>, page: u64, trailer: &Trailer) -> Result<Child> {
    let shared = usize::try_from(number(rest)?).ok().filter(|n| *n <= path.len());
    let len = usize::try_from(number(rest)?).unwrap_or(usize::MAX);
    path.truncate(shared.ok_or_else(outside)?);
    path.extend_from_slice(bytes(rest, len)?);
    check_path(path)?;
    let at = trailer.content_end.checked_add(number(rest)?).ok_or_else(outside)?;
    let len = number(rest)?;
    // Pages stand before those that lead to them, so there are no cycles.
    let fits = len <= PAGE_MAX && at.checked_add(len).is_some_and(|end| end <= page);
    if fits { Ok(Child { first: path.clone(), at, len }) } else { Err(outside()) }
}

/// Where a file ends, which is in the entry stream.
pub(crate) fn end_within(end_at: u64, trailer: &Trailer) -> Result<u64> {
    let is_in = end_at.checked_add(END_LEN).is_some_and(|end| end <= trailer.content_end);
    if is_in { Ok(end_at) } else { Err(outside()) }
}

pub(crate) fn list_len(len: u64) -> Result<usize> {
    usize::try_from(len).ok().filter(|len| *len <= LIST_MAX).ok_or_else(too_long)
}

/// A list at this place of the directory. The page that leads to it begins at raw offset `page`.
pub(crate) fn list_there(place: u64, len: usize, page: u64, trailer: &Trailer) -> Result<List> {
    let at = trailer.content_end.checked_add(place).ok_or_else(outside)?;
    // Lists stand before the pages that lead to them.
    at.checked_add(len as u64).filter(|end| *end <= page).ok_or_else(outside)?;
    Ok(List::There { at, len })
}

fn outside() -> Error {
    Error::corrupt("the directory leads to a place outside of the pack")
}

fn too_long() -> Error {
    Error::limit("a file of the pack has too many extents")
}

pub(crate) fn number(rest: &mut &[u8]) -> Result<u64> {
    let found = varint(rest, 10)?;
    let (value, len) = found.ok_or_else(|| Error::corrupt("a page of the directory breaks off"))?;
    *rest = &rest[len..];
    Ok(value)
}

pub(crate) fn bytes<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let found = rest.split_at_checked(len);
    let (bytes, behind) = found.ok_or_else(|| Error::corrupt("a page of the directory breaks off"))?;
    *rest = behind;
    Ok(bytes)
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The difference of two offsets as an unsigned number, small ones first.
pub(crate) fn zigzag(to: u64, from: u64) -> u64 {
    let v = to.wrapping_sub(from) as i64;
    (v << 1 ^ v >> 63) as u64
}

pub(crate) fn unzigzag(v: u64, from: u64) -> u64 {
    from.wrapping_add((v >> 1) ^ (v & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAILER: Trailer = Trailer { depth: 1, content_end: 1000, root: 5000, root_len: 1, entries: 100, bytes: 0 };

    pub(crate) fn item(path: &str, kind: EntryKind, id: u64, content: Content) -> Item {
        let xattrs = vec![(b"user.a".to_vec(), b"b".to_vec())];
        let entry = Entry { path: path.into(), kind, mode: 0o644, uid: 1, gid: 2, mtime_s: -3, mtime_ns: 4, xattrs };
        Item { entry, id, content }
    }

    fn leaf() -> (Vec<Item>, Vec<u8>) {
        let mut list = Vec::new();
        put_extents(&[Extent { raw: Some(50), len: 7 }, Extent { raw: None, len: 5 }], 57, &mut list);
        let file = EntryKind::File { len: 12, linked: true };
        let items = vec![
            item("", EntryKind::Folder, 0, Content::None),
            item("a", file.clone(), 7, Content::File { end_at: 57, list: List::Here(list) }),
            item("b", EntryKind::HardLink { of: 7 }, 8, Content::Of(b"a".to_vec())),
            item("c", file, 3, Content::File { end_at: 900, list: List::There { at: 1100, len: 40 } }),
        ];
        let mut writer = RowsWriter::default();
        items.iter().for_each(|item| writer.put(item, TRAILER.content_end).unwrap());
        (items, writer.bytes)
    }

    /// The same by columns, and files of one extent.
    fn leaf_by_columns() -> (Vec<Item>, Vec<u8>) {
        let mut items = leaf().0;
        let mut add = |path: &str, raw: u64, len: u64, end_at: u64| {
            let mut list = Vec::new();
            let extents = [Extent { raw: Some(raw), len }];
            put_extents(if len == 0 { &[] } else { &extents }, end_at, &mut list);
            let content = Content::File { end_at, list: List::Here(list) };
            items.push(item(path, EntryKind::File { len, linked: false }, 50, content));
        };
        // The first two are in one group, or so it looks.
        add("d.x", 310, 9, 300);
        add("e.x", 319, 7, 300);
        add("f.y", 400, 9, 409);
        add("g.x", 0, 0, 300);
        add("h.x", 326, 5, 300);
        add("i", 900, 1, 901);
        let mut writer = columns::LeafWriter::default();
        items.iter().for_each(|item| writer.put(item, TRAILER.content_end).unwrap());
        (items, writer.finish())
    }

    #[test]
    fn leaves_and_inner_pages_come_back() {
        let (items, bytes) = leaf();
        let Page::Leaf(parsed) = Page::parse(&bytes, 2000, 0, &TRAILER).unwrap() else { panic!() };
        assert_eq!(parsed, items);
        let (by_columns, columns) = leaf_by_columns();
        let Page::Leaf(parsed) = Page::parse(&columns, 2000, 0, &TRAILER).unwrap() else { panic!() };
        assert_eq!(parsed, by_columns);
        let children =
            vec![Child { first: vec![], at: 1000, len: 9 }, Child { first: b"b/c".to_vec(), at: 1009, len: 3 }];
        let mut out = Vec::new();
        put_child(&children[0], b"", 1000, &mut out);
        put_child(&children[1], b"", 1000, &mut out);
        let Page::Inner(parsed) = Page::parse(&out, 2000, 1, &TRAILER).unwrap() else { panic!() };
        assert_eq!(parsed, children);
        // A page that leads to itself or to later ones, or stands at another level, is refused.
        assert!(Page::parse(&out, 1011, 1, &TRAILER).is_err());
        assert!(Page::parse(&out, 2000, 0, &TRAILER).is_err() && Page::parse(&bytes, 2000, 1, &TRAILER).is_err());
    }

    #[test]
    fn extents_come_back_and_others_than_the_length_are_refused() {
        let extents = [
            Extent { raw: Some(0), len: 3 },
            Extent { raw: None, len: 1 << 40 },
            Extent { raw: Some(900), len: 100 },
            Extent { raw: Some(0), len: 3 },
        ];
        let len = (1 << 40) + 106;
        let mut list = Vec::new();
        put_extents(&extents, 960, &mut list);
        assert_eq!(parse_extents(&list, 960, len, 1000).unwrap(), extents);
        assert!(parse_extents(&list, 960, len, 999).is_err() && parse_extents(&list, 960, len + 1, 1000).is_err());
        assert!(
            parse_extents(&list, 960, len - 1, 1000).is_err() && parse_extents(&list[1..], 960, len, 1000).is_err()
        );
        assert!(parse_extents(&[0, 0], 0, 0, 1000).is_err());
    }

    #[test]
    fn no_byte_of_a_page_can_be_changed_into_a_panic() {
        for (_, bytes) in [leaf(), leaf_by_columns()] {
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut bad = bytes.clone();
                    bad[at] ^= 1 << bit;
                    for level in 0..2 {
                        let _ = Page::parse(&bad, 2000, level, &TRAILER);
                    }
                }
                let _ = Page::parse(&bytes[..at], 2000, 0, &TRAILER);
            }
        }
    }
}
