//! From the network to the program: plain bytes, then what the peer's frames hold.

use std::os::fd::OwnedFd;

use narrows::Result;
use narrows::block::Block;
use narrows::codec::Contexts;
use narrows::frame::PREFACE_LEN;
use narrows::pool::Queue;
use narrows::receiver::{DecodeDone, DecodeJob, Receiver, RecvSummary};
use narrows::stream;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::allowance::Reading;
use super::compressor::{INLINE_NS, MEMORY_MIN, MESSAGE_LEN, RECEIVED_MAX, Share};
use super::encrypted::FirstBytes;
use super::pump::{Bench, Order};
use super::socket::{self, Waiting};

/// The network is read into buffers that grow from here while reads fill them, so that a quiet connection holds little.
const READ_LEN_FIRST: usize = 16 << 10;
/// Frames inside a buffer are not copied; the longer it is, the fewer straddle two.
const READ_LEN: usize = 256 << 10;
/// Short blocks that came together are decoded here until they have taken so long: other connections wait meanwhile.
const HERE_NS: u64 = 200_000;

/// How often it is looked whether there is memory again.
const LOOK_AGAIN_NS: u64 = 20_000_000;
/// A program that reads nothing for so long while the memory of all is used up keeps everybody else waiting.
const HOARD_NS: u64 = if cfg!(test) { 1_000_000_000 } else { 10_000_000_000 };
const TAKEN_EVERY_NS: u64 = HOARD_NS / 10;

#[derive(Default)]
pub(crate) struct Incoming {
    /// Plain bytes that the program has not taken.
    waiting: Waiting,
    frames: Option<Box<Frames>>,
    /// The network may have something.
    pub(crate) readable: bool,
    /// The network has ended and everything of it was read.
    pub(crate) ended: bool,
    /// The program was told so.
    pub(crate) shut: bool,
    /// The program takes nothing any more; what comes is thrown away.
    pub(crate) discards: bool,
    /// For the program, so far.
    pub(crate) bytes: u64,
    /// Of the network before frames, the marker with them.
    plain_bytes: u64,
    pub(crate) first: FirstBytes,
}

/// The direction since its marker.
struct Frames {
    receiver: Receiver,
    /// What the program has not taken of the latest block.
    raw: Block,
    queue: Queue,
    share: Share,
    /// Jobs with the workers.
    jobs: usize,
    reading: Reading,
    /// What the program had taken when that was looked at last, and since when it is so much.
    taken: (u64, u64),
    /// Nothing is decoded, for want of memory.
    gated: bool,
    read_len: usize,
    failed: bool,
    /// Bytes that came when nobody was left to read them.
    discarded: u64,
}

/// What reading brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// So many bytes; there may be more.
    Some(usize),
    /// So many bytes, and no more for now.
    Last(usize),
    Nothing,
    End,
    Broken(Errno),
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { readable: true, ..Self::default() }
    }

    pub(crate) fn is_framed(&self) -> bool {
        self.frames.is_some()
    }

    /// Whether something waits for the program to read.
    pub(crate) fn is_blocked(&self) -> bool {
        self.waiting.len() > 0 || self.frames.as_ref().is_some_and(|f| !f.raw.is_empty())
    }

    /// Whether something that came is still on its way to the program.
    pub(crate) fn is_pending(&self) -> bool {
        let framed = self.frames.as_ref().is_some_and(|f| {
            let working = !f.failed && (f.jobs > 0 || f.receiver.has_unparsed());
            working || !f.raw.is_empty() || f.receiver.has_raw()
        });
        !self.discards && (self.waiting.len() > 0 || framed)
    }

    /// Whether more may be read: what came is decoded first.
    pub(crate) fn has_room(&self) -> bool {
        let full = |f: &Frames| f.failed || f.receiver.room() == 0 || f.receiver.has_unparsed();
        self.discards || !self.frames.as_ref().is_some_and(|f| full(f))
    }

    /// Accounts for what it holds, and learns how much that may be.
    pub(crate) fn count(&mut self) {
        if let Some(frames) = &mut self.frames {
            frames.count();
        }
    }

    /// The direction, if anything comes of it still.
    fn live(&self) -> Option<&Frames> {
        self.frames.as_deref().filter(|f| !self.discards && !f.failed && !self.shut)
    }

    /// When it is to be looked at again although nothing happens.
    pub(crate) fn next_wakeup_ns(&self, now_ns: u64) -> Option<u64> {
        let frames = self.live()?;
        let again_ns = now_ns + LOOK_AGAIN_NS;
        let hoard_ns = (self.is_blocked() && frames.is_hoard()).then(|| (frames.taken.1 + HOARD_NS).max(again_ns));
        if frames.gated { Some(again_ns) } else { hoard_ns }
    }

    /// It holds what others need, and its program reads nothing.
    pub(crate) fn keeps_others_waiting(&self, now_ns: u64) -> bool {
        let idle = |f: &Frames| f.is_hoard() && f.share.is_exhausted() && now_ns >= f.taken.1 + HOARD_NS;
        self.is_blocked() && self.live().is_some_and(idle)
    }

    /// Gives up what the program has not taken.
    pub(crate) fn give_up(&mut self, bench: &Bench) {
        self.waiting.clear();
        if let Some(frames) = &mut self.frames {
            frames.failed = true;
            frames.receiver = bench.ledger.compressor.receiver(&bench.buffers);
            frames.raw = Block::default();
            frames.count();
        }
    }

    /// How fast the program reads, after each [`Incoming::flush`].
    pub(crate) fn note_pace(&mut self, bench: &Bench) {
        let blocked = self.is_blocked();
        if let Some(frames) = &mut self.frames {
            let taken = self.bytes - frames.raw.len() as u64;
            let now_ns = bench.now_ns();
            // Not at every piece, since it moves a timer.
            if (taken != frames.taken.0 || !blocked) && now_ns >= frames.taken.1 + TAKEN_EVERY_NS {
                frames.taken = (taken, now_ns);
            }
        }
        if let Some(frames) = self.frames.as_mut().filter(|f| blocked || !f.reading.is_idle()) {
            frames.reading.took(bench.now_ns(), self.bytes - frames.raw.len() as u64, blocked);
        }
    }

    /// Frames from here on, behind a marker of this length.
    pub(crate) fn switch(&mut self, marker_len: usize, serial: u64, bench: &Bench) {
        self.plain_bytes += marker_len as u64;
        let compressor = &bench.ledger.compressor;
        let inlet = bench.inlet.clone();
        let mut frames = Box::new(Frames {
            receiver: compressor.receiver(&bench.buffers),
            raw: Block::default(),
            queue: compressor.decoding(move || inlet.send(Order::Failed { serial })),
            share: compressor.share(),
            jobs: 0,
            reading: Reading::default(),
            taken: (0, bench.now_ns()),
            gated: false,
            read_len: READ_LEN_FIRST,
            failed: false,
            discarded: 0,
        });
        // Before the first frame: what many hold that came before bounds it.
        frames.count();
        self.frames = Some(frames);
    }

    /// Writes what waits. False: the program has no room. `Err`: it takes nothing any more.
    pub(crate) fn flush(&mut self, program: &OwnedFd) -> std::result::Result<bool, Errno> {
        if self.discards {
            self.waiting.clear();
            return Ok(true);
        }
        if !self.waiting.flush(program)? {
            return Ok(false);
        }
        let Some(frames) = &mut self.frames else { return Ok(true) };
        loop {
            if frames.raw.is_empty() {
                let Some(raw) = frames.receiver.read() else { return Ok(true) };
                self.bytes += raw.len() as u64;
                self.first.look(&raw);
                frames.raw = raw;
            }
            match socket::write(program, &frames.raw) {
                Ok(n) => drop(frames.raw.split_to(n)),
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e),
            }
            if frames.raw.is_empty() {
                // The buffer goes back.
                frames.raw = Block::default();
            }
        }
    }

    /// Passes plain bytes on; what the program does not take waits.
    pub(crate) fn pass(&mut self, input: &[u8], program: &OwnedFd) -> std::result::Result<(), Errno> {
        self.bytes += input.len() as u64;
        self.plain_bytes += input.len() as u64;
        self.first.look(input);
        if self.discards { Ok(()) } else { self.waiting.pass(input, program) }
    }

    /// An urgent byte that was passed on between the plain ones.
    pub(crate) fn count_urgent(&mut self) {
        self.bytes += 1;
        self.plain_bytes += 1;
    }

    /// Reads frames. There must be room.
    pub(crate) fn read(&mut self, network: &OwnedFd, serial: u64, bench: &mut Bench) -> Result<Read> {
        let Some(frames) = &mut self.frames else { return Ok(Read::Nothing) };
        let len = frames.read_len;
        let mut buffer = bench.buffers.get(len);
        let read = socket::read(network, &mut buffer.bytes_mut()[..len], RecvFlags::empty());
        let block = buffer.freeze(read.unwrap_or(0));
        bench.buffers.recycle(&block);
        let n = match read {
            Ok(0) => return Ok(Read::End),
            Ok(n) => n,
            Err(Errno::AGAIN) => return Ok(Read::Nothing),
            Err(e) => return Ok(Read::Broken(e)),
        };
        let grown = if n == len { (2 * len).min(READ_LEN) } else { len };
        frames.read_len = if n < READ_LEN_FIRST { READ_LEN_FIRST } else { grown };
        self.receive(block, serial, bench)?;
        Ok(if n == len { Read::Some(n) } else { Read::Last(n) })
    }

    /// Takes what came of frames.
    pub(crate) fn receive(&mut self, wire: Block, serial: u64, bench: &mut Bench) -> Result<()> {
        let Some(frames) = &mut self.frames else { return Ok(()) };
        if self.discards {
            frames.discarded += wire.len() as u64;
            return Ok(());
        }
        frames.count();
        let received = frames.receiver.receive(wire).and_then(|()| frames.work(serial, bench));
        frames.count();
        frames.note(received)
    }

    /// Frames that came and found no room may have some now. True: there were such.
    pub(crate) fn resume(&mut self, serial: u64, bench: &mut Bench) -> Result<bool> {
        let discards = self.discards;
        let Some(frames) = self.frames.as_mut().filter(|f| !discards && !f.failed) else { return Ok(false) };
        frames.count();
        if !frames.receiver.has_unparsed() || frames.receiver.room() == 0 {
            return Ok(false);
        }
        let resumed = frames.receiver.resume().and_then(|()| frames.work(serial, bench));
        frames.count();
        frames.note(resumed).map(|()| true)
    }

    /// A worker has done a job.
    pub(crate) fn decoded(&mut self, done: DecodeDone, serial: u64, bench: &mut Bench) -> Result<()> {
        let Some(frames) = &mut self.frames else { return Ok(()) };
        frames.jobs -= 1;
        if frames.failed {
            return Ok(());
        }
        let finished = frames.receiver.finish(done).and_then(|()| frames.work(serial, bench));
        frames.note(finished)
    }

    /// The network has ended, and nothing is pending: whether that was the end of the frames too.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let discards = self.discards;
        let Some(frames) = self.frames.as_mut().filter(|f| !discards && !f.failed) else { return Ok(()) };
        let closed = frames.receiver.close().and_then(|()| match frames.receiver.read() {
            None if frames.receiver.is_finished() => Ok(()),
            _ => Err(narrows::Error::misuse("frames are left behind the end; this is a bug")),
        });
        frames.note(closed)
    }

    /// Nothing more of it is decoded.
    pub(crate) fn fail(&mut self) {
        (self.readable, self.ended) = (false, true);
        if let Some(frames) = &mut self.frames {
            frames.failed = true;
        }
    }

    pub(crate) fn wire_bytes(&self) -> u64 {
        self.plain_bytes + self.frames.as_ref().map_or(0, |f| f.wire_bytes())
    }

    /// The peer's marker is through, and what comes with it.
    pub(crate) fn has_preface(&self) -> bool {
        self.frames.as_ref().is_some_and(|f| f.wire_bytes() >= PREFACE_LEN as u64)
    }

    pub(crate) fn summary(&self) -> Option<&RecvSummary> {
        self.frames.as_ref().map(|f| f.receiver.summary())
    }
}

impl Frames {
    /// Accounts for what it holds, and learns how much that may be.
    fn count(&mut self) {
        self.share.count(self.receiver.held() + self.raw.len());
        let max = self.reading.max().unwrap_or(RECEIVED_MAX).min(RECEIVED_MAX);
        self.gated = self.share.is_exhausted();
        self.receiver.set_memory_max(if self.gated { 0 } else { self.share.memory_max().min(max) });
    }

    /// It holds more than everybody may in any case.
    fn is_hoard(&self) -> bool {
        self.share.held() > MEMORY_MIN
    }

    fn wire_bytes(&self) -> u64 {
        self.receiver.summary().wire_bytes + self.discarded
    }

    fn note(&mut self, result: Result<()>) -> Result<()> {
        self.failed |= result.is_err();
        result
    }

    /// Decodes what came: a few short blocks and `store`, of which only the check is compared, here, the rest by the workers.
    fn work(&mut self, serial: u64, bench: &mut Bench) -> Result<()> {
        let mut here_ns = 0;
        while let Some(job) = self.receiver.poll_job() {
            let short = job.estimate_ns < INLINE_NS && here_ns + job.estimate_ns < HERE_NS && self.jobs == 0;
            if job.is_stored() {
                // Without its time: a clock of the thread is a system call, and this is a comparison.
                let done = job.run(&mut bench.contexts, &bench.buffers);
                self.receiver.finish(done)?;
            } else if short && job.raw_len_max() <= MESSAGE_LEN {
                here_ns += job.estimate_ns;
                let done = job.run(&mut bench.contexts, &bench.buffers);
                self.receiver.finish(done)?;
            } else if short {
                here_ns += job.estimate_ns;
                let done = stream::decode(job, &mut bench.contexts, &bench.buffers);
                self.receiver.finish(done)?;
            } else {
                self.submit(job, serial, bench);
            }
        }
        Ok(())
    }

    fn submit(&mut self, job: DecodeJob, serial: u64, bench: &mut Bench) {
        let (inlet, buffers) = (bench.inlet.clone(), bench.buffers.clone());
        let at_work = bench.ledger.compressor.at_work();
        let task = Box::new(move |contexts: &mut Contexts| {
            let _at_work = at_work;
            let done = Box::new(stream::decode(job, contexts, &buffers));
            inlet.send(Order::Decoded { serial, done });
        });
        self.jobs += 1;
        if let Err(task) = self.queue.submit(task) {
            // The queue holds more than the engine gives out at a time; should it ever not, the block must not be lost.
            task(&mut bench.contexts);
        }
    }
}
