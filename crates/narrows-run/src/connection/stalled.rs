//! Does for a connection that waits for the peer's reader what TCP does with a closed window.

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::sockopt;

use super::Connection;
use crate::shared::PumpContext;
use crate::stall::{Due, Stall};

impl Connection {
    pub(super) fn note_stall(&mut self, context: &PumpContext) {
        let (is_open, delivered) = (self.ending.error().is_none(), self.down.told().delivered);
        let waits = is_open && self.up.readable && !self.up.has_ended() && self.up.is_held_by_reader();
        self.stall = self.stall.take().filter(|stall| waits && stall.delivered == delivered);
        if waits && self.stall.is_none() {
            let timeout_ms = sockopt::tcp_user_timeout(&self.network).unwrap_or(0);
            self.stall = Some(Stall::new(delivered, timeout_ms, context.now_ns()));
        }
    }

    pub(super) fn stall_on_time(&mut self, context: &mut PumpContext) {
        let now_ns = context.now_ns();
        let Some(stall) = self.stall.as_mut().filter(|stall| stall.next_wakeup_ns() <= now_ns) else { return };
        // One byte is the poison.
        if ioctl_fionread(&self.program).is_ok_and(|unread| unread <= 1) {
            self.stall = None;
            return;
        }
        match stall.on_time(now_ns) {
            Due::Nothing => {}
            Due::Probe => {
                if let Err(e) = self.up.probe(&self.network, self.serial, context) {
                    self.break_off(e);
                }
            }
            Due::TimedOut => {
                self.break_off(Errno::TIMEDOUT);
                self.down.end();
            }
        }
    }
}
