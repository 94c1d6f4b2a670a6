//! Whole streams in one call.

use narrows::frame::{self, ControlKind, END_FRAME_LEN, EndTotals, Header, PREFACE_LEN, ReadLimits};

use crate::coder::{Decoder, Encoder, Mode};
use crate::memory::Room;
use crate::options::StreamOptions;
use crate::status::{Failure, Result, Status};

/// There is no link whose speed could decide, so that only size and CPU count.
const POLICY: &str = "fixed:zstd";

/// Bytes of a stream beside its frames: preface, end frame and the frames of an index that are there
/// for any length.
const BOUND_FIXED: usize = 256;
/// Raw bytes for each byte of headers. A frame has up to 20 bytes of header and 12 in an index, and
/// no policy for streams makes blocks of less than 4 KiB but for the last one.
const BOUND_SHARE: usize = 128;

/// Longest stream of `raw_len` bytes.
pub(crate) fn bound(raw_len: usize) -> Option<usize> {
    raw_len.checked_add(raw_len / BOUND_SHARE)?.checked_add(BOUND_FIXED)
}

/// Encodes `raw` as a whole stream. Returns its length.
pub(crate) fn encode(mut options: StreamOptions, raw: &[u8], room: &mut Room) -> Result<usize> {
    options.policy.get_or_insert_with(|| POLICY.to_owned());
    options.raw_len = raw.len() as u64;
    let len = room.len();
    let mut encoder = Encoder::new(&options)?;
    let mut rest = raw;
    // A policy that watches the link lets only so many bytes be under way. The next call tells it that
    // the last ones have arrived.
    loop {
        let before = (rest.len(), room.len());
        let (taken, waiting) = encoder.encode(rest, room, Mode::End)?;
        rest = &rest[taken..];
        if rest.is_empty() && waiting == 0 {
            return Ok(len - room.len());
        }
        if (rest.len(), room.len()) == before || room.len() == 0 {
            break;
        }
    }
    let words = format!("the output has {len} bytes, which is too short: see narrows_compress_bound");
    Err(Failure::new(Status::NARROWS_ERROR_LIMIT, words))
}

/// Decodes a whole stream, and nothing behind it. Returns the length of its content.
pub(crate) fn decode(wire: &[u8], room: &mut Room) -> Result<usize> {
    let len = room.len();
    let mut decoder = Decoder::new(&StreamOptions::default())?;
    let (taken, complete) = decoder.decode(wire, room);
    if complete? {
        return Ok(len - room.len());
    }
    if taken == wire.len() {
        // Pending output is the misuse that follows from too little room.
        decoder.end().or_else(|e| if e.status == Status::NARROWS_ERROR_MISUSE { Ok(()) } else { Err(e) })?;
    }
    let words = format!("the output has {len} bytes, which is too short: see narrows_content_len");
    Err(Failure::new(Status::NARROWS_ERROR_LIMIT, words))
}

/// Length of the content of the stream, as its last frame states it.
pub(crate) fn content_len(wire: &[u8]) -> Result<u64> {
    /// End frames are control frames, which these limits are not about.
    const LIMITS: ReadLimits =
        ReadLimits { block_max: 0, history: 0, reach: 0, codecs: 0, check: true, messages: false };
    let torn = || Failure::new(Status::NARROWS_ERROR_TRUNCATED, "the bytes do not end with the end of a stream");
    let at = wire.len().checked_sub(END_FRAME_LEN).filter(|at| *at >= PREFACE_LEN).ok_or_else(torn)?;
    let bytes = &wire[at..];
    let header = match frame::parse_header(bytes, &LIMITS) {
        Ok(Some(Header::Control(h))) if h.kind == ControlKind::End && h.header_len + h.body_len == bytes.len() => h,
        _ => return Err(torn()),
    };
    let totals = EndTotals::parse(&bytes[header.header_len..])?;
    header.verify(&bytes[header.header_len..], totals.raw_total).map_err(|_| torn())?;
    if totals.wire_total != at as u64 {
        return Err(Failure::new(Status::NARROWS_ERROR_CORRUPT, "the bytes are not one whole stream"));
    }
    Ok(totals.raw_total)
}
