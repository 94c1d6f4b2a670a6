//! Which files a command line means, and the names of what is made of them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use narrows_file::foreign::Format;

use crate::args::file::{FileArgs, FormatArg};
use crate::files::{folder_of, is_dash};
use crate::place::{self, Place};
use crate::report;

/// Suffixes that stand for two.
const OF_TAR: [&str; 7] = [".tgz", ".taz", ".tzst", ".txz", ".tbz2", ".tbz", ".tlz4"];
/// Suffixes beside those of the formats: what people call zstd files, and what gzip takes.
const OTHERS: [&str; 5] = [".zstd", "-gz", ".z", "-z", "_z"];

/// The files of the command line; with -r those in its folders, in the order of their names, instead of these.
pub(super) fn inputs(args: &FileArgs) -> Vec<PathBuf> {
    if args.files.is_empty() {
        return vec![PathBuf::from("-")];
    }
    if !args.recursive {
        return args.files.clone();
    }
    let mut all = Vec::new();
    for path in &args.files {
        // A link to a folder is refused as others are.
        if path.symlink_metadata().is_ok_and(|data| data.is_dir() || args.force && path.is_dir()) {
            below(args, path, &mut all);
        } else {
            all.push(path.clone());
        }
    }
    all
}

/// Adds the files below `folder`. One that cannot be read is added itself, for [`refuse_special`] to say why.
fn below(args: &FileArgs, folder: &Path, all: &mut Vec<PathBuf>) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let Ok(mut entries) = entries else {
            all.push(folder);
            continue;
        };
        entries.sort_by_key(fs::DirEntry::file_name);
        // The last one that is put there comes first.
        let before = folders.len();
        for entry in entries {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if kind.is_file() && is_meant(args, &path) => all.push(path),
                _ => {}
            }
        }
        folders[before..].reverse();
    }
}

/// Whether a file in a folder is one of those that the command is about.
fn is_meant(args: &FileArgs, path: &Path) -> bool {
    if args.decompress || args.test || args.list {
        raw_name(path).is_some()
    } else {
        !path.file_name().is_some_and(|name| has_suffix(name.as_bytes(), suffix(args)))
    }
}

/// The error of a command line with several files and one output.
pub(super) fn check(args: &FileArgs, inputs: &[PathBuf]) -> Result<()> {
    if args.output.is_some() && inputs.len() > 1 {
        return Err(narrows::Error::misuse("-o takes one input file; leave it out, or use -c").into());
    }
    if !args.force {
        // The second one finds the output of the first one there.
        return Ok(());
    }
    let mut made = HashMap::new();
    for input in inputs {
        let Some(output) = output(args, input).ok().flatten() else { continue };
        let name = output.display().to_string();
        // One folder may have several paths.
        let folder = folder_of(&output).canonicalize();
        let place = folder.ok().zip(output.file_name()).map_or(output.clone(), |(folder, name)| folder.join(name));
        if let Some(other) = made.insert(place, input).filter(|other| *other != input) {
            let (other, input) = (other.display(), input.display());
            let text = format!("{other} and {input} would both become {name}; do them one by one");
            return Err(narrows::Error::misuse(text).into());
        }
    }
    Ok(())
}

/// Fails for an input that is not there, or of which no file is made. Of objects nothing is asked here.
pub(super) fn look(args: &FileArgs, input: &Path) -> Result<()> {
    if is_dash(input) || Place::is_object(input.as_os_str()) {
        return Ok(());
    }
    refuse_special(args, &place::path_of(input)?)
}

/// Fails for an input of which no file is made without -f, -c or -o.
pub(super) fn refuse_special(args: &FileArgs, input: &Path) -> Result<()> {
    let writes = args.output.is_none() && !args.stdout && !args.test;
    let data = input.symlink_metadata().map_err(|e| no_file(input, &e))?;
    let is_link = data.is_symlink();
    let data = if is_link { input.metadata().map_err(|e| no_file(input, &e))? } else { data };
    let what = match data.file_type() {
        kind if kind.is_dir() && args.recursive && (!is_link || args.force) => {
            let why = fs::read_dir(input).map_or_else(|e| report::one_line(&e.into()), |_| "it is a folder".to_owned());
            return Err(anyhow!("cannot read {}: {why}", input.display()));
        }
        kind if kind.is_dir() => "a folder; use -r for the files in it, `narrows pack`, or tar -I narrows",
        _ if !writes || args.force && is_link && data.is_file() => return Ok(()),
        _ if is_link => "a symbolic link; use -f to follow it",
        kind if kind.is_file() => return Ok(()),
        _ => "not a regular file; use -c or -o",
    };
    Err(anyhow!("{} is {what}", input.display()))
}

/// The error of an input that cannot be looked at.
fn no_file(input: &Path, error: &io::Error) -> anyhow::Error {
    let why = io::Error::from(error.kind());
    let why = error.raw_os_error().map_or(why, io::Error::from_raw_os_error);
    anyhow::Error::from(why).context(format!("cannot read {}", input.display()))
}

/// The name of the output: `None` for stdout.
pub(super) fn output(args: &FileArgs, input: &Path) -> Result<Option<PathBuf>> {
    if let Some(output) = &args.output {
        return Ok(Some(place::path_of(output)?));
    }
    if args.stdout || is_dash(input) || args.test {
        return Ok(None);
    }
    let output = if args.decompress {
        raw_name(input).ok_or_else(|| {
            anyhow!("{} has no suffix of a compressed file, such as .nrw; use -o or -c", input.display())
        })?
    } else {
        let suffix = suffix(args);
        if input.as_os_str().as_encoded_bytes().ends_with(suffix.as_bytes()) && !args.force {
            return Err(anyhow!("{} is compressed already; use -f, -o or -c to do it again", input.display()));
        }
        let mut output = input.as_os_str().to_owned();
        output.push(suffix);
        output.into()
    };
    Ok(Some(match (&args.output_dir_flat, output.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => output,
    }))
}

fn suffix(args: &FileArgs) -> &'static str {
    match args.format {
        FormatArg::Narrows => Format::Narrows.suffix(),
        FormatArg::Zstd => Format::Zstd.suffix(),
    }
}

/// The name without the suffix of a compressed file, in upper or lower case as for gzip; `None` if it has none, or
/// nothing else.
fn raw_name(input: &Path) -> Option<PathBuf> {
    let name = input.file_name()?.as_bytes();
    if OF_TAR.into_iter().any(|suffix| has_suffix(name, suffix)) {
        return Some(input.with_extension("tar"));
    }
    let suffixes = Format::ALL.iter().map(|format| format.suffix()).chain(OTHERS);
    let suffix = suffixes.into_iter().find(|suffix| has_suffix(name, suffix))?;
    Some(input.with_file_name(OsStr::from_bytes(&name[..name.len() - suffix.len()])))
}

/// Whether a name is more than this suffix, and ends in it.
fn has_suffix(name: &[u8], suffix: &str) -> bool {
    let begin = name.len().checked_sub(suffix.len()).filter(|begin| *begin > 0);
    begin.is_some_and(|begin| name[begin..].eq_ignore_ascii_case(suffix.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_the_suffixes_of_compressed_files_and_no_others() {
        let of = |name: &str| raw_name(Path::new(name)).map(|path| path.display().to_string());
        for (name, raw) in [
            ("a.nrw", "a"),
            ("d.x/a.b.zst", "d.x/a.b"),
            ("dir.tgz", "dir.tar"),
            ("a.tar.gz", "a.tar"),
            (".a.xz", ".a"),
            (" .lz4", " "),
            ("a.zstd", "a"),
            ("A.GZ", "A"),
            ("d/DIR.TGZ", "d/DIR.tar"),
            ("a-gz", "a"),
            ("a.b.z", "a.b"),
            ("a.Z", "a"),
            ("a.NRW", "a"),
        ] {
            assert_eq!(of(name).as_deref(), Some(raw));
        }
        for none in ["a", ".nrw", "d/.tgz", "a.nrw.old", "nrw", "a.tar", "-gz", ".z", "d/.GZ", "az"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
