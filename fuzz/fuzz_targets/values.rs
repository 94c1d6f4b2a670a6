//! Arbitrary bytes as an encoded value, and as a raw one.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use narrows::codec::{Dictionary, Method};
use narrows::value::{VALUE_MAGIC, ValueConfig, ValueContexts, Values};

const METHODS: [&str; 4] = ["zstd", "lz4", "zlib", "store"];
const LEN_MAX: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let [choice, rest @ ..] = data else { return };
    let method: Method = METHODS[usize::from(choice & 3)].parse().unwrap();
    let takes_one = method.codec.0 < 4 && choice & 4 != 0;
    let dictionary = takes_one.then(|| Arc::new(Dictionary::new(b"{\"name\": \"value\"}, ".repeat(9)).unwrap()));
    let values = Values::new(ValueConfig { method, dictionary, known: Vec::new(), len_min: 16, len_max: LEN_MAX });
    let (values, mut contexts) = (values.unwrap(), ValueContexts::default());

    let value = [&VALUE_MAGIC[..], rest].concat();
    if let Ok(Some(raw)) = values.decode(&value, &mut contexts) {
        assert!(raw.len() <= LEN_MAX);
    }
    for raw in [rest, &value] {
        let stored = values.encode(raw, &mut contexts).unwrap().map_or_else(|| raw.to_vec(), <[u8]>::to_vec);
        let back = values.decode(&stored, &mut contexts).unwrap();
        assert_eq!(back.as_deref().unwrap_or(&stored), raw);
    }
});
