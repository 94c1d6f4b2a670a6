//! The frames of a measurement, and one end's conversation in them.

use std::io;
use std::time::{Duration, Instant};

use narrows::transport::Plain;
use serde_json::Value;

use crate::error::{Blame, Error, Result};

/// Longest piece of data: at 25 Gbit/s a frame every 40 us.
pub(super) const DATA_MAX: usize = 128 << 10;
/// Longest words of a frame: twenty methods with their speeds take 2 KiB.
const WORDS_MAX: usize = 16 << 10;
/// Kind and length.
const HEAD: usize = 5;
/// Bytes that are read at a time.
const ROOM: usize = 256 << 10;
/// Interval at which waiting looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Unsent bytes that the kernel may hold: enough for 25 Gbit/s at 50 us, and little on a slow link.
pub(super) const BACKLOG: u32 = 128 << 10;

/// What one end tells the other.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// The far end: its version, cores, and whether it is this host.
    Hello(Value),
    /// A question that is answered at once.
    Ping(u64),
    /// The answer, with the same number.
    Pong(u64),
    /// Asks the far end to send data for so many milliseconds, over a way whose shortest round trip is the
    /// other number of them.
    Flood([u32; 2]),
    /// So many bytes of data; in pieces, as they arrive.
    Data(usize),
    /// No more data: how many bytes it was, and segments sent and sent again (`u64::MAX`: unknown).
    End([u64; 3]),
    /// Bytes of data that came, microseconds since the first of them, and CPU microseconds of the thread.
    Ack([u64; 3]),
    /// Asks for speeds of methods.
    AskSpeeds,
    /// Nanoseconds per byte of methods.
    Speeds(Value),
    /// Why this end does not go on.
    Refusal(String),
}

impl Frame {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Ping(_) => 2,
            Self::Pong(_) => 3,
            Self::Flood(_) => 4,
            Self::Data(_) => DATA,
            Self::End(_) => 6,
            Self::Ack(_) => 7,
            Self::AskSpeeds => 8,
            Self::Speeds(_) => 9,
            Self::Refusal(_) => 10,
        }
    }

    /// The bytes of the frame; of data only the head.
    pub fn encode(&self) -> Vec<u8> {
        let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let body = match self {
            Self::Hello(words) | Self::Speeds(words) => words.to_string().into_bytes(),
            Self::Ping(n) | Self::Pong(n) => numbers(&[*n]),
            Self::Flood(ms) => ms.iter().flat_map(|ms| ms.to_le_bytes()).collect(),
            Self::Data(_) | Self::AskSpeeds => Vec::new(),
            Self::End(n) | Self::Ack(n) => numbers(n),
            Self::Refusal(text) => text.bytes().take(WORDS_MAX).collect(),
        };
        let len = if let Self::Data(len) = self { *len } else { body.len() };
        let mut bytes = vec![self.kind()];
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend(body);
        bytes
    }
}

const DATA: u8 = 5;

/// Takes one frame from the front of `bytes`: the frame and its length, or `None` if there is not all of
/// it. Of data only the head is taken, with the length of what follows.
///
/// # Errors
/// It is no frame, or too long.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame, usize)>> {
    let wrong = |what: &str| Err(Error::Protocol(format!("the other end sent {what} in a measurement").into()));
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if head[0] == DATA {
        return if len <= DATA_MAX { Ok(Some((Frame::Data(len), HEAD))) } else { wrong("data in too long a piece") };
    }
    if len > WORDS_MAX {
        return wrong("a frame that is too long");
    }
    let Some(body) = rest.get(..len) else { return Ok(None) };
    let number = |i: usize| Some(u64::from_le_bytes(body.get(8 * i..8 * i + 8)?.try_into().ok()?));
    let one = || number(0).filter(|_| len == 8);
    let three = || Some([number(0)?, number(1)?, number(2)?]).filter(|_| len == 24);
    let words = || serde_json::from_slice::<Value>(body).ok().filter(Value::is_object);
    let frame = match head[0] {
        1 => words().map(Frame::Hello),
        2 => one().map(Frame::Ping),
        3 => one().map(Frame::Pong),
        4 => one().map(|both| Frame::Flood([both as u32, (both >> 32) as u32])),
        6 => three().map(Frame::End),
        7 => three().map(Frame::Ack),
        8 => (len == 0).then_some(Frame::AskSpeeds),
        9 => words().map(Frame::Speeds),
        10 => Some(Frame::Refusal(String::from_utf8_lossy(body).into_owned())),
        _ => return wrong("a frame that this version does not know"),
    };
    frame.map_or_else(|| wrong("a malformed frame"), |frame| Ok(Some((frame, HEAD + len))))
}

/// One end's conversation.
pub(super) struct Talk<'a> {
    plain: Plain,
    room: Vec<u8>,
    /// Range of `room` that was not taken.
    from: usize,
    to: usize,
    /// Bytes of data that are still to come of the frame that was taken last.
    rest: usize,
    /// When all of it has to be over.
    pub(super) until: Instant,
    /// How long the other end may be silent when it is its turn.
    pub(super) silence: Duration,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Talk<'a> {
    pub(super) fn new(plain: Plain, until: Instant, silence: Duration, stop: &'a dyn Fn() -> bool) -> Self {
        Self { plain, room: vec![0; ROOM], from: 0, to: 0, rest: 0, until, silence, stop }
    }

    pub(super) fn segments(&self) -> Option<(u64, u64)> {
        self.plain.segments()
    }

    fn check(&self) -> Result<()> {
        if (self.stop)() {
            return Err(Error::Interrupted("interrupted".into()));
        }
        if Instant::now() >= self.until {
            return Err(Error::Link(
                "the measurement takes longer than it may; the link or the other end stands".into(),
            ));
        }
        Ok(())
    }

    /// Sends a frame and waits until the system has it.
    pub(super) fn say(&mut self, frame: &Frame) -> Result<()> {
        self.write(&frame.encode())
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let (mut rest, begun) = (bytes, Instant::now());
        loop {
            let written = if rest.is_empty() { None } else { self.plain.write(rest).map_err(lost)? };
            rest = &rest[written.unwrap_or(0)..];
            if rest.is_empty() && self.plain.flush().map_err(lost)? {
                return Ok(());
            }
            if written.is_none() {
                self.check()?;
                if begun.elapsed() > self.silence {
                    return Err(Error::Link("the other end reads nothing".into()));
                }
                self.plain.wait_writable(LOOK_EVERY).map_err(lost)?;
            }
        }
    }

    /// Writes what fits of `bytes`, and how many that was; waits a moment if nothing does.
    pub(super) fn write_some(&mut self, bytes: &[u8], moment: Duration) -> Result<usize> {
        self.check()?;
        let written = self.plain.write(bytes).map_err(lost)?;
        self.plain.flush().map_err(lost)?;
        if written.is_none() {
            self.plain.wait_writable(moment).map_err(lost)?;
        }
        Ok(written.unwrap_or(0))
    }

    /// The next frame, if one comes within `wait`.
    pub(super) fn next(&mut self, wait: Duration) -> Result<Option<Frame>> {
        let begun = Instant::now();
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            let left = wait.saturating_sub(begun.elapsed());
            self.check()?;
            if self.from == self.to {
                (self.from, self.to) = (0, 0);
            } else if self.from > 0 {
                self.room.copy_within(self.from..self.to, 0);
                (self.from, self.to) = (0, self.to - self.from);
            }
            let read = self.plain.read(&mut self.room[self.to..], left.min(LOOK_EVERY)).map_err(lost)?;
            match read {
                Some(0) => return Err(Error::Link("the other end has gone away".into())),
                Some(n) => self.to += n,
                None if left.is_zero() => return Ok(None),
                None => {}
            }
        }
    }

    /// The next frame; an error if the other end is silent for too long, or refuses.
    pub(super) fn expect(&mut self) -> Result<Frame> {
        let silence = self.silence;
        match self.next(silence)? {
            Some(Frame::Refusal(text)) => Err(Error::Peer(format!("the other end refuses: {text}").into())),
            Some(frame) => Ok(frame),
            None => {
                let text = format!("the other end said nothing for {} s", silence.as_secs_f64().round());
                Err(Error::Link(text.into()))
            }
        }
    }

    fn take(&mut self) -> Result<Option<Frame>> {
        loop {
            if self.rest > 0 && self.from < self.to {
                let len = self.rest.min(self.to - self.from);
                self.rest -= len;
                self.from += len;
                return Ok(Some(Frame::Data(len)));
            }
            if self.rest > 0 {
                return Ok(None);
            }
            let Some((frame, len)) = parse(&self.room[self.from..self.to])? else { return Ok(None) };
            self.from += len;
            match frame {
                Frame::Data(len) => self.rest = len,
                frame => return Ok(Some(frame)),
            }
        }
    }

    /// The magic number that the far end begins with.
    pub(super) fn magic(&mut self, magic: &[u8]) -> Result<()> {
        let begun = Instant::now();
        while self.to < magic.len() {
            self.check()?;
            if begun.elapsed() > self.silence {
                let text = format!("the other end said nothing for {} s", self.silence.as_secs_f64().round());
                return Err(Error::Link(text.into()));
            }
            match self.plain.read(&mut self.room[self.to..], LOOK_EVERY).map_err(lost)? {
                Some(0) => return Err(Error::Link("the other end has gone away".into())),
                Some(n) => self.to += n,
                None => {}
            }
        }
        if !self.room.starts_with(magic) {
            return Err(Error::Protocol("the other end does not answer as a narrows that is measured".into()));
        }
        self.from = magic.len();
        Ok(())
    }
}

/// An error of the link itself.
fn lost(e: io::Error) -> Error {
    let lost: io::Result<()> = Err(e);
    lost.blame_for(Error::Link, "the link failed").err().unwrap_or_else(|| Error::Link("the link failed".into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn all() -> Vec<Frame> {
        vec![
            Frame::Hello(json!({ "cores": 2 })),
            Frame::Ping(7),
            Frame::Pong(u64::MAX),
            Frame::Flood([2000, 40]),
            Frame::Data(DATA_MAX),
            Frame::End([1, 2, u64::MAX]),
            Frame::Ack([3, 4, 5]),
            Frame::AskSpeeds,
            Frame::Speeds(json!({ "lz4": [1.5, 0.5] })),
            Frame::Refusal("busy".into()),
        ]
    }

    #[test]
    fn frames_come_back_and_a_part_of_one_is_none() {
        for frame in all() {
            let bytes = frame.encode();
            assert_eq!(parse(&bytes).unwrap(), Some((frame.clone(), bytes.len())), "{frame:?}");
            for end in 0..bytes.len() {
                assert_eq!(parse(&bytes[..end]).unwrap(), None, "{frame:?} {end}");
            }
        }
    }

    #[test]
    fn lengths_and_kinds_of_strangers_are_refused_before_anything_is_kept() {
        let head = |kind: u8, len: u32| [&[kind][..], &len.to_le_bytes()].concat();
        for bad in [head(DATA, DATA_MAX as u32 + 1), head(1, WORDS_MAX as u32 + 1), head(11, 0), head(0, 0), head(2, 0)]
        {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
        assert!(parse(&[&head(1, 2)[..], b"[]"].concat()).is_err(), "no object");
        assert!(parse(&[&head(9, 1)[..], b"{"].concat()).is_err(), "no JSON");
        assert!(parse(&[&head(4, 3)[..], b"abc"].concat()).is_err());
    }
}
