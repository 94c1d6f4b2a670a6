//! The laboratory of Narrows: cost tables, the prior, and the virtual-time grid that judges policies. Never published.
//!
//! ```text
//! corpus -- tables --> pools and cost tables -- prior --> prior.txt
//!                                  \-- grid --> every policy on every cell, against bound, oracle and plain
//! ```

use clap::Parser;

mod bench;
mod cells;
mod fit;
mod grid;
mod measure;
mod picture;
mod pools;
mod report;
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
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Tables(args) => measure::run(&args),
        Command::Prior(args) => fit::run(&args),
        Command::Grid(args) => grid::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Picture(args) => picture::run(&args),
    }
}
