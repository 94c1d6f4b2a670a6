//! Arbitrary bytes into every decoder: it returns an error or a length, never panics, and never
//! writes out of bounds.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use narrows::codec::Contexts;
use narrows_older::codecs;

thread_local!(static CONTEXTS: RefCell<Contexts> = RefCell::default());

fuzz_target!(|data: &[u8]| {
    let [codec, history, out, rest @ ..] = data else { return };
    let codecs: Vec<_> = codecs().iter().collect();
    let codec = codecs[usize::from(*codec) % codecs.len()];
    let history_len = (usize::from(*history) * 16).min(rest.len() / 2);
    let (history, wire) = rest.split_at(history_len);
    let history = if codec.can_link() { history } else { &[] };
    let len = usize::from(*out) * 257;
    // Guard bytes after the buffer detect out-of-bounds writes.
    let mut buffer = vec![0xa5; len + 64];
    let result = CONTEXTS.with_borrow_mut(|c| c.decoder(codec).decode(history, wire, &mut buffer[..len]));
    assert!(result.is_err() || result.is_ok_and(|n| n <= len));
    assert!(buffer[len..].iter().all(|b| *b == 0xa5));
});
