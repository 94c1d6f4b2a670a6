//! One file of `narrows repack`: recompressed beside the old one, verified, put in its place.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use narrows_file::ReadAt;
use narrows_file::effort::{Effort, Record, end_of};
use narrows_file::foreign::{self, Format};
use narrows_file::repack::{Candidate, RepackOptions, Repacked, copy_with_effort, open, repack, verify};
use narrows_host::whole::{Successor, remove_left_over};
use narrows_pack::PackOptions;

pub(crate) mod kept;
pub(crate) mod objects;
pub(crate) mod tree;

use kept::{Kept, put_record, record};

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was replaced by a smaller one.
    Smaller { old: u64, new: u64 },
    /// It would not get smaller, and this is recorded.
    NoGain { old: u64 },
    /// An earlier run has done it, or it was written so.
    Before,
    /// It is left as it is.
    Left(&'static str),
    /// It would be recompressed.
    Would { old: u64 },
}

/// Recompresses the file at `path`, which is no link. `leave` is a reason of its hint to leave it. With
/// `dry` only its end is read.
///
/// # Errors
/// It cannot be read or written, is damaged or changes meanwhile; it is as it was.
pub(crate) fn one(path: &Path, leave: Option<&'static str>, options: &RepackOptions, dry: bool) -> Result<Outcome> {
    let cannot = || format!("cannot read {}", path.display());
    let named = |e: narrows::Error| match e.source {
        Some(cause) => {
            anyhow::Error::from(crate::files::innermost(cause)).context(format!("cannot repack {}", path.display()))
        }
        None => anyhow::Error::from(e).context(path.display().to_string()),
    };
    // A named pipe in its place would wait for a writer.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path).with_context(cannot)?;
    let data = file.metadata().with_context(cannot)?;
    if !data.is_file() {
        return Ok(Outcome::Left("it is no regular file"));
    }
    if let Some(why) = leave {
        return Ok(Outcome::Left(why));
    }
    if data.nlink() > 1 {
        return Ok(Outcome::Left("it has several names, of which only one would be replaced"));
    }
    // Before anything is read, which changes a time.
    let kept = Kept::of(&file).with_context(|| path.display().to_string())?;
    let end = end_of(&file).map_err(named)?;
    let effort = options.effort();
    let recorded = record(&file).filter(|r| end.is_some_and(|end| end.seal == r.seal)).map(|r| r.effort);
    let mut tried = end.and_then(|end| end.effort).into_iter().chain(recorded);
    if tried.any(|tried| tried.covers(effort)) {
        return Ok(Outcome::Before);
    }
    if end.is_none() && is_foreign(&file).with_context(cannot)? {
        return Ok(Outcome::Left("it is in another format"));
    }
    if dry {
        return Ok(Outcome::Would { old: data.len() });
    }
    let source = file.try_clone().with_context(cannot)?;
    let source = match open(source, options).map_err(named)? {
        Candidate::File(source) => source,
        Candidate::Unchecked => return Ok(Outcome::Left("it has no checks that would tell whether it is whole")),
        Candidate::Newer => return Ok(Outcome::Left("a newer version wrote it")),
    };
    let options = &with_parts(&source, options).map_err(named)?;
    remove_left_over(path);
    let cannot_write = || format!("cannot write {}", path.display());
    let new = Successor::of(path).with_context(cannot_write)?;
    kept.begin(new.file()).with_context(|| path.display().to_string())?;
    let sink = BufWriter::with_capacity(1 << 20, new.file().try_clone().with_context(cannot_write)?);
    let (mut sink, repacked) = repack(*source, sink, options).map_err(named)?;
    sink.flush().with_context(cannot_write)?;
    drop(sink);
    if !repacked.shrank() {
        in_vain(path, &file, end.map_or(0, |end| end.seal), &kept, options)?;
        return Ok(Outcome::NoGain { old: repacked.old_bytes });
    }
    let read_back = new.file().try_clone().with_context(cannot_write)?;
    verify(read_back, &repacked, options).map_err(named)?;
    replace(path, new, &kept)?;
    let Repacked { old_bytes: old, new_bytes: new, .. } = repacked;
    Ok(Outcome::Smaller { old, new })
}

/// A pack keeps its directory in a stream of its own, with short blocks.
pub(crate) fn with_parts<R: ReadAt>(
    file: &narrows_file::File<R>,
    options: &RepackOptions,
) -> narrows::Result<RepackOptions> {
    let options = options.clone();
    Ok(match narrows_pack::read_trailer(file)?.filter(|trailer| trailer.content_end > 0) {
        Some(trailer) => {
            let streams = PackOptions::default().hint(options.whole_hint()).streams();
            options.parts(trailer.content_end, streams)
        }
        None => options,
    })
}

fn replace(path: &Path, new: Successor, kept: &Kept) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    kept.finish(new.file()).with_context(cannot)?;
    // Nearest to the moment at which it is replaced.
    new.file().sync_all().with_context(cannot)?;
    if !kept.is_still_at(path) {
        return Err(anyhow!("{} changed meanwhile; it is left as it is", path.display()));
    }
    new.replace(path).with_context(cannot)
}

/// Records an effort in vain: as an attribute, or else in a copy of the file.
fn in_vain(path: &Path, file: &File, seal: u64, kept: &Kept, options: &RepackOptions) -> Result<()> {
    if !kept.is_still_at(path) {
        return Err(anyhow!("{} changed meanwhile; it is left as it is", path.display()));
    }
    let effort: Effort = options.effort();
    if put_record(file, Record { effort, seal }) {
        return Ok(());
    }
    let cannot = || format!("cannot write {}", path.display());
    let Candidate::File(old) = open(file.try_clone()?, options)? else { return Ok(()) };
    let new = Successor::of(path).with_context(cannot)?;
    kept.begin(new.file()).with_context(cannot)?;
    let mut sink = BufWriter::with_capacity(1 << 20, new.file().try_clone()?);
    if copy_with_effort(&old, &mut sink, effort)? {
        sink.flush().with_context(cannot)?;
        drop(sink);
        replace(path, new, kept)?;
    }
    Ok(())
}

fn is_foreign(file: &File) -> Result<bool> {
    let begin = foreign::peek(&mut &*file)?;
    Ok(Format::of(&begin).is_some_and(|format| format != Format::Narrows))
}
