//! Compression that the flows of a process share: one policy, a pool of workers that encode and one of
//! workers that decode, and the memory.

use std::sync::Arc;

use super::{ReceiveOptions, SendOptions, cores, encoders};
use crate::calibration::Calibration;
use crate::flow::Memory;
use crate::frame::{BASELINE_HISTORY, NAMED_CODECS};
use crate::policy::PolicySpec;
use crate::pool::{Pool, Queue};

/// Memory that all flows may hold together, unless the process says otherwise.
pub const MEMORY_TOTAL: usize = 512 << 20;
/// Limit of one receiver. If its reader is slow, the bytes should stay with the network: TCP itself would
/// hold some 6 MiB.
pub const RECEIVED_MAX: usize = 8 << 20;
/// History under `balance`. 4 KiB give 0.85 of the gain of 16 KiB on messages of telecom protocols, and
/// every idle direction holds it at both ends: with the rest of its state a connection stays under
/// 64 KiB.
pub const MESSAGE_HISTORY: usize = 8 << 10;

/// Compression that all flows of a process share.
pub struct Compression {
    policy: PolicySpec,
    calibration: Option<Calibration>,
    encoders: usize,
    decoders: usize,
    /// Separate pools, so that received blocks never wait behind blocks that a slow method encodes.
    encoding: Pool,
    decoding: Pool,
    /// Of all flows.
    pub memory: Arc<Memory>,
}

impl Compression {
    /// For flows with this policy. Workers start when the first job needs them.
    pub fn new(policy: PolicySpec, calibration: Option<Calibration>) -> Self {
        let (encoders, decoders) = (encoders(), cores());
        let (encoding, decoding) = (Pool::new(encoders), Pool::new(decoders));
        let memory = Memory::new(MEMORY_TOTAL);
        Self { policy, calibration, encoders, decoders, encoding, decoding, memory }
    }

    /// Options of one of the flows, whose peer has said nothing of its codecs. A program waits for an
    /// answer to what it wrote: no policy may hold it back for a whole block. `stores`: the data is known
    /// not to be worth compressing.
    pub fn send_options(&self, stores: bool) -> SendOptions {
        let policy = if stores { PolicySpec::store() } else { self.policy.clone() };
        let options = SendOptions::new(policy).threads(self.encoders).gather_ns(0).codecs(!NAMED_CODECS);
        let options = options.calibration(self.calibration.as_ref());
        match self.policy.name() {
            _ if stores => options.block_max(self.policy.block_max()),
            "balance" => options.history(MESSAGE_HISTORY),
            // One of many flows keeps no more, whatever the policy wants.
            _ if self.policy.links() => options.history(BASELINE_HISTORY),
            _ => options,
        }
    }

    /// Options of one of the flows.
    pub fn receive_options(&self) -> ReceiveOptions {
        let options = ReceiveOptions::default().memory_max(RECEIVED_MAX).history_max(BASELINE_HISTORY);
        options.threads(self.decoders)
    }

    /// The queue of a flow in the pool that encodes. `on_panic` is called on a worker when a job panics,
    /// which is a bug.
    pub fn encoders(&self, on_panic: impl Fn() + Send + Sync + 'static) -> Queue {
        self.encoding.flow(on_panic)
    }

    /// The queue of a flow in the pool that decodes.
    pub fn decoders(&self, on_panic: impl Fn() + Send + Sync + 'static) -> Queue {
        self.decoding.flow(on_panic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BufferPool;
    use crate::policy::POLICIES;

    #[test]
    fn no_policy_holds_back_what_a_program_wrote() {
        for policy in POLICIES {
            let spec = policy.name.parse().unwrap_or_else(|_| PolicySpec::store());
            let mut encoding = Compression::new(spec, None).send_options(false).encoding(&BufferPool::default());
            encoding.write(b"hello", 0);
            assert!(encoding.next_job(0).is_some(), "{}", policy.name);
        }
    }
}
