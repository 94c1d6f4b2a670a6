//! `narrows cat`: the raw bytes of compressed files, or a range of them.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use narrows::stream::ReceiveOptions;
use narrows_file::check::read_whole;
use narrows_file::decode;
use narrows_file::foreign::{self, Format};
use narrows_file::zstd_seekable::SeekableFile;
use narrows_file::{OpenOptions, ReadAt};
use narrows_object::ObjectFile;

use super::each::each;
use crate::args::file::{CatArgs, Range};
use crate::args::{reach_max, window_log};
use crate::damage::with_help;
use crate::files::{Sink, Source, Stopping, Target, is_dash};
use crate::flow;
use crate::packs::{self, decode_within};
use crate::place::{self, Place};
use crate::report;
use crate::transfer::Transfer;

/// Most bytes of the end of another format, which are kept until that comes.
const LAST_MAX: usize = 64 << 20;
/// Status of a file of which a part is missing.
const MISSING: u8 = 3;

/// Runs `narrows cat`.
pub(crate) fn run(args: &CatArgs) -> Result<ExitCode> {
    let transfer = Transfer::begin()?;
    let stdin = [PathBuf::from("-")];
    let inputs = if args.files.is_empty() { &stdin[..] } else { &args.files };
    each(inputs, |input| Ok(if one(args, &transfer, input)? { 0 } else { MISSING }))
}

/// Writes one file; false if a part of it is missing.
fn one(args: &CatArgs, transfer: &Transfer, input: &Path) -> Result<bool> {
    let target = Target::open(None)?;
    let output = target.name();
    let mut sink = target.sink()?;
    let place = Place::parse(input)?;
    let blame = |e: narrows::Error| {
        let about = e.source.is_none();
        let error = if output.is_to_blame() { output.blame(e) } else { source_error(input, e) };
        if about { error.context(input.display().to_string()) } else { error }
    };
    let part = Part { args, input };
    if let Place::Object(url) = &place
        && (args.range.is_some() || args.skip_damaged)
    {
        let object = place::object(url, &args.store)?;
        return part.of_object(&object, &mut sink).map_err(blame);
    }
    if args.range.is_none() && !args.skip_damaged {
        let source = place::open_stream(&place, &args.store)?;
        let (threads, control) = (flow::threads(args.threads), &transfer.control);
        let options = || ReceiveOptions::default().threads(threads).reach_max(reach_max(args.long)).control(control);
        let path = Some(input).filter(|input| !is_dash(input) && matches!(place, Place::Path(_)));
        let decoded = decode_within(path, source, sink, window_log(args.long), options);
        decoded.map_err(|e| blame(with_help(e, input)))?;
        return Ok(true);
    }
    let Place::Path(path) = &place else { return Ok(true) };
    let source = Source::open(Some(path))?;
    if is_dash(input) || !source.is_regular() {
        return Err(anyhow!("a part of {} cannot be read: it is not a regular file", input.display()));
    }
    let mut file = source.into_file();
    let begin = foreign::peek(&mut file)?;
    match Format::of(&begin) {
        None | Some(Format::Narrows) => part.of_narrows(Stopping(file), &mut sink).map_err(blame),
        Some(_) if args.skip_damaged => {
            let why = "only files of narrows can be read behind damaged places; leave out --skip-damaged";
            Err(blame(narrows::Error::unsupported(why)))
        }
        Some(format) => {
            let at = Stopping(file.try_clone()?);
            part.of_other(format, begin, at, Stopping(file), &mut sink).map_err(blame)
        }
    }
}

fn source_error(input: &Path, error: narrows::Error) -> anyhow::Error {
    match error.source {
        Some(e) => anyhow::Error::from(e).context(format!("cannot read {}", input.display())),
        None => error.into(),
    }
}

/// A part of one file.
struct Part<'a> {
    args: &'a CatArgs,
    input: &'a Path,
}

impl Part<'_> {
    /// The end of an object is read first: if it is of narrows, two requests are all.
    fn of_object(&self, object: &ObjectFile, sink: &mut Sink) -> narrows::Result<bool> {
        let error = match self.of_narrows(object, sink) {
            Err(e) if e.source.is_none() => e,
            result => return result,
        };
        let mut begin = vec![0; foreign::MAGIC_LEN];
        let n = object.read_at(&mut begin, 0)?;
        begin.truncate(n);
        match Format::of(&begin) {
            None | Some(Format::Narrows) => Err(error),
            Some(_) if self.args.skip_damaged => Err(narrows::Error::unsupported(
                "only files of narrows can be read behind damaged places; leave out --skip-damaged",
            )),
            Some(format) => self.of_other(format, begin, object, object.reader(n as u64..u64::MAX), sink),
        }
    }

    fn of_narrows(&self, file: impl ReadAt, sink: &mut Sink) -> narrows::Result<bool> {
        let Self { args, input } = self;
        let options = OpenOptions::default().broken(args.skip_damaged).reach_max(reach_max(args.long));
        let file = options.open(&file).map_err(|e| packs::with_help(e, &file))?;
        if packs::is_pack(&file)? {
            return Err(packs::refused());
        }
        // What was after the place where it breaks off may have been in the range.
        let is_cut = |from: u64| file.broken().is_some() && from >= file.raw_len();
        let (begin, end) = match args.range {
            Some(Range::From(from, _)) if is_cut(from) => (file.raw_len(), file.raw_len()),
            range => bounds(range, file.raw_len())?,
        };
        if !args.skip_damaged {
            let mut at = begin;
            while at < end {
                let Some(block) = file.block_at(at)? else { break };
                let n = block.len().min((end - at) as usize);
                sink.write_all(&block[..n])?;
                at += n as u64;
            }
            return Ok(true);
        }
        let missing = read_whole(&file, begin..end, |bytes| Ok(sink.write_all(bytes)?))?;
        for (range, why) in &missing {
            let (from, to) = (range.start, range.end - 1);
            report::note(format!("{}: bytes {from}-{to} are missing: {why}", input.display()));
        }
        if let Some(why) = file.broken() {
            let at = file.raw_len();
            report::note(format!("{}: whatever was behind byte {at} is missing: {why}", input.display()));
        }
        Ok(missing.is_empty() && file.broken().is_none())
    }

    fn of_other(
        &self,
        format: Format,
        begin: Vec<u8>,
        at: impl ReadAt,
        source: impl Read + Send + 'static,
        sink: &mut Sink,
    ) -> narrows::Result<bool> {
        let args = self.args;
        if format == Format::Zstd
            && let Some(seekable) = SeekableFile::open(at)?
        {
            let (from, to) = bounds(args.range, seekable.raw_len())?;
            seekable.copy(from, to, sink)?;
            return Ok(true);
        }
        let mut decoder = foreign::decoder_within(format, begin, source, window_log(args.long))?;
        let damaged = |e: io::Error| decode::damaged(format, e);
        let (from, to) = match args.range {
            Some(Range::From(from, to)) => (from, to.unwrap_or(u64::MAX)),
            Some(Range::Last(len)) => return last(decoder, len, sink, damaged),
            None => (0, u64::MAX),
        };
        let skipped = io::copy(&mut decoder.by_ref().take(from), &mut io::sink()).map_err(damaged)?;
        let (mut at, mut buf) = (skipped, vec![0; 128 << 10]);
        while at >= from && at < to {
            let most = usize::try_from(to - at).unwrap_or(usize::MAX).min(buf.len());
            let n = decoder.read(&mut buf[..most]).map_err(damaged)?;
            if n == 0 {
                break;
            }
            sink.write_all(&buf[..n])?;
            at += n as u64;
        }
        // Only the check after the range tells whether its bytes are right. What follows that is not read.
        decoder.end().map_err(damaged)?;
        if at <= from {
            return Err(beyond(from, at));
        }
        Ok(true)
    }
}

/// Writes the last `len` bytes of what is only read from its beginning.
fn last(
    mut decoder: impl Read,
    len: u64,
    sink: &mut Sink,
    damaged: impl Fn(io::Error) -> narrows::Error,
) -> narrows::Result<bool> {
    if len > LAST_MAX as u64 {
        let most = LAST_MAX >> 20;
        let text =
            format!("of other formats the last {most} MiB at most are given; pipe all to tail -c {len} for more");
        return Err(narrows::Error::misuse(text));
    }
    let (mut kept, mut buf) = (VecDeque::new(), vec![0; 128 << 10]);
    loop {
        let n = match decoder.read(&mut buf) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            n => n.map_err(&damaged)?,
        };
        if n == 0 {
            break;
        }
        kept.extend(&buf[..n]);
        kept.drain(..kept.len().saturating_sub(len as usize));
    }
    let (front, back) = kept.as_slices();
    sink.write_all(front)?;
    sink.write_all(back)?;
    Ok(true)
}

/// The range within a file of `len` raw bytes, cut off where that ends.
fn bounds(range: Option<Range>, len: u64) -> narrows::Result<(u64, u64)> {
    match range {
        None => Ok((0, len)),
        Some(Range::Last(n)) => Ok((len.saturating_sub(n), len)),
        Some(Range::From(from, _)) if from >= len => Err(beyond(from, len)),
        Some(Range::From(from, to)) => Ok((from, to.map_or(len, |to| to.min(len)))),
    }
}

/// The error of a range without any byte, as HTTP has it.
fn beyond(from: u64, len: u64) -> narrows::Error {
    narrows::Error::misuse(format!("the range begins at byte {from}, and the file has {len} bytes"))
}
