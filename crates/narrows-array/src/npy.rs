//! .npy files, versions 1 to 3: header to type, order and shape. Nothing is executed and no object read.

use narrows::{Error, Result};

use crate::view::{Dtype, Layout, RANK_MAX};
use crate::words::ByteOrder;

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Order of their bytes.
    pub order: ByteOrder,
    /// Order of the axes.
    pub layout: Layout,
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    /// Elements are byte strings, which chunks keep as records: a header of them says so no more.
    pub is_text: bool,
    /// Offset of the first element in the file.
    pub data_at: usize,
}

/// First bytes of a file.
pub const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Longest header that is read. NumPy warns from 10,000 on; the dictionary of a record type may be long.
const HEADER_MAX: usize = 1 << 16;

/// NumPy's codes, for elements of two bytes or more with the order before them.
const CODES: [(&str, Dtype); 14] = [
    ("i1", Dtype::I8),
    ("i2", Dtype::I16),
    ("i4", Dtype::I32),
    ("i8", Dtype::I64),
    ("u1", Dtype::U8),
    ("u2", Dtype::U16),
    ("u4", Dtype::U32),
    ("u8", Dtype::U64),
    ("f2", Dtype::F16),
    ("f4", Dtype::F32),
    ("f8", Dtype::F64),
    ("b1", Dtype::Bool),
    ("c8", Dtype::C64),
    ("c16", Dtype::C128),
];

/// The type of one of NumPy's codes without its byte order, such as `f4`.
pub fn dtype(code: &str) -> Option<Dtype> {
    CODES.iter().find(|c| c.0 == code).map(|c| c.1)
}

/// Reads the header of a file.
///
/// # Errors
/// It is no .npy file, is cut short, or holds a type that chunks lack.
pub fn parse(file: &[u8]) -> Result<Header> {
    let bad = |what: &str| Error::corrupt(what);
    let rest = file.strip_prefix(MAGIC).ok_or_else(|| bad("it does not begin as a .npy file"))?;
    let (len, at) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
        [1..=3, ..] | [] => return Err(Error::truncated("the .npy file is too short")),
        _ => return Err(Error::unsupported("the .npy file is of a version above 3")),
    };
    if len > HEADER_MAX {
        return Err(bad("its header is too long"));
    }
    let text = file.get(at..at + len).ok_or_else(|| Error::truncated("the .npy file is too short"))?;
    let text = std::str::from_utf8(text).map_err(|_| bad("its header is no text"))?;
    let mut literal = Literal(text.trim_end_matches(['\n', ' ', '\0']));
    if text.contains("'descr': [") {
        return Err(Error::unsupported("it holds records with fields; use one array for each field"));
    }
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    literal.expect('{').ok_or_else(|| bad("its header is no dictionary"))?;
    while literal.expect('}').is_none() {
        let mut entry = || {
            let key = literal.string()?;
            literal.expect(':')?;
            match key {
                "descr" => descr = Some(literal.string()?),
                "fortran_order" => fortran = Some(literal.boolean()?),
                "shape" => shape = Some(literal.tuple()?),
                _ => return None,
            }
            literal.expect(',').or_else(|| literal.0.trim_start().starts_with('}').then_some(()))
        };
        entry().ok_or_else(|| bad("its header has records, objects or no sense; use plain numbers"))?;
    }
    let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
        return Err(bad("its header lacks descr, fortran_order or shape"));
    };
    let (order, code) = match descr.split_at_checked(1) {
        Some(("<" | "|" | "=", code)) => (ByteOrder::Little, code),
        Some((">", code)) => (ByteOrder::Big, code),
        _ => return Err(bad("its type has no byte order")),
    };
    let dtype = match dtype(code) {
        Some(dtype) => dtype,
        None => match code.strip_prefix(['V', 'S']).and_then(|width| width.parse().ok()) {
            Some(width @ 1..) => Dtype::Record(width),
            _ => {
                return Err(Error::unsupported(format!("it holds elements of type {descr}, which chunks do not have")));
            }
        },
    };
    let layout = if fortran { Layout::ColumnMajor } else { Layout::RowMajor };
    let is_text = code.starts_with('S');
    Ok(Header { dtype, order, layout, shape, is_text, data_at: at + len })
}

/// Writes a header of version 1 for elements of these types.
pub fn header(dtype: Dtype, order: ByteOrder, layout: Layout, shape: &[usize]) -> Vec<u8> {
    let code = match CODES.iter().find(|c| c.1 == dtype) {
        Some((code, _)) => (*code).to_owned(),
        None => format!("V{}", dtype.bytes()),
    };
    let sign = match order {
        _ if dtype.word_bytes() == 1 => '|',
        ByteOrder::Little => '<',
        ByteOrder::Big => '>',
    };
    let fortran = if layout == Layout::ColumnMajor { "True" } else { "False" };
    let mut axes = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if shape.len() == 1 {
        axes.push(',');
    }
    let mut text = format!("{{'descr': '{sign}{code}', 'fortran_order': {fortran}, 'shape': ({axes}), }}");
    while (text.len() + 11) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.bytes());
    out
}

/// A Python literal, read from the front.
struct Literal<'a>(&'a str);

impl<'a> Literal<'a> {
    fn expect(&mut self, c: char) -> Option<()> {
        self.0 = self.0.trim_start().strip_prefix(c)?;
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start();
        let quote = text.chars().next().filter(|c| "'\"".contains(*c))?;
        let (string, rest) = text[1..].split_once(quote)?;
        self.0 = rest;
        (!string.contains('\\')).then_some(string)
    }

    fn boolean(&mut self) -> Option<bool> {
        let text = self.0.trim_start();
        let (value, rest) = match text.strip_prefix("True") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("False")?),
        };
        self.0 = rest;
        Some(value)
    }

    fn tuple(&mut self) -> Option<Vec<usize>> {
        self.expect('(')?;
        let (inner, rest) = self.0.split_once(')')?;
        self.0 = rest;
        let mut numbers: Vec<&str> = inner.split(',').map(str::trim).collect();
        if numbers.last() == Some(&"") {
            numbers.pop();
        }
        if numbers.len() > RANK_MAX {
            return None;
        }
        numbers.iter().map(|n| n.trim_end_matches('L').parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_as_many_axes_as_an_array() {
        let axes = |n| Literal(&format!("({})", vec!["1"; n].join(", "))).tuple().map(|axes| axes.len());
        assert_eq!((axes(RANK_MAX), axes(RANK_MAX + 1)), (Some(RANK_MAX), None));
    }
}
