//! The settings of a tunnel, changes of them, and its reports.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub use narrows_trust::ends::Trust;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use super::engine;
use super::forward::Forward;
use super::limits::Limits;
use super::reason::Reason;
use super::rules::Rules;
use super::session::Timing;
use super::target::Endpoint;

/// Name of the protocol within TLS (ALPN, RFC 7301).
pub const PROTOCOL: &[u8] = b"narrows-tunnel/1";

/// What an acceptor does before its ports answer, such as to write what dialers look for.
pub type BeforeListening = Box<dyn FnOnce() -> std::io::Result<()> + Send>;

/// Settings of a tunnel, at either end.
#[derive(Default)]
pub struct Settings {
    /// The other end, for a dialer.
    pub uplink: Option<Uplink>,
    /// Carriers that are kept open from the start, 1 to 4.
    pub carriers: usize,
    /// Where an acceptor waits for dialers, and how it proves itself.
    pub listen: Vec<(SocketAddr, Arc<ServerConfig>)>,
    /// Done when these addresses are taken, and before one of them answers.
    pub before_listening: Option<BeforeListening>,
    /// A carrier that is there already: the standard streams of an acceptor behind a remote shell.
    pub stdio: Option<OwnedFd>,
    /// Listeners here, whose connections the acceptor continues.
    pub local: Vec<Forward>,
    /// Listeners of the acceptor, whose connections continue here.
    pub remote: Vec<Forward>,
    /// SOCKS listeners here.
    pub dynamic: Vec<Endpoint>,
    /// What an acceptor connects to, and what it listens on.
    pub allow: Rules,
    pub allow_listen: Rules,
    pub engine: engine::Settings,
    pub timing: Timing,
    /// Most connections at a time.
    pub flows_max: usize,
    pub limits: Limits,
    /// Addresses whose connections to local listeners begin with a PROXY header.
    pub proxy_from: Vec<IpAddr>,
    /// Whether connections to targets begin with a PROXY header.
    pub send_proxy: bool,
    /// Whether a dialer goes on trying before it was connected for the first time.
    pub keeps_trying: bool,
    /// Whether the end of each connection is reported.
    pub tells_ends: bool,
}

/// What may change while a tunnel runs. It counts for connections that begin later.
#[derive(Default)]
pub struct Change {
    pub allow: Rules,
    pub allow_listen: Rules,
    pub proxy_from: Vec<IpAddr>,
    pub send_proxy: bool,
    pub limits: Limits,
    /// Time in which a peer's hello must come, in ns.
    pub hello_within_ns: u64,
}

/// How the other end is reached.
#[derive(Clone)]
pub enum Uplink {
    /// By TLS over TCP.
    Tls { host: String, port: u16, config: Arc<ClientConfig>, name: ServerName<'static> },
    /// By a program that connects its standard streams to an acceptor.
    Shell { command: Vec<OsString> },
}

/// What a tunnel has to tell its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// It listens here for dialers.
    Serving { address: String },
    /// A forward listens.
    Listening { from: String, to: String },
    /// A listener at the other end, which exists again after each connection to it.
    RemoteListening { from: String, to: String },
    /// A listener at the other end is not possible.
    RemoteRefused { from: String, why: String },
    /// The other end answers.
    Up,
    /// The other end is lost; it is tried again.
    Lost { why: String },
    /// A connection was refused or broken.
    Flow { text: String },
    /// A target that a connection of this dialer wanted was not reached. It is a `Flow` too; this is told
    /// once a minute of each target at most.
    Unreached { to: String, reason: Reason, text: String },
    /// A connection has ended, if the settings want to hear of it.
    Ended(Box<Ended>),
    /// Something of a dialer, for a verbose acceptor.
    Peer { text: String },
    /// A dialer whose token or certificate is not accepted, and why. All of them are `Peer` too;
    /// this is told once in a second at most.
    Refused { text: String },
    /// Reports that were lost, since nobody took them in time.
    Missed { count: u64 },
    /// The tunnel is over; an error if it is a failure.
    Over { error: Option<String> },
}

/// A connection that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its number within the process.
    pub id: u64,
    /// The client, and where it wanted to.
    pub from: String,
    pub to: String,
    pub lasted: Duration,
    /// Raw and carried bytes, sent and received.
    pub out: [u64; 2],
    pub back: [u64; 2],
    /// Why, if it did not end by itself.
    pub reason: Option<Reason>,
}
