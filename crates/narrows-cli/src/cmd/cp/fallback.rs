//! `narrows cp` with tar, if the other host has no narrows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Error, Result};
use serde_json::json;

use super::plan::Plan;
use super::say::skipped_with;
use super::{Outcome, Tell, names};
use crate::progress::Bar;
use crate::report;
use narrows_copy::carrier::shell_for;
use narrows_copy::fallback::{self, ArchiveProgress, Order};
use narrows_copy::filter::Filter;
use narrows_copy::hello::Fsync;
use narrows_copy::place::Place;

/// Copies with tar. `missing` is the error that narrows was not found, returned if tar cannot do
/// the copy.
pub(super) fn copy(plan: &Plan, sources: &[Place], target: &Place, missing: Error, tell: &Tell) -> Result<Outcome> {
    let patterns = plan.pick.patterns.clone();
    let (place, host, puts) = match (target, &sources[0]) {
        (place @ Place::Ssh { host, .. }, _) => (place, host, true),
        (_, place @ Place::Ssh { host, .. }) => (place, host, false),
        _ => return Err(missing),
    };
    let shell = shell_for(&plan.way.shell, place)?;
    // These options need narrows at the other end: to know which files exist there and which match
    // a pattern, and to continue after failures at which tar gives up.
    let refused = [
        (plan.mirrors, "sync"),
        (plan.dry_run, "--dry-run"),
        (plan.delete.is_some(), "--delete"),
        (plan.keep.wants_owner(), "--owner"),
        (!puts && !patterns.is_empty(), "--exclude when copying from the other host"),
    ];
    if let Some(option) = plan.habit {
        return Err(missing.context(format!("{option} needs narrows at both ends")));
    }
    if let Some((_, option)) = refused.into_iter().find(|(wanted, _)| *wanted) {
        return Err(missing.context(format!("{option} needs narrows at both ends")));
    }
    let progress = Arc::new(ArchiveProgress::default());
    let on_file = names(plan, "");
    let on_skipped = skipped_with(plan, "");
    let order = Order {
        shell: &shell,
        host,
        program: &plan.way.program,
        recursive: plan.pick.recursive,
        owner: !plan.keep.forbids_owner(),
        set_id: plan.keep.set_id,
        fsync: plan.keep.fsync != Fsync::None,
        timeout: plan.patience(),
        quiet: plan.told.verbosity.quiet,
        progress: Arc::clone(&progress),
        on_failure: &**tell,
        on_skipped: on_skipped.as_ref().map(|told| &**told as &dyn Fn(&str)),
        on_file: &on_file,
    };
    let paths: Vec<PathBuf> = sources.iter().map(|s| s.path().clone()).collect();
    let bar = Bar::archive(&progress, !plan.told.verbosity.quiet);
    let begun = Instant::now();
    let copied = if puts {
        fallback::put(&order, &paths, &Filter::new(&patterns)?, target.path())
    } else {
        fallback::get(&order, &paths, target.path())
    };
    let seconds = begun.elapsed().as_secs_f64();
    bar.end();
    let copied = copied?;
    let (raw, wire) = (progress.raw_bytes(), progress.wire_bytes());
    let (rate, ratio) = (raw as f64 / seconds.max(1e-9), raw as f64 / wire.max(1) as f64);
    Ok(Outcome {
        files: copied.files,
        failed: copied.failed,
        changed: copied.changed,
        losses: copied.losses,
        line: format!(
            "{} in {seconds:.2} s: {}/s, ratio {ratio:.2}; by {}",
            report::bytes(raw as f64),
            report::bytes(rate),
            copied.programs
        ),
        json: json!({
            "fallback": copied.programs,
            "raw_bytes": raw,
            "wire_bytes": wire,
            "ratio": ratio,
            "seconds": seconds,
            "goodput_bytes_per_s": rate,
        }),
        ..Outcome::default()
    })
}
