//! The `narrows` program: flags and glue over the library.

use std::process::ExitCode;

use clap::Parser;
use narrows::ErrorKind;

mod args;
mod cmd;
mod flow;
mod host;
mod progress;
mod report;
mod shaper;

fn main() -> ExitCode {
    narrows::stream::return_memory_early();
    let args = args::Args::parse();
    match cmd::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// One line on stderr and the exit code that `--help` documents.
fn fail(error: &anyhow::Error) -> ExitCode {
    let engine = error.downcast_ref::<narrows::Error>();
    let io = engine.and_then(|e| e.source.as_ref()).or_else(|| error.downcast_ref());
    let to_stdout = error.downcast_ref::<flow::StdoutClosed>().is_some();
    if to_stdout || io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe) && !report::talks_to_socket(error) {
        // The reader of our output went away, as `head` does: end as a program that SIGPIPE ended would, without a word.
        return ExitCode::from(141);
    }
    eprintln!("narrows: {}", report::one_line(error));
    ExitCode::from(match engine.map(|e| e.kind) {
        Some(ErrorKind::Corrupt | ErrorKind::Truncated | ErrorKind::Unsupported | ErrorKind::Limit) => 3,
        Some(ErrorKind::Misuse) => 2,
        _ => 1,
    })
}
