//! Totals of streams, readable while another thread is in a call.

use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use narrows::sender::Summary;
use narrows::stream::Control;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::other_process;
use crate::error::raised;

/// Totals of a writer.
pub(super) struct Sent {
    control: Arc<Control>,
    /// The last summary seen: a flow that is over cannot be asked.
    last: Mutex<Summary>,
    process: u32,
}

impl Sent {
    pub(super) fn new(control: Arc<Control>) -> Self {
        Self { control, last: Mutex::default(), process: process::id() }
    }

    /// The totals so far, or the final ones.
    pub(super) fn look(&self) -> Summary {
        self.keep(self.control.send_summary())
    }

    pub(super) fn keep(&self, summary: Summary) -> Summary {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if summary.wire_bytes >= last.wire_bytes {
            last.clone_from(&summary);
        }
        last.clone()
    }
}

/// Private: totals of a ``Writer``. Any thread may ask at any time.
#[pyclass(module = "narrows._narrows", frozen)]
pub(crate) struct SentTotals(pub(super) Arc<Sent>);

#[pymethods]
impl SentTotals {
    /// The totals so far, or the final ones.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // A lock that was held during fork is never released in the child.
        if process::id() != self.0.process {
            return Err(raised(other_process()));
        }
        let summary = py.detach(|| self.0.look());
        told(py, &summary)
    }
}

/// Totals of what was sent, for Python.
pub(super) fn told<'py>(py: Python<'py>, summary: &Summary) -> PyResult<Bound<'py, PyDict>> {
    let stats = PyDict::new(py);
    stats.set_item("raw_bytes", summary.raw_bytes)?;
    stats.set_item("wire_bytes", summary.wire_bytes)?;
    stats.set_item("blocks", summary.frames)?;
    stats.set_item("ratio", if summary.wire_bytes == 0 { 1.0 } else { summary.ratio() })?;
    stats.set_item("encode_cpu_seconds", summary.encode_cpu_ns as f64 / 1e9)?;
    let methods = PyDict::new(py);
    for row in &summary.mix {
        methods.set_item(narrows::policy::print_method(row.method, row.linked), row.raw_bytes)?;
    }
    stats.set_item("methods", methods)?;
    Ok(stats)
}

/// Totals of a reader.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) raw_bytes: AtomicU64,
    pub(crate) wire_bytes: AtomicU64,
}

/// Private: totals of a ``Reader``. Any thread may ask at any time.
#[pyclass(module = "narrows._narrows", frozen)]
pub(crate) struct ReceivedTotals(pub(super) Arc<Received>);

impl ReceivedTotals {
    pub(crate) fn new(received: &Arc<Received>) -> Self {
        Self(Arc::clone(received))
    }
}

#[pymethods]
impl ReceivedTotals {
    /// Raw bytes read, and wire bytes received.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        stats.set_item("raw_bytes", self.0.raw_bytes.load(Ordering::Relaxed))?;
        stats.set_item("wire_bytes", self.0.wire_bytes.load(Ordering::Relaxed))?;
        Ok(stats)
    }
}
