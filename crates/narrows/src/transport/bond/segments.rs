//! Puts the segments that arrive on several carriers in order. No I/O, so that tests can feed it
//! anything.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// The first bytes of every direction of every carrier. They are not text, and every conversion of
/// line ends damages them.
pub const GREETING: [u8; 8] = *b"\x93NRCB\r\n\x1a";
/// Longest segment in bytes. Small, so that carriers of different speed stay in step; large against
/// its header.
pub const SEGMENT_MAX: usize = 64 << 10;
/// Length of a segment's header: offset (8 bytes), length (4 bytes).
pub const HEADER_LEN: usize = 12;
/// How far one carrier may be ahead of the others, in bytes: 8 MiB is what 1 Gbit/s has in flight
/// in 64 ms.
pub const AHEAD_MAX: u64 = 8 << 20;
/// Most pieces that wait for their turn, however short: bookkeeping costs more than short pieces
/// hold.
pub const PIECES_MAX: usize = 4096;

/// The stream assembled from the segments.
#[derive(Debug, Default)]
pub struct Stream {
    /// Offset of the next byte to deliver.
    offset: u64,
    /// Pieces that arrived early, by offset.
    ahead: BTreeMap<u64, Vec<u8>>,
}

impl Stream {
    /// Number of pieces that wait for their turn.
    pub fn pieces(&self) -> usize {
        self.ahead.len()
    }

    /// Keeps a piece that arrived early.
    fn keep(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let before = self.ahead.range(..=at).next_back().map_or(self.offset, |(begin, b)| begin + b.len() as u64);
        let after = self.ahead.range(at..).next().map_or(u64::MAX, |(begin, _)| *begin);
        if at < before || at + bytes.len() as u64 > after {
            return Err(Error::corrupt("segments of carriers overlap"));
        }
        self.ahead.insert(at, bytes.to_vec());
        Ok(())
    }

    /// Copies the next bytes of the stream to `buf` if they arrived early. `None` if they did not.
    ///
    /// # Errors
    /// `Corrupt` if a part of them was delivered already.
    pub fn take_ahead(&mut self, buf: &mut [u8]) -> Result<Option<usize>> {
        let Some(first) = self.ahead.first_entry() else { return Ok(None) };
        if *first.key() > self.offset {
            return Ok(None);
        }
        let (at, mut bytes) = first.remove_entry();
        if at < self.offset {
            return Err(Error::corrupt("segments of carriers overlap"));
        }
        let n = bytes.len().min(buf.len());
        buf[..n].copy_from_slice(&bytes[..n]);
        self.offset += n as u64;
        if n < bytes.len() {
            bytes.drain(..n);
            self.ahead.insert(self.offset, bytes);
        }
        Ok(Some(n))
    }
}

/// Parser for the incoming direction of one carrier.
#[derive(Debug)]
pub struct Part {
    raw: Vec<u8>,
    taken: usize,
    /// The bytes at hand are at most a part of a header.
    wants_more: bool,
    heard: bool,
    carried: bool,
    /// The rest of the current segment: its offset and its length.
    segment: (u64, usize),
    ended: bool,
}

impl Default for Part {
    fn default() -> Self {
        Self {
            raw: Vec::new(),
            taken: 0,
            wants_more: true,
            heard: false,
            carried: false,
            segment: (0, 0),
            ended: false,
        }
    }
}

impl Part {
    /// Lets `read` append at most `len` bytes, and returns its second value.
    pub fn fill<T>(&mut self, len: usize, read: impl FnOnce(&mut [u8]) -> (usize, T)) -> T {
        self.raw.drain(..self.taken);
        self.taken = 0;
        let have = self.raw.len();
        self.raw.resize(have + len, 0);
        let (n, said) = read(&mut self.raw[have..]);
        self.raw.truncate(have + n.min(len));
        self.wants_more = n == 0;
        said
    }

    /// Whether more input is needed before [`Part::take`].
    pub fn wants_more(&self) -> bool {
        self.wants_more
    }

    /// Whether its peer has greeted.
    pub fn is_heard(&self) -> bool {
        self.heard
    }

    /// Whether it has carried a segment.
    pub fn has_carried(&self) -> bool {
        self.carried
    }

    /// Whether the peer has ended the carrier.
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Gives the carrier up.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Whether its next segment is too far ahead of the stream, or ahead while too many pieces
    /// wait.
    pub fn is_blocked(&self, stream: &Stream) -> bool {
        let ahead = self.segment.0.saturating_sub(stream.offset);
        self.segment.1 > 0 && (ahead >= AHEAD_MAX || ahead > 0 && stream.pieces() >= PIECES_MAX)
    }

    /// Parses the input up to bytes whose turn it is; those go to `buf`, early ones to `stream`.
    /// Returns the number of bytes in `buf`.
    ///
    /// # Errors
    /// `Corrupt` if the input violates the format.
    pub fn take(&mut self, stream: &mut Stream, buf: &mut [u8]) -> Result<Option<usize>> {
        while !self.ended && !self.is_blocked(stream) {
            if self.segment.1 == 0 {
                if !self.next_segment(stream.offset)? {
                    self.wants_more = true;
                    break;
                }
                continue;
            }
            if self.left().is_empty() {
                self.wants_more = true;
                break;
            }
            let (at, len) = self.segment;
            let next = at == stream.offset;
            let n = self.left().len().min(len).min(if next { buf.len() } else { usize::MAX });
            let bytes = &self.raw[self.taken..self.taken + n];
            if next {
                buf[..n].copy_from_slice(bytes);
                stream.offset += n as u64;
            } else {
                stream.keep(at, bytes)?;
            }
            self.taken += n;
            self.segment = (at + n as u64, len - n);
            if next {
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    fn left(&self) -> &[u8] {
        &self.raw[self.taken..]
    }

    /// Parses the next header, if it has arrived.
    fn next_segment(&mut self, offset: u64) -> Result<bool> {
        if !self.heard {
            let Some(greeting) = self.left().first_chunk::<{ GREETING.len() }>() else { return Ok(false) };
            if *greeting != GREETING {
                return Err(Error::corrupt("the input does not belong to this connection"));
            }
            self.taken += GREETING.len();
            self.heard = true;
        }
        let Some(header) = self.left().first_chunk::<HEADER_LEN>() else { return Ok(false) };
        let (at, len) = header.split_at(8);
        let at = u64::from_le_bytes(at.try_into().unwrap_or_default());
        let len = u32::from_le_bytes(len.try_into().unwrap_or_default()) as usize;
        // Offsets on a carrier only grow.
        if len > SEGMENT_MAX || at < offset.max(self.segment.0) || at.checked_add(len as u64).is_none() {
            return Err(Error::corrupt("a segment of a carrier is malformed"));
        }
        self.taken += HEADER_LEN;
        self.segment = (at, len);
        self.carried |= len > 0;
        self.ended = len == 0;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(at: usize, body: &[u8]) -> Vec<u8> {
        [&(at as u64).to_le_bytes()[..], &(body.len() as u32).to_le_bytes(), body].concat()
    }

    #[test]
    fn the_stream_is_the_same_however_its_segments_come() {
        let data: Vec<u8> = (0..10_000u32).map(|i| ((i * i) >> 5) as u8).collect();
        for (lens, cut, room) in [(vec![1, 700, 3], 1, 1), (vec![4000, 17], 7, 100), (vec![999], 5000, 64 << 10)] {
            let mut wire = [GREETING.to_vec(), GREETING.to_vec(), GREETING.to_vec()];
            let (mut at, mut turn) = (0, 0usize);
            while at < data.len() {
                let len = lens[turn % lens.len()].min(data.len() - at);
                // Uneven shares, so that carriers get ahead of one another.
                wire[(turn * turn / 3) % 3].extend(segment(at, &data[at..at + len]));
                (at, turn) = (at + len, turn + 1);
            }
            wire.iter_mut().for_each(|w| w.extend(segment(at, &[])));
            let (mut stream, mut parts) = (Stream::default(), [(); 3].map(|()| Part::default()));
            let mut given = [0; 3];
            let (mut got, mut buf) = (Vec::new(), vec![0; room]);
            while !parts.iter().all(Part::is_ended) {
                for (i, part) in parts.iter_mut().enumerate() {
                    if part.wants_more() {
                        let left = &wire[i][given[i]..];
                        given[i] += part.fill(cut, |space| {
                            let n = left.len().min(space.len());
                            space[..n].copy_from_slice(&left[..n]);
                            (n, n)
                        });
                    }
                    while let Some(n) = part.take(&mut stream, &mut buf).unwrap() {
                        got.extend_from_slice(&buf[..n]);
                    }
                    while let Some(n) = stream.take_ahead(&mut buf).unwrap() {
                        got.extend_from_slice(&buf[..n]);
                    }
                }
            }
            assert!(got == data, "{lens:?}");
            assert_eq!(stream.pieces(), 0);
        }
    }
}
