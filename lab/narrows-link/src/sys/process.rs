//! Processes: whether they exist, how they ended, and killing all in given namespaces.

use std::ffi::CStr;
use std::io::{Error, Result};
use std::mem::{size_of_val, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libc::c_int;

use super::{check, open, owned};

/// Sends a signal to a process or, if `id` is negative, to a group. Signal 0 tests whether it
/// exists.
pub(crate) fn kill(id: i32, signal: c_int) -> Result<()> {
    // 0 and -1 would mean our own group and every process.
    if matches!(id, 0 | -1) {
        return Err(Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: integers only.
    check(unsafe { libc::kill(id, signal) }).map(drop)
}

/// Whether the child has ended; does not reap it. True also for a process that is not our child.
pub(crate) fn has_ended(pid: i32) -> bool {
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: all zeroes is a valid siginfo_t, which lives through the call; its pid is 0 or was filled in.
    unsafe {
        let mut info: libc::siginfo_t = zeroed();
        libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, how) != 0 || info.si_pid() != 0
    }
}

/// Reaps the child if it has ended, and returns whether it exited with status 0; false for a
/// process that is not our child. `None` while it runs.
pub(crate) fn reap(pid: i32) -> Option<bool> {
    let mut status = -1;
    // SAFETY: the status lives through the call.
    match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
        0 => None,
        _ => Some(status == 0),
    }
}

/// Ignores Ctrl-C and Ctrl-\, which are for the command that runs, as in a shell.
pub(crate) fn leave_terminal_signals_to_children() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: ignoring a signal installs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Kills every process in the given network namespaces except the caller. False if none was found.
/// The caller holds the namespaces open, so their inode numbers are not reused. Each process is
/// held by a pidfd before its namespace is read, so a reused pid cannot be hit.
pub(crate) fn end_inhabitants(namespaces: &[(u64, u64)]) -> bool {
    let Ok(proc) = open(c"/proc", libc::O_RDONLY | libc::O_DIRECTORY) else { return false };
    // SAFETY: cannot fail.
    let own = unsafe { libc::getpid() };
    // A /proc of another pid namespace would lead to unrelated processes.
    if first_number(&mut [0; 16], |buf| read_link(c"/proc/self", buf)) != Some(own) {
        return false;
    }
    let mut found = false;
    // An entry that could not be listed is found by the next sweep, or cannot be listed at all.
    let _ = numbers_in(proc.as_fd(), |pid, name| {
        if pid != own {
            found |= end_if_inside(pid, name, namespaces);
        }
    });
    found
}

/// Calls `each` for the entries of a folder whose names are numbers.
pub(super) fn numbers_in(folder: BorrowedFd<'_>, mut each: impl FnMut(i32, &CStr)) -> Result<()> {
    let mut entries = [0u64; 1024];
    loop {
        // SAFETY: the length passed is that of the buffer, which is aligned for the records.
        let got = unsafe {
            libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), entries.as_mut_ptr(), size_of_val(&entries))
        };
        let got = check(got as c_int)? as usize;
        if got == 0 {
            return Ok(());
        }
        let mut at = 0usize;
        while at < got {
            // SAFETY: the kernel fills the buffer with whole records, each with its length at byte 16 and its name, ended
            // by a zero, at byte 19.
            let (name, len) = unsafe {
                let record = entries.as_ptr().cast::<u8>().add(at);
                (CStr::from_ptr(record.add(19).cast()), record.add(16).cast::<u16>().read_unaligned())
            };
            at += usize::from(len);
            if let Some(number) = number(name.to_bytes()) {
                each(number, name);
            }
        }
    }
}

fn end_if_inside(pid: i32, name: &CStr, namespaces: &[(u64, u64)]) -> bool {
    // SAFETY: integers only.
    let Ok(process) = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as c_int) else { return false };
    let mut path = [0u8; 32];
    let parts = [b"/proc/".as_slice(), name.to_bytes(), b"/ns/net\0"];
    let mut len = 0;
    for part in parts {
        let Some(room) = path.get_mut(len..len + part.len()) else { return false };
        room.copy_from_slice(part);
        len += part.len();
    }
    let Ok(path) = CStr::from_bytes_with_nul(&path[..len]) else { return false };
    let Some(identity) = identity_at(path) else { return false };
    if !namespaces.contains(&identity) {
        return false;
    }
    let no_info: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: the descriptor is ours; no info is allowed.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), libc::SIGKILL, no_info, 0) == 0 }
}

/// Device and inode, which identify a namespace as long as it is open.
fn identity_at(path: &CStr) -> Option<(u64, u64)> {
    // SAFETY: all zeroes is a valid stat; the path ends with a zero and both live through the call.
    unsafe {
        let mut stat: libc::stat = zeroed();
        (libc::stat(path.as_ptr(), &raw mut stat) == 0).then_some((stat.st_dev as u64, stat.st_ino as u64))
    }
}

pub(crate) fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    // SAFETY: as above, with a descriptor that is borrowed for the call.
    unsafe {
        let mut stat: libc::stat = zeroed();
        check(libc::fstat(fd.as_raw_fd(), &raw mut stat))?;
        Ok((stat.st_dev as u64, stat.st_ino as u64))
    }
}

fn read_link(path: &CStr, buf: &mut [u8]) -> usize {
    // SAFETY: the length passed is that of the buffer.
    usize::try_from(unsafe { libc::readlink(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) }).unwrap_or(0)
}

fn first_number(buf: &mut [u8], fill: impl FnOnce(&mut [u8]) -> usize) -> Option<i32> {
    let len = fill(buf);
    number(&buf[..len])
}

fn number(bytes: &[u8]) -> Option<i32> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
