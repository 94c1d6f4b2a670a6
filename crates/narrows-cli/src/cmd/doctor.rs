//! `narrows doctor`: what this host allows, and what to do about the rest.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use self::checks::{Check, State};
use crate::args::doctor::DoctorArgs;
use crate::report;

mod checks;

/// Runs `narrows doctor`.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let checks = checks::checks();
    let failed = checks.iter().any(Check::fails);
    if args.json {
        let rows: Vec<Value> = checks.iter().map(of_check).collect();
        let version = env!("CARGO_PKG_VERSION");
        report::out(serde_json::to_string_pretty(&json!({ "version": version, "works": !failed, "checks": rows }))?)?;
    } else {
        checks.iter().try_for_each(print)?;
    }
    if failed {
        report::note("something that everything needs does not work here");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn of_check(check: &Check) -> Value {
    let Check { name, found, advice, .. } = check;
    json!({ "name": name, "state": check.state.word(), "needed": check.needed, "found": found, "advice": advice })
}

fn print(check: &Check) -> Result<()> {
    report::out(format_args!("{:<8} {:<12} {}", check.state.word(), check.name, check.found))?;
    match &check.advice {
        Some(advice) if check.state != State::Ok => report::out(format_args!("{:<21} {advice}", "")),
        _ => Ok(()),
    }
}
