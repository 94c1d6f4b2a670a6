//! The list of local files for tar: the same entries that `cp` would send.

use std::io::Write;
use std::path::{Path, PathBuf};

use narrows::entry::EntryKind;
use tempfile::TempPath;

use super::{Copied, Order};
use crate::error::{Blame, Error, Result};
use crate::filter::Filter;
use crate::scan::{self, Found, walk};
use crate::serve::open_roots;
use crate::spelling::{Added, Spellings};
use narrows_host::words::shown;

/// The entries of a copy for tar.
pub(super) struct Listing {
    /// Folders, each with a file of the names that tar packs, separated by zero bytes.
    pub(super) groups: Vec<(PathBuf, TempPath)>,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) failed: u64,
    /// The path of an entry that some file systems take for another of these.
    pub(super) alike: Option<Vec<u8>>,
}

impl Listing {
    /// Walks the sources.
    pub(super) fn of(sources: &[PathBuf], order: &Order<'_>, filter: &Filter) -> Result<Self> {
        let mut copied = Copied::default();
        let (mut roots, mut folders) = (Vec::new(), Vec::new());
        for source in sources {
            let (root, unopened) = open_roots(std::slice::from_ref(source), order.recursive, false);
            unopened.iter().for_each(|text| order.failed(text, &mut copied));
            for root in root {
                roots.push(root);
                folders.push(std::path::absolute(folder_and_name(source).0).blame(Error::Local)?);
            }
        }
        let mut names: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        let (mut bytes, mut tops) = (0, Vec::new());
        let (mut spellings, mut alike) = (Spellings::default(), None);
        walk(&roots, filter, |found| {
            let (root, entry) = match found {
                Found::Entry { root, entry, .. } => (root, entry),
                Found::Failed(text) => {
                    order.failed(&text, &mut copied);
                    return true;
                }
                Found::Socket(path) => {
                    order.skips_socket(&path, &mut copied);
                    return true;
                }
                // stdin is never copied with tar.
                Found::Stream(_) => return true,
            };
            if order.skips(&entry) {
                return true;
            }
            if spellings.add(&entry.path) == Added::Alike {
                alike.get_or_insert_with(|| entry.path.clone());
            }
            if let EntryKind::File { len, .. } = entry.kind {
                copied.files += 1;
                bytes += len;
                (order.on_file)(&shown(&entry.path));
            }
            let folder = &folders[root];
            let at = names.iter().position(|(known, _)| known == folder).unwrap_or_else(|| {
                names.push((folder.clone(), Vec::new()));
                names.len() - 1
            });
            if entry.path.is_empty() {
                tops.push(at);
            } else {
                let list = &mut names[at].1;
                list.extend_from_slice(b"./");
                list.extend_from_slice(&entry.path);
                list.push(0);
            }
            true
        });
        // Last: bsdtar sets the time of an existing folder at once, and files that arrive after it
        // would change it.
        tops.iter().for_each(|at| names[*at].1.extend_from_slice(b".\0"));
        let groups = names.into_iter().map(|(folder, list)| {
            let file = tempfile::NamedTempFile::new();
            let mut file = file.blame_for(Error::Local, "cannot make a temporary file")?;
            file.write_all(&list).blame_for(Error::Local, "cannot write a temporary file")?;
            Ok((folder, file.into_temp_path()))
        });
        let groups = groups.collect::<Result<_>>()?;
        Ok(Self { groups, files: copied.files, bytes, failed: copied.failed, alike })
    }
}

/// The folder that tar changes to for a source, and the name that it packs there.
pub(super) fn folder_and_name(source: &Path) -> (PathBuf, Vec<u8>) {
    match scan::top(source) {
        None => (source.to_path_buf(), b".".to_vec()),
        Some(name) => {
            let parent = source.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            (parent.to_path_buf(), [b"./", &name[..]].concat())
        }
    }
}
