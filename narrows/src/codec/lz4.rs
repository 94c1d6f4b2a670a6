//! LZ4 blocks, without the frame format. Level `-a` is the fast encoder with acceleration `a`, level `h > 0` the slow
//! one (HC) with effort `h`; one decoder reads both.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;

use super::{Codec, CodecId, DecodeError, Decoder, Encoder, Level, interpolate};

/// Beyond this acceleration nothing more is gained: almost no match is found.
const ACCEL_MAX: Level = 64;
const HC_MAX: Level = 12;

/// How far back the offsets of the format reach.
const WINDOW_LEN: usize = 64 << 10;

const LEVELS: &[Level] = &[-64, -32, -16, -8, -4, -2, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/// (level, encode, decode) in ns per byte, 128 KiB blocks of mixed compressible data.
const SPEEDS: &[(Level, f32, f32)] = &[
    (-64, 0.65, 0.21),
    (-16, 1.16, 0.34),
    (-8, 1.37, 0.35),
    (-1, 1.76, 0.36),
    (1, 4.5, 0.35),
    (3, 9.7, 0.33),
    (9, 23.2, 0.32),
    (12, 70.0, 0.31),
];

#[derive(Debug)]
pub struct Lz4;

impl Codec for Lz4 {
    fn id(&self) -> CodecId {
        CodecId::LZ4
    }

    fn name(&self) -> &'static str {
        "lz4"
    }

    fn levels(&self) -> &'static [Level] {
        LEVELS
    }

    fn has_level(&self, level: Level) -> bool {
        (-ACCEL_MAX..=-1).contains(&level) || (1..=HC_MAX).contains(&level)
    }

    fn default_level(&self) -> Level {
        -1
    }

    fn parse_level(&self, key: &str, value: &str) -> Option<Level> {
        let number: Level = value.parse().ok()?;
        let level = match key {
            "accel" if number > 0 => -number,
            "hc" if number > 0 => number,
            "level" => number,
            _ => return None,
        };
        self.has_level(level).then_some(level)
    }

    fn print_level(&self, level: Level) -> String {
        if level < 0 { format!("accel={}", -level) } else { format!("hc={level}") }
    }

    fn can_link(&self) -> bool {
        true
    }

    fn encoder_memory(&self, level: Level, _raw_len: usize) -> usize {
        fast_state_len() + if level > 0 { hc_state_len() } else { 0 }
    }

    fn nominal_ns_per_byte(&self, level: Level) -> (f32, f32) {
        interpolate(SPEEDS, level)
    }

    fn encoder(&self) -> Box<dyn Encoder> {
        Box::new(Lz4Encoder { fast: state(fast_state_len()), hc: None, hot: Vec::new() })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Lz4Decoder)
    }
}

/// Encoder states of the C library. Memory of zeros is an initialised state, and eight bytes are alignment enough.
type State = Box<[u64]>;

fn state(len: usize) -> State {
    vec![0; len.div_ceil(8)].into()
}

struct Lz4Encoder {
    fast: State,
    /// Sixteen times as large, so only made when a method asks for it.
    hc: Option<State>,
    /// Only made for linked messages, of which a thread may have several flows at a time. The one used latest is last.
    hot: Vec<Hot>,
}

/// A table that still knows what the latest linked message referred to, and that message: loading it anew takes longer
/// than to encode the next one.
struct Hot {
    state: State,
    /// History and messages one behind the other; the table refers to the bytes from `begin` to `end`.
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
    accel: c_int,
    /// Where messages are encoded to, with room for whatever comes: a call that ran out of it would leave the table of no use.
    wire: Box<[u8]>,
}

/// Tables that an encoder keeps, of 16 KiB and their bytes each. Dialogues take turns with few others on a thread.
const HOT_TABLES: usize = 4;
/// Longer blocks would leave little of what was there before them, and take long anyway.
const HOT_MAX: usize = 8 << 10;
/// What `HOT_MAX` bytes become at most (LZ4_COMPRESSBOUND in lz4.h).
const HOT_WIRE_MAX: usize = HOT_MAX + HOT_MAX / 255 + 16;
/// The library forgets dictionaries of under 8 bytes.
const HOT_WINDOW_MIN: usize = 64;

impl Encoder for Lz4Encoder {
    fn encode(&mut self, level: Level, history: &[u8], raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let (raw_len, out_len) = (c_int::try_from(raw.len()).ok()?, c_int::try_from(out.len()).unwrap_or(c_int::MAX));
        if raw_len == 0 || out_len == 0 {
            return None;
        }
        let window = window(history);
        let wire_len = if level < 1 && window.len() >= HOT_WINDOW_MIN && raw.len() <= HOT_MAX {
            let accel = -level.clamp(-ACCEL_MAX, -1);
            return self.hot_for(window, raw.len(), accel).encode(window, raw, out, accel);
        } else if level < 1 {
            encode_fast(&mut self.fast, window, raw, raw_len, out, out_len, -level.clamp(-ACCEL_MAX, -1))
        } else {
            let hc = self.hc.get_or_insert_with(|| state(hc_state_len()));
            encode_hc(hc, window, raw, raw_len, out, out_len, level.min(HC_MAX))
        };
        usize::try_from(wire_len).ok().filter(|&len| len > 0)
    }
}

impl Lz4Encoder {
    /// The table that knows this history, or one that may be lost.
    fn hot_for(&mut self, window: &[u8], raw_len: usize, accel: c_int) -> &mut Hot {
        let at = self.hot.iter().rposition(|h| h.goes_on(window, raw_len, accel));
        let hot = match at {
            Some(at) => self.hot.remove(at),
            None if self.hot.len() < HOT_TABLES => Hot::new(),
            None => self.hot.remove(0),
        };
        self.hot.push(hot);
        let last = self.hot.len() - 1;
        &mut self.hot[last]
    }
}

struct Lz4Decoder;

impl Decoder for Lz4Decoder {
    fn decode(&mut self, history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
        let wire_len = c_int::try_from(wire.len()).map_err(|_| DecodeError)?;
        let out_len = c_int::try_from(out.len()).map_err(|_| DecodeError)?;
        usize::try_from(decode(window(history), wire, wire_len, out, out_len)).map_err(|_| DecodeError)
    }
}

impl Hot {
    fn new() -> Self {
        let bytes = vec![0; 2 * WINDOW_LEN].into();
        let wire = vec![0; HOT_WIRE_MAX].into();
        Self { state: state(fast_state_len()), bytes, begin: 0, end: 0, accel: 0, wire }
    }

    /// Whether the latest message was of this flow, which its history shows, and there is room for one more.
    fn goes_on(&self, window: &[u8], raw_len: usize, accel: c_int) -> bool {
        let known = &self.bytes[self.begin..self.end];
        self.accel == accel && self.end + raw_len <= self.bytes.len() && known.ends_with(window)
    }

    /// As [`encode_fast`].
    fn encode(&mut self, window: &[u8], raw: &[u8], out: &mut [u8], accel: c_int) -> Option<usize> {
        let goes_on = self.goes_on(window, raw.len(), accel);
        if !goes_on {
            self.bytes[..window.len()].copy_from_slice(window);
            self.end = window.len();
        }
        self.accel = accel;
        self.begin = self.end - window.len();
        let raw_at = self.end;
        self.bytes[raw_at..raw_at + raw.len()].copy_from_slice(raw);
        let history = self.begin..raw_at;
        let wire_len = encode_hot(&mut self.state, &mut self.bytes, history, goes_on, raw.len(), &mut self.wire, accel);
        self.end = raw_at + raw.len();
        let wire = usize::try_from(wire_len).ok().filter(|len| *len > 0).map(|len| &self.wire[..len]);
        let Some(wire) = wire else {
            // Not with so much room; but then the table would be in no defined state.
            (self.begin, self.end) = (0, 0);
            return None;
        };
        out.get_mut(..wire.len())?.copy_from_slice(wire);
        Some(wire.len())
    }
}

/// The part of the history that offsets can reach.
fn window(history: &[u8]) -> &[u8] {
    &history[history.len().saturating_sub(WINDOW_LEN)..]
}

/// Returns the encoded length, or 0 if it does not fit.
#[allow(unsafe_code, reason = "calls into liblz4")]
fn encode_fast(
    state: &mut State,
    window: &[u8],
    raw: &[u8],
    raw_len: c_int,
    out: &mut [u8],
    out_len: c_int,
    accel: c_int,
) -> c_int {
    let (state, src, dst) = (state.as_mut_ptr().cast(), raw.as_ptr().cast(), out.as_mut_ptr().cast());
    // SAFETY: `state` has LZ4_sizeofState() bytes, is aligned to 8 and was zero or left by one of these calls, all of
    // which leave it fit for the next. Both ways in begin by forgetting what the state referred to before (loadDict
    // resets it, the other call drops its dictionary), so no pointer of an earlier block is followed. `src` and `dst`
    // are valid for the lengths given, do not overlap (one is borrowed mutably), and with a capacity below the bound
    // the library checks every write. `window` fits an int: it has at most 64 KiB.
    unsafe {
        if window.is_empty() {
            LZ4_compress_fast_extState_fastReset(state, src, dst, raw_len, out_len, accel)
        } else {
            LZ4_loadDict(state, window.as_ptr().cast(), window.len() as c_int);
            LZ4_compress_fast_continue(state, src, dst, raw_len, out_len, accel)
        }
    }
}

/// Encodes the `raw_len` bytes behind `history` in `bytes`. Returns the encoded length, or 0 if it does not fit.
///
/// `goes_on`: `state` was left by such a call that did not fail, with the same `bytes`, of which `history` has not
/// changed since, was referred to by it and ends where that call's message ended.
#[allow(unsafe_code, reason = "calls into liblz4")]
fn encode_hot(
    state: &mut State,
    bytes: &mut [u8],
    history: Range<usize>,
    goes_on: bool,
    raw_len: usize,
    out: &mut [u8],
    accel: c_int,
) -> c_int {
    let history_len = history.len();
    assert!((HOT_WINDOW_MIN..=WINDOW_LEN).contains(&history_len));
    let bytes = bytes[history.start..history.end + raw_len].as_mut_ptr();
    let out_len = out.len() as c_int;
    let (state, dst) = (state.as_mut_ptr().cast(), out.as_mut_ptr().cast());
    // SAFETY: `state` is as for `encode_fast`. What it refers to after the first call is `history`: loadDict makes it so,
    // and saveDict cuts what it referred to (which ends where `history` ends) to the last `history_len` bytes of it; the
    // target it is given is where these bytes lie already, so the move that it makes writes nothing that was not there.
    // `bytes` is neither freed nor moved as long as the state is used, since the caller owns both. The source directly
    // follows, `dst` is another range, and all are valid for their lengths, which fit an int.
    unsafe {
        if goes_on {
            LZ4_saveDict(state, bytes.cast(), history_len as c_int);
        } else {
            LZ4_loadDict(state, bytes.cast(), history_len as c_int);
        }
        let src = bytes.add(history_len);
        LZ4_compress_fast_continue(state, src.cast(), dst, raw_len as c_int, out_len, accel)
    }
}

/// Returns the encoded length, or 0 or less if it does not fit.
#[allow(unsafe_code, reason = "calls into liblz4")]
fn encode_hc(
    state: &mut State,
    window: &[u8],
    raw: &[u8],
    raw_len: c_int,
    out: &mut [u8],
    out_len: c_int,
    level: c_int,
) -> c_int {
    let (state, src, dst) = (state.as_mut_ptr().cast(), raw.as_ptr().cast(), out.as_mut_ptr().cast());
    // SAFETY: as for `encode_fast`, with LZ4_sizeofStateHC() bytes. A state that an encoding left in error is marked
    // so inside and initialised in full by the next reset; loadDictHC always initialises in full.
    unsafe {
        if window.is_empty() {
            LZ4_compress_HC_extStateHC_fastReset(state, src, dst, raw_len, out_len, level)
        } else {
            LZ4_resetStreamHC_fast(state, level);
            LZ4_loadDictHC(state, window.as_ptr().cast(), window.len() as c_int);
            LZ4_compress_HC_continue(state, src, dst, raw_len, out_len)
        }
    }
}

/// Returns the decoded length, or a negative number if the bytes are malformed or decode to more than `out_len`.
#[allow(unsafe_code, reason = "calls into liblz4")]
fn decode(window: &[u8], wire: &[u8], wire_len: c_int, out: &mut [u8], out_len: c_int) -> c_int {
    let (src, dst) = (wire.as_ptr().cast(), out.as_mut_ptr().cast());
    // SAFETY: all three ranges are valid for the lengths given and `dst` overlaps neither of the others. The function
    // is made for hostile input: it checks every read against `wire_len`, every write against `out_len` and every
    // offset against the dictionary, and it accepts only input that it consumes whole.
    unsafe { LZ4_decompress_safe_usingDict(src, dst, wire_len, out_len, window.as_ptr().cast(), window.len() as c_int) }
}

#[allow(unsafe_code, reason = "calls into liblz4")]
fn fast_state_len() -> usize {
    // SAFETY: returns a constant.
    unsafe { LZ4_sizeofState() as usize }
}

#[allow(unsafe_code, reason = "calls into liblz4")]
fn hc_state_len() -> usize {
    // SAFETY: returns a constant.
    unsafe { LZ4_sizeofStateHC() as usize }
}

// Built and linked by this crate, which declares only the one-shot functions.
use lz4_sys as _;

#[allow(unsafe_code, reason = "declares functions of liblz4, with the types of lz4.h and lz4hc.h")]
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_loadDict(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
    fn LZ4_saveDict(stream: *mut c_void, safe_buffer: *mut c_char, dictionary_len: c_int) -> c_int;
    fn LZ4_compress_fast_continue(
        stream: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe_usingDict(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        dictionary: *const c_char,
        dictionary_len: c_int,
    ) -> c_int;

    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        level: c_int,
    ) -> c_int;
    fn LZ4_resetStreamHC_fast(stream: *mut c_void, level: c_int);
    fn LZ4_loadDictHC(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
    fn LZ4_compress_HC_continue(
        stream: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of a kind, as a protocol would have them.
    fn message(kind: usize, n: usize) -> Vec<u8> {
        let fields = (0..20 + n % 7).map(|i| format!("field-{kind}-{i}=value {}; ", (n * 7919 + i * 31 * kind) % 977));
        fields.collect::<String>().into_bytes()
    }

    /// Flows that share an encoder, as those of a thread do: each has its own history, and whatever was encoded in between, also
    /// what failed, leaves every message to be decoded with that history alone.
    #[test]
    fn messages_of_many_flows_are_decoded_with_the_history_of_their_own() {
        let (mut encoder, mut decoder) = (Lz4.encoder(), Lz4.decoder());
        let mut histories = vec![Vec::new(); 3];
        let (mut raw_bytes, mut wire_bytes) = (0, 0);
        for n in 0..3000 {
            // Runs of one flow, so that tables are hot, and changes between flows.
            let flow = if n % 50 < 40 { n / 50 % 3 } else { n % 3 };
            let history_len = [200, 8 << 10, 64 << 10][flow];
            let history: &mut Vec<u8> = &mut histories[flow];
            history.drain(..history.len().saturating_sub(history_len));
            let raw = match n % 11 {
                10 => vec![n as u8; 1 + n % 5],
                9 => message(flow, n).repeat(1 + n % 12),
                _ => message(flow, n),
            };
            let level = if n % 200 < 190 { -1 } else { -4 };
            let mut out = vec![0; 2 * raw.len() + 64];
            if n % 17 == 0 {
                assert_eq!(encoder.encode(level, history, &raw, &mut out[..1]), None);
            }
            let wire_len = encoder.encode(level, history, &raw, &mut out).unwrap();
            let mut decoded = vec![0; raw.len()];
            assert_eq!(decoder.decode(history, &out[..wire_len], &mut decoded), Ok(raw.len()), "message {n}");
            assert!(decoded == raw, "message {n}");
            (raw_bytes, wire_bytes) = (raw_bytes + raw.len(), wire_bytes + wire_len);
            history.extend_from_slice(&raw);
        }
        // Without history they shrink to 0.6.
        assert!(3 * wire_bytes < raw_bytes, "{wire_bytes} of {raw_bytes}");
    }

    #[test]
    fn a_table_that_goes_on_finds_what_a_fresh_one_finds() {
        let mut hot = Lz4Encoder { fast: state(fast_state_len()), hc: None, hot: Vec::new() };
        let mut history = Vec::new();
        let (mut hot_bytes, mut fresh_bytes, mut cold) = (0, 0, 0);
        for n in 0..500 {
            let raw = message(1, n);
            let mut out = vec![0; 2 * raw.len()];
            let went_on = hot.hot.iter().filter(|h| h.goes_on(&history, raw.len(), 1)).count();
            // But where the bytes of the table are at their end, once in some hundred messages, and for the first two.
            cold += usize::from(went_on == 0);
            hot_bytes += hot.encode(-1, &history, &raw, &mut out).unwrap();
            fresh_bytes += Lz4.encoder().encode(-1, &history, &raw, &mut out).unwrap();
            history.extend_from_slice(&raw);
            history.drain(..history.len().saturating_sub(8 << 10));
        }
        assert!(hot_bytes <= fresh_bytes, "{hot_bytes} and {fresh_bytes}");
        assert!(cold < 10, "{cold} of 500 began anew");
    }
}
