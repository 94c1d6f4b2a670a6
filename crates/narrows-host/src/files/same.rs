//! Refuses an output that is also the input: writing it would destroy data that is still to be
//! read, or data that the user did not ask to lose.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;

/// Fails if one of `outputs` is the regular file `input`, under whatever name: a link, or stdin or
/// stdout redirected by the shell. `-` is stdin as an input and stdout as an output.
pub fn refuse_same<'a>(input: &Path, outputs: impl IntoIterator<Item = Option<&'a Path>>) -> Result<()> {
    let Some(read) = identity(data(input, super::stdin)) else { return Ok(()) };
    for output in outputs.into_iter().flatten() {
        if identity(data(output, super::stdout)) == Some(read) {
            let name = if super::is_dash(input) { "stdin".into() } else { input.display().to_string() };
            return Err(narrows::Error::misuse(format!("{name} is input and output; write to another file")).into());
        }
    }
    Ok(())
}

/// Device and inode of a regular file. Other files lose nothing if they are read and written at
/// once.
pub fn identity(data: Option<Metadata>) -> Option<(u64, u64)> {
    data.filter(Metadata::is_file).map(|data| (data.dev(), data.ino()))
}

fn data(path: &Path, dash: fn() -> Result<fs::File>) -> Option<Metadata> {
    if super::is_dash(path) { dash().ok()?.metadata().ok() } else { path.metadata().ok() }
}
