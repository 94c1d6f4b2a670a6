//! System calls that the standard library does not offer: queue depths, TCP_INFO, CPU times,
//! non-blocking transfers. Linux first; elsewhere a query without an answer returns `None`.
//!
//! `unsafe` is only here and in the FFI wrappers under `codec/`.
#![allow(unsafe_code, reason = "system calls without a safe wrapper; every block says why it is sound")]

use std::time::Duration;

#[cfg(unix)]
pub(crate) use self::unix::*;

#[cfg(unix)]
mod tcp_info;

/// Nanoseconds since the first call in this process.
pub(crate) fn monotonic_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    // 2^64 ns are 584 years.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// CPU time that the calling thread has used.
pub(crate) fn thread_cpu_ns() -> Option<u64> {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid timespec that the call fills; it keeps no pointer.
        let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        (answer == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
    #[cfg(not(unix))]
    None
}

/// Cores that this process may use at once, by affinity and cgroup quota (v1 and v2), at least 1. A
/// quota of 2.7 cores gives 2: the rest is left to the I/O threads.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Lowers the priority of the calling thread by `nice` steps. Failure is harmless, so it is not
/// reported.
pub(crate) fn set_thread_nice(nice: i32) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: no pointers. On Linux "process 0" of setpriority is the calling thread alone.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

/// Makes the C library's allocator return blocks of 1 MiB and more to the system when they are
/// freed. By default it learns to keep them per thread, and tables of slow codecs stay resident
/// long after their use. If the address space is limited, all threads share one arena: otherwise
/// each would reserve 64 MiB of it.
pub(crate) fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: two integers, no pointers; a value that the allocator does not take changes
        // nothing.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20) };
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the structure is there for the kernel to write.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
        if known && limit.rlim_cur != libc::RLIM_INFINITY {
            // SAFETY: as above.
            unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        }
    }
}

/// Returns freed memory to the system that the C library's allocator keeps.
pub(crate) fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: no pointers; the allocator locks its own arenas.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Starts writing a range of a file back to the disk, without waiting for it.
#[cfg(unix)]
pub(crate) fn start_writeback(fd: std::os::fd::BorrowedFd<'_>, offset: u64, len: u64) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: no pointers; the descriptor is borrowed for the call. It has no effect on a file
        // system that does not support it.
        unsafe { libc::sync_file_range(fd.as_raw_fd(), offset as i64, len as i64, libc::SYNC_FILE_RANGE_WRITE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (fd, offset, len);
}

/// Writes a range of a file back to the disk and waits until it is there. A file system that does not
/// support it does nothing.
#[cfg(unix)]
pub(crate) fn await_writeback(fd: std::os::fd::BorrowedFd<'_>, offset: u64, len: u64) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: no pointers; the descriptor is borrowed for the call.
        let done = unsafe { libc::sync_file_range(fd.as_raw_fd(), offset as i64, len as i64, all) };
        if done != 0 {
            let error = std::io::Error::last_os_error();
            let unsupported = [libc::EINVAL, libc::ESPIPE, libc::ENOSYS, libc::EOPNOTSUPP];
            return if error.raw_os_error().is_some_and(|e| unsupported.contains(&e)) { Ok(()) } else { Err(error) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (fd, offset, len);
    Ok(())
}

/// Milliseconds for poll(2), rounded up so that a wait never ends before its time; -1 is for ever.
#[cfg_attr(not(unix), allow(dead_code))]
fn poll_timeout_ms(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |t| i32::try_from(t.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX))
}

#[cfg(unix)]
mod unix {
    use std::io::{self, IoSlice};
    use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
    use std::time::Duration;

    pub(crate) use super::tcp_info::TcpInfo;

    /// A descriptor to wait for, and the events of interest.
    #[derive(Clone, Copy)]
    pub(crate) struct Interest<'a> {
        pub(crate) fd: BorrowedFd<'a>,
        pub(crate) read: bool,
        pub(crate) write: bool,
    }

    /// Waits until a descriptor is ready, or in error, which the next transfer will report. Returns
    /// which are ready; none after the timeout or a signal.
    pub(crate) fn poll<const N: usize>(
        interests: [Interest<'_>; N],
        timeout: Option<Duration>,
    ) -> io::Result<[bool; N]> {
        let mut fds = interests.map(|i| libc::pollfd {
            fd: i.fd.as_raw_fd(),
            events: if i.read { libc::POLLIN } else { 0 } | if i.write { libc::POLLOUT } else { 0 },
            revents: 0,
        });
        // SAFETY: the array holds N pollfd and outlives the call; the descriptors are borrowed for
        // its length.
        let answer = unsafe { libc::poll(fds.as_mut_ptr(), N as libc::nfds_t, super::poll_timeout_ms(timeout)) };
        match check(answer as isize) {
            Ok(_) => Ok(fds.map(|f| f.revents != 0)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
            Err(e) => Err(e),
        }
    }

    /// Whether a descriptor is in error or hung up: the reader of a pipe, the peer of a socket or
    /// the terminal is gone.
    pub(crate) fn is_broken(fd: BorrowedFd<'_>) -> io::Result<bool> {
        // Without events to wait for, poll reports these alone. A regular file has none.
        poll([Interest { fd, read: false, write: false }], Some(Duration::ZERO)).map(|[broken]| broken)
    }

    /// The error of a write to a link without a reader.
    pub(crate) fn broken_pipe() -> io::Error {
        io::Error::from_raw_os_error(libc::EPIPE)
    }

    /// Sends what fits into the socket's buffer; `WouldBlock` if nothing does. Raises no SIGPIPE.
    pub(crate) fn send_nowait(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
        const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
        const FLAGS: i32 = libc::MSG_DONTWAIT;
        // SAFETY: msghdr is plain data, all zeros is a valid one (no name, no control data).
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // IoSlice is guaranteed to have the layout of iovec on unix; sendmsg only reads through it.
        message.msg_iov = bufs.as_ptr().cast_mut().cast();
        message.msg_iovlen = bufs.len() as _;
        // SAFETY: `message` points to `bufs.len()` valid iovecs that live through the call.
        check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, FLAGS) })
    }

    /// Takes what is in the socket's buffer; `WouldBlock` if nothing is, 0 at the end.
    pub(crate) fn recv_nowait(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`, which is ours for the
        // call.
        check(unsafe { libc::recv(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), libc::MSG_DONTWAIT) })
    }

    /// Writes what fits into a pipe without changing its blocking mode: other processes may share
    /// the open file. `WouldBlock` if nothing fits, `Unsupported` before Linux 6.5.
    pub(crate) fn pipe_write_nowait(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        #[cfg(target_os = "linux")]
        {
            // Position -1, in two halves: the file's own position, as pipes require.
            let at: libc::c_long = -1;
            let count = bufs.len() as libc::c_long;
            let flags = libc::c_long::from(libc::RWF_NOWAIT);
            // SAFETY: IoSlice has the layout of iovec, the slice holds `count` of them and lives
            // through the call.
            let answer =
                unsafe { libc::syscall(libc::SYS_pwritev2, fd.as_raw_fd(), bufs.as_ptr(), count, at, at, flags) };
            check(answer as isize).map_err(|e| match e.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => io::ErrorKind::Unsupported.into(),
                _ => e,
            })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (fd, bufs);
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Sets the size of a pipe to about `bytes`. If that is not allowed, or the pipe holds more,
    /// nothing changes.
    pub(crate) fn set_pipe_size(fd: BorrowedFd<'_>, bytes: u32) {
        #[cfg(target_os = "linux")]
        // SAFETY: no pointers; the descriptor is borrowed for the call.
        unsafe {
            libc::fcntl(fd.as_raw_fd(), libc::F_SETPIPE_SZ, bytes as i32)
        };
        #[cfg(not(target_os = "linux"))]
        let _ = (fd, bytes);
    }

    /// Requests a receive buffer of `bytes` bytes (Linux doubles the figure).
    pub(crate) fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: i32) -> io::Result<()> {
        let len = size_of::<i32>() as libc::socklen_t;
        // SAFETY: the option takes one int, and `bytes` is one that lives through the call.
        let answer = unsafe {
            libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw const bytes).cast(), len)
        };
        check(answer as isize).map(drop)
    }

    /// Bytes of a socket that the peer has not acknowledged (TCP) or read (unix; counted with the
    /// kernel's overhead).
    pub(crate) fn socket_outstanding(fd: BorrowedFd<'_>) -> Option<u64> {
        ioctl_int(fd, libc::TIOCOUTQ as _)
    }

    /// Bytes of a TCP socket that were never sent.
    pub(crate) fn socket_unsent(fd: BorrowedFd<'_>) -> Option<u64> {
        #[cfg(target_os = "linux")]
        {
            /// linux/sockios.h; the libc crate has no name for it.
            const SIOCOUTQNSD: u64 = 0x894B;
            ioctl_int(fd, SIOCOUTQNSD as _)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = fd;
            None
        }
    }

    /// Bytes in a pipe; works at either end.
    pub(crate) fn pipe_unread(fd: BorrowedFd<'_>) -> Option<u64> {
        ioctl_int(fd, libc::FIONREAD as _)
    }

    #[cfg(any(target_env = "musl", target_os = "android"))]
    type Request = libc::c_int;
    #[cfg(not(any(target_env = "musl", target_os = "android")))]
    type Request = libc::c_ulong;

    fn ioctl_int(fd: BorrowedFd<'_>, request: Request) -> Option<u64> {
        let mut value: libc::c_int = 0;
        // SAFETY: the three requests used here write one int, and `value` is one.
        let answer = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) };
        (answer == 0).then(|| u64::try_from(value).unwrap_or(0))
    }

    /// Makes the kernel accept more bytes for a TCP socket only while fewer than `bytes` are
    /// unsent.
    pub(crate) fn set_notsent_lowat(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            // SAFETY: the option takes one u32, and `bytes` is one that lives through the call.
            let answer = unsafe {
                libc::setsockopt(
                    fd.as_raw_fd(),
                    libc::IPPROTO_TCP,
                    libc::TCP_NOTSENT_LOWAT,
                    (&raw const bytes).cast(),
                    size_of::<u32>() as libc::socklen_t,
                )
            };
            check(answer as isize).map(drop)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (fd, bytes);
            Ok(())
        }
    }

    pub(crate) fn tcp_info(fd: BorrowedFd<'_>) -> Option<TcpInfo> {
        #[cfg(target_os = "linux")]
        {
            let mut raw = [0; TcpInfo::RAW_LEN];
            let mut len = raw.len() as libc::socklen_t;
            // SAFETY: the kernel writes at most `len` bytes into `raw`. An older kernel writes
            // fewer: the rest stays 0.
            let answer = unsafe {
                libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut raw).cast(), &raw mut len)
            };
            (answer == 0).then(|| TcpInfo::from_raw(&raw))
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = fd;
            None
        }
    }

    /// A socket that asks the kernel about the sockets of this network namespace: sock_diag(7).
    pub(crate) fn diag_socket() -> Option<OwnedFd> {
        #[cfg(target_os = "linux")]
        {
            let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
            // SAFETY: no pointers.
            let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
            // SAFETY: the descriptor is new, so nobody else owns it.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// The user whose rights this process has.
    pub(crate) fn user() -> u32 {
        // SAFETY: no pointers, and it cannot fail.
        unsafe { libc::geteuid() }
    }

    fn check(answer: isize) -> io::Result<usize> {
        usize::try_from(answer).map_err(|_| io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_go_forward() {
        let (wall, cpu) = (monotonic_ns(), thread_cpu_ns());
        assert!((0..1000u64).fold(0, |a, b| std::hint::black_box(a ^ b)) < 1024);
        assert!(monotonic_ns() >= wall);
        assert!(thread_cpu_ns() >= cpu);
        assert!(cores() >= 1);
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!(poll_timeout_ms(None), -1);
        assert_eq!(poll_timeout_ms(Some(Duration::ZERO)), 0);
        assert_eq!(poll_timeout_ms(Some(Duration::from_nanos(1))), 1);
        assert_eq!(poll_timeout_ms(Some(Duration::MAX)), i32::MAX);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn queue_depths_of_a_pipe_and_a_socket() {
        use std::io::{IoSlice, Write};
        use std::os::fd::AsFd;
        let (reader, mut writer) = std::io::pipe().expect("pipe");
        writer.write_all(&[1; 300]).expect("a pipe takes 300 bytes");
        assert_eq!(pipe_unread(writer.as_fd()), Some(300));
        assert_eq!(pipe_unread(reader.as_fd()), Some(300));
        match pipe_write_nowait(writer.as_fd(), &[IoSlice::new(&[0; 1 << 20])]) {
            Ok(n) => assert!(n < 1 << 20),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::Unsupported),
        }

        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
        let stream = std::net::TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        set_notsent_lowat(stream.as_fd(), 65536).expect("the option exists");
        assert_eq!(send_nowait(stream.as_fd(), &[IoSlice::new(b"ab"), IoSlice::new(b"c")]).expect("send"), 3);
        assert_eq!(socket_unsent(stream.as_fd()), Some(0));
        let info = tcp_info(stream.as_fd()).expect("TCP_INFO");
        assert_eq!(info.notsent_bytes, 0);
        let mut buf = [0; 8];
        let empty = recv_nowait(stream.as_fd(), &mut buf).expect_err("nothing came");
        assert_eq!(empty.kind(), std::io::ErrorKind::WouldBlock);
    }
}
