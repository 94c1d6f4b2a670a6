//! The receiving half of a flow: wire bytes in, raw bytes out in order. No I/O, no thread, no clock.
//! It never imports policy or monitor: how a choice was made is not on the wire.

use crate::block::{Block, BufferPool};
use crate::codec::Contexts;
use crate::error::Result;

#[derive(Debug, Clone)]
pub struct ReceiverConfig {
    /// Limits of this side; a sender that declares more is refused at its preface (or told, on a duplex link).
    pub block_max: usize,
    pub history_max: usize,
    /// Wire and raw bytes held at most; `room()` says 0 beyond it.
    pub memory_max: usize,
    /// Threads that decode, for the reports.
    pub cores: usize,
    /// Send a preface and feedback back.
    pub duplex: bool,
}

/// Decoding work for a worker, or for the calling thread when `estimate_ns` is short.
#[derive(Debug)]
pub struct DecodeJob {
    pub seq: u64,
    /// Predicted (nominal) time of one core.
    pub estimate_ns: u64,
}

#[derive(Debug)]
pub struct DecodeDone {
    pub seq: u64,
    /// CPU time, for the caller to fill.
    pub cpu_ns: u64,
    pub result: Result<Block>,
}

impl DecodeJob {
    pub fn run(self, contexts: &mut Contexts, pool: &BufferPool) -> DecodeDone {
        let _ = (contexts, pool);
        todo!()
    }
}

pub struct Receiver {}

impl Receiver {
    pub fn new(config: ReceiverConfig, pool: BufferPool) -> Self {
        let _ = (config, pool);
        todo!()
    }

    /// Wire bytes that it takes now. 0: decode or read first.
    pub fn room(&self) -> usize {
        todo!()
    }

    /// Takes wire bytes. An incomplete frame is not an error; bytes after the end of the stream are.
    pub fn receive(&mut self, wire: Block) -> Result<()> {
        let _ = wire;
        todo!()
    }

    /// The link is at its end: `Truncated` unless the end frame was seen.
    pub fn close(&mut self) -> Result<()> {
        todo!()
    }

    pub fn poll_job(&mut self) -> Option<DecodeJob> {
        todo!()
    }

    /// Puts a decoded block in its place. The first error is final.
    pub fn finish(&mut self, done: DecodeDone) -> Result<()> {
        let _ = done;
        todo!()
    }

    /// The next raw bytes in order.
    pub fn read(&mut self) -> Option<Block> {
        todo!()
    }

    /// The end frame was seen, its totals agree, and all raw bytes were read.
    pub fn is_finished(&self) -> bool {
        todo!()
    }

    /// Bytes for the reverse direction, if any are due: preface at the start, feedback now and then.
    /// `blocked_ns` is how long the reader of the raw bytes kept us waiting since the start.
    pub fn poll_feedback(&mut self, now_ns: u64, blocked_ns: u64) -> Option<Vec<u8>> {
        let _ = (now_ns, blocked_ns);
        todo!()
    }

    /// The last bytes for the reverse direction: all is stored (`None`), or why it is not.
    pub fn close_message(&mut self, failure: Option<&str>) -> Vec<u8> {
        let _ = failure;
        todo!()
    }

    pub fn summary(&self) -> &RecvSummary {
        todo!()
    }
}

#[derive(Debug, Clone, Default)]
pub struct RecvSummary {
    pub raw_bytes: u64,
    pub wire_bytes: u64,
    pub frames: u64,
    pub decode_cpu_ns: u64,
    pub mix: Vec<(crate::codec::CodecId, u64, u64, u64)>,
}
