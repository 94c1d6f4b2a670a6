//! The paths of `--files-from`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use narrows::entry::check_path;
use rustix::fs::{AtFlags, FileType};

use crate::shown;
use crate::tree::Alias;

/// How a folder is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// The folder alone, because something in it is listed.
    Above,
    /// The entry alone.
    Nothing,
    /// The entries in it, but not what is in those.
    Children,
    All,
}

/// Longest path as it is written: that of an entry, and some `./` in it.
const PATH_MAX: usize = 8 << 10;
/// Bytes of the folders above all paths: a million folders, 32 bytes deep.
const HELD_MAX: usize = 32 << 20;

/// The paths of `--files-from`, below the only source.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// The paths that entries get, and those of the folders above them.
    pub(super) paths: BTreeMap<Vec<u8>, Depth>,
    /// Where these are in the source, if that is elsewhere for one of them: what is before `/./` is left out.
    places: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Those that are folders, whatever leads there.
    folders: BTreeSet<Vec<u8>>,
    /// Bytes of the folders above paths.
    held: usize,
}

impl Listed {
    /// The paths as the user wrote them: a slash in front of one is the source itself, and one after a
    /// folder means what is in it. What is before the first `/./` is no part of the path of the entry.
    /// `recursive`: everything in listed folders.
    ///
    /// # Errors
    /// A path leads out of the source.
    pub fn new(paths: &[PathBuf], recursive: bool) -> Result<Self, String> {
        let mut listed = Self::default();
        for path in paths {
            listed.add(path, recursive)?;
        }
        if listed.places.iter().all(|(path, place)| path == place) {
            listed.places.clear();
        }
        Ok(listed)
    }

    fn add(&mut self, path: &Path, recursive: bool) -> Result<(), String> {
        let bytes = path.as_os_str().as_bytes();
        // Each folder above a path is a path too, so a long one would need its square.
        if bytes.len() > PATH_MAX {
            return Err(format!("{}...: a path has at most {PATH_MAX} bytes", shown(&bytes[..40])));
        }
        let anchor = bytes.windows(3).position(|three| three == b"/./");
        let (before, inner) = bytes.split_at(anchor.unwrap_or(0));
        let before = names(before).map_err(|()| format!("{} leads out of the source", shown(bytes)))?.join(&b'/');
        let names = names(inner).map_err(|()| format!("{} leads out of the source", shown(bytes)))?;
        let is_folder = names.is_empty() || bytes.ends_with(b"/") || bytes.ends_with(b"/.");
        let mut inner: Vec<u8> = Vec::new();
        for name in names {
            if !inner.is_empty() {
                self.held += self.add_above(&before, &inner);
                if self.held > HELD_MAX {
                    return Err("the list names too many deep folders; copy it in parts".into());
                }
                inner.push(b'/');
            }
            inner.extend_from_slice(name);
        }
        check_path(&inner).map_err(|e| format!("{}: {e}", shown(bytes)))?;
        self.put_place(&before, &inner);
        if is_folder {
            self.folders.insert(inner.clone());
        }
        let depth = match recursive {
            true => Depth::All,
            false if is_folder => Depth::Children,
            false => Depth::Nothing,
        };
        let there = self.paths.entry(inner).or_insert(depth);
        *there = depth.max(*there);
        Ok(())
    }

    /// Adds a folder above a path; the bytes that it takes.
    fn add_above(&mut self, before: &[u8], folder: &[u8]) -> usize {
        self.folders.insert(folder.to_vec());
        self.put_place(before, folder);
        if self.paths.contains_key(folder) {
            return 0;
        }
        self.paths.insert(folder.to_vec(), Depth::Above);
        folder.len()
    }

    /// The first place of a path counts, as with rsync.
    fn put_place(&mut self, before: &[u8], path: &[u8]) {
        self.places.entry(path.to_vec()).or_insert_with(|| joined(before, path));
    }

    /// The path of an entry of the list in the source.
    fn place<'p>(&'p self, path: &'p [u8]) -> &'p [u8] {
        self.places.get(path).map_or(path, Vec::as_slice)
    }

    /// The listed paths in a folder, without those that are only above others.
    pub(super) fn within<'l>(&'l self, folder: &[u8]) -> impl Iterator<Item = &'l [u8]> {
        let begin = [folder, b"/"].concat();
        let below = self.paths.range(begin.clone()..).take_while(move |(path, _)| path.starts_with(&begin));
        below.filter(|(_, depth)| **depth > Depth::Above).map(|(path, _)| path.as_slice())
    }

    /// Whether a listed path is found where all of `top` is walked.
    pub(super) fn is_in(&self, path: &[u8], top: &[u8]) -> bool {
        let rest = match path.strip_prefix(top) {
            Some(rest) if top.is_empty() => rest,
            Some([b'/', rest @ ..]) => rest,
            _ => return false,
        };
        *self.place(path) == joined(self.place(top), rest)
    }

    /// Where the listed paths are in a source, if that cannot be told from their names. `follows`: links to folders
    /// above them are followed, and those with a slash after them.
    pub(super) fn aliases(&self, source: &OwnedFd, follows: bool) -> BTreeMap<Vec<u8>, Alias> {
        let is_link = |path: &[u8]| {
            let stat = rustix::fs::statat(source, path, AtFlags::SYMLINK_NOFOLLOW);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
        };
        let leads_to_folder = |path: &[u8]| {
            let stat = rustix::fs::statat(source, path, AtFlags::empty());
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        };
        let mut above: HashMap<Vec<u8>, bool> = HashMap::new();
        let mut is_through = |place: &[u8]| {
            let ends = place.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at).collect::<Vec<_>>();
            ends.into_iter().any(|at| {
                let folder = &place[..at];
                // A long list names the same folders again and again.
                above.get(folder).copied().unwrap_or_else(|| {
                    let found = is_link(folder);
                    above.insert(folder.to_vec(), found);
                    found
                })
            })
        };
        let mut aliases = BTreeMap::new();
        let mut differs = false;
        for path in self.paths.keys() {
            let real = self.place(path).to_vec();
            let through = follows && is_through(&real);
            let is_followed = follows && self.folders.contains(path) && !real.is_empty();
            let last = is_followed && is_link(&real) && leads_to_folder(&real);
            differs |= through || last || real != *path;
            aliases.insert(path.clone(), Alias { real, through, last });
        }
        if differs { aliases } else { BTreeMap::new() }
    }

    /// Length of the longest listed path that is this one or above it.
    pub(crate) fn nearest(&self, path: &[u8]) -> usize {
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).rfind(|end| self.paths.contains_key(&path[..*end])).unwrap_or(0)
    }

    /// Whether this path is listed for nothing but what is below it.
    pub(crate) fn is_only_above(&self, path: &[u8]) -> bool {
        self.paths.get(path) == Some(&Depth::Above)
    }

    /// Whether an entry with this path may come.
    pub(crate) fn allows(&self, path: &[u8]) -> bool {
        let above = |at: usize| if at == 0 { &path[..0] } else { &path[..at] };
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        let parent = crate::tree::split(path).0;
        self.paths.contains_key(path)
            || self.paths.get(parent).is_some_and(|depth| *depth >= Depth::Children && !path.is_empty())
            || ends.chain([0]).any(|at| self.paths.get(above(at)) == Some(&Depth::All))
    }
}

/// The names in a path, without empty ones and `.`.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, ()> {
    let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(|name| if name == b".." { Err(()) } else { Ok(name) }).collect()
}

fn joined(folder: &[u8], path: &[u8]) -> Vec<u8> {
    if folder.is_empty() || path.is_empty() { [folder, path].concat() } else { [folder, b"/", path].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_listed_may_come() {
        let listed =
            |paths: &[&str], recursive| Listed::new(&paths.iter().map(PathBuf::from).collect::<Vec<_>>(), recursive);
        let flat = listed(&["/a/b", "./c/", "d"], false).unwrap();
        for good in ["a", "a/b", "c", "c/x", "d"] {
            assert!(flat.allows(good.as_bytes()), "{good}");
        }
        for bad in ["", "a/c", "a/b/c", "c/x/y", "d/x", "e", "cc"] {
            assert!(!flat.allows(bad.as_bytes()), "{bad}");
        }
        let deep = listed(&["a/b", "c"], true).unwrap();
        assert!(deep.allows(b"a/b/x/y") && deep.allows(b"c/x/y") && !deep.allows(b"a/x") && !deep.allows(b"bc"));
        assert!(listed(&["/"], true).unwrap().allows(b"any/thing"));
        // What is before `/./` is not sent.
        let anchored = listed(&["/x/./a/b", "y/./", "./c//d/./e/"], false).unwrap();
        for good in ["a", "a/b", "z", "e", "e/f"] {
            assert!(anchored.allows(good.as_bytes()), "{good}");
        }
        for bad in ["x/a", "a/c", "e/f/g"] {
            assert!(!anchored.allows(bad.as_bytes()), "{bad}");
        }
        assert_eq!(anchored.place(b"a/b"), b"x/a/b");
        assert_eq!((anchored.place(b""), anchored.place(b"e")), (&b"y"[..], &b"c/d/e"[..]));
        assert!(listed(&["/./a", "b/c/"], false).unwrap().places.is_empty(), "they are where their names are");
        assert!(anchored.is_in(b"a/b", b"a") && !anchored.is_in(b"a/b", b"") && !anchored.is_in(b"ab", b"a"));
        for bad in ["..", "a/../b", "../x"] {
            assert!(listed(&[bad], true).is_err(), "{bad}");
        }
    }
}
