//! `-` as source or target of a copy: one file from stdin or to stdout.

use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result};
use narrows::stream::{Notes, ReceiveOptions};

use super::plan::Plan;
use super::{Outcome, Tell, received_words, receiving, start, telling};
use crate::files::{self, Target};
use crate::progress::Bar;
use crate::transfer::{Received, Transfer};
use narrows_copy::hello::{Fsync, GetTask, SourceHabits, Task};
use narrows_copy::outlet::Outlet;
use narrows_copy::place::Place;
use narrows_copy::special::{self, Special};
use narrows_host::words::shown;
use narrows_watch::bottleneck::Part;

/// Which end of a copy is stdin or stdout. A file that is named `-` is written `./-`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dash {
    Nowhere,
    Source,
    Target,
}

impl Dash {
    /// Only one file comes from stdin or goes to stdout.
    pub(super) fn of(plan: &Plan) -> Result<Self> {
        let misuse = |text: &str| Err(narrows::Error::misuse(text.to_owned()).into());
        let Some((target, sources)) = plan.paths.split_last() else { return Ok(Self::Nowhere) };
        let dash = match (sources.iter().any(|p| p == "-"), target == "-") {
            (false, false) => return Ok(Self::Nowhere),
            (true, true) => return misuse("cp does not copy stdin to stdout; use cat"),
            (true, false) => Self::Source,
            (false, true) => Self::Target,
        };
        let name = if dash == Self::Source { "stdin is" } else { "stdout takes" };
        if sources.len() > 1 {
            return misuse(&format!("{name} one file; copy the others separately, and write ./- for a file named -"));
        }
        if plan.pick.recursive || !plan.pick.patterns.is_empty() {
            return misuse(&format!("{name} one file, so -r, --exclude and --include do not apply"));
        }
        if plan.coding.store_compressed && dash == Self::Target {
            return misuse("--store-compressed writes files, not stdout; copy to a file, or read it with narrows cat");
        }
        if plan.dry_run {
            return misuse("--dry-run does not support stdin and stdout");
        }
        Ok(dash)
    }
}

/// Checks that the target names a file, since stdin has no name of its own.
pub(super) fn check_name(target: &Place) -> Result<()> {
    let path = target.path();
    let folder = path.as_os_str().as_bytes().ends_with(b"/") || path.file_name().is_none();
    if folder || matches!(target, Place::Local(path) if path.is_dir()) {
        let text = "stdin has no name, and the target is a folder; name the file in it, as in FOLDER/NAME";
        return Err(narrows::Error::misuse(text).into());
    }
    Ok(())
}

/// Writes the content of one file to stdout.
pub(super) fn get(plan: &Plan, source: &Place, tell: &Tell) -> Result<Outcome> {
    if let Place::Local(path) = source {
        files::refuse_same(path, [Some(Path::new("-"))])?;
    }
    let target = Target::open(None)?;
    // A progress bar would garble the output if both are on one terminal.
    let bar = !plan.told.verbosity.quiet && !std::io::stdout().is_terminal();
    receive(plan, source, &target, &Output { name: "stdout", part: Part::Stdout, bar }, tell)
}

/// Writes the content of one file into a device or fifo.
pub(super) fn get_into(plan: &Plan, source: &Place, special: &Special, path: &Path, tell: &Tell) -> Result<Outcome> {
    if plan.coding.store_compressed {
        let text = format!("--store-compressed writes files, and {} is none", shown(path.as_os_str().as_bytes()));
        return Err(narrows::Error::misuse(text).into());
    }
    let cannot = || format!("cannot write {}", path.display());
    let target = Target::written(special.open(None).with_context(cannot)?, cannot());
    let name = shown(path.as_os_str().as_bytes());
    let outcome = receive(
        plan,
        source,
        &target,
        &Output { name: &name, part: Part::Disk, bar: !plan.told.verbosity.quiet },
        tell,
    )?;
    if plan.keep.fsync != Fsync::None {
        special::sync(&target.file()?).with_context(cannot)?;
    }
    Ok(outcome)
}

/// How the output is reported to the user.
struct Output<'a> {
    name: &'a str,
    part: Part,
    bar: bool,
}

fn receive(plan: &Plan, source: &Place, target: &Target, to: &Output<'_>, tell: &Tell) -> Result<Outcome> {
    let transfer = Transfer::begin()?;
    let what = GetTask {
        sources: vec![source.path().clone()],
        recursive: false,
        exclude: Vec::new(),
        dry_run: false,
        totals: false,
        stored: plan.coding.is_stored(),
        frames: false,
        images: false,
        codes: true,
        sockets: false,
        holes: false,
        habits: SourceHabits { rate: plan.way.rate, yields: plan.way.yields, ..SourceHabits::default() },
    };
    let notes = Notes::default();
    let options = ReceiveOptions::default().notes(&notes).stall_timeout(plan.patience());
    let options = options.reach_max(plan.coding.reach());
    let output = target.name();
    let outlet = Outlet::new(target.sink()?, notes, telling(tell)).named(to.name);
    let (carrier, link, grower) = start(plan, source, &Task::Get(what), None, receiving(&transfer.control))?;
    let bar = Bar::receiving(&transfer.control, to.bar);
    let end = outlet.clone();
    let received = transfer.receive(outlet.clone(), link, options, move || end.finish(), bar);
    drop(grower);
    let (received, failed) = match received {
        Ok(received) => (Some(received), None),
        // The output failed here: the error of the other end adds nothing, so it is not waited for.
        Err(e) if output.is_to_blame() => return Err(output.blame(e)),
        Err(e) => (None, Some(e)),
    };
    carrier.end(failed)?;
    let Received { summary, elapsed } = received.context("the copy has no result; this is a bug")?;
    let (line, json) = received_words(&summary, elapsed, source, to.part);
    let w = outlet.written();
    Ok(Outcome {
        files: u64::from(w.whole),
        failed: w.failed,
        changed: u64::from(w.changed),
        begun: w.bytes > 0,
        line,
        json,
        ..Outcome::default()
    })
}
