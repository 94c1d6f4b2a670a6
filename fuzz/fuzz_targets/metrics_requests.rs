//! Arbitrary bytes as an HTTP request of a scraper or a probe, in one piece and cut anywhere: refused, or
//! understood in the same way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows_watch::http;

fuzz_target!(|data: &[u8]| {
    let whole = http::parse(data);
    // More bytes never turn an answer into another one.
    let first = (1..=data.len()).step_by(61).find_map(|len| http::parse(&data[..len]));
    if let (Some(Ok(first)), Some(Ok(whole))) = (&first, &whole) {
        assert_eq!(first, whole);
    }
    assert!(whole.is_some() || data.len() < 8 << 10);
});
