//! The subcommands, one file each.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::{Args, BenchCommand, Command};

mod agent;
mod array;
mod bench;
mod calibrate;
mod cat;
mod check;
mod completions;
mod cp;
mod demo;
mod doctor;
mod each;
mod file;
pub(crate) mod hdf5;
mod inspect;
mod list;
mod man;
mod measure;
mod mount;
mod oracle;
mod pack;
mod ping;
mod pipe;
mod plan;
mod recv;
mod repack;
pub(crate) mod run;
mod send;
mod serve;
mod status;
mod top;
mod train;
pub(crate) mod tunnel;
mod unpack;

/// Runs the subcommand and returns its exit status.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        // It has more exit statuses than success and failure.
        Command::Cp(args) => return cp::run(&args),
        Command::Sync(args) => return cp::sync::run(&args),
        Command::File(args) => return file::run(&args),
        Command::Pipe(args) => return pipe::run(&args),
        Command::Cat(args) => return cat::run(&args),
        Command::List(args) => return list::run(&args),
        Command::Check(args) => return check::run(&args),
        Command::Pack(args) => return pack::run(&args),
        Command::Unpack(args) => return unpack::run(&args),
        Command::Mount(args) => return mount::run(&args),
        Command::Repack(args) => return repack::run(&args),
        Command::Run(args) => return Ok(run::run(&args)),
        Command::Tunnel(args) => return tunnel::run(&args),
        Command::Doctor(args) => return doctor::run(&args),
        Command::Agent(args) => agent::run(&args)?,
        Command::Status(args) => status::run(&args)?,
        Command::Top(args) => top::run(&args)?,
        Command::Serve(args) => serve::run(&args)?,
        Command::Send(args) => send::run(&args)?,
        Command::Recv(args) => recv::run(&args)?,
        Command::Inspect(args) => inspect::run(&args)?,
        Command::Demo(args) => demo::run(&args)?,
        Command::Bench(BenchCommand::Codecs(args)) => bench::codecs(&args)?,
        Command::Measure(args) => measure::run(&args)?,
        Command::Ping(args) => ping::run(&args)?,
        Command::Oracle(args) => oracle::run(&args)?,
        Command::Plan(args) => plan::run(&args)?,
        Command::Array(command) => array::run(&command)?,
        Command::Hdf5(args) => hdf5::run(&args)?,
        Command::Train(args) => train::run(&args)?,
        Command::Calibrate(args) => calibrate::run(&args)?,
        Command::Completions(args) => completions::run(&args)?,
        Command::Man(args) => man::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
