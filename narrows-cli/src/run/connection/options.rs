//! Options of the TCP socket as the program sees them.

use std::io::{Error, Result};
use std::os::fd::OwnedFd;

use super::Connection;
use crate::run::sys;

/// What the program has set of the options that frames need otherwise: each is sent at once, and the kernel holds only so
/// many bytes that have not left the host.
#[derive(Clone, Copy)]
pub(super) struct Kept {
    no_delay: i32,
    unsent_max: i32,
}

impl Connection {
    /// From here on the two options are the engine's; what the program had set is remembered and answered.
    pub(super) fn keep_options(&mut self) {
        let get = |option| int_option(&self.network, option);
        self.kept.get_or_insert(Kept { no_delay: get(libc::TCP_NODELAY), unsent_max: get(libc::TCP_NOTSENT_LOWAT) });
        // The engine puts small writes together itself where that costs nothing.
        let _ = sys::set_option(&self.network, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32.to_ne_bytes());
    }

    /// For a socket that is given back to the program.
    pub(super) fn give_options_back(&self) {
        if let Some(kept) = self.kept {
            let no_delay = kept.no_delay.to_ne_bytes();
            let _ = sys::set_option(&self.network, libc::IPPROTO_TCP, libc::TCP_NODELAY, &no_delay);
        }
    }

    fn kept(&mut self, level: i32, option: i32) -> Option<&mut i32> {
        let kept = self.kept.as_mut().filter(|_| level == libc::IPPROTO_TCP)?;
        match option {
            libc::TCP_NODELAY => Some(&mut kept.no_delay),
            libc::TCP_NOTSENT_LOWAT => Some(&mut kept.unsent_max),
            _ => None,
        }
    }

    pub(crate) fn get_option(&mut self, level: i32, option: i32, value: &mut [u8]) -> Result<usize> {
        if let Some(kept) = self.kept(level, option) {
            let bytes = kept.to_ne_bytes();
            let len = value.len().min(bytes.len());
            value[..len].copy_from_slice(&bytes[..len]);
            return Ok(len);
        }
        sys::get_option(&self.network, level, option, value)
    }

    pub(crate) fn set_option(&mut self, level: i32, option: i32, value: &[u8]) -> Result<()> {
        if let Some(kept) = self.kept(level, option) {
            let value = value.first_chunk().ok_or_else(|| Error::from_raw_os_error(libc::EINVAL))?;
            *kept = i32::from_ne_bytes(*value);
            if option == libc::TCP_NODELAY {
                // As the kernel: it is on or off.
                *kept = i32::from(*kept != 0);
            }
            return Ok(());
        }
        sys::set_option(&self.network, level, option, value)
    }
}

fn int_option(network: &OwnedFd, option: i32) -> i32 {
    let mut value = [0; 4];
    let len = sys::get_option(network, libc::IPPROTO_TCP, option, &mut value);
    if len.is_ok_and(|n| n == value.len()) { i32::from_ne_bytes(value) } else { 0 }
}
