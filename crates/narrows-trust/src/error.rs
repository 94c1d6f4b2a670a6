//! The error of a proof. It says whose fault it is.

use std::error::Error as StdError;
use std::fmt;

use narrows_host::words;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a key, a token or a configuration. Its text is one line that says what to do.
#[derive(Debug)]
pub struct Error {
    /// Whose fault it is.
    pub fault: Fault,
    /// What failed; empty if `source` says it all.
    pub text: String,
    /// The error that caused it, if any.
    pub source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Whose fault an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The proof: a token or key cannot be used, or is not the expected one.
    Trust,
    /// This host: a file cannot be used, or the system lacks something.
    Local,
    /// This program is wrong.
    Bug,
}

impl Error {
    pub(crate) fn new(fault: Fault, text: impl Into<String>) -> Self {
        Self { fault, text: text.into(), source: None }
    }

    /// Says in which attempt it happened.
    #[must_use]
    pub fn context(mut self, attempt: impl fmt::Display) -> Self {
        self.text = if self.text.is_empty() { attempt.to_string() } else { format!("{attempt}: {}", self.text) };
        self
    }
}

/// The error with its causes on one line, as the user sees it.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Some(self.text.clone()).filter(|text| !text.is_empty());
        let causes = std::iter::successors(self.source(), |&error| error.source()).map(ToString::to_string);
        f.write_str(&words::on_one_line(text.into_iter().chain(causes)))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Turns failures into an [`Error`].
pub(crate) trait Blame<T> {
    /// Says whose fault it is.
    fn blame(self, fault: Fault) -> Result<T>;

    /// Says whose fault it is, and what failed because of it.
    fn blame_for(self, fault: Fault, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> Blame<T> for Result<T, E> {
    fn blame(self, fault: Fault) -> Result<T> {
        self.blame_for(fault, "")
    }

    fn blame_for(self, fault: Fault, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| Error { fault, text: what.to_string(), source: Some(e.into()) })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_error_shows_its_cause_once_and_keeps_whose_fault_it_is() {
        let denied = || io::Error::from_raw_os_error(13);
        let failed: Result<()> = Err(denied()).blame_for(Fault::Local, "the key file k");
        let failed = failed.unwrap_err().context("the start");
        assert_eq!(failed.to_string(), "the start: the key file k: Permission denied");
        assert!(failed.fault == Fault::Local && failed.source().unwrap().is::<io::Error>());
        let bare: Result<()> = Err(denied()).blame(Fault::Trust);
        assert_eq!(bare.unwrap_err().to_string(), "Permission denied");
    }
}
