//! Messages of a copy for the user: names, failures, and the summary.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use narrows_copy::HINT_DEVICES;
use narrows_copy::place::Place;
use serde_json::json;

use super::plan::Plan;
use super::stdio::Dash;
use super::{Outcome, Tell};
use crate::report;

/// Failures that are reported one by one; further ones are only counted.
const TOLD_MAX: usize = 100;
/// Prefix of the names of removed entries, as in the output of rsync.
const DELETING: &str = "deleting ";

/// Prints what is copied. `received`: this end stores it, which rsync's letters show.
pub(super) fn sent_names(plan: &Plan, received: bool) -> Box<dyn Fn(&str) + Send + Sync> {
    if plan.told.removals.is_some() {
        return Box::new(|_| ());
    }
    if !plan.told.itemizes() {
        return Box::new(names(plan, ""));
    }
    Box::new(move |line| match line.strip_prefix('>').filter(|_| !received) {
        Some(rest) => report::out_meanwhile(format_args!("<{rest}")),
        None => report::out_meanwhile(line),
    })
}

/// What hears of them, in any thread.
type OnSkipped = Box<dyn Fn(&str) + Send + Sync>;

/// Prints which fifos, devices and sockets are passed over; `None` if they are asked for.
pub(super) fn skipped(plan: &Plan, target: &Place) -> Option<OnSkipped> {
    let hint = match target {
        Place::Direct { .. } => "; servers make none",
        Place::Local(_) | Place::Ssh { .. } => HINT_DEVICES,
    };
    skipped_with(plan, hint)
}

/// The same, with what follows each.
pub(super) fn skipped_with(plan: &Plan, hint: &'static str) -> Option<OnSkipped> {
    let (quiet, told) = (plan.told.verbosity.quiet, AtomicUsize::new(0));
    let tell = move |text: &str| match told.fetch_add(1, Ordering::Relaxed) {
        _ if quiet => {}
        before if before < TOLD_MAX => report::note(format_args!("{text}{hint}")),
        TOLD_MAX => report::note("more fifos, devices and sockets are skipped"),
        _ => {}
    };
    (!plan.pick.devices).then(|| Box::new(tell) as Box<_>)
}

/// Prints what is removed, or collects it for a question.
pub(super) fn removed_names(plan: &Plan) -> Box<dyn Fn(&str) + Send + Sync> {
    match &plan.told.removals {
        Some(removals) => {
            let removals = removals.clone();
            Box::new(move |name| removals.collect(name))
        }
        None if plan.told.itemizes() => Box::new(|name| report::out_meanwhile(format_args!("*deleting   {name}"))),
        None => Box::new(names(plan, DELETING)),
    }
}

/// Prints the name of every file if requested; to stdout, since the names are the output of a dry
/// run.
pub(super) fn names(plan: &Plan, before: &'static str) -> impl Fn(&str) + Send + Sync + use<> {
    let wanted = plan.names_wanted();
    move |name| {
        if wanted {
            report::out_meanwhile(format_args!("{before}{name}"));
        }
    }
}

/// Reports failures, one line each and no line twice, and at most [`TOLD_MAX`] of them.
pub(in crate::cmd) fn teller() -> Tell {
    let told = Mutex::new(HashSet::new());
    Arc::new(move |text| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.len();
        if before <= TOLD_MAX && told.insert(text.to_owned()) {
            report::note(if before < TOLD_MAX { text } else { "more failures follow; they are counted at the end" });
        }
    })
}

/// The failures that were reported, for the summary in JSON.
pub(super) type Failures = Arc<Mutex<(Vec<String>, u64)>>;

/// Most failures in the summary; the rest is counted.
const FAILURES_MAX: usize = 10_000;

/// Reports failures and keeps them.
pub(super) fn recording() -> (Tell, Failures) {
    let (told, failures) = (teller(), Failures::default());
    let kept = Arc::clone(&failures);
    let tell = move |text: &str| {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.0.len() < FAILURES_MAX {
            true => kept.0.push(text.to_owned()),
            false => kept.1 += 1,
        }
        drop(kept);
        told(text);
    };
    (Arc::new(tell), failures)
}

pub(super) fn telling(tell: &Tell) -> Box<dyn Fn(&str) + Send + Sync> {
    let tell = Arc::clone(tell);
    Box::new(move |text| tell(text))
}

pub(super) fn say(plan: &Plan, dash: Dash, o: &Outcome, failures: &Failures, elapsed: Duration) -> Result<()> {
    if let Some(why) = &o.not_removed {
        report::note(why);
    }
    if plan.told.verbosity.json {
        let failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
        // If nothing was started there are no transfer figures, but the counts of files are still
        // given.
        let mut all = o.json.as_object().cloned().unwrap_or_default();
        let own = json!({
            "files": o.files,
            "files_same": o.files_same,
            "repeated_bytes": o.repeated,
            "files_failed": o.failed,
            "files_changed": o.changed,
            "failures": failures.0,
            "failures_left_out": failures.1,
            "not_kept": o.losses,
            "deleted": o.removed,
            "not_deleted": o.not_removed,
            "total_seconds": elapsed.as_secs_f64(),
        });
        all.extend(own.as_object().cloned().unwrap_or_default());
        let all = serde_json::Value::from(all);
        if dash == Dash::Target {
            // stdout carries the file.
            report::note_json(&all);
            return Ok(());
        }
        return report::out(all);
    }
    if plan.told.verbosity.quiet || o.unstarted {
        return report::is_all_out();
    }
    let is_idle = o.files + o.failed + o.removed + o.changed == 0 && !o.begun;
    if is_idle {
        let what = if o.others == 0 { "nothing to do" } else { "no file to copy" };
        let same = report::count(o.files_same, "file", "files");
        let same = if o.files_same > 0 { format!(", {same} up to date") } else { String::new() };
        report::note(format_args!("{what}{same}"));
        return say_losses(plan, o);
    }
    let would = if plan.dry_run { "would copy " } else { "" };
    let mut line = would.to_owned() + &report::count(o.files, "file", "files");
    if o.files_same > 0 {
        line += &format!(", {} already there", o.files_same);
    }
    if o.repeated > 0 {
        line += &format!(", {} of repeats not sent again", report::bytes(o.repeated as f64));
    }
    if o.removed > 0 {
        line += &format!(", {} {}removed", o.removed, if plan.dry_run { "to be " } else { "" });
    }
    if o.failed > 0 {
        line += &format!(", {} failed", o.failed);
    }
    // What crossed for a dry run is the list of files, and says nothing of what a copy would send.
    let figures = if plan.dry_run { String::new() } else { format!("; {}", o.line) };
    report::note(line + &figures);
    if plan.told.verbosity.verbose && !o.mix.is_empty() {
        report::note(format_args!("methods: {}", o.mix));
    }
    say_losses(plan, o)
}

fn say_losses(plan: &Plan, o: &Outcome) -> Result<()> {
    // As with rsync, nobody expects a user to set other groups than their own.
    let tells_groups = plan.told.verbosity.verbose || plan.keep.wants_owner();
    if let Some(losses) = o.losses.as_deref().and_then(|losses| report::losses(losses, tells_groups)) {
        report::note(format_args!("not kept: {losses}"));
    }
    report::is_all_out()
}
