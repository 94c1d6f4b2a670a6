//! Cost of a decision of `balance` and of its parts, for blocks of 64 KiB. The budget is 2 us,
//! including the features.
//!
//! `cargo run --release --example decision_cost [FILE]`; without a file the data is generated. Each
//! figure is the quickest of several rounds, so that a busy machine has little influence.

use std::hint::black_box;
use std::time::Instant;

use narrows::base64;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::monitor::cost::{CostModel, Prior, Seen};
use narrows::monitor::data::{Features, is_constant};
use narrows::monitor::{Ask, CpuView, Limits, LinkView, Pending, PendingState, ReceiverView, View};
use narrows::policy::{Outcome, PolicySetup, PolicySpec};

const BLOCK_LEN: usize = 64 << 10;
const ROUNDS: usize = 20;
const CALLS: usize = 2000;

fn main() {
    let data = match std::env::args().nth(1) {
        Some(path) => std::fs::read(path).expect("the file can be read"),
        None => made_up(4 << 20),
    };
    let blocks: Vec<&[u8]> = data.chunks_exact(BLOCK_LEN).collect();
    assert!(!blocks.is_empty(), "64 KiB at least");
    let mut turn = 0;
    let mut next = || {
        turn = (turn + 1) % blocks.len();
        blocks[turn]
    };

    let features = Features::sample(next());
    print("features", time(|| Features::sample(black_box(next()))));
    print("has base64", time(|| base64::probe(black_box(next()))));
    print("is constant", time(|| is_constant(black_box(next()))));

    let methods: Vec<_> = DEFAULT_METHODS.iter().copied().filter(|m| *m != Method::CONSTANT).collect();
    let mut model = CostModel::new(&methods, Prior::shipped());
    let context = model.context(&features);
    print("find the context", time(|| model.context(black_box(&features))));
    print("predict", time(|| model.predict(context, black_box(&features), BLOCK_LEN)));
    let seen = Seen { raw_len: BLOCK_LEN, wire_len: 20_000, wall_ns: 300_000, cpu_ns: 300_000, history_len: 0 };
    let mut m = 0;
    print(
        "observe",
        time(|| {
            m = m % (methods.len() - 1) + 1;
            model.observe(context, black_box(&features), m, seen);
        }),
    );

    let mut policy = PolicySpec::balance().build(&PolicySetup::new(4, Prior::shipped()));
    let mut seq = 0;
    let mut decide = |learn: bool| {
        let queue: [Pending; 8] = std::array::from_fn(|i| Pending {
            seq: (seq + i as u64).saturating_sub(8),
            raw_len: BLOCK_LEN,
            method: Method::zstd(1),
            chosen_ns: seq * 500_000,
            state: if i < 4 { PendingState::Ready { unsent_len: 20_000 } } else { PendingState::Encoding },
        });
        let view = View {
            now_ns: seq * 500_000 + 100_000,
            busy_ns: seq * 500_000 + 100_000,
            seq,
            raw_offset: seq * BLOCK_LEN as u64,
            upcoming: next(),
            gathered: 1 << 20,
            left: None,
            link: LinkView { rate_bytes_per_s: 125e6, known: true, ..LinkView::default() },
            cpu: CpuView { cores: 4, busy: 4 },
            receiver: ReceiverView { reports: true, cores: 4, backlog_bytes: 0 },
            queue: &queue,
            limits: Limits { block_max: BLOCK_LEN, history: 2 << 20, codecs: u64::MAX, behind: 0, dictionary: None },
            ask: Ask::Next,
        };
        let choice = policy.choose(&view);
        seq += 1;
        if learn {
            let (method, wall_ns) = (choice.method, choice.encode_ns);
            let raw_len = BLOCK_LEN;
            let seq = view.seq;
            policy.learn(&Outcome::Encoded {
                seq,
                method,
                raw_len,
                wire_len: 20_000,
                wall_ns,
                cpu_ns: wall_ns,
                taken_over: false,
            });
        }
        choice
    };
    print("choose, features included", time(|| decide(false)));
    print("choose and learn", time(|| decide(true)));
}

fn print(what: &str, ns: f64) {
    println!("{what:26} {ns:6.0} ns");
}

/// Nanoseconds per call in the quickest round.
fn time<T>(mut call: impl FnMut() -> T) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / CALLS as f64);
    }
    best
}

/// Alternating stretches of 256 KiB of text-like and record-like data, so that there are two kinds.
fn made_up(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut data = Vec::with_capacity(len + 16);
    while data.len() < len {
        if data.len() >> 18 & 1 == 0 {
            let word = draw() % 4000;
            data.extend_from_slice(format!("{:x} ", word * word).as_bytes());
        } else {
            data.extend_from_slice(&(draw() as u32 & 0x00ff_0fff).to_le_bytes());
        }
    }
    data
}
