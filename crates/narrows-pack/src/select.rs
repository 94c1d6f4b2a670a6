//! Entries that are asked for by paths and wildcards.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use narrows::{Error, Result};
use narrows_file::ReadAt;
use narrows_host::wildcard::with_plain_braces;

use crate::item::Item;
use crate::order;
use crate::pack::Pack;

/// Paths and wildcards, each of which stands for an entry and everything in it.
pub struct Selector {
    paths: Vec<Vec<u8>>,
    patterns: GlobSet,
    /// The texts of `paths`, then those of `patterns`.
    texts: Vec<String>,
}

impl Selector {
    /// Of these paths. `*` stands for any characters, slashes too, as with `tar`.
    ///
    /// # Errors
    /// `Misuse` if a wildcard is not valid.
    pub fn new(paths: &[Vec<u8>]) -> Result<Self> {
        let (mut exact, mut texts, mut globs) = (Vec::new(), Vec::new(), Vec::new());
        let mut patterns = GlobSetBuilder::new();
        for path in paths {
            let mut path = &path[..];
            while let Some(rest) = path.strip_prefix(b"./").or_else(|| path.strip_suffix(b"/")) {
                path = rest;
            }
            let path = if path == b"." { b"" } else { path };
            let text = narrows_host::words::shown(path);
            let wild = path.iter().any(|b| b"*?[".contains(b));
            match std::str::from_utf8(path).ok().filter(|_| wild) {
                Some(pattern) => {
                    let bad = |e: globset::Error| Error::misuse(format!("'{text}' is no wildcard: {e}"));
                    let pattern = with_plain_braces(pattern);
                    let mut glob = GlobBuilder::new(&pattern);
                    patterns.add(glob.literal_separator(false).backslash_escape(true).build().map_err(bad)?);
                    globs.push(text);
                }
                None => {
                    exact.push(path.to_vec());
                    texts.push(text);
                }
            }
        }
        texts.append(&mut globs);
        let patterns = patterns.build().map_err(|e| Error::misuse(e.to_string()))?;
        Ok(Self { paths: exact, patterns, texts })
    }

    /// Calls `on_item` with each entry that is asked for, in the order of their paths, until it returns
    /// false. Without paths these are all. Returns the paths for which there is nothing.
    ///
    /// # Errors
    /// The source fails, or the pack is damaged.
    pub fn each<R: ReadAt>(&self, pack: &Pack<R>, mut on_item: impl FnMut(Item) -> bool) -> Result<Vec<String>> {
        let all = self.texts.is_empty();
        let mut seen = vec![false; self.texts.len()];
        if all || !self.patterns.is_empty() {
            // The last folder that was asked for by a wildcard.
            let mut inside: Option<Vec<u8>> = None;
            for item in pack.walk(b"") {
                let item = item?;
                let path = &item.entry.path;
                let mut wanted = all;
                for (i, folder) in self.paths.iter().enumerate() {
                    if order::is_within(path, folder) {
                        (seen[i], wanted) = (true, true);
                    }
                }
                for i in self.patterns.matches(OsStr::from_bytes(path)) {
                    (seen[self.paths.len() + i], wanted) = (true, true);
                    if inside.as_ref().is_none_or(|folder| !order::is_within(path, folder)) {
                        inside = Some(path.clone());
                    }
                }
                wanted |= inside.as_ref().is_some_and(|folder| order::is_within(path, folder));
                if wanted && !on_item(item) {
                    return Ok(Vec::new());
                }
            }
        } else {
            let mut paths: Vec<(&Vec<u8>, usize)> = self.paths.iter().zip(0..).collect();
            paths.sort_by(|(a, _), (b, _)| order::cmp(a, b));
            let mut last: Option<&Vec<u8>> = None;
            for (folder, i) in paths {
                if last.is_some_and(|last| order::is_within(folder, last)) {
                    // It came with the folder before, if it is there.
                    seen[i] = pack.find(folder)?.is_some();
                    continue;
                }
                for item in pack.walk(folder) {
                    let item = item?;
                    if !order::is_within(&item.entry.path, folder) {
                        break;
                    }
                    seen[i] = true;
                    if !on_item(item) {
                        return Ok(Vec::new());
                    }
                }
                last = Some(folder);
            }
        }
        Ok(self.texts.iter().zip(seen).filter(|(_, seen)| !seen).map(|(text, _)| text.clone()).collect())
    }
}
