//! Requests of whoever reaches the page for probes: an answer with one status line, or none yet, and only
//! for a complete request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows_host::pages::{Page, answer};

fuzz_target!(|data: &[u8]| {
    let page = |path: &str| (path == "/healthz").then(|| Page::text(200, "ok\n"));
    let whole = answer(data, &page);
    if whole.is_empty() {
        assert!(!data.windows(4).any(|w| w == b"\r\n\r\n"));
        return;
    }
    let line = whole.split(|b| *b == b'\r').next().unwrap_or_default();
    let status = line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok());
    assert!(matches!(status, Some("200" | "400" | "404" | "405" | "431")), "{status:?}");
    assert!(whole.len() < 512, "no byte of a request is in the answer");
    // What follows the end of a request changes nothing.
    assert_eq!(answer(&[data, b"more"].concat(), &page), whole);
});
