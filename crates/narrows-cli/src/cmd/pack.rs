//! `narrows pack`: files and folders in one file.

use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use narrows_copy::filter::Filter;
use narrows_copy::scan;
use narrows_copy::serve::open_roots;
use narrows_host::{means, signals};
use narrows_pack::{Input, PackOptions, Packed, Progress, pack};
use serde_json::json;

use super::cp::teller;
use crate::args::pack::{OrderArg, PackArgs};
use crate::files::{Target, is_dash};
use crate::progress::Bar;
use crate::report;
use crate::transfer::Transfer;

/// Time after which a signal is seen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs `narrows pack`.
pub(crate) fn run(args: &PackArgs) -> Result<ExitCode> {
    let begun = Instant::now();
    means::allow_descriptors();
    let _transfer = Transfer::begin()?;
    let to_stdout = is_dash(&args.output);
    if !to_stdout && !args.force && args.output.symlink_metadata().is_ok_and(|data| data.is_file() || data.is_dir()) {
        return Err(anyhow!("{} already exists; use -f to overwrite it", args.output.display()));
    }
    if to_stdout && io::stdout().is_terminal() && !args.force {
        return Err(anyhow!("a pack is not written to a terminal; redirect stdout, use -o FILE, or -f to force"));
    }
    let include = args.include.iter().map(|p| format!("!{p}"));
    let own = own_patterns(args);
    let patterns: Vec<String> = args.exclude.iter().cloned().chain(include).chain(own).collect();
    let filter = Filter::new(&patterns)?;
    let (roots, unopened) = open_roots(&args.paths, true);
    if roots.is_empty() {
        return Err(anyhow!("{}", unopened.join("; ").replace("cannot copy", "cannot pack")));
    }
    let unopened = unopened.into_iter().map(|text| text.replacen("cannot copy", "cannot pack", 1)).collect();
    let target = Target::open(Some(&args.output))?;
    let output = target.name();
    let progress = Arc::new(Progress::default());
    let watch = Watch::start(&progress)?;
    let bar = Bar::packing(&progress, !args.verbosity.quiet);
    let tell = teller();
    let names = args.verbosity.verbose && !args.verbosity.json;
    // stdout may be the pack.
    let on_file = |name: &str| {
        if names && to_stdout {
            report::note(name);
        } else if names {
            let _ = report::out(name);
        }
    };
    let options = PackOptions::default()
        .mode(args.mode.mode())
        .encode_rate(args.encode_rate)
        .policy(args.policy.clone())
        .threads(args.threads.filter(|n| *n > 0).map(usize::from))
        .repeats(!args.no_repeats)
        .by_path(args.order == OrderArg::Path);
    let input = Input { roots, unopened, filter };
    let packed = pack(input, target.sink()?, &options, &progress, &|text| tell(text), &on_file);
    bar.end();
    drop(watch);
    let (_, packed) = packed.map_err(|e| if output.is_to_blame() { output.blame(e) } else { e.into() })?;
    target.commit(false).with_context(|| output.to_string())?;
    say(args, &packed, begun.elapsed(), to_stdout)?;
    Ok(ExitCode::from(u8::from(packed.failed > 0)))
}

/// Patterns that leave out the pack itself, and its temporary file, where they are in a source.
fn own_patterns(args: &PackArgs) -> Vec<String> {
    let Some(name) = args.output.file_name().filter(|_| !is_dash(&args.output)) else { return Vec::new() };
    let folder = args.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
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

/// Stops the packing at a signal.
struct Watch {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(progress: &Arc<Progress>) -> Result<Self> {
        let watched = Arc::clone(progress);
        let look = move || {
            while !watched.stop.load(Ordering::Relaxed) {
                if signals::received().is_some() {
                    watched.stop.store(true, Ordering::Relaxed);
                }
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("narrows-watch".into()).spawn(look)?;
        Ok(Self { progress: Arc::clone(progress), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.progress.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
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
        return Ok(());
    }
    let mut line = format!("{} {}", p.files, if p.files == 1 { "file" } else { "files" });
    if p.repeated > 0 {
        line += &format!(", {} of repeats stored once", report::bytes(p.repeated as f64));
    }
    if p.failed > 0 {
        line += &format!(", {} failed", p.failed);
    }
    let parts = [Some(line), Some(report::amount(p.bytes, elapsed)), Some(report::packed(p.bytes, p.wire_bytes))];
    report::note(report::join(parts));
    if args.verbosity.verbose
        && let Some(flow) = &p.flow
    {
        report::note(format_args!("methods: {}", report::mix_words(flow)));
    }
    Ok(())
}
