//! Command-line definition of `narrows status`.

use clap::Args as ClapArgs;

#[derive(ClapArgs)]
#[command(after_long_help = STATUS_HELP)]
pub(crate) struct StatusArgs {
    /// Print one JSON document; with --trace JSON lines
    #[arg(long)]
    pub(crate) json: bool,
    /// Follow a flow of a tunnel: print how each of its blocks is sent and why. PID and ID are those of `narrows
    /// top`
    #[arg(long, value_name = "PID/ID", value_parser = parse_flow)]
    pub(crate) trace: Option<(i32, u64)>,
    /// How long to follow it
    #[arg(long, value_name = "N", default_value = "10", requires = "trace", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
}

fn parse_flow(text: &str) -> Result<(i32, u64), String> {
    let parts = text.split_once('/').and_then(|(pid, id)| Some((pid.parse().ok()?, id.parse().ok()?)));
    parts.filter(|(pid, _)| *pid > 0).ok_or_else(|| "it is PID/ID, two numbers, such as 4711/17".into())
}

const STATUS_HELP: &str = "\
Lists what runs on this host and what it carries: tunnels, servers and copies, agents, and programs under `narrows run`; those of \
this user, or of all users for root. For each it lists the connections, and how many have ended and how. RAW is the number of \
bytes before encoding or after decoding, WIRE the number of bytes that crossed the network for them. OUT is from the process \
listed, IN to it.

A connection of `run` is `compressed` in both directions or in one, or `plain`, with the reason in brackets. Connections that \
are out of scope are counted only for programs that were started with -v.

`narrows top` shows the same live. docs/watching.md describes the JSON document.

EXAMPLES
  narrows status
  narrows status --json | jq '.processes[] | {kind, pid, totals}'
  narrows status --trace 4711/17 --seconds 5";
