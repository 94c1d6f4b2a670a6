//! What all connections of a supervisor compress with: one policy as the person wrote it, one pool of workers that encode
//! and one of workers that decode.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use narrows::block::BufferPool;
use narrows::calibration::Calibration;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::frame::BASELINE_HISTORY;
use narrows::monitor::cost::Prior;
use narrows::policy::{PolicyData, PolicySetup, PolicySpec};
use narrows::pool::{Pool, Queue};
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::sender::{self, Sender, SenderConfig};
use narrows::stream;

use crate::flow;

/// Jobs of at most so many raw bytes, and of at most so much time, run on the thread that moves the bytes. Waking a worker
/// and hearing from it takes some 20 us, so short ones would be later for it; a longer one would hold up the other
/// connections of that thread.
pub(crate) const INLINE_LEN: usize = 16 << 10;
pub(crate) const INLINE_NS: u64 = 50_000;

/// What all switched directions may hold at once, and what one may: the least is two of the longest blocks of `balance`,
/// the most is what a flow of `narrows send` may hold.
const MEMORY_TOTAL: usize = 512 << 20;
const MEMORY_MIN: usize = 1 << 20;
const MEMORY_MAX: usize = sender::MEMORY_MAX_DEFAULT;
/// A receiver whose program is slow shall leave the bytes with the network: TCP itself would hold some 6 MiB.
const RECEIVED_MAX: usize = 8 << 20;

pub(crate) struct Compressor {
    spec: PolicySpec,
    file: Option<PolicyData>,
    calibration: Option<Calibration>,
    encoders: usize,
    decoders: usize,
    /// Two, so that blocks that came never wait behind those that a slow method encodes.
    encoding: Pool,
    decoding: Pool,
    /// Directions that hold memory now.
    switched: AtomicUsize,
}

/// Counts a switched direction as long as it lasts.
pub(crate) struct Share(Arc<Compressor>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.switched.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Compressor {
    /// Reads the policy's file, if it has one.
    pub(crate) fn new(spec: PolicySpec, calibration: Option<Calibration>) -> Result<Self> {
        let file = flow::read_policy_file(&spec)?;
        let (encoders, decoders) = (stream::encoders(), stream::cores());
        Ok(Self {
            spec,
            file,
            calibration,
            encoders,
            decoders,
            encoding: Pool::new(encoders),
            decoding: Pool::new(decoders),
            switched: AtomicUsize::new(0),
        })
    }

    pub(crate) fn share(self: &Arc<Self>) -> Share {
        self.switched.fetch_add(1, Ordering::Relaxed);
        Share(Arc::clone(self))
    }

    /// A direction's place among those that encode. `on_panic` is called on a worker when a job fails, which is a bug.
    pub(crate) fn encoding(&self, on_panic: impl Fn() + Send + Sync + 'static) -> Queue {
        self.encoding.flow(on_panic)
    }

    pub(crate) fn decoding(&self, on_panic: impl Fn() + Send + Sync + 'static) -> Queue {
        self.decoding.flow(on_panic)
    }

    pub(crate) fn sender(&self, buffers: &BufferPool, encrypted: bool) -> Sender {
        let history = if self.spec.links(self.file.as_ref()) { BASELINE_HISTORY } else { 0 };
        let memory_max = self.memory().clamp(MEMORY_MIN, MEMORY_MAX);
        let config = SenderConfig {
            block_max: self.spec.block_max(),
            history,
            cores: self.encoders,
            memory_max,
            ..SenderConfig::default()
        };
        let spec = if encrypted { &STORE } else { &self.spec };
        Sender::new(config, self.policy(spec), buffers.clone())
    }

    /// For what does not shrink.
    pub(crate) fn give_up_on(&self, sender: &mut Sender) {
        sender.set_policy(self.policy(&STORE));
    }

    fn policy(&self, spec: &PolicySpec) -> Box<dyn narrows::policy::Policy> {
        spec.build(&PolicySetup {
            methods: DEFAULT_METHODS,
            cores: self.encoders,
            prior: Prior::shipped(),
            calibration: self.calibration.as_ref(),
            file: self.file.as_ref(),
        })
    }

    pub(crate) fn receiver(&self, buffers: &BufferPool) -> Receiver {
        let memory_max = self.memory().clamp(MEMORY_MIN, RECEIVED_MAX);
        let config = ReceiverConfig { memory_max, cores: self.decoders, ..ReceiverConfig::default() };
        Receiver::new(config, buffers.clone())
    }

    fn memory(&self) -> usize {
        MEMORY_TOTAL / self.switched.load(Ordering::Relaxed).max(1)
    }
}

static STORE: PolicySpec = PolicySpec::Fixed { method: Method::STORE, linked: false };
