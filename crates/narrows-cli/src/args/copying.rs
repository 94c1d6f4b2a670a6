//! Options of `cp` and `sync` that people know from rsync, scp and cp.

use std::path::PathBuf;

use clap::Args as ClapArgs;

#[derive(ClapArgs, Clone)]
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
    fn ports_are_numbers() {
        assert_eq!(parse_port("2222"), Ok(2222));
        for bad in ["0", "src", "70000"] {
            assert!(parse_port(bad).is_err(), "{bad}");
        }
    }
}
