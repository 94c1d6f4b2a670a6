//! What is used by one thread at a time.

use std::sync::{Mutex, PoisonError};

/// Makes shareable what is not, such as a policy or a codec: Python hands out an object to one caller at a time, and
/// only through `&mut` it is reached.
pub(crate) struct Own<T>(Mutex<T>);

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Nothing is locked.
    pub(crate) fn get(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
