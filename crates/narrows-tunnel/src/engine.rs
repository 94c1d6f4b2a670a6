//! Compression that all flows of a process share: one policy, a pool of workers that encode and one
//! of workers that decode, and the memory.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use narrows::block::BufferPool;
use narrows::calibration::Calibration;
use narrows::codec::Contexts;
use narrows::policy::PolicySpec;
use narrows::pool::Queue;
use narrows::receiver::DecodeDone;
use narrows::sender::Done;
use narrows::stream::{self, Compression, Told, Workers};
use narrows_watch::account::Account;

/// Streams whose memory is worth returning to the system: some 5 MB.
const GARBAGE: usize = 128;

/// Number of a connection, by which workers name whose job they did.
pub type Key = u64;

/// What a worker has done.
pub enum Result {
    Encoded(Box<Done>),
    Decoded(Box<DecodeDone>),
    /// It panicked, which is a bug.
    Failed,
}

/// Takes results from workers to the thread that asked.
pub type Tell = Box<dyn Fn(Key, Result) + Send + Sync>;

/// How flows are compressed.
#[derive(Clone, Default)]
pub struct Settings {
    pub policy: PolicySpec,
    pub calibration: Option<Calibration>,
}

/// What a flow needs to encode and decode. It belongs to one thread.
pub struct Engine {
    pub(super) compression: Compression,
    tell: Arc<Tell>,
    pub contexts: Contexts,
    pub buffers: BufferPool,
    /// What streams did that are over.
    account: Rc<RefCell<Account>>,
    /// Streams that ended since memory was returned to the system.
    ended: usize,
}

impl Engine {
    pub fn new(settings: Settings, tell: Tell) -> Self {
        Self {
            compression: Compression::new(settings.policy, settings.calibration),
            tell: Arc::new(tell),
            contexts: Contexts::default(),
            buffers: BufferPool::default(),
            account: Rc::default(),
            ended: 0,
        }
    }

    /// A stream has ended.
    pub(super) fn stream_ended(&mut self) {
        self.ended += 1;
    }

    /// Whether so many streams have ended that their memory is worth returning to the system.
    pub(super) fn has_garbage(&self) -> bool {
        self.ended >= GARBAGE
    }

    /// Returns the memory of streams that ended to the system.
    pub(super) fn tidy(&mut self) {
        self.ended = 0;
        self.buffers.trim();
        stream::return_free_memory();
    }

    /// What a worker calls that panicked over a job of this connection.
    pub(super) fn on_panic(&self, key: Key) -> impl Fn() + Send + Sync + use<> {
        let tell = Arc::clone(&self.tell);
        move || tell(key, Result::Failed)
    }

    /// Runs the jobs of a stream, here or on the workers of this queue.
    pub(super) fn workers<'a, D: 'static>(
        &'a mut self,
        queue: &'a Queue,
        key: Key,
        result: fn(Box<D>) -> Result,
    ) -> Workers<'a, impl FnMut() -> Told<D>> {
        let Self { contexts, buffers, tell, .. } = self;
        let tell = move || -> Told<D> {
            let tell = Arc::clone(tell);
            Box::new(move |done| tell(key, result(Box::new(done))))
        };
        Workers { contexts, buffers, queue, tell }
    }

    /// Where streams tell what they did when they are over.
    pub(super) fn account(&self) -> Rc<RefCell<Account>> {
        Rc::clone(&self.account)
    }
}

#[cfg(test)]
pub(super) fn test_engine() -> (Engine, std::sync::mpsc::Receiver<(Key, Result)>) {
    let (told, results) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let tell: Tell = Box::new(move |key, result| {
        if let Ok(told) = told.lock() {
            let _ = told.send((key, result));
        }
    });
    (Engine::new(Settings::default(), tell), results)
}
