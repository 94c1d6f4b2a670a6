//! `narrows cp` with tar, if the other host has no narrows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Error, Result};
use serde_json::json;

use super::say::skipped_with;
use super::{Outcome, Tell, names, patterns};
use crate::args::CpArgs;
use crate::progress::Bar;
use crate::{flow, report};
use narrows_copy::carrier::shell_for;
use narrows_copy::fallback::{self, ArchiveProgress, Order};
use narrows_copy::filter::Filter;
use narrows_copy::hello::Fsync;
use narrows_copy::place::Place;

/// Copies with tar. `missing` is the error that narrows was not found, returned if tar cannot do
/// the copy.
pub(super) fn copy(args: &CpArgs, sources: &[Place], target: &Place, missing: Error, tell: &Tell) -> Result<Outcome> {
    let patterns = patterns(args);
    let (place, host, puts) = match (target, &sources[0]) {
        (place @ Place::Ssh { host, .. }, _) => (place, host, true),
        (_, place @ Place::Ssh { host, .. }) => (place, host, false),
        _ => return Err(missing),
    };
    let shell = shell_for(&args.shell, place)?;
    // These options need narrows at the other end: to know which files exist there and which match
    // a pattern, and to continue after failures at which tar gives up.
    let refused = [
        (args.mirrors, "sync"),
        (args.dry_run, "--dry-run"),
        (args.delete, "--delete"),
        (args.owner, "--owner"),
        (!puts && !patterns.is_empty(), "--exclude when copying from the other host"),
    ];
    if let Some(option) = args.habits.asked() {
        return Err(missing.context(format!("{option} needs narrows at both ends")));
    }
    if let Some((_, option)) = refused.into_iter().find(|(wanted, _)| *wanted) {
        return Err(missing.context(format!("{option} needs narrows at both ends")));
    }
    let progress = Arc::new(ArchiveProgress::default());
    let on_file = names(args, "");
    let on_skipped = skipped_with(args, "");
    let order = Order {
        shell: &shell,
        host,
        program: &args.remote_narrows,
        recursive: args.recursive,
        owner: !args.no_owner,
        set_id: args.set_id,
        fsync: Fsync::from(args.fsync) != Fsync::None,
        timeout: flow::seconds(args.timeout),
        quiet: args.verbosity.quiet,
        progress: Arc::clone(&progress),
        on_failure: &**tell,
        on_skipped: on_skipped.as_ref().map(|told| &**told as &dyn Fn(&str)),
        on_file: &on_file,
    };
    let paths: Vec<PathBuf> = sources.iter().map(|s| s.path().clone()).collect();
    let bar = Bar::archive(&progress, !args.verbosity.quiet);
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
