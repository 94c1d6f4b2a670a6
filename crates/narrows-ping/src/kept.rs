//! State that a process keeps between connections: codec contexts, and dictionaries with their
//! tables. Creating them again takes as long as ten messages.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use narrows::codec;
use narrows::message::{Contexts, Dictionary};

/// Maximum number of kept contexts; more than the connections of one client need.
const CONTEXTS_MAX: usize = 64;
/// Maximum number of kept dictionaries; each client may have its own.
const DICTIONARIES_MAX: usize = 4;

static MESSAGES: Mutex<Vec<Contexts>> = Mutex::new(Vec::new());
static CODECS: Mutex<Vec<codec::Contexts>> = Mutex::new(Vec::new());
static DICTIONARIES: Mutex<Vec<Arc<Dictionary>>> = Mutex::new(Vec::new());

/// Something that can be kept.
pub(crate) trait Keep: Default + Send + 'static {
    fn place() -> &'static Mutex<Vec<Self>>;
}

impl Keep for Contexts {
    fn place() -> &'static Mutex<Vec<Self>> {
        &MESSAGES
    }
}

impl Keep for codec::Contexts {
    fn place() -> &'static Mutex<Vec<Self>> {
        &CODECS
    }
}

/// A context used by one connection, and afterwards by another one.
pub(crate) struct Kept<T: Keep>(Option<T>);

const THERE: &str = "it is there until it is dropped";

impl<T: Keep> Kept<T> {
    /// Takes a kept context, or creates one.
    pub(crate) fn take() -> Self {
        let mut place = T::place().lock().unwrap_or_else(PoisonError::into_inner);
        Self(Some(place.pop().unwrap_or_default()))
    }
}

impl<T: Keep> Drop for Kept<T> {
    fn drop(&mut self) {
        // After a panic the context may be in any state.
        if std::thread::panicking() {
            return;
        }
        let mut place = T::place().lock().unwrap_or_else(PoisonError::into_inner);
        if place.len() < CONTEXTS_MAX {
            place.extend(self.0.take());
        }
    }
}

impl<T: Keep> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(THERE)
    }
}

impl<T: Keep> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(THERE)
    }
}

/// A kept dictionary with this content, or a new one; `None` if it is malformed.
pub(crate) fn dictionary(content: Vec<u8>) -> Option<Arc<Dictionary>> {
    let mut seen = DICTIONARIES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(same) = seen.iter().find(|d| d.content() == content) {
        return Some(Arc::clone(same));
    }
    let new = Arc::new(Dictionary::new(content)?);
    if seen.len() >= DICTIONARIES_MAX {
        seen.remove(0);
    }
    seen.push(Arc::clone(&new));
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_known_again_and_few_are_kept() {
        let content = |i: u8| vec![i; 100];
        let first = dictionary(content(200)).unwrap();
        assert!(Arc::ptr_eq(&first, &dictionary(content(200)).unwrap()));
        (201..206).for_each(|i| drop(dictionary(content(i))));
        assert!(!Arc::ptr_eq(&first, &dictionary(content(200)).unwrap()));
        assert!(dictionary(vec![1]).is_none());
    }
}
