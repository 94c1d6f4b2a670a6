//! Compresses a file into a stream beside it, and reads it back.
//!
//! `cargo run --release -p narrows --example compress_stream -- FILE`

use std::fs::File;
use std::io::{self, BufReader};

use narrows::{Decoder, Encoder, ReceiveOptions, SendOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a file")?;
    let mut stream = path.clone();
    stream.push(".nrw");

    // A file is not a link: its rate says nothing about the cost of a byte, so the policy is another.
    let mut encoder = Encoder::new(File::create(&stream)?, SendOptions::storage().index(true));
    let raw_len = io::copy(&mut File::open(&path)?, &mut encoder)?;
    let (file, summary) = encoder.finish()?;
    file.sync_all()?;
    println!("{}: {raw_len} to {} bytes, ratio {:.2}", stream.display(), summary.wire_bytes, summary.ratio());

    // Every block is compared with its check; a damaged or truncated stream is an error.
    let mut decoder = Decoder::new(BufReader::new(File::open(&stream)?), ReceiveOptions::default());
    println!("read back: {} bytes", io::copy(&mut decoder, &mut io::sink())?);
    Ok(())
}
