//! Hooks for duplicates and registrations of sockets that are not connected yet.

use core::ffi::c_int;

use libc::epoll_event;

use super::active;
use crate::marks;
use crate::next;
use crate::registrations;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::epoll_ctl(epoll, operation, fd, event) };
    if answer == 0 && marks::is_set(fd) {
        // SAFETY: the kernel read the event if the operation has one.
        let (events, data) = if event.is_null() { (0, 0) } else { unsafe { ((*event).events, (*event).u64) } };
        match operation {
            libc::EPOLL_CTL_ADD if !registrations::added(epoll, fd, events, data) => marks::forget_socket(fd),
            libc::EPOLL_CTL_MOD => registrations::changed(epoll, fd, events, data),
            libc::EPOLL_CTL_DEL => registrations::removed(epoll, fd),
            _ => {}
        }
    }
    answer
}

fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && active() {
        marks::duplicated(old, new);
    }
    new
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(old: c_int) -> c_int {
    // SAFETY: no pointers.
    duplicated(old, unsafe { next::dup(old) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: no pointers.
    duplicated(old, unsafe { next::dup2(old, new) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    duplicated(old, unsafe { next::dup3(old, new, flags) })
}

fn controlled(fd: c_int, command: c_int, answer: c_int) -> c_int {
    if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
        return duplicated(fd, answer);
    }
    answer
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the program's own arguments. Commands without a third argument ignore it.
    controlled(fd, command, unsafe { next::fcntl(fd, command, argument) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: as above.
    controlled(fd, command, unsafe { next::fcntl64(fd, command, argument) })
}
