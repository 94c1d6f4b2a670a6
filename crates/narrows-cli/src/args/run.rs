//! Command-line definition of `narrows run`.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::{Args as ClapArgs, ValueEnum};
use narrows::policy::PolicySpec;

use super::parse_policy;

#[derive(ClapArgs)]
#[command(after_long_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Compress only connections with HOST: a name, an address, ADDRESS/BITS or *, optionally with
    /// :PORT or :PORT-PORT; may be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) only: Vec<String>,
    /// Leave connections with HOST plain, even if --only includes them; may be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) except: Vec<String>,
    /// Also take over connections within this host, over loopback or its other addresses; without
    /// --policy their data is stored, not compressed
    #[arg(long)]
    pub(crate) loopback: bool,
    /// Give CMD real MPTCP sockets, whose connections stay plain; otherwise it gets TCP when it
    /// asks for MPTCP, as listening Go programs do
    #[arg(long)]
    pub(crate) keep_mptcp: bool,
    /// Print the outcome of each connection when it ends
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Policy for all connections, as for `narrows send` [default: balance, but fixed:store if both
    /// ends are this host]
    #[arg(long, value_name = "SPEC", value_parser = parse_policy)]
    pub(crate) policy: Option<PolicySpec>,
    /// Begin connections to HOST compressed, without negotiation; the server there must run under
    /// `narrows run --accept-direct`, since no other server understands them; may be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) peer: Vec<String>,
    /// Accept connections to CMD that begin compressed (from clients with --peer)
    #[arg(long)]
    pub(crate) accept_direct: bool,
    /// Connect to HOST through the `narrows agent --gateway` on it, and compress; for servers that
    /// do not run under narrows; may be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) via_gateway: Vec<String>,
    /// Port on which hosts negotiate, the same at both ends [default: $NARROWS_PORT, or 7701]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) service_port: Option<u16>,
    /// Address on which this host accepts negotiations [default: all]
    #[arg(long, value_name = "ADDR")]
    pub(crate) service_address: Option<IpAddr>,
    /// Do not open the service port if no agent has it; connections that CMD accepts then stay
    /// plain
    #[arg(long)]
    pub(crate) no_agent: bool,
    /// How connections are taken over
    #[arg(long, value_name = "ENGINE", value_enum, default_value = "auto")]
    pub(crate) engine: EngineName,
    /// Where the supervisor runs
    #[arg(long, value_name = "WHERE", value_enum, default_value = "auto")]
    pub(crate) supervisor: SupervisorPlace,
    /// Program to run, and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// `seccomp` if no library can be loaded into CMD (static, written in Go, another C library),
    /// otherwise `preload`
    Auto,
    /// By a library that is loaded into CMD and the programs it starts
    Preload,
    /// By a system call filter, for CMD and all programs it starts; unless root runs it, setuid
    /// programs get no extra rights
    Seccomp,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SupervisorPlace {
    /// `parent` for pid 1 (in a container), and with `seccomp` where only a parent may inspect
    /// other processes; otherwise `detached`
    Auto,
    /// In the background; CMD gets the pid of this process
    Detached,
    /// In this process, with CMD as its child; it exits when all its connections have ended
    Parent,
}

const RUN_HELP: &str = "\
The TCP connections of CMD and of the programs it starts go through a supervisor; nothing else about CMD changes. If the other \
end of a connection also runs under narrows, data is compressed when that is faster. A plain peer receives exactly the bytes \
that CMD wrote, and no connection is delayed to find out which kind of peer it has. PORT is the port of the server, whether \
CMD is the server or the client. A connection stays plain if it is out of scope, if it starts with TLS or SSH (if it switches \
to TLS later, as with STARTTLS, its data is then sent uncompressed), if its socket was created before a fork, or if the \
negotiation fails. In compressed connections, urgent data (MSG_OOB) arrives as ordinary data. Setuid programs, which get more \
rights than their user, and 32-bit programs stay plain. So do static and Go programs that a program under `preload` starts; \
--engine=seccomp covers them too, but takes twice as long to set up each connection.

Hosts find each other through the service port. The first `narrows run` on a host whose CMD listens opens it, and answers for \
all programs that this user runs there. The port sends nothing to clients other than narrows. Whoever holds it on another host \
is trusted about the connections of the programs there (see narrows agent --help). A host whose programs only connect does \
not open the port.

The supervisor runs until CMD and all programs it started have ended and their data has reached the other end. If it is \
killed, its connections are reset, and later connections are plain.

If a tunnel encrypts these connections and somebody who observes its packets can choose a part of the data, the packet lengths \
reveal the rest to them. --policy fixed:store disables compression of the data that this end sends.

EXIT STATUS
  That of CMD; 125 if narrows fails, 126 if CMD cannot be run, 127 if CMD is not found, 2 for wrong usage.

ENVIRONMENT
  NARROWS_PORT: the service port of all hosts [default: 7701].
  NARROWS_PRELOAD: the library to load into CMD [default: libnarrows_preload.so beside this program or in ../lib/narrows]. \
The libraries in LD_PRELOAD are still loaded.

EXAMPLES
  narrows run -- psql -h db.example
  narrows run --only 10.0.0.0/8:5432 -v -- ./server
  narrows run --via-gateway db.example:5432 -- psql -h db.example
  Without negotiation, on the server and on the client:
  narrows run --accept-direct -- redis-server
  narrows run --peer redis.example:6379 -- redis-cli -h redis.example";
