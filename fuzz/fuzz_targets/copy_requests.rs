//! Requests of a copy from arbitrary bytes: what is read is written and read as itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows_copy::hello::{read, write};

fuzz_target!(|data: &[u8]| {
    // The words alone too, since a mutation rarely leaves the length right.
    let framed = [b"\x93NRSV\r\n\x1a", &(data.len() as u32).to_le_bytes()[..], data].concat();
    for bytes in [data, &framed] {
        let Ok(request) = read(bytes) else { continue };
        let mut again = Vec::new();
        write(&request, &mut again).unwrap();
        assert_eq!(read(&again[..]).unwrap(), request);
    }
});
