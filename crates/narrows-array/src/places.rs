//! Places of elements as runs.

use narrows::{Error, Result};

use crate::back_end::Coders;
use crate::words::{Reader, put_varint};

/// Runs of places: (start, length), ascending, apart from each other.
pub(crate) type Runs = Vec<(usize, usize)>;

pub(crate) fn runs(places: impl Iterator<Item = usize>) -> Runs {
    let mut runs = Runs::new();
    places.for_each(|place| add(&mut runs, place, 1));
    runs
}

/// Runs of ones; bit 0 of the first word is the first place.
pub(crate) fn runs_of_bits(words: &[u64]) -> Runs {
    let mut runs = Runs::new();
    for (i, &word) in words.iter().enumerate() {
        let mut at = 0;
        while at < u64::BITS && word >> at != 0 {
            at += (word >> at).trailing_zeros();
            let length = (word >> at).trailing_ones();
            add(&mut runs, 64 * i + at as usize, length as usize);
            at += length;
        }
    }
    runs
}

fn add(runs: &mut Runs, place: usize, count: usize) {
    match runs.last_mut() {
        Some((start, length)) if *start + *length == place => *length += count,
        _ => runs.push((place, count)),
    }
}

pub(crate) fn write(runs: &Runs, coders: &mut Coders, out: &mut Vec<u8>) {
    let mut content = Vec::new();
    let mut end = 0;
    for &(start, length) in runs {
        put_varint(&mut content, (start - end) as u64);
        put_varint(&mut content, length as u64);
        end = start + length;
    }
    put_varint(out, runs.len() as u64);
    if !runs.is_empty() {
        put_varint(out, content.len() as u64);
        coders.write_block(&content, out);
    }
}

/// Reads places among `len` elements.
pub(crate) fn read(reader: &mut Reader<'_>, len: usize, coders: &mut Coders) -> Result<Runs> {
    let count = reader.count(len.div_ceil(2), "runs of places")?;
    if count == 0 {
        return Ok(Vec::new());
    }
    // Lengths below 2^30 take five bytes at most.
    let content_len = reader.count(count * 10, "bytes of places")?;
    let content = coders.read_block(reader, content_len)?;
    let mut content = Reader(&content);
    // A varint has at least a byte, so the content has earned the room.
    let mut runs = Vec::with_capacity(count.min(content_len));
    let mut end = 0;
    for i in 0..count {
        let gap = content.count(len, "gap")?;
        let length = content.count(len, "length of a run")?;
        if gap == 0 && i > 0 || length == 0 || length > len - end || gap > len - end - length {
            return Err(Error::corrupt("places beyond the elements"));
        }
        runs.push((end + gap, length));
        end += gap + length;
    }
    if !content.0.is_empty() {
        return Err(Error::corrupt("bytes behind the places"));
    }
    Ok(runs)
}

/// Number of places.
pub(crate) fn count(runs: &Runs) -> usize {
    runs.iter().map(|r| r.1).sum()
}
