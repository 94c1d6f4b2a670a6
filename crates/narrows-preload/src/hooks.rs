//! Hooks: the symbols that take precedence over libc's.
//!
//! Those that may block are `C-unwind`: cancelling a thread unwinds through them, and they own
//! nothing. They cannot panic; code that could is behind the border of an `extern "C"` function,
//! which aborts. Such a function must not be inlined into its caller: that would need unwinding
//! code of ours, and there is none (`freestanding.rs`).
#![allow(unsafe_code, reason = "deals with pointers of the program; every block says why it is sound")]
#![allow(unreachable_pub, reason = "programs reach these by name")]
#![allow(clippy::missing_safety_doc, reason = "as the functions of libc of the same names")]

use core::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{epoll_event, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::begin::{self, Again, ByGateway, ours};
use crate::kinds;
use crate::marks;
use crate::next;
use crate::options;
use crate::receive;
use crate::registrations;
use crate::setup;
use crate::start;
use crate::sys::{self, Address, errno, set_errno};
use crate::wire::{Name, RawAddress, VALUE_MAX};

// SAFETY: the loader calls the functions in this section, with arguments that `start` ignores.
#[cfg_attr(not(test), used, unsafe(link_section = ".init_array"))]
#[cfg_attr(test, allow(dead_code, reason = "tests are no program under narrows run"))]
static START: extern "C" fn() = start::start;

/// Maximum of one splice or sendfile. A unix socket accepts more at a time than it can release
/// while one byte of it is unread (`swap.rs`).
const SPLICE_MAX: usize = 65_536;

fn fail(number: c_int) -> c_int {
    set_errno(number);
    -1
}

fn active() -> bool {
    setup::get().is_some()
}

// --- creation of sockets and connections ---

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
            return begin::take_back(fd, &name).map_or_else(fail, |()| 0);
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

// --- names ---

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        match named(fd) {
            Some(name) => tell(fd, &name.local, address, len),
            None => next::getsockname(fd, address, len),
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        match named(fd) {
            Some(name) if !begin::has_peer(fd, &name) => fail(libc::ENOTCONN),
            Some(name) => tell(fd, &name.peer, address, len),
            None => next::getpeername(fd, address, len),
        }
    }
}

fn named(fd: c_int) -> Option<Name> {
    if active() { ours(fd) } else { None }
}

/// # Safety
/// As `getsockname`.
unsafe fn tell(fd: c_int, raw: &RawAddress, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let mut room = [0; 4];
    if sys::read_user(len as usize, &mut room) != Ok(4) {
        return fail(libc::EFAULT);
    }
    // The unix socket's name is longer than the address to return, so if the kernel can write that,
    // there is room for the address.
    let answer = unsafe { next::getsockname(fd, address, len) };
    if answer != 0 {
        return answer;
    }
    let whole: socklen_t = if u16::from_ne_bytes([raw[0], raw[1]]) == crate::wire::AF_INET { 16 } else { 28 };
    let room = socklen_t::from_ne_bytes(room);
    // SAFETY: the kernel has written at least as much to both; `raw` has `whole` bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(raw.as_ptr(), address.cast(), whole.min(room) as usize);
        *len = whole;
    }
    answer
}

// --- options ---

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if kinds::is_forwarded(level, option)
        && let Some(name) = named(fd)
    {
        return option_told(fd, &name, level, option, value as usize, len as usize);
    }
    // SAFETY: the program's own arguments; if the call succeeded, the kernel has written both.
    unsafe {
        let answer = next::getsockopt(fd, level, option, value, len);
        if answer != 0 && active() && level != libc::SOL_SOCKET && errno() == libc::EOPNOTSUPP {
            return match ours(fd) {
                Some(name) => option_told(fd, &name, level, option, value as usize, len as usize),
                None => fail(libc::EOPNOTSUPP),
            };
        }
        if answer == 0 && active() && level == libc::SOL_SOCKET && *len <= 4 {
            // A shorter buffer gets the beginning.
            let (mut number, room) = ([0; 4], *len as usize);
            core::ptr::copy_nonoverlapping(value.cast(), number.as_mut_ptr(), room);
            if let Some(translated) = options::translated(fd, option, c_int::from_ne_bytes(number)) {
                core::ptr::copy_nonoverlapping(translated.to_ne_bytes().as_ptr(), value.cast(), room);
            }
        }
        answer
    }
}

#[allow(improper_ctypes_definitions, reason = "only called from here; the border is for panics")]
extern "C" fn option_told(fd: c_int, name: &Name, level: c_int, option: c_int, value: usize, len: usize) -> c_int {
    let told = || -> Result<(), c_int> {
        let (mut room, mut bytes) = ([0; 4], [0; VALUE_MAX]);
        if sys::read_user(len, &mut room)? != room.len() {
            return Err(libc::EFAULT);
        }
        let room = usize::try_from(c_int::from_ne_bytes(room)).map_err(|_| libc::EINVAL)?.min(VALUE_MAX);
        sys::read_user(value, &mut bytes[..room])?;
        let filled = options::get(fd, name, level, option, &mut bytes[..room])?;
        // SAFETY: the program's own arguments.
        unsafe {
            sys::write_user(value, &bytes[..filled])?;
            sys::write_user(len, &(filled as c_int).to_ne_bytes())
        }
    };
    told().map_or_else(fail, |()| 0)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let forward = |name| {
        let mut bytes = [0; VALUE_MAX];
        let Some(bytes) = bytes.get_mut(..len as usize) else { return fail(libc::ENOPROTOOPT) };
        if sys::read_user(value as usize, bytes) != Ok(bytes.len()) {
            return fail(libc::EFAULT);
        }
        options::set(fd, &name, level, option, bytes).map_or_else(fail, |()| 0)
    };
    if kinds::is_forwarded(level, option)
        && active()
        && let Some(name) = ours(fd)
    {
        return forward(name);
    }
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::setsockopt(fd, level, option, value, len) };
    if answer == 0 && kinds::forces_plain(level, option) {
        marks::forget_socket(fd);
    }
    if answer != 0
        && active()
        && level != libc::SOL_SOCKET
        && errno() == libc::EOPNOTSUPP
        && let Some(name) = ours(fd)
    {
        return forward(name);
    }
    answer
}

/// SIOCOUTQNSD, not defined by libc.
const OUTQ_NOT_SENT: u32 = 0x894b;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the program's own arguments.
    let answer = unsafe { next::ioctl(fd, request, argument) };
    // The kernel uses only these 32 bits, and musl's prototype has no more.
    let request = request as u32;
    if [libc::TIOCOUTQ as u32, OUTQ_NOT_SENT].contains(&request) {
        return queue_told(fd, argument, answer);
    }
    if answer != 0 && kinds::is_of_sockets(request) {
        // SAFETY: the program's own arguments.
        return unsafe { ask_stand_in(fd, request, argument, answer) };
    }
    answer
}

#[inline(never)]
extern "C" fn queue_told(fd: c_int, argument: usize, answer: c_int) -> c_int {
    let before = errno();
    if active()
        && let Some(len) = options::out_queue(fd)
    {
        // SAFETY: the program's own argument, which is for an int.
        return unsafe { sys::write_user(argument, &len.to_ne_bytes()) }.map_or_else(fail, |()| 0);
    }
    set_errno(before);
    answer
}

/// Makes the request on a TCP socket of the program's own: about the host (SIOCGIFADDR: the address
/// of an interface) any TCP socket gives the answer that a unix socket does not have.
#[inline(never)]
unsafe extern "C" fn ask_stand_in(fd: c_int, request: u32, argument: usize, answer: c_int) -> c_int {
    let before = errno();
    let told = named(fd).map(|name| {
        let socket = sys::tcp_socket(begin::family(&name))?;
        // SAFETY: the caller's promise.
        let told = unsafe { sys::ioctl(socket, request, argument) };
        sys::close(socket);
        told
    });
    match told {
        Some(Ok(answer)) => answer as c_int,
        Some(Err(number)) => fail(number),
        None => {
            set_errno(before);
            answer
        }
    }
}

// --- duplicates and registrations of sockets that are not connected yet ---

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

// --- data, only where a unix socket differs ---

/// Caps a count for what may be a swapped descriptor. Keeps errno.
#[inline(never)]
extern "C" fn capped(to: c_int, count: size_t) -> size_t {
    if count > SPLICE_MAX && active() && ours(to).is_some() { SPLICE_MAX } else { count }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the program's own arguments; sending less is always allowed.
    unsafe { next::sendfile(to, from, offset, capped(to, count)) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe { next::sendfile64(to, from, offset, capped(to, count)) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut off_t,
    to: c_int,
    to_at: *mut off_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { next::splice(from, from_at, to, to_at, capped(to, count), flags) }
}

/// Flags that TCP accepts and a unix socket does not, or handles differently.
const UNUSUAL: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY | libc::MSG_FASTOPEN;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn send(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if flags & UNUSUAL != 0 && is_ours(fd) {
            return ended(fd, send_unusual(fd, bytes, len, flags));
        }
        ended(fd, next::send(fd, bytes, len, flags))
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        // A connected TCP socket ignores the address, and so does `send` here.
        if (flags & UNUSUAL != 0 || !to.is_null()) && is_ours(fd) {
            return ended(fd, send_unusual(fd, bytes, len, flags));
        }
        ended(fd, next::sendto(fd, bytes, len, flags, to, to_len))
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if message.is_null() || !is_unusual(&*message, flags) {
            return ended(fd, next::sendmsg(fd, message, flags));
        }
        if !is_ours(fd) {
            shared_by((*message).msg_control as usize, (*message).msg_controllen as _);
            return next::sendmsg(fd, message, flags);
        }
        // TCP also ignores descriptors and credentials.
        let mut plain = *message;
        plain.msg_name = core::ptr::null_mut();
        plain.msg_control = core::ptr::null_mut();
        (plain.msg_namelen, plain.msg_controllen) = (0, 0);
        if flags & libc::MSG_OOB != 0 && plain.msg_iovlen == 1 {
            let part = *plain.msg_iov;
            return ended(fd, send_unusual(fd, part.iov_base, part.iov_len, flags));
        }
        ended(fd, next::sendmsg(fd, &raw const plain, flags & !UNUSUAL))
    }
}

fn is_unusual(message: &msghdr, flags: c_int) -> bool {
    flags & UNUSUAL != 0 || !message.msg_name.is_null() || message.msg_controllen > 0
}

/// The kernel's limit of messages per call.
const MESSAGES_MAX: c_uint = 1024;

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    let count = count.min(MESSAGES_MAX);
    // SAFETY: the program's own arguments: `count` messages, whose lengths may be written.
    unsafe {
        let all = || (0..count as usize).map(|n| &raw mut *messages.add(n));
        if messages.is_null() || !all().any(|m| is_unusual(&(*m).msg_hdr, flags)) {
            return next::sendmmsg(fd, messages, count, flags);
        }
        if !is_ours(fd) {
            all().for_each(|m| shared_by((*m).msg_hdr.msg_control as usize, (*m).msg_hdr.msg_controllen as _));
            return next::sendmmsg(fd, messages, count, flags);
        }
        let mut done = 0;
        for message in all() {
            let sent = sendmsg(fd, &raw const (*message).msg_hdr, flags);
            if sent < 0 {
                return if done > 0 { done } else { -1 };
            }
            (*message).msg_len = sent as c_uint;
            done += 1;
            let parts: usize = (*message).msg_hdr.msg_iovlen as _;
            if (0..parts).map(|n| (*(*message).msg_hdr.msg_iov.add(n)).iov_len).sum::<usize>() > sent as usize {
                break;
            }
        }
        done
    }
}

/// Leaves unconnected sockets plain that a message takes to another process.
#[inline(never)]
extern "C" fn shared_by(control: usize, len: usize) {
    if len > 0 && active() && marks::were_any() {
        begin::shared_by(control, len);
    }
}

/// Sets errno to the error that ended the connection; the kernel only knows that the other end of a
/// unix socket is gone. As with TCP, it is reported once.
#[inline]
fn ended(fd: c_int, answer: ssize_t) -> ssize_t {
    if answer < 0 && errno() == libc::ECONNRESET {
        reset_told(fd);
    }
    answer
}

#[inline(never)]
extern "C" fn reset_told(fd: c_int) {
    let number = if active() { ours(fd).and_then(|name| begin::error_of(&name)) } else { None };
    set_errno(number.unwrap_or(libc::ECONNRESET));
}

#[inline(never)]
extern "C" fn is_ours(fd: c_int) -> bool {
    ours(fd).is_some()
}

/// # Safety
/// As `send`.
unsafe fn send_unusual(fd: c_int, bytes: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let usual = flags & !UNUSUAL;
    // SAFETY: the caller's promise: `len` bytes are there.
    unsafe {
        if flags & libc::MSG_OOB == 0 || len == 0 {
            return next::send(fd, bytes, len, usual);
        }
        // The last byte is the urgent one.
        let sent = if len > 1 { next::send(fd, bytes, len - 1, usual) } else { 0 };
        if sent < 0 || (sent as size_t) < len - 1 {
            return sent;
        }
        urgent_sent(fd, *bytes.cast::<u8>().add(len - 1), sent)
    }
}

#[inline(never)]
extern "C" fn urgent_sent(fd: c_int, byte: u8, before: ssize_t) -> ssize_t {
    match ours(fd).map_or(Err(libc::ENOTCONN), |name| options::urgent(&name, byte)) {
        Ok(()) => before + 1,
        Err(_) if before > 0 => before,
        Err(number) => fail(number) as ssize_t,
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recv(fd: c_int, bytes: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if flags & receive::UNUSUAL != 0 && is_ours(fd) {
            return ended(fd, receive::unusual(fd, bytes, len, flags));
        }
        ended(fd, next::recv(fd, bytes, len, flags))
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if flags & receive::UNUSUAL != 0 && is_ours(fd) {
            return ended(fd, receive::unusual(fd, bytes, len, flags));
        }
        ended(fd, next::recvfrom(fd, bytes, len, flags, from, from_len))
    }
}

/// Called by programs built with _FORTIFY_SOURCE. libc aborts programs that ask for more than they
/// have room for.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe { if len > room { next::__recv_chk(fd, bytes, len, room, flags) } else { recv(fd, bytes, len, flags) } }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if len > room {
            return next::__recvfrom_chk(fd, bytes, len, room, flags, from, from_len);
        }
        recvfrom(fd, bytes, len, flags, from, from_len)
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if flags & receive::UNUSUAL_IN_PARTS != 0 && is_ours(fd) {
            return ended(fd, receive::unusual_in_parts(fd, message, flags));
        }
        ended(fd, next::recvmsg(fd, message, flags))
    }
}
