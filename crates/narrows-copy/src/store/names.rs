//! Names at the target: those that entries of this copy have, and those that they wait for.

use std::collections::{HashMap, HashSet};

use narrows::entry::{Entry, EntryKind};

use super::batch::Batch;
use super::in_way::Waiting;
use super::session::Session;
use crate::meta;
use crate::spelling::{ALIKE, Added, Spellings, folds_at};
use crate::tree::split;

pub(super) struct Names {
    /// The paths of all entries. Except folders, none of them may come twice.
    pub(super) spellings: Spellings,
    /// How many of them are no folders.
    pub(super) announced: u64,
    pub(super) batch: Batch,
    /// Numbers of the files in whose place there is a folder.
    pub(super) in_way: HashSet<u64>,
    /// Entries that arrived and wait for such a folder to be removed.
    pub(super) waiting: Vec<Waiting>,
    /// Hashes of the paths of backups that this copy has made, which it is not to remove.
    pub(super) backups: HashSet<u64>,
    /// Stored files to which hard links may follow, by number: path, and device and inode.
    pub(super) linked: HashMap<u64, (Vec<u8>, (u64, u64))>,
    /// Hard links, which are created when every file has its name: own number, number of the file,
    /// path.
    pub(super) links: Vec<(u64, u64, Vec<u8>)>,
}

impl Names {
    pub(super) fn new() -> Self {
        Self {
            spellings: Spellings::default(),
            announced: 0,
            batch: Batch::new(),
            in_way: HashSet::new(),
            waiting: Vec::new(),
            backups: HashSet::new(),
            linked: HashMap::new(),
            links: Vec::new(),
        }
    }

    /// Notes the path of an entry. What is wrong with it, if another entry of this copy has it, in whatever
    /// spelling the target takes for the same.
    pub(super) fn is_taken(&mut self, entry: &Entry, session: &mut Session) -> Option<&'static str> {
        let is_folder = entry.kind == EntryKind::Folder;
        match self.spellings.add(&entry.path) {
            // Folders are merged.
            Added::Again => return (!is_folder).then_some("another source has an entry of that name"),
            Added::Alike => {
                let (tree, writes) = (&mut session.tree, !session.options.dry_run);
                if self.spellings.is_one(&entry.path, |folder| folds_at(tree, folder, writes)) {
                    return Some(ALIKE);
                }
            }
            Added::New => {}
        }
        self.announced += u64::from(!is_folder);
        if let Some(removal) = &mut session.removal
            && (session.options.devices || meta::skipped(entry).is_none())
        {
            removal.holds(&entry.path);
        }
        None
    }

    /// Whether this copy stores something under a path, or has found it stored, in whatever spelling.
    pub(super) fn is_stored(&mut self, path: &[u8], session: &mut Session) -> bool {
        self.spellings.has(path) || self.spellings.has_alike(path) && self.folds(split(path).0, session)
    }

    /// Whether a folder at the target takes different spellings for one name.
    pub(super) fn folds(&mut self, folder: &[u8], session: &mut Session) -> bool {
        let (tree, writes) = (&mut session.tree, !session.options.dry_run);
        self.spellings.folds(folder, |folder| folds_at(tree, folder, writes))
    }
}
