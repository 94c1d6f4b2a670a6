//! Chunks of HDF5 datasets and the parameters of their filter, for those who write chunks directly.

use std::sync::Mutex;

use narrows::Error;
use narrows_array::hdf5::{Chunks, Params};
use narrows_array::{Bound as Errors, Options};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Bytes;
use crate::error::raised;

/// The filter's parameters for hints. MisuseError if they are none that a filter can keep.
#[pyfunction]
#[pyo3(signature = (
    *, abs=None, range_rel=None, rel=None, floor=None, digits=None, bits=None, fills=Vec::new(), exact=Vec::new(),
    mode="balanced", encode_rate=None, rewritable=true
))]
#[expect(clippy::too_many_arguments, reason = "the hints")]
pub(crate) fn hdf5_params(
    abs: Option<f64>,
    range_rel: Option<f64>,
    rel: Option<f64>,
    floor: Option<f64>,
    digits: Option<u32>,
    bits: Option<u32>,
    fills: Vec<f64>,
    exact: Vec<(f64, f64)>,
    mode: &str,
    encode_rate: Option<f64>,
    rewritable: bool,
) -> PyResult<Vec<u32>> {
    let bound = Errors { abs, range_rel, rel, floor, digits, bits, range: None, fills, exact, rewritable };
    let options = Options { mode: mode.parse().map_err(raised)?, encode_rate, method: None };
    Params { options, bound, elements: None }.words().map_err(raised)
}

/// Encodes and decodes chunks of the dataset whose filter has these parameters.
#[pyclass(frozen, module = "narrows._narrows")]
pub(crate) struct Hdf5Chunks {
    params: Vec<u32>,
    chunks: Mutex<Chunks>,
}

#[pymethods]
impl Hdf5Chunks {
    #[new]
    fn new(params: Vec<u32>) -> PyResult<Self> {
        match Params::from_words(&params).map_err(raised)?.elements {
            Some(_) => Ok(Self { params, chunks: Mutex::default() }),
            None => Err(raised(Error::misuse("the filter does not apply to elements of this dataset"))),
        }
    }

    /// Forgets what the chunks before were like.
    fn forget(&self, py: Python<'_>) {
        py.detach(|| self.locked(|chunks| chunks.forget(&self.params)));
    }

    /// The chunk, encoded; other threads of Python run meanwhile.
    fn encode<'py>(&self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        // A copy, since nothing keeps other threads from changing it.
        let raw = Bytes::of(data)?.with(py, <[u8]>::to_vec);
        let made = py.detach(|| self.locked(|chunks| chunks.encode(&self.params, &raw)));
        Ok(PyBytes::new(py, &made.map_err(raised)?))
    }

    /// The elements of a stored chunk.
    fn decode<'py>(&self, py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let stored = Bytes::of(data)?.with(py, <[u8]>::to_vec);
        let made = py.detach(|| self.locked(|chunks| chunks.decode(&self.params, &stored)));
        Ok(PyBytes::new(py, &made.map_err(raised)?))
    }
}

impl Hdf5Chunks {
    fn locked<T>(&self, work: impl FnOnce(&mut Chunks) -> T) -> T {
        work(&mut self.chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}
