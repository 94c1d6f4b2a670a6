//! Where the bytes of a file come from: a descriptor, or an object of Python.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use narrows_file::ReadAt;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use crate::buffer::Bytes;

pub(super) struct Source {
    origin: Origin,
    /// Where the content begins in it.
    begin: u64,
}

enum Origin {
    File(File),
    /// Has `read_at(offset, length)` and `length()`.
    Object(Py<PyAny>),
}

impl Source {
    pub(super) fn of_file(file: File, begin: u64) -> Self {
        Self { origin: Origin::File(file), begin }
    }

    pub(super) fn of_object(object: Py<PyAny>, begin: u64) -> Self {
        Self { origin: Origin::Object(object), begin }
    }

    /// Whether threads that Python does not know may read it. They must not wait for the interpreter's
    /// lock: at the end of the process it is never free again.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.origin, Origin::File(_))
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
