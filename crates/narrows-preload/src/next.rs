//! The real functions behind the hooks: those of libc, or of another preloaded library.
//!
//! They are called for the real work, so that other interposers keep theirs and blocking calls stay cancellation points.
#![allow(unsafe_code, reason = "calls what dlsym found; every block says why it is sound")]

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{epoll_event, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

use crate::sys;

/// The raw system call, for calls before `resolve` from constructors of other libraries.
fn raw(number: c_long, args: [usize; 6]) -> isize {
    // SAFETY: the arguments are those that the program gave to the function with the same meaning.
    match unsafe { sys::call(number, args) } {
        Ok(answer) => answer as isize,
        Err(number) => {
            sys::set_errno(number);
            -1
        }
    }
}

macro_rules! originals {
    ($($place:ident $name:ident ($($arg:ident: $kind:ty),*) -> $answer:ty, $number:ident;)*) => {
        $(
            static $place: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

            /// # Safety
            /// As the function of the same name of libc.
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $kind),*) -> $answer {
                let at = $place.load(Ordering::Relaxed);
                if at.is_null() {
                    let given = [$($arg as usize),*];
                    let mut args = [0; 6];
                    for (to, from) in args.iter_mut().zip(given) {
                        *to = from;
                    }
                    return raw($number, args) as $answer;
                }
                // SAFETY: dlsym found it under this name, so it has this type; the caller vouches for the arguments.
                unsafe {
                    let function: unsafe extern "C-unwind" fn($($kind),*) -> $answer = transmute(at);
                    function($($arg),*)
                }
            }
        )*

        fn resolve_calls() {
            $($place.store(find(concat!(stringify!($name), "\0")), Ordering::Relaxed);)*
        }
    };
}

/// Functions that do more than one system call.
macro_rules! functions {
    ($($place:ident $name:ident ($($arg:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(
            static $place: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

            /// # Safety
            /// As the function of the same name of libc.
            #[allow(non_snake_case, reason = "the names of libc")]
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $kind),*) -> $answer {
                let mut at = $place.load(Ordering::Relaxed);
                if at.is_null() {
                    // Called by a constructor of another library before `resolve`; that is before
                    // threads and forks.
                    at = find(concat!(stringify!($name), "\0"));
                }
                // SAFETY: a later library defines it, or its caller would not have been linked. It
                // has this type; the caller vouches for the arguments.
                unsafe {
                    let function: unsafe extern "C-unwind" fn($($kind),*) -> $answer = transmute(at);
                    function($($arg),*)
                }
            }
        )*

        fn resolve_functions() {
            $($place.store(find(concat!(stringify!($name), "\0")), Ordering::Relaxed);)*
        }
    };
}

fn find(name: &str) -> *mut c_void {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        // SAFETY: the name ends with a zero; RTLD_NEXT asks for what comes after this library.
        Ok(name) => unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) },
        Err(_) => null_mut(),
    }
}

/// Finds them all, once, before the program runs.
pub(crate) fn resolve() {
    resolve_calls();
    resolve_functions();
}

#[cfg(target_arch = "x86_64")]
use libc::SYS_dup2;
use libc::{
    SYS_accept, SYS_accept4, SYS_connect, SYS_dup, SYS_dup3, SYS_epoll_ctl, SYS_fcntl, SYS_getpeername,
    SYS_getsockname, SYS_getsockopt, SYS_ioctl, SYS_listen, SYS_recvfrom, SYS_recvmsg, SYS_sendfile, SYS_sendmmsg,
    SYS_sendmsg, SYS_sendto, SYS_setsockopt, SYS_socket, SYS_splice, SYS_unshare,
};
/// dup3 differs from dup2 if both numbers are equal, which does not happen before `main`.
#[cfg(not(target_arch = "x86_64"))]
const SYS_dup2: c_long = SYS_dup3;

originals! {
    SOCKET socket(family: c_int, kind: c_int, protocol: c_int) -> c_int, SYS_socket;
    CONNECT connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int, SYS_connect;
    LISTEN listen(fd: c_int, backlog: c_int) -> c_int, SYS_listen;
    ACCEPT accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, SYS_accept;
    ACCEPT4 accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int, SYS_accept4;
    GETSOCKNAME getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, SYS_getsockname;
    GETPEERNAME getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int, SYS_getpeername;
    GETSOCKOPT getsockopt(fd: c_int, level: c_int, option: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int, SYS_getsockopt;
    SETSOCKOPT setsockopt(fd: c_int, level: c_int, option: c_int, value: *const c_void, len: socklen_t) -> c_int, SYS_setsockopt;
    EPOLL_CTL epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int, SYS_epoll_ctl;
    DUP dup(old: c_int) -> c_int, SYS_dup;
    DUP2 dup2(old: c_int, new: c_int) -> c_int, SYS_dup2;
    DUP3 dup3(old: c_int, new: c_int, flags: c_int) -> c_int, SYS_dup3;
    FCNTL fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, SYS_fcntl;
    FCNTL64 fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int, SYS_fcntl;
    IOCTL ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int, SYS_ioctl;
    SENDFILE sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t, SYS_sendfile;
    SENDFILE64 sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t, SYS_sendfile;
    SPLICE splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint) -> ssize_t, SYS_splice;
    SEND send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t, SYS_sendto;
    SENDTO sendto(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t, SYS_sendto;
    SENDMSG sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t, SYS_sendmsg;
    RECV recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t, SYS_recvfrom;
    RECVFROM recvfrom(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t, SYS_recvfrom;
    RECVMSG recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, SYS_recvmsg;
    SENDMMSG sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, SYS_sendmmsg;
    UNSHARE unshare(flags: c_int) -> c_int, SYS_unshare;
}

/// Argument and environment vectors.
pub(crate) type Words = *const *const c_char;

functions! {
    POSIX_SPAWN posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Words, variables: Words) -> c_int;
    POSIX_SPAWNP posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, args: Words, variables: Words) -> c_int;
    POLL poll(looks: *mut pollfd, count: nfds_t, wait_ms: c_int) -> c_int;
    BARE_FORK _Fork() -> pid_t;
    CLONE clone(function: *const c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_at: *mut pid_t, variables: *mut c_void, child_at: *mut pid_t) -> c_int;
    RECV_CHECKED __recv_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    RECVFROM_CHECKED __recvfrom_chk(fd: c_int, bytes: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    SYSTEM system(command: *const c_char) -> c_int;
    POPEN popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
    EXECVE execve(path: *const c_char, args: Words, variables: Words) -> c_int;
    EXECV execv(path: *const c_char, args: Words) -> c_int;
    EXECVP execvp(file: *const c_char, args: Words) -> c_int;
    EXECVPE execvpe(file: *const c_char, args: Words, variables: Words) -> c_int;
}
