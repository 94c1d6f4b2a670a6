//! Pages of a directory: leaves with entries, and pages that lead to others (format.md section 17.2).

use narrows::entry::{Entry, EntryKind, check_path};
use narrows::frame::put_varint;
use narrows::{Error, Result};

use crate::columns::{self, COLUMNS};
use crate::item::{
    Content, ENTRY_WEIGHT, Item, List, bytes, end_within, list_len, list_there, number, outside, put_bytes, unzigzag,
};
use crate::trailer::{PAGE_MAX, Trailer};

/// First byte of a leaf by rows, which packs of version 1 have.
pub(crate) const LEAF: u8 = 1;
pub(crate) const INNER: u8 = 2;

/// Most weight of a leaf ([`Item::weight`]), so that few bytes with long shared paths do not become much
/// memory. An entry with the most attributes, 87,381, weighs 5.6 MB; a writer adds 1 MiB at most.
pub(crate) const LEAF_WEIGHT_MAX: usize = 8 << 20;
/// Most weight of an inner page, twice that at which a writer ends it. A reader has one of each level in
/// memory.
pub(crate) const INNER_WEIGHT_MAX: usize = 2 << 20;

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
        use crate::item::zigzag;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{Extent, put_extents};

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
