//! Sending: one thread reads the source, workers encode, the caller's thread writes the link, and
//! on duplex links one more thread reads the reverse direction. Of a file the caller's thread does
//! all that as long as other threads would gain nothing.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::options::Later;
use super::repeats::Search;
use super::source::Reading;
use super::{
    Bell, BlockSource, Control, DIRECT_MAX, LOOK_EVERY, OnNote, PARALLEL_CORES, SendOptions, Stall, Timed, lock,
    peer_gone,
};
use crate::block::BufferPool;
use crate::codec::Contexts;
use crate::error::{Error, ErrorKind, Result};
use crate::flow::{Budget, Encoding, Next, Place};
use crate::policy::Policy;
use crate::pool::{Pool, Queue};
use crate::sender::{Job, LinkSample, Sender, SenderConfig, Summary};
use crate::sys;
use crate::transport::outbox::{BATCH_BYTES, Outbox, WRITE_MIN};
use crate::transport::{Link, ReadHalf, WriteHalf};

mod back;
mod near;

use near::Near;

/// A file of up to this length is read before anything is written.
const FIRST_BYTES: u64 = 64 << 10;
/// Interval between checks of a full link.
const FULL_LOOK: Duration = Duration::from_millis(5);
/// In bytes/s: enough for a pipe of the largest size.
const IN_MEMORY_RATE: f64 = 1e9;
/// Pause before the next write to a full pipe that is emptied at the speed of memory, on few cores:
/// the reader would wake this thread for every page. The pipe of such a link has 1 MiB, of which a
/// reader of 4 GB/s takes half meanwhile.
const FULL_PIPE: Duration = Duration::from_micros(100);
/// Interval between flush attempts while only the link itself holds unsent bytes.
const HELD_LOOK: Duration = Duration::from_millis(1);

/// Sends everything that `source` gives. On a duplex link it returns after the receiver has
/// confirmed that everything is stored. Returns the totals and the policy with what it has learned.
///
/// The link is used up. Of a socket the writing half is shut down at the end of the stream, which tells the
/// receiver that no more comes: another descriptor of the same socket cannot write either. Its options stay
/// as the flow set them: `TCP_NODELAY` and `TCP_NOTSENT_LOWAT` of a TCP socket.
///
/// # Errors
/// The link cannot be written, the source or the link fails, the receiver reports a failure, or the
/// flow is stopped or stalled.
pub fn send(
    source: impl Read + Send + 'static,
    link: Link,
    options: SendOptions,
) -> Result<(Summary, Box<dyn Policy>)> {
    send_blocks(Reading::new(source), link, options)
}

/// Like [`send`], for a source that has its bytes in blocks already.
///
/// # Errors
/// Those of [`send`].
pub fn send_blocks(
    source: impl BlockSource + 'static,
    link: Link,
    mut options: SendOptions,
) -> Result<(Summary, Box<dyn Policy>)> {
    let Link { write: Some(write), read } = link else {
        return Err(Error::misuse("this link cannot be written"));
    };
    let duplex = read.is_some();
    let buffers = BufferPool::default();
    let (on_note, trace, later) = (options.on_note.take(), options.trace.take(), options.later.take());
    let (stall_timeout, control) = (options.stall_timeout, Arc::clone(&options.control));
    let (always, from_file) = (options.search_always, options.from_file);
    let if_asked = options.search_if_asked;
    let read_back = options.read_back.take();
    let (mut config, policy) = options.into_engine();
    let threads = config.cores;
    // Of a source without checks nothing would tell that it was changed meanwhile.
    let read_back = read_back.filter(|_| config.check);
    // Bytes that wait for company are kept: their link says nothing about what they are worth.
    config.reach = reach_of(config.reach, config.raw_len);
    let search = Search::new(config.reach, always || config.gather_ns > 0, config.raw_len, threads, read_back);
    let search = if if_asked { search.if_asked() } else { search };
    if !search.looks() {
        config.reach = 0;
    }
    // The search must not keep the calling thread from the link.
    let from_file = from_file && !search.looks();
    let config =
        SenderConfig { notes: on_note.is_some(), relayed: write.relayed, duplex, trace: trace.is_some(), ..config };
    let pool = Pool::new(threads);
    let flow = Arc::new_cyclic(|weak: &Weak<SendDriver>| {
        let panicked = weak.clone();
        let queue = pool.flow(move || {
            if let Some(flow) = panicked.upgrade() {
                flow.fail(Error::misuse("a worker failed; this is a bug"));
            }
        });
        SendDriver {
            me: weak.clone(),
            state: Mutex::new(State {
                sender: Some(Encoding::new(Sender::new(config, policy, buffers.clone()))),
                failure: None,
                reader_waits: false,
                part_left: false,
                last: Summary::default(),
            }),
            changed: Bell::default(),
            room: Bell::default(),
            link: Mutex::new(Output { half: write, outbox: Outbox::default(), backlog: 0, trace }),
            queue,
            buffers,
            control: Arc::clone(&control),
            begun_ns: sys::monotonic_ns(),
            over: AtomicBool::new(false),
        }
    });
    let seen = Arc::downgrade(&flow);
    let _ = control.send.now.set(Box::new(move || seen.upgrade().map(|f| f.summary())));
    let held = Arc::downgrade(&flow);
    let _ = control.flush.set(Box::new(move || held.upgrade().iter().for_each(|f| f.flush())));

    let result = run(&flow, (source, search), from_file, read.map(|half| (half, on_note)), stall_timeout, later);
    flow.over.store(true, Ordering::Relaxed);
    flow.room.ring();
    flow.queue.clear();
    let summary = flow.summary();
    let sender = lock(&flow.state).sender.take();
    lock(&flow.state).last = summary.clone();
    let _ = control.send.last.set(summary.clone());
    drop(pool);
    let policy = sender.map(|s| s.into_sender().into_policy()).ok_or_else(|| Error::misuse("the flow is over"))?;
    result.map(|()| (summary, policy))
}

/// The reach as a power of two, and no more than the flow needs: a receiver of one-way links keeps so
/// much, or refuses the stream.
fn reach_of(reach: usize, raw_len: Option<u64>) -> usize {
    let needed = raw_len.and_then(|len| usize::try_from(len).ok()?.checked_next_power_of_two());
    reach.min(needed.unwrap_or(usize::MAX)).checked_ilog2().map_or(0, |log| 1 << log)
}

fn run(
    flow: &Arc<SendDriver>,
    (source, search): (impl BlockSource + 'static, Search),
    from_file: bool,
    read: Option<(ReadHalf, Option<OnNote>)>,
    limit: Option<Duration>,
    later: Option<Later>,
) -> Result<()> {
    let duplex = read.is_some();
    let mut near = Near::new((source, search), read);
    if !from_file {
        near.start_reading(flow)?;
        near.start_back(flow)?;
    }
    let mut result = flow.write_all(limit, duplex, &mut near, later);
    if result.is_ok() && duplex {
        result = flow.await_confirmation(limit, near.take_back());
    }
    if result.as_ref().is_err_and(|e| e.source.as_ref().is_some_and(peer_gone)) {
        near.start_back(flow)?;
    }
    let back = near.back_thread();
    if let Some(back) = &back
        && result.as_ref().is_err_and(|e| e.source.as_ref().is_some_and(peer_gone))
    {
        flow.await_last_word(back);
    }
    // The receiver's own error says more than the system's "broken pipe".
    let told = lock(&flow.state).failure.take();
    flow.over.store(true, Ordering::Relaxed);
    if let Some(back) = back {
        let _ = back.join();
    }
    match told {
        Some(failure) => Err(failure),
        None => result,
    }
}

struct SendDriver {
    me: Weak<Self>,
    state: Mutex<State>,
    /// Wakes the writing thread: a frame is ready, or another event that it may wait for.
    changed: Bell,
    /// Wakes the reading thread: the engine may have room for more raw bytes.
    room: Bell,
    /// Locked before `state` where both are needed.
    link: Mutex<Output>,
    queue: Queue,
    buffers: BufferPool,
    control: Arc<Control>,
    begun_ns: u64,
    over: AtomicBool,
}

struct State {
    /// `None` once the flow is over.
    sender: Option<Encoding>,
    /// The first failure on any thread.
    failure: Option<Error>,
    /// The reading thread waits for room; it cuts the next blocks when woken.
    reader_waits: bool,
    /// Frames taken out of the engine are left for the writing thread.
    part_left: bool,
    last: Summary,
}

/// The link's write half and the frames to be written to it.
struct Output {
    half: WriteHalf,
    outbox: Outbox,
    backlog: u32,
    trace: Option<Box<dyn Write + Send>>,
}

impl SendDriver {
    fn now_ns(&self) -> u64 {
        sys::monotonic_ns() - self.begun_ns
    }

    fn summary(&self) -> Summary {
        let state = lock(&self.state);
        state.sender.as_ref().map_or_else(|| state.last.clone(), |s| s.summary().clone())
    }

    fn flush(&self) {
        let mut state = lock(&self.state);
        state.sender.iter_mut().for_each(|s| s.flush());
        self.work(state, &mut Contexts::default(), Budget::BULK);
    }

    fn fail(&self, error: Error) {
        lock(&self.state).failure.get_or_insert(error);
        self.changed.ring();
        self.room.ring();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    // --- source ---

    fn read_source(self: Arc<Self>, mut source: impl BlockSource, mut search: Search) {
        let mut contexts = Contexts::default();
        loop {
            let Some(len) = self.await_room(&mut contexts) else { return };
            match source.next(len, &self.buffers) {
                Ok(block) if block.is_empty() => {
                    let mut state = lock(&self.state);
                    if let Some(sender) = &mut state.sender {
                        sender.close(self.now_ns());
                    }
                    // Bytes that waited for a whole block are sent now.
                    return self.work(state, &mut contexts, Budget::BULK);
                }
                Ok(block) => {
                    let n = block.len();
                    search.look(block, self.now_ns());
                    self.look_early();
                    let mut state = lock(&self.state);
                    let Some(sender) = &mut state.sender else { return };
                    search.hand_over(sender, self.now_ns());
                    let budget = if n > DIRECT_MAX { Budget::BULK } else { Budget::SHORT };
                    self.work(state, &mut contexts, budget);
                    if n <= DIRECT_MAX {
                        self.write_directly();
                    }
                }
                Err(e) => return self.fail(near::source_error(e)),
            }
        }
    }

    /// Waits until the engine accepts raw bytes and returns how many to read. `None` if the flow is
    /// over.
    fn await_room(&self, contexts: &mut Contexts) -> Option<usize> {
        let mut state = lock(&self.state);
        loop {
            if self.is_over() || state.failure.is_some() {
                return None;
            }
            if let Some(len) = readable(state.sender.as_ref()?) {
                return Some(len);
            }
            state.reader_waits = true;
            let (woken, _) = self.room.wait(state, LOOK_EVERY);
            state = woken;
            state.reader_waits = false;
            self.work(state, contexts, Budget::BULK);
            state = lock(&self.state);
        }
    }

    // --- jobs ---

    /// Cuts as many blocks as the window allows. This thread runs those within the budget; the pool runs
    /// the others.
    fn work<'a>(&'a self, mut state: MutexGuard<'a, State>, contexts: &mut Contexts, mut budget: Budget) {
        let bulk = budget.job_ns == 0;
        let mut waiting = Vec::new();
        while let Some(Next { job, place }) = state.sender.as_mut().and_then(|s| s.next(self.now_ns(), &mut budget)) {
            if place == Place::Worker {
                waiting.push(job);
                continue;
            }
            drop(state);
            if bulk {
                // The writing thread can send the frames made so far while this thread goes on.
                self.changed.ring();
            }
            let done = job.measured(place == Place::Brief, contexts, &self.buffers);
            state = lock(&self.state);
            if let Some(sender) = &mut state.sender {
                sender.finish(done, self.now_ns());
            }
        }
        let wake = state.sender.as_ref().is_some_and(|s| s.next_wakeup().is_some());
        drop(state);
        for job in waiting {
            self.submit(job);
        }
        if bulk || wake {
            self.changed.ring();
        }
    }

    fn submit(&self, job: Job) {
        let Some(flow) = self.me.upgrade() else { return };
        let task = Box::new(move |contexts: &mut Contexts| flow.work_on(job, contexts));
        if let Err(task) = self.queue.submit(task) {
            // The queue has room for two windows, so this should not happen; if it does, the block
            // must not be lost.
            task(&mut Contexts::default());
        }
    }

    /// Runs jobs on a worker until the engine has none left.
    fn work_on(self: Arc<Self>, first: Job, contexts: &mut Contexts) {
        let mut next = Some(first);
        while let Some(job) = next.take() {
            let done = job.measured(false, contexts, &self.buffers);
            self.look_early();
            let mut state = lock(&self.state);
            let Some(sender) = &mut state.sender else { return };
            sender.finish(done, self.now_ns());
            let few_cores = sender.cores() < PARALLEL_CORES;
            let wake_reader = state.reader_waits;
            next = self.take_jobs(state);
            if few_cores {
                self.write_made();
                next = next.or_else(|| self.take_jobs(lock(&self.state)));
            }
            self.changed.ring();
            if wake_reader {
                self.room.ring();
            }
        }
    }

    /// The next job for this thread; others go to the pool.
    fn take_jobs(&self, mut state: MutexGuard<'_, State>) -> Option<Job> {
        let mut jobs = Vec::new();
        while let Some(job) = state.sender.as_mut().and_then(|s| s.next_job(self.now_ns())) {
            jobs.push(job);
        }
        drop(state);
        let mut jobs = jobs.into_iter();
        let next = jobs.next();
        jobs.for_each(|job| self.submit(job));
        next
    }

    // --- link ---

    /// Writes frames until the link has taken the end frame.
    fn write_all<S: BlockSource + 'static>(
        &self,
        limit: Option<Duration>,
        duplex: bool,
        near: &mut Near<S>,
        mut later: Option<Later>,
    ) -> Result<()> {
        let mut stall = Stall::new(limit);
        let mut contexts = Contexts::default();
        let mut left_host = 0;
        // The preface and the first bytes, or all of a short file, go in one write.
        while near.bytes_read() < FIRST_BYTES && near.read(self)? {}
        near.work(self, &mut contexts)?;
        loop {
            self.check()?;
            if let Some((_, act)) = later.take_if(|(delay, _)| u128::from(self.now_ns()) >= delay.as_nanos()) {
                act();
            }
            let mut link = lock(&self.link);
            self.save_trace(&mut link)?;
            self.take_frames(&mut link, BATCH_BYTES);
            if !link.outbox.is_empty() {
                self.write_frames(&mut link, &mut stall)?;
                drop(link);
                if near.is_short() {
                    near.work(self, &mut contexts)?;
                } else {
                    self.after_write(&mut contexts);
                }
                continue;
            }
            if near.reads() {
                drop(link);
                if near.read(self)? {
                    near.work(self, &mut contexts)?;
                    continue;
                }
                link = lock(&self.link);
            }
            // A link that holds bytes itself may need this thread to pass them on.
            let held = link.half.held();
            if held > 0 {
                self.write_once(&mut link, 0)?;
            }
            let drained = lock(&self.state).sender.as_ref().is_none_or(|s| s.is_drained());
            if drained && link.half.held() == 0 {
                let limited_ns = link.half.receiver_limited_ns();
                if let Some(sender) = &mut lock(&self.state).sender {
                    sender.on_receiver_limited(limited_ns);
                }
                link.half.finish().map_err(|e| link_error(e, "cannot end the stream"))?;
                return Ok(());
            }
            link.half.look();
            let unsent = link.half.unsent();
            let holds = link.half.held() > 0;
            // While the window is full nothing is written. A one-way link is not read either, so
            // its failure would go unnoticed.
            if !duplex {
                link.half.check().map_err(|e| link_error(e, "the link failed"))?;
            }
            drop(link);
            // With nothing to write, the link may still be stalled with frames that it has taken.
            let left = lock(&self.state).sender.as_ref().map_or(0, |s| s.left_host_bytes());
            if unsent == 0 || left > left_host {
                left_host = left;
                stall.progress();
            } else {
                stall.check("the link takes no bytes")?;
            }
            self.await_frames(&mut contexts, if holds { HELD_LOOK } else { LOOK_EVERY });
        }
    }

    /// Waits until a frame is ready. At the engine's wakeup time, tells it that the link is dry.
    fn await_frames(&self, contexts: &mut Contexts, most: Duration) {
        let state = lock(&self.state);
        let Some(sender) = &state.sender else { return };
        if sender.has_frame() || state.part_left || state.failure.is_some() {
            return;
        }
        let now_ns = self.now_ns();
        let wakeup_ns = sender.next_wakeup().unwrap_or(u64::MAX);
        if wakeup_ns > now_ns {
            let wait = Duration::from_nanos(wakeup_ns - now_ns).min(most);
            let (state, rung) = self.changed.wait(state, wait);
            if rung || wakeup_ns > self.now_ns() {
                return;
            }
            drop(state);
        } else {
            drop(state);
        }
        self.on_dry(contexts);
    }

    /// Looks at a link of unknown rate before the next blocks are chosen: what was acknowledged
    /// meanwhile is the first that is known of it.
    fn look_early(&self) {
        if !lock(&self.state).sender.as_ref().is_some_and(|s| s.wants_look(self.now_ns())) {
            return;
        }
        // Whoever holds the link writes, and a write is a look.
        let Ok(mut link) = self.link.try_lock() else { return };
        let look = Look::at(&mut link.half);
        drop(link);
        if let Some(sender) = &mut lock(&self.state).sender {
            sender.on_link(look.sample(self.now_ns()));
        }
    }

    fn on_dry(&self, contexts: &mut Contexts) {
        let look = Look::at(&mut lock(&self.link).half);
        let mut state = lock(&self.state);
        let Some(sender) = &mut state.sender else { return };
        let now_ns = self.now_ns();
        sender.on_link(look.sample(now_ns));
        if let Some(job) = sender.late(now_ns) {
            drop(state);
            let done = job.measured(false, contexts, &self.buffers);
            state = lock(&self.state);
            if let Some(sender) = &mut state.sender {
                sender.finish(done, self.now_ns());
            }
        }
        self.work(state, contexts, Budget::BULK);
    }

    /// Writes the frame of a small piece on the thread that read it, unless another thread is
    /// writing.
    fn write_directly(&self) {
        self.write_here(DIRECT_MAX, |_| WRITE_MIN);
    }

    /// Writes frames on the worker that made the last of them, unless another thread is writing.
    /// Where the workers use all cores, the system may let the writing thread wait for one of them
    /// for some milliseconds.
    fn write_made(&self) {
        let rate = lock(&self.state).sender.as_ref().map_or(0.0, |s| s.summary().rate_bytes_per_s);
        self.write_here(BATCH_BYTES, |link| {
            link.set_backlog(rate);
            Outbox::write_len(rate)
        });
    }

    /// Takes at most `most` bytes of frames and writes once, at most what `write_len` says.
    fn write_here(&self, most: usize, write_len: impl FnOnce(&mut Output) -> usize) {
        if let Ok(mut link) = self.link.try_lock() {
            self.take_frames(&mut link, most);
            if link.outbox.is_empty() {
                return;
            }
            // Bytes that do not fit stay in the outbox for the writing thread.
            let len = write_len(&mut link);
            let written = self.write_once(&mut link, len);
            let all = link.is_clear();
            lock(&self.state).part_left = !all;
            drop(link);
            match written {
                Ok(_) if all => return,
                Err(e) => self.fail(e),
                Ok(_) => {}
            }
        }
        self.changed.ring();
    }

    fn take_frames(&self, link: &mut Output, bytes_max: usize) {
        let mut state = lock(&self.state);
        state.part_left = false;
        if let Some(sender) = &mut state.sender {
            link.outbox.fill(sender, bytes_max);
        }
    }

    fn write_frames(&self, link: &mut Output, stall: &mut Stall) -> Result<()> {
        while !link.outbox.is_empty() {
            let (mut rate, memory, cores) = lock(&self.state)
                .sender
                .as_ref()
                .map_or((0.0, false, 0), |s| (s.summary().rate_bytes_per_s, s.is_in_memory(), s.cores()));
            let in_memory = memory && link.half.is_pipe();
            if in_memory {
                // That of its reader, whose turns are long.
                rate = rate.max(IN_MEMORY_RATE);
            }
            link.set_backlog(rate);
            if self.write_once(link, Outbox::write_len(rate))? > 0 {
                stall.progress();
                continue;
            }
            self.check()?;
            stall.check("the link takes no bytes")?;
            if in_memory && cores < PARALLEL_CORES {
                std::thread::sleep(FULL_PIPE);
            }
            link.half.wait_writable(FULL_LOOK).map_err(|e| link_error(e, "cannot wait for the link"))?;
        }
        Ok(())
    }

    /// Writes at most `len` bytes once and reports the write to the engine. Returns the number of
    /// bytes; 0 if the link is full.
    fn write_once(&self, link: &mut Output, len: usize) -> Result<usize> {
        link.half.look();
        let (unsent_before, _) = link.half.progress();
        let begin_ns = self.now_ns();
        let result = if link.outbox.is_empty() {
            link.half.flush_some().and(Err(io::ErrorKind::WouldBlock.into()))
        } else {
            link.half.write_some(&link.outbox.slices(len))
        };
        let written = match result {
            Ok(0) => return Err(link_error(io::ErrorKind::WriteZero.into(), "the link takes no bytes")),
            Ok(n) => n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(e) => return Err(link_error(e, "cannot write to the link")),
        };
        let end_ns = self.now_ns();
        link.outbox.consume(written);
        link.half.look();
        let ((unsent_after, busy_ns), unacked) = (link.half.progress(), link.half.unacked());
        let (delivery_bytes_per_s, rtt_ns) = (link.half.delivery_bytes_per_s(), link.half.rtt_ns());
        if let Some(sender) = &mut lock(&self.state).sender {
            let accepted = written as u64;
            sender.on_link(LinkSample {
                begin_ns,
                end_ns,
                unsent_before,
                unsent_after,
                accepted,
                busy_ns,
                unacked,
                delivery_bytes_per_s,
                rtt_ns,
            });
        }
        Ok(written)
    }

    /// After a write the window may have room: the reading thread cuts blocks if it waits, else
    /// this one does.
    fn after_write(&self, contexts: &mut Contexts) {
        let state = lock(&self.state);
        if state.reader_waits {
            drop(state);
            self.room.ring();
        } else {
            self.work(state, contexts, Budget::BULK);
        }
    }

    fn save_trace(&self, link: &mut Output) -> Result<()> {
        let Some(out) = &mut link.trace else { return Ok(()) };
        let lines = lock(&self.state).sender.as_mut().map(|s| s.take_trace()).unwrap_or_default();
        out.write_all(lines.as_bytes()).and_then(|()| out.flush()).map_err(|e| link_error(e, "cannot write the trace"))
    }

    fn check(&self) -> Result<()> {
        self.control.check()?;
        match lock(&self.state).failure.take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

/// What the system says of the link between writes.
struct Look {
    unsent: u64,
    busy_ns: Option<u64>,
    unacked: Option<u64>,
    rtt_ns: Option<u64>,
}

impl Look {
    fn at(half: &mut WriteHalf) -> Self {
        half.look();
        let (unsent, busy_ns) = half.progress();
        Self { unsent, busy_ns, unacked: half.unacked(), rtt_ns: half.rtt_ns() }
    }

    fn sample(&self, now_ns: u64) -> LinkSample {
        LinkSample {
            begin_ns: now_ns,
            end_ns: now_ns,
            unsent_before: self.unsent,
            unsent_after: self.unsent,
            busy_ns: self.busy_ns,
            unacked: self.unacked,
            rtt_ns: self.rtt_ns,
            ..LinkSample::default()
        }
    }
}

impl Output {
    /// Whether the system has taken all bytes.
    fn is_clear(&self) -> bool {
        self.outbox.is_empty() && self.half.held() == 0
    }

    fn set_backlog(&mut self, rate_bytes_per_s: f64) {
        if let Some(bytes) = Outbox::backlog(rate_bytes_per_s, self.backlog) {
            self.backlog = bytes;
            self.half.set_backlog(bytes);
        }
    }
}

/// How many raw bytes to read, if the engine accepts enough for a read to be worth its while.
fn readable(sender: &Encoding) -> Option<usize> {
    (!sender.is_full()).then(|| sender.room().min(sender.segment_len()))
}

fn link_error(e: io::Error, what: &str) -> Error {
    let text = if peer_gone(&e) { "the receiver closed the connection" } else { what };
    Error { source: Some(e), ..Error::new(ErrorKind::Io, text) }
}
