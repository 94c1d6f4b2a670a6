//! Costs of two hosts besides codecs and wire, for transfers that end before anything is warm.

use narrows::codec::{CodecId, Method};

/// Costs of a transfer between two cold processes that share their cores with each other and with
/// the link: the setting of `narrows-lab bench --parts cold`. Times are of one core.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// Nanoseconds of an empty transfer: start, connection and end of both programs.
    pub start_ns: f64,
    /// Nanoseconds until a thread that was started runs.
    pub thread_start_ns: f64,
    /// Nanoseconds to hand a block from one thread to another, at each end.
    pub hand_over_ns: f64,
    /// Share by which codecs take longer than in the table: their contexts, pages and caches were
    /// last used by others.
    pub cold_share: f64,
    /// Nanoseconds of a system call.
    pub call_ns: f64,
    /// Nanoseconds of the sender to read a byte of its file.
    pub read_ns_per_byte: f64,
    /// Nanoseconds of the sender for each byte of wire: the copy into the kernel, packets, and their
    /// way to the other end's queue.
    pub send_ns_per_byte: f64,
    /// Nanoseconds of the receiver for each byte of wire: the interrupt, and the copy out.
    pub receive_ns_per_byte: f64,
    /// Nanoseconds for each raw byte at the receiver: fresh pages of a file.
    pub store_ns_per_byte: f64,
    /// Nanoseconds until an acknowledgement is back on an empty link.
    pub ack_delay_ns: f64,
    /// Wire bytes that a shaper lets through at once after a pause, and the rate at which it does, in
    /// bytes per second.
    pub burst_bytes: f64,
    pub line_bytes_per_s: f64,
    /// Wire bytes in the host's queue behind the socket, which the socket does not count as unsent.
    pub queue_bytes: f64,
}

impl Host {
    /// Two processes on two cores of one machine, and between them a virtual cable with a token
    /// bucket. Sources of the constants: docs/experiments/bench-cold.md.
    pub const COLD: Self = Self {
        start_ns: 12e6,
        thread_start_ns: 15e3,
        hand_over_ns: 60e3,
        cold_share: 0.4,
        call_ns: 2e3,
        read_ns_per_byte: 0.5,
        send_ns_per_byte: 1.5,
        receive_ns_per_byte: 2.5,
        store_ns_per_byte: 1.5,
        ack_delay_ns: 100e3,
        burst_bytes: 65_536.0,
        line_bytes_per_s: 3e9,
        queue_bytes: 131_072.0,
    };

    /// Nanoseconds that the first block of a method takes longer in a thread than the next one:
    /// encoding, decoding. A level of more effort has larger tables to allocate and fill.
    pub fn first_use_ns(method: Method) -> (f64, f64) {
        match (method.codec, method.level) {
            (CodecId::STORE | CodecId::CONSTANT, _) => (0.0, 0.0),
            (CodecId::LZ4, _) => (4e3, 1e3),
            (CodecId::ZSTD, ..=2) => (50e3, 28e3),
            (CodecId::ZSTD, ..=5) => (80e3, 28e3),
            (CodecId::ZSTD, ..=8) => (100e3, 40e3),
            (CodecId::ZSTD, ..=12) => (155e3, 40e3),
            (CodecId::ZSTD, _) => (450e3, 40e3),
            (CodecId::XZ, _) => (2.5e6, 80e3),
            _ => (30e3, 30e3),
        }
    }
}
