//! `narrows repack`: recompresses files with slower methods, in place.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use narrows::hint::{Hint, Mode};
use narrows_file::repack::{Pace, RepackOptions};
use narrows_host::hints::Hints;
use narrows_host::idle::{Load, become_idle};
use narrows_host::signals;
use serde_json::{Value, json};

use crate::args::reach_max;
use crate::args::repack::RepackArgs;
use crate::files::StdoutClosed;
use crate::place::Place;
use crate::repack::objects::{self, Objects};
use crate::repack::tree::Tree;
use crate::repack::{Outcome, one};
use crate::report;
use crate::transfer::Transfer;

/// Interval at which signals and the load of the host are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// After a signal, a file in work has so long to remove what it has begun. It is whole anyway.
const GRACE: Duration = Duration::from_millis(600);

/// What became of the files.
#[derive(Debug, Default)]
struct Tally {
    smaller: u64,
    no_gain: u64,
    before: u64,
    left: u64,
    would: u64,
    failed: u64,
    old_bytes: u64,
    new_bytes: u64,
}

/// Runs `narrows repack`.
pub(crate) fn run(args: &RepackArgs) -> Result<ExitCode> {
    let _transfer = Transfer::begin()?;
    let begun = Instant::now();
    if args.idle {
        for (what, error) in become_idle().into_iter().filter(|_| !args.verbosity.quiet) {
            report::note(format!("goes on without {what}: {error}"));
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let pace = pace(args.idle, Arc::clone(&stop));
    let (mut jobs, mut hints, mut tally) = (Jobs::of(args)?, Hints::default(), Tally::default());
    let (mut highest, mut is_complete) = (0, true);
    while let Some(next) = jobs.next() {
        if args.budget.is_some_and(|budget| begun.elapsed() >= budget) {
            is_complete = false;
            break;
        }
        let result = next.and_then(|job| {
            let (name, is_named) = (job.to_string(), job.is_named(args));
            let outcome = work(args, job, &mut hints, &pace, &stop);
            if let Ok(outcome) = &outcome {
                tally.count(outcome);
                show(args, &name, is_named, outcome)?;
            }
            outcome.map(drop)
        });
        let Err(error) = result else { continue };
        if signals::received().is_some() || error.is::<StdoutClosed>() {
            return Err(error);
        }
        tally.failed += 1;
        report::note(report::one_line(&error));
        highest = highest.max(report::status(&error));
    }
    summary(args, &tally, jobs.others(), is_complete)?;
    Ok(ExitCode::from(highest))
}

/// Files and folders, then objects.
struct Jobs<'a> {
    tree: Tree,
    objects: Objects<'a>,
}

/// A file or an object.
enum Job {
    File(PathBuf),
    Object(objects::Job),
}

impl<'a> Jobs<'a> {
    fn of(args: &'a RepackArgs) -> Result<Self> {
        let (mut paths, mut urls) = (Vec::new(), Vec::new());
        for path in &args.paths {
            match Place::parse(path)? {
                Place::Path(path) => paths.push(path),
                Place::Object(url) => urls.push(url),
            }
        }
        Ok(Self { tree: Tree::of(&paths), objects: Objects::of(urls, &args.store) })
    }

    fn next(&mut self) -> Option<Result<Job>> {
        match self.tree.next() {
            Some(path) => Some(path.map(Job::File)),
            None => self.objects.next().map(|job| job.map(Job::Object)),
        }
    }

    fn others(&self) -> u64 {
        self.tree.others + self.objects.others
    }
}

impl Job {
    fn is_named(&self, args: &RepackArgs) -> bool {
        match self {
            Self::File(path) => args.paths.contains(path),
            Self::Object(job) => job.is_named,
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Object(job) => job.url.fmt(f),
        }
    }
}

/// Does a job on another thread, so that a signal ends the program whatever that waits for.
fn work(args: &RepackArgs, job: Job, hints: &mut Hints, pace: &Pace, stop: &AtomicBool) -> Result<Outcome> {
    let hint = match &job {
        Job::File(path) => args.hint.hint().or(hints.of(path)?),
        Job::Object(_) => args.hint.hint(),
    };
    let leave = leave(&hint);
    let mode = hint.mode.unwrap_or(Mode::Archive);
    let mut options = RepackOptions::new(mode).hint(hint).pace(Arc::clone(pace)).reach_max(reach_max(args.long));
    if let Some(threads) = args.threads.filter(|n| *n > 0) {
        options = options.threads(usize::from(threads));
    }
    let (tell, told) = mpsc::channel();
    let (dry, store) = (args.dry_run, args.store.clone());
    let work = move || {
        tell.send(match job {
            Job::File(path) => one(&path, leave, &options, dry),
            Job::Object(job) => objects::one(&job, &store, leave, &options, dry),
        })
    };
    std::thread::Builder::new().name("narrows-repack".into()).spawn(work).context("cannot start a thread")?;
    let mut until = None;
    loop {
        if signals::received().is_some() {
            stop.store(true, Ordering::Relaxed);
            let until = *until.get_or_insert_with(|| Instant::now() + GRACE);
            if Instant::now() >= until {
                return Err(anyhow!("interrupted"));
            }
        }
        match told.recv_timeout(LOOK_EVERY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("a thread failed; this is a bug")),
        }
    }
}

/// Why a file with this hint is left as it is.
fn leave(hint: &Hint) -> Option<&'static str> {
    if hint.is_never() {
        Some("its hint says never")
    } else {
        hint.methods.is_some().then_some("its hint names its methods")
    }
}

/// Stops after a signal; with `idle`, waits while other programs need the processors.
fn pace(idle: bool, stop: Arc<AtomicBool>) -> Pace {
    let load = idle.then(|| Mutex::new(Load::default()));
    Arc::new(move |_| {
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            let is_high = |load: &Mutex<Load>| load.lock().unwrap_or_else(PoisonError::into_inner).is_high();
            if !load.as_ref().is_some_and(is_high) {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    })
}

impl Tally {
    fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Smaller { old, new } => {
                self.smaller += 1;
                self.old_bytes += old;
                self.new_bytes += new;
            }
            Outcome::NoGain { .. } => self.no_gain += 1,
            Outcome::Before => self.before += 1,
            Outcome::Left(_) => self.left += 1,
            Outcome::Would { old } => {
                self.would += 1;
                self.old_bytes += old;
            }
        }
    }

    fn json(&self, others: u64, is_complete: bool) -> Value {
        json!({
            "smaller": self.smaller,
            "no_gain": self.no_gain,
            "before": self.before,
            "left": self.left,
            "would": self.would,
            "failed": self.failed,
            "others": others,
            "old_bytes": self.old_bytes,
            "new_bytes": self.new_bytes,
            "complete": is_complete,
        })
    }

    fn words(&self, dry: bool) -> String {
        let mut parts = Vec::new();
        let mut part = |n: u64, what: &str| {
            if n > 0 {
                parts.push(format!("{n} {what}"));
            }
        };
        part(self.smaller, "smaller");
        part(self.would, "to do");
        part(self.no_gain, "would not get smaller");
        part(self.before, "done before");
        part(self.left, "left");
        part(self.failed, "failed");
        let words = if parts.is_empty() { "no files".to_owned() } else { parts.join(", ") };
        let (old, new) = (report::bytes(self.old_bytes as f64), report::bytes(self.new_bytes as f64));
        match (self.old_bytes, dry) {
            (0, _) => words,
            (_, true) => format!("{words}; {old}"),
            (_, false) => format!("{words}; {old} became {new}"),
        }
    }
}

fn show(args: &RepackArgs, name: &str, is_named: bool, outcome: &Outcome) -> Result<()> {
    if args.verbosity.json {
        let (result, old, new, why) = match *outcome {
            Outcome::Smaller { old, new } => ("smaller", Some(old), Some(new), None),
            Outcome::NoGain { old } => ("no_gain", Some(old), None, None),
            Outcome::Before => ("before", None, None, None),
            Outcome::Left(why) => ("left", None, None, Some(why)),
            Outcome::Would { old } => ("would", Some(old), None, None),
        };
        return report::out(json!({"file": name, "result": result, "old_bytes": old, "new_bytes": new, "why": why}));
    }
    let text = match outcome {
        Outcome::Would { .. } => return report::out(name),
        Outcome::Smaller { old, new } => {
            format!("{} became {}", report::bytes(*old as f64), report::bytes(*new as f64))
        }
        Outcome::NoGain { .. } => "would not get smaller".to_owned(),
        Outcome::Before => "done before".to_owned(),
        Outcome::Left(why) => format!("left: {why}"),
    };
    // A file that its user named and that nothing is done with is worth a line.
    if args.verbosity.verbose || matches!(outcome, Outcome::Left(_)) && !args.verbosity.quiet && is_named {
        report::note(format!("{name}: {text}"));
    }
    Ok(())
}

fn summary(args: &RepackArgs, tally: &Tally, others: u64, is_complete: bool) -> Result<()> {
    if args.verbosity.json {
        return report::out(tally.json(others, is_complete));
    }
    if args.verbosity.quiet {
        return Ok(());
    }
    let others =
        if others > 0 { format!("; {}", report::count(others, "other file", "other files")) } else { String::new() };
    let rest = if is_complete { "" } else { "; the budget is used up, run it again to go on" };
    report::note(format!("{}{others}{rest}", tally.words(args.dry_run)));
    Ok(())
}
