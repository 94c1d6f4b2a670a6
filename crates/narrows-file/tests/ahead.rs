//! Decoding ahead by several threads.

mod common;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{alone, linked, sample, stored};
use narrows_file::{File, OpenOptions, ReadAt};

/// Counts the reads.
struct Counted(Vec<u8>, AtomicUsize);

impl ReadAt for Counted {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        ReadAt::len(&self.0)
    }
}

#[test]
fn what_was_decoded_ahead_is_there_and_right() {
    let raw = sample(600_000, 3);
    for options in [linked(), alone()] {
        let one = stored(&raw, options);
        let file = File::open(Counted([one.clone(), one].concat(), AtomicUsize::new(0))).unwrap();
        // Across the border of two streams, and from the middle of a run.
        let (begin, len) = (raw.len() - 275_003, 500_000);
        file.read_ahead(begin as u64, len, 4).unwrap();
        let reads = file.source().1.load(Ordering::Relaxed);
        let mut buf = vec![0; len];
        assert_eq!(file.read_at(&mut buf, begin as u64).unwrap(), len);
        assert_eq!(file.source().1.load(Ordering::Relaxed), reads, "a block was read again");
        assert!(buf == [&raw[begin..], &raw[..len - 275_003]].concat());
        // Nothing is there.
        file.read_ahead(2 * raw.len() as u64, len, 4).unwrap();
        file.read_ahead(u64::MAX, usize::MAX, 4).unwrap();
        assert_eq!(file.source().1.load(Ordering::Relaxed), reads);
    }
}

#[test]
fn damage_is_told_to_whoever_reads_it() {
    let raw = sample(600_000, 4);
    let mut bytes = stored(&raw, alone());
    let at = bytes.len() / 3;
    bytes[at] ^= 1;
    let file = OpenOptions::default().open(&bytes[..]).unwrap();
    file.read_ahead(0, raw.len(), 4).unwrap();
    let damaged = (0..raw.len()).step_by(1000).filter(|at| file.read_at(&mut [0], *at as u64).is_err());
    assert!((1..=10).contains(&damaged.count()), "one block of at most 10,000 bytes");
    let mut last = [0; 100];
    file.read_at(&mut last, raw.len() as u64 - 100).unwrap();
    assert_eq!(last, raw[raw.len() - 100..]);
}
