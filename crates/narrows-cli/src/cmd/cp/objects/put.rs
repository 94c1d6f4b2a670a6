//! Files to objects.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::{Context, Result, anyhow};
use narrows::entry::{Entry, EntryKind};
use narrows_copy::filter::Filter;
use narrows_copy::scan::{Found, Root, walk};
use narrows_copy::serve::open_roots;
use narrows_file::{Hint, WriteOptions, Writer};
use narrows_host::file_state::FileState;
use narrows_host::hints::Hints;
use narrows_host::signals;
use narrows_host::words::shown;
use narrows_object::meta::FileMeta;
use narrows_object::{CreateOptions, KEY_LEN_MAX, ObjectWriter, Url};
use rustix::fs::OFlags;
use xxhash_rust::xxh3::Xxh3;

use super::changes::{Stamp, is_stored};
use super::{Copy, Removed, SUFFIX, in_threads, key_of, lock};
use crate::cmd::cp::{removed_names, sent_names};
use crate::counts::Counts;
use crate::report;

/// Files that were found and wait for a thread.
const WAITING: usize = 1024;
/// A file of this length has work for several encoding threads.
const LONG: u64 = 16 << 20;
/// Bytes that are read at a time.
const STEP: usize = 256 << 10;

/// A file to copy, of the root with this number.
struct Job {
    root: usize,
    entry: Entry,
}

/// Where files go.
enum Target {
    /// The only file, as this key.
    Key(String),
    /// Below this key, which is empty or ends in a slash.
    Prefix(String),
}

/// Why a file was not copied.
enum Failure {
    /// It was written to meanwhile.
    Changed,
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

pub(super) fn put(copy: &Copy<'_>, sources: &[PathBuf], url: &Url) -> Result<Removed> {
    let plan = copy.plan;
    let filter = Filter::new(&plan.pick.patterns)?;
    let (roots, unopened) = open_roots(sources, plan.pick.recursive, false);
    unopened.iter().for_each(|text| copy.failed(text));
    if roots.is_empty() {
        return Ok(Removed::default());
    }
    let is_single = sources.len() == 1 && !sources[0].is_dir();
    let target = match is_single && !url.is_prefix() {
        true => Target::Key(key_of(&url.key, plan.objects.plain)),
        false if url.is_prefix() => Target::Prefix(url.key.clone()),
        false => Target::Prefix(format!("{}/", url.key)),
    };
    // Asks the store before anything is read: what is wrong with it is said once.
    let there: Option<HashSet<String>> = match &target {
        Target::Prefix(prefix) if plan.pick.recursive => {
            let listed = copy.store.list(prefix).with_context(|| format!("cannot list {}", copy.store.url(prefix)))?;
            Some(listed.into_iter().map(|object| object.key).collect())
        }
        _ => None,
    };
    let put = Put { copy, target, there, sent: Mutex::default(), is_single };
    let (to, jobs) = sync_channel::<Job>(WAITING);
    let jobs = Mutex::new(jobs);
    let mut tops: Vec<Vec<u8>> = Vec::new();
    let fatal = Mutex::new(None);
    std::thread::scope(|scope| {
        let (put, roots, jobs, fatal) = (&put, &roots, &jobs, &fatal);
        scope.spawn(move || {
            in_threads(plan, || match roots.iter().map(Root::try_clone).collect::<io::Result<Vec<_>>>() {
                Ok(mut roots) => put.work(jobs, &mut roots, fatal),
                Err(e) => copy.failed(&e.to_string()),
            });
            // After a fatal error: lets the walk come to its next file, where it ends.
            lock(jobs).iter().for_each(drop);
        });
        let mut folders = HashMap::new();
        walk(roots, &filter, |found| put.found(found, &to, &mut folders, &mut tops) && lock(fatal).is_none());
        drop(to);
        copy.counts.has_total.store(true, Ordering::Relaxed);
        let empty = folders.values().filter(|has| !**has).count() as u64;
        (0..empty).for_each(|_| copy.counts.lost("empty folders"));
    });
    if let Some(error) = fatal.into_inner().unwrap_or_default() {
        return Err(error);
    }
    put.remove_others(&filter, &tops)
}

struct Put<'a> {
    copy: &'a Copy<'a>,
    target: Target,
    /// The keys that were there before; `None` if nobody listed them.
    there: Option<HashSet<String>>,
    /// The keys that belong to the sources.
    sent: Mutex<HashSet<String>>,
    is_single: bool,
}

impl Put<'_> {
    /// Takes what the walk finds; false ends it.
    fn found(
        &self,
        found: Found,
        to: &std::sync::mpsc::SyncSender<Job>,
        folders: &mut HashMap<Vec<u8>, bool>,
        tops: &mut Vec<Vec<u8>>,
    ) -> bool {
        if signals::received().is_some() {
            return false;
        }
        let (root, entry) = match found {
            Found::Entry { root, entry, .. } => (root, entry),
            Found::Failed(text) => {
                self.copy.failed(&text);
                return true;
            }
            Found::Socket(_) => {
                self.copy.counts.lost("sockets");
                return true;
            }
            Found::Stream(_) => return true,
        };
        let parent = entry.path.iter().rposition(|b| *b == b'/').map(|at| entry.path[..at].to_vec());
        if let Some(has) = folders.get_mut(&parent.unwrap_or_default()) {
            *has = true;
        }
        if !entry.path.contains(&b'/') && entry.kind == EntryKind::Folder {
            tops.push(entry.path.clone());
        }
        let counts = &self.copy.counts;
        if !entry.xattrs.is_empty() {
            counts.lost("extended attributes");
        }
        match entry.kind {
            EntryKind::File { len, .. } => {
                Counts::add(&counts.raw_total, len);
                return to.send(Job { root, entry }).is_ok();
            }
            EntryKind::HardLink { .. } => {
                counts.lost("hard links");
                return to.send(Job { root, entry }).is_ok();
            }
            EntryKind::Folder => {
                if !entry.path.is_empty() {
                    folders.insert(entry.path, false);
                }
            }
            EntryKind::Symlink { .. } => counts.lost("symbolic links"),
            _ => counts.lost("devices and fifos"),
        }
        true
    }

    fn work(&self, jobs: &Mutex<Receiver<Job>>, roots: &mut [Root], fatal: &Mutex<Option<anyhow::Error>>) {
        let mut hints = Hints::default();
        loop {
            let job = lock(jobs).recv();
            let Ok(job) = job else { return };
            if signals::received().is_some() || lock(fatal).is_some() {
                return;
            }
            let name = shown(&job.entry.path);
            match self.one(&job, roots, &mut hints) {
                Ok(()) => {}
                Err(Failure::Changed) => {
                    self.copy.failed(&format!("{name} changed while it was read, and was not stored; copy it again"));
                }
                // The only file: its error is that of the command.
                Err(Failure::Other(e)) if self.is_single => *lock(fatal) = Some(e),
                Err(Failure::Other(e)) => self.copy.failed(&format!("cannot copy {name}: {}", report::one_line(&e))),
            }
        }
    }

    fn key(&self, path: &[u8]) -> Result<String> {
        let key = match &self.target {
            Target::Key(key) => key.clone(),
            Target::Prefix(prefix) => {
                let path = std::str::from_utf8(path).context("its name is not UTF-8, as keys have to be")?;
                key_of(&format!("{prefix}{path}"), self.copy.plan.objects.plain)
            }
        };
        anyhow::ensure!(key.len() <= KEY_LEN_MAX, "its key would be longer than {KEY_LEN_MAX} bytes");
        anyhow::ensure!(!key.chars().any(|c| c.is_ascii_control()), "its name has control characters");
        Ok(key)
    }

    fn one(&self, job: &Job, roots: &mut [Root], hints: &mut Hints) -> Result<(), Failure> {
        let (copy, plan) = (self.copy, self.copy.plan);
        let key = self.key(&job.entry.path)?;
        lock(&self.sent).insert(key.clone());
        // A named pipe may have taken its place, and would be waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = roots[job.root].tree.open_below(&job.entry.path, flags).context("cannot read it")?;
        let mut file = File::from(file);
        let data = file.metadata().context("cannot read it")?;
        if !data.is_file() {
            return Err(anyhow!("it is not a file any more").into());
        }
        let before = FileState::before_reading(&file).context("cannot read it")?;
        let local = Stamp { len: before.len, mtime: before.mtime };
        let announced = match job.entry.kind {
            EntryKind::File { len, .. } => len,
            _ => {
                Counts::add(&copy.counts.raw_total, local.len);
                local.len
            }
        };
        if self.there.as_ref().is_none_or(|there| there.contains(&key)) {
            let head = copy.store.head(&key).with_context(|| format!("cannot read {}", copy.store.url(&key)))?;
            if head.is_some_and(|head| is_stored(local, &head, plan.objects.plain)) {
                Counts::add(&copy.counts.same, 1);
                copy.counts.raw_total.fetch_sub(announced, Ordering::Relaxed);
                return Ok(());
            }
        }
        let name = shown(&job.entry.path);
        if plan.dry_run {
            sent_names(plan, true)(&name);
            Counts::add(&copy.counts.files, 1);
            Counts::add(&copy.counts.raw, local.len);
            return Ok(());
        }
        let owner = plan.keep.wants_owner().then_some((data.uid(), data.gid()));
        let meta = FileMeta {
            len: Some(local.len),
            mtime: Some(local.mtime),
            mode: Some(data.mode() & 0o7777),
            uid: owner.map(|(uid, _)| uid),
            gid: owner.map(|(_, gid)| gid),
            plain: Some(plan.objects.plain),
        };
        let options = CreateOptions {
            metadata: meta.pairs(),
            len: Some(local.len),
            frames: !plan.objects.plain,
            ..CreateOptions::default()
        };
        let cannot = || format!("cannot write {}", copy.store.url(&key));
        let writer = ObjectWriter::create(&copy.store, &key, options).with_context(cannot)?;
        let mut source = Hashed { file: &mut file, hash: Xxh3::new() };
        let (writer, read) = if plan.objects.plain {
            let mut writer = writer;
            let read = read_into(&mut source, &mut writer, copy, cannot)?;
            (writer, read)
        } else {
            let threads = if local.len >= LONG { narrows::stream::encoders() } else { 1 };
            let hint = match plan.coding.flow.policy {
                Some(_) => Hint::default(),
                None => plan.coding.hint.clone().or(hints.of(&path_of(&roots[job.root], &job.entry))?),
            };
            let mut options = WriteOptions::default().hint(hint).raw_len(local.len).threads(threads);
            options = plan.coding.flow.policy.iter().cloned().fold(options, WriteOptions::policy);
            let mut writer = Writer::new(writer, options).with_context(cannot)?;
            let read = read_into(&mut source, &mut writer, copy, cannot)?;
            let ended = if read == local.len { writer.finish() } else { return Err(Failure::Changed) };
            let (writer, _) = ended.map_err(anyhow::Error::from).with_context(cannot)?;
            (writer, read)
        };
        // The metadata has the length and time of before; nothing is stored that they do not describe.
        let sum = source.hash.digest128();
        let still = before.still(&file, || sum_of(&file).map(|now| now == sum)).context("cannot read it")?;
        if read != local.len || still.is_none() {
            return Err(Failure::Changed);
        }
        let created = writer.finish().with_context(cannot)?;
        Counts::add(&copy.counts.wire, created.len);
        Counts::add(&copy.counts.files, 1);
        sent_names(plan, true)(&name);
        Ok(())
    }

    /// Removes the objects below the copied folders that the sources do not have.
    fn remove_others(&self, filter: &Filter, tops: &[Vec<u8>]) -> Result<Removed> {
        let (copy, plan) = (self.copy, self.copy.plan);
        let (Some(there), Target::Prefix(prefix)) = (&self.there, &self.target) else { return Ok(Removed::default()) };
        if plan.delete.is_none() || signals::received().is_some() {
            return Ok(Removed::default());
        }
        if Counts::of(&copy.counts.failed) > 0 {
            let why = "nothing was removed, since not everything could be copied".to_owned();
            return Ok(Removed { count: 0, why_not: Some(why) });
        }
        let sent = lock(&self.sent);
        let is_covered = |path: &str| {
            let below = |top: &Vec<u8>| {
                top.is_empty() || path.as_bytes().strip_prefix(&top[..]).is_some_and(|r| r.starts_with(b"/"))
            };
            tops.iter().any(below)
        };
        let is_excluded = |path: &str| {
            let folder = path.rfind('/').map_or("", |at| &path[..at]);
            filter.leaves_out(path.as_bytes(), false)
                || !folder.is_empty() && filter.leaves_out_folder(folder.as_bytes())
        };
        let mut others: Vec<&String> = there
            .iter()
            .filter(|key| !sent.contains(*key))
            .filter(|key| {
                let path = key.strip_prefix(prefix.as_str()).unwrap_or(key);
                let name = path.strip_suffix(SUFFIX).unwrap_or(path);
                is_covered(path) && !is_excluded(path) && !is_excluded(name)
            })
            .collect();
        others.sort_unstable();
        if let Some(most) =
            plan.delete.as_ref().and_then(|delete| delete.max).filter(|most| others.len() as u64 > *most)
        {
            let others = report::count(others.len(), "object", "objects");
            let why = format!("nothing was removed: {others} would be, and --max-delete allows {most}");
            return Ok(Removed { count: 0, why_not: Some(why) });
        }
        let say = removed_names(plan);
        for key in &others {
            say(&shown(key.as_bytes()));
            if !plan.dry_run {
                copy.store.delete(key).with_context(|| format!("cannot remove {}", copy.store.url(key)))?;
            }
        }
        Ok(Removed { count: others.len() as u64, why_not: None })
    }
}

/// A path that leads to the file of an entry.
fn path_of(root: &Root, entry: &Entry) -> PathBuf {
    let folder = format!("/proc/self/fd/{}", root.tree.root().as_raw_fd());
    Path::new(&folder).join(OsStr::from_bytes(&entry.path))
}

/// A file that is read, and the hash of what was read.
struct Hashed<'a> {
    file: &'a mut File,
    hash: Xxh3,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buf)?;
        self.hash.update(&buf[..n]);
        Ok(n)
    }
}

/// The hash of what a file has now.
fn sum_of(file: &File) -> io::Result<u128> {
    let (mut hash, mut at, mut buf) = (Xxh3::new(), 0, vec![0; STEP]);
    loop {
        match file.read_at(&mut buf, at) {
            Ok(0) => return Ok(hash.digest128()),
            Ok(_) if signals::received().is_some() => return Err(io::Error::other("interrupted")),
            Ok(n) => {
                hash.update(&buf[..n]);
                at += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Copies all of `file` and returns its length.
fn read_into(
    file: &mut impl Read,
    writer: &mut impl Write,
    copy: &Copy<'_>,
    cannot: impl Fn() -> String,
) -> Result<u64> {
    let mut buf = vec![0; STEP];
    let mut all = 0;
    loop {
        let n = match file.read(&mut buf) {
            Ok(0) => return Ok(all),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(anyhow::Error::from(e).context("cannot read it")),
        };
        if signals::received().is_some() {
            anyhow::bail!("interrupted");
        }
        writer.write_all(&buf[..n]).with_context(&cannot)?;
        all += n as u64;
        Counts::add(&copy.counts.raw, n as u64);
    }
}
