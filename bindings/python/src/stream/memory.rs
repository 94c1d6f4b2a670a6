//! Encoding and decoding of whole streams in memory.

use std::cell::Cell;
use std::time::Instant;

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::flow::{Budget, Decoding, Encoding};
use narrows::frame::{self, ControlKind, END_FRAME_LEN, EndTotals, Header, ReadLimits};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::LinkSample;
use narrows::stream::{self, SendOptions};
use narrows::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::{Batch, decode, sending, threads, with_level};
use crate::buffer::{Bytes, Filling};
use crate::error::raised;

/// Bytes passed to the engine at a time; Python may handle a signal in between.
const PIECE: usize = 1 << 20;
/// Up to this length in bytes the interpreter's lock is kept: zstd takes some 20 us, less than
/// another thread needs to take the lock.
const BRIEF: usize = 8 << 10;
/// Up to this length in bytes a second thread is not worth starting.
const ALONE_LEN: usize = 256 << 10;
/// Blocks in flight per thread, if there are several threads: a thread is worth starting for
/// several short blocks.
const BLOCKS_PER_THREAD: usize = 4;
/// A result is allocated at once with the length in the stream's end frame if that is at most this
/// many bytes, or [`BELIEVED_RATIO`] times the input. Longer results grow as they are decoded.
const BELIEVED_MAX: usize = 64 << 20;
const BELIEVED_RATIO: usize = 1024;

/// Encodes the bytes of any object with the buffer protocol as one stream, which ``decompress``,
/// ``open`` and ``narrows pipe -d`` read.
///
/// - ``policy``: chooses the compression method. There is no link whose speed could be measured, so
///   it is a fixed method, by default ``fixed:zstd``; others are ``fixed:lz4``,
///   ``fixed:xz:level=6`` and so on.
/// - ``level``: level of the method, for zstd 1 to 22; by default that of the policy.
/// - ``threads``: number of threads that encode, by default one per core but one.
///
/// Releases the interpreter's lock unless the data is short. Raises ``MisuseError`` for a wrong
/// policy.
#[pyfunction]
#[pyo3(signature = (data, policy = "fixed:zstd", *, level = None, threads = None))]
pub(crate) fn compress<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    policy: &str,
    level: Option<i32>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = Bytes::of(data)?;
    let threads = threads_for(bytes.len(), threads, stream::encoders)?;
    let policy = with_level(policy, level).map_err(raised)?;
    let options = sending(&policy, threads).map_err(raised)?.gather_ns(0).raw_len(bytes.len() as u64);
    let is_brief = bytes.len() <= BRIEF;
    let mut encoding = Compressing::new(options, threads, Kept::take());
    // The time means nothing to a fixed method, and looking at clocks takes longer than the rest.
    encoding.timed = !is_brief || !policy.starts_with("fixed:");
    let mut at = 0;
    while at < bytes.len() {
        at += bytes.with(py, |b| encoding.take(&b[at..(at + PIECE).min(b.len())]));
        aside(py, is_brief, || encoding.work());
        py.check_signals()?;
    }
    aside(py, is_brief, || encoding.end()).map_err(raised)?;
    let Compressing { flow, kept, wire, .. } = encoding;
    drop(flow);
    kept.keep(is_brief);
    Ok(PyBytes::new(py, &wire))
}

/// A flow, with what it needs to be encoded by calls.
pub(super) struct Compressing {
    pub(super) flow: Encoding,
    kept: Kept,
    threads: usize,
    begun: Instant,
    timed: bool,
    pub(super) wire: Vec<u8>,
}

impl Compressing {
    /// `options`: of a stream without a link.
    pub(super) fn new(options: SendOptions, threads: usize, kept: Kept) -> Self {
        let flow = options.encoding(&kept.buffers);
        Self { flow, kept, threads, begun: Instant::now(), timed: true, wire: Vec::new() }
    }

    fn now_ns(&self) -> u64 {
        self.clock()()
    }

    fn clock(&self) -> impl Fn() -> u64 + use<> {
        let (begun, timed) = (self.begun, self.timed);
        move || if timed { begun.elapsed().as_nanos() as u64 } else { 0 }
    }

    /// Takes as many raw bytes as there is room for, and returns how many.
    pub(super) fn take(&mut self, raw: &[u8]) -> usize {
        let now_ns = self.now_ns();
        self.flow.write(raw, now_ns)
    }

    /// Ends the stream. All of it is in `wire` then.
    pub(super) fn end(&mut self) -> Result<()> {
        let now_ns = self.now_ns();
        self.flow.close(now_ns);
        self.work();
        if self.flow.is_drained() { Ok(()) } else { Err(stuck()) }
    }

    /// Encodes the blocks that are due of everything taken so far.
    pub(super) fn work(&mut self) {
        loop {
            let clock = self.clock();
            let Kept { contexts, buffers } = &mut self.kept;
            let mut batch = Batch { contexts, buffers, timed: self.timed, jobs: Vec::new() };
            let any = self.flow.work(&clock, Budget::BULK, &mut batch);
            for done in batch.run_all(self.threads) {
                self.flow.finish(done, clock());
            }
            let begin_ns = self.now_ns();
            let before = self.wire.len();
            while let Some(frame) = self.flow.poll_transmit() {
                self.wire.extend_from_slice(&frame.header);
                self.wire.extend_from_slice(&frame.body);
            }
            let accepted = (self.wire.len() - before) as u64;
            let end_ns = self.now_ns();
            self.flow.on_link(LinkSample { begin_ns, end_ns, accepted, ..LinkSample::default() });
            if !any && accepted == 0 {
                return;
            }
        }
    }
}

/// Decodes one whole stream, or several one after the other.
///
/// - ``max_length``: maximum length of the result in bytes, by default 1 GiB, since a few bytes may
///   expand to very many; ``None`` is no limit.
/// - ``threads``: number of threads that decode, by default one per core.
///
/// Releases the interpreter's lock unless the data is short. Raises ``CorruptError``,
/// ``TruncatedError`` (an ``EOFError``), ``UnsupportedError``, and ``LimitError`` for a longer
/// result.
#[pyfunction]
#[pyo3(signature = (data, max_length = Some(1 << 30), *, threads = None), text_signature = "(data, max_length=1073741824, *, threads=None)")]
pub(crate) fn decompress<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    max_length: Option<usize>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = Bytes::of(data)?;
    let len_max = max_length.unwrap_or(usize::MAX);
    let told = bytes.with(py, told_len).filter(|&told| told <= len_max);
    let threads = threads_for(told.unwrap_or(bytes.len()), threads, stream::cores)?;
    let believed = told.filter(|&told| told <= BELIEVED_MAX.max(bytes.len().saturating_mul(BELIEVED_RATIO)));
    let kept = Kept::take();
    // A single thread takes each block while it is still in the cache.
    let under_way = if threads == 1 { 1 } else { threads * BLOCKS_PER_THREAD };
    let config = ReceiverConfig { cores: under_way, keeps_rest: true, images: true, ..ReceiverConfig::default() };
    let mut decoding = Decompressing {
        flow: Decoding::new(Receiver::new(config.clone(), kept.buffers.clone())),
        config,
        kept,
        threads,
        result: believed.map(|len| Filling::new(py, len)).transpose()?,
        blocks: Vec::new(),
        len: 0,
        len_max,
    };
    let is_brief = bytes.len() <= BRIEF && told.is_some_and(|told| told <= BRIEF);
    for at in (0..bytes.len()).step_by(PIECE) {
        let wire = bytes.with(py, |b| decoding.block(&b[at..(at + PIECE).min(b.len())]));
        aside(py, is_brief, || decoding.take(wire)).map_err(raised)?;
        py.check_signals()?;
    }
    decoding.flow.close().map_err(raised)?;
    let Decompressing { flow, kept, result, blocks, .. } = decoding;
    drop(flow);
    let result = match result {
        Some(result) => result.done(py).ok_or_else(|| raised(wrong_totals()))?,
        None => {
            let pieces = PyList::new(py, blocks.iter().map(|block| PyBytes::new(py, block)))?;
            drop(blocks);
            PyBytes::new(py, b"").call_method1("join", (pieces,))?.cast_into()?
        }
    };
    kept.keep(is_brief);
    Ok(result)
}

/// Decoded length according to the end frame of the stream. Only decoding shows whether it is true.
fn told_len(wire: &[u8]) -> Option<usize> {
    let no_blocks = ReadLimits { block_max: 0, history: 0, codecs: 0, check: true, messages: false, reach: 0 };
    let end = &wire[wire.len().checked_sub(END_FRAME_LEN)?..];
    let Ok(Some(Header::Control(header))) = frame::parse_header(end, &no_blocks) else { return None };
    let totals = EndTotals::parse(end.get(header.header_len..)?).ok()?;
    let is_end = header.kind == ControlKind::End && totals.wire_total == (wire.len() - END_FRAME_LEN) as u64;
    usize::try_from(totals.raw_total).ok().filter(|_| is_end)
}

fn stuck() -> Error {
    Error::misuse("the stream could not be ended; this is a bug")
}

fn wrong_totals() -> Error {
    Error::corrupt("the totals of the end frame do not match the stream")
}

struct Decompressing {
    flow: Decoding,
    config: ReceiverConfig,
    kept: Kept,
    threads: usize,
    /// Destination of decoded bytes; `None` if the length is unknown, then they go to `blocks`.
    result: Option<Filling>,
    blocks: Vec<Block>,
    len: usize,
    len_max: usize,
}

impl Decompressing {
    /// Copies a piece of the input to a block.
    fn block(&self, wire: &[u8]) -> Block {
        let mut buffer = self.kept.buffers.get(wire.len());
        buffer.bytes_mut()[..wire.len()].copy_from_slice(wire);
        let block = buffer.freeze(wire.len());
        self.kept.buffers.recycle(&block);
        block
    }

    fn take(&mut self, wire: Block) -> Result<()> {
        if !self.flow.is_finished() {
            self.flow.receive(wire)?;
            self.work()?;
            if !self.flow.is_finished() {
                return Ok(());
            }
            let mut rest = self.flow.take_rest();
            return rest.try_for_each(|wire| self.take(wire));
        }
        // Another stream begins.
        self.flow = Decoding::new(Receiver::new(self.config.clone(), self.kept.buffers.clone()));
        self.take(wire).map_err(|e| match self.flow.preface() {
            None => Error::corrupt("what follows the end of the stream is no other one"),
            Some(_) => e,
        })
    }

    /// Decodes everything received.
    fn work(&mut self) -> Result<()> {
        loop {
            let Kept { contexts, buffers } = &mut self.kept;
            let any = decode(&mut self.flow, self.threads, false, contexts, buffers)?;
            let read = self.read()?;
            if self.flow.has_unparsed() && !self.flow.has_end() {
                self.flow.resume()?;
            } else if !any && !read {
                return Ok(());
            }
        }
    }

    /// Takes all decoded blocks. Returns whether there were any.
    fn read(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(raw) = self.flow.read() {
            any = true;
            self.len += raw.len();
            if self.len > self.len_max {
                let text = format!("the result is longer than {} bytes: raise max_length", self.len_max);
                return Err(Error::limit(text));
            }
            let Some(result) = &mut self.result else {
                self.blocks.push(raw);
                continue;
            };
            if !result.put(&raw) {
                return Err(wrong_totals());
            }
        }
        Ok(any)
    }
}

/// Number of threads for `len` bytes. One or two blocks are done faster than the system reports the
/// number of cores.
fn threads_for(len: usize, asked: Option<usize>, default: fn() -> usize) -> PyResult<usize> {
    let alone = || 1;
    threads(asked, if len <= ALONE_LEN { alone } else { default }).map_err(raised)
}

/// Runs `work` without the interpreter's lock, unless it is brief.
fn aside<R: Send>(py: Python<'_>, is_brief: bool, work: impl FnOnce() -> R + Send) -> R {
    if is_brief { work() } else { py.detach(work) }
}

/// Codec contexts and buffers that a thread keeps between calls: making them takes longer than
/// decoding a short stream.
#[derive(Default)]
pub(super) struct Kept {
    contexts: Vec<Contexts>,
    buffers: BufferPool,
}

thread_local! {
    static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
}

impl Kept {
    /// Takes those of the thread. A nested call, from a signal handler, finds none and makes its
    /// own.
    fn take() -> Self {
        KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    fn keep(mut self, is_brief: bool) {
        self.contexts.truncate(1);
        if !is_brief {
            self.buffers.trim();
        }
        // Fails only while the thread ends.
        let _ = KEPT.try_with(|kept| kept.set(Some(self)));
    }
}
