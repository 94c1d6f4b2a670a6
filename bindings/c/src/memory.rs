//! Memory of the caller: every pointer from C is checked here.
#![allow(unsafe_code, reason = "follows pointers that C passes")]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::status::{Failure, Result, Status};

/// A structure that C fills in, for which every bit pattern is a valid value.
///
/// # Safety
/// The type consists only of integers, floats, pointers and other such structures.
pub(crate) unsafe trait Plain: Copy {}

/// The `len` bytes at `data`, to be read.
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
        return Err(Failure::misuse(format!("{what} has an impossible length of {len} bytes")));
    }
    Ok(())
}

/// A write-only buffer of the caller.
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

    /// Skips the first `len` bytes, which stay as they are.
    pub(crate) fn skip(&mut self, len: usize) {
        let len = len.min(self.len);
        // Stays within the buffer: `self.len` shrinks by the same amount.
        self.data = self.data.wrapping_add(len);
        self.len -= len;
    }

    /// Writes as many bytes as fit and advances. Returns their number.
    pub(crate) fn put(&mut self, from: &[u8]) -> usize {
        let len = from.len().min(self.len);
        if len > 0 {
            // SAFETY: `data` has `self.len` bytes of the caller's, at least `len`, which nobody
            // else uses. `from` does not overlap them: it is our own slice, or `overlaps` was
            // checked.
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

/// A path of the caller, which need not be UTF-8.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char, what: &str) -> Result<&'a Path> {
    if path.is_null() {
        return Err(Failure::misuse(format!("{what} is a null pointer")));
    }
    // SAFETY: not null, and the caller answers for the zero at its end.
    let bytes = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(bytes.to_bytes())))
}

/// Copies a structure whose first member is its size. A caller with an older header has a shorter
/// one; missing members are zero.
///
/// # Safety
/// `from` is null or points to a size and that many bytes, the size included.
pub(crate) unsafe fn options<T: Plain>(from: *const T, what: &str) -> Result<Option<T>> {
    if from.is_null() {
        return Ok(None);
    }
    if !from.is_aligned() {
        return Err(Failure::misuse(format!("{what} is a misaligned pointer")));
    }
    // SAFETY: aligned, not null, and the caller answers for the first member.
    let size = unsafe { from.cast::<usize>().read() };
    if size < size_of::<usize>() || size > 64 * size_of::<T>() {
        return Err(Failure::misuse(format!("{what}.struct_size is {size}: set it to the size of the structure")));
    }
    // SAFETY: the caller answers for `size` bytes.
    let given = unsafe { bytes(from.cast(), size, what)? };
    if given.iter().skip(size_of::<T>()).any(|b| *b != 0) {
        let text = format!("{what} uses members that this version of the library does not have");
        return Err(Failure::new(Status::NARROWS_ERROR_UNSUPPORTED, text));
    }
    let mut own = MaybeUninit::<T>::zeroed();
    // SAFETY: copies at most the size of the structure, from the caller's memory to our own. Any
    // bytes are a value of a `Plain`.
    unsafe {
        std::ptr::copy_nonoverlapping(given.as_ptr(), own.as_mut_ptr().cast(), size.min(size_of::<T>()));
        Ok(Some(own.assume_init()))
    }
}

/// The array of `count` structures.
///
/// # Safety
/// `from` is null or has `count` structures that nobody writes during `'a`.
pub(crate) unsafe fn array<'a, T: Plain>(from: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    let len = count.saturating_mul(size_of::<T>());
    check_range(from.cast(), len, what)?;
    if count == 0 {
        return Ok(&[]);
    }
    if !from.is_aligned() {
        return Err(Failure::misuse(format!("{what} is a misaligned pointer")));
    }
    // SAFETY: not null, aligned, not longer than an object may be, and the caller answers for the
    // rest.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

// SAFETY: an integer.
unsafe impl Plain for usize {}

/// The caller's initialised place for a result.
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

/// Stores a result in a place that may be uninitialised, or null.
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

/// An error if `to` is neither null nor aligned for a `T`.
pub(crate) fn fits<T: Plain>(to: *const T, what: &str) -> Result<()> {
    if to.is_null() || to.is_aligned() {
        return Ok(());
    }
    Err(Failure::misuse(format!("{what} is a misaligned pointer")))
}
