//! `--delete`: removes entries at the target that the sources do not have. It acts only in folders
//! that the copy covered and that existed before, and only after a copy without failures.
//!
//! Every step is by name in an open folder that was reached without following a symbolic link and
//! without leaving the file system. So nothing outside of those folders is touched, whatever is
//! changed meanwhile.
//!
//! A file system may list what was stored under another spelling of its name, and give that an inode
//! number of its own. So what has the name of something stored, in whatever spelling the folder takes
//! for the same, stays; and a folder that lists less of what was stored in it than that explains
//! loses nothing at all.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use narrows::entry::Answer;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::names::Names;
use super::partial;
use super::session::Session;
use crate::error::Result;
use crate::filter::Filter;
use crate::frames::Form;
use crate::hello::{Backup, Confirmed, Delete, NameSet, StoreOptions};
use crate::listing::each_name;
use crate::partial_name::{is_own, looks_partial};
use crate::spelling::fold_hash;
use crate::tree::{open_on_same_device, split};
use crate::{e_text, shown};
use narrows_host::signals;

/// Maximum depth of a folder to be removed. Each level keeps a descriptor; real trees have a dozen.
const DEPTH_MAX: usize = 128;

/// State for the removal that is collected while the copy runs.
pub(super) struct Removal {
    filter: Filter,
    /// Path of the folder of backups.
    backups: Option<Vec<u8>>,
    max: Option<u64>,
    names: bool,
    /// What the user has seen and agreed to; nothing else is removed.
    confirmed: Option<Confirmed>,
    /// Hashes of the paths of the folders that arrived. As for other entries, a collision only
    /// keeps a file that could be removed.
    came: HashSet<u64>,
    covered: Vec<Covered>,
    /// How many entries came of what is in a folder, by the hash of its path.
    held: HashMap<u64, u64>,
    /// Sources of the copy on this host, by device and inode.
    pub(super) protected: HashSet<(u64, u64)>,
    /// Something did not arrive completely, whether the sender reported it or not.
    pub(super) incomplete: bool,
}

/// A folder that arrived and existed before.
struct Covered {
    id: u64,
    path: Vec<u8>,
    place: (u64, u64),
}

impl Removal {
    pub(super) fn new(asked: &Delete, options: &StoreOptions) -> Result<Self> {
        let backup = options.habits.backup.as_ref();
        // Backups of earlier copies stay, unless the patterns of the copy say otherwise.
        let beside = backup.and_then(Backup::pattern_beside);
        let patterns: Vec<_> = beside.into_iter().chain(asked.exclude.iter().cloned()).collect();
        Ok(Self {
            filter: Filter::new(&patterns)?.of_stored(options.form == Form::AsTheyCame),
            backups: backup.and_then(Backup::folder),
            max: asked.max,
            names: asked.names,
            confirmed: asked.confirmed,
            came: HashSet::new(),
            covered: Vec::new(),
            held: HashMap::new(),
            protected: HashSet::new(),
            incomplete: false,
        })
    }

    /// Whether the folder with this hash of its path arrived.
    pub(super) fn has_come(&self, path: u64) -> bool {
        self.came.contains(&path)
    }

    /// Notes that an entry of this path is stored, or was there.
    pub(super) fn holds(&mut self, path: &[u8]) {
        if !path.is_empty() {
            *self.held.entry(xxh3_64(split(path).0)).or_default() += 1;
        }
    }

    /// Whether a pattern protects this path, or it is one of a backup.
    pub(super) fn protects(&self, path: &[u8], is_folder: bool) -> bool {
        self.filter.leaves_out(path, is_folder) || self.is_of_backups(path)
    }

    /// Whether this path is in the folder of backups, or that itself.
    fn is_of_backups(&self, path: &[u8]) -> bool {
        let rest = self.backups.as_ref().and_then(|folder| path.strip_prefix(&folder[..]));
        rest.is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    }

    /// Notes that the folder `path` arrived; `there` is its `stat` if it existed before. A folder
    /// that the copy created contains nothing to remove.
    pub(super) fn covers(&mut self, id: u64, path: &[u8], there: Option<&Stat>) {
        if self.came.insert(xxh3_64(path))
            && let Some(stat) = there
        {
            self.covered.push(Covered { id, path: path.to_vec(), place: (stat.st_dev, stat.st_ino) });
        }
    }
}

/// Why a removal stops early.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// The limit of `--max-delete` would be exceeded.
    TooMany,
    /// There are more than anybody has agreed to.
    NoRoom,
    /// A signal arrived, or the sender is gone.
    Interrupted,
}

/// Mode of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Only count, to check the limit, and what the user has agreed to.
    Count,
    /// Only report, in a dry run.
    Name,
    Remove,
}

impl Names {
    /// Removes what the sources do not have, if `--delete` was requested and nothing failed.
    pub(super) fn remove_others(&mut self, is_all_here: bool, session: &mut Session) -> io::Result<()> {
        let Some(removal) = session.removal.take() else { return Ok(()) };
        if session.report.stored.failed > 0 || removal.incomplete || !is_all_here {
            self.remove_nothing("not everything could be copied", session);
        } else if removal.came.is_empty() {
            self.remove_nothing("no folder was copied", session);
        } else if self.sweep(&removal, session) == Err(Stop::Interrupted) {
            self.refuse_waiting(session);
            return Err(io::Error::other("interrupted while removing what the sources do not have"));
        }
        Ok(())
    }

    fn remove_nothing(&mut self, why: &str, session: &mut Session) {
        self.refuse_waiting(session);
        let text = format!("nothing is removed: {why}");
        if session.report.observers.on_removed.is_none() {
            session.report.answers.put(&Answer::Removed { count: 0, text: text.clone() });
        }
        session.report.stored.not_removed = Some(text);
    }

    fn sweep(&mut self, removal: &Removal, session: &mut Session) -> Result<(), Stop> {
        let too_many = removal.max.map(|max| format!("it would be more than {max}, the limit of --max-delete"));
        let doing = if session.options.dry_run { Doing::Name } else { Doing::Remove };
        let mut agreed = None;
        if doing == Doing::Remove && (removal.max.is_some() || removal.confirmed.is_some()) {
            let mut sweep = Sweep::new(session, self, removal, Doing::Count);
            let result = sweep.run();
            let mut found = sweep.found;
            let is_other = result.is_ok() && removal.confirmed.is_some_and(|confirmed| found.confirmed() != confirmed);
            match (result, too_many.as_deref()) {
                (Err(Stop::TooMany), Some(why)) => {
                    self.remove_nothing(why, session);
                    return Ok(());
                }
                (Err(Stop::NoRoom), _) => {
                    self.remove_nothing("it would be far more than was shown", session);
                    return Ok(());
                }
                _ if is_other => {
                    self.remove_nothing(OTHERS, session);
                    return Ok(());
                }
                (result, _) => result?,
            }
            agreed = removal.confirmed.map(|_| found);
        }
        let mut sweep = Sweep::new(session, self, removal, doing);
        sweep.agreed = agreed;
        let result = sweep.run();
        let count = sweep.count;
        self.place_waiting(session);
        match (result, too_many) {
            (Err(Stop::TooMany), _) => {
                session.report.failed(0, "there is more to remove than --max-delete allows; the rest was kept".into());
            }
            // A dry run has reported everything.
            (Ok(()), Some(why)) if removal.max.is_some_and(|max| count > max) => self.remove_nothing(&why, session),
            (result, _) => result?,
        }
        let heard = session.report.observers.on_removed.is_some() || session.report.answers.settle_all();
        if heard { Ok(()) } else { Err(Stop::Interrupted) }
    }
}

/// Why nothing is removed if the user has agreed to something else.
const OTHERS: &str = "what would go is not what was shown, since something changed meanwhile; run it again and look";

struct Sweep<'a> {
    session: &'a mut Session,
    names: &'a mut Names,
    removal: &'a Removal,
    doing: Doing,
    /// Number of entries that were removed, or would be.
    count: u64,
    /// Their names, if they are compared with what the user has agreed to.
    found: NameSet,
    /// The names that the user has agreed to.
    agreed: Option<NameSet>,
}

/// An open folder.
struct Place<'a> {
    /// The entry that it belongs to.
    id: u64,
    path: &'a [u8],
    folder: &'a OwnedFd,
    depth: usize,
}

impl<'a> Sweep<'a> {
    fn new(session: &'a mut Session, names: &'a mut Names, removal: &'a Removal, doing: Doing) -> Self {
        Self { session, names, removal, doing, count: 0, found: NameSet::default(), agreed: None }
    }

    fn run(&mut self) -> Result<(), Stop> {
        let removal = self.removal;
        let root = removal.covered.iter().any(|c| c.path.is_empty());
        // Folders that make room for another kind of entry.
        let in_way: Vec<_> = self.names.waiting.iter().map(|w| (w.id, w.path.clone())).collect();
        for (id, path) in in_way {
            let (parent, name) = split(&path);
            match self.open(parent, root) {
                Ok(folder) => {
                    let place = Place { id, path: parent, folder: &folder, depth: 0 };
                    self.entry(&place, OsStr::from_bytes(name))?;
                }
                Err(e) => drop(self.cannot_remove(id, &path, &e)?),
            }
        }
        for covered in &removal.covered {
            // The sender should not have sent this folder, as its content is protected.
            if removal.filter.leaves_out_folder(&covered.path) || removal.is_of_backups(&covered.path) {
                continue;
            }
            if let Err(e) = self.covered(covered, root)? {
                let path = if covered.path.is_empty() { ".".into() } else { shown(&covered.path) };
                self.failed(covered.id, format!("cannot remove anything in {path}: {}", e_text(&e)))?;
            }
        }
        Ok(())
    }

    /// Removes entries in a covered folder. `root`: the root folder is covered, and its file system
    /// must not be left; otherwise that of the topmost folder.
    fn covered(&mut self, covered: &Covered, root: bool) -> Result<io::Result<()>, Stop> {
        let (folder, elsewhere) = match self.open(&covered.path, root) {
            Ok(folder) => (Ok(folder), false),
            Err(e) if e.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {
                (self.session.tree.open_below(&covered.path, OFlags::RDONLY | OFlags::DIRECTORY), true)
            }
            Err(e) => (Err(e), false),
        };
        let looked = folder.and_then(|folder| {
            let stat = rustix::fs::fstat(&folder)?;
            if (stat.st_dev, stat.st_ino) != covered.place {
                return Err(io::Error::other("it was replaced meanwhile"));
            }
            let (known, others): (Vec<_>, Vec<_>) =
                names(&folder, |_| true)?.into_iter().partition(|name| self.is_known(&join(&covered.path, name)));
            let names = self.unstored(&covered.path, &known, others)?;
            Ok((folder, names))
        });
        let (folder, names) = match looked {
            Ok(looked) => looked,
            Err(e) => return Ok(Err(e)),
        };
        if elsewhere && !names.is_empty() {
            return Ok(Err(io::Error::other("it is on another file system")));
        }
        let place = Place { id: covered.id, path: &covered.path, folder: &folder, depth: 0 };
        for name in names {
            self.entry(&place, &name)?;
        }
        Ok(Ok(()))
    }

    /// Those of the `others` in a folder that are not what was stored there in another spelling. `known`: the
    /// names that are listed as they came.
    fn unstored(&mut self, folder: &[u8], known: &[OsString], mut others: Vec<OsString>) -> io::Result<Vec<OsString>> {
        let mut respelt = Vec::new();
        others.retain(|name| {
            let path = join(folder, name);
            let stays = self.names.is_stored(&path, self.session);
            if stays {
                respelt.push(fold_hash(&path));
            }
            !stays
        });
        if !self.session.options.dry_run && !others.is_empty() {
            let hash = xxh3_64(folder);
            // Folders that are in the way are gone by now.
            let waiting = self.names.waiting.iter().filter(|w| xxh3_64(split(&w.path).0) == hash).count() as u64;
            let known = known.iter().map(|name| join(folder, name)).filter(|path| self.names.spellings.has(path));
            let known: Vec<u64> = known.map(|path| fold_hash(&path)).collect();
            // A name that stays beside one that is listed as it came says nothing of any other.
            let beside: HashSet<u64> = known.iter().copied().collect();
            let respelt: HashSet<u64> = respelt.into_iter().filter(|fold| !beside.contains(fold)).collect();
            let held = self.removal.held.get(&hash).copied().unwrap_or(0);
            if held > (known.len() + respelt.len()) as u64 + waiting {
                return Err(io::Error::other("it does not list all that was stored in it under the names that it got"));
            }
        }
        Ok(others)
    }

    fn open(&mut self, path: &[u8], root: bool) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let top_len = if root { 0 } else { path.iter().position(|b| *b == b'/').unwrap_or(path.len()) };
        let (top, rest) = path.split_at(top_len);
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        let top = match top {
            [] => self.session.tree.root().try_clone()?,
            top => self.session.tree.open_below(top, flags)?,
        };
        if rest.is_empty() { Ok(top) } else { Ok(open_on_same_device(&top, rest)?) }
    }

    fn is_known(&self, path: &[u8]) -> bool {
        let hash = xxh3_64(path);
        self.names.spellings.has(path) || self.names.backups.contains(&hash) || self.removal.came.contains(&hash)
    }

    /// Removes an entry that the sources do not have; returns whether it is gone.
    fn entry(&mut self, place: &Place<'_>, name: &OsStr) -> Result<bool, Stop> {
        if signals::received().is_some() {
            return Err(Stop::Interrupted);
        }
        let path = join(place.path, name);
        let (kind, inode) = match rustix::fs::statat(place.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => (FileType::from_raw_mode(stat.st_mode), (stat.st_dev, stat.st_ino)),
            Err(Errno::NOENT) => return Ok(true),
            Err(e) => return self.cannot_remove(place.id, &path, &e.into()),
        };
        let is_folder = kind == FileType::Directory;
        if self.removal.protects(&path, is_folder) {
            return Ok(false);
        }
        // With the folder that contains it, it goes.
        if is_folder && place.depth == 0 && self.session.home.is_at(&path) {
            return Ok(false);
        }
        if kind == FileType::RegularFile && looks_partial(name.as_bytes()) {
            // Another copy may be writing it. A leftover of a killed copy is not counted, as it is
            // no file of the user.
            if is_own(place.folder, name) {
                return Ok(self.doing != Doing::Remove || partial::remove_stale(place.folder, name));
            }
            // An older version makes no mark.
            if partial::is_held(place.folder, name) {
                return Ok(false);
            }
        }
        if is_folder && self.removal.protected.contains(&inode) {
            return self.cannot_remove(place.id, &path, &io::Error::other("it is a source of this copy"));
        }
        if is_folder && !self.empty(place, name, &path)? {
            return Ok(false);
        }
        self.take_away(place, &path, is_folder)
    }

    /// Removes everything in a folder; returns whether it is empty then.
    fn empty(&mut self, place: &Place<'_>, name: &OsStr, path: &[u8]) -> Result<bool, Stop> {
        if place.depth == DEPTH_MAX {
            let deep = io::Error::other("its folders are nested too deeply; remove them manually");
            return self.cannot_remove(place.id, path, &deep);
        }
        let opened = open_on_same_device(place.folder, name.as_bytes()).map_err(|e| match e {
            Errno::XDEV => io::Error::other("another file system is mounted there"),
            e => e.into(),
        });
        let looked = opened.and_then(|folder| {
            let locked = if self.doing == Doing::Remove { unlock(&folder) } else { None };
            Ok((names(&folder, |_| true)?, folder, locked))
        });
        let (names, folder, locked) = match looked {
            Ok(looked) => looked,
            Err(e) => return self.cannot_remove(place.id, path, &e),
        };
        let inside = Place { id: place.id, path, folder: &folder, depth: place.depth + 1 };
        let gone = names.iter().try_fold(true, |gone, name| Ok(self.entry(&inside, name)? && gone));
        if let (Ok(false) | Err(_), Some(mode)) = (&gone, locked) {
            let _ = rustix::fs::fchmod(&folder, mode);
        }
        gone
    }

    fn take_away(&mut self, place: &Place<'_>, path: &[u8], is_folder: bool) -> Result<bool, Stop> {
        if self.doing != Doing::Name && self.removal.max.is_some_and(|max| self.count >= max) {
            return Err(Stop::TooMany);
        }
        let name = || shown(path) + if is_folder { "/" } else { "" };
        let counts_names = self.doing == Doing::Count && self.removal.confirmed.is_some();
        if counts_names && !(self.session.room.take_hash() && self.found.add(&name())) {
            return Err(Stop::NoRoom);
        }
        if self.doing == Doing::Remove && self.agreed.as_mut().is_some_and(|agreed| !agreed.has(&name())) {
            let e = io::Error::other("it came after the question whether to remove the others");
            return self.cannot_remove(place.id, path, &e);
        }
        let backup = self.session.options.habits.backup.as_ref();
        let is_kept = !is_folder && backup.is_some_and(|backup| !backup.is_one(path));
        if self.doing == Doing::Remove && is_kept {
            if let Err(e) = self.names.set_aside(path, true, self.session) {
                return self.cannot_remove(place.id, path, &e);
            }
        } else if self.doing == Doing::Remove {
            let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            match rustix::fs::unlinkat(place.folder, OsStr::from_bytes(split(path).1), flags) {
                Ok(()) => {}
                Err(Errno::NOENT) => return Ok(true),
                Err(e) => return self.cannot_remove(place.id, path, &e.into()),
            }
        }
        self.count += 1;
        self.session.has_named |= self.doing == Doing::Remove;
        if self.doing != Doing::Count {
            let name = if self.removal.names { name() } else { String::new() };
            self.tell(name)?;
        }
        // A backup beside it keeps the folder.
        let in_place = self.session.options.habits.backup.as_ref().is_some_and(|backup| backup.dir.is_none());
        Ok(!(is_kept && in_place))
    }

    fn tell(&mut self, name: String) -> Result<(), Stop> {
        self.session.report.stored.removed += 1;
        match &self.session.report.observers.on_removed {
            Some(on_removed) => on_removed(&name),
            None => self.session.report.answers.removed(name),
        }
        self.settle()
    }

    fn cannot_remove(&mut self, id: u64, path: &[u8], e: &io::Error) -> Result<bool, Stop> {
        self.failed(id, format!("cannot remove {}: {}", shown(path), e_text(e)))?;
        Ok(false)
    }

    fn failed(&mut self, id: u64, text: String) -> Result<(), Stop> {
        if self.doing == Doing::Count {
            return Ok(());
        }
        self.session.report.failed(id, text);
        self.settle()
    }

    /// Waits until the sender has taken most of the answers, which limits their memory.
    fn settle(&self) -> Result<(), Stop> {
        let heard = self.session.report.observers.on_removed.is_some() || self.session.report.answers.settle();
        if heard { Ok(()) } else { Err(Stop::Interrupted) }
    }
}

/// Makes a folder of this user writable; returns its mode if it was changed.
fn unlock(folder: &OwnedFd) -> Option<Mode> {
    let stat = rustix::fs::fstat(folder).ok()?;
    if stat.st_mode & 0o300 == 0o300 || stat.st_uid != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    rustix::fs::fchmod(folder, mode | Mode::RWXU).ok().map(|()| mode)
}

fn join(folder: &[u8], name: &OsStr) -> Vec<u8> {
    let mut path = folder.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name.as_bytes());
    path
}

/// The `wanted` names in a folder, in order. One list for each level is in memory, as at the
/// sending end.
fn names(folder: &OwnedFd, wanted: impl Fn(&OsStr) -> bool) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    each_name(folder, |name| {
        if wanted(name) {
            names.push(name.to_owned());
        }
        ControlFlow::Continue(())
    })?;
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests;
