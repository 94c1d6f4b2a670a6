//! Fractal heaps: where newer files keep the links of large groups.

use std::cell::RefCell;

use narrows::{Error, Result};

use super::{Hdf5, sum};
use crate::budget::Visits;
use crate::fields::Fields;

/// Indirect blocks within indirect blocks; each level doubles the number of rows at least.
const DEPTH_MAX: usize = 64;

pub(super) struct Heap {
    /// Bytes of an offset and of a length in the place of an object.
    offset_len: usize,
    object_len: usize,
    width: u64,
    /// log2 of the shortest and the longest direct block.
    start: u32,
    direct_max: u32,
    root: u64,
    root_rows: u64,
    /// Direct blocks have sums too.
    is_summed: bool,
    /// Blocks whose sums were compared.
    seen: RefCell<Visits>,
}

/// Bytes that numbers up to `max` take.
fn enc_len(max: u64) -> usize {
    max.max(1).ilog2() as usize / 8 + 1
}

fn log2(v: u64, what: &str) -> Result<u32> {
    if !v.is_power_of_two() {
        return Err(Error::corrupt(format!("a heap has {what} of {v} bytes")));
    }
    Ok(v.ilog2())
}

impl Heap {
    pub(super) fn open(file: &Hdf5, at: u64) -> Result<Self> {
        let head = file.bytes.structure_up_to(at, 256)?;
        let mut fields = Fields(&head);
        fields.expect(b"FRHP")?;
        fields.skip(1)?;
        let (_id_len, filters) = (fields.u16()?, fields.u16()?);
        if filters != 0 {
            return Err(Error::unsupported("a group whose names are compressed"));
        }
        let is_summed = fields.u8()? & 2 != 0;
        let object_max = u64::from(fields.u32()?);
        // Huge objects, free space, statistics.
        fields.skip(10 * file.length_len() + 2 * file.offset_len())?;
        let width = fields.u16()?.into();
        let start = log2(file.length(&mut fields)?, "blocks")?;
        let direct = file.length(&mut fields)?;
        let direct_max = log2(direct, "blocks")?;
        let bits = fields.u16()?;
        fields.skip(2)?;
        let root = file.offset(&mut fields)?;
        let root_rows = fields.u16()?.into();
        sum::verify(&head, head.len() - fields.0.len(), at)?;
        let root = root.ok_or_else(|| Error::corrupt("a heap without blocks"))?;
        if width == 0 || bits > 64 || start > direct_max || direct_max > 40 {
            return Err(Error::corrupt("a heap's blocks have no sense"));
        }
        let offset_len = usize::from(bits).div_ceil(8);
        let object_len = enc_len(direct).min(enc_len(object_max));
        Ok(Self {
            offset_len,
            object_len,
            width,
            start,
            direct_max,
            root,
            root_rows,
            is_summed,
            seen: RefCell::new(Visits::new(file.bytes.budget())),
        })
    }

    /// The bytes of an object by its place.
    pub(super) fn object(&self, file: &Hdf5, id: &[u8]) -> Result<Vec<u8>> {
        let mut fields = Fields(id);
        let head = fields.u8()?;
        match head >> 4 & 3 {
            0 => {}
            2 => {
                let len = usize::from(head & 15) + 1;
                return Ok(fields.take(len)?.to_vec());
            }
            _ => return Err(Error::unsupported("a name that is stored as a huge object")),
        }
        let (mut offset, len) = (fields.uint(self.offset_len)?, fields.uint(self.object_len)?);
        let (mut block, mut rows, mut block_row) = (self.root, self.root_rows, 0);
        for _ in 0..DEPTH_MAX {
            if rows == 0 {
                self.verify_direct(file, block, block_row)?;
                let at = block.checked_add(offset).ok_or_else(|| Error::corrupt("an object outside its heap"))?;
                return Ok(file.bytes.structure(at, len)?.to_vec());
            }
            let (row, column) = self.place(&mut offset)?;
            if row >= rows {
                return Err(Error::corrupt("an object outside its heap"));
            }
            let head = 5 + file.offset_len() as u64 + self.offset_len as u64;
            if self.seen.borrow_mut().is_first(block)? {
                let entries = rows.saturating_mul(self.width).saturating_mul(file.offset_len() as u64);
                Fields(&sum::read(file, block, head.saturating_add(entries))?).expect(b"FHIB")?;
            }
            let entry = (row * self.width + column) * file.offset_len() as u64;
            let child = file.bytes.structure(block + head + entry, file.offset_len() as u64)?;
            block = file.offset(&mut Fields(&child))?.ok_or_else(|| Error::corrupt("an object outside its heap"))?;
            block_row = row;
            rows = if self.is_direct(row) { 0 } else { self.child_rows(row) };
        }
        Err(Error::corrupt("a heap's blocks lead in circles"))
    }

    /// Compares the sum of a direct block, which stands in its head and counts as 0 there.
    fn verify_direct(&self, file: &Hdf5, at: u64, row: u64) -> Result<()> {
        if !self.is_summed || !self.seen.borrow_mut().is_first(at)? {
            return Ok(());
        }
        // The first two rows have blocks of one length; each further row doubles it.
        let read = file.bytes.structure(at, 1 << (u64::from(self.start) + row.saturating_sub(1)))?;
        // Twice for the copy, whose sum is that without the sum.
        let mut held = file.bytes.budget().held();
        held.add(read.len() as u64 + sum::LEN as u64)?;
        let mut block = read.to_vec();
        let place = 5 + file.offset_len() + self.offset_len;
        let stated = block.get(place..place + sum::LEN).ok_or_else(|| Error::corrupt("a heap's block is too short"))?;
        let stated = stated.to_vec();
        block[place..place + sum::LEN].fill(0);
        let len = block.len();
        block.extend(stated);
        Fields(&block).expect(b"FHDB")?;
        sum::verify(&block, len, at)
    }

    /// Row and column of the block that holds an offset, which becomes one within it.
    fn place(&self, offset: &mut u64) -> Result<(u64, u64)> {
        let of_width = (*offset / self.width) >> self.start;
        let row = if of_width == 0 { 0 } else { u64::from(of_width.ilog2()) + 1 };
        let shift = self.start + (row.max(1) - 1) as u32;
        let begin = if row == 0 { 0 } else { self.width.checked_shl(shift).unwrap_or(u64::MAX) };
        let within = offset.checked_sub(begin).ok_or_else(|| Error::corrupt("an object outside its heap"))?;
        let column = within >> shift;
        *offset = within - (column << shift);
        Ok((row, column))
    }

    fn is_direct(&self, row: u64) -> bool {
        row < u64::from(self.direct_max - self.start) + 2
    }

    /// Rows of the indirect block that is a child in this row.
    fn child_rows(&self, row: u64) -> u64 {
        let bytes = u64::from(self.start) + row - 1;
        (bytes + 1).saturating_sub(u64::from(self.start) + u64::from(self.width.ilog2()))
    }
}
