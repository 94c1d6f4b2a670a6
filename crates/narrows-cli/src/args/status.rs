//! Command-line definition of `narrows status`.

use clap::Args as ClapArgs;

#[derive(ClapArgs)]
#[command(after_long_help = STATUS_HELP)]
pub(crate) struct StatusArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

const STATUS_HELP: &str = "\
Lists the programs that run under `narrows run` on this host: those of this user, or of all users for root. For each program \
it lists the connections, and how many have ended compressed or plain and why. RAW is the number of bytes that the program \
wrote or read, WIRE the number of bytes that crossed the network for them.

A connection is `compressed` in both directions or in one, or `plain`, with the reason in brackets. Connections that are out \
of scope are counted only for programs that were started with -v.

EXAMPLES
  narrows status
  narrows status --json | jq '.supervisors[].connections[].peer'";
