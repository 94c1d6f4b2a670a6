//! Identity, length and times of a file when it was read. Whoever says that a file is stored, and above all whoever then
//! removes it, compares what it was before with what it is after.
//!
//! A program may write into a file and put the time of the last write back (`mmap`, `touch -r`), but not
//! the time of the last change. That one also changes with the mode, an attribute or a further name of
//! the file, so where it alone did, the content is read once more and compared.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};

/// How often a file is read again, and how many ticks of the clock are waited for: what changes all the
/// time is told of after that.
const TRIES: u32 = 3;
/// Coarsest resolution of times on file systems without fractions of a second: FAT.
const COARSEST: Duration = Duration::from_secs(2);
/// Interval of looks at the clock, and how many: the longest tick is 10 ms.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const LOOKS: u32 = 20;

/// Device, inode, length and times of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    /// Device and inode.
    pub place: (u64, u64),
    /// Length in bytes.
    pub len: u64,
    /// Time of the last write: seconds since 1970, and nanoseconds. Programs may set it.
    pub mtime: (i64, u32),
    /// Time of the last change of content or status, which only the kernel sets.
    pub ctime: (i64, u32),
}

/// How a file differs from what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Not at all.
    Nothing,
    /// Only in the time of the last change: its mode, a name or an attribute changed, or its content did
    /// and the time was put back.
    Status,
    /// It was written, or is another file.
    Content,
}

impl From<&Metadata> for FileState {
    fn from(data: &Metadata) -> Self {
        Self {
            place: (data.dev(), data.ino()),
            len: data.len(),
            mtime: (data.mtime(), data.mtime_nsec() as u32),
            ctime: (data.ctime(), data.ctime_nsec() as u32),
        }
    }
}

impl From<&Stat> for FileState {
    #[allow(clippy::unnecessary_cast, reason = "the types of these fields differ between systems")]
    fn from(stat: &Stat) -> Self {
        Self {
            place: (stat.st_dev as u64, stat.st_ino as u64),
            len: stat.st_size as u64,
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime as i64, stat.st_ctime_nsec as u32),
        }
    }
}

impl FileState {
    /// What an open file is now.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&rustix::fs::fstat(file)?))
    }

    /// What an open file is before it is read. Whatever is written from then on shows in its times: one
    /// that was written within this tick of the clock is waited for, which takes at most 10 ms, or 2 s where
    /// times have no fractions.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn before_reading(file: impl AsFd) -> io::Result<Self> {
        Self::of(&file)?.settled(|| Self::of(&file))
    }

    /// As [`FileState::before_reading`], for a file that `look` looks at again.
    ///
    /// # Errors
    /// Those of `look`.
    pub fn settled(mut self, mut look: impl FnMut() -> io::Result<Self>) -> io::Result<Self> {
        let tries = if self.ctime.1 == 0 { 1 } else { TRIES };
        for _ in 0..tries {
            let Some(mut left) = left_of_tick(self.ctime, now()) else { break };
            for _ in 0..LOOKS {
                std::thread::sleep(left.max(LOOK_EVERY));
                let Some(more) = left_of_tick(self.ctime, now()) else { break };
                left = more;
            }
            self = look()?;
        }
        Ok(self)
    }

    /// How the file that is `now` differs from this.
    pub fn change(&self, now: &Self) -> Change {
        match (self.place, self.len, self.mtime) == (now.place, now.len, now.mtime) {
            true if self.ctime == now.ctime => Change::Nothing,
            true => Change::Status,
            false => Change::Content,
        }
    }

    /// Whether an open file still has the content that was read when it was this: returns what it is now,
    /// `None` if it was written or goes on changing. `is_same` reads it again and compares.
    ///
    /// # Errors
    /// Those of `fstat` and of `is_same`.
    pub fn still(&self, file: impl AsFd, mut is_same: impl FnMut() -> io::Result<bool>) -> io::Result<Option<Self>> {
        let mut known = *self;
        let mut now = Self::of(&file)?;
        for _ in 0..TRIES {
            if known.change(&now) != Change::Status {
                break;
            }
            known = Self::before_reading(&file)?;
            if now.change(&known) == Change::Content || !is_same()? {
                return Ok(None);
            }
            now = Self::of(&file)?;
        }
        Ok((known.change(&now) == Change::Nothing).then_some(now))
    }
}

/// The time that the kernel gives to what changes now.
fn now() -> Duration {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), now.tv_nsec as u32)
}

/// How long a file that changes once more may still get the time `ctime`; `None` if it gets another.
fn left_of_tick(ctime: (i64, u32), now: Duration) -> Option<Duration> {
    let tick = if ctime.1 == 0 { COARSEST } else { Duration::ZERO };
    let end = Duration::new(u64::try_from(ctime.0).ok()?, ctime.1) + tick;
    let left = end.checked_sub(now)?;
    // The clock of another host, or one that was set: waiting for it would help nobody.
    (left <= COARSEST).then_some(left)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes, Permissions};
    use std::io::Write;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;

    fn file(content: &[u8]) -> (tempfile::NamedTempFile, File) {
        let mut named = tempfile::NamedTempFile::new().unwrap();
        named.write_all(content).unwrap();
        let file = File::options().read(true).write(true).open(named.path()).unwrap();
        (named, file)
    }

    /// Writes a byte, and puts the time of the last write back.
    fn write_unseen(file: &File, byte: u8) {
        let before = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&[byte], 0).unwrap();
        file.set_times(FileTimes::new().set_modified(before)).unwrap();
    }

    #[test]
    fn a_write_right_after_the_look_shows_even_if_its_time_is_put_back() {
        // Many times, since a look without waiting sees it whenever a tick ends between the two.
        for i in 0..50 {
            let (_named, file) = file(b"old");
            let before = FileState::before_reading(&file).unwrap();
            write_unseen(&file, i);
            assert_eq!(before.change(&FileState::of(&file).unwrap()), Change::Status, "{i}");
        }
    }

    #[test]
    fn only_content_that_differs_or_keeps_changing_is_told() {
        let (_named, file) = file(b"old");
        let before = FileState::before_reading(&file).unwrap();
        let never = || panic!("nothing changed, so nothing is read again");
        assert_eq!(before.still(&file, never).unwrap(), Some(before));

        file.set_permissions(Permissions::from_mode(0o640)).unwrap();
        let after = before.still(&file, || Ok(true)).unwrap().unwrap();
        assert_eq!(before.change(&after), Change::Status);
        write_unseen(&file, b'n');
        assert_eq!(after.still(&file, || Ok(false)).unwrap(), None);

        let mut reads = 0;
        let changing = before.still(&file, || {
            reads += 1;
            write_unseen(&file, b'm');
            Ok(true)
        });
        assert_eq!((changing.unwrap(), reads), (None, TRIES));

        file.write_all_at(b"longer", 0).unwrap();
        assert_eq!(before.still(&file, never).unwrap(), None);
    }

    #[test]
    fn only_the_tick_in_which_a_file_changed_is_waited_for() {
        let now = Duration::new(1000, 500);
        let left = |ctime| left_of_tick(ctime, now);
        assert_eq!(left((1000, 499)), None);
        assert_eq!(left((1000, 500)), Some(Duration::ZERO));
        // By the clock of another host, a little ahead and far ahead.
        assert_eq!(left((1000, 5_000_500)), Some(Duration::from_millis(5)));
        assert_eq!((left((1010, 7)), left((-5, 7))), (None, None));
        // Whole seconds.
        assert_eq!((left((997, 0)), left((998, 0))), (None, None));
        assert!(left((999, 0)).unwrap() < Duration::from_secs(1));
        assert!(left((1000, 0)).unwrap() < COARSEST);
    }
}
