//! Links over descriptors.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use narrows::transport::Link;
use narrows::{Error, Result};

/// A link that takes over a descriptor of Python. The descriptor must be open and owned by the
/// caller, as those of `os.dup` are.
#[allow(unsafe_code, reason = "a number becomes a descriptor that is owned")]
pub(crate) fn link(descriptor: i32, kind: &str) -> Result<Link> {
    if descriptor < 0 {
        return Err(Error::misuse("a descriptor must be 0 or more"));
    }
    // SAFETY: only the module's own Python code calls this, with a result of `os.dup` that nobody
    // else uses. So the descriptor is open, and the link may close it.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(match kind {
        "file" => Link::file_writer(File::from(owned)),
        "tcp" => Link::tcp(TcpStream::from(owned))?,
        "unix" => Link::unix(UnixStream::from(owned))?,
        _ => return Err(Error::misuse(format!("unknown kind of link '{kind}'"))),
    })
}
