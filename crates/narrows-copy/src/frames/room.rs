//! The bound of the content that waits between the thread that reads and the one that puts frames in order.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::OverError;

/// Bytes of content that wait: 32 blocks, which keep as many threads busy, of the memory that a server
/// reserves for a copy.
const ITEMS_LEN: usize = 16 << 20;

/// The bytes that wait between the two threads.
#[derive(Default)]
pub(super) struct Room {
    /// So many, and whether nobody takes them any more.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, (usize, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `len` bytes fit, or nothing else waits.
    pub(super) fn take(&self, len: usize) -> Result<(), OverError> {
        let is_full = |(waiting, over): &mut (usize, bool)| *waiting > 0 && *waiting + len > ITEMS_LEN && !*over;
        let mut state = self.changed.wait_while(self.lock(), is_full).unwrap_or_else(PoisonError::into_inner);
        state.0 += len;
        if state.1 { Err(OverError) } else { Ok(()) }
    }

    pub(super) fn give(&self, len: usize) {
        self.lock().0 -= len;
        self.changed.notify_all();
    }

    /// The bytes that wait now.
    pub(super) fn waiting(&self) -> usize {
        self.lock().0
    }

    pub(super) fn end(&self) {
        self.lock().1 = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that does not read holds no more than this of a server's memory.
    #[test]
    fn bytes_that_wait_are_limited() {
        let room = Room::default();
        let takes = |len| std::thread::scope(|scope| scope.spawn(|| room.take(len).is_ok()).join().unwrap());
        assert!(takes(2 * ITEMS_LEN), "alone, whatever it is");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| room.take(1).is_ok());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waiting.is_finished());
            room.give(2 * ITEMS_LEN);
            assert!(waiting.join().unwrap() && takes(ITEMS_LEN - 1));
            let waiting = scope.spawn(|| room.take(1).is_ok());
            room.end();
            assert!(!waiting.join().unwrap(), "nobody takes it any more");
        });
    }
}
