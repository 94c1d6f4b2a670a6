//! Command-line definition of `narrows array`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use narrows_array::{Bound, Dtype, Mode, Options, Pipeline};

use super::parse_size;

pub(crate) const ARRAY_HELP: &str = "\
EXIT STATUS
  0  done
  1  a file could not be read or written
  2  wrong usage, or elements that chunks do not have, such as text and objects
  3  the input is damaged or ends too early

EXAMPLES
  narrows array encode a.npy --abs 0.01 --fill -9999 -o a.nra
  narrows array decode a.nra -o b.npy
  narrows check a.nra --against a.npy";

#[derive(Subcommand)]
pub(crate) enum ArrayCommand {
    /// Encode an array, exactly or within a bound that is verified
    Encode(EncodeArgs),
    /// Decode what `encode` wrote
    Decode(DecodeArgs),
    /// Compare all pipelines on an array
    Bench(BenchArgs),
}

/// The array and how much it may change.
#[derive(ClapArgs)]
pub(crate) struct Input {
    /// A .npy file, or with --type raw elements; - is stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Type of raw elements: i8 to i64, u8 to u64, f16, f32, f64, bool, c64, c128, or r32 for records
    /// of 32 bytes
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) dtype: Option<Dtype>,
    /// Lengths of the axes of raw elements, slowest first [default: one axis]
    #[arg(long, value_name = "A,B,...", value_delimiter = ',', requires = "dtype")]
    pub(crate) shape: Vec<usize>,
    /// Raw elements are big-endian
    #[arg(long, requires = "dtype")]
    pub(crate) big_endian: bool,
    #[command(flatten)]
    pub(crate) hints: Hints,
    /// One pipeline for every chunk, for tests: steps and back end as `bench` prints them
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) method: Option<Pipeline>,
    /// Bytes of a chunk
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = parse_chunk)]
    pub(crate) chunk: usize,
}

impl Input {
    pub(crate) fn options(&self) -> Options {
        Options { method: self.method.clone(), ..self.hints.options() }
    }
}

/// How much values may change, and what matters.
#[derive(ClapArgs)]
pub(crate) struct Hints {
    /// Largest absolute error
    #[arg(long, value_name = "ERROR", value_parser = parse_error, allow_hyphen_values = true)]
    pub(crate) abs: Option<f64>,
    /// Largest error as a share of the value, such as 0.01 or 1%
    #[arg(long, value_name = "SHARE", value_parser = parse_share, allow_hyphen_values = true)]
    pub(crate) rel: Option<f64>,
    /// The least error that --rel allows
    #[arg(long, value_name = "ERROR", requires = "rel", value_parser = parse_error, allow_hyphen_values = true)]
    pub(crate) floor: Option<f64>,
    /// Largest error as a share of the range of each chunk
    #[arg(long, value_name = "SHARE", value_parser = parse_share, allow_hyphen_values = true)]
    pub(crate) range_rel: Option<f64>,
    /// Significant decimal digits
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) digits: Option<u32>,
    /// Significant bits behind the leading one
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) bits: Option<u32>,
    /// A value that stays exact; may be repeated
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    pub(crate) fill: Vec<f64>,
    /// A range of values that stay exact, both ends included: A..B, A.. or ..B; may be repeated
    #[arg(long, value_name = "A..B", value_parser = parse_range, allow_hyphen_values = true)]
    pub(crate) exact: Vec<(f64, f64)>,
    /// What matters: fast, balanced or archive
    #[arg(long, value_name = "MODE", default_value = "balanced")]
    pub(crate) mode: Mode,
    /// Bytes per second that a core must encode, by nominal speeds, such as 200MB/s
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) encode_rate: Option<u64>,
}

impl Hints {
    pub(crate) fn bound(&self) -> Bound {
        Bound {
            abs: self.abs,
            range_rel: self.range_rel,
            rel: self.rel,
            floor: self.floor,
            digits: self.digits,
            bits: self.bits,
            fills: self.fill.clone(),
            exact: self.exact.clone(),
            ..Bound::default()
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options { mode: self.mode, encode_rate: self.encode_rate.map(|rate| rate as f64), method: None }
    }
}

#[derive(ClapArgs)]
pub(crate) struct EncodeArgs {
    #[command(flatten)]
    pub(crate) input: Input,
    /// Write to FILE [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write to a terminal all the same
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Print errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(ClapArgs)]
pub(crate) struct DecodeArgs {
    /// What `encode` wrote; - is stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Write to FILE [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write to a terminal all the same
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Write the elements without the header of .npy
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print errors only, as always
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(ClapArgs)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) input: Input,
    /// Also measure the libraries that this Python has: zstd, xz, Blosc2, pco, fpzip, zfp, SZ3
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    pub(crate) peers: Option<PathBuf>,
}

fn parse_rate(text: &str) -> Result<u64, String> {
    narrows::hint::parse_rate(text).map_err(|e| e.to_string())
}

fn parse_chunk(text: &str) -> Result<usize, String> {
    match parse_size(text)? {
        0 => Err("a chunk has at least a byte; 256K to some MiB are best".into()),
        len => Ok(len),
    }
}

/// A number that an error may be.
fn not_negative(value: f64) -> Result<f64, String> {
    let is_right = value.is_finite() && value >= 0.0;
    if is_right { Ok(value) } else { Err("a bound must be positive, or 0 for exact".into()) }
}

fn parse_error(text: &str) -> Result<f64, String> {
    not_negative(text.trim().parse().map_err(|_| "a bound is a number such as 0.01".to_string())?)
}

/// A share, as a number or in percent.
fn parse_share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share: f64 = number.trim().parse().map_err(|_| "a share is a number such as 0.01, or 1%".to_string())?;
    match not_negative(share / unit)? {
        share if share < 1.0 => Ok(share),
        _ => Err("a bound must be below 1 or 100 %, which allow 0 for every value".into()),
    }
}

fn parse_range(text: &str) -> Result<(f64, f64), String> {
    let wrong = || "a range is A..B, A.. or ..B, such as 1e10.. or 0..0.5".to_string();
    let (low, high) = text.split_once("..").ok_or_else(wrong)?;
    let end = |end: &str, open: f64| match end.trim() {
        "" => Ok(open),
        number => number.parse::<f64>().map_err(|_| wrong()),
    };
    let range = (end(low, f64::NEG_INFINITY)?, end(high, f64::INFINITY)?);
    if range.0 <= range.1 { Ok(range) } else { Err("the first end of a range is not above the second".into()) }
}
