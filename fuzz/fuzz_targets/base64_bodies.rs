//! Bodies of decoded base64 with any plan before a whole frame, so that the fuzzer reaches what is done with
//! both; and any bytes as mail.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use narrows::codec::{CodecId, Contexts};

thread_local!(static CONTEXTS: RefCell<Contexts> = RefCell::default());

fuzz_target!(|data: &[u8]| {
    let [raw_low, raw_high, plan_len, rest @ ..] = data else { return };
    let raw_len = usize::from(u16::from_le_bytes([*raw_low, *raw_high]));
    let (plan, inner) = rest.split_at(usize::from(*plan_len).min(rest.len()));
    let (base64, zstd) = (CodecId::BASE64.codec(), CodecId::ZSTD.codec());
    let (base64, zstd) = (base64.expect("part of every build"), zstd.expect("part of every build"));
    CONTEXTS.with_borrow_mut(|contexts| {
        let mut frame = vec![0; inner.len() + 100];
        if let Some(len) = contexts.encoder(zstd).encode(1, &[], inner, &mut frame) {
            let wire = [plan, &frame[..len]].concat();
            let mut out = vec![0; raw_len];
            let decoded = contexts.decoder(base64).decode(&[], &wire, &mut out);
            assert!(decoded.is_err() || decoded.is_ok_and(|len| len <= raw_len));
        }
        let mut wire = vec![0; rest.len() + 100];
        if let Some(len) = contexts.encoder(base64).encode(1, &[], rest, &mut wire) {
            let mut back = vec![0; rest.len()];
            assert_eq!(contexts.decoder(base64).decode(&[], &wire[..len], &mut back), Ok(rest.len()));
            assert!(back == rest);
        }
    });
});
