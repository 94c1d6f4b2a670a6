//! `narrows cp` to and from object stores: every file becomes one object.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use narrows::ErrorKind;
use narrows_host::signals;
use narrows_object::meta::FileMeta;
use narrows_object::{Head, KEY_LEN_MAX, Store, Url};
use serde_json::json;

use super::plan::Plan;
use super::stdio::Dash;
use super::{Outcome, Tell};
use crate::counts::Counts;
use crate::place::{self, Place};
use crate::progress::Bar;
use crate::report;
use crate::transfer::Transfer;

mod changes;
mod get;
mod put;
mod stream;

/// What the key of a file ends in.
const SUFFIX: &str = ".nrw";

/// A copy and what its threads share.
struct Copy<'a> {
    plan: &'a Plan,
    store: Store,
    counts: Arc<Counts>,
    tell: &'a Tell,
    /// Failures for which the content of an object is to blame.
    damaged: AtomicU64,
}

impl Copy<'_> {
    /// Reports a file that could not be copied; the others go on.
    fn failed(&self, text: &str) {
        Counts::add(&self.counts.failed, 1);
        (self.tell)(text);
    }

    /// Notes a failure that was or will be reported.
    fn note_damage(&self, error: &anyhow::Error) {
        if is_damage(error) {
            Counts::add(&self.damaged, 1);
        }
    }

    fn outcome(&self, begun: Instant, removed: Removed) -> Outcome {
        let c = &self.counts;
        let (raw, wire) = (Counts::of(&c.raw), Counts::of(&c.wire));
        let elapsed = begun.elapsed();
        Outcome {
            files: Counts::of(&c.files),
            files_same: Counts::of(&c.same),
            failed: Counts::of(&c.failed),
            // A file that changes is not stored.
            changed: 0,
            damaged: Counts::of(&self.damaged),
            losses: c.losses(),
            removed: removed.count,
            not_removed: removed.why_not,
            // Where nothing was copied there is no ratio.
            line: report::join([Some(report::amount(raw, elapsed)), (wire > 0).then(|| report::wire(raw, wire))]),
            json: json!({
                "raw_bytes": raw,
                "wire_bytes": wire,
                "ratio": raw as f64 / wire.max(1) as f64,
                "seconds": elapsed.as_secs_f64(),
                "goodput_bytes_per_s": raw as f64 / elapsed.as_secs_f64().max(1e-9),
            }),
            ..Outcome::default()
        }
    }
}

/// What --delete did.
#[derive(Default)]
struct Removed {
    count: u64,
    why_not: Option<String>,
}

/// Whether the bytes of an object are to blame, and not the way to them.
pub(super) fn is_damage(error: &anyhow::Error) -> bool {
    let own = error.downcast_ref::<narrows::Error>();
    own.is_some_and(|e| e.source.is_none() && matches!(e.kind, ErrorKind::Corrupt | ErrorKind::Truncated))
}

/// Whether any of the places is an object.
pub(super) fn are_meant(plan: &Plan) -> bool {
    plan.paths.iter().any(|text| Place::is_object(text))
}

/// Copies to a store, or from one.
pub(super) fn copy(plan: &Plan, dash: Dash, tell: &Tell) -> Result<Outcome> {
    let misuse = |text: &str| anyhow::Error::from(narrows::Error::misuse(text.to_owned()));
    let _transfer = Transfer::begin()?;
    let begun = Instant::now();
    let places = plan.paths.iter().map(Place::parse).collect::<Result<Vec<_>>>()?;
    let Some((target, sources)) = places.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(misuse("cp needs a source and a target: narrows cp [OPTIONS] SRC... DST"));
    };
    let is_remote = |place: &Place| match place {
        Place::Path(path) => {
            !matches!(narrows_copy::place::Place::parse(path.as_os_str()), Ok(narrows_copy::place::Place::Local(_)))
        }
        Place::Object(_) => false,
    };
    let urls: Vec<&Url> = sources.iter().filter_map(Place::url).collect();
    let paths: Vec<PathBuf> =
        sources.iter().filter_map(|p| if let Place::Path(path) = p { Some(path.clone()) } else { None }).collect();
    if places.iter().any(is_remote) || target.url().is_some() && !urls.is_empty() {
        return Err(misuse("both ends are remote; copy in two steps"));
    }
    let first = target.url().or(urls.first().copied()).ok_or_else(|| misuse("there is no object"))?;
    if urls.iter().any(|url| url.with_key("") != first.with_key("")) || !urls.is_empty() && !paths.is_empty() {
        return Err(misuse("the sources are in more than one place; copy them in two steps"));
    }
    let counts = Arc::new(Counts::default());
    let bar = Bar::objects(&counts, !plan.told.verbosity.quiet);
    let copy =
        Copy { plan, store: place::store(first, &plan.objects.access)?, counts, tell, damaged: AtomicU64::new(0) };
    let removed = match (target, dash) {
        (Place::Object(url), Dash::Source) => stream::put(&copy, url),
        (_, Dash::Target) => stream::get(&copy, first),
        (Place::Object(url), _) => put::put(&copy, &paths, url),
        (Place::Path(path), _) => get::get(&copy, &urls, path),
    };
    bar.end();
    let removed = removed?;
    if signals::received().is_some() {
        return Err(anyhow!("interrupted"));
    }
    Ok(copy.outcome(begun, removed))
}

/// The key of a file that is named `name`.
fn key_of(name: &str, plain: bool) -> String {
    if plain { name.to_owned() } else { format!("{name}{SUFFIX}") }
}

/// The key of the object that becomes the file at `url`: `x.nrw` becomes `x` if it is of this program, and
/// other objects keep their names. Who names the key itself, `x.nrw`, gets it too.
fn find_named(copy: &Copy<'_>, url: &Url) -> Result<String> {
    let cannot = || format!("cannot read {url}");
    let (plain, packed) = (url.key.clone(), key_of(&url.key, false));
    let head = |key: &str| match key.len() <= KEY_LEN_MAX {
        true => copy.store.head(key),
        false => Ok(None),
    };
    let (mut of_plain, mut of_packed) = (head(&plain), head(&packed));
    // Without the right to list, S3 denies what is not there.
    let is_denied =
        |head: &io::Result<Option<Head>>| head.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
    let is_there = |head: &io::Result<Option<Head>>| head.as_ref().is_ok_and(Option::is_some);
    if is_denied(&of_plain) && is_there(&of_packed) {
        of_plain = Ok(None);
    } else if is_denied(&of_packed) && is_there(&of_plain) {
        of_packed = Ok(None);
    }
    let (of_plain, of_packed) = (of_plain.with_context(cannot)?, of_packed.with_context(cannot)?);
    let is_ours = |head: &Head| FileMeta::parse(&head.metadata).plain == Some(false);
    match (of_plain.as_ref().map(is_ours), of_packed.as_ref().map(is_ours)) {
        (Some(false), Some(true)) => {
            let both = format!("{url} and {url}{SUFFIX} are both there, and both become this file");
            Err(anyhow!("cannot read {url}: {both}; name {url}{SUFFIX}, or remove one"))
        }
        (_, Some(true)) => Ok(packed),
        (Some(_), _) => Ok(plain),
        (None, Some(false)) => Err(anyhow!(
            "cannot read {url}: there is no such object; {url}{SUFFIX} is there, and no file of narrows cp"
        )),
        (None, None) => Err(anyhow!("cannot read {url}: there is no such object; for all below it give -r")),
    }
}

/// Runs `work` in as many threads as files are copied at a time, until it returns.
fn in_threads(plan: &Plan, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..plan.objects.transfers {
            // Without another thread this one does it all.
            let _ = std::thread::Builder::new().name("narrows-copy".into()).spawn_scoped(scope, &work);
        }
        work();
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
