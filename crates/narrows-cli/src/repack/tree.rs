//! The files that `repack` takes: those that are named, and those of folders that end with `.nrw`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use narrows_file::foreign::Format;
use narrows_host::follow;

/// Goes through files and folders in order.
pub(crate) struct Tree {
    /// The next one is the last; whether its user named it.
    rest: Vec<(PathBuf, bool)>,
    /// Files of folders that were passed over.
    pub(crate) others: u64,
}

impl Tree {
    pub(crate) fn of(paths: &[PathBuf]) -> Self {
        Self { rest: paths.iter().rev().map(|path| (path.clone(), true)).collect(), others: 0 }
    }

    /// The next file. An error is about one file or folder; there may be more after it.
    pub(crate) fn next(&mut self) -> Option<Result<PathBuf>> {
        while let Some((path, is_named)) = self.rest.pop() {
            match self.enter(path, is_named) {
                Ok(None) => {}
                Ok(Some(file)) => return Some(Ok(file)),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    fn enter(&mut self, path: PathBuf, is_named: bool) -> Result<Option<PathBuf>> {
        // What a name stands for is replaced, not the link that leads to it.
        let behind = || follow::to_end(&path).and_then(|place| place.path.canonicalize());
        let found = if is_named { behind() } else { Ok(path.clone()) };
        let cannot = || format!("cannot read {}", path.display());
        let path = found.with_context(cannot)?;
        let cannot = || format!("cannot read {}", path.display());
        let kind = path.symlink_metadata().with_context(cannot)?.file_type();
        if kind.is_dir() {
            self.rest.extend(names(&path).with_context(cannot)?.into_iter().rev().map(|path| (path, false)));
            return Ok(None);
        }
        let is_ours = path.as_os_str().as_encoded_bytes().ends_with(Format::Narrows.suffix().as_bytes());
        if is_named || kind.is_file() && is_ours {
            return Ok(Some(path));
        }
        self.others += 1;
        Ok(None)
    }
}

fn names(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut names = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}
