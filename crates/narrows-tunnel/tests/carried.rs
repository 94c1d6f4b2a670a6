//! Connections through a tunnel between two ends in this process, over loopback.

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;

use common::{Ends, Far, target, text};

#[test]
fn an_echo_comes_back_and_ends_pass() {
    let far = Far::echo();
    let ends = Ends::new(&[("0", &target(far.port))]);
    let mut client = ends.connect(0);
    for len in [1, 100, 5_000, 300_000] {
        let sent = text(len);
        let writer = client.try_clone().unwrap();
        let copy = sent.clone();
        let writing = std::thread::spawn(move || (&writer).write_all(&copy).unwrap());
        let mut got = vec![0; len];
        client.read_exact(&mut got).unwrap();
        assert!(got == sent, "{len}");
        writing.join().unwrap();
    }
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 10]).unwrap(), 0, "the echo ends when its input does");
}
