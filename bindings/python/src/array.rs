//! Arrays of numbers: chunks of them, exact or within a stated error.

use std::cell::Cell;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use narrows::Error;
use narrows_array::{ArrayView, Bound as Allowed, Chooser, Coder, Layout, Memory, Options, RAW_MAX};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView};

use crate::buffer::Bytes;
use crate::error::raised;

mod decoded;
mod format;

pub(crate) use self::decoded::DecodedArray;

thread_local! {
    /// Contexts of codecs that a thread keeps between calls: zarr decodes chunks on several threads.
    static CODER: Cell<Option<Coder>> = const { Cell::new(None) };
}

/// Runs `work` with the contexts of this thread. A nested call, from a signal handler, makes its own.
fn with_coder<R>(work: impl FnOnce(Coder) -> (R, Coder)) -> R {
    let (result, coder) = work(CODER.try_with(Cell::take).ok().flatten().unwrap_or_default());
    // Fails only while the thread ends.
    let _ = CODER.try_with(|kept| kept.set(Some(coder)));
    result
}

/// The elements of a Python object, copied: other threads may write to it while they are encoded.
struct Elements {
    format: format::Format,
    layout: Layout,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Elements {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        // It has shape and strides where the object leaves them out.
        let view = PyMemoryView::from(object)?;
        // One element without axes: PyO3 takes it for a fault that the shape is a null pointer.
        if view.getattr("ndim")?.extract::<usize>()? == 0 {
            let text: CString = view.getattr("format")?.extract()?;
            let format = format::parse(&text, view.getattr("itemsize")?.extract()?)?;
            return Ok(Self { format, layout: Layout::RowMajor, shape: Vec::new(), bytes: copied(&view)? });
        }
        let buffer = PyUntypedBuffer::get(view.as_any())?;
        let format = format::parse(buffer.format(), buffer.item_size())?;
        if buffer.len_bytes() > RAW_MAX {
            let text = format!("{} bytes are more than the {RAW_MAX} of a chunk; cut the array", buffer.len_bytes());
            return Err(raised(Error::limit(text)));
        }
        let shape = buffer.shape().to_vec();
        let row_major = buffer.is_c_contiguous();
        let column_major = !row_major && buffer.is_fortran_contiguous();
        let layout = if column_major { Layout::ColumnMajor } else { Layout::RowMajor };
        let bytes =
            if row_major || column_major { Bytes::Buffer(buffer).with(py, <[u8]>::to_vec) } else { copied(&view)? };
        Ok(Self { format, layout, shape, bytes })
    }

    fn view(&self) -> ArrayView<'_> {
        let Self { format, layout, shape, bytes } = self;
        ArrayView { dtype: format.dtype, order: format.order, layout: *layout, shape, bytes }
    }
}

/// All elements, the last axis contiguous.
fn copied(view: &Bound<'_, PyMemoryView>) -> PyResult<Vec<u8>> {
    Ok(view.call_method0("tobytes")?.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// Encodes chunks of one array and remembers what suited them. ``narrows.array.Encoder`` describes
/// the arguments. Several threads may use it at once.
#[pyclass(frozen, module = "narrows._narrows")]
pub(crate) struct ArrayEncoder {
    options: Options,
    bound: Allowed,
    // Locked only while the interpreter's lock is held, so that it is free in a forked process.
    memory: Mutex<Memory>,
}

#[pymethods]
impl ArrayEncoder {
    #[new]
    #[pyo3(signature = (*, abs = None, range_rel = None, rel = None, floor = None, digits = None, bits = None,
        range = None, fills = Vec::new(), exact = Vec::new(), mode = "balanced", encode_rate = None,
        rewritable = false))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword in Python")]
    fn new(
        abs: Option<f64>,
        range_rel: Option<f64>,
        rel: Option<f64>,
        floor: Option<f64>,
        digits: Option<u32>,
        bits: Option<u32>,
        range: Option<f64>,
        fills: Vec<f64>,
        exact: Vec<(f64, f64)>,
        mode: &str,
        encode_rate: Option<f64>,
        rewritable: bool,
    ) -> PyResult<Self> {
        let options = Options { mode: mode.parse().map_err(raised)?, encode_rate, method: None };
        let bound = Allowed { abs, range_rel, rel, floor, digits, bits, range, fills, exact, rewritable };
        bound.check().map_err(raised)?;
        Ok(Self { options, bound, memory: Mutex::default() })
    }

    /// Encodes the elements of an object with the buffer protocol as one chunk.
    fn encode<'py>(&self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let elements = Elements::of(data)?;
        let memory = self.memory().clone();
        let (encoded, memory) = py.detach(|| {
            with_coder(|coder| {
                let mut chooser = Chooser::with(self.options.clone(), self.bound.clone(), memory, coder)
                    .expect("the bound was checked");
                let encoded = chooser.encode(&elements.view());
                let (memory, coder) = chooser.into_parts();
                ((encoded, memory), coder)
            })
        });
        *self.memory() = memory;
        Ok(PyBytes::new(py, &encoded.map_err(raised)?))
    }

    /// Steps and codec that won the last trial, as text; ``None`` before the first chunk.
    #[getter]
    fn pipeline(&self) -> Option<String> {
        self.memory().pipeline().map(ToString::to_string)
    }

    /// How often pipelines were compared.
    #[getter]
    fn trials(&self) -> u64 {
        self.memory().trials()
    }
}

impl ArrayEncoder {
    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decodes a chunk of at most ``max_length`` raw bytes.
#[pyfunction]
pub(crate) fn array_decode(py: Python<'_>, chunk: &Bound<'_, PyAny>, max_length: usize) -> PyResult<DecodedArray> {
    let bytes = Bytes::of(chunk)?;
    let decode = |chunk: &[u8]| {
        with_coder(|mut coder| {
            let decoded = coder.decode(chunk, max_length.min(RAW_MAX));
            (decoded, coder)
        })
    };
    let decoded = match bytes {
        // Nobody can write to it meanwhile.
        Bytes::Bytes(bytes) => {
            let chunk = bytes.as_bytes();
            py.detach(|| decode(chunk))
        }
        Bytes::Buffer(_) => {
            let chunk = bytes.with(py, <[u8]>::to_vec);
            py.detach(|| decode(&chunk))
        }
    };
    Ok(DecodedArray::new(decoded.map_err(raised)?))
}

/// What header and pipeline of a chunk say, after decoding it.
#[pyfunction]
pub(crate) fn array_info<'py>(py: Python<'py>, chunk: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let chunk = Bytes::of(chunk)?.with(py, <[u8]>::to_vec);
    let decoded = py.detach(|| {
        with_coder(|mut coder| {
            let decoded = coder.decode_all(&chunk, RAW_MAX);
            (decoded, coder)
        })
    });
    let (_, info, pipeline) = decoded.map_err(raised)?;
    let told = PyDict::new(py);
    told.set_item("dtype", format::typestr(info.dtype, info.order))?;
    told.set_item("shape", pyo3::types::PyTuple::new(py, &info.shape)?)?;
    told.set_item("order", if info.layout == Layout::RowMajor { "C" } else { "F" })?;
    told.set_item("raw_len", info.raw_len)?;
    told.set_item("wire_len", chunk.len())?;
    told.set_item("pipeline", pipeline.to_string())?;
    if let Some(kept) = info.bound {
        told.set_item("abs", kept.abs)?;
        told.set_item("rel", kept.rel)?;
        told.set_item("floor", kept.floor)?;
        told.set_item("keeps", kept.keeps)?;
        told.set_item("worst_abs", kept.worst_abs)?;
        told.set_item("worst_rel", kept.worst_rel)?;
        told.set_item("exceptions", kept.exceptions)?;
    }
    Ok(told)
}
