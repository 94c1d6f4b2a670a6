//! `narrows sync`: a mirror, which shows what it would remove and asks first.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::PoisonError;

use anyhow::Result;
use narrows_copy::hello::CONFIRMED_MAX;

use super::stdio::Dash;
use super::{SOME_FAILED, copy, normal, recording};
use crate::args::copying::{Removals, Removed, contents_of};
use crate::args::sync::SyncArgs;
use crate::args::{CpArgs, VerbosityArgs};
use crate::report;

/// Names that are shown before the question; the rest is counted, since nobody reads more.
const SHOWN_MAX: usize = 20;

/// Runs `narrows sync` and returns its exit status.
pub(crate) fn run(args: &SyncArgs) -> Result<ExitCode> {
    let misuse = |text: &str| Err(narrows::Error::misuse(text.to_owned()).into());
    let [source, target] = &args.copy.paths[..] else {
        return misuse("sync makes one folder the same as another: narrows sync [OPTIONS] SRC DST");
    };
    if source == "-" || target == "-" {
        return misuse("sync is for folders; use cp for stdin and stdout");
    }
    let paths = vec![contents(source), target.clone()];
    let mirror = CpArgs { recursive: true, delete: true, mirrors: true, paths, ..args.copy.clone() };
    if args.yes || mirror.dry_run {
        return super::run(&mirror);
    }
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return misuse("sync removes what SRC does not have: give --yes, or look first with -n");
    }
    let Some(mut found) = removals(&mirror)? else { return Ok(ExitCode::from(SOME_FAILED)) };
    if found.count > CONFIRMED_MAX as u64 {
        return misuse("more would be removed than anybody can look through: give --yes");
    }
    if found.count > 0 && !is_wanted(&found.first, found.count)? {
        report::note("nothing was done");
        return Ok(ExitCode::FAILURE);
    }
    // Nothing goes that was not found.
    let mut agreed = mirror;
    agreed.habits.confirmed = Some(found.all.confirmed());
    super::run(&agreed)
}

/// The source as what is in it: with a slash behind it. The name of a host alone means the user's folder
/// there, whose contents are meant in any case; with a slash it would be the root of that host.
fn contents(source: &OsStr) -> OsString {
    let bytes = source.as_bytes();
    let is_host_alone = match bytes.strip_prefix(b"ssh://") {
        Some(rest) => !rest.contains(&b'/'),
        None => bytes.ends_with(b":"),
    };
    if is_host_alone { source.to_owned() } else { contents_of(source.as_ref()).into_os_string() }
}

/// What would be removed; `None` if it cannot be told.
fn removals(mirror: &CpArgs) -> Result<Option<Removed>> {
    let removals = Removals::default();
    let mut look = CpArgs { dry_run: true, max_delete: None, ..normal(mirror)? };
    look.habits.removals = Some(removals.clone());
    look.verbosity = VerbosityArgs { quiet: true, verbose: false, json: false };
    let (tell, _) = recording();
    let outcome = copy(&look, Dash::Nowhere, &tell)?;
    if outcome.failed > 0 || outcome.not_removed.is_some() {
        outcome.not_removed.iter().for_each(report::note);
        return Ok(None);
    }
    let found = removals.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Some(found))
}

/// Keeps a name for the question.
pub(super) fn collect(removals: &Removals, name: &str) {
    let mut found = removals.0.lock().unwrap_or_else(PoisonError::into_inner);
    found.count += 1;
    // With more than it takes, nobody is asked.
    found.all.add(name);
    if found.first.len() < SHOWN_MAX {
        found.first.push(name.to_owned());
    }
}

fn is_wanted(names: &[String], count: u64) -> Result<bool> {
    let mut err = std::io::stderr().lock();
    for name in names {
        writeln!(err, "  {name}")?;
    }
    let rest = count - names.len() as u64;
    if rest > 0 {
        writeln!(err, "  and {rest} more")?;
    }
    drop(err);
    report::ask(&format!("Remove {}? [y/N] ", if count == 1 { "it".to_owned() } else { format!("these {count}") }))
}

#[cfg(test)]
mod tests {
    use narrows_copy::place::Place;

    use super::*;

    /// A mirror of the root of a host in place of a home folder would remove what is there.
    #[test]
    fn a_host_alone_is_the_home_folder_and_never_the_root() {
        for word in ["me@host:", "ssh://me@host", "[::1]:", "host:"] {
            let Ok(Place::Ssh { path, .. }) = Place::parse(&contents(OsStr::new(word))) else { panic!("{word}") };
            assert_eq!(path.as_os_str(), ".", "{word}");
        }
        for (word, contents_of_it) in
            [("a", "a/"), ("host:a", "host:a/"), ("narrows://h:1", "narrows://h:1/"), ("a:b/", "a:b/")]
        {
            assert_eq!(contents(OsStr::new(word)), contents_of_it);
        }
    }
}
