//! Metadata of files: read at the source and set at the target, with a count of what could not be
//! set.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use narrows::entry::{DIGEST_LEN, Entry, EntryKind};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::partial_name::MARK;

/// Maximum length of the list of attribute names of one file, in bytes; the limit of Linux.
const XATTR_NAMES_MAX: usize = 64 << 10;
/// Maximum length of one attribute value, in bytes; the limit of Linux.
const XATTR_VALUE_MAX: usize = 64 << 10;
/// Coarsest known resolution of times, in seconds.
pub(crate) const COARSEST_S: u64 = 2;
const SETID: u32 = 0o6000;
const CAPABILITY: &[u8] = b"security.capability";
const TRUSTED: &[u8] = b"trusted.";

/// Metadata that could not be set at the target: kinds, and how often each.
#[derive(Debug, Default)]
pub(crate) struct Losses(BTreeMap<&'static str, u64>);

impl Losses {
    fn note<T>(&mut self, what: &'static str, result: Result<T, Errno>) {
        if result.is_err() {
            self.count(what);
        }
    }

    /// Counts one loss.
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// The losses as text, such as `owner of 3, times of 1`; `None` if there are none.
    pub(crate) fn words(&self) -> Option<String> {
        let words: Vec<_> = self.0.iter().map(|(what, count)| format!("{what} of {count}")).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// Name of a pseudo-attribute: the number of the entry that is the first name of this link, fifo or
/// device (section 8.2 of `docs/format.md`). Versions that do not know it ignore it.
const LINK: &[u8] = b"narrows.link";

/// Marks an entry without content as having more names; `first` is the number of the first name.
pub(crate) fn put_link(entry: &mut Entry, first: u64) {
    entry.xattrs.push((LINK.to_vec(), first.to_string().into_bytes()));
}

/// Removes the mark of [`put_link`] and returns its number.
pub(crate) fn take_link(entry: &mut Entry) -> Option<u64> {
    let at = entry.xattrs.iter().position(|(name, _)| name == LINK)?;
    let (_, number) = entry.xattrs.remove(at);
    std::str::from_utf8(&number).ok()?.parse().ok()
}

/// Name of a pseudo-attribute: the entry is a socket, and no hard link (section 8.2 of `docs/format.md`).
const SOCKET: &[u8] = b"narrows.socket";

/// The entry of a socket. It comes as a hard link to a folder, which no program makes: one that does not
/// know the mark reports it as a failure. Without a folder before it, it comes as a fifo.
pub(crate) fn socket(path: Vec<u8>, stat: &Stat, folder: Option<u64>) -> Entry {
    Entry {
        path,
        kind: folder.map_or(EntryKind::Fifo, |of| EntryKind::HardLink { of }),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime_s: stat.st_mtime,
        mtime_ns: stat.st_mtime_nsec as u32,
        xattrs: vec![(SOCKET.to_vec(), Vec::new())],
    }
}

/// Whether an entry is one of [`socket`].
pub(crate) fn is_socket(entry: &Entry) -> bool {
    let may_be = matches!(entry.kind, EntryKind::HardLink { .. } | EntryKind::Fifo);
    may_be && entry.xattrs.iter().any(|(name, _)| name == SOCKET)
}

/// What follows it where `--devices` helps.
pub const HINT_DEVICES: &str = "; --devices copies it";

/// What a copy says of an entry that it makes only with `--devices`; `None` of others.
pub(crate) fn skipped(entry: &Entry) -> Option<String> {
    let what = match entry.kind {
        _ if is_socket(entry) => "socket",
        EntryKind::Fifo => "fifo",
        EntryKind::CharDevice { .. } | EntryKind::BlockDevice { .. } => "device",
        _ => return None,
    };
    Some(format!("skipped {}: it is a {what}", crate::shown(&entry.path)))
}

/// Name of a pseudo-attribute: the digest of the content of a file (section 8.2 of `docs/format.md`).
const DIGEST: &[u8] = b"narrows.digest";
/// Name of a pseudo-attribute of a folder in which another file system is mounted, which did not come.
const MOUNT: &[u8] = b"narrows.mount";

/// Adds the digest of the content.
pub(crate) fn put_digest(entry: &mut Entry, digest: &[u8; DIGEST_LEN]) {
    entry.xattrs.push((DIGEST.to_vec(), digest.to_vec()));
}

/// Removes what [`put_digest`] added and returns it.
pub(crate) fn take_digest(entry: &mut Entry) -> Option<[u8; DIGEST_LEN]> {
    let at = entry.xattrs.iter().position(|(name, _)| name == DIGEST)?;
    entry.xattrs.remove(at).1.try_into().ok()
}

/// Marks a folder whose contents are left out.
pub(crate) fn put_mount(entry: &mut Entry) {
    entry.xattrs.push((MOUNT.to_vec(), Vec::new()));
}

/// Removes the mark of [`put_mount`]; returns whether it was there.
pub(crate) fn take_mount(entry: &mut Entry) -> bool {
    let before = entry.xattrs.len();
    entry.xattrs.retain(|(name, _)| name != MOUNT);
    entry.xattrs.len() < before
}

/// Which owners and groups are set. A failed attempt to set one is a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ownership {
    owner: bool,
    group: bool,
}

impl Ownership {
    /// As requested, or else by the rights of this process: only root may change owners, but all
    /// users may use their own groups.
    pub(crate) fn new(asked: Option<bool>) -> Self {
        let owner = asked.unwrap_or_else(|| rustix::process::geteuid().is_root());
        Self { owner, group: asked.unwrap_or(true) }
    }

    /// Whether an attempt to set this group on an existing file can succeed.
    fn may_set_group(self, gid: u32) -> bool {
        self.owner || self.group && is_own_group(gid)
    }
}

/// Whether this process may set this group without being root.
fn is_own_group(gid: u32) -> bool {
    static GROUPS: OnceLock<Vec<u32>> = OnceLock::new();
    let groups = GROUPS.get_or_init(|| {
        let own = std::iter::once(rustix::process::getegid());
        own.chain(rustix::process::getgroups().unwrap_or_default()).map(Gid::as_raw).collect()
    });
    groups.contains(&gid)
}

/// The entry for a file by its `stat`, without content. `None` for a socket, which is useless
/// without its program.
pub(crate) fn entry(parent: &OwnedFd, name: &OsStr, path: Vec<u8>, stat: &Stat) -> io::Result<Option<Entry>> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File { len: stat.st_size as u64, linked: false },
        FileType::Directory => EntryKind::Folder,
        FileType::Symlink => {
            EntryKind::Symlink { target: rustix::fs::readlinkat(parent, name, Vec::new())?.into_bytes() }
        }
        FileType::Fifo => EntryKind::Fifo,
        FileType::CharacterDevice => {
            EntryKind::CharDevice { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) }
        }
        FileType::BlockDevice => {
            EntryKind::BlockDevice { major: rustix::fs::major(stat.st_rdev), minor: rustix::fs::minor(stat.st_rdev) }
        }
        _ => return Ok(None),
    };
    Ok(Some(Entry {
        path,
        kind,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime_s: stat.st_mtime,
        mtime_ns: stat.st_mtime_nsec as u32,
        xattrs: xattrs(parent, name),
    }))
}

/// As [`entry`], of what a symbolic link leads to; `stat` is of that too.
pub(crate) fn entry_followed(parent: &OwnedFd, name: &OsStr, path: Vec<u8>, stat: &Stat) -> io::Result<Option<Entry>> {
    let entry = entry(parent, name, path, stat)?;
    Ok(entry.map(|entry| {
        let path = by_descriptor(parent, name);
        let mut xattrs = read_xattrs_by(
            |names| rustix::fs::listxattr(&path[..], names),
            |name, value| rustix::fs::getxattr(&path[..], name, value),
        )
        .unwrap_or_default();
        xattrs.sort_unstable();
        Entry { xattrs, ..entry }
    }))
}

/// The attributes of a file that a copy preserves, sorted by name.
pub(crate) fn xattrs(parent: &OwnedFd, name: &OsStr) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = read_xattrs(parent, name);
    found.sort_unstable();
    found
}

/// Whether a file has the attributes of an entry that a copy preserves, and no others.
pub(crate) fn has_xattrs(parent: &OwnedFd, name: &OsStr, entry: &Entry) -> bool {
    xattrs(parent, name).iter().eq(entry.xattrs.iter().filter(|(name, _)| is_kept(name)))
}

/// A path to a name in an open folder, wherever that folder has moved. The `l` calls do not follow
/// its last component.
fn by_descriptor(parent: &OwnedFd, name: &OsStr) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", parent.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.as_bytes());
    path
}

/// Whether a copy preserves an attribute: user attributes, access control lists, capabilities, and
/// as root trusted attributes. Labels of security modules belong to the host and are not preserved. XFS
/// shows root its access control lists a second time, as trusted attributes: a file system that is
/// none keeps these beside its own lists, and they would replace those on the way back.
fn is_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.") && name != MARK
        || name.starts_with(TRUSTED) && !name.starts_with(b"trusted.SGI_ACL_")
        || matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default" | b"security.capability")
}

/// Names and values.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

fn read_xattrs(parent: &OwnedFd, name: &OsStr) -> Xattrs {
    let path = by_descriptor(parent, name);
    let by_path = read_xattrs_by(
        |names| rustix::fs::llistxattr(&path[..], names),
        |name, value| rustix::fs::lgetxattr(&path[..], name, value),
    );
    match by_path {
        // Without /proc, as in some containers, the attributes are read from the opened file. Files
        // that cannot be opened have attributes only if root set them.
        Err(Errno::NOENT) => open_plain(parent, name)
            .and_then(|file| {
                read_xattrs_by(
                    |names| rustix::fs::flistxattr(&file, names),
                    |name, value| rustix::fs::fgetxattr(&file, name, value),
                )
            })
            .unwrap_or_default(),
        found => found.unwrap_or_default(),
    }
}

/// Opens a regular file or folder; nothing else, because opening a device may have side effects.
fn open_plain(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::openat(parent, name, flags, Mode::empty())
        }
        _ => Err(Errno::INVAL),
    }
}

fn read_xattrs_by(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&[u8], &mut [u8]) -> Result<usize, Errno>,
) -> Result<Xattrs, Errno> {
    // Most files have no attributes, which one call with a small buffer shows.
    let mut names = vec![0; 256];
    let len = loop {
        match list(&mut names) {
            Ok(len) => break len,
            Err(Errno::RANGE) if names.len() < XATTR_NAMES_MAX => names.resize(XATTR_NAMES_MAX, 0),
            Err(e) => return Err(e),
        }
    };
    let mut found = Vec::new();
    for name in names[..len].split(|b| *b == 0).filter(|name| is_kept(name)) {
        let mut value = vec![0; 1024];
        loop {
            match get(name, &mut value) {
                Ok(len) => {
                    value.truncate(len);
                    found.push((name.to_vec(), value));
                    break;
                }
                Err(Errno::RANGE) if value.len() < XATTR_VALUE_MAX => value.resize(XATTR_VALUE_MAX, 0),
                Err(_) => break,
            }
        }
    }
    Ok(found)
}

/// Removes set-id bits and capabilities from a file, which let a program run with the rights of
/// another user: a file from another host is not trusted with them.
pub(crate) fn take_privileges(entry: &mut Entry, losses: &mut Losses) {
    if !matches!(entry.kind, EntryKind::File { .. }) {
        return;
    }
    if entry.mode & SETID != 0 {
        entry.mode &= !SETID;
        losses.count("set-id bits (without --set-id)");
    }
    let before = entry.xattrs.len();
    entry.xattrs.retain(|(name, _)| name != CAPABILITY);
    if entry.xattrs.len() < before {
        losses.count("capabilities (without --set-id)");
    }
}

/// Removes attributes that only root may set, and that file systems obey.
pub(crate) fn take_trusted(entry: &mut Entry, losses: &mut Losses) {
    let before = entry.xattrs.len();
    entry.xattrs.retain(|(name, _)| !name.starts_with(TRUSTED));
    if entry.xattrs.len() < before {
        losses.count("trusted attributes (without --set-id)");
    }
}

/// Sets all metadata on an open file or folder: the owner first, since that clears set-id bits and
/// capabilities, and the times last, since everything else changes them.
pub(crate) fn apply(fd: BorrowedFd<'_>, entry: &Entry, ownership: Ownership, losses: &mut Losses) {
    let now = rustix::fs::fstat(fd);
    let is = |f: fn(&Stat, &Entry) -> bool| now.as_ref().is_ok_and(|s| f(s, entry));
    let mut mode = entry.mode;
    let own = is(|s, e| s.st_uid == e.uid)
        || ownership.owner && user(entry.uid).and_then(|uid| rustix::fs::fchown(fd, Some(uid), None)).is_ok();
    let group = is(|s, e| s.st_gid == e.gid)
        || ownership.group && group_of(entry.gid).and_then(|gid| rustix::fs::fchown(fd, None, Some(gid))).is_ok();
    if !group && ownership.group {
        losses.note("group", Err::<(), _>(Errno::PERM));
    }
    if !own && ownership.owner {
        losses.note("owner", Err::<(), _>(Errno::PERM));
    }
    if (!own || !group) && mode & SETID != 0 {
        // Without its owner or group, a set-id program would run as another user.
        mode &= !SETID;
        losses.note("set-id bits", Err::<(), _>(Errno::PERM));
    }
    // Always: a new file has the mode of its creation, and a change of owner clears bits.
    let moded = rustix::fs::fchmod(fd, Mode::from_raw_mode(mode));
    losses.note("mode", moded);
    remove_others(fd, entry, losses);
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name)) {
        losses.note("extended attributes", rustix::fs::fsetxattr(fd, name, value, XattrFlags::empty()));
    }
    let timed = rustix::fs::futimens(fd, &times(entry, now.ok().as_ref()));
    // Some file systems have no modes or times, and report success.
    match rustix::fs::fstat(fd) {
        Ok(is) => {
            if moded.is_ok() && is.st_mode & 0o7777 != mode & 0o7777 {
                losses.count("mode");
            }
            losses.note("times", timed.and_then(|()| about_same_time(&is, entry)));
        }
        Err(_) => losses.note("times", timed),
    }
}

/// The user with a number that somebody else may have written. The highest one means to the kernel that the
/// owner is left as it is, which is not to count as set.
///
/// # Errors
/// `EINVAL`: there is none.
pub(crate) fn user(uid: u32) -> Result<Uid, Errno> {
    if uid == u32::MAX { Err(Errno::INVAL) } else { Ok(Uid::from_raw(uid)) }
}

/// As [`user`], for a group.
///
/// # Errors
/// `EINVAL`: there is none.
pub(crate) fn group_of(gid: u32) -> Result<Gid, Errno> {
    if gid == u32::MAX { Err(Errno::INVAL) } else { Ok(Gid::from_raw(gid)) }
}

/// Removes attributes that the source does not have, such as an access control list inherited from
/// the folder.
fn remove_others(fd: BorrowedFd<'_>, entry: &Entry, losses: &mut Losses) {
    let mut names = vec![0; 1024];
    let len = match rustix::fs::flistxattr(fd, &mut names[..]) {
        Ok(len) => len,
        Err(Errno::RANGE) => {
            names.resize(XATTR_NAMES_MAX, 0);
            rustix::fs::flistxattr(fd, &mut names[..]).unwrap_or(0)
        }
        Err(_) => 0,
    };
    for name in names[..len].split(|b| *b == 0).filter(|name| is_kept(name)) {
        if entry.xattrs.iter().all(|(kept, _)| kept != name) {
            losses.note("removal of attributes", rustix::fs::fremovexattr(fd, name));
        }
    }
}

/// Whether the owner and the group are to be set and differ.
pub(crate) fn owners_differ(stat: &Stat, entry: &Entry, ownership: Ownership) -> (bool, bool) {
    let owner = stat.st_uid != entry.uid && ownership.owner;
    (owner, stat.st_gid != entry.gid && ownership.may_set_group(entry.gid))
}

/// Whether everything that [`apply`] sets is already set, as far as `stat` shows.
pub(crate) fn is_applied(stat: &Stat, entry: &Entry, ownership: Ownership) -> bool {
    stat.st_mode & 0o7777 == entry.mode
        && owners_differ(stat, entry, ownership) == (false, false)
        && same_time(stat, entry)
}

/// Whether the modification times are equal.
pub(crate) fn same_time(stat: &Stat, entry: &Entry) -> bool {
    stat.st_mtime == entry.mtime_s && stat.st_mtime_nsec as u32 == entry.mtime_ns
}

/// As [`apply`], for entries that are not opened: links, fifos, devices. `name` was just created in
/// `parent`.
pub(crate) fn apply_by_name(parent: &OwnedFd, name: &OsStr, entry: &Entry, ownership: Ownership, losses: &mut Losses) {
    // Separately: a process that may not set the owner may still set the group.
    let set = |uid, gid| rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
    let now = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    if ownership.owner && now.as_ref().is_ok_and(|s| s.st_uid != entry.uid) {
        losses.note("owner", user(entry.uid).and_then(|uid| set(Some(uid), None)));
    }
    if ownership.group && now.as_ref().is_ok_and(|s| s.st_gid != entry.gid) {
        losses.note("group", group_of(entry.gid).and_then(|gid| set(None, Some(gid))));
    }
    if !matches!(entry.kind, EntryKind::Symlink { .. }) {
        // By descriptor, so that a link that has replaced the name is not followed.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let set = rustix::fs::openat(parent, name, flags, Mode::empty()).and_then(|fd| {
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            rustix::fs::chmod(path, Mode::from_raw_mode(entry.mode))
        });
        losses.note("mode", set);
    }
    let path = by_descriptor(parent, name);
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_kept(name)) {
        losses.note("extended attributes", rustix::fs::lsetxattr(&path[..], name, value, XattrFlags::empty()));
    }
    let stamps = times(entry, now.ok().as_ref());
    let set = rustix::fs::utimensat(parent.as_fd(), name, &stamps, AtFlags::SYMLINK_NOFOLLOW);
    let is = set.and_then(|()| rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW));
    losses.note("times", is.and_then(|is| about_same_time(&is, entry)));
}

/// The modification time of an entry, for system calls that set the times of a file which `now` shows.
pub(crate) fn times(entry: &Entry, now: Option<&Stat>) -> Timestamps {
    stamps((entry.mtime_s, entry.mtime_ns), now)
}

/// A modification time, and the access time that the file has. Many file systems of FUSE set no time, and
/// report success, if one of the two is left out.
pub(crate) fn stamps((s, ns): (i64, u32), now: Option<&Stat>) -> Timestamps {
    let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    Timestamps {
        last_access: now.map_or(omitted, |is| Timespec { tv_sec: is.st_atime, tv_nsec: is.st_atime_nsec as _ }),
        last_modification: Timespec { tv_sec: s, tv_nsec: ns.into() },
    }
}

/// An error if a file does not have the time that was set, as its file system rounds it.
fn about_same_time(is: &Stat, entry: &Entry) -> Result<(), Errno> {
    if is.st_mtime.abs_diff(entry.mtime_s) <= COARSEST_S { Ok(()) } else { Err(Errno::OVERFLOW) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_control_lists_are_kept_once() {
        for name in [&b"user.a"[..], b"trusted.a", b"system.posix_acl_access", CAPABILITY] {
            assert!(is_kept(name), "{}", name.escape_ascii());
        }
        // As XFS lists them for root, beside the attributes that all programs see.
        for name in [&b"trusted.SGI_ACL_FILE"[..], b"trusted.SGI_ACL_DEFAULT", b"security.selinux", MARK] {
            assert!(!is_kept(name), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn a_time_that_was_not_set_is_noticed_and_a_rounded_one_is_not() {
        let file = tempfile::tempfile().unwrap();
        let mut is = rustix::fs::fstat(&file).unwrap();
        let path = b"a".to_vec();
        let (kind, xattrs) = (EntryKind::Folder, Vec::new());
        let entry =
            Entry { path, kind, mode: 0, uid: 0, gid: 0, mtime_s: 1_000_000_001, mtime_ns: 999_999_999, xattrs };
        for (time, is_noticed) in [(1_000_000_001, false), (1_000_000_000, false), (999_999_000, true)] {
            is.st_mtime = time;
            assert_eq!(about_same_time(&is, &entry).is_err(), is_noticed, "{time}");
        }
    }
}
