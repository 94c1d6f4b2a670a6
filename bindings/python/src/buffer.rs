//! Bytes of Python's objects without copying them.

use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The bytes of an object with the buffer protocol, contiguous and of any item type. While it lives the object cannot
/// be resized.
pub(crate) enum Bytes<'a, 'py> {
    /// The usual case, without the calls of the protocol.
    Bytes(&'a Bound<'py, PyBytes>),
    Buffer(PyUntypedBuffer),
}

impl<'a, 'py> Bytes<'a, 'py> {
    pub(crate) fn of(object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes));
        }
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous; bytes(it) makes one that is"));
        }
        Ok(Self::Buffer(buffer))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes().len(),
            Self::Buffer(buffer) => buffer.len_bytes(),
        }
    }

    /// The bytes, for as long as no Python code can run: `f` must not call any.
    #[allow(unsafe_code, reason = "the buffer protocol gives a pointer")]
    pub(crate) fn with<R>(&self, _py: Python<'py>, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Bytes(bytes) => f(bytes.as_bytes()),
            Self::Buffer(buffer) if buffer.len_bytes() == 0 => f(&[]),
            Self::Buffer(buffer) => {
                // SAFETY: the exporter keeps `len_bytes` contiguous bytes there until the buffer is released, which
                // is not before `self` goes. They do not change meanwhile: whoever writes them from Python needs the
                // interpreter's lock, which the caller holds (`_py`) and `f` does not give up.
                f(unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
            }
        }
    }

    /// The bytes to be written, for as long as no Python code can run: `f` must not call any. Refused if they are
    /// read-only.
    #[allow(unsafe_code, reason = "the buffer protocol gives a pointer")]
    pub(crate) fn with_mut<R>(&self, _py: Python<'py>, f: impl FnOnce(&mut [u8]) -> R) -> PyResult<R> {
        match self {
            Self::Buffer(buffer) if !buffer.readonly() && buffer.len_bytes() == 0 => Ok(f(&mut [])),
            Self::Buffer(buffer) if !buffer.readonly() => {
                // SAFETY: as above, and the exporter says that they may be written. Nobody else has a reference: the
                // interpreter's lock keeps other threads out, and `f` has this one only.
                Ok(f(unsafe { slice::from_raw_parts_mut(buffer.buf_ptr().cast(), buffer.len_bytes()) }))
            }
            _ => Err(PyBufferError::new_err("the buffer is read-only")),
        }
    }
}
