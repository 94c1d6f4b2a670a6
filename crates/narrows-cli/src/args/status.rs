//! What can be typed behind `narrows status`.

use clap::Args as ClapArgs;

#[derive(ClapArgs)]
#[command(after_long_help = STATUS_HELP)]
pub(crate) struct StatusArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

const STATUS_HELP: &str = "\
Lists what runs under `narrows run` on this host: the programs of this user, or of all users for root. For each program its \
connections, and how many ended compressed or plain and why. RAW is what the program wrote or read, WIRE what crossed the \
network for it.

A connection is `compressed` in both directions or one way, or `plain`; why is in brackets. Connections \
that are out of scope are counted for programs that were started with -v.

EXAMPLES
  narrows status
  narrows status --json | jq '.supervisors[].connections[].peer'";
