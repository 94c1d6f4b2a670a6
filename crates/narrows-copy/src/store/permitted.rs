//! The entries that a peer may store on this host.

use std::path::PathBuf;

use narrows::entry::{Entry, EntryKind, Record};
use narrows::{Error, Result};

use crate::filter::Filter;
use crate::remote_path::Pattern;
use crate::scan::{self, Listed};
use crate::tree::split;
use crate::{meta, shown};

/// The entries that may arrive: a peer must not store anything that was not requested.
pub enum Permitted {
    /// Any entry: the client itself chooses what it sends.
    Anything,
    /// Requested names and patterns for the first component of a path; `root` if the contents of a
    /// folder were requested.
    Tops { names: Vec<Vec<u8>>, patterns: Vec<Pattern>, root: bool, folders: bool },
    /// The paths of a list.
    Listed(Listed),
}

impl Permitted {
    /// The entries that these sources may contain.
    pub fn tops(sources: &[PathBuf], recursive: bool) -> Self {
        let (mut names, mut patterns, mut root) = (Vec::new(), Vec::new(), false);
        for path in sources {
            match scan::top(path) {
                Some(name) => {
                    patterns.extend(Pattern::parse(&name));
                    names.push(name);
                }
                None => root = true,
            }
        }
        Self::Tops { names, patterns, root, folders: recursive }
    }

    /// Whether exactly one entry was requested, together with what is in it.
    pub(super) fn is_one(&self) -> bool {
        matches!(self, Self::Tops { names, patterns, root: false, .. } if names.len() == 1 && patterns.is_empty())
    }

    /// Whether the patterns leave out an entry that a sending end with this request would look at.
    fn leaves_out(&self, filter: &Filter, path: &[u8], is_folder: bool) -> bool {
        // What a list names is looked at whatever the folders above it are called.
        let from = if let Self::Listed(listed) = self { listed.nearest(path) } else { 0 };
        let ends = path.iter().enumerate().filter(|(at, b)| **b == b'/' && *at >= from).map(|(at, _)| at);
        filter.leaves_out(path, is_folder) || ends.into_iter().any(|end| filter.leaves_out(&path[..end], true))
    }

    /// Whether this entry may be stored.
    pub fn allows(&self, entry: &Entry) -> bool {
        let (names, patterns, root, folders) = match self {
            Self::Anything => return true,
            // What is only above a listed path is a folder: anything else would lead others elsewhere.
            Self::Listed(listed) => {
                return listed.allows(&entry.path)
                    && (entry.kind == EntryKind::Folder || !listed.is_only_above(&entry.path));
            }
            Self::Tops { names, patterns, root, folders } => (names, patterns, root, folders),
        };
        let top = entry.path.split(|b| *b == b'/').next().unwrap_or_default();
        // Two requested names may be hard links of one file.
        let file = matches!(entry.kind, EntryKind::File { .. } | EntryKind::HardLink { .. });
        // These are passed over unless they are asked for too.
        let file = file || meta::skipped(entry).is_some();
        let file = file && !entry.path.contains(&b'/');
        let named = names.iter().any(|n| n == top) || patterns.iter().any(|p| p.matches(top));
        (*root && *folders || !entry.path.is_empty() && named) && (*folders || file)
    }
}

/// What this end has asked a sender for, beside the names: one that sends anything else does not keep to
/// the protocol, whatever it means by that.
pub(super) struct Asked {
    filter: Filter,
    /// Symbolic links come as what they lead to.
    follow: bool,
    dry_run: bool,
    /// A folder of which it was checked that no pattern leaves it out, since entries come folder by folder.
    inside: Option<Vec<u8>>,
}

impl Asked {
    pub(super) fn new(filter: Filter, follow: bool, dry_run: bool) -> Self {
        Self { filter, follow, dry_run, inside: None }
    }

    /// Checks a record.
    ///
    /// # Errors
    /// `Corrupt`: it was not asked for.
    pub(super) fn check(&mut self, permitted: &Permitted, record: &Record<'_>) -> Result<()> {
        let entry = match record {
            Record::Entry(entry) => entry,
            Record::Begin { .. } if self.dry_run => {
                return Err(Error::corrupt(
                    "the other end sends contents, although this is a dry run; do not trust it",
                ));
            }
            _ => return Ok(()),
        };
        let is_folder = entry.kind == EntryKind::Folder;
        let folder = split(&entry.path).0;
        let wrong = if !permitted.allows(entry) {
            "which was not asked for"
        } else if self.follow && matches!(entry.kind, EntryKind::Symlink { .. }) {
            "a symbolic link, although it was asked to follow them"
        } else if match &self.inside {
            Some(inside) if inside == folder => self.filter.leaves_out(&entry.path, is_folder),
            _ => permitted.leaves_out(&self.filter, &entry.path, is_folder),
        } {
            "which the patterns of this copy leave out"
        } else {
            // Of a list, a path may come of which the folder is left out.
            if self.inside.as_deref() != Some(folder) && matches!(permitted, Permitted::Tops { .. }) {
                self.inside = Some(folder.to_vec());
            }
            return Ok(());
        };
        let name = if entry.path.is_empty() { ".".into() } else { shown(&entry.path) };
        Err(Error::corrupt(format!("the other end sends {name}, {wrong}; do not trust it")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, kind: EntryKind) -> Entry {
        Entry { path: path.into(), kind, mode: 0, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() }
    }

    #[test]
    fn what_patterns_leave_out_may_not_come_however_it_is_sent() {
        let sources = [PathBuf::from("d/")];
        let paths: Vec<PathBuf> = ["x/.ssh/listed", "y"].map(PathBuf::from).to_vec();
        let listed = Permitted::Listed(Listed::new(&paths, true).unwrap());
        let asked = |dry_run, follow| {
            let patterns = [".ssh".to_owned(), "build/".to_owned(), "!keep".to_owned()];
            Asked::new(Filter::new(&patterns).unwrap(), follow, dry_run)
        };
        let file = |path| entry(path, EntryKind::File { len: 0, linked: false });
        let check = |asked: &mut Asked, permitted: &Permitted, entry: &Entry| {
            asked.check(permitted, &Record::Entry(entry.clone())).is_ok()
        };
        let (tops, mut plain) = (Permitted::tops(&sources, true), asked(false, false));
        for (path, is_good) in [
            ("a/b", true),
            ("a/.ssh", false),
            ("a/.ssh/keys", false),
            (".ssh/keys/deep", false),
            ("a/b/c", true),
            ("build", true),
            ("build/x", false),
            ("a/keep", true),
        ] {
            // Twice, since the folder is remembered.
            for _ in 0..2 {
                assert_eq!(check(&mut plain, &tops, &file(path)), is_good, "{path}");
            }
        }
        assert!(!check(&mut plain, &tops, &entry("a/build", EntryKind::Folder)));
        for (path, is_good) in
            [("x/.ssh/listed", true), ("x/.ssh/listed/.ssh", false), ("y/a", true), ("y/.ssh/a", false), ("z", false)]
        {
            assert_eq!(check(&mut plain, &listed, &file(path)), is_good, "{path}");
        }
        for (path, is_good) in [("", false), ("x", false), ("x/.ssh", false), ("x/.ssh/listed", true), ("y", true)] {
            let link = entry(path, EntryKind::Symlink { target: b"/elsewhere".to_vec() });
            assert_eq!(listed.allows(&link), is_good, "{path}");
            assert_eq!(listed.allows(&entry(path, EntryKind::Folder)), !path.is_empty(), "{path}");
        }
        let link = entry("l", EntryKind::Symlink { target: b"x".to_vec() });
        assert!(check(&mut plain, &tops, &link) && !check(&mut asked(false, true), &tops, &link));
        let begin = Record::Begin { id: 0 };
        assert!(plain.check(&tops, &begin).is_ok() && asked(true, false).check(&tops, &begin).is_err());
    }

    #[test]
    fn only_what_was_asked_for_may_come() {
        let file = |path| entry(path, EntryKind::File { len: 0, linked: false });
        let folder = |path| entry(path, EntryKind::Folder);
        let link = |path| entry(path, EntryKind::Symlink { target: b"x".to_vec() });
        let tops = |sources: &[&str], recursive| {
            Permitted::tops(&sources.iter().map(PathBuf::from).collect::<Vec<_>>(), recursive)
        };
        let one = tops(&["/there/f"], false);
        assert!(one.allows(&file("f")));
        for bad in [file(".bashrc"), file("f/x"), folder(""), folder("f"), link("f")] {
            assert!(!one.allows(&bad), "{bad:?}");
        }
        let tree = tops(&["/there/d", "e"], true);
        assert!(tree.allows(&folder("d")) && tree.allows(&link("d/x/y")) && tree.allows(&file("e/z")));
        assert!(!tree.allows(&folder("")) && !tree.allows(&file("other/z")) && !tree.allows(&file("dd")));
        let contents = tops(&["/there/d/"], true);
        assert!(contents.allows(&folder("")) && contents.allows(&file("anything/in/it")));
        let link_to_it = |path| entry(path, EntryKind::HardLink { of: 0 });
        assert!(one.allows(&link_to_it("f")) && !one.allows(&link_to_it("g")) && !one.allows(&link_to_it("f/x")));
        assert!(one.allows(&entry("f", EntryKind::Fifo)) && !one.allows(&entry("f/x", EntryKind::Fifo)));
        let logs = tops(&["/there/*.log"], false);
        assert!(logs.allows(&file("a.log")) && !logs.allows(&file("a.txt")) && !logs.allows(&file(".log")));
    }
}
