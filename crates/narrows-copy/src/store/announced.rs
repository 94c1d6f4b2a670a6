//! Entries as they are announced: which may be stored, and which files are wanted.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use narrows::entry::{Answer, DIGEST_LEN, Entry, EntryKind, Wanted, check_path};
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::answers::Answers;
use super::home::Home;
use super::{Target, framed, habits};
use crate::delta::DELTA_MIN;
use crate::frames::Form;
use crate::meta;
use crate::spelling::{ALIKE, Added, folds_at};
use crate::tree::{Tree, split};
use crate::{e_text, shown};

/// Maximum number of wanted files that have not arrived; our senders have a few thousand.
const PENDING_MAX: usize = 256 << 10;
/// Maximum number of entries in a copy.
const ENTRIES_MAX: u64 = 100_000_000;

impl Target {
    /// Stores an entry, or answers whether its content is wanted.
    pub(super) fn announced(&mut self, id: u64, mut entry: Entry, answers: &mut Answers) {
        if meta::is_socket(&entry) {
            // It is made and passed over as a fifo is.
            entry.kind = EntryKind::Fifo;
        }
        let is_file = entry.kind.has_content();
        let digest = meta::take_digest(&mut entry);
        let allowed = self.permitted.allows(&entry);
        if let Some(target) = self.undecided.take_if(|_| allowed)
            && let Err(e) = self.decide(&target, &entry)
        {
            if is_file {
                answers.file(Wanted::Refused);
            }
            let text = format!("cannot store in {}: {}", shown(target.as_os_str().as_bytes()), e_text(&e));
            self.undecided = Some(target);
            return self.failed(id, text, answers);
        }
        if let Some(name) = &self.rename {
            entry.path.clone_from(name);
        }
        framed::rename(&mut entry, self.options.form);
        if !self.options.set_id {
            meta::take_privileges(&mut entry, &mut self.losses);
            if self.is_of_pack {
                meta::take_trusted(&mut entry, &mut self.losses);
            }
        }
        let wrong = if !allowed {
            Some("it was not requested")
        } else if entry.kind == EntryKind::Stream && entry.path.is_empty() {
            Some("the target is a folder; name the file in it, as in FOLDER/NAME")
        } else if self.removal.is_some() && self.permitted.is_one() && is_top(&entry) {
            Some("--delete is for folders")
        } else if let Some(wrong) = self.is_taken(&entry) {
            Some(wrong)
        } else if self.home.covers(&entry.path, entry.kind == EntryKind::Folder) {
            Some("its folder is that of --partial-dir")
        } else if check_path(&entry.path).is_err() {
            Some("its name is too long to end in .nrw")
        } else if self.entries > ENTRIES_MAX || !self.room.take(&entry) {
            Some("there are too many entries")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            if is_file {
                answers.file(Wanted::Refused);
            }
            let name = if entry.path.is_empty() { "it".into() } else { shown(&entry.path) };
            return self.failed(id, format!("cannot store {name}: {wrong}"), answers);
        }
        let path = entry.path.clone();
        let result = match &entry.kind {
            EntryKind::File { .. } | EntryKind::Stream => {
                return self.announced_file(id, entry, digest.as_ref(), answers);
            }
            EntryKind::Folder => self.make_folder(id, entry, answers),
            EntryKind::HardLink { of } if self.options.dry_run => {
                let of = *of;
                self.would_link(id, of, &path, answers)
            }
            EntryKind::HardLink { of } => {
                self.links.push((id, *of, path.clone()));
                Ok(())
            }
            EntryKind::Symlink { .. } => self.special(id, entry, answers),
            EntryKind::Fifo | EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. } => {
                self.device(id, entry, answers)
            }
        };
        if let Err(e) = result {
            self.failed(id, format!("cannot store {}: {}", shown(&path), e_text(&e)), answers);
        }
    }

    /// Notes the path of an entry. What is wrong with it, if another entry of this copy has it, in whatever
    /// spelling the target takes for the same.
    fn is_taken(&mut self, entry: &Entry) -> Option<&'static str> {
        let is_folder = entry.kind == EntryKind::Folder;
        match self.names.add(&entry.path) {
            // Folders are merged.
            Added::Again => return (!is_folder).then_some("another source has an entry of that name"),
            Added::Alike => {
                let (tree, writes) = (&mut self.tree, !self.options.dry_run);
                if self.names.is_one(&entry.path, |folder| folds_at(tree, folder, writes)) {
                    return Some(ALIKE);
                }
            }
            Added::New => {}
        }
        self.announced += u64::from(!is_folder);
        if let Some(removal) = &mut self.removal
            && (self.options.devices || meta::skipped(entry).is_none())
        {
            removal.holds(&entry.path);
        }
        None
    }

    /// Whether this copy stores something under a path, or has found it stored, in whatever spelling.
    pub(super) fn is_stored(&mut self, path: &[u8]) -> bool {
        self.names.has(path) || self.names.has_alike(path) && self.folds(split(path).0)
    }

    /// Whether a folder at the target takes different spellings for one name.
    pub(super) fn folds(&mut self, folder: &[u8]) -> bool {
        let (tree, writes) = (&mut self.tree, !self.options.dry_run);
        self.names.folds(folder, |folder| folds_at(tree, folder, writes))
    }

    /// Decides whether the target becomes a file or a folder.
    fn decide(&mut self, target: &Path, first: &Entry) -> io::Result<()> {
        if is_top(first) {
            self.rename = target.file_name().map(|name| name.as_bytes().to_vec());
            return Ok(());
        }
        if target.exists() {
            return Err(io::Error::other("it is a file, not a folder"));
        }
        self.tree = if self.options.dry_run {
            Tree::empty()?
        } else {
            fs::create_dir(target)?;
            Tree::open(target)?
        };
        Ok(())
    }

    fn announced_file(&mut self, id: u64, entry: Entry, digest: Option<&[u8; DIGEST_LEN]>, answers: &mut Answers) {
        let full = self.pending.len() >= PENDING_MAX;
        let mut item = None;
        let wanted = match self.compare(id, &entry, digest, &mut item) {
            // A dry run: its folder would be created first.
            Err(e) if self.would_be_made(&e) => Wanted::Whole,
            Err(e) => {
                answers.file(Wanted::Refused);
                return self.failed(id, format!("cannot store {}: {}", shown(&entry.path), e_text(&e)), answers);
            }
            Ok(Wanted::No) => {
                self.stored.files_same += 1;
                self.stored.bytes_same += if let EntryKind::File { len, .. } = entry.kind { len } else { 0 };
                Wanted::No
            }
            Ok(wanted) if wanted != Wanted::Refused && (full || !self.room.take_pending(&entry)) => {
                answers.file(Wanted::Refused);
                return self.failed(id, "too many announced files were not sent".into(), answers);
            }
            // What is there is newer, and no failure.
            Ok(Wanted::Refused) => return answers.file(Wanted::Refused),
            Ok(wanted) => wanted,
        };
        answers.file(wanted);
        if self.itemizes() {
            let new = || habits::item('>', 'f', habits::NEW);
            if let Some(item) = item.or_else(|| (wanted != Wanted::No).then(new)) {
                self.tell_item(&item, &shown(&entry.path), answers);
            }
        }
        if wanted != Wanted::No && self.options.dry_run {
            self.room.give_back_pending(&entry);
            self.stored.files += 1;
            if !self.itemizes() {
                (self.observers.on_file)(&shown(&entry.path));
            }
        } else if wanted != Wanted::No {
            self.pending.insert(id, entry);
        }
    }

    /// Compares a file with what exists at the target: the same file by length and time (then its
    /// metadata is updated), an earlier version, or the remains of an interrupted copy.
    ///
    /// `Refused`: a newer file is there, and stays. `item` becomes what is reported of an existing file.
    fn compare(
        &mut self,
        id: u64,
        entry: &Entry,
        digest: Option<&[u8; DIGEST_LEN]>,
        item: &mut Option<String>,
    ) -> io::Result<Wanted> {
        let (folder, name) = self.tree.parent(&entry.path)?;
        let (len, linked) = match entry.kind {
            EntryKind::File { len, linked } => (Some(len), linked),
            _ => (None, false),
        };
        let as_it_came = self.options.form == Form::AsTheyCame;
        let stat = match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat)
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && !self.makes_way(&entry.path) =>
            {
                self.clear_empty(&entry.path, &folder, &name)?;
                None
            }
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(e.into()),
        };
        let mut earlier = false;
        match stat.map(|s| (FileType::from_raw_mode(s.st_mode), s)) {
            Some((FileType::Directory, _)) => {
                if self.options.dry_run {
                    self.note_in_way(id, &entry.path);
                } else {
                    self.in_way.insert(id);
                }
            }
            Some((FileType::CharacterDevice | FileType::BlockDevice, _)) if !self.options.devices => {
                return Err(self.device_in_way());
            }
            Some((FileType::RegularFile, stat)) if self.keeps_newer(&stat, entry) => {
                if linked {
                    self.linked.insert(id, (entry.path.clone(), (stat.st_dev, stat.st_ino)));
                }
                return Ok(Wanted::Refused);
            }
            Some((FileType::RegularFile, stat)) => {
                let there = if as_it_came { framed::stored_len(&folder, &name) } else { Some(stat.st_size as u64) };
                let same_len = there.is_some() && there == len;
                let dry_run = self.options.dry_run;
                let rounded;
                let entry = if same_len && self.clocks.is_rounded(&folder, &stat, entry, dry_run) {
                    // The existing file has the time of the entry as far as its file system can
                    // store it.
                    let (mtime_s, mtime_ns) = (stat.st_mtime, stat.st_mtime_nsec as u32);
                    rounded = Entry { mtime_s, mtime_ns, ..entry.clone() };
                    &rounded
                } else {
                    entry
                };
                let is_same = match self.options.habits.checksum {
                    true => same_len && self.has_content(&entry.path, digest),
                    false => same_len && meta::same_time(&stat, entry),
                };
                if self.itemizes() {
                    let other = !is_same && digest.is_some();
                    let flags = self.flags(&stat, entry, &folder, &name, other);
                    let update = if is_same { '.' } else { '>' };
                    *item = flags.contains(|c| c != '.').then(|| habits::item(update, 'f', &flags));
                }
                if is_same {
                    self.bring_up_to_date(entry, &stat, &folder, &name);
                    let is_long = self.is_resumable(stat.st_size) || !matches!(self.home, Home::Beside);
                    if is_long && !self.options.dry_run {
                        // Another copy has stored the file since this partial file was left.
                        self.home.forget(&folder, &name, false);
                    }
                    if linked {
                        self.linked.insert(id, (entry.path.clone(), (stat.st_dev, stat.st_ino)));
                    }
                    return Ok(Wanted::No);
                }
                if self.keeps_existing {
                    return Err(is_there());
                }
                earlier = self.is_resumable(stat.st_size);
            }
            Some(_) if self.keeps_existing => return Err(is_there()),
            _ => {}
        }
        if stat.is_none() && !self.beside.is_empty() {
            if let Some(stat) = self.link_to_earlier(entry, digest, &(std::sync::Arc::clone(&folder), name.clone())) {
                if linked {
                    self.linked.insert(id, (entry.path.clone(), (stat.st_dev, stat.st_ino)));
                }
                return Ok(Wanted::No);
            }
            earlier = self.has_earlier_beside(&entry.path);
        }
        let in_chunks = len.is_some_and(|len| len >= DELTA_MIN);
        if in_chunks && !earlier {
            earlier = self.is_resumable(self.home.left_len(&folder, &name));
        }
        Ok(match len {
            Some(_) if earlier && in_chunks && self.options.holes => Wanted::ChunksAndHoles,
            Some(_) if earlier && in_chunks => Wanted::Chunks,
            Some(_) => Wanted::Repeats,
            None => Wanted::Whole,
        })
    }

    fn bring_up_to_date(&mut self, entry: &Entry, stat: &Stat, folder: &OwnedFd, name: &OsStr) {
        if !self.options.dry_run
            && (!meta::is_applied(stat, entry, self.ownership) || !meta::has_xattrs(folder, name, entry))
        {
            match self.tree.open_below(&entry.path, OFlags::RDONLY | OFlags::NONBLOCK) {
                Ok(file) => meta::apply(file.as_fd(), entry, self.ownership, &mut self.losses),
                Err(_) => self.losses.count("mode or owner"),
            }
        }
    }

    /// Reports a folder or link that was created, or would be.
    pub(super) fn made(&mut self, update: char, kind: char, item: String, text: String, answers: &mut Answers) {
        let text = if self.itemizes() { format!("{update}{kind}{} {item}", habits::NEW) } else { text };
        self.say_made(text, answers);
    }

    /// Reports a line about an entry to whoever asked for it.
    pub(super) fn say_made(&mut self, text: String, answers: &mut Answers) {
        // Only a receiving client has this observer; a server reports to the sender if that asked
        // for names.
        if self.observers.on_removed.is_some() {
            (self.observers.on_file)(&text);
        } else if self.options.names || self.itemizes() {
            answers.put(&Answer::Made { text });
        }
    }
}

/// The error of an entry that must not be replaced.
pub(super) fn is_there() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "it is there already, and differs; -f replaces it")
}

/// Whether the entry is a source itself and not a folder.
fn is_top(entry: &Entry) -> bool {
    entry.kind != EntryKind::Folder && !entry.path.contains(&b'/')
}
