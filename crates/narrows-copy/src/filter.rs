//! Selection of the entries that a copy leaves out, by patterns in the syntax of `.gitignore`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::error::{Blame, Error, Result};
use super::frames;

/// Compiled patterns.
#[derive(Clone)]
pub struct Filter {
    patterns: Gitignore,
    /// Files are stored ones, which the patterns know by the names of their originals.
    of_stored: bool,
}

impl Filter {
    /// Compiles patterns. A later pattern overrules an earlier one; a pattern with a leading `!`
    /// includes again.
    pub fn new(patterns: &[String]) -> Result<Self> {
        let mut builder = GitignoreBuilder::new("");
        for pattern in patterns {
            let added = builder.add_line(None, pattern);
            added.blame_for(Error::Pattern, format_args!("invalid pattern '{pattern}'"))?;
        }
        let patterns = builder.build().blame_for(Error::Pattern, "invalid patterns")?;
        Ok(Self { patterns, of_stored: false })
    }

    /// Whether files are stored ones, which the patterns know by the names of their originals.
    pub fn of_stored(self, of_stored: bool) -> Self {
        Self { of_stored, ..self }
    }

    /// Whether the patterns leave out this entry.
    pub fn leaves_out(&self, path: &[u8], is_folder: bool) -> bool {
        let path = if self.of_stored && !is_folder { frames::original(path).unwrap_or(path) } else { path };
        !path.is_empty() && self.patterns.matched(Path::new(OsStr::from_bytes(path)), is_folder).is_ignore()
    }

    /// Whether the folder `path`, or a folder that contains it, is left out.
    pub fn leaves_out_folder(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        ends.chain([path.len()]).any(|end| self.leaves_out(&path[..end], true))
    }
}

/// A pattern that means exactly this path.
pub(crate) fn escaped(path: &str) -> String {
    path.chars().fold(String::new(), |mut all, c| {
        if "\\*?[]{}!# ".contains(c) {
            all.push('\\');
        }
        all.push(c);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_gitignore() {
        let filter = |patterns: &[&str]| Filter::new(&patterns.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>());
        let f = filter(&["*.o", "/top", "build/", "!keep.o"]).unwrap();
        for (path, is_folder, out) in [
            ("a.o", false, true),
            ("deep/in/a.o", false, true),
            ("deep/keep.o", false, false),
            ("top", false, true),
            ("deep/top", false, false),
            ("deep/build", true, true),
            ("deep/build", false, false),
            ("", true, false),
        ] {
            assert_eq!(f.leaves_out(path.as_bytes(), is_folder), out, "{path}");
        }
        for (path, out) in [("deep/build/in/it", true), ("top/in/it", true), ("deep/top/in/it", false), ("", false)] {
            assert_eq!(f.leaves_out_folder(path.as_bytes()), out, "{path}");
        }
        assert!(filter(&["a[", "{"]).is_err());
        assert!(!filter(&[]).unwrap().leaves_out(b"x", false));
    }
}
