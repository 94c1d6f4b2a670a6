//! Decodes bytes that nobody vouches for, with limits on time and memory, and without a thread.
//!
//! `cargo run --release -p narrows --example hostile_bytes -- FILE`

use std::fs::File;
use std::io::Read;

use narrows::block::{Block, BufferPool};
use narrows::codec::Contexts;
use narrows::receiver::{Receiver, ReceiverConfig};
use narrows::{Error, ErrorKind};

/// More than this is no answer, whatever the stream says.
const RAW_MAX: u64 = 64 << 20;
/// Wire and raw bytes that the receiver may hold.
const MEMORY_MAX: usize = 8 << 20;

fn main() {
    let Some(path) = std::env::args_os().nth(1) else { return eprintln!("name a file") };
    match File::open(path).map_err(Error::from).and_then(decode) {
        Ok(raw) => println!("{} bytes", raw.len()),
        // What kind of failure it is decides what to do; the text is for people.
        Err(e) if e.kind == ErrorKind::Io => eprintln!("cannot read it: {e}"),
        Err(e) if e.kind == ErrorKind::Limit => eprintln!("too large: {e}"),
        Err(e) => eprintln!("no stream, or damaged: {e}"),
    }
}

fn decode(mut input: impl Read) -> Result<Vec<u8>, Error> {
    let pool = BufferPool::default();
    let config = ReceiverConfig { memory_max: MEMORY_MAX, ..ReceiverConfig::default() };
    let mut receiver = Receiver::new(config, pool.clone());
    let (mut contexts, mut raw) = (Contexts::default(), Vec::new());
    loop {
        // All that can be decoded of what arrived, before more is read.
        while let Some(job) = receiver.poll_job() {
            receiver.finish(job.run(&mut contexts, &pool))?;
        }
        while let Some(block) = receiver.read() {
            if raw.len() as u64 + block.len() as u64 > RAW_MAX {
                return Err(Error::limit(format!("it decodes to more than {RAW_MAX} bytes")));
            }
            raw.extend_from_slice(&block);
        }
        if receiver.has_unparsed() {
            receiver.resume()?;
            continue;
        }
        let mut piece = vec![0; receiver.room().clamp(1, 64 << 10)];
        match input.read(&mut piece)? {
            0 => break,
            n => receiver.receive(Block::from_vec(piece[..n].to_vec()))?,
        }
    }
    // A stream that was cut off is `Truncated`.
    receiver.close()?;
    Ok(raw)
}
