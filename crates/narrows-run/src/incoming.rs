//! Direction from the network to the program: plain bytes, then the contents of the peer's frames.

use std::os::fd::OwnedFd;

use narrows::Result;
use narrows::block::Block;
use narrows::flow::{Budget, Decoding, MEMORY_MIN, Share};
use narrows::frame::{PREFACE_LEN, Scan};
use narrows::pool::Queue;
use narrows::receiver::{DecodeDone, RecvSummary};
use narrows::stream::RECEIVED_MAX;
use narrows_host::encrypted::FirstBytes;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::allowance::Reading;
use super::behind::{Behind, Told};
use super::compressor::is_exhausted;
use super::shared::{Order, PumpContext};
use super::socket::{self, Waiting};

mod ahead;

/// Network reads start with buffers of this size, which grow while reads fill them, so that a quiet
/// connection holds little memory.
const READ_LEN_FIRST: usize = 16 << 10;
/// Longest read. Frames inside a buffer are not copied; the longer the buffer, the fewer frames
/// straddle two.
const READ_LEN: usize = 256 << 10;
/// Interval at which exhausted memory is checked again.
const LOOK_AGAIN_NS: u64 = 20_000_000;
/// A program that reads nothing for this long while the shared memory is used up blocks all others,
/// so its connection is reset.
const HOARD_NS: u64 = if cfg!(test) { 1_000_000_000 } else { 10_000_000_000 };
const TAKEN_EVERY_NS: u64 = HOARD_NS / 10;

#[derive(Default)]
pub struct Incoming {
    /// Plain bytes that the program has not taken yet.
    waiting: Waiting,
    frames: Option<Box<Frames>>,
    /// The network may have something.
    pub readable: bool,
    stage: Stage,
    /// The program takes nothing more; further bytes are discarded.
    discards: bool,
    /// Bytes for the program so far.
    pub bytes: u64,
    /// Bytes received before the frames, including the marker.
    plain_bytes: u64,
    pub first: FirstBytes,
}

/// How far the direction has come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The network may bring more.
    #[default]
    Open,
    /// The network side has ended and all its bytes were read.
    Ended,
    /// The program was told of the end.
    Shut,
}

/// State of the direction since its marker.
struct Frames {
    decoding: Decoding,
    scan: Scan,
    /// What the peer says of the direction to it.
    told: Told,
    /// Frames that were read although the receiver has no room for them.
    behind: Behind,
    /// Bytes for the program before the frames.
    plain_len: u64,
    /// The rest of the latest block, which the program has not taken yet.
    raw: Block,
    queue: Queue,
    share: Share,
    reading: Reading,
    /// Bytes that the program had taken at the last look, and the time since when that has not
    /// changed.
    taken: (u64, u64),
    /// Decoding is paused because memory is exhausted.
    gated: bool,
    read_len: usize,
    failed: bool,
    /// Bytes that came when the program was no longer reading.
    discarded: u64,
}

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// This many bytes; there may be more.
    Some(usize),
    /// This many bytes, and no more for now.
    Last(usize),
    Nothing,
    End,
    Broken(Errno),
}

impl Incoming {
    pub fn new() -> Self {
        Self { readable: true, ..Self::default() }
    }

    pub fn is_framed(&self) -> bool {
        self.frames.is_some()
    }

    /// Whether nothing more is read from the network.
    pub fn has_ended(&self) -> bool {
        self.stage != Stage::Open
    }

    pub fn is_shut(&self) -> bool {
        self.stage == Stage::Shut
    }

    /// All bytes of the network were read.
    pub fn end(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Ended;
        }
    }

    /// The program was told of the end.
    pub fn shut(&mut self) {
        self.stage = Stage::Shut;
    }

    /// The program takes nothing more.
    pub fn discard(&mut self) {
        self.discards = true;
        if let Some(frames) = &mut self.frames {
            frames.discarded += frames.behind.len() as u64;
            frames.behind = Behind::default();
        }
    }

    /// Whether something waits for the program to read.
    pub fn is_blocked(&self) -> bool {
        self.waiting.len() > 0 || self.frames.as_ref().is_some_and(|f| !f.raw.is_empty())
    }

    /// Whether received bytes are still on their way to the program.
    pub fn is_pending(&self) -> bool {
        let framed = self.frames.as_ref().is_some_and(|f| {
            let working = !f.failed && (f.decoding.jobs() > 0 || f.has_undecoded());
            working || !f.raw.is_empty() || f.decoding.has_raw()
        });
        !self.discards && (self.waiting.len() > 0 || framed)
    }

    /// Whether more may be read. Received frames are decoded first.
    pub fn has_room(&self) -> bool {
        let full = |f: &Frames| f.failed || f.decoding.room() == 0 || f.has_undecoded();
        self.discards || !self.frames.as_ref().is_some_and(|f| full(f))
    }

    /// Updates the memory accounted to this direction, and its limit.
    pub fn count(&mut self) {
        if let Some(frames) = &mut self.frames {
            frames.count();
        }
    }

    /// The frame state, if the direction still delivers anything.
    fn live(&self) -> Option<&Frames> {
        self.frames.as_deref().filter(|f| !self.discards && !f.failed && !self.is_shut())
    }

    /// When to look at it again even if no event comes.
    pub fn next_wakeup_ns(&self, now_ns: u64) -> Option<u64> {
        let frames = self.live()?;
        let again_ns = now_ns + LOOK_AGAIN_NS;
        let hoard_ns = (self.is_blocked() && frames.is_hoard()).then(|| (frames.taken.1 + HOARD_NS).max(again_ns));
        if frames.gated { Some(again_ns) } else { hoard_ns }
    }

    /// Whether it holds memory that others need while its program reads nothing.
    pub fn keeps_others_waiting(&self, now_ns: u64) -> bool {
        let idle = |f: &Frames| f.is_hoard() && is_exhausted(&f.share) && now_ns >= f.taken.1 + HOARD_NS;
        self.is_blocked() && self.live().is_some_and(idle)
    }

    /// Drops everything that the program has not taken.
    pub fn give_up(&mut self, context: &PumpContext) {
        self.waiting.clear();
        if let Some(frames) = &mut self.frames {
            frames.failed = true;
            frames.decoding = context.shared.compressor.receive_options().decoding(&context.buffers);
            frames.raw = Block::default();
            frames.behind = Behind::default();
            frames.count();
        }
    }

    /// Measures how fast the program reads. Call after each [`Incoming::flush`].
    pub fn note_pace(&mut self, context: &PumpContext) {
        let blocked = self.is_blocked();
        if let Some(frames) = &mut self.frames {
            let taken = self.bytes - frames.raw.len() as u64;
            let now_ns = context.now_ns();
            // Not for every piece, because it moves a timer.
            if (taken != frames.taken.0 || !blocked) && now_ns >= frames.taken.1 + TAKEN_EVERY_NS {
                frames.taken = (taken, now_ns);
            }
        }
        if let Some(frames) = self.frames.as_mut().filter(|f| blocked || !f.reading.is_idle()) {
            frames.reading.took(context.now_ns(), self.bytes - frames.raw.len() as u64, blocked);
        }
    }

    /// Switches to frames, which begin after a marker of this length.
    pub fn switch(&mut self, marker_len: usize, serial: u64, context: &PumpContext) {
        self.plain_bytes += marker_len as u64;
        let compressor = &context.shared.compressor;
        let mut frames = Box::new(Frames {
            decoding: compressor.receive_options().decoding(&context.buffers),
            scan: Scan::default(),
            told: Told::default(),
            behind: Behind::default(),
            plain_len: self.bytes,
            raw: Block::default(),
            queue: compressor.decoders(context.on_panic(serial)),
            share: compressor.memory.share(),
            reading: Reading::default(),
            taken: (0, context.now_ns()),
            gated: false,
            read_len: READ_LEN_FIRST,
            failed: false,
            discarded: 0,
        });
        // Before the first frame, so that what other directions already hold limits this one.
        frames.count();
        self.frames = Some(frames);
    }

    /// Writes what waits. False if the program has no room. `Err` if it takes nothing more.
    pub fn flush(&mut self, program: &OwnedFd) -> std::result::Result<bool, Errno> {
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
                let Some(raw) = frames.decoding.read() else { return Ok(true) };
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
                // Returns the buffer to the pool.
                frames.raw = Block::default();
            }
        }
    }

    /// Passes plain bytes on; what the program does not take waits.
    pub fn pass(&mut self, input: &[u8], program: &OwnedFd) -> std::result::Result<(), Errno> {
        self.bytes += input.len() as u64;
        self.plain_bytes += input.len() as u64;
        self.first.look(input);
        if self.discards { Ok(()) } else { self.waiting.pass(input, program) }
    }

    /// Counts an urgent byte that was passed on between plain ones.
    pub fn count_urgent(&mut self) {
        self.bytes += 1;
        self.plain_bytes += 1;
    }

    /// Reads frames. Call only if [`Incoming::has_room`].
    pub fn read(&mut self, network: &OwnedFd, serial: u64, context: &mut PumpContext) -> Result<Read> {
        let Some(frames) = &mut self.frames else { return Ok(Read::Nothing) };
        let len = frames.read_len;
        let mut buffer = context.buffers.get(len);
        let read = socket::read(network, &mut buffer.bytes_mut()[..len], RecvFlags::empty());
        let block = buffer.freeze(read.unwrap_or(0));
        context.buffers.recycle(&block);
        let n = match read {
            Ok(0) => return Ok(Read::End),
            Ok(n) => n,
            Err(Errno::AGAIN) => return Ok(Read::Nothing),
            Err(e) => return Ok(Read::Broken(e)),
        };
        let grown = if n == len { (2 * len).min(READ_LEN) } else { len };
        frames.read_len = if n < READ_LEN_FIRST { READ_LEN_FIRST } else { grown };
        self.receive(block, serial, context)?;
        Ok(if n == len { Read::Some(n) } else { Read::Last(n) })
    }

    /// Takes received bytes of frames.
    pub fn receive(&mut self, wire: Block, serial: u64, context: &mut PumpContext) -> Result<()> {
        let Some(frames) = &mut self.frames else { return Ok(()) };
        frames.listen(&wire);
        if self.discards {
            frames.discarded += wire.len() as u64;
            return Ok(());
        }
        frames.count();
        if frames.has_undecoded() || frames.decoding.room() == 0 {
            frames.behind.push(&wire);
            frames.count();
            return Ok(());
        }
        let received = frames.decoding.receive(wire).and_then(|()| frames.work(serial, context));
        frames.count();
        frames.note(received)
    }

    /// Continues with frames that found no room before. True if there were any.
    pub fn resume(&mut self, serial: u64, context: &mut PumpContext) -> Result<bool> {
        let discards = self.discards;
        let Some(frames) = self.frames.as_mut().filter(|f| !discards && !f.failed) else { return Ok(false) };
        frames.count();
        if !frames.has_undecoded() || frames.decoding.room() == 0 {
            return Ok(false);
        }
        let resumed = frames.resume().and_then(|()| frames.work(serial, context));
        frames.count();
        frames.note(resumed).map(|()| true)
    }

    /// Takes the result of a worker's job.
    pub fn decoded(&mut self, done: DecodeDone, serial: u64, context: &mut PumpContext) -> Result<()> {
        let Some(frames) = &mut self.frames else { return Ok(()) };
        if frames.failed {
            return Ok(());
        }
        let finished = frames.decoding.finish(done).and_then(|()| frames.work(serial, context));
        frames.note(finished)
    }

    /// Checks, after the network has ended and nothing is pending, that the frame stream ended too.
    pub fn finish(&mut self) -> Result<()> {
        let discards = self.discards;
        let Some(frames) = self.frames.as_mut().filter(|f| !discards && !f.failed) else { return Ok(()) };
        let closed = frames.decoding.close().and_then(|()| match frames.decoding.read() {
            None if frames.decoding.is_finished() => Ok(()),
            _ => Err(narrows::Error::misuse("frames are left behind the end; this is a bug")),
        });
        frames.note(closed)
    }

    /// Stops decoding for good.
    pub fn fail(&mut self) {
        self.readable = false;
        self.end();
        if let Some(frames) = &mut self.frames {
            frames.failed = true;
        }
    }

    pub fn wire_bytes(&self) -> u64 {
        self.plain_bytes + self.frames.as_ref().map_or(0, |f| f.wire_bytes())
    }

    /// Whether the peer's marker and the preface after it have arrived.
    pub fn has_preface(&self) -> bool {
        self.frames.as_ref().is_some_and(|f| f.wire_bytes() >= PREFACE_LEN as u64)
    }

    pub fn summary(&self) -> Option<&RecvSummary> {
        self.frames.as_ref().map(|f| f.decoding.summary())
    }
}

impl Frames {
    /// Updates the memory accounted to this direction, and its limit.
    fn count(&mut self) {
        let beside = self.raw.len() + self.behind.len();
        let max = self.reading.max().unwrap_or(RECEIVED_MAX).min(RECEIVED_MAX);
        self.decoding.count(&mut self.share, beside, max);
        self.gated = is_exhausted(&self.share);
        if self.gated {
            self.decoding.set_memory_max(0);
        }
    }

    /// Whether it holds more than the minimum that every direction may have.
    fn is_hoard(&self) -> bool {
        self.share.held() > MEMORY_MIN
    }

    fn wire_bytes(&self) -> u64 {
        self.decoding.summary().wire_bytes + self.behind.len() as u64 + self.discarded
    }

    fn note(&mut self, result: Result<()>) -> Result<()> {
        self.failed |= result.is_err();
        result
    }

    /// Decodes received blocks: a few short ones here, the workers do the rest.
    fn work(&mut self, serial: u64, context: &mut PumpContext) -> Result<()> {
        let mut workers = context.workers(&self.queue, move |done| Order::Decoded { serial, done });
        self.decoding.work(Budget::FEW, &mut workers).map(drop)
    }
}
