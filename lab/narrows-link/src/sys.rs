//! System calls that the standard library does not offer: namespaces, devices, packets, processes. Linux only.
//!
//! `unsafe` is confined to this module and its two submodules. Functions that the keeper calls
//! neither allocate nor take a lock: it runs between fork and exit in a copy of a process that may
//! have had other threads.
#![allow(unsafe_code, reason = "system calls without a safe wrapper; every block says why it is sound")]

use std::ffi::CStr;
use std::io::{self, Error, Result};
use std::mem::{size_of, zeroed};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use libc::{c_int, c_short};

use crate::netlink::Message;

mod fork;
mod process;

pub(crate) use fork::{FDS_MAX, close_others, fork_with, receive_with, send_with, socket_pair};
pub(crate) use process::{end_inhabitants, has_ended, identity, kill, leave_terminal_signals_to_children, reap};

fn check(answer: c_int) -> Result<c_int> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(answer) }
}

fn owned(answer: c_int) -> Result<OwnedFd> {
    // SAFETY: the call that made this descriptor succeeded and nobody else has it.
    check(answer).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

// --- namespaces ---

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    User,
    Network,
}

impl Namespace {
    const fn flag(self) -> c_int {
        match self {
            Self::User => libc::CLONE_NEWUSER,
            Self::Network => libc::CLONE_NEWNET,
        }
    }

    const fn file(self) -> &'static CStr {
        match self {
            Self::User => c"/proc/thread-self/ns/user",
            Self::Network => c"/proc/thread-self/ns/net",
        }
    }
}

/// Puts the caller into a new namespace.
pub(crate) fn unshare(kind: Namespace) -> Result<()> {
    // SAFETY: no pointers. It changes the caller's namespaces, which is what it is for.
    check(unsafe { libc::unshare(kind.flag()) }).map(drop)
}

pub(crate) fn enter(namespace: BorrowedFd<'_>, kind: Namespace) -> Result<()> {
    // SAFETY: no pointers; the descriptor is borrowed for the call.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kind.flag()) }).map(drop)
}

/// The caller's namespace.
pub(crate) fn current(kind: Namespace) -> Result<OwnedFd> {
    open(kind.file(), libc::O_RDONLY)
}

pub(crate) fn open(path: &CStr, flags: c_int) -> Result<OwnedFd> {
    // SAFETY: `path` ends with a zero.
    owned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })
}

pub(crate) fn write_file(path: &CStr, bytes: &[u8]) -> Result<()> {
    let file = open(path, libc::O_WRONLY)?;
    match write(file.as_fd(), bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(Error::from_raw_os_error(libc::EIO)),
    }
}

pub(crate) fn ids() -> (u32, u32) {
    // SAFETY: these calls cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Makes `command` run in these namespaces. With `network_rights` it may configure its network
/// without being root.
pub(crate) fn run_inside(
    command: &mut Command,
    user: Option<Arc<OwnedFd>>,
    network: Arc<OwnedFd>,
    network_rights: bool,
) {
    let inside = move || {
        if let Some(user) = &user {
            enter(user.as_fd(), Namespace::User)?;
        }
        enter(network.as_fd(), Namespace::Network)?;
        if network_rights { keep_network_rights() } else { Ok(()) }
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor locks.
    unsafe { command.pre_exec(inside) };
}

/// Keeps CAP_NET_ADMIN across exec for a user other than root.
fn keep_network_rights() -> Result<()> {
    #[repr(C)]
    struct Header(u32, c_int);
    const NET_ADMIN: u32 = 12;
    let mut header = Header(0x2008_0522, 0);
    let mut sets = [0u32; 6];
    // SAFETY: header and sets have the layout of version 3 of this call and live through it.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) } as c_int)?;
    sets[2] |= 1 << NET_ADMIN;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) } as c_int)?;
    // SAFETY: integers only.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, NET_ADMIN, 0, 0) }).map(drop)
}

// --- devices ---

/// An interface of the network namespace that the thread was in when this was created.
pub(crate) struct Interface {
    socket: OwnedFd,
    name: [u8; libc::IFNAMSIZ],
}

impl Interface {
    pub(crate) fn named(name: &str) -> Result<Self> {
        // SAFETY: integers only.
        let socket = owned(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
        let mut bytes = [0; libc::IFNAMSIZ];
        // The last byte stays 0.
        let len = name.len().min(libc::IFNAMSIZ - 1);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Ok(Self { socket, name: bytes })
    }

    fn request(&self) -> libc::ifreq {
        // SAFETY: all zeroes is a valid ifreq.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name) {
            *to = from as libc::c_char;
        }
        request
    }

    fn ioctl(&self, code: libc::Ioctl, request: &mut libc::ifreq) -> Result<()> {
        // SAFETY: every code that is used here takes an ifreq, which lives through the call.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), code, std::ptr::from_mut(request)) }).map(drop)
    }

    pub(crate) fn up(&self, arp: bool) -> Result<()> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS filled this member.
        let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags }) | libc::IFF_UP;
        request.ifr_ifru.ifru_flags = if arp { flags } else { flags | libc::IFF_NOARP } as c_short;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    pub(crate) fn set_address(&self, address: Ipv4Addr, mask: Ipv4Addr) -> Result<()> {
        for (code, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask)] {
            let mut request = self.request();
            // SAFETY: all zeroes is a valid sockaddr_in, which is as long as the sockaddr that it is written over.
            let mut inet: libc::sockaddr_in = unsafe { zeroed() };
            inet.sin_family = libc::AF_INET as libc::sa_family_t;
            inet.sin_addr.s_addr = u32::from_ne_bytes(value.octets());
            // SAFETY: both are 16 bytes of integers.
            request.ifr_ifru.ifru_addr = unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(inet) };
            self.ioctl(code, &mut request)?;
        }
        Ok(())
    }

    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = mtu as c_int;
        self.ioctl(libc::SIOCSIFMTU, &mut request)
    }

    pub(crate) fn set_queue_len(&self, packets: u32) -> Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_mtu = packets as c_int;
        self.ioctl(libc::SIOCSIFTXQLEN, &mut request)
    }

    pub(crate) fn set_hardware_address(&self, address: [u8; 6]) -> Result<()> {
        let mut request = self.request();
        // SAFETY: all zeroes is a valid sockaddr.
        let mut hardware: libc::sockaddr = unsafe { zeroed() };
        hardware.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in hardware.sa_data.iter_mut().zip(address) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_hwaddr = hardware;
        self.ioctl(libc::SIOCSIFHWADDR, &mut request)
    }

    /// Turns offloads off: the kernel computes checksums and segments packets itself, as for any
    /// simple network card.
    pub(crate) fn offloads_off(&self) -> Result<()> {
        const TX_CHECKSUMS: u32 = 0x17;
        const TSO: u32 = 0x1f;
        const GRO: u32 = 0x2c;
        for command in [TSO, TX_CHECKSUMS, GRO] {
            let mut value = [command, 0u32];
            let mut request = self.request();
            request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
            self.ioctl(libc::SIOCETHTOOL, &mut request)?;
        }
        Ok(())
    }

    pub(crate) fn index(&self) -> Result<c_int> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: SIOCGIFINDEX filled this member.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex })
    }

    /// Opens a TUN device of this name: bare IP packets, never longer than the MTU.
    pub(crate) fn tun(&self) -> Result<OwnedFd> {
        const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
        let device = open(c"/dev/net/tun", libc::O_RDWR | libc::O_NONBLOCK)?;
        let mut request = self.request();
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
        // SAFETY: TUNSETIFF takes an ifreq, which lives through the call.
        check(unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) })?;
        Ok(device)
    }

    /// A packet socket for IPv4 frames to and from this device, bypassing its queueing discipline.
    pub(crate) fn packets(&self) -> Result<OwnedFd> {
        let protocol = (libc::ETH_P_IP as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: integers only. Without a protocol the socket receives nothing before it is bound.
        let socket = owned(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // Buffers as large as permitted: a burst queues here until the pump reads it.
        for (option, forced) in [(libc::SO_RCVBUF, libc::SO_RCVBUFFORCE), (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE)] {
            let bytes = DEVICE_BUFFER_BYTES;
            if set_option(socket.as_fd(), libc::SOL_SOCKET, forced, bytes).is_err() {
                set_option(socket.as_fd(), libc::SOL_SOCKET, option, bytes)?;
            }
        }
        set_option(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = self.index()?;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address and its length belong together and live through the call.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(socket)
    }
}

/// Size of socket buffers: room for a burst of 10,000 packets that waits for the pump.
const DEVICE_BUFFER_BYTES: c_int = 32 << 20;

fn set_option(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: c_int) -> Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the option is an int, which lives through the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) }).map(drop)
}

pub(crate) fn set_receive_buffer(socket: BorrowedFd<'_>) -> Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, DEVICE_BUFFER_BYTES)
        .or_else(|_| set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, DEVICE_BUFFER_BYTES))
}

/// Frames that the kernel dropped on this socket since the last call.
pub(crate) fn packet_drops(socket: BorrowedFd<'_>) -> u64 {
    let mut counts = [0u32; 2];
    let mut len = size_of::<[u32; 2]>() as libc::socklen_t;
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
    // SAFETY: the answer is two u32, and the length passed is theirs.
    let answer =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, counts.as_mut_ptr().cast(), &raw mut len) };
    if answer == 0 { u64::from(counts[1]) } else { 0 }
}

/// Creates a pair of veth devices: `name` here, `peer_name` in the namespace `peer`.
pub(crate) fn make_pair(name: &str, peer_name: &str, peer: BorrowedFd<'_>) -> Result<()> {
    let message = Message::new_pair(name, peer_name, peer.as_raw_fd());
    // SAFETY: integers only.
    let socket =
        owned(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) })?;
    let bytes = message.as_bytes();
    // SAFETY: the bytes live through the call; an unconnected netlink socket sends to the kernel.
    check(unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) } as c_int)?;
    // The answer is a header and an error number, then our message again.
    let mut answer = [0u8; 512];
    // SAFETY: the length passed is that of the buffer.
    let got = check(unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) } as c_int)?;
    let error = answer[16..20].try_into().map_or(0, i32::from_ne_bytes);
    match error {
        _ if got < 20 => Err(Error::from_raw_os_error(libc::EIO)),
        0 => Ok(()),
        error => Err(Error::from_raw_os_error(-error)),
    }
}

// --- bytes, waiting, time ---

pub(crate) fn read(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize> {
    // SAFETY: the length passed is that of the buffer.
    let got = unsafe { libc::read(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len()) };
    usize::try_from(got).map_err(|_| Error::last_os_error())
}

pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the bytes live through the call.
    let put = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(put).map_err(|_| Error::last_os_error())
}

/// An eventfd: readable after a write.
pub(crate) fn event() -> Result<OwnedFd> {
    // SAFETY: integers only.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Waits until a descriptor is readable or the timeout passes.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) {
    // The pump waits for its device and its event.
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 2];
    for (to, from) in polled.iter_mut().zip(fds) {
        to.fd = from.as_raw_fd();
    }
    let time = libc::timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
    let count = fds.len().min(polled.len()) as libc::nfds_t;
    // SAFETY: `polled` has `count` entries at least; the mask may be null. An interruption counts
    // as a wake-up.
    unsafe { libc::ppoll(polled.as_mut_ptr(), count, &raw const time, std::ptr::null()) };
}

/// Lowers the calling thread's timer slack from 50 us to 1 ns, so that its waits end on time.
/// Failure is harmless.
pub(crate) fn wake_exactly() {
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Raises the calling thread's priority where that is permitted: a real link does not slow down
/// because a host is busy. Failure is harmless.
pub(crate) fn go_first() {
    // As high as kernel threads that carry packets may be set, but not real-time, which could
    // starve everything else.
    const NICE: c_int = -15;
    // SAFETY: integers only. On Linux "process 0" of setpriority is the calling thread alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// CPU time that the calling thread has used.
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is filled by the call, which keeps no pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps by a bare system call.
pub(crate) fn pause(time: Duration) {
    let time = libc::timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ };
    // SAFETY: `time` lives through the call; nothing is asked for on interruption.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

pub(crate) fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
