//! Hooks of calls that start programs without running fork handlers: unconnected sockets may be
//! shared by two processes afterwards all the same.
//!
//! A child of `vfork` writes to its parent's memory, so its `exec` can record it there. `execl` and
//! its like are not hooked: a variable number of arguments cannot be passed on.
#![allow(unsafe_code, reason = "passes pointers of the program on; every block says why it is sound")]
#![allow(unreachable_pub, reason = "programs reach these by name")]
#![allow(clippy::missing_safety_doc, reason = "as the functions of libc of the same names")]

use core::ffi::{c_char, c_int, c_void};

use libc::pid_t;

use crate::marks;
use crate::next::{self, Words};
use crate::setup;
use crate::start;

/// Ends the generation of marks if a started program inherits unconnected sockets. Called before
/// and after the real call, because another thread may create sockets meanwhile, and the child has
/// those too. `all`: the child may also get descriptors that exec closes, under another number.
#[inline(never)]
extern "C" fn starts(all: bool) {
    if setup::get().is_some() && marks::are_inherited(all) {
        marks::next_generation();
    }
}

/// A fork that runs no fork handlers.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case, reason = "its name")]
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: no arguments.
    let answer = unsafe { next::_Fork() };
    if setup::get().is_some() {
        if answer == 0 { start::forked_child() } else { start::forked() }
    }
    answer
}

/// The C library starts threads without this symbol.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn clone(
    function: *const c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_at: *mut pid_t,
    variables: *mut c_void,
    child_at: *mut pid_t,
) -> c_int {
    let copies = flags & libc::CLONE_FILES == 0;
    if copies {
        starts(true);
    }
    // SAFETY: the program's own arguments. The last three, if they are not there, are not looked at either.
    let answer = unsafe { next::clone(function, stack, flags, argument, parent_at, variables, child_at) };
    if copies {
        starts(true);
    }
    answer
}

/// With CLONE_FILES this thread gets its own copy of the descriptors, like a child.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let answer = unsafe { next::unshare(flags) };
    if flags & libc::CLONE_FILES != 0 {
        starts(true);
    }
    answer
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Words,
    variables: Words,
) -> c_int {
    starts(!actions.is_null());
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::posix_spawn(pid, path, actions, attributes, args, variables) };
    starts(!actions.is_null());
    answer
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Words,
    variables: Words,
) -> c_int {
    starts(!actions.is_null());
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::posix_spawnp(pid, file, actions, attributes, args, variables) };
    starts(!actions.is_null());
    answer
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    starts(false);
    // SAFETY: the program's own argument.
    let answer = unsafe { next::system(command) };
    starts(false);
    answer
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut c_void {
    starts(false);
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::popen(command, mode) };
    starts(false);
    answer
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn execve(path: *const c_char, args: Words, variables: Words) -> c_int {
    starts(false);
    // SAFETY: the program's own arguments.
    unsafe { next::execve(path, args, variables) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, args: Words) -> c_int {
    starts(false);
    // SAFETY: the program's own arguments.
    unsafe { next::execv(path, args) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn execvp(file: *const c_char, args: Words) -> c_int {
    starts(false);
    // SAFETY: the program's own arguments.
    unsafe { next::execvp(file, args) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn execvpe(file: *const c_char, args: Words, variables: Words) -> c_int {
    starts(false);
    // SAFETY: the program's own arguments.
    unsafe { next::execvpe(file, args, variables) }
}
