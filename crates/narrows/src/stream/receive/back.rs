//! The reverse direction of a receiving flow.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use crate::stream::LOOK_EVERY;
use crate::sys;
use crate::transport::WriteHalf;

/// The reverse direction of a duplex link.
pub(super) struct Back {
    pub(super) half: WriteHalf,
    /// Bytes to be written, at most [`BACK_MAX`].
    pub(super) pending: VecDeque<u8>,
    /// The sender does not read this direction any more.
    pub(super) gone: bool,
}

impl Back {
    /// Writes as much as fits. Returns whether the rest may fit later. Failures are ignored:
    /// reports are advisory, and other places detect a sender that does not read them or is gone.
    pub(super) fn push(&mut self) -> bool {
        match self.write_pending() {
            Ok(()) => false,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => true,
            Err(_) => {
                // The sender will never read the rest.
                self.gone = true;
                self.pending.clear();
                false
            }
        }
    }

    fn write_pending(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            let (first, second) = self.pending.as_slices();
            let n = self.half.write_some(&[io::IoSlice::new(first), io::IoSlice::new(second)])?;
            self.pending.drain(..n);
        }
        self.half.flush_some()
    }

    /// Number of bytes that the link has not passed on.
    pub(super) fn waiting(&self) -> u64 {
        self.pending.len() as u64 + self.half.held()
    }

    /// Writes the rest for `patience` at most, as far as the sender reads it, and closes this
    /// direction.
    pub(super) fn finish(&mut self, patience: Duration) {
        let begun_ns = sys::monotonic_ns();
        while self.push() && sys::monotonic_ns() - begun_ns <= patience.as_nanos() as u64 {
            let _ = self.half.wait_writable(LOOK_EVERY);
        }
        let _ = self.half.finish();
    }
}
