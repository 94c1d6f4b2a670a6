//! The file with default options of `cp` and `sync`: `narrows/config.toml` in the folder for
//! configurations, or the file that `NARROWS_CONFIG` names.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use narrows_copy::place::Place;
use narrows_host::config::Defaults;

use crate::args::{Args, Command};

/// Longest file, in bytes; thousands of hosts.
const LEN_MAX: u64 = 1 << 20;

/// The words of a command line with those of the file before the user's, so that the user's count. Other
/// commands than `cp` and `sync` have no defaults.
pub(crate) fn with_defaults(words: Vec<OsString>) -> Result<Vec<OsString>> {
    let is_asked = words.get(1).is_some_and(|word| word == "cp" || word == "sync");
    let own = words.iter().take_while(|word| *word != "--");
    if !is_asked || own.into_iter().any(|word| word == "--no-config") {
        return Ok(words);
    }
    let Some((path, text)) = read()? else { return Ok(words) };
    let defaults = Defaults::parse(&text).with_context(|| format!("{}", path.display()))?;
    // A wrong command line is refused without the file.
    let Ok(args) = Args::try_parse_from(&words) else { return Ok(words) };
    let Some(paths) = paths_of(&args) else { return Ok(words) };
    let hosts = paths.iter().filter_map(|path| host(path)).collect();
    let mut options = defaults.options(&hosts);
    for option in &options {
        if option == "--" {
            bail!("{}: '--' is no option", path.display());
        }
    }
    let mut all: Vec<OsString> = words[..2].to_vec();
    all.extend(options.drain(..).map(OsString::from));
    all.extend_from_slice(&words[2..]);
    // An option without its value would take the user's first word, and a value too many is a path.
    if let Ok(merged) = Args::try_parse_from(&all)
        && paths_of(&merged) != paths_of(&args)
    {
        bail!("{}: its options have a value too many or too few", path.display());
    }
    Ok(all)
}

fn paths_of(args: &Args) -> Option<&Vec<OsString>> {
    match &args.command {
        Command::Cp(args) => Some(&args.paths),
        Command::Sync(args) => Some(&args.copy.paths),
        _ => None,
    }
}

/// The host of a place, without its user.
fn host(place: &OsStr) -> Option<String> {
    match Place::parse(place).ok()? {
        Place::Local(_) => None,
        Place::Ssh { host, .. } => {
            let host = host.to_str()?;
            Some(host.rsplit_once('@').map_or(host, |(_, host)| host).to_owned())
        }
        Place::Direct { host, .. } => Some(host),
    }
}

/// The file, if there is one. One that is named has to be there.
fn read() -> Result<Option<(PathBuf, String)>> {
    let named = std::env::var_os("NARROWS_CONFIG");
    let path = match &named {
        Some(path) if path.is_empty() => return Ok(None),
        Some(path) => PathBuf::from(path),
        None => {
            let base = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
            let Some(base) = base.or_else(home) else { return Ok(None) };
            base.join("narrows/config.toml")
        }
    };
    let file = match std::fs::File::open(&path) {
        // Another user's, where `su` or `sudo` has left HOME as it was.
        Err(e) if named.is_none() && [ErrorKind::NotFound, ErrorKind::PermissionDenied].contains(&e.kind()) => {
            return Ok(None);
        }
        file => file.with_context(|| format!("cannot read {}", path.display()))?,
    };
    // Its options may name programs, which would run as this user.
    let data = file.metadata().with_context(|| format!("cannot read {}", path.display()))?;
    let is_own = [rustix::process::geteuid().as_raw(), 0].contains(&data.uid()) && data.mode() & 0o002 == 0;
    match (is_own && data.is_file(), &named) {
        (true, _) => {}
        (false, None) if data.uid() != rustix::process::geteuid().as_raw() => return Ok(None),
        (false, _) => {
            bail!(
                "{}: it must be a file of this user or of root that not everybody may write: chmod o-w",
                path.display()
            );
        }
    }
    let mut text = String::new();
    let read = file.take(LEN_MAX + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > LEN_MAX {
        bail!("{} is longer than 1 MiB", path.display());
    }
    Ok(Some((path, text)))
}
