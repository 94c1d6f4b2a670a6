//! Command-line definitions of the commands for files: `narrows FILE...`, `cat`, `list`, `check`.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};
use narrows::hint::{Hint, Mode};
use narrows::policy::PolicySpec;

use super::hint::HintArgs;
use super::levels::LevelArgs;
use super::store::StoreArgs;
use super::{LONG, VerbosityArgs, long_range, parse_block_max, parse_policy, parse_size};

/// Takes an empty name too, so that it fails as a file that is not there, and the others have their turn.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

#[derive(ClapArgs)]
pub(crate) struct FileArgs {
    // More than 20 fields, each of them an argument of the command line.
    /// Files or s3://, gs://, az:// objects to compress or decompress; `-` or none: stdin
    #[arg(value_name = "FILE", value_parser = any_path())]
    pub(crate) files: Vec<PathBuf>,
    /// Decompress
    #[arg(short = 'd', long, visible_alias = "uncompress", overrides_with = "compress")]
    pub(crate) decompress: bool,
    /// Compress (this is the default)
    #[arg(short = 'z', long, overrides_with = "decompress", conflicts_with_all = ["test", "list"])]
    pub(crate) compress: bool,
    /// Verify compressed files and write nothing
    #[arg(short = 't', long, conflicts_with_all = ["output", "list"])]
    pub(crate) test: bool,
    /// Show what is in compressed files, and their sum
    #[arg(short = 'l', long, conflicts_with_all = ["output", "stdout"])]
    pub(crate) list: bool,
    /// Write to stdout
    #[arg(short = 'c', long, visible_alias = "to-stdout", conflicts_with = "output")]
    pub(crate) stdout: bool,
    /// Output file, for one input
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write the new files into the folder DIR, which is there, under the last parts of their names
    #[arg(long, value_name = "DIR", conflicts_with_all = ["output", "stdout", "test", "list"])]
    pub(crate) output_dir_flat: Option<PathBuf>,
    /// Take the files in folders, at any depth; links in them are passed over
    #[arg(short = 'r', long)]
    pub(crate) recursive: bool,
    /// Overwrite files, follow links, write compressed data to a terminal; with -dc: copy what is not compressed
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Keep the input files (this is the default)
    #[arg(short = 'k', long, overrides_with = "rm")]
    pub(crate) keep: bool,
    /// Remove each input file when a file made of it is complete, unless it changed meanwhile
    #[arg(long, overrides_with = "keep")]
    pub(crate) rm: bool,
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    hint: HintArgs,
    /// As small as the output takes it without becoming slower: a file's disk is the link, as a pipe always is
    #[arg(long, conflicts_with_all = ["mode", "level", "fast", "best", "encode_rate", "decode_rate", "images", "policy", "format"])]
    pub(crate) adapt: bool,
    /// Format to write: `narrows`, or `zstd` for standard zstd frames with a seek table
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "narrows")]
    pub(crate) format: FormatArg,
    /// Rule that chooses the method of each block, instead of the mode's; `narrows --help` lists all
    #[arg(long, value_name = "SPEC", value_parser = parse_policy, conflicts_with_all = ["mode", "encode_rate", "decode_rate", "images", "hint"])]
    pub(crate) policy: Option<PolicySpec>,
    /// Maximum block length, such as 64K or 2M [default: that of the mode or policy]
    #[arg(long, value_name = "SIZE", value_parser = parse_block_max)]
    pub(crate) block_max: Option<usize>,
    /// Raw bytes that are decoded at most for a byte, where blocks refer to earlier ones [default: 4M, 16M for archives]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) run_len: Option<usize>,
    /// Worker threads [0 and default: the cores that this process may use; to encode with four or more, one fewer]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) threads: Option<u16>,
    /// With -d and -t: the most that a stream may refer back, 2^LOG bytes, which are kept in memory
    /// unless the output is a file [default: 27, to a file 30]; and the window of zstd frames [default: 27].
    /// `narrows pipe` also compresses so: what came before, up to 2^LOG bytes back, becomes copies
    /// [without =LOG: 27]; both ends keep so much in memory, except of a FILE
    #[arg(long, value_name = "LOG", num_args = 0..=1, require_equals = true, default_missing_value = LONG, value_parser = long_range())]
    pub(crate) long: Option<u8>,
    /// Omit the checks of blocks
    #[arg(long)]
    pub(crate) no_check: bool,
    /// With -d: write runs of zeros to files too, instead of leaving holes
    #[arg(long, overrides_with = "sparse")]
    pub(crate) no_sparse: bool,
    /// The default
    #[arg(long, hide = true, overrides_with = "no_sparse")]
    sparse: bool,
    /// Show no progress bar; there is one on a terminal only
    #[arg(long)]
    pub(crate) no_progress: bool,
    #[command(flatten)]
    silent: SilentArgs,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

/// Options of `zstd` and `gzip` that ask for what is always so.
#[derive(ClapArgs)]
struct SilentArgs {
    /// Blocks have checks
    #[arg(short = 'C', long, hide = true, overrides_with = "no_check")]
    check: bool,
    /// No name and time are stored in the file
    #[arg(short = 'n', long, hide = true)]
    no_name: bool,
    /// The bar of a terminal
    #[arg(long, hide = true, overrides_with = "no_progress")]
    progress: bool,
    /// As -T 1
    #[arg(long, hide = true, conflicts_with = "threads")]
    single_thread: bool,
}

impl FileArgs {
    /// What the command line says about the bytes: its options before its text.
    pub(crate) fn asked(&self) -> Hint {
        self.hint.hint().or(self.level.hint())
    }

    /// What is to be said about the level of the command line.
    pub(crate) fn warning(&self) -> Option<String> {
        self.level.warning().filter(|_| !self.verbosity.quiet)
    }

    /// The mode of files in the format of zstd, of which `hint` is what is known.
    pub(crate) fn mode_of_zstd(&self, hint: &Hint) -> Mode {
        self.level.mode_of_zstd().or(hint.mode).unwrap_or_default()
    }

    /// Whether the command line says what bytes are worth, so that nothing depends on the output.
    pub(crate) fn says_what_it_is_worth(&self) -> bool {
        self.asked() != Hint::default() || self.adapt || self.format != FormatArg::Narrows || self.run_len.is_some()
    }

    /// Threads that encode, as asked for.
    pub(crate) fn encoders(&self) -> Option<u16> {
        if self.silent.single_thread { Some(1) } else { self.threads.filter(|n| *n > 0) }
    }
}

pub(crate) const HELP: &str = "\
FILE becomes FILE.nrw, and with -d the reverse; mode and times are kept, and so is FILE. Nothing is overwritten without -f. \
-d also takes .zst, .gz, .xz, .bz2 and .lz4. It is `narrows pipe`, whose --help has the rest, but that as a filter \
it writes files with an index. A file whose name is that of a command needs its folder: `narrows ./cat`.

MODES
  fast      at least 500 MB/s of each core
  balanced  the default: about as `zstd -3`, in blocks from which a byte is read in some 300 us
  archive   small, whatever time it takes
With --adapt the disk says what is worth its time instead: a slow one gets fewer bytes, a fast one is kept busy.

LEVELS
  --fast[=N] stands for the mode fast, -1 for methods=store+zstd:level=1, -2 to -5 for balanced, -6 to -9 for archive with --encode-rate 40MB/s, -10 to -22 \
and --best for archive. A higher one is taken for -22, with a warning, as by zstd.

EXAMPLES
  narrows log                      log.nrw, which is read at any byte
  narrows -d log.nrw               log
  narrows --mode archive -o old.nrw log
  tar -cf dir.tar.nrw -I narrows dir; tar -xf dir.tar.nrw -I narrows
  narrows --format zstd log        log.zst, which `zstd -d` reads
  narrows log -o s3://bucket/log.nrw; narrows -d s3://bucket/log.nrw -o log

EXIT STATUS
  0  success
  1  a file is not there, could not be read or written, is there already, or changed while it was read
  2  wrong usage
  3  a file is damaged, truncated, of a newer version, or beyond the limits
Bytes on stdout come before the rest is read: check the status before you use them. Of Narrows' files every block is compared \
with its check first; of zstd frames and other formats only the end of a frame or file tells.
Of several files each has its turn, and the highest status counts; so it does for cat, list and check.";

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub(crate) enum ModeArg {
    /// At least 500 MB/s of each core
    Fast,
    /// About as `zstd -3`
    Balanced,
    /// Small, whatever time it takes
    Archive,
}

impl ModeArg {
    pub(crate) fn mode(self) -> Mode {
        match self {
            Self::Fast => Mode::Fast,
            Self::Balanced => Mode::Balanced,
            Self::Archive => Mode::Archive,
        }
    }
}

#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub(crate) enum FormatArg {
    /// Streams of narrows, with an index
    Narrows,
    /// zstd frames with a seek table
    Zstd,
}

#[derive(ClapArgs)]
pub(crate) struct CatArgs {
    /// Compressed files or s3://, gs://, az:// objects, of narrows or zstd, gzip, xz, bzip2, lz4; `-` or none: stdin
    #[arg(value_name = "FILE", value_parser = any_path())]
    pub(crate) files: Vec<PathBuf>,
    /// Raw bytes to write, as `curl -r`: A-B from byte A to byte B, both included; A- to the end; -N the last N (of
    /// other formats up to 64M). One that ends behind the file is cut off; one that begins there is an error, as with
    /// HTTP. A file with an index is read there only, others from their beginning to the check behind the range: the
    /// end of the zstd or LZ4 frame, the gzip or bzip2 member, the xz file
    #[arg(long, value_name = "A-B", value_parser = parse_range, allow_hyphen_values = true)]
    pub(crate) range: Option<Range>,
    /// Go on behind damaged blocks, and say what is missing; the status is 3
    #[arg(long)]
    pub(crate) skip_damaged: bool,
    /// Decoding threads [0 and default: the cores that this process may use]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) threads: Option<u16>,
    /// The most that a stream may refer back, or a zstd frame, 2^LOG bytes, which are kept in memory [default: 27]
    #[arg(long, value_name = "LOG", require_equals = true, value_parser = long_range())]
    pub(crate) long: Option<u8>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(ClapArgs)]
pub(crate) struct ListArgs {
    /// Compressed files or s3://, gs://, az:// objects; no pipes. If the first is a pack, its members are listed, and what follows are
    /// paths in it, in which * ? [...] stand for any characters
    #[arg(value_name = "FILE", value_parser = any_path())]
    pub(crate) files: Vec<PathBuf>,
    /// Show a line for each file, also of packs
    #[arg(short = 's', long)]
    pub(crate) summary: bool,
    /// Show modes, owners, lengths and times (UTC) of members, as `tar tv`
    #[arg(short = 'l', long, conflicts_with = "summary")]
    pub(crate) long: bool,
    /// Print JSON, one line for each file or member
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(ClapArgs)]
#[command(after_long_help = CHECK_HELP)]
pub(crate) struct CheckArgs {
    /// Files or s3://, gs://, az:// objects of narrows; HDF5 and NetCDF-4 files, Zarr stores; others are decoded
    #[arg(value_name = "FILE", value_parser = any_path(), required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Compare the variables with those of ORIGINAL: a file of any of these kinds, .npy or raw elements
    #[arg(long, value_name = "ORIGINAL", conflicts_with_all = ["repair_index", "sums"])]
    pub(crate) against: Option<PathBuf>,
    /// Only this variable, by its path in the file; may be repeated
    #[arg(long, value_name = "PATH", conflicts_with_all = ["repair_index", "sums"])]
    pub(crate) variable: Vec<String>,
    /// Write a page with pictures of the variables, and with --against of their errors and spectra
    #[arg(long, value_name = "FILE", conflicts_with_all = ["repair_index", "sums"])]
    pub(crate) html: Option<PathBuf>,
    /// Write a file anew whose index or end is damaged or missing, with all blocks that are there; where
    /// that is not everything, the status is 3
    #[arg(long)]
    pub(crate) repair_index: bool,
    /// Also compare the hashes of the raw bytes beside the index; of packs, every member with its digest
    #[arg(long)]
    pub(crate) sums: bool,
    /// Decoding threads [0 and default: the cores that this process may use]
    #[arg(long, short = 'T', value_name = "N", value_parser = clap::value_parser!(u16).range(0..=256))]
    pub(crate) threads: Option<u16>,
    /// The most that a stream may refer back, or a zstd frame, 2^LOG bytes, which are kept in memory [default: 27]
    #[arg(long, value_name = "LOG", require_equals = true, value_parser = long_range())]
    pub(crate) long: Option<u8>,
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

const CHECK_HELP: &str = "\
Every block is decoded and compared with its check. So is every chunk of Narrows in an HDF5 or NetCDF-4 file (.h5, .nc), a \
Zarr store (a folder or a .zip file, version 2 or 3), and a file of `narrows array encode`; no library or filter of theirs \
is needed. For each variable:

  chunk, chunks  shape of the chunks; how many are stored
  filters        what is applied to them, in this order
  ratio          raw bytes for each byte stored
  bound          what Narrows was told to keep: abs, rel (a share of the value), floor; `exact` if nothing was allowed to change
  worst          the largest error that was written, by the chunks' own word; with --against, see below it
  exceptions     values stored exactly because they would have missed the bound
  below that     pipelines by their share of the chunks

With --against, every number is compared with its original: the worst absolute and relative error, RMSE, PSNR (of the range of \
the original without fill values), and whether each chunk keeps the bound that it states. Variables are matched by their path; \
a file with one variable is compared with any of that shape. Original and copy may differ in format, chunks and type. The \
original may be chunked with deflate, shuffle, fletcher32, zstd, LZ4 or Blosc.

Of a pack the directory is compared with the entries and with where their contents are, and files with bytes in damaged blocks \
are named. The contents themselves are only compared with their digests with --sums.

EXIT STATUS
  0  all blocks and chunks are whole, and with --against all is compared and all bounds hold
  1  a file could not be read or written, or is classic NetCDF; or something could not be looked at (text of any length and records with \
--against, variables that only one of the files has, links to folders, pipes): nothing is known to be damaged
  2  wrong usage
  3  a block or chunk is damaged, a bound is broken, or the end of a stream is missing, also if --repair-index wrote the rest anew
Of several files each has its turn, and the highest status counts.

EXAMPLES
  narrows check tas.nc
  narrows check --against original.nc --html tas.html tas.nc
  narrows check --variable model/t --against t.npy store.zarr
  narrows check --json store.zarr | jq '.variables[] | {path, ratio, worst_abs}'";

/// A range of raw bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Range {
    /// From the first to before the second, or to the end.
    From(u64, Option<u64>),
    /// So many at the end.
    Last(u64),
}

fn parse_range(text: &str) -> Result<Range, String> {
    let bad = || format!("'{text}' is not a range such as 0-499, 500- or -500");
    let (a, b) = text.split_once('-').ok_or_else(bad)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
    match (a, b) {
        ("", b) => Ok(Range::Last(Some(number(b)?).filter(|n| *n > 0).ok_or_else(bad)?)),
        (a, "") => Ok(Range::From(number(a)?, None)),
        (a, b) => {
            let (a, b) = (number(a)?, number(b)?);
            let end = b.checked_add(1).filter(|end| a < *end).ok_or_else(bad)?;
            Ok(Range::From(a, Some(end)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_curl() {
        assert_eq!(parse_range("0-499"), Ok(Range::From(0, Some(500))));
        assert_eq!(parse_range("7-7"), Ok(Range::From(7, Some(8))));
        assert_eq!(parse_range("500-"), Ok(Range::From(500, None)));
        assert_eq!(parse_range("-5"), Ok(Range::Last(5)));
        for bad in ["", "5", "-", "9-8", "a-b", "0-18446744073709551615", "1-2-3", "-0"] {
            assert!(parse_range(bad).is_err(), "{bad}");
        }
    }
}
