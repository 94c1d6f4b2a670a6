//! Attributes that say which values mark what is missing; others are passed over.

use narrows::{Error, ErrorKind, Result};

use super::heap::Heap;
use super::object::{self, Message, kind};
use super::{Hdf5, tree};
use crate::fields::Fields;
use crate::number::values;
use crate::variable::{MISSING_MAX, MISSING_NAMES, Variable};

/// The values that attributes of an object name, in its header or in a heap of its own.
///
/// # Errors
/// The attributes are damaged.
pub(super) fn missing(file: &Hdf5, messages: &[Message]) -> Result<Vec<f64>> {
    let mut out = Vec::new();
    for message in messages {
        match message.kind {
            kind::ATTRIBUTE => add(file, &message.data, &mut out)?,
            kind::ATTRIBUTE_INFO => passed(dense(file, &message.data, &mut out))?,
            _ => {}
        }
    }
    Ok(out)
}

/// Attributes of kinds that are not known here name nothing.
fn passed(read: Result<()>) -> Result<()> {
    match read {
        Err(error) if matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Limit) => Ok(()),
        other => other,
    }
}

/// Attributes in a heap, found by their index of names.
fn dense(file: &Hdf5, data: &[u8], out: &mut Vec<f64>) -> Result<()> {
    /// Bytes of a place in the heap, the first field of a record.
    const PLACE: usize = 8;
    let mut fields = Fields(data);
    let (_version, flags) = (fields.u8()?, fields.u8()?);
    fields.skip(if flags & 1 != 0 { 2 } else { 0 })?;
    let (Some(heap), Some(names)) = (file.offset(&mut fields)?, file.offset(&mut fields)?) else { return Ok(()) };
    let heap = Heap::open(file, heap)?;
    tree::records(file, names, &mut |record| {
        let place = record.get(..PLACE).ok_or_else(|| Error::corrupt("an index of attributes has short records"))?;
        passed(heap.object(file, place).and_then(|data| add(file, &data, out)))
    })
}

/// Adds the values of an attribute, if it is one of those and they are numbers.
fn add(file: &Hdf5, data: &[u8], out: &mut Vec<f64>) -> Result<()> {
    let mut fields = Fields(data);
    let (version, flags) = (fields.u8()?, fields.u8()?);
    let (name_len, type_len, space_len) = (fields.u16()?, fields.u16()?, fields.u16()?);
    fields.skip(match version {
        1 | 2 => 0,
        3 => 1,
        _ => return Ok(()),
    })?;
    // The first version fills its parts up to 8 bytes.
    let padded = |len: u16| if version == 1 { usize::from(len).next_multiple_of(8) } else { len.into() };
    let name = fields.take(padded(name_len))?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    if !MISSING_NAMES.iter().any(|known| known.as_bytes() == name) {
        return Ok(());
    }
    let (element, space) = (fields.take(padded(type_len))?, fields.take(padded(space_len))?);
    let is_shared = |bit: u8| version > 1 && flags & bit != 0;
    let element = if is_shared(1) { object::shared(file, kind::DATATYPE, element)? } else { element.to_vec() };
    let space = if is_shared(2) { object::shared(file, kind::DATASPACE, space)? } else { space.to_vec() };
    let element = object::element(&element)?;
    let shape = object::dataspace(file, &space)?.0;
    if !element.is_numeric() {
        return Ok(());
    }
    let count = shape.iter().fold(1u64, |n, axis| n.saturating_mul(*axis)).min(MISSING_MAX as u64) as usize;
    let bytes = fields.take(count * element.bytes)?;
    let one = Variable::new(String::new(), element, Vec::new());
    out.extend(values(&one, bytes));
    out.truncate(MISSING_MAX);
    Ok(())
}
