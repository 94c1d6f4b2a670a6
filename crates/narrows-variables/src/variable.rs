//! Variables: arrays with a path, and the chunks that they are stored in.

use narrows::{Error, ErrorKind};
use narrows_array::{ByteOrder, Dtype, RAW_MAX};

use crate::filter::Filter;
pub(crate) use crate::place::Place;

pub use crate::place::Chunk;

/// Most axes that any of the formats allows.
pub(crate) const RANK_MAX: usize = 32;

/// Longest text of a fixed length that is compared: each of its bytes becomes a number of 8.
const TEXT_MAX: usize = 1 << 16;

/// Attributes that name values which mark what is missing, by the conventions of NetCDF and CF.
pub(crate) const MISSING_NAMES: [&str; 2] = ["_FillValue", "missing_value"];
/// Most values that they name: CF allows a list, and real ones have one or two.
pub(crate) const MISSING_MAX: usize = 16;

/// Type of a variable's elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// As people call it: `f32`, `string`, `compound of 12 bytes`.
    pub name: String,
    /// Bytes of an element.
    pub bytes: usize,
    /// If chunks have it.
    pub dtype: Option<Dtype>,
    /// Order of their bytes.
    pub order: ByteOrder,
}

impl Element {
    /// Elements of a type of chunks.
    pub fn of(dtype: Dtype, order: ByteOrder) -> Self {
        let order = if dtype.bytes() == 1 { ByteOrder::Little } else { order };
        let name = if order == ByteOrder::Big { format!("{dtype} big-endian") } else { dtype.to_string() };
        Self { name, bytes: dtype.bytes(), dtype: Some(dtype), order }
    }

    /// Elements without one.
    pub fn other(name: impl Into<String>, bytes: usize) -> Self {
        Self { name: name.into(), bytes, dtype: None, order: ByteOrder::Little }
    }

    /// Whether elements are text of a fixed length, whose bytes can be compared.
    pub fn is_text(&self) -> bool {
        let is_named = self.name.starts_with("string of ") || self.name == "null_terminated_bytes";
        self.dtype.is_none() && is_named && self.bytes <= TEXT_MAX
    }

    /// Whether elements are numbers that can be compared.
    pub fn is_numeric(&self) -> bool {
        self.dtype.is_some_and(|d| !matches!(d, Dtype::Record(_)))
    }
}

/// An array of a file.
#[derive(Debug, Clone)]
pub struct Variable {
    /// Names of groups and of the array, with `/` between and none before.
    pub path: String,
    /// Type of the elements.
    pub element: Element,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// Shape of the chunks; `None` if the array is in one piece.
    pub chunk: Option<Vec<u64>>,
    /// Order in which stored chunks have the axes, the slowest first.
    pub axes: Vec<usize>,
    /// Order in which a codec of arrays got the axes, where Zarr transposed them before it.
    pub(crate) turned: Vec<usize>,
    /// In the order in which a writer applies them.
    pub filters: Vec<Filter>,
    /// An element where nothing was written; empty if it is zeros.
    pub fill: Vec<u8>,
    /// Values that mark what is missing, by its attributes.
    pub missing: Vec<f64>,
    /// Why its elements cannot be read, if they cannot.
    pub trouble: Option<String>,
    /// Whether that is because the file is damaged.
    pub is_damaged: bool,
    /// What may be its chunks and was not looked at, each with the reason.
    pub unseen: Vec<String>,
    pub(crate) place: Place,
}

impl Variable {
    /// A variable without chunks, for readers to complete.
    pub(crate) fn new(path: String, element: Element, shape: Vec<u64>) -> Self {
        let axes: Vec<usize> = (0..shape.len()).collect();
        let (filters, fill) = (Vec::new(), Vec::new());
        Self {
            path,
            element,
            shape,
            chunk: None,
            turned: axes.clone(),
            axes,
            filters,
            fill,
            missing: Vec::new(),
            trouble: None,
            is_damaged: false,
            unseen: Vec::new(),
            place: Place::Nowhere,
        }
    }

    /// Memory of what its description has without a fixed length.
    pub(crate) fn memory(&self) -> u64 {
        let inline = if let Place::Inline(bytes) = &self.place { bytes.len() } else { 0 };
        let filters: usize = self.filters.iter().map(Filter::memory).sum();
        (self.fill.len() + self.element.name.len() + 48 * self.shape.len() + inline + filters) as u64
    }

    /// Says why it cannot be read.
    pub(crate) fn trouble(&mut self, error: Error) {
        self.is_damaged = matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Truncated);
        self.trouble = Some(words(&error));
    }

    /// One whose description cannot be read: listed beside the others, which can.
    pub(crate) fn broken(path: String, error: Error) -> Self {
        let mut variable = Self::new(path, Element::other("unknown", 1), Vec::new());
        variable.trouble(error);
        variable
    }

    /// Why nothing can be said of it, in part or at all, although nothing is known to be damaged.
    pub fn unseen(&self) -> impl Iterator<Item = String> {
        let trouble = self.trouble.iter().filter(|_| !self.is_damaged);
        trouble.map(|why| format!("not read: {why}")).chain(self.unseen.iter().map(|what| format!("not read: {what}")))
    }

    /// Whether this may be a dimension of NetCDF-4 that no variable has values for: the format keeps its
    /// length as an array of this type that is never written.
    pub fn is_bare_dimension(&self) -> bool {
        let is_never_written =
            matches!(self.place, Place::Nowhere) && self.filters.is_empty() && self.trouble.is_none();
        is_never_written
            && self.shape.len() == 1
            && self.element.dtype == Some(Dtype::F32)
            && self.element.order == ByteOrder::Big
    }

    /// Bytes of all elements.
    pub fn raw_bytes(&self) -> u64 {
        product(&self.shape).saturating_mul(self.element.bytes as u64)
    }

    /// Chunks that the shape has room for.
    pub fn chunks_max(&self) -> u64 {
        match &self.chunk {
            Some(chunk) => {
                self.shape.iter().zip(chunk).map(|(n, c)| n.div_ceil((*c).max(1))).fold(1, u64::saturating_mul)
            }
            None => 1,
        }
    }

    /// Bytes of the elements of a chunk, if chunks may be so long.
    pub fn chunk_raw_len(&self) -> Option<usize> {
        let bytes = product(self.chunk.as_deref().unwrap_or(&self.shape)).checked_mul(self.element.bytes as u64)?;
        usize::try_from(bytes).ok().filter(|bytes| *bytes <= RAW_MAX)
    }

    /// Whether Narrows is one of its filters.
    pub fn is_narrows(&self) -> bool {
        self.filters.iter().any(Filter::is_narrows)
    }

    /// Elements of a chunk that lie within the shape.
    pub fn inner(&self, origin: &[u64]) -> Vec<u64> {
        let chunk = self.chunk.as_deref().unwrap_or(&self.shape);
        self.shape.iter().zip(chunk).zip(origin).map(|((n, c), o)| (*c).min(n.saturating_sub(*o))).collect()
    }
}

/// What is said of an error, with that of the operating system behind it.
pub(crate) fn words(error: &Error) -> String {
    match &error.source {
        Some(source) => format!("{}: {source}", error.message),
        None => error.message.clone(),
    }
}

/// Product of lengths; 0 if any is 0.
pub(crate) fn product(shape: &[u64]) -> u64 {
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |a, b| a.saturating_mul(*b)) }
}
