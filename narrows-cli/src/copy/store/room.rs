//! Memory for what a copy keeps until its end: a peer must not fill it.

use narrows::entry::{Entry, EntryKind};

/// A few million folders and hard links with usual names, whatever else they are.
const ROOM: usize = 1 << 30;

/// What is left of it.
pub(super) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(ROOM)
    }
}

impl Room {
    /// Takes what is kept of an entry; whether there was so much.
    pub(super) fn take(&mut self, entry: &Entry) -> bool {
        let len = match entry.kind {
            EntryKind::Folder => size_of::<(u64, Entry)>() + entry.path.len() + attributes_len(entry),
            EntryKind::HardLink { .. } => size_of::<(u64, u64, Vec<u8>)>() + entry.path.len(),
            EntryKind::File { linked: true, .. } => return self.take_link(&entry.path),
            _ => 0,
        };
        self.take_len(len)
    }

    /// Takes what is kept of a path to which hard links may come.
    pub(super) fn take_link(&mut self, path: &[u8]) -> bool {
        self.take_len(size_of::<(u64, Vec<u8>, (u64, u64))>() + path.len())
    }

    fn take_len(&mut self, len: usize) -> bool {
        let left = self.0.checked_sub(len);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// Memory that the attributes of an entry take.
pub(super) fn attributes_len(entry: &Entry) -> usize {
    entry.xattrs.iter().map(|(name, value)| size_of::<(Vec<u8>, Vec<u8>)>() + name.len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_folders_and_links_find_no_room_and_files_need_none() {
        let entry = |kind, path_len: usize, xattrs: usize| Entry {
            path: vec![b'x'; path_len],
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime_s: 0,
            mtime_ns: 0,
            xattrs: vec![(b"a".to_vec(), Vec::new()); xattrs],
        };
        let folder = |path_len, xattrs| entry(EntryKind::Folder, path_len, xattrs);
        let link = |path_len| entry(EntryKind::HardLink { of: 0 }, path_len, 0);
        let mut room = Room(100_000);
        assert!(!room.take(&folder(0, 2100)), "many short attributes take more than they have bytes");
        let fitted = (0..1000).filter(|_| room.take(&folder(900, 0))).count();
        assert!((80..111).contains(&fitted), "{fitted}");
        assert!(!room.take(&link(4000)) && room.take(&link(1)), "what is short may still come");
        assert!(room.take(&entry(EntryKind::File { len: 0, linked: false }, 4000, 2100)));
    }
}
