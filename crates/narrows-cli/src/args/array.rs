//! Command-line definition of `narrows array`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use narrows_array::{Dtype, Mode};

use super::parse_size;

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
    /// Largest absolute error
    #[arg(long, value_name = "ERROR")]
    pub(crate) abs: Option<f64>,
    /// Largest error as a share of the value
    #[arg(long, value_name = "SHARE")]
    pub(crate) rel: Option<f64>,
    /// The least error that --rel allows
    #[arg(long, value_name = "ERROR", requires = "rel")]
    pub(crate) floor: Option<f64>,
    /// Largest error as a share of the range of each chunk
    #[arg(long, value_name = "SHARE")]
    pub(crate) range_rel: Option<f64>,
    /// Significant decimal digits
    #[arg(long, value_name = "N")]
    pub(crate) digits: Option<u32>,
    /// Significant bits behind the leading one
    #[arg(long, value_name = "N")]
    pub(crate) bits: Option<u32>,
    /// A value that stays exact; may be repeated
    #[arg(long, value_name = "VALUE", allow_negative_numbers = true)]
    pub(crate) fill: Vec<f64>,
    /// What matters: fast, balanced or archive
    #[arg(long, value_name = "MODE", default_value = "balanced")]
    pub(crate) mode: Mode,
    /// Bytes per second that a core must encode, by nominal speeds
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) encode_rate: Option<usize>,
    /// Bytes of a chunk
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = parse_size)]
    pub(crate) chunk: usize,
}

#[derive(ClapArgs)]
pub(crate) struct EncodeArgs {
    #[command(flatten)]
    pub(crate) input: Input,
    /// Write to FILE [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
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
    /// Write the elements without the header of .npy
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(ClapArgs)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) input: Input,
}
