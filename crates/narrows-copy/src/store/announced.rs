//! Entries as they are announced: which may be stored, and which files are wanted.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use narrows::entry::{DIGEST_LEN, Entry, EntryKind, Wanted, check_path};
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::clock::Clocks;
use super::home::Home;
use super::permitted::{Asked, Permitted};
use super::session::Session;
use super::{Target, framed, habits};
use crate::delta::DELTA_MIN;
use crate::frames::Form;
use crate::meta;
use crate::tree::Tree;
use crate::{e_text, shown};

/// Maximum number of wanted files that have not arrived; our senders have a few thousand.
const PENDING_MAX: usize = 256 << 10;
/// Maximum number of entries in a copy.
const ENTRIES_MAX: u64 = 100_000_000;

/// What may be announced, and as what it is stored.
pub(super) struct Announce {
    pub(super) permitted: Permitted,
    /// What the sender was asked for, if this end asked.
    pub(super) asked: Option<Asked>,
    /// The name for a single file instead of its own.
    rename: Option<Vec<u8>>,
    /// The target while it is open whether it becomes a file or a folder: the first entry decides.
    pub(super) undecided: Option<PathBuf>,
    /// Their number.
    pub(super) entries: u64,
    clocks: Clocks,
}

impl Target {
    /// Stores an entry, or answers whether its content is wanted.
    pub(super) fn announced(&mut self, id: u64, mut entry: Entry) {
        if meta::is_socket(&entry) {
            // It is made and passed over as a fifo is.
            entry.kind = EntryKind::Fifo;
        }
        let is_file = entry.kind.has_content();
        let digest = meta::take_digest(&mut entry);
        let allowed = self.announce.permitted.allows(&entry);
        if let Some(target) = self.announce.undecided.take_if(|_| allowed)
            && let Err(e) = self.announce.decide(&target, &entry, &mut self.session)
        {
            if is_file {
                self.session.report.answers.file(Wanted::Refused);
            }
            let text = format!("cannot store in {}: {}", shown(target.as_os_str().as_bytes()), e_text(&e));
            self.announce.undecided = Some(target);
            return self.session.report.failed(id, text);
        }
        if let Some(name) = &self.announce.rename {
            entry.path.clone_from(name);
        }
        framed::rename(&mut entry, self.session.options.form);
        if !self.session.options.set_id {
            meta::take_privileges(&mut entry, &mut self.session.losses);
            if self.session.is_of_pack {
                meta::take_trusted(&mut entry, &mut self.session.losses);
            }
        }
        let wrong = if !allowed {
            Some("it was not requested")
        } else if entry.kind == EntryKind::Stream && entry.path.is_empty() {
            Some("the target is a folder; name the file in it, as in FOLDER/NAME")
        } else if self.session.removal.is_some() && self.announce.permitted.is_one() && is_top(&entry) {
            Some("--delete is for folders")
        } else if let Some(wrong) = self.names.is_taken(&entry, &mut self.session) {
            Some(wrong)
        } else if self.session.home.covers(&entry.path, entry.kind == EntryKind::Folder) {
            Some("its folder is that of --partial-dir")
        } else if check_path(&entry.path).is_err() {
            Some("its name is too long to end in .nrw")
        } else if self.announce.entries > ENTRIES_MAX || !self.session.room.take(&entry) {
            Some("there are too many entries")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            if is_file {
                self.session.report.answers.file(Wanted::Refused);
            }
            let name = if entry.path.is_empty() { "it".into() } else { shown(&entry.path) };
            return self.session.report.failed(id, format!("cannot store {name}: {wrong}"));
        }
        let path = entry.path.clone();
        let result = match &entry.kind {
            EntryKind::File { .. } | EntryKind::Stream => {
                return self.announced_file(id, entry, digest.as_ref());
            }
            EntryKind::Folder => self.folders.make_folder(id, entry, &mut self.session, &mut self.names),
            EntryKind::HardLink { of } if self.session.options.dry_run => {
                let of = *of;
                self.names.would_link(id, of, &path, &mut self.session)
            }
            EntryKind::HardLink { of } => {
                self.names.links.push((id, *of, path.clone()));
                Ok(())
            }
            EntryKind::Symlink { .. } => self.names.special(id, entry, &mut self.session),
            EntryKind::Fifo | EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. } => {
                self.names.device(id, entry, &mut self.session)
            }
        };
        if let Err(e) = result {
            self.session.report.failed(id, format!("cannot store {}: {}", shown(&path), e_text(&e)));
        }
    }

    fn announced_file(&mut self, id: u64, entry: Entry, digest: Option<&[u8; DIGEST_LEN]>) {
        let full = self.content.pending.len() >= PENDING_MAX;
        let mut item = None;
        let wanted = match self.compare(id, &entry, digest, &mut item) {
            // A dry run: its folder would be created first.
            Err(e) if self.session.would_be_made(&e) => Wanted::Whole,
            Err(e) => {
                self.session.report.answers.file(Wanted::Refused);
                return self.session.report.failed(id, format!("cannot store {}: {}", shown(&entry.path), e_text(&e)));
            }
            Ok(Wanted::No) => {
                self.session.report.stored.files_same += 1;
                self.session.report.stored.bytes_same +=
                    if let EntryKind::File { len, .. } = entry.kind { len } else { 0 };
                Wanted::No
            }
            Ok(wanted) if wanted != Wanted::Refused && (full || !self.session.room.take_pending(&entry)) => {
                self.session.report.answers.file(Wanted::Refused);
                return self.session.report.failed(id, "too many announced files were not sent".into());
            }
            // What is there is newer, and no failure.
            Ok(Wanted::Refused) => return self.session.report.answers.file(Wanted::Refused),
            Ok(wanted) => wanted,
        };
        self.session.report.answers.file(wanted);
        if self.session.itemizes() {
            let new = || habits::item('>', 'f', habits::NEW);
            if let Some(item) = item.or_else(|| (wanted != Wanted::No).then(new)) {
                self.session.tell_item(&item, &shown(&entry.path));
            }
        }
        if wanted != Wanted::No && self.session.options.dry_run {
            self.session.room.give_back_pending(&entry);
            self.session.report.stored.files += 1;
            if !self.session.itemizes() {
                (self.session.report.observers.on_file)(&shown(&entry.path));
            }
        } else if wanted != Wanted::No {
            self.content.pending.insert(id, entry);
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
        let (folder, name) = self.session.tree.parent(&entry.path)?;
        let (len, linked) = match entry.kind {
            EntryKind::File { len, linked } => (Some(len), linked),
            _ => (None, false),
        };
        let as_it_came = self.session.options.form == Form::AsTheyCame;
        let stat = match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat)
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                    && !self.session.makes_way(&entry.path) =>
            {
                self.session.clear_empty(&entry.path, &folder, &name)?;
                None
            }
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(e) => return Err(e.into()),
        };
        let mut earlier = false;
        match stat.map(|s| (FileType::from_raw_mode(s.st_mode), s)) {
            Some((FileType::Directory, _)) => {
                if self.session.options.dry_run {
                    self.names.note_in_way(id, &entry.path);
                } else {
                    self.names.in_way.insert(id);
                }
            }
            Some((FileType::CharacterDevice | FileType::BlockDevice, _)) if !self.session.options.devices => {
                return Err(self.session.device_in_way());
            }
            Some((FileType::RegularFile, stat)) if self.session.keeps_newer(&stat, entry) => {
                if linked {
                    self.names.linked.insert(id, (entry.path.clone(), (stat.st_dev, stat.st_ino)));
                }
                return Ok(Wanted::Refused);
            }
            Some((FileType::RegularFile, stat)) => {
                let there = if as_it_came { framed::stored_len(&folder, &name) } else { Some(stat.st_size as u64) };
                let same_len = there.is_some() && there == len;
                let dry_run = self.session.options.dry_run;
                let rounded;
                let entry = if same_len && self.announce.clocks.is_rounded(&folder, &stat, entry, dry_run) {
                    // The existing file has the time of the entry as far as its file system can
                    // store it.
                    let (mtime_s, mtime_ns) = (stat.st_mtime, stat.st_mtime_nsec as u32);
                    rounded = Entry { mtime_s, mtime_ns, ..entry.clone() };
                    &rounded
                } else {
                    entry
                };
                let is_same = match self.session.options.habits.checksum {
                    true => same_len && self.session.has_content(&entry.path, digest),
                    false => same_len && meta::same_time(&stat, entry),
                };
                if self.session.itemizes() {
                    let other = !is_same && digest.is_some();
                    let flags = self.session.flags(&stat, entry, &folder, &name, other);
                    let update = if is_same { '.' } else { '>' };
                    *item = flags.contains(|c| c != '.').then(|| habits::item(update, 'f', &flags));
                }
                if is_same {
                    self.session.bring_up_to_date(entry, &stat, &folder, &name);
                    let is_long = self.session.is_resumable(stat.st_size) || !matches!(self.session.home, Home::Beside);
                    if is_long && !self.session.options.dry_run {
                        // Another copy has stored the file since this partial file was left.
                        self.session.home.forget(&folder, &name, false);
                    }
                    if linked {
                        self.names.linked.insert(id, (entry.path.clone(), (stat.st_dev, stat.st_ino)));
                    }
                    return Ok(Wanted::No);
                }
                if self.session.keeps_existing {
                    return Err(is_there());
                }
                earlier = self.session.is_resumable(stat.st_size);
            }
            Some(_) if self.session.keeps_existing => return Err(is_there()),
            _ => {}
        }
        if stat.is_none() && !self.session.beside.is_empty() {
            if let Some(stat) =
                self.session.link_to_earlier(entry, digest, &(std::sync::Arc::clone(&folder), name.clone()))
            {
                if linked {
                    self.names.linked.insert(id, (entry.path.clone(), (stat.st_dev, stat.st_ino)));
                }
                return Ok(Wanted::No);
            }
            earlier = self.session.has_earlier_beside(&entry.path);
        }
        let in_chunks = len.is_some_and(|len| len >= DELTA_MIN);
        if in_chunks && !earlier {
            earlier = self.session.is_resumable(self.session.home.left_len(&folder, &name));
        }
        Ok(match len {
            Some(_) if earlier && in_chunks && self.session.options.holes => Wanted::ChunksAndHoles,
            Some(_) if earlier && in_chunks => Wanted::Chunks,
            Some(_) => Wanted::Repeats,
            None => Wanted::Whole,
        })
    }
}

impl Announce {
    pub(super) fn new(permitted: Permitted, rename: Option<Vec<u8>>) -> Self {
        Self { permitted, asked: None, rename, undecided: None, entries: 0, clocks: Clocks::default() }
    }

    /// Decides whether the target becomes a file or a folder.
    fn decide(&mut self, target: &Path, first: &Entry, session: &mut Session) -> io::Result<()> {
        if is_top(first) {
            self.rename = target.file_name().map(|name| name.as_bytes().to_vec());
            return Ok(());
        }
        if target.exists() {
            return Err(io::Error::other("it is a file, not a folder"));
        }
        session.tree = if session.options.dry_run {
            Tree::empty()?
        } else {
            fs::create_dir(target)?;
            Tree::open(target)?
        };
        Ok(())
    }
}

impl Session {
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
}

/// The error of an entry that must not be replaced.
pub(super) fn is_there() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "it is there already, and differs; -f replaces it")
}

/// Whether the entry is a source itself and not a folder.
fn is_top(entry: &Entry) -> bool {
    entry.kind != EntryKind::Folder && !entry.path.contains(&b'/')
}
