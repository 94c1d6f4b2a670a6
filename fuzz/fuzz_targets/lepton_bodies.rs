//! Bodies of recompressed images whose outer lengths are right, so that the fuzzer reaches the test of the
//! header and the library behind it.
#![no_main]

use std::cell::RefCell;
use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use libfuzzer_sys::fuzz_target;
use narrows::codec::{CodecId, Contexts};

thread_local!(static CONTEXTS: RefCell<Contexts> = RefCell::default());

fuzz_target!(
    init: {
        // What panics in the library is caught by the codec; libfuzzer would end the process at once. A panic
        // of our own leaves the target, and ends it too.
        std::panic::set_hook(Box::new(|_| ()));
    },
    |data: &[u8]| {
        let [raw_low, raw_high, header_low, header_high, rest @ ..] = data else { return };
        let raw_len = usize::from(u16::from_le_bytes([*raw_low, *raw_high]));
        let header_len = usize::from(u16::from_le_bytes([*header_low, *header_high]));
        let (header, scan) = rest.split_at(header_len.min(rest.len()));
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        let Ok(()) = encoder.write_all(header) else { return };
        let Ok(deflated) = encoder.finish() else { return };
        let mut wire = b"\xcf\x84\x01Z\x01\0\0\0MS".to_vec();
        wire.extend((header.len() as u32).to_le_bytes());
        wire.extend(b"\x83\0\0\0\0\0");
        wire.extend((raw_len as u32).to_le_bytes());
        wire.extend((deflated.len() as u32).to_le_bytes());
        wire.extend(&deflated);
        wire.extend(b"CMP");
        wire.extend(scan);
        wire.extend((wire.len() as u32 + 4).to_le_bytes());
        let mut out = vec![0; raw_len];
        let codec = CodecId::LEPTON.codec().expect("part of every build");
        let decoded = CONTEXTS.with_borrow_mut(|c| c.decoder(codec).decode(&[], &wire, &mut out));
        assert!(decoded.is_err() || decoded.is_ok_and(|len| len <= raw_len));
    }
);
