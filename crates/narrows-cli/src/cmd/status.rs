//! `narrows status`: lists what runs on this host, and its connections; follows one flow of a tunnel.

use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use narrows::Error;
use narrows_host::words::shown_json;
use narrows_watch::{ask, table, trace};
use serde_json::{Value, json};

use crate::args::status::StatusArgs;
use crate::report;

/// Runs `narrows status`.
pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    if let Some((pid, id)) = args.trace {
        return follow(args, pid, id);
    }
    let answers = ask::all().context("cannot look for processes")?;
    let (processes, left_out) = answers.processes();
    if left_out > 0 {
        let left_out = report::count(left_out, "process", "processes");
        report::note(format_args!("left out: {left_out} without an answer in time, or with one that is too long"));
    }
    if args.json {
        // The first version listed only programs under `run`, by this name.
        let is_run = |document: &&Value| matches!(document["kind"].as_str(), None | Some("run"));
        let supervisors: Vec<_> = answers.documents.iter().filter(is_run).collect();
        let all = json!({ "supervisors": supervisors, "processes": answers.documents, "left_out": left_out });
        return report::out(shown_json(&all.to_string()));
    }
    if processes.is_empty() && left_out == 0 {
        report::note("no tunnel, server, agent or copy runs, and nothing under `narrows run`");
    }
    processes.iter().try_for_each(|process| report::out(table::table(process)))
}

fn follow(args: &StatusArgs, pid: i32, id: u64) -> Result<()> {
    let mut closed = None;
    let limit = Duration::from_secs(args.seconds.into());
    let known = trace::follow(pid, id, limit, |line| {
        let text = if args.json { table::json_of(line) } else { table::tell(line) };
        let printed = text.map_or(Ok(()), report::out);
        printed.map_err(|e| {
            // The reader of stdout may have gone, which has its own exit status.
            closed = Some(e);
            io::Error::other("stdout")
        })
    });
    match (known, closed) {
        (_, Some(e)) => Err(e),
        (Ok(true), None) => Ok(()),
        (Ok(false), None) => {
            Err(Error::misuse(format!("process {pid} has no flow {id}; `narrows top` shows which it has")).into())
        }
        (Err(e), None) => Err(e).with_context(|| format!("cannot follow flow {id} of process {pid}")),
    }
}
