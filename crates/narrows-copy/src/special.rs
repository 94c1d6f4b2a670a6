//! Devices, fifos and open descriptors as targets: a file is written into them, as by `cp` and
//! `scp`, and never replaces them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use narrows_host::signals;

/// Maximum number of links followed, as in the kernel.
const LINKS_MAX: usize = 40;
/// Interval at which opening a fifo without a reader is retried.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A target that a file is written into.
pub struct Special {
    path: PathBuf,
}

impl Special {
    /// Examines a target; `None` if a file can be stored under that name or in a folder there.
    ///
    /// # Errors
    /// It is a socket.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        let Ok(data) = path.metadata() else { return Ok(None) };
        let kind = data.file_type();
        if kind.is_socket() {
            return Err(io::Error::other("it is a socket"));
        }
        let is_special = kind.is_char_device() || kind.is_block_device() || kind.is_fifo();
        let own = || Self { path: path.to_path_buf() };
        Ok((is_special || kind.is_file() && is_descriptor(path)).then(own))
    }

    /// Opens the target. A fifo is waited for until it has a reader, at most for `patience`, and
    /// until a signal.
    pub fn open(&self, patience: Option<Duration>) -> io::Result<File> {
        let until = patience.map(|patience| Instant::now() + patience);
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        loop {
            match rustix::fs::open(&self.path, flags, Mode::empty()) {
                Ok(file) => {
                    let flags = rustix::fs::fcntl_getfl(&file)?;
                    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
                    return Ok(file.into());
                }
                Err(Errno::NXIO) if signals::received().is_some() => return Err(io::Error::other("interrupted")),
                Err(Errno::NXIO) if until.is_some_and(|until| Instant::now() >= until) => {
                    return Err(io::Error::other("no process reads from it"));
                }
                Err(Errno::NXIO) => std::thread::sleep(LOOK_EVERY),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Whether a path leads through links to a file in /proc, as `/dev/stdout` does. The file behind it
/// has another name or none, so the link must not be replaced.
fn is_descriptor(path: &Path) -> bool {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let Ok(to) = path.read_link() else { return false };
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf();
        if rustix::fs::statfs(&parent).is_ok_and(|s| s.f_type == rustix::fs::PROC_SUPER_MAGIC) {
            return true;
        }
        path = parent.join(to);
    }
    false
}

/// Flushes written data to the disk, if the target is on one.
pub fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        // Most devices, pipes and terminals store nothing.
        Err(e) if matches!(Errno::from_io_error(&e), Some(Errno::INVAL | Errno::ROFS | Errno::NOTSUP)) => Ok(()),
        result => result,
    }
}
