//! Packs among compressed files: their raw bytes are for `unpack`, and nobody gets them as the content of a
//! file.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use narrows::stream::ReceiveOptions;
use narrows::{Error, ErrorKind, Result};
use narrows_file::decode::{self, Decoded};
use narrows_file::{File, OpenOptions, ReadAt};
use narrows_pack::{begins_as_pack, read_trailer};

use crate::report;

/// As [`decode::decode_within`]. Fails before the first byte of a file with a `name` that is a pack. Of what else
/// only begins as one, which other content may too, it says so.
pub(crate) fn decode_within<R, W>(
    name: Option<&Path>,
    source: R,
    sink: W,
    window_log: u32,
    options: impl FnMut() -> ReceiveOptions,
) -> Result<Decoded>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let Some(path) = name.filter(|path| path.is_file()) else {
        return decode::decode_within(source, Noticing { sink, begun: false }, window_log, options);
    };
    // Where the end cannot be read, nobody knows what the rest is.
    refuse(path)?;
    // Whole to its end, it may be a pack that lost the stream of its directory.
    decode::decode_within(source, Noticing { sink, begun: false }, window_log, options)
}

/// Fails for a file that is a pack.
///
/// # Errors
/// It is one, or the source fails.
pub(crate) fn refuse(path: &Path) -> Result<()> {
    if !path.is_file() {
        return Ok(());
    }
    match open(fs::File::open(path)?)? {
        Some(_) => Err(refused()),
        None => Ok(()),
    }
}

/// Whether a file that is no pack has all entries of one: it was cut where the directory began.
///
/// # Errors
/// The source fails.
pub(crate) fn lacks_directory<R: ReadAt>(file: &File<R>) -> Result<bool> {
    Ok(file.broken().is_none() && file.members().len() == 1 && begins(file)?)
}

/// The error of a pack that [lacks its directory](lacks_directory).
pub(crate) fn no_directory() -> Error {
    Error::new(ErrorKind::Truncated, format!("its directory is missing, as of a pack that was cut; {HELP}"))
}

fn begins<R: ReadAt>(file: &File<R>) -> Result<bool> {
    match file.block_at(0) {
        Err(e) if e.source.is_some() => Err(e),
        block => Ok(block.is_ok_and(|block| block.is_some_and(|raw| begins_as_pack(&raw)))),
    }
}

/// The error of who wants the raw bytes of a pack.
pub(crate) fn refused() -> Error {
    Error::misuse("it is a pack: `narrows unpack` unpacks it, `narrows list` shows what is in it")
}

/// Whether a file is a pack. One that breaks off, or whose end is damaged, has only its beginning to tell.
///
/// # Errors
/// The source fails.
pub(crate) fn is_pack<R: ReadAt>(file: &File<R>) -> Result<bool> {
    match file.broken() {
        // Packs have a stream of entries and one of the directory. Of others nothing is read for this.
        None if file.members().len() < 2 => Ok(false),
        None => match read_trailer(file) {
            Err(e) if e.source.is_some() => Err(e),
            Err(_) => begins(file),
            Ok(trailer) => Ok(trailer.is_some()),
        },
        Some(_) => begins(file),
    }
}

/// What to do with a damaged pack.
pub(crate) const HELP: &str = "`narrows unpack` unpacks what is whole";

/// The error of a file that cannot be opened, with what helps if it is a pack that breaks off.
pub(crate) fn with_help(error: Error, source: impl ReadAt) -> Error {
    let is_damage = error.source.is_none() && matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Truncated);
    let file = is_damage.then(|| open(source).ok().flatten()).flatten();
    match file.as_ref().and_then(File::broken) {
        Some(why) => Error::new(error.kind, format!("{why}; {HELP}")),
        None => error,
    }
}

/// A pack, also one that breaks off or is damaged at its end; `None` of other files.
///
/// # Errors
/// The source fails.
pub(crate) fn open<R: ReadAt>(source: R) -> Result<Option<File<R>>> {
    match OpenOptions::default().broken(true).open(source) {
        Err(e) if e.source.is_some() => Err(e),
        Err(_) => Ok(None),
        Ok(file) => Ok(is_pack(&file)?.then_some(file)),
    }
}

/// A sink that says if what it gets begins as a pack.
struct Noticing<W> {
    sink: W,
    begun: bool,
}

impl<W: Write> Write for Noticing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.begun && begins_as_pack(bytes) {
            report::note(
                "this begins as a pack does: `narrows unpack` unpacks packs, `narrows list` shows what is in them",
            );
        }
        let n = self.sink.write(bytes)?;
        self.begun |= n > 0;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
