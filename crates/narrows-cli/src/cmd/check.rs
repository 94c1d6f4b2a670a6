//! `narrows check`: scrubs files, and writes a lost index anew.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use narrows::stream::ReceiveOptions;
use narrows_file::check::{Report, check};
use narrows_file::decode::decode;
use narrows_file::foreign::{self, Format};
use narrows_file::repair::repair;
use narrows_file::{IndexOrigin, OpenOptions};
use serde_json::json;

use crate::args::file::CheckArgs;
use crate::files::Target;
use crate::flow;
use crate::report;
use crate::transfer::Transfer;

/// Status of a file that is damaged.
const DAMAGED: u8 = 3;

/// Runs `narrows check`.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    let transfer = Transfer::begin()?;
    let mut status = ExitCode::SUCCESS;
    for path in &args.files {
        match one(args, &transfer, path) {
            Ok(true) => {}
            Ok(false) => status = ExitCode::from(DAMAGED),
            Err(error) if args.files.len() == 1 => return Err(error),
            Err(error) => {
                report::note(report::one_line(&error));
                status = if report::kind(&error).is_some() { ExitCode::from(DAMAGED) } else { ExitCode::FAILURE };
            }
        }
    }
    Ok(status)
}

fn one(args: &CheckArgs, transfer: &Transfer, path: &Path) -> Result<bool> {
    let cannot = || format!("cannot read {}", path.display());
    let named = |e: narrows::Error| anyhow::Error::from(e).context(path.display().to_string());
    let mut file = File::open(path).with_context(cannot)?;
    let begin = foreign::peek(&mut file).with_context(cannot)?;
    if Format::of(&begin).is_some_and(|format| format != Format::Narrows) {
        let control = &transfer.control;
        let source = io::Read::chain(io::Cursor::new(begin), file);
        let decoded = decode(source, io::sink(), || ReceiveOptions::default().control(control)).map_err(named)?;
        let report = Report { good_bytes: decoded.raw_bytes, ..Report::default() };
        show(args, path, &report)?;
        return Ok(true);
    }
    let file = OpenOptions::default().broken(true).open(file).map_err(named)?;
    let has_index = file.members().iter().all(|m| m.origin == IndexOrigin::Stored);
    if args.repair_index && !has_index {
        let target = Target::open(Some(path))?;
        let mut sink = BufWriter::with_capacity(1 << 20, target.sink()?);
        let repaired = repair(&file, &mut sink).map_err(named)?;
        sink.flush().with_context(|| target.name().to_string())?;
        drop(sink);
        let name = target.name();
        target.commit(true).with_context(|| name.to_string())?;
        if !args.verbosity.quiet {
            let lost = match repaired.dropped_bytes {
                0 => String::new(),
                n => format!("; {n} bytes behind the last whole block were dropped"),
            };
            let text = format!("{}: wrote the index of {} blocks{lost}", path.display(), repaired.blocks);
            report::note(text);
        }
        let file = OpenOptions::default().open(File::open(path).with_context(cannot)?).map_err(named)?;
        return scrub(args, path, &file);
    }
    scrub(args, path, &file)
}

fn scrub(args: &CheckArgs, path: &Path, file: &narrows_file::File<File>) -> Result<bool> {
    let report = check(file, flow::threads(args.threads), args.sums).with_context(|| path.display().to_string())?;
    show(args, path, &report)?;
    Ok(report.is_good())
}

fn show(args: &CheckArgs, path: &Path, found: &Report) -> Result<()> {
    if args.verbosity.json {
        let damaged =
            found.damaged.iter().map(|(range, why)| json!({"from": range.start, "to": range.end, "why": why}));
        return report::out(json!({
            "file": path.to_string_lossy(),
            "good": found.is_good(),
            "good_bytes": found.good_bytes,
            "good_blocks": found.good_blocks,
            "damaged": damaged.collect::<Vec<_>>(),
            "faults": found.faults,
        }));
    }
    for (range, why) in &found.damaged {
        let (from, to) = (range.start, range.end - 1);
        report::out(format!("{}: bytes {from}-{to} are damaged: {why}", path.display()))?;
    }
    for fault in &found.faults {
        report::out(format!("{}: {fault}; --repair-index may help", path.display()))?;
    }
    if found.is_good() && !args.verbosity.quiet {
        report::out(format!("{}: good, {} bytes", path.display(), found.good_bytes))?;
    }
    Ok(())
}
