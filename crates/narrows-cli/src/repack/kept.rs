//! Properties that a file keeps when its bytes are replaced: mode, owner, times and attributes.

use std::ffi::CString;
use std::fs::{File, FileTimes, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use narrows_file::effort::Record;
use narrows_host::file_state::FileState;
use rustix::fs::{Gid, Uid, XattrFlags};

/// Attribute that records an effort in vain (docs/format.md section 20.2).
const RECORD: &str = "user.narrows.repack";
/// Limits of Linux, in bytes: of all names of a file's attributes, and of one value.
const NAMES_MAX: usize = 64 << 10;
const VALUE_MAX: usize = 64 << 10;

/// The state of a file when it was opened.
pub(crate) struct Kept {
    data: Metadata,
    state: FileState,
    attributes: Vec<(CString, Vec<u8>)>,
}

impl Kept {
    pub(crate) fn of(file: &File) -> Result<Self> {
        let state = FileState::before_reading(file)?;
        let data = file.metadata()?;
        let attributes = attributes(file).context("its attributes cannot be read")?;
        Ok(Self { data, state, attributes })
    }

    /// Whether the file at `path` is the one that was opened, and is as it was then: also in its status, since
    /// mode and attributes were read then.
    pub(crate) fn is_still_at(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|now| FileState::from(&now) == self.state)
    }

    /// Gives a new file the owner and the attributes: first, since it may be refused.
    pub(crate) fn begin(&self, new: &File) -> Result<()> {
        let is = new.metadata()?;
        let owner = (is.uid() != self.data.uid()).then(|| Uid::from_raw(self.data.uid()));
        let group = (is.gid() != self.data.gid()).then(|| Gid::from_raw(self.data.gid()));
        if owner.is_some() || group.is_some() {
            let given = rustix::fs::fchown(new, owner, group);
            given.map_err(|e| anyhow!("its owner and group cannot be kept: {e}"))?;
        }
        for (name, value) in &self.attributes {
            // Labels of security modules may be there already, and refuse to be set.
            let there = rustix::fs::fgetxattr(new, name.as_c_str(), &mut vec![0; VALUE_MAX][..]);
            if there.is_ok_and(|len| len == value.len()) && value_of(new, name).is_ok_and(|v| v == *value) {
                continue;
            }
            let set = rustix::fs::fsetxattr(new, name.as_c_str(), value, XattrFlags::empty());
            set.map_err(|e| anyhow!("its attribute {} cannot be kept: {e}", name.to_string_lossy()))?;
        }
        Ok(())
    }

    /// Gives a new file that is complete the mode and the times.
    pub(crate) fn finish(&self, new: &File) -> Result<()> {
        // After the owner, which takes bits of set-id away.
        new.set_permissions(self.data.permissions())?;
        let times = FileTimes::new().set_modified(self.data.modified()?).set_accessed(self.data.accessed()?);
        new.set_times(times)?;
        Ok(())
    }
}

fn attributes(file: &File) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let mut names = vec![0; NAMES_MAX];
    let len = match rustix::fs::flistxattr(file, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::NOTSUP) => return Ok(Vec::new()),
        Err(e) => return Err(e.into()),
    };
    let names = names[..len].split(|b| *b == 0).filter(|name| !name.is_empty() && *name != RECORD.as_bytes());
    names
        .map(|name| {
            let name = CString::new(name)?;
            let value = value_of(file, &name)?;
            Ok((name, value))
        })
        .collect()
}

fn value_of(file: &File, name: &CString) -> io::Result<Vec<u8>> {
    let mut value = vec![0; VALUE_MAX];
    let len = rustix::fs::fgetxattr(file, name.as_c_str(), &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// The record of an effort in vain, if the file has one.
pub(crate) fn record(file: &File) -> Option<Record> {
    let mut value = [0; 64];
    let len = rustix::fs::fgetxattr(file, RECORD, &mut value[..]).ok()?;
    Record::parse(&value[..len])
}

/// Records an effort in vain. False where the file system has no attributes, or refuses it.
pub(crate) fn put_record(file: &File, record: Record) -> bool {
    rustix::fs::fsetxattr(file, RECORD, record.text().as_bytes(), XattrFlags::empty()).is_ok()
}
