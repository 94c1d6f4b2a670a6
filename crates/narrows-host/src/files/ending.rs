//! Commands that end soon after a signal, although a block of the densest methods is worked on for seconds.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use crate::signals;

/// Time after which a signal is seen.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time to end in order, which says more. Nobody notices it at a keyboard.
const GRACE: Duration = Duration::from_millis(250);

/// The output that is written, where the file system has no files without names.
static TEMPORARY: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Remembers the name that an incomplete output has.
pub(super) fn remember(temporary: Option<PathBuf>) {
    *TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner) = temporary;
}

/// While this is there, the program ends soon after a signal, and leaves no incomplete output.
pub struct EndsSoon {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EndsSoon {
    /// Begins. `on_signal` is called as soon as a signal is seen.
    pub fn start(on_signal: impl Fn() + Send + 'static) -> Result<Self> {
        Self::within(GRACE, on_signal)
    }

    /// As [`EndsSoon::start`], for work that ends by itself when it was told.
    pub fn in_order(on_signal: impl Fn() + Send + 'static) -> Result<Self> {
        Self::within(Duration::MAX, on_signal)
    }

    fn within(grace: Duration, on_signal: impl Fn() + Send + 'static) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let look = move || {
            let mut waited = Duration::ZERO;
            while !over.load(Ordering::Acquire) {
                if let Some(signal) = signals::received() {
                    on_signal();
                    if waited >= grace {
                        end(signal);
                    }
                    waited = waited.saturating_add(LOOK_EVERY);
                }
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("narrows-watch".into()).spawn(look)?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for EndsSoon {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn end(signal: i32) -> ! {
    let temporary = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).take();
    // It may have its own name already.
    temporary.map(fs::remove_file);
    crate::words::note("interrupted");
    signals::die_of(signal)
}
