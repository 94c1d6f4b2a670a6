//! `narrows list`: what is in compressed files, without decoding them; of packs, their members.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use narrows_file::foreign::{self, Format};
use narrows_file::zstd_seekable::SeekableFile;
use narrows_file::{File as NarrowsFile, IndexOrigin, ReadAt};
use narrows_host::words::shown;
use narrows_object::ObjectFile;
use narrows_pack::{Pack, read_trailer};
use serde_json::json;

mod members;

use super::each::each;
use crate::args::file::ListArgs;
use crate::files::{is_dash, open_regular};
use crate::packs;
use crate::place::{self, Place};
use crate::report;

/// What one line of the list says.
struct Row {
    format: Format,
    blocks: Option<u64>,
    runs: Option<u64>,
    streams: Option<u64>,
    wire_len: u64,
    raw_len: Option<u64>,
    check: &'static str,
    index: &'static str,
    /// Entries, if it is a pack.
    entries: Option<u64>,
}

impl Row {
    /// Of a file of which nothing else is known.
    fn of_length(format: Format, wire_len: u64) -> Self {
        Self {
            format,
            blocks: None,
            runs: None,
            streams: None,
            wire_len,
            raw_len: None,
            check: "-",
            index: "none",
            entries: None,
        }
    }
}

/// Runs `narrows list`.
pub(crate) fn run(args: &ListArgs) -> Result<ExitCode> {
    let stdin = [PathBuf::from("-")];
    let inputs = if args.files.is_empty() { &stdin[..] } else { &args.files };
    let mut first_object = None;
    if !args.summary
        && let Some((first, paths)) = inputs.split_first()
    {
        let source = source(args, first)?;
        if let Some(pack) = source.as_ref().map(|source| pack(first, source)).transpose()?.flatten() {
            return Ok(ExitCode::from(u8::from(!members::list(args, first, &pack, paths)?)));
        }
        first_object = source.and_then(|source| if let Input::Object(object) = source { Some(object) } else { None });
    }
    let mut is_first = true;
    let mut sum = Sum::default();
    let status = each(inputs, |path| {
        let row = row(args, path, first_object.take())?;
        if is_first && !args.json {
            report::out(format!(
                "{:>8} {:>7} {:>14} {:>14} {:>7}  {:<6} {:<8} Filename",
                "Blocks", "Runs", "Compressed", "Uncompressed", "Ratio", "Check", "Index"
            ))?;
        }
        is_first = false;
        show(args, path, &row)?;
        sum.add(&row);
        Ok(0)
    })?;
    if sum.files > 1 {
        sum.show(args)?;
    }
    Ok(status)
}

/// The sum of several files.
#[derive(Default)]
struct Sum {
    files: u64,
    wire_len: u64,
    /// `None` if the length of one of them is unknown.
    raw_len: Option<u64>,
}

impl Sum {
    fn add(&mut self, row: &Row) {
        let before = if self.files == 0 { Some(0) } else { self.raw_len };
        self.raw_len = before.zip(row.raw_len).map(|(sum, len)| sum + len);
        self.files += 1;
        self.wire_len += row.wire_len;
    }

    fn show(&self, args: &ListArgs) -> Result<()> {
        let ratio = ratio(self.raw_len, self.wire_len);
        if args.json {
            let (compressed, uncompressed) = (self.wire_len, self.raw_len);
            let files = self.files;
            return report::out(
                json!({"files": files, "compressed": compressed, "uncompressed": uncompressed, "ratio": ratio}),
            );
        }
        report::out("-".repeat(78))?;
        report::out(format!(
            "{:>8} {:>7} {:>14} {:>14} {:>7}  {:<6} {:<8} {} files",
            "",
            "",
            self.wire_len,
            number(self.raw_len),
            ratio_words(ratio),
            "",
            "",
            self.files
        ))
    }
}

/// Raw bytes for each byte of a file.
fn ratio(raw_len: Option<u64>, wire_len: u64) -> Option<f64> {
    raw_len.filter(|_| wire_len > 0).map(|raw_len| raw_len as f64 / wire_len as f64)
}

fn ratio_words(ratio: Option<f64>) -> String {
    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"))
}

fn number(n: Option<u64>) -> String {
    n.map_or("-".to_owned(), |n| n.to_string())
}

/// What is read at any byte.
enum Input {
    File(File),
    /// What was read of it is kept.
    Object(ObjectFile),
}

impl Input {
    fn read_at(&self) -> Result<Arc<dyn ReadAt>> {
        Ok(match self {
            Self::File(file) => Arc::new(file.try_clone()?),
            Self::Object(object) => Arc::new(object.clone()),
        })
    }
}

/// What this name stands for; `None` of a pipe and what is no file.
fn source(args: &ListArgs, path: &Path) -> Result<Option<Input>> {
    Ok(match Place::parse(path)? {
        Place::Object(url) => Some(Input::Object(place::object(&url, &args.store)?)),
        Place::Path(path) if is_dash(&path) || !path.metadata().is_ok_and(|data| data.is_file()) => None,
        Place::Path(path) => Some(Input::File(open_regular(&path)?)),
    })
}

/// The pack of this name. Other files are shown as a line.
fn pack(path: &Path, source: &Input) -> Result<Option<Pack<Arc<dyn ReadAt>>>> {
    let error = match Pack::open(source.read_at()?) {
        Ok(pack) => return Ok(Some(pack)),
        Err(e) => e,
    };
    if error.source.is_some() {
        return Err(anyhow::Error::from(error).context(format!("cannot read {}", path.display())));
    }
    // What cannot be opened has a row, or its error.
    let Ok(file) = NarrowsFile::open(source.read_at()?) else { return Ok(None) };
    // A pack whose directory is damaged, not a file of streams that is.
    if error.kind == narrows::ErrorKind::Corrupt || packs::is_pack(&file).unwrap_or(true) {
        let why = format!("the directory of the pack cannot be read: {error}; {}", packs::HELP);
        return Err(anyhow::Error::from(narrows::Error::new(error.kind, why)).context(path.display().to_string()));
    }
    Ok(None)
}

fn row(args: &ListArgs, path: &Path, known: Option<ObjectFile>) -> Result<Row> {
    if let Place::Object(url) = Place::parse(path)? {
        let object = known.map_or_else(|| place::object(&url, &args.store), Ok)?;
        return row_of_object(&object, path);
    }
    let path = &place::path_of(path)?;
    // What is listed stands at the end of a file.
    if is_dash(path) || path.metadata().is_ok_and(|data| !data.is_file() && !data.is_dir()) {
        let name = if is_dash(path) { "stdin".into() } else { path.display().to_string() };
        return Err(anyhow!("cannot list {name}: only files are listed; save it first, or use narrows inspect -"));
    }
    let cannot = || format!("cannot read {}", path.display());
    let file = open_regular(path)?;
    let wire_len = file.metadata().with_context(cannot)?.len();
    let named = |e: narrows::Error| anyhow::Error::from(e).context(path.display().to_string());
    let format = foreign::format_at(&file).with_context(cannot)?.unwrap_or(Format::Narrows);
    let none = Row::of_length(format, wire_len);
    match format {
        Format::Narrows => {
            let opened = NarrowsFile::open(&file).map_err(|e| packs::with_help(e, &file)).map_err(named)?;
            let row = row_of_narrows(&opened, none).map_err(named)?;
            // Reads a block: an object would need a request for it.
            match packs::lacks_directory(&opened) {
                Ok(true) => Err(named(packs::no_directory())),
                _ => Ok(row),
            }
        }
        Format::Zstd => Ok(match SeekableFile::open(file).map_err(named)? {
            None => none,
            Some(seekable) => row_of_zstd(&seekable, none),
        }),
        _ => Ok(none),
    }
}

/// The end of an object is read first: if it is of narrows, that request is all.
fn row_of_object(object: &ObjectFile, path: &Path) -> Result<Row> {
    let cannot = || format!("cannot read {}", path.display());
    let wire_len = object.len().with_context(cannot)?;
    let row = |format| Row::of_length(format, wire_len);
    let error = match NarrowsFile::open(object) {
        Ok(file) => {
            let row = row_of_narrows(&file, row(Format::Narrows));
            return row.map_err(|e| anyhow::Error::from(e).context(path.display().to_string()));
        }
        Err(e) if e.source.is_some() => return Err(anyhow::Error::from(e).context(cannot())),
        Err(e) => e,
    };
    match foreign::format_at(object).with_context(cannot)? {
        None | Some(Format::Narrows) => {
            Err(anyhow::Error::from(packs::with_help(error, object)).context(path.display().to_string()))
        }
        Some(Format::Zstd) => Ok(match SeekableFile::open(object).with_context(cannot)? {
            None => row(Format::Zstd),
            Some(seekable) => row_of_zstd(&seekable, row(Format::Zstd)),
        }),
        Some(format) => Ok(row(format)),
    }
}

fn row_of_zstd<R: ReadAt>(seekable: &SeekableFile<R>, none: Row) -> Row {
    let frames = Some(seekable.frames() as u64);
    Row { blocks: frames, runs: frames, raw_len: Some(seekable.raw_len()), index: "stored", ..none }
}

/// Fails for a file whose last stream, the directory if it is a pack, cannot be read.
fn row_of_narrows<R: ReadAt>(file: &NarrowsFile<R>, none: Row) -> narrows::Result<Row> {
    let members = file.members();
    let sum = |of: fn(&narrows_file::Member) -> usize| members.iter().map(of).sum::<usize>() as u64;
    // Writers give the directory a stream of its own; others are not worth to decode a run for.
    let trailer = if members.len() > 1 { read_trailer(file)? } else { None };
    Ok(Row {
        blocks: Some(sum(narrows_file::Member::blocks)),
        runs: Some(sum(narrows_file::Member::runs)),
        streams: Some(members.len() as u64),
        raw_len: Some(file.raw_len()),
        check: if members.iter().all(|m| m.preface.check) { "XXH3" } else { "none" },
        index: match members.iter().map(|m| m.origin).find(|origin| *origin != IndexOrigin::Stored) {
            None => "stored",
            Some(IndexOrigin::Rebuilt) => "damaged",
            Some(_) => "none",
        },
        entries: trailer.map(|trailer| trailer.entries),
        ..none
    })
}

fn show(args: &ListArgs, path: &Path, row: &Row) -> Result<()> {
    let ratio = ratio(row.raw_len, row.wire_len);
    if args.json {
        return report::out(json!({
            "file": path.to_string_lossy(),
            "format": row.format.name(),
            "streams": row.streams,
            "blocks": row.blocks,
            "runs": row.runs,
            "compressed": row.wire_len,
            "uncompressed": row.raw_len,
            "ratio": ratio,
            "check": row.check,
            "index": row.index,
            "entries": row.entries,
        }));
    }
    report::out(format!(
        "{:>8} {:>7} {:>14} {:>14} {:>7}  {:<6} {:<8} {}",
        number(row.blocks),
        number(row.runs),
        row.wire_len,
        number(row.raw_len),
        ratio_words(ratio),
        row.check,
        row.index,
        shown(path.as_os_str().as_bytes())
    ))
}
