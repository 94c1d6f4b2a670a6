//! Errors of the engine as Python exceptions: one class for each kind, defined in
//! `narrows/_errors.py`.

use std::io;

use narrows::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The exception for an error of the engine.
pub(crate) fn raised(error: Error) -> PyErr {
    Kept::new(&error).raised()
}

/// The same, or the exception that a Python object raised if that is behind it.
pub(crate) fn raised_or_passed(error: Error) -> PyErr {
    let behind = error.source.as_ref().and_then(|e| e.get_ref()).and_then(|e| e.downcast_ref::<PyErr>());
    match behind {
        Some(exception) => Python::attach(|py| exception.clone_ref(py)),
        None => raised(error),
    }
}

/// The data of an exception. A stored exception would keep the Python frames that it passed through
/// alive, and with them the object that stores it.
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

    /// From an exception that a Python object raised.
    pub(crate) fn of(py: Python<'_>, exception: &PyErr) -> Self {
        let errno = exception.value(py).getattr("errno").and_then(|e| e.extract()).ok();
        Self { kind: "io", text: exception.to_string(), errno, wire_offset: None, frame: None }
    }

    /// A new exception.
    pub(crate) fn raised(&self) -> PyErr {
        self.told(&self.text)
    }

    /// A new exception for a caller that already got this error.
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
        // Kinds that a later engine may add; the text describes them.
        _ => "io",
    }
}

/// The errno, by which Python chooses its own class for the error. Errors raised by the engine
/// itself have none.
fn errno(error: &Error) -> Option<i32> {
    let source = error.source.as_ref()?;
    source.raw_os_error().or(match source.kind() {
        io::ErrorKind::TimedOut => Some(ETIMEDOUT),
        io::ErrorKind::BrokenPipe => Some(EPIPE),
        io::ErrorKind::ConnectionReset => Some(ECONNRESET),
        _ => None,
    })
}

/// Values of Linux, the same on all architectures that Narrows is built for.
const EPIPE: i32 = 32;
const ECONNRESET: i32 = 104;
const ETIMEDOUT: i32 = 110;
