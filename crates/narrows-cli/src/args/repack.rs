//! Command-line definition of `narrows repack`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::hint::HintArgs;
use super::store::StoreArgs;
use super::{VerbosityArgs, long_range};

#[derive(ClapArgs)]
#[command(after_long_help = HELP)]
pub(crate) struct RepackArgs {
    /// Files, and folders whose .nrw files are taken; s3://BUCKET/KEY, gs://, az://: objects, and those below a key
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) hint: HintArgs,
    /// Begin no other file after this time, such as 2h, 90m or 1h30m
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) budget: Option<Duration>,
    /// Use only what other programs leave of processors and disks, and wait while they need the processors
    #[arg(long)]
    pub(crate) idle: bool,
    /// Print the files that would be encoded anew, and change nothing
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
    /// Worker threads [0 and default: the cores that this process may use]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) threads: Option<u16>,
    /// The most that a file may refer back, 2^LOG bytes, which are kept in memory [default: 27]
    #[arg(long, value_name = "LOG", require_equals = true, value_parser = long_range())]
    pub(crate) long: Option<u8>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
}

const HELP: &str = "\
Each file is encoded anew with the methods of a mode, `archive` unless --mode or a hint says otherwise. The new file is \
decoded and compared with the sums of the old one; then it takes its place at once, with the same mode, owner, times and \
attributes. Whatever stops the run, each file is the old one or the new one, and whole. A file keeps its raw bytes and their \
offsets; several streams behind one another become one. Of a pack, the entries and the directory stay a stream each.

The effort is recorded in the file: of a file that has it, only the last 56 bytes are read. If a file does not get smaller, it \
stays as it is, and the record is its attribute user.narrows.repack, or, where the file system has no attributes, a copy of \
the file with the record in it.

An object is encoded into a temporary file of this host, and replaced on the condition that it is still the one that was \
read; its user metadata stays. Below a key these are objects of narrows whose keys end in .nrw. Their hint is that of the \
command line.

LEFT AS THEY ARE
  in folders: whatever is not named .nrw, and links
  files of other formats; files with several names; files without checks; files that a newer version wrote
  files whose hint says `never` or names its methods
  damaged files, and files that change meanwhile; each is named, and counts in the exit status

A run that was stopped goes on where it was: what is done is not done again. A file that was not finished begins anew.

EXIT STATUS
  0  success, also if the budget was used up
  1  a file could not be read or written, or changed meanwhile
  2  wrong usage
  3  a file is damaged
The highest status counts.

EXAMPLES
  narrows repack --idle --budget 6h /srv/logs
  narrows repack --dry-run /srv
  narrows repack s3://bucket/backups/
  narrows repack --json backup.nrw | jq .new_bytes";

/// Parses hours, minutes and seconds; a number alone are seconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let bad = || format!("'{text}' is not a time such as 2h, 90m or 1h30m");
    let (mut rest, mut seconds) = (text, 0u64);
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let unit = match after.chars().next() {
            None | Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86_400,
            _ => return Err(bad()),
        };
        if unit >= last {
            return Err(bad());
        }
        last = unit;
        let part = number.parse().ok().and_then(|n: u64| n.checked_mul(unit)).ok_or_else(bad)?;
        seconds = seconds.checked_add(part).ok_or_else(bad)?;
        rest = after.get(1..).unwrap_or_default();
    }
    // A century; longer times would overflow clocks.
    if text.is_empty() || seconds > 100 * 365 * 86_400 {
        return Err(bad());
    }
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45", 45), ("1d2s", 86_402), ("0s", 0)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "h", "2x", "-1h", "1m1h", "1h1h", "99999999999999999999s", "999999999999h", "2h ", "1.5h"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
