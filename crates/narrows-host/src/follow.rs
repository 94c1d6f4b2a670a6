//! Symbolic links: those that lead to a file which is to be written are followed where a shell would follow
//! them, and of others it is known whose they are.
//!
//! A program that resolves links itself goes past `fs.protected_symlinks`, with which the kernel keeps
//! links that others put into a folder like /tmp from leading a user to a file of his own.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Most links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;
/// Whether the kernel follows links as below: `1`.
const SWITCH: &str = "/proc/sys/fs/protected_symlinks";
/// The sticky bit, and that everyone may write.
const SHARED: u32 = 0o1002;

/// The folder that a path is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where a path leads.
#[derive(Debug)]
pub struct Place {
    /// The path, whose last name is no link. Of an open file, it may be the name that it once had.
    pub path: PathBuf,
    /// What is there; `None` if nothing is.
    pub there: Option<Metadata>,
    /// It is an open file of a process, such as `/dev/stdout`: whoever has it open writes to it as well, and
    /// would go on with one that nobody sees if another took its name. So it is written in place.
    pub is_open: bool,
}

/// Follows the links at the end of a path, also to a file that does not exist yet, as a redirection of the
/// shell does. What is there is looked at without following a link that was put there since.
///
/// # Errors
/// The kernel would not follow a link, or a folder cannot be reached.
pub fn to_end(path: &Path) -> io::Result<Place> {
    // Asked of the kernel first: the link may be subject to rules that are not known here.
    let kernel = match path.metadata() {
        Ok(data) => Some(data),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(refused(path).unwrap_or(e)),
    };
    if let Some(data) = kernel.as_ref().filter(|data| !data.is_file()) {
        // Devices, and pipes behind links of /proc, whose text leads nowhere.
        return Ok(Place { path: path.to_owned(), there: Some(data.clone()), is_open: false });
    }
    let Way { path: end, is_by_proc, .. } = behind_links(path, is_protected())?;
    if is_by_proc && kernel.is_some() {
        return Ok(Place { path: end, there: kernel, is_open: true });
    }
    let there = match end.symlink_metadata() {
        Ok(data) => Some(data),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    Ok(Place { path: end, there, is_open: false })
}

/// Opens a regular file to read it, with the owners of all that leads to it: of the links, and of the file.
/// Who may say what is in a folder need not be who may say what a file of another user says.
///
/// # Errors
/// It cannot be opened, or is none.
pub fn open_with_owners(path: &Path) -> io::Result<(File, Vec<u32>)> {
    let Way { path, mut owners, .. } = behind_links(path, is_protected())?;
    // Opening a pipe would wait for its writer.
    let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    owners.push(data.uid());
    Ok((file, owners))
}

/// Where the links at the end of a path lead.
struct Way {
    /// Its last name is no link.
    path: PathBuf,
    /// Of the links.
    owners: Vec<u32>,
    /// One of them is of /proc, whose text need not be a path.
    is_by_proc: bool,
}

/// A link.
struct Link {
    to: PathBuf,
    owner: u32,
    is_of_proc: bool,
}

fn behind_links(path: &Path, is_protected: bool) -> io::Result<Way> {
    let mut way = Way { path: path.to_owned(), owners: Vec::new(), is_by_proc: false };
    for _ in 0..LINKS_MAX {
        let Some(link) = link_at(&way.path, is_protected)? else { return Ok(way) };
        way.path = folder_of(&way.path).join(link.to);
        way.owners.push(link.owner);
        way.is_by_proc |= link.is_of_proc;
    }
    Err(Errno::LOOP.into())
}

/// The link at a path; `None` if there is none.
fn link_at(path: &Path, is_protected: bool) -> io::Result<Option<Link>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let folder = match rustix::fs::openat(CWD, folder_of(path), flags | OFlags::DIRECTORY, Mode::empty()) {
        // Whoever creates the file says so with the name of it.
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    // Owner and text are those of one link, whatever has its name by now.
    let link = match rustix::fs::openat(&folder, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&link)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        return Ok(None);
    }
    if is_protected && !may_follow(&rustix::fs::fstat(&folder)?, &stat) {
        return Err(of_another_user());
    }
    let text = rustix::fs::readlinkat(&link, OsStr::new(""), Vec::new())?.into_bytes();
    let is_of_proc = rustix::fs::fstatfs(&folder).is_ok_and(|about| about.f_type == rustix::fs::PROC_SUPER_MAGIC);
    Ok(Some(Link { to: OsString::from_vec(text).into(), owner: stat.st_uid, is_of_proc }))
}

/// The rule of the kernel (fs/namei.c, `may_follow_link`).
fn may_follow(folder: &Stat, link: &Stat) -> bool {
    let own = rustix::process::geteuid().as_raw();
    link.st_uid == own || folder.st_mode & SHARED != SHARED || link.st_uid == folder.st_uid
}

/// Without /proc as everywhere but on old systems.
fn is_protected() -> bool {
    fs::read_to_string(SWITCH).map_or(true, |text| text.trim() != "0")
}

/// Why the kernel did not follow, if that is the reason.
fn refused(path: &Path) -> Option<io::Error> {
    behind_links(path, is_protected()).err().filter(|e| e.kind() == io::ErrorKind::PermissionDenied)
}

fn of_another_user() -> io::Error {
    let text = "another user put a symbolic link there, in a folder where everyone may write; name another file";
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Opens an open file of a process once more, to write it from its beginning, as a shell does.
///
/// # Errors
/// It cannot be opened.
pub fn open_again(path: &Path) -> io::Result<File> {
    File::options().write(true).truncate(true).open(path)
}

/// Whether this is what stdout is.
#[must_use]
pub fn is_stdout(there: &Metadata) -> bool {
    rustix::fs::fstat(io::stdout()).is_ok_and(|own| (own.st_dev, own.st_ino) == (there.dev(), there.ino()))
}

/// Opens what is no regular file and is written in place. As with a shell, the kernel may refuse a pipe that
/// another user put into a folder where everyone may write (`fs.protected_fifos`), which it does only if the
/// file would be created.
///
/// # Errors
/// It cannot be opened, or a regular file is there by now.
pub fn open_special(path: &Path) -> io::Result<File> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    if file.metadata()?.is_file() {
        return Err(io::Error::other("it was replaced while it was opened"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    const OTHER: u32 = 65_534;

    #[test]
    fn a_link_of_another_user_in_a_shared_folder_is_not_followed() {
        if !rustix::process::geteuid().is_root() {
            return narrows_test::skip("needs root, to make a link of somebody else");
        }
        let home = tempfile::tempdir().unwrap();
        let shared = home.path().join("shared");
        fs::create_dir(&shared).unwrap();
        let (there, missing) = (home.path().join("there"), home.path().join("missing"));
        fs::write(&there, "precious").unwrap();
        for (owner_of_folder, mode, owner_of_link, follows) in [
            (0, 0o1777, OTHER, false),
            (0, 0o1777, 0, true),
            (OTHER, 0o1777, OTHER, true),
            (OTHER, 0o1777, OTHER - 1, false),
            (0, 0o777, OTHER, true),
            (0, 0o1755, OTHER, true),
        ] {
            chown(&shared, Some(owner_of_folder), None).unwrap();
            fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
            for to in [&there, &missing] {
                let (link, own) = (shared.join("link"), home.path().join("own"));
                symlink(to, &link).unwrap();
                lchown(&link, Some(owner_of_link), None).unwrap();
                symlink(&link, &own).unwrap();
                for path in [&link, &own] {
                    let found = behind_links(path, true).map(|way| way.path);
                    let told = format!("{owner_of_folder} {mode:o} {owner_of_link}: {found:?}");
                    match found {
                        Ok(found) => assert!(follows && found == *to, "{told}"),
                        Err(e) => assert!(!follows && e.kind() == io::ErrorKind::PermissionDenied, "{told}"),
                    }
                    let way = behind_links(path, false).unwrap();
                    assert_eq!((&way.path, way.owners.last()), (to, Some(&owner_of_link)), "it is switched off");
                }
                fs::remove_file(&link).unwrap();
                fs::remove_file(&own).unwrap();
            }
        }
    }

    #[test]
    fn paths_lead_where_the_kernel_says() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("file"), "x").unwrap();
        symlink("file", at("one")).unwrap();
        symlink(at("one"), at("two")).unwrap();
        symlink("new", at("dangling")).unwrap();
        symlink("round", at("round")).unwrap();
        assert_eq!(to_end(&at("two")).unwrap().path, at("file"));
        let new = to_end(&at("dangling")).unwrap();
        assert!(new.path == at("new") && new.there.is_none());
        assert!(to_end(&at("round")).is_err());
        assert!(to_end(home.path()).unwrap().there.unwrap().is_dir());
        assert!(to_end(&at("no/file")).unwrap().there.is_none());
        let device = to_end(Path::new("/dev/null")).unwrap();
        assert!(!device.there.as_ref().unwrap().is_file());
        let nameless = tempfile::tempfile().unwrap();
        let by_number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless));
        let open = to_end(Path::new(&by_number)).unwrap();
        assert!(open.is_open && open.there.unwrap().is_file() && !device.is_open);
        let named = File::create(at("named")).unwrap();
        let by_number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&named));
        symlink(&by_number, at("through")).unwrap();
        assert!(to_end(&at("through")).unwrap().is_open && !to_end(&at("named")).unwrap().is_open);
        assert!(open_special(Path::new("/dev/null")).is_ok() && open_special(&at("file")).is_err());
    }
}
