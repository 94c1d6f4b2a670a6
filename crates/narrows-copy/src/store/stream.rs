//! A file of unknown length: what is stored of it besides its content.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use narrows::entry::{Entry, EntryKind};
use rustix::fs::{AtFlags, FileType, Mode};

use super::partial::{PRIVATE, Partial};
use crate::meta;

/// What a new file gets; the system takes the umask off, or what the folder says.
const NEW: Mode = Mode::from_raw_mode(0o666);
/// Set-id bits and capabilities belong to the program that was there, not to what replaces it.
const KEPT_BITS: u32 = 0o777;
const CAPABILITY: &[u8] = b"security.capability";

/// Makes the temporary file, and completes the entry as `cat > name` would have it: with mode, owner and attributes of the
/// file that is replaced, else with those of a new one.
pub(super) fn create(folder: Arc<OwnedFd>, name: &OsStr, entry: &mut Entry) -> io::Result<Partial> {
    let there = rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let replaced = there.filter(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
    let partial = Partial::create(Arc::clone(&folder), name, if replaced.is_some() { PRIVATE } else { NEW })?;
    let known = match &replaced {
        Some(stat) => meta::entry(&folder, name, Vec::new(), stat)?,
        None => meta::entry(&folder, partial.name(), Vec::new(), &rustix::fs::fstat(&partial.file)?)?,
    };
    // Until it is whole nobody else reads it.
    rustix::fs::fchmod(&partial.file, PRIVATE)?;
    if let Some(Entry { mode, uid, gid, mut xattrs, .. }) = known {
        xattrs.retain(|(name, _)| name != CAPABILITY);
        let path = std::mem::take(&mut entry.path);
        *entry =
            Entry { path, kind: EntryKind::Stream, mode: mode & KEPT_BITS, uid, gid, mtime_s: 0, mtime_ns: 0, xattrs };
    }
    Ok(partial)
}

/// It is complete now.
pub(super) fn stamp(entry: &mut Entry) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (entry.mtime_s, entry.mtime_ns) = (since.as_secs() as i64, since.subsec_nanos());
}
