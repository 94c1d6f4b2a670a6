//! Command-line definition of `narrows agent`.

use clap::Args as ClapArgs;
use narrows::policy::PolicySpec;

use super::parse_policy;

#[derive(ClapArgs)]
#[command(after_long_help = AGENT_HELP)]
pub(crate) struct AgentArgs {
    /// Address for negotiations: an address with a port, or either of them [default: every address,
    /// $NARROWS_PORT or 7701]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    /// Act as a gateway to servers on this host that do not run under `narrows run`; needs --allow
    #[arg(long, requires = "allow")]
    pub(crate) gateway: bool,
    /// Ports of this host to which the gateway may connect
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', requires = "gateway")]
    pub(crate) allow: Vec<u16>,
    /// Policy for the data that servers send through the gateway, as for `narrows run`;
    /// `fixed:store` compresses nothing [default: balance]
    #[arg(long, value_name = "SPEC", requires = "gateway", value_parser = parse_policy)]
    pub(crate) policy: Option<PolicySpec>,
    #[command(flatten)]
    pub(crate) watch: super::watch::WatchArgs,
    /// Print errors only
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const AGENT_HELP: &str = "\
A connection is compressed when the programs at both ends run under `narrows run`. The connecting host asks the other host on \
its service port, where the agent answers for all programs of its host. The first `narrows run` whose program listens acts as \
the agent itself, and another one takes over when it ends. A separate agent is needed only

  - for several users on one host: an agent of root serves all of them, any other agent only its own user;
  - if users do not trust one another: whoever holds the service port is trusted about all connections of the host. Start the \
agent at boot as root, or choose on all hosts a port below 1024, which only root may open.

With --gateway, the agent also connects clients on other hosts to servers on this host that cannot be started under \
`narrows run`. Such a server sees the address of the gateway (127.0.0.1 or ::1) instead of that of the client, so do not list \
the port of a server that trusts connections from its own host. One client host gets at most half of the connections, fewer \
if others are connected. A client that gets none connects to the server directly, without compression.

The agent runs until it is terminated. Connections that are already compressed continue without it.

EXIT STATUS
  1 if it cannot listen, 2 for wrong usage.

ENVIRONMENT
  NARROWS_PORT: the service port of all hosts [default: 7701].

EXAMPLES
  narrows agent
  narrows agent --listen 10.0.0.1:7701
  narrows agent --gateway --allow 5432,6379";
