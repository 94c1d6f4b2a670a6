//! Sends a file over a tokio connection of one's own, and goes on using it. Both ends run here.
//!
//! `cargo run --release -p narrows --features tokio --example own_socket_tokio -- FILE`

use std::time::Duration;

use narrows::{AsyncDecoder, AsyncEncoder, ReceiveOptions, SendOptions};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A peer that takes longer is given up: the future is dropped, and the connection with it.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a file")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(async move { serve(listener.accept().await?.0).await });

    let mut encoder = AsyncEncoder::new(TcpStream::connect(address).await?, SendOptions::default());
    let raw = std::fs::read(path)?;
    tokio::time::timeout(PATIENCE, encoder.write_all(&raw)).await??;
    let (mut socket, summary) = encoder.finish().await?;
    println!("ratio {:.2}", summary.ratio());
    socket.write_all(b"this line is not compressed\n").await?;
    server.await??;
    Ok(())
}

async fn serve(socket: TcpStream) -> narrows::Result<()> {
    let mut decoder = AsyncDecoder::new(BufReader::new(socket), ReceiveOptions::default());
    let raw_len = tokio::io::copy(&mut decoder, &mut tokio::io::sink()).await?;
    let mut line = String::new();
    decoder.into_inner().read_line(&mut line).await?;
    println!("{raw_len} bytes, and then: {line}");
    Ok(())
}
