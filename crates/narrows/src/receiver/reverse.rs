//! The reverse direction, sent by the receiver: its preface, reports at intervals, notes of the
//! application, and the last word.

use super::Receiver;
use crate::frame::{self, ControlKind, Feedback, Frame, Preface, Role};

/// Reports come after the first block and then at every eighth of the flow's time, but not closer
/// than 2 ms (a report costs the sender some microseconds) nor further apart than half a second (a
/// price needs ten reports to move).
const REPORT_EVERY_MIN_NS: u64 = 2_000_000;
const REPORT_EVERY_MAX_NS: u64 = 500_000_000;

#[derive(Default)]
pub(super) struct Reports {
    preface_sent: bool,
    begun_ns: Option<u64>,
    last_ns: u64,
    every_ns: u64,
    frames_reported: u64,
}

impl Receiver {
    /// Bytes for the reverse direction, if any are due: the preface at the start, feedback at
    /// intervals. `blocked_ns` is how long the reader of the raw bytes has accepted none since the
    /// start.
    pub fn poll_feedback(&mut self, now_ns: u64, blocked_ns: u64) -> Option<Vec<u8>> {
        if !self.config.duplex {
            return None;
        }
        if !self.reports.preface_sent {
            self.reports.preface_sent = true;
            return Some(self.own_preface().encode().to_vec());
        }
        let frames = self.summary.frames;
        if frames == self.reports.frames_reported {
            return None;
        }
        let begun_ns = *self.reports.begun_ns.get_or_insert(now_ns);
        let every_ns = ((now_ns - begun_ns.min(now_ns)) / 8).clamp(REPORT_EVERY_MIN_NS, REPORT_EVERY_MAX_NS);
        self.reports.every_ns = every_ns;
        if self.reports.frames_reported > 0 && now_ns < self.reports.last_ns + every_ns {
            return None;
        }
        self.reports.last_ns = now_ns;
        self.reports.frames_reported = frames;
        Some(bytes_of(&self.feedback(blocked_ns).frame()))
    }

    /// When the next report is due, if there is something to report.
    pub fn next_report_ns(&self) -> Option<u64> {
        let due = self.config.duplex && self.summary.frames != self.reports.frames_reported;
        due.then(|| self.reports.last_ns + self.reports.every_ns)
    }

    fn own_preface(&self) -> Preface {
        Preface {
            role: Role::Receiver,
            critical: 0,
            optional: 0,
            check: true,
            block_max: self.config.block_max,
            history: self.config.history_max,
            reach: self.most_reach(),
            codecs: self.codecs(),
        }
    }

    fn feedback(&self, blocked_ns: u64) -> Feedback {
        let backlog = self.queue.slots.iter().skip(self.queue.ready).map(|s| s.wire_len as u64).sum();
        Feedback {
            wire_received: self.summary.wire_bytes,
            raw_delivered: self.summary.raw_bytes,
            frames_decoded: self.summary.frames,
            decode_ns: self.summary.decode_cpu_ns,
            cores: self.config.cores as u64,
            backlog_bytes: backlog,
            blocked_ns,
            decode_wall_ns: self.decoding.wall_ns,
        }
    }

    /// Bytes for the reverse direction that carry a note to the sender's application.
    ///
    /// # Panics
    /// If the note is longer than [`frame::CONTROL_BODY_MAX`].
    pub fn note(&mut self, words: &[u8]) -> Vec<u8> {
        self.behind_preface(&frame::control_frame(ControlKind::Note, words, 0))
    }

    /// The last bytes for the reverse direction: everything is stored (`None`), or why it is not.
    pub fn close_message(&mut self, failure: Option<&str>) -> Vec<u8> {
        self.behind_preface(&frame::close_frame(failure))
    }

    fn behind_preface(&mut self, frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !std::mem::replace(&mut self.reports.preface_sent, true) {
            bytes.extend_from_slice(&self.own_preface().encode());
        }
        bytes.extend(bytes_of(frame));
        bytes
    }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    [&*frame.header, &*frame.body].concat()
}
