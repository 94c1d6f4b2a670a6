//! Files that are read at any byte, by several threads at once.

use std::process;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use narrows::stream;
use narrows_file::foreign::Format;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Bytes, Filling};
use crate::error::{raised, raised_or_passed};
use crate::stream::{Received, ReceivedTotals, threads};
use crate::sys;

mod content;
mod forward;
mod source;

use content::{AHEAD_LEN, Content, other_process};
use source::{Source, called_by_python};

/// Bytes read in order after which more is decoded ahead.
const STREAK: u64 = 1 << 20;

/// Private: the name of the format that a file begins as; empty if it is none that is known.
#[pyfunction]
#[pyo3(signature = (begin, /))]
pub(crate) fn format_of(begin: &[u8]) -> &'static str {
    Format::of(begin).map_or("", Format::name)
}

/// Private: used by ``NarrowsFile``. Any number of threads may call it at once. No lock is held while
/// the file object is called.
#[pyclass(frozen, module = "narrows._narrows")]
pub(crate) struct FileReader {
    source: Arc<Source>,
    threads: usize,
    process: u32,
    /// Opened at first use: whoever opens a file gets its errors from reading, as from a pipe.
    content: Mutex<Option<Arc<Content>>>,
    progress: Mutex<Progress>,
    totals: Arc<Received>,
}

/// How far a reader came that goes on from where it is.
#[derive(Clone, Copy, Default)]
struct Progress {
    begin: u64,
    end: u64,
    ahead_end: u64,
}

#[pymethods]
impl FileReader {
    /// Reads a descriptor, which it takes over, or `object`, which has `read_at(offset, length)` and
    /// `length()`; from its byte `begin` on.
    #[new]
    #[pyo3(signature = (*, descriptor, object, begin, threads))]
    fn new(descriptor: Option<i32>, object: Option<Py<PyAny>>, begin: u64, threads: Option<usize>) -> PyResult<Self> {
        let source = match (descriptor, object) {
            (Some(descriptor), None) => Source::of_file(sys::file(descriptor).map_err(raised)?, begin),
            (None, Some(object)) => Source::of_object(object, begin),
            _ => return Err(PyTypeError::new_err("either a descriptor or an object is needed")),
        };
        let threads = self::threads(threads, stream::cores).map_err(raised)?;
        Ok(Self {
            threads,
            source: Arc::new(source),
            process: process::id(),
            content: Mutex::default(),
            progress: Mutex::default(),
            totals: Arc::default(),
        })
    }

    /// Fills a part of the buffer from `offset` on; returns the number of bytes, 0 at the end.
    #[pyo3(signature = (buffer, offset, /))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let target = Bytes::of(buffer)?;
        let most = target.len();
        // Refuses a buffer that is read-only before anything is decoded.
        target.with_mut(py, |_| ())?;
        if most == 0 {
            return Ok(0);
        }
        self.check_process()?;
        let piece = py.detach(|| {
            let content = self.content()?;
            self.go_on(&content, offset)?;
            content.piece(offset, most)
        })?;
        target.with_mut(py, |b| b[..piece.len()].copy_from_slice(&piece))?;
        self.note(offset, piece.len());
        Ok(piece.len())
    }

    /// The bytes from `offset` on, fewer than `length` only at the end.
    #[pyo3(signature = (length, offset, /))]
    fn pread<'py>(&self, py: Python<'py>, length: usize, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        self.check_process()?;
        if length == 0 {
            return Ok(PyBytes::new(py, b""));
        }
        let content = py.detach(|| self.content())?;
        if !content.states_len() {
            return self.pread_forward(py, &content, length, offset);
        }
        let end = content.place(offset.saturating_add(length as u64))?;
        let len = usize::try_from(end.saturating_sub(offset)).map_or(length, |n| n.min(length));
        let mut filling = Filling::new(py, len)?;
        let mut done = 0;
        while done < len {
            let step = (len - done).min(AHEAD_LEN);
            py.detach(|| {
                content.read_ahead(offset + done as u64, step, self.threads)?;
                let step_end = done + step;
                while done < step_end {
                    let piece = content.piece(offset + done as u64, step_end - done)?;
                    if piece.is_empty() || !filling.put(&piece) {
                        return Err(raised(narrows::Error::corrupt("the file is shorter than its index says")));
                    }
                    done += piece.len();
                }
                Ok(())
            })?;
            py.check_signals()?;
        }
        self.note(offset, len);
        filling.done(py).ok_or_else(|| raised(narrows::Error::corrupt("the file is shorter than its index says")))
    }

    /// `offset`, or the end if that comes before.
    fn place(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        self.check_process()?;
        py.detach(|| self.content()?.place(offset))
    }

    /// The name of the format: `narrows`, `zstd`, `gzip` and others.
    fn format(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.check_process()?;
        Ok(py.detach(|| self.content())?.format().name())
    }

    /// The raw length.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.check_process()?;
        py.detach(|| self.content()?.len())
    }

    #[getter]
    fn totals(&self) -> ReceivedTotals {
        ReceivedTotals::new(&self.totals)
    }

    /// For garbage collection of reference cycles.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.source.traverse(&visit)
    }
}

impl FileReader {
    /// A lock that was held during fork is never released in the child.
    fn check_process(&self) -> PyResult<()> {
        called_by_python();
        if process::id() == self.process { Ok(()) } else { Err(raised(other_process())) }
    }

    fn content(&self) -> PyResult<Arc<Content>> {
        if let Some(content) = lock(&self.content).clone() {
            return Ok(content);
        }
        // Without the lock, since the file object may be called. If two threads open it, one is used.
        let opened = Arc::new(Content::open(&self.source, self.threads).map_err(raised_or_passed)?);
        if let Ok(len) = narrows_file::ReadAt::len(&*self.source) {
            self.totals.wire_bytes.store(len, Ordering::Relaxed);
        }
        Ok(Arc::clone(lock(&self.content).get_or_insert(opened)))
    }

    /// A format that does not state its length: nothing is allocated before it is there.
    fn pread_forward<'py>(
        &self,
        py: Python<'py>,
        content: &Content,
        length: usize,
        offset: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let piece = py.detach(|| content.piece(offset.saturating_add(bytes.len() as u64), length - bytes.len()))?;
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(&piece);
            py.check_signals()?;
        }
        self.note(offset, bytes.len());
        Ok(PyBytes::new(py, &bytes))
    }

    /// Decodes ahead for a reader that has read in order for a while.
    fn go_on(&self, content: &Content, offset: u64) -> PyResult<()> {
        if self.threads < 2 {
            return Ok(());
        }
        {
            let mut progress = lock(&self.progress);
            if offset != progress.end {
                *progress = Progress { begin: offset, end: offset, ahead_end: offset };
            }
            if offset - progress.begin < STREAK || offset < progress.ahead_end {
                return Ok(());
            }
            progress.ahead_end = offset.saturating_add(AHEAD_LEN as u64);
        }
        content.read_ahead(offset, AHEAD_LEN, self.threads)
    }

    fn note(&self, offset: u64, len: usize) {
        let end = offset.saturating_add(len as u64);
        self.totals.raw_bytes.fetch_max(end, Ordering::Relaxed);
        let mut progress = lock(&self.progress);
        if progress.end == offset {
            progress.end = end;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
