//! Types of elements of a dataset, from its HDF5 type.

use std::ffi::c_int;

use narrows_array::{ByteOrder, Dtype};

use crate::host::{Host, Id};

// Classes of types, as HDF5 numbers them.
const INTEGER: c_int = 0;
const FLOAT: c_int = 1;
const STRING: c_int = 3;
const BITS: c_int = 4;
const COMPOUND: c_int = 6;
const REFERENCE: c_int = 7;
const ENUMERATION: c_int = 8;
const VARIABLE: c_int = 9;
const COMPLEX: c_int = 11;

const BIG: c_int = 1;

/// Type and byte order of elements, and whether their values must stay.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Type {
    pub(crate) dtype: Dtype,
    pub(crate) order: ByteOrder,
    pub(crate) exact: bool,
}

/// Whether chunks hold the elements themselves: those of variable length are in a heap elsewhere.
pub(crate) fn is_fixed(host: &Host, kind: Id) -> Option<bool> {
    Some(match host.type_class(kind)? {
        STRING => !host.is_variable_string(kind),
        class => ![REFERENCE, VARIABLE].contains(&class) && class >= 0,
    })
}

/// The type of the elements. What is no number that every reader knows is records of bytes.
pub(crate) fn of(host: &Host, kind: Id) -> Option<Type> {
    let size = host.type_size(kind)?;
    let number = match host.type_class(kind)? {
        INTEGER => integer(host, kind, size),
        FLOAT => float(host, kind, size),
        BITS => unsigned(size).map(|dtype| Type { dtype, order: order(host, kind), exact: true }),
        ENUMERATION => host.with_base(kind, |base| integer(host, base, size)).map(|t| Type { exact: true, ..t }),
        COMPOUND => compound(host, kind, size),
        COMPLEX => host.with_base(kind, |base| float(host, base, size / 2)).and_then(pair),
        _ => None,
    };
    let bytes = || Type { dtype: Dtype::U8, order: ByteOrder::Little, exact: true };
    let record = || u16::try_from(size).ok().map(|width| Type { dtype: Dtype::Record(width), ..bytes() });
    number.or_else(record)
}

fn order(host: &Host, kind: Id) -> ByteOrder {
    if host.type_order(kind) == Some(BIG) { ByteOrder::Big } else { ByteOrder::Little }
}

fn unsigned(size: usize) -> Option<Dtype> {
    Some(match size {
        1 => Dtype::U8,
        2 => Dtype::U16,
        4 => Dtype::U32,
        8 => Dtype::U64,
        _ => return None,
    })
}

fn integer(host: &Host, kind: Id, size: usize) -> Option<Type> {
    let dtype = match (size, host.is_signed(kind)?) {
        (1, true) => Dtype::I8,
        (2, true) => Dtype::I16,
        (4, true) => Dtype::I32,
        (8, true) => Dtype::I64,
        _ => unsigned(size)?,
    };
    // Bits beside the number would count as parts of it.
    let exact = host.precision(kind)? != (8 * size, 0);
    Some(Type { dtype, order: order(host, kind), exact })
}

fn float(host: &Host, kind: Id, size: usize) -> Option<Type> {
    // Sign, exponent's place and length, significand's place and length, and bias of IEEE 754.
    let (dtype, fields) = match size {
        2 => (Dtype::F16, ([15, 10, 5, 0, 10], 15)),
        4 => (Dtype::F32, ([31, 23, 8, 0, 23], 127)),
        8 => (Dtype::F64, ([63, 52, 11, 0, 52], 1023)),
        _ => return None,
    };
    let known = [0, BIG].contains(&host.type_order(kind)?) && host.precision(kind)? == (8 * size, 0);
    if known && host.fields(kind)? == fields {
        return Some(Type { dtype, order: order(host, kind), exact: false });
    }
    Some(Type { dtype: unsigned(size)?, order: order(host, kind), exact: true })
}

/// Names of the halves of complex numbers, in any case: those of h5py, and others that programs use.
const HALVES: [[&str; 2]; 3] = [["r", "i"], ["real", "imag"], ["real", "imaginary"]];

/// Two floats of one type that are called as the halves of complex numbers are; others are records.
fn compound(host: &Host, kind: Id, size: usize) -> Option<Type> {
    if host.members(kind)? != 2 {
        return None;
    }
    let names = [host.member(kind, 0)?, host.member(kind, 1)?].map(|(_, name)| name.to_ascii_lowercase());
    if !HALVES.iter().any(|halves| halves.map(str::as_bytes) == names.each_ref().map(Vec::as_slice)) {
        return None;
    }
    let half = |index: u32| {
        let (at, _) = host.member(kind, index)?;
        let class = host.with_member(kind, index, |member| host.type_class(member))?;
        let found = at == index as usize * size / 2 && class == FLOAT;
        let float = |member| (host.type_size(member)? == size / 2).then(|| float(host, member, size / 2)).flatten();
        if found { host.with_member(kind, index, float) } else { None }
    };
    let (real, imaginary) = (half(0)?, half(1)?);
    if real == imaginary { pair(real) } else { None }
}

fn pair(half: Type) -> Option<Type> {
    let dtype = match half.dtype {
        Dtype::F32 => Dtype::C64,
        Dtype::F64 => Dtype::C128,
        _ => return None,
    };
    Some(Type { dtype, ..half })
}
