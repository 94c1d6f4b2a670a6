//! Measures methods on samples.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use narrows::codec::Method as Codec;
use narrows::stream::{self, thread_cpu_ns};
use narrows_plan::method::{Measured, Piece};
use narrows_sim::measure::Bench;
use narrows_sim::sketch::spread;
use narrows_sim::table::STORE_NS_PER_BYTE;

use super::sample::Sample;

/// Block length: that of programs with a fixed method.
const BLOCK: usize = 128 << 10;

/// The methods on one class of data, and how many bytes were measured within the time. At least one
/// piece is.
pub fn measure(
    sample: &Sample,
    class: &str,
    methods: &[Codec],
    within: Duration,
    tick: &(dyn Fn(u64) + Sync),
) -> (Vec<Measured>, usize) {
    let begun = Instant::now();
    let order = spread(sample.pieces.len());
    let next = AtomicUsize::new(0);
    let measured: Mutex<Vec<(usize, Vec<Piece>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..stream::cores().clamp(1, order.len().max(1)) {
            scope.spawn(|| {
                let mut bench = Bench::new(thread_cpu_ns);
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(index) = order.get(turn) else { return };
                    if turn > 0 && begun.elapsed() >= within {
                        return;
                    }
                    let bytes = &sample.pieces[*index];
                    let costs = methods.iter().map(|m| piece(&mut bench, *m, bytes)).collect();
                    measured.lock().unwrap_or_else(PoisonError::into_inner).push((*index, costs));
                    tick(bytes.len() as u64);
                }
            });
        }
    });
    let mut measured = measured.into_inner().unwrap_or_else(PoisonError::into_inner);
    // In the order of the data, whichever thread was faster: the same figures give the same intervals.
    measured.sort_by_key(|m| m.0);
    let len = measured.iter().map(|m| sample.pieces[m.0].len()).sum();
    let of = |(m, method): (usize, &Codec)| Measured {
        name: method.to_string(),
        class: class.to_owned(),
        pieces: measured.iter().map(|p| p.1[m]).collect(),
    };
    (methods.iter().enumerate().map(of).collect(), len)
}

/// What a method takes for a piece, block by block.
fn piece<C: FnMut() -> u64>(bench: &mut Bench<C>, method: Codec, bytes: &[u8]) -> Piece {
    let mut sum = Piece { raw_len: bytes.len() as f64, ..Piece::default() };
    for block in bytes.chunks(BLOCK) {
        let cost = bench.cost(method, &[], block);
        sum.wire_len += cost.wire_len;
        sum.encode_ns += cost.encode_ns;
        // A block that does not shrink is sent as it is: it is copied, not decoded.
        let copied_ns = block.len() as f64 * STORE_NS_PER_BYTE;
        sum.decode_ns += if cost.decode_ns > 0.0 { cost.decode_ns } else { copied_ns };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_shrinks_and_noise_does_not() {
        let text = b"the same words in another order, and again the words\n".repeat(5000);
        let noise: Vec<u8> = (0..200_000u64)
            .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ ((i * i) >> 7) as u8)
            .collect();
        let sample = |pieces: Vec<Vec<u8>>| Sample { total_len: 0, pieces, ..Sample::default() };
        let methods = [Codec::lz4_accel(1), Codec::zstd(1)];
        let (of_text, len) =
            measure(&sample(vec![text.clone(); 4]), "text", &methods, Duration::from_secs(60), &|_| ());
        assert_eq!((len, of_text.len()), (4 * text.len(), 2));
        let figures = |all: Vec<Measured>| all.iter().filter_map(Measured::method).collect::<Vec<_>>();
        let of_text = figures(of_text);
        assert!(of_text.iter().all(|m| m.ratio.value > 5.0 && m.encode_mb_per_s.value > 1.0 && m.class == "text"));
        let (of_noise, _) = measure(&sample(vec![noise]), "", &methods, Duration::from_secs(60), &|_| ());
        let of_noise = figures(of_noise);
        assert!(
            of_noise.len() == 2 && of_noise.iter().all(|m| m.ratio.value >= 1.0 && m.decode_mb_per_s.value.is_finite()),
            "{of_noise:?}"
        );
        // One piece is measured even if there is no time.
        let (some, len) = measure(&sample(vec![text.clone(); 9]), "", &methods, Duration::ZERO, &|_| ());
        assert!(some.len() == 2 && len >= text.len() && len < 9 * text.len());
    }
}
