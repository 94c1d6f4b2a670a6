//! Arbitrary bytes as a chunk of an array, as a file of chunks and as a .npy header; and, after a valid
//! header, as pipeline and body, with the check corrected so that everything is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows_array::{Coder, Dtype, file, info, npy};

/// Raw bytes that a caller allows: enough for every step, little enough to see what is not earned.
const RAW_MAX: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let mut coder = Coder::new();
    let _ = npy::parse(bytes);
    let _ = info(bytes);
    let _ = coder.decode(bytes, RAW_MAX);
    if let Ok(chunks) = file::chunks(bytes) {
        let _ = file::decode(chunks, RAW_MAX, |_| Ok(()));
    }
    let Some((&[dtype, flags, a, b], rest)) = bytes.split_first_chunk() else { return };
    let types: Vec<Dtype> = Dtype::all().collect();
    let element = types[usize::from(dtype) % types.len()];
    let raw_len = usize::from(a) * usize::from(b) * element.bytes();
    if raw_len > RAW_MAX {
        return;
    }
    let mut chunk = narrows_array::MAGIC.to_vec();
    chunk.extend([1 + dtype % types.len() as u8 | flags & 0x80, flags & 3, 2]);
    for mut v in [usize::from(a), usize::from(b), raw_len] {
        while v >= 0x80 {
            chunk.push(v as u8 | 0x80);
            v >>= 7;
        }
        chunk.push(v as u8);
    }
    chunk.extend([0; 8]);
    chunk.extend(rest);
    let _ = coder.decode(&chunk, RAW_MAX);
});
