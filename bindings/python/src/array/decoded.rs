//! A decoded array, lent to Python without a copy.

use std::ffi::{CString, c_int};
use std::ptr;

use narrows_array::{Array, Layout};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::format;

/// A decoded chunk: its elements by the buffer protocol, ``dtype`` as NumPy names it (``<f4``),
/// ``shape``, and ``order``: ``C`` or ``F``.
#[pyclass(module = "narrows._narrows")]
pub(crate) struct DecodedArray {
    bytes: Vec<u8>,
    typestr: String,
    format: CString,
    item_len: usize,
    layout: Layout,
    // What views point to. Nothing of this changes after `new`.
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

impl DecodedArray {
    pub(super) fn new(array: Array) -> Self {
        let Array { dtype, order, layout, shape, bytes } = array;
        let signed = |v: usize| ffi::Py_ssize_t::try_from(v).unwrap_or(ffi::Py_ssize_t::MAX);
        let mut strides = vec![0; shape.len()];
        let mut step = dtype.bytes();
        let mut set = |axis: usize| {
            strides[axis] = signed(step);
            step = step.saturating_mul(shape[axis].max(1));
        };
        match layout {
            Layout::RowMajor => (0..shape.len()).rev().for_each(&mut set),
            Layout::ColumnMajor => (0..shape.len()).for_each(&mut set),
        }
        Self {
            typestr: format::typestr(dtype, order),
            format: CString::new(format::format(dtype, order)).unwrap_or_default(),
            item_len: dtype.bytes(),
            layout,
            shape: shape.iter().map(|&d| signed(d)).collect(),
            strides,
            bytes,
        }
    }
}

#[pymethods]
impl DecodedArray {
    #[getter]
    fn dtype(&self) -> &str {
        &self.typestr
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn order(&self) -> &str {
        if self.layout == Layout::RowMajor { "C" } else { "F" }
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes.len()
    }

    #[allow(unsafe_code, reason = "the buffer protocol takes pointers")]
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let asks = |flag: c_int| flags & flag == flag;
        let mut this = slf.try_borrow_mut()?;
        let alike = this.shape.len() < 2;
        let (is_c, is_f) = (alike || this.layout == Layout::RowMajor, alike || this.layout == Layout::ColumnMajor);
        let strided = asks(ffi::PyBUF_STRIDES);
        let only_c = asks(ffi::PyBUF_C_CONTIGUOUS) || asks(ffi::PyBUF_ND) && !strided;
        if only_c && !is_c || asks(ffi::PyBUF_F_CONTIGUOUS) && !is_f {
            return Err(PyBufferError::new_err("the array's axes are in the other order"));
        }
        let rank = if asks(ffi::PyBUF_ND) { this.shape.len() as c_int } else { 1 };
        let buffer = ffi::Py_buffer {
            buf: this.bytes.as_mut_ptr().cast(),
            obj: ptr::null_mut(),
            len: this.bytes.len() as ffi::Py_ssize_t,
            itemsize: this.item_len as ffi::Py_ssize_t,
            readonly: 0,
            ndim: rank,
            format: if asks(ffi::PyBUF_FORMAT) { this.format.as_ptr().cast_mut() } else { ptr::null_mut() },
            shape: if asks(ffi::PyBUF_ND) && rank > 0 { this.shape.as_mut_ptr() } else { ptr::null_mut() },
            strides: if strided && rank > 0 { this.strides.as_mut_ptr() } else { ptr::null_mut() },
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        };
        drop(this);
        // SAFETY: the caller gives a view to fill, not null. The pointers are of vectors and a string
        // that live and stay as they are as long as the object, which the view keeps alive by the
        // reference in `obj`. After `new`, no code here reads or writes the bytes, so Python may.
        unsafe {
            *view = buffer;
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }
}
