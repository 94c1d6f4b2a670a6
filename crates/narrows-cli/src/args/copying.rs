//! Options of `cp` and `sync` that people know from rsync, scp and cp.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use clap::Args as ClapArgs;
use narrows_copy::hello::{Backup, Confirmed, LINK_DEST_MAX, NameSet, PartialDir, SourceHabits, StoreHabits};
use narrows_copy::scan::Picks;

/// Longest list of --files-from, in bytes: what fits into one request with its escapes.
const LIST_MAX: u64 = 4 << 20;
/// What --backup adds to names unless --suffix or --backup-dir says otherwise, as in rsync and cp.
const SUFFIX: &str = "~";

#[derive(ClapArgs, Clone, Default)]
#[command(next_help_heading = "Habits of rsync, scp and cp")]
pub(crate) struct HabitArgs {
    // More than 20 fields, each of them an argument of the command line.
    /// As -r; modes, times, links and all other attributes are preserved without it
    #[arg(short = 'a', long)]
    pub(crate) archive: bool,
    /// Compare the contents of files of the same length, not their times
    #[arg(short = 'c', long)]
    pub(crate) checksum: bool,
    /// Leave alone files that are newer at the target
    #[arg(short = 'u', long)]
    pub(crate) update: bool,
    /// Copy what symbolic links lead to instead of the links
    #[arg(short = 'L', long)]
    pub(crate) copy_links: bool,
    /// Leave out other file systems that are mounted in the sources
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,
    /// Port of ssh, or of a narrows:// server
    #[arg(short = 'P', value_name = "PORT", value_parser = parse_port)]
    pub(crate) port: Option<u16>,
    /// Copy only the paths below SRC that FILE lists, one a line; - is stdin
    #[arg(long, value_name = "FILE")]
    pub(crate) files_from: Option<PathBuf>,
    /// In the list of --files-from, a zero byte ends each path
    #[arg(short = '0', long, requires = "files_from")]
    pub(crate) from0: bool,
    /// Create missing folders above DST
    #[arg(long)]
    pub(crate) mkpath: bool,
    /// Keep what is replaced or removed under its name with ~
    #[arg(short = 'b', long)]
    pub(crate) backup: bool,
    /// With --backup: what is added to the name [default: ~, with --backup-dir nothing]
    #[arg(long, value_name = "SUFFIX")]
    pub(crate) suffix: Option<String>,
    /// As --backup, but keep it in DIR, a folder below the target
    #[arg(long, value_name = "DIR")]
    pub(crate) backup_dir: Option<PathBuf>,
    /// Keep files that are not whole in DIR: a folder beside each file, made when needed, or an absolute path
    #[arg(long, value_name = "DIR")]
    pub(crate) partial_dir: Option<PathBuf>,
    /// Make files that are the same in DIR hard links to those; relative to the target; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) link_dest: Vec<PathBuf>,
    /// Remove source files, but no folders, when everything is stored
    #[arg(long)]
    pub(crate) remove_source_files: bool,
    /// Print a line for each change, in the form of rsync
    #[arg(short = 'i', long)]
    pub(crate) itemize_changes: bool,
    /// Send at most RATE: a number of KiB per second, or with K, M or G; auto yields to other traffic (narrows://
    /// only) [0: as fast as possible]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) bwlimit: Option<Rate>,
    /// Ignore the file with default options
    #[arg(long)]
    pub(crate) no_config: bool,
    /// Accepted: compression, preserving attributes, resuming and a bar on a terminal are always on
    #[arg(short = 'z', short_aliases = ['p', 't', 'l', 'H', 'A', 'X', 'S', 'o', 'g'], long = "compress",
          aliases = ["perms", "times", "links", "hard-links", "acls", "xattrs", "sparse", "partial", "progress",
                     "human-readable", "group", "numeric-ids"])]
    pub(crate) always: bool,
    /// Names of entries that would be removed, if they are asked about first.
    #[arg(skip)]
    pub(crate) removals: Option<Removals>,
    /// The names that were shown, and that may be removed.
    #[arg(skip)]
    pub(crate) confirmed: Option<Confirmed>,
}

/// The entries that would be removed.
#[derive(Clone, Default)]
pub(crate) struct Removals(pub(crate) Arc<Mutex<Removed>>);

/// The first names of entries that would be removed, how many there are, and all names as a set.
#[derive(Clone, Default)]
pub(crate) struct Removed {
    pub(crate) first: Vec<String>,
    pub(crate) count: u64,
    pub(crate) all: NameSet,
}

impl HabitArgs {
    /// The options that this copy was given and that only narrows at both ends can follow.
    pub(crate) fn asked(&self) -> Option<&'static str> {
        let options = [
            (self.checksum, "--checksum"),
            (self.update, "--update"),
            (self.copy_links, "--copy-links"),
            (self.one_file_system, "--one-file-system"),
            (self.files_from.is_some(), "--files-from"),
            (self.mkpath, "--mkpath"),
            (self.backup || self.backup_dir.is_some(), "--backup"),
            (self.partial_dir.is_some(), "--partial-dir"),
            (!self.link_dest.is_empty(), "--link-dest"),
            (self.remove_source_files, "--remove-source-files"),
            (self.itemize_changes, "--itemize-changes"),
            (self.rate() > 0 || self.yields(), "--bwlimit"),
        ];
        options.into_iter().find(|(asked, _)| *asked).map(|(_, name)| name)
    }

    /// Most bytes per second; 0 is no limit.
    pub(crate) fn rate(&self) -> u64 {
        if let Some(Rate::Most(rate)) = self.bwlimit { rate } else { 0 }
    }

    /// Whether the copy yields to all other traffic.
    pub(crate) fn yields(&self) -> bool {
        self.bwlimit == Some(Rate::Auto)
    }

    /// Checks what clap cannot.
    pub(crate) fn check(&self) -> Result<()> {
        let misuse = |text: String| Err(narrows::Error::misuse(text).into());
        if self.copy_links && self.remove_source_files {
            return misuse(
                "--remove-source-files removes no links, and what they lead to may be elsewhere: leave out -L".into(),
            );
        }
        if self.link_dest.len() > LINK_DEST_MAX {
            return misuse(format!("--link-dest may be given at most {LINK_DEST_MAX} times"));
        }
        if self.suffix.is_some() && !self.backup && self.backup_dir.is_none() {
            return misuse("--suffix is what --backup adds to names: give that too".into());
        }
        self.partials().map(drop).or_else(misuse)?;
        self.kept().map_or(Ok(()), |backup| backup.check().or_else(misuse))
    }

    /// Where files live until they are whole.
    fn partials(&self) -> Result<Option<PartialDir>, String> {
        self.partial_dir.as_deref().map_or(Ok(None), PartialDir::new)
    }

    /// The pattern of folders with such files, which are not copied.
    pub(crate) fn pattern_of_partials(&self) -> Option<String> {
        self.partials().ok().flatten()?.pattern()
    }

    fn kept(&self) -> Option<Backup> {
        let suffix = self.suffix.clone().or_else(|| self.backup_dir.is_none().then(|| SUFFIX.to_owned()));
        (self.backup || self.backup_dir.is_some())
            .then(|| Backup { suffix: suffix.unwrap_or_default(), dir: self.backup_dir.clone() })
    }

    /// What the storing end does.
    pub(crate) fn store(&self, itemize: bool) -> StoreHabits {
        StoreHabits {
            update: self.update,
            checksum: self.checksum,
            make_parents: self.mkpath,
            backup: self.kept(),
            link_dest: self.link_dest.clone(),
            itemize,
            one_file_system: self.one_file_system,
            partial_dir: self.partials().ok().flatten(),
        }
    }

    /// What the sending end on another host does. `files`: those of the list.
    pub(crate) fn source(&self, files: Option<Vec<PathBuf>>) -> SourceHabits {
        SourceHabits {
            follow: self.copy_links,
            one_file_system: self.one_file_system,
            checksum: self.checksum,
            remove_sources: self.remove_source_files,
            files,
            rate: self.rate(),
            yields: self.yields(),
        }
    }

    /// What the scan on this host picks, apart from a list.
    pub(crate) fn picks(&self) -> Picks {
        let (follow, one_file_system, checksum) = (self.copy_links, self.one_file_system, self.checksum);
        Picks { follow, one_file_system, checksum, sockets: true, ..Picks::default() }
    }

    /// The paths of --files-from, without comments and empty lines.
    pub(crate) fn files(&self) -> Result<Option<Vec<PathBuf>>> {
        let Some(list) = &self.files_from else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = match list.as_os_str() == "-" {
            true => std::io::stdin().take(LIST_MAX + 1).read_to_end(&mut bytes),
            false => std::fs::File::open(list).and_then(|file| file.take(LIST_MAX + 1).read_to_end(&mut bytes)),
        };
        read.with_context(|| format!("cannot read the list {}", list.display()))?;
        if bytes.len() as u64 > LIST_MAX {
            let text = format!("the list {} is longer than 4 MiB; copy it in parts", list.display());
            return Err(narrows::Error::misuse(text).into());
        }
        Ok(Some(lines(&bytes, self.from0)))
    }
}

/// The paths of a list; as for rsync, # and ; begin comments where lines are read.
fn lines(bytes: &[u8], from0: bool) -> Vec<PathBuf> {
    let end = |b: &u8| if from0 { *b == 0 } else { matches!(*b, b'\n' | b'\r') };
    let words = bytes.split(end).filter(|line| !line.is_empty() && (from0 || !matches!(line[0], b'#' | b';')));
    words.map(|line| PathBuf::from(OsString::from_vec(line.to_vec()))).collect()
}

/// The folder whose listed paths are copied, as its contents.
pub(crate) fn contents_of(source: &Path) -> PathBuf {
    source.join("")
}

fn parse_port(text: &str) -> Result<u16, String> {
    let port = text.parse::<u16>().ok().filter(|port| *port != 0);
    port.ok_or_else(|| format!("'{text}' is no port"))
}

/// The value of --bwlimit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rate {
    /// Bytes per second; 0 is no limit.
    Most(u64),
    /// Whatever others leave of the link.
    Auto,
}

/// Parses a rate as rsync does: KiB per second, or bytes with a suffix (K, M, G: powers of 1024; KB, MB,
/// GB: powers of 1000); or `auto`.
fn parse_rate(text: &str) -> Result<Rate, String> {
    if text == "auto" {
        return Ok(Rate::Auto);
    }
    let bad = || format!("'{text}' is not a rate such as 500 (KiB per second), 500K, 1.5M or auto");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let factor = match unit.strip_suffix("ib").unwrap_or(&unit) {
        "" | "k" => 1024.0,
        "b" => 1.0,
        "m" => 1024.0 * 1024.0,
        "g" => 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        _ => return Err(bad()),
    };
    let rate: f64 = number.parse().map_err(|_| bad())?;
    // Rounded up, since 0 would be no limit.
    if (0.0..1e15).contains(&rate) { Ok(Rate::Most((rate * factor).ceil() as u64)) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_rsync() {
        for (text, rate) in [
            ("0", 0),
            ("500", 512_000),
            ("1.5M", 1_572_864),
            ("2mb", 2_000_000),
            ("10b", 10),
            ("3KiB", 3072),
            ("0.1b", 1),
        ] {
            assert_eq!(parse_rate(text), Ok(Rate::Most(rate)), "{text}");
        }
        assert_eq!(parse_rate("auto"), Ok(Rate::Auto));
        for bad in ["", "M", "1X", "-1", "automatic", "1e3", "9999999999999999999"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_have_comments_only_where_lines_are_read() {
        let paths = |text: &str, from0| lines(text.as_bytes(), from0);
        assert_eq!(paths("a\n# no\n\n; no\r\nb c\n", false), [Path::new("a"), Path::new("b c")]);
        assert_eq!(paths("a\n\0#yes\0\0", true), [Path::new("a\n"), Path::new("#yes")]);
    }

    #[test]
    fn ports_are_numbers() {
        assert_eq!(parse_port("2222"), Ok(2222));
        for bad in ["0", "src", "70000"] {
            assert!(parse_port(bad).is_err(), "{bad}");
        }
    }
}
