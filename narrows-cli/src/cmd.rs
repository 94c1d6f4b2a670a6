//! One file a command.

use anyhow::Result;

use crate::args::{Args, BenchCommand, Command};

mod bench;
mod calibrate;
mod demo;
mod inspect;
mod pipe;
mod recv;
mod send;

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Pipe(args) => pipe::run(&args),
        Command::Send(args) => send::run(&args),
        Command::Recv(args) => recv::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(BenchCommand::Codecs(args)) => bench::codecs(&args),
        Command::Calibrate(args) => calibrate::run(&args),
    }
}
