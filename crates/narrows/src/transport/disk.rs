//! A file as a link: bytes that were written and have not reached the disk are unsent.
//!
//! The system takes writes at the speed of memory until a share of it is full of them, and writes them to
//! the disk later. That speed says nothing of the disk. So a thread has each stretch written at once and
//! waits for it, and writes stop while a window is on its way: the link then takes bytes as fast as the
//! disk stores them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Seek, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::sys;

/// On their way to the disk, and counted as gone: a disk needs so much at once to reach its rate, 1 GB/s
/// where a write takes 2 ms. With less on its way it says how long a write takes, not how fast it is.
const AT_ONCE: u64 = 2 << 20;
/// Least window after that.
const WINDOW_MIN: u64 = 2 << 20;
/// Waited for at a time: a hundredth of a second of a slow disk.
const STRETCH: u64 = 1 << 20;

/// The rate is that over so much time in which the disk had something to do. Quotas, of the system and
/// of clouds, let the bytes of up to a tenth of a second pass at once and then none: a shorter time sees
/// two disks in turn, one of memory and one that hangs.
const AVERAGED: Duration = Duration::from_secs(1);
/// Most stretches of that time that are remembered: beyond 4 GB/s it is shorter.
const MARKS_MAX: usize = 4096;

pub(super) struct Disk {
    file: File,
    shared: Arc<Shared>,
    window: AtomicU64,
    thread: Option<JoinHandle<()>>,
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
    pace: Pace,
    /// Why the disk does not store it. The system tells it once, to whoever waits first.
    failed: Option<io::Error>,
}

/// How fast the disk is, evened out.
struct Pace {
    /// Stretches that count: bytes and time.
    bytes: u64,
    busy: Duration,
    /// When the present stretch began, and whether more than `AT_ONCE` was on its way then.
    begun: Option<(Instant, bool)>,
    /// Bytes and time before each of the last stretches.
    marks: VecDeque<(u64, Duration)>,
    /// In how much time a disk of an even rate would have stored the bytes up to offset `told`.
    even_ns: f64,
    told: u64,
}

impl Pace {
    fn new(at: u64) -> Self {
        let marks = VecDeque::from([(0, Duration::ZERO)]);
        Self { bytes: 0, busy: Duration::ZERO, begun: None, marks, even_ns: 0.0, told: at }
    }

    /// A stretch of `len` bytes is stored. One that had the disk to itself says how long a write takes,
    /// which is no rate, but the disk is no slower than that.
    fn end_stretch(&mut self, len: u64, now: Instant) {
        let Some((begun, full)) = self.begun.take() else { return };
        let took = now - begun;
        if !full && self.ns_per_byte(now).is_some_and(|ns| took.as_nanos() as f64 > ns * len as f64) {
            return;
        }
        self.bytes += len;
        self.busy += took;
        self.marks.push_back((self.bytes, self.busy));
        while self.marks.len() > MARKS_MAX || self.marks.get(1).is_some_and(|mark| self.busy - mark.1 >= AVERAGED) {
            self.marks.pop_front();
        }
    }

    fn ns_per_byte(&self, now: Instant) -> Option<f64> {
        let &(bytes, busy) = self.marks.front()?;
        let present = self.begun.filter(|begun| begun.1).map_or(Duration::ZERO, |begun| now - begun.0);
        let ns = (self.busy + present - busy).as_nanos() as f64;
        (self.bytes > bytes).then(|| ns / (self.bytes - bytes) as f64)
    }

    /// Takes the offset before which all bytes count as gone.
    fn even_ns(&mut self, gone: u64, now: Instant) -> u64 {
        if gone > self.told
            && let Some(ns_per_byte) = self.ns_per_byte(now)
        {
            self.even_ns += (gone - self.told) as f64 * ns_per_byte;
            self.told = gone;
        }
        self.even_ns as u64
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> io::Result<()> {
        match &self.lock().failed {
            None => Ok(()),
            Some(e) => Err(e.raw_os_error().map_or_else(|| e.kind().into(), io::Error::from_raw_os_error)),
        }
    }
}

impl Disk {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let writing = file.try_clone()?;
        Self::stored_by(file, move |stretch, written| {
            // All of it is on its way while the first stretch is waited for.
            sys::start_writeback(writing.as_fd(), stretch.start, written - stretch.start);
            sys::await_writeback(writing.as_fd(), stretch.start, stretch.end - stretch.start)
        })
    }

    /// `store` has a stretch stored, of a file that is written up to an offset.
    fn stored_by(
        mut file: File,
        store: impl Fn(Range<u64>, u64) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let at = file.stream_position()?;
        let state = State { written: at, stored: at, over: false, pace: Pace::new(at), failed: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("narrows-disk".into());
        let thread = Some(thread.spawn(move || store_all(&of_thread, store))?);
        Ok(Self { file, shared, window: AtomicU64::new(WINDOW_MIN), thread })
    }

    pub(super) fn write_some(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.shared.check()?;
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

    /// Bytes that count as unsent, and the time in which the disk stored the others, as if it were even.
    pub(super) fn progress(&self) -> (u64, u64) {
        let state = &mut *self.shared.lock();
        let unsent = (state.written - state.stored).saturating_sub(AT_ONCE);
        (unsent, state.pace.even_ns(state.written - unsent, Instant::now()))
    }

    pub(super) fn set_window(&self, bytes: u64) {
        self.window.store(bytes.max(WINDOW_MIN), Ordering::Relaxed);
    }

    pub(super) fn wait_writable(&self, timeout: Duration) {
        let window = self.window.load(Ordering::Relaxed);
        let is_full = |state: &mut State| state.written - state.stored >= AT_ONCE + window && !state.over;
        drop(self.shared.changed.wait_timeout_while(self.shared.lock(), timeout, is_full));
    }

    /// Nothing more is written. What is on its way is not waited for, except the stretch in hand.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.check()
    }

    fn end(&self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.end();
    }
}

/// Has what was written stored, a stretch after another.
fn store_all(shared: &Shared, store: impl Fn(Range<u64>, u64) -> io::Result<()>) {
    let mut state = shared.lock();
    loop {
        let nothing = |state: &mut State| state.written == state.stored && !state.over;
        state = shared.changed.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner);
        if state.over {
            return;
        }
        let (begin, written) = (state.stored, state.written);
        state.pace.begun = Some((Instant::now(), written - begin > AT_ONCE));
        drop(state);
        let end = written.min(begin + STRETCH);
        let result = store(begin..end, written);
        state = shared.lock();
        match result {
            Ok(()) => {
                state.stored = end;
                state.pace.end_stretch(end - begin, Instant::now());
            }
            Err(e) => (state.failed, state.over) = (Some(e), true),
        }
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn nameless(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("narrows-{name}-{}", std::process::id()));
        let file = File::options().create(true).truncate(true).write(true).read(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file
    }

    /// The system tells it once: whoever syncs the file afterwards hears nothing of it.
    #[test]
    fn a_disk_that_fails_is_told_of() {
        const EIO: i32 = 5;
        let fail = |_: Range<u64>, _: u64| Err(io::Error::from_raw_os_error(EIO));
        let mut disk = Disk::stored_by(nameless("failing"), fail).unwrap();
        disk.write_some(&[IoSlice::new(&[1])]).unwrap();
        // An end that comes first would stop the thread before its first stretch.
        while disk.shared.check().is_ok() {
            std::thread::yield_now();
        }
        assert_eq!(disk.finish().unwrap_err().raw_os_error(), Some(EIO));
        let mut disk = Disk::stored_by(nameless("failing"), fail).unwrap();
        let piece = vec![7; 1 << 20];
        let error = loop {
            match disk.write_some(&[IoSlice::new(&piece)]) {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => break e,
                _ => disk.wait_writable(Duration::from_secs(60)),
            }
        };
        assert_eq!(error.raw_os_error(), Some(EIO));
    }

    /// A tenth of a second at once, then nothing for as long: 100 MB/s at every moment.
    #[test]
    fn a_disk_with_a_quota_is_one_disk() {
        let (mut pace, begun) = (Pace::new(0), Instant::now());
        let (mut stored, mut told) = (0, Vec::new());
        for tenth in 0..50 {
            for piece in 0..10 {
                let at = |ms: u64| begun + Duration::from_millis(100 * tenth + ms);
                pace.begun = Some((at(if piece == 0 { 0 } else { 90 + piece }), true));
                stored += 1_000_000;
                pace.end_stretch(1_000_000, at(91 + piece));
                told.push((stored, pace.even_ns(stored, at(91 + piece))));
            }
        }
        for (before, after) in told.iter().zip(&told[1..]).skip(100) {
            let rate = (after.0 - before.0) as f64 / (after.1 - before.1) as f64 * 1000.0;
            assert!((85.0..115.0).contains(&rate), "{rate} MB/s");
        }
    }

    #[test]
    fn what_is_written_is_stored_and_the_window_is_never_exceeded_by_more_than_a_write() {
        let file = nameless("disk");
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
