//! What can be typed behind `narrows run`.

use std::ffi::OsString;
use std::net::IpAddr;

use clap::{Args as ClapArgs, ValueEnum};
use narrows::policy::PolicySpec;

#[derive(ClapArgs)]
#[command(after_long_help = RUN_HELP)]
pub(crate) struct RunArgs {
    /// Only connections with HOST: a name, an address, ADDRESS/BITS or *, perhaps with :PORT or :PORT-PORT; may be given many times
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) only: Vec<String>,
    /// No connections with HOST, whatever --only says
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) except: Vec<String>,
    /// Connections within this host too, by loopback and its other addresses; without --policy they are stored
    #[arg(long)]
    pub(crate) loopback: bool,
    /// Let CMD have sockets of MPTCP, whose connections stay plain; otherwise it gets TCP where it asks for MPTCP, as Go programs do that listen
    #[arg(long)]
    pub(crate) keep_mptcp: bool,
    /// Say for each connection at its end what became of it
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// How blocks are chosen and encoded, as for `narrows send`, on all connections [default: balance, but fixed:store where both ends are this host]
    #[arg(long, value_name = "SPEC")]
    pub(crate) policy: Option<PolicySpec>,
    /// Connections to HOST begin compressed, without negotiation: only where what listens there runs under `narrows run --accept-direct`, since nothing else understands them; may be given many times
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) peer: Vec<String>,
    /// Clients may begin connections to CMD compressed, by --peer
    #[arg(long)]
    pub(crate) accept_direct: bool,
    /// Connections to HOST go through the `narrows agent --gateway` there, and are compressed: for servers that do not run under narrows; may be given many times
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) via_gateway: Vec<String>,
    /// The port by which hosts negotiate, the same at both ends [default: $NARROWS_PORT, or 7701]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) service_port: Option<u16>,
    /// The address at which this host takes such negotiations [default: all]
    #[arg(long, value_name = "ADDR")]
    pub(crate) service_address: Option<IpAddr>,
    /// Do not open the service port where no agent has it: what CMD accepts stays plain then
    #[arg(long)]
    pub(crate) no_agent: bool,
    /// How connections are taken over
    #[arg(long, value_name = "ENGINE", value_enum, default_value = "auto")]
    pub(crate) engine: EngineName,
    /// Where the supervisor runs
    #[arg(long, value_name = "WHERE", value_enum, default_value = "auto")]
    pub(crate) supervisor: SupervisorPlace,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// As `seccomp` if no library can be loaded into CMD (static, written in Go, another C library), else `preload`
    Auto,
    /// By a library that is loaded into CMD and what it starts
    Preload,
    /// By a filter of system calls, for CMD and all that it starts; without root, setuid programs get no rights under it
    Seccomp,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SupervisorPlace {
    /// As `parent` for pid 1 (of a container), and with `seccomp` where only parents may look into programs; else `detached`
    Auto,
    /// In the background; CMD takes the pid of this process
    Detached,
    /// CMD is a child of this process, which ends when all its connections have
    Parent,
}

const RUN_HELP: &str = "\
The TCP connections of CMD and of what it starts go through a supervisor; nothing else of CMD changes. Where the other end \
of a connection runs under narrows too, bytes go compressed if that is faster; a plain peer gets what CMD wrote and nothing \
else, and nobody waits to find out. PORT is the server's, on whichever side CMD is. A connection stays plain when it is out of \
scope, when it begins as TLS or SSH (or does so a little later, as with STARTTLS, and is sent as it is), when its socket was made before a fork, or when anything fails on the way. In compressed \
connections urgent bytes (MSG_OOB) come as ordinary ones. Programs that get more rights than their user has \
(setuid) and 32-bit ones stay plain; so do static and Go programs that a program under `preload` starts: --engine=seccomp \
reaches them too, and takes twice as long for each connection to begin.

The hosts find out about each other by the service port: the first narrows run of a host whose CMD listens opens it, and \
answers for all that this user runs there. To others it is a port that says nothing; who has it on another host is believed about \
its programs' connections (see narrows agent --help). A host whose programs only connect opens none.

The supervisor stays until CMD and all that it started have ended and what they wrote has reached the other end. If it is \
killed, its connections are reset, and later ones are plain.

Where a tunnel encrypts these connections and somebody who sees its packets chooses a part of what is sent, their lengths tell \
him about the rest: --policy fixed:store compresses nothing that this end sends.

EXIT STATUS
  That of CMD. 125 if narrows fails, 126 if CMD cannot be run, 127 if there is none, 2 for wrong usage.

ENVIRONMENT
  NARROWS_PORT: the service port of all hosts [default: 7701].
  NARROWS_PRELOAD: the library to load into CMD [default: libnarrows_preload.so beside this program or in ../lib/narrows]. \
LD_PRELOAD is kept.

EXAMPLES
  narrows run -- psql -h db.example
  narrows run --only 10.0.0.0/8:5432 -v -- ./server
  narrows run --via-gateway db.example:5432 -- psql -h db.example
  narrows run --accept-direct -- redis-server           on one host, and on another, without negotiation:
  narrows run --peer redis.example:6379 -- redis-cli -h redis.example";
