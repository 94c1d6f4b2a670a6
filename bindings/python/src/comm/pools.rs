//! The workers of a process, shared by all its comms.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use narrows::pool::Pool;
use narrows::stream;

/// Encoding and decoding, so that received blocks never wait behind a slow encoder.
struct Pools {
    process: u32,
    encoding: Arc<Pool>,
    decoding: Arc<Pool>,
}

static POOLS: Mutex<Option<Pools>> = Mutex::new(None);

pub(super) fn encoding() -> Arc<Pool> {
    with(|pools| Arc::clone(&pools.encoding))
}

pub(super) fn decoding() -> Arc<Pool> {
    with(|pools| Arc::clone(&pools.decoding))
}

fn with<R>(f: impl FnOnce(&Pools) -> R) -> R {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let process = process::id();
    // A forked process has none of its parent's threads, so it cannot join them either.
    if let Some(parents) = pools.take_if(|p| p.process != process) {
        std::mem::forget(parents);
    }
    f(pools.get_or_insert_with(|| Pools {
        process,
        encoding: Arc::new(Pool::new(stream::encoders())),
        decoding: Arc::new(Pool::new(stream::cores())),
    }))
}
