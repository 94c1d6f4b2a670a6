//! Compresses a file into a stream beside it, and reads it back.
//!
//! `cargo run --release -p narrows --example compress_stream -- FILE`

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use narrows::policy::PolicySpec;
use narrows::stream::{ReceiveOptions, SendOptions, receive, send};
use narrows::transport::Link;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args_os().nth(1).ok_or("name a file")?);
    let mut stream = path.clone().into_os_string();
    stream.push(".nrw");
    let stream = PathBuf::from(stream);
    let source = File::open(&path)?;
    let raw_len = source.metadata()?.len();

    // A file is not a link: its rate says nothing about the cost of a byte, so the policy is another.
    let options = SendOptions::new(PolicySpec::storage()).raw_len(raw_len).index(true);
    let (summary, _policy) = send(source, Link::file_writer(File::create(&stream)?), options)?;
    println!("{}: {} to {} bytes, ratio {:.2}", stream.display(), raw_len, summary.wire_bytes, summary.ratio());

    // Every block is compared with its check; a damaged or truncated stream is an error.
    let received = receive(Counting(0), Link::file_reader(File::open(&stream)?), ReceiveOptions::default())?;
    assert_eq!(received.raw_bytes, raw_len);
    println!("read back: {} bytes", received.raw_bytes);
    Ok(())
}

/// A sink that counts.
struct Counting(u64);

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
