//! Raw system calls without libc: they neither change errno nor reach our own hooks, and are safe
//! in signal handlers.
//!
//! `unsafe` here: one instruction, and the pointers that are handed to the kernel.
#![allow(unsafe_code, reason = "raw system calls; every block says why it is sound")]

use core::ffi::c_int;

use libc::{epoll_event, iovec, pollfd, timespec};

/// The result of a call, such as a descriptor or a length, or its errno.
pub(crate) type Answer = Result<usize, c_int>;

#[cfg(target_arch = "x86_64")]
macro_rules! trap {
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {{
        let answer: isize;
        core::arch::asm!("syscall", inlateout("rax") $number as isize => answer,
            in("rdi") $a, in("rsi") $b, in("rdx") $c, in("r10") $d, in("r8") $e, in("r9") $f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
        answer
    }};
}

#[cfg(target_arch = "aarch64")]
macro_rules! trap {
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {{
        let answer: isize;
        core::arch::asm!("svc 0", in("x8") $number as isize, inlateout("x0") $a => answer,
            in("x1") $b, in("x2") $c, in("x3") $d, in("x4") $e, in("x5") $f, options(nostack));
        answer
    }};
}

/// # Safety
/// Memory that the call reads or writes through its arguments must belong to the caller.
pub(crate) unsafe fn call(number: libc::c_long, args: [usize; 6]) -> Answer {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the system call convention of Linux on this architecture; the caller vouches for the
    // arguments.
    let answer = unsafe { trap!(number, a, b, c, d, e, f) };
    // The kernel returns errors as -4095 to -1.
    if (-4095..0).contains(&answer) { Err(-answer as c_int) } else { Ok(answer as usize) }
}

macro_rules! call {
    ($number:ident $(, $arg:expr)*) => {{
        let given = [$($arg as usize),*];
        let mut args = [0; 6];
        let mut i = 0;
        while i < given.len() {
            args[i] = given[i];
            i += 1;
        }
        call(libc::$number, args)
    }};
}

/// A socket address.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) family: u16,
    pub(crate) rest: [u8; 126],
}

impl Address {
    pub(crate) const EMPTY: Self = Self { family: 0, rest: [0; 126] };

    fn unix(name: &[u8]) -> (Self, usize) {
        let mut address = Self { family: libc::AF_UNIX as u16, rest: [0; 126] };
        let len = name.len().min(108);
        address.rest[..len].copy_from_slice(&name[..len]);
        (address, 2 + len)
    }
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: no pointers; callers close what they opened.
    let _ = unsafe { call!(SYS_close, fd) };
}

pub(crate) fn dup3(old: c_int, new: c_int, flags: c_int) -> Answer {
    // SAFETY: no pointers.
    unsafe { call!(SYS_dup3, old, new, flags) }
}

pub(crate) fn unix_socket(kind: c_int) -> Result<c_int, c_int> {
    // SAFETY: no pointers.
    unsafe { call!(SYS_socket, libc::AF_UNIX, kind, 0) }.map(|fd| fd as c_int)
}

pub(crate) fn tcp_socket(family: c_int) -> Result<c_int, c_int> {
    // SAFETY: no pointers.
    unsafe { call!(SYS_socket, family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP) }
        .map(|fd| fd as c_int)
}

pub(crate) fn pair() -> Result<[c_int; 2], c_int> {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: the kernel writes two numbers into `ends`.
    unsafe { call!(SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) }?;
    Ok(ends)
}

pub(crate) fn bind_unix(fd: c_int, name: &[u8]) -> Answer {
    let (address, len) = Address::unix(name);
    // SAFETY: the kernel reads `len` bytes of `address`, which has 128.
    unsafe { call!(SYS_bind, fd, &raw const address, len) }
}

pub(crate) fn connect_unix(fd: c_int, name: &[u8]) -> Answer {
    let (address, len) = Address::unix(name);
    // SAFETY: as above.
    unsafe { call!(SYS_connect, fd, &raw const address, len) }
}

/// Disconnects a TCP socket that is connected or connecting, so that it is unconnected again.
pub(crate) fn disconnect(fd: c_int) -> Answer {
    let nowhere = Address { family: libc::AF_UNSPEC as u16, ..Address::EMPTY };
    // SAFETY: the kernel reads 16 bytes of `nowhere`, which has 128.
    unsafe { call!(SYS_connect, fd, &raw const nowhere, 16) }
}

/// Shuts a socket down both ways.
pub(crate) fn shutdown(fd: c_int) -> Answer {
    // SAFETY: no pointers.
    unsafe { call!(SYS_shutdown, fd, libc::SHUT_RDWR) }
}

pub(crate) fn own_address(fd: c_int) -> Result<(Address, usize), c_int> {
    let mut address = Address::EMPTY;
    let mut len = size_of::<Address>() as u32;
    // SAFETY: the kernel writes at most `len` bytes into `address`.
    unsafe { call!(SYS_getsockname, fd, &raw mut address, &raw mut len) }?;
    Ok((address, len as usize))
}

pub(crate) fn peer_address(fd: c_int) -> Result<(Address, usize), c_int> {
    let mut address = Address::EMPTY;
    let mut len = size_of::<Address>() as u32;
    // SAFETY: as above.
    unsafe { call!(SYS_getpeername, fd, &raw mut address, &raw mut len) }?;
    Ok((address, len as usize))
}

pub(crate) fn get_option(fd: c_int, level: c_int, option: c_int, value: &mut [u8]) -> Answer {
    let mut len = value.len() as u32;
    // SAFETY: the kernel writes at most `len` bytes into `value`.
    unsafe { call!(SYS_getsockopt, fd, level, option, value.as_mut_ptr(), &raw mut len) }?;
    Ok(len as usize)
}

/// The user who listens at the other end of a unix socket, as the kernel recorded at `listen`.
pub(crate) fn user_of_peer(fd: c_int) -> Result<u32, c_int> {
    // A `ucred`: process, user, group.
    let mut credentials = [0; 12];
    get_option(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials)?;
    let [_, _, _, _, user @ .., _, _, _, _] = credentials;
    Ok(u32::from_ne_bytes(user))
}

pub(crate) fn get_int(fd: c_int, level: c_int, option: c_int) -> Result<c_int, c_int> {
    let mut value = [0; 4];
    get_option(fd, level, option, &mut value)?;
    Ok(c_int::from_ne_bytes(value))
}

pub(crate) fn set_option(fd: c_int, level: c_int, option: c_int, value: &[u8]) -> Answer {
    // SAFETY: the kernel reads `value`.
    unsafe { call!(SYS_setsockopt, fd, level, option, value.as_ptr(), value.len()) }
}

/// # Safety
/// `argument` must be the program's own argument for this request.
pub(crate) unsafe fn ioctl(fd: c_int, request: u32, argument: usize) -> Answer {
    // SAFETY: the caller's promise.
    unsafe { call!(SYS_ioctl, fd, request, argument) }
}

pub(crate) fn fcntl(fd: c_int, command: c_int, argument: usize) -> Answer {
    // SAFETY: only used with commands whose argument is a number.
    unsafe { call!(SYS_fcntl, fd, command, argument) }
}

/// F_GETOWN_EX and F_SETOWN_EX; `owner` is a kind and a number.
pub(crate) fn fcntl_owner(fd: c_int, command: c_int, owner: &mut [c_int; 2]) -> Answer {
    // SAFETY: both commands read or write a `f_owner_ex`, which is two ints.
    unsafe { call!(SYS_fcntl, fd, command, owner.as_mut_ptr()) }
}

pub(crate) fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Answer {
    // SAFETY: the kernel reads `bytes`.
    unsafe { call!(SYS_sendto, fd, bytes.as_ptr(), bytes.len(), flags, 0, 0) }
}

/// Writes `bytes` up to sixteen times over, in one call.
pub(crate) fn send_repeated(fd: c_int, bytes: &[u8], flags: c_int) -> Answer {
    let parts = [iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }; 16];
    // SAFETY: zeros are a valid `msghdr` without address and control data.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the kernel reads the parts, all of which are `bytes`; it never writes for sendmsg.
    unsafe { call!(SYS_sendmsg, fd, &raw const message, flags) }
}

/// Puts one page up to sixteen times into a pipe by reference, without copying.
pub(crate) fn pipe_repeated(pipe: c_int, page: &'static [u8]) -> Answer {
    let parts = [iovec { iov_base: page.as_ptr() as *mut _, iov_len: page.len() }; 16];
    // SAFETY: the kernel reads the parts, all of which are `page`, now and as long as anything
    // refers to them; nobody writes to it.
    unsafe { call!(SYS_vmsplice, pipe, parts.as_ptr(), parts.len(), libc::SPLICE_F_NONBLOCK) }
}

/// Moves bytes from a pipe into a socket, without blocking.
pub(crate) fn splice(pipe: c_int, to: c_int, len: usize) -> Answer {
    // SAFETY: both pointers are null.
    unsafe { call!(SYS_splice, pipe, 0, to, 0, len, libc::SPLICE_F_NONBLOCK) }
}

pub(crate) fn pipe() -> Result<[c_int; 2], c_int> {
    let mut ends = [-1; 2];
    // SAFETY: the kernel writes two descriptors.
    unsafe { call!(SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) }?;
    Ok(ends)
}

/// A control message with descriptors, in the kernel's layout on 64-bit machines.
#[repr(C, align(8))]
struct Rights<const N: usize> {
    len: usize,
    level: c_int,
    kind: c_int,
    fds: [c_int; N],
}

pub(crate) fn send_with_descriptors(fd: c_int, bytes: &[u8], fds: [c_int; 2]) -> Answer {
    let rights = Rights::<2> { len: 24, level: libc::SOL_SOCKET, kind: libc::SCM_RIGHTS, fds };
    let part = iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: zeros are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = (&raw const part).cast_mut();
    message.msg_iovlen = 1;
    message.msg_control = (&raw const rights).cast_mut().cast();
    message.msg_controllen = size_of::<Rights<2>>() as _;
    // SAFETY: everything that the message points to lives until the call returns; the kernel only reads it.
    unsafe { call!(SYS_sendmsg, fd, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) }
}

/// Receives a message with at most one descriptor.
pub(crate) fn receive(fd: c_int, bytes: &mut [u8]) -> Result<(usize, Option<c_int>), c_int> {
    // Room for two, because of the alignment; the supervisor sends one.
    let mut rights = Rights::<2> { len: 0, level: 0, kind: 0, fds: [-1; 2] };
    let part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = (&raw const part).cast_mut();
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut rights).cast();
    message.msg_controllen = 20;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes at most `bytes.len()` bytes there and 20 into `rights`.
    let len = unsafe { call!(SYS_recvmsg, fd, &raw mut message, flags) }?;
    let sent = rights.len == 20 && rights.level == libc::SOL_SOCKET && rights.kind == libc::SCM_RIGHTS;
    Ok((len, sent.then_some(rights.fds[0])))
}

/// Waits for `events` for at most `wait_ms`. Returns the events, 0 if there were none.
pub(crate) fn poll(fd: c_int, events: i16, wait_ms: i64) -> i16 {
    let mut look = pollfd { fd, events, revents: 0 };
    let mut time = timespec { tv_sec: wait_ms / 1000, tv_nsec: wait_ms % 1000 * 1_000_000 };
    // SAFETY: the kernel reads and writes `look` and `time`; the signal mask is not changed.
    let _ = unsafe { call!(SYS_ppoll, &raw mut look, 1, &raw mut time, 0, 8) };
    look.revents
}

/// As `poll`, but a signal handler ends the wait with EINTR. Returns the events, 0 if the time ran
/// out.
pub(crate) fn poll_interruptibly(fd: c_int, events: i16, wait_ms: i64) -> Result<i16, c_int> {
    let mut look = pollfd { fd, events, revents: 0 };
    let mut time = timespec { tv_sec: wait_ms / 1000, tv_nsec: wait_ms % 1000 * 1_000_000 };
    // SAFETY: as above.
    unsafe { call!(SYS_ppoll, &raw mut look, 1, &raw mut time, 0, 8) }?;
    Ok(look.revents)
}

/// Copies from the program's pointer as far as it is readable: a bad pointer gives EFAULT, as in
/// the kernel, and no crash.
pub(crate) fn read_user(from: usize, to: &mut [u8]) -> Answer {
    let (here, there) = ([to.as_mut_ptr() as usize, to.len()], [from, to.len()]);
    if to.is_empty() {
        return Ok(0);
    }
    // SAFETY: no pointers.
    let own = unsafe { call!(SYS_getpid) }?;
    // SAFETY: the kernel reads two `iovec`s and writes at most `to`.
    match unsafe { call!(SYS_process_vm_readv, own, here.as_ptr(), 1, there.as_ptr(), 1, 0) } {
        // A sandbox forbids the call: copies directly, as libc would.
        Err(libc::EPERM | libc::ENOSYS) if from != 0 => {
            // SAFETY: the program promises that this many bytes are there.
            unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
            Ok(to.len())
        }
        Err(libc::EPERM | libc::ENOSYS) => Err(libc::EFAULT),
        answer => answer,
    }
}

/// Copies to the program's pointer: all of it, or EFAULT.
///
/// # Safety
/// The program must allow writing to these bytes.
pub(crate) unsafe fn write_user(to: usize, from: &[u8]) -> Result<(), c_int> {
    let (here, there) = ([from.as_ptr() as usize, from.len()], [to, from.len()]);
    if from.is_empty() {
        return Ok(());
    }
    // SAFETY: no pointers.
    let own = unsafe { call!(SYS_getpid) }?;
    // SAFETY: the kernel reads two `iovec`s and `from`; the caller vouches for the rest.
    match unsafe { call!(SYS_process_vm_writev, own, here.as_ptr(), 1, there.as_ptr(), 1, 0) } {
        Err(libc::EPERM | libc::ENOSYS) if to != 0 => {
            // SAFETY: the caller's promise.
            unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
            Ok(())
        }
        Ok(n) if n == from.len() => Ok(()),
        _ => Err(libc::EFAULT),
    }
}

/// The number of bytes that can be read.
pub(crate) fn unread(fd: c_int) -> Result<usize, c_int> {
    let mut len: c_int = 0;
    // SAFETY: the kernel writes one int.
    unsafe { call!(SYS_ioctl, fd, libc::FIONREAD, &raw mut len) }?;
    Ok(usize::try_from(len).unwrap_or(0))
}

/// Opens a file for reading. `path` ends with a zero.
pub(crate) fn open(path: &[u8]) -> Result<c_int, c_int> {
    if path.last() != Some(&0) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the kernel reads `path` up to its zero.
    unsafe { call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC, 0) }
        .map(|fd| fd as c_int)
}

pub(crate) fn read(fd: c_int, into: &mut [u8]) -> Answer {
    // SAFETY: the kernel writes at most `into`.
    unsafe { call!(SYS_read, fd, into.as_mut_ptr(), into.len()) }
}

/// Reads directory entries in the kernel's format; 0 bytes mean that none are left.
pub(crate) fn entries(folder: c_int, into: &mut [u8]) -> Answer {
    // SAFETY: as above.
    unsafe { call!(SYS_getdents64, folder, into.as_mut_ptr(), into.len()) }
}

/// The path in /proc of a descriptor of this thread, ending with a zero.
fn about(fd: c_int, folder: &[u8]) -> [u8; 48] {
    let mut path = [0; 48];
    let mut len = 0;
    let mut put = |bytes: &[u8]| {
        for byte in bytes {
            path[len] = *byte;
            len += 1;
        }
    };
    put(b"/proc/thread-self/");
    put(folder);
    let mut unit = 1_000_000_000;
    while unit > 1 && fd / unit == 0 {
        unit /= 10;
    }
    while unit > 0 {
        put(&[b'0' + (fd / unit % 10) as u8]);
        unit /= 10;
    }
    path
}

/// Reads the /proc link of a descriptor, the kernel's name for what it refers to.
pub(crate) fn link_of(fd: c_int, into: &mut [u8]) -> Answer {
    let path = about(fd, b"fd/");
    // SAFETY: the kernel reads `path` up to a zero, of which there are many, and writes at most `into`.
    unsafe { call!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), into.as_mut_ptr(), into.len()) }
}

/// Opens the fdinfo file of a descriptor.
pub(crate) fn open_info(fd: c_int) -> Result<c_int, c_int> {
    open(&about(fd, b"fdinfo/"))
}

/// Monotonic time.
pub(crate) fn now_ns() -> u64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes `time`.
    let _ = unsafe { call!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

pub(crate) fn epoll_make() -> Result<c_int, c_int> {
    // SAFETY: no pointers.
    unsafe { call!(SYS_epoll_create1, libc::EPOLL_CLOEXEC) }.map(|fd| fd as c_int)
}

/// Waits for one event; -1 is for ever. Returns its flags, 0 if the time ran out.
pub(crate) fn epoll_wait(epoll: c_int, wait_ms: c_int) -> Result<u32, c_int> {
    let mut event = epoll_event { events: 0, u64: 0 };
    // SAFETY: the kernel writes one event; the signal mask is not changed.
    let count = unsafe { call!(SYS_epoll_pwait, epoll, &raw mut event, 1, wait_ms, 0, 8) }?;
    Ok(if count > 0 { event.events } else { 0 })
}

pub(crate) fn epoll_remove(epoll: c_int, fd: c_int) -> Answer {
    // SAFETY: removing reads no event.
    unsafe { call!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_DEL, fd, 0) }
}

pub(crate) fn epoll_add(epoll: c_int, fd: c_int, events: u32, data: u64) -> Answer {
    let event = epoll_event { events, u64: data };
    // SAFETY: the kernel reads `event`.
    unsafe { call!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, fd, &raw const event) }
}

pub(crate) fn random() -> Result<u64, c_int> {
    let mut bytes = [0; 8];
    // GRND_INSECURE is not needed: the pool is filled long before programs run.
    // SAFETY: the kernel writes eight bytes.
    match unsafe { call!(SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), libc::GRND_NONBLOCK) } {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        Ok(_) => Err(libc::EAGAIN),
        Err(e) => Err(e),
    }
}

/// Blocks all signals of this thread until `unblock_signals`; returns the old mask.
pub(crate) fn block_signals() -> u64 {
    let (all, mut before) = (u64::MAX, 0u64);
    // SAFETY: the kernel reads one set of 8 bytes and writes another.
    let _ = unsafe { call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut before, 8) };
    before
}

pub(crate) fn unblock_signals(before: u64) {
    // SAFETY: the kernel reads one set of 8 bytes.
    let _ = unsafe { call!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, 8) };
}

pub(crate) fn errno() -> c_int {
    // SAFETY: libc's pointer to this thread's errno is valid as long as the thread.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number }
}
