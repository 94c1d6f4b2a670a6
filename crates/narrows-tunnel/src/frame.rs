//! The frames of a carrier (docs/format.md, section 21.1): written to bytes, and found in pieces of
//! bytes of any length.

use std::collections::VecDeque;

use narrows::block::Block;
use narrows::{Error, Result};

/// First bytes of each direction of a carrier.
pub const GREETING: [u8; 8] = *b"\x93NRTU\r\n\x1a";
/// Most bytes that a remote shell may print before the greeting, as for copies.
pub const NOISE_MAX: usize = narrows::transport::NOISE_MAX;
/// Length of a frame's header.
pub const HEADER_LEN: usize = 9;
/// Longest body: with its header it fits into one TLS record.
pub const BODY_MAX: usize = (16 << 10) - HEADER_LEN;
/// Longest text for a person.
pub const TEXT_MAX: usize = 256;
/// Flow numbers have six bytes.
pub const FLOW_MAX: u64 = (1 << 48) - 1;

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Hello,
    Open,
    Opened,
    Refused,
    Raw,
    Coded,
    Credit,
    Finish,
    Reset,
    Move,
    Ping,
    Pong,
    Goaway,
    Listen,
    Listening,
    Delivered,
}

/// The kinds that every reader knows; the place in the list plus 1 is the number.
const KINDS: [Kind; 15] = [
    Kind::Hello,
    Kind::Open,
    Kind::Opened,
    Kind::Refused,
    Kind::Raw,
    Kind::Coded,
    Kind::Credit,
    Kind::Finish,
    Kind::Reset,
    Kind::Move,
    Kind::Ping,
    Kind::Pong,
    Kind::Goaway,
    Kind::Listen,
    Kind::Listening,
];
/// Kinds from here to 127 are passed over by a reader that does not know them.
const SKIPPED_FROM: u8 = 64;
const DELIVERED: u8 = 64;

impl Kind {
    /// The kind with this number; `None` if it is to be passed over.
    fn of(number: u8) -> Result<Option<Self>> {
        match number {
            0 | 128.. => Err(Error::corrupt("the carrier has bytes that are no frame")),
            DELIVERED => Ok(Some(Self::Delivered)),
            n if n >= SKIPPED_FROM => Ok(None),
            n => match KINDS.get(usize::from(n) - 1) {
                Some(kind) => Ok(Some(*kind)),
                None => {
                    Err(Error::unsupported(format!("the peer sends frames of kind {n}; a newer version is needed")))
                }
            },
        }
    }

    fn number(self) -> u8 {
        KINDS.iter().position(|k| *k == self).map_or(DELIVERED, |i| i as u8 + 1)
    }
}

/// Appends a frame.
///
/// # Panics
/// If the body is longer than [`BODY_MAX`].
pub fn put(out: &mut Vec<u8>, kind: Kind, flow: u64, body: &[u8]) {
    put_header(out, kind, flow, body.len());
    out.extend_from_slice(body);
}

/// Appends the header of a frame whose body the caller appends.
///
/// # Panics
/// If the body is longer than [`BODY_MAX`].
pub fn put_header(out: &mut Vec<u8>, kind: Kind, flow: u64, len: usize) {
    assert!(len <= BODY_MAX && flow <= FLOW_MAX);
    out.push(kind.number());
    out.extend_from_slice(&flow.to_le_bytes()[..6]);
    out.extend_from_slice(&(len as u16).to_le_bytes());
}

/// A frame that was read.
#[derive(Debug)]
pub struct Frame {
    pub kind: Kind,
    pub flow: u64,
    pub body: Block,
}

/// Finds the frames in what a carrier brings.
pub struct Parser {
    /// Bytes not taken yet, in the pieces in which they came.
    pieces: VecDeque<Block>,
    held: usize,
    start: Start,
}

/// What a parser has.
pub enum Next {
    Frame(Frame),
    /// No complete frame.
    Wait,
    /// One that is not to be taken now.
    Held,
}

/// What the parser waits for.
enum Start {
    /// The greeting; the number counts bytes of noise that may still come before it.
    Greeting {
        noise_left: usize,
    },
    Frames,
}

impl Parser {
    /// A parser for a new carrier. `noise_max`: other bytes that may come before the greeting.
    pub fn new(noise_max: usize) -> Self {
        Self { pieces: VecDeque::new(), held: 0, start: Start::Greeting { noise_left: noise_max } }
    }

    /// Takes bytes of the carrier.
    pub fn push(&mut self, bytes: Block) {
        if !bytes.is_empty() {
            self.held += bytes.len();
            self.pieces.push_back(bytes);
        }
    }

    /// Whether the greeting has arrived.
    pub fn is_greeted(&self) -> bool {
        matches!(self.start, Start::Frames)
    }

    /// The next complete frame.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`; nothing after it can be read.
    pub fn next_frame(&mut self) -> Result<Option<Frame>> {
        Ok(match self.next_if(|_| true)? {
            Next::Frame(frame) => Some(frame),
            Next::Wait | Next::Held => None,
        })
    }

    /// The next complete frame, if it is to be taken now.
    ///
    /// # Errors
    /// As for [`Parser::next_frame`].
    pub fn next_if(&mut self, is_taken: impl Fn(Kind) -> bool) -> Result<Next> {
        if !self.is_greeted() && !self.find_greeting()? {
            return Ok(Next::Wait);
        }
        loop {
            if self.held < HEADER_LEN {
                return Ok(Next::Wait);
            }
            let mut header = [0; HEADER_LEN];
            self.peek(&mut header);
            let [number, f0, f1, f2, f3, f4, f5, l0, l1] = header;
            let kind = Kind::of(number)?;
            let flow = u64::from_le_bytes([f0, f1, f2, f3, f4, f5, 0, 0]);
            let len = usize::from(u16::from_le_bytes([l0, l1]));
            if len > BODY_MAX {
                return Err(Error::corrupt("a frame of the carrier is too long"));
            }
            if self.held < HEADER_LEN + len {
                return Ok(Next::Wait);
            }
            if kind.is_some_and(|kind| !is_taken(kind)) {
                return Ok(Next::Held);
            }
            self.drop_front(HEADER_LEN);
            let body = self.take(len);
            if let Some(kind) = kind {
                return Ok(Next::Frame(Frame { kind, flow, body }));
            }
        }
    }

    fn find_greeting(&mut self) -> Result<bool> {
        let Start::Greeting { noise_left } = self.start else { return Ok(true) };
        let mut seen = vec![0; self.held];
        self.peek(&mut seen);
        match seen.windows(GREETING.len()).position(|w| w == GREETING) {
            Some(at) if at <= noise_left => {
                self.drop_front(at + GREETING.len());
                self.start = Start::Frames;
                Ok(true)
            }
            // The last bytes may be the beginning of the greeting.
            _ => {
                let noise =
                    (0..=self.held).find(|at| GREETING.starts_with(&seen[*at..(*at + GREETING.len()).min(self.held)]));
                let noise = noise.unwrap_or(self.held);
                if noise > noise_left {
                    return Err(Error::corrupt("the other end is no narrows tunnel"));
                }
                self.drop_front(noise);
                self.start = Start::Greeting { noise_left: noise_left - noise };
                Ok(false)
            }
        }
    }

    fn peek(&self, out: &mut [u8]) {
        let mut filled = 0;
        for piece in &self.pieces {
            let n = piece.len().min(out.len() - filled);
            out[filled..filled + n].copy_from_slice(&piece[..n]);
            filled += n;
            if filled == out.len() {
                return;
            }
        }
    }

    fn drop_front(&mut self, mut len: usize) {
        self.held -= len;
        while len > 0 {
            let Some(front) = self.pieces.front_mut() else { return };
            if front.len() > len {
                drop(front.split_to(len));
                return;
            }
            len -= front.len();
            self.pieces.pop_front();
        }
    }

    /// The next bytes: without copying where they came in one piece.
    fn take(&mut self, len: usize) -> Block {
        match self.pieces.front_mut() {
            Some(front) if front.len() > len => {
                self.held -= len;
                front.split_to(len)
            }
            Some(front) if front.len() == len => {
                self.held -= len;
                self.pieces.pop_front().unwrap_or_default()
            }
            _ => {
                let mut whole = vec![0; len];
                self.peek(&mut whole);
                self.drop_front(len);
                Block::from_vec(whole)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use narrows::ErrorKind;

    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = GREETING.to_vec();
        put(&mut bytes, Kind::Hello, 0, &[1; 24]);
        put(&mut bytes, Kind::Raw, FLOW_MAX, &[7; BODY_MAX]);
        put(&mut bytes, Kind::Finish, 2, b"");
        bytes
    }

    fn read(parser: &mut Parser) -> Vec<(Kind, u64, usize)> {
        std::iter::from_fn(|| parser.next_frame().unwrap()).map(|f| (f.kind, f.flow, f.body.len())).collect()
    }

    #[test]
    fn frames_are_found_in_pieces_of_any_length() {
        let whole = [(Kind::Hello, 0, 24), (Kind::Raw, FLOW_MAX, BODY_MAX), (Kind::Finish, 2, 0)];
        for piece in [1, 2, 7, 8, 9, 33, 4096, usize::MAX] {
            let mut parser = Parser::new(0);
            let mut found = Vec::new();
            for part in sample().chunks(piece.min(sample().len())) {
                parser.push(Block::from_vec(part.to_vec()));
                found.extend(read(&mut parser));
            }
            assert_eq!(found, whole, "{piece}");
            assert_eq!(parser.held, 0);
        }
    }

    #[test]
    fn a_truncated_frame_is_none() {
        let bytes = sample();
        for len in 0..bytes.len() {
            let mut parser = Parser::new(0);
            parser.push(Block::from_vec(bytes[..len].to_vec()));
            let found = read(&mut parser);
            assert!(found.len() < 3, "{len}");
        }
    }

    #[test]
    fn what_a_shell_prints_before_is_passed_over_but_not_without_end() {
        let noise = b"Welcome\x93NRT\r\n";
        for piece in [1, 3, 1000] {
            let mut parser = Parser::new(noise.len());
            let mut found = Vec::new();
            for part in [&noise[..], &sample()].concat().chunks(piece) {
                parser.push(Block::from_vec(part.to_vec()));
                found.extend(read(&mut parser));
            }
            assert_eq!(found.len(), 3);
        }
        let mut parser = Parser::new(noise.len() - 1);
        parser.push(Block::from_vec([&noise[..], &sample()].concat()));
        assert_eq!(parser.next_frame().unwrap_err().kind, ErrorKind::Corrupt);
        let mut parser = Parser::new(0);
        parser.push(Block::from_vec(b"\x93NRX".to_vec()));
        assert_eq!(parser.next_frame().unwrap_err().kind, ErrorKind::Corrupt);
    }

    #[test]
    fn unknown_kinds_are_passed_over_or_refused() {
        let with = |number: u8| {
            let mut bytes = GREETING.to_vec();
            put(&mut bytes, Kind::Ping, 0, b"12345678");
            bytes[GREETING.len()] = number;
            put(&mut bytes, Kind::Pong, 0, b"12345678");
            let mut parser = Parser::new(0);
            parser.push(Block::from_vec(bytes));
            parser.next_frame().map(|f| f.map(|f| f.kind)).map_err(|e| e.kind)
        };
        assert_eq!(with(64), Ok(Some(Kind::Delivered)));
        assert_eq!(with(65), Ok(Some(Kind::Pong)));
        assert_eq!(with(127), Ok(Some(Kind::Pong)));
        assert_eq!(with(16), Err(ErrorKind::Unsupported));
        assert_eq!(with(0), Err(ErrorKind::Corrupt));
        assert_eq!(with(128), Err(ErrorKind::Corrupt));
    }

    #[test]
    fn a_body_that_is_too_long_is_refused_before_it_came() {
        let mut bytes = GREETING.to_vec();
        put_header(&mut bytes, Kind::Raw, 2, 0);
        let at = bytes.len() - 2;
        bytes[at..].copy_from_slice(&(BODY_MAX as u16 + 1).to_le_bytes());
        let mut parser = Parser::new(0);
        parser.push(Block::from_vec(bytes));
        assert_eq!(parser.next_frame().unwrap_err().kind, ErrorKind::Corrupt);
    }
}
