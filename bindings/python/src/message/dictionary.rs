//! Dictionaries and their training.

use std::sync::{Arc, Mutex, PoisonError};

use narrows::message::{self, DICTIONARY_MAX, DICTIONARY_MIN};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Bytes;

/// Content that messages have in common, used to encode them. All flows that use a dictionary share
/// it.
///
/// ``Dictionary(content)`` takes 64 bytes to 64 KiB: a dictionary made by ``train``, or typical
/// messages one after the other, the most typical last. Raises ``ValueError`` for other lengths and
/// for a damaged trained dictionary. A dictionary contains pieces of the messages it was made of:
/// whoever gets it can read them.
#[pyclass(frozen, eq, hash, module = "narrows")]
pub(crate) struct Dictionary(pub(crate) Arc<message::Dictionary>);

impl PartialEq for Dictionary {
    fn eq(&self, other: &Self) -> bool {
        self.0.digest() == other.0.digest()
    }
}

impl std::hash::Hash for Dictionary {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.digest().hash(state);
    }
}

#[pymethods]
impl Dictionary {
    #[new]
    #[pyo3(signature = (content, /))]
    fn new(py: Python<'_>, content: &Bound<'_, PyAny>) -> PyResult<Self> {
        let bytes = Bytes::of(content)?;
        // Checked before the copy.
        let fits = (DICTIONARY_MIN..=DICTIONARY_MAX).contains(&bytes.len());
        let content = bytes.with(py, |b| if fits { b.to_vec() } else { Vec::new() });
        let made = message::Dictionary::new(content);
        made.map(|d| Self(Arc::new(d))).ok_or_else(|| {
            let lens = format!("{DICTIONARY_MIN} to {DICTIONARY_MAX} bytes");
            PyValueError::new_err(format!("a dictionary must have {lens}, and a trained one must be complete"))
        })
    }

    /// The content in bytes, to be stored or passed to ``Dictionary`` elsewhere.
    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.content())
    }

    /// The 64-bit digest of the content, by which both ends identify the dictionary.
    #[getter]
    fn digest(&self) -> u64 {
        self.0.digest()
    }

    fn __len__(&self) -> usize {
        self.0.content().len()
    }

    /// Pickles and copies it by its content.
    fn __getnewargs__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>,) {
        (self.content(py),)
    }

    fn __repr__(&self) -> String {
        format!("<narrows.Dictionary of {} bytes, digest {:016x}>", self.0.content().len(), self.0.digest())
    }
}

/// A training that is due, returned by ``training()`` of ``MessageEnd`` and ``TopicWriter``. Call
/// ``run`` on a separate thread.
#[pyclass(frozen, module = "narrows")]
pub(crate) struct Training(pub(crate) message::Training);

#[pymethods]
impl Training {
    /// Trains and evaluates a dictionary in 3 to 20 ms, without the interpreter's lock. Pass the
    /// result to ``trained``.
    fn run(&self, py: Python<'_>) -> Adoption {
        Adoption(Mutex::new(py.detach(|| self.0.run())))
    }
}

/// Result of a training. True if it made a dictionary that pays.
#[pyclass(frozen, module = "narrows")]
pub(crate) struct Adoption(Mutex<Option<message::Adoption>>);

impl Adoption {
    pub(crate) fn take(&self) -> Option<message::Adoption> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Adoption {
    fn __bool__(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The dictionary, or ``None``.
    #[getter]
    fn dictionary(&self) -> Option<Dictionary> {
        let adoption = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        adoption.as_ref().map(|a| Dictionary(Arc::clone(&a.dictionary)))
    }
}

/// Maximum of all samples together: with more, training is slower and no better.
const SAMPLES_BYTES_MAX: usize = 1 << 20;

/// Trains a dictionary from typical messages; returns ``None`` if none would pay.
///
/// - ``samples``: at least some dozens of messages, each an object with the buffer protocol, the
///   oldest first. Samples beyond 1 MiB in total are ignored. The last fifth is used for evaluation
///   only: the dictionary, trained without it, must make it at least 5 % shorter than without a
///   dictionary.
/// - ``expected``: number of messages of this kind that will be sent, since the dictionary has to
///   be sent as well; by default very many.
///
/// Takes some milliseconds, without the interpreter's lock.
#[pyfunction]
#[pyo3(signature = (samples, *, expected = None))]
pub(crate) fn train(py: Python<'_>, samples: &Bound<'_, PyAny>, expected: Option<u64>) -> PyResult<Option<Dictionary>> {
    let (mut messages, mut bytes) = (Vec::new(), 0);
    for sample in samples.try_iter()? {
        let sample = sample?;
        let message = Bytes::of(&sample)?.with(py, <[u8]>::to_vec);
        bytes += message.len();
        messages.push(message);
        if bytes >= SAMPLES_BYTES_MAX {
            break;
        }
    }
    let expected = expected.unwrap_or(u64::from(u32::MAX));
    let adoption = py.detach(|| message::Training::of(&messages, expected).run());
    Ok(adoption.map(|a| Dictionary(a.dictionary)))
}
