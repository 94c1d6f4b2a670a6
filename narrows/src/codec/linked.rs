//! LZ4 with a table that lives on from one message of a flow to the next: half the time of an encoding alone, since
//! what comes again is found at once. The table is a cache and not a state of the flow: lost, it is filled again.

use std::ffi::{c_char, c_int, c_void};

/// Words of an encoder state of liblz4.
type State = Box<[u64]>;

/// A table over the end of a buffer that holds a flow's history.
///
/// The library keeps the address of the bytes that its table speaks of. `end` and `reach` say the same here, and a table
/// is only used on a buffer that has these very bytes. What lies in them may have changed: the library compares the
/// bytes themselves before it refers to them.
pub struct LinkedTable {
    state: State,
    /// Address behind the last byte that the table knows; 0 if it knows none.
    end: usize,
    /// How many bytes before `end` the library may look at.
    reach: usize,
}

impl Default for LinkedTable {
    fn default() -> Self {
        Self { state: vec![0; state_len().div_ceil(8)].into(), end: 0, reach: 0 }
    }
}

impl LinkedTable {
    /// Longest encoding of `raw_len` bytes.
    pub const fn bound(raw_len: usize) -> usize {
        raw_len + raw_len / 255 + 16
    }

    /// Whether the table speaks of the bytes directly before `buffer[history_len..]`.
    pub fn continues(&self, buffer: &[u8], history_len: usize) -> bool {
        self.reach > 0 && self.reach <= history_len && buffer[history_len..].as_ptr() as usize == self.end
    }

    /// Encodes `buffer[history_len..]` with what lies before it as dictionary. If the table is of other bytes, it is
    /// filled from the last `reload` bytes of the history first. `None` if there is nothing to encode, if it is too much,
    /// or if `out` has less than [`LinkedTable::bound`].
    pub fn encode(&mut self, buffer: &[u8], history_len: usize, reload: usize, out: &mut [u8]) -> Option<usize> {
        let raw = buffer.get(history_len..)?;
        let raw_len = c_int::try_from(raw.len()).ok().filter(|len| *len > 0)?;
        if out.len() < Self::bound(raw.len()) {
            return None;
        }
        if !self.continues(buffer, history_len) {
            self.load(&buffer[history_len - reload.min(history_len)..history_len]);
        }
        let wire_len = self.encode_next(raw, raw_len, out);
        self.reach = if self.end == raw.as_ptr() as usize { self.reach } else { 0 } + raw.len();
        self.end = raw.as_ptr() as usize + raw.len();
        usize::try_from(wire_len).ok().filter(|len| *len > 0)
    }

    #[allow(unsafe_code, reason = "calls into liblz4")]
    fn load(&mut self, history: &[u8]) {
        // SAFETY: the state has LZ4_sizeofState() bytes and is aligned to 8; loadDict initialises it in full and reads
        // only `history`, whose length fits: callers keep at most 64 KiB, and what is more it ignores itself.
        let loaded = unsafe {
            let len = c_int::try_from(history.len()).unwrap_or(c_int::MAX);
            LZ4_loadDict(self.state.as_mut_ptr().cast(), history.as_ptr().cast(), len)
        };
        self.reach = usize::try_from(loaded).unwrap_or(0);
        self.end = if self.reach == 0 { 0 } else { history.as_ptr() as usize + history.len() };
    }

    #[allow(unsafe_code, reason = "calls into liblz4")]
    fn encode_next(&mut self, raw: &[u8], raw_len: c_int, out: &mut [u8]) -> c_int {
        let (state, src, dst) = (self.state.as_mut_ptr().cast(), raw.as_ptr().cast(), out.as_mut_ptr().cast());
        let capacity = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the caller has just loaded the state, or found that the `reach` bytes before `raw` are what the
        // library's dictionary pointer and length name (`reach` follows the library's own figure: what loadDict and
        // saveDict returned, and the length of each block since). These bytes lie in the buffer that `raw` is the end
        // of, which is borrowed here. `src` and `dst` are valid for the lengths given and do not overlap. The capacity
        // is at least the bound, so the call cannot fail and leaves a state fit for the next one.
        unsafe { LZ4_compress_fast_continue(state, src, dst, raw_len, capacity, 1) }
    }

    /// Moves the last `keep` of the first `len` bytes of `buffer` to its front. A table that speaks of them goes along.
    #[allow(unsafe_code, reason = "calls into liblz4")]
    pub fn slide(&mut self, buffer: &mut [u8], len: usize, keep: usize) {
        assert!(keep <= len && len <= buffer.len());
        if self.reach == 0 || self.reach > len || buffer[..len].as_ptr_range().end as usize != self.end {
            buffer.copy_within(len - keep..len, 0);
            return;
        }
        let known = self.reach.min(keep);
        buffer.copy_within(len - keep..len - known, 0);
        let known_len = c_int::try_from(known).unwrap_or(0);
        // SAFETY: the library moves `known` bytes from before `end`, which was just found to be `buffer[..len]`'s end
        // with at least so many bytes before it, to `keep - known`, from where the buffer has at least `known` more. Both
        // ranges lie in `buffer`, which is borrowed mutably, and the library allows them to overlap.
        let moved = unsafe {
            let to = buffer[keep - known..].as_mut_ptr().cast();
            LZ4_saveDict(self.state.as_mut_ptr().cast(), to, known_len)
        };
        self.reach = usize::try_from(moved).unwrap_or(0);
        self.end = buffer[..keep].as_ptr_range().end as usize;
    }
}

#[allow(unsafe_code, reason = "calls into liblz4")]
fn state_len() -> usize {
    // SAFETY: returns a constant.
    unsafe { LZ4_sizeofState() as usize }
}

// Built and linked by this crate, which declares only the one-shot functions.
use lz4_sys as _;

#[allow(unsafe_code, reason = "declares functions of liblz4, with the types of lz4.h")]
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_loadDict(stream: *mut c_void, dictionary: *const c_char, len: c_int) -> c_int;
    fn LZ4_saveDict(stream: *mut c_void, safe_buffer: *mut c_char, len: c_int) -> c_int;
    fn LZ4_compress_fast_continue(
        stream: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Codec, Lz4};

    fn message(i: u64) -> Vec<u8> {
        format!("INVITE sip:{:x}@example.net SIP/2.0 branch={i} tag={:x}", i % 3, i.wrapping_mul(77_777)).into_bytes()
    }

    /// Two flows take turns at one table or have one each, with slides now and then: what comes out decodes with the
    /// bytes that lie before it, whatever the table knew.
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
                let n = table.encode(&buffer[..end], *len, 512, &mut out).unwrap();
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
        assert_eq!(table.encode(b"", 0, 0, &mut [0; 100]), None);
        assert_eq!(table.encode(b"abc", 3, 3, &mut [0; 100]), None);
        assert_eq!(table.encode(b"abcdefgh", 0, 0, &mut [0; 10]), None);
        assert_eq!(table.encode(b"abcdefgh", 9, 0, &mut [0; 100]), None);
    }
}
