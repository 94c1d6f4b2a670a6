//! Decoding of a stream piece by piece.

use std::collections::VecDeque;

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::flow::{Budget, Decoding, Here};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::{Error, ErrorKind, Result};
use pyo3::exceptions::PyEOFError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::turn::Turn;
use crate::buffer::{self, Bytes, Pinned};

/// Bytes of input that are copied at a time: frames inside one piece are not copied again.
const PIECE: usize = 256 << 10;
/// Most raw and wire bytes held beside the input and the result: some blocks of any length.
const MEMORY_MAX: usize = 4 << 20;
/// Up to this length in bytes input is copied while nobody can change it.
const BRIEF: usize = 1 << 10;

/// Decodes a stream piece by piece, as ``bz2.BZ2Decompressor`` and Python 3.14's
/// ``ZstdDecompressor`` do::
///
///     decompressor = narrows.Decompressor()
///     while not decompressor.eof:
///         if not (wire := file.read(65536)):
///             raise EOFError("the stream is truncated")
///         use(decompressor.decompress(wire))
///
/// A stream that is cut is no error here: ``eof`` stays false. What follows the stream is in
/// ``unused_data``; if it is another stream, decode it with a new object. Every byte that is
/// returned has passed its check.
///
/// Several threads may use one object: their calls run one after the other, without the
/// interpreter's lock.
#[pyclass(frozen, module = "narrows")]
pub(crate) struct Decompressor(Turn<Decompressing>);

#[pymethods]
impl Decompressor {
    #[new]
    fn new() -> Self {
        let buffers = BufferPool::default();
        // It also reads links (narrows.aio), whose peers have no use for images.
        let config = ReceiverConfig { memory_max: MEMORY_MAX, keeps_rest: true, ..ReceiverConfig::default() };
        Self(Turn::new(Decompressing {
            decoding: Decoding::new(Receiver::new(config, buffers.clone())),
            contexts: Contexts::default(),
            buffers,
            raw: Block::default(),
            input: VecDeque::new(),
            needs_input: true,
            eof: false,
            unused: Vec::new(),
            failure: None,
        }))
    }

    /// Takes bytes of the stream; returns the decoded bytes that are ready, which may be none.
    ///
    /// - ``max_length``: most bytes to return; by default there is no limit, and a few bytes may
    ///   expand to very many. What is left of the input is kept: while ``needs_input`` is false,
    ///   ``decompress(b"", max_length)`` returns more.
    ///
    /// Raises ``CorruptError``, ``UnsupportedError`` and ``LimitError``, then again in every call,
    /// and ``EOFError`` after the end of the stream.
    #[pyo3(signature = (data, max_length = -1), text_signature = "($self, data, max_length=-1)")]
    fn decompress<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        max_length: i64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let most = usize::try_from(max_length).unwrap_or(usize::MAX);
        let bytes = Bytes::of(data)?;
        let found = if bytes.len() <= BRIEF {
            let wire = bytes.with(py, <[u8]>::to_vec);
            self.0.take(py, false, |d| d.decompress(&wire, most))?
        } else {
            let wire = Pinned::of(data)?;
            let found = self.0.take(py, false, |d| d.decompress(wire.as_ref(), most));
            drop(wire);
            buffer::release(py);
            found?
        };
        let Some(blocks) = found else { return Err(PyEOFError::new_err("the end of the stream was reached already")) };
        if let [one] = &blocks[..] {
            return Ok(PyBytes::new(py, one));
        }
        PyBytes::new_with(py, blocks.iter().map(|block| block.len()).sum(), |mut room| {
            for block in &blocks {
                let (head, tail) = room.split_at_mut(block.len());
                head.copy_from_slice(block);
                room = tail;
            }
            Ok(())
        })
    }

    /// Whether the end of the stream was reached.
    #[getter]
    fn eof(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.take(py, true, |d| Ok(d.eof))
    }

    /// Whether more input is needed to return more. False after the end.
    #[getter]
    fn needs_input(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.take(py, true, |d| Ok(d.needs_input))
    }

    /// The bytes that were found after the end of the stream.
    #[getter]
    fn unused_data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.take(py, true, |d| Ok(d.unused.clone()))?))
    }

    /// ``raw_bytes`` returned so far, and ``wire_bytes`` of the stream taken for them.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (raw, wire) = self.0.take(py, true, |d| {
            let summary = d.decoding.summary();
            Ok((summary.raw_bytes - d.raw.len() as u64, summary.wire_bytes))
        })?;
        let stats = PyDict::new(py);
        stats.set_item("raw_bytes", raw)?;
        stats.set_item("wire_bytes", wire)?;
        Ok(stats)
    }
}

struct Decompressing {
    decoding: Decoding,
    contexts: Contexts,
    buffers: BufferPool,
    /// Decoded bytes for which there was no room.
    raw: Block,
    /// Bytes that the receiver has not taken.
    input: VecDeque<Block>,
    needs_input: bool,
    eof: bool,
    unused: Vec<u8>,
    /// Kind, text and place of the error that ended it.
    failure: Option<(ErrorKind, String, Option<u64>, Option<u64>)>,
}

impl Decompressing {
    /// Decodes at most `most` bytes. `None` after the end.
    fn decompress(&mut self, wire: &[u8], most: usize) -> Result<Option<Vec<Block>>> {
        if self.eof {
            return Ok(None);
        }
        if let Some((kind, text, wire_offset, frame)) = &self.failure {
            let text = format!("the stream has failed already: {text}");
            return Err(Error::new(*kind, text).with_place(*wire_offset, *frame));
        }
        let found = self.decode(wire, most);
        if let Err(e) = &found {
            self.failure = Some((e.kind, e.to_string(), e.wire_offset, e.frame));
            (self.needs_input, self.raw) = (false, Block::default());
            self.input.clear();
        }
        found.map(Some)
    }

    fn decode(&mut self, wire: &[u8], most: usize) -> Result<Vec<Block>> {
        let (mut found, mut len, mut at) = (Vec::new(), 0, 0);
        loop {
            let room = most - len;
            if !self.raw.is_empty() && room > 0 {
                let piece = self.raw.split_to(self.raw.len().min(room));
                len += piece.len();
                found.push(piece);
            }
            if !self.raw.is_empty() {
                self.needs_input = false;
                break;
            }
            if let Some(raw) = self.decoding.read() {
                self.raw = raw;
                continue;
            }
            if self.decoding.is_finished() {
                (self.eof, self.needs_input) = (true, false);
                for rest in self.decoding.take_rest().chain(self.input.drain(..)) {
                    self.unused.extend_from_slice(&rest);
                }
                self.unused.extend_from_slice(&wire[at..]);
                return Ok(found);
            }
            if len == most {
                self.needs_input = false;
                break;
            }
            let here = &mut Here { contexts: &mut self.contexts, buffers: &self.buffers };
            if self.decoding.work(Budget::ONE, here)? {
                continue;
            }
            if self.decoding.has_unparsed() {
                self.decoding.resume()?;
                if self.decoding.has_unparsed() && !self.decoding.has_end() {
                    return Err(Error::misuse("the decoder takes no more bytes; this is a bug"));
                }
                continue;
            }
            let piece = match self.input.pop_front() {
                Some(piece) => piece,
                None if at < wire.len() => {
                    let from = at;
                    at = (at + PIECE).min(wire.len());
                    Block::from_vec(wire[from..at].to_vec())
                }
                None => {
                    // A failure that was found while there was something to decode.
                    self.decoding.resume()?;
                    self.needs_input = true;
                    return Ok(found);
                }
            };
            self.decoding.receive(piece)?;
        }
        self.input.extend(wire[at..].chunks(PIECE).map(|piece| Block::from_vec(piece.to_vec())));
        Ok(found)
    }
}
