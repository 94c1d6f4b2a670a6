//! Compression that all flows of a process share: one policy, a pool of workers that encode and one
//! of workers that decode, and the memory.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use narrows::block::BufferPool;
use narrows::calibration::Calibration;
use narrows::codec::Contexts;
use narrows::frame::{BASELINE_HISTORY, NAMED_CODECS};
use narrows::policy::PolicySpec;
use narrows::pool::{Pool, Queue, Task};
use narrows::receiver::{DecodeDone, Receiver};
use narrows::sender::{Done, Sender};
use narrows::stream::{self, ReceiveOptions, SendOptions};
use narrows_watch::account::Account;

use super::limits::{Limits, MEMORY_MIN, RECEIVED_MAX};

/// Jobs of at most this length and estimated time run on the thread that moves the bytes, since
/// waking a worker and hearing from it takes some 20 us. The numbers are those of `run`.
pub(super) const INLINE_LEN: usize = 16 << 10;
pub(super) const INLINE_NS: u64 = 50_000;
/// Blocks this short take less time than reading the thread's CPU clock.
pub(super) const MESSAGE_LEN: usize = 4 << 10;
pub(super) const MESSAGE_NS: u64 = 20_000;
/// History of each direction under `balance`, as in `run`: 0.85 of the gain of 16 KiB on messages.
const MESSAGE_HISTORY: usize = 8 << 10;

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
    settings: Settings,
    encoders: usize,
    decoders: usize,
    encoding: Pool,
    decoding: Pool,
    tell: std::sync::Arc<Tell>,
    pub contexts: Contexts,
    pub buffers: BufferPool,
    memory: Rc<Memory>,
    /// What streams did that are over.
    account: Rc<RefCell<Account>>,
    /// Streams that ended since memory was returned to the system.
    ended: usize,
}

impl Engine {
    pub fn new(settings: Settings, tell: Tell) -> Self {
        let (encoders, decoders) = (stream::encoders(), stream::cores());
        Self {
            settings,
            encoders,
            decoders,
            encoding: Pool::new(encoders),
            decoding: Pool::new(decoders),
            tell: std::sync::Arc::new(tell),
            contexts: Contexts::default(),
            buffers: BufferPool::default(),
            memory: Rc::default(),
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

    /// A sender of one stream of a flow. Its peer has said nothing of its codecs.
    pub(super) fn sender(&self) -> Sender {
        let spec = &self.settings.policy;
        let options = SendOptions::new(spec.clone()).threads(self.encoders).gather_ns(0).codecs(!NAMED_CODECS);
        let options = options.calibration(self.settings.calibration.as_ref());
        let options = match spec.name() {
            "balance" => options.history(MESSAGE_HISTORY),
            _ if spec.links() => options.history(BASELINE_HISTORY),
            _ => options,
        };
        let (config, policy) = options.into_engine();
        Sender::new(config, policy, self.buffers.clone())
    }

    /// Switches a sender to `store`, for data that does not shrink.
    pub(super) fn give_up_on(&self, sender: &mut Sender) {
        sender.set_policy(SendOptions::new(PolicySpec::store()).threads(self.encoders).into_engine().1);
        sender.stop_linking();
    }

    pub(super) fn receiver(&self) -> Receiver {
        let options = ReceiveOptions::default().memory_max(RECEIVED_MAX).history_max(BASELINE_HISTORY);
        Receiver::new(options.threads(self.decoders).ends_at_frame(true).into_engine(), self.buffers.clone())
    }

    /// The queue of a stream in the pool that encodes.
    pub(super) fn encoding(&self, key: Key) -> Queue {
        let tell = std::sync::Arc::clone(&self.tell);
        self.encoding.flow(move || tell(key, Result::Failed))
    }

    pub(super) fn decoding(&self, key: Key) -> Queue {
        let tell = std::sync::Arc::clone(&self.tell);
        self.decoding.flow(move || tell(key, Result::Failed))
    }

    /// Lets a worker do a job; this thread does it if the queue is full.
    pub(super) fn submit(
        &mut self,
        queue: &Queue,
        key: Key,
        job: impl FnOnce(&mut Contexts) -> Result + Send + 'static,
    ) {
        let tell = std::sync::Arc::clone(&self.tell);
        let task: Task = Box::new(move |contexts| {
            let result = job(contexts);
            tell(key, result);
        });
        if let Err(task) = queue.submit(task) {
            task(&mut self.contexts);
        }
    }

    /// A share of the memory, for one direction of a flow.
    pub(super) fn share(&self) -> Share {
        Share { of_all: Rc::clone(&self.memory), held: 0 }
    }

    /// The most that a direction may hold that holds nothing yet.
    pub(super) fn memory_max(&self) -> usize {
        self.memory.most(0)
    }

    /// Where streams tell what they did when they are over.
    pub(super) fn account(&self) -> Rc<RefCell<Account>> {
        Rc::clone(&self.account)
    }

    /// Bytes that all flows hold.
    pub fn held(&self) -> usize {
        self.memory.held.get()
    }

    /// Bytes that they may still hold.
    pub(super) fn memory_left(&self) -> usize {
        self.memory.total.get().saturating_sub(self.memory.held.get())
    }

    /// Limits what all flows hold from here on.
    pub(super) fn set_memory(&self, total: usize) {
        self.memory.total.set(total);
    }
}

/// The memory of all flows.
struct Memory {
    held: Cell<usize>,
    total: Cell<usize>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { held: Cell::new(0), total: Cell::new(Limits::default().memory) }
    }
}

impl Memory {
    /// The most that a direction may hold that holds so much: what is left, and in any case a little.
    fn most(&self, held: usize) -> usize {
        (held + self.total.get().saturating_sub(self.held.get())).max(MEMORY_MIN)
    }
}

/// What one direction of a flow holds of the memory of all.
pub(super) struct Share {
    of_all: Rc<Memory>,
    held: usize,
}

impl Share {
    /// Records how much it holds now.
    pub(super) fn count(&mut self, held: usize) {
        let before = std::mem::replace(&mut self.held, held);
        let of_all = &self.of_all.held;
        of_all.set(of_all.get() - before + held);
    }

    /// The most that it may hold now.
    pub(super) fn memory_max(&self) -> usize {
        self.of_all.most(self.held)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.count(0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MEMORY_TOTAL;

    #[test]
    fn all_share_one_memory_and_nobody_is_left_without_any() {
        let (engine, _results) = test_engine();
        let (mut one, mut other) = (engine.share(), engine.share());
        one.count(MEMORY_TOTAL);
        assert_eq!(other.memory_max(), MEMORY_MIN);
        one.count(MEMORY_TOTAL / 2);
        other.count(1);
        assert_eq!(other.memory_max(), MEMORY_TOTAL / 2);
        engine.set_memory(MEMORY_TOTAL / 4);
        assert_eq!((other.memory_max(), engine.memory_left()), (MEMORY_MIN, 0), "a lower limit counts at once");
        drop((one, other));
        assert_eq!(engine.held(), 0);
    }
}
