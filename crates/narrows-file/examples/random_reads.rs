//! Times of random reads of 4 KiB: `random_reads FILE.nrw [COUNT]`. The decoded blocks are not
//! cached, the bytes of the file are (warm).

use std::time::Instant;

use narrows_file::OpenOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: random_reads FILE.nrw [COUNT]")?;
    let count: usize = args.next().map_or(Ok(1000), |n| n.parse())?;
    let file = OpenOptions::default().cache_max(0).open(std::fs::File::open(&path)?)?;
    let mut state = 1u64;
    let mut times = Vec::with_capacity(count);
    let mut buf = vec![0; 4096];
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (state >> 16) % file.raw_len().max(1);
        let begun = Instant::now();
        file.read_at(&mut buf, at)?;
        times.push(begun.elapsed().as_nanos() as u64 / 1000);
    }
    times.sort_unstable();
    let quantile = |q: usize| times.get(times.len() * q / 100).copied().unwrap_or(0);
    println!("{count} reads of 4 KiB: p50 {} us, p90 {} us, p99 {} us", quantile(50), quantile(90), quantile(99));
    Ok(())
}
