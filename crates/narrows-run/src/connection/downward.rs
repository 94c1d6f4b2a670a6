//! Moves bytes from the network to the program.

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, shutdown};

use super::urgent::UrgentDown;
use super::{Connection, ProgramEnd};
use crate::behind::LEN_MAX;
use crate::incoming::Read;
use crate::shared::PumpContext;
use crate::socket::read;

impl Connection {
    /// Moves bytes from the network to the program. True if something changed.
    pub(super) fn step_down(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> bool {
        if self.down.is_shut() {
            return false;
        }
        // The peer is about to be reset. Until then its program is held back as by a full buffer: it must not take what
        // is discarded for delivered.
        if self.program_end == ProgramEnd::Aborted {
            return false;
        }
        // The program is gone. The peer must not wait for a reader, so its bytes are discarded.
        if self.program_is_gone() {
            self.down.discard();
        }
        let mut flushed = self.down.flush(&self.program);
        if flushed == Ok(false) && self.make_last_room() {
            flushed = self.down.flush(&self.program);
        }
        self.down.note_pace(context);
        match flushed {
            Ok(true) => {}
            Ok(false) => return self.read_ahead(scratch, context),
            Err(e) => {
                self.refused_by_program(e);
                return true;
            }
        }
        if self.urgent_down != UrgentDown::Nothing && !self.down.is_framed() && !self.pass_urgent_down(context) {
            return false;
        }
        let mut moved = match self.down.resume(self.serial, context) {
            Ok(resumed) => resumed,
            Err(e) => {
                self.refuse(&e);
                true
            }
        };
        if self.down.readable && !self.down.has_ended() && self.down.has_room() {
            let read = if self.down.is_framed() {
                self.down.read(&self.network, self.serial, context)
            } else {
                self.read_plain(scratch, context)
            };
            moved |= self.after_read(read);
        } else {
            moved |= self.read_ahead(scratch, context);
        }
        // EPIPE: the peer may have finished before it refused our bytes, so this may still be an
        // orderly end.
        if self.down.has_ended() && !self.down.is_pending() && matches!(self.ending.error(), None | Some(Errno::PIPE)) {
            match self.down.finish() {
                Ok(()) => {
                    let _ = shutdown(&self.program, Shutdown::Write);
                    self.down.shut();
                }
                Err(e) => self.refuse(&e),
            }
            moved = true;
        }
        moved
    }

    /// Whether what the peer says of the other direction can come at this time.
    pub(super) fn hears(&self) -> bool {
        let has_place = if self.down.is_framed() {
            self.down.may_read_ahead()
        } else {
            // The peer's marker may stand after plain bytes.
            let waiting = self.down.plain_waiting();
            self.urgent_down == UrgentDown::Nothing && waiting < LEN_MAX && self.up.has_memory_beside(waiting)
        };
        has_place && !self.down.has_ended()
    }

    /// Reads what there is no room for yet, if the other direction waits for what the peer says there:
    /// the program may read only after it has written everything.
    fn read_ahead(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> bool {
        if !self.up.awaits_reader() || !self.down.readable || !self.hears() {
            return false;
        }
        let read = if self.down.is_framed() {
            self.down.read(&self.network, self.serial, context)
        } else {
            self.read_plain(scratch, context)
        };
        self.after_read(read)
    }

    /// Tells the peer what the program has read.
    pub(super) fn tell_delivered(&mut self, context: &mut PumpContext) {
        let Some(delivered) = self.down.delivered() else { return };
        if let Err(e) = self.up.tell(delivered, &self.network, self.serial, context) {
            self.break_off(e);
        }
    }

    fn read_plain(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> narrows::Result<Read> {
        match read(&self.network, scratch, RecvFlags::empty()) {
            Ok(0) => {
                let released = self.negotiation.flow.receive_end()?;
                self.pass_down(&released);
                self.after_flow(context);
                Ok(Read::End)
            }
            Ok(n) => {
                self.came(&scratch[..n], context)?;
                Ok(if n == scratch.len() { Read::Some(n) } else { Read::Last(n) })
            }
            Err(Errno::AGAIN) => Ok(Read::Nothing),
            Err(e) => Ok(Read::Broken(e)),
        }
    }

    /// True if something changed.
    fn after_read(&mut self, read: narrows::Result<Read>) -> bool {
        match read {
            Ok(Read::Some(_)) => true,
            // After a short read the kernel sends a new event for more data; an end was already
            // reported.
            Ok(Read::Last(_)) => {
                self.down.readable = self.network_ended || self.urgent_down != UrgentDown::Nothing;
                true
            }
            Ok(Read::Nothing) => {
                (self.down.readable, self.urgent_down) = (false, UrgentDown::Nothing);
                false
            }
            Ok(Read::End) => {
                self.down.end();
                true
            }
            Ok(Read::Broken(e)) => {
                self.break_off(e);
                self.down.end();
                true
            }
            Err(e) => {
                self.refuse(&e);
                true
            }
        }
    }

    pub(super) fn pass_down(&mut self, plain: &[u8]) {
        if plain.is_empty() {
            return;
        }
        if let Err(e) = self.down.pass(plain, &self.program) {
            self.refused_by_program(e);
        }
    }

    /// The program takes no bytes: it has shut down reading, or is gone.
    fn refused_by_program(&mut self, error: Errno) {
        self.note_reset(error);
        if self.program_end != ProgramEnd::Aborted {
            self.down.discard();
        }
    }
}
