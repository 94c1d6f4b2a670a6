//! System calls of the filter and its notifications that have no safe wrapper.
#![allow(
    unsafe_code,
    reason = "filters, notifications and memory of other processes; every block says why it is sound"
)]

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

use libc::{c_int, c_long, c_ulong, iovec};

use crate::wire::RawAddress;

fn check(answer: c_long) -> Result<c_long> {
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(answer) }
}

// --- the filter ---

/// Whether the kernel supports notifications, with the structures of the compiled-in layout.
pub(super) fn notifies() -> bool {
    let mut sizes = libc::seccomp_notif_sizes { seccomp_notif: 0, seccomp_notif_resp: 0, seccomp_data: 0 };
    // SAFETY: the kernel writes one `seccomp_notif_sizes`.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, &raw mut sizes) };
    answer == 0
        && usize::from(sizes.seccomp_notif) == size_of::<libc::seccomp_notif>()
        && usize::from(sizes.seccomp_notif_resp) == size_of::<libc::seccomp_notif_resp>()
}

/// Puts this process and all its children under `filter`. Returns the listener for its questions,
/// and whether a received call can be interrupted only by a fatal signal. Uses no heap.
pub(super) fn install(filter: &[libc::sock_filter]) -> Result<(OwnedFd, bool)> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    let attempt = |flags: c_ulong| {
        // SAFETY: the kernel reads the program, which `filter` is.
        check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) })
    };
    let plain = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let killable = plain | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mut answer = attempt(killable);
    if answer.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EACCES)) {
        // Without privilege a filter needs no_new_privs: setuid programs get no rights from then
        // on. Root does without it.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
        answer = attempt(killable);
    }
    let (fd, killable) = match answer {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (attempt(plain)?, false),
        answer => (answer?, true),
    };
    // SAFETY: the kernel has just made it, for us.
    Ok((unsafe { OwnedFd::from_raw_fd(fd as c_int) }, killable))
}

/// Runs `work` in the child between fork and exec.
pub(super) fn before_exec(command: &mut Command, work: super::Post) {
    // SAFETY: there the child may only do what is safe in a signal handler: `Post::install` makes
    // system calls, and uses neither heap nor lock.
    unsafe { command.pre_exec(move || work.install()) };
}

// --- notifications ---

/// Receives the next question. An error if it was withdrawn meanwhile.
pub(super) fn receive(listener: BorrowedFd<'_>) -> Result<libc::seccomp_notif> {
    // SAFETY: numbers only, all of which may be zero; the kernel requires zeros.
    let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one notification; `notifies` compared the sizes.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) }.into())?;
    Ok(notification)
}

/// Answers a question. `error` is an errno or 0; with `go_on` the kernel does the call as if nobody
/// had asked.
pub(super) fn respond(listener: BorrowedFd<'_>, id: u64, value: i64, error: i32, go_on: bool) -> Result<()> {
    let flags = if go_on { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 };
    let response = libc::seccomp_notif_resp { id, val: value, error: -error, flags };
    // SAFETY: the kernel reads one response.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) }.into())
        .map(drop)
}

/// Whether the process still waits for this answer, so that its numbers still mean the same.
pub(super) fn is_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one number.
    unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &raw const id) == 0 }
}

/// Where a given descriptor is placed.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Under this number, replacing what is there.
    Number(c_int),
    /// Under a free number.
    Free,
    /// Under a free number, which is also the answer to the call.
    Answer,
}

/// Gives the asking process a descriptor, and returns its number there.
pub(super) fn add(
    listener: BorrowedFd<'_>,
    id: u64,
    fd: BorrowedFd<'_>,
    place: Place,
    closes_on_exec: bool,
) -> Result<i64> {
    let (flags, newfd) = match place {
        Place::Number(number) => (libc::SECCOMP_ADDFD_FLAG_SETFD, number as u32),
        Place::Free => (0, 0),
        Place::Answer => (libc::SECCOMP_ADDFD_FLAG_SEND, 0),
    };
    let request = libc::seccomp_notif_addfd {
        id,
        flags: flags as u32,
        srcfd: fd.as_raw_fd() as u32,
        newfd,
        newfd_flags: if closes_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
    };
    // SAFETY: the kernel reads one request.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const request) }.into())
}

/// Whether descriptors can be given as answers (since Linux 5.14): tries it with a question that
/// does not exist.
pub(super) fn adds(listener: BorrowedFd<'_>) -> bool {
    add(listener, 0, listener, Place::Answer, false).is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT))
}

// --- memory of other processes ---

fn far(at: u64, len: usize) -> iovec {
    iovec { iov_base: at as *mut _, iov_len: len }
}

/// Reads all of `into`, or fails.
pub(super) fn read_memory(pid: i32, at: u64, into: &mut [u8]) -> Result<()> {
    let far = far(at, into.len());
    let near = iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: the kernel writes into `into` only; the far address is the other process's, and the
    // kernel checks it.
    let got = unsafe { libc::process_vm_readv(pid, &raw const near, 1, &raw const far, 1, 0) };
    whole(got, into.len())
}

pub(super) fn write_memory(pid: i32, at: u64, from: &[u8]) -> Result<()> {
    let far = far(at, from.len());
    let near = iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    // SAFETY: the kernel reads `from`, and writes into the other process only.
    let got = unsafe { libc::process_vm_writev(pid, &raw const near, 1, &raw const far, 1, 0) };
    whole(got, from.len())
}

fn whole(got: isize, len: usize) -> Result<()> {
    if got < 0 {
        return Err(Error::last_os_error());
    }
    if got as usize == len { Ok(()) } else { Err(Error::from_raw_os_error(libc::EFAULT)) }
}

/// A process's limit of descriptors.
pub(super) fn descriptor_limit(pid: i32) -> Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: nothing is set; the kernel writes one limit.
    check(unsafe { libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit) }.into())?;
    Ok(limit.rlim_cur)
}

/// Numbers in memory shared with processes forked later.
pub(super) fn shared_numbers<const N: usize>() -> Result<&'static [AtomicU64; N]> {
    let (len, how) = (size_of::<[AtomicU64; N]>(), libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, filled with zeros, that nobody unmaps.
    let at = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, how, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    // SAFETY: it has the length, is aligned to a page, and zero is a number.
    Ok(unsafe { &*at.cast::<[AtomicU64; N]>() })
}

// --- sockets ---

/// The address that a socket is bound or connected to, as the kernel writes it.
pub(super) fn name(fd: impl AsFd, of_peer: bool) -> Result<Vec<u8>> {
    let mut bytes = vec![0u8; 128];
    let mut len = bytes.len() as libc::socklen_t;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes, and how many there are.
    check(
        unsafe {
            let at = bytes.as_mut_ptr().cast();
            if of_peer { libc::getpeername(fd, at, &raw mut len) } else { libc::getsockname(fd, at, &raw mut len) }
        }
        .into(),
    )?;
    bytes.truncate(len as usize);
    Ok(bytes)
}

/// `address` begins with the family.
pub(super) fn connect(fd: impl AsFd, address: &RawAddress, len: usize) -> Result<()> {
    let len = len.min(address.len()) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes.
    check(unsafe { libc::connect(fd.as_fd().as_raw_fd(), address.as_ptr().cast(), len) }.into()).map(drop)
}

pub(super) fn accept(fd: impl AsFd, flags: c_int) -> Result<(OwnedFd, Vec<u8>)> {
    let mut bytes = vec![0u8; 128];
    let mut len = bytes.len() as libc::socklen_t;
    // SAFETY: as in `name`.
    let new = check(
        unsafe {
            libc::accept4(fd.as_fd().as_raw_fd(), bytes.as_mut_ptr().cast(), &raw mut len, flags | libc::SOCK_CLOEXEC)
        }
        .into(),
    )?;
    bytes.truncate(len as usize);
    // SAFETY: the kernel has just made it, for us.
    Ok((unsafe { OwnedFd::from_raw_fd(new as c_int) }, bytes))
}

/// fcntl with a number.
pub(super) fn control(fd: impl AsFd, command: c_int, argument: c_int) -> Result<c_int> {
    // SAFETY: only used with commands whose argument is a number.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, argument) }.into()).map(|n| n as c_int)
}

/// F_GETOWN_EX and F_SETOWN_EX; `owner` is a kind and a number.
pub(super) fn control_owner(fd: impl AsFd, command: c_int, owner: &mut [c_int; 2]) -> Result<()> {
    // SAFETY: both commands read or write a `f_owner_ex`, which is two ints.
    check(unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, owner.as_mut_ptr()) }.into()).map(drop)
}

// --- pages by reference ---

/// Puts one page up to sixteen times into a pipe by reference, without copying.
pub(super) fn pipe_repeated(pipe: &OwnedFd, page: &'static [u8]) -> Result<usize> {
    let parts = [iovec { iov_base: page.as_ptr().cast_mut().cast(), iov_len: page.len() }; 16];
    // SAFETY: the kernel reads the parts, all of which are `page`, now and as long as anything
    // refers to them; nobody writes to it.
    let put = unsafe { libc::vmsplice(pipe.as_raw_fd(), parts.as_ptr(), parts.len(), libc::SPLICE_F_NONBLOCK) };
    Ok(check(put as c_long)? as usize)
}

/// Moves bytes from a pipe into a socket, without blocking.
pub(super) fn splice(pipe: &OwnedFd, to: &OwnedFd, len: usize) -> Result<usize> {
    let (pipe, to) = (pipe.as_raw_fd(), to.as_raw_fd());
    // SAFETY: both pointers are null.
    let moved = unsafe { libc::splice(pipe, null_mut(), to, null_mut(), len, libc::SPLICE_F_NONBLOCK) };
    Ok(check(moved as c_long)? as usize)
}
