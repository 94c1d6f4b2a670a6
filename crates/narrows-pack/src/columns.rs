//! Leaves by columns (format.md section 17.2): what entries have alike stands together.

use std::collections::HashMap;

use narrows::entry::{EntryColumns, EntryKind, EntryRows, check_path};
use narrows::frame::put_varint;
use narrows::{Error, Result};

use crate::item::{
    Content, Extent, Item, List, bytes, end_within, list_len, list_there, number, parse_extents, put_bytes,
    put_extents, unzigzag, zigzag,
};
use crate::order::suffix;
use crate::trailer::Trailer;

/// First byte of a leaf by columns.
pub(crate) const COLUMNS: u8 = 3;

/// Ways in which the extents of a file are said.
const HERE: u8 = 0;
const THERE: u8 = 1;
/// One extent of its whole length, or none if that is 0, right before where its end is said.
const BEFORE_END: u8 = 2;
/// One extent elsewhere.
const ELSEWHERE: u8 = 3;
/// Longest list that may be one extent: two varints.
const ONE_EXTENT_MAX: usize = 20;

/// Where the file before with the same suffix is: contents are in the order of suffixes.
#[derive(Default)]
struct Places(HashMap<Vec<u8>, Place>);

#[derive(Default, Clone, Copy)]
struct Place {
    end_at: u64,
    /// Where its content ends, if that is elsewhere.
    content_end: u64,
}

impl Places {
    fn of(&mut self, path: &[u8]) -> &mut Place {
        self.0.entry(suffix(path).to_vec()).or_default()
    }
}

/// Writes items into a leaf, each after the one before it.
#[derive(Default)]
pub(crate) struct LeafWriter {
    entries: EntryColumns,
    numbers: Vec<u8>,
    ends: Vec<u8>,
    ways: Vec<u8>,
    begins: Vec<u8>,
    others: Vec<u8>,
    pub(crate) weight: usize,
    id: u64,
    places: Places,
}

impl LeafWriter {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        let columns = [&self.numbers, &self.ends, &self.ways, &self.begins, &self.others];
        self.entries.len() + columns.into_iter().map(Vec::len).sum::<usize>()
    }

    /// Appends an item. `directory` is where the directory begins.
    pub(crate) fn put(&mut self, item: &Item, directory: u64) -> Result<()> {
        self.entries.put(&item.entry)?;
        put_varint(&mut self.numbers, zigzag(item.id, self.id));
        self.id = item.id;
        self.weight += item.weight();
        match (&item.content, &item.entry.kind) {
            (Content::File { end_at, list }, EntryKind::File { len, .. }) => {
                let place = self.places.of(&item.entry.path);
                put_varint(&mut self.ends, zigzag(*end_at, place.end_at));
                if place.end_at != *end_at {
                    place.content_end = *end_at;
                }
                place.end_at = *end_at;
                match list {
                    List::There { at, len } => {
                        self.ways.push(THERE);
                        put_varint(&mut self.others, *len as u64);
                        put_varint(&mut self.others, at - directory);
                    }
                    List::Here(list) => match one_extent(list, *end_at, *len) {
                        Some(raw) if raw.wrapping_add(*len) == *end_at => self.ways.push(BEFORE_END),
                        Some(raw) => {
                            self.ways.push(ELSEWHERE);
                            put_varint(&mut self.begins, zigzag(raw, place.content_end));
                            place.content_end = raw.wrapping_add(*len);
                        }
                        None => {
                            self.ways.push(HERE);
                            put_bytes(&mut self.others, list);
                        }
                    },
                }
            }
            (Content::Of(path), _) => put_bytes(&mut self.others, path),
            _ => {}
        }
        Ok(())
    }

    /// The bytes of the leaf.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut out = vec![COLUMNS];
        self.entries.finish(&mut out);
        for column in [self.numbers, self.ends, self.ways, self.begins, self.others] {
            put_bytes(&mut out, &column);
        }
        out
    }
}

/// Where the only extent of a file of `len` bytes begins; for an empty file its end.
fn one_extent(list: &[u8], end_at: u64, len: u64) -> Option<u64> {
    if list.len() > ONE_EXTENT_MAX {
        return None;
    }
    match parse_extents(list, end_at, len, u64::MAX).ok()?[..] {
        [] => Some(end_at),
        [Extent { raw, .. }] => raw,
        _ => None,
    }
}

/// Reads the items of a leaf, whose first byte was read, and passes each to `on_item`. The page begins at raw
/// offset `page`.
pub(crate) fn parse(
    mut rest: &[u8],
    page: u64,
    trailer: &Trailer,
    mut on_item: impl FnMut(Item) -> Result<()>,
) -> Result<()> {
    let mut entries = EntryRows::take(&mut rest, b"")?;
    let mut columns: [&[u8]; 5] = [&[]; 5];
    for column in &mut columns {
        let len = usize::try_from(number(&mut rest)?).unwrap_or(usize::MAX);
        *column = bytes(&mut rest, len)?;
    }
    let [mut numbers, mut ends, mut ways, mut begins, mut others] = columns;
    let (mut id, mut places) = (0, Places::default());
    while let Some(entry) = entries.next(u64::MAX)? {
        id = unzigzag(number(&mut numbers)?, id);
        if id >= trailer.entries {
            return Err(Error::corrupt("the directory has an entry that the entry stream has not"));
        }
        let content = match &entry.kind {
            EntryKind::File { len, .. } => {
                let place = places.of(&entry.path);
                let end_at = end_within(unzigzag(number(&mut ends)?, place.end_at), trailer)?;
                if place.end_at != end_at {
                    *place = Place { end_at, content_end: end_at };
                }
                let list = list(*len, place, [&mut ways, &mut begins, &mut others], page, trailer)?;
                Content::File { end_at, list }
            }
            EntryKind::HardLink { .. } => {
                let len = usize::try_from(number(&mut others)?).unwrap_or(usize::MAX);
                let path = bytes(&mut others, len)?;
                check_path(path)?;
                Content::Of(path.to_vec())
            }
            EntryKind::Stream => return Err(Error::corrupt("the directory has a file of unknown length")),
            _ => Content::None,
        };
        on_item(Item { entry, id, content })?;
    }
    if [numbers, ends, ways, begins, others, rest].iter().any(|column| !column.is_empty()) {
        return Err(Error::corrupt("a page of the directory is longer than its entries"));
    }
    Ok(())
}

fn list(
    len: u64,
    place: &mut Place,
    [ways, begins, others]: [&mut &[u8]; 3],
    page: u64,
    trailer: &Trailer,
) -> Result<List> {
    let one = |raw: u64| {
        let mut list = Vec::new();
        if len > 0 {
            put_extents(&[Extent { raw: Some(raw), len }], place.end_at, &mut list);
        }
        List::Here(list)
    };
    match bytes(ways, 1)?[0] {
        HERE => {
            let len = list_len(number(others)?)?;
            Ok(List::Here(bytes(others, len)?.to_vec()))
        }
        THERE => {
            let len = list_len(number(others)?)?;
            list_there(number(others)?, len, page, trailer)
        }
        BEFORE_END => Ok(one(place.end_at.wrapping_sub(len))),
        ELSEWHERE if len > 0 => {
            let raw = unzigzag(number(begins)?, place.content_end);
            place.content_end = raw.wrapping_add(len);
            Ok(one(raw))
        }
        _ => Err(Error::corrupt("the directory says in an unknown way where a file is")),
    }
}
