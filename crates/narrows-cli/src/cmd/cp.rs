//! `narrows cp`: copies files and folders from this host to another, from another to this one, or
//! within this one.

use std::cell::Cell;
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

use crate::args::CpArgs;
use crate::files::Source;
use crate::progress::Bar;
use crate::transfer::{Received, Sent, Transfer};
use crate::{files, report};
use narrows_copy::FORM;
use narrows_copy::carrier::{self, Carrier, Reach};
use narrows_copy::carriers::{Grower, Seen};
use narrows_copy::filter::Filter;
use narrows_copy::frames::{Form, FramesOptions};
use narrows_copy::hello::{GetTask, StoreOptions, Task};
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
use narrows_host::{means, signals};
use narrows_watch::bottleneck::{Bottleneck, Part};

mod fallback;
mod objects;
mod plan;
mod removals;
mod say;
mod stdio;
pub(crate) mod sync;
mod watched;

use plan::{Plan, contents_of};
pub(super) use say::teller;
use say::{names, recording, removed_names, say, sent_names, skipped, telling};
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
    carry_out(&Plan::new(args, false)?)
}

/// Copies as planned, and returns the exit status.
fn carry_out(plan: &Plan) -> Result<ExitCode> {
    let begun = Instant::now();
    means::allow_descriptors();
    if plan.coding.flow.policy.is_some() && !plan.coding.hint.is_empty() {
        return misuse("--policy says which methods are used, and so do --mode and the other hints; give one of them");
    }
    let dash = Dash::of(plan)?;
    let (tell, failures) = recording();
    let mut copied = copy(plan, dash, &tell);
    if dash == Dash::Nowhere && !plan.coding.store_compressed && wants_frames(&copied) {
        plan.refuse_habits("where files are kept as they come")?;
        let mut stored = plan.clone();
        stored.coding.store_compressed = true;
        copied = copy(&stored, dash, &tell);
    }
    match copied {
        Ok(outcome) => {
            say(plan, dash, &outcome, &failures, begun.elapsed())?;
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
        Err(e) if objects::are_meant(plan) && objects::is_damage(&e) => {
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

/// Whether the other end keeps files as they come, and nothing was copied therefore.
fn wants_frames(copied: &Result<Outcome>) -> bool {
    match copied {
        Ok(outcome) => outcome.wants_frames,
        // A server that does not know numbers says it in words.
        Err(e) => e.chain().any(|e| e.to_string().contains(AS_IT_COMES)),
    }
}

fn copy(plan: &Plan, dash: Dash, tell: &Tell) -> Result<Outcome> {
    let misuse = |text: String| anyhow::Error::from(narrows::Error::misuse(text));
    if objects::are_meant(plan) {
        if let Some(option) = plan.habit {
            return Err(misuse(format!("{option} does not work with object stores")));
        }
        return objects::copy(plan, dash, tell);
    }
    let paths = crate::place::without_file_urls(&plan.paths)?;
    let places = paths.iter().map(|p| Place::parse(p).map_err(misuse)).collect::<Result<Vec<_>>>()?;
    let places: Vec<_> = places.into_iter().map(|place| place.with_port(plan.way.port)).collect();
    if dash != Dash::Nowhere && plan.habit.is_some_and(|asked| asked != "--bwlimit") {
        let option = plan.habit.unwrap_or_default();
        return Err(misuse(format!("{option} does not work with stdin and stdout")));
    }
    match (dash, &places[..]) {
        (Dash::Source, [_, target]) => {
            stdio::check_name(target)?;
            return send(plan, Input::Stream(Box::new(files::stdin()?)), true, target, tell);
        }
        (Dash::Target, [source, _]) => return stdio::get(plan, source, tell),
        (Dash::Nowhere, [Place::Local(source), target]) if is_read(plan, source) => {
            stdio::check_name(target)?;
            let stream = Source::open(Some(source))?;
            return send(plan, Input::Stream(Box::new(stream)), true, target, tell);
        }
        _ => {}
    }
    let Some((target, sources)) = places.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(misuse("cp needs a source and a target: narrows cp [OPTIONS] SRC... DST".into()));
    };
    if plan.coding.store_compressed && places.iter().all(|place| matches!(place, Place::Local(_))) {
        return Err(misuse(
            "--store-compressed is for copies to and from another host; here, `narrows FILE` compresses".into(),
        ));
    }
    let local: Vec<PathBuf> =
        sources.iter().filter_map(|p| if let Place::Local(path) = p { Some(path.clone()) } else { None }).collect();
    let copied = match target {
        target if local.len() == sources.len() => put(plan, &local, target, tell),
        Place::Local(target) => get(plan, sources, target, tell),
        _ => Err(misuse("both ends are remote; run narrows cp on one of the hosts, or copy in two steps".into())),
    };
    match copied {
        Err(e) if has_no_narrows(&e) && plan.way.falls_back && !plan.coding.store_compressed => {
            fallback::copy(plan, sources, target, e, tell)
        }
        copied => copied,
    }
}

/// The error of a command line that no copy can follow.
fn misuse<T>(text: impl std::convert::Into<String>) -> Result<T> {
    Err(narrows::Error::misuse(text.into()).into())
}

fn is_unreachable(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(narrows_copy::Error::Unreachable(_)))
}

fn has_no_narrows(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(narrows_copy::Error::NoNarrows(_)))
}

/// Whether the source is a fifo whose content is to be copied, such as `<(COMMAND)`.
fn is_read(plan: &Plan, source: &Path) -> bool {
    !plan.pick.recursive && !plan.pick.devices && !plan.dry_run && files::is_fifo(source)
}

fn put(plan: &Plan, sources: &[PathBuf], target: &Place, tell: &Tell) -> Result<Outcome> {
    let listed = plan.pick.files()?;
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
    let (mut roots, unopened) = open_roots(sources, plan.pick.recursive || listed.is_some(), plan.pick.follow);
    if roots.is_empty() {
        // One line each, as for sources that fail later.
        unopened.iter().for_each(|text| tell(text));
        return Ok(Outcome { failed: unopened.len() as u64, unstarted: true, ..Outcome::default() });
    }
    if plan.delete.is_some() {
        plan.check_delete(sources, target)?;
    }
    let single = listed.is_none() && sources.len() == 1 && !sources[0].is_dir();
    for source in sources {
        files::refuse_same(source, [plan.coding.flow.trace.as_deref()])?;
    }
    let listed = listed.map(|files| Listed::new(&files, plan.pick.recursive)).transpose();
    let listed = listed.map_err(narrows::Error::misuse)?;
    if let Some(listed) = &listed {
        roots.iter_mut().for_each(|root| root.list(listed, true));
    }
    let picks = Picks { listed, ..plan.pick.picks() };
    let input = Input::Paths { roots, unopened, filter: Filter::new(&plan.pick.patterns_of_source())? };
    send_picked(plan, input, picks, single, target, tell)
}

/// Opens a target on this host. Tells the sources and the target about each other, so that the copy
/// neither reads what it writes nor overwrites a source.
fn open_local(plan: &Plan, target: &Place, single: bool, input: &mut Input) -> Result<Option<Opened>> {
    let Place::Local(path) = target else { return Ok(None) };
    let mut opened = open_target(path, single, plan.dry_run, plan.keep.habits.make_parents)?;
    opened.beside = beside(plan, path)?;
    opened.partials = open_partials(&plan.store_options(true))?;
    if let (Into::Tree(folder, None), Input::Paths { roots, .. }) = (&opened.into, input) {
        let folder = Arc::new(TargetFolder::new(folder, opened.is_new, roots)?);
        roots.iter_mut().for_each(|root| root.goes_to(&folder));
        opened.sources = roots.iter().filter_map(Root::place).collect();
    }
    Ok(Some(opened))
}

/// Opens the folders of --link-dest on this host.
fn beside(plan: &Plan, target: &Path) -> Result<Vec<Tree>> {
    let opened = plan.keep.habits.link_dest.iter().map(|dir| Ok(open_beside(target, dir)?));
    opened.filter_map(Result::transpose).collect()
}

fn send(plan: &Plan, input: Input, single: bool, target: &Place, tell: &Tell) -> Result<Outcome> {
    send_picked(plan, input, Picks::default(), single, target, tell)
}

fn send_picked(
    plan: &Plan,
    mut input: Input,
    picks: Picks,
    single: bool,
    target: &Place,
    tell: &Tell,
) -> Result<Outcome> {
    let transfer = Transfer::begin()?;
    let control = &transfer.control;
    let opened = open_local(plan, target, single, &mut input)?;
    let own_target = match opened.as_ref().map(|opened| &opened.into) {
        Some(Into::Tree(tree, rename)) if plan.pick.removes => Some((tree.try_clone()?, rename.clone())),
        _ => None,
    };
    let task = Task::Put {
        target: target.path().clone(),
        single,
        store: plan.store_options(matches!(target, Place::Local(_))),
    };

    // A pipe may wait for what comes next, and so would the first half of an image.
    let is_stream = matches!(input, Input::Stream(_));
    let images = plan.coding.recompresses() && !is_stream;
    let mut flow_args = plan.coding.flow.clone();
    if matches!(target, Place::Local(_)) {
        // No data crosses a link.
        flow_args.policy = Some(PolicySpec::store());
    } else if plan.coding.store_compressed && flow_args.policy.is_none() && !plan.coding.hint.is_empty() {
        // One flow encodes all files, so what the command line says is about all of them.
        flow_args.policy = Some(PolicySpec::of_hint(&plan.coding.hint, Mode::default()));
    }
    let sending = transfer.sending(flow_args, plan.told.verbosity.verbose, !matches!(target, Place::Local(_)));
    let sending = sending.with_peer(plan.way.peer(target));
    let options = sending.options(plan.timeout)?;
    let (options, frames) = match plan.coding.store_compressed {
        true => {
            let carrier = carrier_options().stall_timeout(plan.patience());
            let frames = FramesOptions::new(options, control, false);
            // A policy says which methods are used, whatever the files say.
            let frames =
                if plan.coding.flow.policy.is_some() { frames } else { frames.obey_never(plan.coding.hint.clone()) };
            (carrier, Some(frames))
        }
        false if matches!(target, Place::Local(_)) => (options, None),
        false => (options.reach(plan.coding.reach()).images(images), None),
    };
    let encoding = frames.as_ref().map(FramesOptions::encoding);
    let source = SourceOptions {
        dry_run: plan.dry_run,
        on_failure: telling(tell),
        on_skipped: skipped(plan, target),
        on_file: Box::new(sent_names(plan, matches!(target, Place::Local(_)))),
        names: plan.names_wanted() || plan.told.itemizes(),
        totals: false,
        on_removed: if plan.delete.is_some() { Some(Box::new(removed_names(plan))) } else { None },
        answers_within: plan.patience(),
        frames,
        picks,
        itemized: plan.told.itemizes(),
        removes: plan.pick.removes,
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
    let (carrier, link, grower) = start(plan, target, &task, opened, seen)?;
    watched::sending(plan, target, control, source.progress());
    let bar = Bar::copying(control, source.progress(), !plan.told.verbosity.quiet);
    let sent = sending.send(source.reader(), link, options, bar);
    source.stop();
    drop(grower);
    let (sent, failed) = match sent {
        Ok(sent) => (Some(sent), None),
        Err(e) => (None, Some(e)),
    };
    let ended = carrier.end(failed);
    let may_ask_again = !is_stream && !plan.coding.store_compressed;
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
    if plan.coding.store_compressed {
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

fn get(plan: &Plan, sources: &[Place], target: &Path, tell: &Tell) -> Result<Outcome> {
    let transfer = Transfer::begin()?;
    let from = &sources[0];
    if !sources.iter().all(|s| s.is_beside(from)) {
        let text = "the sources are in more than one place; copy them in two steps";
        return Err(narrows::Error::misuse(text).into());
    }
    let files = plan.pick.files()?;
    if files.as_ref().is_some_and(Vec::is_empty) {
        return Ok(Outcome::default());
    }
    let source_path = |path: &PathBuf| if files.is_some() { contents_of(path) } else { path.clone() };
    let paths: Vec<PathBuf> = sources.iter().map(|s| source_path(s.path())).collect();
    let several = matches!(from, Place::Ssh { .. }) && paths.iter().any(|path| remote_path::has_pattern(path));
    let single = paths.len() == 1 && !plan.pick.recursive && !several && files.is_none();
    let patterns = plan.pick.patterns_of_source();
    let is_filtered = !plan.pick.patterns.is_empty();
    // Reports a bad pattern before anything is done, with the error text of this end.
    let filter = Filter::new(&patterns)?;
    let may_be_file = paths.len() == 1 && !several && scan::top(&paths[0]).is_some();
    let undecided = plan.pick.recursive && may_be_file && is_undecided(target);
    let permitted = match &files {
        Some(files) => Permitted::Listed(Listed::new(files, plan.pick.recursive).map_err(narrows::Error::misuse)?),
        None => Permitted::tops(&paths, plan.pick.recursive),
    };
    let (tree, rename) =
        match open_target(target, single || undecided, plan.dry_run, plan.keep.habits.make_parents)?.into {
            Into::Tree(tree, _) if undecided => (tree, None),
            Into::Tree(tree, rename) => (tree, rename),
            Into::Special(special) => return stdio::get_into(plan, from, &special, target, tell),
        };
    let has_list = files.is_some();
    let what = GetTask {
        sources: paths,
        recursive: plan.pick.recursive,
        exclude: patterns,
        dry_run: plan.dry_run,
        totals: true,
        stored: plan.coding.is_stored(),
        frames: plan.coding.store_compressed,
        images: plan.coding.recompresses(),
        codes: true,
        sockets: true,
        holes: true,
        habits: plan.source_habits(files),
    };
    let task = Task::Get(what);
    let notes = Notes::default();
    let options = ReceiveOptions::default().notes(&notes).stall_timeout(plan.patience());
    let options = options.reach_max(plan.coding.reach()).images(plan.coding.recompresses());
    let wants_frames = Arc::new(AtomicBool::new(false));
    let (told, heard) = (telling(tell), Arc::clone(&wants_frames));
    let may_ask_again = !plan.coding.store_compressed;
    // A server that does not know numbers says it in words.
    let on_failure = move |text: &str| match may_ask_again && text == AS_IT_COMES {
        true => heard.store(true, Ordering::Relaxed),
        false => told(text),
    };
    let observers = Observers {
        on_failure: Box::new(on_failure),
        on_skipped: skipped(plan, &Place::Local(target.to_path_buf())).map(|told| told as Box<dyn Fn(&str) + Send>),
        on_file: Box::new(sent_names(plan, true)),
        on_removed: Some(Box::new(removed_names(plan))),
    };
    let form = if plan.coding.store_compressed { Form::Decoded } else { Form::Raw };
    // The server may not know the answer that asks for them; it heard that they may come.
    let options_of_store = StoreOptions { form, holes: false, ..plan.store_options(false) };
    let partials = open_partials(&options_of_store)?;
    let mut store = EntryStore::new(tree, rename, permitted, options_of_store, notes, observers)?;
    store = store.beside(beside(plan, target)?).partials(partials)?.asked(filter, plan.pick.follow);
    if undecided {
        store = store.undecided(target.to_path_buf());
    }
    let (carrier, link, grower) = start(plan, from, &task, None, receiving(&transfer.control))?;
    watched::storing(plan, from, &transfer.control, store.clone());
    let bar = Bar::storing(&transfer.control, store.clone(), !plan.told.verbosity.quiet);
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
    if plan.coding.store_compressed {
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
    let expected = if plan.pick.recursive || several || is_filtered || has_list || plan.keep.habits.update {
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
    plan: &Plan,
    place: &Place,
    task: &Task,
    opened: Option<Opened>,
    seen: impl Fn() -> Seen + Send + 'static,
) -> Result<(Carrier, Link, Option<Grower>)> {
    if plan.way.yields && matches!(place, Place::Ssh { .. }) {
        return Err(narrows::Error::misuse(NO_ROUND_TRIPS).into());
    }
    let trust = plan.way.trust(place)?;
    let shell = carrier::shell_for(&plan.way.shell, place)?;
    let reach = Reach { shell: &shell, program: &plan.way.program, trust: trust.as_ref() };
    let (carrier, link, growth) = Carrier::start(place, &reach, task, opened)?;
    let sends = matches!(task, Task::Put { .. });
    // A copy within this host has no link.
    let yields = plan.way.yields && matches!(place, Place::Direct { .. });
    let link = match plan.way.rate {
        _ if sends && yields => link.yielding(),
        rate if sends && rate > 0 => link.limited(rate),
        _ => link,
    };
    // Several connections would be several flows, and each would take a part of the link.
    let carriers = if yields { 1 } else { plan.way.carriers };
    let grower = growth.map(|growth| Grower::start(growth.bond.clone(), carriers, seen, move || growth.open()));
    Ok((carrier, link, grower))
}

/// Progress of a receiving copy, for the [`Grower`].
fn receiving(control: &Arc<Control>) -> impl Fn() -> Seen + Send + use<> {
    let control = Arc::clone(control);
    move || Seen { wire_bytes: control.receive_summary().wire_bytes, ..Seen::default() }
}

/// Whether a path is in a folder, under whatever name the folder is mounted.
fn is_inside(path: &Path, folder: &Path) -> bool {
    let place = |path: &Path| path.metadata().ok().map(|data| (data.dev(), data.ino()));
    let (Ok(path), Some(folder)) = (path.canonicalize(), place(folder)) else { return false };
    place(&path) != Some(folder) && path.ancestors().skip(1).any(|above| place(above) == Some(folder))
}
