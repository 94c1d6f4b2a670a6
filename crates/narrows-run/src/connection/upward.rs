//! Moves bytes from the program to the network. The last byte that the program wrote always stays
//! unread in its socket, as the poison.

use std::io::IoSliceMut;

use rustix::io::{Errno, ioctl_fionread, readv};
use rustix::net::{RecvFlags, Shutdown, shutdown};

use super::urgent::UrgentUp;
use super::{Connection, ProgramEnd};
use crate::shared::PumpContext;
use crate::socket::{peek, read};

/// Bytes peeked at a time. Most messages fit; anything longer counts as bulk.
const PEEK: usize = 4096;

impl Connection {
    /// Moves bytes from the program to the network. True if something changed.
    pub(super) fn step_up(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> bool {
        if self.up.is_shut() || self.ending.error().is_some() && self.up.has_ended() {
            return false;
        }
        if let Err(e) = self.up.flush(&self.network, self.serial, context) {
            self.break_off(e);
        }
        let mut moved = false;
        if self.up.readable && !self.up.has_ended() {
            match self.read_program(scratch, context) {
                Ok(more) => moved = more,
                Err(e) => {
                    self.break_off(e);
                    moved = true;
                }
            }
        }
        if let Some(UrgentUp { byte, at }) = self.urgent_up
            && self.up.bytes >= at
            && !self.pass_urgent_up(byte, context)
        {
            return moved;
        }
        if self.up.has_ended() && !self.up.is_shut() {
            match self.up.finish(&self.network, self.serial, context) {
                Ok(false) => return moved,
                Ok(true) => {}
                Err(e) => self.break_off(e),
            }
            self.negotiation.flow.sending_end();
            self.after_flow(context);
            // Nobody else should hold the socket, but if a forked child does, the peer must see the
            // end all the same. A connection that will be reset gets no end of stream.
            if !(self.resets() || self.program_is_gone() && self.resets_at_close()) {
                let _ = shutdown(&self.network, Shutdown::Write);
            }
            self.up.shut();
            moved = true;
        }
        moved
    }

    /// Reads what the program wrote and passes it on; the last byte stays unread as the poison.
    fn read_program(&mut self, scratch: &mut [u8], context: &mut PumpContext) -> Result<bool, Errno> {
        // A short message is peeked and sent on before it is taken out: only two calls until the
        // network has it.
        let until_urgent = self.urgent_up.map_or(usize::MAX, |urgent| urgent.at.saturating_sub(self.up.bytes) as usize);
        let room = until_urgent.min(self.up.room(0)).min(usize::MAX - 1);
        if room == 0 {
            return Ok(false);
        }
        let look = PEEK.min(room + 1);
        let (seen, cut) = match peek(&self.program, &mut scratch[..look]) {
            // TCP ignores descriptors that a program sends along; on a unix socket they end a peek.
            Ok((seen, cut)) => (seen, cut && ioctl_fionread(&self.program)? > seen as u64),
            // ECONNRESET: the program closed with bytes unread. The kernel delivers the program's
            // own bytes before this error, so none are left.
            Err(Errno::AGAIN) => (0, false),
            Err(e) => {
                self.note_reset(e);
                self.up.readable = false;
                self.up.end();
                return Ok(true);
            }
        };
        if seen < 2 && !cut {
            self.up.readable = false;
            let finished = self.program_end >= ProgramEnd::Finished;
            if finished {
                self.up.end();
            }
            return Ok(finished);
        }
        if (2..PEEK).contains(&seen) {
            let (_, fresh) = scratch[..seen].split_at(1);
            let passed = self.pass_up(fresh, context);
            let taken = read(&self.program, &mut scratch[..seen - 1], RecvFlags::empty());
            debug_assert_eq!(taken, Ok(seen - 1));
            self.up.readable = self.program_end >= ProgramEnd::Finished || seen == look || cut;
            passed?;
            return Ok(true);
        }
        let queued = ioctl_fionread(&self.program)? as usize;
        let wanted = queued.saturating_sub(1).min(room);
        let Some(segment) = self.up.segment_len() else {
            let wanted = wanted.min(scratch.len()).min(self.up.plain_len());
            let len = self.take_bulk(&mut scratch[..wanted])?;
            self.pass_up(&scratch[..len], context)?;
            return Ok(len > 0);
        };
        self.up.unsent_max = self.held.unsent_max();
        // Queued bytes count as waiting: it makes no difference to their age where they wait.
        let wanted = wanted.min(segment).min(self.up.room(queued));
        if wanted == 0 {
            return Ok(false);
        }
        let mut buffer = context.buffers.get(wanted);
        let len = self.take_bulk(&mut buffer.bytes_mut()[..wanted])?;
        let block = buffer.freeze(len);
        context.buffers.recycle(&block);
        self.up.pass_block(block, &self.network, self.serial, context)?;
        Ok(len > 0)
    }

    /// Fills `into` with the program's next bytes; a copy of the last one stays in the socket as
    /// the poison.
    fn take_bulk(&self, into: &mut [u8]) -> Result<usize, Errno> {
        let mut old = [0];
        let rest = into.len() - 1;
        let taken = readv(&self.program, &mut [IoSliceMut::new(&mut old), IoSliceMut::new(&mut into[..rest])])?;
        if taken == 0 {
            return Ok(0);
        }
        let last = read(&self.program, &mut into[taken - 1..taken], RecvFlags::PEEK)?;
        Ok(taken - 1 + last)
    }

    fn pass_up(&mut self, input: &[u8], context: &mut PumpContext) -> Result<(), Errno> {
        if !self.up.is_framed() {
            self.negotiation.flow.sending_plain(input.len());
        }
        self.up.pass(input, &self.network, self.serial, context)
    }
}
