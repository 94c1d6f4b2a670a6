//! `narrows FILE...`: files and filters, with the habits of `zstd`.

use std::fs::{self, File, FileTimes, Permissions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use narrows::policy::PolicySpec;
use narrows::stream::{ReceiveOptions, SendOptions};
use narrows::transport::Link;
use narrows_file::decode::decode_within;
use narrows_file::foreign::Format;
use narrows_file::{Hint, WriteOptions, zstd_seekable};
use narrows_host::hints::Hints;

use super::each::each;
use crate::args::file::{FileArgs, FormatArg, ListArgs};
use crate::args::{reach_max, reach_max_of_file, window_log};
use crate::damage::with_help;
use crate::files::{self, EndsSoon, Source, Target, is_dash};
use crate::flow;
use crate::place::{self, Place};
use crate::progress::Bar;
use crate::report;
use crate::transfer::Transfer;

mod object;
mod tally;

use tally::Tally;

/// Runs `narrows FILE...`.
pub(crate) fn run(args: &FileArgs) -> Result<ExitCode> {
    if args.list {
        return super::list::run(&ListArgs {
            files: args.files.clone(),
            summary: true,
            long: false,
            json: args.verbosity.json,
            store: args.store.clone(),
        });
    }
    if args.output.is_some() && args.files.len() > 1 {
        return Err(narrows::Error::misuse("-o takes one input file; leave it out, or use -c").into());
    }
    let stdin = [PathBuf::from("-")];
    let inputs = if args.files.is_empty() { &stdin[..] } else { &args.files };
    let transfer = Transfer::begin()?;
    // Parts of an upload are given back first.
    let to_object = args.output.as_ref().is_some_and(|output| Place::is_object(output.as_os_str()));
    let encodes = !args.decompress && !args.test && !to_object;
    let _soon = encodes.then(|| EndsSoon::start(|| ())).transpose()?;
    let mut tally = Tally::new(args);
    let status = each(inputs, |input| {
        if let Some(done) = one(args, &transfer, input)? {
            tally.add(input, &done);
        }
        Ok(0)
    });
    tally.end();
    status
}

/// What became of one input.
struct Done {
    raw_bytes: u64,
    /// Length of the compressed file; `None` if it was decompressed.
    wire_bytes: Option<u64>,
    /// The name of the output; `None` if none was written.
    output: Option<String>,
}

/// Does what is asked for with one input. `None` if its bytes were not counted.
fn one(args: &FileArgs, transfer: &Transfer, input: &Path) -> Result<Option<Done>> {
    let place = Place::parse(input)?;
    let is_object = |output: &PathBuf| Place::is_object(output.as_os_str());
    if place.url().is_some() || args.output.as_ref().is_some_and(is_object) {
        return object::one(args, transfer, &place).map(|()| None);
    }
    let input = &place::path_of(input)?;
    let decompresses = args.decompress || args.test;
    let output = output(args, input)?;
    let named = !is_dash(input);
    if named && !args.force && !args.stdout && args.output.is_none() && !args.test {
        refuse_special(input)?;
    }
    if let Some(output) = output.as_deref().filter(|o| !is_dash(o))
        && !args.force
        && files::is_in_the_way(output)
    {
        return Err(anyhow!("{} already exists; use -f to overwrite it", output.display()));
    }
    files::refuse_same(input, [output.as_deref()])?;
    let source = Source::open(Some(input))?;
    let witness = source.witness()?;
    let meta = named.then(|| input.metadata()).transpose()?;
    if args.test {
        let raw_bytes = decompress(args, input, source, None, transfer)?;
        return Ok(Some(Done { raw_bytes, wire_bytes: None, output: None }));
    }
    let output = output.unwrap_or_else(|| PathBuf::from("-"));
    let target = Target::open(Some(&output))?.replacing(args.force);
    if !decompresses && target.is_stdout() && io::stdout().is_terminal() && !args.force {
        return Err(anyhow!(
            "compressed data is not written to a terminal; redirect stdout, use -o FILE, or -f to force"
        ));
    }
    let made = !is_dash(&output) && target.file()?.metadata()?.is_file();
    if args.rm && !made {
        return Err(anyhow!("--rm needs an output that is a file; {} is none", output.display()));
    }
    let kept = meta.filter(|data| made && data.is_file());
    if kept.is_some() {
        // Nobody else may read it before it has the mode of its source.
        target.file()?.set_permissions(Permissions::from_mode(0o600))?;
    }
    let finish = kept.map(|data| (target.file(), data));
    let (raw_bytes, wire_bytes) = if decompresses {
        (decompress(args, input, source, Some((target, finish)), transfer)?, None)
    } else {
        let (raw, wire) = compress(args, hint(args, named.then_some(input))?, source, target, finish, transfer)?;
        (raw, Some(wire))
    };
    if args.rm && named {
        if !witness.is_at(input) {
            return Err(anyhow!("{} changed while it was read, and is not removed", input.display()));
        }
        fs::remove_file(input).with_context(|| format!("cannot remove {}", input.display()))?;
    }
    Ok(made.then(|| Done { raw_bytes, wire_bytes, output: Some(output.display().to_string()) }))
}

/// Whether a bar may be shown: not beside bytes that go to the same terminal.
fn shows_bar(args: &FileArgs, target: Option<&Target>) -> bool {
    let to_terminal = target.is_some_and(|target| target.is_stdout() && io::stdout().is_terminal());
    !args.verbosity.quiet && !args.verbosity.json && !args.no_progress && !to_terminal
}

/// What the command line says, then the attribute of the input, then the rules of its tree.
fn hint(args: &FileArgs, input: Option<&Path>) -> Result<Hint> {
    let hint = args.hint.hint();
    match input.filter(|_| args.policy.is_none()) {
        Some(input) => Ok(hint.or(Hints::default().of(input)?)),
        None => Ok(hint),
    }
}

type Finish = Option<(Result<File>, fs::Metadata)>;

/// Gives the output the mode and the times of its source.
fn keep(finish: Finish) -> io::Result<()> {
    let Some((file, data)) = finish else { return Ok(()) };
    let file = file.map_err(|e| io::Error::other(e.to_string()))?;
    // Bits of set-id belong to a program and its owner, not to its packed form.
    file.set_permissions(Permissions::from_mode(data.permissions().mode() & 0o777))?;
    file.set_times(FileTimes::new().set_modified(data.modified()?).set_accessed(data.accessed()?))
}

fn refuse_special(input: &Path) -> Result<()> {
    let data = input.symlink_metadata().map_err(|e| no_file(input, e))?;
    let what = match data.file_type() {
        kind if kind.is_symlink() => "a symbolic link; use -f to follow it",
        kind if kind.is_dir() => "a folder; use `narrows pack`, or tar -I narrows",
        kind if kind.is_file() => return Ok(()),
        _ => "not a regular file; use -c or -o",
    };
    Err(anyhow!("{} is {what}", input.display()))
}

fn no_file(input: &Path, error: io::Error) -> anyhow::Error {
    if input.components().count() == 1 && error.kind() == io::ErrorKind::NotFound {
        // A misspelt command looks the same.
        let text = format!("{} is neither a file nor a command; see narrows --help", input.display());
        return narrows::Error::misuse(text).into();
    }
    anyhow!("cannot read {}: {}", input.display(), report::one_line(&error.into()))
}

/// The name of the output: `None` for stdout.
fn output(args: &FileArgs, input: &Path) -> Result<Option<PathBuf>> {
    if let Some(output) = &args.output {
        return Ok(Some(place::path_of(output)?));
    }
    if args.stdout || is_dash(input) || args.test {
        return Ok(None);
    }
    let name = input.as_os_str().as_encoded_bytes();
    if !args.decompress {
        let suffix = match args.format {
            FormatArg::Narrows => Format::Narrows.suffix(),
            FormatArg::Zstd => Format::Zstd.suffix(),
        };
        if name.ends_with(suffix.as_bytes()) {
            return Err(anyhow!("{} is compressed already; use -o or -c to do it again", input.display()));
        }
        let mut output = input.as_os_str().to_owned();
        output.push(suffix);
        return Ok(Some(output.into()));
    }
    let known = Format::ALL.iter().find(|format| name.ends_with(format.suffix().as_bytes()));
    match known.and_then(|_| input.file_stem().filter(|stem| !stem.is_empty())) {
        Some(stem) => Ok(Some(input.with_file_name(stem))),
        None => Err(anyhow!("{} has no suffix of a compressed file, such as .nrw; use -o or -c", input.display())),
    }
}

fn compress(
    args: &FileArgs,
    hint: Hint,
    source: Source,
    target: Target,
    finish: Finish,
    transfer: &Transfer,
) -> Result<(u64, u64)> {
    let (input, output, witness) = (source.name(), target.name(), source.witness()?);
    let threads = args.threads.filter(|n| *n > 0).map_or_else(narrows::stream::encoders, usize::from);
    let mode = hint.mode.unwrap_or_default();
    if args.format == FormatArg::Zstd {
        let sink = io::BufWriter::with_capacity(1 << 20, target.sink()?);
        let totals = zstd_seekable::write(source, sink, mode, threads);
        let totals = totals.map_err(|e| if input.is_to_blame() { input.blame(e) } else { output.blame(e) })?;
        witness.is_unchanged()?;
        keep(finish)?;
        target.commit(args.rm).with_context(|| output.to_string())?;
        return Ok((totals.raw_bytes, totals.wire_bytes));
    }
    let file = target.file()?;
    let kind = file.metadata()?.file_type();
    let on_disk = args.adapt && kind.is_file();
    let adapts = args.adapt && !hint.is_never();
    let options = if adapts {
        WriteOptions::default().policy(PolicySpec::balance()).send_options()
    } else if kind.is_file() || kind.is_block_device() || args.policy.is_some() || !args.files.is_empty() {
        let mut options = WriteOptions::default().hint(hint);
        options = args.policy.iter().cloned().fold(options, WriteOptions::policy);
        options = args.block_max.into_iter().fold(options, WriteOptions::block_max);
        options = args.run_len.into_iter().fold(options, |o, len| o.run_len(len as u64));
        // Of a file all bytes are there, so that blocks need not depend on when they are read.
        options.whole_blocks(source.is_regular() && args.policy.is_none()).send_options()
    } else {
        // A pipe is a link: nobody knows how fast its other end is.
        SendOptions::default()
    };
    let options = options.threads(threads).check(!args.no_check).memory_max(MEMORY_MAX);
    let options = options.raw_len(source.len()).from_file(source.is_regular()).control(&transfer.control);
    let bar = Bar::sending(&transfer.control, source.len(), shows_bar(args, Some(&target)));
    let begun = std::time::Instant::now();
    let link = if on_disk { Link::disk(file)? } else { Link::file_writer(file) };
    let sent = narrows::stream::send(source, link, options);
    bar.end();
    let (summary, _) = sent.map_err(|e| if input.is_to_blame() { input.blame(e) } else { output.blame(e) })?;
    witness.is_unchanged()?;
    keep(finish)?;
    target.commit(args.rm).with_context(|| output.to_string())?;
    if args.verbosity.json {
        report::note_json(&report::send_json(&summary, begun.elapsed()));
    } else if args.verbosity.verbose {
        report::note(report::line(&summary, begun.elapsed()));
    }
    Ok((summary.raw_bytes, summary.wire_bytes))
}

/// Enough for blocks of 2 MiB under zstd 19 and xz on two cores.
const MEMORY_MAX: usize = 160 << 20;

fn decompress(
    args: &FileArgs,
    name: &Path,
    source: Source,
    to: Option<(Target, Finish)>,
    transfer: &Transfer,
) -> Result<u64> {
    let control = &transfer.control;
    let (input, witness) = (source.name(), source.witness()?);
    let threads = flow::threads(args.threads);
    // Only the bytes of the first stream are at their raw offsets.
    let mut stored = to.as_ref().map(|(target, _)| target.stored()).transpose()?.flatten();
    let options = || {
        let options = ReceiveOptions::default().threads(threads).reach_max(reach_max(args.long)).control(control);
        stored.take().into_iter().fold(options, |o, stored| o.read_back(stored, reach_max_of_file(args.long)))
    };
    let file = source.into_reader();
    let named = |e: anyhow::Error| {
        let about = e.downcast_ref::<narrows::Error>().is_some_and(|e| e.source.is_none());
        if about { e.context(name.display().to_string()) } else { e }
    };
    let bar = Bar::receiving(control, shows_bar(args, to.as_ref().map(|(target, _)| target)));
    let Some((target, finish)) = to else {
        let decoded = decode_within(file, io::sink(), window_log(args.long), options);
        bar.end();
        return Ok(decoded.map_err(|e| named(input.blame(with_help(e, name))))?.raw_bytes);
    };
    let output = target.name();
    let sink = if args.no_sparse { Box::new(target.sink()?) } else { target.sparse_sink()? };
    let decoded = decode_within(file, sink, window_log(args.long), options);
    bar.end();
    let decoded = decoded.map_err(|e| match output.is_to_blame() {
        true => named(output.blame(e)),
        false => named(input.blame(with_help(e, name))),
    })?;
    witness.is_unchanged()?;
    target.complete().with_context(|| output.to_string())?;
    keep(finish)?;
    target.commit(args.rm).with_context(|| output.to_string())?;
    Ok(decoded.raw_bytes)
}
