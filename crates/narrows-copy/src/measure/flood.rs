//! Data in one direction for a time: the sending and the receiving half, the same at both ends.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use narrows::stream::thread_cpu_ns;

use super::rate::Series;
use super::talk::{DATA_MAX, Frame, Talk};
use crate::error::{Error, Result};

/// Bytes on the way at the beginning, and never fewer: at 64 kbit/s two seconds.
const WINDOW_MIN: f64 = 16e3;
/// Most bytes on the way: a second at 2 Gbit/s, or 10 Gbit/s over 200 ms.
const WINDOW_MAX: f64 = 256e6;
/// Beyond a round trip, as much may be on the way as the link moves in this time: enough for
/// acknowledgments that come late, and over soon.
const SLACK: Duration = Duration::from_millis(100);
/// Acknowledgments that are told apart: a tenth of the time between two that are due.
const APART: Duration = Duration::from_millis(1);
/// Longest round trip that the other end may claim: beyond it no link is measured in a minute.
pub(super) const RTT_MAX: Duration = Duration::from_secs(5);
/// Time after the last acknowledgment in which the next one is due; earlier if what came is a quarter of
/// all before, so that the window opens with round trips and not with this time.
const ACK_EVERY: Duration = Duration::from_millis(10);
const ACK_GROWTH: u64 = 4;
/// A wait in the loops below.
const MOMENT: Duration = Duration::from_millis(2);
/// Data that repeats after this length looks random to whatever compresses on the way.
const NOISE_LEN: usize = 1 << 20;
/// Shortest piece, so that heads are below a hundredth.
const PIECE_MIN: f64 = 1024.0;

/// One direction as seen by whoever sent.
pub(super) struct Sent {
    /// Arrivals at the other end, by its clock.
    pub(super) series: Series,
    /// Segments sent and sent again, if they are known.
    pub(super) segments: Option<(u64, u64)>,
    /// CPU nanoseconds for each byte, of this thread and of the one that received.
    pub(super) cpu_ns_per_byte: [f64; 2],
}

/// Bytes without any pattern.
pub(super) fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..NOISE_LEN / 8).flat_map(|_| draw().to_le_bytes()).collect()
}

/// Sends data for `time`, over a way whose shortest round trip is `rtt`.
pub(super) fn send(talk: &mut Talk<'_>, time: Duration, rtt: Duration) -> Result<Sent> {
    let (begun, cpu_begun, before) = (Instant::now(), thread_cpu_ns(), talk.segments());
    let noise = noise();
    let (mut sent, mut window, mut at) = (0u64, WINDOW_MIN, 0);
    let mut acked = Acked::default();
    let mut piece: Vec<u8> = Vec::with_capacity(DATA_MAX + 8);
    let mut written = 0;
    while begun.elapsed() < time || written < piece.len() {
        while let Some(frame) = talk.next(Duration::ZERO)? {
            window = acked.take(&frame, sent, window, rtt)?;
        }
        if written == piece.len() {
            let room = window - (sent - acked.bytes) as f64;
            if room < PIECE_MIN {
                if let Some(frame) = talk.next(MOMENT)? {
                    window = acked.take(&frame, sent, window, rtt)?;
                }
                continue;
            }
            let len = (room as usize).min(DATA_MAX);
            at = (at + len) % (NOISE_LEN - DATA_MAX);
            piece.clear();
            piece.extend(Frame::Data(len).encode());
            piece.extend_from_slice(&noise[at..at + len]);
            (written, sent) = (0, sent + len as u64);
        }
        written += talk.write_some(&piece[written..], MOMENT)?;
    }
    let cpu_ns = (thread_cpu_ns() - cpu_begun) as f64 / sent.max(1) as f64;
    let segments = before.zip(talk.segments()).map(|(a, b)| (b.0.saturating_sub(a.0), b.1.saturating_sub(a.1)));
    let told = segments.unwrap_or((u64::MAX, u64::MAX));
    talk.say(&Frame::End([sent, told.0, told.1]))?;
    while acked.bytes < sent {
        let frame = talk.expect()?;
        acked.take(&frame, sent, window, rtt)?;
    }
    let received_ns = 1e3 * acked.cpu_us as f64 / sent.max(1) as f64;
    Ok(Sent { series: acked.series, segments, cpu_ns_per_byte: [cpu_ns, received_ns] })
}

/// What the other end has acknowledged.
#[derive(Default)]
struct Acked {
    bytes: u64,
    us: u64,
    cpu_us: u64,
    series: Series,
    /// The latest ones, by this end's clock.
    recent: VecDeque<(Instant, u64)>,
}

impl Acked {
    /// Takes an acknowledgment; returns the new window.
    fn take(&mut self, frame: &Frame, sent: u64, window: f64, rtt: Duration) -> Result<f64> {
        let Frame::Ack([bytes, us, cpu_us]) = *frame else {
            return Err(Error::Protocol("the other end says something else than what it received".into()));
        };
        if bytes > sent || bytes <= self.bytes || us < self.us || us > super::LIMIT.as_micros() as u64 {
            return Err(Error::Protocol("the other end says that it received what was not sent".into()));
        }
        let (now, more) = (Instant::now(), bytes - self.bytes);
        (self.bytes, self.us, self.cpu_us) = (bytes, us, cpu_us.min(us.saturating_add(1_000_000)));
        self.series.push(us as f64 * 1e-6, bytes as f64);
        let follows = self.recent.len() > 1;
        match self.recent.back_mut().filter(|_| follows) {
            // One entry a moment, so that a peer that acknowledges every byte fills no memory.
            Some((at, last)) if now.duration_since(*at) < APART => *last = bytes,
            _ => self.recent.push_back((now, bytes)),
        }
        let span = SLACK.max(rtt);
        while self.recent.len() > 2 && now.duration_since(self.recent[1].0) > span {
            self.recent.pop_front();
        }
        let (from, before) = self.recent[0];
        let over = now.duration_since(from).max(ACK_EVERY);
        let rate = (bytes - before) as f64 / over.as_secs_f64();
        let enough = 2.0 * rate * (rtt + SLACK).as_secs_f64();
        // As a window of TCP that opens: by what arrived, up to what the link can use.
        Ok((window + more as f64).min(enough.max(WINDOW_MIN)).min(WINDOW_MAX))
    }
}

/// One direction as seen by whoever received.
pub(super) struct Received {
    pub(super) series: Series,
    pub(super) segments: Option<(u64, u64)>,
    pub(super) cpu_ns_per_byte: f64,
}

/// Receives data until its end, and acknowledges it. `first`: bytes that came already.
pub(super) fn receive(talk: &mut Talk<'_>, first: Option<usize>, within: Duration) -> Result<Received> {
    let called = Instant::now();
    let mut cpu_begun = thread_cpu_ns();
    let mut begun = first.map(|_| called);
    let (mut bytes, mut told, mut told_at) = (first.unwrap_or(0) as u64, 0, called);
    let mut series = Series::default();
    loop {
        if called.elapsed() > within {
            return Err(Error::Link("the other end goes on sending, or the link stands".into()));
        }
        let frame = match begun {
            None => Some(talk.expect()?),
            Some(_) => talk.next(ACK_EVERY)?,
        };
        let end = match frame {
            Some(Frame::Data(len)) => {
                if begun.is_none() {
                    (begun, cpu_begun) = (Some(Instant::now()), thread_cpu_ns());
                }
                bytes += len as u64;
                None
            }
            Some(Frame::End(end)) => Some(end),
            Some(Frame::Refusal(text)) => return Err(Error::Peer(format!("the other end refuses: {text}").into())),
            Some(_) => return Err(Error::Protocol("the other end sent something else than data".into())),
            None => None,
        };
        let is_due = bytes - told > told / ACK_GROWTH || told_at.elapsed() >= ACK_EVERY;
        // Each one says more than the last, so the sender knows which is the last of all.
        if bytes > told && (is_due || end.is_some()) {
            let us = begun.map_or(0, |begun| begun.elapsed().as_micros() as u64);
            series.push(us as f64 * 1e-6, bytes as f64);
            talk.say(&Frame::Ack([bytes, us, (thread_cpu_ns() - cpu_begun) / 1000]))?;
            (told, told_at) = (bytes, Instant::now());
        }
        if let Some([sent, all, again]) = end {
            if sent != bytes {
                return Err(Error::Protocol("the other end sent another number of bytes than it says".into()));
            }
            let cpu_ns_per_byte = (thread_cpu_ns() - cpu_begun) as f64 / bytes.max(1) as f64;
            let segments = (all != u64::MAX && again <= all).then_some((all, again));
            return Ok(Received { series, segments, cpu_ns_per_byte });
        }
    }
}
