//! `narrows FILE` where the input or the output is an object.

use std::fs::{FileTimes, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow};
use narrows::stream::ReceiveOptions;
use narrows_file::decode;
use narrows_file::{WriteOptions, Writer, zstd_seekable};
use narrows_object::meta::FileMeta;
use narrows_object::{Condition, CreateOptions};

use crate::args::file::{FileArgs, FormatArg};
use crate::args::{reach_max, window_log};
use crate::files::{Source, Witness, is_dash, is_in_the_way};
use crate::packs::decode_within;
use crate::place::{self, Place, Target};
use crate::transfer::Transfer;
use crate::{flow, report};

/// Bytes that are read at a time.
const STEP: usize = 256 << 10;

/// Compresses, decompresses or tests one input.
pub(super) fn one(args: &FileArgs, transfer: &Transfer, input: &Place) -> Result<()> {
    if args.rm && !args.stdout && !args.test {
        return Err(narrows::Error::misuse("--rm is for files of this host").into());
    }
    let output = match &args.output {
        _ if args.test => None,
        Some(output) => Some(Place::parse(output)?),
        None if args.stdout => Some(Place::Path("-".into())),
        None => return Err(narrows::Error::misuse(format!("{input}: give the output, with -o or -c")).into()),
    };
    if let Some(Place::Path(path)) = &output
        && !args.force
        && !is_dash(path)
        && is_in_the_way(path)
    {
        return Err(anyhow!("{} already exists; use -f to overwrite it", path.display()));
    }
    match output {
        Some(output) if !args.decompress => compress(args, input, &output),
        output => decompress(args, transfer, input, output.as_ref()),
    }
}

fn compress(args: &FileArgs, input: &Place, output: &Place) -> Result<()> {
    let (mut source, len, metadata, witness): (Box<dyn Read + Send>, _, _, _) = match input {
        Place::Path(path) => {
            let source = Source::open(Some(path))?;
            let (len, witness) = (source.raw_len(), source.witness()?);
            let data = path.metadata().ok().filter(|data| data.is_file() && !is_dash(path));
            let meta = data.map(|data| FileMeta {
                len: Some(data.len()),
                mtime: Some((data.mtime(), data.mtime_nsec() as u32)),
                mode: Some(data.mode() & 0o777),
                plain: Some(false),
                ..FileMeta::default()
            });
            (Box::new(source), len, meta.map(|meta| meta.pairs()).unwrap_or_default(), Some(witness))
        }
        Place::Object(_) => (place::open_stream(input, &args.store)?, None, Vec::new(), None),
    };
    // What its metadata does not describe gets no name.
    let is_unchanged = || witness.as_ref().map_or(Ok(()), Witness::is_unchanged);
    let is_narrows = args.format == FormatArg::Narrows;
    let metadata = if is_narrows { metadata } else { Vec::new() };
    let condition = if args.force { Condition::None } else { Condition::Create };
    let options = CreateOptions { condition, metadata, len, frames: is_narrows };
    let target = place::create(output, &args.store, options)?;
    let threads = args.encoders().map_or_else(narrows::stream::encoders, usize::from);
    let hint = args.asked();
    let (cannot_read, cannot_write) = (format!("cannot read {input}"), format!("cannot write {output}"));
    if !is_narrows {
        let mut target = target;
        let mut source = Noting { inner: source, failed: Arc::default() };
        let failed = Arc::clone(&source.failed);
        let written = zstd_seekable::write(&mut source, &mut target, args.mode_of_zstd(&hint), threads);
        let blame = || if failed.load(Ordering::Relaxed) { cannot_read.clone() } else { cannot_write.clone() };
        written.map_err(bare).with_context(blame)?;
        is_unchanged()?;
        return target.finish().context(cannot_write);
    }
    let mut options = WriteOptions::default().hint(hint).raw_len(len);
    options = options.threads(threads).check(!args.no_check);
    options = args.policy.iter().cloned().fold(options, WriteOptions::policy);
    options = args.block_max.into_iter().fold(options, WriteOptions::block_max);
    options = args.run_len.into_iter().fold(options, |o, len| o.run_len(len as u64));
    let begun = std::time::Instant::now();
    let mut writer = Writer::new(target, options).with_context(|| cannot_write.clone())?;
    let mut buf = vec![0; STEP];
    loop {
        let n = match source.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(anyhow::Error::from(e).context(cannot_read)),
        };
        writer.write_all(&buf[..n]).with_context(|| cannot_write.clone())?;
    }
    let (target, summary) = writer.finish().map_err(bare).with_context(|| cannot_write.clone())?;
    is_unchanged()?;
    target.finish().context(cannot_write)?;
    if args.verbosity.json {
        report::note_json(&report::send_json(&summary, begun.elapsed()));
    } else if args.verbosity.verbose {
        report::note(report::line(&summary, begun.elapsed()));
    }
    Ok(())
}

fn decompress(args: &FileArgs, transfer: &Transfer, input: &Place, output: Option<&Place>) -> Result<()> {
    let object = input.url().map(|url| place::object(url, &args.store)).transpose()?;
    let source: Box<dyn Read + Send> = match &object {
        Some(object) => Box::new(object.reader(0..u64::MAX)),
        None => place::open_stream(input, &args.store)?,
    };
    let control = &transfer.control;
    let threads = flow::threads(args.encoders());
    let options = || ReceiveOptions::default().threads(threads).reach_max(reach_max(args.long)).control(control);
    let Some(output) = output else {
        let decoded = decode::decode_within(source, io::sink(), window_log(args.long), options);
        return decoded.map(drop).map_err(|e| blame(e, format!("cannot read {input}"), input));
    };
    let condition = if args.force { Condition::None } else { Condition::Create };
    let target = place::create(output, &args.store, CreateOptions { condition, ..CreateOptions::default() })?;
    let sink = Noting { inner: Arc::new(Mutex::new(Some(target))), failed: Arc::default() };
    let (target, failed) = (Arc::clone(&sink.inner), Arc::clone(&sink.failed));
    let decoded = decode_within(None, source, sink, window_log(args.long), options);
    // Threads of the flow may keep a handle for a while. What has to be undone of an output without end is
    // undone before this returns: the program may be about to exit.
    let target = target.lock().unwrap_or_else(PoisonError::into_inner).take();
    decoded.map_err(|e| {
        let is_output = failed.load(Ordering::Relaxed);
        blame(e, if is_output { format!("cannot write {output}") } else { format!("cannot read {input}") }, input)
    })?;
    let target = target.context("the output is gone; this is a bug")?;
    if let (Some(object), Some(file)) = (&object, target.file()) {
        let file = file?;
        let head = object.head().with_context(|| format!("cannot read {input}"))?;
        let meta = FileMeta::parse(&head.metadata);
        let is_stdout = matches!(output, Place::Path(path) if is_dash(path));
        if file.metadata()?.is_file() && !is_stdout {
            keep(&file, &meta).with_context(|| format!("cannot write {output}"))?;
        }
    }
    target.finish().with_context(|| format!("cannot write {output}"))
}

/// Gives the output the mode and the time that are kept with its object.
fn keep(file: &std::fs::File, meta: &FileMeta) -> io::Result<()> {
    if let Some(mode) = meta.mode {
        file.set_permissions(Permissions::from_mode(mode & 0o777))?;
    }
    let Some((s, ns)) = meta.mtime else { return Ok(()) };
    let since = Duration::new(s.unsigned_abs(), 0);
    let whole =
        if s < 0 { SystemTime::UNIX_EPOCH.checked_sub(since) } else { SystemTime::UNIX_EPOCH.checked_add(since) };
    match whole.and_then(|time| time.checked_add(Duration::from_nanos(ns.into()))) {
        // Both: many file systems of FUSE set no time if one of the two is left out.
        Some(time) => file.set_times(FileTimes::new().set_modified(time).set_accessed(file.metadata()?.accessed()?)),
        None => Ok(()),
    }
}

/// An error of the engine as its cause, if it has one.
fn bare(error: narrows::Error) -> anyhow::Error {
    match error.source {
        Some(cause) => cause.into(),
        None => error.into(),
    }
}

fn blame(error: narrows::Error, cannot: String, input: &Place) -> anyhow::Error {
    let about = if error.source.is_some() { cannot } else { input.to_string() };
    bare(error).context(about)
}

/// A reader or writer that remembers whether it failed.
struct Noting<T> {
    inner: T,
    failed: Arc<AtomicBool>,
}

impl<T> Noting<T> {
    fn note<V>(&self, result: io::Result<V>) -> io::Result<V> {
        if result.as_ref().is_err_and(|e| e.kind() != io::ErrorKind::Interrupted) {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl<R: Read> Read for Noting<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let result = self.inner.read(buf);
        self.note(result)
    }
}

impl Noting<Arc<Mutex<Option<Target>>>> {
    fn with<T>(&self, act: impl FnOnce(&mut Target) -> io::Result<T>) -> io::Result<T> {
        let mut target = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let result = target.as_mut().map_or_else(|| Err(io::ErrorKind::BrokenPipe.into()), act);
        self.note(result)
    }
}

impl Write for Noting<Arc<Mutex<Option<Target>>>> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.with(|target| target.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(Write::flush)
    }
}
