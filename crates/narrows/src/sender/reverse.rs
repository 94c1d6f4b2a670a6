//! The direction from receiver to sender: its preface, feedback, close.

use std::collections::VecDeque;

use super::{Phase, Sender};
use crate::codec::CodecId;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{self, ControlHeader, ControlKind, Feedback, Header, Preface, ReadLimits, Role};
use crate::monitor::cpu::Slowdown;
use crate::policy::Outcome;

/// An item of the reverse direction.
#[derive(Debug, PartialEq)]
enum Event {
    Preface(Preface),
    Feedback(Feedback),
    /// A note for the application.
    Note(Vec<u8>),
    /// The receiver has stored everything.
    Stored,
}

/// Parser of the reverse direction. It holds at most one control frame.
#[derive(Debug, Default)]
struct Reverse {
    buffer: Vec<u8>,
    preface_seen: bool,
}

/// The reverse direction has only control frames, so block limits are irrelevant.
const LIMITS: ReadLimits = ReadLimits { block_max: 0, history: 0, reach: 0, codecs: 0, check: true, messages: false };

impl Reverse {
    fn receive(&mut self, bytes: &[u8], mut on_event: impl FnMut(Event)) -> Result<()> {
        // Chunks limit the buffer to one frame and one chunk, however much the caller passes in.
        for chunk in bytes.chunks(frame::CONTROL_BODY_MAX) {
            self.buffer.extend_from_slice(chunk);
            let mut used = 0;
            while let Some(len) = self.parse(used, &mut on_event)? {
                used += len;
            }
            self.buffer.drain(..used);
        }
        Ok(())
    }

    /// Parses one item at `at` and returns its length, or `None` if it is incomplete.
    fn parse(&mut self, at: usize, on_event: &mut impl FnMut(Event)) -> Result<Option<usize>> {
        let bytes = &self.buffer[at..];
        if !self.preface_seen {
            let Some(preface) = Preface::parse(bytes)? else { return Ok(None) };
            if preface.role != Role::Receiver {
                return Err(Error::corrupt("the other side is a sender too"));
            }
            self.preface_seen = true;
            on_event(Event::Preface(preface));
            return Ok(Some(frame::PREFACE_LEN));
        }
        let header = match frame::parse_header(bytes, &LIMITS)? {
            None => return Ok(None),
            Some(Header::Control(header)) => header,
            Some(Header::Block(_)) => return Err(Error::corrupt("the receiver sent data back")),
        };
        let Some(body) = bytes.get(header.header_len..header.header_len + header.body_len) else { return Ok(None) };
        header.verify(body, 0)?;
        Self::control(&header, body, on_event)?;
        Ok(Some(header.header_len + header.body_len))
    }

    fn control(header: &ControlHeader, body: &[u8], on_event: &mut impl FnMut(Event)) -> Result<()> {
        match header.kind {
            ControlKind::Feedback => on_event(Event::Feedback(Feedback::parse(body)?)),
            ControlKind::Close => match frame::parse_close(body)? {
                None => on_event(Event::Stored),
                Some(text) => return Err(Error::new(ErrorKind::Io, format!("the receiver failed: {text}"))),
            },
            ControlKind::Note => on_event(Event::Note(body.to_vec())),
            ControlKind::Unknown(_) | ControlKind::Index => {}
            ControlKind::Reset
            | ControlKind::Keep
            | ControlKind::Sums
            | ControlKind::PrefaceCopy
            | ControlKind::Attempt
            | ControlKind::Delivered
            | ControlKind::End => {
                return Err(Error::corrupt("the receiver sent a frame that only a sender may send"));
            }
        }
        Ok(())
    }
}

/// The receiver, as far as it has reported.
#[derive(Debug, Default)]
pub(super) struct Peer {
    parser: Reverse,
    /// Notes of its application, until the driver takes them.
    notes: VecDeque<Vec<u8>>,
    notes_heard: u64,
    pub(super) feedback: Feedback,
    /// Its decoding cores; `None` until its first report.
    pub(super) cores: Option<usize>,
    /// How much longer its decoding takes than its CPU time.
    load: Slowdown,
    /// (frame number, raw bytes) of frames sent and not yet reported as decoded; bounded by
    /// `UNREPORTED_MAX`.
    pub(super) unreported: VecDeque<(u64, u64)>,
}

impl Sender {
    /// Takes bytes of the reverse direction: the receiver's preface, feedback, notes, close.
    ///
    /// # Errors
    /// The error in the bytes, or `Io` if the receiver reports that it failed.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) -> Result<()> {
        self.tick(now_ns);
        let mut reverse = std::mem::take(&mut self.peer.parser);
        let parsed = reverse.receive(bytes, |event| self.on_event(event));
        self.peer.parser = reverse;
        if !self.config.notes && !self.peer.notes.is_empty() {
            return Err(Error::corrupt("the receiver sent a note that was not asked for"));
        }
        parsed
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Preface(p) => {
                self.limits.block_max = self.limits.block_max.min(p.block_max);
                self.on_reach(p.reach, p.block_max);
                self.limits.history = self.config.history.min(p.history);
                self.history.shrink_to(self.limits.history);
                // Every receiver has `store`.
                self.limits.codecs = self.config.codecs & (p.codecs | 1 << CodecId::STORE.0);
            }
            Event::Feedback(f) => self.on_feedback(f),
            Event::Note(words) => {
                self.peer.notes.push_back(words);
                self.peer.notes_heard += 1;
            }
            Event::Stored if self.phase >= Phase::Ended => {
                self.phase = Phase::Confirmed;
                self.summary.crossed(u64::MAX, u64::MAX);
            }
            // A confirmation of bytes that were not sent yet confirms nothing.
            Event::Stored => {}
        }
    }

    fn on_feedback(&mut self, f: Feedback) {
        let before = self.peer.feedback;
        // Totals only grow; a decreasing report comes from a confused peer, and reports are only
        // advice.
        let decode_ns = f.decode_ns.saturating_sub(before.decode_ns);
        // Where other programs have the receiver's cores, decoding takes longer than its CPU time.
        self.peer.load.observe(f.decode_wall_ns.saturating_sub(before.decode_wall_ns), decode_ns);
        if self.config.relayed {
            self.link.on_report(f.wire_received, self.times.now_ns);
            self.release();
        }
        self.peer.cores = Some((f.cores as usize).clamp(1, 1024));
        self.peer.feedback = f;
        self.summary.crossed(f.raw_delivered, f.wire_received.saturating_sub(f.backlog_bytes));
        self.summary.decode_cpu_ns = f.decode_ns;
        self.summary.decode_threads = f.cores;
        self.summary.receiver_blocked_ns = f.blocked_ns;
        let mut decoded: Option<(u64, u64, u64)> = None;
        while let Some(&(seq, raw_len)) = self.peer.unreported.front() {
            if seq >= f.frames_decoded {
                break;
            }
            self.peer.unreported.pop_front();
            let (first, _, sum) = decoded.unwrap_or((seq, seq, 0));
            decoded = Some((first, seq, sum + raw_len));
        }
        if let Some((first_seq, last_seq, raw_len)) = decoded
            && raw_len > 0
        {
            let cores = self.peer.cores.unwrap_or(1);
            self.policy.learn(&Outcome::Received {
                first_seq,
                last_seq,
                raw_len,
                decode_ns,
                load: self.peer.load.factor(),
                cores,
                backlog_bytes: f.backlog_bytes,
            });
        }
    }

    /// The next note of the application at the other end, in order. The driver takes all of them
    /// after each `receive`.
    pub fn take_note(&mut self) -> Option<Vec<u8>> {
        self.peer.notes.pop_front()
    }

    /// Number of notes received so far: as long as it grows the other application is at work.
    pub fn notes_heard(&self) -> u64 {
        self.peer.notes_heard
    }

    /// Whether the receiver has confirmed that it stored everything (duplex links only).
    pub fn is_confirmed(&self) -> bool {
        self.phase == Phase::Confirmed
    }
}
