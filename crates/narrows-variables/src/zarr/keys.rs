//! Keys of a Zarr store: files of a folder, or entries of a .zip file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use narrows::{Error, Result};
use serde::Deserialize;

use super::zip::Zip;
use crate::bytes::Bytes;

/// Folders within folders.
const DEPTH_MAX: usize = 64;
/// Names in a store: more chunks than anybody has in one folder, in some GiB of memory.
const KEYS_MAX: usize = 1 << 24;
/// Longest metadata of an array: they have some KiB, and take up to 70 times their length when parsed.
const ARRAY_MAX: u64 = 1 << 20;
/// Longest metadata of a group, which may repeat those of thousands of arrays.
const METADATA_MAX: u64 = 64 << 20;
/// Metadata of a store together.
const METADATA_SUM_MAX: u64 = 1 << 30;

/// What metadata say of their kind; all else is passed over.
#[derive(Deserialize)]
struct Head {
    node_type: Option<String>,
}

/// A store, with the names and lengths of all that is in it.
pub(crate) struct Keys {
    place: Place,
    pub(super) all: BTreeMap<String, u64>,
    /// Bytes of metadata that were read.
    parsed: AtomicU64,
}

enum Place {
    Folder(PathBuf),
    Zip(Zip),
}

impl Keys {
    pub(super) fn of_folder(root: &Path) -> Result<Self> {
        let mut all = BTreeMap::new();
        let mut waiting = vec![(root.to_owned(), String::new(), 0)];
        while let Some((folder, prefix, depth)) = waiting.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                // Names of arrays and chunks are text; others belong to somebody else.
                let Ok(name) = entry.file_name().into_string() else { continue };
                let key = format!("{prefix}{name}");
                // Links to folders may lead out of the store, or in circles.
                let kind = entry.file_type()?;
                if kind.is_dir() && depth < DEPTH_MAX {
                    waiting.push((entry.path(), key + "/", depth + 1));
                } else if let Ok(about) = fs::metadata(entry.path())
                    && about.is_file()
                {
                    if all.len() >= KEYS_MAX {
                        return Err(Error::limit(format!("the store has more than {KEYS_MAX} files")));
                    }
                    all.insert(key, about.len());
                }
            }
        }
        Ok(Self { place: Place::Folder(root.to_owned()), all, parsed: AtomicU64::new(0) })
    }

    pub(super) fn of_zip(bytes: Bytes) -> Result<Self> {
        let zip = Zip::open(bytes)?;
        let all = zip.lengths();
        Ok(Self { place: Place::Zip(zip), all, parsed: AtomicU64::new(0) })
    }

    /// Reads a part of what is behind a key.
    pub(super) fn read(&self, key: &str, at: u64, len: u64) -> Result<Vec<u8>> {
        let named = |mut e: Error| {
            e.message = format!("{key}: {}", e.message);
            e
        };
        match &self.place {
            Place::Folder(root) => {
                let file = File::open(root.join(key)).map_err(Error::from).and_then(Bytes::of_file);
                file.and_then(|file| file.read(at, len)).map_err(named)
            }
            Place::Zip(zip) => zip.read(key, at, len).map_err(named),
        }
    }

    /// The metadata of an array behind a key; `None` if they are those of a group and too long for an array.
    pub(super) fn metadata(&self, key: &str) -> Result<Option<serde_json::Value>> {
        let len = self.all.get(key).copied().unwrap_or(0);
        if len > METADATA_MAX || self.parsed.fetch_add(len, Ordering::Relaxed) > METADATA_SUM_MAX {
            return Err(Error::limit(format!(
                "{key}: metadata have at most {METADATA_MAX} bytes, and {METADATA_SUM_MAX} together"
            )));
        }
        let text = self.read(key, 0, len)?;
        let bad = |e: serde_json::Error| Error::corrupt(format!("{key}: {e}"));
        if len > ARRAY_MAX {
            let head: Head = serde_json::from_slice(&text).map_err(bad)?;
            return match head.node_type.as_deref() {
                Some("group") => Ok(None),
                _ => Err(Error::limit(format!("{key}: metadata of an array have at most {ARRAY_MAX} bytes"))),
            };
        }
        serde_json::from_slice(&text).map(Some).map_err(bad)
    }
}
