//! The direction of a flow from a local connection to the session: raw bytes, or streams
//! (docs/format.md, section 21.5). No I/O, no clock.
//!
//! A direction begins raw: a short exchange costs no stream. Whoever writes more than `PLAIN_MAX`
//! gets a stream, with a history; when it has been quiet for `REST_AFTER_NS` the stream ends, so that
//! an idle flow holds next to nothing. Encrypted bytes stay raw.

use std::cell::RefCell;
use std::fmt::Write;
use std::rc::Rc;

use narrows::block::Block;
use narrows::flow::{Budget, Encoding, Share};
use narrows::pool::Queue;
use narrows::sender::{Done, LinkSample};
use narrows::transport::Outbox;
use narrows_host::encrypted::FirstBytes;
use narrows_watch::account::Account;

use super::engine::{self, Engine, Key};
use super::limits::QUEUE_MAX;
use super::marks::{Marks, Progress};
use super::session::{FlowId, Session};

/// Bytes that go raw before a stream begins. A stream has 74 bytes beside its frames, and short texts
/// without any history hardly shrink.
const PLAIN_MAX: usize = 1 << 10;
/// Time without bytes after which a stream ends: pauses of people and of polls are shorter.
pub(super) const REST_AFTER_NS: u64 = 5_000_000_000;
/// Time between attempts to end a stream that cannot rest yet.
const REST_AGAIN_NS: u64 = 1_000_000_000;
/// Shortest time between two looks at the carrier.
const LOOK_AGAIN_MIN_NS: u64 = 50_000;
/// Raw bytes that a direction may hold: what its link takes in 70 ms, within these bounds. People take
/// answers under 0.1 s for immediate; the least is two blocks, the most keeps workers busy on links
/// of 1 Gbit/s.
const HOLD_S: f64 = 0.07;
const HOLD_MIN: usize = 64 << 10;
const HOLD_MAX: usize = 4 << 20;
/// Less room than this, or than a block, is not worth a read.
const ROOM_MIN: usize = 64 << 10;
/// A block is at most this share of what may be held: the receiver has nothing of it before it has
/// all of it.
const BLOCK_SHARE: usize = 4;
/// Data that shrinks more than this is runs of one byte.
const RATIO_MAX: f64 = 16.0;
/// Trace of a flow that waits to be fetched, in bytes; it is fetched after every turn.
const TRACE_MAX: usize = 256 << 10;

/// State of the direction.
#[derive(Default)]
pub(super) struct Outgoing {
    stream: Option<Box<Stream>>,
    /// Bytes that went raw since the last stream, or since the last rest.
    plain: usize,
    /// The next bytes go raw even if there are many: they part two streams.
    parts: bool,
    first: FirstBytes,
    /// Bytes of the local connection so far.
    pub(super) bytes: u64,
    /// Bytes that the session was given for them.
    pub(super) wire: u64,
    carrier: u8,
    /// While it holds anything.
    share: Option<Share>,
    /// What its streams did that are over.
    past: Option<Box<Account>>,
    /// Lines of its trace, while it is traced.
    trace: Option<Box<Trace>>,
}

/// Lines that wait to be fetched. Boxed: hardly any flow is traced.
#[derive(Default)]
struct Trace(String);

struct Stream {
    encoding: Encoding,
    queue: Queue,
    marks: Marks,
    /// Start of the sender's clock.
    begun_ns: u64,
    /// When the last raw bytes came.
    fed_ns: u64,
    /// The last look at the carrier, on the sender's clock.
    looked_ns: u64,
    /// Bytes that were queued before the stream began: the carrier takes them first.
    foreign: usize,
    compresses: bool,
    closing: bool,
    /// Where it tells what it did when it is over.
    account: Rc<RefCell<Account>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.account.borrow_mut().add(self.encoding.summary());
    }
}

/// What a direction works with.
pub(super) struct Context<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) session: &'a mut Session,
    pub(super) flow: FlowId,
    pub(super) key: Key,
    pub(super) now_ns: u64,
}

impl Outgoing {
    /// Bytes that may be read from the local connection now.
    pub(super) fn room(&self, session: &Session, flow: FlowId, engine: &Engine) -> usize {
        let memory_max = self.share.as_ref().map_or_else(|| engine.compression.memory.max_for(0), Share::memory_max);
        let Some(stream) = &self.stream else {
            let room = session.room(flow).min(memory_max.saturating_sub(session.queued(flow)));
            return room.min(session.raw_room(flow));
        };
        if stream.closing {
            return 0;
        }
        let may_hold = stream.may_hold().min(memory_max);
        let room = stream.encoding.room().min(may_hold.saturating_sub(stream.held(session, flow)));
        let room = room.min(session.raw_room(flow));
        let crumb = ROOM_MIN.min(stream.encoding.segment_len()).min(may_hold / BLOCK_SHARE);
        if room < crumb { 0 } else { room }
    }

    pub(super) fn has_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Length for the next read of bulk: a block, or what a session queues of raw bytes.
    pub(super) fn read_len(&self) -> usize {
        self.stream.as_ref().map_or(QUEUE_MAX, |s| s.encoding.segment_len())
    }

    /// Takes bytes of the local connection; not while there is no room.
    pub(super) fn push(&mut self, mut bytes: Block, context: &mut Context<'_>) {
        self.bytes += bytes.len() as u64;
        context.session.took_raw(context.flow, bytes.len(), context.now_ns);
        self.first.look(&bytes);
        if let Some(stream) = self.stream.as_mut().filter(|s| s.compresses && self.first.are_encrypted()) {
            // It began plain (STARTTLS).
            stream.compresses = false;
            stream.encoding.give_up();
        }
        if self.stream.is_none() {
            let plain = if self.first.are_encrypted() || self.plain + bytes.len() <= PLAIN_MAX {
                bytes.len()
            } else if std::mem::take(&mut self.parts) {
                bytes.len().min(PLAIN_MAX)
            } else {
                0
            };
            if plain > 0 {
                self.parts = false;
                self.plain = self.plain.saturating_add(plain);
                self.trace_raw(plain);
                self.give(bytes.split_to(plain), false, context);
            }
            if bytes.is_empty() {
                return self.count(context);
            }
            let mut stream = Stream::new(context);
            stream.encoding.set_trace(self.trace.is_some());
            self.stream = Some(Box::new(stream));
        }
        if let Some(stream) = &mut self.stream {
            stream.push(bytes, context);
        }
        self.fill(context);
    }

    fn give(&mut self, bytes: Block, coded: bool, context: &mut Context<'_>) {
        self.wire += bytes.len() as u64;
        context.session.send(context.flow, bytes, coded);
    }

    /// Gives the session frames that are ready, a few at a time, so that methods are chosen late.
    fn fill(&mut self, context: &mut Context<'_>) {
        while let Some(stream) = &mut self.stream {
            let len = Outbox::write_len(stream.encoding.summary().rate_bytes_per_s);
            if context.session.queued(context.flow) >= len {
                break;
            }
            let Some(frame) = stream.encoding.poll_transmit() else { break };
            self.give(Block::from_vec(frame.header.to_vec()), true, context);
            self.give(frame.body, true, context);
        }
        if self.end_if_drained() {
            context.engine.stream_ended();
        }
        self.count(context);
    }

    /// Records the memory that it holds.
    fn count(&mut self, context: &Context<'_>) {
        let queued = context.session.queued(context.flow);
        let held = self.stream.as_ref().map_or(queued, |s| s.held(context.session, context.flow));
        if held == 0 && self.stream.is_none() {
            self.share = None;
        } else {
            self.share.get_or_insert_with(|| context.engine.compression.memory.share()).count(held);
        }
    }

    fn end_if_drained(&mut self) -> bool {
        let ends = self.stream.as_ref().is_some_and(|s| s.closing && s.encoding.jobs() == 0 && s.encoding.is_drained());
        if ends {
            if let Some(stream) = self.stream.take() {
                self.past.get_or_insert_default().add(stream.encoding.summary());
                self.keep_trace(stream);
            }
            (self.plain, self.parts) = (0, true);
        }
        ends
    }

    fn close_stream(&mut self, context: &mut Context<'_>) {
        if let Some(stream) = self.stream.as_mut().filter(|s| !s.closing) {
            stream.closing = true;
            let now_ns = stream.now_ns(context.now_ns);
            stream.encoding.close(now_ns);
            stream.work(Budget::BULK, context);
        }
        self.fill(context);
    }

    /// The local connection has ended. True once the session has everything.
    pub(super) fn finish(&mut self, context: &mut Context<'_>) -> bool {
        self.close_stream(context);
        self.stream.is_none()
    }

    /// A worker has encoded a block.
    pub(super) fn encoded(&mut self, done: Done, context: &mut Context<'_>) {
        if let Some(stream) = &mut self.stream {
            let now_ns = stream.now_ns(context.now_ns);
            stream.encoding.finish(done, now_ns);
            stream.work(Budget::BULK, context);
        }
        self.fill(context);
    }

    /// The carrier has taken `len` bytes of this flow, or was looked at.
    pub(super) fn on_carrier(&mut self, len: usize, carrier: u8, look: &Look, context: &mut Context<'_>) {
        let moved = std::mem::replace(&mut self.carrier, carrier) != carrier;
        if let Some(stream) = &mut self.stream {
            if moved {
                stream.marks.restart();
            }
            stream.on_carrier(len, look, context);
            stream.work(Budget::LONE, context);
        }
        self.fill(context);
    }

    /// When [`Outgoing::on_time`] is due. `waits`: bytes of the flow wait for a carrier or for credit,
    /// of which an event will tell.
    pub(super) fn next_wakeup_ns(&self, waits: bool) -> Option<u64> {
        let stream = self.stream.as_ref()?;
        let rest_ns = (stream.fed_ns + REST_AFTER_NS).max(stream.begun_ns + stream.looked_ns + REST_AGAIN_NS);
        let look_ns =
            stream.encoding.next_wakeup().map(|at| stream.look_again_ns().max(at.saturating_add(stream.begun_ns)));
        let rest_ns = (!stream.closing).then_some(rest_ns);
        rest_ns.into_iter().chain(look_ns.filter(|_| !waits)).min()
    }

    /// The time of [`Outgoing::next_wakeup_ns`] has come.
    pub(super) fn on_time(&mut self, carrier: u8, look: &Look, context: &mut Context<'_>) {
        self.on_carrier(0, carrier, look, context);
        let Some(stream) = &mut self.stream else { return };
        let now_ns = stream.now_ns(context.now_ns);
        let late = {
            let mut workers = context.engine.workers(&stream.queue, context.key, engine::Result::Encoded);
            stream.encoding.rescue(|| now_ns, Budget::RESCUE, &mut workers)
        };
        if late {
            stream.work(Budget::LONE, context);
        }
        if context.now_ns >= stream.fed_ns + REST_AFTER_NS && stream.held(context.session, context.flow) == 0 {
            return self.close_stream(context);
        }
        self.fill(context);
    }
}

// --- for whoever watches ---

impl Outgoing {
    /// Forgets what was not sent, since the flow is over. What it did so far stays known.
    pub(super) fn abandon(&mut self) {
        if let Some(stream) = self.stream.take() {
            self.past.get_or_insert_default().add(stream.encoding.summary());
        }
        let Self { past, bytes, wire, .. } = std::mem::take(self);
        *self = Self { past, bytes, wire, ..Self::default() };
    }

    /// What its streams did so far.
    pub(super) fn account(&self) -> Account {
        let mut account = self.past.as_deref().cloned().unwrap_or_default();
        self.stream.iter().for_each(|stream| account.add(stream.encoding.summary()));
        account
    }

    /// What a live stream did, of which the engine's account does not know yet.
    pub(super) fn live(&self) -> Option<&narrows::sender::Summary> {
        self.stream.as_ref().map(|stream| stream.encoding.summary())
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.first.are_encrypted()
    }

    /// Records every decision from here on, or stops to.
    pub(super) fn set_trace(&mut self, on: bool) {
        self.trace = on.then(Box::default);
        if let Some(stream) = &mut self.stream {
            stream.encoding.set_trace(on);
        }
    }

    /// Lines of the trace since the last call.
    pub(super) fn take_trace(&mut self) -> String {
        let Some(trace) = &mut self.trace else { return String::new() };
        let mut lines = std::mem::take(&mut trace.0);
        if let Some(stream) = &mut self.stream {
            lines += &stream.encoding.take_trace();
        }
        lines
    }

    fn trace_raw(&mut self, len: usize) {
        let why = if self.first.are_encrypted() { "encrypted" } else { "short" };
        if let Some(trace) = self.trace.as_mut().filter(|trace| trace.0.len() < TRACE_MAX) {
            let _ = writeln!(trace.0, "{{\"event\":\"raw\",\"raw_len\":{len},\"why\":\"{why}\"}}");
        }
    }

    fn keep_trace(&mut self, mut stream: Box<Stream>) {
        if let Some(trace) = self.trace.as_mut().filter(|trace| trace.0.len() < TRACE_MAX) {
            trace.0 += &stream.encoding.take_trace();
        }
    }
}

/// A look at the carrier of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Look {
    pub(super) progress: Progress,
    pub(super) begin_ns: u64,
    pub(super) delivery_bytes_per_s: Option<u64>,
    pub(super) rtt_ns: Option<u64>,
}

impl Stream {
    fn new(context: &Context<'_>) -> Self {
        let engine = &*context.engine;
        Self {
            encoding: engine.compression.send_options(false).encoding(&engine.buffers),
            queue: engine.compression.encoders(engine.on_panic(context.key)),
            marks: Marks::default(),
            begun_ns: context.now_ns,
            fed_ns: context.now_ns,
            looked_ns: 0,
            foreign: context.session.queued(context.flow),
            compresses: true,
            closing: false,
            account: engine.account(),
        }
    }

    fn now_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.begun_ns)
    }

    /// The earliest time of the next look.
    fn look_again_ns(&self) -> u64 {
        self.begun_ns + self.looked_ns + LOOK_AGAIN_MIN_NS
    }

    /// Bytes that no carrier has taken.
    fn held(&self, session: &Session, flow: FlowId) -> usize {
        self.encoding.pending() as usize + session.queued(flow)
    }

    fn may_hold(&self) -> usize {
        let summary = self.encoding.summary();
        let ratio = if summary.wire_bytes > 0 { summary.ratio().clamp(1.0, RATIO_MAX) } else { 1.0 };
        let by_rate = (summary.rate_bytes_per_s * ratio * HOLD_S) as usize;
        let by_rate = if summary.rate_bytes_per_s == 0.0 { HOLD_MAX } else { by_rate };
        by_rate.clamp(HOLD_MIN, HOLD_MAX)
    }

    fn push(&mut self, bytes: Block, context: &mut Context<'_>) {
        self.fed_ns = context.now_ns;
        let (now_ns, budget) = (self.now_ns(context.now_ns), Budget::for_piece(bytes.len()));
        self.encoding.push(bytes, now_ns);
        self.work(budget, context);
    }

    fn work(&mut self, budget: Budget, context: &mut Context<'_>) {
        let now_ns = self.now_ns(context.now_ns);
        let mut workers = context.engine.workers(&self.queue, context.key, engine::Result::Encoded);
        self.encoding.work(|| now_ns, budget, &mut workers);
    }

    fn on_carrier(&mut self, len: usize, look: &Look, context: &Context<'_>) {
        let foreign = len.min(self.foreign);
        self.foreign -= foreign;
        let len = len - foreign;
        let (unsent_before, _) = self.marks.look(&look.progress);
        if len > 0 {
            self.marks.add(len, look.progress.given);
        }
        let (unsent_after, unacked) = self.marks.look(&look.progress);
        let end_ns = self.now_ns(context.now_ns);
        let begin_ns = self.now_ns(look.begin_ns).min(end_ns);
        self.looked_ns = end_ns;
        self.encoding.on_link(LinkSample {
            begin_ns,
            end_ns,
            unsent_before,
            unsent_after,
            accepted: len as u64,
            busy_ns: None,
            unacked: look.progress.acked.map(|_| unacked),
            delivery_bytes_per_s: look.delivery_bytes_per_s,
            rtt_ns: look.rtt_ns,
        });
        let block_max = self.may_hold().min(context.session.raw_window(context.flow)) / BLOCK_SHARE;
        self.encoding.limit_blocks(block_max);
    }
}

#[cfg(test)]
mod tests;
