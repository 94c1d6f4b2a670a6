//! `narrows run`: any program, unchanged.

use std::process::ExitCode;

use crate::args::run::{RunArgs, SupervisorPlace};
use crate::report;
use crate::run::launch::Launch;
use crate::run::scope;

/// What wrappers of programs say when they fail themselves; 126 and 127 are about the program.
const OWN_FAILURE: u8 = 125;

pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let parent = match args.supervisor {
        SupervisorPlace::Parent => true,
        SupervisorPlace::Detached => false,
        SupervisorPlace::Auto => std::process::id() == 1,
    };
    let scope = match scope::build(&args.only, &args.except, args.loopback) {
        Ok(scope) => scope,
        Err(error) => {
            report::note(report::one_line(&error));
            return ExitCode::from(2);
        }
    };
    let launch = Launch { command: &args.command, scope, verbose: args.verbose, parent };
    launch.run().unwrap_or_else(|error| {
        report::note(report::one_line(&error));
        ExitCode::from(OWN_FAILURE)
    })
}
