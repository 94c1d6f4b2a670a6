//! Values that several threads of Python use, one call at a time.

use std::process;
use std::sync::{Mutex, PoisonError, TryLockError};

use narrows::Result;
use pyo3::prelude::*;

use super::other_process;
use crate::error::raised;

pub(super) struct Turn<T> {
    /// Boxed, since objects of Python are aligned to 16 bytes only, and an engine is to cache lines.
    value: Box<Mutex<T>>,
    process: u32,
}

impl<T: Send> Turn<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Box::new(Mutex::new(value)), process: process::id() }
    }

    /// Calls `work` when it is this thread's turn, without the interpreter's lock unless it is
    /// brief.
    pub(super) fn take<R: Send>(
        &self,
        py: Python<'_>,
        is_brief: bool,
        work: impl FnOnce(&mut T) -> Result<R> + Send,
    ) -> PyResult<R> {
        match self.value.try_lock() {
            Ok(mut value) if is_brief => return work(&mut value).map_err(raised),
            // A lock that was held during fork is never released in the child.
            Err(TryLockError::WouldBlock) if process::id() != self.process => return Err(raised(other_process())),
            _ => {}
        }
        let locked = || work(&mut self.value.lock().unwrap_or_else(PoisonError::into_inner));
        py.detach(locked).map_err(raised)
    }
}
