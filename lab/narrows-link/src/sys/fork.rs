//! Fork of this process that runs one function, and the messages between it and its owner.

use std::io::Result;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use libc::c_int;

use super::process::numbers_in;
use super::{check, open, owned};

/// The copy's descriptor of its socket: the first one after stdin, stdout and stderr.
const SOCKET: RawFd = 3;

/// A pair of connected sockets that preserve message boundaries.
pub(crate) fn socket_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut fds = [-1; 2];
    // SAFETY: two descriptors fit into `fds`.
    check(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) })?;
    Ok((owned(fds[0])?, owned(fds[1])?))
}

/// Arguments of the copy's entry point.
struct Start<'a, T> {
    socket: OwnedFd,
    data: &'a T,
    child: fn(&T, BorrowedFd<'_>),
}

/// Runs `child` in a copy of this process, in which this function never returns. The copy has one
/// thread, its own session, none of our stdin, stdout and stderr, and blocks every signal but
/// SIGKILL. `child` must neither allocate nor lock; it closes all other inherited descriptors by
/// `close_others`.
pub(crate) fn fork_with<T>(socket: OwnedFd, data: &T, child: fn(&T, BorrowedFd<'_>)) -> Result<i32> {
    let start = Start { socket, data, child };
    // SAFETY: the sets are valid when they are zeroed and live through their calls. Signals are
    // blocked before the fork, so none of our handlers ever runs in the copy. The copy runs `begin`
    // and nothing else; in this process the thread's signal mask is restored.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (zeroed(), zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
        let pid = libc::fork();
        if pid == 0 {
            begin(&start);
        }
        let answer = check(pid);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        answer
    }
}

/// Entry point of the copy. A panic does not cross `extern "C"`: it aborts the copy instead of
/// unwinding into the caller's code.
extern "C" fn begin<T>(start: &Start<'_, T>) -> ! {
    // SAFETY: no pointers but to a literal. `SOCKET` is made valid before it is borrowed, and nothing in the copy closes it.
    // Nothing is dropped or unwound after this.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"narrows-link".as_ptr());
        if start.socket.as_raw_fd() == SOCKET {
            libc::fcntl(SOCKET, libc::F_SETFD, libc::FD_CLOEXEC);
        } else if libc::dup3(start.socket.as_raw_fd(), SOCKET, libc::O_CLOEXEC) < 0 {
            libc::_exit(1);
        }
        // Only after the socket is at `SOCKET`, since this open could return that number.
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for standard in 0..SOCKET {
            // Without /dev/null close them: readers at the other ends of ours wait for end of file.
            if libc::dup2(null, standard) < 0 {
                libc::close(standard);
            }
        }
        (start.child)(start.data, BorrowedFd::borrow_raw(SOCKET));
        libc::_exit(0)
    }
}

/// In the copy: closes every descriptor but the socket, stdin, stdout and stderr. If it kept a
/// duplicate of the owner's socket, it would never notice that the owner ended.
pub(crate) fn close_others() -> Result<()> {
    // SAFETY: no value in the copy owns a descriptor and would close it again.
    if unsafe { libc::syscall(libc::SYS_close_range, SOCKET + 1, u32::MAX, 0) } == 0 {
        return Ok(());
    }
    // Linux before 5.9, or a seccomp filter that does not know the call.
    let folder = open(c"/proc/self/fd", libc::O_RDONLY | libc::O_DIRECTORY)?;
    let own = folder.as_raw_fd();
    numbers_in(folder.as_fd(), |fd, _| {
        if fd > SOCKET && fd != own {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    })
}

/// Room for what the keeper hands over: a user namespace, two network namespaces, two devices, two
/// sockets.
pub(crate) const FDS_MAX: usize = 8;

/// Sends bytes and descriptors in one message.
pub(crate) fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[RawFd]) -> Result<()> {
    let mut control = [0u64; 8];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: `control` is aligned for a cmsghdr and has room for FDS_MAX descriptors after it (16 + 32 of 64 bytes);
    // all pointers are to locals that live through the call.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        if !fds.is_empty() && fds.len() <= FDS_MAX {
            let len = size_of_val(fds);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(len as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(len as u32) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), len);
        }
        check(libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) as c_int).map(drop)
    }
}

/// Receives a message of `send_with` without blocking; 0 bytes mean that the other end is closed.
pub(crate) fn receive_with(socket: BorrowedFd<'_>, buf: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0u64; 8];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut fds = Vec::new();
    // SAFETY: as in `send_with`; cmsg_len says how many descriptors the kernel wrote, and we alone
    // own each.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        let got = check(libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) as c_int)?;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
            for i in 0..count {
                let fd = libc::CMSG_DATA(header).cast::<RawFd>().add(i).read_unaligned();
                fds.push(OwnedFd::from_raw_fd(fd));
            }
        }
        Ok((got as usize, fds))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::sys::{kill, read, reap};

    /// Waits for the end of a process; true if it exited with status 0.
    fn end_of(pid: i32) -> bool {
        let begun = Instant::now();
        loop {
            if let Some(well) = reap(pid) {
                return well;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn blocked_signals() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("SigBlk")).unwrap().to_owned()
    }

    fn until_its_owner_ends(_: &(), socket: BorrowedFd<'_>) {
        if close_others().is_ok() {
            let _ = read(socket, &mut [0; 8]);
        }
    }

    #[test]
    fn a_copy_takes_no_signal_from_its_first_moment_on_and_its_owner_as_before() {
        let before = blocked_signals();
        for _ in 0..10 {
            let (ours, its) = socket_pair().unwrap();
            let pid = fork_with(its, &(), until_its_owner_ends).unwrap();
            kill(pid, libc::SIGTERM).unwrap();
            drop(ours);
            assert!(end_of(pid));
        }
        assert_eq!(blocked_signals(), before);
    }

    #[test]
    fn a_panic_of_a_copy_does_not_return_into_the_program() {
        let (_ours, its) = socket_pair().unwrap();
        let pid = fork_with(its, &(), |(), _| std::panic::resume_unwind(Box::new(()))).unwrap();
        assert!(!end_of(pid));
    }
}
