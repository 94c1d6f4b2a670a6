//! Encoding and decoding of streams without I/O, on the caller's thread and in its buffers.

use std::time::Instant;

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::flow::{Budget, Decoding, Encoding, Here};
use narrows::frame::Frame;
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::LinkSample;
use narrows::stream::Alone;

use crate::handles::{Held, Table};
use crate::memory::Room;
use crate::options::{INDEX, NO_CHECK, StreamOptions};
use crate::status::{Failure, Result};

/// Bytes of input that a decoder copies at a time: frames inside one piece are not copied again.
const PIECE_LEN: usize = 256 << 10;

/// How far a call of the encoder goes once it has consumed its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Continue,
    Flush,
    End,
}

pub(crate) struct Encoder {
    encoding: Encoding,
    contexts: Contexts,
    pool: BufferPool,
    /// The frame being written to the output, and how many of its bytes already were.
    frame: Option<Frame>,
    given: usize,
    begun: Instant,
    /// Nanoseconds by which the flow's clock is ahead of the real one: the link times that the
    /// caller reported.
    ahead_ns: u64,
    /// Output bytes of the last call, which the caller is passing on; since when; and how long the
    /// link took, if the caller reported it.
    passing: usize,
    since_ns: u64,
    told_ns: Option<u64>,
    ending: bool,
    over: bool,
}

impl Encoder {
    pub(crate) fn new(options: &StreamOptions) -> Result<Self> {
        Self::with(options, Contexts::default(), BufferPool::default())
    }

    fn with(options: &StreamOptions, contexts: Contexts, pool: BufferPool) -> Result<Self> {
        options.check("encoder", NO_CHECK | INDEX, true)?;
        Ok(Self {
            encoding: options.encoding(&pool)?,
            contexts,
            pool,
            frame: None,
            given: 0,
            begun: Instant::now(),
            ahead_ns: 0,
            passing: 0,
            since_ns: 0,
            told_ns: None,
            ending: false,
            over: false,
        })
    }

    fn now_ns(&self) -> u64 {
        self.clock()()
    }

    fn clock(&self) -> impl Fn() -> u64 + use<> {
        let (begun, ahead_ns) = (self.begun, self.ahead_ns);
        move || begun.elapsed().as_nanos() as u64 + ahead_ns
    }

    /// Reports how long the link took for the output of the last call, if not the time until the
    /// next call.
    pub(crate) fn link_took(&mut self, ns: u64) {
        self.told_ns = Some(ns);
    }

    /// Reports the output of the last call to the policy as sent.
    fn account(&mut self) {
        let accepted = std::mem::take(&mut self.passing) as u64;
        let told_ns = self.told_ns.take();
        if accepted == 0 {
            return;
        }
        let now_ns = self.now_ns();
        let end_ns = told_ns.map_or(now_ns, |ns| self.since_ns.saturating_add(ns));
        self.ahead_ns = self.ahead_ns.saturating_add(end_ns.saturating_sub(now_ns));
        self.encoding.on_link(LinkSample { begin_ns: self.since_ns, end_ns, accepted, ..LinkSample::default() });
    }

    /// Consumes what it can of `input` and writes what it has. Returns the bytes consumed and a
    /// lower bound of the bytes still pending: 0 if everything that `mode` asks for is done.
    pub(crate) fn encode(&mut self, input: &[u8], room: &mut Room, mode: Mode) -> Result<(usize, usize)> {
        if self.over || self.ending && (!input.is_empty() || mode != Mode::End) {
            return Err(Failure::misuse("the stream was ended"));
        }
        self.account();
        let (before, mut taken) = (room.len(), 0);
        let waiting = loop {
            self.give(room);
            if let Some(frame) = &self.frame {
                break frame.wire_len() - self.given;
            }
            let rest = &input[taken..];
            if !rest.is_empty() {
                let now_ns = self.now_ns();
                let n = self.encoding.write(rest, now_ns);
                taken += n;
                if n > 0 && self.encoding.room() > 0 || self.work() {
                    continue;
                }
                break self.encoding.gathered().max(1);
            }
            if mode == Mode::Continue && self.encoding.room() > 0 {
                break 0;
            }
            if mode == Mode::End && !std::mem::replace(&mut self.ending, true) {
                let now_ns = self.now_ns();
                self.encoding.close(now_ns);
            }
            if self.work() || self.encoding.has_frame() {
                continue;
            }
            break self.encoding.gathered();
        };
        self.passing = before - room.len();
        self.since_ns = self.now_ns();
        self.over = waiting == 0 && self.ending;
        Ok((taken, waiting))
    }

    /// Writes frames until there are no more, or no room for the rest of one.
    fn give(&mut self, room: &mut Room) {
        loop {
            let Some(frame) = self.frame.take().or_else(|| self.encoding.poll_transmit()) else { return };
            let head = frame.header.len();
            if self.given < head {
                self.given += room.put(&frame.header[self.given..]);
            }
            if self.given >= head {
                self.given += room.put(&frame.body[self.given - head..]);
            }
            if self.given < frame.wire_len() {
                self.frame = Some(frame);
                return;
            }
            self.given = 0;
        }
    }

    /// Encodes a block. `false` if the sender has none before its output has left.
    fn work(&mut self) -> bool {
        let clock = self.clock();
        let alone = &mut Alone { contexts: &mut self.contexts, buffers: &self.pool };
        self.encoding.work(clock, Budget::ONE, alone)
    }

    /// Begins a new stream. The codecs' contexts and the buffers are kept, which is what makes a
    /// new encoder expensive.
    pub(crate) fn reset(&mut self, options: &StreamOptions) -> Result<()> {
        let mut new = Self::with(options, Contexts::default(), self.pool.clone())?;
        new.contexts = std::mem::take(&mut self.contexts);
        *self = new;
        Ok(())
    }

    pub(crate) fn totals(&self) -> (u64, u64) {
        let summary = self.encoding.summary();
        (summary.raw_bytes, summary.wire_bytes)
    }
}

impl Held for Encoder {
    const KIND: u8 = 3;
    const NAME: &'static str = "encoder";
    fn table() -> &'static Table<Self> {
        static TABLE: Table<Encoder> = Table::new();
        &TABLE
    }
}

pub(crate) struct Decoder {
    decoding: Decoding,
    contexts: Contexts,
    pool: BufferPool,
    /// Decoded bytes for which the output had no room yet.
    raw: Block,
    failure: Option<Failure>,
}

impl Decoder {
    pub(crate) fn new(options: &StreamOptions) -> Result<Self> {
        options.check("decoder", 0, false)?;
        Ok(Self::with(Contexts::default(), BufferPool::default()))
    }

    fn with(contexts: Contexts, pool: BufferPool) -> Self {
        let decoding = Decoding::new(Receiver::new(ReceiverConfig::default(), pool.clone()));
        Self { decoding, contexts, pool, raw: Block::default(), failure: None }
    }

    /// Expects a new stream, whatever became of the last one. The codecs' contexts and the buffers
    /// are kept.
    pub(crate) fn reset(&mut self) {
        *self = Self::with(std::mem::take(&mut self.contexts), self.pool.clone());
    }

    /// Consumes what it can of `input` and writes what it has, even before a failure. Returns the
    /// bytes consumed, and whether the stream is complete.
    pub(crate) fn decode(&mut self, input: &[u8], room: &mut Room) -> (usize, Result<bool>) {
        let mut taken = 0;
        let result = self.alive().and_then(|()| self.advance(input, &mut taken, room));
        let result = result.inspect_err(|e| self.failure = Some(e.clone()));
        (taken, result.map(|()| self.decoding.is_finished() && self.raw.is_empty()))
    }

    fn alive(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn advance(&mut self, input: &[u8], taken: &mut usize, room: &mut Room) -> Result<()> {
        loop {
            let given = room.put(&self.raw);
            let _ = self.raw.split_to(given);
            if !self.raw.is_empty() {
                return Ok(());
            }
            if let Some(raw) = self.decoding.read() {
                self.raw = raw;
                continue;
            }
            let here = &mut Here { contexts: &mut self.contexts, buffers: &self.pool };
            if self.decoding.work(Budget::ONE, here)? {
                continue;
            }
            if self.decoding.has_unparsed() && self.decoding.room() > 0 {
                self.decoding.resume()?;
                if !self.decoding.has_unparsed() {
                    continue;
                }
            }
            let rest = &input[*taken..];
            let len = rest.len().min(PIECE_LEN).min(self.decoding.room());
            if len == 0 || self.decoding.has_unparsed() {
                return Ok(());
            }
            self.decoding.receive(Block::from_vec(rest[..len].to_vec()))?;
            *taken += len;
        }
    }

    /// States that no more input will come. An error if the stream is incomplete.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.alive()?;
        if self.decoding.has_unparsed() || self.decoding.has_raw() || !self.raw.is_empty() {
            return Err(Failure::misuse("output is pending: call narrows_decode until it consumes and writes nothing"));
        }
        self.decoding.close().map_err(|e| self.failure.insert(e.into()).clone())
    }

    pub(crate) fn totals(&self) -> (u64, u64) {
        let summary = self.decoding.summary();
        (summary.raw_bytes, summary.wire_bytes)
    }
}

impl Held for Decoder {
    const KIND: u8 = 4;
    const NAME: &'static str = "decoder";
    fn table() -> &'static Table<Self> {
        static TABLE: Table<Decoder> = Table::new();
        &TABLE
    }
}
