//! The sending engine of one comm: which bytes go plain and which through a flow, and the flow's
//! driver.
//!
//! A flow adapts block by block. Where its policy stores every block, the link is faster than any
//! method makes bytes, or they do not shrink: then the next bytes go plain, outside of frames and at
//! no cost, for a time that doubles until a block is worth encoding again.
//!
//! The policy sees this end only. Where both ends share cores with each other and with the tasks of
//! Dask, encoding slows the receiver, and a slow receiver looks like a slow link. So plain and encoded
//! segments race: what crosses faster goes on, and the other one is tried again now and then
//! ([`Learned`]).

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use narrows::block::{Block, BufferPool};
use narrows::codec::{Contexts, Method};
use narrows::flow::{Budget, Encoding};
use narrows::policy::PolicySpec;
use narrows::pool::Queue;
use narrows::sender::{Done, LinkSample, Summary};
use narrows::stream::{self, Alone, SendOptions, Told, Workers};
use narrows::transport::{Meter, Outbox};
use narrows::{Error, Result};

use super::learned::Learned;
use super::pools;
use super::wire::{self, Kind};
use crate::sys::{self, Event};

/// Longest piece pushed at a time; a block that spans two pieces is joined, which is a copy.
const PIECE: usize = 2 << 20;
/// Bytes taken out of the sender at a time: one large vectored write.
const BATCH: usize = 256 << 10;
/// Most slices of one write.
const SLICES: usize = 64;
/// Plain segments of less leave the kernel's limit as it is: setting it twice takes as long.
const HELD_FROM: u64 = 256 << 10;
/// Longest wait without a look at the flow: all that it waits for wakes it.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// A message on its way out.
pub(super) struct Message {
    /// Framing that precedes the next raw bytes.
    lead: Vec<u8>,
    raw: VecDeque<Block>,
    /// Raw bytes that belong to no segment yet.
    left: u64,
    /// Raw bytes of the plain segment that is open.
    plain: u64,
}

impl Message {
    pub(super) fn new(frame_lens: &[usize], raw: VecDeque<Block>) -> Self {
        Self { lead: wire::head(frame_lens), raw, left: frame_lens.iter().map(|len| *len as u64).sum(), plain: 0 }
    }

    /// The preface of the connection, before the first message.
    pub(super) fn begin(&mut self) {
        self.lead.splice(0..0, wire::preface());
    }

    pub(super) fn is_done(&self) -> bool {
        self.lead.is_empty() && self.left == 0 && self.plain == 0
    }

    fn open(&mut self, kind: Kind, len: u64) {
        self.lead.extend_from_slice(&wire::segment(kind, len));
        self.left -= len;
        if kind == Kind::Plain {
            self.plain = len;
        }
    }

    /// What can be written plain now.
    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(1 + self.raw.len().min(SLICES));
        if !self.lead.is_empty() {
            slices.push(IoSlice::new(&self.lead));
        }
        let mut left = usize::try_from(self.plain).unwrap_or(usize::MAX);
        for block in &self.raw {
            if left == 0 || slices.len() >= SLICES {
                break;
            }
            let len = block.len().min(left);
            slices.push(IoSlice::new(&block[..len]));
            left -= len;
        }
        slices
    }

    fn written(&mut self, mut len: usize) {
        let lead = len.min(self.lead.len());
        self.lead.drain(..lead);
        len -= lead;
        self.plain -= len as u64;
        while len > 0 {
            len -= self.take(len).len();
        }
    }

    /// The next raw bytes of one piece, at most `len`.
    fn take(&mut self, len: usize) -> Block {
        let Some(front) = self.raw.front_mut() else { return Block::default() };
        let block = front.split_to(len.min(front.len()));
        if front.is_empty() {
            self.raw.pop_front();
        }
        block
    }
}

/// What one thread at a time does to send.
pub(super) struct Engine {
    policy: PolicySpec,
    buffers: BufferPool,
    meter: Meter,
    begun: Instant,
    /// Made for the first message that is not small.
    flow: Option<Flow>,
    learned: Learned,
    plain_bytes: u64,
    pub(super) limit_to_plain: bool,
}

struct Flow {
    encoding: Encoding,
    contexts: Contexts,
    queue: Queue,
    finished: Arc<Finished>,
}

/// Jobs that workers have finished.
struct Finished {
    jobs: Mutex<Option<Vec<Done>>>,
    event: Event,
}

impl Finished {
    fn put(&self, done: Done) {
        if let Some(jobs) = &mut *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            jobs.push(done);
        }
        self.event.set();
    }

    fn fail(&self) {
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.event.set();
    }

    fn take(&self) -> Result<Vec<Done>> {
        self.event.clear();
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.as_mut().map(std::mem::take).ok_or_else(|| Error::misuse("a worker failed; this is a bug"))
    }
}

impl Engine {
    /// `same_host`: the peer has the address of this host. Everything goes plain then: no codec is as
    /// fast as memory, and both ends share the cores.
    pub(super) fn new(policy: PolicySpec, same_host: bool, learned: Learned) -> Self {
        Self {
            policy,
            buffers: BufferPool::default(),
            meter: Meter::new(same_host),
            begun: Instant::now(),
            flow: None,
            learned,
            plain_bytes: 0,
            limit_to_plain: same_host,
        }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// Whether a message begins plain, so that any thread may write it.
    pub(super) fn is_plain(&self, raw_len: u64) -> bool {
        self.limit_to_plain || self.learned.is_plain(raw_len)
    }

    pub(super) fn summary(&self) -> (u64, Summary) {
        (self.plain_bytes, self.flow.as_ref().map(|f| f.encoding.summary().clone()).unwrap_or_default())
    }

    /// Writes without waiting as much as fits of the plain segment that is open, or else of the next
    /// one. Returns whether the socket is full.
    pub(super) fn write_plain(&mut self, socket: &TcpStream, message: &mut Message) -> io::Result<bool> {
        if message.plain == 0 && message.left > 0 {
            let len = if self.limit_to_plain { message.left } else { self.learned.take_plain(message.left) };
            if len > 0 {
                if self.flow.is_some() && len >= HELD_FROM {
                    self.meter.hold_all(socket);
                }
                self.plain_bytes += len;
                message.open(Kind::Plain, len);
            }
        }
        while message.plain > 0 || message.left == 0 && !message.lead.is_empty() {
            let slices = message.slices();
            let asked: usize = slices.iter().map(|s| s.len()).sum();
            let unsent_before = match &self.flow {
                Some(_) => self.meter.look(socket, self.now_ns()).unsent_after,
                None => 0,
            };
            let begin_ns = self.now_ns();
            let taken = match (&mut &*socket).write_vectored(&slices) {
                Ok(n) => n,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
                Err(e) => return Err(e),
            };
            drop(slices);
            message.written(taken);
            self.observe(socket, begin_ns, unsent_before, taken);
            if taken < asked {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn observe(&mut self, socket: &TcpStream, begin_ns: u64, unsent_before: u64, taken: usize) {
        let end_ns = self.now_ns();
        let Some(flow) = &mut self.flow else { return };
        let look = self.meter.look(socket, end_ns);
        flow.encoding.pass(taken);
        flow.encoding.on_link(LinkSample { begin_ns, unsent_before, accepted: taken as u64, ..look });
    }

    /// Writes the rest of a message, waiting as long as that takes.
    pub(super) fn write_all(&mut self, socket: &TcpStream, message: &mut Message) -> Result<()> {
        while !message.is_done() {
            if message.plain > 0 || message.left == 0 || self.is_plain(message.left) {
                self.write_plain_segment(socket, message)?;
                continue;
            }
            let (len, tries) = self.learned.begin_flow(message.left);
            match self.write_flow(socket, message, len) {
                Ok(coded) => self.learned.end_flow(len, tries, coded, self.rate_bytes_per_s()),
                Err(e) => {
                    if tries {
                        self.learned.give_up();
                    }
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    fn write_plain_segment(&mut self, socket: &TcpStream, message: &mut Message) -> Result<()> {
        let (begun, before) = (Instant::now(), self.outstanding(socket));
        let left = message.left + message.plain;
        while self.write_plain(socket, message).map_err(link_error)? {
            sys::wait(socket.as_fd(), true, None, WAIT_MAX)?;
        }
        let accepted = (left - message.left - message.plain) as f64;
        let crossed = accepted + before - self.outstanding(socket);
        self.learned.plain_crossed(crossed, begun.elapsed());
        Ok(())
    }

    /// Bytes that the socket has taken and the peer has not acknowledged.
    fn outstanding(&mut self, socket: &TcpStream) -> f64 {
        if self.flow.is_none() {
            return 0.0;
        }
        let look = self.meter.look(socket, self.now_ns());
        look.unacked.unwrap_or(look.unsent_after) as f64
    }

    fn rate_bytes_per_s(&self) -> f64 {
        self.flow.as_ref().map_or(0.0, |f| f.encoding.summary().rate_bytes_per_s)
    }

    fn begin_flow(&self) -> Result<Flow> {
        let options = SendOptions::new(self.policy.clone()).gather_ns(0).threads(stream::encoders()).history(0);
        let finished = Arc::new(Finished { jobs: Mutex::new(Some(Vec::new())), event: Event::new()? });
        let seen = Arc::clone(&finished);
        Ok(Flow {
            encoding: options.encoding(&self.buffers),
            contexts: Contexts::default(),
            queue: pools::encoding().flow(move || seen.fail()),
            finished,
        })
    }

    /// Sends `len` raw bytes as frames. Returns whether any was encoded.
    fn write_flow(&mut self, socket: &TcpStream, message: &mut Message, mut len: u64) -> Result<bool> {
        if self.flow.is_none() {
            self.flow = Some(self.begin_flow()?);
        }
        let Some(mut flow) = self.flow.take() else { return Ok(false) };
        message.open(Kind::Flow, len);
        let mut outbox = Outbox::behind(&message.lead);
        message.lead.clear();
        let (raw_len, wire_before) = (len as f64, frame_bytes(flow.encoding.summary()));
        let before = coded_bytes(flow.encoding.summary());
        // The speed counts from the first write to the last one before the workers had nothing to do.
        let (mut first, mut last) = (None, None);
        loop {
            while len > 0 && flow.encoding.room() > 0 {
                let piece = message.take(usize::try_from(len).unwrap_or(PIECE).min(PIECE));
                len -= piece.len() as u64;
                flow.encoding.push(piece, self.now_ns());
            }
            if len == 0 {
                flow.encoding.flush();
            }
            self.take_jobs(&mut flow);
            for done in flow.finished.take()? {
                flow.encoding.finish(done, self.now_ns());
            }
            self.take_jobs(&mut flow);
            outbox.fill(&mut flow.encoding, BATCH);
            let mut full = false;
            if !outbox.is_empty() {
                let write_len = Outbox::write_len(flow.encoding.summary().rate_bytes_per_s);
                let begun = self.begun;
                let clock = || begun.elapsed().as_nanos() as u64;
                let sample = self.meter.write(socket, &mut outbox, write_len, clock).map_err(link_error)?;
                flow.encoding.on_link(sample);
                self.meter.set_rate(socket, flow.encoding.summary().rate_bytes_per_s);
                full = sample.accepted == 0;
                if !full {
                    let taken = flow.encoding.summary().accepted_bytes as f64;
                    let outstanding = sample.unacked.unwrap_or(sample.unsent_after) as f64;
                    let mark = (Instant::now(), taken - outstanding);
                    first.get_or_insert(mark);
                    if flow.encoding.jobs() > 0 {
                        last = Some(mark);
                    }
                    continue;
                }
            } else if len == 0 && !flow.encoding.has_work() {
                break;
            }
            self.await_change(socket, &mut flow, full)?;
        }
        let coded = coded_bytes(flow.encoding.summary()) > before;
        let wire = (frame_bytes(flow.encoding.summary()) - wire_before) as f64;
        self.flow = Some(flow);
        if let Some((first, last)) = first.zip(last).filter(|_| coded) {
            let crossed = last.1 - first.1;
            self.learned.flow_crossed(crossed, crossed * raw_len / wire.max(1.0), last.0 - first.0);
        }
        Ok(coded)
    }

    /// Waits for room in the socket, a finished job, or the time at which the sender wants to look at
    /// the link.
    fn await_change(&mut self, socket: &TcpStream, flow: &mut Flow, full: bool) -> Result<()> {
        let due_ns = flow.encoding.next_wakeup();
        let timeout = due_ns.map_or(WAIT_MAX, |t| Duration::from_nanos(t.saturating_sub(self.now_ns())));
        if !timeout.is_zero() {
            sys::wait(socket.as_fd(), full, Some(flow.finished.event.as_fd()), timeout.min(WAIT_MAX))?;
        }
        let now_ns = self.now_ns();
        if due_ns.is_some_and(|t| t <= now_ns) || flow.encoding.wants_look(now_ns) {
            flow.encoding.on_link(self.meter.look(socket, now_ns));
            let Flow { encoding, contexts, .. } = flow;
            encoding.rescue(|| self.now_ns(), Budget::ALL, &mut Alone { contexts, buffers: &self.buffers });
        }
        Ok(())
    }

    fn take_jobs(&self, flow: &mut Flow) {
        let Flow { encoding, contexts, queue, finished } = flow;
        encoding.work(|| self.now_ns(), Budget::SHORT, &mut workers(contexts, &self.buffers, queue, finished));
    }
}

/// Runs jobs on this thread, or on a pool.
fn workers<'a>(
    contexts: &'a mut Contexts,
    buffers: &'a BufferPool,
    queue: &'a Queue,
    finished: &'a Arc<Finished>,
) -> Workers<'a, impl FnMut() -> Told<Done>> {
    let tell = move || -> Told<Done> {
        let finished = Arc::clone(finished);
        Box::new(move |done| finished.put(done))
    };
    Workers { contexts, buffers, queue, tell }
}

/// Raw bytes that were sent encoded.
fn coded_bytes(summary: &Summary) -> u64 {
    summary.mix.iter().filter(|row| row.method != Method::STORE).map(|row| row.raw_bytes).sum()
}

/// Wire bytes of all frames.
fn frame_bytes(summary: &Summary) -> u64 {
    summary.mix.iter().map(|row| row.wire_bytes).sum()
}

fn link_error(e: io::Error) -> Error {
    Error::system("the connection cannot be written", e)
}
