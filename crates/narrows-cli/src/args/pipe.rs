//! Command-line definition of `narrows pipe`: that of files, and how a stream is cut and encoded.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::file::FileArgs;
use super::{FlowArgs, MethodList, parse_history, parse_methods};

/// Options of files that say what bytes are worth, so that nothing adapts to a link.
const FIXED: [&str; 9] = ["mode", "level", "fast", "best", "encode_rate", "decode_rate", "hint", "adapt", "run_len"];

#[derive(ClapArgs)]
#[command(after_long_help = HELP, args_override_self = true)]
pub(crate) struct PipeArgs {
    /// Print a summary to stderr
    #[arg(long)]
    pub(crate) stats: bool,
    /// Append an index, which makes a stream seekable as a file; FILE.nrw always has one
    #[arg(long)]
    pub(crate) index: bool,
    /// Methods that `balance` may choose from, such as `store,lz4:accel=16,zstd:level=1,xz`
    /// [default: eleven methods]
    #[arg(long, value_name = "LIST", value_parser = parse_methods, conflicts_with_all = FIXED)]
    methods: Option<MethodList>,
    /// Raw bytes that linked blocks may refer back to, at most 2M [default: 2M if the policy
    /// links blocks]
    #[arg(long, value_name = "SIZE", value_parser = parse_history, conflicts_with_all = FIXED)]
    history: Option<usize>,
    /// Initial cost model of `balance`, written by `narrows-lab prior` [default: built in]
    #[arg(long, value_name = "FILE", conflicts_with_all = FIXED)]
    prior: Option<PathBuf>,
    /// Write every decision and its reason to FILE, as JSON lines
    #[arg(long, value_name = "FILE", conflicts_with_all = FIXED)]
    pub(crate) trace: Option<PathBuf>,
    // Last, since the headings of its options go on.
    #[command(flatten)]
    pub(crate) file: FileArgs,
}

impl PipeArgs {
    /// Whether bytes are encoded as a flow, and not as files are. `is_beside`: the output is FILE.nrw.
    pub(crate) fn flows(&self, is_beside: bool) -> bool {
        let is_for_flows = self.methods.is_some() || self.history.is_some() || self.prior.is_some();
        let is_for_flows = is_for_flows || self.trace.is_some() || self.file.long.is_some();
        !self.file.says_what_it_is_worth() && (!is_beside || is_for_flows)
    }

    /// The options of the flow.
    pub(crate) fn flow(&self) -> FlowArgs {
        FlowArgs {
            policy: self.file.policy.clone(),
            methods: self.methods.clone(),
            threads: self.file.encoders(),
            block_max: self.file.block_max,
            history: self.history,
            prior: self.prior.clone(),
            trace: self.trace.clone(),
        }
    }
}

const HELP: &str = "\
Without FILE, or with `-`, pipe is a filter from stdin to stdout. With FILEs it works as zstd does: FILE becomes FILE.nrw, \
with -d FILE.nrw becomes FILE, and -c writes to stdout instead. FILE stays unless --rm is given. The new file has mode, times, \
group and, for root, owner of the old one. Nothing is overwritten without -f: on a terminal pipe asks, elsewhere it is an \
error. Compressed data is not written to a terminal, nor read from one, without -f.

WHAT IS WRITTEN
  FILE.nrw
      what `narrows FILE` writes: a file with an index, of which any byte is read alone, and which does not depend on how busy the \
disk was
  stdout, -o OUT
      a stream whose methods follow how fast the output drains; where that is a file, a small one
  with a level, --mode, --hint, --encode-rate or --decode-rate
      what these say, whatever the output is

LEVELS
  Narrows chooses the method of every block itself. The levels of zstd and gzip are taken, and stand for:
    --fast[=N]        --mode fast, at least 500 MB/s of each core
    -1                --hint methods=store+zstd:level=1
    -2 to -5          --mode balanced, about as zstd -3
    -6 to -9          --mode archive --encode-rate 40MB/s, about as zstd -9
    -10 and above     --mode archive, about as zstd -19; so do --best and --ultra -22
  For a method without choice: --policy fixed:zstd:level=19.

SEVERAL FILES
  Each has its turn, whatever becomes of the others; the highest status counts. Folders are refused, or with -r all regular \
files in them are taken; of these, pipe passes over those that are compressed already, and with -d, -t and -l those that are not. \
Symbolic links are refused without -f, and those in folders never followed. Named twice, a FILE is in the way the second time.

DECOMPRESSION
  -d, -t and -l know streams of Narrows, zstd, gzip, xz, bzip2 and LZ4 by their first bytes, whatever their names are; the name \
of the output is FILE without .nrw, .zst, .gz, .xz, .bz2 or .lz4, and .tar for .tgz and its like. Streams of one format that \
follow one another are decoded as one, and zeros behind the last are padding. With -df to stdout, what is in none of these \
formats is copied as it is, as zcat -f does. Runs of zeros become holes in new files. Memory is limited: 2^27 bytes (--long=LOG) \
for what streams refer back to and for windows of zstd, 1 GiB for xz.

OUTPUT
  A file has its name only when it is complete; on every failure, and after SIGINT or SIGTERM, nothing of it is left. With --rm \
it is on the disk (fsync) before FILE goes, and FILE stays if it changed meanwhile. On stdout bytes come before the rest is read: \
check the status before you use them. On a terminal a line says what became of a file, and a bar shows how far it is; --json and \
-v say more, -q nothing.

EXIT STATUS
  0  success
  1  a file could not be read or written, is there already, is a folder or a link, or changed while it was read
  2  wrong usage
  3  a stream is damaged, truncated, of a newer version, or beyond the limits
  After SIGINT or SIGTERM, or when the reader of stdout goes away (SIGPIPE), pipe ends by that signal.

EXAMPLES
  narrows pipe log.1 log.2           log.1.nrw and log.2.nrw
  narrows pipe -d --rm log.1.nrw     log.1 again
  narrows pipe -19 -T0 --rm dump.sql
  narrows pipe -l *.nrw              sizes, ratio and check of each, and their sum
  narrows pipe -dc old.gz | less
  tar c dir | narrows pipe | ssh host 'narrows pipe -d | tar x'
  tar -I narrows -cf dir.tar.nrw dir; tar -I 'narrows -19' -cf small.tar.nrw dir; tar -I narrows -xf dir.tar.nrw

What differs from zstd and gzip, and why: docs/habits.md.";
