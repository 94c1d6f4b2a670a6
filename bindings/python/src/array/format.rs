//! Element types as the buffer protocol and NumPy name them.

use std::ffi::CStr;

use narrows_array::{ByteOrder, Dtype};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// Type and byte order of elements.
pub(super) struct Format {
    pub dtype: Dtype,
    pub order: ByteOrder,
}

const NATIVE: ByteOrder = if cfg!(target_endian = "little") { ByteOrder::Little } else { ByteOrder::Big };

/// Reads a format of the `struct` module, with the additions of PEP 3118.
pub(super) fn parse(format: &CStr, item_len: usize) -> PyResult<Format> {
    let text = format.to_str().unwrap_or_default();
    let (order, code) = match text.as_bytes().first() {
        Some(b'<') => (ByteOrder::Little, &text[1..]),
        Some(b'>' | b'!') => (ByteOrder::Big, &text[1..]),
        Some(b'=' | b'@' | b'|' | b'^') => (NATIVE, &text[1..]),
        _ => (NATIVE, text),
    };
    let signed = [(1, Dtype::I8), (2, Dtype::I16), (4, Dtype::I32), (8, Dtype::I64)];
    let unsigned = [(1, Dtype::U8), (2, Dtype::U16), (4, Dtype::U32), (8, Dtype::U64)];
    let of = |types: &[(usize, Dtype)]| types.iter().find(|t| t.0 == item_len).map(|t| t.1);
    let dtype = match code {
        "b" | "h" | "i" | "l" | "q" | "n" => of(&signed),
        "c" | "B" | "H" | "I" | "L" | "Q" | "N" => of(&unsigned),
        "?" => of(&[(1, Dtype::Bool)]),
        "e" | "f" | "d" => of(&[(2, Dtype::F16), (4, Dtype::F32), (8, Dtype::F64)]),
        "Zf" | "Zd" => of(&[(8, Dtype::C64), (16, Dtype::C128)]),
        _ if is_record(code) => u16::try_from(item_len).ok().filter(|&len| len > 0).map(Dtype::Record),
        _ => None,
    };
    match dtype {
        Some(dtype) => Ok(Format { dtype, order }),
        None => Err(PyTypeError::new_err(format!(
            "elements of format '{text}' with {item_len} bytes are no numbers of up to 64 bits, complex numbers, truth \
             values or records of these; store text and objects by another codec"
        ))),
    }
}

/// Records as `T{...}`, where names stand between colons, and NumPy's plain bytes (`12x`).
fn is_record(code: &str) -> bool {
    if let Some(count) = code.strip_suffix('x') {
        return count.bytes().all(|b| b.is_ascii_digit());
    }
    // Objects are pointers; every other type is bytes that mean the same elsewhere.
    code.starts_with("T{") && !code.split(':').step_by(2).any(|types| types.contains(['O', 'P', '&', 'X']))
}

/// Code of a type, as the buffer protocol and NumPy have it.
fn codes(dtype: Dtype) -> Option<(&'static str, &'static str)> {
    Some(match dtype {
        Dtype::Record(_) => return None,
        Dtype::I8 => ("b", "i1"),
        Dtype::I16 => ("h", "i2"),
        Dtype::I32 => ("i", "i4"),
        Dtype::I64 => ("q", "i8"),
        Dtype::U8 => ("B", "u1"),
        Dtype::U16 => ("H", "u2"),
        Dtype::U32 => ("I", "u4"),
        Dtype::U64 => ("Q", "u8"),
        Dtype::F16 => ("e", "f2"),
        Dtype::F32 => ("f", "f4"),
        Dtype::F64 => ("d", "f8"),
        Dtype::Bool => ("?", "b1"),
        Dtype::C64 => ("Zf", "c8"),
        Dtype::C128 => ("Zd", "c16"),
    })
}

/// The format for the buffer protocol.
pub(super) fn format(dtype: Dtype, order: ByteOrder) -> String {
    let Some((code, _)) = codes(dtype) else { return format!("{}x", dtype.bytes()) };
    // Without a prefix, since `memoryview` reads only such.
    let prefix = match order {
        _ if order == NATIVE || dtype.bytes() == 1 => "",
        ByteOrder::Little => "<",
        ByteOrder::Big => ">",
    };
    format!("{prefix}{code}")
}

/// The name that NumPy has for the type, such as `<f4`.
pub(super) fn typestr(dtype: Dtype, order: ByteOrder) -> String {
    let Some((_, code)) = codes(dtype) else { return format!("|V{}", dtype.bytes()) };
    let prefix = match order {
        _ if dtype.bytes() == 1 => '|',
        ByteOrder::Little => '<',
        ByteOrder::Big => '>',
    };
    format!("{prefix}{code}")
}
