//! A stream over several carriers: it arrives complete and in order whatever each carrier does, and
//! a carrier that dies ends the flow instead of letting it hang.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use narrows::policy::PolicySpec;
use narrows::stream::{self, ReceiveOptions, SendOptions};
use narrows::transport::Link;
use narrows::transport::bond::{Bond, CARRIERS_MAX, GREETING};
use narrows_test::noise_of;

/// Both ends of a carrier that passes `bytes_per_ms` in pieces of odd lengths. The direction from
/// the first end to the second breaks after `most` bytes.
fn carrier(bytes_per_ms: usize, most: usize) -> (Link, Link) {
    counted_carrier(bytes_per_ms, most, Arc::default())
}

/// As [`carrier`], and counts the bytes from the first end to the second.
fn counted_carrier(bytes_per_ms: usize, most: usize, passed: Arc<AtomicUsize>) -> (Link, Link) {
    let (a, near) = UnixStream::pair().unwrap();
    let (b, far) = UnixStream::pair().unwrap();
    let pump = |mut from: UnixStream, mut to: UnixStream, most: usize, passed: Arc<AtomicUsize>| {
        std::thread::spawn(move || {
            let mut buffer = vec![0; bytes_per_ms.clamp(1, 70_001)];
            let mut left = most;
            while left > 0 {
                let want = left.min(buffer.len());
                match from.read(&mut buffer[..want]) {
                    Ok(n @ 1..) if to.write_all(&buffer[..n]).is_ok() => left -= n,
                    _ => break,
                }
                passed.store(most - left, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            let how = if left > 0 { std::net::Shutdown::Write } else { std::net::Shutdown::Both };
            let _ = to.shutdown(how);
            let _ = from.shutdown(if left > 0 { std::net::Shutdown::Read } else { std::net::Shutdown::Both });
        });
    };
    pump(near.try_clone().unwrap(), far.try_clone().unwrap(), most, passed);
    pump(far, near, usize::MAX, Arc::default());
    (Link::unix(a).unwrap(), Link::unix(b).unwrap())
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sends `data` over a first carrier, while `grow` may add others to both ends. Returns what
/// arrived and whether both ends succeeded.
fn transfer(data: &[u8], first: (Link, Link), grow: impl FnOnce(&Bond, &Bond)) -> (Vec<u8>, bool) {
    let (near, near_bond) = first.0.bonded().unwrap();
    let (far, far_bond) = first.1.bonded().unwrap();
    let sink = Sink::default();
    let into = sink.clone();
    let receiver = std::thread::spawn(move || {
        let options = ReceiveOptions::default().threads(2);
        stream::receive(into, far, options).is_ok()
    });
    let source = std::io::Cursor::new(data.to_vec());
    let sender = std::thread::spawn(move || {
        let options = SendOptions::new(PolicySpec::store()).block_max(32 << 10).threads(2);
        stream::send(source, near, options).is_ok()
    });
    grow(&near_bond, &far_bond);
    let begun = Instant::now();
    while !(sender.is_finished() && receiver.is_finished()) {
        assert!(begun.elapsed() < Duration::from_secs(120), "it hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    let content = sender.join().unwrap() & receiver.join().unwrap();
    let got = sink.0.lock().unwrap().clone();
    (got, content)
}

fn add(near: &Bond, far: &Bond, (a, b): (Link, Link)) {
    near.add(a).unwrap();
    far.add(b).unwrap();
}

#[test]
fn one_carrier_is_a_link_as_any_other() {
    for len in [0, 1, 70_000, 3_000_000] {
        let data = noise_of(1, len);
        let (got, content) = transfer(&data, carrier(100_000, usize::MAX), |_, _| ());
        assert!(content && got == data, "{len}");
    }
}

#[test]
fn carriers_that_come_later_and_have_other_speeds_share_the_work() {
    let data = noise_of(2, 6_000_000);
    let passed: [Arc<AtomicUsize>; 5] = Default::default();
    let carried = |i: usize| passed[i].load(Ordering::Relaxed);
    let (got, content) = transfer(&data, counted_carrier(2_000, usize::MAX, Arc::clone(&passed[0])), |near, far| {
        for (i, speed) in [3_001, 777, 20_011, 9_000].into_iter().enumerate() {
            std::thread::sleep(Duration::from_millis(30));
            add(near, far, counted_carrier(speed, usize::MAX, Arc::clone(&passed[i + 1])));
        }
    });
    assert!(content && got == data);
    // On a busy machine the speed of a carrier depends on when its threads are woken.
    let carried = [0, 1, 2, 3, 4].map(carried);
    assert!(carried[1..].iter().sum::<usize>() > data.len() / 4, "{carried:?}: the others carry little");
}

#[test]
fn a_carrier_whose_peer_is_never_heard_harms_nobody() {
    let data = noise_of(3, 2_000_000);
    let (got, content) = transfer(&data, carrier(10_000, usize::MAX), |near, far| {
        // A carrier without another end at each side, and one that stays silent.
        let (other, gone) = UnixStream::pair().unwrap();
        drop(gone);
        far.add(Link::unix(other).unwrap()).unwrap();
        let (lone, gone) = UnixStream::pair().unwrap();
        drop(gone);
        near.add(Link::unix(lone).unwrap()).unwrap();
        let (silent, kept) = UnixStream::pair().unwrap();
        near.add(Link::unix(silent).unwrap()).unwrap();
        std::mem::forget(kept);
    });
    assert!(content && got == data);
}

#[test]
fn a_carrier_that_dies_ends_the_flow_and_what_came_is_right() {
    let data = noise_of(4, 8_000_000);
    for most in [30, 5_000, 300_000] {
        let (got, content) =
            transfer(&data, carrier(5_000, usize::MAX), |near, far| add(near, far, carrier(5_000, most)));
        assert!(!content, "{most}");
        assert!(data.starts_with(&got), "{most}: something else arrived");
    }
}

#[test]
fn there_is_a_limit_of_carriers() {
    let (a, b) = UnixStream::pair().unwrap();
    let (_, bond) = Link::unix(a).unwrap().bonded().unwrap();
    let mut kept = vec![b];
    for _ in 1..CARRIERS_MAX {
        let (a, b) = UnixStream::pair().unwrap();
        bond.add(Link::unix(a).unwrap()).unwrap();
        kept.push(b);
    }
    assert!(bond.add(Link::unix(UnixStream::pair().unwrap().0).unwrap()).is_err());
}

/// Result of a receiver that gets these bytes, each on its own carrier.
fn receive_raw(carriers: &[Vec<u8>]) -> Result<(), String> {
    let mut ends = Vec::new();
    let mut bond: Option<(Link, Bond)> = None;
    for bytes in carriers {
        let (a, mut b) = UnixStream::pair().unwrap();
        let link = Link::unix(a).unwrap();
        match &bond {
            None => bond = Some(link.bonded().unwrap()),
            Some((_, bond)) => bond.add(link).unwrap(),
        }
        let bytes = bytes.clone();
        ends.push(std::thread::spawn(move || {
            let _ = b.write_all(&bytes);
            // Keep the carrier open until the receiver closes it.
            let _ = b.set_read_timeout(Some(Duration::from_millis(300)));
            while matches!(b.read(&mut [0; 4096]), Ok(1..)) {}
        }));
    }
    let received = stream::receive(std::io::sink(), bond.unwrap().0, ReceiveOptions::default().threads(1));
    ends.into_iter().for_each(|e| e.join().unwrap());
    received.map(drop).map_err(|e| format!("{e} {:?}", e.source))
}

#[test]
fn hostile_segments_are_errors_and_cost_little() {
    let segment = |at: u64, len: u32, body: &[u8]| [&at.to_le_bytes()[..], &len.to_le_bytes(), body].concat();
    let greeted = |segments: &[Vec<u8>]| [&GREETING[..], &segments.concat()].concat();
    for (bad, said) in [
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "does not belong"),
        (greeted(&[segment(0, 65_537, b"")]), "malformed"),
        (greeted(&[segment(u64::MAX, 2, b"")]), "malformed"),
        (greeted(&[segment(100, 3, b"abc"), segment(100, 3, b"abc")]), "malformed"),
        (greeted(&[segment(100, 3, b"abc"), segment(101, 3, b"abc")]), "malformed"),
    ] {
        let error = receive_raw(&[bad]).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    // Overlapping segments on two carriers.
    let twice = [greeted(&[segment(100, 3, b"abc")]), greeted(&[segment(102, 3, b"abc")])];
    assert!(receive_raw(&twice).is_err());
    // A piece within another one is detected when its turn comes.
    let magic = b"\x93NRW";
    let lies = receive_raw(&[greeted(&[segment(4, 4, b"xxxx"), segment(5, 1, b"y"), segment(0, 4, magic)])]);
    assert!(lies.is_err());
    // Segments far ahead, and in many pieces: they stay on their carrier until the carriers end.
    let far = receive_raw(&[greeted(&[segment(1 << 40, 3, b"abc")])]);
    assert!(far.is_err());
    let many: Vec<_> = (0..100_000u64).map(|i| segment(1000 + 2 * i, 1, b"z")).collect();
    assert!(receive_raw(&[greeted(&many)]).is_err());
}
