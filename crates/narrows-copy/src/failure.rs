//! Failures that decide what a copy does next: a host out of reach, and a link that was lost.

use std::io;

/// Error: the other end never answered; nothing was done.
#[derive(Debug)]
pub struct Unreachable(String);

impl Unreachable {
    pub(crate) fn new(what: &str) -> Self {
        Self(what.to_owned())
    }
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot reach {}", self.0)
    }
}

impl std::error::Error for Unreachable {}

/// Whether an error means that the link was lost, for the exit status.
pub fn is_link_lost(error: &anyhow::Error) -> bool {
    let kinds = [
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::TimedOut,
    ];
    error.chain().any(|cause| {
        let own = cause.downcast_ref::<narrows::Error>();
        own.is_some_and(|e| e.kind == narrows::ErrorKind::Truncated)
            || cause.downcast_ref::<io::Error>().is_some_and(|e| kinds.contains(&e.kind()))
            || own.and_then(|e| e.source.as_ref()).is_some_and(|e| kinds.contains(&e.kind()))
    })
}
