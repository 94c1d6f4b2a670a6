//! Hints, records of efforts and ends of files from arbitrary bytes: what is read prints as itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::hint::Hint;
use narrows_file::effort::{Record, end_of};

fuzz_target!(|data: &[u8]| {
    if let Some(record) = Record::parse(data) {
        assert_eq!(Record::parse(record.text().as_bytes()), Some(record));
    }
    let _ = end_of(&data.to_vec());
    if let Ok(hint) = std::str::from_utf8(data).unwrap_or_default().parse::<Hint>() {
        assert_eq!(hint.to_string().parse::<Hint>().ok(), Some(hint.clone()), "{hint}");
        let _ = narrows::policy::PolicySpec::of_hint(&hint, Default::default());
    }
});
