//! Non-blocking reads and writes of sockets, and a buffer for bytes that a socket has no room for.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg, send};

pub(crate) fn write(sink: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    loop {
        match send(sink, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

pub(crate) fn read(source: &OwnedFd, buffer: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    loop {
        match recv(source, &mut *buffer, flags | RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            result => return result.map(|(n, _)| n),
        }
    }
}

/// Peeks at the next bytes. True if the peek stopped at something sent along with the bytes, such
/// as descriptors; more bytes may follow.
pub(crate) fn peek(source: &OwnedFd, buffer: &mut [u8]) -> Result<(usize, bool), Errno> {
    loop {
        let mut parts = [IoSliceMut::new(&mut *buffer)];
        match recvmsg(source, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            result => return result.map(|got| (got.bytes, got.flags.contains(ReturnFlags::CTRUNC))),
        }
    }
}

/// Bytes that a sink has not taken yet. Usually nothing more is read for the sink before they are gone,
/// so they are at most as long as one read.
#[derive(Default)]
pub(crate) struct Waiting {
    bytes: Vec<u8>,
    written: usize,
}

impl Waiting {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Writes what waits. True if nothing is left.
    pub(crate) fn flush(&mut self, sink: &OwnedFd) -> Result<bool, Errno> {
        while self.len() > 0 {
            match write(sink, &self.bytes[self.written..]) {
                Ok(n) => self.written += n,
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        // Frees the memory: most connections are idle most of the time.
        self.clear();
        Ok(true)
    }

    /// Writes `input` after what waits.
    pub(crate) fn pass(&mut self, input: &[u8], sink: &OwnedFd) -> Result<(), Errno> {
        let mut taken = 0;
        if self.len() == 0 && !input.is_empty() {
            taken = match write(sink, input) {
                Ok(n) => n,
                Err(Errno::AGAIN) => 0,
                Err(e) => return Err(e),
            };
        }
        self.push(&input[taken..]);
        Ok(())
    }
}
