//! Dictionaries, and how they are made.

use std::sync::{Arc, Mutex, PoisonError};

use narrows::message::{self, DICTIONARY_MAX, DICTIONARY_MIN};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::Bytes;

/// Content that messages are encoded with: what they have in common. Shared by all flows that use it.
///
/// ``Dictionary(content)`` takes 64 bytes to 64 KiB: what ``train`` made, or typical messages one after the other,
/// the most typical last. Raises ``ValueError`` for other lengths and for a damaged trained one. A dictionary
/// contains pieces of the messages it was made of: whoever gets it can read them.
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
        // Before it is copied.
        let fits = (DICTIONARY_MIN..=DICTIONARY_MAX).contains(&bytes.len());
        let content = bytes.with(py, |b| if fits { b.to_vec() } else { Vec::new() });
        let made = message::Dictionary::new(content);
        made.map(|d| Self(Arc::new(d))).ok_or_else(|| {
            let lens = format!("{DICTIONARY_MIN} to {DICTIONARY_MAX} bytes");
            PyValueError::new_err(format!("a dictionary has {lens}, and if it was trained it is whole"))
        })
    }

    /// The content, for a file or for ``Dictionary`` elsewhere.
    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.content())
    }

    /// By which both ends know it: a number of 64 bits, of the content.
    #[getter]
    fn digest(&self) -> u64 {
        self.0.digest()
    }

    fn __len__(&self) -> usize {
        self.0.content().len()
    }

    fn __repr__(&self) -> String {
        format!("<narrows.Dictionary of {} bytes, digest {:016x}>", self.0.content().len(), self.0.digest())
    }
}

/// A training that is due: ``MessageEnd.training()`` gives it, ``run`` belongs on a thread of its own.
#[pyclass(frozen, module = "narrows")]
pub(crate) struct Training(pub(crate) message::Training);

#[pymethods]
impl Training {
    /// Trains and judges, in 3 to 20 ms and without the interpreter's lock. The result is for ``MessageEnd.trained``.
    fn run(&self, py: Python<'_>) -> Adoption {
        Adoption(Mutex::new(py.detach(|| self.0.run())))
    }
}

/// What came of a training; true if there is a dictionary that pays.
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

/// All samples together at most: more trains slower and no better.
const SAMPLES_BYTES_MAX: usize = 1 << 20;

/// Makes a dictionary of typical messages, or ``None`` if none would pay.
///
/// ``samples``: at least some dozens of messages, each an object with the buffer protocol; what is beyond 1 MiB is
/// not looked at. The oldest first: the last fifth judges, and the dictionary, which is made without it, has to leave at
/// most 95 % of what is left without one.
/// ``expected``: how many messages of the kind will be sent, since the dictionary has to be sent as well; by default
/// very many. Takes some milliseconds, without the interpreter's lock.
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
