//! From the program to the network: plain bytes, a marker perhaps, then frames.

use std::os::fd::OwnedFd;

use narrows::block::Block;
use narrows::codec::{Contexts, Method};
use narrows::pool::Queue;
use narrows::sender::{Done, Job, Sender, Summary};
use narrows::stream::{self, Outbox};
use narrows::transport::Meter;
use rustix::io::Errno;

use super::compressor::{INLINE_LEN, INLINE_NS, MESSAGE_LEN, MESSAGE_NS, Share};
use super::encrypted::FirstBytes;
use super::pump::{Bench, Order};
use super::socket::Waiting;

/// The engine may want to look at the link again at once; other connections come first.
const LOOK_AGAIN_MIN_NS: u64 = 20_000;
/// Bulk is read when there is room for so much, not in crumbs.
const ROOM_MIN: usize = 64 << 10;
/// A job that takes over a late block runs here if it is so short; the engine wants it at once, the other connections
/// of this thread want their turn.
const RESCUE_INLINE_NS: u64 = 500_000;

#[derive(Default)]
pub(crate) struct Outgoing {
    /// Plain bytes that the network has not taken.
    waiting: Waiting,
    frames: Option<Box<Frames>>,
    /// The program may have written something.
    pub(crate) readable: bool,
    /// The program has ended this direction and everything of it was read.
    pub(crate) ended: bool,
    /// The network was told so.
    pub(crate) shut: bool,
    /// The network takes nothing any more; what comes is thrown away.
    pub(crate) discards: bool,
    /// Of the program, so far.
    pub(crate) bytes: u64,
    /// On the network before frames.
    plain_bytes: u64,
    pub(crate) first: FirstBytes,
}

/// The direction since its marker.
struct Frames {
    sender: Sender,
    outbox: Outbox,
    marker_len: u64,
    meter: Meter,
    queue: Queue,
    share: Share,
    /// The engine's clock begins with the flow.
    begun_ns: u64,
    /// Jobs with the workers.
    jobs: usize,
    closed: bool,
    /// False: what the program sends is known not to shrink, or does not leave this host.
    compresses: bool,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        Self { readable: true, ..Self::default() }
    }

    pub(crate) fn is_framed(&self) -> bool {
        self.frames.is_some()
    }

    /// Bytes that the program may be read for now.
    pub(crate) fn room(&self) -> usize {
        match &self.frames {
            Some(frames) if !self.discards => {
                let held = self.held();
                let room = frames.sender.room().min(frames.share.memory_max().saturating_sub(held));
                if room < ROOM_MIN.min(frames.sender.segment_len()) { 0 } else { room }
            }
            None if self.waiting.len() > 0 && !self.discards => 0,
            _ => usize::MAX,
        }
    }

    /// Accounts for what it holds.
    pub(crate) fn count(&mut self) {
        let held = self.held();
        if let Some(frames) = &mut self.frames {
            frames.share.count(held);
        }
    }

    /// A good length for a read of bulk.
    pub(crate) fn segment_len(&self) -> Option<usize> {
        self.frames.as_ref().filter(|_| !self.discards).map(|f| f.sender.segment_len())
    }

    /// Bytes of the program that the network has not taken.
    pub(crate) fn held(&self) -> usize {
        let framed = self.frames.as_ref().map_or(0, |f| {
            let raw = self.bytes.saturating_sub(self.plain_bytes).saturating_sub(f.sender.summary().raw_bytes);
            raw as usize + f.outbox.len()
        });
        self.waiting.len() + framed
    }

    /// The network has no room. To be asked after [`Outgoing::flush`].
    pub(crate) fn is_stuck(&self) -> bool {
        self.waiting.len() > 0 || self.frames.as_ref().is_some_and(|f| !f.outbox.is_empty())
    }

    /// Frames from here on: the marker, then a stream.
    pub(crate) fn switch(&mut self, marker: &[u8], same_host: bool, stores: bool, serial: u64, bench: &Bench) {
        let compressor = &bench.ledger.compressor;
        let inlet = bench.inlet.clone();
        self.frames = Some(Box::new(Frames {
            sender: compressor.sender(&bench.buffers, stores),
            outbox: Outbox::behind(marker),
            marker_len: marker.len() as u64,
            meter: Meter::new(same_host),
            queue: compressor.encoding(move || inlet.send(Order::Failed { serial })),
            share: compressor.share(),
            begun_ns: bench.now_ns(),
            jobs: 0,
            closed: false,
            compresses: !stores,
        }));
    }

    fn look(&mut self, input: &[u8], bench: &Bench) {
        self.first.look(input);
        if self.first.are_encrypted() {
            self.give_up_compressing(bench);
        }
    }

    /// From here on nothing is tried on what does not shrink.
    pub(crate) fn give_up_compressing(&mut self, bench: &Bench) {
        if let Some(frames) = self.frames.as_mut().filter(|f| f.compresses) {
            frames.compresses = false;
            bench.ledger.compressor.give_up_on(&mut frames.sender);
        }
    }

    /// Writes what waits. True: the network has taken everything that there is so far.
    pub(crate) fn flush(&mut self, network: &OwnedFd, serial: u64, bench: &mut Bench) -> Result<bool, Errno> {
        if self.discards {
            self.waiting.clear();
            return Ok(true);
        }
        if !self.waiting.flush(network)? {
            return Ok(false);
        }
        match &mut self.frames {
            Some(frames) => frames.write(network, serial, bench),
            None => Ok(true),
        }
    }

    /// Passes on what the program wrote; what the network does not take waits. Plain bytes must have been counted.
    pub(crate) fn pass(
        &mut self,
        input: &[u8],
        network: &OwnedFd,
        serial: u64,
        bench: &mut Bench,
    ) -> Result<(), Errno> {
        self.bytes += input.len() as u64;
        self.look(input, bench);
        if self.discards {
            return Ok(());
        }
        let Some(frames) = &mut self.frames else {
            self.plain_bytes += input.len() as u64;
            return self.waiting.pass(input, network);
        };
        let mut buffer = bench.buffers.get(input.len());
        buffer.bytes_mut()[..input.len()].copy_from_slice(input);
        let block = buffer.freeze(input.len());
        bench.buffers.recycle(&block);
        frames.push(block, serial, bench);
        self.flush(network, serial, bench).map(drop)
    }

    /// The same for bulk that lies in a buffer of its own already. There must be frames.
    pub(crate) fn pass_block(
        &mut self,
        block: Block,
        network: &OwnedFd,
        serial: u64,
        bench: &mut Bench,
    ) -> Result<(), Errno> {
        self.bytes += block.len() as u64;
        self.look(&block, bench);
        if let Some(frames) = self.frames.as_mut().filter(|_| !self.discards) {
            frames.push(block, serial, bench);
        }
        self.flush(network, serial, bench).map(drop)
    }

    /// A byte that went out urgently between the plain ones.
    pub(crate) fn count_urgent(&mut self) {
        self.bytes += 1;
        self.plain_bytes += 1;
    }

    /// After the program's end: whether the network has all, the end of the frames included.
    pub(crate) fn finish(&mut self, network: &OwnedFd, serial: u64, bench: &mut Bench) -> Result<bool, Errno> {
        if let Some(frames) = self.frames.as_mut().filter(|f| !f.closed && !self.discards) {
            frames.closed = true;
            let now_ns = frames.now_ns(bench);
            frames.sender.close(now_ns);
            frames.work(true, serial, bench);
        }
        let all = self.flush(network, serial, bench)?;
        let drained = self.frames.as_ref().is_none_or(|f| f.sender.is_drained() && f.outbox.is_empty());
        Ok(self.discards || all && drained)
    }

    /// A worker has done a job.
    pub(crate) fn encoded(&mut self, done: Done, serial: u64, bench: &mut Bench) {
        if let Some(frames) = &mut self.frames {
            frames.jobs -= 1;
            let now_ns = frames.now_ns(bench);
            frames.sender.finish(done, now_ns);
            frames.work(true, serial, bench);
        }
    }

    /// When [`Outgoing::on_time`] is due, on the pump's clock.
    pub(crate) fn next_wakeup_ns(&self, now_ns: u64) -> Option<u64> {
        let frames = self.frames.as_ref().filter(|_| !self.discards && !self.shut)?;
        let at_ns = frames.sender.next_wakeup()?.saturating_add(frames.begun_ns);
        Some(at_ns.max(now_ns + LOOK_AGAIN_MIN_NS))
    }

    pub(crate) fn on_time(&mut self, network: &OwnedFd, serial: u64, bench: &mut Bench) {
        if let Some(frames) = self.frames.as_mut().filter(|_| !self.discards && !self.shut) {
            frames.look(network, serial, bench);
        }
    }

    /// Bytes on the network, and what was done for those in frames.
    pub(crate) fn wire_bytes(&self) -> u64 {
        self.plain_bytes + self.frames.as_ref().map_or(0, |f| f.marker_len + f.sender.summary().wire_bytes)
    }

    pub(crate) fn summary(&self) -> Option<&Summary> {
        self.frames.as_ref().map(|f| f.sender.summary())
    }
}

impl Frames {
    fn now_ns(&self, bench: &Bench) -> u64 {
        bench.now_ns() - self.begun_ns
    }

    fn push(&mut self, block: Block, serial: u64, bench: &mut Bench) {
        let bulk = block.len() > INLINE_LEN;
        let now_ns = self.now_ns(bench);
        self.sender.push(block, now_ns);
        self.work(bulk, serial, bench);
    }

    /// Cuts as many blocks as the window takes. What is short and alone is encoded here, so that a small message needs no
    /// other thread; the rest is for the workers.
    fn work(&mut self, bulk: bool, serial: u64, bench: &mut Bench) {
        loop {
            let now_ns = self.now_ns(bench);
            let Some(job) = self.sender.poll_job(now_ns) else { return };
            let short = job.raw.len() <= INLINE_LEN && job.estimate_ns < INLINE_NS;
            let message = job.raw.len() <= MESSAGE_LEN && job.estimate_ns < MESSAGE_NS;
            if job.method == Method::STORE || message || short && !bulk && self.jobs == 0 {
                self.run(job, bench);
            } else {
                self.submit(job, serial, bench);
            }
        }
    }

    fn run(&mut self, job: Job, bench: &mut Bench) {
        let quick = job.method == Method::STORE || job.raw.len() <= MESSAGE_LEN;
        let begun_ns = self.now_ns(bench);
        let mut done = if quick {
            // The thread's own clock is a system call, two of which take longer than to store a message or to link it.
            job.run(&mut bench.contexts, &bench.buffers)
        } else {
            stream::encode(job, &mut bench.contexts, &bench.buffers)
        };
        let now_ns = self.now_ns(bench);
        if quick {
            (done.wall_ns, done.cpu_ns) = (now_ns - begun_ns, now_ns - begun_ns);
        }
        self.sender.finish(done, now_ns);
    }

    fn submit(&mut self, job: Job, serial: u64, bench: &mut Bench) {
        let (inlet, buffers) = (bench.inlet.clone(), bench.buffers.clone());
        let at_work = bench.ledger.compressor.at_work();
        let task = Box::new(move |contexts: &mut Contexts| {
            let _at_work = at_work;
            let done = Box::new(stream::encode(job, contexts, &buffers));
            inlet.send(Order::Encoded { serial, done });
        });
        self.jobs += 1;
        if let Err(task) = self.queue.submit(task) {
            // The queue holds two windows, so this does not happen; if it does, the block must not be lost.
            task(&mut bench.contexts);
        }
    }

    /// Writes frames until there is none or the network is full. True: there is none.
    fn write(&mut self, network: &OwnedFd, serial: u64, bench: &mut Bench) -> Result<bool, Errno> {
        loop {
            self.outbox.fill(&mut self.sender);
            if self.outbox.is_empty() {
                return Ok(true);
            }
            let rate = self.sender.summary().rate_bytes_per_s;
            self.meter.set_rate(network, rate);
            let clock = || bench.now_ns() - self.begun_ns;
            let written = self.meter.write(network, &mut self.outbox, Outbox::write_len(rate), clock);
            let sample = written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
            self.sender.on_link(sample);
            if sample.accepted == 0 {
                return Ok(false);
            }
            self.work(true, serial, bench);
        }
    }

    /// The engine wants to know how the link is, and perhaps to take over what is late.
    fn look(&mut self, network: &OwnedFd, serial: u64, bench: &mut Bench) {
        let now_ns = self.now_ns(bench);
        self.sender.on_link(self.meter.look(network, now_ns));
        if let Some(job) = self.sender.on_link_dry(now_ns) {
            if job.method == Method::STORE || job.estimate_ns < RESCUE_INLINE_NS {
                self.run(job, bench);
            } else {
                self.submit(job, serial, bench);
            }
        }
        self.work(false, serial, bench);
    }
}
