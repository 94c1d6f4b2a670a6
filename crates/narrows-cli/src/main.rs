//! The `narrows` program: command line and glue around the library.

use std::process::ExitCode;

use narrows_host::signals;
use narrows_watch::{logs, outlet};

mod args;
mod cmd;
mod config;
mod counts;
mod damage;
mod files;
mod flow;
mod manual;
mod packs;
mod place;
mod progress;
mod repack;
mod report;
mod shaper;
mod transfer;
mod version;

fn main() -> ExitCode {
    narrows::stream::return_memory_early();
    let status = match cmd::run(args::of_process(config::with_defaults)) {
        Ok(status) => status,
        Err(error) => fail(&error),
    };
    outlet::end();
    status
}

/// Prints the error as one line on stderr and returns its exit status.
fn fail(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<files::StdoutClosed>().is_some() {
        signals::die_of_closed_pipe();
    }
    if !error.is::<report::Told>() {
        let line = report::one_line(error);
        if logs::is_on() { logs::failure(&line) } else { report::note(line) }
    }
    if let Some(signal) = signals::received() {
        outlet::end();
        signals::die_of(signal);
    }
    ExitCode::from(report::status(error))
}
