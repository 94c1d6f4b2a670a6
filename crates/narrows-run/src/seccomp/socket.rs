//! Queries about a socket of the program.

use std::io::Result;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use libc::c_int;

use super::sys;
use crate::sys::get_option;

/// IPPROTO_MPTCP. A listener with it accepts plain TCP from most peers.
pub(super) const MPTCP: i32 = 262;
/// TCP states as in TCP_INFO.
pub(super) const ESTABLISHED: u8 = 1;
pub(super) const SYN_SENT: u8 = 2;
pub(super) const CLOSED: u8 = 7;

pub(super) fn cookie(socket: &OwnedFd) -> Result<u64> {
    let mut bytes = [0; 8];
    get_option(socket, libc::SOL_SOCKET, libc::SO_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

pub(super) fn int_option(socket: &OwnedFd, option: c_int) -> Result<c_int> {
    let mut bytes = [0; 4];
    get_option(socket, libc::SOL_SOCKET, option, &mut bytes)?;
    Ok(c_int::from_ne_bytes(bytes))
}

/// Whether it is an internet stream socket of one of these protocols.
pub(super) fn is_stream(socket: &OwnedFd, protocols: &[c_int]) -> bool {
    let family = int_option(socket, libc::SO_DOMAIN).unwrap_or(0);
    (family == libc::AF_INET || family == libc::AF_INET6)
        && int_option(socket, libc::SO_PROTOCOL).is_ok_and(|p| protocols.contains(&p))
}

pub(super) fn tcp_state(socket: &OwnedFd) -> Result<u8> {
    let mut first = [0];
    get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut first)?;
    Ok(first[0])
}

/// Whether it is a TCP socket that has not been connected yet.
pub(super) fn is_fresh(socket: &OwnedFd) -> bool {
    is_stream(socket, &[libc::IPPROTO_TCP]) && tcp_state(socket).is_ok_and(|state| state == CLOSED)
}

pub(super) fn is_established(socket: &OwnedFd) -> bool {
    tcp_state(socket).is_ok_and(|state| state == ESTABLISHED)
}

pub(super) fn is_connecting(socket: &OwnedFd) -> bool {
    tcp_state(socket).is_ok_and(|state| state == SYN_SENT)
}

pub(super) fn blocks(socket: &OwnedFd) -> Result<bool> {
    Ok(sys::control(socket, libc::F_GETFL, 0)? & libc::O_NONBLOCK == 0)
}

/// The deadline of a call on the socket, from SO_RCVTIMEO or SO_SNDTIMEO.
pub(super) fn limit(socket: &OwnedFd, option: c_int) -> Option<Instant> {
    let mut time = [0; 16];
    get_option(socket, libc::SOL_SOCKET, option, &mut time).ok()?;
    let (seconds, micros) = time.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
    let time = Duration::from_secs(number(seconds)).saturating_add(Duration::from_micros(number(micros)));
    if time.is_zero() { None } else { Instant::now().checked_add(time) }
}
