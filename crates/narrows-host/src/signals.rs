//! Handling of SIGINT, SIGTERM and the like: stop in order, leave no partial file, then terminate
//! by the signal, as the caller expects.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use narrows::stream::Control;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

static RECEIVED: AtomicI32 = AtomicI32::new(0);
/// Interval at which waiting calls check for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);

fn thread(name: &str) -> std::thread::Builder {
    std::thread::Builder::new().name(name.into())
}

#[allow(unsafe_code, reason = "a thread that waits for signals takes longer to start than a short flow lasts")]
/// Stops the flow at the first signal, so that temporary files are removed and the peer is told. A
/// second signal terminates the process immediately.
pub fn stop(control: &Arc<Control>) -> Result<()> {
    // Signals that are ignored stay ignored: nohup ignores SIGHUP like this, and a shell the
    // signals of the keyboard for background jobs.
    let ends = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal));
    // With a handler, a write beyond the file size limit fails with EFBIG instead of killing the
    // process.
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default())?;
    for signal in ends {
        let control = Arc::clone(control);
        let stop = move || {
            if RECEIVED.swap(signal, Ordering::Relaxed) != 0 {
                let _ = emulate_default_handler(signal);
            }
            control.stop();
        };
        // SAFETY: the action stores to atomics and calls `emulate_default_handler`, which handlers
        // may do. It is never dropped, since it stays registered.
        unsafe { signal_hook::low_level::register(signal, stop) }?;
    }
    Ok(())
}

/// The first signal that was received.
pub fn received() -> Option<i32> {
    Some(RECEIVED.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Runs a call that may block forever (name resolution, opening a named pipe) in a thread, and
/// waits for its result or for a signal, which is an error.
pub fn interruptible<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (tell, told) = mpsc::channel();
    thread("narrows-wait").spawn(move || tell.send(call()))?;
    loop {
        if received().is_some() {
            return Err(anyhow!("interrupted"));
        }
        match told.recv_timeout(LOOK_EVERY) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("a thread failed; this is a bug")),
        }
    }
}

/// Waits until a descriptor is ready; false after `limit`, an error after a signal. It uses no
/// thread, because starting one costs milliseconds if all cores are busy.
pub fn ready(fd: &impl AsFd, events: PollFlags, limit: Option<Duration>) -> Result<bool> {
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        if received().is_some() {
            return Err(anyhow!("interrupted"));
        }
        let left = until.map_or(LOOK_EVERY, |until| until.saturating_duration_since(Instant::now()).min(LOOK_EVERY));
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(fd, events)], Some(&wait)) {
            Ok(0) if until.is_some_and(|until| Instant::now() >= until) => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Terminates as if the signal had never been caught, so that a shell or parent process sees the
/// cause.
pub fn die_of(signal: i32) -> ! {
    let _ = emulate_default_handler(signal);
    std::process::exit(128 + signal)
}

/// Terminates silently by SIGPIPE, as filters do whose reader has gone.
pub fn die_of_closed_pipe() -> ! {
    die_of(SIGPIPE)
}

#[allow(unsafe_code, reason = "a question to the system")]
/// Whether a signal is ignored. Services (systemd) and shells (`trap ''`) start programs like that.
pub fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: zeros are a valid `sigaction`; the kernel only writes it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}
