//! A policy of one's own, outside the library: LZ4 while the link is quick, zstd while it is slow.
//!
//! `cargo run --release -p narrows --example own_policy`

use std::os::unix::net::UnixStream;

use narrows::extend::{Choice, Method, Policy, View};
use narrows::{Link, ReceiveOptions, SendOptions, receive, send};

/// 1 Gbit/s.
const QUICK_BYTES_PER_S: f64 = 125e6;
/// Raw bytes of a block.
const BLOCK_LEN: usize = 256 << 10;

struct TwoSpeeds;

impl Policy for TwoSpeeds {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let quick = !view.link.known || view.link.rate_bytes_per_s > QUICK_BYTES_PER_S;
        let method = if quick { Method::lz4_accel(1) } else { Method::zstd(3) };
        // The receiver may lack a codec; `store` is always there.
        let method = if view.limits.allows(method) { method } else { Method::STORE };
        Choice::new(method, BLOCK_LEN.min(view.limits.block_max))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (here, there) = UnixStream::pair()?;
    let (near, far) = (Link::unix(here)?, Link::unix(there)?);
    let receiver = std::thread::spawn(|| receive(std::io::sink(), far, ReceiveOptions::default()));
    let source = std::io::Cursor::new("what repeats itself shrinks; ".repeat(500_000));
    let (summary, _policy) = send(source, near, SendOptions::with_policy(Box::new(TwoSpeeds)))?;
    receiver.join().expect("no panic")?;
    println!("{} blocks, ratio {:.2}", summary.frames, summary.ratio());
    Ok(())
}
