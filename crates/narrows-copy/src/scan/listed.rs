//! The paths of `--files-from`.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};

use narrows::entry::check_path;

use crate::shown;

/// How a folder is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// The folder alone.
    Nothing,
    /// The entries in it, but not what is in those.
    Children,
    All,
}

/// Longest path as it is written: that of an entry, and some `./` in it.
const PATH_MAX: usize = 8 << 10;
/// Bytes of the folders above all paths: a million folders, 32 bytes deep.
const HELD_MAX: usize = 32 << 20;

/// Adds a folder above a path; the bytes that it takes.
fn add_above(all: &mut BTreeMap<Vec<u8>, Depth>, folder: &[u8]) -> usize {
    if all.contains_key(folder) {
        return 0;
    }
    all.insert(folder.to_vec(), Depth::Nothing);
    folder.len()
}

/// The paths of `--files-from`, below the only source.
#[derive(Debug, Clone)]
pub struct Listed(pub(super) BTreeMap<Vec<u8>, Depth>);

impl Listed {
    /// The paths as the user wrote them: a slash in front of one is the source itself, and one behind a
    /// folder means what is in it. `recursive`: everything in listed folders.
    ///
    /// # Errors
    /// A path leads out of the source.
    pub fn new(paths: &[PathBuf], recursive: bool) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        let mut held = 0;
        for path in paths {
            let bytes = path.as_os_str().as_bytes();
            // Each folder above a path is a path too, so a long one would need its square.
            if bytes.len() > PATH_MAX {
                return Err(format!("{}...: a path has at most {PATH_MAX} bytes", shown(&bytes[..40])));
            }
            let mut inner = Vec::new();
            for part in path.components() {
                match part {
                    Component::Normal(name) => {
                        if !inner.is_empty() {
                            held += add_above(&mut all, &inner);
                            if held > HELD_MAX {
                                return Err("the list names too many deep folders; copy it in parts".into());
                            }
                            inner.push(b'/');
                        }
                        inner.extend_from_slice(name.as_bytes());
                    }
                    Component::RootDir | Component::CurDir => {}
                    Component::ParentDir | Component::Prefix(_) => {
                        return Err(format!("{} leads out of the source", shown(bytes)));
                    }
                }
            }
            check_path(&inner).map_err(|e| format!("{}: {e}", shown(bytes)))?;
            let depth = match recursive {
                true => Depth::All,
                false if inner.is_empty() || bytes.ends_with(b"/") || bytes.ends_with(b"/.") => Depth::Children,
                false => Depth::Nothing,
            };
            let before = all.entry(inner).or_insert(depth);
            if *before == Depth::Nothing || depth == Depth::All {
                *before = depth;
            }
        }
        Ok(Self(all))
    }

    /// Length of the longest listed path that is this one or above it.
    pub(crate) fn nearest(&self, path: &[u8]) -> usize {
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).filter(|end| self.0.contains_key(&path[..*end])).last().unwrap_or(0)
    }

    /// Whether an entry with this path may come.
    pub(crate) fn allows(&self, path: &[u8]) -> bool {
        let above = |at: usize| if at == 0 { &path[..0] } else { &path[..at] };
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        let parent = crate::tree::split(path).0;
        self.0.contains_key(path)
            || self.0.get(parent).is_some_and(|depth| *depth != Depth::Nothing && !path.is_empty())
            || ends.chain([0]).any(|at| self.0.get(above(at)) == Some(&Depth::All))
    }
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
        for bad in ["..", "a/../b", "../x"] {
            assert!(listed(&[bad], true).is_err(), "{bad}");
        }
    }
}
