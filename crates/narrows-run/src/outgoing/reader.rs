//! Bound of a direction by its reader at the other end, and reports about the other direction.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::{Frames, Outgoing, ROOM_MIN};
use crate::behind::Told;
use crate::shared::PumpContext;

impl Outgoing {
    /// Whether the peer's reader is about to limit this direction, so that what it says is wanted.
    pub fn awaits_reader(&self) -> bool {
        let awaits = |f: &Frames| f.ahead.len() > f.ahead.window() / 2;
        !self.discards() && self.frames.as_ref().is_some_and(|f| awaits(f))
    }

    /// Whether there is memory for so many bytes beside what it holds.
    pub fn has_memory_beside(&self, len: usize) -> bool {
        self.frames.as_ref().is_some_and(|f| self.held() + len < f.share.memory_max())
    }

    /// Whether the peer's reader is all that holds this direction back.
    pub fn is_held_by_reader(&self) -> bool {
        let holds = |f: &Frames| f.ahead.room() < ROOM_MIN;
        self.hears && !self.discards() && self.frames.as_ref().is_some_and(|f| holds(f)) && self.room(0) == 0
    }

    /// Sends something that the peer's kernel confirms: what it was told last.
    pub fn probe(&mut self, network: &OwnedFd, serial: u64, context: &mut PumpContext) -> Result<(), Errno> {
        let (sends, stuck) = (self.still_sends(), self.is_stuck());
        if let Some(frames) = self.frames.as_mut().filter(|f| sends && !stuck && !f.closed) {
            let told = frames.reports.last();
            frames.encoding.delivered(told);
        }
        self.flush(network, serial, context).map(drop)
    }

    /// Notes what the peer says of this direction.
    pub fn hear(&mut self, told: Told, context: &PumpContext) {
        let Some(frames) = &mut self.frames else { return };
        if let Some(tells) = told.tells {
            frames.ahead.set_peer_tells(tells && !told.has_ended);
        }
        frames.ahead.delivered(told.delivered, context.now_ns());
    }

    /// Tells the peer how many bytes of the other direction were delivered, if that is due.
    pub fn tell(
        &mut self,
        delivered: u64,
        network: &OwnedFd,
        serial: u64,
        context: &mut PumpContext,
    ) -> Result<(), Errno> {
        let (sends, stuck) = (self.still_sends(), self.is_stuck());
        let Some(frames) = self.frames.as_mut().filter(|f| sends && !f.closed) else { return Ok(()) };
        let now_ns = context.now_ns();
        frames.report_ns = frames.reports.due_ns(delivered);
        if stuck || frames.report_ns.is_none_or(|at| at > now_ns) {
            return Ok(());
        }
        frames.report_ns = None;
        frames.reports.told(delivered, now_ns);
        frames.encoding.delivered(delivered);
        self.flush(network, serial, context).map(drop)
    }

    /// When the next report to the peer is due, unless the network has no room for it.
    pub fn report_ns(&self) -> Option<u64> {
        let frames = self.frames.as_ref().filter(|f| self.still_sends() && !f.closed && !self.is_stuck())?;
        frames.report_ns
    }
}
