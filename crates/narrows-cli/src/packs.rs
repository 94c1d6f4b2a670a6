//! Packs among compressed files: their raw bytes are for `unpack`, and nobody gets them as the content of a
//! file.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use narrows::stream::ReceiveOptions;
use narrows::{Error, ErrorKind, Result};
use narrows_file::decode::{self, Decoded};
use narrows_file::{File, OpenOptions, ReadAt};
use narrows_pack::{begins_as_pack, read_trailer};

/// As [`decode::decode_within`], and fails before the first byte of a pack.
pub(crate) fn decode_within<R, W>(
    source: R,
    sink: W,
    window_log: u32,
    options: impl FnMut() -> ReceiveOptions,
) -> Result<Decoded>
where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let found = Arc::new(AtomicBool::new(false));
    let sink = Unpacked { sink, begun: false, found: Arc::clone(&found) };
    let decoded = decode::decode_within(source, sink, window_log, options);
    // The flow only knows that its sink failed.
    if found.load(Ordering::Relaxed) { Err(refused()) } else { decoded }
}

/// The error of who wants the raw bytes of a pack.
pub(crate) fn refused() -> Error {
    Error::misuse("it is a pack: `narrows unpack` unpacks it, `narrows list` shows what is in it")
}

/// Whether a file is a pack, also one that breaks off.
pub(crate) fn is_pack<R: ReadAt>(file: &File<R>) -> bool {
    let is_whole = file.broken().is_none();
    // Packs have a stream of entries and one of the directory. Of others nothing is read for this.
    if is_whole && file.members().len() < 2 {
        return false;
    }
    is_whole && matches!(read_trailer(file), Ok(Some(_)))
        || file.block_at(0).is_ok_and(|block| block.is_some_and(|raw| begins_as_pack(&raw)))
}

/// What to do with a damaged pack.
pub(crate) const HELP: &str = "`narrows unpack` unpacks what is whole";

/// The error of a file that cannot be opened, with what helps if it is a pack that breaks off.
pub(crate) fn with_help(error: Error, source: impl ReadAt) -> Error {
    let is_damage = error.source.is_none() && matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Truncated);
    let file = is_damage.then(|| open(source)).flatten();
    match file.as_ref().and_then(File::broken) {
        Some(why) => Error::new(error.kind, format!("{why}; {HELP}")),
        None => error,
    }
}

/// A pack, also one that breaks off; `None` of other files.
pub(crate) fn open<R: ReadAt>(source: R) -> Option<File<R>> {
    OpenOptions::default().broken(true).open(source).ok().filter(is_pack)
}

/// A sink that refuses the first block of a pack.
struct Unpacked<W> {
    sink: W,
    begun: bool,
    found: Arc<AtomicBool>,
}

impl<W: Write> Write for Unpacked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.begun && begins_as_pack(bytes) {
            self.found.store(true, Ordering::Relaxed);
            return Err(io::Error::other("it is a pack"));
        }
        let n = self.sink.write(bytes)?;
        self.begun |= n > 0;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
