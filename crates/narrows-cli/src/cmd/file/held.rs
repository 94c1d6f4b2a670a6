//! The folder of a file that -r found. Where others may write, a link may take the place of a folder after it was
//! listed, and the work would go on elsewhere.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{CWD, Mode, OFlags};

use crate::args::file::FileArgs;

/// A folder that stays the one that was opened, whatever has its name by now.
pub(super) struct Held(OwnedFd);

impl Held {
    /// Opens the folder of an input without following a link below the folder that was named. `None` of an input
    /// that was named itself, and where /proc is missing.
    pub(super) fn of(args: &FileArgs, input: &Path) -> Result<Option<Self>> {
        if !args.recursive {
            return Ok(None);
        }
        let below =
            |root: &PathBuf| input.strip_prefix(root).ok().and_then(Path::parent).map(|way| (root.clone(), way));
        let Some((root, way)) = args.files.iter().find_map(below) else { return Ok(None) };
        let held = Self::open(&root, way, args.force).with_context(|| format!("cannot read {}", input.display()))?;
        let (own, there) = (rustix::fs::fstat(&held.0)?, held.path(Path::new(".")).metadata());
        Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (own.st_dev, own.st_ino)).then_some(held))
    }

    fn open(root: &Path, way: &Path, follows: bool) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let of_root = if follows { flags } else { flags | OFlags::NOFOLLOW };
        let mut folder = rustix::fs::openat(CWD, root, of_root, Mode::empty())?;
        for part in way.components() {
            let Component::Normal(name) = part else { continue };
            folder = rustix::fs::openat(&folder, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(Self(folder))
    }

    /// The path by which a file of that name in the folder is reached.
    pub(super) fn path(&self, file: &Path) -> PathBuf {
        let folder = PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        file.file_name().map_or_else(|| folder.join("."), |name| folder.join(name))
    }
}
