//! Fallback copy if the other host has no narrows: with `tar`, and `zstd` if available, over the
//! same remote shell.
//!
//! It uses one connection. A first script reports the available tools, a second one packs or
//! stores. Files that arrive are unpacked in a separate folder at the target, and get their names
//! after all have arrived: a copy that fails leaves the existing files as they were.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use narrows::entry::Entry;
use narrows::stream;

use super::carrier::Started;
use super::error::{Blame, Error, Result, cannot_store, is_link_lost};
use super::filter::Filter;
use super::meta;
use super::remote_path::has_pattern;
use super::scan::{self, needs_recursive, socket_words};
use super::serve::{Into, is_undecided, open_target};
use super::store::Permitted;
use super::tree::Tree;
use super::{HINT_DEVICES, shown};
use narrows_host::words;

mod listing;
mod stage;
mod talk;
mod tools;

use listing::Listing;
use stage::Stage;
pub use talk::ArchiveProgress;
use talk::{Counted, Heard, Input, Output, Pump};
use tools::{Kind, LEVEL, LIST_FLAGS, Tools, assignment, flag_safe};

/// Maximum number of zstd threads; this many are already faster than any ssh.
const ZSTD_THREADS_MAX: usize = 4;
/// Length of the invalid data that ends an archive which must not be used. No tar accepts it as a
/// header, and it is longer than the attributes of a file, as which its beginning may be read.
const SPOILED: usize = 1 << 20;
/// Exit status of `pack.sh`: some files changed.
const TAR_WARNED: i32 = 11;
/// Exit status of `pack.sh`: some files could not be read.
const TAR_FAILED: i32 = 12;

/// Options of the copy, in either direction.
pub struct Order<'a> {
    /// The remote shell and its options, split into words by shell rules.
    pub shell: &'a OsStr,
    /// `[user@]host`, as ssh takes it.
    pub host: &'a OsStr,
    /// The name under which narrows was looked for on the other host.
    pub program: &'a str,
    /// Copy folders.
    pub recursive: bool,
    /// Preserve owners if root stores.
    pub owner: bool,
    /// Keep set-id bits.
    pub set_id: bool,
    /// Flush everything to the disk before it gets its name.
    pub fsync: bool,
    /// Time without progress after which the copy fails.
    pub timeout: Option<Duration>,
    /// Do not say that the copy goes by tar.
    pub quiet: bool,
    /// Is updated while the copy runs.
    pub progress: Arc<ArchiveProgress>,
    /// Called with every failure.
    pub on_failure: &'a dyn Fn(&str),
    /// Called with every fifo, device and socket that is passed over; `None`: they are asked for.
    pub on_skipped: Option<&'a dyn Fn(&str)>,
    /// Called with the name of every file.
    pub on_file: &'a dyn Fn(&str),
}

/// Result of the copy.
#[derive(Debug, Default)]
pub struct Copied {
    /// Files copied.
    pub files: u64,
    /// Failures that were reported.
    pub failed: u64,
    /// Files that changed while they were read, and were stored nevertheless.
    pub changed: u64,
    /// Attributes that could not be preserved, as text.
    pub losses: Option<String>,
    /// `tar`, or `tar and zstd`
    pub programs: &'static str,
}

impl Order<'_> {
    /// The message that is printed as soon as the available tools are known.
    fn notice(&self) -> impl FnOnce(Tools) + Send + use<> {
        let (host, program) = (shown(self.host.as_bytes()), shown(self.program.as_bytes()));
        let quiet = self.quiet;
        move |there| {
            if !quiet {
                words::note(format_args!(
                    "no {program} on {host}: copying by {}{}; with narrows there too, copies are verified and \
                     resumed, and only changes are sent",
                    programs(there),
                    // Without zstd, an archive that was cut between two files cannot be told from a
                    // complete one.
                    if there.zstd { ", all or nothing" } else { "" }
                ));
            }
        }
    }

    /// Passes over what is copied with `--devices` only; whether it did.
    fn skips(&self, entry: &Entry) -> bool {
        let (Some(on_skipped), Some(text)) = (self.on_skipped, meta::skipped(entry)) else { return false };
        on_skipped(&format!("{text}{HINT_DEVICES}"));
        true
    }

    /// Passes over a socket, which tar does not copy; with `--devices` that is a failure.
    fn skips_socket(&self, path: &str, copied: &mut Copied) {
        match self.on_skipped {
            Some(on_skipped) => on_skipped(&format!("skipped {path}: it is a socket")),
            None => self.failed(&format!("{}, which tar does not copy", socket_words(path)), copied),
        }
    }

    /// Counts and reports a failure.
    fn failed(&self, text: &str, copied: &mut Copied) {
        copied.failed += 1;
        (self.on_failure)(text);
    }
}

fn programs(there: Tools) -> &'static str {
    if there.zstd { "tar and zstd" } else { "tar" }
}

// --- from here to there ---

/// Copies from this host to the other one.
pub fn put(order: &Order<'_>, sources: &[PathBuf], filter: &Filter, target: &Path) -> Result<Copied> {
    let here = Tools::here()?;
    if here.kind == Kind::Other {
        return Err(Error::Program("tar on this host can do too little; install GNU tar or bsdtar".into()));
    }
    let listing = Listing::of(sources, order, filter)?;
    let mut copied = Copied { files: listing.files, failed: listing.failed, programs: "tar", ..Copied::default() };
    if listing.groups.is_empty() {
        return Ok(copied);
    }
    if here.kind != Kind::Gnu && listing.groups.len() != 1 {
        let text = "tar on this host supports files from one folder only; copy those in other folders with another \
                    command";
        return Err(Error::Program(text.into()));
    }
    order.progress.expect(listing.bytes);

    let script = put_script(order, sources, target, listing.alike.as_deref());
    let (recursive, progress, notice) = (order.recursive, Arc::clone(&order.progress), order.notice());
    let ((heard, packed, there), status) = talk::converse(order, move |mut input, mut output| {
        let there = talk::ask(&mut input, &mut output)?;
        notice(there);
        let script = [there.store_functions(here).as_bytes(), &script].concat();
        talk::tell(&mut input, &script)?;
        let mut tar = Command::new("tar");
        tar.args(["-c", "-f", "-"]).args(here.pack_flags(there)).args(LIST_FLAGS);
        if !recursive {
            tar.arg("-h");
        }
        for (folder, list) in &listing.groups {
            tar.arg("-C").arg(folder).arg("-T").arg(list);
        }
        let packed = send(&mut tar, input, there.zstd, &progress);
        progress.crossed();
        let heard = talk::hear(output);
        // The error of the other end is more specific than a broken link, but not than a failure
        // here.
        let packed = match packed {
            Err(e) if is_link_lost(&e) => return Err(heard.err().unwrap_or(e)),
            packed => packed?,
        };
        let heard = heard?;
        if !heard.done {
            let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "the other end ended without a result");
            return Err(ended).blame(Error::Link);
        }
        Ok((heard, packed, there))
    })?;
    let Heard { failures, failed, lost, .. } = heard;
    if !status.success() {
        let text = format!("the other end failed after it had stored everything ({status})");
        return Err(Error::Peer(text.into()));
    }
    for text in &failures {
        (order.on_failure)(text);
    }
    copied.failed += failed;
    warned(order, packed.code(), here, &mut copied);
    copied.programs = programs(there);
    let losses = lost.into_iter().chain(here.losses(there).map(str::to_owned));
    copied.losses = Some(losses.collect::<Vec<_>>().join(", ")).filter(|l| !l.is_empty());
    Ok(copied)
}

/// `store.sh` with its variables, without the functions, which depend on the tools of the other
/// host.
fn put_script(order: &Order<'_>, sources: &[PathBuf], target: &Path, alike: Option<&[u8]>) -> Vec<u8> {
    let bytes = target.as_os_str().as_bytes();
    let single = sources.len() == 1 && !sources[0].is_dir();
    let folder = !single || bytes.ends_with(b"/");
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let work = format!(".narrows-{:016x}.partial", RandomState::new().build_hasher().finish());
    let flag = |set: bool| if set { &b"yes"[..] } else { b"" };
    let mut script = Vec::new();
    for (name, value) in [
        ("target", &flag_safe(target.as_os_str())[..]),
        ("parent", &flag_safe(parent.as_os_str())),
        ("name", target.file_name().unwrap_or_default().as_bytes()),
        ("own", sources[0].file_name().unwrap_or_default().as_bytes()),
        ("work", work.as_bytes()),
        ("alike", alike.unwrap_or_default()),
        ("folder", flag(folder || target.file_name().is_none())),
        ("contents", flag(sources.iter().any(|s| scan::top(s).is_none()))),
        ("owner", flag(order.owner)),
        ("devices", flag(order.on_skipped.is_none())),
        ("setid", flag(order.set_id)),
        ("fsync", flag(order.fsync)),
    ] {
        assignment(name, value, &mut script);
    }
    script.extend_from_slice(include_bytes!("fallback/store.sh"));
    script
}

/// Runs tar and sends its archive. An incomplete archive is spoiled so that the other end rejects
/// it.
fn send(tar: &mut Command, input: Input, zstd: bool, progress: &Arc<ArchiveProgress>) -> Result<ExitStatus> {
    tar.env_remove("TAR_OPTIONS").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut tar = Started(tar.spawn().blame_for(Error::Program, "cannot start tar")?);
    let from = tar.0.stdout.take().ok_or_else(|| Error::Bug("tar has no standard output".into()))?;
    let mut to = Counted { inner: input, progress: Arc::clone(progress) };
    let mut pump = Pump::new(Arc::clone(progress));
    let whole = |tar: &mut Started, pumped: Result<()>| {
        pumped?;
        let status = tar.0.wait().blame_for(Error::Program, "cannot wait for tar")?;
        Ok::<_, Error>((status, status.code().is_some_and(|code| code <= 2)))
    };
    let cut = || Error::Program("tar failed on this host".into());
    if zstd {
        let mut encoder = encoder(to).blame(Error::Local)?;
        let pumped = pump.run(from, &mut encoder).map_err(talk::Side::of_sender);
        let (status, ended) = whole(&mut tar, pumped)?;
        // Without its end, the zstd frame is invalid for the other end.
        if !(ended && pump.is_whole()) {
            return Err(cut());
        }
        encoder.finish().and_then(|mut to| to.flush()).blame(Error::Link)?;
        return Ok(status);
    }
    let pumped = pump.run(from, &mut to).map_err(talk::Side::of_sender);
    let (status, ended) = whole(&mut tar, pumped)?;
    if !(ended && pump.is_whole()) {
        to.write_all(&vec![0xff; SPOILED]).blame(Error::Link)?;
        return Err(cut());
    }
    Ok(status)
}

fn encoder<W: Write>(to: W) -> io::Result<zstd::stream::write::Encoder<'static, W>> {
    let mut encoder = zstd::stream::write::Encoder::new(to, LEVEL)?;
    encoder.include_checksum(true)?;
    encoder.multithread(stream::encoders().min(ZSTD_THREADS_MAX) as u32)?;
    Ok(encoder)
}

/// Reports the exit status of a tar whose archive is complete nevertheless.
fn warned(order: &Order<'_>, code: Option<i32>, tools: Tools, copied: &mut Copied) {
    match code {
        Some(0) => {}
        // Also if a file shrank, whose rest tar fills with zeros.
        Some(1) if tools.kind == Kind::Gnu => {
            order.failed("some files changed while they were read; copy them again", copied)
        }
        _ => order.failed("some files could not be read; see the messages of tar", copied),
    }
}

// --- from there to here ---

/// Copies from the other host to this one.
pub fn get(order: &Order<'_>, sources: &[PathBuf], target: &Path) -> Result<Copied> {
    let here = Tools::here()?;
    let contents = sources.iter().any(|s| scan::top(s).is_none());
    if sources.len() != 1 && contents {
        let text = "tar copies the contents of a folder only by themselves; use a separate command";
        return Err(Error::Program(text.into()));
    }
    let mut tops: Vec<_> = sources.iter().filter_map(|source| scan::top(source)).collect();
    tops.sort_unstable();
    if let Some([name, _]) = tops.windows(2).find(|w| w[0] == w[1]) {
        let text = format!(
            "two sources are named '{}', and tar would overwrite one with the other; copy them one by one",
            shown(name)
        );
        return Err(Error::Program(text.into()));
    }
    let permitted = Permitted::tops(sources, order.recursive);
    // Whether the target becomes a file or a folder is known only when the source has arrived.
    let undecided = order.recursive && sources.len() == 1 && !contents && is_undecided(target);
    let single = sources.len() == 1 && !order.recursive || undecided;
    let Into::Tree(mut tree, mut rename) = open_target(target, single, false, false)?.into else {
        let target = shown(target.as_os_str().as_bytes());
        let text = format!("{target} is a device or fifo; to write into it, narrows is needed there too");
        return Err(Error::Program(text.into()));
    };
    let folder = match rename {
        Some(_) => target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        None => target,
    };
    let stage = Stage::new(folder, order.owner)?;

    let (look, folders) = look_lines(sources);
    let (unpack_in, keep_owner) = (stage.path().to_path_buf(), stage.keeps_owner());
    let folds = stage.folds();
    let (recursive, progress, notice) = (order.recursive, Arc::clone(&order.progress), order.notice());
    let ((found, there), status) = talk::converse(order, move |mut input, mut output| {
        let there = talk::ask(&mut input, &mut output)?;
        if folders != 1 && there.kind == Kind::Other {
            let text = "tar on the other host supports files from one folder only; copy those in other folders with \
                        another command";
            return Err(Error::Peer(text.into()));
        }
        notice(there);
        let mut script = there.pack_functions(here, !recursive).into_bytes();
        assignment("recursive", if recursive { b"yes" } else { b"" }, &mut script);
        script.extend_from_slice(include_bytes!("fallback/pack.sh"));
        script.extend_from_slice(&look);
        talk::tell(&mut input, &script)?;
        drop(input);
        let found = talk::answer(&mut output, "found")?;
        if found.contains('y') {
            let mut tar = Command::new("tar");
            tar.args(["-x", "-p", "-f", "-"]).args(here.unpack_flags(there)).arg("-C").arg(unpack_in);
            if !keep_owner {
                tar.arg("-o");
            }
            if folds && here.kind == Kind::Gnu {
                // The second of two names that are one here is a failure.
                tar.arg("--keep-old-files");
            }
            receive(&mut tar, output, there.zstd, &progress).map_err(|e| match e {
                Error::Program(_) if folds => {
                    e.context("two names that differ only in case are one here, or tar failed otherwise")
                }
                e => e,
            })?;
        }
        progress.crossed();
        Ok((found, there))
    })?;
    let mut copied = Copied { programs: programs(there), ..Copied::default() };
    if found.len() != sources.len() {
        return Err(Error::Protocol("the other end gave an unexpected answer".into()));
    }
    for (source, is) in sources.iter().zip(found.chars()).filter(|(_, is)| *is != 'y') {
        let why = match is {
            'd' => needs_recursive().to_string(),
            // A file may have such a name.
            _ if has_pattern(source) => "No such file; wildcards need narrows there too".to_owned(),
            _ => "No such file or directory".to_owned(),
        };
        order.failed(&format!("cannot copy {}: {why}", shown(source.as_os_str().as_bytes())), &mut copied);
    }
    match status.code() {
        Some(0) => {}
        Some(TAR_WARNED) => warned(order, Some(1), there, &mut copied),
        Some(TAR_FAILED) => warned(order, Some(2), there, &mut copied),
        _ => return Err(Error::Peer(format!("packing failed there ({status}); nothing was stored").into())),
    }
    let mut tops: Vec<&PathBuf> =
        sources.iter().zip(found.chars()).filter(|(_, is)| *is == 'y').map(|(s, _)| s).collect();
    // Nothing arrives of a folder that cannot be read, not even its mode.
    tops.retain(|source| match scan::top(source) {
        Some(top) => stage.holds(&top),
        None => status.success() || !stage.is_empty(),
    });
    if undecided && tops.iter().filter_map(|source| scan::top(source)).any(|top| stage.holds_folder(&top)) {
        std::fs::create_dir(target).blame_for(Error::Local, cannot_store(target))?;
        (tree, rename) = (Tree::open(target).blame(Error::Local)?, None);
    }
    let losses = stage.settle(&tops, tree, rename, &permitted, order, &mut copied)?;
    let losses = losses.into_iter().chain(there.losses(here).map(str::to_owned));
    copied.losses = Some(losses.collect::<Vec<_>>().join(", ")).filter(|l| !l.is_empty());
    Ok(copied)
}

/// The lines about the sources for `pack.sh`, and the number of folders that they are in.
fn look_lines(sources: &[PathBuf]) -> (Vec<u8>, usize) {
    let mut lines = Vec::new();
    let mut folders = Vec::new();
    for source in sources {
        let (folder, name) = listing::folder_and_name(source);
        assignment("path", &flag_safe(source.as_os_str()), &mut lines);
        assignment("folder", &flag_safe(folder.as_os_str()), &mut lines);
        assignment("name", &name, &mut lines);
        lines.extend_from_slice(b"look\n[ $is != y ] || set -- \"$@\" -C \"$folder\" \"$name\"\n");
        folders.push(folder);
    }
    folders.sort_unstable();
    folders.dedup();
    lines.extend_from_slice(b"go \"$@\"\n");
    (lines, folders.len())
}

/// Unpacks the archive that arrives.
fn receive(tar: &mut Command, output: Output, zstd: bool, progress: &Arc<ArchiveProgress>) -> Result<()> {
    tar.env_remove("TAR_OPTIONS").stdin(Stdio::piped()).stdout(Stdio::null());
    let mut tar = Started(tar.spawn().blame_for(Error::Program, "cannot start tar")?);
    let to = tar.0.stdin.take().ok_or_else(|| Error::Bug("tar has no standard input".into()))?;
    let from = Counted { inner: output, progress: Arc::clone(progress) };
    let mut pump = Pump::new(Arc::clone(progress));
    let pumped = if zstd {
        let decoder = zstd::stream::read::Decoder::with_buffer(from).blame(Error::Local)?;
        pump.run(decoder, to)
    } else {
        pump.run(from, to)
    };
    pumped.map_err(talk::Side::of_receiver)?;
    if !pump.is_whole() {
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "the archive ends before its end mark");
        return Err(ended).blame(Error::Link);
    }
    let status = tar.0.wait().blame_for(Error::Program, "cannot wait for tar")?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::Program("tar could not unpack all of it; nothing was stored".into()))
    }
}
