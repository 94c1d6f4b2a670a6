//! Memory of the caller: every pointer that comes from C is looked at here.
#![allow(unsafe_code, reason = "follows pointers that C passes")]

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::status::{Failure, Result, Status};

/// A structure that C fills in: whatever bytes it has, zeros among them, are a value.
///
/// # Safety
/// It consists of integers, floats, pointers and such structures only.
pub(crate) unsafe trait Plain: Copy {}

/// The bytes that C passes to be read.
///
/// # Safety
/// `data` is null or has `len` bytes that nobody writes during `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, len: usize, what: &str) -> Result<&'a [u8]> {
    check_range(data.cast(), len, what)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, not longer than an object may be, and the caller answers for the rest.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

fn check_range(data: *const u8, len: usize, what: &str) -> Result<()> {
    if data.is_null() && len > 0 {
        return Err(Failure::misuse(format!("{what} is a null pointer with a length of {len}")));
    }
    if len > isize::MAX as usize || data.addr().checked_add(len).is_none() {
        return Err(Failure::misuse(format!("{what} has a length of {len}, which no object has")));
    }
    Ok(())
}

/// A buffer of the caller that is written and never read.
pub(crate) struct Room {
    data: *mut u8,
    len: usize,
}

impl Room {
    /// # Safety
    /// `data` is null or has `len` bytes that nobody else uses as long as the `Room` lives.
    pub(crate) unsafe fn new(data: *mut c_void, len: usize, what: &str) -> Result<Self> {
        check_range(data.cast_const().cast(), len, what)?;
        Ok(Self { data: data.cast(), len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Leaves the first bytes as they are.
    pub(crate) fn skip(&mut self, len: usize) {
        let len = len.min(self.len);
        // Not followed beyond `self.len`, which becomes as much less.
        self.data = self.data.wrapping_add(len);
        self.len -= len;
    }

    /// Writes as many bytes as fit, and goes on behind them. How many that were.
    pub(crate) fn put(&mut self, from: &[u8]) -> usize {
        let len = from.len().min(self.len);
        if len > 0 {
            // SAFETY: `data` has `self.len` bytes of the caller's, at least `len`, which nobody else uses; a slice of ours
            // or one that was compared (`overlaps`) does not lie in them.
            unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), self.data, len);
                self.data = self.data.add(len);
            }
            self.len -= len;
        }
        len
    }

    pub(crate) fn overlaps(&self, bytes: &[u8]) -> bool {
        let range = |at: usize, len: usize| -> Range<usize> { at..at + len };
        let (a, b) = (range(self.data.addr(), self.len), range(bytes.as_ptr().addr(), bytes.len()));
        !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
    }
}

/// A string of the caller; null is `None`.
///
/// # Safety
/// `text` is null or ends with a zero, and nobody writes it during `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and the caller answers for the zero at its end.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map(Some).map_err(|_| Failure::misuse(format!("{what} is not UTF-8")))
}

/// A structure whose first member is its size: of a caller with an older header it is shorter, and what is missing is zero.
///
/// # Safety
/// `from` is null or points to a size and as many bytes as it says, that one included.
pub(crate) unsafe fn options<T: Plain>(from: *const T, what: &str) -> Result<Option<T>> {
    if from.is_null() {
        return Ok(None);
    }
    if !from.is_aligned() {
        return Err(Failure::misuse(format!("{what} is no pointer to such a structure")));
    }
    // SAFETY: aligned, not null, and the caller answers for the first member.
    let size = unsafe { from.cast::<usize>().read() };
    if size < size_of::<usize>() || size > 64 * size_of::<T>() {
        return Err(Failure::misuse(format!("{what} says that it has {size} bytes: set struct_size to sizeof it")));
    }
    // SAFETY: as many bytes as the caller says that there are.
    let given = unsafe { bytes(from.cast(), size, what)? };
    if given.iter().skip(size_of::<T>()).any(|b| *b != 0) {
        let text = format!("{what} uses members that this version of the library does not have");
        return Err(Failure::new(Status::NARROWS_ERROR_UNSUPPORTED, text));
    }
    let mut own = MaybeUninit::<T>::zeroed();
    // SAFETY: no more than the structure has, from memory of the caller to one of ours; zeros and what C put there are a
    // value of a `Plain`.
    unsafe {
        std::ptr::copy_nonoverlapping(given.as_ptr(), own.as_mut_ptr().cast(), size.min(size_of::<T>()));
        Ok(Some(own.assume_init()))
    }
}

/// The array of `count` structures.
///
/// # Safety
/// `from` is null or has `count` of them that nobody writes during `'a`.
pub(crate) unsafe fn array<'a, T: Plain>(from: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    let len = count.saturating_mul(size_of::<T>());
    check_range(from.cast(), len, what)?;
    if count == 0 {
        return Ok(&[]);
    }
    if !from.is_aligned() {
        return Err(Failure::misuse(format!("{what} is no pointer to such structures")));
    }
    // SAFETY: not null, aligned, not longer than an object may be, and the caller answers for the rest.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

// SAFETY: an integer.
unsafe impl Plain for usize {}

/// A place of the caller for a result.
///
/// # Safety
/// `to` is null or a place for a `T` that nobody else uses during `'a`, with a value in it.
pub(crate) unsafe fn place<'a, T: Plain>(to: *mut T, what: &str) -> Result<&'a mut T> {
    if to.is_null() || !to.is_aligned() {
        return Err(Failure::misuse(format!("{what} is a null pointer")));
    }
    // SAFETY: not null, aligned, and the caller answers for the rest.
    Ok(unsafe { &mut *to })
}

/// The same, for places that may hold nothing yet, or be left out.
///
/// # Safety
/// `to` is null or a place for a `T` that nobody else uses.
pub(crate) unsafe fn store<T: Plain>(to: *mut T, value: T, what: &str) -> Result<()> {
    fits(to, what)?;
    if !to.is_null() {
        // SAFETY: not null, aligned, and the caller answers for the rest.
        unsafe { to.write(value) };
    }
    Ok(())
}

/// Whether this may be a place for a structure, or null.
pub(crate) fn fits<T: Plain>(to: *const T, what: &str) -> Result<()> {
    if to.is_null() || to.is_aligned() {
        return Ok(());
    }
    Err(Failure::misuse(format!("{what} is no pointer to such a place")))
}
