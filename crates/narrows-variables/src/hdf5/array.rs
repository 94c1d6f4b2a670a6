//! Fixed and extensible arrays: indexes of chunks by number.

use narrows::{Error, Result};

use super::{Hdf5, sum};
use crate::fields::Fields;

/// Bytes of a block before its own fields: signature, version, client.
const HEAD: u64 = 6;
const SUM: u64 = 4;

type Sink<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// Hands on the entries of `bytes`, numbered from `first`.
fn entries(bytes: &[u8], entry_len: usize, first: u64, sink: &mut Sink<'_>) -> Result<()> {
    for (number, entry) in (first..).zip(bytes.chunks_exact(entry_len)) {
        sink(number, entry)?;
    }
    Ok(())
}

fn times(count: u64, len: u64) -> Result<u64> {
    count.checked_mul(len).ok_or_else(|| Error::corrupt("an index of chunks is longer than any file"))
}

/// Entries in pages: those that are not initialised, by `bits`, are skipped.
struct Pages<'a> {
    at: u64,
    page: u64,
    count: u64,
    bits: &'a [u8],
    /// Its first bit: data blocks of a secondary block share them.
    first_bit: u64,
}

impl Pages<'_> {
    fn read(&self, file: &Hdf5, entry_len: usize, first: u64, sink: &mut Sink<'_>) -> Result<()> {
        let page_len = times(self.page, entry_len as u64)? + SUM;
        for (number, at) in (0..self.count.div_ceil(self.page)).map(|i| (i, times(i, page_len))) {
            let bit = self.first_bit + number;
            let is_set = self.bits.get((bit / 8) as usize).is_some_and(|b| b >> (7 - bit % 8) & 1 == 1);
            if !is_set {
                continue;
            }
            let count = self.page.min(self.count - number * self.page);
            let at = self.at.saturating_add(at?);
            let bytes = sum::read(file, at, times(count, entry_len as u64)?)?;
            entries(&bytes, entry_len, first + number * self.page, sink)?;
        }
        Ok(())
    }
}

/// Entries of a fixed array.
pub(super) fn fixed(file: &Hdf5, at: u64, sink: &mut Sink<'_>) -> Result<()> {
    let head = file.bytes.structure_up_to(at, 64)?;
    let mut fields = Fields(&head);
    fields.expect(b"FAHD")?;
    fields.skip(2)?;
    let (entry_len, page_bits) = (usize::from(fields.u8()?), u32::from(fields.u8()?));
    let count = file.length(&mut fields)?;
    let data = file.offset(&mut fields)?;
    sum::verify(&head, head.len() - fields.0.len(), at)?;
    let Some(at) = data else { return Ok(()) };
    check(entry_len, page_bits)?;
    let begin = HEAD + file.offset_len() as u64;
    let page = 1u64 << page_bits;
    let is_paged = count > page;
    let len = if is_paged { count.div_ceil(page).div_ceil(8) } else { times(count, entry_len as u64)? };
    let block = sum::read(file, at, begin.saturating_add(len))?;
    let mut fields = Fields(&block);
    fields.expect(b"FADB")?;
    fields.skip(begin as usize - 4)?;
    if !is_paged {
        return entries(fields.0, entry_len, 0, sink);
    }
    let (bits, at) = (fields.0, at + begin + len + SUM);
    Pages { at, page, count, bits, first_bit: 0 }.read(file, entry_len, 0, sink)
}

fn check(entry_len: usize, bits: u32) -> Result<()> {
    if entry_len == 0 || bits > 63 {
        return Err(Error::corrupt("an index of chunks has entries without sense"));
    }
    Ok(())
}

/// What the header of an extensible array says of its blocks.
struct Blocks {
    entry_len: usize,
    /// Bytes of a number of an entry.
    number_len: u64,
    least: u64,
    page: u64,
    /// Entries that were ever set: none is beyond.
    end: u64,
}

/// Entries of an extensible array: some in the index block, some in its data blocks, the rest in data blocks
/// of secondary blocks, which double in number and length in turn.
pub(super) fn extensible(file: &Hdf5, at: u64, sink: &mut Sink<'_>) -> Result<()> {
    let head = file.bytes.structure_up_to(at, 128)?;
    let mut fields = Fields(&head);
    fields.expect(b"EAHD")?;
    fields.skip(2)?;
    let (entry_len, number_bits, inline) = (usize::from(fields.u8()?), u32::from(fields.u8()?), fields.u8()?);
    let (least, pointers_min, page_bits) = (u64::from(fields.u8()?), u64::from(fields.u8()?), u32::from(fields.u8()?));
    fields.skip(4 * file.length_len())?;
    let end = file.length(&mut fields)?;
    file.length(&mut fields)?;
    let index = file.offset(&mut fields)?;
    sum::verify(&head, head.len() - fields.0.len(), at)?;
    let Some(at) = index else { return Ok(()) };
    check(entry_len, page_bits)?;
    if !least.is_power_of_two() || !pointers_min.is_power_of_two() || !(least.ilog2()..=64).contains(&number_bits) {
        return Err(Error::corrupt("an index of chunks has blocks without sense"));
    }
    let number_len = u64::from(number_bits.div_ceil(8));
    let blocks = Blocks { entry_len, number_len, least, page: 1 << page_bits, end };
    let secondary = 1 + number_bits - least.ilog2();
    let in_index = (2 * pointers_min.ilog2()).min(secondary);
    let offset_len = file.offset_len() as u64;
    let entries_len = u64::from(inline) * entry_len as u64;
    let pointers = 2 * (pointers_min - 1);
    let len = HEAD + offset_len + entries_len + (pointers + u64::from(secondary - in_index)) * offset_len;
    let block = sum::read(file, at, len)?;
    let mut fields = Fields(&block);
    fields.expect(b"EAIB")?;
    fields.skip(2 + file.offset_len())?;
    entries(fields.take(entries_len as usize)?, entry_len, 0, sink)?;
    let mut first = u64::from(inline);
    for i in 0..in_index {
        for _ in 0..1u64 << (i / 2) {
            let data = file.offset(&mut fields)?;
            let count = blocks.count(i);
            if let Some(at) = data.filter(|_| first < end) {
                blocks.data(file, at, count, first, None, sink)?;
            }
            first = first.saturating_add(count);
        }
    }
    for i in in_index..secondary {
        let at = file.offset(&mut fields)?;
        if let Some(at) = at.filter(|_| first < end) {
            blocks.secondary(file, at, i, first, sink)?;
        }
        first = first.saturating_add(blocks.count(i).saturating_mul(1u64.checked_shl(i / 2).unwrap_or(u64::MAX)));
    }
    Ok(())
}

impl Blocks {
    /// Entries of a data block of the i-th secondary block.
    fn count(&self, i: u32) -> u64 {
        self.least.saturating_mul(1u64.checked_shl(i.div_ceil(2)).unwrap_or(u64::MAX))
    }

    fn secondary(&self, file: &Hdf5, at: u64, i: u32, mut first: u64, sink: &mut Sink<'_>) -> Result<()> {
        let (blocks, count) = (1u64 << (i / 2).min(63), self.count(i));
        let bits_len = if count > self.page { (count / self.page).div_ceil(8) } else { 0 };
        let head = HEAD + file.offset_len() as u64 + self.number_len;
        let len = times(blocks, bits_len + file.offset_len() as u64)?.saturating_add(head);
        let block = sum::read(file, at, len)?;
        let mut fields = Fields(&block);
        fields.expect(b"EASB")?;
        fields.skip(head as usize - 4)?;
        let bits = fields.take((blocks * bits_len) as usize)?;
        for number in 0..blocks {
            let data = file.offset(&mut fields)?;
            if let Some(at) = data.filter(|_| first < self.end) {
                let bits = (bits_len > 0).then(|| (bits, number * (count / self.page)));
                self.data(file, at, count, first, bits, sink)?;
            }
            first = first.saturating_add(count);
        }
        Ok(())
    }

    /// A data block; with `bits`, of which its own begin at a number, it has pages.
    fn data(
        &self,
        file: &Hdf5,
        at: u64,
        count: u64,
        first: u64,
        bits: Option<(&[u8], u64)>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let head = HEAD + file.offset_len() as u64 + self.number_len;
        let len = if bits.is_some() { 0 } else { times(count, self.entry_len as u64)? };
        let block = sum::read(file, at, head.saturating_add(len))?;
        let mut fields = Fields(&block);
        fields.expect(b"EADB")?;
        fields.skip(head as usize - 4)?;
        if let Some((bits, first_bit)) = bits {
            let pages = Pages { at: at + head + SUM, page: self.page, count, bits, first_bit };
            return pages.read(file, self.entry_len, first, sink);
        }
        // Entries after the last one that was set say nothing.
        let set = times(count.min(self.end.saturating_sub(first)), self.entry_len as u64)?;
        entries(fields.take(set as usize)?, self.entry_len, first, sink)
    }
}
