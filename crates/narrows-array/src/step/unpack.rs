//! Unpack 12: pairs of 12-bit numbers in three bytes become words (WFDB's format 212, for one).

use narrows::{Error, Result};

use crate::words::Reader;

/// Pairs looked at for each phase.
const SAMPLE: usize = 2048;

/// Bytes before the first pair, 0 to 2: where neighbours of a series are closest. A chunk of a longer
/// file may begin within a pair.
fn phase(bytes: &[u8]) -> usize {
    let roughness = |phase: usize| {
        let words = pairs(&bytes[phase..bytes.len().min(phase + 3 * SAMPLE)]);
        let signed: Vec<i32> = words.iter().map(|&w| i32::from(w as i16) << 20 >> 20).collect();
        // Mostly two series alternate.
        signed.windows(3).map(|w| (w[2] - w[0]).unsigned_abs()).sum::<u32>()
    };
    (0..bytes.len().min(3)).min_by_key(|&p| roughness(p)).unwrap_or(0)
}

fn pairs(bytes: &[u8]) -> Vec<u16> {
    let mut words = vec![0; bytes.len() / 3 * 2];
    for (pair, t) in words.chunks_exact_mut(2).zip(bytes.chunks_exact(3)) {
        let [a, b, c] = [t[0], t[1], t[2]].map(u16::from);
        (pair[0], pair[1]) = (a | (b & 15) << 8, c | b >> 4 << 8);
    }
    words
}

/// Number of words of `len` bytes whatever the phase; fewer pairs may fit after one.
pub(crate) fn words_of(len: usize, phase: usize) -> usize {
    len.saturating_sub(phase) / 3 * 2
}

/// Appends the phase and the bytes that belong to no pair, and returns the words and the phase.
pub(crate) fn apply(bytes: &[u8], side: &mut Vec<u8>) -> (Vec<u16>, usize) {
    let phase = phase(bytes);
    let words = pairs(&bytes[phase..]);
    side.push(phase as u8);
    side.extend(&bytes[..phase]);
    side.extend(&bytes[phase + words.len() / 2 * 3..]);
    (words, phase)
}

/// Bytes that belong to no pair.
pub(crate) struct Rest<'a> {
    before: &'a [u8],
    behind: &'a [u8],
}

impl<'a> Rest<'a> {
    /// Also returns the phase.
    pub(crate) fn read(reader: &mut Reader<'a>, len: usize) -> Result<(Self, usize)> {
        let phase = usize::from(reader.byte()?);
        if phase > 2 || phase > len {
            return Err(Error::corrupt("a pair of 12-bit numbers has three bytes"));
        }
        let before = reader.take(phase)?;
        Ok((Self { before, behind: reader.take((len - phase) % 3)? }, phase))
    }
}

/// The bytes; `None` if a word has more than 12 bits.
pub(crate) fn invert(words: &[u16], rest: &Rest<'_>) -> Option<Vec<u8>> {
    let phase = rest.before.len();
    let mut bytes = vec![0; phase + words.len() / 2 * 3];
    bytes[..phase].copy_from_slice(rest.before);
    let mut all = 0;
    // Four pairs at once, as two words.
    let mut many = bytes[phase..].chunks_exact_mut(12);
    let mut pairs = words.chunks_exact(8);
    for (t, w) in many.by_ref().zip(pairs.by_ref()) {
        all |= w.iter().fold(0, |all, w| all | w);
        let pair = |i: usize| {
            let (a, c) = (u64::from(w[2 * i]), u64::from(w[2 * i + 1]));
            a | c >> 8 << 12 | (c & 255) << 16
        };
        let (third, fourth) = (pair(2), pair(3));
        t[..8].copy_from_slice(&(pair(0) | pair(1) << 24 | third << 48).to_le_bytes());
        t[8..].copy_from_slice(&((third >> 16 | fourth << 8) as u32).to_le_bytes());
    }
    for (t, pair) in many.into_remainder().chunks_exact_mut(3).zip(pairs.remainder().chunks_exact(2)) {
        let (a, c) = (pair[0], pair[1]);
        all |= a | c;
        (t[0], t[1], t[2]) = (a as u8, (a >> 8 | c >> 8 << 4) as u8, c as u8);
    }
    bytes.extend(rest.behind);
    (all < 4096).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_within_a_pair_and_within_the_bytes() {
        let phase = |bytes: &[u8], len| Rest::read(&mut Reader(bytes), len).map(|(_, phase)| phase);
        assert_eq!(phase(&[2, 0, 0], 2).unwrap(), 2);
        assert!(phase(&[2, 0, 0], 1).is_err());
        assert!(phase(&[3, 0, 0, 0], 3).is_err());
    }
}
