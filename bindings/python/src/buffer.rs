//! Access to the bytes of Python objects without copying them.

use std::ptr::{self, NonNull};
use std::slice;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The contiguous bytes of an object with the buffer protocol, of any item type. The object cannot
/// be resized while this lives.
pub(crate) enum Bytes<'a, 'py> {
    /// A `bytes` object, the usual case: needs no calls of the buffer protocol.
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
            return Err(PyBufferError::new_err("the buffer is not contiguous; bytes(it) makes a contiguous copy"));
        }
        Ok(Self::Buffer(buffer))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes().len(),
            Self::Buffer(buffer) => buffer.len_bytes(),
        }
    }

    /// Calls `f` with the bytes. `f` must not run Python code.
    #[allow(unsafe_code, reason = "the buffer protocol gives a pointer")]
    pub(crate) fn with<R>(&self, _py: Python<'py>, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Bytes(bytes) => f(bytes.as_bytes()),
            Self::Buffer(buffer) if buffer.len_bytes() == 0 => f(&[]),
            Self::Buffer(buffer) => {
                // SAFETY: the exporter keeps `len_bytes` contiguous bytes there until the buffer is
                // released, which happens when `self` is dropped. They do not change during the
                // call: writing them from Python needs the interpreter's lock, which the caller
                // holds (`_py`) and `f` does not release.
                f(unsafe { slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
            }
        }
    }

    /// Calls `f` with the bytes, to be written. `f` must not run Python code. An error if the
    /// buffer is read-only.
    #[allow(unsafe_code, reason = "the buffer protocol gives a pointer")]
    pub(crate) fn with_mut<R>(&self, _py: Python<'py>, f: impl FnOnce(&mut [u8]) -> R) -> PyResult<R> {
        match self {
            Self::Buffer(buffer) if !buffer.readonly() && buffer.len_bytes() == 0 => Ok(f(&mut [])),
            Self::Buffer(buffer) if !buffer.readonly() => {
                // SAFETY: as above, and the exporter permits writing. There is no other reference:
                // the interpreter's lock keeps other threads out, and `f` has only this one.
                Ok(f(unsafe { slice::from_raw_parts_mut(buffer.buf_ptr().cast(), buffer.len_bytes()) }))
            }
            _ => Err(PyBufferError::new_err("the buffer is read-only")),
        }
    }
}

/// A new `bytes` object that is being filled. A thread without the interpreter's lock may fill it
/// too, since nobody else has the object yet.
pub(crate) struct Filling {
    object: Py<PyBytes>,
    start: NonNull<u8>,
    len: usize,
    filled: usize,
}

// SAFETY: the pointer refers to the bytes of `object`, which lives as long as this and has no other
// reference.
#[allow(unsafe_code, reason = "a pointer into an object that has one owner")]
unsafe impl Send for Filling {}

impl Filling {
    #[allow(unsafe_code, reason = "only the C interface makes one without bytes")]
    pub(crate) fn new(py: Python<'_>, len: usize) -> PyResult<Self> {
        let too_long = |_| PyErr::new::<pyo3::exceptions::PyMemoryError, _>(());
        let signed = ffi::Py_ssize_t::try_from(len).map_err(too_long)?;
        // SAFETY: the call returns a `bytes` object or sets an exception; `from_owned_ptr_or_err`
        // handles both. The object is new, so the reference is owned. `PyBytes_AsString` returns
        // its first byte, never null.
        unsafe {
            let made = Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(ptr::null(), signed))?;
            let start = NonNull::new_unchecked(ffi::PyBytes_AsString(made.as_ptr())).cast();
            Ok(Self { object: made.cast_into_unchecked().unbind(), start, len, filled: 0 })
        }
    }

    /// Appends bytes. Returns `false` and appends nothing if there is no room for them.
    #[allow(unsafe_code, reason = "bytes are written where there were none")]
    pub(crate) fn put(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.len - self.filled {
            return false;
        }
        // SAFETY: `filled + bytes.len() <= len`, and the object has `len` bytes at `start`. Nobody
        // else reads or writes them, since nobody else has the object.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(self.filled), bytes.len());
        }
        self.filled += bytes.len();
        true
    }

    /// The object, if it is completely filled.
    pub(crate) fn done(self, py: Python<'_>) -> Option<Bound<'_, PyBytes>> {
        (self.filled == self.len).then(|| self.object.into_bound(py))
    }
}
