//! Many connections while their tunnel is cut again and again: each has all its bytes, or an error.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{Far, PATIENCE, Relay, acceptor, dialer, forward, keys, noise, target, text, wait_for, wait_until};
use narrows_tunnel::settings::{Report, Settings};

const FOR: Duration = Duration::from_secs(4);
const CLIENTS: usize = 12;

/// What became of a connection: whole, or broken by an error. A short answer without an error is the
/// fault that this test looks for.
fn talk(address: &str, sent: &[u8]) -> std::io::Result<bool> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let (writer, copy) = (socket.try_clone()?, sent.to_vec());
    let writing = std::thread::spawn(move || {
        (&writer).write_all(&copy)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut got = Vec::new();
    let read = (&socket).read_to_end(&mut got);
    let wrote = writing.join().unwrap();
    read?;
    wrote?;
    Ok(got == sent)
}

#[test]
fn every_connection_is_whole_or_broken_by_an_error() {
    let far = Far::echo();
    let keys = keys();
    let (server, address) = acceptor(&keys, "127.0.0.1:0", Settings::default());
    let relay = Relay::new(&address);
    let local = vec![forward("0", &target(far.port))];
    let client = dialer(&keys, &relay.address, Settings { local, ..Settings::default() });
    let listening = wait_for(&client, |report| match report {
        Report::Listening { from, .. } => Some(from),
        _ => None,
    });
    let over = Arc::new(AtomicBool::new(false));
    let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let threads: Vec<_> = (0..CLIENTS)
        .map(|i| {
            let (listening, over, counts) = (listening.clone(), Arc::clone(&over), Arc::clone(&counts));
            std::thread::spawn(move || {
                let lengths = [1, 900, 5_000, 70_000, 400_000, 3_000_000];
                for round in i.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let len = lengths[round % lengths.len()] + round;
                    let sent = if round % 3 == 0 { noise(len) } else { text(len) };
                    match talk(&listening, &sent) {
                        Ok(whole) => {
                            assert!(whole, "a silent loss in {len} bytes");
                            counts[0].fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {
                            counts[1].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            })
        })
        .collect();
    let begun = Instant::now();
    while begun.elapsed() < FOR {
        std::thread::sleep(Duration::from_millis(350));
        relay.cut();
    }
    over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|t| t.join().unwrap());
    let [whole, broken] = [&counts[0], &counts[1]].map(|n| n.load(Ordering::Relaxed));
    assert!(whole > CLIENTS && broken > 0, "{whole} whole, {broken} broken");
    wait_until("a connection is left", || client.counters.flows_now.get() + server.counters.flows_now.get() == 0);
    wait_until("memory is left", || client.counters.bytes_held.get() + server.counters.bytes_held.get() == 0);
}
