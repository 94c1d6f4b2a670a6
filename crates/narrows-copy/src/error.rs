//! The error type of copies. Its variant says whose fault a failure is.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use narrows_host::words;
use narrows_trust::Fault;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a copy, by whose fault it is. Its text is one line that says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The command line asks for what no copy can do.
    Usage(Reason),
    /// A pattern of `--exclude` or `--include` is invalid, at whichever end it was given.
    Pattern(Reason),
    /// This host: a file or folder cannot be used, or the system lacks something.
    Local(Reason),
    /// The remote shell, or tar on this host: it cannot be started, or it failed.
    Program(Reason),
    /// The proof of who is at the other end: a token or key cannot be used, or is not the expected
    /// one.
    Trust(Reason),
    /// The other end never answered; nothing was done.
    Unreachable(Reason),
    /// The other host was reached but has no such program as this one; nothing was done.
    NoNarrows(Reason),
    /// The connection with the other end failed.
    Link(Reason),
    /// The other end sent what the protocol does not allow, or what this version does not know.
    Protocol(Reason),
    /// The other end cannot do its part.
    Peer(Reason),
    /// The other end keeps files as they come, and takes and sends them so only.
    Form(Reason),
    /// This end refused the copy, and told the other end the reason.
    Refused(Reason),
    /// The flow of entries failed; its error says where and why.
    Flow {
        /// What failed because of it; empty if that was not said.
        context: String,
        /// The error of the flow.
        error: narrows::Error,
    },
    /// A signal ended the copy.
    Interrupted(Reason),
    /// This program is wrong.
    Bug(Reason),
}

/// The number of [`Error::Form`].
pub const FORM: u64 = 1;

/// What failed, and the error behind it, if any.
#[derive(Debug)]
pub struct Reason {
    /// Empty if `source` says it all.
    text: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// The target cannot be used, and why.
    pub(crate) fn of_target(target: &Path, why: &str) -> Self {
        Self::Local(format!("{}: {why}", cannot_store(target)).into())
    }

    /// The number by which the other end knows the reason of a refusal (format.md section 8.1), if it has one.
    pub fn code(&self) -> Option<u64> {
        matches!(self, Self::Form(_)).then_some(FORM)
    }

    /// Says in which attempt it happened.
    #[must_use]
    pub fn context(mut self, attempt: impl fmt::Display) -> Self {
        let text = match &mut self {
            Self::Usage(reason)
            | Self::Pattern(reason)
            | Self::Local(reason)
            | Self::Program(reason)
            | Self::Trust(reason)
            | Self::Unreachable(reason)
            | Self::NoNarrows(reason)
            | Self::Link(reason)
            | Self::Protocol(reason)
            | Self::Peer(reason)
            | Self::Form(reason)
            | Self::Refused(reason)
            | Self::Interrupted(reason)
            | Self::Bug(reason) => &mut reason.text,
            Self::Flow { context, .. } => context,
        };
        *text = if text.is_empty() { attempt.to_string() } else { format!("{attempt}: {text}") };
        self
    }

    /// Its own text, and the error behind it.
    fn parts(&self) -> (&str, Option<&(dyn StdError + 'static)>) {
        match self {
            Self::Usage(reason)
            | Self::Pattern(reason)
            | Self::Local(reason)
            | Self::Program(reason)
            | Self::Trust(reason)
            | Self::Unreachable(reason)
            | Self::NoNarrows(reason)
            | Self::Link(reason)
            | Self::Protocol(reason)
            | Self::Peer(reason)
            | Self::Form(reason)
            | Self::Refused(reason)
            | Self::Interrupted(reason)
            | Self::Bug(reason) => (&reason.text, reason.source.as_deref().map(|source| source as _)),
            Self::Flow { context, error } => (context, Some(error)),
        }
    }
}

/// The error with its causes on one line, as the user sees it.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, source) = self.parts();
        let text = Some(text.to_owned()).filter(|text| !text.is_empty());
        let causes = causes(source).map(ToString::to_string);
        f.write_str(&words::on_one_line(text.into_iter().chain(causes)))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.parts().1
    }
}

impl From<narrows::Error> for Error {
    fn from(error: narrows::Error) -> Self {
        Self::Flow { context: String::new(), error }
    }
}

impl From<narrows_trust::Error> for Error {
    fn from(error: narrows_trust::Error) -> Self {
        let narrows_trust::Error { fault, text, source } = error;
        let reason = Reason { text, source };
        match fault {
            Fault::Trust => Self::Trust(reason),
            Fault::Local => Self::Local(reason),
            Fault::Bug => Self::Bug(reason),
        }
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { text, source: None }
    }
}

impl From<io::Error> for Reason {
    fn from(e: io::Error) -> Self {
        Self { text: String::new(), source: Some(e.into()) }
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Turns failures into an [`Error`].
pub(crate) trait Blame<T> {
    /// Says whose fault it is.
    fn blame(self, whose: fn(Reason) -> Error) -> Result<T>;

    /// Says whose fault it is, and what failed because of it.
    fn blame_for(self, whose: fn(Reason) -> Error, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Box<dyn StdError + Send + Sync>>> Blame<T> for Result<T, E> {
    fn blame(self, whose: fn(Reason) -> Error) -> Result<T> {
        self.blame_for(whose, "")
    }

    fn blame_for(self, whose: fn(Reason) -> Error, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| whose(Reason { text: what.to_string(), source: Some(e.into()) }))
    }
}

/// Beginning of the message about a folder of `--partial-dir`.
pub(super) fn cannot_partials(dir: &Path) -> String {
    format!("cannot use {} (--partial-dir)", words::shown(dir.as_os_str().as_bytes()))
}

/// What the errors of a target begin with.
pub(crate) fn cannot_store(target: &Path) -> String {
    format!("cannot store in {}", words::shown(target.as_os_str().as_bytes()))
}

/// Whether an error means that the link was lost, for the exit status.
pub fn is_link_lost(error: &(dyn StdError + 'static)) -> bool {
    let kinds = [
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::TimedOut,
    ];
    causes(Some(error)).any(|cause| {
        let own = cause.downcast_ref::<narrows::Error>();
        own.is_some_and(|e| e.kind == narrows::ErrorKind::Truncated)
            || cause.downcast_ref::<io::Error>().is_some_and(|e| kinds.contains(&e.kind()))
            || own.and_then(|e| e.source.as_ref()).is_some_and(|e| kinds.contains(&e.kind()))
    })
}

/// An error and the ones behind it, outermost first.
fn causes<'a>(error: Option<&'a (dyn StdError + 'static)>) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(error, |&error| error.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_its_causes_once_and_keeps_whose_fault_it_is() {
        let full = || io::Error::from_raw_os_error(28);
        let failed: Result<()> = Err(full()).blame_for(Error::Local, "cannot store\nin x\u{9b}");
        let failed = failed.unwrap_err().context("the copy failed");
        assert_eq!(failed.to_string(), "the copy failed: cannot store in x\\u{9b}: No space left on device");
        assert!(matches!(failed, Error::Local(_)) && failed.source().unwrap().is::<io::Error>());
        let bare: Result<()> = Err(full()).blame(Error::Link);
        assert_eq!(bare.unwrap_err().to_string(), "No space left on device");
        let flow = Error::from(narrows::Error::from(full())).context("the copy with h failed");
        assert_eq!(flow.to_string(), "the copy with h failed: input or output failed: No space left on device");
        let told = Error::Peer("it has no tar".into()).context("the copy with h failed");
        assert_eq!(told.to_string(), "the copy with h failed: it has no tar");
    }

    #[test]
    fn a_lost_link_is_seen_behind_other_errors() {
        let lost = |kind: io::ErrorKind| {
            let failed: Result<()> = Err(io::Error::from(kind)).blame_for(Error::Link, "the copy failed");
            is_link_lost(&failed.unwrap_err())
        };
        assert!(lost(io::ErrorKind::BrokenPipe) && lost(io::ErrorKind::TimedOut) && !lost(io::ErrorKind::NotFound));
        assert!(is_link_lost(&Error::from(narrows::Error::truncated("it ends early")).context("the copy failed")));
        assert!(is_link_lost(&Error::from(narrows::Error::from(io::Error::from(io::ErrorKind::ConnectionReset)))));
        assert!(!is_link_lost(&Error::from(narrows::Error::corrupt("damaged"))));
    }
}
