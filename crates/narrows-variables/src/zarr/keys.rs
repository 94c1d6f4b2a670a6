//! Keys of a Zarr store: files of a folder, or entries of a .zip file.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use narrows::{Error, Result};
use serde::Deserialize;

use super::zip::Zip;
use crate::budget::Budget;
use crate::bytes::{Bytes, NO_FILE};

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

/// What is said of a link to a folder.
const LINK: &str = "it is a link to a folder, which is not followed; check a copy that has the folder itself (cp -RL)";

/// What metadata say of their kind; all else is passed over.
#[derive(Deserialize)]
struct Head {
    node_type: Option<String>,
}

/// A store, with the names and lengths of all that is in it.
pub(crate) struct Keys {
    place: Place,
    pub(super) all: BTreeMap<String, u64>,
    /// What is there and is not read.
    pub(super) unseen: Vec<Unseen>,
    /// Bytes of metadata that were read.
    parsed: AtomicU64,
    /// Memory for lists of chunks.
    pub(super) budget: Budget,
}

/// Something in a store that is not read.
pub(super) struct Unseen {
    pub(super) key: String,
    pub(super) why: &'static str,
    /// It may hold more keys.
    pub(super) is_folder: bool,
}

enum Place {
    Folder(PathBuf),
    Zip(Zip),
}

impl Keys {
    pub(super) fn of_folder(root: &Path) -> Result<Self> {
        let (mut all, mut unseen) = (BTreeMap::new(), Vec::new());
        let budget = Budget::of_folder();
        let mut waiting = vec![(root.to_owned(), String::new(), 0)];
        while let Some((folder, prefix, depth)) = waiting.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                // Names of arrays and chunks are text; others belong to somebody else.
                let Ok(name) = entry.file_name().into_string() else { continue };
                let key = format!("{prefix}{name}");
                let kind = entry.file_type()?;
                let (why, is_folder) = if kind.is_dir() {
                    if depth < DEPTH_MAX {
                        waiting.push((entry.path(), key + "/", depth + 1));
                        continue;
                    }
                    ("folders are too deep here", true)
                } else {
                    match fs::metadata(entry.path()) {
                        Ok(about) if about.is_file() => {
                            all.insert(key, about.len());
                            continue;
                        }
                        // They may lead out of the store, or in circles.
                        Ok(about) if about.is_dir() => (LINK, true),
                        Ok(_) => (NO_FILE, false),
                        Err(e) if e.kind() == io::ErrorKind::NotFound && !kind.is_symlink() => continue,
                        Err(_) => ("it is a link that leads nowhere, or cannot be read", false),
                    }
                };
                unseen.push(Unseen { key, why, is_folder });
            }
            if all.len() + unseen.len() > KEYS_MAX {
                return Err(Error::limit(format!("the store has more than {KEYS_MAX} files")));
            }
        }
        unseen.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { place: Place::Folder(root.to_owned()), all, unseen, parsed: AtomicU64::new(0), budget })
    }

    pub(super) fn of_zip(bytes: Bytes) -> Result<Self> {
        let budget = bytes.budget().clone();
        let zip = Zip::open(bytes)?;
        let all = zip.lengths();
        let unseen = zip.unread.iter().map(|(key, why)| Unseen { key: key.clone(), why, is_folder: false }).collect();
        Ok(Self { place: Place::Zip(zip), all, unseen, parsed: AtomicU64::new(0), budget })
    }

    /// Reads a part of what is behind a key.
    pub(super) fn read(&self, key: &str, at: u64, len: u64) -> Result<Vec<u8>> {
        let named = |mut e: Error| {
            e.message = format!("{key}: {}", e.message);
            e
        };
        match &self.place {
            Place::Folder(root) => Bytes::open(&root.join(key)).and_then(|file| file.read(at, len)).map_err(named),
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
