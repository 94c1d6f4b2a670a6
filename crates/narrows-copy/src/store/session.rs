//! The state that all parts of the storing end share: tree, options, owners, memory, reports.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use narrows::entry::Answer;

use super::answers::Answers;
use super::habits::{self, Beside};
use super::home::Home;
use super::observers::Observers;
use super::removal::Removal;
use super::room::Room;
use super::stored::Stored;
use crate::hello::StoreOptions;
use crate::meta::{Losses, Ownership};
use crate::tree::Tree;

pub(super) struct Session {
    pub(super) tree: Tree,
    pub(super) options: StoreOptions,
    pub(super) ownership: Ownership,
    pub(super) losses: Losses,
    /// Entries that are there already, and are not the same, are not replaced.
    pub(super) keeps_existing: bool,
    /// They come from a pack, which anybody may have made.
    pub(super) is_of_pack: bool,
    /// Set if entries that the sources do not have are removed.
    pub(super) removal: Option<Removal>,
    /// Earlier copies, whose files become hard links.
    pub(super) beside: Vec<Beside>,
    /// Bytes that were read to compare files by their contents.
    pub(super) compared: Arc<AtomicU64>,
    /// Where files live until they are whole.
    pub(super) home: Home,
    /// Memory limit for everything that is kept.
    pub(super) room: Room,
    /// Something got a name, or lost it, which is not on the disk yet.
    pub(super) has_named: bool,
    pub(super) report: Report,
}

/// What is told of a copy.
pub(super) struct Report {
    pub(super) answers: Answers,
    pub(super) observers: Observers,
    pub(super) stored: Stored,
    /// Number of failures that the sender reported.
    pub(super) told: u64,
}

impl Report {
    pub(super) fn failed(&mut self, id: u64, text: String) {
        self.stored.failed += 1;
        (self.observers.on_failure)(&text);
        self.answers.put(&Answer::Failed { id, text });
    }

    pub(super) fn not_stored(&mut self, id: u64, text: String) {
        self.stored.failed += 1;
        self.stored.not_stored += 1;
        (self.observers.on_failure)(&text);
        self.answers.put(&Answer::NotStored { id, text });
    }
}

impl Session {
    /// Reports a folder or link that was created, or would be.
    pub(super) fn made(&mut self, update: char, kind: char, item: String, text: String) {
        let text = if self.itemizes() { format!("{update}{kind}{} {item}", habits::NEW) } else { text };
        self.say_made(text);
    }

    /// Reports a line about an entry to whoever asked for it.
    pub(super) fn say_made(&mut self, text: String) {
        // Only a receiving client has this observer; a server reports to the sender if that asked
        // for names.
        if self.report.observers.on_removed.is_some() {
            (self.report.observers.on_file)(&text);
        } else if self.options.names || self.itemizes() {
            self.report.answers.put(&Answer::Made { text });
        }
    }
}
