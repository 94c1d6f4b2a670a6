//! The calibration of this host, stored between runs in the cache folder of the user.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use narrows::calibration::Calibration;
use narrows::codec::Method;
use narrows::monitor::cost::Prior;
use narrows::stream;

use crate::{cache, whole, words};

/// Maximum length of the file, longer than any calibration; a longer file is invalid.
const FILE_MAX: u64 = 64 << 10;
/// Delay before measuring, so that shorter flows are not slowed down.
pub const MEASURE_AFTER: Duration = Duration::from_secs(1);

/// Path of the stored calibration; `None` if neither XDG_CACHE_HOME nor HOME is set.
pub fn path() -> Option<PathBuf> {
    Some(cache::folder()?.join("calibration"))
}

/// Loads the stored calibration. `None` if it is missing or invalid: the program works without it.
pub fn load(verbose: bool) -> Option<Calibration> {
    let path = path()?;
    let file = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
    let bytes = if file.len() <= FILE_MAX { fs::read(&path).ok()? } else { Vec::new() };
    match Calibration::parse(&String::from_utf8_lossy(&bytes)) {
        Ok(calibration) => Some(calibration),
        Err(e) => {
            if verbose {
                words::note(format_args!("{}: {e}; it is ignored", path.display()));
            }
            None
        }
    }
}

/// Stores the calibration atomically, so that no other run reads half of it.
pub fn store(calibration: &Calibration) -> Result<PathBuf> {
    let path = path().context("there is no home folder to keep the calibration in; set XDG_CACHE_HOME")?;
    let folder = path.parent().context("the cache folder has no name")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    whole::write_whole(&path, calibration.to_text().as_bytes())?;
    Ok(path)
}

/// Measures on this thread; `None` if `stop` returned true.
pub fn measure(stop: &dyn Fn() -> bool) -> Option<Calibration> {
    Calibration::measure(Prior::shipped(), &mut stream::thread_cpu_ns, stop)
}

/// Measures beside a running flow, at the lowest priority.
#[derive(Default)]
pub struct Background {
    stop: Arc<AtomicBool>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Background {
    /// What starts the measurement, once the flow has lasted [`MEASURE_AFTER`].
    pub fn starter(&self) -> impl FnOnce() + Send + 'static {
        let (stop, thread) = (Arc::clone(&self.stop), Arc::clone(&self.thread));
        move || {
            let measure = move || {
                stream::lower_thread_priority();
                if let Some(calibration) = measure(&|| stop.load(Ordering::Relaxed)) {
                    let _ = store(&calibration);
                }
            };
            // If the thread cannot be started, a later run measures.
            let started = std::thread::Builder::new().name("narrows-calibrate".into()).spawn(measure);
            *thread.lock().unwrap_or_else(PoisonError::into_inner) = started.ok();
        }
    }

    /// Stops the measurement and waits for its thread.
    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Merges what a flow learned into the stored calibration. A failure does not affect the flow.
pub fn refresh(stored: Option<Calibration>, learned: &[(Method, f32)], verbose: bool) {
    let Some(mut calibration) = stored.filter(|_| !learned.is_empty()) else { return };
    calibration.merge_learned(learned);
    if let Err(e) = store(&calibration)
        && verbose
    {
        words::note(format_args!("the calibration was not updated: {}", words::one_line(&e)));
    }
}
