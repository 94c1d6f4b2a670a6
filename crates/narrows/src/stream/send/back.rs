//! The reverse direction of a sending flow: reports, notes of the application, and the receiver's
//! final message.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use super::{SendDriver, link_error};
use crate::error::{Error, ErrorKind, Result};
use crate::stream::{LOOK_EVERY, OnNote, Stall, lock};
use crate::sys;
use crate::transport::ReadHalf;

/// How long to wait for the reason that a failing receiver sends before it closes the connection.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Length of the buffer that the reverse direction is read into; notes of a copy come in bursts.
const BUFFER_LEN: usize = 16 << 10;
/// The same after a short flow, which has few reports.
const SHORT_BUFFER_LEN: usize = 1 << 10;

impl SendDriver {
    pub(super) fn read_back(&self, mut half: ReadHalf, mut on_note: Option<OnNote>) {
        let mut buf = vec![0; BUFFER_LEN];
        while !self.is_over() && self.hear(&mut half, &mut on_note, &mut buf) {}
    }

    /// Waits at most [`LOOK_EVERY`] for the receiver. False: it says nothing more.
    fn hear(&self, half: &mut ReadHalf, on_note: &mut Option<OnNote>, buf: &mut [u8]) -> bool {
        let read = match half.read(buf, LOOK_EVERY) {
            Ok(None) => return true,
            Ok(Some(n)) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
            Err(e) => {
                let confirmed = lock(&self.state).sender.as_ref().is_none_or(|s| s.is_confirmed());
                if !confirmed {
                    self.fail(link_error(e, "cannot read the receiver's reports"));
                }
                return false;
            }
        };
        let mut state = lock(&self.state);
        let Some(sender) = &mut state.sender else { return false };
        if read == 0 {
            if !sender.is_confirmed() {
                let text = "the receiver ended without confirming that it has everything";
                let source = Some(io::ErrorKind::ConnectionReset.into());
                drop(state);
                self.fail(Error { source, ..Error::new(ErrorKind::Io, text) });
            }
            return false;
        }
        let mut received = sender.receive(&buf[..read], self.now_ns());
        let notes: Vec<_> = std::iter::from_fn(|| sender.take_note()).collect();
        drop(state);
        if let Some(on_note) = on_note {
            received = received.and_then(|()| notes.iter().try_for_each(|note| on_note(note)));
        }
        if let Err(e) = received {
            self.fail(e);
            return false;
        }
        self.changed.ring();
        true
    }

    /// Waits until the receiver has confirmed that it has everything. `back`: no thread hears it.
    pub(super) fn await_confirmation(
        &self,
        limit: Option<Duration>,
        mut back: Option<(ReadHalf, Option<OnNote>)>,
    ) -> Result<()> {
        let mut buf = [0; SHORT_BUFFER_LEN];
        let mut stall = Stall::new(limit);
        let mut reported = None;
        loop {
            self.check()?;
            stall.check("the receiver does not confirm")?;
            let mut state = lock(&self.state);
            let Some(sender) = &mut state.sender else { return Ok(()) };
            if sender.is_confirmed() {
                return Ok(());
            }
            let now = (sender.notes_heard(), sender.summary().decode_cpu_ns, sender.summary().receiver_blocked_ns);
            if reported.replace(now) != Some(now) {
                stall.progress();
            }
            match &mut back {
                Some((half, on_note)) => {
                    drop(state);
                    self.hear(half, on_note, &mut buf);
                }
                None => drop(self.changed.wait(state, LOOK_EVERY)),
            }
        }
    }

    /// Waits for the receiver's failure message. `back` is the thread that reads it.
    pub(super) fn await_last_word(&self, back: &JoinHandle<()>) {
        let begun_ns = sys::monotonic_ns();
        let mut state = lock(&self.state);
        while state.failure.is_none()
            && !back.is_finished()
            && sys::monotonic_ns() - begun_ns < LAST_WORD.as_nanos() as u64
        {
            let (woken, _) = self.changed.wait(state, LOOK_EVERY);
            state = woken;
        }
    }
}
