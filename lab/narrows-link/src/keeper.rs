//! The keeper: a small process that creates the namespaces, hands over their descriptors, and then
//! waits until its owner is gone, killed or not. It then kills every process left in the
//! namespaces. The kernel removes devices and namespaces with the last descriptor and process. If
//! the keeper is killed first, its owner does this cleanup.
//!
//! It must be a process: only a single-threaded process can enter a new user namespace, and a
//! library cannot require that of its caller.

use std::io::{self, Write};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys::{self, Interface, Namespace};
use crate::{Backend, Error};

pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// Network of both addresses, in the notation of `ip`.
pub(crate) const NETWORK: &str = "10.77.0.0/30";
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 252);
/// Name of the device at either side.
pub(crate) const DEVICE: &str = "link0";
/// Packets that queue while the scheduler delays the pump: 10 ms at 10 Gbit/s.
const DEVICE_QUEUE: u32 = 10_000;
/// MAC address of both ends of a pair: the same, so that frames need no ARP and every receiver
/// accepts them.
const HARDWARE: [u8; 6] = [0x02, 0, 0, 0, 0x77, 0x01];
/// Limit on sweeps: a process that forks faster than we find it escapes until its fork fails.
const SWEEPS_MAX: usize = 1000;
/// Setup takes some ms, but far longer on a loaded machine.
const SETUP_PATIENCE: Duration = Duration::from_secs(20);
/// Shutdown takes a few sweeps. After this time the keeper is killed; after the same time again we
/// stop waiting for it.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Instructions for the keeper, prepared before the fork.
pub(crate) struct Order {
    pub(crate) backend: Backend,
    pub(crate) mtu: u32,
}

/// The step that failed, as one byte on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    Done,
    Descriptors,
    UserNamespace,
    Maps,
    NetworkNamespace,
    Tun,
    Pair,
    PacketSocket,
    Configure,
    Probe,
}

const STAGES: [Stage; 10] = [
    Stage::Done,
    Stage::Descriptors,
    Stage::UserNamespace,
    Stage::Maps,
    Stage::NetworkNamespace,
    Stage::Tun,
    Stage::Pair,
    Stage::PacketSocket,
    Stage::Configure,
    Stage::Probe,
];

pub(crate) struct Keeper {
    socket: Option<OwnedFd>,
    pid: i32,
    /// Both network namespaces, as long as processes may be in them.
    networks: Option<[Arc<OwnedFd>; 2]>,
}

/// Descriptors received from the keeper.
pub(crate) struct Made {
    pub(crate) user: Option<OwnedFd>,
    pub(crate) networks: [Arc<OwnedFd>; 2],
    /// One device at each side; the kernel's backend needs none.
    pub(crate) devices: Option<[OwnedFd; 2]>,
    pub(crate) probes: [UdpSocket; 2],
}

impl Keeper {
    pub(crate) fn start(order: &Order) -> Result<(Self, Made), Error> {
        let system = |what, e: io::Error| Error::System(format!("{what}: {e}"));
        let (ours, its) = sys::socket_pair().map_err(|e| system("cannot make a socket pair", e))?;
        let pid = sys::fork_with(its, order, keep).map_err(|e| system("cannot start a process", e))?;
        let mut answer = [0; 8];
        let begun = Instant::now();
        let received = loop {
            let left = SETUP_PATIENCE.saturating_sub(begun.elapsed());
            match sys::receive_with(ours.as_fd(), &mut answer) {
                Err(e) if sys::would_block(&e) && !left.is_zero() => sys::wait_readable(&[ours.as_fd()], left),
                received => break received,
            }
        };
        let mut keeper = Self { socket: Some(ours), pid, networks: None };
        let fds = match received {
            Ok((8, fds)) => fds,
            Err(e) if sys::would_block(&e) => {
                let why = format!("making the namespaces took longer than {} s", SETUP_PATIENCE.as_secs());
                return Err(Error::System(why));
            }
            _ => return Err(Error::System("the process that makes the namespaces ended early".into())),
        };
        let stage = STAGES.get(usize::from(answer[0])).copied().unwrap_or(Stage::Configure);
        if stage != Stage::Done {
            let code = i32::from_ne_bytes([answer[4], answer[5], answer[6], answer[7]]);
            return Err(explain(stage, &io::Error::from_raw_os_error(code), answer[1] != 0));
        }
        let rootless = answer[1] != 0;
        let mut fds = fds.into_iter();
        let missing = || Error::System("the process that makes the namespaces sent too little".into());
        let user = if rootless { Some(fds.next().ok_or_else(missing)?) } else { None };
        let mut pair = || Some([fds.next()?, fds.next()?]);
        let networks = pair().ok_or_else(missing)?.map(Arc::new);
        keeper.networks = Some(networks.clone());
        let probes = pair().ok_or_else(missing)?.map(UdpSocket::from);
        let devices = if order.backend == Backend::Kernel { None } else { Some(pair().ok_or_else(missing)?) };
        Ok((keeper, Made { user, networks, devices, probes }))
    }

    pub(crate) fn is_alive(&self) -> bool {
        !sys::has_ended(self.pid)
    }

    #[cfg(test)]
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for Keeper {
    /// Waits until every process in the namespaces has been killed.
    fn drop(&mut self) {
        drop(self.socket.take());
        let begun = Instant::now();
        let swept = loop {
            match sys::reap(self.pid) {
                Some(well) => break well,
                None if begun.elapsed() > 2 * END_PATIENCE => break false,
                None if begun.elapsed() > END_PATIENCE => drop(sys::kill(self.pid, libc::SIGKILL)),
                None => {}
            }
            std::thread::sleep(Duration::from_micros(500));
        };
        if let Some(networks) = self.networks.as_ref().filter(|_| !swept) {
            sweep(networks.each_ref().map(|n| n.as_fd()));
        }
    }
}

/// Kills every process in the namespaces. They must stay open meanwhile: the kernel could reuse the
/// inode numbers of closed namespaces, and unrelated processes would be killed.
fn sweep(networks: [BorrowedFd<'_>; 2]) {
    let [Ok(client), Ok(server)] = networks.map(sys::identity) else { return };
    for _ in 0..SWEEPS_MAX {
        if !sys::end_inhabitants(&[client, server]) {
            break;
        }
        sys::pause(Duration::from_millis(1));
    }
}

fn explain(stage: Stage, e: &io::Error, rootless: bool) -> Error {
    let who = if rootless { "in a user namespace of its own" } else { "as root" };
    Error::Missing(match stage {
        Stage::Descriptors => format!(
            "cannot close inherited descriptors: {e}; needs /proc, or Linux 5.9 and no filter that refuses close_range"
        ),
        Stage::UserNamespace => format!(
            "cannot make a network namespace: that needs root (CAP_SYS_ADMIN), or user namespaces, which this system refuses ({e}): \
             see the sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone and \
             kernel.apparmor_restrict_unprivileged_userns"
        ),
        Stage::Maps => format!("cannot map the user into a user namespace: {e}"),
        Stage::Tun if e.kind() == io::ErrorKind::PermissionDenied => format!(
            "cannot open /dev/net/tun: {e}; run as root, or make it readable and writable for this user, or take --backend packet, \
             which works without it"
        ),
        Stage::Tun => format!("cannot make a TUN device {who}: {e}; try --backend packet"),
        Stage::Pair => format!("cannot make a pair of veth devices {who}: {e}; does this kernel have veth?"),
        Stage::PacketSocket => format!("cannot open a packet socket {who}: {e}; does this kernel have AF_PACKET?"),
        Stage::NetworkNamespace | Stage::Done | Stage::Configure | Stage::Probe => {
            format!("cannot set up the namespaces {who} ({stage:?}): {e}")
        }
    })
}

// --- in the keeper: system calls only ---

fn keep(order: &Order, socket: BorrowedFd<'_>) {
    let mut rootless = false;
    let made = make(order, &mut rootless);
    let Inside { user, networks, devices, probes } = match made {
        Ok(made) => made,
        Err((stage, e)) => {
            let code = e.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
            let answer = [stage as u8, u8::from(rootless), 0, 0, code[0], code[1], code[2], code[3]];
            let _ = sys::send_with(socket, &answer, &[]);
            return;
        }
    };
    let mut fds = [-1; sys::FDS_MAX];
    let mut count = 0;
    for fd in user.iter().chain(&networks).chain(&probes).chain(devices.iter().flatten()) {
        fds[count] = fd.as_raw_fd();
        count += 1;
    }
    if sys::send_with(socket, &[0, u8::from(rootless), 0, 0, 0, 0, 0, 0], &fds[..count]).is_err() {
        return;
    }
    // A device lives as long as its descriptor, and the owner has that. The namespaces stay open
    // for `sweep`.
    drop((user, devices, probes));
    // The owner sends nothing: a return means that the owner or the link has ended.
    while sys::read(socket, &mut [0; 8]).is_err_and(|e| e.kind() == io::ErrorKind::Interrupted) {}
    sweep(networks.each_ref().map(AsFd::as_fd));
}

struct Inside {
    user: Option<OwnedFd>,
    networks: [OwnedFd; 2],
    devices: Option<[OwnedFd; 2]>,
    probes: [OwnedFd; 2],
}

type Staged<T> = Result<T, (Stage, io::Error)>;

trait At<T> {
    fn at(self, stage: Stage) -> Staged<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, stage: Stage) -> Staged<T> {
        self.map_err(|e| (stage, e))
    }
}

fn make(order: &Order, rootless: &mut bool) -> Staged<Inside> {
    sys::close_others().at(Stage::Descriptors)?;
    let mut user = None;
    if let Err(e) = sys::unshare(Namespace::Network) {
        if e.kind() != io::ErrorKind::PermissionDenied {
            return Err((Stage::NetworkNamespace, e));
        }
        *rootless = true;
        let (uid, gid) = sys::ids();
        sys::unshare(Namespace::User).at(Stage::UserNamespace)?;
        map(uid, gid).at(Stage::Maps)?;
        user = Some(sys::current(Namespace::User).at(Stage::UserNamespace)?);
        sys::unshare(Namespace::Network).at(Stage::NetworkNamespace)?;
    }
    let client = sys::current(Namespace::Network).at(Stage::NetworkNamespace)?;
    sys::unshare(Namespace::Network).at(Stage::NetworkNamespace)?;
    let server = sys::current(Namespace::Network).at(Stage::NetworkNamespace)?;
    let devices = match order.backend {
        Backend::Tun => None,
        Backend::Kernel => {
            sys::make_pair(DEVICE, DEVICE, client.as_fd()).at(Stage::Pair)?;
            None
        }
        Backend::Auto | Backend::Packet => {
            // The other ends are in a third namespace, which no process enters.
            sys::unshare(Namespace::Network).at(Stage::NetworkNamespace)?;
            Some([end(order, "client", client.as_fd())?, end(order, "server", server.as_fd())?])
        }
    };
    let (client_probe, client_tun) = configure(order, client.as_fd(), CLIENT)?;
    let (server_probe, server_tun) = configure(order, server.as_fd(), SERVER)?;
    let devices = devices.or_else(|| Some([client_tun?, server_tun?]));
    Ok(Inside { user, networks: [client, server], devices, probes: [client_probe, server_probe] })
}

/// Creates a device in `side` and returns the packet socket that carries its frames.
fn end(order: &Order, name: &str, side: BorrowedFd<'_>) -> Staged<OwnedFd> {
    sys::make_pair(name, DEVICE, side).at(Stage::Pair)?;
    let device = Interface::named(name).at(Stage::Configure)?;
    device.set_mtu(order.mtu).at(Stage::Configure)?;
    device.up(false).at(Stage::Configure)?;
    device.packets().at(Stage::PacketSocket)
}

/// Configures one side. Returns a socket for probes and, with that backend, the TUN device.
fn configure(order: &Order, side: BorrowedFd<'_>, address: Ipv4Addr) -> Staged<(OwnedFd, Option<OwnedFd>)> {
    sys::enter(side, Namespace::Network).at(Stage::Configure)?;
    Interface::named("lo").and_then(|lo| lo.up(true)).at(Stage::Configure)?;
    let device = Interface::named(DEVICE).at(Stage::Configure)?;
    let tun = if order.backend == Backend::Tun { Some(device.tun().at(Stage::Tun)?) } else { None };
    if tun.is_none() {
        device.set_hardware_address(HARDWARE).at(Stage::Configure)?;
        device.offloads_off().at(Stage::Configure)?;
    }
    device.set_mtu(order.mtu).at(Stage::Configure)?;
    // Older kernels allow this only to the system's root; without it the queue holds 500 packets.
    let _ = device.set_queue_len(DEVICE_QUEUE);
    device.up(false).at(Stage::Configure)?;
    device.set_address(address, MASK).at(Stage::Configure)?;
    let probe = UdpSocket::bind((address, 0)).at(Stage::Probe)?;
    Ok((probe.into(), tun))
}

/// Maps the user to itself: programs that ask whether they are root get the same answer as outside.
fn map(uid: u32, gid: u32) -> io::Result<()> {
    sys::write_file(c"/proc/self/setgroups", b"deny")?;
    for (path, id) in [(c"/proc/self/uid_map", uid), (c"/proc/self/gid_map", gid)] {
        let mut line = [0u8; 32];
        let mut rest = &mut line[..];
        write!(rest, "{id} {id} 1")?;
        let left = rest.len();
        sys::write_file(path, &line[..32 - left])?;
    }
    Ok(())
}
