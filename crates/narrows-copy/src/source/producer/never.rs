//! Files whose hints say that they are stored as they are (docs/hints.md).

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use narrows::hint::Hint;
use narrows_host::hints::Hints;

use super::super::File;
use super::Producer;
use crate::frames::STORED_MAX;

/// Finds them.
pub(in crate::source) struct Never {
    /// What the command line says, which is stronger.
    command: Hint,
    hints: Hints,
}

impl Never {
    pub(in crate::source) fn new(command: Hint) -> Self {
        Self { command, hints: Hints::default() }
    }

    fn is_said_of(&mut self, path: &Path) -> Result<bool, String> {
        let own = self.hints.of(path).map_err(|e| e.to_string())?;
        Ok(self.command.clone().or(own).is_never())
    }
}

impl Producer<'_> {
    /// Whether the blocks of an open file are stored as they are; the error is a hint that is none.
    pub(super) fn says_never(&mut self, file: &File, fd: &OwnedFd) -> Result<bool, String> {
        let Some(never) = &mut self.never else { return Ok(false) };
        if file.stored || file.len <= STORED_MAX as u64 {
            return Ok(false);
        }
        // Whatever links the user named it by.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        path.map_or(Ok(false), |path| never.is_said_of(&path))
    }
}
