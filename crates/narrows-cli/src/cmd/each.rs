//! Several files, one after another.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use narrows_host::signals;

use crate::files::StdoutClosed;
use crate::report;

/// Does `one` with each of `files` and returns the highest of their exit statuses, which does not
/// depend on their order. A file that fails does not keep the others from their turn.
///
/// # Errors
/// The program is to end at once: by a signal, or because nobody reads its output.
pub(super) fn each(files: &[PathBuf], one: impl FnMut(&Path) -> Result<u8>) -> Result<ExitCode> {
    each_looked_at(files, |_| Ok(()), one)
}

/// As [`each`], for what writes or removes files: `look` has passed over all of them before, and those that it
/// refuses have no turn.
pub(super) fn each_looked_at(
    files: &[PathBuf],
    look: impl Fn(&Path) -> Result<()>,
    mut one: impl FnMut(&Path) -> Result<u8>,
) -> Result<ExitCode> {
    let (mut highest, mut good) = (0, Vec::new());
    for path in files {
        let is_empty = path.as_os_str().is_empty();
        match status(if is_empty { Err(anyhow!("the name of a file is empty")) } else { look(path).map(|()| 0) })? {
            0 => good.push(path),
            bad => highest = highest.max(bad),
        }
    }
    for path in good {
        highest = highest.max(status(one(path))?);
    }
    Ok(ExitCode::from(highest))
}

/// The status of one file, whose error is told.
fn status(result: Result<u8>) -> Result<u8> {
    match result {
        Err(error) if signals::received().is_some() || error.is::<StdoutClosed>() => Err(error),
        Err(error) => {
            report::note(report::one_line(&error));
            Ok(report::status(&error))
        }
        status => status,
    }
}
