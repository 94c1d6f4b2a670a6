//! Arrays as callers hand them over and get them back: element type, byte order, shape, bytes.

use std::fmt;
use std::str::FromStr;

use narrows::{Error, Result};

use crate::words::{ByteOrder, Kind};

/// Longest chunk in raw bytes. HDF5 allows 4 GiB; above some MiB no method gains, and every thread
/// that decodes holds one.
pub const RAW_MAX: usize = 1 << 30;

/// Most axes, as in HDF5.
pub const RANK_MAX: usize = 32;

/// Type of the elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Dtype {
    /// Records of so many bytes, or plain bytes (1).
    Record(u16),
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    F32,
    F64,
    Bool,
    /// Two f32.
    C64,
    /// Two f64.
    C128,
}

/// All types but records: number in the format, name, kind, bytes of a word, words of an element.
const TYPES: [(u8, Dtype, &str, Kind, usize, usize); 14] = [
    (1, Dtype::I8, "i8", Kind::Signed, 1, 1),
    (2, Dtype::I16, "i16", Kind::Signed, 2, 1),
    (3, Dtype::I32, "i32", Kind::Signed, 4, 1),
    (4, Dtype::I64, "i64", Kind::Signed, 8, 1),
    (5, Dtype::U8, "u8", Kind::Unsigned, 1, 1),
    (6, Dtype::U16, "u16", Kind::Unsigned, 2, 1),
    (7, Dtype::U32, "u32", Kind::Unsigned, 4, 1),
    (8, Dtype::U64, "u64", Kind::Unsigned, 8, 1),
    (9, Dtype::F16, "f16", Kind::Float, 2, 1),
    (10, Dtype::F32, "f32", Kind::Float, 4, 1),
    (11, Dtype::F64, "f64", Kind::Float, 8, 1),
    (12, Dtype::Bool, "bool", Kind::Unsigned, 1, 1),
    (13, Dtype::C64, "c64", Kind::Float, 4, 2),
    (14, Dtype::C128, "c128", Kind::Float, 8, 2),
];

impl Dtype {
    /// Every type but records.
    pub fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().map(|t| t.1)
    }

    fn entry(self) -> Option<&'static (u8, Self, &'static str, Kind, usize, usize)> {
        TYPES.iter().find(|t| t.1 == self)
    }

    /// Number in the format.
    pub(crate) fn number(self) -> u8 {
        self.entry().map_or(0, |t| t.0)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        TYPES.iter().find(|t| t.0 == number).map(|t| t.1)
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Record(width) => usize::from(width),
            _ => self.word_bytes() * self.words(),
        }
    }

    /// Bytes of a word of an element; what a byte order swaps.
    pub(crate) fn word_bytes(self) -> usize {
        self.entry().map_or(1, |t| t.4)
    }

    /// Words of an element.
    pub(crate) fn words(self) -> usize {
        match self {
            Self::Record(width) => usize::from(width),
            _ => self.entry().map_or(1, |t| t.5),
        }
    }

    pub(crate) fn kind(self) -> Kind {
        self.entry().map_or(Kind::Unsigned, |t| t.3)
    }

    /// Whether the elements are floats or pairs of floats.
    pub fn is_float(self) -> bool {
        self.kind() == Kind::Float
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.entry()) {
            (Self::Record(width), _) => write!(f, "r{width}"),
            (_, entry) => f.write_str(entry.map_or("", |t| t.2)),
        }
    }
}

impl FromStr for Dtype {
    type Err = Error;

    /// Reads `f32`, `i16`, `c64`, or `r32` for records of 32 bytes.
    fn from_str(s: &str) -> Result<Self> {
        if let Some(dtype) = TYPES.iter().find(|t| t.2 == s) {
            return Ok(dtype.1);
        }
        match s.strip_prefix('r').and_then(|width| width.parse::<u16>().ok()) {
            Some(width) if width > 0 => Ok(Self::Record(width)),
            _ => Err(Error::misuse(format!(
                "no type is called '{s}'; there are {}, and r32 for records of 32 bytes",
                TYPES.map(|t| t.2).join(", ")
            ))),
        }
    }
}

/// Order of the axes in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// The last axis is contiguous (C, NumPy's default).
    #[default]
    RowMajor,
    /// The first axis is contiguous (Fortran).
    ColumnMajor,
}

/// A chunk of an array, as bytes in memory. `shape` is as its user sees it, whatever the layout.
#[derive(Debug, Clone, Copy)]
pub struct ArrayView<'a> {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Order of their bytes.
    pub order: ByteOrder,
    /// Order of the axes in memory.
    pub layout: Layout,
    /// Lengths of the axes; empty for one element.
    pub shape: &'a [usize],
    /// The elements.
    pub bytes: &'a [u8],
}

impl<'a> ArrayView<'a> {
    /// A little-endian, row-major chunk.
    pub fn new(dtype: Dtype, shape: &'a [usize], bytes: &'a [u8]) -> Self {
        Self { dtype, order: ByteOrder::Little, layout: Layout::RowMajor, shape, bytes }
    }

    /// Compares shape and length.
    pub(crate) fn check(&self) -> Result<()> {
        if self.dtype.bytes() == 0 || self.shape.len() > RANK_MAX {
            return Err(Error::misuse(format!("a chunk has at most {RANK_MAX} axes, and elements of 1 byte or more")));
        }
        let raw_len = raw_len(self.dtype, self.shape)
            .ok_or_else(|| Error::limit(format!("a chunk has at most {RAW_MAX} bytes; use shorter chunks")))?;
        if raw_len != self.bytes.len() {
            return Err(Error::misuse(format!(
                "{} bytes are not the {raw_len} of {} elements of {}",
                self.bytes.len(),
                self.shape.iter().product::<usize>(),
                self.dtype
            )));
        }
        Ok(())
    }

    /// The axes with the slowest first.
    pub(crate) fn slowest_first(&self) -> Vec<usize> {
        let mut axes = self.shape.to_vec();
        if self.layout == Layout::ColumnMajor {
            axes.reverse();
        }
        axes
    }
}

/// Bytes of a chunk, if they are within the limit. Axes may be huge beside one of length 0.
pub(crate) fn raw_len(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(dtype.bytes(), |product, &d| product.checked_mul(d)).filter(|&len| len <= RAW_MAX)
}

/// A decoded chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Order of their bytes.
    pub order: ByteOrder,
    /// Order of the axes in memory.
    pub layout: Layout,
    /// Lengths of the axes, as the user sees them.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: Vec<u8>,
}

impl Array {
    /// The array as a view.
    pub fn view(&self) -> ArrayView<'_> {
        ArrayView { dtype: self.dtype, order: self.order, layout: self.layout, shape: &self.shape, bytes: &self.bytes }
    }
}
