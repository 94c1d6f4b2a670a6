//! Code shared by the fuzz targets.

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::receiver::{Receiver, ReceiverConfig};

/// Feeds a receiver as a driver would. It must return an error or continue, and stay within its
/// memory limit.
pub fn receive(stream: &[u8], cut: usize) {
    let config = ReceiverConfig { memory_max: 1 << 20, reach_max: 1 << 20, ..ReceiverConfig::default() };
    let mut receiver = Receiver::new(config, BufferPool::default());
    let mut contexts = Contexts::default();
    let pool = BufferPool::default();
    let mut delivered = 0usize;
    for piece in stream.chunks(cut) {
        if receiver.receive(Block::from_vec(piece.to_vec())).is_err() {
            return;
        }
        while let Some(job) = receiver.poll_job() {
            let done = job.run(&mut contexts, &pool);
            if receiver.finish(done).is_err() {
                return;
            }
        }
        while let Some(raw) = receiver.read() {
            delivered += raw.len();
        }
        assert!(delivered <= stream.len() * (2 << 20));
    }
    let _ = receiver.close();
}
