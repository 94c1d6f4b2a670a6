//! Options of a tunnel, from the command line or a file.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use narrows::policy::PolicySpec;
use narrows_watch::logs::Wanted;

/// The settings of a tunnel as they were given; what was not given has its default.
#[derive(Debug, Clone, Default)]
pub struct Options {
    // More than 20 fields, each of them a setting that a user may give: an argument, and a key of the file.
    /// The other end: narrows://HOST\[:PORT\], or a host that a remote shell reaches.
    pub to: Option<OsString>,
    /// Forwards: \[BIND:\]PORT:HOST:PORT.
    pub local: Vec<String>,
    /// The reverse: the other end listens.
    pub remote: Vec<String>,
    /// SOCKS listeners: \[BIND:\]PORT.
    pub dynamic: Vec<String>,
    /// The program that reaches a host; ssh by default.
    pub shell: Option<OsString>,
    /// Name of this program on that host.
    pub remote_narrows: Option<String>,
    /// Address on which it is the end that others connect to.
    pub listen: Option<String>,
    /// It is that end on stdin and stdout.
    pub stdio: bool,
    /// What other ends may reach from here, and where they may listen.
    pub allow: Vec<String>,
    pub allow_listen: Vec<String>,
    /// File with the token of the other end.
    pub token_file: Option<PathBuf>,
    /// File that the token is written to.
    pub token_out: Option<PathBuf>,
    /// File with the keys of this end, which is made if it is missing.
    pub key_file: Option<PathBuf>,
    /// Certificate of this end, its key, the authorities of the other end, and what they revoked, in PEM.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub crl: Option<PathBuf>,
    /// Names of which the other end's certificate must have one.
    pub allow_name: Vec<String>,
    /// Connections to targets begin with a PROXY header.
    pub send_proxy: bool,
    /// Hosts whose connections begin with one.
    pub proxy_from: Vec<IpAddr>,
    /// Connections with the other end that are kept open.
    pub carriers: Option<u8>,
    /// It goes on trying although the other end was never reached.
    pub keep_trying: bool,
    /// Seconds for open connections after SIGTERM.
    pub drain_timeout: Option<u32>,
    /// File (TOML) with what is not given here.
    pub config: Option<PathBuf>,
    /// Address on which probes are answered.
    pub health: Option<String>,
    /// Address of the page of metrics.
    pub metrics: Option<String>,
    /// What is said of the log.
    pub log: Wanted,
    /// Policy for what this end sends.
    pub policy: Option<PolicySpec>,
    pub verbose: bool,
    pub quiet: bool,
    /// What listens is told as lines of JSON on stdout.
    pub json: bool,
    /// What only a file can set.
    pub limits: Limits,
}

/// Limits of a service. What is not set has its default.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Most connections at a time.
    pub connections: Option<u32>,
    /// Memory of all connections, in MiB.
    pub memory_mib: Option<u32>,
    /// Handshakes under way.
    pub handshakes: Option<u32>,
    /// Time for one.
    pub handshake_seconds: Option<u32>,
    /// Of one host.
    pub handshakes_per_second: Option<u32>,
    pub connections_per_second: Option<u32>,
}
