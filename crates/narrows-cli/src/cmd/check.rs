//! `narrows check`: scrubs files, and rewrites a lost index; checks the variables of files with arrays.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use narrows::stream::ReceiveOptions;
use narrows_file::check::{Report, check_from, prefaces_are_whole};
use narrows_file::decode::decode_within;
use narrows_file::foreign::{self, Format};
use narrows_file::repair::repair;
use narrows_file::{IndexOrigin, OpenOptions, ReadAt};
use narrows_object::Url;
use narrows_variables::report::{self as variables, Verdict, Wanted};
use serde_json::json;

use super::each::each;
use crate::args::file::CheckArgs;
use crate::args::{reach_max, window_log};
use crate::files::{Stopping, Target, is_dash, open_regular};
use crate::flow;
use crate::place::{self, Place};
use crate::report;
use crate::transfer::Transfer;

mod packs;

/// Status of a file of which something was not looked at, although nothing is known to be damaged.
const UNSEEN: u8 = 1;
/// Status of a file that is damaged.
const DAMAGED: u8 = 3;

/// Runs `narrows check`.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    if args.files.len() > 1 && (args.against.is_some() || args.html.is_some()) {
        return Err(narrows::Error::misuse("--against and --html take one file").into());
    }
    let transfer = Transfer::begin()?;
    each(&args.files, |path| one(args, &transfer, path))
}

/// Checks a file, and returns its status.
fn one(args: &CheckArgs, transfer: &Transfer, path: &Path) -> Result<u8> {
    let status = |is_good: bool| if is_good { 0 } else { DAMAGED };
    if let Place::Object(url) = Place::parse(path)? {
        return object(args, transfer, path, &url).map(status);
    }
    let path = &place::path_of(path)?;
    if is_dash(path) || path.metadata().is_ok_and(|data| !data.is_file() && !data.is_dir()) {
        let name = if is_dash(path) { "stdin".into() } else { path.display().to_string() };
        return Err(anyhow!("cannot check {name}: only files are checked; save it first, or use narrows -t"));
    }
    path.metadata().with_context(|| format!("cannot read {}", path.display()))?;
    if let Some(verdict) = variables::check(path, &wanted(args))? {
        return Ok(match verdict {
            Verdict::Good => 0,
            Verdict::Unseen => UNSEEN,
            Verdict::Bad => DAMAGED,
        });
    }
    variables::refuse_by_name(path)?;
    if args.against.is_some() || args.html.is_some() || !args.variable.is_empty() {
        let text = format!(
            "{}: no HDF5 file, Zarr store, .npy file or file of `narrows array`, or damaged at its beginning; \
             --against, --html and --variable are for files with arrays",
            path.display()
        );
        return Err(narrows::Error::misuse(text).into());
    }
    scrub_file(args, transfer, path).map(status)
}

/// What is asked of a file with arrays.
fn wanted(args: &CheckArgs) -> Wanted<'_> {
    Wanted {
        variables: &args.variable,
        against: args.against.as_deref(),
        html: args.html.as_deref(),
        threads: NonZero::new(flow::threads(args.threads)).unwrap_or(NonZero::<usize>::MIN),
        quiet: args.verbosity.quiet,
        verbose: args.verbosity.verbose,
        json: args.verbosity.json,
    }
}

/// Checks a file that has no arrays.
fn scrub_file(args: &CheckArgs, transfer: &Transfer, path: &Path) -> Result<bool> {
    let cannot = || format!("cannot read {}", path.display());
    let named = |e: narrows::Error| anyhow::Error::from(e).context(path.display().to_string());
    let mut file = open_regular(path)?;
    let begin = foreign::peek(&mut file).with_context(cannot)?;
    if Format::of(&begin).is_some_and(|format| format != Format::Narrows) {
        let control = &transfer.control;
        let source = io::Read::chain(io::Cursor::new(begin), file);
        let options = || ReceiveOptions::default().reach_max(reach_max(args.long)).control(control);
        let decoded = decode_within(source, io::sink(), window_log(args.long), options).map_err(named)?;
        let report = Report { good_bytes: decoded.raw_bytes, ..Report::default() };
        show(args, path, &report, None)?;
        return Ok(true);
    }
    let options = OpenOptions::default().broken(true).reach_max(reach_max(args.long));
    let file = options.open(Stopping(file)).map_err(named)?;
    // The repaired file is whole, and says nothing of this any more.
    let lost = file.broken().map(|why| format!("whatever was behind byte {} is missing: {why}", file.raw_len()));
    let has_index = file.members().iter().all(|m| m.origin == IndexOrigin::Stored);
    if args.repair_index && !(has_index && prefaces_are_whole(&file).map_err(named)?) {
        let target = Target::open(Some(path))?;
        let mut sink = BufWriter::with_capacity(1 << 20, target.sink()?);
        let repaired = repair(&file, &mut sink).map_err(named)?;
        sink.flush().with_context(|| target.name().to_string())?;
        drop(sink);
        let name = target.name();
        let kept = if repaired.dropped_bytes > 0 { Some(keep_damaged(path)?) } else { None };
        target.commit(true).with_context(|| name.to_string())?;
        if !args.verbosity.quiet {
            let left_out = kept.map_or_else(String::new, |kept| {
                let n = report::count(repaired.dropped_bytes, "byte", "bytes");
                format!("; left out and kept in {}: {n} behind the last whole block", kept.display())
            });
            let blocks = report::count(repaired.blocks, "block", "blocks");
            let text = format!("{}: wrote the index of {blocks}{left_out}", path.display());
            report::note(text);
        }
        let options = OpenOptions::default().reach_max(reach_max(args.long));
        let file = options.open(Stopping(open_regular(path)?)).map_err(named)?;
        return scrub(args, path, &file, lost);
    }
    scrub(args, path, &file, None)
}

/// Checks an object.
fn object(args: &CheckArgs, transfer: &Transfer, path: &Path, url: &Url) -> Result<bool> {
    if args.against.is_some() || args.html.is_some() || !args.variable.is_empty() || args.repair_index {
        let text = format!("{url}: --against, --html, --variable and --repair-index are for files of this host");
        return Err(narrows::Error::misuse(text).into());
    }
    let object = place::object(url, &args.store)?;
    let cannot = || format!("cannot read {url}");
    let named = |e: narrows::Error| {
        let about = if e.source.is_some() { cannot() } else { url.to_string() };
        anyhow::Error::from(e).context(about)
    };
    // The end first: an index costs no other request.
    object.len().with_context(cannot)?;
    let mut begin = [0; foreign::MAGIC_LEN];
    let n = object.read_at(&mut begin, 0).with_context(cannot)?;
    if Format::of(&begin[..n]).is_some_and(|format| format != Format::Narrows) {
        let control = &transfer.control;
        let options = || ReceiveOptions::default().reach_max(reach_max(args.long)).control(control);
        let source = object.reader(0..u64::MAX);
        let decoded = decode_within(source, io::sink(), window_log(args.long), options).map_err(named)?;
        show(args, path, &Report { good_bytes: decoded.raw_bytes, ..Report::default() }, None)?;
        return Ok(true);
    }
    let file = OpenOptions::default().broken(true).reach_max(reach_max(args.long)).open(object).map_err(named)?;
    scrub(args, path, &file, None)
}

/// Keeps the file as it is beside the repaired one, which lacks a part of it: what is left out may be
/// the rest of a stream after a single damaged byte.
fn keep_damaged(path: &Path) -> Result<PathBuf> {
    let mut kept = path.as_os_str().to_owned();
    kept.push(".damaged");
    let kept = PathBuf::from(kept);
    let linked = fs::hard_link(path, &kept);
    linked.with_context(|| format!("cannot keep the damaged file as {}", kept.display()))?;
    Ok(kept)
}

/// Decodes every block; of a pack, also compares the directory with the entries. `lost` is what a repair could not bring back.
fn scrub<R: ReadAt>(args: &CheckArgs, path: &Path, file: &narrows_file::File<R>, lost: Option<String>) -> Result<bool> {
    let threads = flow::threads(args.threads);
    let named = || path.display().to_string();
    let (found, decoded) = packs::compare(file, threads).with_context(named)?;
    let mut report = check_from(file, decoded, threads, args.sums).with_context(named)?;
    report.faults.extend(lost);
    let pack = packs::check(file, &report, found, args.sums, threads).with_context(named)?;
    show(args, path, &report, pack.as_ref())?;
    Ok(report.is_good() && pack.is_none_or(|pack| pack.is_good()))
}

fn show(args: &CheckArgs, path: &Path, found: &Report, pack: Option<&packs::Found>) -> Result<()> {
    let is_good = found.is_good() && pack.is_none_or(packs::Found::is_good);
    if args.verbosity.json {
        let damaged =
            found.damaged.iter().map(|(range, why)| json!({"from": range.start, "to": range.end, "why": why}));
        let mut line = json!({
            "file": path.to_string_lossy(),
            "good": is_good,
            "good_bytes": found.good_bytes,
            "good_blocks": found.good_blocks,
            "damaged": damaged.collect::<Vec<_>>(),
            "faults": found.faults,
        });
        if let Some(pack) = pack {
            line["pack"] = pack.json();
        }
        return report::out(line);
    }
    for (range, why) in &found.damaged {
        let (from, to) = (range.start, range.end - 1);
        report::out(format!("{}: bytes {from}-{to} are damaged: {why}", path.display()))?;
    }
    let hint = if args.repair_index { "" } else { "; --repair-index may help" };
    for fault in &found.faults {
        report::out(format!("{}: {fault}{hint}", path.display()))?;
    }
    if let Some(pack) = pack {
        pack.lines().try_for_each(|line| report::out(format!("{}: {line}", path.display())))?;
    }
    if is_good && !args.verbosity.quiet {
        let pack = pack.map_or_else(String::new, |pack| format!(", {}", pack.words()));
        let bytes = report::count(found.good_bytes, "byte", "bytes");
        report::out(format!("{}: good, {bytes}{pack}", path.display()))?;
    }
    Ok(())
}
