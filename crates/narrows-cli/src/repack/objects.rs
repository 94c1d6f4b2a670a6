//! Objects of `narrows repack`: recompressed in a file of this host, verified, and put in the place of the
//! old one if that is still the object that was read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};

use anyhow::{Context, Result, anyhow};
use narrows_file::ReadAt;
use narrows_file::effort::end_of;
use narrows_file::foreign::{self, Format};
use narrows_file::repack::{Candidate, RepackOptions, Repacked, copy_with_effort, open, repack, verify, verify_copy};
use narrows_object::{Condition, CreateOptions, Head, ObjectFile, ObjectWriter, Scheme, Url, meta};

use super::{Outcome, with_parts};
use crate::args::store::StoreArgs;
use crate::place;

/// Bytes that are read of the new file at a time.
const STEP: usize = 1 << 20;

/// An object to recompress.
pub(crate) struct Job {
    pub(crate) url: Url,
    /// Its user named it, and not what it is below of.
    pub(crate) is_named: bool,
}

/// Goes through objects, and those below prefixes, in order.
pub(crate) struct Objects<'a> {
    args: &'a StoreArgs,
    /// The next one is the last.
    rest: Vec<Job>,
    /// Objects below prefixes that were passed over.
    pub(crate) others: u64,
}

impl<'a> Objects<'a> {
    pub(crate) fn of(urls: Vec<Url>, args: &'a StoreArgs) -> Self {
        Self { args, rest: urls.into_iter().rev().map(|url| Job { url, is_named: true }).collect(), others: 0 }
    }

    /// The next object. An error is about one name; there may be more after it.
    pub(crate) fn next(&mut self) -> Option<Result<Job>> {
        while let Some(job) = self.rest.pop() {
            if !job.is_named {
                return Some(Ok(job));
            }
            match self.enter(job) {
                Ok(None) => {}
                Ok(Some(job)) => return Some(Ok(job)),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    fn enter(&mut self, job: Job) -> Result<Option<Job>> {
        let url = &job.url;
        let store = place::store(url, self.args)?;
        if !url.is_prefix() {
            let there = store.head(&url.key).with_context(|| format!("cannot read {url}"))?;
            if there.is_some() {
                return Ok(Some(job));
            }
        }
        let found = store.list(&url.key).with_context(|| format!("cannot list {url}"))?;
        self.others += store.take_odd_keys().len() as u64;
        if found.is_empty() {
            return Err(anyhow!("there is no object {url}, and none below it"));
        }
        let (ours, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|object| object.key.ends_with(Format::Narrows.suffix()));
        self.others += others.len() as u64;
        self.rest.extend(ours.into_iter().rev().map(|object| Job { url: store.url(&object.key), is_named: false }));
        Ok(None)
    }
}

/// Recompresses an object. `leave` is a reason of its hint to leave it. With `dry` only its end is read.
///
/// # Errors
/// It cannot be read or written, is damaged or changes meanwhile; it is as it was.
pub(crate) fn one(
    job: &Job,
    args: &StoreArgs,
    leave: Option<&'static str>,
    options: &RepackOptions,
    dry: bool,
) -> Result<Outcome> {
    let url = &job.url;
    let cannot = || format!("cannot read {url}");
    let named = |e: narrows::Error| match e.source {
        Some(cause) => anyhow::Error::from(cause).context(cannot()),
        None => anyhow::Error::from(e).context(url.to_string()),
    };
    let object = place::object(url, args)?;
    let end = end_of(&object).map_err(named)?;
    let head = object.head().with_context(cannot)?;
    if let Some(why) = leave.or_else(|| not_ours(&head, job.is_named)) {
        return Ok(Outcome::Left(why));
    }
    if end.and_then(|end| end.effort).is_some_and(|tried| tried.covers(options.effort())) {
        return Ok(Outcome::Before);
    }
    if end.is_none() && is_foreign(&object).with_context(cannot)? {
        return Ok(Outcome::Left("it is in another format"));
    }
    if dry {
        return Ok(Outcome::Would { old: head.object.len });
    }
    let version = head.object.version.clone();
    let can_compare = match url.scheme {
        Scheme::Gs => version.number.is_some(),
        _ => version.etag.as_ref().is_some_and(|etag| !etag.starts_with("W/")),
    };
    if !can_compare {
        return Ok(Outcome::Left("its store does not say which version it is, so a newer one might be replaced"));
    }
    let source = match open(object.clone(), options).map_err(named)? {
        Candidate::File(source) => source,
        Candidate::Unchecked => return Ok(Outcome::Left("it has no checks that would tell whether it is whole")),
        Candidate::Newer => return Ok(Outcome::Left("a newer version wrote it")),
    };
    let options = &with_parts(&source, options).map_err(named)?;
    let cannot_make = "cannot make a temporary file; TMPDIR names another folder for it";
    let mut new = tempfile::tempfile().context(cannot_make)?;
    let sink = BufWriter::with_capacity(STEP, new.try_clone().context(cannot_make)?);
    let (mut sink, repacked) = repack(*source, sink, options).map_err(named)?;
    sink.flush().context("cannot write the temporary file")?;
    drop(sink);
    let write = CreateOptions {
        condition: Condition::IfMatch(version),
        metadata: kept(&head.metadata),
        len: Some(repacked.new_bytes),
        frames: true,
    };
    let cannot_write = || format!("cannot write {url}");
    let mut writer = ObjectWriter::create(&place::store(url, args)?, &url.key, write).with_context(cannot_write)?;
    if !repacked.shrank() {
        // An object has no place for the record but its frames.
        let Candidate::File(old) = open(object, options).map_err(named)? else {
            return Ok(Outcome::NoGain { old: repacked.old_bytes });
        };
        new.set_len(0).and_then(|()| new.rewind()).context("cannot write the temporary file")?;
        let mut sink = BufWriter::with_capacity(STEP, &new);
        if copy_with_effort(&old, &mut sink, options.effort()).map_err(named)? {
            sink.flush().context("cannot write the temporary file")?;
            drop(sink);
            let copied = new.try_clone().context("cannot read the temporary file")?;
            verify_copy(&old, copied, options).map_err(named)?;
            send(&mut new, &mut writer).with_context(cannot_write)?;
            writer.finish().with_context(cannot_write)?;
        }
        return Ok(Outcome::NoGain { old: repacked.old_bytes });
    }
    verify(new.try_clone().context("cannot read the temporary file")?, &repacked, options).map_err(named)?;
    send(&mut new, &mut writer).with_context(cannot_write)?;
    writer.finish().with_context(cannot_write)?;
    let Repacked { old_bytes: old, new_bytes: new, .. } = repacked;
    Ok(Outcome::Smaller { old, new })
}

/// Why this object is not one that is recompressed.
fn not_ours(head: &Head, is_named: bool) -> Option<&'static str> {
    match head.metadata.get(meta::FORM).map(String::as_str) {
        Some(meta::FORM_FILE | meta::FORM_PACK) => None,
        // What a command wrote that keeps no metadata; its content tells.
        None if is_named => None,
        Some(meta::FORM_PLAIN) => Some("it is kept as the bytes of a file"),
        _ => Some("it does not say that it is of narrows; name it itself"),
    }
}

/// All metadata but the mark of the upload.
fn kept(metadata: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let of_object = metadata.iter().filter(|(name, _)| *name != meta::UPLOAD);
    of_object.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn is_foreign(object: &ObjectFile) -> io::Result<bool> {
    let mut begin = [0; foreign::MAGIC_LEN];
    let n = object.read_at(&mut begin, 0)?;
    Ok(Format::of(&begin[..n]).is_some_and(|format| format != Format::Narrows))
}

fn send(new: &mut File, writer: &mut ObjectWriter) -> io::Result<()> {
    new.rewind()?;
    let mut piece = vec![0; STEP];
    loop {
        let n = new.read(&mut piece)?;
        if n == 0 {
            return Ok(());
        }
        writer.write_all(&piece[..n])?;
    }
}
