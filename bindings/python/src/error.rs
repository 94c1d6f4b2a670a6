//! Errors of the engine as exceptions: one class for each kind, made by `narrows/_errors.py`.

use std::io;

use narrows::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The exception for an error of the engine.
pub(crate) fn raised(error: Error) -> PyErr {
    Kept::new(&error).raised()
}

/// What an exception is made of. An exception that is kept would keep the frames that it passed through, and with them
/// whoever keeps it.
pub(crate) struct Kept {
    kind: &'static str,
    text: String,
    errno: Option<i32>,
    wire_offset: Option<u64>,
    frame: Option<u64>,
}

impl Kept {
    pub(crate) fn new(error: &Error) -> Self {
        Self {
            kind: kind(error.kind),
            text: error.to_string(),
            errno: errno(error),
            wire_offset: error.wire_offset,
            frame: error.frame,
        }
    }

    /// Of what a Python object raised, in words.
    pub(crate) fn of(py: Python<'_>, exception: &PyErr) -> Self {
        let errno = exception.value(py).getattr("errno").and_then(|e| e.extract()).ok();
        Self { kind: "io", text: exception.to_string(), errno, wire_offset: None, frame: None }
    }

    /// A new exception each time.
    pub(crate) fn raised(&self) -> PyErr {
        self.told(&self.text)
    }

    /// For who was told before.
    pub(crate) fn again(&self) -> PyErr {
        self.told(&format!("the stream has failed already: {}", self.text))
    }

    fn told(&self, text: &str) -> PyErr {
        static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let import = |py: Python<'_>| Ok::<_, PyErr>(py.import("narrows._errors")?.getattr("make")?.unbind());
        Python::attach(|py| {
            let made = MAKE
                .get_or_try_init(py, || import(py))
                .and_then(|make| make.bind(py).call1((self.kind, text, self.errno, self.wire_offset, self.frame)));
            made.map_or_else(|e| e, PyErr::from_value)
        })
    }
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
