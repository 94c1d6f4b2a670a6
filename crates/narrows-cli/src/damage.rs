//! Errors of damaged files, with the option that reads around the damage or mends the end.

use std::fs::File;
use std::path::Path;

use narrows::{Error, ErrorKind};
use narrows_file::OpenOptions;
use narrows_file::foreign::{self, Format};

use crate::files::is_dash;
use crate::packs;

/// The error of a file that was decoded from its beginning, with what helps if that is damaged.
pub(crate) fn with_help(error: Error, path: &Path) -> Error {
    let is_damage = error.source.is_none() && matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Truncated);
    if !is_damage || !is_of_narrows(path) {
        return error;
    }
    if File::open(path).is_ok_and(|file| matches!(packs::open(file), Ok(Some(_)))) {
        return Error::new(error.kind, format!("{error}; {}", packs::HELP));
    }
    let message = format!(
        "{error}; `narrows cat --skip-damaged` reads what is whole, `narrows check --repair-index` mends a damaged \
         beginning or end"
    );
    Error::new(error.kind, message)
}

/// Whether a file is one of Narrows, by its beginning or by its end.
fn is_of_narrows(path: &Path) -> bool {
    if is_dash(path) || !path.is_file() {
        return false;
    }
    let Ok(mut file) = File::open(path) else { return false };
    foreign::peek(&mut file).is_ok_and(|begin| Format::of(&begin) == Some(Format::Narrows))
        || OpenOptions::default().scan(false).open(file).is_ok()
}
