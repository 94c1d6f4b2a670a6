//! Arbitrary bytes into a receiver, cut into arbitrary pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows_fuzz::receive;

fuzz_target!(|data: &[u8]| {
    let [cut, rest @ ..] = data else { return };
    receive(rest, 1 + usize::from(*cut));
});
