//! liblz4 behind safe types: the only place that declares its functions and calls them.
//!
//! All calls meet the library's two requirements: a state refers to bytes outside itself only while
//! these exist, and a state is not used further after a failed call.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use super::DecodeError;

/// Reach of the format's offsets in bytes.
pub(super) const WINDOW_LEN: usize = 64 << 10;

/// Acceleration 1, to which all others are relative.
pub(super) const ACCEL_FIRST: c_int = 1;

/// Longest encoding of `raw_len` bytes (LZ4_COMPRESSBOUND in lz4.h): with this much room no call
/// fails.
pub(super) const fn bound(raw_len: usize) -> usize {
    raw_len + raw_len / 255 + 16
}

/// The part of the history that offsets can reach.
pub(super) fn window(history: &[u8]) -> &[u8] {
    &history[history.len().saturating_sub(WINDOW_LEN)..]
}

/// A state of the fast encoder, reused for independent blocks.
///
/// Zeroed memory is an initialised state, and an alignment of eight bytes suffices.
pub(super) struct FastState(Box<[u64]>);

impl Default for FastState {
    fn default() -> Self {
        Self(vec![0; fast_state_len().div_ceil(8)].into())
    }
}

impl FastState {
    /// Encodes `raw` with `history` as dictionary. `None` if there is nothing to encode or it does
    /// not fit.
    #[allow(unsafe_code, reason = "calls into liblz4")]
    pub(super) fn encode(&mut self, history: &[u8], raw: &[u8], out: &mut [u8], accel: c_int) -> Option<usize> {
        let (raw_len, out_len) = lens(raw, out)?;
        let window = window(history);
        let (state, src, dst) = (self.0.as_mut_ptr().cast(), raw.as_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: the state has LZ4_sizeofState() bytes, is aligned to 8 and was zero or left by a
        // call of this file, all of which leave it fit for the next. Both ways in begin by
        // forgetting what the state referred to before (loadDict resets it, the other call drops
        // its dictionary), so no pointer of an earlier block is followed. `src` and `dst` are valid
        // for the lengths given, do not overlap (one is borrowed mutably), and with a capacity
        // below the bound the library checks every write. `window` fits an int: it has at most 64
        // KiB.
        length(unsafe {
            if window.is_empty() {
                LZ4_compress_fast_extState_fastReset(state, src, dst, raw_len, out_len, accel)
            } else {
                LZ4_loadDict(state, window.as_ptr().cast(), window.len() as c_int);
                LZ4_compress_fast_continue(state, src, dst, raw_len, out_len, accel)
            }
        })
    }

    /// Encodes `raw` with a dictionary whose table is already filled. `None` as above, or if `out`
    /// has less than [`bound`].
    #[allow(unsafe_code, reason = "calls into liblz4")]
    pub(super) fn encode_attached(&mut self, dictionary: &Filled, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let (raw_len, out_len) = lens(raw, out)?;
        if out.len() < bound(raw.len()) {
            return None;
        }
        let (state, src, dst) = (self.0.as_mut_ptr().cast(), raw.as_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: the state is as above. The reset forgets what it referred to before; what it is
        // made to refer to now is the dictionary's state, which the library only reads, and which
        // `dictionary` keeps alive through the call; the second reset forgets it again. `src` and
        // `dst` are valid for their lengths.
        length(unsafe {
            LZ4_resetStream_fast(state);
            LZ4_attach_dictionary(state, dictionary.state.as_ptr().cast());
            let len = LZ4_compress_fast_continue(state, src, dst, raw_len, out_len, ACCEL_FIRST);
            LZ4_resetStream_fast(state);
            len
        })
    }
}

/// A dictionary with its table, which is filled once and then shared.
pub(super) struct Filled {
    /// Never changed after it is filled; it contains the content's address.
    state: Box<[u64]>,
    /// The content, kept alive because the state refers to it.
    _content: Arc<[u8]>,
}

impl Filled {
    #[allow(unsafe_code, reason = "calls into liblz4")]
    pub(super) fn new(content: &Arc<[u8]>) -> Self {
        let reached = window(content);
        let mut state = vec![0u64; fast_state_len().div_ceil(8)].into_boxed_slice();
        // SAFETY: `state` has as many bytes as asked for, aligned to 8, and is initialised in full.
        // The content's length fits an int; it never changes, and lives where it is as long as the
        // state that keeps its address.
        unsafe { LZ4_loadDictSlow(state.as_mut_ptr().cast(), reached.as_ptr().cast(), reached.len() as c_int) };
        Self { state, _content: Arc::clone(content) }
    }
}

/// A table over the end of a buffer that holds a flow's latest bytes, kept from one message of the
/// flow to the next. With it, encoding takes half the time of an encoding alone, since repetitions
/// are found at once. It is a cache and not a state of the flow: if it is lost, it is filled again.
///
/// The library keeps the address of the bytes that the table covers. `end` and `reach` are our copy
/// of that range, and a table is used only on a buffer that contains it. The content of the range
/// may have changed: the library compares the bytes before it refers to them.
pub struct LinkedTable {
    state: Box<[u64]>,
    /// Address after the last byte that the table covers; 0 if it covers none.
    end: usize,
    /// Number of bytes before `end` that the library may read.
    reach: usize,
}

impl Default for LinkedTable {
    fn default() -> Self {
        Self { state: FastState::default().0, end: 0, reach: 0 }
    }
}

impl LinkedTable {
    /// Longest encoding of `raw_len` bytes.
    pub const fn bound(raw_len: usize) -> usize {
        bound(raw_len)
    }

    /// Clears the table, so that it is filled again for the next message.
    pub fn forget(&mut self) {
        (self.end, self.reach) = (0, 0);
    }

    /// Whether the table covers the bytes directly before `buffer[history_len..]`.
    fn ends_at(&self, buffer: &[u8], history_len: usize) -> bool {
        self.reach > 0 && buffer[history_len..].as_ptr() as usize == self.end
    }

    /// Encodes `buffer[history_len..]` with the bytes before it as dictionary. If the table covers
    /// other bytes, it is first filled from the last `reload` bytes of the history; if it covers
    /// more than the history, it is cut to it. `None` if the message is empty or too long, or if
    /// `out` has less than [`LinkedTable::bound`].
    #[allow(unsafe_code, reason = "calls into liblz4")]
    pub fn encode(
        &mut self,
        buffer: &mut [u8],
        history_len: usize,
        reload: usize,
        accel: c_int,
        out: &mut [u8],
    ) -> Option<usize> {
        let (raw_len, out_len) = lens(buffer.get(history_len..)?, out)?;
        if out.len() < bound(buffer.len() - history_len) {
            return None;
        }
        if !self.ends_at(buffer, history_len) {
            self.load(&buffer[history_len - reload.min(history_len)..history_len]);
        } else if self.reach > history_len {
            self.keep(buffer, history_len, history_len, history_len);
        }
        let raw = &buffer[history_len..];
        let (state, src, dst) = (self.state.as_mut_ptr().cast(), raw.as_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: the state was just loaded or cut, or the `reach` bytes before `raw` are what the
        // library's dictionary pointer and length name (`reach` follows the library's own figure:
        // what loadDict and saveDict returned, and the length of each block since). These bytes lie
        // in `buffer`, which is borrowed here. `src` and `dst` are valid for the lengths given and
        // do not overlap. The capacity is at least the bound, so the call cannot fail and leaves a
        // state fit for the next one.
        let wire_len = unsafe { LZ4_compress_fast_continue(state, src, dst, raw_len, out_len, accel) };
        self.reach = if self.end == raw.as_ptr() as usize { self.reach } else { 0 } + raw.len();
        self.end = raw.as_ptr_range().end as usize;
        length(wire_len)
    }

    #[allow(unsafe_code, reason = "calls into liblz4")]
    fn load(&mut self, history: &[u8]) {
        let history = window(history);
        // SAFETY: the state has LZ4_sizeofState() bytes and is aligned to 8; loadDict initialises
        // it in full and reads only `history`, whose length fits.
        let loaded =
            unsafe { LZ4_loadDict(self.state.as_mut_ptr().cast(), history.as_ptr().cast(), history.len() as c_int) };
        self.reach = usize::try_from(loaded).unwrap_or(0);
        self.end = if self.reach == 0 { 0 } else { history.as_ptr_range().end as usize };
    }

    /// Moves the last `keep` of the first `len` bytes of `buffer` to its front. A table that covers
    /// them is moved with them.
    pub fn slide(&mut self, buffer: &mut [u8], len: usize, keep: usize) {
        assert!(keep <= len && len <= buffer.len());
        if self.reach > len || !self.ends_at(buffer, len) {
            buffer.copy_within(len - keep..len, 0);
            return;
        }
        let known = self.reach.min(keep);
        buffer.copy_within(len - keep..len - known, 0);
        self.keep(buffer, len, known, keep);
    }

    /// Moves the last `known` of the first `len` bytes of `buffer`, which the table covers, so that
    /// they end at `to`, and makes the table cover only them.
    #[allow(unsafe_code, reason = "calls into liblz4")]
    fn keep(&mut self, buffer: &mut [u8], len: usize, known: usize, to: usize) {
        assert!(self.ends_at(buffer, len) && known <= self.reach.min(len).min(to));
        let known_len = c_int::try_from(known).unwrap_or(0);
        // SAFETY: the library moves `known` bytes from before `end`, which is where `buffer[..len]`
        // ends with at least so many bytes before it, to `to - known`, from where the buffer has at
        // least `known` more. Both ranges lie in `buffer`, which is borrowed mutably, and the
        // library allows them to overlap.
        let moved = unsafe {
            let target = buffer[to - known..to].as_mut_ptr().cast();
            LZ4_saveDict(self.state.as_mut_ptr().cast(), target, known_len)
        };
        self.reach = usize::try_from(moved).unwrap_or(0);
        self.end = buffer[..to].as_ptr_range().end as usize;
    }
}

/// A state of the slow encoder (HC), sixteen times as large as that of the fast one.
pub(super) struct SlowState(Box<[u64]>);

impl Default for SlowState {
    fn default() -> Self {
        Self(vec![0; slow_state_len().div_ceil(8)].into())
    }
}

impl SlowState {
    /// Like [`FastState::encode`].
    #[allow(unsafe_code, reason = "calls into liblz4")]
    pub(super) fn encode(&mut self, history: &[u8], raw: &[u8], out: &mut [u8], level: c_int) -> Option<usize> {
        let (raw_len, out_len) = lens(raw, out)?;
        let window = window(history);
        let (state, src, dst) = (self.0.as_mut_ptr().cast(), raw.as_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: as for `FastState::encode`, with LZ4_sizeofStateHC() bytes. A state that an
        // encoding left in error is marked so inside and initialised in full by the next reset;
        // loadDictHC always initialises in full.
        length(unsafe {
            if window.is_empty() {
                LZ4_compress_HC_extStateHC_fastReset(state, src, dst, raw_len, out_len, level)
            } else {
                LZ4_resetStreamHC_fast(state, level);
                LZ4_loadDictHC(state, window.as_ptr().cast(), window.len() as c_int);
                LZ4_compress_HC_continue(state, src, dst, raw_len, out_len)
            }
        })
    }
}

/// Decodes a block of at most `out.len()` raw bytes; its offsets may reach into `history`.
#[allow(unsafe_code, reason = "calls into liblz4")]
pub(super) fn decode(history: &[u8], wire: &[u8], out: &mut [u8]) -> Result<usize, DecodeError> {
    let wire_len = c_int::try_from(wire.len()).map_err(|_| DecodeError)?;
    let out_len = c_int::try_from(out.len()).map_err(|_| DecodeError)?;
    let window = window(history);
    let (src, dst) = (wire.as_ptr().cast(), out.as_mut_ptr().cast());
    // SAFETY: all three ranges are valid for the lengths given and `dst` overlaps neither of the
    // others. The function is made for hostile input: it checks every read against `wire_len`,
    // every write against `out_len` and every offset against the dictionary, and it accepts only
    // input that it consumes whole.
    let raw_len = unsafe {
        LZ4_decompress_safe_usingDict(src, dst, wire_len, out_len, window.as_ptr().cast(), window.len() as c_int)
    };
    usize::try_from(raw_len).map_err(|_| DecodeError)
}

/// The lengths in the library's type; `None` if `raw` is empty or too long.
fn lens(raw: &[u8], out: &[u8]) -> Option<(c_int, c_int)> {
    let raw_len = c_int::try_from(raw.len()).ok().filter(|len| *len > 0)?;
    let out_len = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
    (out_len > 0).then_some((raw_len, out_len))
}

/// Converts the result of an encoder, of which 0 or less is a failure.
fn length(returned: c_int) -> Option<usize> {
    usize::try_from(returned).ok().filter(|len| *len > 0)
}

#[allow(unsafe_code, reason = "calls into liblz4")]
pub(super) fn fast_state_len() -> usize {
    // SAFETY: returns a constant.
    unsafe { LZ4_sizeofState() as usize }
}

#[allow(unsafe_code, reason = "calls into liblz4")]
pub(super) fn slow_state_len() -> usize {
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
    fn LZ4_resetStream_fast(stream: *mut c_void);
    fn LZ4_attach_dictionary(stream: *mut c_void, dictionary: *const c_void);
    fn LZ4_loadDict(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
    fn LZ4_loadDictSlow(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
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
    use crate::codec::Codec;
    use crate::codec::lz4::Lz4;

    fn message(i: u64) -> Vec<u8> {
        format!("INVITE sip:{:x}@example.net SIP/2.0 branch={i} tag={:x}", i % 3, i.wrapping_mul(77_777)).into_bytes()
    }

    /// Two flows share one table or have one each, with occasional slides: the output can be
    /// decoded with the bytes before it, whatever the table covered.
    #[test]
    fn a_table_that_is_lost_changes_only_the_length() {
        for shared in [false, true] {
            let mut tables = [LinkedTable::default(), LinkedTable::default()];
            let mut flows = [(vec![0u8; 1024], 0usize), (vec![0u8; 1024], 0usize)];
            let mut out = vec![0; LinkedTable::bound(1024)];
            let (mut raw_total, mut wire_total) = (0, 0);
            for i in 0..500 {
                let f = (i % 2) as usize;
                let (buffer, len) = &mut flows[f];
                let raw = message(i);
                let table = &mut tables[if shared { 0 } else { f }];
                if *len + raw.len() > buffer.len() {
                    let keep = 768 - raw.len();
                    table.slide(buffer, *len, keep);
                    *len = keep;
                }
                buffer[*len..*len + raw.len()].copy_from_slice(&raw);
                let end = *len + raw.len();
                let n = table.encode(&mut buffer[..end], *len, 512, ACCEL_FIRST, &mut out).unwrap();
                let mut back = vec![0; raw.len()];
                assert_eq!(Lz4.decoder().decode(&buffer[..*len], &out[..n], &mut back), Ok(raw.len()));
                assert_eq!(back, raw);
                *len = end;
                (raw_total, wire_total) = (raw_total + raw.len(), wire_total + n);
            }
            assert!(wire_total * 2 < raw_total, "{wire_total} of {raw_total}, shared: {shared}");
        }
    }

    #[test]
    fn nothing_and_too_little_room_are_refused() {
        let mut table = LinkedTable::default();
        let mut raw = *b"abcdefgh";
        assert_eq!(table.encode(&mut [], 0, 0, 1, &mut [0; 100]), None);
        assert_eq!(table.encode(&mut raw, 8, 3, 1, &mut [0; 100]), None);
        assert_eq!(table.encode(&mut raw, 0, 0, 1, &mut [0; 10]), None);
        assert_eq!(table.encode(&mut raw, 9, 0, 1, &mut [0; 100]), None);
    }
}
