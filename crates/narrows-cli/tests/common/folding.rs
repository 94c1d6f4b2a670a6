//! A file system in memory that takes names for one which differ only in case, and keeps the first
//! spelling, as those of Windows and macOS do. As many file systems of FUSE, it sets no time, and reports
//! success, where the access time is left as it is.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, ReplyXattr, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};

const ROOT: u64 = 1;
/// Nothing is remembered by the kernel.
const TTL: Duration = Duration::ZERO;

/// A mounted one; it ends with the test.
pub(crate) struct Folding {
    path: PathBuf,
    session: Option<BackgroundSession>,
}

impl Folding {
    /// Mounts one in a new folder. `stable`: a file has one inode number, whatever the spelling. `xattrs`: it
    /// has extended attributes. If it cannot be mounted, records why and returns `None`.
    #[track_caller]
    pub(crate) fn mount(home: &Path, stable: bool, xattrs: bool) -> Option<Self> {
        let path = home.join(format!("folding {stable} {xattrs}"));
        fs::create_dir(&path).unwrap();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::DefaultPermissions, MountOption::FSName("folding".into())];
        config.acl = SessionACL::Owner;
        let ids = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let mut all = All { next: ROOT + 1, ..All::default() };
        all.nodes.insert(ROOT, Node::new(FileType::Directory, 0o755));
        all.real.insert(ROOT, ROOT);
        let view = View { all: Mutex::new(all), stable, xattrs, ids };
        match Session::new(view, &path, &config).and_then(Session::spawn) {
            Ok(session) => Some(Self { path, session: Some(session) }),
            Err(e) => {
                narrows_test::skip(format!("this user cannot mount anything here: {e}"));
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folding {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

struct Node {
    kind: FileType,
    mode: u32,
    mtime: SystemTime,
    data: Vec<u8>,
    /// By the folded name: the spelling that is listed, and the node.
    children: BTreeMap<String, (OsString, u64)>,
    xattrs: BTreeMap<OsString, Vec<u8>>,
}

impl Node {
    fn new(kind: FileType, mode: u32) -> Self {
        let (children, xattrs) = (BTreeMap::new(), BTreeMap::new());
        Self { kind, mode: mode & 0o7777, mtime: SystemTime::now(), data: Vec::new(), children, xattrs }
    }
}

#[derive(Default)]
struct All {
    nodes: HashMap<u64, Node>,
    next: u64,
    /// The number of each spelling in a folder.
    spelt: HashMap<(u64, OsString), u64>,
    /// The node of each number.
    real: HashMap<u64, u64>,
    /// How many names each reader of a folder was given.
    listed: HashMap<u64, usize>,
}

impl All {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn node(&mut self, ino: INodeNo) -> Result<(u64, &mut Node), Errno> {
        let real = *self.real.get(&ino.0).ok_or(Errno::ENOENT)?;
        self.nodes.get_mut(&real).map(|node| (real, node)).ok_or(Errno::ENOENT)
    }

    fn child(&mut self, parent: INodeNo, name: &OsStr) -> Result<(u64, u64), Errno> {
        let (folder, node) = self.node(parent)?;
        node.children.get(&folded(name)).map(|(_, child)| (folder, *child)).ok_or(Errno::ENOENT)
    }
}

fn folded(name: &OsStr) -> String {
    name.to_string_lossy().to_lowercase()
}

struct View {
    all: Mutex<All>,
    stable: bool,
    xattrs: bool,
    ids: (u32, u32),
}

impl View {
    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap()
    }

    /// The attributes of a node under a spelling of its name.
    fn spelt(&self, all: &mut All, folder: u64, name: &OsStr, real: u64) -> FileAttr {
        let number = match all.spelt.get(&(folder, name.to_owned())) {
            _ if self.stable => real,
            Some(number) => *number,
            None => all.number(),
        };
        all.spelt.insert((folder, name.to_owned()), number);
        all.real.insert(number, real);
        self.attr(all, number)
    }

    fn attr(&self, all: &All, number: u64) -> FileAttr {
        let node = &all.nodes[&all.real[&number]];
        FileAttr {
            ino: INodeNo(number),
            size: node.data.len() as u64,
            blocks: (node.data.len() as u64).div_ceil(512),
            atime: node.mtime,
            mtime: node.mtime,
            ctime: node.mtime,
            crtime: node.mtime,
            kind: node.kind,
            perm: node.mode as u16,
            nlink: 1,
            uid: self.ids.0,
            gid: self.ids.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn make(&self, parent: INodeNo, name: &OsStr, node: Node) -> Result<FileAttr, Errno> {
        let mut all = self.lock();
        if all.child(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let new = all.number();
        all.nodes.insert(new, node);
        let (folder, above) = all.node(parent)?;
        above.children.insert(folded(name), (name.to_owned(), new));
        Ok(self.spelt(&mut all, folder, name, new))
    }

    fn take(&self, parent: INodeNo, name: &OsStr, is_folder: bool) -> Result<(), Errno> {
        let mut all = self.lock();
        let (folder, child) = all.child(parent, name)?;
        let node = &all.nodes[&child];
        match (node.kind == FileType::Directory, is_folder) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            _ if !node.children.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        all.node(parent)?.1.children.remove(&folded(name));
        all.spelt.retain(|(above, spelling), _| *above != folder || folded(spelling) != folded(name));
        Ok(())
    }

    fn moved(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), flags: RenameFlags) -> Result<(), Errno> {
        let mut all = self.lock();
        let (folder, child) = all.child(from.0, from.1)?;
        let there = all.child(to.0, to.1).ok().map(|(_, there)| there);
        let is_other_name = (from.0.0, folded(from.1)) != (to.0.0, folded(to.1));
        if there == Some(child) && is_other_name {
            // POSIX: renaming one name of a file to another name of it does nothing.
            return Ok(());
        }
        if let Some(there) = there.filter(|there| *there != child) {
            if flags.contains(RenameFlags::RENAME_NOREPLACE) {
                return Err(Errno::EEXIST);
            }
            let (is_folder, node) = (all.nodes[&child].kind == FileType::Directory, &all.nodes[&there]);
            match (node.kind == FileType::Directory, is_folder) {
                (true, false) => return Err(Errno::EISDIR),
                (false, true) => return Err(Errno::ENOTDIR),
                _ if !node.children.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        all.node(from.0)?.1.children.remove(&folded(from.1));
        let (new, above) = all.node(to.0)?;
        // What is replaced keeps its spelling.
        let listed = above.children.get(&folded(to.1)).map_or_else(|| to.1.to_owned(), |(listed, _)| listed.clone());
        above.children.insert(folded(to.1), (listed, child));
        // The number goes with the name, as in most such file systems.
        if let Some(number) = all.spelt.remove(&(folder, from.1.to_owned())) {
            all.spelt.retain(|(above, spelling), _| *above != new || folded(spelling) != folded(to.1));
            all.spelt.insert((new, to.1.to_owned()), number);
        }
        Ok(())
    }
}

fn empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

fn entry(result: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match result {
        Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
        Err(e) => reply.error(e),
    }
}

fn xattr(value: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match value {
        Err(e) => reply.error(e),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

impl Filesystem for View {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut all = self.lock();
        let found = all.child(parent, name).map(|(folder, child)| self.spelt(&mut all, folder, name, child));
        entry(found, reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let mut all = self.lock();
        match all.node(ino).map(drop) {
            Ok(()) => reply.attr(&TTL, &self.attr(&all, ino.0)),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut all = self.lock();
        let set = all.node(ino).map(|(_, node)| {
            node.mode = mode.map_or(node.mode, |mode| mode & 0o7777);
            size.iter().for_each(|size| node.data.resize(*size as usize, 0));
            // As libfuse 2 has it: no time is set if one of the two is left out.
            node.mtime = match mtime.filter(|_| atime.is_some()) {
                Some(TimeOrNow::SpecificTime(time)) => time,
                Some(TimeOrNow::Now) => SystemTime::now(),
                None => node.mtime,
            };
        });
        match set {
            Ok(()) => reply.attr(&TTL, &self.attr(&all, ino.0)),
            Err(e) => reply.error(e),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.lock().node(ino) {
            Ok((_, node)) => reply.data(&node.data),
            Err(e) => reply.error(e),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        entry(self.make(parent, name, Node::new(FileType::Directory, mode & !umask)), reply);
    }

    fn symlink(&self, _: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let data = target.as_os_str().as_bytes().to_vec();
        entry(self.make(parent, name, Node { data, ..Node::new(FileType::Symlink, 0o777) }), reply);
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: i32, reply: ReplyCreate) {
        match self.make(parent, name, Node::new(FileType::RegularFile, mode & !umask)) {
            Ok(attr) => reply.created(&TTL, &attr, Generation(0), FileHandle(0), FopenFlags::empty()),
            Err(e) => reply.error(e),
        }
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut all = self.lock();
        let real = all.node(ino).map(|(real, _)| real);
        let made = real.and_then(|real| {
            if all.child(parent, name).is_ok() {
                return Err(Errno::EEXIST);
            }
            let (folder, above) = all.node(parent)?;
            above.children.insert(folded(name), (name.to_owned(), real));
            Ok(self.spelt(&mut all, folder, name, real))
        });
        entry(made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.take(parent, name, false), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.take(parent, name, true), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        empty(self.moved((parent, name), (new, new_name), flags), reply);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.lock().node(ino) {
            Ok((_, node)) => {
                let from = node.data.len().min(offset as usize);
                reply.data(&node.data[from..node.data.len().min(from + size as usize)]);
            }
            Err(e) => reply.error(e),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.lock().node(ino) {
            Ok((_, node)) => {
                let (from, to) = (offset as usize, offset as usize + data.len());
                node.data.resize(node.data.len().max(to), 0);
                node.data[from..to].copy_from_slice(data);
                node.mtime = SystemTime::now();
                reply.written(data.len() as u32);
            }
            Err(e) => reply.error(e),
        }
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let mut all = self.lock();
        let number = all.number();
        all.listed.insert(number, 0);
        reply.opened(FileHandle(number), FopenFlags::empty());
    }

    /// As lowntfs-3g: it goes on after all the names that it gave, not after those that were read.
    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut all = self.lock();
        let offset = if offset == 0 { 0 } else { all.listed.get(&handle.0).copied().unwrap_or_default() };
        let names = match all.node(ino) {
            Ok((_, node)) => node.children.values().map(|(listed, child)| (listed.clone(), *child)).collect::<Vec<_>>(),
            Err(e) => return reply.error(e),
        };
        let mut next = names.len();
        for (at, (name, child)) in names.iter().enumerate().skip(offset) {
            if reply.add(INodeNo(*child), at as u64 + 1, all.nodes[child].kind, name) {
                next = at;
                break;
            }
        }
        all.listed.insert(handle.0, next);
        reply.ok();
    }

    fn setxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, value: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        if !self.xattrs {
            return reply.error(Errno::ENOTSUP);
        }
        let mut all = self.lock();
        empty(all.node(ino).map(|(_, node)| drop(node.xattrs.insert(name.to_owned(), value.to_vec()))), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.xattrs {
            return reply.error(Errno::ENOTSUP);
        }
        let mut all = self.lock();
        let found = all.node(ino).and_then(|(_, node)| node.xattrs.get(name).cloned().ok_or(Errno::ENODATA));
        xattr(found, size, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.xattrs {
            return reply.error(Errno::ENOTSUP);
        }
        let mut all = self.lock();
        let names = all.node(ino).map(|(_, node)| {
            node.xattrs.keys().flat_map(|name| [name.as_bytes(), b"\0"].concat()).collect::<Vec<u8>>()
        });
        xattr(names, size, reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut all = self.lock();
        let removed = all.node(ino).and_then(|(_, node)| node.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA));
        empty(removed, reply);
    }
}
