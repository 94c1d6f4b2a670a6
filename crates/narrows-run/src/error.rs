//! Errors with which a run does not begin.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::wire::RULES_MAX;

/// Result of what prepares a run.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a run does not begin. Each says on one line what to do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The text is no rule about connections.
    Rule(String),
    /// The name of a rule has no address.
    Unresolved {
        /// The name, as it was typed.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// Options name more addresses than the library takes.
    TooManyRules {
        /// The options, as the user typed them.
        options: &'static str,
    },
    /// The command is empty.
    NoProgram,
    /// The program needs the filter, which the kernel lacks.
    NoNotifications,
    /// $NARROWS_PRELOAD names no file.
    NoSuchLibrary(PathBuf),
    /// The library is in none of its places.
    NoLibrary {
        /// The file name of the library.
        library: &'static str,
        /// The folder of this program.
        folder: PathBuf,
    },
    /// The loader cannot be told this path.
    Unloadable(PathBuf),
    /// The path of this program is unknown, so the library next to it is too.
    NoOwnPath,
    /// Signals cannot be caught.
    Signals(io::Error),
    /// The operating system refused a step of the start.
    Start {
        /// What failed, as a sentence about it begins.
        failed: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A thread of the supervisor ended: a bug.
    ThreadFailed,
}

impl Error {
    /// For `map_err`: the step that fails with that error.
    pub(crate) fn start<E: Into<io::Error>>(failed: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Start { failed, source: error.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(text) => write!(
                f,
                "'{text}' is not HOST[:PORT] or ADDRESS/BITS[:PORT], such as db.example:5432, 10.0.0.0/8 or *:80-89"
            ),
            Self::Unresolved { host, source } => write!(f, "{host}: {source}"),
            Self::TooManyRules { options } => write!(f, "{options}: at most {RULES_MAX} addresses are allowed"),
            Self::NoProgram => f.write_str("no program given"),
            Self::NoNotifications => f.write_str(
                "this kernel cannot notify about system calls (seccomp): use --engine=preload, or run without narrows",
            ),
            Self::NoSuchLibrary(path) => write!(f, "NARROWS_PRELOAD: there is no file {}", path.display()),
            Self::NoLibrary { library, folder } => {
                let folder = folder.display();
                write!(
                    f,
                    "{library} is neither in {folder} nor in {folder}/../lib/narrows: install it there, or set \
                     NARROWS_PRELOAD"
                )
            }
            Self::Unloadable(path) => {
                write!(f, "{}: the loader takes no path with a space or colon in LD_PRELOAD", path.display())
            }
            Self::NoOwnPath => f.write_str("cannot find out where this program is: set NARROWS_PRELOAD"),
            Self::Signals(error) => error.fmt(f),
            Self::Start { failed, source } => write!(f, "{failed}: {source}"),
            Self::ThreadFailed => f.write_str("a thread failed; this is a bug"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unresolved { source, .. } | Self::Start { source, .. } | Self::Signals(source) => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn an_error_is_one_line_and_says_its_cause() {
        let denied = || io::Error::from_raw_os_error(13);
        let all = [
            (Error::Rule("a/b".into()), "'a/b' is not HOST[:PORT]"),
            (Error::Unresolved { host: "nowhere".into(), source: denied() }, "nowhere: Permission denied"),
            (Error::TooManyRules { options: "--peer" }, "--peer: at most "),
            (
                Error::NoLibrary { library: "lib.so", folder: "/a".into() },
                "lib.so is neither in /a nor in /a/../lib/narrows: install it there, or set NARROWS_PRELOAD",
            ),
            (Error::Signals(denied()), "Permission denied"),
            (Error::start("cannot watch the program")(denied()), "cannot watch the program: Permission denied"),
        ];
        for (error, begins) in all {
            let text = error.to_string();
            assert!(text.starts_with(begins) && !text.contains('\n'), "{text}");
            assert!(error.source().is_none_or(|cause| text.contains(&cause.to_string())));
        }
    }
}
