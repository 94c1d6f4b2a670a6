//! `narrows FILE...`: files and filters, with the habits of `zstd`.

use std::fs;
use std::io::{self, Cursor, IsTerminal, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use narrows::policy::PolicySpec;
use narrows::sender::Summary;
use narrows::stream::{ReceiveOptions, SendOptions};
use narrows::transport::Link;
use narrows_file::decode::{self, Decoded};
use narrows_file::foreign::{self, Format};
use narrows_file::{Hint, WriteOptions, zstd_seekable};
use narrows_host::hints::Hints;
use serde_json::Value;

use super::each::each_looked_at;
use super::pipe;
use crate::args::file::{FileArgs, FormatArg, ListArgs};
use crate::args::pipe::PipeArgs;
use crate::args::{reach_max, reach_max_of_file, window_log};
use crate::damage::with_help;
use crate::files::{self, EndsSoon, Source, Target, is_dash};
use crate::flow;
use crate::packs::{self, decode_within};
use crate::place::{self, Place};
use crate::progress::Bar;
use crate::report;
use crate::transfer::Transfer;

mod held;
mod keep;
mod naming;
mod object;
mod tally;

use held::Held;
use keep::Keep;
use tally::Tally;

/// Runs `narrows FILE...`.
pub(crate) fn run(args: &FileArgs) -> Result<ExitCode> {
    work(args, None)
}

/// Does what a command line of `file` or `pipe` asks for.
pub(super) fn work(args: &FileArgs, pipe: Option<&PipeArgs>) -> Result<ExitCode> {
    let inputs = naming::inputs(args);
    if args.list {
        return super::list::run(&ListArgs {
            files: inputs,
            summary: true,
            long: false,
            json: args.verbosity.json,
            store: args.store.clone(),
        });
    }
    naming::check(args, &inputs)?;
    if let Some(warning) = args.warning() {
        report::note(warning);
    }
    let transfer = Transfer::begin()?;
    // Parts of an upload are given back first.
    let to_object = args.output.as_ref().is_some_and(|output| Place::is_object(output.as_os_str()));
    let _soon = (!to_object).then(|| EndsSoon::start(|| ())).transpose()?;
    let work = Work { args, pipe, transfer, is_one: inputs.len() < 2 };
    let mut tally = Tally::new(args.verbosity, work.is_one);
    let status = each_looked_at(
        &inputs,
        |input| naming::look(args, input),
        |input| {
            if let Some(done) = work.one(input)? {
                tally.add(input, &done);
            }
            Ok(0)
        },
    );
    tally.end();
    status
}

/// What is to be done with each input.
struct Work<'a> {
    args: &'a FileArgs,
    /// The command is `pipe`.
    pipe: Option<&'a PipeArgs>,
    transfer: Transfer,
    is_one: bool,
}

/// What became of one input.
struct Done {
    raw_bytes: u64,
    /// Length of the compressed file; `None` if it was decompressed.
    wire_bytes: Option<u64>,
    /// The name of the output; `None` if none was written.
    output: Option<String>,
}

impl Work<'_> {
    /// Does what is asked for with one input. `None` if its bytes were not counted.
    fn one(&self, input: &Path) -> Result<Option<Done>> {
        let args = self.args;
        let place = Place::parse(input)?;
        let is_object = |output: &PathBuf| Place::is_object(output.as_os_str());
        if place.url().is_some() || args.output.as_ref().is_some_and(is_object) {
            return object::one(args, &self.transfer, &place).map(|()| None);
        }
        let input = &place::path_of(input)?;
        let named = !is_dash(input);
        let decompresses = args.decompress || args.test;
        if named {
            naming::refuse_special(args, input)?;
        } else if decompresses && io::stdin().is_terminal() && !args.force {
            return Err(anyhow!("compressed data is not read from a terminal; name a FILE, or -f to force"));
        }
        let output = naming::output(args, input)?;
        let dash = Path::new("-");
        let written = (!args.test).then(|| output.as_deref().unwrap_or(dash));
        let trace = self.pipe.and_then(|pipe| pipe.trace.as_deref());
        files::refuse_same(input, [written, trace])?;
        let is_there = |output: &Path| !is_dash(output) && output.symlink_metadata().is_ok();
        if named && args.decompress && !args.test && output.as_deref().is_some_and(is_there) {
            // Beside a pack there often is what was packed. Nobody is asked to give it up for nothing.
            let refused = packs::refuse(input).err().filter(|e| e.source.is_none());
            refused.map_or(Ok(()), Err).with_context(|| input.display().to_string())?;
        }
        let replaces = output.as_deref().filter(|o| !is_dash(o)).map_or(Ok(true), |output| self.may_replace(output))?;
        let held = Held::of(args, input)?;
        let really = |path: &Path| held.as_ref().map_or_else(|| path.to_owned(), |held| held.path(path));
        let source = Source::open(Some(input))?;
        let witness = source.witness()?;
        let meta = named.then(|| source.metadata()).transpose()?;
        let makes_file = args.output.is_none() && !args.stdout && !args.test;
        if let Some(meta) = meta.as_ref().filter(|_| makes_file && (!args.force || held.is_some())) {
            // Where others may write, a link may have taken its place since it was looked at.
            let there = really(input).symlink_metadata().with_context(|| format!("cannot read {}", input.display()))?;
            if !there.is_file() || (there.dev(), there.ino()) != (meta.dev(), meta.ino()) {
                return Err(anyhow!("{} was replaced while it was opened", input.display()));
            }
        }
        if args.test {
            let raw_bytes = self.decompress(input, source, None)?;
            return Ok(Some(Done { raw_bytes, wire_bytes: None, output: None }));
        }
        let is_beside = output.is_some() && args.output.is_none();
        let output = output.unwrap_or_else(|| dash.to_owned());
        let target = match is_beside {
            true if args.output_dir_flat.is_none() => Target::beside(&really(&output), &output)?,
            true => Target::beside(&output, &output)?,
            false => Target::open(Some(&output))?,
        };
        let target = target.replacing(replaces);
        if !decompresses && target.is_stdout() && io::stdout().is_terminal() && !args.force {
            return Err(anyhow!(
                "compressed data is not written to a terminal; redirect stdout, use -o FILE, or -f to force"
            ));
        }
        let made = !is_dash(&output) && target.file()?.metadata()?.is_file();
        // Bytes on stdout are nobody's to answer for.
        let removes = args.rm && named && !target.is_stdout();
        if removes && !made {
            return Err(anyhow!("--rm needs an output that is a file; {} is none", output.display()));
        }
        let kept = meta.filter(|data| made && data.is_file());
        let keep = kept.map(|old| Ok::<_, anyhow::Error>(Keep::new(target.file()?, old)?)).transpose()?;
        let (raw_bytes, wire_bytes) = if decompresses {
            (self.decompress(input, source, Some((target, keep)))?, None)
        } else {
            let (raw, wire) = self.compress(input, source, target, keep, is_beside)?;
            (raw, Some(wire))
        };
        if removes {
            if !witness.is_at(&really(input)) {
                return Err(anyhow!("{} changed while it was read, and is not removed", input.display()));
            }
            fs::remove_file(really(input)).with_context(|| format!("cannot remove {}", input.display()))?;
        }
        Ok(made.then(|| Done { raw_bytes, wire_bytes, output: Some(output.display().to_string()) }))
    }

    /// Whether a file of this name may be replaced; fails if one is there that may not. Only on a terminal
    /// somebody can be asked.
    fn may_replace(&self, output: &Path) -> Result<bool> {
        let is_named = self.args.output.is_some();
        let is_there = if is_named { files::is_in_the_way(output) } else { output.symlink_metadata().is_ok() };
        if self.args.force || !is_there {
            return Ok(self.args.force);
        }
        let verbosity = self.args.verbosity;
        let reads_stdin = self.args.files.iter().any(|file| is_dash(file)) || self.args.files.is_empty();
        let asks = !verbosity.quiet && !verbosity.json && !reads_stdin;
        if asks && io::stdin().is_terminal() && io::stderr().is_terminal() {
            if report::ask(&format!("narrows: {} already exists; overwrite it? [y/N] ", output.display()))? {
                return Ok(true);
            }
            return Err(anyhow!("{} is not overwritten", output.display()));
        }
        Err(anyhow!("{} already exists; use -f to overwrite it", output.display()))
    }

    /// Whether a bar may be shown: not beside bytes that go to the same terminal, nor by a filter, whose
    /// neighbours have words of their own.
    fn shows_bar(&self, target: Option<&Target>) -> bool {
        let args = self.args;
        let to_terminal = target.is_some_and(|target| target.is_stdout() && io::stdout().is_terminal());
        let is_filter = self.pipe.is_some() && target.is_some_and(Target::is_stdout);
        !args.verbosity.quiet && !args.verbosity.json && !args.no_progress && !to_terminal && !is_filter
    }

    /// What the command line says, then the attribute of the input, then the rules of its tree.
    fn hint(&self, input: &Path) -> Result<Hint> {
        let hint = self.args.asked();
        if is_dash(input) || self.args.policy.is_some() {
            return Ok(hint);
        }
        Ok(hint.or(Hints::default().of(input)?))
    }

    fn compress(
        &self,
        input: &Path,
        source: Source,
        target: Target,
        keep: Option<Keep>,
        is_beside: bool,
    ) -> Result<(u64, u64)> {
        let args = self.args;
        let (from, to, witness) = (source.name(), target.name(), source.witness()?);
        let blame = |e| if from.is_to_blame() { from.blame(e) } else { to.blame(e) };
        let end = |target: Target| -> Result<()> {
            witness.is_unchanged()?;
            keep.as_ref().map_or(Ok(()), Keep::apply).with_context(|| to.to_string())?;
            target.commit(args.rm).with_context(|| to.to_string())
        };
        let threads = args.encoders().map_or_else(narrows::stream::encoders, usize::from);
        if args.format == FormatArg::Zstd {
            let mode = args.mode_of_zstd(&self.hint(input)?);
            let sink = io::BufWriter::with_capacity(1 << 20, target.sink()?);
            let totals = zstd_seekable::write(source, sink, mode, threads).map_err(blame)?;
            end(target)?;
            return Ok((totals.raw_bytes, totals.wire_bytes));
        }
        let bar = Bar::sending(&self.transfer.control, source.raw_len(), self.shows_bar(Some(&target)));
        let begun = Instant::now();
        let summary = if let Some(pipe) = self.pipe.filter(|pipe| pipe.flows(is_beside)) {
            let has_index = is_beside || pipe.index;
            let (sent, sending) = pipe::send(pipe, &self.transfer, source, &target, has_index, bar)?;
            let sent = sent.map_err(blame)?;
            end(target)?;
            sending.finish(&sent)?;
            sent.summary
        } else {
            let file = target.file()?;
            let on_disk = args.adapt && file.metadata()?.is_file();
            let options = self.options(input, &source, &file)?.threads(threads);
            let link = if on_disk { Link::disk(file)? } else { Link::file_writer(file) };
            let sent = narrows::stream::send(source, link, options);
            bar.end();
            let (summary, _) = sent.map_err(blame)?;
            end(target)?;
            summary
        };
        let elapsed = begun.elapsed();
        self.tell(input, || report::send_json(&summary, elapsed), || report::line(&summary, elapsed));
        Ok(totals(&summary))
    }

    /// How a file is encoded.
    fn options(&self, input: &Path, source: &Source, output: &fs::File) -> Result<SendOptions> {
        let args = self.args;
        let hint = self.hint(input)?;
        let kind = output.metadata()?.file_type();
        let is_kept = kind.is_file() || kind.is_block_device();
        let options = if args.adapt && !hint.is_never() {
            WriteOptions::default().policy(PolicySpec::balance()).send_options()
        } else if is_kept || args.policy.is_some() || !args.files.is_empty() || args.says_what_it_is_worth() {
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
        let options = options.check(!args.no_check).memory_max(MEMORY_MAX);
        Ok(options.raw_len(source.raw_len()).from_file(source.is_regular()).control(&self.transfer.control))
    }

    fn decompress(&self, name: &Path, source: Source, to: Option<(Target, Option<Keep>)>) -> Result<u64> {
        let (args, control) = (self.args, &self.transfer.control);
        let (input, witness) = (source.name(), source.witness()?);
        let threads = flow::threads(args.encoders());
        let to_file = to.as_ref().is_none_or(|(target, _)| target.is_regular());
        // Only the bytes of the first stream are at their raw offsets.
        let mut stored = to.as_ref().map(|(target, _)| target.stored()).transpose()?.flatten();
        let options = || {
            let options = ReceiveOptions::default().threads(threads).reach_max(reach_max(args.long)).control(control);
            let options = options.to_file(to_file);
            stored.take().into_iter().fold(options, |o, stored| o.read_back(stored, reach_max_of_file(args.long)))
        };
        let file = source.into_reader();
        let named = |e: anyhow::Error| {
            let about = e.downcast_ref::<narrows::Error>().is_some_and(|e| e.source.is_none());
            let name = || if is_dash(name) { "stdin".to_owned() } else { name.display().to_string() };
            if about { e.context(name()) } else { e }
        };
        let bar = Bar::receiving(control, self.shows_bar(to.as_ref().map(|(target, _)| target)));
        let begun = Instant::now();
        let Some((target, keep)) = to else {
            let decoded = decode::decode_within(file, io::sink(), window_log(args.long), options);
            bar.end();
            let decoded = decoded.map_err(|e| named(input.blame(with_help(e, name))))?;
            self.tell_decoded(name, &decoded, begun.elapsed());
            return Ok(decoded.raw_bytes);
        };
        let output = target.name();
        let sink = if args.no_sparse { Box::new(target.sink()?) } else { target.sparse_sink()? };
        let path = Some(name).filter(|name| !is_dash(name));
        let decoded = if args.force && target.is_stdout() {
            decode_or_pass(path, file, sink, window_log(args.long), options)
        } else {
            decode_within(path, file, sink, window_log(args.long), options)
        };
        bar.end();
        let decoded = decoded.map_err(|e| match output.is_to_blame() {
            true => named(output.blame(e)),
            false => named(input.blame(with_help(e, name))),
        })?;
        witness.is_unchanged()?;
        target.complete().with_context(|| output.to_string())?;
        keep.as_ref().map_or(Ok(()), Keep::apply).with_context(|| output.to_string())?;
        target.commit(args.rm).with_context(|| output.to_string())?;
        self.tell_decoded(name, &decoded, begun.elapsed());
        Ok(decoded.raw_bytes)
    }

    /// The summary of a stream of Narrows; of other formats nothing is known but lengths.
    fn tell_decoded(&self, input: &Path, decoded: &Decoded, elapsed: Duration) {
        let Some(last) = &decoded.last else { return };
        let mut summary = last.clone();
        (summary.raw_bytes, summary.wire_bytes) = (decoded.raw_bytes, decoded.wire_bytes);
        self.tell(input, || report::receive_json(&summary, elapsed), || report::receive_line(&summary, elapsed));
    }

    /// Prints a summary if one is asked for, with the name of the input where there are several.
    fn tell(&self, input: &Path, json: impl FnOnce() -> Value, line: impl FnOnce() -> String) {
        let verbosity = self.args.verbosity;
        if verbosity.json {
            let mut json = json();
            if !is_dash(input) {
                json["file"] = input.to_string_lossy().into();
            }
            report::note_json(&json);
        } else if verbosity.verbose || self.pipe.is_some_and(|pipe| pipe.stats) {
            let name = if self.is_one { String::new() } else { format!("{}: ", input.display()) };
            report::note(name + &line());
        }
    }
}

/// Enough for blocks of 2 MiB under zstd 19 and xz on two cores.
const MEMORY_MAX: usize = 160 << 20;

fn totals(summary: &Summary) -> (u64, u64) {
    (summary.raw_bytes, summary.wire_bytes)
}

/// Decodes, or copies what is in no format that is known, as `zcat -f` does.
fn decode_or_pass(
    path: Option<&Path>,
    mut source: impl Read + Send + 'static,
    mut sink: Box<dyn io::Write + Send>,
    window_log: u32,
    options: impl FnMut() -> ReceiveOptions,
) -> narrows::Result<Decoded> {
    let begin = foreign::peek(&mut source)?;
    // Nothing at all is what a program leaves that failed.
    let decodes = Format::of(&begin).is_some() || begin.is_empty();
    let mut source = Cursor::new(begin).chain(source);
    if decodes {
        return decode_within(path, source, sink, window_log, options);
    }
    let raw_bytes = io::copy(&mut source, &mut sink)?;
    Ok(Decoded { raw_bytes, ..Decoded::default() })
}
