//! Cost and yield of the search for repeats: `repeats_cost FILE [LOG_OF_REACH]`.

use narrows::block::Block;
use narrows::repeats::{Finder, Part};

/// Length of the pieces, as the driver reads them.
const PIECE: usize = 512 << 10;

/// CPU time of this thread in ns: other programs do not count.
fn cpu_ns() -> u64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    told.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        eprintln!("usage: repeats_cost FILE [LOG_OF_REACH]");
        return Ok(());
    };
    let log = args.next().and_then(|log| log.parse().ok()).unwrap_or(27);
    let raw = std::fs::read(path)?;
    let pieces: Vec<Block> = raw.chunks(PIECE).map(|piece| Block::from_vec(piece.to_vec())).collect();
    let mut best = f64::MAX;
    let (mut repeats, mut repeated, mut memory) = (0u64, 0u64, 0);
    for _ in 0..3 {
        let (mut finder, mut parts) = (Finder::new(1 << log), Vec::new());
        (repeats, repeated) = (0, 0);
        let begun = cpu_ns();
        for piece in &pieces {
            finder.push(piece, &mut parts);
            for part in parts.drain(..) {
                if let Part::Repeat { raw, .. } = part {
                    (repeats, repeated) = (repeats + 1, repeated + raw.len() as u64);
                }
            }
        }
        best = best.min((cpu_ns() - begun) as f64 / 1e9);
        memory = finder.memory();
    }
    println!(
        "{:.0} MB/s, {repeats} repeats, {:.2} % of the bytes, {} MiB of memory",
        raw.len() as f64 / best / 1e6,
        100.0 * repeated as f64 / raw.len().max(1) as f64,
        memory >> 20
    );
    Ok(())
}
