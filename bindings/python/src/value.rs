//! Values of a store, each encoded on its own.

use std::cell::Cell;
use std::sync::Arc;

use narrows::Error;
use narrows::value::{self, ValueConfig, ValueContexts};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::buffer::Bytes;
use crate::error::raised;
use crate::message::Dictionary;
use crate::stream::with_level;

/// Shorter values stay as they are: what the server itself and its scripts read and compare, such as
/// numbers and the tokens of locks (32 to 36 bytes).
const LEN_MIN: usize = 64;
/// Least of all that may be set, for the same reason.
const LEN_MIN_MIN: usize = 48;
/// Longer values stay as they are and are not decoded: a server that serves one is busy with it for some
/// 50 ms, and a hostile value of 14 bytes decodes to as much.
const LEN_MAX: usize = 64 << 20;
/// Up to this length in bytes the interpreter's lock is kept: zstd takes some 20 us, less than
/// another thread needs to take the lock.
const BRIEF: usize = 8 << 10;

/// Encodes values that an application keeps in a store, each on its own, and decodes them. Values that
/// do not get shorter stay as they are, and those that were stored before are read as they are.
///
/// - ``policy``, ``level``: as for ``compress``; ``fixed:store`` writes all as they are and still
///   reads encoded ones, for the way back.
/// - ``dictionary``: from ``train``, for values of some hundred bytes; for zstd, whose levels are 1
///   and 3 then, and lz4. Readers need it too.
/// - ``known``: dictionaries of values that were written before.
/// - ``min_length``: shorter values stay as they are, at least 48: servers and scripts compare and
///   count with short ones.
/// - ``max_length``: longer values stay as they are, and encoded ones are refused, at most 512 MiB.
///
/// Any number of threads may use one.
#[pyclass(frozen, module = "narrows")]
pub(crate) struct Values {
    values: value::Values,
    policy: String,
    config: ValueConfig,
}

thread_local! {
    static KEPT: Cell<Option<Box<ValueContexts>>> = const { Cell::new(None) };
}

/// Calls `f` with the contexts of the thread. A nested call, from a signal handler, gets its own.
fn with_contexts<R>(f: impl FnOnce(&mut ValueContexts) -> R) -> R {
    let mut contexts = KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = f(&mut contexts);
    contexts.trim();
    // Fails only while the thread ends.
    let _ = KEPT.try_with(|kept| kept.set(Some(contexts)));
    result
}

#[pymethods]
impl Values {
    #[new]
    #[pyo3(signature = (
        policy = "fixed:zstd", *, level = None, dictionary = None, known = Vec::new(), min_length = LEN_MIN,
        max_length = LEN_MAX,
    ))]
    fn new(
        policy: &str,
        level: Option<i32>,
        dictionary: Option<PyRef<'_, Dictionary>>,
        known: Vec<PyRef<'_, Dictionary>>,
        min_length: usize,
        max_length: usize,
    ) -> PyResult<Self> {
        let policy = with_level(policy, level).map_err(raised)?.into_owned();
        let method = policy.strip_prefix("fixed:").ok_or_else(|| {
            raised(Error::misuse(format!("values are encoded by a fixed method, such as fixed:zstd, not {policy}")))
        })?;
        if min_length < LEN_MIN_MIN {
            return Err(raised(Error::misuse(format!("min_length must be at least {LEN_MIN_MIN}, not {min_length}"))));
        }
        let config = ValueConfig {
            method: method.parse().map_err(raised)?,
            dictionary: dictionary.map(|d| Arc::clone(&d.0)),
            known: known.iter().map(|d| Arc::clone(&d.0)).collect(),
            len_min: min_length,
            len_max: max_length,
        };
        let sample = config.dictionary.as_ref().map(|d| d.content()[..d.content().len().min(BRIEF)].to_vec());
        let values = value::Values::new(config.clone()).map_err(raised)?;
        if let Some(sample) = sample {
            // Makes the dictionary's tables while nobody can fork.
            let _ = with_contexts(|c| values.encode(&sample, c).map(|value| value.map(<[u8]>::to_vec)));
        }
        Ok(Self { values, policy, config })
    }

    /// Longest value that is decoded, in bytes.
    #[getter]
    fn max_length(&self) -> usize {
        self.config.len_max
    }

    /// What to store for a value, an object with the buffer protocol: the encoded value, or the bytes
    /// themselves. Raises ``LimitError`` for a value above ``max_length`` that begins like an encoded
    /// one.
    #[pyo3(signature = (value, /))]
    fn encode<'py>(&self, py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = Bytes::of(value)?;
        let encoded = bytes.with_kept(py, |raw| {
            if raw.len() <= BRIEF {
                return with_contexts(|c| Ok(self.values.encode(raw, c)?.map(|encoded| PyBytes::new(py, encoded))));
            }
            let encoded = py.detach(|| with_contexts(|c| Ok(self.values.encode(raw, c)?.map(<[u8]>::to_vec))));
            encoded.map(|encoded| encoded.map(|encoded| PyBytes::new(py, &encoded)))
        });
        Ok(encoded.map_err(raised)?.unwrap_or_else(|| itself(py, value, &bytes)))
    }

    /// The value that was given to ``encode``, or the stored bytes themselves if they are no encoded
    /// value.
    ///
    /// Raises ``CorruptError`` or ``TruncatedError`` if the value is damaged, ``LimitError`` if it is
    /// longer than ``max_length``, and ``UnsupportedError`` if its dictionary or codec is missing.
    #[pyo3(signature = (stored, /))]
    fn decode<'py>(&self, py: Python<'py>, stored: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = Bytes::of(stored)?;
        let raw = bytes.with_kept(py, |stored| {
            let Some(value) = self.values.open(stored).map_err(raised)? else { return Ok(None) };
            let made = PyBytes::new_with(py, value.raw_len(), |raw| {
                let mut decode = || with_contexts(|c| value.decode(c, raw));
                let decoded = if value.raw_len() <= BRIEF { decode() } else { py.detach(decode) };
                decoded.map_err(raised)
            });
            made.map(Some)
        });
        Ok(raw?.unwrap_or_else(|| itself(py, stored, &bytes)))
    }

    /// Pickles and copies it by its arguments.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((String,), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        let dictionary = |d: &Arc<_>| Dictionary(Arc::clone(d));
        named.set_item("dictionary", self.config.dictionary.as_ref().map(dictionary))?;
        named.set_item("known", self.config.known.iter().map(dictionary).collect::<Vec<_>>())?;
        named.set_item("min_length", self.config.len_min)?;
        named.set_item("max_length", self.config.len_max)?;
        Ok(((self.policy.clone(),), named))
    }

    fn __repr__(&self) -> String {
        format!("<narrows.Values {}>", self.policy)
    }
}

/// The object, or its bytes.
fn itself<'py>(py: Python<'py>, object: &Bound<'py, PyAny>, bytes: &Bytes<'_, 'py>) -> Bound<'py, PyBytes> {
    match object.cast::<PyBytes>() {
        Ok(same) => same.clone(),
        Err(_) => bytes.with(py, |b| PyBytes::new(py, b)),
    }
}
