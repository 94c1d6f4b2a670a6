//! Errors of the engine as exceptions: one class for each kind, made by `narrows/_errors.py`.

use std::io;

use narrows::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

pyo3::import_exception!(narrows._errors, NarrowsError);

/// The exception for an error of the engine.
pub(crate) fn raised(error: Error) -> PyErr {
    Python::attach(|py| match exception(py, &error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(e) => e,
    })
}

fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = MAKE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("narrows._errors")?.getattr("make")?.unbind()))?;
    make.bind(py).call1((kind(error.kind), error.to_string(), errno(error), error.wire_offset, error.frame))
}

fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Truncated => "truncated",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Limit => "limit",
        ErrorKind::Misuse => "misuse",
        // Kinds that a later engine may add are told in words.
        _ => "io",
    }
}

/// The number by which Python finds its own class for what failed. Errors that the engine raised itself have none.
fn errno(error: &Error) -> Option<i32> {
    let source = error.source.as_ref()?;
    source.raw_os_error().or(match source.kind() {
        io::ErrorKind::TimedOut => Some(ETIMEDOUT),
        io::ErrorKind::BrokenPipe => Some(EPIPE),
        io::ErrorKind::ConnectionReset => Some(ECONNRESET),
        _ => None,
    })
}

/// Of Linux, on all its processors that Narrows is built for.
const EPIPE: i32 = 32;
const ECONNRESET: i32 = 104;
const ETIMEDOUT: i32 = 110;
