//! Elements as numbers.

use half::f16;
use narrows_array::Dtype;

use crate::store::is_big;
use crate::variable::Variable;

/// The elements as binary64, complex ones as two of them, text as its bytes; integers of 8 bytes are
/// rounded. Empty if they are something else.
pub(crate) fn values(variable: &Variable, bytes: &[u8]) -> Vec<f64> {
    let is_big = is_big(variable);
    macro_rules! each {
        ($type:ty, $bytes:literal) => {
            bytes
                .as_chunks::<$bytes>()
                .0
                .iter()
                .map(|b| f64::from(if is_big { <$type>::from_be_bytes(*b) } else { <$type>::from_le_bytes(*b) }))
                .collect()
        };
    }
    match variable.element.dtype {
        Some(Dtype::I8) => each!(i8, 1),
        Some(Dtype::U8 | Dtype::Bool) => each!(u8, 1),
        Some(Dtype::I16) => each!(i16, 2),
        Some(Dtype::U16) => each!(u16, 2),
        Some(Dtype::F16) => each!(f16, 2),
        Some(Dtype::I32) => each!(i32, 4),
        Some(Dtype::U32) => each!(u32, 4),
        Some(Dtype::F32 | Dtype::C64) => each!(f32, 4),
        Some(Dtype::F64 | Dtype::C128) => each!(f64, 8),
        Some(Dtype::I64 | Dtype::U64) => wide(variable, bytes).iter().map(|v| *v as f64).collect(),
        None if variable.element.is_text() => each!(u8, 1),
        Some(Dtype::Record(_)) | None => Vec::new(),
    }
}

/// Integers of 8 bytes.
pub(crate) fn wide(variable: &Variable, bytes: &[u8]) -> Vec<i128> {
    let (is_big, is_signed) = (is_big(variable), variable.element.dtype == Some(Dtype::I64));
    let word = |b: &[u8; 8]| if is_big { u64::from_be_bytes(*b) } else { u64::from_le_bytes(*b) };
    bytes.as_chunks::<8>().0.iter().map(word).map(|v| if is_signed { i128::from(v as i64) } else { v.into() }).collect()
}
