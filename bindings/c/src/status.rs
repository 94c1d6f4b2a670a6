//! Status codes, and the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};

use narrows::ErrorKind;

/// Result of a call. Failures are negative, so that functions that return a count can return them
/// too; narrows_last_error() describes the failure.
#[allow(non_camel_case_types, reason = "the names that C sees")]
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum narrows_status {
    /// The call succeeded.
    NARROWS_OK = 0,
    /// The bytes are not what a sender wrote: damaged or hostile. Fetch them again.
    NARROWS_ERROR_CORRUPT = -1,
    /// The stream stops before its end, or a reader was closed before it. Fetch the rest, or all of
    /// it again.
    NARROWS_ERROR_TRUNCATED = -2,
    /// A newer format, or a feature, codec or option that this library does not know. Upgrade the
    /// library.
    NARROWS_ERROR_UNSUPPORTED = -3,
    /// A length or request exceeds the limits of this side. Raise the limit, or refuse the peer.
    NARROWS_ERROR_LIMIT = -4,
    /// The call itself is wrong: a null pointer, a bad specification, calls out of order, an
    /// invalid handle.
    NARROWS_ERROR_MISUSE = -5,
    /// The operating system or the peer's connection failed.
    NARROWS_ERROR_IO = -6,
    /// The object was closed or freed before.
    NARROWS_ERROR_CLOSED = -7,
    /// Another thread is in a call with this object.
    NARROWS_ERROR_BUSY = -8,
    /// A defect of the library. The object can only be closed.
    NARROWS_ERROR_INTERNAL = -9,
}

pub(crate) use narrows_status as Status;

impl Status {
    pub(crate) const ALL: [Self; 10] = [
        Self::NARROWS_OK,
        Self::NARROWS_ERROR_CORRUPT,
        Self::NARROWS_ERROR_TRUNCATED,
        Self::NARROWS_ERROR_UNSUPPORTED,
        Self::NARROWS_ERROR_LIMIT,
        Self::NARROWS_ERROR_MISUSE,
        Self::NARROWS_ERROR_IO,
        Self::NARROWS_ERROR_CLOSED,
        Self::NARROWS_ERROR_BUSY,
        Self::NARROWS_ERROR_INTERNAL,
    ];

    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Self::NARROWS_OK => c"ok",
            Self::NARROWS_ERROR_CORRUPT => c"corrupt",
            Self::NARROWS_ERROR_TRUNCATED => c"truncated",
            Self::NARROWS_ERROR_UNSUPPORTED => c"unsupported",
            Self::NARROWS_ERROR_LIMIT => c"limit",
            Self::NARROWS_ERROR_MISUSE => c"misuse",
            Self::NARROWS_ERROR_IO => c"io",
            Self::NARROWS_ERROR_CLOSED => c"closed",
            Self::NARROWS_ERROR_BUSY => c"busy",
            Self::NARROWS_ERROR_INTERNAL => c"internal",
        }
    }
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) text: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn misuse(text: impl Into<String>) -> Self {
        Self::new(Status::NARROWS_ERROR_MISUSE, text)
    }

    pub(crate) fn internal() -> Self {
        Self::new(Status::NARROWS_ERROR_INTERNAL, "a defect of libnarrows; the object can only be closed")
    }
}

impl From<narrows::Error> for Failure {
    fn from(e: narrows::Error) -> Self {
        let status = match e.kind {
            ErrorKind::Corrupt => Status::NARROWS_ERROR_CORRUPT,
            ErrorKind::Truncated => Status::NARROWS_ERROR_TRUNCATED,
            ErrorKind::Unsupported => Status::NARROWS_ERROR_UNSUPPORTED,
            ErrorKind::Limit => Status::NARROWS_ERROR_LIMIT,
            ErrorKind::Misuse => Status::NARROWS_ERROR_MISUSE,
            ErrorKind::Io => Status::NARROWS_ERROR_IO,
            _ => Status::NARROWS_ERROR_INTERNAL,
        };
        Self::new(status, e.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::new(Status::NARROWS_ERROR_IO, e.to_string())
    }
}

thread_local! {
    static LAST: RefCell<(Status, CString)> = RefCell::new((Status::NARROWS_OK, CString::default()));
}

/// Status of this thread's last failure.
pub(crate) fn last_status() -> Status {
    LAST.try_with(|last| last.borrow().0).unwrap_or(Status::NARROWS_ERROR_INTERNAL)
}

/// Its description. The pointer is valid until the thread's next failure.
pub(crate) fn last_text() -> *const std::ffi::c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

fn remember(failure: Failure) {
    let mut text = failure.text.into_bytes();
    text.retain(|b| *b != 0);
    let text = CString::new(text).unwrap_or_default();
    // Gone only while the thread ends, when destructors of other libraries may still call.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (failure.status, text));
}

/// Runs a call from C. Records a failure for this thread, and turns a panic into one.
pub(crate) fn enter<R>(call: impl FnOnce() -> Result<R>, failed: impl FnOnce(Status) -> R) -> R {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::internal(),
    };
    let status = failure.status;
    remember(failure);
    failed(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_the_engine_has_a_status_of_its_own() {
        use ErrorKind::{Corrupt, Io, Limit, Misuse, Truncated, Unsupported};
        let kinds = [Corrupt, Truncated, Unsupported, Limit, Misuse, Io];
        let mut seen: Vec<_> = kinds.map(|k| Failure::from(narrows::Error::new(k, "x")).status as i32).into();
        seen.sort_unstable();
        assert_eq!(seen, [-6, -5, -4, -3, -2, -1]);
    }

    #[test]
    fn statuses_are_numbered_without_gaps() {
        assert!(Status::ALL.iter().enumerate().all(|(i, s)| *s as i32 == -(i as i32)));
    }

    #[test]
    fn a_panic_and_words_with_zeros_end_at_the_border() {
        let status = enter(|| panic!("of a test"), |s| s);
        assert_eq!((status, last_status()), (Status::NARROWS_ERROR_INTERNAL, Status::NARROWS_ERROR_INTERNAL));
        enter(|| Err(Failure::misuse("a\0b")), |_| ());
        LAST.with(|l| assert_eq!(l.borrow().1.to_str().unwrap(), "ab"));
    }
}
