//! The folder in which files live until they are whole: that of their targets, or the one of
//! `--partial-dir`, where they have the names that they will get, as rsync's have.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::partial::{self, hold_stale, remove_stale};
use crate::hello::PartialDir;
use crate::listing::each_name;
use crate::partial_name::is_partial;
use crate::shown;
use crate::tree::split;

/// Where files live until they are whole.
#[derive(Clone, Default)]
pub(crate) enum Home {
    /// In the folder of the target, under names of our own.
    #[default]
    Beside,
    /// In a folder of this path below that folder, which is there only while it is needed.
    Below(Arc<[u8]>),
    /// In one folder for all targets.
    Apart(Arc<OwnedFd>),
}

impl Home {
    /// The home that was asked for; one for all targets is opened by the caller ([`Home::apart`]).
    pub(super) fn new(asked: Option<&PartialDir>) -> Self {
        match asked {
            Some(PartialDir::Beside(path)) => Self::Below(path.as_bytes().into()),
            Some(PartialDir::At(_)) | None => Self::Beside,
        }
    }

    /// One folder for all targets.
    pub(super) fn apart(folder: Arc<OwnedFd>) -> io::Result<Self> {
        check_owner(&rustix::fs::fstat(&folder)?, None).map(|()| Self::Apart(folder))
    }

    /// The folder for a target in `to`, made if only its last part is missing. `None` if that is `to` itself:
    /// as rsync does, where more is missing, and on another file system, from which no file can get its name.
    pub(super) fn make(&self, to: &OwnedFd) -> io::Result<Option<Arc<OwnedFd>>> {
        let own = rustix::fs::fstat(to)?;
        let folder = match self {
            Self::Beside => return Ok(None),
            Self::Apart(folder) => Arc::clone(folder),
            Self::Below(path) => {
                let folder = match open(to, path) {
                    Err(Errno::NOENT) => {
                        let (above, name) = split(path);
                        let made = match above {
                            [] => rustix::fs::mkdirat(to, name, Mode::RWXU),
                            above => open(to, above).and_then(|above| rustix::fs::mkdirat(above, name, Mode::RWXU)),
                        };
                        match made {
                            Ok(()) | Err(Errno::EXIST) => open(to, path),
                            Err(Errno::NOENT) => return Ok(None),
                            Err(e) => Err(e),
                        }
                    }
                    opened => opened,
                };
                let folder = folder.map_err(|e| match e {
                    Errno::NOTDIR | Errno::LOOP => {
                        let name = shown(path);
                        io::Error::other(format!("{name} is no folder, so it is none for --partial-dir"))
                    }
                    e => e.into(),
                })?;
                check_owner(&rustix::fs::fstat(&folder)?, Some(&own))?;
                Arc::new(folder)
            }
        };
        Ok((rustix::fs::fstat(&folder)?.st_dev == own.st_dev).then_some(folder))
    }

    /// Removes the folder of a target in `to` if it is empty and only there when needed.
    pub(super) fn tidy(&self, to: &OwnedFd) {
        let Self::Below(path) = self else { return };
        let (above, name) = split(path);
        let _ = match above {
            [] => rustix::fs::unlinkat(to, name, AtFlags::REMOVEDIR),
            above => open(to, above).and_then(|above| rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR)),
        };
    }

    /// Opens and locks what earlier copies left of a target. It keeps its name until there is more, so that
    /// another interruption loses nothing.
    pub(super) fn held(&self, to: &OwnedFd, target: &OsStr) -> Vec<OwnedFd> {
        let there = self.opened(to).and_then(|folder| hold_stale(&folder, target));
        there.into_iter().chain(hold_stale(to, &partial::name(target, 0))).collect()
    }

    /// Length of the longest file that earlier copies left of a target, in bytes.
    pub(super) fn left_len(&self, to: &OwnedFd, target: &OsStr) -> i64 {
        let len = |folder: &OwnedFd, name: &OsStr| {
            let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            let file = stat.filter(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
            file.map_or(0, |s| s.st_size)
        };
        let there = self.opened(to).map_or(0, |folder| len(&folder, target));
        there.max(len(to, &partial::name(target, 0)))
    }

    /// Removes what earlier copies left of a target that is stored now. `is_new`: by this copy. Otherwise
    /// what is in a folder for all targets may be of another one of that name.
    pub(super) fn forget(&self, to: &OwnedFd, target: &OsStr, is_new: bool) {
        remove_stale(to, &partial::name(target, 0));
        if (is_new || !matches!(self, Self::Apart(_)))
            && let Some(folder) = self.opened(to)
        {
            remove_stale(&*folder, target);
            self.tidy(to);
        }
    }

    /// Removes the temporary files of copies that were killed, other than those that the next copy looks for.
    pub(super) fn sweep(&self, to: &OwnedFd) {
        let Self::Below(path) = self else { return };
        let Ok(folder) = open(to, path) else { return };
        let mut left = Vec::new();
        // Whatever cannot be listed stays.
        let _ = each_name(&folder, |name| {
            if is_partial(name.as_bytes()) {
                left.push(name.to_owned());
            }
            ControlFlow::Continue(())
        });
        for name in &left {
            remove_stale(&folder, name);
        }
        self.tidy(to);
    }

    /// Whether `path`, that of a folder, is a place for files that are not whole.
    pub(super) fn is_at(&self, path: &[u8]) -> bool {
        let Self::Below(own) = self else { return false };
        path.strip_suffix(&own[..]).is_some_and(|above| matches!(above, [] | [.., b'/']))
    }

    /// Whether an entry would be in such a place, or that place itself.
    pub(super) fn covers(&self, path: &[u8], is_folder: bool) -> bool {
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
        matches!(self, Self::Below(_))
            && ends.chain(is_folder.then_some(path.len())).any(|end| self.is_at(&path[..end]))
    }

    fn opened(&self, to: &OwnedFd) -> Option<Arc<OwnedFd>> {
        match self {
            Self::Beside => None,
            Self::Below(path) => open(to, path).ok().map(Arc::new),
            Self::Apart(folder) => Some(Arc::clone(folder)),
        }
    }
}

/// Opens a folder below `from` without following a link.
fn open(from: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = None;
    for part in path.split(|b| *b == b'/') {
        at = Some(rustix::fs::openat(at.as_ref().unwrap_or(from), part, flags, Mode::empty())?);
    }
    at.ok_or(Errno::INVAL)
}

/// Checks that nobody can put another file in the place of one that is to get its name: in the folder only
/// this user, the system's, and the `owner` of what is around it may remove files. The check of the file by
/// its name just before it gets the other one leaves a moment, so it is not enough. Whom access control lists
/// allow to write, the mode allows to its group.
fn check_owner(stat: &Stat, around: Option<&Stat>) -> io::Result<()> {
    let owners = [Some(rustix::process::geteuid().as_raw()), Some(0), around.map(|s| s.st_uid)];
    // With the sticky bit, only owners of a file remove it.
    let is_open = stat.st_mode & 0o1000 == 0 && stat.st_mode & 0o022 != 0;
    match owners.contains(&Some(stat.st_uid)) && !is_open {
        true => Ok(()),
        false => {
            Err(io::Error::other("others can change the folder of --partial-dir; chmod go-w, or take one of your own"))
        }
    }
}

/// Gives a file that was made in the folder the group that it would have in that of its target, `to`. False if
/// that cannot be.
pub(super) fn takes_group(file: &OwnedFd, to: &OwnedFd) -> io::Result<bool> {
    let (own, around) = (rustix::fs::fstat(file)?, rustix::fs::fstat(to)?);
    let gid = if around.st_mode & 0o2000 != 0 { around.st_gid } else { rustix::process::getegid().as_raw() };
    Ok(own.st_gid == gid || rustix::fs::fchown(file, None, Some(rustix::fs::Gid::from_raw(gid))).is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::Path;

    use super::super::partial::{PRIVATE, Partial};
    use super::*;

    fn folder(path: &Path) -> Arc<OwnedFd> {
        Arc::new(fs::File::open(path).unwrap().into())
    }

    fn below(path: &str) -> Home {
        Home::Below(path.as_bytes().into())
    }

    fn begin(home: &Home, to: &Path, content: &str) -> io::Result<Partial> {
        let partial = Partial::create_in(home, folder(to), OsStr::new("a"), PRIVATE)?;
        rustix::io::write(&partial.file, content.as_bytes()).unwrap();
        Ok(partial)
    }

    #[test]
    fn a_file_lives_in_the_folder_until_it_is_whole_and_leaves_it_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (to, apart) = (dir.path().join("to"), dir.path().join("apart"));
        fs::create_dir_all(to.join("deep")).unwrap();
        fs::create_dir(&apart).unwrap();
        let of_all = Home::apart(folder(&apart)).unwrap();
        for (home, at) in [(below(".p"), to.join(".p")), (below("deep/.p"), to.join("deep/.p")), (of_all, apart)] {
            let is_apart = matches!(home, Home::Apart(_));
            let mut first = begin(&home, &to, "half").unwrap();
            assert_eq!(fs::read(at.join("a")).unwrap(), b"half");
            assert!(is_apart || at.metadata().unwrap().mode() & 0o7777 == 0o700);
            // Another copy of the same file meanwhile, which is longer when both are cut off.
            let mut second = begin(&home, &to, "longer").unwrap();
            first.keep(OsStr::new("a"), [].iter());
            second.keep(OsStr::new("a"), [].iter());
            drop((first, second));
            assert_eq!(fs::read(at.join("a")).unwrap(), b"half", "it was the first to have the name");
            let held = home.held(&folder(&to), OsStr::new("a"));
            assert_eq!((held.len(), home.left_len(&folder(&to), OsStr::new("a"))), (1, 4));
            let mut third = begin(&home, &to, "longer").unwrap();
            third.keep(OsStr::new("a"), held.iter());
            drop((third, held));
            assert_eq!(fs::read(at.join("a")).unwrap(), b"longer");
            let mut whole = begin(&home, &to, "whole").unwrap();
            whole.rename(OsStr::new("a"), true).unwrap();
            drop(whole);
            assert_eq!(fs::read(to.join("a")).unwrap(), b"whole");
            let left = fs::read_dir(&at).map(Iterator::count).ok();
            assert_eq!(left, is_apart.then_some(0), "{}", at.display());
        }
    }

    #[test]
    fn in_a_folder_of_another_file_system_only_what_is_cut_off_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return narrows_test::skip("there is no /dev/shm") };
        if other.path().metadata().unwrap().dev() == dir.path().metadata().unwrap().dev() {
            return narrows_test::skip("there is only one file system");
        }
        let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
        let home = Home::apart(folder(other.path())).unwrap();
        // More than is copied at a time.
        let content = "half".repeat(100_000);
        let mut half = begin(&home, dir.path(), &content).unwrap();
        assert_eq!((count(dir.path()), count(other.path())), (1, 0));
        half.keep(OsStr::new("a"), [].iter());
        drop(half);
        assert_eq!((count(dir.path()), fs::read_to_string(other.path().join("a")).unwrap()), (0, content));
        // Cut off once more, with more.
        let held = home.held(&folder(dir.path()), OsStr::new("a"));
        let mut more = begin(&home, dir.path(), &"more".repeat(100_001)).unwrap();
        more.keep(OsStr::new("a"), held.iter());
        drop((more, held));
        assert_eq!((count(dir.path()), count(other.path())), (0, 1));
        assert_eq!(other.path().join("a").metadata().unwrap().len(), 400_004);
        let mut whole = begin(&home, dir.path(), "whole").unwrap();
        whole.rename(OsStr::new("a"), true).unwrap();
        drop(whole);
        assert_eq!((fs::read(dir.path().join("a")).unwrap(), count(other.path())), (b"whole".to_vec(), 0));
    }

    #[test]
    fn what_is_in_the_place_of_the_folder_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (to, out) = (dir.path().join("to"), dir.path().join("out"));
        fs::create_dir(&to).unwrap();
        fs::create_dir(&out).unwrap();
        fs::write(out.join("a"), "precious").unwrap();
        symlink("../out", to.join(".p")).unwrap();
        symlink("../out", to.join("link")).unwrap();
        fs::write(to.join("file"), "precious").unwrap();
        assert!(begin(&below("none/x"), &to, "half").is_ok() && !to.join("none").exists());
        for bad in [".p", "link/x", "file", "file/x"] {
            let home = below(bad);
            assert!(begin(&home, &to, "half").is_err(), "{bad}");
            assert_eq!(home.held(&folder(&to), OsStr::new("a")).len(), 0, "{bad}");
            home.forget(&folder(&to), OsStr::new("a"), true);
            home.sweep(&folder(&to));
        }
        assert_eq!(fs::read(out.join("a")).unwrap(), b"precious");
        assert_eq!(fs::read(to.join("file")).unwrap(), b"precious");
        // Links in it lead nowhere, and stay.
        fs::create_dir(to.join("p")).unwrap();
        symlink("../../out/a", to.join("p/a")).unwrap();
        let mut whole = begin(&below("p"), &to, "whole").unwrap();
        whole.rename(OsStr::new("a"), true).unwrap();
        drop(whole);
        assert_eq!(fs::read(to.join("a")).unwrap(), b"whole");
        assert!(to.join("p/a").is_symlink() && fs::read(out.join("a")).unwrap() == b"precious");
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = |mode| {
            fs::create_dir_all(dir.path().join("p")).unwrap();
            fs::set_permissions(dir.path().join("p"), fs::Permissions::from_mode(mode)).unwrap();
            (begin(&below("p"), dir.path(), "x").is_ok(), Home::apart(folder(&dir.path().join("p"))).is_ok())
        };
        assert_eq!([0o700, 0o755, 0o1777, 0o1775].map(open), [(true, true); 4]);
        assert_eq!([0o777, 0o775, 0o2770, 0o757].map(open), [(false, false); 4]);
    }

    #[test]
    fn a_file_has_the_group_that_it_would_have_beside_the_target() {
        if !rustix::process::geteuid().is_root() {
            return narrows_test::skip("only root may give files to groups");
        }
        let dir = tempfile::tempdir().unwrap();
        let (to, apart) = (dir.path().join("to"), dir.path().join("apart"));
        for (of_target, of_partials, gid) in [(0o2755, 0o700, 65_534), (0o755, 0o2700, 0), (0o755, 0o700, 0)] {
            for (path, mode) in [(&to, of_target), (&apart, of_partials)] {
                fs::create_dir_all(path).unwrap();
                std::os::unix::fs::chown(path, None, Some(65_534)).unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            let mut whole = begin(&Home::apart(folder(&apart)).unwrap(), &to, "whole").unwrap();
            whole.rename(OsStr::new("a"), true).unwrap();
            assert_eq!(to.join("a").metadata().unwrap().gid(), gid, "{of_target:o} {of_partials:o}");
        }
    }

    #[test]
    fn entries_in_the_folder_are_recognised() {
        let home = below("a/.p");
        for (path, is_folder, covered) in [
            ("a/.p", true, true),
            ("x/a/.p", true, true),
            ("x/a/.p/y/z", false, true),
            ("a/.p", false, false),
            ("xa/.p", true, false),
            (".p/y", false, false),
            ("a/.pp/y", false, false),
            ("", true, false),
        ] {
            assert_eq!(home.covers(path.as_bytes(), is_folder), covered, "{path}");
            assert!(!Home::Beside.covers(path.as_bytes(), is_folder), "{path}");
        }
    }
}
