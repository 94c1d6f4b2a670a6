//! A valid preface and valid headers before arbitrary bodies, so that the fuzzer reaches the code
//! behind them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use narrows::codec::CodecId;
use narrows::frame::{BlockHeader, ControlKind, EndTotals, Preface, Role, control_frame, feature};
use narrows_fuzz::receive;

fuzz_target!(|data: &[u8]| {
    let [flags, rest @ ..] = data else { return };
    let preface = Preface {
        role: Role::Sender,
        critical: if flags & 1 == 0 { 0 } else { feature::MESSAGES },
        optional: feature::INDEX,
        check: false,
        block_max: 1 << 16,
        history: 1 << 12,
        codecs: 0xff,
    };
    let mut stream = preface.encode().to_vec();
    let mut rest = rest;
    let mut raw_total = 0;
    while let [kind, len, raw_len, tail @ ..] = rest {
        let len = usize::from(*len).min(tail.len());
        let (body, tail) = tail.split_at(len);
        rest = tail;
        let linked = kind & 0x40 != 0;
        let codec = CodecId(kind & 7);
        if kind & 0x80 != 0 {
            let kind = [ControlKind::Reset, ControlKind::Index, ControlKind::Unknown(0x4b)][usize::from(*kind) % 3];
            let frame = control_frame(kind, body, raw_total);
            stream.extend(frame.header.iter().chain(frame.body.iter()));
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
