//! A running link.

use std::ffi::OsStr;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::keeper::{CLIENT, Keeper, Order, SERVER};
use crate::profile::Profile;
use crate::pump::{Pump, Shared};
use crate::shaper::Counters;
use crate::{Error, kernel, sys};

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// What carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// TUN devices where they can be opened, packet sockets elsewhere.
    Auto,
    /// TUN devices and this program.
    Tun,
    /// Packet sockets on veth devices and this program: needs no device file, so it works without root.
    Packet,
    /// The kernel's own tbf and netem between two veth devices, set by `tc`.
    Kernel,
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "tun" => Ok(Self::Tun),
            "packet" => Ok(Self::Packet),
            "kernel" => Ok(Self::Kernel),
            _ => Err(format!("'{text}' is no backend: auto, tun, packet, kernel")),
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Tun => "tun",
            Self::Packet => "packet",
            Self::Kernel => "kernel",
        })
    }
}

/// What was counted in both directions, and the CPU time of the threads that carried it.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkCounters {
    pub up: Counters,
    pub down: Counters,
    pub cpu: Duration,
}

/// Two hosts of this machine, each in a network namespace of its own, and the link between them. Dropping it ends every
/// process in them and leaves nothing.
pub struct Emulation {
    profile: String,
    backend: Backend,
    user: Option<Arc<OwnedFd>>,
    networks: [Arc<OwnedFd>; 2],
    probes: [UdpSocket; 2],
    /// Up and down.
    shared: [Arc<Shared>; 2],
    pumps: Vec<JoinHandle<()>>,
    keeper: Keeper,
}

/// The seeds of losses and jitter: the same link loses the same packets.
const SEEDS: [u64; 2] = [0x7570, 0x646f_776e];

impl Emulation {
    pub fn start(profile: &Profile) -> Result<Self, Error> {
        Self::start_with(profile, Backend::Auto)
    }

    pub fn start_with(profile: &Profile, backend: Backend) -> Result<Self, Error> {
        if backend == Backend::Auto {
            return match Self::start_with(profile, Backend::Tun) {
                Err(Error::Missing(_)) => Self::start_with(profile, Backend::Packet),
                other => other,
            };
        }
        let order = Order { backend, mtu: profile.mtu };
        let (keeper, made) = Keeper::start(&order)?;
        let system = |e| Error::System(format!("cannot start the link: {e}"));
        let mut emulation = Self {
            profile: profile.to_string(),
            backend,
            user: made.user.map(Arc::new),
            networks: made.networks.map(Arc::new),
            probes: made.probes,
            shared: [Shared::new().map_err(system)?, Shared::new().map_err(system)?],
            pumps: Vec::new(),
            keeper,
        };
        if let Some(name) = &profile.congestion {
            kernel::set_congestion(&emulation, name)?;
        }
        let Some(devices) = made.devices else {
            kernel::shape(&emulation, profile)?;
            return Ok(emulation);
        };
        let [client, server] = devices.map(Arc::new);
        let plans = [profile.plan_up(), profile.plan_down()];
        let ways = [(client.clone(), server.clone(), "link-up"), (server, client, "link-down")];
        for (i, ((from, to, name), plan)) in ways.into_iter().zip(plans).enumerate() {
            let pump = Pump { from, to, frames: backend == Backend::Packet, shared: emulation.shared[i].clone() };
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || pump.run(plan, SEEDS[i]));
            emulation.pumps.push(thread.map_err(system)?);
        }
        Ok(emulation)
    }

    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether it runs in a user namespace of its own.
    pub fn is_rootless(&self) -> bool {
        self.user.is_some()
    }

    pub fn address(&self, side: Side) -> IpAddr {
        match side {
            Side::Client => CLIENT.into(),
            Side::Server => SERVER.into(),
        }
    }

    /// A command that will run at that side, and knows both addresses from its environment.
    pub fn command(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        self.command_with(side, program, false)
    }

    pub(crate) fn command_with(&self, side: Side, program: impl AsRef<OsStr>, network_rights: bool) -> Command {
        let mut command = Command::new(program);
        let network = self.networks[side as usize].clone();
        sys::run_inside(&mut command, self.user.clone(), network, network_rights && self.is_rootless());
        command.env("NARROWS_LINK_CLIENT", CLIENT.to_string()).env("NARROWS_LINK_SERVER", SERVER.to_string());
        command.env("NARROWS_LINK_PROFILE", &self.profile);
        command
    }

    /// A UDP socket of that side, bound to some port, for probes from within this process. All copies are one socket.
    pub fn probe_socket(&self, side: Side) -> std::io::Result<UdpSocket> {
        self.probes[side as usize].try_clone()
    }

    /// Up to 100 ms old while the link is idle, less while it is not.
    pub fn counters(&self) -> LinkCounters {
        let [up, down] = &self.shared;
        LinkCounters { up: up.counters(), down: down.counters(), cpu: up.cpu() + down.cpu() }
    }

    /// Another link from now on; packets that are under way keep their time of arrival. MTU and congestion control stay.
    pub fn set(&self, profile: &Profile) -> Result<(), Error> {
        if self.backend == Backend::Kernel {
            return kernel::shape(self, profile);
        }
        self.shared[0].set_plan(profile.plan_up());
        self.shared[1].set_plan(profile.plan_down());
        Ok(())
    }

    /// False after somebody killed the process that keeps the namespaces, or a pump ended.
    pub fn is_alive(&self) -> bool {
        self.keeper.is_alive() && !self.pumps.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        for shared in &self.shared {
            shared.stop();
        }
        for pump in self.pumps.drain(..) {
            let _ = pump.join();
        }
    }
}
