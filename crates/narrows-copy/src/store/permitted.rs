//! The entries that a peer may store on this host.

use std::path::PathBuf;

use narrows::entry::{Entry, EntryKind};

use crate::meta;
use crate::remote_path::Pattern;
use crate::scan::{self, Listed};

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

    /// Whether this entry may be stored.
    pub fn allows(&self, entry: &Entry) -> bool {
        let (names, patterns, root, folders) = match self {
            Self::Anything => return true,
            Self::Listed(listed) => return listed.allows(&entry.path),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_may_come() {
        let entry = |path: &str, kind: EntryKind| Entry {
            path: path.into(),
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime_s: 0,
            mtime_ns: 0,
            xattrs: Vec::new(),
        };
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
