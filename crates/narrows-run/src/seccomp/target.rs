//! The process that made a call: its descriptors, its memory, and its state in /proc.

use std::fs::{self, File};
use std::io::{Error, Read, Result};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::sys;

/// PIDFD_THREAD, since Linux 6.9.
const OF_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
/// Children of a process that are checked, some 2 us each; a process with more is assumed to share
/// its sockets.
const CHILDREN_MAX: usize = 256;
/// Threads whose children are listed, some 5 us each; a process with more is assumed to share its
/// sockets.
const THREADS_MAX: usize = 256;
/// Descriptors of relatives that are checked where sockets may have been passed on, some 4 us each;
/// with more, one is assumed to have been passed.
const DESCRIPTORS_MAX: usize = 1024;

/// Bytes read of files in /proc. The fields needed are in the first lines; the longest file is
/// `status`, with some 1,500 bytes.
const FILE_MAX: usize = 4096;

pub(super) struct Target {
    /// The thread that waits for the answer.
    tid: i32,
    /// Pidfd of the thread, or of its process before Linux 6.9.
    pub(super) pidfd: OwnedFd,
}

impl Target {
    pub(super) fn open(tid: u32) -> Result<Self> {
        let tid = tid as i32;
        let pid = Pid::from_raw(tid).ok_or_else(|| Error::from_raw_os_error(libc::ESRCH))?;
        let pidfd = match pidfd_open(pid, OF_THREAD) {
            Ok(fd) => fd,
            Err(_) => {
                let leader = field(&read(tid, "status")?, "Tgid:").and_then(|n| Pid::from_raw(n as i32));
                pidfd_open(leader.unwrap_or(pid), PidfdFlags::empty())?
            }
        };
        Ok(Self { tid, pidfd })
    }

    pub(super) fn tid(&self) -> u32 {
        self.tid as u32
    }

    /// A duplicate of the process's descriptor `number`.
    pub(super) fn descriptor(&self, number: i32) -> Result<OwnedFd> {
        Ok(pidfd_getfd(&self.pidfd, number, PidfdGetfdFlags::empty())?)
    }

    pub(super) fn read<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        sys::read_memory(self.tid, at, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn read_into(&self, at: u64, into: &mut [u8]) -> Result<()> {
        if into.is_empty() { Ok(()) } else { sys::read_memory(self.tid, at, into) }
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() { Ok(()) } else { sys::write_memory(self.tid, at, bytes) }
    }

    pub(super) fn closes_on_exec(&self, number: i32) -> Result<bool> {
        let flags = read(self.tid, &format!("fdinfo/{number}"))?;
        let flags = flags.lines().find_map(|l| l.strip_prefix("flags:"));
        let flags = flags.and_then(|f| u32::from_str_radix(f.trim(), 8).ok());
        let flags = flags.ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))?;
        Ok(flags & libc::O_CLOEXEC as u32 != 0)
    }

    /// The domain of the security module that confines it; `None` if there is none.
    pub(super) fn domain(&self) -> Option<String> {
        domain(self.tid)
    }

    /// Whether it has reached its descriptor limit. Unknown (false) before Linux 6.2, which does
    /// not tell the count.
    pub(super) fn is_full(&self) -> bool {
        let open = fs::metadata(format!("/proc/{}/fd", self.tid)).map_or(0, |fds| fds.size());
        open != 0 && sys::descriptor_limit(self.tid).is_ok_and(|limit| open >= limit)
    }

    /// Whether a relative has the same socket since a fork. Only the same number is checked,
    /// because copies to another number are remembered. Relatives are the parent, its other
    /// children, and the children of any thread.
    pub(super) fn shares(&self, number: i32) -> Result<bool> {
        let link = |process: i32| fs::read_link(format!("/proc/{process}/fd/{number}")).ok();
        let own = link(self.tid);
        let (leader, parent) = self.family()?;
        // The parent is checked first: a child to which it passes the socket before closing it is
        // then among the siblings listed afterwards.
        if parent != leader && !is_supervisor(parent) && link(parent) == own {
            return Ok(true);
        }
        let Some(relatives) = relatives(leader, parent) else { return Ok(true) };
        Ok(relatives.into_iter().any(|relative| link(relative) == own))
    }

    /// Whether a relative has the same socket under any number, or is about to get it in a message
    /// over a unix socket. What a message holds is unknown, only that one with descriptors is
    /// waiting to be received.
    pub(super) fn has_passed(&self, number: i32) -> Result<bool> {
        let own = fs::read_link(format!("/proc/{}/fd/{number}", self.tid))?;
        let (leader, parent) = self.family()?;
        let Some(mut all) = relatives(leader, parent) else { return Ok(true) };
        all.push(leader);
        if parent != leader && !is_supervisor(parent) && is_of_this_run(parent) {
            all.push(parent);
        }
        // All messages first: a descriptor received in the meantime is then among those checked
        // next.
        let in_a_message = any_socket(&all, |process, descriptor, _| {
            let info = read(process, &format!("fdinfo/{descriptor}"));
            info.is_ok_and(|info| field(&info, "scm_fds:").is_some_and(|count| count > 0))
        });
        Ok(in_a_message || any_socket(&all, |process, _, link| process != leader && *link == own))
    }

    /// The first thread and the parent process.
    fn family(&self) -> Result<(i32, i32)> {
        let status = read(self.tid, "status")?;
        let number = |name| field(&status, name).unwrap_or(0) as i32;
        Ok((number("Tgid:"), number("PPid:")))
    }

    /// Pending signals that concern a waiting call.
    pub(super) fn signals(&self) -> Signals {
        let Ok(status) = read(self.tid, "status") else { return Signals::None };
        let leader = field(&status, "Tgid:").unwrap_or(0) as i32;
        let stopped = |status: String| status.lines().any(|l| l.starts_with("State:\tT"));
        let stops = || leader != self.tid && read(leader, "status").is_ok_and(stopped);
        match Signals::of(&status) {
            // The other threads have stopped, and the process stops when this one does.
            Signals::None if stops() => Signals::Ours,
            signals => signals,
        }
    }
}

/// As `Target::domain`.
pub(super) fn domain(process: i32) -> Option<String> {
    read(process, "attr/current").ok()
}

/// Whether `is_so` holds for any socket of these processes; it gets the process, the number and the
/// link target. Also true if there are too many descriptors.
fn any_socket(processes: &[i32], is_so: impl Fn(i32, &str, &PathBuf) -> bool) -> bool {
    let mut looks = 0;
    for &process in processes {
        // A process that is gone has no descriptors.
        let Ok(descriptors) = fs::read_dir(format!("/proc/{process}/fd")) else { continue };
        for descriptor in descriptors.flatten() {
            looks += 1;
            if looks > DESCRIPTORS_MAX {
                return true;
            }
            let Ok(link) = fs::read_link(descriptor.path()) else { continue };
            let is_socket = link.as_os_str().as_encoded_bytes().starts_with(b"socket:");
            if is_socket && is_so(process, &descriptor.file_name().to_string_lossy(), &link) {
                return true;
            }
        }
    }
    false
}

/// Children and siblings; `None` if there are too many.
fn relatives(leader: i32, parent: i32) -> Option<Vec<i32>> {
    // Other children of a parent outside the run have nothing from it.
    let siblings = if is_of_this_run(parent) { children(parent)? } else { Vec::new() };
    Some(children(leader)?.into_iter().chain(siblings).filter(|process| *process != leader).collect())
}

/// The children of all threads; `None` if there are too many.
fn children(process: i32) -> Option<Vec<i32>> {
    let mut all = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return Some(all) };
    for (n, thread) in threads.flatten().enumerate() {
        let thread = thread.file_name();
        let of_it = read(process, &format!("task/{}/children", thread.to_string_lossy())).unwrap_or_default();
        all.extend(of_it.split(' ').filter_map(|n| n.trim().parse::<i32>().ok()));
        if n >= THREADS_MAX || all.len() > CHILDREN_MAX {
            return None;
        }
    }
    Some(all)
}

/// Whether the process is the supervisor, or under more filters than the supervisor is.
fn is_of_this_run(process: i32) -> bool {
    let filters = |process| read(process, "status").ok().and_then(|status| field(&status, "Seccomp_filters:"));
    is_supervisor(process) || filters(process) > filters(std::process::id() as i32)
}

/// The supervisor as a parent holds every socket it is asked about, which does not count as
/// sharing.
fn is_supervisor(process: i32) -> bool {
    process == std::process::id() as i32
}

/// The kernel generates such a file on each open, and returns as much as is asked for in one read.
fn read(tid: i32, file: &str) -> Result<String> {
    let mut bytes = vec![0; FILE_MAX];
    let len = File::open(format!("/proc/{tid}/{file}"))?.read(&mut bytes)?;
    bytes.truncate(len);
    // A process name may contain any bytes.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The decimal number after a field name.
fn field(status: &str, name: &str) -> Option<u32> {
    status.lines().find_map(|l| l.strip_prefix(name))?.trim().parse().ok()
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Signals {
    None,
    /// A signal is pending that this thread will take as soon as its call ends.
    Ours,
    /// A signal is pending for any thread of the process, probably this one.
    Firsts,
    /// A signal is pending for any thread of the process.
    Somebodys,
}

impl Signals {
    fn of(status: &str) -> Self {
        let set = |name| {
            let text = status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
            u64::from_str_radix(text.trim(), 16).unwrap_or(0)
        };
        let blocked = set("SigBlk:");
        let (own, shared) = (set("SigPnd:") & !blocked, set("ShdPnd:") & !blocked);
        let alone = field(status, "Threads:") == Some(1);
        // The kernel delivers a process-wide signal to the first thread unless that blocks it, but
        // the end of a child to the thread that forked it.
        let first = field(status, "Tgid:") == field(status, "Pid:");
        if own != 0 || shared != 0 && alone {
            Self::Ours
        } else if shared != 0 && first {
            Self::Firsts
        } else if shared != 0 {
            Self::Somebodys
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_as_the_kernel_writes_them() {
        let status = |thread: u32, own: u64, shared: u64, blocked: u64| {
            Signals::of(&format!(
                "Name:\tx\nTgid:\t7\nPid:\t{thread}\nThreads:\t2\nSigQ:\t1/2\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n"
            ))
        };
        assert_eq!(status(7, 0, 0, 0), Signals::None);
        assert_eq!(status(7, 0, 1 << 13, 0), Signals::Firsts);
        assert_eq!(Signals::of("Threads:\t1\nShdPnd:\t2000\n"), Signals::Ours);
        assert_eq!(status(7, 0, 1 << 13, 1 << 13), Signals::None);
        assert_eq!(status(9, 0, 1 << 13, 0), Signals::Somebodys);
        assert_eq!(status(9, 1 << 9, 0, 1 << 13), Signals::Ours);
        assert_eq!(Signals::of("rubbish"), Signals::None);
    }

    #[test]
    fn a_process_is_looked_into() {
        let me = Target::open(std::process::id()).unwrap();
        let (a, _b) = std::io::pipe().unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&a);
        assert!(me.closes_on_exec(number).unwrap());
        assert_eq!(me.domain(), fs::read_to_string("/proc/self/attr/current").ok());
        assert!(!me.shares(number).unwrap() && !me.is_full());
        assert!(me.descriptor(number).is_ok() && me.descriptor(9999).is_err());
        let mut there = *b"hello";
        let at = there.as_mut_ptr() as u64;
        assert_eq!(me.read::<5>(at).unwrap(), *b"hello");
        me.write(at, b"HE").unwrap();
        assert_eq!(me.read::<5>(at).unwrap(), *b"HEllo");
        assert!(me.read::<5>(8).is_err() && me.write(8, b"x").is_err());
    }
}
