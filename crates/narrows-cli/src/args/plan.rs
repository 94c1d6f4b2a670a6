//! Command-line definition of `narrows plan`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::{MethodList, parse_methods, parse_size};

/// Limit on paths, which are classes of data: as many as a file may have.
const PATHS_MAX: usize = narrows_plan::config::CLASSES_MAX;

#[derive(ClapArgs)]
#[command(after_long_help = HELP)]
pub(crate) struct PlanArgs {
    /// Data to measure methods on: files, folders, or - for stdin; each PATH is a class of data
    #[arg(value_name = "PATH", num_args = 0..=PATHS_MAX)]
    pub(crate) paths: Vec<PathBuf>,
    /// File that describes the site: nodes, links, storage, work, prices, methods
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set a number of the site, such as node.cores_free=8; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Begin with the figures of a publication, and print its figures beside the recomputed ones
    #[arg(long, value_name = "NAME", value_parser = [narrows_plan::seed::NAME])]
    pub(crate) seed: Option<String>,
    /// Write a commented file for --config instead, with the values of this run; - is stdout
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "site.toml")]
    pub(crate) init: Option<PathBuf>,
    /// Methods to measure [default: those of `balance`]
    #[arg(long, value_name = "LIST", value_parser = parse_methods)]
    pub(crate) methods: Option<MethodList>,
    /// Bytes to measure, in pieces spread evenly over all PATHs
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_sample)]
    pub(crate) sample: usize,
    /// Stop measuring after this time, with what is measured until then
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
    /// Write an HTML page with all tables and pictures to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print CSV, one line for each cell: table,row,column,low,value,high
    #[arg(long)]
    pub(crate) csv: bool,
    /// Print all rows of all tables
    #[arg(long, short, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Print errors and tables only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const HELP: &str = "\
OPERATION
  Computes what compression would do for a site, from the speed and ratio of methods and from what the site has and pays: links, \
memory, storage and an archive. Nothing is sent or stored.
  With PATH, every method encodes and decodes blocks of 128 KiB of the data on all cores of this host; of up to three runs the \
quickest counts. The sample is taken in pieces of 512 KiB, spread evenly, so that one large file is not the whole of it. The \
interval of each figure comes from resampling the pieces, and goes into every table: `100 ±5%`. Several PATHs are classes of \
data; work.shares says how much there is of each, otherwise they count alike.
  Without PATH, methods come from the file. Without those, they are means over many kinds of data, with the speeds of this host \
where `narrows calibrate` has measured it. The table of methods says which.

MODELS
  p is the rate of a link, c and d the speeds of a core, n cores at each end, r = 1 / ratio. A byte takes 1/p plain, and
    sequential   r/p + 1/(n c) + 1/(n d)         one step after the other
    pipelined    r/p + 1/min(n c, n d)           the two ends at the same time
    overlapped   max(r/p, 1/(n c), 1/(n d))      everything at the same time, as Narrows works
  The first two are those of Kuhn, Kunkel and Ludwig, Data Compression for Climate Data (2016), whose models for memory and \
storage are used too. Start-up, round trips, and the work of the kernel are not in any of them: short transfers take longer, \
and so do those that keep all cores busy.

TABLES
  summary, inputs, methods, thresholds, network, multiplier, file_system, memory, storage, archive, archive_reads, sensitivity; \
published with --seed. Short tables leave rows out; --verbose, --json, --csv and --html have all.

FILE
  TOML. `narrows plan --init` writes one with every field, its meaning, limits and default. Rates and sizes have their unit in \
their name; MB, GB and TB are powers of 1000. Raw is before compression. Figures of methods may be intervals: \
ratio = [2.1, 2.4, 2.6].

EXIT STATUS
  0  success
  1  a file cannot be read or written, or has no data
  2  wrong usage, or a mistake in the file: one line says where

EXAMPLES
  narrows plan /var/log
  narrows plan --init && $EDITOR site.toml && narrows plan --config site.toml --html plan.html results/ logs/
  narrows plan --set node.cores_free=16 --set archive.reads_per_month=1 data/
  narrows plan --seed climate-2016
  narrows plan --json data/ | jq '.tables.storage.rows'";

/// Parses `--sample`. The limit keeps the sample in memory, twice per core.
fn parse_sample(text: &str) -> Result<usize, String> {
    parse_size(text).and_then(|n| match n {
        1..=0x4000_0000 => Ok(n),
        _ => Err("the sample is 1 byte to 1G".into()),
    })
}
