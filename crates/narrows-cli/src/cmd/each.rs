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
pub(super) fn each(files: &[PathBuf], mut one: impl FnMut(&Path) -> Result<u8>) -> Result<ExitCode> {
    let mut highest = 0;
    for path in files {
        let is_empty = path.as_os_str().is_empty();
        let status = match if is_empty { Err(anyhow!("the name of a file is empty")) } else { one(path) } {
            Ok(status) => status,
            Err(error) if signals::received().is_some() || error.is::<StdoutClosed>() => return Err(error),
            Err(error) => {
                report::note(report::one_line(&error));
                report::status(&error)
            }
        };
        highest = highest.max(status);
    }
    Ok(ExitCode::from(highest))
}
