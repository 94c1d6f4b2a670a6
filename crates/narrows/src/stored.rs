//! Raw bytes of a flow that a driver can read back from where they are stored, so that copies far
//! back take no memory.

use std::io;

use crate::error::{Error, ErrorKind, Result};

/// The raw bytes of a flow in a place that is read by offset, such as a file.
pub trait Stored: Send + Sync {
    /// Reads the raw bytes from raw offset `at` on and returns how many they are, at most those of
    /// `out`; 0 after the last.
    ///
    /// # Errors
    /// The place cannot be read.
    fn read_raw(&self, out: &mut [u8], at: u64) -> io::Result<usize>;
}

/// Reads exactly the bytes of `out`.
///
/// # Errors
/// `Io` if the place cannot be read, or has fewer bytes.
pub(crate) fn read_exact(stored: &dyn Stored, mut out: &mut [u8], mut at: u64) -> Result<()> {
    while !out.is_empty() {
        match stored.read_raw(out, at) {
            Ok(0) => return Err(cannot(io::Error::other("it became shorter while it was written"))),
            Ok(n) => (out, at) = (&mut out[n..], at + n as u64),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(cannot(e)),
        }
    }
    Ok(())
}

/// Reads as many bytes of `out` as there are, and returns how many.
pub(crate) fn read_some(stored: &dyn Stored, out: &mut [u8], at: u64) -> usize {
    let mut len = 0;
    while len < out.len() {
        match stored.read_raw(&mut out[len..], at + len as u64) {
            Ok(n) if n > 0 => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    len
}

fn cannot(e: io::Error) -> Error {
    Error { source: Some(e), ..Error::new(ErrorKind::Io, "cannot read the output back") }
}
