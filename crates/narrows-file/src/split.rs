//! One stream at a time out of bytes that go on after it.

use std::io::{self, Read};

use narrows::frame::{self, ControlKind, Header, PREFACE_LEN, ReadLimits, feature};

use crate::footer::parse_preface;
use crate::scan::limits;

/// Bytes of padding that are read at a time.
const PADDING_STEP: usize = 16 << 10;

/// Reads from `R` up to the end of one stream, the end frame included; then [`Split::next_stream`]
/// begins the next one. What is not a stream is passed on as it is, for the receiver to refuse.
pub struct Split<R> {
    source: R,
    /// Bytes that were read after the end of the stream.
    behind: Vec<u8>,
    /// The beginning of a preface or header.
    carry: Vec<u8>,
    limits: Option<ReadLimits>,
    /// Bytes of a body that follow.
    body: u64,
    is_end: bool,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Within,
    /// After the end frame.
    Ended,
    /// The rest is no stream that this program can take apart.
    Unknown,
}

impl<R: Read> Split<R> {
    /// Reads the first stream of `source`, of which `begin` was read before.
    pub fn new(begin: Vec<u8>, source: R) -> Self {
        Self { source, behind: begin, carry: Vec::new(), limits: None, body: 0, is_end: false, state: State::Within }
    }

    /// Goes to the next stream, over zeros in front of it. Returns whether there is one, or other bytes; false at
    /// the end.
    ///
    /// # Errors
    /// The source fails, or the stream before was not read to its end.
    pub fn next_stream(&mut self) -> io::Result<bool> {
        if self.state != State::Ended {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the stream before was not read to its end"));
        }
        loop {
            let zeros = self.behind.iter().take_while(|byte| **byte == 0).count();
            if zeros < self.behind.len() {
                self.behind.drain(..zeros);
                break;
            }
            // Zeros are read in longer pieces: tapes have many.
            self.behind.resize(if zeros == 0 { PREFACE_LEN } else { PADDING_STEP }, 0);
            let n = read_some(&mut self.source, &mut self.behind)?;
            self.behind.truncate(n);
            if n == 0 {
                break;
            }
        }
        self.state = State::Within;
        self.limits = None;
        self.is_end = false;
        Ok(!self.behind.is_empty())
    }

    /// Whether the stream was read to its end.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// The source, and the bytes that were read and not passed on.
    pub fn into_parts(self) -> (Vec<u8>, R) {
        (self.behind, self.source)
    }

    /// Looks through bytes that are passed on; returns how many belong to the stream.
    fn walk(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut at = 0;
        while at < bytes.len() && self.state == State::Within {
            if self.body > 0 {
                let n = self.body.min((bytes.len() - at) as u64);
                self.body -= n;
                at += n as usize;
                if self.body == 0 && self.is_end {
                    self.state = State::Ended;
                }
                continue;
            }
            // A header is looked at byte by byte only where it straddles two reads.
            let carried = self.carry.len();
            let take = (bytes.len() - at).min(PREFACE_LEN - carried);
            self.carry.extend_from_slice(&bytes[at..at + take]);
            match self.item()? {
                Some(len) => {
                    at += len - carried;
                    self.carry.clear();
                }
                None => at += take,
            }
        }
        Ok(if self.state == State::Unknown { bytes.len() } else { at })
    }

    /// The length of the preface or header in `carry`, if it is whole.
    fn item(&mut self) -> io::Result<Option<usize>> {
        let Some(limits) = &self.limits else {
            if self.carry.len() < PREFACE_LEN {
                return Ok(None);
            }
            match parse_preface(&self.carry) {
                Ok(preface) => {
                    let messages = preface.critical & feature::MESSAGES != 0;
                    self.limits = Some(ReadLimits { messages, ..limits_of(&preface) });
                }
                Err(_) => self.state = State::Unknown,
            }
            return Ok(Some(PREFACE_LEN));
        };
        match frame::parse_header(&self.carry, limits) {
            Ok(Some(Header::Block(h))) => {
                self.body = h.wire_len as u64;
                Ok(Some(h.header_len()))
            }
            Ok(Some(Header::Control(h))) => {
                self.body = h.body_len as u64;
                self.is_end = h.kind == ControlKind::End;
                if self.is_end && h.body_len == 0 {
                    // The receiver says what is wrong.
                    self.state = State::Unknown;
                }
                Ok(Some(h.header_len))
            }
            Ok(None) => Ok(None),
            Err(_) => {
                // The receiver says what is wrong.
                self.state = State::Unknown;
                Ok(Some(self.carry.len()))
            }
        }
    }
}

fn limits_of(preface: &frame::Preface) -> ReadLimits {
    ReadLimits { codecs: u64::MAX, ..limits(preface) }
}

impl<R: Read> Read for Split<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.state == State::Ended || buf.is_empty() {
            return Ok(0);
        }
        let n = if self.behind.is_empty() {
            read_some(&mut self.source, buf)?
        } else {
            let n = self.behind.len().min(buf.len());
            buf[..n].copy_from_slice(&self.behind[..n]);
            self.behind.drain(..n);
            n
        };
        let used = self.walk(&buf[..n])?;
        if used < n {
            let mut behind = buf[used..n].to_vec();
            behind.append(&mut self.behind);
            self.behind = behind;
        }
        Ok(used)
    }
}

fn read_some(source: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(buf) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
