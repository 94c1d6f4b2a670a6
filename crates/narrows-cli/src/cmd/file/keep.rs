//! Metadata that a new file keeps of the one it is made of: mode, group, owner, times.

use std::fs::{File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

/// The new file and the old one's metadata.
pub(super) struct Keep {
    file: File,
    old: Metadata,
}

impl Keep {
    /// From now until [`Keep::apply`] nobody else may read the new file.
    pub(super) fn new(file: File, old: Metadata) -> io::Result<Self> {
        file.set_permissions(Permissions::from_mode(0o600))?;
        Ok(Self { file, old })
    }

    /// Gives the new file what the old one has. The group and the owner only where this user may.
    pub(super) fn apply(&self) -> io::Result<()> {
        let now = self.file.metadata()?;
        let has_group = now.gid() == self.old.gid() || fchown(&self.file, None, Some(self.old.gid())).is_ok();
        self.file.set_permissions(Permissions::from_mode(mode(self.old.mode(), has_group)))?;
        let times = FileTimes::new().set_modified(self.old.modified()?).set_accessed(self.old.accessed()?);
        self.file.set_times(times)?;
        // The owner last: who gives a file away may not change it any more.
        if now.uid() != self.old.uid() {
            let _ = fchown(&self.file, Some(self.old.uid()), None);
        }
        Ok(())
    }
}

/// The mode of the new file. In another group than the old one its members are strangers, so they get only
/// what strangers have, as with xz. Bits of set-id belong to a program and its owner, not to its packed form.
fn mode(old: u32, has_group: bool) -> u32 {
    if has_group {
        return old & 0o777;
    }
    let both = (old >> 3) & old & 0o007;
    old & 0o700 | both << 3 | both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_group_may_no_more_than_everybody() {
        for (old, new) in [(0o640, 0o600), (0o664, 0o644), (0o604, 0o600), (0o4755, 0o755), (0o777, 0o777)] {
            assert_eq!(mode(old, false), new, "{old:o}");
        }
        assert_eq!(mode(0o106_640, true), 0o640);
    }
}
