//! The error type of the whole engine. Its kind tells the caller what to do.

use std::fmt;

/// Result of the engine's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Class of an error, by what the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes differ from what a sender wrote: damaged or hostile. Fetch them again.
    Corrupt,
    /// The stream stops before its end frame. Fetch the rest, or all of it again.
    Truncated,
    /// A newer format, or a feature or codec this build does not know. Upgrade the reader.
    Unsupported,
    /// A length or a demand exceeds the limits of this side. Raise the limit, or refuse the peer.
    Limit,
    /// The call itself is wrong: a bad specification or calls out of order.
    Misuse,
    /// The operating system or the peer's connection failed.
    Io,
}

/// An error with the place in the stream where it was found.
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// The class of the error.
    pub kind: ErrorKind,
    /// Description for a person, without a trailing period.
    pub message: String,
    /// Offset in the wire stream, in bytes, of the faulty frame.
    pub wire_offset: Option<u64>,
    /// Number of the faulty frame; the first data frame is 0.
    pub frame: Option<u64>,
    /// The error of the operating system behind it, if any.
    pub source: Option<std::io::Error>,
}

impl Error {
    /// An error without a place.
    #[doc(hidden)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), wire_offset: None, frame: None, source: None }
    }

    /// An error of kind [`ErrorKind::Corrupt`].
    #[doc(hidden)]
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// An error of kind [`ErrorKind::Limit`].
    #[doc(hidden)]
    pub fn limit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, message)
    }

    /// An error of kind [`ErrorKind::Unsupported`].
    #[doc(hidden)]
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// An error of kind [`ErrorKind::Misuse`].
    pub fn misuse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse, message)
    }

    /// An error of kind [`ErrorKind::Truncated`].
    #[doc(hidden)]
    pub fn truncated(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Truncated, message)
    }

    /// An error of kind [`ErrorKind::Io`], with that of the system.
    #[doc(hidden)]
    pub fn system(message: impl Into<String>, source: std::io::Error) -> Self {
        Self { source: Some(source), ..Self::new(ErrorKind::Io, message) }
    }

    /// The same with this text.
    #[doc(hidden)]
    #[must_use]
    pub fn with_message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }

    /// The same at this place, or at none.
    #[doc(hidden)]
    #[must_use]
    pub fn with_place(self, wire_offset: Option<u64>, frame: Option<u64>) -> Self {
        Self { wire_offset, frame, ..self }
    }

    /// Sets the place in the stream; a place that is already set is kept, since it is more exact.
    #[must_use]
    #[doc(hidden)]
    pub fn at(mut self, wire_offset: u64, frame: u64) -> Self {
        self.wire_offset.get_or_insert(wire_offset);
        self.frame.get_or_insert(frame);
        self
    }
}

/// What an [`Encoder`](crate::Encoder) or [`Decoder`](crate::Decoder) put into the system's error comes out again.
impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        let e = match e.downcast::<Self>() {
            Ok(own) => return own,
            Err(e) => e,
        };
        Self { source: Some(e), ..Self::new(ErrorKind::Io, "input or output failed") }
    }
}

/// For `Read` and `Write`: the error is inside, and its kind is that of the system's error, or `InvalidData`
/// (damage, limits, newer formats), `UnexpectedEof` (truncated) or `InvalidInput` (misuse).
impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        let kind = match e.kind {
            ErrorKind::Corrupt | ErrorKind::Limit | ErrorKind::Unsupported => std::io::ErrorKind::InvalidData,
            ErrorKind::Truncated => std::io::ErrorKind::UnexpectedEof,
            ErrorKind::Misuse => std::io::ErrorKind::InvalidInput,
            ErrorKind::Io => e.source.as_ref().map_or(std::io::ErrorKind::Other, Self::kind),
        };
        Self::new(kind, e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(e) = &self.source {
            write!(f, ": {e}")?;
        }
        if let (Some(o), Some(n)) = (self.wire_offset, self.frame) {
            write!(f, " (frame {n}, at byte {o} of the stream)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
