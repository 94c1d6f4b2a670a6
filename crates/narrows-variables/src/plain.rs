//! Files that hold one array: .npy, raw elements, what `narrows array encode` writes, a single chunk.

use narrows::{Error, Result};
use narrows_array::{Layout, file, info, npy};

use crate::bytes::Bytes;
use crate::filter::Filter;
use crate::variable::{Chunk, Element, Place, Variable};

/// The longest header of these files: that of a .npy file with what is before it.
const HEAD_MAX: u64 = 12 + (1 << 16);
/// Longest number of a file of chunks.
const VARINT_MAX: u64 = 10;

fn wide(shape: &[usize]) -> Vec<u64> {
    shape.iter().map(|n| *n as u64).collect()
}

fn variable(element: Element, shape: &[usize], layout: Layout) -> Variable {
    let mut variable = Variable::new(String::new(), element, wide(shape));
    if layout == Layout::ColumnMajor {
        variable.axes.reverse();
    }
    variable
}

/// A .npy file.
pub(crate) fn npy(bytes: &Bytes) -> Result<Variable> {
    let header = npy::parse(&bytes.structure_up_to(0, HEAD_MAX)?)?;
    let mut variable = variable(Element::of(header.dtype, header.order), &header.shape, header.layout);
    variable.place = Place::Run(header.data_at as u64);
    Ok(variable)
}

/// Elements without a header, as many as fit a type and a shape.
pub(crate) fn raw(bytes: &Bytes, like: &Variable) -> Result<Variable> {
    let mut variable = Variable::new(String::new(), like.element.clone(), like.shape.clone());
    if variable.raw_bytes() != bytes.len {
        return Err(Error::misuse(format!(
            "the original has {} bytes, and {} elements of {} have {}",
            bytes.len,
            variable.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x "),
            variable.element.name,
            variable.raw_bytes()
        )));
    }
    variable.place = Place::Run(0);
    Ok(variable)
}

/// A single chunk.
pub(crate) fn chunk(bytes: &Bytes) -> Result<Variable> {
    let info = info(&bytes.structure_up_to(0, HEAD_MAX)?)?;
    let mut variable = variable(Element::of(info.dtype, info.order), &info.shape, info.layout);
    variable.filters = vec![Filter::narrows()];
    variable.chunk = Some(wide(&info.shape).iter().map(|n| (*n).max(1)).collect());
    let origin = vec![0; info.shape.len()];
    variable.place = Place::List(vec![Chunk { origin, len: bytes.len, skipped: 0, at: 0, key: None }]);
    Ok(variable)
}

/// A file of chunks. One that ends early has the chunks that are there, and says so.
pub(crate) fn chunks(bytes: &Bytes) -> Result<Variable> {
    let head = bytes.structure_up_to(0, HEAD_MAX)?;
    let header = file::chunks(&head)?;
    let mut variable = variable(Element::of(header.dtype, header.order), &header.shape, header.layout);
    variable.filters = vec![Filter::narrows()];
    let mut shape = variable.shape.clone();
    let slowest = variable.axes.first().copied();
    if let Some(slowest) = slowest {
        shape[slowest] = (header.rows as u64).min(shape[slowest]);
    }
    variable.chunk = Some(shape.iter().map(|n| (*n).max(1)).collect());
    let (mut at, mut row, mut list) = ((head.len() - header.unread()) as u64, 0u64, Vec::new());
    let memory = Chunk::memory(variable.shape.len());
    while at < bytes.len {
        bytes.budget().keep(memory)?;
        let (len, digits) = varint(&bytes.structure_up_to(at, VARINT_MAX)?)?;
        let mut origin = vec![0; variable.shape.len()];
        if let Some(slowest) = slowest {
            origin[slowest] = row;
        }
        at += digits;
        let len_left = bytes.len - at;
        list.push(Chunk { origin, len: len.min(len_left), skipped: 0, at, key: None });
        row = row.saturating_add(header.rows as u64);
        if len > len_left {
            break;
        }
        at += len;
    }
    if (list.len() as u64) < variable.chunks_max() {
        variable.trouble(Error::truncated("the file ends before its array does"));
    }
    variable.place = Place::List(list);
    Ok(variable)
}

fn varint(bytes: &[u8]) -> Result<(u64, u64)> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * i as u32).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok((value, i as u64 + 1));
        }
    }
    Err(Error::truncated("the file ends within the length of a chunk"))
}
