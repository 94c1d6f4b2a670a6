//! Memory limits for the state that a copy keeps until its end or until a file arrives, so that a
//! peer cannot exhaust the memory with one copy or with many.

use narrows::entry::{Entry, EntryKind};

use narrows_host::means;
use narrows_host::shares::{ALONE, Share, Shares};

/// Limit for a single copy in bytes: 45 million files, or a few million folders and hard links with
/// usual names.
const ALONE_MAX: u64 = 2 << 30;
/// Limit for all copies of a server in bytes; its clients need not trust one another.
const SHARED_MAX: u64 = 2 << 30;
/// Bytes taken from the share at a time, so that its lock is not taken for each entry.
const STEP: usize = 256 << 10;
/// Bytes of a hash in a table that is half empty after growing.
const HASH_LEN: usize = 24;
/// Bytes of an entry that is remembered only by its path: the hash of it and, with capital letters, of its
/// folded form.
const PATH_LEN: usize = 2 * HASH_LEN;
/// Overhead of an allocation in bytes.
const ALLOCATION: usize = 16;

/// The memory for the state of all copies of a server. A host may get half of what is free.
pub fn shared() -> Shares {
    Shares::new(SHARED_MAX.min(means::memory() / 4) as usize)
}

/// The memory that a copy may still use.
pub(super) struct Room {
    share: Share,
    left: usize,
}

impl Room {
    /// The memory of a copy that shares it with others.
    pub(super) fn of(share: Share) -> Self {
        Self { share, left: 0 }
    }

    /// The memory of the only copy.
    pub(super) fn alone() -> Self {
        // A host gets at most half of the total, so the total is doubled.
        Self::of(Shares::new(2 * ALONE_MAX.min(means::memory() / 2) as usize).of(ALONE))
    }

    /// Reserves memory for what is kept of an entry until the end; false if there is not enough.
    pub(super) fn take(&mut self, entry: &Entry) -> bool {
        let path = entry.path.len() + ALLOCATION;
        self.take_len(match entry.kind {
            // Twice: as an entry, and as a folder in which entries may have to be removed.
            EntryKind::Folder => PATH_LEN + 2 * (size_of::<(u64, Entry)>() + path) + attributes_len(entry),
            EntryKind::HardLink { .. } => PATH_LEN + 2 * size_of::<(u64, u64, Vec<u8>)>() + path,
            // Hard links to it may follow.
            EntryKind::File { linked: true, .. } => return self.take_len(PATH_LEN) && self.take_link(&entry.path),
            _ => PATH_LEN,
        })
    }

    /// Reserves memory for the hash of a path.
    pub(super) fn take_hash(&mut self) -> bool {
        self.take_len(HASH_LEN)
    }

    /// Reserves memory for a path to which hard links may follow.
    pub(super) fn take_link(&mut self, path: &[u8]) -> bool {
        self.take_len(2 * size_of::<(u64, Vec<u8>, (u64, u64))>() + path.len() + ALLOCATION)
    }

    /// Reserves memory for a wanted file that has not arrived.
    pub(super) fn take_pending(&mut self, entry: &Entry) -> bool {
        self.take_len(pending_len(entry))
    }

    /// Releases the memory of a wanted file that has arrived.
    pub(super) fn give_back_pending(&mut self, entry: &Entry) {
        self.left += pending_len(entry);
    }

    /// Reserves `len` bytes that are released when the share is dropped.
    pub(super) fn reserve(&self, len: usize) -> Option<Share> {
        self.share.more(len)
    }

    fn take_len(&mut self, len: usize) -> bool {
        if len > self.left {
            let missing = len - self.left;
            let Some(got) = [missing.max(STEP), missing].into_iter().find(|more| self.share.grow(*more)) else {
                return false;
            };
            self.left += got;
        }
        self.left -= len;
        true
    }
}

fn pending_len(entry: &Entry) -> usize {
    2 * size_of::<(u64, Entry)>() + entry.path.len() + ALLOCATION + attributes_len(entry)
}

/// Memory of the attributes of an entry, in bytes.
fn attributes_len(entry: &Entry) -> usize {
    let len = |(name, value): &(Vec<u8>, Vec<u8>)| {
        size_of::<(Vec<u8>, Vec<u8>)>() + name.len() + value.len() + 2 * ALLOCATION
    };
    entry.xattrs.iter().map(len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: EntryKind, path_len: usize, xattrs: usize) -> Entry {
        Entry {
            path: vec![b'x'; path_len],
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime_s: 0,
            mtime_ns: 0,
            xattrs: vec![(b"a".to_vec(), Vec::new()); xattrs],
        }
    }

    fn link(path_len: usize) -> Entry {
        entry(EntryKind::HardLink { of: 0 }, path_len, 0)
    }

    #[test]
    fn long_folders_and_links_find_no_room_and_files_need_little() {
        let folder = |path_len, xattrs| entry(EntryKind::Folder, path_len, xattrs);
        let mut room = Room::of(Shares::new(400_000).of(ALONE));
        assert!(!room.take(&folder(0, 5100)), "many short attributes take more than they have bytes");
        let fitted = (0..1000).filter(|_| room.take(&folder(900, 0))).count();
        assert!((110..145).contains(&fitted), "{fitted}");
        assert!(!room.take(&link(4000)) && room.take(&link(1)), "what is short may still come");
        assert!(room.take(&entry(EntryKind::File { len: 0, linked: false }, 4000, 2100)));
    }

    /// Nine copies took nine times as much as one.
    #[test]
    fn many_copies_of_a_host_get_no_more_than_one_and_others_get_some() {
        let all = Shares::new(64 << 20);
        let full = |address: &str| {
            let mut room = Room::of(all.of(address.parse().unwrap()));
            let fitted = (0..100_000).take_while(|_| room.take(&link(3900))).count();
            (fitted * 3900, room)
        };
        let copies: Vec<_> = (0..9).map(|_| full("10.0.0.1")).collect();
        let taken: usize = copies.iter().map(|(len, _)| len).sum();
        assert!((30 << 20..=32 << 20).contains(&taken), "{taken}");
        let (other, _room) = full("10.0.0.2");
        assert!(other > 15 << 20, "{other}");
        drop(copies);
        assert!(full("10.0.0.1").0 > 20 << 20);
    }

    #[test]
    fn files_that_are_to_come_take_room_until_they_have() {
        let mut room = Room::of(Shares::new(2 << 20).of(ALONE));
        let file = entry(EntryKind::File { len: 1, linked: false }, 4000, 0);
        let pending = (0..10_000).take_while(|_| room.take_pending(&file)).count();
        assert!((200..300).contains(&pending), "{pending}");
        room.give_back_pending(&file);
        assert!(room.take_pending(&file) && !room.take_pending(&file));
    }
}
