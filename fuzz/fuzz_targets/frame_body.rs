//! A valid preface and valid headers before arbitrary bodies, so that the fuzzer reaches the code
//! after them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::codec::CodecId;
use narrows::frame::{
    BASELINE_CODECS, BlockHeader, ControlKind, Copy, EndTotals, NAMED_CODECS, Preface, Role, control_frame, feature,
    put_plan,
};
use narrows_fuzz::receive;

fuzz_target!(|data: &[u8]| {
    let [flags, rest @ ..] = data else { return };
    let preface = Preface {
        role: Role::Sender,
        critical: if flags & 1 == 0 { feature::COPIES } else { feature::MESSAGES | feature::COPIES },
        optional: feature::INDEX,
        check: false,
        block_max: 1 << 16,
        history: 1 << 18,
        reach: 1 << 14,
        codecs: BASELINE_CODECS | NAMED_CODECS,
    };
    let mut stream = preface.encode().to_vec();
    let mut rest = rest;
    let mut raw_total = 0;
    while let [kind, len, raw_len, tail @ ..] = rest {
        let len = usize::from(*len).min(tail.len());
        let (body, tail) = tail.split_at(len);
        rest = tail;
        let linked = kind & 0x40 != 0;
        let codec = if kind & 7 == 7 && len & 1 == 1 { CodecId::SPLIT } else { CodecId(kind & 7) };
        if kind & 0x80 != 0 {
            let kind = [ControlKind::Reset, ControlKind::Index, ControlKind::Unknown(0x4b), ControlKind::Keep]
                [usize::from(*kind) % 4];
            let frame = control_frame(kind, body, raw_total);
            stream.extend(frame.header.iter().chain(frame.body.iter()));
        } else if let (true, [plan @ .., last]) = (kind & 0x18 != 0, body) {
            // A plan from the input's bytes, true lengths and half of the time a true codec.
            let copies: Vec<Copy> = plan
                .chunks_exact(4)
                .take(usize::from(last & 3) + 1)
                .map(|b| Copy {
                    gap: usize::from(b[0] & 0x3f),
                    length: 32 + usize::from(b[1]),
                    distance: 32 + u64::from(b[1]) + u64::from(b[2]) * u64::from(b[3]),
                })
                .collect();
            let mut made = Vec::new();
            let mut literals = plan;
            if kind & 0x10 != 0 && !copies.is_empty() {
                put_plan(&mut made, copies.iter().copied());
                literals = &plan[4 * copies.len()..];
            }
            made.extend_from_slice(literals);
            let copied: usize = copies.iter().map(|c| c.length).sum();
            let codec = if *raw_len & 1 == 0 { CodecId::STORE } else { codec };
            let block = (literals.len() + copied + usize::from(*raw_len >> 1)).max(made.len() + 1);
            raw_total += block as u64;
            stream.extend(BlockHeader::copy(codec, linked, block, made.len()).encode(None).iter());
            stream.extend(made);
        } else if !body.is_empty() {
            let raw_len =
                if codec == CodecId::STORE { body.len() } else { body.len() + 1 + usize::from(*raw_len) * 64 };
            let header = if kind & 0x20 != 0 && flags & 1 == 1 {
                BlockHeader::message(codec, linked, body.len())
            } else {
                raw_total += raw_len as u64;
                BlockHeader::data(codec, linked, raw_len, body.len())
            };
            stream.extend(header.encode(None).iter());
            stream.extend(body);
        }
    }
    let totals = EndTotals { raw_total, wire_total: stream.len() as u64, index_offset: 0, digest: 0 };
    let end = totals.frame();
    stream.extend(end.header.iter().chain(end.body.iter()));
    receive(&stream, 4096);
});
