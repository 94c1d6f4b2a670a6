//! Files of which the receiver may have an earlier version: their chunks are announced first, then
//! only the needed content is sent.

use std::io;
use std::os::fd::OwnedFd;

use narrows_host::file_state::FileState;

use super::super::seen::{Seen, Sum};
use super::{File, Over, Producer};
use crate::delta::{Outline, Span};

/// Maximum number of records of chunks, each for 8 MiB of the file, that are announced ahead of the
/// content.
pub(super) const RECORDS_AHEAD: usize = 8;

/// A file whose chunks were announced.
pub(super) struct Outlined {
    pub(super) file: File,
    pub(super) fd: OwnedFd,
    /// What it was before it was read.
    pub(super) state: FileState,
    pub(super) outline: Outline,
    /// Further reading failed: nothing more is announced, so no answer is expected.
    pub(super) unreadable: bool,
}

impl Outlined {
    /// Whether its content can be sent, or its failure be reported.
    pub(super) fn is_due(&self) -> bool {
        self.unreadable || self.outline.is_answered()
    }
}

impl Producer<'_> {
    /// Announces the first chunks of a file; its content follows after the answer.
    pub(super) fn outline(&mut self, mut outlined: Box<Outlined>) -> Result<(), Over> {
        match self.extend(&mut outlined) {
            Ok(()) if outlined.outline.ahead() > 0 => {
                self.outlined.push_back(outlined);
                Ok(())
            }
            // The file is empty or cannot be read, which is found again and reported when its
            // content is sent.
            Ok(()) | Err(_) => self.send_chunks(outlined),
        }
    }

    fn extend(&mut self, outlined: &mut Outlined) -> io::Result<()> {
        let Outlined { file, fd, outline, .. } = outlined;
        while outline.ahead() < RECORDS_AHEAD && !outline.is_whole() {
            let chunks = outline.next(fd)?;
            if !chunks.is_empty() {
                self.writer.chunks(file.id, &chunks, &mut self.out);
            }
        }
        while let Some((regions, hashes)) = outline.compare(fd)? {
            self.writer.pieces(file.id, &regions, &hashes, &mut self.out);
        }
        Ok(())
    }

    /// Passes answers about chunks to their files.
    pub(super) fn take_answers(&mut self, answers: impl IntoIterator<Item = (u64, Vec<u32>)>) {
        let mut waiting = std::mem::take(&mut self.outlined);
        for (id, runs) in answers {
            if let Some(outlined) = waiting.iter_mut().find(|o| o.file.id == id) {
                outlined.outline.answer(&runs);
                // The failure is reported when its content would be sent.
                outlined.unreadable |= self.extend(outlined).is_err();
            }
        }
        self.outlined = waiting;
    }

    /// Sends the needed content of a file record by record, and announces further chunks in time.
    pub(super) fn send_chunks(&mut self, mut outlined: Box<Outlined>) -> Result<(), Over> {
        self.writer.begin(outlined.file.id, &mut self.out);
        let read = self.needed_content(&mut outlined)?;
        let Outlined { file, fd, outline, state, .. } = &*outlined;
        let digest = outline.digest();
        let seen = Seen { state: *state, sum: Some(Sum::Data(outline.sum())) };
        let _ = self.ended(file, fd, seen, read.map(|all| all && outline.len() == file.len), &digest);
        Ok(())
    }

    fn needed_content(&mut self, outlined: &mut Outlined) -> Result<io::Result<bool>, Over> {
        loop {
            if outlined.unreadable {
                return Ok(Err(io::Error::other("reading failed while it was compared")));
            }
            if let Err(e) = self.extend(outlined) {
                return Ok(Err(e));
            }
            if outlined.outline.ahead() == 0 {
                return Ok(Ok(true));
            }
            while !outlined.outline.is_answered() {
                self.hand_on()?;
                self.await_answers(outlined)?;
                if let Err(e) = self.extend(outlined) {
                    return Ok(Err(e));
                }
            }
            let before = outlined.outline.settled();
            let Some(needed) = outlined.outline.needed() else {
                return Ok(Err(io::Error::other("the receiver's answer is invalid")));
            };
            let sent: u64 = needed.iter().filter(|span| !span.hole).map(|span| span.len).sum();
            self.shared.lock().progress.bytes_here += outlined.outline.settled() - before - sent;
            for Span { offset, len, hole } in needed {
                if hole {
                    self.writer.hole(len, &mut self.out);
                    continue;
                }
                match self.span(&outlined.fd, offset, offset + len, None)? {
                    Ok(true) => {}
                    short => return Ok(short),
                }
            }
        }
    }

    /// Waits for answers and passes them on; those for the current file go to `outlined`.
    fn await_answers(&mut self, outlined: &mut Outlined) -> Result<(), Over> {
        let mut state = self.shared.lock();
        while state.chunk_answers.is_empty() {
            if state.over {
                return Err(Over);
            }
            state = self.shared.wait_for_answers(state);
        }
        let answers = std::mem::take(&mut state.chunk_answers);
        drop(state);
        let (own, others): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(id, _)| *id == outlined.file.id);
        own.into_iter().for_each(|(_, runs)| outlined.outline.answer(&runs));
        self.take_answers(others);
        Ok(())
    }
}
