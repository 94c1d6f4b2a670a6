//! Sends a file over TCP, and shows the progress. Both ends run here; use them on two hosts.
//!
//! `cargo run --release -p narrows --example send_file -- FILE`

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use narrows::{Control, Link, ReceiveOptions, SendOptions, receive_then, send};

/// A peer that makes no progress for so long is given up.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("name a file")?;
    let source = File::open(&path)?;
    let raw_len = source.metadata()?.len();

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let receiver = std::thread::spawn(move || -> narrows::Result<u64> {
        let (socket, _) = listener.accept()?;
        let options = ReceiveOptions::default().stall_timeout(Some(PATIENCE));
        // `commit` is the place for fsync and rename: the sender is told that all is stored after it.
        let commit = || Ok(());
        Ok(receive_then(std::io::sink(), Link::tcp(socket)?, options, commit)?.raw_bytes)
    });

    // Another thread sees the flow through its `Control`, and could stop it.
    let control = Arc::new(Control::default());
    let watched = Arc::downgrade(&control);
    let progress = std::thread::spawn(move || {
        while let Some(control) = watched.upgrade() {
            let sent = control.send_summary();
            eprint!("\r{} of {raw_len} bytes, ratio {:.2}   ", sent.raw_bytes, sent.ratio());
            drop(control);
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!();
    });
    let options = SendOptions::default().raw_len(raw_len).stall_timeout(Some(PATIENCE)).control(&control);
    drop(control);
    let (summary, _policy) = send(source, Link::tcp(TcpStream::connect(address)?)?, options)?;
    progress.join().expect("no panic");
    assert_eq!(receiver.join().expect("no panic")?, raw_len);
    for row in &summary.mix {
        println!("{}: {} bytes became {}", row.method, row.raw_bytes, row.wire_bytes);
    }
    Ok(())
}
