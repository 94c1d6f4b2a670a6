//! The laboratory of Narrows: cost tables, the prior, the virtual-time grid that compares policies,
//! and emulated links and CPU load for measurements in real time. Not published as a crate.
//!
//! ```text
//! corpus -- tables --> pools and cost tables -- prior --> prior.txt
//!                                  \-- grid --> every policy on every cell, against bound, oracle and plain
//! ```

use std::process::ExitCode;

use clap::Parser;

mod bench;
mod cases;
mod cells;
mod experiment;
mod fit;
mod grid;
mod link;
mod load;
mod measure;
mod picture;
mod plan;
mod pools;
mod race;
mod registry;
mod report;
mod soak;
mod stats;
mod stop;
mod units;

/// Cost tables, prior training and the virtual-time grid for Narrows.
#[derive(Parser)]
#[command(version, max_term_width = 110)]
enum Command {
    Tables(measure::Args),
    Prior(fit::Args),
    Grid(grid::Args),
    Bench(bench::Args),
    Picture(picture::Args),
    Plan(plan::Args),
    Experiment(experiment::Args),
    Race(race::Args),
    Link(link::Args),
    Load(load::Args),
    Soak(soak::Args),
}

/// Wrong usage that clap does not detect, such as a plan with an unknown key.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Tables(args) => measure::run(&args),
        Command::Prior(args) => fit::run(&args),
        Command::Grid(args) => grid::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Picture(args) => picture::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Experiment(args) => experiment::run(&args),
        Command::Race(args) => race::run(&args),
        Command::Link(args) => link::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Soak(args) => soak::run(&args),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("narrows-lab: {}", format!("{error:#}").replace('\n', " "));
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}
