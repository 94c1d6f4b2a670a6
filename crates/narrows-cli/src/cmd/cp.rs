//! `narrows cp`: copies files and folders from this host to another, from another to this one, or
//! within this one.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use narrows::hint::Mode;
use narrows::policy::PolicySpec;
use narrows::receiver::RecvSummary;
use narrows::stream::{self, Control, Notes, ReceiveOptions};
use narrows::transport::Link;

use crate::args::copying::contents_of;
use crate::args::{CpArgs, reach};
use narrows_watch::bottleneck::{Bottleneck, Part};
use crate::files::Source;
use crate::progress::Bar;
use crate::transfer::{Received, Sent, Transfer};
use crate::{files, flow, report};
use narrows_copy::FORM;
use narrows_copy::carrier::{self, Carrier, Reach};
use narrows_copy::carriers::{Grower, Seen};
use narrows_copy::direct::Trust;
use narrows_copy::filter::Filter;
use narrows_copy::frames::{Form, FramesOptions};
use narrows_copy::hello::{Delete, GetTask, StoreOptions, Task, Unmade};
use narrows_copy::place::Place;
use narrows_copy::remote_path;
use narrows_copy::scan::{self, Listed, Picks, Root, TargetFolder};
use narrows_copy::serve::{
    AS_IT_COMES, Into, NO_ROUND_TRIPS, Opened, carrier_options, is_undecided, open_beside, open_partials, open_roots,
    open_target,
};
use narrows_copy::source::{EntrySource, Input, SourceOptions};
use narrows_copy::store::{EntryStore, Observers, Permitted};
use narrows_copy::tree::Tree;
use narrows_host::peers::Peer;
use narrows_host::words::shown;
use narrows_host::{means, signals};

mod fallback;
mod objects;
mod say;
mod stdio;
pub(crate) mod sync;
mod watched;

pub(super) use say::teller;
use say::{itemizes, names, names_wanted, recording, removed_names, say, sent_names, skipped, telling};
use stdio::Dash;

/// Exit status: nothing was copied, since no source could be read.
const NOTHING: u8 = 2;
/// Exit status: nothing was copied, since nothing could be stored.
const NOT_STORED: u8 = 1;
/// Exit status: some entries could not be copied, or objects are damaged; they were reported.
const SOME_FAILED: u8 = 3;
/// Exit status: everything was copied, but some files changed while they were read.
const CHANGED: u8 = 4;
/// Exit status: the other end could not be reached, or it or the link was lost; the same command
/// resumes the copy.
const LOST: u8 = 5;

/// Reports a failure to the user.
pub(super) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Result of a copy, whichever end stored it.
#[derive(Default)]
struct Outcome {
    files: u64,
    files_same: u64,
    /// Other entries than files and folders, of which nobody says whether they were there.
    others: u64,
    /// Bytes that came as references to what came before.
    repeated: u64,
    failed: u64,
    /// Of the failed: what could not be stored.
    not_stored: u64,
    changed: u64,
    /// Of the failed: objects that are damaged.
    damaged: u64,
    /// Something was written, completely or in part.
    begun: bool,
    /// The other end keeps files as they come, which was not asked for.
    wants_frames: bool,
    /// No source could be opened, so the copy did not start.
    unstarted: bool,
    losses: Option<String>,
    removed: u64,
    not_removed: Option<String>,
    line: String,
    /// Shares of the methods.
    mix: String,
    json: serde_json::Value,
}

/// Runs `narrows cp` and returns its exit status.
pub(crate) fn run(args: &CpArgs) -> Result<ExitCode> {
    let begun = Instant::now();
    means::allow_descriptors();
    let normal = normal(args)?;
    let args = &normal;
    if args.flow.policy.is_some() && !args.hint.hint().is_empty() {
        let text = "--policy says which methods are used, and so do --mode and the other hints; give one of them";
        return Err(narrows::Error::misuse(text).into());
    }
    let dash = Dash::of(args)?;
    let (tell, failures) = recording();
    let mut copied = copy(args, dash, &tell);
    if dash == Dash::Nowhere && !args.store_compressed && wants_frames(&copied) {
        refuse_habits(args, "where files are kept as they come")?;
        copied = copy(&CpArgs { store_compressed: true, ..args.clone() }, dash, &tell);
    }
    match copied {
        Ok(outcome) => {
            say(args, dash, &outcome, &failures, begun.elapsed())?;
            Ok(ExitCode::from(match &outcome {
                o if o.damaged > 0 => SOME_FAILED,
                o if o.failed > 0 && o.files + o.files_same + o.removed == 0 && !o.begun => {
                    if o.not_stored > 0 {
                        NOT_STORED
                    } else {
                        NOTHING
                    }
                }
                o if o.failed > 0 || o.not_removed.is_some() => SOME_FAILED,
                o if o.changed > 0 => CHANGED,
                _ => 0,
            }))
        }
        // Whatever fails then fails because of it: a shell that carries the copy ends of the same signal.
        Err(e) if signals::received().is_some() && !e.is::<files::StdoutClosed>() => {
            let hint = if dash == Dash::Nowhere { "; run the same command again to resume" } else { "" };
            Err(anyhow!("interrupted{hint}"))
        }
        // Running it again fetches the same bytes.
        Err(e) if objects::are_meant(args) && objects::is_damage(&e) => {
            report::note(report::one_line(&e));
            Ok(ExitCode::from(SOME_FAILED))
        }
        Err(e) if is_unreachable(&e) => {
            report::note(report::one_line(&e));
            Ok(ExitCode::from(LOST))
        }
        Err(e) if narrows_copy::is_link_lost(e.as_ref()) => {
            // stdin and stdout cannot be rewound, so the copy cannot resume.
            let hint = if dash == Dash::Nowhere { "; run the same command again to resume" } else { "" };
            report::note(format_args!("{}{hint}", report::one_line(&e)));
            Ok(ExitCode::from(LOST))
        }
        // Exit status 3 would claim that everything but the reported entries was copied.
        Err(e)
            if report::kind(&e).is_some_and(|kind| kind != narrows::ErrorKind::Misuse)
                && e.downcast_ref::<crate::files::StdoutClosed>().is_none() =>
        {
            report::note(report::one_line(&e));
            Ok(ExitCode::FAILURE)
        }
        Err(e) => Err(e),
    }
}

/// The options with what follows from them.
fn normal(args: &CpArgs) -> Result<CpArgs> {
    let misuse = |text: &str| Err(narrows::Error::misuse(text.to_owned()).into());
    let mut args = args.clone();
    let habits = &args.habits;
    habits.check()?;
    // As with rsync, -a does not make a list recursive.
    args.recursive |= habits.archive && habits.files_from.is_none();
    if args.delete && !args.recursive {
        return misuse("--delete is for folders: give --recursive (-r) too");
    }
    if args.max_delete.is_some() && !args.delete {
        return misuse("--max-delete limits --delete: give that too");
    }
    if habits.files_from.is_some() && args.delete {
        return misuse(match args.mirrors {
            true => "sync would remove what the list of --files-from does not name; use narrows cp",
            false => "--delete would remove what the list of --files-from does not name; copy without one of them",
        });
    }
    if habits.files_from.is_some() && args.paths.len() != 2 {
        return misuse("--files-from lists paths below one source: narrows cp --files-from FILE SRC DST");
    }
    if args.store_compressed {
        refuse_habits(&args, "with --store-compressed")?;
    }
    Ok(args)
}

/// Refuses options that only copies of plain files can follow.
fn refuse_habits(args: &CpArgs, place: &str) -> Result<()> {
    let asked = args.habits.asked().filter(|asked| !["--bwlimit", "--mkpath"].contains(asked));
    asked.map_or(Ok(()), |asked| Err(narrows::Error::misuse(format!("{asked} does not work {place}")).into()))
}

/// Whether the other end keeps files as they come, and nothing was copied therefore.
fn wants_frames(copied: &Result<Outcome>) -> bool {
    match copied {
        Ok(outcome) => outcome.wants_frames,
        // A server that does not know numbers says it in words.
        Err(e) => e.chain().any(|e| e.to_string().contains(AS_IT_COMES)),
    }
}

fn copy(args: &CpArgs, dash: Dash, tell: &Tell) -> Result<Outcome> {
    let misuse = |text: String| anyhow::Error::from(narrows::Error::misuse(text));
    if objects::are_meant(args) {
        if let Some(option) = args.habits.asked() {
            return Err(misuse(format!("{option} does not work with object stores")));
        }
        return objects::copy(args, dash, tell);
    }
    let paths = crate::place::without_file_urls(&args.paths)?;
    let places = paths.iter().map(|p| Place::parse(p).map_err(misuse)).collect::<Result<Vec<_>>>()?;
    let places: Vec<_> = places.into_iter().map(|place| place.with_port(args.habits.port)).collect();
    if dash != Dash::Nowhere && args.habits.asked().is_some_and(|asked| asked != "--bwlimit") {
        let option = args.habits.asked().unwrap_or_default();
        return Err(misuse(format!("{option} does not work with stdin and stdout")));
    }
    match (dash, &places[..]) {
        (Dash::Source, [_, target]) => {
            stdio::check_name(target)?;
            return send(args, Input::Stream(Box::new(files::stdin()?)), true, target, tell);
        }
        (Dash::Target, [source, _]) => return stdio::get(args, source, tell),
        (Dash::Nowhere, [Place::Local(source), target]) if is_read(args, source) => {
            stdio::check_name(target)?;
            let stream = Source::open(Some(source))?;
            return send(args, Input::Stream(Box::new(stream)), true, target, tell);
        }
        _ => {}
    }
    let Some((target, sources)) = places.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(misuse("cp needs a source and a target: narrows cp [OPTIONS] SRC... DST".into()));
    };
    if args.store_compressed && places.iter().all(|place| matches!(place, Place::Local(_))) {
        return Err(misuse(
            "--store-compressed is for copies to and from another host; here, `narrows FILE` compresses".into(),
        ));
    }
    let local: Vec<PathBuf> =
        sources.iter().filter_map(|p| if let Place::Local(path) = p { Some(path.clone()) } else { None }).collect();
    let copied = match target {
        target if local.len() == sources.len() => put(args, &local, target, tell),
        Place::Local(target) => get(args, sources, target, tell),
        _ => Err(misuse("both ends are remote; run narrows cp on one of the hosts, or copy in two steps".into())),
    };
    match copied {
        Err(e) if has_no_narrows(&e) && !args.no_fallback && !args.store_compressed => {
            fallback::copy(args, sources, target, e, tell)
        }
        copied => copied,
    }
}

fn is_unreachable(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(narrows_copy::Error::Unreachable(_)))
}

fn has_no_narrows(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(narrows_copy::Error::NoNarrows(_)))
}

/// Whether the source is a fifo whose content is to be copied, such as `<(COMMAND)`.
fn is_read(args: &CpArgs, source: &Path) -> bool {
    !args.recursive && !args.devices && !args.dry_run && files::is_fifo(source)
}

fn put(args: &CpArgs, sources: &[PathBuf], target: &Place, tell: &Tell) -> Result<Outcome> {
    let listed = args.habits.files()?;
    if listed.as_ref().is_some_and(Vec::is_empty) {
        return Ok(Outcome::default());
    }
    let contents;
    let sources = match &listed {
        Some(_) => {
            contents = sources.iter().map(|source| contents_of(source)).collect::<Vec<_>>();
            &contents[..]
        }
        None => sources,
    };
    let (mut roots, unopened) = open_roots(sources, args.recursive || listed.is_some(), args.habits.copy_links);
    if roots.is_empty() {
        // One line each, as for sources that fail later.
        unopened.iter().for_each(|text| tell(text));
        return Ok(Outcome { failed: unopened.len() as u64, unstarted: true, ..Outcome::default() });
    }
    if args.delete {
        check_delete(args, sources, target)?;
    }
    let single = listed.is_none() && sources.len() == 1 && !sources[0].is_dir();
    for source in sources {
        files::refuse_same(source, [args.flow.trace.as_deref()])?;
    }
    let listed = listed.map(|files| Listed::new(&files, args.recursive)).transpose();
    let listed = listed.map_err(narrows::Error::misuse)?;
    if let Some(listed) = &listed {
        roots.iter_mut().for_each(|root| root.list(listed, true));
    }
    let picks = Picks { listed, ..args.habits.picks() };
    let input = Input::Paths { roots, unopened, filter: Filter::new(&patterns_of_source(args))? };
    send_picked(args, input, picks, single, target, tell)
}

/// The host that a copy is sent to; `None` within this one.
fn peer(args: &CpArgs, target: &Place) -> Option<Peer> {
    match target {
        Place::Local(_) => None,
        Place::Ssh { host, port, .. } => {
            Some(Peer::shell(&host.to_string_lossy(), *port, &args.shell.to_string_lossy()))
        }
        Place::Direct { host, port, .. } => Some(Peer::tcp(host, *port)),
    }
}

/// Opens a target on this host. Tells the sources and the target about each other, so that the copy
/// neither reads what it writes nor overwrites a source.
fn open_local(args: &CpArgs, target: &Place, single: bool, input: &mut Input) -> Result<Option<Opened>> {
    let Place::Local(path) = target else { return Ok(None) };
    let mut opened = open_target(path, single, args.dry_run, args.habits.mkpath)?;
    opened.beside = beside(args, path)?;
    opened.partials = open_partials(&store_options(args, true))?;
    if let (Into::Tree(folder, None), Input::Paths { roots, .. }) = (&opened.into, input) {
        let folder = Arc::new(TargetFolder::new(folder, opened.is_new, roots)?);
        roots.iter_mut().for_each(|root| root.goes_to(&folder));
        opened.sources = roots.iter().filter_map(Root::place).collect();
    }
    Ok(Some(opened))
}

/// Opens the folders of --link-dest on this host.
fn beside(args: &CpArgs, target: &Path) -> Result<Vec<Tree>> {
    let opened = args.habits.link_dest.iter().map(|dir| Ok(open_beside(target, dir)?));
    opened.filter_map(Result::transpose).collect()
}

fn send(args: &CpArgs, input: Input, single: bool, target: &Place, tell: &Tell) -> Result<Outcome> {
    send_picked(args, input, Picks::default(), single, target, tell)
}

fn send_picked(
    args: &CpArgs,
    mut input: Input,
    picks: Picks,
    single: bool,
    target: &Place,
    tell: &Tell,
) -> Result<Outcome> {
    let transfer = Transfer::begin()?;
    let control = &transfer.control;
    let opened = open_local(args, target, single, &mut input)?;
    let own_target = match opened.as_ref().map(|opened| &opened.into) {
        Some(Into::Tree(tree, rename)) if args.habits.remove_source_files => Some((tree.try_clone()?, rename.clone())),
        _ => None,
    };
    let task = Task::Put {
        target: target.path().clone(),
        single,
        store: store_options(args, matches!(target, Place::Local(_))),
    };

    // A pipe may wait for what comes next, and so would the first half of an image.
    let is_stream = matches!(input, Input::Stream(_));
    let images = recompresses(args) && !is_stream;
    let mut flow_args = args.flow.clone();
    if matches!(target, Place::Local(_)) {
        // No data crosses a link.
        flow_args.policy = Some(PolicySpec::store());
    } else if args.store_compressed && flow_args.policy.is_none() && !args.hint.hint().is_empty() {
        // One flow encodes all files, so what the command line says is about all of them.
        flow_args.policy = Some(PolicySpec::of_hint(&args.hint.hint(), Mode::default()));
    }
    let sending = transfer.sending(flow_args, args.verbosity.verbose, !matches!(target, Place::Local(_)));
    let sending = sending.with_peer(args.memory.of(|| peer(args, target)));
    let options = sending.options(args.timeout)?;
    let (options, frames) = match args.store_compressed {
        true => {
            let carrier = carrier_options().stall_timeout(flow::seconds(args.timeout));
            let frames = FramesOptions::new(options, control, false);
            // A policy says which methods are used, whatever the files say.
            let frames = if args.flow.policy.is_some() { frames } else { frames.obey_never(args.hint.hint()) };
            (carrier, Some(frames))
        }
        false if matches!(target, Place::Local(_)) => (options, None),
        false => (options.reach(reach_asked(args)).images(images), None),
    };
    let encoding = frames.as_ref().map(FramesOptions::encoding);
    let source = SourceOptions {
        dry_run: args.dry_run,
        on_failure: telling(tell),
        on_skipped: skipped(args, target),
        on_file: Box::new(sent_names(args, matches!(target, Place::Local(_)))),
        names: names_wanted(args) || itemizes(args),
        totals: false,
        on_removed: if args.delete { Some(Box::new(removed_names(args))) } else { None },
        answers_within: flow::seconds(args.timeout),
        frames,
        picks,
        itemized: itemizes(args),
        removes: args.habits.remove_source_files,
        images,
        holes: false,
    };
    let mut source = EntrySource::start(input, source)?;
    let options = options.on_note(source.on_note());
    let progress = source.progress();
    let (watched, shares) = (Arc::clone(control), source.progress());
    let seen = move || {
        let p = shares();
        Seen { wire_bytes: watched.send_summary().wire_bytes, bytes: p.bytes, done: p.share_done() }
    };
    let (carrier, link, grower) = start(args, target, &task, opened, seen)?;
    watched::sending(args, target, control, source.progress());
    let bar = Bar::copying(control, source.progress(), !args.verbosity.quiet);
    let sent = sending.send(source.reader(), link, options, bar);
    source.stop();
    drop(grower);
    let (sent, failed) = match sent {
        Ok(sent) => (Some(sent), None),
        Err(e) => (None, Some(e)),
    };
    let ended = carrier.end(failed);
    let may_ask_again = !is_stream && !args.store_compressed;
    if ended.is_err() && may_ask_again && source.progress()().refused == Some(FORM) {
        return Ok(Outcome { wants_frames: true, ..Outcome::default() });
    }
    ended?;
    let not_removed_sources = Cell::new(0);
    source.remove_sources(own_target, &|text| {
        not_removed_sources.set(not_removed_sources.get() + 1);
        tell(text);
    });
    let mut sent = sent.context("the copy has no result; this is a bug")?;
    let mut encoded = None;
    if let Some((summary, policy)) = encoding.and_then(|encoding| encoding.take()) {
        // The carrier knows the link, the encoder the data.
        sent.policy = policy;
        encoded = Some(summary);
    }
    sending.finish(&sent)?;
    let Sent { mut summary, elapsed, .. } = sent;
    let p = progress();
    if args.store_compressed {
        // The carrier's own raw bytes are encoded ones.
        summary.raw_bytes = p.bytes_done;
    }
    let within_host = matches!(target, Place::Local(_));
    let bottleneck = Bottleneck::of_sending(&summary, p.answers_ns, within_host);
    let mut json = report::send_json(&summary, elapsed);
    bottleneck.put(&mut json);
    let parts = [
        Some(report::amount(summary.raw_bytes, elapsed)),
        (!within_host).then(|| report::wire(summary.raw_bytes, summary.wire_bytes)),
        bottleneck.words(elapsed),
    ];
    let mix = report::mix_words(encoded.as_ref().unwrap_or(&summary));
    Ok(Outcome {
        files: p.files_sent,
        files_same: p.files_same,
        others: p.others,
        repeated: p.bytes_repeated,
        failed: p.failed + not_removed_sources.get(),
        not_stored: p.not_stored,
        changed: p.changed,
        losses: p.losses,
        removed: p.removed,
        not_removed: p.not_removed,
        line: report::join(parts),
        mix,
        json,
        ..Outcome::default()
    })
}

fn get(args: &CpArgs, sources: &[Place], target: &Path, tell: &Tell) -> Result<Outcome> {
    let transfer = Transfer::begin()?;
    let from = &sources[0];
    if !sources.iter().all(|s| s.is_beside(from)) {
        let text = "the sources are in more than one place; copy them in two steps";
        return Err(narrows::Error::misuse(text).into());
    }
    let files = args.habits.files()?;
    if files.as_ref().is_some_and(Vec::is_empty) {
        return Ok(Outcome::default());
    }
    let source_path = |path: &PathBuf| if files.is_some() { contents_of(path) } else { path.clone() };
    let paths: Vec<PathBuf> = sources.iter().map(|s| source_path(s.path())).collect();
    let several = matches!(from, Place::Ssh { .. }) && paths.iter().any(|path| remote_path::has_pattern(path));
    let single = paths.len() == 1 && !args.recursive && !several && files.is_none();
    let patterns = patterns_of_source(args);
    let is_filtered = !(args.exclude.is_empty() && args.include.is_empty());
    // Reports a bad pattern before anything is done, with the error text of this end.
    let filter = Filter::new(&patterns)?;
    let may_be_file = paths.len() == 1 && !several && scan::top(&paths[0]).is_some();
    let undecided = args.recursive && may_be_file && is_undecided(target);
    let permitted = match &files {
        Some(files) => Permitted::Listed(Listed::new(files, args.recursive).map_err(narrows::Error::misuse)?),
        None => Permitted::tops(&paths, args.recursive),
    };
    let (tree, rename) = match open_target(target, single || undecided, args.dry_run, args.habits.mkpath)?.into {
        Into::Tree(tree, _) if undecided => (tree, None),
        Into::Tree(tree, rename) => (tree, rename),
        Into::Special(special) => return stdio::get_into(args, from, &special, target, tell),
    };
    let has_list = files.is_some();
    let what = GetTask {
        sources: paths,
        recursive: args.recursive,
        exclude: patterns,
        dry_run: args.dry_run,
        totals: true,
        stored: is_stored(args),
        frames: args.store_compressed,
        images: recompresses(args),
        codes: true,
        sockets: true,
        holes: true,
        habits: args.habits.source(files),
    };
    let task = Task::Get(what);
    let notes = Notes::default();
    let options = ReceiveOptions::default().notes(&notes).stall_timeout(flow::seconds(args.timeout));
    let options = options.reach_max(reach_asked(args)).images(recompresses(args));
    let wants_frames = Arc::new(AtomicBool::new(false));
    let (told, heard) = (telling(tell), Arc::clone(&wants_frames));
    let may_ask_again = !args.store_compressed;
    // A server that does not know numbers says it in words.
    let on_failure = move |text: &str| match may_ask_again && text == AS_IT_COMES {
        true => heard.store(true, Ordering::Relaxed),
        false => told(text),
    };
    let observers = Observers {
        on_failure: Box::new(on_failure),
        on_skipped: skipped(args, &Place::Local(target.to_path_buf())).map(|told| told as Box<dyn Fn(&str) + Send>),
        on_file: Box::new(sent_names(args, true)),
        on_removed: Some(Box::new(removed_names(args))),
    };
    let form = if args.store_compressed { Form::Decoded } else { Form::Raw };
    // The server may not know the answer that asks for them; it heard that they may come.
    let options_of_store = StoreOptions { form, holes: false, ..store_options(args, false) };
    let partials = open_partials(&options_of_store)?;
    let mut store = EntryStore::new(tree, rename, permitted, options_of_store, notes, observers)?;
    store = store.beside(beside(args, target)?).partials(partials)?.asked(filter, args.habits.copy_links);
    if undecided {
        store = store.undecided(target.to_path_buf());
    }
    let (carrier, link, grower) = start(args, from, &task, None, receiving(&transfer.control))?;
    watched::storing(args, from, &transfer.control, store.clone());
    let bar = Bar::storing(&transfer.control, store.clone(), !args.verbosity.quiet);
    let end = store.clone();
    let received = transfer.receive(store.clone(), link, options, move || end.finish(), bar);
    let (received, failed) = match received {
        Ok(received) => (Some(received), None),
        Err(e) => {
            store.abandon();
            (None, Some(e))
        }
    };
    drop(grower);
    carrier.end(failed)?;
    let Received { mut summary, elapsed } = received.context("the copy has no result; this is a bug")?;
    let s = store.stored();
    if args.store_compressed {
        summary.raw_bytes = s.bytes_done;
    }
    let (line, json) = received_words(&summary, elapsed, from, Part::Disk);
    let refused = match s.refused {
        Some((FORM, _)) if may_ask_again => true,
        Some((_, text)) => return Err(narrows_copy::Error::Peer(text.into()).into()),
        None => false,
    };
    if refused || wants_frames.load(Ordering::Relaxed) {
        return Ok(Outcome { wants_frames: true, ..Outcome::default() });
    }
    // Without -r, --exclude and wildcards, each source is a file or a reported failure.
    let expected = if args.recursive || several || is_filtered || has_list || args.habits.update {
        0
    } else {
        sources.len() as u64
    };
    let unsaid = s.unsaid + expected.saturating_sub(s.announced + s.failed);
    if unsaid > 0 {
        tell(&format!(
            "{unsaid} did not arrive, and the other end gave no reason; copy again, or look for the cause there"
        ));
    }
    Ok(Outcome {
        files: s.files,
        files_same: s.files_same,
        others: s.announced.saturating_sub(s.files + s.files_same + s.failed),
        repeated: s.bytes_repeated,
        failed: s.failed + unsaid,
        not_stored: s.not_stored,
        changed: s.changed,
        losses: s.losses,
        removed: s.removed,
        not_removed: s.not_removed,
        line,
        json,
        ..Outcome::default()
    })
}

/// The summary of a received flow, as text and as JSON.
fn received_words(s: &RecvSummary, elapsed: Duration, from: &Place, sink: Part) -> (String, serde_json::Value) {
    let within_host = matches!(from, Place::Local(_));
    let from = if within_host { Part::Source } else { Part::LinkOrSender };
    let bottleneck = Bottleneck::of_receiving(s, stream::cores(), elapsed, (from, sink));
    let mut json = report::receive_json(s, elapsed);
    bottleneck.put(&mut json);
    let parts = [
        Some(report::amount(s.raw_bytes, elapsed)),
        (!within_host).then(|| report::wire(s.raw_bytes, s.wire_bytes)),
        bottleneck.words(elapsed),
    ];
    (report::join(parts), json)
}

/// Starts the other end, and the [`Grower`] that adds carriers while they make the copy faster.
fn start(
    args: &CpArgs,
    place: &Place,
    task: &Task,
    opened: Option<Opened>,
    seen: impl Fn() -> Seen + Send + 'static,
) -> Result<(Carrier, Link, Option<Grower>)> {
    if args.habits.yields() && matches!(place, Place::Ssh { .. }) {
        return Err(narrows::Error::misuse(NO_ROUND_TRIPS).into());
    }
    let trust = Trust::of(place, args.token_file.as_deref(), args.insecure)?;
    let shell = carrier::shell_for(&args.shell, place)?;
    let reach = Reach { shell: &shell, program: &args.remote_narrows, trust: trust.as_ref() };
    let (carrier, link, growth) = Carrier::start(place, &reach, task, opened)?;
    let sends = matches!(task, Task::Put { .. });
    // A copy within this host has no link.
    let yields = args.habits.yields() && matches!(place, Place::Direct { .. });
    let link = match args.habits.rate() {
        _ if sends && yields => link.yielding(),
        rate if sends && rate > 0 => link.limited(rate),
        _ => link,
    };
    // Several connections would be several flows, and each would take a part of the link.
    let carriers = if yields { 1 } else { args.carriers };
    let grower = growth.map(|growth| Grower::start(growth.bond.clone(), carriers, seen, move || growth.open()));
    Ok((carrier, link, grower))
}

/// Progress of a receiving copy, for the [`Grower`].
fn receiving(control: &Arc<Control>) -> impl Fn() -> Seen + Send + use<> {
    let control = Arc::clone(control);
    move || Seen { wire_bytes: control.receive_summary().wire_bytes, ..Seen::default() }
}

/// How far back copies may refer. They are compression too, for those who forbid it.
fn reach_asked(args: &CpArgs) -> usize {
    if is_stored(args) { 0 } else { reach(args.long) }
}

/// Whether images are recompressed on the way where that pays. Frames that are stored as they come have a
/// hint of their own.
fn recompresses(args: &CpArgs) -> bool {
    args.hint.hint().wants_images() && !args.store_compressed && args.flow.policy.is_none()
}

/// Whether compression is disabled in both directions.
fn is_stored(args: &CpArgs) -> bool {
    args.flow.policy == Some(PolicySpec::store())
}

/// The options of the storing end. `within_host`: the files stay on this host, under the same user.
fn store_options(args: &CpArgs, within_host: bool) -> StoreOptions {
    StoreOptions {
        fsync: args.fsync.into(),
        devices: args.devices,
        unmade: Unmade::Skipped,
        dry_run: args.dry_run,
        owner: (args.owner || args.no_owner).then_some(args.owner),
        delete: args.delete.then(|| Delete {
            exclude: patterns(args),
            max: args.max_delete,
            names: names_wanted(args) || itemizes(args) || args.habits.removals.is_some(),
            confirmed: args.habits.confirmed,
        }),
        names: names_wanted(args),
        set_id: args.set_id || within_host,
        form: if args.store_compressed { Form::AsTheyCame } else { Form::Raw },
        images: recompresses(args) && !within_host,
        codes: true,
        holes: true,
        habits: args.habits.store(itemizes(args)),
    }
}

/// Refuses uses of --delete that are seen to be wrong before the copy begins.
fn check_delete(args: &CpArgs, sources: &[PathBuf], target: &Place) -> Result<()> {
    if !sources.iter().any(|path| scan::top(path).is_none() || path.symlink_metadata().is_ok_and(|s| s.is_dir())) {
        let what = if args.mirrors { "sync" } else { "--delete" };
        return Err(narrows::Error::misuse(format!("{what} is for folders, and no source is a folder")).into());
    }
    let Place::Local(target) = target else { return Ok(()) };
    for path in sources {
        let covered = scan::top(path).map_or_else(|| target.clone(), |top| target.join(OsStr::from_bytes(&top)));
        let Ok(covered) = covered.canonicalize() else { continue };
        if let Some(path) = sources.iter().find(|path| is_inside(path, &covered)) {
            let path = shown(path.as_os_str().as_bytes());
            let what = if args.mirrors { "sync" } else { "--delete" };
            return Err(narrows::Error::misuse(format!("{path} is in the target, where {what} would remove it")).into());
        }
    }
    Ok(())
}

/// Whether a path is in a folder, under whatever name the folder is mounted.
fn is_inside(path: &Path, folder: &Path) -> bool {
    let place = |path: &Path| path.metadata().ok().map(|data| (data.dev(), data.ino()));
    let (Ok(path), Some(folder)) = (path.canonicalize(), place(folder)) else { return false };
    place(&path) != Some(folder) && path.ancestors().skip(1).any(|above| place(above) == Some(folder))
}

/// The patterns of --exclude, then those of --include as negations, which therefore take
/// precedence.
fn patterns(args: &CpArgs) -> Vec<String> {
    let include = args.include.iter().map(|p| format!("!{p}"));
    args.exclude.iter().cloned().chain(include).collect()
}

/// The same, and that of folders with files that are not whole.
fn patterns_of_source(args: &CpArgs) -> Vec<String> {
    patterns(args).into_iter().chain(args.habits.pattern_of_partials()).collect()
}
