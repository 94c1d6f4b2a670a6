//! Sums: hashes of the raw bytes of a flow, each of a stretch of fixed length, whatever the blocks
//! are (format.md section 3.11).

use xxhash_rust::xxh3::Xxh3;

use super::control::{CONTROL_BODY_MAX, ControlKind, control_frame};
use super::{Frame, u64_at};
use crate::error::{Error, Result};

/// Binary logarithm of the stretch that this program writes: 1 MiB, so that the sums are 1/131,072
/// of the raw bytes, and damage is narrowed down to less than a run.
pub const SUMS_LOG: u8 = 20;
/// Limits of the logarithm that a reader takes: below 4 KiB sums would be a notable share of the
/// file, and above 1 GiB they narrow nothing down.
const LOG_MIN: u8 = 12;
const LOG_MAX: u8 = 30;
/// Sums in one frame.
const FRAME_SUMS: usize = (CONTROL_BODY_MAX - 1) / 8;

/// Makes the sums of a flow from its raw bytes in order.
#[derive(Clone)]
pub struct Sums {
    log: u8,
    hash: Xxh3,
    filled: u64,
    done: Vec<u64>,
}

impl std::fmt::Debug for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sums of 2^{} bytes", self.done.len(), self.log)
    }
}

impl Sums {
    /// Sums over stretches of `2^log` bytes.
    ///
    /// # Panics
    /// If [`parse_sums`] would refuse `log`.
    pub fn new(log: u8) -> Self {
        assert!((LOG_MIN..=LOG_MAX).contains(&log));
        Self { log, hash: Xxh3::new(), filled: 0, done: Vec::new() }
    }

    /// Takes the next raw bytes.
    pub fn push(&mut self, mut raw: &[u8]) {
        while !raw.is_empty() {
            let room = (1 << self.log) - self.filled;
            let n = usize::try_from(room).unwrap_or(usize::MAX).min(raw.len());
            self.hash.update(&raw[..n]);
            self.filled += n as u64;
            raw = &raw[n..];
            if self.filled == 1 << self.log {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        self.done.push(self.hash.digest());
        self.hash.reset();
        self.filled = 0;
    }

    /// The sums of all bytes; the last stretch may be shorter.
    pub fn finish(mut self) -> Vec<u64> {
        if self.filled > 0 {
            self.close();
        }
        self.done
    }

    /// The sums of all whole stretches so far.
    pub fn done(&self) -> &[u64] {
        &self.done
    }

    /// Bytes of memory that they take.
    pub fn memory(&self) -> usize {
        8 * self.done.len()
    }

    /// The frames that hold sums; `raw_offset` is that of the frames.
    pub fn frames(log: u8, sums: &[u64], raw_offset: u64) -> Vec<Frame> {
        let body = |sums: &[u64]| {
            let mut body = vec![log];
            sums.iter().for_each(|sum| body.extend_from_slice(&sum.to_le_bytes()));
            body
        };
        sums.chunks(FRAME_SUMS).map(|part| control_frame(ControlKind::Sums, &body(part), raw_offset)).collect()
    }
}

/// The logarithm of the stretch and the sums in the body of one frame.
///
/// # Errors
/// `Corrupt` if the body has no whole number of sums, or an impossible stretch.
pub fn parse_sums(body: &[u8]) -> Result<(u8, impl ExactSizeIterator<Item = u64> + '_)> {
    match body.split_first() {
        Some((&log, sums)) if (LOG_MIN..=LOG_MAX).contains(&log) && sums.len().is_multiple_of(8) => {
            Ok((log, sums.chunks_exact(8).map(|sum| u64_at(sum, 0))))
        }
        _ => Err(Error::corrupt("a frame of sums is malformed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn sums_do_not_depend_on_how_the_bytes_are_cut_and_read_back() {
        let raw: Vec<u8> = (0..20_000u32).map(|i| ((i * i) >> 7) as u8).collect();
        let expected: Vec<u64> = raw.chunks(4096).map(xxh3_64).collect();
        for cut in [1, 4095, 4096, 4097, 20_000] {
            let mut sums = Sums::new(12);
            raw.chunks(cut).for_each(|piece| sums.push(piece));
            assert_eq!(sums.finish(), expected);
        }
        let many: Vec<u64> = (0..FRAME_SUMS as u64 + 3).collect();
        let frames = Sums::frames(12, &many, 7);
        assert_eq!(frames.len(), 2);
        let mut back = Vec::new();
        for frame in &frames {
            let (log, sums) = parse_sums(&frame.body).unwrap();
            assert_eq!(log, 12);
            back.extend(sums);
        }
        assert_eq!(back, many);
        for body in [&[][..], &[11], &[31], &[20, 1, 2, 3]] {
            assert!(parse_sums(body).is_err());
        }
    }
}
