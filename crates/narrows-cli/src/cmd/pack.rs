//! `narrows pack`: files and folders in one file.

use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use narrows_copy::filter::Filter;
use narrows_copy::scan;
use narrows_copy::serve::open_roots;
use narrows_file::Hint;
use narrows_host::hints::Hints;
use narrows_host::{follow, means};
use narrows_object::{Condition, CreateOptions, ObjectWriter, Url, meta};
use narrows_pack::{Input, PackOptions, Packed, Progress, pack};
use serde_json::json;

use super::cp::teller;
use crate::args::pack::{OrderArg, PackArgs};
use crate::files::{EndsSoon, Target, is_dash, is_in_the_way};
use crate::place::{self, Place};
use crate::progress::Bar;
use crate::report;
use crate::transfer::Transfer;

/// Runs `narrows pack`.
pub(crate) fn run(args: &PackArgs) -> Result<ExitCode> {
    let begun = Instant::now();
    means::allow_descriptors();
    let _transfer = Transfer::begin()?;
    let output = Place::parse(&args.output)?;
    if let Some(source) = args.paths.iter().find(|path| Place::is_object(path.as_os_str())) {
        let text = format!("{}: files of this host are packed; fetch it with narrows cp", source.display());
        return Err(narrows::Error::misuse(text).into());
    }
    let to_stdout = matches!(&output, Place::Path(path) if is_dash(path));
    if !args.force && is_there(args, &output)? {
        return Err(anyhow!("{output} already exists; use -f to overwrite it"));
    }
    if to_stdout && io::stdout().is_terminal() && !args.force {
        return Err(anyhow!("a pack is not written to a terminal; redirect stdout, use -o FILE, or -f to force"));
    }
    let include = args.include.iter().map(|p| format!("!{p}"));
    let own = if let Place::Path(path) = &output { own_patterns(args, path) } else { Vec::new() };
    let patterns: Vec<String> = args.exclude.iter().cloned().chain(include).chain(own).collect();
    let filter = Filter::new(&patterns)?;
    let (roots, unopened) = open_roots(&args.paths, true, false);
    if roots.is_empty() {
        return Err(anyhow!("{}", unopened.join("; ").replace("cannot copy", "cannot pack")));
    }
    let unopened = unopened.into_iter().map(|text| text.replacen("cannot copy", "cannot pack", 1)).collect();
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    let stop = move || watched.stop.store(true, Ordering::Relaxed);
    let watch = match &output {
        Place::Path(_) => EndsSoon::start(stop),
        // Its parts are given back first.
        Place::Object(_) => EndsSoon::in_order(stop),
    }?;
    let bar = Bar::packing(&progress, !args.verbosity.quiet);
    let tell = teller();
    let names = args.verbosity.verbose && !args.verbosity.json;
    // stdout may be the pack.
    let on_file = |name: &str| {
        if names && to_stdout {
            report::note(name);
        } else if names {
            report::out_meanwhile(name);
        }
    };
    let hint = hint(args, &output)?;
    let options = PackOptions::default()
        .hint(hint)
        .policy(args.policy.clone())
        .threads(args.threads.filter(|n| *n > 0).map(usize::from))
        .repeats(!args.no_repeats)
        .by_path(args.order == OrderArg::Path);
    let input = Input { roots, unopened, filter };
    let on_failure = |text: &str| tell(text);
    let work = Work { options, progress: Arc::clone(&progress), on_failure: &on_failure, on_file: &on_file };
    let packed = match &output {
        Place::Path(path) => work.to_file(input, path, args.force),
        Place::Object(url) => work.to_object(input, url, args),
    };
    bar.end();
    drop(watch);
    let packed = packed?;
    say(args, &packed, begun.elapsed(), to_stdout)?;
    Ok(ExitCode::from(u8::from(packed.failed + packed.changed > 0)))
}

/// Whether there is something under the name of the pack that would be replaced.
fn is_there(args: &PackArgs, output: &Place) -> Result<bool> {
    Ok(match output {
        Place::Path(path) if is_dash(path) => false,
        Place::Path(path) => is_in_the_way(path),
        Place::Object(url) => {
            let there = place::store(url, &args.store)?.head(&url.key);
            there.with_context(|| format!("cannot write {url}"))?.is_some()
        }
    })
}

/// What the command line says, then the rules for the name of the pack.
fn hint(args: &PackArgs, output: &Place) -> Result<Hint> {
    let hint = args.hint.hint();
    match output {
        Place::Path(path) if args.policy.is_none() && !is_dash(path) => {
            Ok(hint.or(Hints::default().by_rules(path)?.unwrap_or_default()))
        }
        _ => Ok(hint),
    }
}

/// A pack that is written. It has its name when it is complete.
struct Work<'a> {
    options: PackOptions,
    progress: Arc<Progress>,
    on_failure: &'a dyn Fn(&str),
    on_file: &'a dyn Fn(&str),
}

impl Work<'_> {
    fn to_file(&self, input: Input, path: &Path, replaces: bool) -> Result<Packed> {
        let target = Target::open(Some(path))?.replacing(replaces);
        let output = target.name();
        let packed = pack(input, target.sink()?, &self.options, &self.progress, self.on_failure, self.on_file);
        let (_, packed) = packed.map_err(|e| if output.is_to_blame() { output.blame(e) } else { e.into() })?;
        target.commit(false).with_context(|| output.to_string())?;
        Ok(packed)
    }

    fn to_object(&self, input: Input, url: &Url, args: &PackArgs) -> Result<Packed> {
        let cannot = || format!("cannot write {url}");
        let condition = if args.force { Condition::None } else { Condition::Create };
        let metadata = vec![(meta::FORM.to_owned(), meta::FORM_PACK.to_owned())];
        let options = CreateOptions { condition, metadata, len: None, frames: true };
        let writer = ObjectWriter::create(&place::store(url, &args.store)?, &url.key, options).with_context(cannot)?;
        let packed = pack(input, writer, &self.options, &self.progress, self.on_failure, self.on_file);
        let (writer, packed) = packed.map_err(|e| match e.source {
            Some(cause) => anyhow::Error::from(cause).context(cannot()),
            None => e.into(),
        })?;
        writer.finish().with_context(cannot)?;
        Ok(packed)
    }
}

/// Patterns that leave out the pack itself, and its temporary file, where they are in a source.
fn own_patterns(args: &PackArgs, output: &Path) -> Vec<String> {
    // Through a link it is written where that leads; if it cannot be, whoever opens it says so.
    let Ok(follow::Place { path: output, .. }) = &follow::to_end(output) else { return Vec::new() };
    let Some(name) = output.file_name().filter(|_| !is_dash(output)) else { return Vec::new() };
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(folder) = folder.canonicalize() else { return Vec::new() };
    let within = |source: &PathBuf| {
        let relative = folder.strip_prefix(source.canonicalize().ok()?).ok()?.to_path_buf();
        let top = scan::top(source).map(|top| PathBuf::from(std::ffi::OsStr::from_bytes(&top)));
        let folder = top.unwrap_or_default().join(relative);
        let pattern = |name: &str| Some(format!("/{}", escaped(folder.join("x").to_str()?.strip_suffix('x')?) + name));
        Some([pattern(&escaped(name.to_str()?))?, pattern(".narrows-*.part")?])
    };
    args.paths.iter().filter_map(within).flatten().collect()
}

/// A path as a pattern that stands for itself.
fn escaped(path: &str) -> String {
    path.chars().flat_map(|c| ['\\'].into_iter().filter(move |_| "\\*?[]{}!# ".contains(c)).chain([c])).collect()
}

fn say(args: &PackArgs, p: &Packed, elapsed: Duration, to_stdout: bool) -> Result<()> {
    if args.verbosity.json {
        let mut json = p.flow.as_ref().map_or(json!({}), |flow| report::send_json(flow, elapsed));
        let own = json!({
            "entries": p.entries,
            "files": p.files,
            "file_bytes": p.bytes,
            "repeated_bytes": p.repeated,
            "hole_bytes": p.holes,
            "files_failed": p.failed,
            "files_changed": p.changed,
            "pack_bytes": p.wire_bytes,
            "total_seconds": elapsed.as_secs_f64(),
        });
        if let (Some(all), Some(own)) = (json.as_object_mut(), own.as_object()) {
            all.extend(own.clone());
        }
        if to_stdout {
            report::note_json(&json);
            return Ok(());
        }
        return report::out(json);
    }
    if args.verbosity.quiet {
        return report::is_all_out();
    }
    let mut line = report::count(p.files, "file", "files");
    if p.repeated > 0 {
        line += &format!(", {} of repeats stored once", report::bytes(p.repeated as f64));
    }
    if p.failed > 0 {
        line += &format!(", {} failed", p.failed);
    }
    if p.changed > 0 {
        line += &format!(", {} changed while read", p.changed);
    }
    let parts = [Some(line), Some(report::amount(p.bytes, elapsed)), Some(report::packed(p.bytes, p.wire_bytes))];
    report::note(report::join(parts));
    if args.verbosity.verbose
        && let Some(flow) = &p.flow
    {
        report::note(format_args!("methods: {}", report::mix_words(flow)));
    }
    report::is_all_out()
}
