//! A small runtime of its own behind the blocking face, which is started by the first request.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// Threads of the runtime. They only move bytes and encrypt; whoever encodes has threads of its own.
const THREADS: usize = 2;
/// How often a waiting call asks whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether waiting calls are to end, such as after a signal.
pub type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// The runtime of this process.
pub(crate) fn handle() -> io::Result<Handle> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        let built = builder.worker_threads(THREADS).thread_name("narrows-object").enable_all().build();
        built.map_err(|e| e.to_string())
    });
    match made {
        Ok(runtime) => Ok(runtime.handle().clone()),
        Err(text) => Err(io::Error::other(format!("no threads for requests: {text}"))),
    }
}

/// Waits for `work`, and ends early with an error if `stop` says so.
pub(crate) fn wait<T>(stop: &Stop, work: impl Future<Output = T>) -> io::Result<T> {
    handle()?.block_on(async {
        let mut work = pin!(work);
        loop {
            if stop() {
                return Err(stopped());
            }
            if let Ok(result) = tokio::time::timeout(LOOK_EVERY, &mut work).await {
                return Ok(result);
            }
        }
    })
}

/// The error of a call that was told to stop.
pub(crate) fn stopped() -> io::Error {
    io::Error::other("interrupted")
}
