//! Hooks where sockets and connections are made.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};

use super::{active, fail};
use crate::begin::{self, Again, ByGateway, ours};
use crate::marks;
use crate::next;
use crate::options;
use crate::setup;
use crate::swap;
use crate::sys::{self, Address, errno, set_errno};
use crate::wire::Name;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    let protocol = begin::protocol(family, protocol);
    // Read before the call: if another thread forks meanwhile, two processes share the socket.
    let since = marks::generation();
    // SAFETY: no pointers.
    let fd = unsafe { next::socket(family, kind, protocol) };
    if fd >= 0 && active() {
        begin::made(fd, family, kind, protocol, since);
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let mut gateway = Address::EMPTY;
    // SAFETY: the program's own arguments, and an address of ours, which is as long.
    unsafe {
        if active() && has_gateway(fd, address, len, &mut gateway) {
            let answer = next::connect(fd, (&raw const gateway).cast(), len);
            if let Some(answer) = gateway_done(fd, address, len, answer) {
                return answer;
            }
        }
    }
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::connect(fd, address, len) };
    if active() {
        // SAFETY: the same.
        return unsafe { connect_done(fd, address, len, answer) };
    }
    answer
}

#[inline(never)]
unsafe extern "C" fn connect_done(fd: c_int, address: *const sockaddr, len: socklen_t, answer: c_int) -> c_int {
    let number = if answer == 0 { 0 } else { errno() };
    // An interrupted attempt continues.
    let connecting = number == libc::EINPROGRESS || number == libc::EINTR;
    if (number == 0 || connecting) && marks::is_set(fd) {
        // SAFETY: the kernel has read the address, so it is readable.
        let peer = unsafe { copied(address, len) };
        if begin::raw_address(&peer).is_some() {
            begin::connected(fd, &peer, connecting);
        }
    } else if number == libc::EINVAL
        && let Some(name) = ours(fd)
    {
        // SAFETY: the kernel has read the address.
        if len >= 2 && c_int::from(unsafe { copied(address, len) }.family) == libc::AF_UNSPEC {
            return dissolve(fd, &name).map_or_else(fail, |()| 0);
        }
        return match begin::connect_again(fd, &name) {
            Again::Answer(Ok(())) => 0,
            Again::Answer(Err(number)) => fail(number),
            // SAFETY: the program's own arguments. The recursion ends: the descriptor is a TCP
            // socket again.
            Again::Retry => unsafe {
                let mut answer = next::connect(fd, address, len);
                // The first call only ends the failed attempt.
                if answer != 0 && errno() == libc::ECONNABORTED {
                    answer = next::connect(fd, address, len);
                }
                connect_done(fd, address, len, answer)
            },
        };
    }
    if number != 0 {
        set_errno(number);
    }
    answer
}

/// Dissolves a connection (AF_UNSPEC). As in the kernel its peer gets a reset, whoever else holds
/// the socket.
fn dissolve(fd: c_int, name: &Name) -> Result<(), c_int> {
    let _ = options::set(fd, name, libc::SOL_SOCKET, libc::SO_LINGER, &swap::RESET);
    let _ = sys::shutdown(fd);
    begin::take_back(fd, name)
}

/// Whether that server is reached through a gateway, and the gateway's address. Only where gateways
/// are configured is an address read that the kernel has not checked.
#[inline(never)]
unsafe extern "C" fn has_gateway(fd: c_int, address: *const sockaddr, len: socklen_t, gateway: &mut Address) -> bool {
    if address.is_null() || setup::get().is_none_or(|s| s.gateway_port == 0) || !marks::is_set(fd) {
        return false;
    }
    let mut bytes = [0; size_of::<Address>()];
    let len = (len as usize).min(bytes.len());
    if sys::read_user(address as usize, &mut bytes[..len]) != Ok(len) {
        return false;
    }
    // SAFETY: `bytes` has at least `len` bytes.
    let found = begin::gateway_for(fd, &unsafe { copied(bytes.as_ptr().cast(), len as socklen_t) });
    *gateway = found.unwrap_or(Address::EMPTY);
    found.is_some()
}

/// The result of connecting to a gateway. `None`: connect to the server itself.
#[allow(improper_ctypes_definitions, reason = "only called from here; the border is for panics")]
#[inline(never)]
unsafe extern "C" fn gateway_done(fd: c_int, address: *const sockaddr, len: socklen_t, answer: c_int) -> Option<c_int> {
    if answer != 0 && errno() != libc::EINPROGRESS && errno() != libc::EINTR {
        // No gateway listens, which says nothing about the server.
        return (errno() != libc::ECONNREFUSED).then_some(answer);
    }
    // SAFETY: as before.
    match begin::reached_gateway(fd, &unsafe { copied(address, len) }) {
        ByGateway::Done(Ok(())) => Some(0),
        ByGateway::Done(Err(number)) => Some(fail(number)),
        ByGateway::Plain => None,
    }
}

/// # Safety
/// `len` bytes must be readable at `address`.
unsafe fn copied(address: *const sockaddr, len: socklen_t) -> Address {
    let mut copy = Address::EMPTY;
    let len = (len as usize).min(size_of::<Address>());
    // SAFETY: both have `len` bytes, and `Address` is made of plain bytes.
    unsafe { core::ptr::copy_nonoverlapping(address.cast::<u8>(), (&raw mut copy).cast(), len) };
    copy
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own arguments.
    let new = unsafe { next::accept(fd, address, len) };
    accept_done(fd, new)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    let new = unsafe { next::accept4(fd, address, len, flags) };
    accept_done(fd, new)
}

#[inline(never)]
extern "C" fn accept_done(listener: c_int, new: c_int) -> c_int {
    if new >= 0 && active() {
        begin::accepted(listener, new);
    }
    new
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: no pointers.
    let answer = unsafe { next::listen(fd, backlog) };
    if answer == 0 && active() {
        begin::listens(fd);
    }
    answer
}
