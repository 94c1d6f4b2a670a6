//! `adoc`: the level of zlib follows the length of the FIFO between compression and link (AdOC,
//! 2002, figures 2 and 3).
//!
//! It starts without compression, in packets of 8,192 bytes. The change of the FIFO while a packet
//! or chunk is made moves the level. From level 1 on, chunks of 204,800 bytes are compressed one at
//! a time. `docs/experiments/seed-policies.md` lists the decisions that the paper leaves open.

use narrows::codec::{CodecId, Level, Method};
use narrows::monitor::{PendingState, View};
use narrows::policy::{Choice, NoSettings, Policy, Registered};

/// Section 3.5 of the paper: within 5 % of the best ratio, and 0.1 s at 500 MHz.
const CHUNK_LEN: usize = 204_800;
/// `BUFSIZ` of the paper's system.
const PACKET_LEN: usize = 8192;
const LEVEL_MAX: Level = 9;
/// Maximum length of our frame headers, which do not count as bytes of a packet (docs/format.md,
/// 3.1).
const HEADER_MAX: usize = 19;
/// The FIFO of the paper is unbounded; here the flow's memory bounds it to 51 chunks, or 4 MiB of
/// packets.
const WINDOW: usize = 512;

/// The policy: AdOC's control loop over the levels of zlib.
#[derive(Default)]
pub struct Adoc {
    level: Level,
    /// Packets in the FIFO at the last choice, and their change since the choice before it.
    fifo: Option<usize>,
    variation: i64,
}

impl Adoc {
    const BLOCK_MAX: usize = CHUNK_LEN;

    fn methods() -> Vec<Method> {
        std::iter::once(Method::STORE).chain((1..=LEVEL_MAX).map(|l| Method::new(CodecId::ZLIB, l))).collect()
    }
}

/// The paper's figure 3: the level after a step.
fn update_level(level: Level, fifo: usize, variation: i64) -> Level {
    let level = match (fifo, variation.signum()) {
        (0..10, 1) => level,
        (0..10, _) => level / 2,
        (10..20, sign) => level + sign as Level,
        (20.., 1) => level + 2,
        (20..30, -1) => level - 1,
        (20.., _) => level,
    };
    level.clamp(0, LEVEL_MAX)
}

/// Number of packets that wait for the link. Bytes that the kernel has taken, the oldest first,
/// have left the FIFO.
fn packets(view: &View<'_>) -> usize {
    let mut in_kernel = usize::try_from(view.link.unsent_bytes).unwrap_or(usize::MAX);
    let mut packets = 0usize;
    for block in view.queue {
        let PendingState::Ready { unsent_len } = block.state else { continue };
        let taken = unsent_len.min(in_kernel);
        in_kernel -= taken;
        let left = unsent_len - taken;
        if left > 0 {
            packets = packets.saturating_add(left.saturating_sub(HEADER_MAX).div_ceil(PACKET_LEN).max(1));
        }
    }
    packets
}

impl Policy for Adoc {
    /// Ends one step of the paper's figure 2 (lines 13 and 14) and begins the next.
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let fifo = packets(view);
        if let Some(before) = self.fifo.replace(fifo) {
            self.variation = fifo as i64 - before as i64;
            self.level = update_level(self.level, fifo, self.variation);
        }
        let method = Method::new(CodecId::ZLIB, self.level);
        let choice = if self.level == 0 || !view.limits.allows(method) {
            Choice::new(Method::STORE, PACKET_LEN.min(view.limits.block_max))
        } else {
            Choice::new(method, CHUNK_LEN.min(view.limits.block_max))
        };
        // The paper has one compression thread.
        Choice { threads_max: Some(1), ..choice }
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(CHUNK_LEN)
    }

    fn window(&self, _cores: usize) -> usize {
        WINDOW
    }

    fn explain(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("level", f64::from(self.level)),
            ("fifo_packets", self.fifo.unwrap_or(0) as f64),
            ("fifo_variation", self.variation as f64),
        ]
    }
}

const SETTINGS: NoSettings = NoSettings {
    name: "adoc",
    block_max: Adoc::BLOCK_MAX,
    gather_ns: 0,
    links: false,
    methods: Adoc::methods,
    build: |_| Box::new(Adoc::default()),
};

pub(crate) const ENTRY: Registered = Registered {
    name: "adoc",
    usage: "adoc",
    about: "AdOC (2002): the length of the send queue sets the level of zlib",
    examples: &["adoc"],
    parse: |rest, _| SETTINGS.parse(rest),
};
