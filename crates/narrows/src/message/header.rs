//! The header of a message frame, 1 to 3 bytes and perhaps a check (format.md section 12.2).

use super::{Carrier, Coding, Delivery};
use crate::error::{Error, Result};

const METHOD_CONTROL: u8 = 3;
const FLAG_LINKED: u8 = 0x20;
const FLAG_TWO_BYTES: u8 = 0x04;
const FLAG_CHECK: u8 = 0x02;
const FLAG_ONE: u8 = 0x01;
pub(super) const CHECK_LEN: usize = 4;

/// A decoded header of a message frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) coding: Coding,
    /// Encoded with the history; of a stored message: kept out of the history.
    pub(super) linked: bool,
    /// 0: no dictionary.
    pub(super) slot: u8,
    pub(super) check: Option<u32>,
    pub(super) body_len: usize,
    /// First byte as on the wire; checks on carriers that are not ordered cover it.
    pub(super) first: u8,
}

/// Whether the first byte begins a control frame.
pub(super) fn is_control(first: u8) -> bool {
    first >> 6 == METHOD_CONTROL
}

/// The first byte of a frame whose body has `body_len` bytes.
pub(super) fn first_byte(coding: Coding, linked: bool, slot: u8, check: bool, body_len: usize, borders: bool) -> u8 {
    let method = match coding {
        Coding::Store => 0,
        Coding::Lz4 => 1,
        Coding::Zstd => 2,
    };
    let two_bytes = !borders && body_len > 255;
    method << 6
        | if linked { FLAG_LINKED } else { 0 }
        | slot << 3
        | if two_bytes { FLAG_TWO_BYTES } else { 0 }
        | if check { FLAG_CHECK } else { 0 }
        | FLAG_ONE
}

/// Appends the header whose first byte is `first`.
pub(super) fn put(out: &mut Vec<u8>, first: u8, body_len: usize, check: Option<u32>, borders: bool) {
    out.push(first);
    if !borders {
        let len = (body_len as u16).to_le_bytes();
        out.extend_from_slice(&len[..if body_len > 255 { 2 } else { 1 }]);
    }
    if let Some(check) = check {
        out.extend_from_slice(&check.to_le_bytes());
    }
}

/// Reads a header from the front of `b`, and its length. `None` when more bytes are needed. With
/// borders, `b` must be the rest of the unit.
pub(super) fn parse(b: &[u8], carrier: Carrier, check_all: bool) -> Result<Option<(Header, usize)>> {
    let Some(&first) = b.first() else { return Ok(None) };
    let coding = match first >> 6 {
        0 => Coding::Store,
        1 => Coding::Lz4,
        2 => Coding::Zstd,
        _ => return Err(Error::corrupt("a control frame where a message was expected")),
    };
    let (linked, slot) = (first & FLAG_LINKED != 0, first >> 3 & 3);
    let (two_bytes, has_check) = (first & FLAG_TWO_BYTES != 0, first & FLAG_CHECK != 0);
    let ordered = carrier.delivery == Delivery::Ordered;
    let contradicts = first & FLAG_ONE == 0
        || coding == Coding::Store && slot != 0
        || linked && (coding == Coding::Zstd || slot != 0 || !ordered)
        || linked && coding == Coding::Lz4 && !has_check
        || slot != 0 && !has_check
        || check_all && !has_check
        || carrier.borders && two_bytes;
    if contradicts {
        return Err(Error::corrupt("this is not the beginning of a message frame"));
    }
    let len_len = match (carrier.borders, two_bytes) {
        (true, _) => 0,
        (false, false) => 1,
        (false, true) => 2,
    };
    let header_len = 1 + len_len + if has_check { CHECK_LEN } else { 0 };
    let Some(bytes) = b.get(1..header_len) else {
        return if carrier.borders {
            Err(Error::truncated("a unit ends in the header of a message"))
        } else {
            Ok(None)
        };
    };
    let body_len = match len_len {
        0 => b.len() - header_len,
        1 => usize::from(bytes[0]),
        _ => usize::from(u16::from_le_bytes([bytes[0], bytes[1]])),
    };
    if two_bytes && body_len <= 255 || coding != Coding::Store && body_len == 0 {
        return Err(Error::corrupt("a message frame of an impossible length"));
    }
    if body_len > super::MESSAGE_MAX {
        return Err(Error::limit(format!("a body of {body_len} bytes is longer than any message")));
    }
    let check = has_check.then(|| {
        let at = bytes.len() - CHECK_LEN;
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    });
    Ok(Some((Header { coding, linked, slot, check, body_len, first }, header_len)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const STREAM: Carrier = Carrier { delivery: Delivery::Ordered, borders: false };
    const UNITS: Carrier = Carrier { delivery: Delivery::Ordered, borders: true };

    fn bytes(coding: Coding, linked: bool, slot: u8, check: Option<u32>, body_len: usize, borders: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let first = first_byte(coding, linked, slot, check.is_some(), body_len, borders);
        put(&mut out, first, body_len, check, borders);
        out
    }

    #[test]
    fn headers_take_one_byte_with_borders_and_three_at_most_without() {
        for (coding, linked, slot, check) in [
            (Coding::Store, false, 0, None),
            (Coding::Lz4, true, 0, Some(0xdead_beef)),
            (Coding::Lz4, false, 0, None),
            (Coding::Lz4, false, 3, Some(0)),
            (Coding::Zstd, false, 1, Some(1)),
        ] {
            for body_len in [1, 255, 256, 65_535] {
                let check_len = if check.is_some() { CHECK_LEN } else { 0 };
                let wire = bytes(coding, linked, slot, check, body_len, false);
                assert_eq!(wire.len(), check_len + if body_len > 255 { 3 } else { 2 });
                let (header, len) = parse(&wire, STREAM, false).unwrap().unwrap();
                assert_eq!((len, header.body_len, header.check, header.slot), (wire.len(), body_len, check, slot));
                assert_eq!((header.coding, header.linked), (coding, linked));
                for n in 0..wire.len() {
                    assert_eq!(parse(&wire[..n], STREAM, false).unwrap(), None);
                }
                let mut unit = bytes(coding, linked, slot, check, body_len, true);
                assert_eq!(unit.len(), check_len + 1);
                unit.resize(unit.len() + body_len, 7);
                let (same, _) = parse(&unit, UNITS, false).unwrap().unwrap();
                assert_eq!((same.body_len, same.check), (body_len, check));
            }
        }
    }

    #[test]
    fn headers_that_contradict_themselves_are_refused() {
        let corrupt = |wire: &[u8], carrier| parse(wire, carrier, false).unwrap_err().kind == ErrorKind::Corrupt;
        assert!(corrupt(&[0; 8], STREAM) && corrupt(&[0; 8], UNITS), "zeros");
        assert!(corrupt(&bytes(Coding::Zstd, true, 0, Some(1), 5, false), STREAM), "linked zstd");
        assert!(corrupt(&bytes(Coding::Store, false, 2, None, 5, false), STREAM), "store by dictionary");
        assert!(corrupt(&bytes(Coding::Lz4, true, 0, None, 5, false), STREAM), "linked and unchecked");
        assert!(corrupt(&bytes(Coding::Lz4, true, 1, Some(1), 5, false), STREAM), "linked by dictionary");
        assert!(corrupt(&bytes(Coding::Zstd, false, 1, None, 5, false), STREAM), "by dictionary and unchecked");
        assert!(corrupt(&bytes(Coding::Lz4, false, 0, None, 0, false), STREAM), "no body");
        assert!(corrupt(&[0x45, 255, 0], STREAM), "two bytes where one does");
        assert!(corrupt(&[0x45, 255, 0], UNITS), "a length within borders");
        for delivery in [Delivery::Unordered, Delivery::Fanout] {
            let carrier = Carrier { delivery, borders: true };
            assert!(corrupt(&[bytes(Coding::Lz4, true, 0, Some(1), 5, true), vec![1; 5]].concat(), carrier));
            assert!(corrupt(&[bytes(Coding::Store, true, 0, Some(1), 5, true), vec![1; 5]].concat(), carrier));
        }
        assert!(parse(&[0x01, 5], STREAM, true).is_err(), "every frame was to have a check");
        assert_eq!(parse(&[0x03, 1, 2], UNITS, false).unwrap_err().kind, ErrorKind::Truncated);
        let long = [vec![0x01], vec![0; 65_536]].concat();
        assert_eq!(parse(&long, UNITS, false).unwrap_err().kind, ErrorKind::Limit);
    }
}
