//! A duplex link as it is, without a flow: for what measures it.

use std::io::{self, IoSlice};
use std::time::Duration;

use super::{Link, ReadHalf, WriteHalf};
use crate::{Error, Result};

/// Both halves of a link, whose bytes the caller frames.
pub struct Plain {
    write: WriteHalf,
    read: ReadHalf,
}

impl Link {
    /// The link without a flow. At most about `backlog` unsent bytes stay in this host.
    ///
    /// # Errors
    /// `Misuse` if the link has only one direction.
    #[doc(hidden)]
    pub fn plain(self, backlog: u32) -> Result<Plain> {
        let Self { write: Some(write), read: Some(read) } = self else {
            return Err(Error::misuse("a measurement needs both directions of a link"));
        };
        write.set_backlog(backlog);
        Ok(Plain { write, read })
    }
}

impl Plain {
    /// Writes what fits; `None` if nothing does (then call [`Plain::wait_writable`]).
    ///
    /// # Errors
    /// If the link fails.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        would_block(self.write.write_some(&[IoSlice::new(bytes)]))
    }

    /// Passes on bytes that an earlier write took and that are still held; false if some have to wait.
    ///
    /// # Errors
    /// If the link fails.
    pub fn flush(&mut self) -> io::Result<bool> {
        Ok(would_block(self.write.flush_some())?.is_some())
    }

    /// Waits until a write may take bytes, at most `timeout`.
    ///
    /// # Errors
    /// If the system call fails.
    pub fn wait_writable(&self, timeout: Duration) -> io::Result<()> {
        self.write.wait_writable(timeout)
    }

    /// Reads available bytes. Waits at most `timeout`; `None` if nothing arrived. 0 is the end.
    ///
    /// # Errors
    /// If the link fails.
    pub fn read(&mut self, room: &mut [u8], timeout: Duration) -> io::Result<Option<usize>> {
        self.read.read(room, timeout)
    }

    /// Segments with data that this end has sent, and how many of them were sent again. `None` where
    /// another program carries the bytes.
    pub fn segments(&self) -> Option<(u64, u64)> {
        self.write.segments()
    }
}

fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_pass_both_ways_and_a_full_link_is_no_error() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut one = Link::unix(one).unwrap().plain(1 << 16).unwrap();
        let mut other = Link::unix(other).unwrap().plain(1 << 16).unwrap();
        assert_eq!(one.write(b"to").unwrap(), Some(2));
        assert_eq!(other.write(b"fro").unwrap(), Some(3));
        assert!(one.flush().unwrap() && one.segments().is_none());
        let mut room = [0; 8];
        assert_eq!(other.read(&mut room, Duration::from_secs(5)).unwrap(), Some(2));
        assert_eq!(one.read(&mut room, Duration::from_secs(5)).unwrap(), Some(3));
        assert_eq!(one.read(&mut room, Duration::ZERO).unwrap(), None);
        let mut sent = 0;
        while let Some(n) = one.write(&[1; 1 << 16]).unwrap() {
            sent += n;
            assert!(sent < 1 << 26, "it takes any amount");
        }
        drop(one);
        while other.read(&mut room, Duration::from_secs(5)).unwrap() != Some(0) {}
        let one_way = Link::file_reader(std::fs::File::open("/dev/null").unwrap());
        assert!(one_way.plain(1).is_err());
    }
}
