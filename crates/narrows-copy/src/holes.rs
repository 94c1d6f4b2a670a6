//! Holes of files: ranges that were never written and take no space.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Whether the file has a hole, which was never written and takes no space.
pub fn has_hole(fd: &OwnedFd, len: u64) -> bool {
    rustix::fs::seek(fd, SeekFrom::Hole(0)).is_ok_and(|at| at < len)
}

/// Begin and end of the next range of data at or after `at`; `len` twice if there is none.
///
/// # Errors
/// The file cannot be read.
pub fn next_data(fd: &OwnedFd, at: u64, len: u64) -> io::Result<(u64, u64)> {
    let shrank = || rustix::fs::fstat(fd).is_ok_and(|s| (s.st_size as u64) < len);
    match rustix::fs::seek(fd, SeekFrom::Data(at)) {
        Ok(begin) if begin < len => match rustix::fs::seek(fd, SeekFrom::Hole(begin)) {
            Ok(end) => Ok((begin, end.min(len))),
            Err(Errno::NXIO) => Ok((at, len)),
            Err(e) => Err(e.into()),
        },
        // A file that shrank has no hole there: reading finds its end.
        Ok(_) | Err(Errno::NXIO) if shrank() => Ok((at, len)),
        Ok(_) | Err(Errno::NXIO) => Ok((len, len)),
        // File systems without support for holes.
        Err(Errno::INVAL) => Ok((at, len)),
        Err(e) => Err(e.into()),
    }
}
