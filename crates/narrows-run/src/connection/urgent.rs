//! Urgent bytes of TCP (MSG_OOB), which keep their place among the others.

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, send};

use super::Connection;
use crate::shared::PumpContext;
use crate::socket::read;
use crate::sys;

/// An urgent byte from the program.
#[derive(Clone, Copy)]
pub(super) struct UrgentUp {
    pub(super) byte: u8,
    /// The number of bytes that must go up before it.
    pub(super) at: u64,
}

/// An urgent byte from the peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UrgentDown {
    Nothing,
    /// It has not been read yet.
    Coming,
    /// It found no room in the program's end.
    Held(u8),
}

impl Connection {
    /// Queues an urgent byte after everything that the program has written so far. False if an
    /// earlier one is still under way.
    pub(crate) fn send_urgent(&mut self, byte: u8) -> bool {
        let unread = ioctl_fionread(&self.program).unwrap_or(1).saturating_sub(1);
        if !self.came_up() || self.urgent_up.is_some() {
            return false;
        }
        self.urgent_up = Some(UrgentUp { byte, at: self.up.bytes + unread });
        true
    }

    /// Returns false while bytes before it are still on their way.
    pub(super) fn pass_urgent_up(&mut self, byte: u8, context: &mut PumpContext) -> bool {
        if self.up.is_framed() {
            // Frames cannot overtake each other: the byte goes as data at its position.
            self.urgent_up = None;
            if let Err(e) = self.up.pass(&[byte], &self.network, self.serial, context) {
                self.break_off(e);
            }
            return true;
        }
        if self.up.held() > 0 {
            return false;
        }
        match send(&self.network, &[byte], SendFlags::OOB | SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return false,
            _ => self.urgent_up = None,
        }
        self.negotiation.flow.sending_plain(1);
        self.up.count_urgent();
        true
    }

    /// Passes an urgent byte on after the bytes before it; reading stops at it by itself. False if
    /// the program's end has no room.
    pub(super) fn pass_urgent_down(&mut self, context: &mut PumpContext) -> bool {
        let mut byte = [0];
        if self.urgent_down == UrgentDown::Coming
            && sys::at_mark(&self.network)
            && read(&self.network, &mut byte, RecvFlags::empty()) == Ok(1)
        {
            match self.negotiation.flow.receive(&byte, context.now_ns()) {
                Ok(step) if step.released.is_empty() && step.plain == 1 => self.urgent_down = UrgentDown::Held(byte[0]),
                // It may begin a marker, or complete bytes that looked like one. Passing it on as
                // data is correct in any case.
                Ok(step) => {
                    self.pass_down(&step.released);
                    self.pass_down(&byte[..step.plain]);
                    self.urgent_down = UrgentDown::Nothing;
                }
                Err(e) => self.refuse(&e),
            }
            self.after_flow(context);
        }
        let UrgentDown::Held(byte) = self.urgent_down else { return true };
        // A kernel without urgent bytes on unix sockets fails, and the byte is dropped: within the
        // stream the program would take it for data.
        match send(&self.program, &[byte], SendFlags::OOB | SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return false,
            _ => self.urgent_down = UrgentDown::Nothing,
        }
        self.down.count_urgent();
        true
    }
}
