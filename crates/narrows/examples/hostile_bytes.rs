//! Decodes bytes that nobody vouches for, with limits on time and memory.
//!
//! `cargo run --release -p narrows --example hostile_bytes -- FILE`

use std::fs::File;
use std::io::{BufReader, Read};

use narrows::{Decoder, Error, ErrorKind, ReceiveOptions};

/// More than this is no answer, whatever the stream says: it also limits the time.
const RAW_MAX: u64 = 64 << 20;
/// Wire and raw bytes that the decoder may hold.
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

fn decode(input: File) -> narrows::Result<Vec<u8>> {
    let options = ReceiveOptions::default().memory_max(MEMORY_MAX);
    let (mut decoder, mut raw) = (Decoder::new(BufReader::new(input), options), Vec::new());
    decoder.by_ref().take(RAW_MAX + 1).read_to_end(&mut raw)?;
    if raw.len() as u64 > RAW_MAX {
        return Err(Error::limit(format!("it decodes to more than {RAW_MAX} bytes")));
    }
    Ok(raw)
}
