//! Where the bytes of a file come from: a descriptor, or an object of Python.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use narrows_file::ReadAt;
use pyo3::exceptions::PyException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::buffer::Bytes;

/// Most bytes of an object that are kept: two runs of an archive at most, which seldom shrink to nothing.
const WINDOW_MAX: usize = 32 << 20;

pub(super) struct Source {
    origin: Origin,
    /// Where the content begins in it.
    begin: u64,
    /// Bytes of an object that other threads want next.
    window: Mutex<Arc<Window>>,
}

#[derive(Default)]
struct Window {
    begin: u64,
    bytes: Vec<u8>,
}

thread_local! {
    /// Whether Python knows this thread. Others must not wait for the interpreter's lock: at the end of
    /// the process it is never free again.
    static OF_PYTHON: Cell<bool> = const { Cell::new(false) };
}

/// Notes that Python called from this thread.
pub(super) fn called_by_python() {
    OF_PYTHON.set(true);
}

enum Origin {
    File(File),
    /// Has `read_at(offset, length)` and `length()`.
    Object(Py<PyAny>),
}

impl Source {
    pub(super) fn of_file(file: File, begin: u64) -> Self {
        Self { origin: Origin::File(file), begin, window: Mutex::default() }
    }

    pub(super) fn of_object(object: Py<PyAny>, begin: u64) -> Self {
        Self { origin: Origin::Object(object), begin, window: Mutex::default() }
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.origin {
            Origin::File(_) => Ok(()),
            Origin::Object(object) => visit.call(object),
        }
    }
}

/// Keeps an exception for `raised_or_passed`. Its kind must not be `Interrupted`, after which readers
/// try again.
pub(super) fn carried(exception: PyErr) -> io::Error {
    io::Error::other(exception)
}

impl ReadAt for Source {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let Some(at) = self.begin.checked_add(offset) else { return Ok(0) };
        let object = match &self.origin {
            Origin::File(file) => return ReadAt::read_at(file, buf, at),
            Origin::Object(object) => object,
        };
        let window = Arc::clone(&self.window.lock().unwrap_or_else(PoisonError::into_inner));
        let rest = offset.checked_sub(window.begin).and_then(|skip| window.bytes.get(usize::try_from(skip).ok()?..));
        if let Some(rest @ [_, ..]) = rest {
            let n = rest.len().min(buf.len());
            buf[..n].copy_from_slice(&rest[..n]);
            return Ok(n);
        }
        if !OF_PYTHON.get() {
            return Err(io::Error::other("only threads of Python can read the file object"));
        }
        let read = Python::attach(|py| -> PyResult<Option<usize>> {
            let data = object.bind(py).call_method1("read_at", (at, buf.len()))?;
            let bytes = Bytes::of(&data)?;
            let n = bytes.len();
            let Some(target) = buf.get_mut(..n) else { return Ok(None) };
            bytes.with(py, |b| target.copy_from_slice(b));
            Ok(Some(n))
        });
        read.map_err(carried)?.ok_or_else(|| io::Error::other("read() of the file object returned more than asked for"))
    }

    fn len(&self) -> io::Result<u64> {
        let len = match &self.origin {
            Origin::File(file) => ReadAt::len(file)?,
            Origin::Object(object) => {
                Python::attach(|py| object.bind(py).call_method0("length")?.extract()).map_err(carried)?
            }
        };
        Ok(len.saturating_sub(self.begin))
    }

    fn will_read(&self, offset: u64, len: u64) -> io::Result<()> {
        if matches!(self.origin, Origin::File(_)) || len > WINDOW_MAX as u64 {
            return Ok(());
        }
        match self.fetch(offset, len as usize) {
            Ok(window) => *self.window.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(window),
            Err(e) if stops(&e) => return Err(e),
            // The reads that follow tell it, if they come to it.
            Err(_) => {}
        }
        Ok(())
    }
}

/// Whether it is an exception such as `KeyboardInterrupt`, which nobody may swallow.
fn stops(error: &io::Error) -> bool {
    let exception = error.get_ref().and_then(|e| e.downcast_ref::<PyErr>());
    exception.is_some_and(|e| Python::attach(|py| !e.is_instance_of::<PyException>(py)))
}

impl Source {
    fn fetch(&self, begin: u64, len: usize) -> io::Result<Window> {
        let mut bytes = vec![0; len];
        self.read_exact_at(&mut bytes, begin)?;
        Ok(Window { begin, bytes })
    }
}

/// Reads a source from its beginning on.
pub(super) struct Onward {
    pub(super) source: Arc<Source>,
    pub(super) at: u64,
}

impl Read for Onward {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.source.read_at(buf, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}
