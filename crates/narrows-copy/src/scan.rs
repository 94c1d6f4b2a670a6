//! Walks the sources: every folder before its content, names in order. For each level, only the
//! names of one folder are in memory.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use narrows::entry::{Entry, EntryKind, PATH_LEN_MAX, check_path};
use narrows_host::file_state::FileState;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use xxhash_rust::xxh3::xxh3_64;

use super::filter::Filter;
use super::listing::each_name;
use super::partial_name::is_own;
use super::tree::Tree;
use super::{e_text, meta, shown};

mod listed;

use listed::Depth;
pub use listed::Listed;

/// One source of a copy.
pub struct Root {
    /// The folder below which entries are looked up.
    pub tree: Tree,
    /// Name of the source in `tree`, and of its entry; empty if the contents of `tree` are copied
    /// without the folder itself.
    top: Vec<u8>,
    /// The target of the copy, if it is on this host: a source may contain it.
    target: Option<Arc<TargetFolder>>,
}

/// The target folder of a copy on this host, identified by its inode whatever path leads to it.
/// Entries that the copy creates in it are not part of the sources.
pub struct TargetFolder {
    place: (u64, u64),
    /// The folder was created by this copy.
    is_new: bool,
    /// Names that the copy creates in it, and whether they existed before.
    tops: Vec<(Vec<u8>, bool)>,
    /// The contents of a source folder are copied directly into it.
    takes_contents: bool,
}

impl TargetFolder {
    /// Describes what a copy of `roots` creates in `folder`.
    pub fn new(folder: &Tree, is_new: bool, roots: &[Root]) -> io::Result<Self> {
        let stat = rustix::fs::fstat(folder.root())?;
        let is_there =
            |name: &[u8]| rustix::fs::statat(folder.root(), name, AtFlags::SYMLINK_NOFOLLOW).is_ok() && !is_new;
        let tops = roots.iter().filter(|root| !root.top.is_empty());
        Ok(Self {
            place: (stat.st_dev, stat.st_ino),
            is_new,
            tops: tops.map(|root| (root.top.clone(), is_there(&root.top))).collect(),
            takes_contents: roots.iter().any(|root| root.top.is_empty()),
        })
    }

    fn is_at(&self, stat: &Stat) -> bool {
        (stat.st_dev, stat.st_ino) == self.place
    }
}

/// What a walk does beyond finding everything.
#[derive(Debug, Clone, Default)]
pub struct Picks {
    /// Symbolic links are replaced by what they lead to. Roots have to follow them too
    /// ([`Root::following`]).
    pub follow: bool,
    /// Other file systems that are mounted in a source are left out.
    pub one_file_system: bool,
    /// Entries of files get the digests of their contents.
    pub checksum: bool,
    /// Bytes that were read for these.
    pub compared: Arc<AtomicU64>,
    /// Only these paths, and the folders above them.
    pub listed: Option<Listed>,
    /// Sockets are handed over as entries.
    pub sockets: bool,
}

/// An item that a walk hands over.
pub enum Found {
    /// An entry of the root with this number, and what it was when it was looked at.
    Entry { root: usize, entry: Entry, state: FileState },
    /// Data of unknown length from a reader. No walk finds it; it is put in by the caller.
    Stream(Box<dyn Read + Send>),
    /// An entry that could not be examined; the walk continues.
    Failed(String),
    /// The path of a socket, which cannot be copied; the walk continues.
    Socket(String),
}

/// What is said of a socket that is left out.
pub fn socket_words(path: &str) -> String {
    format!("left out {path}: it is a socket")
}

/// Why an entry is not handed over.
enum LeftOut {
    Failed(String),
    Socket { path: Vec<u8>, stat: Box<Stat> },
}

impl From<LeftOut> for Found {
    fn from(left_out: LeftOut) -> Self {
        match left_out {
            LeftOut::Failed(text) => Self::Failed(text),
            LeftOut::Socket { path, .. } => Self::Socket(shown(&path)),
        }
    }
}

impl Root {
    /// Opens a source. `path/` and `path/.` are the contents of the folder, `path` is the folder or
    /// file itself, as with rsync.
    pub fn open(path: &Path, recursive: bool) -> io::Result<Self> {
        // Without -r only files are copied, and links are followed, as with cp and scp.
        Self::open_as(path, recursive, false)
    }

    /// As [`Root::open`]; links are followed wherever they are, so that the source has none.
    pub fn following(path: &Path, recursive: bool) -> io::Result<Self> {
        Self::open_as(path, recursive, true)
    }

    fn open_as(path: &Path, recursive: bool, follow: bool) -> io::Result<Self> {
        let contents = top(path).is_none();
        let data = if recursive && !contents && !follow { path.symlink_metadata()? } else { path.metadata()? };
        if data.is_dir() && !recursive {
            return Err(needs_recursive());
        }
        if contents {
            let tree = Tree::open(path)?;
            return Ok(Self::new(if follow { tree.following() } else { tree }, Vec::new()));
        }
        let real;
        let (place, name) = if recursive || follow {
            (path, path.file_name())
        } else {
            real = path.canonicalize()?;
            (real.as_path(), path.file_name())
        };
        let parent = place.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let tree = Tree::open(parent)?;
        let tree = if follow { tree.following() } else { tree };
        let mut root = Self::new(tree, name.unwrap_or_default().as_bytes().to_vec());
        if let Some(there) = place.file_name().filter(|n| Some(*n) != name) {
            root.tree.alias(&root.top, there.as_bytes());
        }
        Ok(root)
    }

    /// A source with the name `top` in `tree`.
    pub fn new(tree: Tree, top: Vec<u8>) -> Self {
        Self { tree, top, target: None }
    }

    /// The same source for another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { tree: self.tree.try_clone()?, top: self.top.clone(), target: self.target.clone() })
    }

    /// Lets the paths of a list lead to where they are in this source. `follows`: also through links to folders, as
    /// with rsync.
    pub fn list(&mut self, listed: &Listed, follows: bool) {
        let aliases = listed.aliases(self.tree.root(), follows);
        self.tree.set_aliases(aliases);
    }

    /// Sets the target folder, which may be within the source.
    pub fn goes_to(&mut self, target: &Arc<TargetFolder>) {
        self.target = Some(Arc::clone(target));
    }

    /// Device and inode of the source, if it is a folder.
    pub fn place(&self) -> Option<(u64, u64)> {
        let stat = match &self.top[..] {
            [] => rustix::fs::fstat(self.tree.root()),
            name => rustix::fs::statat(self.tree.root(), name, nofollow(self.tree.follows())),
        };
        let folder = stat.ok().filter(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory);
        folder.map(|s| (s.st_dev, s.st_ino))
    }
}

/// The error for a folder without -r.
pub fn needs_recursive() -> io::Error {
    io::Error::new(io::ErrorKind::IsADirectory, "it is a folder, and only -r copies folders")
}

/// The name of the first entry of a source; `None` if the contents of a folder are copied without
/// the folder itself.
pub fn top(path: &Path) -> Option<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    let contents = bytes.ends_with(b"/") || bytes.ends_with(b"/.");
    match path.components().next_back() {
        Some(Component::Normal(name)) if !contents => Some(name.as_bytes().to_vec()),
        _ => None,
    }
}

fn nofollow(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

/// A folder that is being walked, with its remaining names.
struct Level {
    path: Vec<u8>,
    /// Device and inode.
    place: (u64, u64),
    names: std::vec::IntoIter<OsString>,
}

/// Walks `roots` and passes every item to `on_found`, until that returns false.
pub fn walk(roots: &[Root], filter: &Filter, on_found: impl FnMut(Found) -> bool) {
    walk_picked(roots, filter, &Picks::default(), on_found);
}

/// As [`walk`], with what the user picks.
pub fn walk_picked(roots: &[Root], filter: &Filter, picks: &Picks, mut on_found: impl FnMut(Found) -> bool) {
    let came = (roots.len() > 1 || picks.listed.is_some()).then(HashMap::new);
    let mut scan = Scan { filter, picks, entries: 0, folder: None, linked: HashMap::new(), came };
    for (index, root) in roots.iter().enumerate() {
        if !scan.root(index, root, &mut on_found) {
            return;
        }
    }
}

struct Scan<'a> {
    filter: &'a Filter,
    picks: &'a Picks,
    /// Number of entries handed over so far, which is the number of the next one.
    entries: u64,
    /// The number of a folder that was handed over.
    folder: Option<u64>,
    /// Files with several names: the number of the first name by device and inode.
    linked: HashMap<(u64, u64), u64>,
    /// With several sources, the entries handed over so far by the hash of their paths.
    came: Option<HashMap<u64, Came>>,
}

/// Device and inode, and whether it is a folder.
type Came = ((u64, u64), bool);

/// How to handle an entry whose path occurred before in another source.
enum Again {
    /// It is the same file: skip it.
    Same,
    /// Both are folders: merge them.
    Merge,
    /// Report and skip it.
    Conflict,
}

impl Scan<'_> {
    fn root(&mut self, index: usize, root: &Root, on_found: &mut impl FnMut(Found) -> bool) -> bool {
        // A clone, because another thread reads files through the original tree.
        let mut tree = match root.tree.try_clone() {
            Ok(tree) => tree,
            Err(e) => return on_found(Found::Failed(format!("{}: {}", shown(&root.top), e_text(&e)))),
        };
        let device = root.place().map(|(device, _)| device);
        match &self.picks.listed {
            None => self.below(index, root, &mut tree, (root.top.clone(), Depth::All), device, on_found),
            Some(listed) => {
                let mut walked: Option<&[u8]> = None;
                listed.paths.iter().all(|(path, depth)| {
                    if walked.is_some_and(|top| listed.is_in(path, top)) {
                        return true;
                    }
                    // As by rsync, folders above what is not there are not made.
                    if *depth == Depth::Above && !listed.within(path).any(|path| is_there(&mut tree, path)) {
                        return true;
                    }
                    if *depth == Depth::All {
                        walked = Some(path);
                    }
                    self.below(index, root, &mut tree, (path.clone(), *depth), device, on_found)
                })
            }
        }
    }

    /// Hands over the entry `start.0`, and what is in it; false to stop.
    fn below(
        &mut self,
        index: usize,
        root: &Root,
        tree: &mut Tree,
        start: (Vec<u8>, Depth),
        device: Option<u64>,
        on_found: &mut impl FnMut(Found) -> bool,
    ) -> bool {
        let mut levels: Vec<Level> = Vec::new();
        let (first, depth) = start;
        let mut next = Some(first);
        loop {
            let Some(path) = next.take().or_else(|| next_path(&mut levels)) else { return true };
            if path.len() > PATH_LEN_MAX {
                if !on_found(Found::Failed(format!("{}: its path is longer than 4095 bytes", shown(&path)))) {
                    return false;
                }
                continue;
            }
            match self.look(tree, path) {
                Ok(None) => {}
                Ok(Some((entry, _))) if self.filter.leaves_out(&entry.path, entry.kind == EntryKind::Folder) => {}
                Ok(Some((mut entry, stat))) => {
                    let mut is_again = false;
                    match self.again(&entry, &stat) {
                        // Listed once more: now for what is in it.
                        Some(Again::Same) if self.picks.listed.is_some() && entry.kind == EntryKind::Folder => {
                            is_again = true;
                        }
                        Some(Again::Same) => continue,
                        Some(Again::Conflict) => {
                            let text =
                                format!("left out {}: another source has an entry of that name", shown(&entry.path));
                            if !on_found(Found::Failed(text)) {
                                return false;
                            }
                            continue;
                        }
                        Some(Again::Merge) | None => {}
                    }
                    let folder = (entry.kind == EntryKind::Folder).then(|| entry.path.clone());
                    // A source that is the target itself is copied onto itself, but not into
                    // itself.
                    let target = root.target.as_deref().filter(|t| !entry.path.is_empty() && t.is_at(&stat));
                    if let Some(target) = target.filter(|t| t.is_new || t.takes_contents) {
                        let text = format!("left out {}: it is the target of the copy", shown(&entry.path));
                        if !target.is_new && !on_found(Found::Failed(text)) {
                            return false;
                        }
                        continue;
                    }
                    let place = (stat.st_dev, stat.st_ino);
                    let is_elsewhere = folder.is_some() && device.is_some_and(|device| device != stat.st_dev);
                    let is_elsewhere = self.picks.one_file_system && is_elsewhere;
                    if is_elsewhere {
                        meta::put_mount(&mut entry);
                    }
                    if folder.is_some() && self.picks.follow && levels.iter().any(|level| level.place == place) {
                        let name = shown(&entry.path);
                        if !on_found(Found::Failed(format!("left out {name}: it leads to a folder that contains it"))) {
                            return false;
                        }
                        continue;
                    }
                    if !is_again {
                        self.find_links(&mut entry, &stat);
                        if self.picks.checksum {
                            digest(tree, &mut entry, &self.picks.compared);
                        }
                        if folder.is_some() {
                            self.folder = Some(self.entries);
                        }
                        self.entries += 1;
                        if !on_found(Found::Entry { root: index, entry, state: FileState::from(&stat) }) {
                            return false;
                        }
                    }
                    let goes_on = match depth {
                        Depth::Above | Depth::Nothing => false,
                        Depth::Children => levels.is_empty(),
                        Depth::All => true,
                    };
                    if let Some(path) = folder.filter(|_| goes_on && !is_elsewhere) {
                        match names(tree, &path) {
                            Ok(mut names) => {
                                for (top, was_there) in target.iter().flat_map(|t| &t.tops) {
                                    names.retain(|name| name.as_bytes() != top);
                                    let text = format!("left out {}/{}: the copy goes there", shown(&path), shown(top));
                                    if *was_there && !on_found(Found::Failed(text)) {
                                        return false;
                                    }
                                }
                                levels.push(Level { path, place, names: names.into_iter() });
                            }
                            Err(e) => {
                                let name = if path.is_empty() { ".".into() } else { shown(&path) };
                                let text = format!("cannot read the folder {name}: {}", e_text(&e));
                                if !on_found(Found::Failed(text)) {
                                    return false;
                                }
                            }
                        }
                    }
                }
                Err(left_out) => {
                    let found = match self.socket(left_out, index) {
                        Ok(None) => continue,
                        Ok(Some(found)) => found,
                        Err(left_out) => left_out.into(),
                    };
                    if !on_found(found) {
                        return false;
                    }
                }
            }
        }
    }

    fn look(&mut self, tree: &mut Tree, path: Vec<u8>) -> Result<Option<(Entry, Stat)>, LeftOut> {
        let cannot = |path: &[u8], e: io::Error| match e.kind() {
            // It existed when its folder was read, unless a list names it or a link leads nowhere.
            io::ErrorKind::NotFound if self.picks.follow || self.picks.listed.is_some() => {
                LeftOut::Failed(format!("cannot find {}", shown(path)))
            }
            io::ErrorKind::NotFound => LeftOut::Failed(format!("{} has vanished", shown(path))),
            _ => LeftOut::Failed(format!("cannot examine {}: {}", shown(path), e_text(&e))),
        };
        check_path(&path).map_err(|e| LeftOut::Failed(e.to_string()))?;
        if path.is_empty() {
            let folder = tree.folder(b"").map_err(|e| cannot(&path, e))?;
            let stat = rustix::fs::fstat(&folder).map_err(|e| cannot(&path, e.into()))?;
            let entry = meta::entry(&folder, OsStr::new("."), path, &stat);
            let entry = entry.map_err(|e| LeftOut::Failed(e.to_string()))?;
            return Ok(entry.map(|entry| (entry, stat)));
        }
        let found = tree.parent(&path).and_then(|(parent, name)| {
            let follow = self.picks.follow;
            let stat = rustix::fs::statat(&parent, &name, nofollow(follow))?;
            let entry = if follow { meta::entry_followed } else { meta::entry };
            Ok((entry(&parent, &name, path.clone(), &stat)?, stat))
        });
        let (entry, stat) = found.map_err(|e| cannot(&path, e))?;
        match entry {
            Some(entry) => Ok(Some((entry, stat))),
            None if self.filter.leaves_out(&path, false) => Ok(None),
            None => Err(LeftOut::Socket { path, stat: Box::new(stat) }),
        }
    }

    /// The entry of a socket, if it is to be handed over; `None` if it came before.
    fn socket(&mut self, left_out: LeftOut, root: usize) -> Result<Option<Found>, LeftOut> {
        match left_out {
            LeftOut::Socket { path, stat } if self.picks.sockets => {
                let mut entry = meta::socket(path, &stat, self.folder);
                Ok(match self.again(&entry, &stat) {
                    Some(Again::Same) => None,
                    Some(Again::Merge | Again::Conflict) => {
                        let name = shown(&entry.path);
                        Some(Found::Failed(format!("left out {name}: another source has an entry of that name")))
                    }
                    None => {
                        self.find_links(&mut entry, &stat);
                        self.entries += 1;
                        Some(Found::Entry { root, entry, state: FileState::from(&*stat) })
                    }
                })
            }
            left_out => Err(left_out),
        }
    }

    fn again(&mut self, entry: &Entry, stat: &Stat) -> Option<Again> {
        let own = ((stat.st_dev, stat.st_ino), entry.kind == EntryKind::Folder);
        let before = match self.came.as_mut()?.entry(xxh3_64(&entry.path)) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert(own);
                return None;
            }
            std::collections::hash_map::Entry::Occupied(before) => *before.get(),
        };
        Some(match before {
            before if before == own => Again::Same,
            (_, true) if own.1 => Again::Merge,
            _ => Again::Conflict,
        })
    }

    /// Marks further names of a file. Called only for announced entries, as later names must refer
    /// to an entry that the receiver knows.
    fn find_links(&mut self, entry: &mut Entry, stat: &Stat) {
        if stat.st_nlink < 2 || entry.kind == EntryKind::Folder {
            return;
        }
        let first = *self.linked.entry((stat.st_dev, stat.st_ino)).or_insert(self.entries);
        if let EntryKind::File { linked, .. } = &mut entry.kind {
            *linked = true;
            if first < self.entries {
                entry.kind = EntryKind::HardLink { of: first };
            }
        } else {
            meta::put_link(entry, first);
        }
    }
}

/// Whether there is an entry of this path, or it cannot be told.
fn is_there(tree: &mut Tree, path: &[u8]) -> bool {
    let found = tree.parent(path).and_then(|(folder, name)| {
        rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)
    });
    !found.is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

fn next_path(levels: &mut Vec<Level>) -> Option<Vec<u8>> {
    loop {
        let level = levels.last_mut()?;
        if let Some(name) = level.names.next() {
            let mut path = level.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            return Some(path);
        }
        levels.pop();
    }
}

/// Adds the digest of its content to the entry of a file. One that cannot be read fails when it is sent.
fn digest(tree: &mut Tree, entry: &mut Entry, read: &AtomicU64) {
    if !matches!(entry.kind, EntryKind::File { .. }) {
        return;
    }
    let opened = tree.open_below(&entry.path, OFlags::RDONLY | OFlags::NONBLOCK);
    if let Ok(digest) = opened.and_then(|file| super::hash::of_file(file, read)) {
        meta::put_digest(entry, &digest);
    }
}

/// The names in a folder, in order, without temporary files of narrows.
fn names(tree: &mut Tree, path: &[u8]) -> io::Result<Vec<OsString>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let folder = if path.is_empty() {
        rustix::fs::openat(tree.folder(b"")?, ".", flags | OFlags::CLOEXEC, Mode::empty())?
    } else {
        tree.open_below(path, flags)?
    };
    let mut names = Vec::new();
    each_name(&folder, |name| {
        if !is_own(&folder, name) {
            names.push(name.to_owned());
        }
        ControlFlow::Continue(())
    })?;
    names.sort_unstable();
    Ok(names)
}
