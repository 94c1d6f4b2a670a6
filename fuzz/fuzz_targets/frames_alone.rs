//! Frames that stand alone, compared as they come: what passes whole is read to the same length by a
//! reader of files, whatever the pieces; and what a client may change in a good stream is refused or
//! harmless.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::codec::CodecId;
use narrows_file::OpenOptions;
use narrows_file::alone::{Maker, Reader};

fn read(stream: &[u8], piece: usize) -> Option<u64> {
    let mut reader = Reader::new(true);
    stream.chunks(piece).try_for_each(|piece| reader.push(piece, |_| Ok(()))).ok()?;
    reader.finish().ok()?;
    Some(reader.raw_len())
}

/// A good stream with the blocks that the bytes describe.
fn good(data: &[u8]) -> Vec<u8> {
    let mut maker = Maker::new(1 << 16);
    let mut out = maker.preface().to_vec();
    for raw in data.chunks(50).take(20) {
        let (codec, body) = if raw.iter().all(|b| *b == raw[0]) && raw.len() > 1 {
            (CodecId(1), &raw[..1])
        } else {
            (CodecId::STORE, raw)
        };
        let header = maker.block(codec, raw, body);
        out.extend_from_slice(&header);
        out.extend_from_slice(body);
    }
    out.extend_from_slice(&maker.finish(None));
    out
}

fuzz_target!(|data: &[u8]| {
    let [kind, at, with, rest @ ..] = data else { return };
    let piece = usize::from(kind >> 2) + 1;
    let stream = match kind % 4 {
        0 => rest.to_vec(),
        1 => good(rest),
        2 => {
            let mut bytes = good(rest);
            let at = usize::from(*at) * bytes.len() / 256;
            bytes[at] ^= with | 1;
            bytes
        }
        _ => {
            let mut bytes = good(rest);
            let at = usize::from(*at) * bytes.len() / 256;
            bytes.splice(at..(at + usize::from(*with)).min(bytes.len()), rest.iter().copied());
            bytes
        }
    };
    let whole = read(&stream, stream.len().max(1));
    assert_eq!(whole, read(&stream, piece), "it depends on the pieces");
    if kind % 4 == 1 {
        assert_eq!(whole, Some(rest.len().min(1000) as u64));
    }
    if let Some(len) = whole {
        let file = OpenOptions::default().open(stream).expect("what passed is a file");
        assert_eq!(file.raw_len(), len);
    }
});
