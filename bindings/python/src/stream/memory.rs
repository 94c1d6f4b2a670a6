//! Whole streams in memory.

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::{Job, LinkSample, Sender};
use narrows::stream;
use narrows::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::{clock, decode, run, sending, threads};
use crate::buffer::Bytes;
use crate::error::raised;

/// Bytes that are given to the engine at a time; Python may handle a signal in between.
const PIECE: usize = 1 << 20;

/// Encodes the bytes of any object with the buffer protocol as one stream, which ``decompress``, ``open`` and the
/// program ``narrows pipe -d`` read.
///
/// ``policy``: by which rule methods are chosen. There is no link here whose speed could say what compressing is
/// worth, so it is a fixed method, ``fixed:zstd``; others are ``fixed:lz4``, ``fixed:xz:level=6`` and so on.
/// ``threads``: threads that encode, by default one for each core but one. The interpreter's lock is released for
/// each block. Raises ``MisuseError`` for a wrong policy.
#[pyfunction]
#[pyo3(signature = (data, policy = "fixed:zstd", *, threads = None))]
pub(crate) fn compress<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    policy: &str,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = Bytes::of(data)?;
    let threads = self::threads(threads, stream::encoders).map_err(raised)?;
    let (mut config, policy) = sending(policy, threads).map_err(raised)?;
    config.raw_len = Some(bytes.len() as u64);
    let buffers = BufferPool::default();
    let mut encoding = Encoding {
        sender: Sender::new(config, policy, buffers.clone()),
        buffers,
        contexts: Vec::new(),
        clock: Box::new(clock()),
        wire: Vec::new(),
    };
    let mut at = 0;
    while at < bytes.len() {
        at += bytes.with(py, |b| encoding.take(&b[at..(at + PIECE).min(b.len())]));
        py.detach(|| encoding.work());
        py.check_signals()?;
    }
    encoding.sender.close((encoding.clock)());
    py.detach(|| encoding.work());
    if !encoding.sender.is_drained() {
        return Err(raised(Error::misuse("the stream could not be ended; this is a bug")));
    }
    Ok(PyBytes::new(py, &encoding.wire))
}

struct Encoding {
    sender: Sender,
    buffers: BufferPool,
    contexts: Vec<Contexts>,
    clock: Box<dyn Fn() -> u64 + Send>,
    wire: Vec<u8>,
}

impl Encoding {
    fn take(&mut self, raw: &[u8]) -> usize {
        self.sender.write(raw, (self.clock)())
    }

    /// Encodes all that was taken.
    fn work(&mut self) {
        let Self { sender, buffers, contexts, clock, wire } = self;
        loop {
            let jobs: Vec<Job> = std::iter::from_fn(|| sender.poll_job(clock())).collect();
            let any = !jobs.is_empty();
            for done in run(jobs, contexts, |j| j.estimate_ns, |job, c| stream::encode(job, c, buffers)) {
                sender.finish(done, clock());
            }
            let begin_ns = clock();
            let before = wire.len();
            while let Some(frame) = sender.poll_transmit() {
                wire.extend_from_slice(&frame.header);
                wire.extend_from_slice(&frame.body);
            }
            let accepted = (wire.len() - before) as u64;
            sender.on_link(LinkSample { begin_ns, end_ns: clock(), accepted, ..LinkSample::default() });
            if !any && accepted == 0 {
                return;
            }
        }
    }
}

/// Decodes one whole stream.
///
/// ``max_length``: longest result in bytes, by default 1 GiB, since a few bytes may stand for very many; ``None`` is
/// no limit. ``threads``: threads that decode, by default one for each core. The interpreter's lock is released for
/// each block. Raises ``CorruptError``, ``TruncatedError`` (an ``EOFError``), ``UnsupportedError``, and
/// ``LimitError`` for a longer result.
#[pyfunction]
#[pyo3(signature = (data, max_length = Some(1 << 30), *, threads = None), text_signature = "(data, max_length=1073741824, *, threads=None)")]
pub(crate) fn decompress<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    max_length: Option<usize>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = Bytes::of(data)?;
    let cores = self::threads(threads, stream::cores).map_err(raised)?;
    let buffers = BufferPool::default();
    let config = ReceiverConfig { cores, ..ReceiverConfig::default() };
    let mut decoding = Decoding {
        receiver: Receiver::new(config, buffers.clone()),
        buffers,
        contexts: Vec::new(),
        blocks: Vec::new(),
        len: 0,
        len_max: max_length.unwrap_or(usize::MAX),
    };
    for at in (0..bytes.len()).step_by(PIECE) {
        let wire = bytes.with(py, |b| Block::from_vec(b[at..(at + PIECE).min(b.len())].to_vec()));
        py.detach(|| decoding.take(wire)).map_err(raised)?;
        py.check_signals()?;
    }
    decoding.receiver.close().map_err(raised)?;
    let pieces = PyList::new(py, decoding.blocks.iter().map(|block| PyBytes::new(py, block)))?;
    drop(decoding);
    Ok(PyBytes::new(py, b"").call_method1("join", (pieces,))?.cast_into()?)
}

struct Decoding {
    receiver: Receiver,
    buffers: BufferPool,
    contexts: Vec<Contexts>,
    blocks: Vec<Block>,
    len: usize,
    len_max: usize,
}

impl Decoding {
    fn take(&mut self, wire: Block) -> Result<()> {
        self.receiver.receive(wire)?;
        loop {
            let any = decode(&mut self.receiver, &mut self.contexts, &self.buffers)?;
            let mut read = false;
            while let Some(raw) = self.receiver.read() {
                read = true;
                self.len += raw.len();
                if self.len > self.len_max {
                    let text = format!("the result is longer than {} bytes: raise max_length", self.len_max);
                    return Err(Error::limit(text));
                }
                self.blocks.push(raw);
            }
            if self.receiver.has_unparsed() {
                self.receiver.resume()?;
            } else if !any && !read {
                return Ok(());
            }
        }
    }
}
