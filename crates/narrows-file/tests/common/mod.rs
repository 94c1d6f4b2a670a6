//! Data and files that the tests share.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io::Write;

use narrows_file::{File, WriteOptions, Writer};

/// Numbers that repeat for a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// Lines with some sense in them, and now and then noise or zeros.
pub(crate) fn sample(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let mut out = Vec::with_capacity(len + 100);
    while out.len() < len {
        match random.below(200) {
            0 => out.extend((0..5000).map(|_| random.next() as u8)),
            1 => out.extend([0; 5000]),
            _ => {
                let (a, b) = (random.below(1000), random.below(50));
                writeln!(out, "2026-11-{b:02} level={b} request {a} took {} us", a * b).unwrap();
            }
        }
    }
    out.truncate(len);
    out
}

/// `raw` as a file.
pub(crate) fn stored(raw: &[u8], options: WriteOptions) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), options).unwrap();
    for piece in raw.chunks(100_003) {
        writer.write_all(piece).unwrap();
    }
    let (stored, summary) = writer.finish().unwrap();
    assert_eq!(summary.raw_bytes, raw.len() as u64);
    stored
}

/// Small blocks, linked in short runs.
pub(crate) fn linked() -> WriteOptions {
    WriteOptions::default().policy("fixed:zstd:level=3,link".parse().unwrap()).block_max(10_000).run_len(50_000)
}

/// Small blocks, each alone.
pub(crate) fn alone() -> WriteOptions {
    WriteOptions::default().policy("fixed:lz4".parse().unwrap()).block_max(10_000)
}

/// All of a file by positioned reads.
pub(crate) fn read_all(file: &File<impl narrows_file::ReadAt>) -> narrows_file::Result<Vec<u8>> {
    let mut raw = vec![0; file.raw_len() as usize];
    let n = file.read_at(&mut raw, 0)?;
    assert_eq!(n, raw.len());
    Ok(raw)
}
