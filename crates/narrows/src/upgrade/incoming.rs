//! The receiving direction of a connection: plain bytes, perhaps a marker, then frames. It finds
//! the marker however the bytes are split, and holds back only bytes that may be part of it.

use super::marker::{CERTAIN_LEN, DIRECT_MAGIC, MAGIC, MARKER_LEN, Marker, NONCE_LEN, Nonce};
use crate::error::{Error, ErrorKind, Result};

mod late;

use late::{LateMarker, LateOpening};

/// Bytes that were held and turned out to be data. Deliver them before all later bytes.
/// Dereferences to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Released {
    bytes: [u8; MARKER_LEN],
    len: usize,
}

impl Released {
    fn of(bytes: &[u8]) -> Self {
        let mut released = Self { len: bytes.len(), ..Self::default() };
        released.bytes[..bytes.len()].copy_from_slice(bytes);
        released
    }
}

impl std::ops::Deref for Released {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// How to split an input: give the program `released`, then `input[..plain]`; frames begin at
/// `input[frames..]`. All other bytes were consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// Held bytes that precede the input.
    pub released: Released,
    /// Number of plain bytes at the start of the input.
    pub plain: usize,
    /// Offset of the first frame byte in the input; `None` before the marker.
    pub frames: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The first bytes may be the opening of a direct connection.
    Opening,
    Plain,
    /// The peer may send this marker.
    Armed(Marker),
    /// The claims about the peer's bytes were contradictory, or the peer stayed silent: everything
    /// is given out at once.
    Watched(LateMarker),
    Frames,
}

#[derive(Debug)]
pub(super) struct Incoming {
    state: State,
    /// Bytes received, including the held ones.
    received: u64,
    /// Number of held bytes: the last bytes received, which match the beginning of the marker or of
    /// the direct opening.
    held: usize,
    opening: [u8; MARKER_LEN],
    /// Announced offset of the peer's marker; [`NEVER`](super::flow::NEVER) if there will be none.
    marker_at: Option<u64>,
    /// The held bytes are the peer's marker, by their content or by the peer's word: none of them
    /// is data.
    certain: bool,
    /// Until a marker has arrived, the author of the words about these bytes may not be their
    /// sender.
    wary: bool,
    /// Deadline for resolving the held bytes.
    deadline_ns: Option<u64>,
    /// A question about the held bytes is due.
    ask: bool,
    hold_max_ns: u64,
    /// Longest time to hold the opening of a direct connection.
    opening_max_ns: u64,
    /// Direct: the opening was given up.
    given_up: Option<LateOpening>,
}

impl Incoming {
    pub(super) fn new(hold_max_ns: u64, wary: bool) -> Self {
        Self {
            state: State::Plain,
            received: 0,
            held: 0,
            opening: [0; MARKER_LEN],
            marker_at: None,
            certain: false,
            wary,
            deadline_ns: None,
            ask: false,
            hold_max_ns,
            opening_max_ns: 0,
            given_up: None,
        }
    }

    /// From the first byte on, looks for the opening of a direct connection.
    pub(super) fn expect_opening(&mut self, opening_max_ns: u64) {
        debug_assert!(self.received == 0);
        (self.state, self.opening_max_ns) = (State::Opening, opening_max_ns);
    }

    /// Whether the search for a marker can start at the next byte.
    pub(super) fn can_arm(&self) -> bool {
        matches!(self.state, State::Plain | State::Opening) && self.held == 0 && self.given_up.is_none()
    }

    /// Looks for this marker from the next byte on.
    pub(super) fn arm(&mut self, marker: Marker) {
        debug_assert!(self.can_arm());
        self.state = State::Armed(marker);
    }

    /// Ends the search: no marker will come, all bytes are plain.
    pub(super) fn disarm(&mut self) -> Result<Released> {
        if self.state == State::Frames || self.certain && !self.is_hearsay(self.held) {
            return Err(Error::corrupt("a claim was withdrawn after its marker arrived"));
        }
        if !matches!(self.state, State::Armed(_)) {
            return Ok(Released::default());
        }
        let released = self.release();
        self.state = State::Plain;
        Ok(released)
    }

    pub(super) fn is_opening(&self) -> bool {
        self.state == State::Opening
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self.state, State::Plain | State::Watched(_))
    }

    pub(super) fn is_doubtful(&self) -> bool {
        matches!(self.state, State::Watched(_))
    }

    /// Whether only words, which anybody may have said, suggest that `held` bytes begin a marker.
    /// The complete magic is evidence: it occurs in no data by chance, and a marker under the key
    /// of an agent that is gone has it too.
    fn is_hearsay(&self, held: usize) -> bool {
        self.wary && held < MAGIC.len()
    }

    /// Handles contradictory or missing words about the held bytes. Where a third party may have
    /// said them, this ends the upgrade and not the connection.
    pub(super) fn doubt(&mut self, error: Error) -> Result<Released> {
        let State::Armed(marker) = self.state else { return Ok(Released::default()) };
        if !self.is_hearsay(self.held) {
            return Err(error);
        }
        let released = self.release();
        self.state = State::Watched(LateMarker::new(marker, released.len()));
        Ok(released)
    }

    pub(super) fn has_frames(&self) -> bool {
        self.state == State::Frames
    }

    /// The client's half of the key, once the opening of a direct connection was found.
    pub(super) fn nonce(&self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&self.opening[DIRECT_MAGIC.len()..]);
        nonce
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// The offset to ask the peer about; `Some` once for each time the question is due.
    pub(super) fn take_question(&mut self) -> Option<u64> {
        std::mem::take(&mut self.ask).then(|| self.candidate())
    }

    /// Asks again: the question or its answer may be lost.
    pub(super) fn ask_again(&mut self) {
        self.ask = self.held > 0 && !self.certain && matches!(self.state, State::Armed(_));
    }

    /// Offset of the first held byte.
    fn candidate(&self) -> u64 {
        self.received - self.held as u64
    }

    fn held_bytes(&self) -> &[u8] {
        match &self.state {
            State::Armed(marker) => &marker[..self.held],
            _ => &self.opening[..self.held],
        }
    }

    fn release(&mut self) -> Released {
        let released = Released::of(self.held_bytes());
        self.held = 0;
        self.resolved();
        released
    }

    fn resolved(&mut self) {
        (self.certain, self.deadline_ns, self.ask) = (false, None, false);
    }

    pub(super) fn feed(&mut self, input: &[u8], now_ns: u64) -> Result<Step> {
        if input.is_empty() {
            return Ok(Step::default());
        }
        match self.state {
            State::Frames => Ok(Step { frames: Some(0), ..Step::default() }),
            State::Plain => {
                if let Some(opening) = self.given_up.take() {
                    self.given_up = opening.look(input)?;
                }
                self.received += input.len() as u64;
                Ok(Step { plain: input.len(), ..Step::default() })
            }
            State::Opening => self.feed_opening(input, now_ns),
            State::Armed(marker) => self.search(&marker, input, now_ns),
            State::Watched(marker) => self.watch(marker, input),
        }
    }

    fn watch(&mut self, mut marker: LateMarker, input: &[u8]) -> Result<Step> {
        marker.look(input)?;
        self.received += input.len() as u64;
        self.state = State::Watched(marker);
        Ok(Step { plain: input.len(), ..Step::default() })
    }

    fn search(&mut self, marker: &Marker, input: &[u8], now_ns: u64) -> Result<Step> {
        let held_before = self.held;
        let (mut held, mut certain, mut fresh) = (held_before, self.certain, false);
        let mut at = 0;
        while at < input.len() && held < MARKER_LEN {
            if held == 0 {
                let Some(n) = input[at..].iter().position(|b| *b == marker[0]) else {
                    at = input.len();
                    break;
                };
                at += n + 1;
                (held, fresh) = (1, true);
            } else if input[at] == marker[held] {
                held += 1;
                at += 1;
            } else if certain {
                let broken_off = Error::corrupt("the other end broke off in the middle of a marker");
                if !self.is_hearsay(held) {
                    return Err(broken_off);
                }
                let released = self.doubt(broken_off)?;
                let step = self.watch(LateMarker::new(*marker, released.len()), input)?;
                return Ok(Step { released, ..step });
            } else {
                // The first byte of a marker occurs in it only once, so the next candidate begins
                // at this byte at the earliest.
                (held, certain) = (0, false);
            }
        }
        self.received += at as u64;
        let kept_whole = held == held_before + at && !fresh;
        let released = if kept_whole { Released::default() } else { Released::of(&marker[..held_before]) };
        let plain = if kept_whole { 0 } else { at - held };
        self.held = held;
        if held == MARKER_LEN {
            if self.marker_at.is_some_and(|at| at != self.candidate()) {
                return Err(Error::corrupt("a marker arrived where the other end says that there is none"));
            }
            self.held = 0;
            self.resolved();
            self.state = State::Frames;
            return Ok(Step { released, plain, frames: Some(at) });
        }
        if held > 0 && self.marker_at.is_some_and(|at| at != self.candidate()) {
            // The bytes only look like a marker.
            let released = if kept_whole { Released::of(&marker[..held_before]) } else { released };
            self.held = 0;
            self.resolved();
            return Ok(Step { released, plain: at, frames: None });
        }
        if held == 0 {
            self.resolved();
        } else if held >= CERTAIN_LEN || self.marker_at.is_some() && !self.wary {
            self.resolved();
            self.certain = true;
        } else if !kept_whole {
            self.certain = self.marker_at.is_some();
            self.deadline_ns = Some(now_ns.saturating_add(self.hold_max_ns));
            self.ask = !self.certain;
        }
        Ok(Step { released, plain, frames: None })
    }

    fn feed_opening(&mut self, input: &[u8], now_ns: u64) -> Result<Step> {
        let before = self.held;
        let n = input.len().min(MARKER_LEN - before);
        let magic_end = DIRECT_MAGIC.len().min(before + n);
        if before < magic_end && input[..magic_end - before] != DIRECT_MAGIC[before..magic_end] {
            self.received += input.len() as u64;
            let released = self.release();
            self.state = State::Plain;
            return Ok(Step { released, plain: input.len(), frames: None });
        }
        self.opening[before..before + n].copy_from_slice(&input[..n]);
        self.received += n as u64;
        self.held += n;
        if self.held == MARKER_LEN {
            self.held = 0;
            self.resolved();
            self.state = State::Frames;
            return Ok(Step { frames: Some(n), ..Step::default() });
        }
        if self.held >= DIRECT_MAGIC.len() {
            self.resolved();
            self.certain = true;
        } else if before == 0 {
            self.deadline_ns = Some(now_ns.saturating_add(self.opening_max_ns));
        }
        Ok(Step::default())
    }

    /// Takes the peer's answer about the bytes from `offset` on. The peer may announce its marker
    /// at any time.
    pub(super) fn answered(&mut self, offset: u64, marked: bool) -> Result<Released> {
        if !matches!(self.state, State::Armed(_)) {
            return Ok(Released::default());
        }
        let begin = self.candidate();
        if marked {
            if offset < begin || *self.marker_at.get_or_insert(offset) != offset {
                return self.doubt(Error::corrupt("the other end announces a marker where there is none"));
            }
            if self.held > 0 && offset == begin {
                // If true, the rest of the marker is on its way.
                let deadline_ns = self.deadline_ns.filter(|_| self.is_hearsay(self.held));
                self.resolved();
                (self.certain, self.deadline_ns) = (true, deadline_ns);
                return Ok(Released::default());
            }
            return Ok(self.release());
        }
        if self.held > 0 && self.certain && offset == begin {
            return self.doubt(Error::corrupt("the other end says that its own marker is data"));
        }
        // Otherwise the answer is about bytes that were resolved meanwhile.
        Ok(if offset == begin { self.release() } else { Released::default() })
    }

    /// The peer sends nothing more. Before the marker that is the end of the program's bytes.
    pub(super) fn end(&mut self) -> Result<Released> {
        if self.held > 0 && self.certain && !self.is_hearsay(self.held) {
            return Err(Error::truncated("the connection ended in the middle of a marker"));
        }
        let released = self.release();
        if self.state != State::Frames {
            self.state = State::Plain;
        }
        Ok(released)
    }

    /// Handles the deadline if it has passed.
    pub(super) fn on_time(&mut self, now_ns: u64) -> Result<Released> {
        if self.deadline_ns.is_none_or(|at| now_ns < at) {
            return Ok(Released::default());
        }
        if self.state == State::Opening {
            // A direct client sends its opening in one segment, so this is a plain client.
            self.given_up = Some(LateOpening::new(self.held));
            let released = self.release();
            self.state = State::Plain;
            return Ok(released);
        }
        // Giving the bytes out might leak part of a marker; keeping them might keep them for ever.
        self.deadline_ns = None;
        self.doubt(Error::new(ErrorKind::Io, "the side channel did not answer whether received bytes are data"))
    }
}

#[cfg(test)]
mod tests;
