//! Which program reads a pipe, by what /proc tells of the children of this process's parent: the
//! other programs of a shell's pipeline. No other process is looked at.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::sys;

/// Programs of the pipeline that are looked at: those whose numbers are nearest, since a shell starts
/// them together. A shell may have many more children.
const PROGRAMS_MAX: usize = 16;
/// Descriptors of a program that are looked at, the lowest first: ssh has about ten, and pipes of a
/// pipeline are 0 and 1.
const DESCRIPTORS_MAX: usize = 48;
/// Pipes from this process to the one with a socket: `| mbuffer | pv | ssh`.
const PIPES_MAX: usize = 3;
/// Bytes of a list of children: 2,000 of them.
const LIST_MAX: u64 = 16 << 10;
/// Threads of the parent, of which one started this process.
const THREADS_MAX: usize = 32;

/// A pipe or socket that another process holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Held {
    /// The link in `/proc/PID/fd`, and what it says.
    link: PathBuf,
    what: PathBuf,
    reads: bool,
    writes: bool,
}

/// The way from a pipe to sockets.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The reading end of each pipe on the way.
    pub(super) pipes: Vec<Held>,
    /// Sockets of the process at its end, of any kind.
    pub(super) sockets: Vec<Held>,
}

impl Held {
    /// Whether it is still what it was: the process may have closed it or ended, and another one may
    /// have its number.
    pub(super) fn is_there(&self) -> bool {
        fs::read_link(&self.link).is_ok_and(|what| what == self.what)
    }

    pub(super) fn inode(&self) -> Option<u64> {
        self.inode_of("socket").or_else(|| self.inode_of("pipe"))
    }

    fn inode_of(&self, kind: &str) -> Option<u64> {
        self.what.to_str()?.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
    }

    fn is_pipe(&self, inode: u64) -> bool {
        self.inode_of("pipe") == Some(inode)
    }
}

/// The way from the pipe with this inode to the sockets of the program that reads it, or of one that
/// reads what that one writes. They are children of `parent`, as `own` is.
pub(super) fn find(pipe: u64, parent: u32, own: u32) -> Option<Way> {
    let programs: Vec<Vec<Held>> = siblings(parent, own)?.into_iter().map(held).collect();
    follow(pipe, &programs)
}

/// The same of one program, a child of this process.
pub(super) fn find_in(pipe: u64, child: u32) -> Option<Way> {
    follow(pipe, &[held(child)])
}

fn follow(pipe: u64, programs: &[Vec<Held>]) -> Option<Way> {
    let (mut pipe, mut pipes) = (pipe, Vec::new());
    while pipes.len() < PIPES_MAX {
        let reads = |held: &&Held| held.reads && !held.writes && held.is_pipe(pipe);
        let mut readers = programs.iter().filter_map(|held| held.iter().find(reads).map(|end| (held, end)));
        let (held, end) = readers.next()?;
        if readers.next().is_some() {
            // Who of them takes the bytes is not known.
            return None;
        }
        pipes.push(end.clone());
        let sockets: Vec<_> = held.iter().filter(|h| h.inode_of("socket").is_some()).cloned().collect();
        // A name server's or an agent's socket may be beside the pipe to the next program.
        let next = held.iter().filter(|h| h.writes && !h.reads).find_map(|h| {
            let inode = h.inode_of("pipe")?;
            programs.iter().flatten().any(|h| h.reads && !h.writes && h.is_pipe(inode)).then_some(inode)
        });
        match next {
            Some(inode) if sockets.is_empty() => pipe = inode,
            _ => return (!sockets.is_empty()).then_some(Way { pipes, sockets }),
        }
    }
    None
}

/// The other children of `parent`. `None` if `own` is not among its children: then this is not the
/// /proc of the same processes, or the parent may not be seen.
fn siblings(parent: u32, own: u32) -> Option<Vec<u32>> {
    let threads = PathBuf::from(format!("/proc/{parent}/task"));
    let children_of = |thread: &Path| {
        let mut list = String::new();
        fs::File::open(thread.join("children")).ok()?.take(LIST_MAX).read_to_string(&mut list).ok()?;
        let children: Vec<u32> = list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        children.contains(&own).then_some(children)
    };
    // Most parents have one thread. Of others the one that started this process is searched.
    let children = children_of(&threads.join(parent.to_string())).or_else(|| {
        fs::read_dir(&threads).ok()?.take(THREADS_MAX).flatten().find_map(|thread| children_of(&thread.path()))
    });
    let mut children = children?;
    children.retain(|pid| *pid != own);
    children.sort_by_key(|pid| pid.abs_diff(own));
    children.truncate(PROGRAMS_MAX);
    Some(children)
}

/// Pipes and sockets of a process of this user; none if it is another one's, or may not be seen.
fn held(pid: u32) -> Vec<Held> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    if fs::metadata(&folder).ok().is_none_or(|m| m.uid() != sys::user()) {
        return Vec::new();
    }
    let Ok(links) = fs::read_dir(folder.join("fd")) else { return Vec::new() };
    let held = links.take(DESCRIPTORS_MAX).flatten().filter_map(|link| {
        let link = link.path();
        let what = fs::read_link(&link).ok()?;
        // The rights of the link are those of the descriptor.
        let mode = fs::symlink_metadata(&link).ok()?.permissions().mode();
        let held = Held { link, what, reads: mode & 0o400 != 0, writes: mode & 0o200 != 0 };
        held.inode().is_some().then_some(held)
    });
    held.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe(inode: u64, writes: bool) -> Held {
        Held { link: PathBuf::new(), what: format!("pipe:[{inode}]").into(), reads: !writes, writes }
    }

    fn socket(inode: u64) -> Held {
        Held { link: PathBuf::new(), what: format!("socket:[{inode}]").into(), reads: true, writes: true }
    }

    #[test]
    fn the_way_leads_over_three_pipes_at_most() {
        let programs = |n: u64| -> Vec<Vec<Held>> {
            // The last one first: the order of processes says nothing.
            let last = vec![pipe(n, false), socket(99)];
            std::iter::once(last).chain((1..n).rev().map(|i| vec![pipe(i, false), pipe(i + 1, true)])).collect()
        };
        for n in 1..=3 {
            let way = follow(1, &programs(n)).unwrap();
            assert_eq!((way.pipes.len() as u64, way.sockets), (n, vec![socket(99)]));
        }
        assert_eq!(follow(1, &programs(4)), None);
        assert_eq!(follow(5, &programs(3)), None, "nobody reads that pipe");
    }

    #[test]
    fn what_is_not_certain_is_no_way() {
        assert_eq!(follow(1, &[vec![pipe(1, true), socket(2)]]), None, "it holds the writing end");
        assert_eq!(follow(1, &[vec![pipe(1, false)], vec![pipe(1, false), socket(2)]]), None, "two read it");
        assert_eq!(follow(1, &[vec![pipe(1, false), pipe(1, true)]]), None, "a circle");
        assert_eq!(follow(1, &[vec![pipe(1, false), pipe(2, true)], vec![pipe(2, false)]]), None, "no socket");
        assert_eq!(follow(1, &[]), None);
        // A program that writes messages into a pipe that somebody else reads.
        assert!(follow(1, &[vec![pipe(1, false), pipe(2, true), socket(3)], vec![pipe(2, false)]]).is_some());
    }

    /// This process is the shell: `sleep | cat | cat > socket`.
    #[test]
    fn programs_of_a_pipeline_are_found_and_seen_to_end() {
        use std::net::{TcpListener, TcpStream};
        use std::os::fd::{AsRawFd, OwnedFd};
        use std::process::{Command, Stdio};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let number = |fd: i32| fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino();
        let socket = number(near.as_raw_fd());
        let ((reader, writer), (reader2, writer2)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let pipe = number(writer.as_raw_fd());
        let mut own = Command::new("sleep").arg("1000").stdin(Stdio::null()).stdout(writer).spawn().unwrap();
        let mut first = Command::new("cat").stdin(reader).stdout(writer2).spawn().unwrap();
        let mut last = Command::new("cat").stdin(reader2).stdout(OwnedFd::from(near)).spawn().unwrap();
        let find = |own| find(pipe, std::process::id(), own);

        if !Path::new("/proc/thread-self/children").exists() {
            narrows_test::skip("this kernel does not list children");
        } else {
            let way = find(own.id()).unwrap();
            assert_eq!((way.pipes.len(), way.sockets.len()), (2, 1));
            assert_eq!(way.sockets[0].inode(), Some(socket));
            let is_there = || way.pipes.iter().chain(&way.sockets).map(Held::is_there).collect::<Vec<_>>();
            assert_eq!(is_there(), [true; 3]);
            assert_eq!(find(1), None, "that is no child of this process");
            assert_eq!(super::find(pipe, own.id(), own.id()), None, "nor of that one");
            last.kill().unwrap();
            last.wait().unwrap();
            assert_eq!(is_there(), [true, false, false]);
            assert_eq!(find(own.id()), None);
        }
        for program in [&mut own, &mut first, &mut last] {
            let _ = (program.kill(), program.wait());
        }
    }

    #[test]
    fn links_that_say_something_else_have_no_inode() {
        for what in ["/dev/null", "pipe:[]", "pipe:[x]", "socket:[1", "anon_inode:[eventpoll]", "pipe:[1] (deleted)"] {
            let held = Held { what: what.into(), ..pipe(1, false) };
            assert_eq!(held.inode(), None, "{what}");
        }
    }
}
