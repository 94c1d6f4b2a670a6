//! Arbitrary bytes as the frames of a measurement: what is read is written and read as itself, and a
//! part of a frame is never another one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows_copy::measure::{Frame, parse_frame};

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Ok(Some((frame, len))) = parse_frame(rest) {
        assert!(len > 0 && len <= rest.len());
        let back = parse_frame(&frame.encode()).unwrap();
        // Text may come in more ways than it is written, and what no text was becomes longer.
        if !matches!(frame, Frame::Hello(_) | Frame::Speeds(_) | Frame::Refusal(_)) {
            assert_eq!(back.map(|back| back.0).as_ref(), Some(&frame));
        }
        for end in 0..len {
            assert!(matches!(parse_frame(&rest[..end]), Ok(None)), "{frame:?} {end}");
        }
        rest = &rest[len..];
        if let Frame::Data(len) = frame {
            rest = &rest[len.min(rest.len())..];
        }
    }
});
