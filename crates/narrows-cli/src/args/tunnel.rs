//! Command-line definition of `narrows tunnel`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args as ClapArgs, Subcommand};
use narrows::policy::PolicySpec;
use narrows_tunnel::limits::CARRIERS_MAX;
use narrows_tunnel::service::{Limits, Options};

use super::parse_policy;

#[derive(ClapArgs)]
#[command(after_long_help = TUNNEL_HELP, disable_version_flag = true, args_conflicts_with_subcommands = true)]
pub(crate) struct TunnelArgs {
    // More than 20 fields, each of them an argument of the command line.
    #[command(subcommand)]
    pub(crate) command: Option<TunnelCommand>,
    /// The other end: narrows://HOST[:PORT], or [USER@]HOST that ssh reaches
    #[arg(value_name = "WHERE", conflicts_with_all = ["listen", "stdio"])]
    pub(crate) to: Option<OsString>,
    /// Accept connections here, and continue them from the other end: [BIND:]PORT:HOST:PORT; a path of a
    /// unix socket may stand for either end; may be repeated
    #[arg(short = 'L', value_name = "FORWARD", action = ArgAction::Append, conflicts_with_all = ["listen", "stdio"])]
    pub(crate) local: Vec<String>,
    /// The reverse: accept connections at the other end, and continue them from here; may be repeated
    #[arg(short = 'R', value_name = "FORWARD", action = ArgAction::Append, conflicts_with_all = ["listen", "stdio"])]
    pub(crate) remote: Vec<String>,
    /// Be a SOCKS 5 proxy here, whose connections continue from the other end: [BIND:]PORT; may be repeated
    #[arg(short = 'D', value_name = "[BIND:]PORT", action = ArgAction::Append, conflicts_with_all = ["listen", "stdio"])]
    pub(crate) dynamic: Vec<String>,
    /// The program that reaches [USER@]HOST, where it starts `narrows tunnel --stdio`, such as `ssh -p 2222`
    /// [default: ssh]
    #[arg(short = 'e', value_name = "PROGRAM")]
    pub(crate) shell: Option<OsString>,
    /// Name of narrows on the host that ssh reaches
    /// [default: narrows]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) remote_narrows: Option<String>,
    /// Be the end that others connect to, on ADDR:PORT
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "stdio")]
    pub(crate) listen: Option<String>,
    /// Be the other end on stdin and stdout, for -e
    #[arg(long)]
    pub(crate) stdio: bool,
    /// What the other ends may reach from here: HOST:PORT, *:PORT, HOST:*, /path of a unix socket, any, or
    /// none; may be repeated [default: with --listen this host's loopback, with --stdio any]
    #[arg(long, value_name = "RULE", action = ArgAction::Append)]
    pub(crate) allow: Vec<String>,
    /// Where the other ends may listen here (-R), as for --allow [default: with --listen loopback, with
    /// --stdio any]
    #[arg(long, value_name = "RULE", action = ArgAction::Append)]
    pub(crate) allow_listen: Vec<String>,
    /// File with the token of the other end [default: $NARROWS_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Write the token to FILE, for its owner only, instead of printing it; with --listen
    #[arg(long, value_name = "FILE")]
    pub(crate) token_out: Option<PathBuf>,
    /// File with the keys of this end, with --listen; it is made if it is missing [default:
    /// ~/.local/state/narrows/tunnel.key]
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Prove this end by a certificate, in PEM, instead of a token; with --key and --ca. The files are read
    /// again when they change and on SIGHUP, and open connections stay
    #[arg(long, value_name = "FILE", conflicts_with_all = ["token_file", "token_out", "key_file"])]
    pub(crate) cert: Option<PathBuf>,
    /// The private key of --cert
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Authorities whose certificates the other end may have
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Revoked certificates of each of these authorities (CRL), in PEM; without it none is revoked
    #[arg(long, value_name = "FILE")]
    pub(crate) crl: Option<PathBuf>,
    /// Name, DNS or URI, of which the other end's certificate must have one; may be repeated [default: a
    /// client wants the name or address of the host, a server takes all of --ca]
    #[arg(long, value_name = "NAME", action = ArgAction::Append)]
    pub(crate) allow_name: Vec<String>,
    /// Begin connections to targets with a PROXY header (version 2) that tells the client's address
    #[arg(long)]
    pub(crate) send_proxy: bool,
    /// Connections from ADDR to -L begin with a PROXY header (version 1 or 2); may be repeated
    #[arg(long, value_name = "ADDR", action = ArgAction::Append, conflicts_with_all = ["listen", "stdio"])]
    pub(crate) proxy_from: Vec<IpAddr>,
    /// Connections with the other end that are kept open, 1 to 4; bulk gets further ones by itself
    /// [default: 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=CARRIERS_MAX as i64))]
    pub(crate) carriers: Option<u8>,
    /// Go on trying although the other end was never reached
    #[arg(long)]
    pub(crate) keep_trying: bool,
    /// After SIGTERM, let open connections go on for so many seconds; a second signal ends them
    /// [default: 0]
    #[arg(long, value_name = "SECONDS", alias = "drain")]
    pub(crate) drain_timeout: Option<u32>,
    /// Read from FILE (TOML) what the command line does not say; SIGHUP reads it again
    #[arg(long, value_name = "FILE", conflicts_with = "stdio")]
    pub(crate) config: Option<PathBuf>,
    /// Answer probes over HTTP on ADDR:PORT: /healthz whether the process moves, /readyz whether it can carry
    /// connections
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "stdio")]
    pub(crate) health: Option<String>,
    /// Policy for what this end sends, as for `narrows run` [default: balance]
    #[arg(long, value_name = "SPEC", value_parser = parse_policy)]
    pub(crate) policy: Option<PolicySpec>,
    #[command(flatten)]
    pub(crate) watch: super::watch::WatchArgs,
    /// Print connections that were refused or broken, and the coming and going of other ends
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Print errors only
    #[arg(long, short, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print what listens as JSON lines on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum TunnelCommand {
    /// Check a file for --config: one line for each fault, and status 2 if there is one
    CheckConfig {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

impl TunnelArgs {
    /// What was said.
    pub(crate) fn options(&self) -> Options {
        Options {
            to: self.to.clone(),
            local: self.local.clone(),
            remote: self.remote.clone(),
            dynamic: self.dynamic.clone(),
            shell: self.shell.clone(),
            remote_narrows: self.remote_narrows.clone(),
            listen: self.listen.clone(),
            stdio: self.stdio,
            allow: self.allow.clone(),
            allow_listen: self.allow_listen.clone(),
            token_file: self.token_file.clone(),
            token_out: self.token_out.clone(),
            key_file: self.key_file.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            ca: self.ca.clone(),
            crl: self.crl.clone(),
            allow_name: self.allow_name.clone(),
            send_proxy: self.send_proxy,
            proxy_from: self.proxy_from.clone(),
            carriers: self.carriers,
            keep_trying: self.keep_trying,
            drain_timeout: self.drain_timeout,
            config: self.config.clone(),
            health: self.health.clone(),
            metrics: self.watch.metrics.clone(),
            log: self.watch.log(),
            policy: self.policy.clone(),
            verbose: self.verbose,
            quiet: self.quiet,
            json: self.json,
            limits: Limits::default(),
        }
    }
}

const TUNNEL_HELP: &str = "\
A tunnel makes what one host can reach reachable from another: databases, registries, brokers, whole networks (-D). Its \
connections share a few encrypted ones, so a new connection costs no handshake, and what they carry is compressed as the link \
and the data allow. Encrypted data passes as it is.

Both ends of narrows:// prove themselves by the token that the listening end writes. Whoever has it can reach what --allow \
permits, which without --allow is the loopback of the listening end: every port that listens on 127.0.0.1 or ::1 there.

With --cert, --key and --ca both ends prove themselves by certificates of an authority. Names are those of the subject \
alternative names.

The file of --config has the long names of these options as keys, with _ for -, and local, remote, dynamic and shell for -L, -R, \
-D and -e; lists for what may be repeated; a table [limits]; paths count from its folder. An option on the command line replaces \
its key. SIGHUP reads it again: rules, certificates, tokens and limits change at once for new connections; what needs a restart \
is named. docs/tunnel.md has an example.

When the other end is lost, open connections are reset, listeners stay, and the tunnel is made again, at first at once and then \
every half minute. New connections wait up to 5 s for it.

EXIT STATUS
  0 if it ended after --drain-timeout, 1 if it cannot listen or the other end was never reached, 2 for wrong usage. After SIGINT and \
SIGTERM it terminates by that signal.

EXAMPLES
  A database that listens on 127.0.0.1:5432 of another host:
    db$ narrows tunnel --listen 0.0.0.0:7702 --allow localhost:5432 --token-out tunnel.token
    me$ narrows tunnel -L 5432:localhost:5432 narrows://db:7702 --token-file tunnel.token
  The same where only ssh is open:
    narrows tunnel -L 5432:localhost:5432 me@db
  A proxy for a browser, and a port of this host at the other end:
    narrows tunnel -D 1080 -R 8080:localhost:80 narrows://db:7702 --token-file tunnel.token";
