//! Settings from the environment variable, read once before the program runs.
#![allow(unsafe_code, reason = "a place that is written once; every block says why it is sound")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::wire::{Setup, VARIABLE};

struct Place(UnsafeCell<MaybeUninit<Setup>>);

// SAFETY: it is written once, by the constructor, before `READY` is set with release order; then it is only read.
unsafe impl Sync for Place {}

static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));
static READY: AtomicBool = AtomicBool::new(false);

/// The settings. `None` if not under `narrows run`; then every hook does nothing.
pub(crate) fn get() -> Option<&'static Setup> {
    // SAFETY: `READY` is set after the place was filled, and stays set.
    READY.load(Ordering::Acquire).then(|| unsafe { (*PLACE.0.get()).assume_init_ref() })
}

/// Reads the variable; whether there was one. Only for the constructor.
pub(crate) fn read() -> bool {
    let mut name = [0u8; VARIABLE.len() + 1];
    name[..VARIABLE.len()].copy_from_slice(VARIABLE.as_bytes());
    // SAFETY: the name ends with a zero; nobody changes the environment before the program runs.
    let value = unsafe { libc::getenv(name.as_ptr().cast::<c_char>()) };
    if value.is_null() {
        return false;
    }
    // SAFETY: an environment variable is a string that ends with a zero.
    let Some(setup) = Setup::parse(unsafe { CStr::from_ptr(value) }.to_bytes()) else { return false };
    // SAFETY: the loader calls constructors once, in one thread; nobody reads the place before `READY`.
    unsafe { (*PLACE.0.get()).write(setup) };
    READY.store(true, Ordering::Release);
    true
}
