//! Arbitrary bytes on several carriers of one stream: the receiver returns an error or continues,
//! and stays within its memory limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::transport::bond::segments::{GREETING, PIECES_MAX, Part, Stream};

fuzz_target!(|data: &[u8]| {
    let [mode, room, rest @ ..] = data else { return };
    let (mut stream, mut parts) = (Stream::default(), [(); 3].map(|()| Part::default()));
    let mut buf = vec![0; 1 + usize::from(*room)];
    let mut taken = 0u64;
    for (i, piece) in rest.chunks(1 + usize::from(mode >> 2)).enumerate() {
        let part = &mut parts[i % 3];
        // Valid headers are rare among arbitrary bytes, so insert some.
        let mut bytes = Vec::new();
        if mode & 1 == 1 && i < 3 {
            bytes.extend(GREETING);
        }
        if mode & 2 == 2 {
            let at = taken + u64::from(piece[0] & 3) * u64::from(piece[0]);
            bytes.extend(at.to_le_bytes());
            bytes.extend((piece.len() as u32).to_le_bytes());
        }
        bytes.extend(piece);
        part.fill(bytes.len(), |space| {
            space.copy_from_slice(&bytes);
            (bytes.len(), ())
        });
        for part in &mut parts {
            loop {
                match part.take(&mut stream, &mut buf) {
                    Ok(Some(n)) => taken += n as u64,
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
            while let Some(n) = match stream.take_ahead(&mut buf) {
                Ok(n) => n,
                Err(_) => return,
            } {
                taken += n as u64;
            }
        }
        assert!(stream.pieces() <= PIECES_MAX && taken <= rest.len() as u64);
    }
});
