//! What the system calls by number.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use narrows::transport::Link;
use narrows::{Error, Result};

/// A link over a descriptor of Python. It must be open and the caller's to give away: `os.dup` makes such a one.
#[allow(unsafe_code, reason = "a number becomes a descriptor that is owned")]
pub(crate) fn link(descriptor: i32, kind: &str) -> Result<Link> {
    if descriptor < 0 {
        return Err(Error::misuse("a descriptor is a number from 0 on"));
    }
    // SAFETY: only the module's own Python code calls this, with what `os.dup` returned and nobody else knows: it is
    // open, and closing it when the link goes takes it from nobody.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(match kind {
        "file" => Link::file_writer(File::from(owned)),
        "tcp" => Link::tcp(TcpStream::from(owned))?,
        "unix" => Link::unix(UnixStream::from(owned))?,
        _ => return Err(Error::misuse(format!("'{kind}' is no kind of link"))),
    })
}
