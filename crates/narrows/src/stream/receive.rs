//! Receiving: the caller's thread reads the link, workers decode, and one more thread writes the
//! sink. Where the sink is a file that is faster than the link, the caller's thread writes it too.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{
    Bell, Control, DIRECT_MAX, FailOnPanic, LOOK_EVERY, PARALLEL_CORES, ReceiveOptions, Stall, decode, lock, notes,
    peer_gone,
};
use crate::block::{BlockMut, BufferPool};
use crate::codec::Contexts;
use crate::error::{Error, ErrorKind, Result};
use crate::flow::{Decoding, INLINE_NS};
use crate::pool::{Pool, Queue};
use crate::receiver::{DecodeJob, PartialBody, Receiver, ReceiverConfig, RecvSummary};
use crate::sys;
use crate::transport::{Link, ReadHalf};

mod back;
mod pace;
mod sink;

use back::Back;
use pace::Pace;

/// Maximum length of the buffers that the link is read into. A frame is copied only if it straddles
/// two buffers, which is rarer the longer they are.
const READ_LEN: usize = 256 << 10;
/// A read that fills this much shows a link that has more.
const LONG_LEN: usize = 64 << 10;
/// Initial buffer length. It doubles while reads fill the buffer, so that a quiet connection holds
/// little memory.
const READ_LEN_FIRST: usize = 16 << 10;
/// A due report waits at most this long for the current read.
const REPORT_MIN: Duration = Duration::from_millis(1);
/// How long the final confirmation may take to reach the sender, which would otherwise send
/// everything again. Longer than TCP takes to send it twice.
const CONFIRMED: Duration = Duration::from_secs(5);
/// How long a failing receiver waits for the sender to read the reason.
const LAST_WORD: Duration = Duration::from_millis(500);
/// Maximum bytes that wait for the sender to read them. The largest legitimate backlog is 16,384
/// answers, one for each file that may be unanswered, all of them failures with a text of 512
/// bytes. A server can hold this much for each copy.
const BACK_MAX: usize = 8 << 20;

/// Receives one stream into `sink`.
///
/// # Errors
/// The link or the sink fails, the bytes are not a valid stream, or the flow is stopped or stalls.
/// `sink` then has received only the beginning of the stream.
pub fn receive(sink: impl Write + Send + 'static, link: Link, options: ReceiveOptions) -> Result<RecvSummary> {
    receive_then(sink, link, options, || Ok(()))
}

/// Like [`receive`], but calls `commit` after the last byte is written and before the sender is
/// told that everything is stored: the place for fsync and rename.
///
/// # Errors
/// Those of [`receive`], and that of `commit`. The error is also sent to the peer.
pub fn receive_then(
    sink: impl Write + Send + 'static,
    link: Link,
    mut options: ReceiveOptions,
    commit: impl FnOnce() -> io::Result<()>,
) -> Result<RecvSummary> {
    let Link { write, read: Some(read) } = link else {
        return Err(Error::misuse("this link cannot be read"));
    };
    let buffers = BufferPool::default();
    let (notes, stall_timeout, control) = (options.notes.take(), options.stall_timeout, Arc::clone(&options.control));
    let (to_file, read_back) = (options.to_file, options.read_back.take());
    let config = ReceiverConfig { duplex: write.is_some(), ..options.into_engine() };
    let threads = config.cores;
    let pool = Pool::new(threads);
    let mut receiver = Receiver::new(config, buffers.clone());
    if let Some((stored, reach_max)) = read_back {
        receiver.read_back(stored, reach_max);
    }
    let flow = Arc::new_cyclic(|weak: &Weak<ReceiveDriver>| {
        let panicked = weak.clone();
        let queue = pool.flow(move || {
            if let Some(flow) = panicked.upgrade() {
                flow.fail(Error::misuse("a worker failed; this is a bug"));
            }
        });
        ReceiveDriver {
            me: weak.clone(),
            state: Mutex::new(State { receiver: Decoding::new(receiver), failure: None, failed: false, closed: false }),
            changed: Bell::default(),
            sink: Mutex::new(Box::new(sink)),
            sink_thread: Mutex::new(None),
            to_file,
            cores: threads,
            back: Mutex::new(write.map(|half| Back { half, pending: VecDeque::new(), gone: false })),
            queue,
            buffers,
            control: Arc::clone(&control),
            begun_ns: sys::monotonic_ns(),
            blocked_ns: AtomicU64::new(0),
        }
    });
    let seen = Arc::downgrade(&flow);
    let seen = move || seen.upgrade().map(|f| lock(&f.state).receiver.summary().clone());
    let _ = control.receive.now.set(Box::new(seen));
    let guard = Arc::clone(&flow);
    let _guard = FailOnPanic(move || {
        guard.fail(Error::misuse("writing the output failed; this is a bug"));
        guard.end();
        lock(&guard.back).take();
    });
    if let Some(notes) = &notes {
        notes.attach(Box::new(Arc::downgrade(&flow)));
    }
    let mut read = read;
    let result = flow.run(&mut read, stall_timeout, commit);
    flow.end();
    drop(pool);
    flow.say_goodbye(result.as_ref().err(), read);
    let summary = lock(&flow.state).receiver.summary().clone();
    let _ = control.receive.last.set(summary.clone());
    let sink_ns = flow.blocked_ns.load(Ordering::Relaxed);
    result.map(|commit_ns| RecvSummary { sink_ns, commit_ns, ..summary })
}

struct ReceiveDriver {
    me: Weak<Self>,
    state: Mutex<State>,
    /// Signals that raw data is ready, that there is room, or that the flow has failed.
    changed: Bell,
    /// Locked before `state` where both are needed.
    sink: Mutex<Box<dyn Write + Send>>,
    /// The thread that writes the sink, once there is something that the reading thread leaves to it.
    sink_thread: Mutex<Option<JoinHandle<()>>>,
    to_file: bool,
    cores: usize,
    /// The reverse direction, if there is one. Locked after `sink` and before `state`.
    back: Mutex<Option<Back>>,
    queue: Queue,
    buffers: BufferPool,
    control: Arc<Control>,
    begun_ns: u64,
    /// Time spent writing the sink, for the reports.
    blocked_ns: AtomicU64,
}

struct State {
    receiver: Decoding,
    /// The first failure on any thread, until somebody returns it.
    failure: Option<Error>,
    failed: bool,
    /// Nothing more will be decoded; the sink thread ends when all is written.
    closed: bool,
}

impl ReceiveDriver {
    /// Returns how long the commit took.
    fn run(
        self: &Arc<Self>,
        read: &mut ReadHalf,
        limit: Option<Duration>,
        commit: impl FnOnce() -> io::Result<()>,
    ) -> Result<u64> {
        let mut result = self.read_link(read, limit).and_then(|()| self.await_sink());
        if let (Err(_), Some(first)) = (&result, lock(&self.state).failure.take()) {
            result = Err(first);
        }
        if result.as_ref().is_err_and(is_of_stream) {
            self.drain();
        }
        self.end();
        if result.is_ok() {
            // Joined only when it has nothing left to do: a sink may block forever.
            if let Some(sink) = lock(&self.sink_thread).take() {
                let _ = sink.join();
            }
            result = self.check();
        }
        result?;
        let begin = sys::monotonic_ns();
        commit().map_err(|e| sink_error(e, "cannot store the output"))?;
        Ok(sys::monotonic_ns() - begin)
    }

    fn end(&self) {
        lock(&self.state).closed = true;
        self.changed.ring();
        self.queue.clear();
    }

    fn fail(&self, error: Error) {
        let mut state = lock(&self.state);
        state.failed = true;
        state.failure.get_or_insert(error);
        drop(state);
        self.changed.ring();
    }

    fn check(&self) -> Result<()> {
        self.control.check()?;
        let mut state = lock(&self.state);
        match state.failure.take() {
            Some(failure) => Err(failure),
            None if state.failed => Err(Error::misuse("the flow has failed")),
            None => Ok(()),
        }
    }

    fn now_ns(&self) -> u64 {
        sys::monotonic_ns() - self.begun_ns
    }

    // --- link ---

    fn read_link(&self, read: &mut ReadHalf, limit: Option<Duration>) -> Result<()> {
        let mut stall = Stall::new(limit);
        let mut contexts = Contexts::default();
        let mut len = READ_LEN_FIRST;
        let mut pace = Pace::default();
        loop {
            self.check()?;
            self.report();
            if !self.await_room() {
                stall.progress();
                continue;
            }
            if self.resume(&mut contexts)? {
                continue;
            }
            if self.is_over()? {
                return Ok(());
            }
            // The rest of a long body goes where it belongs; other bytes are read ahead.
            let mut body = lock(&self.state).receiver.take_body();
            let mut buffer = if body.is_none() { self.buffers.get(len) } else { BlockMut::default() };
            let room = body.as_mut().map_or_else(|| &mut buffer.bytes_mut()[..len], PartialBody::rest);
            let room_len = room.len();
            let n = match read.read(room, self.until_report()) {
                Ok(n) => n,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => None,
                Err(e) if peer_gone(&e) => Some(0),
                Err(e) => return Err(sink_error(e, "cannot read the link")),
            };
            let direct = body.is_some();
            let mut state = lock(&self.state);
            if let Some(body) = body {
                state.receiver.put_body(body, n.unwrap_or(0))?;
            }
            let Some(n) = n else {
                drop(state);
                stall.check("nothing comes from the sender")?;
                continue;
            };
            stall.progress();
            if n == 0 {
                return state.receiver.close();
            }
            if !direct {
                let block = buffer.freeze(n);
                self.buffers.recycle(&block);
                state.receiver.receive(block)?;
            }
            self.decode(state, &mut contexts)?;
            // A link that has no more bytes does not wait for this thread while it writes; the first
            // buffers are too short to tell. With few cores one thread would wait for the other.
            let here =
                n <= DIRECT_MAX || self.to_file && (n < room_len || room_len < LONG_LEN || self.cores < PARALLEL_CORES);
            let written = here && self.write_directly()?;
            if !written || lock(&self.state).receiver.is_decoding() {
                self.start_sink()?;
            }
            if !written {
                self.changed.ring();
            }
            if direct {
                // As little as possible of the next body is to be copied.
                len = READ_LEN_FIRST;
            } else if n == room_len {
                len = (2 * len).min(READ_LEN);
            }
            let fast = pace.is_fast(n, sys::monotonic_ns());
            if fast && n < room_len && self.cores < PARALLEL_CORES && read.fills_alone() {
                std::thread::sleep(Pace::PAUSE);
            }
        }
    }

    /// Whether the stream has ended on a link that is not read to its own end: a duplex link, which
    /// the sender keeps open until it hears that everything is stored, or for another reason. (On a
    /// one-way link nothing may follow the end of the stream.)
    fn is_over(&self) -> Result<bool> {
        let duplex = lock(&self.back).is_some();
        let mut state = lock(&self.state);
        let over = state.receiver.is_over() || duplex && state.receiver.has_end();
        if over {
            state.receiver.close()?;
        }
        Ok(over)
    }

    /// Parses bytes that arrived earlier and found no room. Returns whether there were any.
    fn resume(&self, contexts: &mut Contexts) -> Result<bool> {
        let mut state = lock(&self.state);
        if !state.receiver.has_unparsed() {
            return Ok(false);
        }
        state.receiver.resume()?;
        self.decode(state, contexts)?;
        self.start_sink()?;
        self.changed.ring();
        Ok(true)
    }

    /// Waits at most [`LOOK_EVERY`] for room. Returns whether there is any.
    fn await_room(&self) -> bool {
        let state = lock(&self.state);
        if state.receiver.room() > 0 {
            return true;
        }
        let (state, _) = self.changed.wait(state, LOOK_EVERY);
        state.receiver.room() > 0
    }

    /// How long a read may wait: until the next report is due, since a sender that waits for the
    /// report sends nothing.
    fn until_report(&self) -> Duration {
        let due_ns = lock(&self.state).receiver.next_report_ns();
        let left_ns = due_ns.map(|t| t.saturating_sub(self.now_ns()));
        left_ns.map_or(LOOK_EVERY, |ns| Duration::from_nanos(ns).clamp(REPORT_MIN, LOOK_EVERY))
    }

    fn report(&self) {
        let mut back = lock(&self.back);
        let Some(back) = &mut *back else { return };
        if back.pending.is_empty() {
            let blocked_ns = self.blocked_ns.load(Ordering::Relaxed);
            if let Some(bytes) = lock(&self.state).receiver.poll_feedback(self.now_ns(), blocked_ns) {
                back.pending = bytes.into();
            }
        }
        back.push();
    }

    fn say(&self, words: &[u8]) {
        let mut back = lock(&self.back);
        let Some(back) = &mut *back else { return };
        if back.pending.len() + words.len() > BACK_MAX {
            return self.fail(Error::limit("the sender does not read the answers to what it sends"));
        }
        let bytes = lock(&self.state).receiver.note(words);
        back.pending.extend(bytes);
        back.push();
    }

    fn settle(&self, waiting_max: u64) -> bool {
        loop {
            let mut back = lock(&self.back);
            let Some(back) = &mut *back else { return false };
            if back.waiting() > waiting_max {
                back.push();
            }
            if back.gone || back.waiting() <= waiting_max {
                return !back.gone;
            }
            if self.control.check().is_err() || back.half.wait_writable(LOOK_EVERY).is_err() {
                return false;
            }
        }
    }

    fn say_goodbye(&self, failure: Option<&Error>, mut read: ReadHalf) {
        // Taken out of the flow: a sink that blocks forever may keep the flow alive, and the sender
        // must see the end.
        let Some(mut back) = lock(&self.back).take() else { return };
        let text = failure.map(ToString::to_string);
        let bytes = lock(&self.state).receiver.close_message(text.as_deref());
        back.pending.extend(bytes);
        let patience = if failure.is_some() { LAST_WORD } else { CONFIRMED };
        back.finish(patience);
        // After a failure the sender may still be sending: reads and discards that until it closes
        // the connection.
        read.discard(Instant::now() + patience, &mut [0; READ_LEN_FIRST]);
    }

    // --- jobs ---

    /// Decodes the parsed blocks: `store` (only its check is compared) and a single short job on
    /// this thread, the others on the pool.
    fn decode<'a>(&'a self, mut state: MutexGuard<'a, State>, contexts: &mut Contexts) -> Result<()> {
        let mut waiting: Vec<DecodeJob> = Vec::new();
        while let Some(job) = state.receiver.next_job() {
            if !job.is_stored() {
                waiting.push(job);
                continue;
            }
            drop(state);
            let done = decode(job, contexts, &self.buffers);
            state = lock(&self.state);
            if let Err(e) = state.receiver.finish(done) {
                drop(state);
                // The blocks before the damage are still delivered, so what was taken is decoded.
                waiting.into_iter().for_each(|job| self.submit(job));
                return Err(e);
            }
        }
        drop(state);
        if let [job] = &waiting[..]
            && job.estimate_ns < INLINE_NS
        {
            let done = waiting.pop().map(|job| decode(job, contexts, &self.buffers));
            let mut state = lock(&self.state);
            if let Some(done) = done {
                state.receiver.finish(done)?;
            }
            return self.decode(state, contexts);
        }
        for job in waiting {
            self.submit(job);
        }
        Ok(())
    }

    fn submit(&self, job: DecodeJob) {
        let Some(flow) = self.me.upgrade() else { return };
        let task = Box::new(move |contexts: &mut Contexts| flow.work_on(job, contexts));
        if let Err(task) = self.queue.submit(task) {
            // The queue has more room than the engine hands out jobs at a time; should it ever be
            // full, the block must not be lost.
            task(&mut Contexts::default());
        }
    }

    /// Runs jobs on a worker until the engine has none left.
    fn work_on(self: Arc<Self>, first: DecodeJob, contexts: &mut Contexts) {
        let mut next = Some(first);
        while let Some(job) = next.take() {
            let done = decode(job, contexts, &self.buffers);
            let mut state = lock(&self.state);
            if state.closed || state.failed {
                return;
            }
            if let Err(e) = state.receiver.finish(done) {
                // Stored before the lock is released: a later call of the engine reports only that
                // it has failed already.
                state.failure.get_or_insert(e);
            }
            let mut more = jobs(&mut state.receiver);
            drop(state);
            self.changed.ring();
            next = more.pop();
            more.into_iter().for_each(|job| self.submit(job));
        }
    }
}

/// All jobs that there are.
fn jobs(receiver: &mut Decoding) -> Vec<DecodeJob> {
    std::iter::from_fn(|| receiver.next_job()).collect()
}

/// Whether the received bytes are at fault, and not this host.
fn is_of_stream(error: &Error) -> bool {
    use ErrorKind::{Corrupt, Limit, Truncated, Unsupported};
    matches!(error.kind, Corrupt | Truncated | Unsupported | Limit)
}

impl notes::Back for Weak<ReceiveDriver> {
    fn say(&self, words: &[u8]) {
        if let Some(flow) = self.upgrade() {
            flow.say(words);
        }
    }

    fn settle(&self, waiting_max: u64) -> bool {
        self.upgrade().is_some_and(|flow| flow.settle(waiting_max))
    }
}

fn sink_error(e: io::Error, what: &str) -> Error {
    Error { source: Some(e), ..Error::new(ErrorKind::Io, what) }
}
