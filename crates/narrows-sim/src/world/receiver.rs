//! Model of the receiver: it decodes whole frames on the first free decoder, delivers in order, and
//! reports.

use std::collections::VecDeque;

use narrows::frame::Feedback;
use narrows::oracle::Speed;

use super::Conditions;
use super::hardware::{Hardware, Lines};
use super::link::InFlight;
use crate::overhead::DECODE_FIXED_NS;

/// Bounds of the report interval, as in the engine: 1/8 of the time so far within these bounds.
const REPORT_EVERY_MIN_NS: u64 = 2_000_000;
const REPORT_EVERY_MAX_NS: u64 = 500_000_000;
/// Raw bytes that the receiver holds before it stops reading.
const RECEIVER_HOLDS: usize = 8 << 20;

pub(super) struct Receiver {
    speed: Speed,
    free_s: Vec<f64>,
    /// Frames that arrived and are not delivered: (end of decoding in s, raw bytes, wire bytes, CPU time
    /// and time of decoding in ns).
    decoding: VecDeque<(f64, usize, u64, f64, f64)>,
    held_raw: usize,
    pub(super) delivered_s: f64,
    pub(super) raw_len: usize,
    feedback: Feedback,
    begun_ns: Option<u64>,
    reported_ns: u64,
    reported_frames: u64,
    /// Of ends that share cores: frames that arrived and whose decoding has not begun.
    waiting: VecDeque<(bool, f64)>,
    running: usize,
    /// When the last frame was decoded.
    decoded_s: f64,
    /// Of hosts whose memory and threads have limits.
    lines: Option<Lines>,
}

impl Receiver {
    pub(super) fn new(conditions: &Conditions) -> Self {
        Self {
            speed: conditions.receiver.clone(),
            free_s: vec![0.0; conditions.decoders.max(1)],
            decoding: VecDeque::new(),
            held_raw: 0,
            delivered_s: 0.0,
            raw_len: 0,
            feedback: Feedback { cores: conditions.decoders as u64, ..Feedback::default() },
            begun_ns: None,
            reported_ns: 0,
            reported_frames: 0,
            waiting: VecDeque::new(),
            running: 0,
            decoded_s: 0.0,
            lines: None,
        }
    }

    pub(super) fn limit(&mut self, hardware: Hardware) {
        self.lines = Some(Lines::new(hardware));
    }

    /// Bytes that its memory moved, if that has limits.
    pub(super) fn moved(&self) -> f64 {
        self.lines.as_ref().map_or(0.0, |l| l.moved)
    }

    /// Whether it accepts bytes from the link.
    pub(super) fn reads(&self) -> bool {
        self.held_raw < RECEIVER_HOLDS
    }

    pub(super) fn arrive(&mut self, frame: &InFlight, now_ns: u64) {
        let first = (0..self.free_s.len()).min_by(|a, b| self.free_s[*a].total_cmp(&self.free_s[*b])).unwrap_or(0);
        // A linked block is decoded after all before it.
        let from_s = if frame.linked { self.decoded_s } else { 0.0 };
        let now_s = now_ns as f64 * 1e-9;
        let read_s = self.lines.as_mut().map_or(now_s, |l| l.read(now_s, frame.wire_len));
        let begin_s = self.free_s[first].max(read_s).max(from_s);
        let mut end_s = self.speed.finish(begin_s, (frame.decode_ns + DECODE_FIXED_NS) * 1e-9);
        if let Some(lines) = &mut self.lines {
            end_s = end_s.max(lines.moves(read_s, frame.method, frame.raw_len, frame.wire_len));
        }
        self.free_s[first] = end_s;
        self.decoded_s = self.decoded_s.max(end_s);
        let stored_s = self.lines.as_mut().map_or(self.decoded_s, |l| l.write(self.decoded_s, frame.raw_len));
        // On a slow machine the CPU clock also measures the longer time of decoding. A machine that becomes
        // slow has other programs, for which that clock stands still.
        let cpu_s = (frame.decode_ns + DECODE_FIXED_NS) * 1e-9 / self.speed.at(0.0);
        let wall_ns = (end_s - begin_s) * 1e9;
        self.decoding.push_back((stored_s, frame.raw_len, frame.wire_len, wall_ns.min(cpu_s * 1e9), wall_ns));
        self.held_raw += frame.raw_len;
        self.feedback.wire_received = frame.wire_end;
    }

    /// As [`Self::arrive`], where the sender's cores decode too: the caller begins the work.
    pub(super) fn arrive_on_shared(&mut self, frame: &InFlight, work_ns: f64) {
        self.decoding.push_back((f64::INFINITY, frame.raw_len, frame.wire_len, frame.decode_ns, 0.0));
        self.waiting.push_back((frame.linked, work_ns));
        self.held_raw += frame.raw_len;
        self.feedback.wire_received = frame.wire_end;
    }

    /// Nanoseconds of the next frame that a decoder is free for. A linked one waits for all before it.
    pub(super) fn begin_decoding(&mut self) -> Option<f64> {
        let (linked, work_ns) = *self.waiting.front()?;
        if self.running == self.free_s.len() || linked && self.running > 0 {
            return None;
        }
        self.waiting.pop_front();
        self.running += 1;
        Some(work_ns + DECODE_FIXED_NS)
    }

    /// A decoder has finished. Which one does not matter: frames are delivered in order.
    pub(super) fn decoded(&mut self, now_ns: u64) {
        self.running -= 1;
        if let Some(first) = self.decoding.iter_mut().find(|d| d.0.is_infinite()) {
            first.0 = now_ns as f64 * 1e-9;
        }
    }

    pub(super) fn next_ns(&self) -> u64 {
        self.decoding.front().map_or(u64::MAX, |d| (d.0 * 1e9).ceil() as u64)
    }

    /// Delivers decoded frames, and returns a report if one is due.
    pub(super) fn deliver(&mut self, now_ns: u64) -> Option<Feedback> {
        while self.next_ns() <= now_ns {
            let Some((end_s, raw_len, _, decode_ns, wall_ns)) = self.decoding.pop_front() else { break };
            self.delivered_s = end_s;
            self.raw_len += raw_len;
            self.held_raw -= raw_len;
            self.feedback.raw_delivered += raw_len as u64;
            self.feedback.frames_decoded += 1;
            self.feedback.decode_ns += decode_ns as u64;
            self.feedback.decode_wall_ns += wall_ns as u64;
        }
        if self.feedback.frames_decoded == self.reported_frames {
            return None;
        }
        let begun_ns = *self.begun_ns.get_or_insert(now_ns);
        let every_ns = ((now_ns - begun_ns) / 8).clamp(REPORT_EVERY_MIN_NS, REPORT_EVERY_MAX_NS);
        if self.reported_frames > 0 && now_ns < self.reported_ns + every_ns {
            return None;
        }
        (self.reported_ns, self.reported_frames) = (now_ns, self.feedback.frames_decoded);
        self.feedback.backlog_bytes = self.decoding.iter().map(|d| d.2).sum();
        Some(self.feedback)
    }
}
