//! One error for the whole engine; its kind tells the caller what to do.

use std::fmt;

pub type Result<T> = std::result::Result<T, Error>;

/// What the caller can do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes are not what a sender wrote: damaged or hostile. Fetch them again.
    Corrupt,
    /// The stream stops before its end frame. Fetch the rest, or again.
    Truncated,
    /// A newer format, or a feature or codec this build does not know. Upgrade the reader.
    Unsupported,
    /// A length or a demand beyond the limits of this side. Raise the limit, or refuse the peer.
    Limit,
    /// The call itself is wrong: a bad specification or calls out of order.
    Misuse,
    /// The operating system or the peer's connection failed.
    Io,
}

/// An error with the place in the stream where it was found.
#[derive(Debug)]
pub struct Error {
    pub kind: ErrorKind,
    /// What is wrong, in words for a person; no trailing period.
    pub message: String,
    /// Offset in the wire stream, in bytes, of the frame that is at fault.
    pub wire_offset: Option<u64>,
    /// Number of the frame that is at fault, the first data frame being 0.
    pub frame: Option<u64>,
    pub source: Option<std::io::Error>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), wire_offset: None, frame: None, source: None }
    }

    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    pub fn limit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, message)
    }

    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    pub fn misuse(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misuse, message)
    }

    pub fn truncated(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Truncated, message)
    }

    /// Says where in the stream; an earlier, more exact place is kept.
    #[must_use]
    pub fn at(mut self, wire_offset: u64, frame: u64) -> Self {
        self.wire_offset.get_or_insert(wire_offset);
        self.frame.get_or_insert(frame);
        self
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Self { source: Some(e), ..Self::new(ErrorKind::Io, "input or output failed") }
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
