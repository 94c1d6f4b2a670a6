//! An arbitrary index, with a footer that is right or arbitrary, after frames that are good: what is
//! read are the raw bytes of the frames or an error. And arbitrary bytes as a whole file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::codec::CodecId;
use narrows::frame::{BlockHeader, EndTotals, Preface, Role, chain_digest, feature};
use narrows::sender::index_frames;
use narrows_file::{File, OpenOptions};

const BLOCK: usize = 200;

fuzz_target!(|data: &[u8]| {
    let [kind, rest @ ..] = data else { return };
    if kind % 4 == 0 {
        if let Ok(file) = OpenOptions::default().broken(kind % 8 == 0).open(rest) {
            let mut buf = vec![0; 4096];
            let _ = file.read_at(&mut buf, 0);
            let _ = file.read_at(&mut buf, file.raw_len() / 2);
        }
        return;
    }
    let raw: Vec<u8> = (0..3 * BLOCK).map(|i| ((i * i) >> 3) as u8).collect();
    let preface = Preface {
        role: Role::Sender,
        critical: 0,
        optional: feature::INDEX,
        check: kind % 4 != 3,
        block_max: 1000,
        history: if kind & 8 == 0 { 0 } else { 65_536 },
        reach: 0,
        codecs: 1,
    };
    let mut bytes = preface.encode().to_vec();
    let mut digest = 0;
    for (i, block) in raw.chunks(BLOCK).enumerate() {
        let header = BlockHeader::data(CodecId::STORE, false, BLOCK, BLOCK);
        let check = preface.check.then(|| header.check_of(block, block, (i * BLOCK) as u64));
        digest = check.map_or(digest, |check| chain_digest(digest, check));
        bytes.extend_from_slice(&header.encode(check));
        bytes.extend_from_slice(block);
    }
    let raw_total = if kind & 16 == 0 { raw.len() as u64 } else { u64::from(*kind) << 32 };
    let index_offset = bytes.len() as u64;
    for frame in index_frames(&preface.encode(), rest, &[], raw_total) {
        bytes.extend_from_slice(&frame.header);
        bytes.extend_from_slice(&frame.body);
    }
    let footer = EndTotals { raw_total, wire_total: bytes.len() as u64, index_offset, digest }.frame();
    bytes.extend_from_slice(&footer.header);
    bytes.extend_from_slice(&footer.body);
    let Ok(file) = File::open(&bytes[..]) else { return };
    for at in [0, 1, 199, 200, 399, 400, 599, 600, u64::MAX] {
        let mut buf = [0; 250];
        if let Ok(n) = file.read_at(&mut buf, at) {
            let expected = usize::try_from(at).ok().and_then(|at| raw.get(at..)).unwrap_or_default();
            assert!(expected.starts_with(&buf[..n]), "wrong bytes at {at}");
        }
    }
});
