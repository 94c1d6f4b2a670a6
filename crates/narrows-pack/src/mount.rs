//! A pack as a folder: a read-only FUSE file system.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyXattr, Request, Session, SessionACL,
};
use narrows::entry::{Entry, EntryKind};
use narrows::{ErrorKind, Result};
use narrows_file::ReadAt;

use crate::item::{Content, Item, List};
use crate::member::Extents;
use crate::pack::Pack;

mod names;
mod unmount;

use names::Names;
pub use unmount::Unmounter;

/// How long the kernel may keep what it was told: a pack does not change.
const TTL: Duration = Duration::from_secs(3600);
/// Threads that answer: one decodes while another finds.
const THREADS: usize = 2;
/// Bytes of a block of `statfs` and `stat`.
const BLOCK: u32 = 4096;
/// Number of the root folder, which need not be an entry.
const ROOT: u64 = 1;
/// Between the numbers of entries, which begin with 0, and those of inodes.
const FIRST: u64 = 2;

/// A mounted pack.
pub struct Mounted<R: ReadAt + 'static> {
    session: Session<View<R>>,
    unmounter: Unmounter,
}

impl<R: ReadAt + 'static> Mounted<R> {
    /// Mounts a pack on a folder. `name` is shown by `mount`. `others`: other users may see it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(pack: Pack<R>, folder: &Path, name: &str, others: bool) -> io::Result<Self> {
        let mut config = Config::default();
        // A comma would begin another option.
        let name = name.replace([',', '\\'], "_");
        config.mount_options = vec![
            MountOption::RO,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::DefaultPermissions,
            MountOption::FSName(name),
            MountOption::Subtype("narrows".into()),
        ];
        config.acl = if others { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(THREADS);
        let view = View {
            pack,
            nodes: Mutex::default(),
            files: Mutex::default(),
            folders: Mutex::default(),
            next: AtomicU64::new(1),
            made: SystemTime::now(),
            ids: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            names: OnceLock::new(),
        };
        let session = Session::new(view, folder, &config)?;
        let unmounter = Unmounter::of(&session, folder)?;
        Ok(Self { session, unmounter })
    }

    /// What unmounts it from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Answers until it is unmounted.
    ///
    /// # Errors
    /// The connection with the kernel fails.
    pub fn run(self) -> io::Result<()> {
        let mut session = self.session.spawn()?;
        let work = std::mem::replace(&mut session.guard, std::thread::spawn(|| Ok(())));
        // Dropped, it would unmount the folder although this mount is gone, and so take away another one that
        // is there.
        std::mem::forget(session);
        let result = work.join().unwrap_or_else(|_| Err(io::Error::other("a thread of the mount ended by a bug")));
        if result.is_err() {
            let _ = self.unmounter.unmount();
        }
        result
    }
}

/// An inode that the kernel knows.
struct Node {
    path: Vec<u8>,
    lookups: u64,
}

/// A folder that is read.
#[derive(Default)]
struct Reading {
    /// How many names were told, and the last of them.
    told: u64,
    last: Option<Vec<u8>>,
}

/// Bytes of extents of all open files: three with as many as there may be, or a million with a few.
const EXTENTS_HELD_MAX: usize = 512 << 20;
/// What an open file takes beside its extents.
const OPENED_LEN: usize = 256;

/// Files that are open. Those of one inode share their extents.
#[derive(Default)]
struct Opened {
    /// The inode and the extents, by handle.
    files: HashMap<u64, (u64, Arc<Extents>)>,
    /// The extents, and how many handles have them, by inode.
    shared: HashMap<u64, (Arc<Extents>, usize)>,
    /// Bytes of all of it.
    held: usize,
}

impl Opened {
    /// The extents of an inode that is open.
    fn known(&self, ino: u64) -> Option<Arc<Extents>> {
        self.shared.get(&ino).map(|(extents, _)| Arc::clone(extents))
    }

    /// Adds a handle; false if that would be too much memory.
    fn put(&mut self, handle: u64, ino: u64, extents: Arc<Extents>) -> bool {
        let extents = self.known(ino).unwrap_or(extents);
        let new = if self.shared.contains_key(&ino) { 0 } else { extents.memory() };
        let held = self.held + new + OPENED_LEN;
        if held > EXTENTS_HELD_MAX {
            return false;
        }
        self.held = held;
        self.shared.entry(ino).or_insert_with(|| (Arc::clone(&extents), 0)).1 += 1;
        self.files.insert(handle, (ino, extents));
        true
    }

    fn get(&self, handle: u64) -> Option<Arc<Extents>> {
        self.files.get(&handle).map(|(_, extents)| Arc::clone(extents))
    }

    fn remove(&mut self, handle: u64) {
        let Some((ino, extents)) = self.files.remove(&handle) else { return };
        self.held -= OPENED_LEN;
        if let Some((_, handles)) = self.shared.get_mut(&ino) {
            *handles -= 1;
            if *handles == 0 {
                self.shared.remove(&ino);
                self.held -= extents.memory();
            }
        }
    }
}

struct View<R> {
    pack: Pack<R>,
    nodes: Mutex<HashMap<u64, Node>>,
    files: Mutex<Opened>,
    folders: Mutex<HashMap<u64, Reading>>,
    next: AtomicU64,
    made: SystemTime,
    ids: (u32, u32),
    /// How many names files have; found when the first is asked for that has several.
    names: OnceLock<Names>,
}

/// Names and values.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error of the system for one of ours.
fn errno(e: &narrows::Error) -> Errno {
    let source = e.source.as_ref().and_then(io::Error::raw_os_error);
    match (&e.kind, source) {
        (_, Some(code)) => Errno::from_i32(code),
        (ErrorKind::Misuse, None) => Errno::EINVAL,
        _ => Errno::EIO,
    }
}

impl<R: ReadAt> View<R> {
    fn path(&self, ino: INodeNo) -> Option<Vec<u8>> {
        if ino.0 == ROOT {
            return Some(Vec::new());
        }
        lock(&self.nodes).get(&ino.0).map(|node| node.path.clone())
    }

    /// The entry of an inode; `None` for a root that is no entry.
    fn item(&self, ino: INodeNo) -> std::result::Result<Option<Item>, Errno> {
        let path = self.path(ino).ok_or(Errno::ENOENT)?;
        match self.pack.find(&path) {
            Ok(None) if ino.0 == ROOT => Ok(None),
            Ok(None) => Err(Errno::ENOENT),
            Ok(Some(item)) => Ok(Some(item)),
            Err(e) => Err(errno(&e)),
        }
    }

    /// The attributes of an entry: those of the file that it is a link to.
    fn attributes(&self, item: &Item) -> Result<FileAttr> {
        let item = self.pack.file_of(item)?;
        let e = &item.entry;
        let (kind, size, rdev) = match &e.kind {
            EntryKind::File { len, .. } => (FileType::RegularFile, *len, 0),
            EntryKind::Symlink { target } => (FileType::Symlink, target.len() as u64, 0),
            EntryKind::Fifo => (FileType::NamedPipe, 0, 0),
            EntryKind::CharDevice { major, minor } => (FileType::CharDevice, 0, device(*major, *minor)),
            EntryKind::BlockDevice { major, minor } => (FileType::BlockDevice, 0, device(*major, *minor)),
            EntryKind::Folder | EntryKind::HardLink { .. } | EntryKind::Stream => (FileType::Directory, 0, 0),
        };
        // Of a folder the number is not known, which is said by 1, as other file systems do.
        let nlink = match e.kind {
            EntryKind::File { linked: true, .. } => self.names.get_or_init(|| Names::of(&self.pack)).count(item.id),
            _ => 1,
        };
        // A long list of extents costs a read.
        let stored = match &item.content {
            Content::File { list: List::Here(_), .. } => {
                Extents::of(&self.pack, &item).map_or(size, |extents| extents.stored_len())
            }
            _ => size,
        };
        let time = time(e.mtime_s, e.mtime_ns);
        Ok(FileAttr {
            ino: INodeNo(if e.path.is_empty() { ROOT } else { item.id.saturating_add(FIRST) }),
            // The kernel takes no more.
            size: size.min(i64::MAX as u64),
            blocks: stored.div_ceil(512).min(i64::MAX as u64 / 512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: (e.mode & 0o7777) as u16,
            nlink,
            uid: e.uid,
            gid: e.gid,
            rdev,
            blksize: BLOCK,
            flags: 0,
        })
    }

    fn root(&self) -> FileAttr {
        FileAttr {
            ino: INodeNo(ROOT),
            size: 0,
            blocks: 0,
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: self.made,
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 1,
            uid: self.ids.0,
            gid: self.ids.1,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        }
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> std::result::Result<(Item, FileAttr), Errno> {
        let mut path = self.path(parent).ok_or(Errno::ENOENT)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        let item = self.pack.find(&path).map_err(|e| errno(&e))?.ok_or(Errno::ENOENT)?;
        let attr = self.attributes(&item).map_err(|e| errno(&e))?;
        Ok((item, attr))
    }

    /// The next names of a folder into a reply.
    fn names(&self, folder: &[u8], handle: u64, offset: u64, reply: &mut ReplyDirectory) -> Result<()> {
        let mut reading = lock(&self.folders).remove(&handle).unwrap_or_default();
        if reading.told != offset {
            reading = Reading::default();
        }
        let mut skip = offset - reading.told;
        let after = reading.last.clone();
        self.pack.children(folder, after.as_deref(), |item| {
            let name = item.entry.path.rsplit(|b| *b == b'/').next().unwrap_or_default().to_vec();
            if skip == 0 {
                let kind = match item.entry.kind {
                    EntryKind::Folder => FileType::Directory,
                    EntryKind::Symlink { .. } => FileType::Symlink,
                    EntryKind::Fifo => FileType::NamedPipe,
                    EntryKind::CharDevice { .. } => FileType::CharDevice,
                    EntryKind::BlockDevice { .. } => FileType::BlockDevice,
                    _ => FileType::RegularFile,
                };
                let id = if let EntryKind::HardLink { of } = item.entry.kind { of } else { item.id };
                let ino = INodeNo(id.saturating_add(FIRST));
                // After "." and "..", which are 1 and 2.
                if reply.add(ino, reading.told + 3, kind, OsStr::from_bytes(&name)) {
                    return false;
                }
            }
            skip = skip.saturating_sub(1);
            reading.told += 1;
            reading.last = Some(name);
            true
        })?;
        lock(&self.folders).insert(handle, reading);
        Ok(())
    }
}

/// A device number as the kernel takes it from FUSE.
fn device(major: u32, minor: u32) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

fn time(seconds: i64, ns: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let whole = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    whole.and_then(|t| t.checked_add(Duration::from_nanos(ns.into()))).unwrap_or(UNIX_EPOCH)
}

impl<R: ReadAt + 'static> Filesystem for View<R> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Access control lists are then obeyed too; kernels without it go by the mode alone.
        let _ = config.add_capabilities(InitFlags::FUSE_POSIX_ACL);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.child(parent, name) {
            Ok((item, attr)) => {
                let new = || Node { path: item.entry.path.clone(), lookups: 0 };
                lock(&self.nodes).entry(attr.ino.0).or_insert_with(new).lookups += 1;
                reply.entry(&TTL, &attr, Generation(0));
            }
            Err(e) => reply.error(e),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, lookups: u64) {
        let mut nodes = lock(&self.nodes);
        if let Some(node) = nodes.get_mut(&ino.0) {
            node.lookups = node.lookups.saturating_sub(lookups);
            if node.lookups == 0 {
                nodes.remove(&ino.0);
            }
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.item(ino).and_then(|item| match item {
            Some(item) => self.attributes(&item).map_err(|e| errno(&e)),
            None => Ok(self.root()),
        });
        match found {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(e) => reply.error(e),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.item(ino) {
            Ok(Some(Item { entry: Entry { kind: EntryKind::Symlink { target }, .. }, .. })) => reply.data(&target),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(e) => reply.error(e),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let known = lock(&self.files).known(ino.0);
        let extents = known.map_or_else(|| self.extents(ino).map(Arc::new), Ok);
        match extents {
            Ok(extents) => {
                let handle = self.next.fetch_add(1, Ordering::Relaxed);
                if !lock(&self.files).put(handle, ino.0, extents) {
                    return reply.error(Errno::ENOMEM);
                }
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(e) => reply.error(e),
        }
    }
    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(extents) = lock(&self.files).get(handle.0) else { return reply.error(Errno::EBADF) };
        let left = extents.len().saturating_sub(offset);
        let mut bytes = vec![0; left.min(size.into()) as usize];
        match extents.read_at(&self.pack, &mut bytes, offset) {
            Ok(n) => reply.data(&bytes[..n]),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.files).remove(handle.0);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.folders).insert(handle, Reading::default());
        reply.opened(FileHandle(handle), FopenFlags::empty());
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some(folder) = self.path(ino) else { return reply.error(Errno::ENOENT) };
        for (i, name) in [".", ".."].into_iter().enumerate().skip(offset.min(2) as usize) {
            // The kernel knows better than we what is above.
            if reply.add(ino, i as u64 + 1, FileType::Directory, name) {
                return reply.ok();
            }
        }
        match self.names(&folder, handle.0, offset.saturating_sub(2), &mut reply) {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn releasedir(&self, _req: &Request, _ino: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        lock(&self.folders).remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let trailer = self.pack.trailer();
        let blocks = trailer.bytes.div_ceil(BLOCK.into());
        reply.statfs(blocks, 0, 0, trailer.entries, 0, BLOCK, 255, BLOCK);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let found = self.xattrs(ino).map(|all| all.into_iter().find(|(n, _)| n == name.as_bytes()));
        match found {
            Ok(Some((_, value))) => sized(&value, size, reply),
            Ok(None) => reply.error(Errno::NO_XATTR),
            Err(e) => reply.error(e),
        }
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.xattrs(ino) {
            Ok(all) => {
                let names: Vec<u8> = all.into_iter().flat_map(|(name, _)| [name, vec![0]].concat()).collect();
                sized(&names, size, reply);
            }
            Err(e) => reply.error(e),
        }
    }
}

impl<R: ReadAt> View<R> {
    fn extents(&self, ino: INodeNo) -> std::result::Result<Extents, Errno> {
        let item = self.item(ino)?.ok_or(Errno::EISDIR)?;
        let file = self.pack.file_of(&item);
        file.and_then(|file| Extents::of(&self.pack, &file)).map_err(|e| errno(&e))
    }

    /// The attributes of an inode that a program may see.
    fn xattrs(&self, ino: INodeNo) -> std::result::Result<Xattrs, Errno> {
        let Some(item) = self.item(ino)? else { return Ok(Vec::new()) };
        let file = self.pack.file_of(&item).map_err(|e| errno(&e))?;
        let mut all = file.entry.xattrs;
        all.retain(|(name, _)| name != b"narrows.link");
        Ok(all)
    }
}

fn sized(bytes: &[u8], size: u32, reply: ReplyXattr) {
    match u32::try_from(bytes.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(bytes),
        _ => reply.error(Errno::ERANGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_share_extents_and_are_limited() {
        let mut opened = Opened::default();
        let extents = |count| Arc::new(Extents::of_holes(count));
        let most = crate::item::EXTENTS_MAX;
        for handle in 0..100 {
            assert!(opened.put(handle, 2, extents(if handle == 0 { most } else { 0 })));
        }
        let mut more = 3;
        while opened.put(100 + more, more, extents(most)) {
            more += 1;
            assert!(more < 10);
        }
        assert!(opened.get(99).is_some_and(|e| e.iter().count() == most) && opened.get(100 + more).is_none());
        (0..100).for_each(|handle| opened.remove(handle));
        assert!(opened.known(2).is_none() && opened.put(100 + more, more, extents(most)));
        (3..=more).for_each(|ino| opened.remove(100 + ino));
        assert_eq!((opened.held, opened.files.len(), opened.shared.len()), (0, 0, 0));
    }
}
