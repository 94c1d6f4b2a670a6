//! Statistics of message flows.

use narrows::codec::Method;
use narrows::message::{Sent, Traffic};
use narrows::policy::print_method;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Totals of one direction of a message flow: a snapshot.
///
/// - ``messages``: number of messages.
/// - ``raw_bytes``: bytes of the messages.
/// - ``wire_bytes``: bytes of all frames, control frames included.
/// - ``ratio``: raw / wire, 1.0 while there is nothing.
/// - ``methods``: for sent messages, the number of messages by method.
#[pyclass(frozen, get_all, module = "narrows")]
pub(crate) struct Stats {
    messages: u64,
    raw_bytes: u64,
    wire_bytes: u64,
    ratio: f64,
    methods: Py<PyDict>,
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        let Self { messages, raw_bytes, wire_bytes, ratio, .. } = self;
        format!("Stats(messages={messages}, raw_bytes={raw_bytes}, wire_bytes={wire_bytes}, ratio={ratio:.3})")
    }
}

impl Stats {
    pub(crate) fn new(py: Python<'_>, traffic: Traffic, methods: &Methods) -> PyResult<Self> {
        let counts = PyDict::new(py);
        for ((method, linked, dictionary), count) in &methods.0 {
            let name = print_method(*method, *linked);
            counts.set_item(if *dictionary { name + "+dictionary" } else { name }, count)?;
        }
        let (messages, raw_bytes, wire_bytes) = (traffic.messages, traffic.raw_len, traffic.wire_len);
        Ok(Self { messages, raw_bytes, wire_bytes, ratio: traffic.ratio(), methods: counts.unbind() })
    }
}

/// Number of messages by method, whether linked, and whether with a dictionary. A policy uses few
/// methods, so a list is fastest.
#[derive(Default)]
pub(crate) struct Methods(Vec<((Method, bool, bool), u64)>);

impl Methods {
    pub(crate) fn count(&mut self, sent: &Sent) {
        let key = (sent.method, sent.linked, sent.slot != 0);
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some((_, count)) => *count += 1,
            None => self.0.push((key, 1)),
        }
    }
}
