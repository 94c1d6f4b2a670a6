//! Scrubbing a pack: its directory is read, and its members are compared with their digests.

use std::ops::Range;

use narrows::entry::EntryKind;
use narrows::{Error, Result};
use narrows_file::ReadAt;

use crate::item::Item;
use crate::member::{Lists, Piece};
use crate::pack::Pack;
use crate::unpack::AHEAD;

/// Files that are compared together, in the order of their contents, so that each block is decoded once.
const BATCH: usize = 64 << 10;
/// Weight of files after which no more are added to them: long paths.
const BATCH_WEIGHT: usize = 64 << 20;
/// Length of a read.
const READ_LEN: usize = 256 << 10;

/// What was found of the members of a pack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// Entries of the directory.
    pub entries: u64,
    /// Files of which the content was compared.
    pub compared: u64,
    /// Files that are not what was packed.
    pub damaged: u64,
}

/// Reads the directory, and calls `on_damaged` with the files that have bytes in these raw ranges, which
/// are in order and do not touch.
///
/// # Errors
/// The source fails, or the directory is damaged.
pub fn members_in<R: ReadAt>(
    pack: &Pack<R>,
    ranges: &[Range<u64>],
    mut on_damaged: impl FnMut(&Item),
) -> Result<Checked> {
    let mut checked = Checked::default();
    let mut lists = Lists::new(pack);
    for item in pack.walk(b"") {
        let item = item?;
        checked.entries += 1;
        if !is_file(&item) {
            continue;
        }
        // An extent that leads nowhere is damage of the directory.
        let extents = lists.of(&item)?;
        let is_in = |(raw, len): (Option<u64>, u64)| {
            let next = |raw| ranges.get(ranges.partition_point(|range| range.end <= raw));
            raw.is_some_and(|raw| next(raw).is_some_and(|range| raw.saturating_add(len) > range.start))
        };
        if !ranges.is_empty() && extents.iter().any(is_in) {
            checked.damaged += 1;
            on_damaged(&item);
        }
    }
    Ok(checked)
}

/// Reads the directory, and compares the content of every file with its digest. Calls `on_damaged` with
/// those that are not what was packed. `threads` decode; the cache of the pack must hold twice [`AHEAD`].
///
/// # Errors
/// The source fails, or the directory is damaged.
pub fn check_members<R: ReadAt>(
    pack: &Pack<R>,
    threads: usize,
    mut on_damaged: impl FnMut(&Item, &Error),
) -> Result<Checked> {
    let mut checked = Checked::default();
    let mut items = pack.walk(b"").peekable();
    let mut lists = Lists::new(pack);
    let mut batch = Batch::default();
    while items.peek().is_some() {
        while !batch.is_full()
            && let Some(item) = items.next()
        {
            let item = item?;
            checked.entries += 1;
            if is_file(&item) {
                batch.push(lists.of(&item)?.raw_begin(), item);
            }
        }
        checked.compared += batch.len() as u64;
        batch.compare(pack, threads, &mut |item: &Item, e: Error| match e.source {
            // The source fails, which says nothing of the pack.
            Some(_) => Err(e),
            None => {
                checked.damaged += 1;
                on_damaged(item, &e);
                Ok(())
            }
        })?;
    }
    Ok(checked)
}

/// Files that are compared together.
#[derive(Default)]
pub(crate) struct Batch {
    /// Where their contents begin, and their items without attributes.
    files: Vec<(u64, Item)>,
    weight: usize,
}

impl Batch {
    /// Files in it.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether it has as many as are compared at once.
    pub(crate) fn is_full(&self) -> bool {
        self.files.len() >= BATCH || self.weight >= BATCH_WEIGHT
    }

    pub(crate) fn push(&mut self, raw_begin: u64, mut item: Item) {
        item.entry.xattrs = Vec::new();
        self.weight += item.weight();
        self.files.push((raw_begin, item));
    }

    /// Compares all with their digests, and is empty then. `told` hears of those that differ.
    pub(crate) fn compare<R: ReadAt>(
        &mut self,
        pack: &Pack<R>,
        threads: usize,
        told: &mut impl FnMut(&Item, Error) -> Result<()>,
    ) -> Result<()> {
        let mut files = std::mem::take(self).files;
        files.sort_by_key(|(raw, item)| (*raw, item.id));
        let mut buffer = vec![0; READ_LEN];
        let mut ahead = 0;
        for (raw, item) in &files {
            if *raw >= ahead {
                ahead = raw.saturating_add(AHEAD as u64);
                pack.file.read_ahead(*raw, AHEAD, threads)?;
            }
            if let Err(e) = compare(pack, item, &mut buffer) {
                told(item, e)?;
            }
        }
        Ok(())
    }
}

fn is_file(item: &Item) -> bool {
    matches!(item.entry.kind, EntryKind::File { .. })
}

fn compare<R: ReadAt>(pack: &Pack<R>, item: &Item, buffer: &mut [u8]) -> Result<()> {
    let mut reader = pack.member(item)?.reader();
    loop {
        match reader.piece(buffer)? {
            Piece::Data(_) | Piece::Hole(_) => {}
            Piece::End(_) => return Ok(()),
            Piece::Unproven(_, e) => {
                let message = format!("its content is whole, but its digest cannot be read: {}", e.message);
                return Err(e.with_message(message));
            }
        }
    }
}
