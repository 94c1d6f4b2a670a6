//! Object headers, versions 1 and 2, and the messages of which a dataset is made.

use std::collections::BTreeMap;

use narrows::{Error, Result};
use narrows_array::{ByteOrder, Dtype};

use super::{Hdf5, sum};
use crate::fields::Fields;
use crate::filter::Filter;
use crate::place::Index;
use crate::variable::{Element, Place, RANK_MAX, Variable};

/// Messages of one header; h5py's largest has some dozens.
const MESSAGES_MAX: usize = 1 << 16;
/// Bytes of one header with all that it shares with others: a thousand messages of the longest kind.
const HEADER_MAX: u64 = 64 << 20;
/// Most filters of a pipeline, as in HDF5.
const FILTERS_MAX: usize = 32;
/// Nested types that are followed: an array or an enumeration of a type.
const TYPES_MAX: usize = 4;

/// Numbers of the messages that matter here.
pub(crate) mod kind {
    pub(crate) const DATASPACE: u16 = 0x01;
    pub(crate) const LINK_INFO: u16 = 0x02;
    pub(crate) const DATATYPE: u16 = 0x03;
    pub(crate) const OLD_FILL: u16 = 0x04;
    pub(crate) const FILL: u16 = 0x05;
    pub(crate) const LINK: u16 = 0x06;
    pub(crate) const LAYOUT: u16 = 0x08;
    pub(crate) const FILTERS: u16 = 0x0b;
    pub(crate) const ATTRIBUTE: u16 = 0x0c;
    pub(crate) const CONTINUATION: u16 = 0x10;
    pub(crate) const SYMBOL_TABLE: u16 = 0x11;
    pub(crate) const ATTRIBUTE_INFO: u16 = 0x15;

    /// Those that are kept; the others are passed over.
    pub(crate) const ALL: [u16; 11] = [
        DATASPACE,
        LINK_INFO,
        DATATYPE,
        OLD_FILL,
        FILL,
        LINK,
        LAYOUT,
        FILTERS,
        ATTRIBUTE,
        SYMBOL_TABLE,
        ATTRIBUTE_INFO,
    ];
}

/// One message of a header.
pub(crate) struct Message {
    pub(crate) kind: u16,
    pub(crate) data: Vec<u8>,
}

/// All messages of an object, shared ones resolved.
pub(crate) fn messages(file: &Hdf5, at: u64) -> Result<Vec<Message>> {
    let mut all = raw_messages(file, at)?;
    let mut left = HEADER_MAX;
    for message in &mut all {
        if message.1 & 2 != 0 {
            message.0.data = shared(file, message.0.kind, &message.0.data)?;
            left = left.checked_sub(message.0.data.len() as u64).ok_or_else(too_long)?;
        }
    }
    Ok(all.into_iter().map(|m| m.0).collect())
}

/// What a shared message stands for: one of another object, such as a named type.
pub(super) fn shared(file: &Hdf5, wanted: u16, data: &[u8]) -> Result<Vec<u8>> {
    let mut fields = Fields(data);
    let (version, place) = (fields.u8()?, fields.u8()?);
    if version == 1 {
        fields.skip(6)?;
    }
    if version > 3 || version == 3 && place != 2 {
        return Err(Error::unsupported("headers that are shared in a heap of the file"));
    }
    let at = file.offset(&mut fields)?.ok_or_else(|| Error::corrupt("a shared header has no address"))?;
    let found = raw_messages(file, at)?.into_iter().find(|m| m.0.kind == wanted && m.1 & 2 == 0);
    found.map(|m| m.0.data).ok_or_else(|| Error::corrupt("a shared header is missing"))
}

fn too_long() -> Error {
    Error::limit(format!("the header of an object has more than {HEADER_MAX} bytes"))
}

/// The blocks of one header. A real one has each once, and none within another.
struct Blocks {
    /// First byte and end, in order.
    seen: BTreeMap<u64, u64>,
    len: u64,
}

impl Blocks {
    fn check(&mut self, at: u64, len: u64) -> Result<()> {
        let end = at.checked_add(len).ok_or_else(|| Error::corrupt("an address is beyond the file"))?;
        if len == 0 {
            return Ok(());
        }
        let before = self.seen.range(..end).next_back();
        if before.is_some_and(|(_, before_end)| *before_end > at) {
            return Err(Error::corrupt("the header of an object leads in circles"));
        }
        self.len = self.len.saturating_add(len);
        if self.len > HEADER_MAX {
            return Err(too_long());
        }
        self.seen.insert(at, end);
        Ok(())
    }
}

/// Messages with their flags.
fn raw_messages(file: &Hdf5, at: u64) -> Result<Vec<(Message, u8)>> {
    let head = file.bytes.structure_up_to(at, 64)?;
    let mut fields = Fields(&head);
    let mut out = Vec::new();
    // Blocks that are still to be read: offset and length of their messages.
    let mut blocks;
    let mut tracked = None;
    let mut visited = Blocks { seen: BTreeMap::new(), len: 0 };
    let mut count = 0;
    if head.starts_with(b"OHDR") {
        fields.skip(4)?;
        let (version, flags) = (fields.u8()?, fields.u8()?);
        if version != 2 {
            return Err(Error::corrupt(format!("an object header says version {version}, and 2 is the highest known")));
        }
        fields.skip(if flags & 0x20 != 0 { 16 } else { 0 } + if flags & 0x10 != 0 { 4 } else { 0 })?;
        let len = fields.uint(1 << (flags & 3))?;
        tracked = Some(flags & 4 != 0);
        let begin = (head.len() - fields.0.len()) as u64;
        visited.check(at, begin.saturating_add(len))?;
        sum::read(file, at, begin.saturating_add(len))?;
        blocks = vec![(at + begin, len)];
    } else {
        if fields.u8()? != 1 {
            return Err(Error::corrupt("an object of the file has no header where it should"));
        }
        fields.skip(7)?;
        let len = u64::from(fields.u32()?);
        visited.check(at, len.saturating_add(16))?;
        blocks = vec![(at.saturating_add(16), len)];
    }
    while let Some((at, len)) = blocks.pop() {
        let block = file.bytes.structure(at, len)?;
        let mut fields = Fields(&block);
        loop {
            // Less than the head of a message is a gap.
            let head_len = match tracked {
                None => 8,
                Some(is_ordered) => 4 + if is_ordered { 2 } else { 0 },
            };
            if fields.0.len() < head_len {
                break;
            }
            let (number, len, flags) = match tracked {
                Some(ordered) => {
                    let (number, len, flags) = (u16::from(fields.u8()?), fields.u16()?, fields.u8()?);
                    fields.skip(if ordered { 2 } else { 0 })?;
                    (number, len, flags)
                }
                None => {
                    let (number, len, flags) = (fields.u16()?, fields.u16()?, fields.u8()?);
                    fields.skip(3)?;
                    (number, len, flags)
                }
            };
            let data = fields.take(len.into())?;
            if number == kind::CONTINUATION {
                let mut fields = Fields(data);
                let (at, len) = (file.offset(&mut fields)?, file.length(&mut fields)?);
                let at = at.ok_or_else(|| Error::corrupt("a header goes on nowhere"))?;
                visited.check(at, len)?;
                if tracked.is_some() {
                    // Signature before, check sum after.
                    let len = len.checked_sub(8).ok_or_else(|| Error::corrupt("a header's end is too short"))?;
                    Fields(&sum::read(file, at, len + 4)?).expect(b"OCHK")?;
                    blocks.push((at + 4, len));
                } else {
                    blocks.push((at, len));
                }
            }
            if kind::ALL.contains(&number) {
                out.push((Message { kind: number, data: data.to_vec() }, flags));
            }
            count += 1;
            if count > MESSAGES_MAX {
                return Err(Error::limit("an object of the file has too many headers"));
            }
        }
    }
    Ok(out)
}

/// The dataset that an object is, or `None` if it is something else.
pub(crate) fn dataset(file: &Hdf5, path: &str, messages: &[Message]) -> Result<Option<Variable>> {
    let find = |kind: u16| messages.iter().find(|m| m.kind == kind).map(|m| m.data.as_slice());
    let (Some(space), Some(element), Some(layout)) = (find(kind::DATASPACE), find(kind::DATATYPE), find(kind::LAYOUT))
    else {
        return Ok(None);
    };
    let (shape, max) = dataspace(file, space)?;
    let element = self::element(element)?;
    let mut variable = Variable::new(path.to_owned(), element, shape);
    if let Some(data) = find(kind::FILTERS) {
        variable.filters = pipeline(data, variable.element.bytes)?;
    }
    variable.fill = match (find(kind::FILL), find(kind::OLD_FILL)) {
        (Some(data), _) => fill(data)?,
        (None, Some(mut data)) if data.len() > 4 => data.split_off(4..).unwrap_or_default().to_vec(),
        _ => Vec::new(),
    };
    if variable.fill.len() != variable.element.bytes {
        variable.fill.clear();
    }
    if let Err(error) = read_layout(file, layout, max, &mut variable) {
        variable.trouble(error);
    }
    Ok(Some(variable))
}

/// Lengths of the axes now and at most; an axis without limit has `u64::MAX`.
pub(super) fn dataspace(file: &Hdf5, data: &[u8]) -> Result<(Vec<u64>, Vec<u64>)> {
    let mut fields = Fields(data);
    let (version, rank, flags) = (fields.u8()?, usize::from(fields.u8()?), fields.u8()?);
    if rank > RANK_MAX {
        return Err(Error::corrupt(format!("{rank} axes are more than {RANK_MAX}")));
    }
    match version {
        1 => fields.skip(5)?,
        2 => match fields.u8()? {
            0 | 1 => {}
            // A null dataspace has no elements.
            _ => return Ok((vec![0], vec![0])),
        },
        _ => return Err(Error::unsupported(format!("dataspaces of version {version}"))),
    }
    let shape = (0..rank).map(|_| file.length(&mut fields)).collect::<Result<Vec<_>>>()?;
    let max = match flags & 1 {
        0 => shape.clone(),
        _ => (0..rank).map(|_| file.axis_max(&mut fields)).collect::<Result<_>>()?,
    };
    Ok((shape, max))
}

/// Class of a type, its bits, its size.
fn type_head(fields: &mut Fields<'_>) -> Result<(u8, u8, u64, usize)> {
    let head = fields.u8()?;
    let bits = fields.uint(3)?;
    let size = fields.u32()? as usize;
    if size == 0 {
        return Err(Error::corrupt("a type without bytes"));
    }
    Ok((head & 15, head >> 4, bits, size))
}

/// The type of elements.
pub(super) fn element(data: &[u8]) -> Result<Element> {
    datatype(&mut Fields(data), TYPES_MAX)
}

fn datatype(fields: &mut Fields<'_>, left: usize) -> Result<Element> {
    let (class, version, bits, size) = type_head(fields)?;
    let order = if bits & 1 != 0 { ByteOrder::Big } else { ByteOrder::Little };
    let number = |dtype: Option<Dtype>| match dtype {
        Some(dtype) => Element::of(dtype, order),
        None => Element::other(format!("number of {size} bytes"), size),
    };
    Ok(match class {
        0 => {
            let (offset, precision) = (fields.u16()?, fields.u16()?);
            let whole = offset == 0 && usize::from(precision) == 8 * size;
            number(whole.then(|| integer(size, bits & 8 != 0)).flatten())
        }
        1 => {
            let whole = fields.u16()? == 0 && usize::from(fields.u16()?) == 8 * size;
            let (exponent_at, exponent) = (fields.u8()?, fields.u8()?);
            // Place and length of the significand, bias.
            fields.skip(6)?;
            number(match (size, exponent_at, exponent) {
                _ if !whole || bits & 0x40 != 0 => None,
                (2, 10, 5) => Some(Dtype::F16),
                (4, 23, 8) => Some(Dtype::F32),
                (8, 52, 11) => Some(Dtype::F64),
                _ => None,
            })
        }
        3 => Element::other(format!("string of {size}"), size),
        5 => Element { name: format!("opaque of {size}"), ..record(size) },
        6 => compound(fields, version, bits & 0xffff, size),
        8 if left > 0 => {
            let base = datatype(fields, left - 1)?;
            let is_bool = base.bytes == 1 && fields.0.windows(6).any(|w| w == b"FALSE\0");
            if is_bool { Element::of(Dtype::Bool, ByteOrder::Little) } else { base }
        }
        7 => Element::other("reference", size),
        9 => Element::other(if bits & 15 == 1 { "variable-length string" } else { "variable-length" }, size),
        10 if left > 0 => Element { name: format!("array of {size}"), ..record(size) },
        11 => number(complex(size, size / 2)),
        _ => Element::other(format!("type {class} of {size}"), size),
    })
}

fn record(size: usize) -> Element {
    match u16::try_from(size) {
        Ok(width) => Element::of(Dtype::Record(width), ByteOrder::Little),
        Err(_) => Element::other(format!("record of {size}"), size),
    }
}

pub(crate) fn integer(size: usize, is_signed: bool) -> Option<Dtype> {
    Some(match (size, is_signed) {
        (1, true) => Dtype::I8,
        (2, true) => Dtype::I16,
        (4, true) => Dtype::I32,
        (8, true) => Dtype::I64,
        (1, false) => Dtype::U8,
        (2, false) => Dtype::U16,
        (4, false) => Dtype::U32,
        (8, false) => Dtype::U64,
        _ => return None,
    })
}

fn complex(size: usize, half: usize) -> Option<Dtype> {
    match (size, half) {
        (8, 4) => Some(Dtype::C64),
        (16, 8) => Some(Dtype::C128),
        _ => None,
    }
}

/// Names of the halves of complex numbers, in any case; the filter knows the same.
const HALVES: [[&[u8]; 2]; 3] = [[b"r", b"i"], [b"real", b"imag"], [b"real", b"imaginary"]];

/// A compound type: a complex number if its members are called so, else a record.
fn compound(fields: &mut Fields<'_>, version: u8, members: u64, size: usize) -> Element {
    let mut parts = || -> Result<Vec<(Vec<u8>, Element)>> {
        let mut out = Vec::new();
        for _ in 0..members.min(2) {
            let name = fields.text()?.to_vec();
            if version < 3 {
                // Names are filled up to 8 bytes, their zero included.
                fields.skip((8 - (name.len() + 1) % 8) % 8)?;
                fields.skip(4 + if version == 1 { 28 } else { 0 })?;
            } else {
                fields.skip(((usize::BITS - size.leading_zeros()).div_ceil(8) as usize).clamp(1, 8))?;
            }
            out.push((name, datatype(fields, 0)?));
        }
        Ok(out)
    };
    if let (2, Ok(parts)) = (members, parts()) {
        let names = parts.iter().map(|p| p.0.to_ascii_lowercase()).collect::<Vec<_>>();
        let floats = parts.iter().all(|p| matches!(p.1.dtype, Some(Dtype::F32 | Dtype::F64)));
        if HALVES.iter().any(|halves| halves[..] == names)
            && floats
            && parts[0].1 == parts[1].1
            && let Some(dtype) = complex(size, parts[0].1.bytes)
        {
            return Element::of(dtype, parts[0].1.order);
        }
    }
    Element { name: format!("compound of {size}"), ..record(size) }
}

fn fill(data: &[u8]) -> Result<Vec<u8>> {
    let mut fields = Fields(data);
    let is_defined = match fields.u8()? {
        version @ (1 | 2) => {
            fields.skip(2)?;
            fields.u8()? != 0 || version == 1
        }
        3 => fields.u8()? & 0x20 != 0,
        version => return Err(Error::unsupported(format!("fill values of version {version}"))),
    };
    if !is_defined || fields.0.len() < 4 {
        return Ok(Vec::new());
    }
    let len = fields.u32()? as usize;
    Ok(fields.take(len)?.to_vec())
}

fn pipeline(data: &[u8], element_bytes: usize) -> Result<Vec<Filter>> {
    let mut fields = Fields(data);
    let (version, count) = (fields.u8()?, usize::from(fields.u8()?));
    if !matches!(version, 1 | 2) || count > FILTERS_MAX {
        return Err(Error::unsupported(format!("{count} filters in a list of version {version}")));
    }
    fields.skip(if version == 1 { 6 } else { 0 })?;
    (0..count)
        .map(|_| {
            let id = fields.u16()?;
            let name_len = if version == 1 || id >= 256 { usize::from(fields.u16()?) } else { 0 };
            let (_flags, count) = (fields.u16()?, usize::from(fields.u16()?));
            let padded = if version == 1 { name_len.next_multiple_of(8) } else { name_len };
            let name = String::from_utf8_lossy(fields.take(padded)?).trim_end_matches('\0').to_owned();
            let values = (0..count).map(|_| fields.u32()).collect::<Result<Vec<_>>>()?;
            fields.skip(if version == 1 && count % 2 == 1 { 4 } else { 0 })?;
            Ok(Filter::of_hdf5(id, &name, &values, element_bytes))
        })
        .collect()
}

fn read_layout(file: &Hdf5, data: &[u8], max: Vec<u64>, variable: &mut Variable) -> Result<()> {
    let mut fields = Fields(data);
    let version = fields.u8()?;
    let rank = variable.shape.len();
    let chunked = |dims: &[u64]| match dims.split_last() {
        Some((_, chunk)) if chunk.len() == rank && !chunk.contains(&0) => Ok(chunk.to_vec()),
        _ => Err(Error::corrupt("chunks have no shape that fits the array")),
    };
    let run = |at: Option<u64>| at.map_or(Place::Nowhere, Place::Run);
    match version {
        1 | 2 => {
            let (count, class) = (usize::from(fields.u8()?), fields.u8()?);
            fields.skip(5)?;
            let at = if class == 0 { None } else { file.offset(&mut fields)? };
            let dims = (0..count).map(|_| fields.uint(4)).collect::<Result<Vec<_>>>()?;
            match class {
                0 => {
                    let len = fields.u32()? as usize;
                    variable.place = Place::Inline(fields.take(len)?.to_vec());
                }
                1 => variable.place = run(at),
                2 => {
                    variable.chunk = Some(chunked(&dims)?);
                    variable.place = Index::tree(at);
                }
                _ => return Err(Error::unsupported(format!("a layout of class {class}"))),
            }
        }
        3..=5 => match fields.u8()? {
            0 => {
                let len = fields.u16()?.into();
                variable.place = Place::Inline(fields.take(len)?.to_vec());
            }
            1 => variable.place = run(file.offset(&mut fields)?),
            2 if version == 3 => {
                let count = usize::from(fields.u8()?);
                let at = file.offset(&mut fields)?;
                let dims = (0..count).map(|_| fields.uint(4)).collect::<Result<Vec<_>>>()?;
                variable.chunk = Some(chunked(&dims)?);
                variable.place = Index::tree(at);
            }
            2 => {
                let (flags, count, len) = (fields.u8()?, usize::from(fields.u8()?), usize::from(fields.u8()?));
                let dims = (0..count).map(|_| fields.uint(len)).collect::<Result<Vec<_>>>()?;
                variable.chunk = Some(chunked(&dims)?);
                variable.place = Index::read(file, &mut fields, flags, max)?;
            }
            3 => return Err(Error::unsupported("a virtual dataset; check the files that it is made of")),
            class => return Err(Error::unsupported(format!("a layout of class {class}"))),
        },
        _ => return Err(Error::unsupported(format!("layouts of version {version}"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use narrows::ErrorKind;

    /// A header of the first version at 0 with one message, and what is after it.
    fn with_message(number: u16, data: &[u8], more: &[u8]) -> Hdf5 {
        let len = 8 + data.len() as u32;
        let mut bytes = vec![1, 0, 1, 0, 1, 0, 0, 0];
        bytes.extend(len.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(message(number, data));
        bytes.extend(more);
        Hdf5 { bytes: Bytes::of_memory(bytes), base: 0, offset_len: 8, length_len: 8 }
    }

    fn message(number: u16, data: &[u8]) -> Vec<u8> {
        let (number, len) = (number.to_le_bytes(), (data.len() as u16).to_le_bytes());
        [&[number[0], number[1], len[0], len[1], 0, 0, 0, 0], data].concat()
    }

    fn goes_on(at: u64, len: u64) -> Vec<u8> {
        [at.to_le_bytes(), len.to_le_bytes()].concat()
    }

    #[test]
    fn a_header_has_each_byte_once() {
        // It begins with one message of 24 bytes at 16; after it, at 40, is what it goes on with.
        let own = message(kind::CONTINUATION, &goes_on(40, 24));
        let beside = message(kind::CONTINUATION, &goes_on(64, 10));
        let within = message(kind::CONTINUATION, &goes_on(48, 8));
        let good = [beside, message(kind::FILL, &[7, 7])].concat();
        let found = messages(&with_message(kind::CONTINUATION, &goes_on(40, 24), &good), 0).unwrap();
        assert_eq!(found.iter().map(|m| m.kind).collect::<Vec<_>>(), [kind::FILL]);
        for (at, len, more) in [(40, 24, &own), (40, 24, &within), (16, 24, &own), (0, 8, &own)] {
            let file = with_message(kind::CONTINUATION, &goes_on(at, len), more);
            let error = messages(&file, 0).map(drop).unwrap_err();
            assert!(error.message.contains("in circles"), "{at} {len}: {error}");
        }
    }

    #[test]
    fn a_long_header_is_refused_and_what_means_nothing_here_is_not_kept() {
        let part = message(0, &[0; 65_528]);
        let parts = HEADER_MAX as usize / part.len();
        let (long, len) = (part.repeat(parts), (parts - 1) as u64 * part.len() as u64);
        let file = with_message(kind::CONTINUATION, &goes_on(40, len), &long);
        assert!(messages(&file, 0).is_ok_and(|found| found.is_empty()));
        let file = with_message(kind::CONTINUATION, &goes_on(40, long.len() as u64), &long);
        assert_eq!(messages(&file, 0).map(drop).unwrap_err().kind, ErrorKind::Limit);
    }

    #[test]
    fn a_gap_at_the_end_of_a_header_is_no_message() {
        // Version 2 with the order of creation: heads of 6 bytes, so that a gap may have 5.
        for gap in 0..6 {
            let mut bytes = b"OHDR\x02\x04".to_vec();
            bytes.push(8 + gap);
            bytes.extend([3, 2, 0, 0, 7, 0, 0xaa, 0xbb]);
            bytes.extend(vec![1; gap.into()]);
            bytes.extend(sum::lookup3(&bytes).to_le_bytes());
            let file = Hdf5 { bytes: Bytes::of_memory(bytes), base: 0, offset_len: 8, length_len: 8 };
            let found = messages(&file, 0).unwrap();
            assert_eq!((found.len(), found[0].kind, found[0].data.as_slice()), (1, 3, &[0xaa, 0xbb][..]), "{gap}");
        }
    }
}
