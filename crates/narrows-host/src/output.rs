//! Output of commands on stdout, and questions on a terminal.

use std::fmt::Display;
use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};

use crate::files::{StdoutClosed, stdout_is_given};
use crate::words::one_line;

/// Prints a line to stdout. If the reader has closed it, the error terminates the program by
/// SIGPIPE, as other filters.
///
/// # Errors
/// It cannot be written; [`StdoutClosed`] if nobody reads it.
pub fn out(text: impl Display) -> Result<()> {
    // The standard library takes lines for a closed stdout and drops them.
    stdout_is_given()?;
    match writeln!(io::stdout(), "{text}") {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
        result => result.context("cannot write stdout"),
    }
}

/// Why a line of [`out_meanwhile`] is missing.
static LOST: OnceLock<String> = OnceLock::new();

/// Prints a line about what is under way, which does not stop for it; see [`is_all_out`].
pub fn out_meanwhile(text: impl Display) {
    // Who closes the output wants no more of it.
    if let Err(e) = out(text)
        && !e.is::<StdoutClosed>()
    {
        let _ = LOST.set(one_line(&e));
    }
}

/// Fails if one of these lines could not be written.
///
/// # Errors
/// Why one could not.
pub fn is_all_out() -> Result<()> {
    LOST.get().map_or(Ok(()), |why| Err(anyhow::anyhow!("{why}")))
}

/// Asks on a terminal; anything but yes is no. A signal that ends programs ends this one at once meanwhile: what
/// is under way otherwise only notes it, and whoever interrupts a question does not agree with the next word.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn ask(question: &str) -> Result<bool> {
    let asks = Arc::new(AtomicBool::new(true));
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register_conditional_default(number, Arc::clone(&asks))?;
    }
    let mut err = io::stderr().lock();
    write!(err, "{question}")?;
    err.flush()?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    asks.store(false, Ordering::SeqCst);
    read?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
