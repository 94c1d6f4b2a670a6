//! Objects to files. Keys are names that anybody may have written: `Landing` keeps them in the folder.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use narrows::entry::EntryKind;
use narrows::stream::ReceiveOptions;
use narrows_copy::filter::Filter;
use narrows_copy::hello::Fsync;
use narrows_copy::landing::{Attributes, Landing};
use narrows_copy::scan::{Found, Root, walk};
use narrows_copy::serve::open_roots;
use narrows_copy::spelling::{ALIKE, Added, Spellings};
use narrows_file::decode::decode_within;
use narrows_host::signals;
use narrows_host::words::shown;
use narrows_object::meta::FileMeta;
use narrows_object::{Head, Object, ObjectFile, Url};

use super::changes::{Stamp, is_same, since_1970};
use super::{Copy, Removed, SUFFIX, find_named, in_threads, lock};
use crate::args::{reach_max, window_log};
use crate::cmd::cp::plan::Plan;
use crate::cmd::cp::{removed_names, sent_names};
use crate::counts::Counts;
use crate::files::Stopping;
use crate::{flow, report};

/// Raw bytes of a file that has work for several decoding threads.
const LONG: u64 = 16 << 20;
/// Permission bits that come from another host without --set-id.
const SAFE_BITS: u32 = 0o1777;

/// An object to fetch and its path below the target, with the suffix that it may lose.
struct Job {
    key: String,
    path: String,
    /// The path is the name that the user gave.
    is_named: bool,
}

pub(super) fn get(copy: &Copy<'_>, urls: &[&Url], target: &Path) -> Result<Removed> {
    let plan = copy.plan;
    let filter = Filter::new(&plan.pick.patterns)?;
    let single = urls.len() == 1 && !plan.pick.recursive;
    if let Some(url) = urls.iter().find(|url| url.is_prefix() && !plan.pick.recursive) {
        let text = format!("{url} names everything below it; give -r to copy it");
        return Err(narrows::Error::misuse(text).into());
    }
    let mut jobs = Vec::new();
    // Folders of the target that --delete is about; empty for all of it.
    let mut covered = Vec::new();
    for url in urls {
        let found = find(copy, url)?;
        if plan.pick.recursive {
            covered.push(if url.is_prefix() { String::new() } else { url.name().to_owned() });
        }
        jobs.extend(found);
    }
    let is_folder = target.is_dir() || !single || target.as_os_str().as_bytes().ends_with(b"/");
    let folder = match is_folder {
        true => target,
        false => target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")),
    };
    if !is_folder {
        let name = target.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("cannot write {}: it has no name in UTF-8", target.display()))?;
        jobs.iter_mut().for_each(|job| (job.path, job.is_named) = (name.to_owned(), true));
    }
    let cannot = || format!("cannot write {}", target.display());
    if is_folder && !folder.exists() && !plan.dry_run {
        // Only the last folder, so that a misspelt path creates no tree.
        std::fs::create_dir(folder).with_context(cannot)?;
    }
    let landing = match plan.dry_run && !folder.exists() {
        true => None,
        false => Some(Landing::open(folder).with_context(cannot)?),
    };
    let is_excluded = |path: &str| {
        let folder = path.rfind('/').map_or("", |at| &path[..at]);
        filter.leaves_out(path.as_bytes(), false) || !folder.is_empty() && filter.leaves_out_folder(folder.as_bytes())
    };
    // Files that objects which are left out may have become.
    let mut spared = HashSet::new();
    jobs.retain(|job| {
        let short = job.path.strip_suffix(SUFFIX).unwrap_or(&job.path);
        let is_out = is_excluded(&job.path) || is_excluded(short);
        if is_out {
            spared.extend([job.path.clone(), short.to_owned()]);
        }
        !is_out
    });
    jobs.reverse();
    let get = Get { copy, claimed: Mutex::default(), spared, single, fatal: Mutex::default() };
    let jobs = Mutex::new(jobs);
    in_threads(plan, || match landing.as_ref().map(Landing::try_clone).transpose() {
        Ok(mut landing) => get.work(&jobs, landing.as_mut()),
        Err(e) => copy.failed(&e.to_string()),
    });
    if let Some(error) = lock(&get.fatal).take() {
        return Err(error);
    }
    if let Some(landing) = landing.as_ref().filter(|_| flushes(plan) && !plan.dry_run) {
        landing.sync().context("cannot flush the names to the disk")?;
    }
    match landing {
        Some(landing) if plan.delete.is_some() => get.remove_others(&filter, folder, landing, &covered),
        _ => Ok(Removed::default()),
    }
}

/// Whether files and their names are on the disk at the end.
fn flushes(plan: &Plan) -> bool {
    plan.keep.fsync != Fsync::None
}

/// The objects that an address names.
fn find(copy: &Copy<'_>, url: &Url) -> Result<Vec<Job>> {
    if !copy.plan.pick.recursive {
        let key = find_named(copy, url)?;
        let path = key.rsplit('/').next().unwrap_or(&key).to_owned();
        return Ok(vec![Job { key, path, is_named: false }]);
    }
    let prefix = if url.is_prefix() { url.key.clone() } else { format!("{}/", url.key) };
    let top = if url.is_prefix() { String::new() } else { format!("{}/", url.name()) };
    let listed = copy.store.list(&prefix).with_context(|| format!("cannot list {url}"))?;
    for key in copy.store.take_odd_keys() {
        copy.failed(&format!(
            "left out {}: no file can have this name",
            shown(copy.store.url(&key).to_string().as_bytes())
        ));
    }
    let of = |Object { key, len, .. }: Object| {
        let rest = key.strip_prefix(&prefix)?.to_owned();
        // Some programs mark folders by empty objects; a list shows them without their slash.
        let is_mark = len == 0 && (rest.is_empty() || rest.ends_with('/'));
        (!is_mark).then(|| Job { path: format!("{top}{rest}"), key, is_named: false })
    };
    let jobs: Vec<_> = listed.into_iter().filter_map(of).collect();
    if jobs.is_empty() && Counts::of(&copy.counts.failed) == 0 {
        bail!("cannot read {url}: there are no objects below it");
    }
    Ok(jobs)
}

struct Get<'a> {
    copy: &'a Copy<'a>,
    /// Paths that files of this copy have.
    claimed: Mutex<Claimed>,
    /// Paths that no removal is about.
    spared: HashSet<String>,
    single: bool,
    fatal: Mutex<Option<anyhow::Error>>,
}

/// The paths of the files of a copy, in every spelling, and their number.
#[derive(Default)]
struct Claimed {
    paths: Spellings,
    count: u64,
}

impl Get<'_> {
    fn work(&self, jobs: &Mutex<Vec<Job>>, mut landing: Option<&mut Landing>) {
        loop {
            let job = lock(jobs).pop();
            let Some(job) = job else { return };
            if signals::received().is_some() || lock(&self.fatal).is_some() {
                return;
            }
            match self.one(&job, landing.as_deref_mut()) {
                Ok(()) => {}
                // The only object: its error is that of the command.
                Err(e) if self.single => {
                    *lock(&self.fatal) = Some(e.context(format!("cannot copy {}", self.copy.store.url(&job.key))))
                }
                Err(e) => {
                    self.copy.note_damage(&e);
                    self.copy.failed(&format!("cannot copy {}: {}", shown(job.path.as_bytes()), report::one_line(&e)))
                }
            }
        }
    }

    fn one(&self, job: &Job, mut landing: Option<&mut Landing>) -> Result<()> {
        let (copy, plan) = (self.copy, self.copy.plan);
        let short = job.path.strip_suffix(SUFFIX).filter(|_| !job.is_named);
        // The longest names only fit without the suffix; the name that it gets is looked at below.
        Landing::check(short.unwrap_or(&job.path).as_bytes())?;
        let mut there = |path: &str| match landing.as_deref_mut() {
            Some(landing) => landing.there(path.as_bytes()).ok().flatten().filter(|there| there.is_file),
            None => None,
        };
        let candidates = [Some(job.path.as_str()), short];
        let local: Vec<_> = candidates.into_iter().flatten().filter_map(|path| Some((path, there(path)?))).collect();
        if !local.is_empty()
            && let Some(head) = copy.store.head(&job.key)?
        {
            let path = self.path(job, &head);
            let stamp = local.iter().find(|(name, _)| *name == path).map(|(_, t)| Stamp { len: t.len, mtime: t.mtime });
            if stamp.is_some_and(|stamp| is_same(stamp, &head)) {
                self.claim(path, landing)?;
                Counts::add(&copy.counts.same, 1);
                return Ok(());
            }
        }
        let object = ObjectFile::new(&copy.store, &job.key)?;
        let head = object.head()?;
        let path = self.path(job, &head);
        self.claim(path, landing.as_deref_mut())?;
        let say = sent_names(plan, true);
        if plan.dry_run {
            say(&shown(path.as_bytes()));
            Counts::add(&copy.counts.files, 1);
            return Ok(());
        }
        let landing = landing.context("there is no folder; this is a bug")?;
        let meta = FileMeta::parse(&head.metadata);
        if self.single
            && let Some(len) = meta.len.or((meta.plain != Some(false)).then_some(head.object.len))
        {
            Counts::add(&copy.counts.raw_total, len);
            copy.counts.has_total.store(true, Ordering::Relaxed);
        }
        let bits = if plan.keep.set_id { 0o7777 } else { SAFE_BITS };
        let attributes = Attributes {
            mode: meta.mode.map(|mode| mode & bits),
            // As `aws s3 sync` does, so that it is known when it is copied again.
            mtime: Some(meta.mtime.unwrap_or_else(|| since_1970(head.object.written))),
            owner: if plan.keep.wants_owner() { (meta.uid, meta.gid) } else { (None, None) },
        };
        if meta.mode.is_some_and(|mode| mode & bits != mode) {
            copy.counts.lost("set-id bits (without --set-id)");
        }
        let arriving = landing.begin(path.as_bytes(), attributes.mode)?;
        let written = self.write(&object, &head, meta, arriving.file()?)?;
        if written != meta.len.unwrap_or(written) {
            let said = meta.len.unwrap_or_default();
            let text = format!("the object has {written} bytes, and its metadata says {said}");
            return Err(narrows::Error::corrupt(text).into());
        }
        let lost = arriving.finish(&attributes, flushes(plan))?;
        lost.into_iter().for_each(|what| copy.counts.lost(what));
        Counts::add(&copy.counts.wire, head.object.len);
        Counts::add(&copy.counts.files, 1);
        say(&shown(path.as_bytes()));
        Ok(())
    }

    /// Writes the content of an object; returns its length.
    fn write(&self, object: &ObjectFile, head: &Head, meta: FileMeta, file: std::fs::File) -> Result<u64> {
        let reader = object.reader(0..head.object.len);
        let counting = Counting { file, raw: &self.copy.counts.raw };
        if meta.plain != Some(false) {
            let mut counting = counting;
            let n = io::copy(&mut Stopping(reader), &mut counting)?;
            anyhow::ensure!(n == head.object.len, "the object ends early");
            return Ok(n);
        }
        let threads = if meta.len.is_none_or(|len| len >= LONG) { flow::threads(None) } else { 1 };
        let long = self.copy.plan.coding.long;
        let options = || ReceiveOptions::default().threads(threads).reach_max(reach_max(long));
        let file = counting.file;
        let decoded = decode_within(Stopping(reader), file, window_log(long), options)?;
        Counts::add(&self.copy.counts.raw, decoded.raw_bytes);
        Ok(decoded.raw_bytes)
    }

    /// The path that an object gets: files of narrows lose the suffix that their keys have.
    fn path<'j>(&self, job: &'j Job, head: &Head) -> &'j str {
        let is_file = FileMeta::parse(&head.metadata).plain == Some(false);
        job.path.strip_suffix(SUFFIX).filter(|_| is_file && !job.is_named).unwrap_or(&job.path)
    }

    fn claim(&self, path: &str, landing: Option<&mut Landing>) -> Result<()> {
        Landing::check(path.as_bytes())?;
        let mut claimed = lock(&self.claimed);
        let is_taken = match (claimed.paths.add(path.as_bytes()), landing) {
            (Added::Again, _) => bail!("another object of this copy has the name {} already", shown(path.as_bytes())),
            (Added::Alike, Some(landing)) => {
                let writes = !self.copy.plan.dry_run;
                claimed.paths.is_one(path.as_bytes(), |folder| landing.folds(folder, writes))
            }
            (Added::Alike | Added::New, _) => false,
        };
        if is_taken {
            bail!(ALIKE);
        }
        claimed.count += 1;
        Ok(())
    }

    /// Removes the files in the copied folders that no object became.
    fn remove_others(
        &self,
        filter: &Filter,
        folder: &Path,
        mut landing: Landing,
        covered: &[String],
    ) -> Result<Removed> {
        let (copy, plan) = (self.copy, self.copy.plan);
        if signals::received().is_some() {
            return Ok(Removed::default());
        }
        if Counts::of(&copy.counts.failed) > 0 {
            let why = "nothing was removed, since not everything could be copied".to_owned();
            return Ok(Removed { count: 0, why_not: Some(why) });
        }
        let root = folder.join("");
        let (roots, _) = open_roots(std::slice::from_ref(&root), true, false);
        let Claimed { paths, count } = &mut *lock(&self.claimed);
        let (mut others, mut listed) = (Vec::new(), 0);
        walk(&roots as &[Root], filter, |found| {
            if let Found::Entry { entry, .. } = found
                && !matches!(entry.kind, EntryKind::Folder)
            {
                let is_spared = std::str::from_utf8(&entry.path).is_ok_and(|path| self.spared.contains(path));
                let is_claimed = paths.has(&entry.path);
                // What is listed in another spelling is the file of an object too.
                let mut is_alike = || {
                    let folder = &entry.path[..entry.path.iter().rposition(|b| *b == b'/').unwrap_or(0)];
                    paths.has_alike(&entry.path) && paths.folds(folder, |folder| landing.folds(folder, !plan.dry_run))
                };
                let is_claimed = is_claimed || is_alike();
                listed += u64::from(is_claimed);
                let below = |top: &String| {
                    top.is_empty() || entry.path.strip_prefix(top.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
                };
                if !is_claimed && !is_spared && covered.iter().any(below) {
                    others.push(entry.path);
                }
            }
            signals::received().is_none()
        });
        if !plan.dry_run && !others.is_empty() && listed < *count {
            let why =
                "nothing was removed: the folder does not list all files under the names that they got".to_owned();
            return Ok(Removed { count: 0, why_not: Some(why) });
        }
        if let Some(most) =
            plan.delete.as_ref().and_then(|delete| delete.max).filter(|most| others.len() as u64 > *most)
        {
            let others = report::count(others.len(), "file", "files");
            let why = format!("nothing was removed: {others} would be, and --max-delete allows {most}");
            return Ok(Removed { count: 0, why_not: Some(why) });
        }
        let say = removed_names(plan);
        for path in &others {
            say(&shown(path));
            if !plan.dry_run {
                landing.remove(path).with_context(|| format!("cannot remove {}", shown(path)))?;
            }
        }
        Ok(Removed { count: others.len() as u64, why_not: None })
    }
}

/// A file whose bytes are counted.
struct Counting<'a> {
    file: std::fs::File,
    raw: &'a std::sync::atomic::AtomicU64,
}

impl Write for Counting<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.file.write(buf)?;
        Counts::add(self.raw, n as u64);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
