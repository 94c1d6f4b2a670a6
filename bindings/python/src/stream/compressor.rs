//! Encoding of a stream piece by piece.

use std::mem;

use narrows::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::memory::{self, Kept};
use super::turn::Turn;
use super::{sending, threads, totals, with_level};
use crate::buffer::{self, Bytes, Pinned};
use crate::error::raised;

/// Shorter pieces are gathered up to this many bytes: each piece for itself costs the engine a
/// microsecond.
const GATHER: usize = 64 << 10;

/// Encodes a stream piece by piece, as ``zlib.compressobj``, ``bz2.BZ2Compressor`` and Python
/// 3.14's ``ZstdCompressor`` do. ``Decompressor``, ``decompress``, ``open`` and ``narrows pipe -d``
/// read it::
///
///     compressor = narrows.Compressor(level=9)
///     wire = compressor.compress(data) + compressor.flush()
///
/// - ``policy``, ``level``: as for ``compress``.
/// - ``threads``: number of threads that encode what one call gives them, by default only the
///   calling one.
/// - ``index``: put an index of the blocks before the end, so that ``open`` finds any byte of a file
///   with one read.
/// - ``check``: put a checksum on every block.
///
/// The blocks, and so the bytes, are the same however the data is cut into pieces. Several threads
/// may use one object: their calls run one after the other. Releases the interpreter's lock unless
/// the piece is short.
#[pyclass(frozen, module = "narrows")]
pub(crate) struct Compressor(Turn<Compressing>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Continue,
    FlushBlock,
    FlushFrame,
}

impl Goal {
    fn of(mode: i64) -> Result<Self> {
        let all = [Self::Continue, Self::FlushBlock, Self::FlushFrame];
        let wrong = || Error::misuse(format!("a mode is CONTINUE, FLUSH_BLOCK or FLUSH_FRAME, not {mode}"));
        all.into_iter().find(|goal| *goal as i64 == mode).ok_or_else(wrong)
    }
}

#[pymethods]
impl Compressor {
    /// ``compress`` may keep the bytes until there is a whole block.
    #[classattr]
    const CONTINUE: i64 = Goal::Continue as i64;
    /// Everything so far can be decoded from what is returned. Often used, it costs ratio.
    #[classattr]
    const FLUSH_BLOCK: i64 = Goal::FlushBlock as i64;
    /// The stream ends.
    #[classattr]
    const FLUSH_FRAME: i64 = Goal::FlushFrame as i64;

    #[new]
    #[pyo3(signature = (policy = "fixed:zstd", *, level = None, threads = 1, index = false, check = true))]
    fn new(policy: &str, level: Option<i32>, threads: usize, index: bool, check: bool) -> PyResult<Self> {
        let threads = self::threads(Some(threads), || 1).map_err(raised)?;
        let policy = with_level(policy, level).map_err(raised)?;
        let options = sending(&policy, threads).map_err(raised)?.whole_blocks(true).index(index).check(check);
        let encoding = memory::Compressing::new(options, threads, Kept::default());
        Ok(Self(Turn::new(Compressing { encoding, gathered: Vec::new(), ended: false })))
    }

    /// Takes bytes; returns those of the stream that are ready, which may be none.
    #[pyo3(signature = (data, /, mode = 0))]
    fn compress<'py>(&self, py: Python<'py>, data: &Bound<'py, PyAny>, mode: i64) -> PyResult<Bound<'py, PyBytes>> {
        let goal = Goal::of(mode).map_err(raised)?;
        let bytes = Bytes::of(data)?;
        let wire = if goal == Goal::Continue && bytes.len() < GATHER {
            // Copied while nobody can change it.
            let raw = bytes.with(py, <[u8]>::to_vec);
            self.0.take(py, true, |c| c.compress(&raw, goal))?
        } else {
            let raw = Pinned::of(data)?;
            let wire = self.0.take(py, false, |c| c.compress(raw.as_ref(), goal));
            drop(raw);
            buffer::release(py);
            wire?
        };
        Ok(PyBytes::new(py, &wire))
    }

    /// Returns the rest of the stream with its end: call it once, when all bytes are there. With
    /// ``FLUSH_BLOCK`` it returns what is needed to decode everything so far, and the stream goes
    /// on.
    #[pyo3(signature = (mode = 2, /))]
    fn flush<'py>(&self, py: Python<'py>, mode: i64) -> PyResult<Bound<'py, PyBytes>> {
        let goal = Goal::of(mode).map_err(raised)?;
        if goal == Goal::Continue {
            return Err(raised(Error::misuse("flush needs FLUSH_BLOCK or FLUSH_FRAME")));
        }
        Ok(PyBytes::new(py, &self.0.take(py, false, |c| c.compress(&[], goal))?))
    }

    /// Totals as those of ``NarrowsFile.stats``: of the bytes returned so far, at the end of the
    /// whole stream.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = self.0.take(py, true, |c| Ok(c.encoding.flow.summary().clone()))?;
        totals::told(py, &summary)
    }
}

struct Compressing {
    encoding: memory::Compressing,
    gathered: Vec<u8>,
    ended: bool,
}

impl Compressing {
    fn compress(&mut self, raw: &[u8], goal: Goal) -> Result<Vec<u8>> {
        if self.ended {
            return Err(Error::misuse("the stream was ended: a new one needs a new Compressor"));
        }
        if goal == Goal::Continue && self.gathered.len() + raw.len() < GATHER {
            self.gathered.extend_from_slice(raw);
            return Ok(Vec::new());
        }
        let gathered = mem::take(&mut self.gathered);
        self.encode(&gathered)?;
        self.encode(raw)?;
        self.gathered = gathered;
        self.gathered.clear();
        match goal {
            Goal::Continue => {}
            Goal::FlushBlock => {
                self.encoding.flow.flush();
                self.encoding.work();
            }
            Goal::FlushFrame => {
                self.ended = true;
                self.encoding.end()?;
            }
        }
        Ok(mem::take(&mut self.encoding.wire))
    }

    fn encode(&mut self, mut raw: &[u8]) -> Result<()> {
        while !raw.is_empty() {
            let taken = self.encoding.take(raw);
            raw = &raw[taken..];
            self.encoding.work();
            if taken == 0 && self.encoding.flow.room() == 0 {
                return Err(Error::misuse("the encoder takes no more bytes; this is a bug"));
            }
        }
        Ok(())
    }
}
