//! `narrows sync`: a mirror, which shows what it would remove and asks first.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Result;
use narrows_copy::hello::CONFIRMED_MAX;

use super::plan::{Plan, contents_of};
use super::removals::{Removals, Removed};
use super::stdio::Dash;
use super::{SOME_FAILED, copy, misuse, recording};
use crate::args::CpArgs;
use crate::args::sync::SyncArgs;
use crate::report;

/// Runs `narrows sync` and returns its exit status.
pub(crate) fn run(args: &SyncArgs) -> Result<ExitCode> {
    let [source, target] = &args.copy.paths[..] else {
        return misuse("sync makes one folder the same as another: narrows sync [OPTIONS] SRC DST");
    };
    if source == "-" || target == "-" {
        return misuse("sync is for folders; use cp for stdin and stdout");
    }
    let paths = vec![contents(source), target.clone()];
    let mirror = CpArgs { recursive: true, delete: true, paths, ..args.copy.clone() };
    if args.yes || mirror.dry_run {
        return super::carry_out(&Plan::new(&mirror, true)?);
    }
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return misuse("sync removes what SRC does not have: give --yes, or look first with -n");
    }
    let mut mirror = Plan::new(&mirror, true)?;
    let Some(mut found) = removals(&mirror)? else { return Ok(ExitCode::from(SOME_FAILED)) };
    if found.count > CONFIRMED_MAX as u64 {
        return misuse("more would be removed than anybody can look through: give --yes");
    }
    if found.count > 0 && !is_wanted(&found.first, found.count)? {
        report::note("nothing was done");
        return Ok(ExitCode::FAILURE);
    }
    // Nothing goes that was not found.
    if let Some(delete) = &mut mirror.delete {
        delete.confirmed = Some(found.all.confirmed());
    }
    super::carry_out(&mirror)
}

/// The source as what is in it: with a slash after it. The name of a host alone means the user's folder
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
fn removals(mirror: &Plan) -> Result<Option<Removed>> {
    let removals = Removals::default();
    let mut look = Plan { dry_run: true, told: mirror.told.only(&removals), ..mirror.clone() };
    if let Some(delete) = &mut look.delete {
        delete.max = None;
    }
    let (tell, _) = recording();
    let outcome = copy(&look, Dash::Nowhere, &tell)?;
    if outcome.failed > 0 || outcome.not_removed.is_some() {
        outcome.not_removed.iter().for_each(report::note);
        return Ok(None);
    }
    Ok(Some(removals.found()))
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
