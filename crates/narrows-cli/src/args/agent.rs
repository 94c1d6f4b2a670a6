//! What can be typed behind `narrows agent`.

use clap::Args as ClapArgs;
use narrows::policy::PolicySpec;

#[derive(ClapArgs)]
#[command(after_long_help = AGENT_HELP)]
pub(crate) struct AgentArgs {
    /// Where to take negotiations: an address with a port, or either of them [default: every address, $NARROWS_PORT or 7701]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Option<String>,
    /// Be a gateway to servers of this host that are not under `narrows run`; needs --allow
    #[arg(long, requires = "allow")]
    pub(crate) gateway: bool,
    /// Ports of this host to which the gateway connects
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', requires = "gateway")]
    pub(crate) allow: Vec<u16>,
    /// How what servers send through the gateway is encoded, as for `narrows run`; `fixed:store` compresses nothing [default: balance]
    #[arg(long, value_name = "SPEC", requires = "gateway")]
    pub(crate) policy: Option<PolicySpec>,
    /// Say nothing but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

const AGENT_HELP: &str = "\
Programs under `narrows run` compress a connection when both of its ends are under it. The host that connects asks the other \
one by its service port; the agent answers there for all programs of its host. The first `narrows run` whose program listens \
takes that part itself and another one takes over when it ends, so an agent of its own is needed only

  - for several users of one host: an agent of root serves all of them, others only their own user;
  - where users do not trust one another: who has the service port is believed about all connections of the host. Start the \
agent at boot, as root, or choose a port below 1024, which only root may open, on all hosts.

With --gateway it also connects clients of other hosts to servers of this one that cannot be started under `narrows run`. \
Such a server sees the gateway's address (127.0.0.1 or ::1) in place of the client's, so list no port whose server trusts \
connections from its own host. One client host has half of the connections that there may be, or less if others are there; \
a client that finds no place connects to the server itself, and is plain.

It runs until it is ended. Connections that are compressed already go on without it.

EXIT STATUS
  1 if it cannot listen, 2 for wrong usage.

ENVIRONMENT
  NARROWS_PORT: the service port of all hosts [default: 7701].

EXAMPLES
  narrows agent
  narrows agent --listen 10.0.0.1:7701
  narrows agent --gateway --allow 5432,6379";
