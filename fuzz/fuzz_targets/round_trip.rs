//! A codec decodes its own output to the same bytes, at every level and with any history.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use narrows::codec::Contexts;
use narrows_older::codecs;

thread_local!(static CONTEXTS: RefCell<Contexts> = RefCell::default());

fuzz_target!(|data: &[u8]| {
    let [codec, level, history, repeat, rest @ ..] = data else { return };
    let codecs: Vec<_> = codecs().iter().collect();
    let codec = codecs[usize::from(*codec) % codecs.len()];
    let level = codec.levels()[usize::from(*level) % codec.levels().len()];
    let history_len = (usize::from(*history) * 16).min(rest.len() / 2);
    let (history, raw) = rest.split_at(history_len);
    let history = if codec.can_link() { history } else { &[] };
    let raw = raw.repeat(1 + usize::from(*repeat % 8));
    if raw.is_empty() {
        return;
    }
    let mut wire = vec![0; raw.len()];
    let mut back = vec![0; raw.len()];
    CONTEXTS.with_borrow_mut(|c| {
        if let Some(len) = c.encoder(codec).encode(level, history, &raw, &mut wire) {
            assert_eq!(c.decoder(codec).decode(history, &wire[..len], &mut back), Ok(raw.len()));
            assert!(back == raw);
        }
    });
});
