//! The reverse direction of a sending flow: reports, notes of the application, and the receiver's
//! final message.

use std::io;
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;

use super::{SendDriver, link_error};
use crate::error::{Error, ErrorKind, Result};
use crate::stream::{LOOK_EVERY, OnNote, Stall, lock};
use crate::sys;
use crate::transport::ReadHalf;

/// How long to wait for the reason that a failing receiver sends before it closes the connection.
const LAST_WORD: Duration = Duration::from_millis(500);

impl SendDriver {
    pub(super) fn read_back(&self, mut half: ReadHalf, mut on_note: Option<OnNote>) {
        let mut buf = vec![0; 16 << 10];
        loop {
            if self.is_over() {
                return;
            }
            let read = match half.read(&mut buf, LOOK_EVERY) {
                Ok(None) => continue,
                Ok(Some(n)) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                Err(e) => {
                    let confirmed = lock(&self.state).sender.as_ref().is_none_or(|s| s.is_confirmed());
                    if !confirmed {
                        self.fail(link_error(e, "cannot read the receiver's reports"));
                    }
                    return;
                }
            };
            let mut state = lock(&self.state);
            let Some(sender) = &mut state.sender else { return };
            if read == 0 {
                if !sender.is_confirmed() {
                    let text = "the receiver ended without confirming that it has everything";
                    let source = Some(io::ErrorKind::ConnectionReset.into());
                    drop(state);
                    self.fail(Error { source, ..Error::new(ErrorKind::Io, text) });
                }
                return;
            }
            let mut received = sender.receive(&buf[..read], self.now_ns());
            let notes: Vec<_> = std::iter::from_fn(|| sender.take_note()).collect();
            drop(state);
            if let Some(on_note) = &mut on_note {
                received = received.and_then(|()| notes.iter().try_for_each(|note| on_note(note)));
            }
            if let Err(e) = received {
                return self.fail(e);
            }
            self.changed.notify_all();
        }
    }

    pub(super) fn await_confirmation(&self, limit: Option<Duration>) -> Result<()> {
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
            drop(self.changed.wait_timeout(state, LOOK_EVERY));
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
            let (woken, _) = self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner);
            state = woken;
        }
    }
}
