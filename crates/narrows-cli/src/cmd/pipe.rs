//! `narrows pipe`: a filter that compresses or decompresses, like `zstd`.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use narrows::ErrorKind;
use narrows::policy::PolicySpec;
use narrows::receiver::RecvSummary;
use narrows::stream::ReceiveOptions;
use narrows::transport::Link;
use narrows_file::decode::decode_within;

use crate::args::file::ListArgs;
use crate::args::store::StoreArgs;
use crate::args::{PipeArgs, reach, reach_max, reach_max_of_file, window_log};
use crate::files::{self, Source, Target};
use crate::flow;
use crate::progress::Bar;
use crate::report;
use crate::transfer::Transfer;

/// Runs `narrows pipe`.
pub(crate) fn run(args: &PipeArgs) -> Result<ExitCode> {
    if args.list {
        let files = args.file.iter().cloned().collect();
        return super::list::run(&ListArgs {
            files,
            summary: true,
            long: false,
            json: args.verbosity.json,
            store: StoreArgs::default(),
        });
    }
    let transfer = Transfer::begin()?;
    let dash = Path::new("-");
    // With --test nothing is written.
    let output = if args.test { None } else { Some(args.output.as_deref().unwrap_or(dash)) };
    files::refuse_same(args.file.as_deref().unwrap_or(dash), [output, args.flow.trace.as_deref()])?;
    if args.decompress || args.test {
        decompress(args, &transfer)?
    } else {
        compress(args, &transfer)?
    }
    Ok(ExitCode::SUCCESS)
}

fn compress(args: &PipeArgs, transfer: &Transfer) -> Result<()> {
    let source = Source::open(args.file.as_deref())?;
    let target = Target::open(args.output.as_deref())?;
    if target.is_stdout() && io::stdout().is_terminal() && !args.force {
        return Err(anyhow!(
            "compressed data is not written to a terminal; redirect stdout, use -o FILE, or -f to force"
        ));
    }
    let file = target.file()?;
    let mut flow_args = args.flow.clone();
    let stored = is_stored(&file)?;
    if stored {
        flow_args.policy.get_or_insert_with(PolicySpec::storage);
    }
    let sending = transfer.sending(flow_args, args.verbosity.verbose, true);
    let options = sending.options(0.0)?.check(!args.no_check).index(args.index);
    let options = options.raw_len(source.len()).from_file(source.is_regular());
    // Of a file it counts how long it is, not how fast it is written.
    let options = options.reach(reach(args.long)).search_always(stored);
    let options = match source.stored()? {
        Some(read_back) => options.read_back(read_back),
        None => options,
    };
    let (input, output) = (source.name(), target.name());
    let sent = sending.send(source, Link::file_writer(file), options, Bar::none());
    let sent = sent.map_err(|e| if input.is_to_blame() { input.blame(e) } else { output.blame(e) })?;
    target.commit(false).with_context(|| output.to_string())?;
    sending.finish(&sent)?;
    if args.verbosity.json {
        report::note_json(&report::send_json(&sent.summary, sent.elapsed));
    } else if args.stats || args.verbosity.verbose {
        report::note(report::line(&sent.summary, sent.elapsed));
    }
    Ok(())
}

/// Whether the output is stored on this host: then its write rate says nothing about the cost of a
/// byte.
fn is_stored(output: &File) -> Result<bool> {
    let kind = output.metadata()?.file_type();
    Ok(kind.is_file() || kind.is_block_device())
}

fn decompress(args: &PipeArgs, transfer: &Transfer) -> Result<()> {
    let source = Source::open(args.file.as_deref())?;
    let input = source.name();
    let (threads, reach) = (flow::threads(args.flow.threads), reach_max(args.long));
    let target = if args.test { None } else { Some(Target::open(args.output.as_deref())?) };
    let to_file = target.as_ref().is_none_or(Target::is_regular);
    // Only the bytes of the first stream are at their raw offsets.
    let mut stored = target.as_ref().map(Target::stored).transpose()?.flatten();
    let options = || {
        let options = ReceiveOptions::default().threads(threads).reach_max(reach).to_file(to_file);
        let options = options.control(&transfer.control);
        stored.take().into_iter().fold(options, |o, stored| o.read_back(stored, reach_max_of_file(args.long)))
    };
    let begun = Instant::now();
    let decoded = match target {
        None => {
            decode_within(source.into_reader(), io::sink(), window_log(args.long), options).map_err(|e| input.blame(e))
        }
        Some(target) => {
            let output = target.name();
            let sink = target.sparse_sink()?;
            let decoded = decode_within(source.into_reader(), sink, window_log(args.long), options)
                .and_then(|decoded| target.commit(false).map(|()| decoded).map_err(narrows::Error::from));
            decoded.map_err(|e| if output.is_to_blame() { output.blame(e) } else { input.blame(e) })
        }
    };
    let decoded = decoded.map_err(|e| name_input(args, e))?;
    let Some(last) = decoded.last else { return Ok(()) };
    let summary = RecvSummary { raw_bytes: decoded.raw_bytes, wire_bytes: decoded.wire_bytes, ..last };
    if args.verbosity.json {
        report::note_json(&report::receive_json(&summary, begun.elapsed()));
    } else if args.stats || args.verbosity.verbose {
        report::note(report::receive_line(&summary, begun.elapsed()));
    }
    Ok(())
}

/// Adds the name of the input to an error in the stream.
fn name_input(args: &PipeArgs, error: anyhow::Error) -> anyhow::Error {
    let name = args.file.as_ref().map_or("stdin".into(), |f| f.display().to_string());
    match error.downcast_ref::<narrows::Error>() {
        Some(e) if e.kind != ErrorKind::Io => error.context(name),
        _ => error,
    }
}
