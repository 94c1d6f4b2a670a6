//! Files that came whole in this copy, so that later ones may repeat what is in them: both ends forget the oldest first.

use std::collections::{HashMap, VecDeque};

/// Files that can be repeated; what else is repeated is asked for again.
const FILES_MAX: usize = 16 << 10;
/// Bytes of their paths.
const PATHS_MAX: usize = 4 << 20;
/// Less is not worth a record and the opening of a file.
pub(super) const REPEAT_MIN: usize = 1 << 10;

pub(super) struct Earlier<T> {
    files: HashMap<u64, (Vec<u8>, T)>,
    order: VecDeque<u64>,
    paths_len: usize,
}

impl<T> Default for Earlier<T> {
    fn default() -> Self {
        Self { files: HashMap::new(), order: VecDeque::new(), paths_len: 0 }
    }
}

impl<T> Earlier<T> {
    pub(super) fn push(&mut self, id: u64, path: Vec<u8>, known: T) {
        self.paths_len += path.len();
        if let Some((path, _)) = self.files.insert(id, (path, known)) {
            self.paths_len -= path.len();
        } else {
            self.order.push_back(id);
        }
        while self.order.len() > FILES_MAX || self.paths_len > PATHS_MAX {
            let Some((path, _)) = self.order.pop_front().and_then(|oldest| self.files.remove(&oldest)) else { break };
            self.paths_len -= path.len();
        }
    }

    pub(super) fn get(&self, id: u64) -> Option<&(Vec<u8>, T)> {
        self.files.get(&id)
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
    }
}
