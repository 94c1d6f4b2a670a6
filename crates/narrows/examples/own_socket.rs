//! Sends a file over a connection of one's own, and goes on using it. Both ends run here.
//!
//! `cargo run --release -p narrows --example own_socket -- FILE`

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use narrows::{Decoder, Encoder, ReceiveOptions, SendOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a file")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let server = std::thread::spawn(move || serve(listener.accept()?.0));

    let mut encoder = Encoder::new(&socket, SendOptions::default());
    io::copy(&mut File::open(path)?, &mut encoder)?;
    let (_, summary) = encoder.finish()?;
    println!("ratio {:.2}", summary.ratio());
    writeln!(socket, "this line is not compressed")?;
    server.join().expect("no panic")?;
    Ok(())
}

fn serve(socket: TcpStream) -> narrows::Result<()> {
    let mut decoder = Decoder::new(BufReader::new(socket), ReceiveOptions::default());
    let raw_len = io::copy(&mut decoder, &mut io::sink())?;
    let mut line = String::new();
    decoder.into_inner().read_line(&mut line)?;
    println!("{raw_len} bytes, and then: {line}");
    Ok(())
}
