//! Access to the bytes of Python objects without copying them.

use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

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

    /// Calls `f` with bytes that nobody changes meanwhile, so that it may run Python code and release
    /// the interpreter's lock: those of a `bytes` object, or a copy.
    pub(crate) fn with_kept<R>(&self, py: Python<'py>, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Bytes(bytes) => f(bytes.as_bytes()),
            Self::Buffer(_) => f(&self.with(py, <[u8]>::to_vec)),
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

/// The bytes of an object, held in place for threads without the interpreter's lock. The object
/// cannot be resized or freed while this lives. If Python code writes them meanwhile, readers see
/// some mixture of old and new bytes, as those of `socket.send` do.
pub(crate) struct Pinned {
    start: NonNull<u8>,
    len: usize,
    /// Taken when it is dropped.
    buffer: Option<PyUntypedBuffer>,
}

// SAFETY: the pointer refers to memory that `buffer` keeps, wherever it is used.
#[allow(unsafe_code, reason = "a pointer into an object that is held")]
unsafe impl Send for Pinned {}
// SAFETY: as above; shared references only read.
#[allow(unsafe_code, reason = "a pointer into an object that is held")]
unsafe impl Sync for Pinned {}

/// Buffers of dropped [`Pinned`], whose release needs the interpreter's lock. A thread of ours must
/// not wait for that lock: at the end of the process it is never free again.
static RELEASED: Mutex<Vec<PyUntypedBuffer>> = Mutex::new(Vec::new());

/// Releases objects that threads without the interpreter's lock are done with.
pub(crate) fn release(_py: Python<'_>) {
    let released = std::mem::take(&mut *RELEASED.lock().unwrap_or_else(PoisonError::into_inner));
    drop(released);
}

impl Pinned {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is not contiguous"));
        }
        let len = buffer.len_bytes();
        let start = if len == 0 { None } else { NonNull::new(buffer.buf_ptr().cast()) };
        Ok(Self { start: start.unwrap_or(NonNull::dangling()), len, buffer: Some(buffer) })
    }
}

impl AsRef<[u8]> for Pinned {
    #[allow(unsafe_code, reason = "the buffer protocol gives a pointer")]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the exporter keeps `len` contiguous bytes there until `buffer` is released; for
        // 0 bytes the pointer is dangling, which is allowed.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        RELEASED.lock().unwrap_or_else(PoisonError::into_inner).extend(self.buffer.take());
    }
}

/// A range of a new writable object that one owner fills; parts of it may be filled by several
/// threads.
pub(crate) struct Target {
    pinned: Arc<Pinned>,
    start: usize,
    len: usize,
}

impl Target {
    /// All bytes of `object`, which nobody else uses until it is filled.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let pinned = Pinned::of(object)?;
        if pinned.buffer.as_ref().is_none_or(PyUntypedBuffer::readonly) {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        Ok(Self { start: 0, len: pinned.len, pinned: Arc::new(pinned) })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Splits off the first `len` bytes, at most all.
    pub(crate) fn split_to(&mut self, len: usize) -> Self {
        let len = len.min(self.len);
        let head = Self { pinned: Arc::clone(&self.pinned), start: self.start, len };
        self.start += len;
        self.len -= len;
        head
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.pinned.as_ref().as_ref()[self.start..self.start + self.len]
    }

    #[allow(unsafe_code, reason = "the buffer protocol gives a pointer")]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range lies within the object, which is writable (`of`). No other target has
        // these bytes, since `split_to` makes disjoint ones and there is no other way to make a
        // second one; and Python code has the object only when all targets are gone.
        unsafe { slice::from_raw_parts_mut(self.pinned.start.as_ptr().add(self.start), self.len) }
    }
}
