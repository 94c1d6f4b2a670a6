//! Command-line definition of `narrows top`.

use clap::{Args as ClapArgs, ValueEnum};
use narrows_watch::top::Sort;

#[derive(ClapArgs)]
#[command(after_long_help = TOP_HELP)]
pub(crate) struct TopArgs {
    /// Print one frame as text, after one interval, and end
    #[arg(long, conflicts_with = "batch", group = "ends")]
    pub(crate) once: bool,
    /// Print frames as text, one after the other, without colours
    #[arg(long, short)]
    pub(crate) batch: bool,
    /// Print the last frame as a picture (SVG); with --once or -n
    #[arg(long, requires = "ends")]
    pub(crate) svg: bool,
    /// End after N frames
    #[arg(long, short = 'n', value_name = "N", group = "ends", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) frames: Option<u32>,
    /// Time between two frames
    #[arg(long, short = 'd', value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: f64,
    /// What comes first
    #[arg(long, short, value_name = "COLUMN", value_enum, default_value = "goodput")]
    pub(crate) sort: SortArg,
    /// Show only lines that contain TEXT
    #[arg(long, short, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,
    /// Begin with the table of processes
    #[arg(long)]
    pub(crate) processes: bool,
    /// Draw graphs with ASCII [default: if the locale is not UTF-8]
    #[arg(long)]
    pub(crate) ascii: bool,
    /// Columns of a frame that is printed as text [default: those of the terminal, or 80]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=500))]
    pub(crate) width: Option<u16>,
}

/// Columns that a table is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortArg {
    Goodput,
    Wire,
    Ratio,
    Cpu,
    Age,
    Name,
}

impl From<SortArg> for Sort {
    fn from(arg: SortArg) -> Self {
        match arg {
            SortArg::Goodput => Self::Goodput,
            SortArg::Wire => Self::Wire,
            SortArg::Ratio => Self::Ratio,
            SortArg::Cpu => Self::Cpu,
            SortArg::Age => Self::Age,
            SortArg::Name => Self::Name,
        }
    }
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=60.0).contains(s));
    seconds.ok_or_else(|| "it is a number of seconds from 0.1 to 60".into())
}

const TOP_HELP: &str = "\
Shows what tunnels, servers, agents, copies and programs under `narrows run` carry: goodput, bytes on the wire, ratio, methods, \
what they are bound by, and CPU, with a graph of the last minute. The first frame comes after one interval.

KEYS
  q          quit                        g w r c a n   sort by goodput, wire, ratio, CPU, age, name
  Tab        flows, or processes         R             reverse the order
  /          filter; Enter keeps it      space         pause
  + -        shorter, longer interval    arrows        scroll; also PgUp, PgDn, Home
  ?          help

NO_COLOR switches colours off.

EXAMPLES
  narrows top
  narrows top --once
  narrows top --batch -n 60 --filter tunnel > minute.txt";
