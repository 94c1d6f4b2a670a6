//! System calls of the supervisor that have no safe wrapper.
#![allow(unsafe_code, reason = "fork, signals and options of any kind; every block says why it is sound")]

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use rustix::event::Timespec;

fn check(answer: c_int) -> Result<c_int> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(answer) }
}

/// Forks. `None` in the child, its pid in the parent. Call while there is only one thread.
pub(crate) fn fork() -> Result<Option<i32>> {
    // SAFETY: no pointers. With one thread the child's memory is a whole process, locks included.
    let pid = check(unsafe { libc::fork() })?;
    Ok((pid != 0).then_some(pid))
}

/// Exits without running exit handlers: they belong to the other copy of the process.
pub(crate) fn leave() -> ! {
    // SAFETY: it does not return and needs nothing.
    unsafe { libc::_exit(0) }
}

pub(crate) fn ignore(signals: &[c_int]) {
    for signal in signals {
        // SAFETY: ignoring needs no handler.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

static PIPE_SIGNAL_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn look_at_pipe_signal() {
    PIPE_SIGNAL_IGNORED.store(narrows_host::signals::is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// Rust ignores SIGPIPE before `main`, so its inherited state must be read earlier.
// SAFETY: libc calls what is in this section before `main`, with arguments that the function does not take; it makes one
// system call and writes one byte.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_PIPE_SIGNAL: extern "C" fn() = look_at_pipe_signal;

/// Keeps SIGPIPE ignored in the program if it was inherited so. `Command` restores the default, and
/// a program that was to start with it ignored would die of it.
pub(crate) fn keep_pipe_signal(command: &mut Command) {
    if PIPE_SIGNAL_IGNORED.load(Ordering::Relaxed) {
        let ignored = || {
            ignore(&[libc::SIGPIPE]);
            Ok(())
        };
        // SAFETY: it makes one system call, which is allowed between fork and exec.
        unsafe { command.pre_exec(ignored) };
    }
}

/// Sends a signal of any number by pidfd, so that it cannot reach another process.
pub(crate) fn send_signal(process: impl AsFd, signal: c_int) -> Result<()> {
    let fd = process.as_fd().as_raw_fd();
    // SAFETY: the only pointer is null.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, std::ptr::null::<libc::siginfo_t>(), 0) };
    check(sent as c_int).map(drop)
}

/// Closes all descriptors inherited from the parent but `keep`: they would stay open as long as the
/// supervisor lives, pipes above all.
pub(crate) fn close_all_but(keep: &[RawFd]) {
    let mut keep = keep.to_vec();
    keep.sort_unstable();
    let mut from = 3;
    for kept in keep.into_iter().chain([c_int::MAX]) {
        if from < kept {
            // SAFETY: no pointers. Nothing in this process owns these descriptors: it was forked
            // when only those in `keep` had been opened.
            unsafe { libc::syscall(libc::SYS_close_range, from, kept - 1, 0) };
        }
        from = kept.saturating_add(1);
    }
}

/// Raises the descriptor limit to the hard limit, since a connection takes two. Returns the new
/// limit.
pub fn raise_descriptor_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |n| n as usize)
}

/// The descriptor limit after raising it.
pub(crate) fn descriptor_limit() -> usize {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).maximum.map_or(usize::MAX, |n| n as usize)
}

pub(crate) fn get_option(fd: impl AsFd, level: c_int, option: c_int, value: &mut [u8]) -> Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes into `value`.
    check(unsafe { libc::getsockopt(fd, level, option, value.as_mut_ptr().cast(), &raw mut len) })?;
    Ok((len as usize).min(value.len()))
}

pub(crate) fn set_option(fd: impl AsFd, level: c_int, option: c_int, value: &[u8]) -> Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `value`.
    check(unsafe { libc::setsockopt(fd, level, option, value.as_ptr().cast(), value.len() as libc::socklen_t) })
        .map(drop)
}

fn ask(fd: BorrowedFd<'_>, request: libc::c_ulong) -> Result<c_int> {
    let mut answer: c_int = 0;
    // SAFETY: both requests below write one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut answer) })?;
    Ok(answer)
}

/// Bytes sent that the peer's kernel has not confirmed.
pub(crate) fn unconfirmed(fd: impl AsFd) -> usize {
    ask(fd.as_fd(), libc::TIOCOUTQ).map_or(0, |n| n.max(0) as usize)
}

/// Requests for addresses of interfaces: SIOCGIFADDR, and those for the peer, broadcast and
/// netmask.
pub(crate) const INTERFACE_ADDRESSES: [u32; 4] = [0x8915, 0x8917, 0x8919, 0x891b];
/// A `struct ifreq`.
pub(crate) type Interface = [u8; 40];

/// Asks an internet socket for an address of an interface.
pub(crate) fn interface_address(fd: impl AsFd, request: u32, interface: &mut Interface) -> Result<()> {
    if !INTERFACE_ADDRESSES.contains(&request) {
        return Err(Error::from_raw_os_error(libc::ENOTTY));
    }
    // SAFETY: these requests read and write one `ifreq`, which has no pointers for them.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request.into(), interface.as_mut_ptr()) }).map(drop)
}

/// Not defined by libc: the option, and its bit for the send buffer.
const SO_BUF_LOCK: c_int = 72;
const SOCK_SNDBUF_LOCK: c_int = 1;

/// The size of TCP's send buffer, and whether the program has set it, which is unknown before Linux
/// 5.14.
pub(crate) fn send_buffer(fd: impl AsFd) -> (usize, bool) {
    let int = |option| {
        let mut value = [0; 4];
        get_option(&fd, libc::SOL_SOCKET, option, &mut value).map_or(0, |_| c_int::from_ne_bytes(value))
    };
    (int(libc::SO_SNDBUF).max(0) as usize, int(SO_BUF_LOCK) & SOCK_SNDBUF_LOCK != 0)
}

/// Not defined by libc.
const SIOCATMARK: libc::c_ulong = 0x8905;

/// Whether the next byte comes right after an urgent one.
pub(crate) fn at_mark(fd: impl AsFd) -> bool {
    ask(fd.as_fd(), SIOCATMARK).is_ok_and(|n| n != 0)
}

/// How long epoll waits; `None`: until an event.
pub(crate) fn until(at_ns: Option<u64>, now_ns: u64) -> Option<Timespec> {
    let wait_ns = at_ns?.saturating_sub(now_ns);
    Some(Timespec { tv_sec: (wait_ns / 1_000_000_000) as i64, tv_nsec: (wait_ns % 1_000_000_000) as i64 })
}
