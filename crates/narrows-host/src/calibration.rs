//! What is remembered of this host between runs: the calibration, in the user's cache folder.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use narrows::calibration::Calibration;
use narrows::codec::Method;
use narrows::monitor::cost::Prior;
use narrows::stream;

use crate::{whole, words};

/// A calibration is longer than any that is written: a file beyond it is rubbish.
const FILE_MAX: u64 = 64 << 10;
/// A flow that is over sooner is not burdened with a measurement.
const MEASURE_AFTER: Duration = Duration::from_secs(1);

pub fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("narrows").join("calibration"))
}

/// The stored calibration. Absence and rubbish are the same: the program works without.
pub fn load(verbose: bool) -> Option<Calibration> {
    let path = path()?;
    let file = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
    let bytes = if file.len() <= FILE_MAX { fs::read(&path).ok()? } else { Vec::new() };
    match Calibration::parse(&String::from_utf8_lossy(&bytes)) {
        Ok(calibration) => Some(calibration),
        Err(e) => {
            if verbose {
                words::note(format_args!("{}: {e}; going on without", path.display()));
            }
            None
        }
    }
}

/// Appears whole, so that no other run reads half of it.
pub fn store(calibration: &Calibration) -> Result<PathBuf> {
    let path = path().context("there is no home folder to keep the calibration in; set XDG_CACHE_HOME")?;
    let folder = path.parent().context("the cache folder has no name")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    whole::write_whole(&path, calibration.to_text().as_bytes())?;
    Ok(path)
}

/// Measures on this thread; `None` if told to stop.
pub fn measure(stop: &dyn Fn() -> bool) -> Option<Calibration> {
    Calibration::measure(Prior::shipped(), &mut stream::thread_cpu_ns, stop)
}

/// Measures beside a running flow, at the lowest priority, if nothing is stored yet.
pub struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub fn start(needed: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = needed.then(|| {
            std::thread::Builder::new().name("narrows-calibrate".into()).spawn(move || {
                let begun = Instant::now();
                while begun.elapsed() < MEASURE_AFTER {
                    std::thread::park_timeout(MEASURE_AFTER);
                    if told.load(Ordering::Relaxed) {
                        return;
                    }
                }
                stream::lower_thread_priority();
                if let Some(calibration) = measure(&|| told.load(Ordering::Relaxed)) {
                    let _ = store(&calibration);
                }
            })
        });
        // Without the thread it is left to a later run.
        Self { stop, thread: thread.and_then(Result::ok) }
    }

    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Takes what a flow saw into the stored calibration. Failing is no concern of the flow.
pub fn refresh(stored: Option<Calibration>, learned: &[(Method, f32)], verbose: bool) {
    let Some(mut calibration) = stored.filter(|_| !learned.is_empty()) else { return };
    calibration.merge_learned(learned);
    if let Err(e) = store(&calibration)
        && verbose
    {
        words::note(format_args!("the calibration was not refreshed: {}", words::one_line(&e)));
    }
}
