//! Compression shared by all connections of a supervisor: one policy from the command line, one
//! pool of workers that encode and one of workers that decode.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use narrows::block::BufferPool;
use narrows::calibration::Calibration;
use narrows::frame::{BASELINE_HISTORY, NAMED_CODECS};
use narrows::policy::PolicySpec;
use narrows::pool::{Pool, Queue};
use narrows::receiver::Receiver;
use narrows::sender::{Sender, SenderConfig};
use narrows::stream::{self, ReceiveOptions, SendOptions};

/// Jobs of at most this many raw bytes and this estimated time run on the thread that moves the
/// bytes. Waking a worker and hearing back takes some 20 us, which would delay short jobs; longer
/// ones would hold up the thread's other connections.
pub const INLINE_LEN: usize = 16 << 10;
pub const INLINE_NS: u64 = 50_000;
/// Blocks this short take less time than reading the thread's CPU clock.
pub const MESSAGE_LEN: usize = 4 << 10;
/// A short message runs on the pump, whatever else is under way, if it takes no longer than waking
/// a worker.
pub const MESSAGE_NS: u64 = 20_000;
/// History of messages under `balance`. 4 KiB give 0.85 of the gain of 16 KiB on messages of
/// telecom protocols, and every idle direction holds it at both ends: with the rest of its state a
/// switched connection stays under 64 KiB.
pub const MESSAGE_HISTORY: usize = 8 << 10;

/// History of any direction: one of many connections keeps no more, whatever the peer asks for.
pub const HISTORY_MAX: usize = BASELINE_HISTORY;

/// Memory that all switched directions may hold together. Beyond it each may still hold
/// `MEMORY_MIN`, one read of bulk, so that all make progress.
const MEMORY_TOTAL: usize = 512 << 20;
pub const MEMORY_MIN: usize = 64 << 10;
/// At this total nothing more is decoded. It is above `MEMORY_TOTAL` because each direction may
/// exceed its share by one block of any length.
const MEMORY_MAX: usize = 1 << 30;
/// Limit of one receiver. If its program is slow, the bytes should stay with the network: TCP
/// itself would hold some 6 MiB.
pub const RECEIVED_MAX: usize = 8 << 20;

pub struct Compressor {
    spec: PolicySpec,
    /// Data that does not leave this host is stored uncompressed.
    pub stores_within_host: bool,
    calibration: Option<Calibration>,
    encoders: usize,
    decoders: usize,
    /// Separate pools, so that received blocks never wait behind blocks that a slow method encodes.
    encoding: Pool,
    decoding: Pool,
    /// Bytes that all directions hold now.
    held: AtomicUsize,
    /// Jobs with the workers.
    jobs: Arc<AtomicUsize>,
}

/// Counts a job with the workers until it is dropped.
pub struct AtWork(Arc<AtomicUsize>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A switched direction's part of the shared memory.
pub struct Share {
    compressor: Arc<Compressor>,
    held: usize,
}

impl Share {
    /// Records how much it holds now.
    pub fn count(&mut self, held: usize) {
        let before = std::mem::replace(&mut self.held, held);
        if held != before {
            // The difference wraps if it became less, which is intended.
            self.compressor.held.fetch_add(held.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// The limit for this direction now.
    pub fn memory_max(&self) -> usize {
        memory_max(self.held, self.compressor.held.load(Ordering::Relaxed))
    }

    /// Whether all directions together hold so much that nothing more is decoded.
    pub fn is_exhausted(&self) -> bool {
        self.compressor.held.load(Ordering::Relaxed) >= MEMORY_MAX
    }

    pub fn held(&self) -> usize {
        self.held
    }
}

fn memory_max(held: usize, held_by_all: usize) -> usize {
    (held + MEMORY_TOTAL.saturating_sub(held_by_all)).max(MEMORY_MIN)
}

impl Drop for Share {
    fn drop(&mut self) {
        self.count(0);
    }
}

impl Compressor {
    /// Without a policy it is `balance` between hosts and `store` within this host: no codec is as
    /// fast as its memory, and a slow reader there looks like a slow link.
    pub fn new(spec: Option<PolicySpec>, calibration: Option<Calibration>) -> Self {
        let stores_within_host = spec.is_none();
        let spec = spec.unwrap_or_default();
        let (encoders, decoders) = (stream::encoders(), stream::cores());
        Self {
            spec,
            stores_within_host,
            calibration,
            encoders,
            decoders,
            encoding: Pool::new(encoders),
            decoding: Pool::new(decoders),
            held: AtomicUsize::new(0),
            jobs: Arc::default(),
        }
    }

    /// Counts a job that goes to the workers.
    pub fn at_work(&self) -> AtWork {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        AtWork(Arc::clone(&self.jobs))
    }

    /// Whether the workers have jobs.
    pub fn is_at_work(&self) -> bool {
        self.jobs.load(Ordering::Relaxed) > 0
    }

    pub fn share(self: &Arc<Self>) -> Share {
        Share { compressor: Arc::clone(self), held: 0 }
    }

    /// A direction's queue in the encoding pool. `on_panic` is called on a worker when a job
    /// panics, which is a bug.
    pub fn encoding(&self, on_panic: impl Fn() + Send + Sync + 'static) -> Queue {
        self.encoding.flow(on_panic)
    }

    pub fn decoding(&self, on_panic: impl Fn() + Send + Sync + 'static) -> Queue {
        self.decoding.flow(on_panic)
    }

    /// Creates a sender. `stores`: the data is known not to be worth compressing.
    pub fn sender(&self, buffers: &BufferPool, stores: bool) -> Sender {
        let options = self.options(if stores { PolicySpec::store() } else { self.spec.clone() });
        let options = match self.spec.name() {
            _ if stores => options.block_max(self.spec.block_max()),
            "balance" => options.history(MESSAGE_HISTORY),
            _ if self.spec.links() => options.history(HISTORY_MAX),
            _ => options,
        };
        let (config, policy) = options.into_engine();
        let config = SenderConfig { tells_delivered: true, ..config };
        Sender::new(config, policy, buffers.clone())
    }

    /// Switches a sender to `store`, for data that does not compress.
    pub fn give_up_on(&self, sender: &mut Sender) {
        sender.set_policy(self.options(PolicySpec::store()).into_engine().1);
        sender.stop_linking();
    }

    /// A program waits for an answer to what it wrote: no policy may hold it back for a whole block.
    fn options(&self, policy: PolicySpec) -> SendOptions {
        let options = SendOptions::new(policy).threads(self.encoders).gather_ns(0);
        // The peer has said nothing of its codecs.
        options.codecs(!NAMED_CODECS).calibration(self.calibration.as_ref())
    }

    pub fn receiver(&self, buffers: &BufferPool) -> Receiver {
        let options =
            ReceiveOptions::default().memory_max(RECEIVED_MAX).history_max(HISTORY_MAX).threads(self.decoders);
        Receiver::new(options.into_engine(), buffers.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_share_one_memory_and_nobody_is_left_without_any() {
        assert_eq!(memory_max(0, 0), MEMORY_TOTAL);
        assert_eq!(memory_max(10 << 20, 500 << 20), 22 << 20);
        assert_eq!(memory_max(0, MEMORY_TOTAL + 1), MEMORY_MIN);

        let compressor = Arc::new(Compressor::new(Some(PolicySpec::store()), None));
        let (mut one, mut other) = (compressor.share(), compressor.share());
        one.count(MEMORY_TOTAL);
        assert_eq!(other.memory_max(), MEMORY_MIN);
        one.count(MEMORY_TOTAL / 2);
        other.count(1);
        assert_eq!(other.memory_max(), MEMORY_TOTAL / 2);
        drop((one, other));
        assert_eq!(compressor.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_policy_holds_back_what_a_program_wrote() {
        for policy in narrows::policy::POLICIES.iter().filter(|p| p.name != "replay") {
            let compressor = Compressor::new(Some(policy.name.parse().unwrap_or_else(|_| PolicySpec::store())), None);
            let mut sender = compressor.sender(&BufferPool::default(), false);
            sender.write(b"hello", 0);
            assert!(sender.poll_job(0).is_some(), "{}", policy.name);
        }
    }
}
