//! Metadata of a file of unknown length.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use narrows::entry::{Entry, EntryKind};
use rustix::fs::{AtFlags, FileType, Mode};

use super::partial::{PRIVATE, Partial};
use crate::meta;

/// Mode of a new file; the system applies the umask, or the default access control list of the
/// folder.
const NEW: Mode = Mode::from_raw_mode(0o666);
/// Bits of the mode that are taken over: set-id bits and capabilities belong to the replaced
/// program, not to the file that replaces it.
const KEPT_BITS: u32 = 0o777;
const CAPABILITY: &[u8] = b"security.capability";

/// Creates the temporary file, and completes the entry with the metadata that `cat > name` would
/// give it: mode, owner and attributes of the replaced file, or those of a new one.
pub(super) fn create(folder: Arc<OwnedFd>, name: &OsStr, entry: &mut Entry) -> io::Result<Partial> {
    let there = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let replaced = there.filter(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
    let partial = Partial::create(Arc::clone(&folder), name, if replaced.is_some() { PRIVATE } else { NEW })?;
    let known = match &replaced {
        Some(stat) => meta::entry(&folder, name, Vec::new(), stat)?,
        None => meta::entry(&folder, partial.name(), Vec::new(), &rustix::fs::fstat(&partial.file)?)?,
    };
    // Private until it is complete.
    rustix::fs::fchmod(&partial.file, PRIVATE)?;
    if let Some(Entry { mode, uid, gid, mut xattrs, .. }) = known {
        xattrs.retain(|(name, _)| name != CAPABILITY);
        let path = std::mem::take(&mut entry.path);
        *entry =
            Entry { path, kind: EntryKind::Stream, mode: mode & KEPT_BITS, uid, gid, mtime_s: 0, mtime_ns: 0, xattrs };
    }
    Ok(partial)
}

/// Sets the time of the entry when it is complete.
pub(super) fn stamp(entry: &mut Entry) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (entry.mtime_s, entry.mtime_ns) = (since.as_secs() as i64, since.subsec_nanos());
}
