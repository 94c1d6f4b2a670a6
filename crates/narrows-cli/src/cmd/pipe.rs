//! `narrows pipe`: a filter whose methods follow how fast the output drains. What it does with files is `file`.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::process::ExitCode;

use anyhow::Result;
use narrows::policy::PolicySpec;
use narrows::transport::Link;

use super::file;
use crate::args::pipe::PipeArgs;
use crate::args::reach;
use crate::files::{Source, Target};
use crate::progress::Bar;
use crate::transfer::{Sending, Sent, Transfer};

/// Runs `narrows pipe`.
pub(crate) fn run(args: &PipeArgs) -> Result<ExitCode> {
    file::work(&args.file, Some(args))
}

/// Sends `source` as a flow. The second result is for [`Sending::finish`]. The outer error is one of the command
/// line or the system, the inner one of the flow.
pub(super) fn send(
    args: &PipeArgs,
    transfer: &Transfer,
    source: Source,
    target: &Target,
    has_index: bool,
    bar: Bar,
) -> Result<(narrows::Result<Sent>, Sending)> {
    let file = target.file()?;
    let mut flow = args.flow();
    let stored = is_stored(&file)?;
    if stored {
        flow.policy.get_or_insert_with(PolicySpec::storage);
    }
    let sending = transfer.sending(flow, args.file.verbosity.verbose, true);
    let options = sending.options(0.0)?.check(!args.file.no_check).index(has_index);
    let options = options.raw_len(source.raw_len()).from_file(source.is_regular());
    // Of a file it counts how long it is, not how fast it is written.
    let options = options.reach(reach(args.file.long)).search_always(stored);
    let options = match source.stored()? {
        Some(read_back) => options.read_back(read_back),
        None => options,
    };
    let sent = sending.send(source, Link::file_writer(file).seen_through(), options, bar);
    Ok((sent, sending))
}

/// Whether the output is stored on this host: then its write rate says nothing about the cost of a
/// byte.
fn is_stored(output: &File) -> Result<bool> {
    let kind = output.metadata()?.file_type();
    Ok(kind.is_file() || kind.is_block_device())
}
