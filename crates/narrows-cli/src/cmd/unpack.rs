//! `narrows unpack`: a pack as files and folders again.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use narrows::stream::{Notes, ReceiveOptions};
use narrows_copy::frames::Form;
use narrows_copy::hello::StoreOptions;
use narrows_copy::store::{EntryStore, Observers, Permitted};
use narrows_copy::tree::Tree;
use narrows_file::{OpenOptions, ReadAt};
use narrows_host::words::shown;
use narrows_host::{means, signals};
use narrows_object::ObjectFile;
use narrows_pack::{Pack, Selector, unpack_all, unpack_some};
use serde_json::json;

use super::cp::teller;
use crate::args::pack::UnpackArgs;
use crate::args::store::StoreArgs;
use crate::files::{Source, Stopping};
use crate::flow;
use crate::place::{self, Place};
use crate::progress::Bar;
use crate::report;
use crate::transfer::Transfer;

/// Exit status: some entries could not be stored.
const SOME_FAILED: u8 = 1;
/// Exit status: the pack is damaged.
const DAMAGED: u8 = 3;
/// Decoded blocks that are kept while some entries are unpacked: repeats lead back and forth.
const CACHE_MAX: usize = 128 << 20;

/// Runs `narrows unpack`.
pub(crate) fn run(args: &UnpackArgs) -> Result<ExitCode> {
    let begun = Instant::now();
    means::allow_descriptors();
    let transfer = Transfer::begin()?;
    let place = Place::parse(&args.file)?;
    let name = place.to_string();
    let input = Input::open(&place, &args.store)?;
    let tree = Tree::open(&args.directory).with_context(|| format!("cannot open {}", args.directory.display()))?;
    let tell = teller();
    let names = (args.verbosity.verbose || args.dry_run) && !args.verbosity.json;
    let told = tell.clone();
    let print = move |text: &str| {
        if names {
            let _ = report::out(text);
        }
    };
    let observers = Observers {
        on_failure: Box::new(move |text| told(text)),
        on_file: Box::new(print),
        // The store then tells of links and folders too.
        on_removed: Some(Box::new(|_| ())),
    };
    let options = StoreOptions {
        fsync: args.fsync.into(),
        devices: args.devices,
        dry_run: args.dry_run,
        owner: (args.owner || args.no_owner).then_some(args.owner),
        delete: None,
        names,
        set_id: args.set_id,
        form: Form::default(),
    };
    let store = EntryStore::new(tree, None, Permitted::Anything, options, Notes::default(), observers)?;
    let store = store.of_pack(args.force);
    let bar = Bar::storing(&transfer.control, store.clone(), !args.verbosity.quiet);
    let mut status = 0;
    let mut missing = 0;
    let named = |e: narrows::Error| anyhow::Error::from(e).context(name.clone());
    let at_any_byte = input.at_any_byte()?;
    let is_stored = at_any_byte.is_some();
    let result = if args.paths.is_empty() {
        let pack = match at_any_byte.map(Pack::open) {
            // A store that cannot be reached is no damage.
            Some(Err(e)) if e.source.is_some() && place.url().is_some() => return Err(named(e)),
            Some(Ok(pack)) => Some(pack),
            _ => None,
        };
        let (threads, control) = (flow::threads(args.threads), &transfer.control);
        let options = || ReceiveOptions::default().threads(threads).control(control);
        unpack_all(input.into_reader(), pack.as_ref(), &store, options).map(|left| {
            for path in &left.unrepeated {
                missing += 1;
                tell(&format!(
                    "cannot unpack {}: it repeats content that is not there any more; save the pack to a file, and unpack that",
                    shown(path)
                ));
            }
            if let Some(why) = &left.broken {
                status = DAMAGED;
                tell(&format!("{name}: {why}; what came whole before that is unpacked"));
            } else if is_stored && pack.is_none() {
                status = DAMAGED;
                tell(&format!("{name}: everything is unpacked, but its directory is damaged; pack it anew"));
            }
        })
    } else if let Some(source) = at_any_byte {
        let paths: Vec<Vec<u8>> = args.paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        let selector = Selector::new(&paths)?;
        Pack::open_with(source, OpenOptions::default().cache_max(CACHE_MAX)).and_then(|pack| {
            for path in unpack_some(&pack, &selector, &store, flow::threads(args.threads))? {
                missing += 1;
                tell(&format!("{path} is not in {name}"));
            }
            Ok(())
        })
    } else {
        Err(narrows::Error::misuse("some entries are only unpacked from a file; save the pack, or unpack all of it"))
    };
    bar.end();
    if let Err(e) = result {
        if signals::received().is_none() {
            store.abandon();
        }
        return Err(named(e));
    }
    say(args, &store, missing, begun.elapsed())?;
    let stored = store.stored();
    let failed = stored.failed + stored.unsaid.saturating_sub(missing) + missing;
    let some = if failed > 0 { SOME_FAILED } else { 0 };
    Ok(ExitCode::from(status.max(some)))
}

/// Where a pack comes from.
enum Input {
    File(Source),
    Object(ObjectFile),
}

impl Input {
    fn open(place: &Place, args: &StoreArgs) -> Result<Self> {
        Ok(match place {
            Place::Path(path) => Self::File(Source::open(Some(path))?),
            Place::Object(url) => Self::Object(place::object(url, args)?),
        })
    }

    /// The same, read at any byte; `None` of a pipe. Requests of an object are about one version of it.
    fn at_any_byte(&self) -> Result<Option<Arc<dyn ReadAt>>> {
        Ok(match self {
            Self::File(source) => source.regular()?.map(|file| Arc::new(Stopping(file)) as _),
            Self::Object(object) => Some(Arc::new(object.clone())),
        })
    }

    fn into_reader(self) -> Box<dyn Read + Send> {
        match self {
            Self::File(source) => Box::new(source.into_reader()),
            Self::Object(object) => Box::new(object.reader(0..u64::MAX)),
        }
    }
}

fn say(args: &UnpackArgs, store: &EntryStore, missing: u64, elapsed: Duration) -> Result<()> {
    let s = store.stored();
    let failed = s.failed + missing;
    if args.verbosity.json {
        return report::out(json!({
            "files": s.files,
            "file_bytes": s.bytes,
            "files_same": s.files_same,
            "files_failed": failed,
            "files_changed": s.changed,
            "repeated_bytes": s.bytes_repeated,
            "not_kept": s.losses,
            "total_seconds": elapsed.as_secs_f64(),
        }));
    }
    if args.verbosity.quiet {
        return Ok(());
    }
    let would = if args.dry_run { "would unpack " } else { "" };
    let mut line = format!("{would}{} {}", s.files, if s.files == 1 { "file" } else { "files" });
    if s.files_same > 0 {
        line += &format!(", {} already there", s.files_same);
    }
    if failed > 0 {
        line += &format!(", {failed} failed");
    }
    report::note(report::join([Some(line), Some(report::amount(s.bytes, elapsed))]));
    if let Some(losses) = &s.losses {
        report::note(format_args!("not kept: {losses}"));
    }
    Ok(())
}
