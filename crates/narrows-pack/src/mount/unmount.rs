//! Unmounting. Other mounts may lie on the same folder, below ours or on top of it; they stay.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// The mounts of this process.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Unmounts one mount.
#[derive(Clone)]
pub struct Unmounter {
    folder: PathBuf,
    /// The connection with the kernel.
    device: Arc<OwnedFd>,
    /// Number and device, in the words of the kernel; `None` if it does not tell.
    mount: Option<Vec<u8>>,
}

/// Where a mount is.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Gone,
    Top,
    Covered,
}

impl Unmounter {
    /// Of what was mounted on `folder` just now.
    pub(super) fn of(device: &impl AsFd, folder: &Path) -> io::Result<Self> {
        let device = Arc::new(device.as_fd().try_clone_to_owned()?);
        let mounts = std::fs::read(MOUNTS).unwrap_or_default();
        let mount = on(&mounts, folder).last().cloned();
        Ok(Self { folder: folder.to_path_buf(), device, mount })
    }

    /// Unmounts it. Programs that are in it keep it until they leave. What is unmounted already is no error.
    ///
    /// # Errors
    /// Another mount lies on it, or the system refuses.
    pub fn unmount(&self) -> io::Result<()> {
        match self.state() {
            State::Gone => Ok(()),
            State::Covered => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                format!("something else is mounted over it; unmount {} first", self.folder.display()),
            )),
            State::Top => self.detach(),
        }
    }

    fn state(&self) -> State {
        let mut waiting = [PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::empty())];
        let polled = poll(&mut waiting, Some(&Timespec::default()));
        if polled.is_ok() && waiting[0].revents().contains(PollFlags::ERR) {
            return State::Gone;
        }
        let (Some(mount), Ok(mounts)) = (&self.mount, std::fs::read(MOUNTS)) else { return State::Top };
        place(mount, &on(&mounts, &self.folder))
    }

    fn detach(&self) -> io::Result<()> {
        match unmount(&self.folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Err(Errno::PERM) => {}
            result => return Ok(result?),
        }
        // Only the setuid program may do it for who is not root. What mounted it is what unmounts it.
        let given = std::env::var_os("FUSERMOUNT_PATH");
        let programs = given.into_iter().chain(["fusermount3", "fusermount"].map(OsString::from));
        let mut error = io::Error::from(Errno::PERM);
        for program in programs {
            let mut command = Command::new(&program);
            command.args(["-u", "-q", "-z", "--"]).arg(&self.folder);
            match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status() {
                Ok(status) if status.success() => return Ok(()),
                Ok(status) => error = io::Error::other(format!("{} ended with {status}", program.display())),
                Err(_) => {}
            }
        }
        Err(error)
    }
}

fn place(mount: &[u8], there: &[Vec<u8>]) -> State {
    match there.iter().rposition(|other| other == mount) {
        Some(i) if i + 1 == there.len() => State::Top,
        Some(_) => State::Covered,
        None => State::Gone,
    }
}

/// Number and device of what is mounted on `folder`, the topmost last.
fn on(mounts: &[u8], folder: &Path) -> Vec<Vec<u8>> {
    let folder = escaped(folder.as_os_str().as_bytes());
    let line = |line: &[u8]| {
        // Number, that of the mount above, device, root, folder.
        let mut words = line.split(|b| *b == b' ');
        let (number, device) = (words.next()?, words.nth(1)?);
        (words.nth(1)? == folder).then(|| [number, b" ", device].concat())
    };
    mounts.split(|b| *b == b'\n').filter_map(line).collect()
}

/// A path as the kernel writes it.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_told_from_those_below_and_above_it() {
        let mounts = b"22 1 0:20 / /a\\040b rw - fuse.narrows x rw\n\
                       23 1 0:21 / /a rw - tmpfs none rw\n\
                       31 22 0:44 / /a\\040b ro,nosuid - fuse.narrows y ro\n";
        let there = on(mounts, Path::new("/a b"));
        assert_eq!(there, [b"22 0:20".to_vec(), b"31 0:44".to_vec()]);
        assert_eq!(place(b"31 0:44", &there), State::Top);
        assert_eq!(place(b"22 0:20", &there), State::Covered);
        assert_eq!(place(b"23 0:21", &there), State::Gone);
        assert_eq!(place(b"31 0:45", &there), State::Gone, "the number was given once more");
        assert!(on(mounts, Path::new("/b")).is_empty() && on(b"broken\n\n", Path::new("/a")).is_empty());
    }
}
