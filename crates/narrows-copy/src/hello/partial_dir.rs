//! The folder of `--partial-dir`, for files that are not whole yet.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use narrows::entry::check_path;

/// Where files that are not whole yet live, under the names that they will have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartialDir {
    /// In a folder of this path, which is that beside each of them.
    Beside(String),
    /// In one folder of the storing host.
    At(PathBuf),
}

impl PartialDir {
    /// The folder that a path means; `None` if that is where files are anyway.
    ///
    /// # Errors
    /// The reason, for the user.
    pub fn new(path: &Path) -> Result<Option<Self>, String> {
        if path.is_absolute() {
            return Ok(Some(Self::At(path.to_path_buf())));
        }
        let bad = || "--partial-dir is a folder beside each file, or an absolute path: give it without ..".to_owned();
        let parts = path.components().filter(|part| *part != Component::CurDir).map(|part| match part {
            Component::Normal(name) => Some(name.as_bytes()),
            _ => None,
        });
        let whole = parts.collect::<Option<Vec<_>>>().ok_or_else(bad)?.join(&b'/');
        check_path(&whole).map_err(|e| format!("--partial-dir: {e}"))?;
        let text = String::from_utf8(whole).map_err(|_| {
            // It is left out of the copy by a pattern, and patterns are text.
            "a --partial-dir beside each file has a name in UTF-8".to_owned()
        })?;
        Ok((!text.is_empty()).then_some(Self::Beside(text)))
    }

    /// The path as it was given.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Beside(path) => Path::new(path),
            Self::At(path) => path,
        }
    }

    /// The pattern, as of `.gitignore`, of such folders in a source, which are not copied.
    pub fn pattern(&self) -> Option<String> {
        match self {
            Self::Beside(path) => Some(format!("**/{}/", crate::filter::escaped(path))),
            Self::At(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::filter::Filter;

    #[test]
    fn a_folder_beside_each_file_stays_beside_it() {
        let new = |path: &str| PartialDir::new(Path::new(path));
        for (path, beside) in [(".part", ".part"), ("./a//b/./", "a/b")] {
            assert_eq!(new(path).unwrap(), Some(PartialDir::Beside(beside.into())), "{path}");
        }
        for none in ["", ".", "./."] {
            assert_eq!(new(none).unwrap(), None, "{none}");
        }
        assert_eq!(new("/a/../b").unwrap(), Some(PartialDir::At("/a/../b".into())));
        for bad in ["..", "a/../..", "a/..", &"x".repeat(256), "a\0b"] {
            assert!(new(bad).is_err(), "{bad}");
        }
        assert!(PartialDir::new(Path::new(OsStr::from_bytes(b"a\xff"))).is_err());
    }

    #[test]
    fn such_folders_in_a_source_are_left_out_and_nothing_else() {
        let left_out = |dir: &str, path: &str, is_folder| {
            let pattern = PartialDir::new(Path::new(dir)).unwrap().unwrap().pattern().unwrap();
            Filter::new(&[pattern]).unwrap().leaves_out(path.as_bytes(), is_folder)
        };
        for dir in [".part", "a b", "[x]", "!no", "#no", "in/it", "*", "back\\slash", "end "] {
            assert!(left_out(dir, dir, true) && left_out(dir, &format!("deep/in/{dir}"), true), "{dir}");
            assert!(!left_out(dir, dir, false) && !left_out(dir, "other", true), "{dir}");
            assert!(!left_out(dir, &format!("x{dir}"), true), "{dir}");
        }
    }
}
