//! Wake-ups of an event loop: one descriptor for all comms of a loop.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use crate::sys::Event;

/// Private: the comms of one event loop that have something to tell.
#[pyclass(module = "narrows._narrows", frozen)]
pub(crate) struct CommHub(Arc<Hub>);

struct Hub {
    event: Event,
    /// Numbers of comms, each once.
    waiting: Mutex<Vec<u64>>,
}

/// Wakes the event loop of one comm.
#[derive(Clone)]
pub(super) struct Signal {
    hub: Arc<Hub>,
    number: u64,
}

#[pymethods]
impl CommHub {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Arc::new(Hub { event: Event::new()?, waiting: Mutex::default() })))
    }

    /// Readable when `take` returns something.
    fn fileno(&self) -> i32 {
        self.0.event.number()
    }

    /// The numbers of the comms that were signalled since the last call.
    fn take(&self, py: Python<'_>) -> Vec<u64> {
        self.0.event.clear();
        crate::buffer::release(py);
        mem::take(&mut *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl CommHub {
    pub(super) fn signal(&self, number: u64) -> Signal {
        Signal { hub: Arc::clone(&self.0), number }
    }
}

impl Signal {
    pub(super) fn give(&self) {
        let mut waiting = self.hub.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiting.contains(&self.number) {
            waiting.push(self.number);
            if waiting.len() == 1 {
                self.hub.event.set();
            }
        }
    }
}
