//! The outbox: frames to be written to a link, and the lengths of single writes.

use std::io::IoSlice;

use crate::frame::Frame;
use crate::sender::Sender;

/// Bytes of frames taken out of the engine at a time: enough for one large vectored write.
pub(crate) const BATCH_BYTES: usize = 256 << 10;
/// One write has the bytes that the link carries in 10 ms, so that samples of the rate stay fresh;
/// with bounds for slow and fast links.
const WRITE_NS: f64 = 10e6;
pub(crate) const WRITE_MIN: usize = 16 << 10;
const WRITE_MAX: usize = 256 << 10;
/// Slices of one vectored write; the system's own limit is 1024.
const SLICES_MAX: usize = 64;
/// The kernel may hold the bytes that the link carries in 4 ms: more hides the backlog, less lets
/// the link run dry (D11). If these are under 32 KiB, it may hold the bytes of 40 ms, up to 32 KiB
/// and at least a few packets.
const BACKLOG_NS: f64 = 4e6;
const BACKLOG_SLOW_NS: f64 = 40e6;
const BACKLOG_MIN: f64 = 32_768.0;
const BACKLOG_LEAST: f64 = 6_000.0;
const BACKLOG_MAX: f64 = 1_048_576.0;

/// Frames in order; the link may have taken a part of the first one.
#[derive(Debug, Default)]
pub struct Outbox {
    frames: Vec<Frame>,
    /// Bytes of `frames` that the link has taken.
    written: usize,
    /// Bytes before the first frame that belong to no frame.
    lead: Vec<u8>,
}

impl Outbox {
    /// An outbox for a stream that does not begin the connection: `lead` is sent before its first
    /// frame, in the same write.
    pub fn behind(lead: &[u8]) -> Self {
        Self { lead: lead.to_vec(), ..Self::default() }
    }

    /// Whether the link has taken everything.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.lead.is_empty()
    }

    /// Number of bytes that the link has not taken.
    pub fn len(&self) -> usize {
        self.lead.len() + self.frames.iter().map(Frame::wire_len).sum::<usize>() - self.written
    }

    /// Takes frames out of the engine until they have at least `bytes_max` bytes or there are no
    /// more.
    pub fn fill(&mut self, sender: &mut Sender, bytes_max: usize) {
        let mut bytes: usize = self.frames.iter().map(Frame::wire_len).sum();
        while bytes < bytes_max {
            let Some(frame) = sender.poll_transmit() else { break };
            bytes += frame.wire_len();
            self.frames.push(frame);
        }
    }

    /// Length of one write to a link of this rate, in bytes.
    pub fn write_len(rate_bytes_per_s: f64) -> usize {
        ((rate_bytes_per_s * WRITE_NS / 1e9) as usize).clamp(WRITE_MIN, WRITE_MAX)
    }

    /// How many unsent bytes the kernel should hold for a link of this rate; `None` if the change
    /// from `now` is not worth a system call.
    pub(crate) fn backlog(rate_bytes_per_s: f64, now: u32) -> Option<u32> {
        let least = (rate_bytes_per_s * BACKLOG_SLOW_NS / 1e9).clamp(BACKLOG_LEAST, BACKLOG_MIN);
        let bytes = (rate_bytes_per_s * BACKLOG_NS / 1e9).clamp(least, BACKLOG_MAX) as u32;
        (bytes.abs_diff(now) > now / 4).then_some(bytes)
    }

    /// The next bytes to write, `left` at most.
    pub(crate) fn slices(&self, mut left: usize) -> Vec<IoSlice<'_>> {
        let mut skip = self.written;
        let mut slices = Vec::with_capacity(2 * self.frames.len().min(SLICES_MAX));
        if !self.lead.is_empty() {
            let part = &self.lead[..self.lead.len().min(left)];
            slices.push(IoSlice::new(part));
            left -= part.len();
        }
        for part in self.frames.iter().flat_map(|f| [&*f.header, &*f.body]) {
            if left == 0 {
                break;
            }
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let rest = &part[skip..];
            skip = 0;
            slices.push(IoSlice::new(&rest[..rest.len().min(left)]));
            left -= rest.len().min(left);
            if left == 0 || slices.len() == SLICES_MAX {
                break;
            }
        }
        slices
    }

    /// Removes `len` bytes that the link has taken. Returns how many of them belonged to frames.
    pub(crate) fn consume(&mut self, mut len: usize) -> usize {
        if !self.lead.is_empty() {
            let lead = len.min(self.lead.len());
            self.lead.drain(..lead);
            len -= lead;
        }
        self.written += len;
        let mut whole = 0;
        while let Some(frame) = self.frames.get(whole).filter(|f| f.wire_len() <= self.written) {
            self.written -= frame.wire_len();
            whole += 1;
        }
        self.frames.drain(..whole);
        // There may be many quiet connections, so the memory of a burst is released.
        if self.frames.is_empty() && self.frames.capacity() > SLICES_MAX {
            self.frames = Vec::new();
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BufferPool;
    use crate::policy::Fixed;
    use crate::sender::SenderConfig;
    use crate::stream::encode;

    /// A link receives the engine's bytes unchanged, whatever the lengths of the pieces it takes.
    #[test]
    fn pieces_of_any_length_make_the_same_stream() {
        let stream = |lead: &[u8], piece: usize| {
            let pool = BufferPool::default();
            let config = SenderConfig { block_max: 1000, ..SenderConfig::default() };
            let policy = Box::new(Fixed::new(crate::codec::Method::STORE, false));
            let mut sender = Sender::new(config, policy, pool.clone());
            sender.write(&[7; 4321], 0);
            sender.close(0);
            while let Some(job) = sender.poll_job(0) {
                sender.finish(encode(job, &mut crate::codec::Contexts::default(), &pool), 0);
            }
            let (mut outbox, mut got) = (Outbox::behind(lead), Vec::new());
            outbox.fill(&mut sender, BATCH_BYTES);
            assert!(sender.is_drained());
            while !outbox.is_empty() {
                let left = outbox.len();
                let taken: Vec<u8> = outbox.slices(piece).iter().flat_map(|s| s.to_vec()).collect();
                assert!(taken.len() == piece.min(left), "{} of {left}", taken.len());
                outbox.consume(taken.len());
                got.extend(taken);
            }
            got
        };
        let whole = stream(b"", usize::MAX);
        assert!(whole.len() > 4321);
        for piece in [1, 7, 32, 999, 1024] {
            assert!(stream(b"", piece) == whole, "{piece}");
            assert!(stream(b"before", piece) == [&b"before"[..], &whole].concat(), "{piece}");
        }
    }
}
