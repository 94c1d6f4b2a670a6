//! `narrows unpack`: a pack as files and folders again.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use narrows::stream::{Notes, ReceiveOptions};
use narrows_copy::frames::Form;
use narrows_copy::hello::{StoreHabits, StoreOptions, Unmade};
use narrows_copy::store::{EntryStore, Observers, Permitted, Stored};
use narrows_copy::tree::Tree;
use narrows_file::{OpenOptions, ReadAt};
use narrows_host::words::shown;
use narrows_host::{means, signals};
use narrows_object::ObjectFile;
use narrows_pack::{Left, Pack, Selector, followed, unpack_all, unpack_some};
use serde_json::json;

use super::cp::{Tell, teller};
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
    let input = Input::open(&place, &args.store)?;
    let unpacking = Unpacking { args, transfer, name: place.to_string(), tell: teller() };
    let at_any_byte = input.at_any_byte()?;
    let (outcome, stored) = match (args.paths.is_empty(), at_any_byte) {
        (true, at_any_byte) => unpacking.all(input, at_any_byte, place.url().is_some())?,
        (false, Some(source)) => unpacking.some(source)?,
        (false, None) => {
            let text = "some entries are only unpacked from a file; save the pack, or unpack all of it";
            return Err(unpacking.named(narrows::Error::misuse(text)));
        }
    };
    say(args, &stored, outcome.missing, begun.elapsed())?;
    let failed = stored.failed + stored.unsaid.saturating_sub(outcome.missing) + outcome.missing;
    let some = if failed > 0 { SOME_FAILED } else { 0 };
    Ok(ExitCode::from(if outcome.damaged { DAMAGED } else { some }))
}

/// What became of a pack.
#[derive(Default)]
struct Outcome {
    /// Entries that are not there, and were told.
    missing: u64,
    damaged: bool,
}

/// How a pack is unpacked.
struct Unpacking<'a> {
    args: &'a UnpackArgs,
    transfer: Transfer,
    /// Of the pack.
    name: String,
    tell: Tell,
}

impl Unpacking<'_> {
    fn named(&self, error: narrows::Error) -> anyhow::Error {
        anyhow::Error::from(error).context(self.name.clone())
    }

    /// What takes the entries.
    fn store(&self) -> Result<EntryStore> {
        let args = self.args;
        let tree = Tree::open(&args.directory);
        let tree = tree.with_context(|| format!("cannot open {}", args.directory.display()))?;
        let names = (args.verbosity.verbose || args.dry_run) && !args.verbosity.json;
        let told = self.tell.clone();
        let print = move |text: &str| {
            if names {
                report::out_meanwhile(text);
            }
        };
        let observers = Observers {
            on_failure: Box::new(move |text| told(text)),
            on_skipped: (!args.verbosity.quiet).then(|| {
                Box::new(|text: &str| report::note(format!("{text}; --devices makes it"))) as Box<dyn Fn(&str) + Send>
            }),
            on_file: Box::new(print),
            // The store then tells of links and folders too.
            on_removed: Some(Box::new(|_| ())),
        };
        let options = StoreOptions {
            fsync: args.fsync.into(),
            devices: args.devices,
            unmade: Unmade::Skipped,
            dry_run: args.dry_run,
            owner: (args.owner || args.no_owner).then_some(args.owner),
            delete: None,
            names,
            set_id: args.set_id,
            form: Form::default(),
            images: false,
            codes: false,
            holes: false,
            habits: StoreHabits::default(),
        };
        let store = EntryStore::new(tree, None, Permitted::Anything, options, Notes::default(), observers)?;
        Ok(store.of_pack(args.force))
    }

    /// Lets `work` fill a store, with a bar.
    fn with_bar<T>(&self, store: &EntryStore, work: impl FnOnce() -> narrows::Result<T>) -> Result<T> {
        let bar = Bar::storing(&self.transfer.control, store.clone(), !self.args.verbosity.quiet);
        let result = work();
        bar.end();
        result.map_err(|e| {
            if signals::received().is_none() {
                store.abandon();
            }
            self.named(e)
        })
    }

    /// The whole pack, by its entry stream, and where that is damaged by its directory.
    fn all(&self, input: Input, at_any_byte: Option<Arc<dyn ReadAt>>, is_object: bool) -> Result<(Outcome, Stored)> {
        let Self { args, transfer, name, tell } = self;
        let store = self.store()?;
        let is_stored = at_any_byte.is_some();
        let options = OpenOptions::default().cache_max(CACHE_MAX);
        let open = |source: Arc<dyn ReadAt>| (Pack::open_with(Arc::clone(&source), options), source);
        let (pack, source) = at_any_byte.map(open).unzip();
        let pack = match pack {
            // A store that cannot be reached is no damage.
            Some(Err(e)) if e.source.is_some() && is_object => return Err(self.named(e)),
            // Known before anything is written.
            Some(Err(e)) if source.is_some_and(is_followed) => return Err(self.named(e)),
            Some(Ok(pack)) => Some(pack),
            _ => None,
        };
        let (threads, control) = (flow::threads(args.threads), &transfer.control);
        let options = || ReceiveOptions::default().threads(threads).control(control);
        // Where nothing is written, nobody can go on.
        let by_directory = pack.as_ref().filter(|_| !args.dry_run);
        let left = self.with_bar(&store, || unpack_all(input.into_reader(), by_directory, &store, options))?;
        let mut outcome = Outcome::default();
        for path in &left.unrepeated {
            outcome.missing += 1;
            tell(&format!(
                "cannot unpack {}: it repeats content that is not there any more; save the pack to a file, and unpack that",
                shown(path)
            ));
        }
        outcome.add(&left, tell);
        let stored = store.stored();
        match (&left.broken, &pack) {
            (Some(why), Some(pack)) if left.goes_on => {
                tell(&format!("{name}: {why}; what is whole behind that is unpacked by the directory"));
                let (rest, more) = self.by_directory(pack, &Selector::new(&[])?)?;
                outcome.damaged |= rest.damaged;
                return Ok((outcome, joined(stored, more)));
            }
            (Some(why), _) => tell(&format!("{name}: {why}; what came whole before that is unpacked")),
            (None, None) if is_stored => {
                outcome.damaged = true;
                tell(&format!("{name}: everything is unpacked, but its directory is damaged; pack it anew"));
            }
            (None, None) => {
                if let Some(why) = &left.followed {
                    outcome.damaged = true;
                    tell(&format!("{name}: its entries are unpacked, but {why}"));
                }
            }
            (None, _) => {}
        }
        Ok((outcome, stored))
    }

    /// Some entries, by the directory.
    fn some(&self, source: Arc<dyn ReadAt>) -> Result<(Outcome, Stored)> {
        let paths: Vec<Vec<u8>> = self.args.paths.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        let selector = Selector::new(&paths).map_err(|e| self.named(e))?;
        let pack = Pack::open_with(source, OpenOptions::default().cache_max(CACHE_MAX));
        self.by_directory(&pack.map_err(|e| self.named(e))?, &selector)
    }

    fn by_directory(&self, pack: &Pack<Arc<dyn ReadAt>>, selector: &Selector) -> Result<(Outcome, Stored)> {
        let Self { args, name, tell, .. } = self;
        let store = self.store()?;
        let left = self.with_bar(&store, || unpack_some(pack, selector, &store, flow::threads(args.threads)))?;
        let mut outcome = Outcome::default();
        for path in &left.missing {
            outcome.missing += 1;
            tell(&format!("{path} is not in {name}"));
        }
        outcome.add(&left, tell);
        if let Some(why) = &left.broken {
            tell(&format!("{name}: {why}; what the directory says before that is unpacked"));
        }
        Ok((outcome, store.stored()))
    }
}

/// Whether a file begins with a pack and goes on after it.
fn is_followed(source: Arc<dyn ReadAt>) -> bool {
    OpenOptions::default().open(source).is_ok_and(|file| matches!(followed(&file), Ok(Some(_))))
}

impl Outcome {
    /// Takes and tells what is damaged.
    fn add(&mut self, left: &Left, tell: &Tell) {
        self.damaged |= left.damaged > 0 || left.broken.is_some() || !left.unproven.is_empty();
        for path in &left.unproven {
            tell(&format!(
                "{} is unpacked, but could not be compared: the place of its digest is damaged",
                shown(path)
            ));
        }
    }
}

/// The totals of a store and of the one that went on: what the first stored, the second found there.
fn joined(first: Stored, second: Stored) -> Stored {
    Stored {
        files: first.files + second.files,
        bytes: first.bytes + second.bytes,
        files_same: second.files_same.saturating_sub(first.files),
        bytes_same: second.bytes_same.saturating_sub(first.bytes),
        bytes_repeated: first.bytes_repeated + second.bytes_repeated,
        failed: first.failed + second.failed,
        changed: first.changed + second.changed,
        losses: second.losses.clone().or(first.losses),
        ..second
    }
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

fn say(args: &UnpackArgs, s: &Stored, missing: u64, elapsed: Duration) -> Result<()> {
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
        return report::is_all_out();
    }
    let would = if args.dry_run { "would unpack " } else { "" };
    let mut line = would.to_owned() + &report::count(s.files, "file", "files");
    if s.files_same > 0 {
        line += &format!(", {} already there", s.files_same);
    }
    if failed > 0 {
        line += &format!(", {failed} failed");
    }
    report::note(report::join([Some(line), Some(report::amount(s.bytes, elapsed))]));
    let tells_groups = args.verbosity.verbose || args.owner;
    if let Some(losses) = s.losses.as_deref().and_then(|losses| report::losses(losses, tells_groups)) {
        report::note(format_args!("not kept: {losses}"));
    }
    report::is_all_out()
}
