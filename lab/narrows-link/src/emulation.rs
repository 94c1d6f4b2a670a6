//! A running emulated link: two namespaces, the devices, and the threads that carry packets.

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
    /// The host whose packets go up.
    Client,
    /// The host whose packets go down.
    Server,
}

/// The mechanism that carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// TUN devices where they can be opened, packet sockets elsewhere.
    Auto,
    /// TUN devices; this program shapes.
    Tun,
    /// Packet sockets on veth devices; this program shapes. Needs no device file, so it works
    /// without root.
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
            _ => Err(format!("'{text}' is not a backend: auto, tun, packet, kernel")),
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

/// Packet counters of both directions, and the CPU time of the threads that carry the packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkCounters {
    /// Client to server.
    pub up: Counters,
    /// Server to client.
    pub down: Counters,
    /// CPU time of both pump threads; 0 with the kernel's backend, which has none.
    pub cpu: Duration,
}

/// Two hosts on this machine, each in its own network namespace, and the link between them.
/// Dropping it kills every process in the namespaces and removes the namespaces and devices.
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

/// Seeds of losses and jitter, fixed so that the same link loses the same packets in every run.
const SEEDS: [u64; 2] = [0x7570, 0x646f_776e];

impl Emulation {
    /// Starts a link with the default backend.
    ///
    /// # Errors
    /// As [`Self::start_with`].
    pub fn start(profile: &Profile) -> Result<Self, Error> {
        Self::start_with(profile, Backend::Auto)
    }

    /// Starts a link with the given backend.
    ///
    /// # Errors
    /// [`Error::Missing`] if the system lacks or refuses something, [`Error::System`] if a system
    /// call fails unexpectedly.
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
            networks: made.networks,
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
        let timetables = [profile.timetable_up(), profile.timetable_down()];
        let ways = [(client.clone(), server.clone(), "link-up"), (server, client, "link-down")];
        for (i, ((from, to, name), timetable)) in ways.into_iter().zip(timetables).enumerate() {
            let (frames, mtu) = (backend == Backend::Packet, profile.mtu);
            let pump = Pump { from, to, frames, mtu, shared: emulation.shared[i].clone() };
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || pump.run(timetable, SEEDS[i]));
            emulation.pumps.push(thread.map_err(system)?);
        }
        Ok(emulation)
    }

    /// The backend in use, never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether the link runs in its own user namespace, because the caller is not root.
    pub fn is_rootless(&self) -> bool {
        self.user.is_some()
    }

    /// The IP address of a side.
    pub fn address(&self, side: Side) -> IpAddr {
        match side {
            Side::Client => CLIENT.into(),
            Side::Server => SERVER.into(),
        }
    }

    /// A command that will run at `side`. Its environment holds both addresses.
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

    /// A UDP socket at `side`, bound to some port, for probes from within this process. Every call
    /// returns a duplicate of the same socket.
    pub fn probe_socket(&self, side: Side) -> std::io::Result<UdpSocket> {
        self.probes[side as usize].try_clone()
    }

    /// The current counters. They are up to 100 ms old while the link is idle, less while it is
    /// busy.
    pub fn counters(&self) -> LinkCounters {
        let [up, down] = &self.shared;
        LinkCounters { up: up.counters(), down: down.counters(), cpu: up.cpu() + down.cpu() }
    }

    /// Changes the link to another profile. Packets in flight keep their time of arrival; MTU and
    /// congestion control stay as they are.
    pub fn set(&self, profile: &Profile) -> Result<(), Error> {
        if self.backend == Backend::Kernel {
            return kernel::shape(self, profile);
        }
        self.shared[0].set_timetable(profile.timetable_up());
        self.shared[1].set_timetable(profile.timetable_down());
        Ok(())
    }

    /// False once the keeper process was killed or a pump thread ended.
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Stdio;
    use std::time::Instant;

    use narrows_test::PATIENCE;
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

    use super::*;

    /// `None`, with the reason recorded, where links are not possible.
    #[track_caller]
    fn start() -> Option<Emulation> {
        match Emulation::start(&"none".parse().unwrap()) {
            Ok(link) => Some(link),
            Err(Error::Missing(why)) => {
                narrows_test::skip(why);
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The targets of a process's descriptors, sorted. `None` if we may not read them.
    fn descriptors(pid: i32) -> Option<Vec<String>> {
        let folder = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut found: Vec<_> = folder.flatten().filter_map(|e| std::fs::read_link(e.path()).ok()).collect();
        found.sort();
        Some(found.iter().map(|path| path.display().to_string()).collect())
    }

    /// The keeper holds the namespaces, so that their inode numbers are not reused, but neither a
    /// device nor the descriptors of our other threads.
    fn holds_namespaces_and_a_socket_only(link: &Emulation) {
        let mut namespaces = link.networks.each_ref().map(|n| format!("net:[{}]", sys::identity(n.as_fd()).unwrap().1));
        namespaces.sort();
        let mut last = None;
        wait_until("the keeper's descriptors", || {
            last = descriptors(link.keeper.pid());
            let Some(found) = &last else { return true };
            let (null, rest) = found.split_at(found.partition_point(|path| path.starts_with('/')));
            let held =
                rest.split_last().is_some_and(|(socket, rest)| socket.starts_with("socket:") && rest == namespaces);
            null == ["/dev/null"; 3] && held
        });
    }

    #[test]
    fn the_keeper_holds_the_namespaces_and_little_else() {
        let Some(link) = start() else { return };
        holds_namespaces_and_a_socket_only(&link);
    }

    #[test]
    fn the_keeper_needs_no_close_range() {
        let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else {
            return narrows_test::skip("no filters of system calls for this processor");
        };
        let refused = [(libc::SYS_close_range, Vec::new())].into();
        let errno = SeccompAction::Errno(libc::ENOSYS as u32);
        let filter: BpfProgram =
            SeccompFilter::new(refused, SeccompAction::Allow, errno, arch).unwrap().try_into().unwrap();
        if start().is_none() {
            return;
        }
        // The filter applies to this thread and its descendants.
        let thread = std::thread::spawn(move || match seccompiler::apply_filter(&filter) {
            Ok(()) => holds_namespaces_and_a_socket_only(&start().unwrap()),
            Err(e) => narrows_test::skip(format!("system calls cannot be filtered here: {e}")),
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_killed_keeper_is_seen_and_its_owner_does_its_work() {
        let Some(link) = start() else { return };
        let mut command = link.command(Side::Client, "sh");
        let mut child = command.args(["-c", "echo up; exec sleep 6005"]).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
        assert!(link.is_alive());
        sys::kill(link.keeper.pid(), libc::SIGKILL).unwrap();
        wait_until("its end is seen", || !link.is_alive());
        drop(link);
        // The child is reaped below if it was killed, and killed if it was not: a failure leaves no
        // process behind.
        let begun = Instant::now();
        while child.try_wait().unwrap().is_none() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = child.try_wait().unwrap();
        let _ = child.kill();
        assert_eq!(status.expect("who was in the namespace is ended").signal(), Some(libc::SIGKILL));
    }
}
