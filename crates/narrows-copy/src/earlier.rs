//! Complete files of this copy whose content later files may repeat. Both ends drop the oldest
//! first.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use narrows_host::means::share_of_descriptors;

/// Maximum number of descriptors kept open, so that content that alternates between a few files
/// does not reopen them.
const OPENED_MAX: usize = 8;
/// The same as a divisor of the descriptors of this process, for a low limit.
const OPENED_SHARE: usize = 32;
/// Maximum number of files that can be referred to; other repeated content is requested again.
const FILES_MAX: usize = 16 << 10;
/// Maximum total length of their paths, in bytes.
const PATHS_MAX: usize = 4 << 20;
/// Shortest content worth a reference, which costs a record and the opening of a file.
pub(super) const REPEAT_MIN: usize = 1 << 10;

/// The files by their ids, with the path and a value of the user.
pub(super) struct Earlier<T> {
    files: HashMap<u64, (Vec<u8>, T)>,
    order: VecDeque<u64>,
    paths_len: usize,
    files_max: usize,
    paths_max: usize,
}

impl<T> Default for Earlier<T> {
    fn default() -> Self {
        Self::within(FILES_MAX, PATHS_MAX)
    }
}

impl<T> Earlier<T> {
    /// Remembers at most so many files, whose paths have at most so many bytes together.
    pub(super) fn within(files_max: usize, paths_max: usize) -> Self {
        Self { files: HashMap::new(), order: VecDeque::new(), paths_len: 0, files_max, paths_max }
    }

    /// Adds a file, and drops the oldest ones beyond the limits.
    pub(super) fn push(&mut self, id: u64, path: Vec<u8>, known: T) {
        self.paths_len += path.len();
        if let Some((path, _)) = self.files.insert(id, (path, known)) {
            self.paths_len -= path.len();
        } else {
            self.order.push_back(id);
        }
        while self.order.len() > self.files_max || self.paths_len > self.paths_max {
            let Some(oldest) = self.order.pop_front() else { break };
            self.remove(oldest);
        }
    }

    /// Removes a file that no longer exists. Its place in the order stays.
    pub(super) fn remove(&mut self, id: u64) {
        if let Some((path, _)) = self.files.remove(&id) {
            self.paths_len -= path.len();
        }
    }

    /// Path and value of a file, if it is known.
    pub(super) fn get(&self, id: u64) -> Option<&(Vec<u8>, T)> {
        self.files.get(&id)
    }
}

/// Open files, the most recently read one at the end.
#[derive(Default)]
pub(super) struct Opened(Vec<(u64, OwnedFd)>);

impl Opened {
    /// Returns an open file, and opens it if needed.
    pub(super) fn get<E>(&mut self, id: u64, open: impl FnOnce() -> Result<OwnedFd, E>) -> Result<&OwnedFd, E> {
        let file = match self.0.iter().position(|(opened, _)| *opened == id) {
            Some(at) => self.0.remove(at),
            None => {
                let file = open()?;
                if self.0.len() >= share_of_descriptors(OPENED_MAX, OPENED_SHARE) {
                    self.0.remove(0);
                }
                (id, file)
            }
        };
        self.0.push(file);
        Ok(&self.0[self.0.len() - 1].1)
    }

    /// Closes a file.
    pub(super) fn close(&mut self, id: u64) {
        self.0.retain(|(opened, _)| *opened != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut earlier = Earlier::default();
        (0..FILES_MAX as u64 + 2).for_each(|id| earlier.push(id, vec![b'a'; 2], ()));
        assert!(earlier.get(1).is_none() && earlier.get(2).is_some());
        assert_eq!((earlier.files.len(), earlier.paths_len), (FILES_MAX, 2 * FILES_MAX));

        let mut earlier = Earlier::default();
        (0..2000).for_each(|id| earlier.push(id, vec![b'a'; 4095], id));
        assert_eq!(earlier.paths_len, PATHS_MAX / 4095 * 4095);
        earlier.push(1999, vec![b'b'], 7);
        assert_eq!(earlier.get(1999), Some(&(vec![b'b'], 7)));
        assert_eq!(earlier.order.len(), earlier.files.len());
        earlier.remove(1999);
        earlier.remove(1999);
        assert!(earlier.get(1999).is_none());
        (0..2 * FILES_MAX as u64).for_each(|id| earlier.push(id + 5000, vec![b'c'; 3], id));
        assert_eq!(
            (earlier.order.len(), earlier.files.len(), earlier.paths_len),
            (FILES_MAX, FILES_MAX, 3 * FILES_MAX)
        );
    }
}
