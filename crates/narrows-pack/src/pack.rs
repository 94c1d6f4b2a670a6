//! A pack that is read by its directory.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use narrows::entry::EntryKind;
use narrows::{Error, ErrorKind, Result};
use narrows_file::{File, OpenOptions, ReadAt};

use crate::directory::{Child, Page};

use crate::group::{Grouped, Groups};
use crate::item::{Content, Item};
use crate::order;
use crate::tail::TailSource;
use crate::trailer::{TRAILER_LEN, Trailer};

/// Parsed pages that are kept: the way to a leaf, and the leaves of some folders. With entries of usual
/// lengths they take 10 MB.
const PAGES_MAX: usize = 64;
/// Most weight of them: that of the heaviest leaf and 32 inner pages above it, so that even there each is
/// parsed once.
const WEIGHT_MAX: usize = 96 << 20;

/// A pack. All methods may be called from several threads at once.
pub struct Pack<R> {
    pub(crate) file: File<TailSource<R>>,
    trailer: Trailer,
    pages: Mutex<Pages>,
    groups: Mutex<Groups>,
}

/// Parsed pages.
#[derive(Default)]
struct Pages {
    /// The latest used last.
    held: VecDeque<Held>,
    weight: usize,
}

struct Held {
    at: u64,
    level: u8,
    weight: usize,
    page: Arc<Page>,
}

impl Pages {
    fn find(&mut self, at: u64, level: u8) -> Option<Arc<Page>> {
        let i = self.held.iter().position(|held| (held.at, held.level) == (at, level))?;
        let held = self.held.remove(i)?;
        let page = Arc::clone(&held.page);
        self.held.push_back(held);
        Some(page)
    }

    fn put(&mut self, new: Held) {
        self.weight += new.weight;
        self.held.push_back(new);
        while (self.held.len() > PAGES_MAX || self.weight > WEIGHT_MAX)
            && let Some(old) = self.held.pop_front()
        {
            self.weight -= old.weight;
        }
    }
}

impl<R: ReadAt> Pack<R> {
    /// Opens a pack with the default options.
    ///
    /// # Errors
    /// Those of [`Pack::open_with`].
    pub fn open(source: R) -> Result<Self> {
        Self::open_with(source, OpenOptions::default())
    }

    /// Opens a pack.
    ///
    /// # Errors
    /// The source fails, is no file of streams or no pack, or its end is damaged.
    pub fn open_with(source: R, options: OpenOptions) -> Result<Self> {
        let file = options.open(TailSource::new(source)?)?;
        Self::of_file(file)
    }

    fn of_file(file: File<TailSource<R>>) -> Result<Self> {
        let trailer = read_trailer(&file);
        // A pack of this program has a stream of entries and one of the directory.
        if (file.members().len() > 2 || !matches!(trailer, Ok(Some(_))))
            && let Some(fault) = followed(&file)?
        {
            return Err(fault);
        }
        match trailer? {
            Some(trailer) => Ok(Self { file, trailer, pages: Mutex::default(), groups: Mutex::default() }),
            None => Err(not_a_pack()),
        }
    }

    /// Where its bytes come from.
    pub fn source(&self) -> &R {
        self.file.source().inner()
    }

    /// Totals.
    pub fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    /// Length of the pack in bytes.
    pub fn wire_len(&self) -> u64 {
        self.file.wire_len()
    }

    /// Length of the directory in raw bytes.
    pub(crate) fn directory_len(&self) -> u64 {
        self.file.raw_len().saturating_sub(self.trailer.content_end)
    }

    /// The raw bytes.
    pub(crate) fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let n = self.file.read_at(&mut bytes, at)?;
        if n < len { Err(Error::corrupt("the directory leads behind the end of the pack")) } else { Ok(bytes) }
    }

    fn page(&self, at: u64, len: u64, level: u8) -> Result<Arc<Page>> {
        let lock = || self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = lock().find(at, level) {
            return Ok(page);
        }
        // Not longer than `PAGE_MAX`: whoever leads here was tested.
        let bytes = self.read(at, len as usize)?;
        let page = Arc::new(Page::parse(&bytes, at, level, &self.trailer)?);
        let weight = page.weight(bytes.len());
        lock().put(Held { at, level, weight, page: Arc::clone(&page) });
        Ok(page)
    }

    /// The group whose record, which begins with `head`, is at this raw offset.
    pub(crate) fn group(&self, at: u64, head: &[u8]) -> Result<Arc<Grouped>> {
        let lock = || self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = lock().find(at) {
            return Ok(group);
        }
        let group = Arc::new(Grouped::read(at, head, |at, len| self.read(at, len))?);
        lock().put(&group);
        Ok(group)
    }

    #[cfg(test)]
    pub(crate) fn pages_held(&self) -> (usize, usize) {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        (pages.held.len(), pages.weight)
    }

    /// The entry with this path.
    ///
    /// # Errors
    /// The source fails, or the pack is damaged.
    pub fn find(&self, path: &[u8]) -> Result<Option<Item>> {
        let found = self.walk(path).next().transpose()?;
        Ok(found.filter(|item| item.entry.path == path))
    }

    /// The entries from this path on, in order.
    pub fn walk(&self, from: &[u8]) -> Cursor<'_, R> {
        Cursor { pack: self, from: Some(from.to_vec()), levels: Vec::new(), last: None }
    }

    /// The entries in a folder, without what is in folders in it, from `after` on, a name there.
    ///
    /// # Errors
    /// The source fails, or the pack is damaged. `on_item` ends it with false.
    pub fn children(&self, folder: &[u8], after: Option<&[u8]>, mut on_item: impl FnMut(Item) -> bool) -> Result<()> {
        let prefix = if folder.is_empty() { Vec::new() } else { [folder, b"/"].concat() };
        let mut from = match after {
            None if folder.is_empty() => b"\x01".to_vec(),
            None => prefix.clone(),
            Some(name) => order::behind(&[&prefix, name].concat()),
        };
        loop {
            let mut passed = 0;
            let mut skip = None;
            for item in self.walk(&from) {
                let item = item?;
                let path = item.entry.path.clone();
                let Some(name) = path.strip_prefix(&prefix[..]).filter(|_| order::is_within(&path, folder)) else {
                    return Ok(());
                };
                if let Some(end) = name.iter().position(|b| *b == b'/') {
                    // Deep below: a few entries are passed over, more are skipped by a search.
                    passed += 1;
                    if passed > 16 {
                        skip = Some(order::behind(&path[..prefix.len() + end]));
                        break;
                    }
                    continue;
                }
                passed = 0;
                if !name.is_empty() && !on_item(item) {
                    return Ok(());
                }
            }
            match skip {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// The file whose content an entry has: itself, or the one that it is a hard link to.
    ///
    /// # Errors
    /// The source fails, or the pack is damaged.
    pub fn file_of(&self, item: &Item) -> Result<Item> {
        let Content::Of(path) = &item.content else { return Ok(item.clone()) };
        let file = self.find(path)?.filter(|file| matches!(file.entry.kind, EntryKind::File { .. }));
        file.ok_or_else(|| Error::corrupt("a hard link of the pack leads to no file"))
    }
}

fn not_a_pack() -> Error {
    Error::new(ErrorKind::Unsupported, "it is no pack: it has no directory behind its content")
}

/// The fault of a file that begins with a pack and goes on after it; `None` if it does not. The offsets of a
/// directory are those of its own pack, so that of a second one does not lead to anything.
///
/// # Errors
/// The source fails.
pub fn followed<R: ReadAt>(file: &File<R>) -> Result<Option<Error>> {
    let members = file.members();
    // The directory is the second stream; the format lets it be in the first.
    let ends =
        members.iter().take(2).filter_map(|member| Some((member.entry(member.blocks().checked_sub(1)?)?, member)));
    for (last, member) in ends {
        let end = member.raw_begin.saturating_add(last.raw_end);
        if end >= file.raw_len() {
            break;
        }
        match trailer_before(file, end) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(Some(Error::corrupt(FOLLOWED))),
            Err(e) if e.source.is_some() => return Err(e),
            // Other faults are those of who reads there.
            Err(_) => {}
        }
    }
    Ok(None)
}

/// What is wrong with a pack that something follows.
const FOLLOWED: &str = "something else follows the pack in this file; a pack is a file of its own, so cut that \
                                   off, or pack the files together";

/// The trailer of a file; `None` if it is no pack.
///
/// # Errors
/// The source fails, or the end of the file is damaged.
pub fn read_trailer<R: ReadAt>(file: &File<R>) -> Result<Option<Trailer>> {
    trailer_before(file, file.raw_len())
}

/// The trailer that ends there.
fn trailer_before<R: ReadAt>(file: &File<R>, end: u64) -> Result<Option<Trailer>> {
    let Some(at) = end.checked_sub(TRAILER_LEN as u64) else { return Ok(None) };
    let mut bytes = [0; TRAILER_LEN];
    if file.read_at(&mut bytes, at)? < TRAILER_LEN {
        return Ok(None);
    }
    Trailer::parse(&bytes, end)
}

/// Goes through a directory in order. Entries out of order end it, so a page that several lead to does
/// not come twice.
pub struct Cursor<'a, R> {
    pack: &'a Pack<R>,
    /// Where to begin; `None` once it has, or has ended.
    from: Option<Vec<u8>>,
    /// The pages from the root on, and the number of the next child or item.
    levels: Vec<(Arc<Page>, usize)>,
    last: Option<Vec<u8>>,
}

impl<R: ReadAt> Cursor<'_, R> {
    fn step(&mut self) -> Result<Option<Item>> {
        if let Some(from) = self.from.take() {
            let Trailer { root, root_len, depth, .. } = self.pack.trailer;
            self.descend((root, root_len, depth), Some(&from), None)?;
        }
        loop {
            let Some((page, next)) = self.levels.last_mut() else { return Ok(None) };
            match &**page {
                Page::Leaf(items) => {
                    if let Some(item) = items.get(*next).cloned() {
                        *next += 1;
                        return self.in_order(item).map(Some);
                    }
                    self.levels.pop();
                }
                Page::Inner(children) => {
                    let Some(Child { at, len, first }) = children.get(*next).cloned() else {
                        self.levels.pop();
                        continue;
                    };
                    *next += 1;
                    let level = self.pack.trailer.depth - self.levels.len() as u8;
                    self.descend((at, len, level), None, Some(first))?;
                }
            }
        }
    }

    /// Goes down to the leaf that has `from`, or to the first leaf. `first` is the path that the page above
    /// promises.
    fn descend(
        &mut self,
        (mut at, mut len, mut level): (u64, u64, u8),
        from: Option<&[u8]>,
        mut first: Option<Vec<u8>>,
    ) -> Result<()> {
        loop {
            let page = self.pack.page(at, len, level)?;
            if first.is_some_and(|first| page.first() != Some(&first[..])) {
                return Err(disorder());
            }
            match &*page {
                Page::Leaf(items) => {
                    let next = from.map_or(0, |from| {
                        items.partition_point(|item| order::cmp(&item.entry.path, from) == Ordering::Less)
                    });
                    self.levels.push((page, next));
                    return Ok(());
                }
                Page::Inner(children) => {
                    let behind = from.map_or(1, |from| {
                        children.partition_point(|child| order::cmp(&child.first, from) != Ordering::Greater)
                    });
                    let i = behind.saturating_sub(1);
                    let Some(child) = children.get(i) else { return Err(disorder()) };
                    (at, len) = (child.at, child.len);
                    first = Some(child.first.clone());
                    self.levels.push((Arc::clone(&page), i + 1));
                    level = level.checked_sub(1).ok_or_else(disorder)?;
                }
            }
        }
    }

    fn in_order(&mut self, item: Item) -> Result<Item> {
        if self.last.as_ref().is_some_and(|last| order::cmp(last, &item.entry.path) != Ordering::Less) {
            return Err(disorder());
        }
        self.last = Some(item.entry.path.clone());
        Ok(item)
    }
}

fn disorder() -> Error {
    Error::corrupt("the directory of the pack is out of order")
}

impl<R: ReadAt> Iterator for Cursor<'_, R> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        let step = self.step();
        if step.is_err() {
            self.levels.clear();
        }
        step.transpose()
    }
}
