//! `narrows sync`.

use clap::Args as ClapArgs;

use super::CpArgs;

/// A mirror is a copy, with what it removes.
#[derive(ClapArgs)]
#[command(after_help = HELP, after_long_help = HELP, override_usage = "narrows sync [OPTIONS] SRC DST")]
pub(crate) struct SyncArgs {
    /// Remove without asking
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) copy: CpArgs,
}

const HELP: &str = "\
DST becomes the same as SRC: `narrows sync SRC DST` is `narrows cp -r --delete SRC/ DST`, with the options of cp. What SRC \
does not have is removed from DST. On a terminal it is listed first, and removed only after a yes; elsewhere --yes is needed. \
-n lists what would be copied and removed, and changes nothing.

EXAMPLES
  narrows sync photos me@host:photos
  narrows sync -n --exclude '*.tmp' project /mnt/backup/project
  narrows sync --yes -b --backup-dir .old project host:project";
