//! Values used by one thread at a time.

use std::sync::{Mutex, PoisonError};

/// Makes a value `Sync` that is not, such as a policy or a codec. Python lends an object to one
/// caller at a time, and the value is only reached through `&mut`.
pub(crate) struct Own<T>(Mutex<T>);

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// The value. Takes no lock.
    pub(crate) fn get(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
