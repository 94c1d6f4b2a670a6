//! Gain and cost of a longer history: for each file, method, block length and history, the wire bytes
//! and the CPU time of encoding and decoding all blocks, each linked to the bytes before it.
//!
//! `cargo run --release --example history_cost METHODS FILE...`, for example `zstd:level=1,zstd:level=9`. One line a
//! combination: file, method, block length, history, raw bytes, wire bytes, encode and decode ns (the quickest of
//! three runs of each block; blocks shorter than 128 KiB are a sample).

use narrows::codec::{Contexts, Method};
use narrows::sender::worthwhile_len;
use narrows::stream::thread_cpu_ns;

const LENS: [usize; 3] = [32 << 10, 128 << 10, 512 << 10];
const HISTORIES: [usize; 5] = [0, 64 << 10, 256 << 10, 1 << 20, 2 << 20];
const RUNS: usize = 3;
/// Every this many blocks of a class are measured, so that short classes do not take longer than long ones.
const STRIDES: [usize; 3] = [4, 1, 1];

fn main() {
    let mut args = std::env::args().skip(1);
    let methods = Method::parse_list(&args.next().unwrap_or_default()).expect("a list of methods");
    for path in args {
        let data = std::fs::read(&path).expect("the file can be read");
        for &method in &methods {
            for (len, stride) in LENS.into_iter().zip(STRIDES) {
                for history in HISTORIES {
                    let [raw, wire, encode_ns, decode_ns] = measure(&data, method, len, stride, history);
                    println!("{path} {method} {len} {history} {raw} {wire} {encode_ns} {decode_ns}");
                }
            }
        }
    }
}

fn measure(data: &[u8], method: Method, len: usize, stride: usize, history: usize) -> [u64; 4] {
    let mut contexts = Contexts::default();
    let (mut wire, mut back) = (vec![0; len], vec![0; len]);
    let mut sum = [0; 4];
    for (i, block) in data.chunks(len).enumerate().filter(|(i, _)| i % stride == stride / 2) {
        let before = &data[(i * len).saturating_sub(history)..i * len];
        let room = worthwhile_len(block.len());
        let encoder = contexts.encoder(method.info());
        let (encode_ns, shrunk) = quickest(|| encoder.encode(method.level, before, block, &mut wire[..room]));
        let decoder = contexts.decoder(method.info());
        let (decode_ns, wire_len) = match shrunk {
            Some(n) => (quickest(|| decoder.decode(before, &wire[..n], &mut back[..block.len()])).0, n),
            None => (0, block.len()),
        };
        for (total, n) in sum.iter_mut().zip([block.len() as u64, wire_len as u64 + 16, encode_ns, decode_ns]) {
            *total += n;
        }
    }
    sum
}

fn quickest<T>(mut run: impl FnMut() -> T) -> (u64, T) {
    let mut time = || {
        let begin = thread_cpu_ns();
        let result = run();
        (thread_cpu_ns() - begin, result)
    };
    let first = time();
    (1..RUNS).map(|_| time()).fold(first, |a, b| if b.0 < a.0 { b } else { a })
}
