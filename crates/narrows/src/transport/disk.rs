//! A file as a link: bytes that were written and have not reached the disk are unsent.
//!
//! The system takes writes at the speed of memory until a share of it is full of them, and writes them to
//! the disk later. That speed says nothing of the disk. So a thread has each stretch written at once and
//! waits for it, and writes stop while a window is on its way: the link then takes bytes as fast as the
//! disk stores them.

use std::fs::File;
use std::io::{self, IoSlice, Seek, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::sys;

/// On their way to the disk, and counted as gone: a disk needs so much at once to reach its rate, 1 GB/s
/// where a write takes 2 ms. With less on its way it says how long a write takes, not how fast it is.
const AT_ONCE: u64 = 2 << 20;
/// Least window behind that.
const WINDOW_MIN: u64 = 2 << 20;
/// Waited for at a time: a hundredth of a second of a slow disk.
const STRETCH: u64 = 1 << 20;

pub(super) struct Disk {
    file: File,
    shared: Arc<Shared>,
    window: AtomicU64,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Offsets in the file.
struct State {
    written: u64,
    /// Up to here the disk has it.
    stored: u64,
    over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    pub(super) fn new(mut file: File) -> io::Result<Self> {
        let at = file.stream_position()?;
        let state = State { written: at, stored: at, over: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (writing, of_thread) = (file.try_clone()?, Arc::clone(&shared));
        std::thread::Builder::new().name("narrows-disk".into()).spawn(move || store(&writing, &of_thread))?;
        Ok(Self { file, shared, window: AtomicU64::new(WINDOW_MIN) })
    }

    pub(super) fn write_some(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.unsent() >= self.window.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let n = self.file.write_vectored(bufs)?;
        self.shared.lock().written += n as u64;
        self.shared.changed.notify_all();
        Ok(n)
    }

    pub(super) fn unsent(&self) -> u64 {
        let state = self.shared.lock();
        (state.written - state.stored).saturating_sub(AT_ONCE)
    }

    pub(super) fn set_window(&self, bytes: u64) {
        self.window.store(bytes.max(WINDOW_MIN), Ordering::Relaxed);
    }

    pub(super) fn wait_writable(&self, timeout: Duration) {
        let window = self.window.load(Ordering::Relaxed);
        let is_full = |state: &mut State| state.written - state.stored >= AT_ONCE + window && !state.over;
        drop(self.shared.changed.wait_timeout_while(self.shared.lock(), timeout, is_full));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
    }
}

/// Has what was written stored, a stretch after another.
fn store(file: &File, shared: &Shared) {
    let mut state = shared.lock();
    loop {
        let nothing = |state: &mut State| state.written == state.stored && !state.over;
        state = shared.changed.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner);
        if state.over {
            return;
        }
        let (begin, written) = (state.stored, state.written);
        drop(state);
        // All of it is on its way while the first stretch is waited for.
        sys::start_writeback(file.as_fd(), begin, written - begin);
        let end = written.min(begin + STRETCH);
        // A disk that fails tells whoever asks whether the file is stored: fsync.
        sys::await_writeback(file.as_fd(), begin, end - begin);
        state = shared.lock();
        state.stored = end;
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn what_is_written_is_stored_and_the_window_is_never_exceeded_by_more_than_a_write() {
        let path = std::env::temp_dir().join(format!("narrows-disk-{}", std::process::id()));
        let file = File::options().create(true).truncate(true).write(true).read(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut read_back = file.try_clone().unwrap();
        let mut disk = Disk::new(file).unwrap();
        let piece = vec![7; 3 << 20];
        for _ in 0..10 {
            while let Err(e) = disk.write_some(&[IoSlice::new(&piece)]) {
                assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
                disk.wait_writable(Duration::from_secs(60));
            }
            assert!(disk.unsent() <= WINDOW_MIN + piece.len() as u64);
        }
        drop(disk);
        read_back.rewind().unwrap();
        let mut found = Vec::new();
        read_back.read_to_end(&mut found).unwrap();
        assert!(found == vec![7; 30 << 20]);
    }
}
