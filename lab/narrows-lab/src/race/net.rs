//! The network of a race: this host's loopback device, or two hosts with an emulated link between
//! them.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};
use narrows_link::{Backend, Emulation, Profile, Side};

/// The two ends of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Sender,
    Receiver,
}

/// Value of `--link` for plain loopback; as a profile it would mean two hosts and a link without
/// limits.
pub(crate) const LOOPBACK: &str = "none";
/// Ports of an emulated host: below the kernel's ephemeral ports, so that nothing else uses them.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

pub(crate) enum Net {
    Local,
    Emulated { link: Box<Emulation>, down: bool, next_port: AtomicU16 },
}

impl Net {
    /// Starts the network. The sender is the client, unless data goes `down`.
    pub(crate) fn start(profile: &str, backend: Backend, down: bool) -> Result<Self> {
        if profile == LOOPBACK {
            return Ok(Self::Local);
        }
        let profile: Profile = profile.parse().map_err(anyhow::Error::msg)?;
        let link = Box::new(Emulation::start_with(&profile, backend).map_err(|e| anyhow::anyhow!("{e}"))?);
        Ok(Self::Emulated { link, down, next_port: AtomicU16::new(PORTS.start) })
    }

    pub(crate) fn check(profile: &str) -> Result<(), String> {
        profile.parse::<Profile>().map(|_| ()).map_err(|e| e.to_string())
    }

    /// Bytes that plain could transfer per second; `None` if the link is unlimited.
    pub(crate) fn bytes_per_s(profile: &str, down: bool) -> Option<f64> {
        let profile: Profile = profile.parse().ok()?;
        let way = if down { profile.down } else { profile.up };
        way.mean_bits_per_s().map(|bits| bits / 8.0)
    }

    fn side(down: bool, end: End) -> Side {
        if (end == End::Sender) == down { Side::Server } else { Side::Client }
    }

    /// Address of the receiver.
    pub(crate) fn address(&self) -> String {
        self.address_of(End::Receiver)
    }

    pub(crate) fn address_of(&self, end: End) -> String {
        match self {
            Self::Local => "127.0.0.1".into(),
            Self::Emulated { link, down, .. } => link.address(Self::side(*down, end)).to_string(),
        }
    }

    pub(crate) fn command(&self, end: End, program: &str) -> Command {
        match self {
            Self::Local => local(program),
            Self::Emulated { link, down, .. } => link.command(Self::side(*down, end), program),
        }
    }

    /// A port on which nothing listens. A new one every time, as the last one may be in TIME_WAIT.
    pub(crate) fn free_port(&self) -> Result<u16> {
        match self {
            Self::Local => {
                let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
                Ok(listener.local_addr()?.port())
            }
            Self::Emulated { next_port, .. } => {
                Ok(PORTS.start + next_port.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start))
            }
        }
    }

    /// Bytes that the link has delivered towards the receiver.
    pub(crate) fn delivered_bytes(&self) -> Option<u64> {
        match self {
            Self::Local => None,
            Self::Emulated { link, down, .. } => {
                let counters = link.counters();
                Some(if *down { counters.down.bytes } else { counters.up.bytes })
            }
        }
    }

    /// Bytes that the link has delivered in both directions.
    pub(crate) fn delivered_both(&self) -> Option<u64> {
        match self {
            Self::Local => None,
            Self::Emulated { link, .. } => {
                let counters = link.counters();
                Some(counters.up.bytes + counters.down.bytes)
            }
        }
    }

    /// Packets that the emulator itself failed to pass on. Any such packet voids a measurement.
    pub(crate) fn spoilt(&self) -> u64 {
        match self {
            Self::Local => 0,
            Self::Emulated { link, .. } => {
                let counters = link.counters();
                counters.up.device_dropped + counters.down.device_dropped
            }
        }
    }
}

/// A command on this host. If `setpriv` supports it, the process dies with the thread that starts
/// it, as in an emulated host.
fn local(program: &str) -> Command {
    static CAN: OnceLock<bool> = OnceLock::new();
    let with = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", program]);
        command
    };
    let can = || with("true").stdin(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if *CAN.get_or_init(can) { with(program) } else { Command::new(program) }
}
