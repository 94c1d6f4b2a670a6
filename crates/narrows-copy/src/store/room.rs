//! Memory for what a copy keeps until its end, or until a file has come: a peer must not fill it, neither by one copy nor
//! by many.

use narrows::entry::{Entry, EntryKind};

use narrows_host::means;
use narrows_host::shares::{ALONE, Share, Shares};

/// For one copy: 89 million files, or a few million folders and hard links with usual names.
const ALONE_MAX: u64 = 2 << 30;
/// For all copies of a server, whose clients need not trust one another.
const SHARED_MAX: u64 = 2 << 30;
/// What is taken from the share at a time: its lock is not asked for each entry.
const STEP: usize = 256 << 10;
/// An entry that is remembered by its hash only, in a table that is half empty when it has grown.
const HASH_LEN: usize = 24;
/// What an allocation takes beside its bytes.
const ALLOCATION: usize = 16;

/// What all copies of a server may keep together. A host may have half of what is free.
pub fn shared() -> Shares {
    Shares::new(SHARED_MAX.min(means::memory() / 4) as usize)
}

/// What is left of it.
pub(super) struct Room {
    share: Share,
    left: usize,
}

impl Room {
    /// Of a copy that shares it with others.
    pub(super) fn of(share: Share) -> Self {
        Self { share, left: 0 }
    }

    /// Of the only copy.
    pub(super) fn alone() -> Self {
        // One may have half of it.
        Self::of(Shares::new(2 * ALONE_MAX.min(means::memory() / 2) as usize).of(ALONE))
    }

    /// Takes what is kept of an entry until the end; whether there was so much.
    pub(super) fn take(&mut self, entry: &Entry) -> bool {
        let path = entry.path.len() + ALLOCATION;
        self.take_len(match entry.kind {
            // Twice: as what it is, and as what may have to be removed in it.
            EntryKind::Folder => 2 * (size_of::<(u64, Entry)>() + path) + attributes_len(entry),
            EntryKind::HardLink { .. } => HASH_LEN + 2 * size_of::<(u64, u64, Vec<u8>)>() + path,
            // Hard links to it may come.
            EntryKind::File { linked: true, .. } => return self.take_len(HASH_LEN) && self.take_link(&entry.path),
            _ => HASH_LEN,
        })
    }

    /// Takes what is kept of a path to which hard links may come.
    pub(super) fn take_link(&mut self, path: &[u8]) -> bool {
        self.take_len(2 * size_of::<(u64, Vec<u8>, (u64, u64))>() + path.len() + ALLOCATION)
    }

    /// Takes what is kept of a file that is to come.
    pub(super) fn take_pending(&mut self, entry: &Entry) -> bool {
        self.take_len(pending_len(entry))
    }

    /// It has come.
    pub(super) fn give_back_pending(&mut self, entry: &Entry) {
        self.left += pending_len(entry);
    }

    /// So much that is given back when the share is dropped.
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

/// Memory that the attributes of an entry take.
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
