//! Files of chunks: one array as consecutive chunks along its slowest axis (docs/format.md, 15.8).

use narrows::{Error, Result};

use crate::choose::Chooser;
use crate::chunk::{Coder, read_shape, write_shape};
use crate::view::{Array, ArrayView, Dtype, Layout, RANK_MAX, RAW_MAX, raw_len};
use crate::words::{ByteOrder, Reader, put_varint};

/// First bytes of a file.
pub const MAGIC: [u8; 5] = [b'N', b'r', b'A', b'S', 1];

/// Bytes of a chunk if nobody says otherwise: 16 KiB lose 7 %, more than 256 KiB gain 1 to 2 %.
pub const CHUNK_LEN: usize = 256 << 10;

/// How an array is cut into chunks of a file: for writers that do not hold all of it.
#[derive(Debug, Clone)]
pub struct Cut {
    dtype: Dtype,
    order: ByteOrder,
    layout: Layout,
    /// Slowest axis first.
    axes: Vec<usize>,
    rows: usize,
    row_len: usize,
}

impl Cut {
    /// Cuts an array of this shape, as the user sees it, into chunks of about `chunk_len` bytes.
    ///
    /// # Errors
    /// A row of the slowest axis is too long for a chunk.
    pub fn new(dtype: Dtype, order: ByteOrder, layout: Layout, shape: &[usize], chunk_len: usize) -> Result<Self> {
        let mut axes = shape.to_vec();
        if layout == Layout::ColumnMajor {
            axes.reverse();
        }
        let inner = axes.get(1..).unwrap_or_default();
        let row_len = raw_len(dtype, inner).filter(|_| axes.len() <= RANK_MAX).ok_or_else(|| {
            Error::limit("one row of the slowest axis is longer than a chunk may be; swap axes or cut the array")
        })?;
        let rows = (chunk_len.min(RAW_MAX) / row_len.max(1)).clamp(1, axes.first().copied().unwrap_or(1).max(1));
        Ok(Self { dtype, order, layout, axes, rows, row_len })
    }

    /// The header of the file.
    pub fn header(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        write_shape(self.dtype, self.order, self.layout, &self.axes, 0, &mut out);
        put_varint(&mut out, self.rows as u64);
        out
    }

    /// Bytes of each chunk in turn: what [`Cut::encode`] wants next.
    pub fn lengths(&self) -> impl Iterator<Item = usize> + use<> {
        let (rows, row_len) = (self.rows, self.row_len);
        let all = if self.axes.is_empty() { 1 } else { self.axes[0] };
        let chunks = if all == 0 || row_len == 0 { 1 } else { all.div_ceil(rows) };
        (0..chunks).map(move |i| (all - (i * rows).min(all)).min(rows) * row_len)
    }

    /// Encodes the next chunk with its length before it.
    ///
    /// # Errors
    /// As [`Chooser::encode`].
    pub fn encode(&self, bytes: &[u8], chooser: &mut Chooser) -> Result<Vec<u8>> {
        let mut shape = self.axes.clone();
        if let Some(first) = shape.first_mut().filter(|_| self.row_len > 0 && !bytes.is_empty()) {
            *first = bytes.len() / self.row_len;
        }
        if self.layout == Layout::ColumnMajor {
            shape.reverse();
        }
        let view = ArrayView { dtype: self.dtype, order: self.order, layout: self.layout, shape: &shape, bytes };
        let chunk = chooser.encode(&view)?;
        let mut out = Vec::with_capacity(chunk.len() + 4);
        put_varint(&mut out, chunk.len() as u64);
        out.extend(chunk);
        Ok(out)
    }
}

/// Encodes an array as a file.
///
/// # Errors
/// As [`Chooser::encode`]; a row of the slowest axis may be too long for a chunk.
pub fn encode(view: &ArrayView<'_>, chooser: &mut Chooser, chunk_len: usize) -> Result<Vec<u8>> {
    let cut = Cut::new(view.dtype, view.order, view.layout, view.shape, chunk_len)?;
    let mut out = cut.header();
    let mut rest = view.bytes;
    for len in cut.lengths() {
        let short = || Error::misuse("the array has fewer bytes than its shape says");
        let (bytes, behind) = rest.split_at_checked(len).ok_or_else(short)?;
        out.extend(cut.encode(bytes, chooser)?);
        rest = behind;
    }
    if !rest.is_empty() {
        return Err(Error::misuse("the array has more bytes than its shape says"));
    }
    Ok(out)
}

/// The chunks of a file, not decoded.
pub struct Chunks<'a> {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Order of their bytes.
    pub order: ByteOrder,
    /// Order of the axes in memory.
    pub layout: Layout,
    /// Lengths of the axes, as the user sees them.
    pub shape: Vec<usize>,
    /// Rows of the slowest axis in each chunk but the last.
    pub rows: usize,
    reader: Reader<'a>,
}

/// Reads the header of a file.
///
/// # Errors
/// It is no such file, or of a newer version.
pub fn chunks(file: &[u8]) -> Result<Chunks<'_>> {
    let mut reader = Reader(file);
    let magic = reader.take(MAGIC.len())?;
    if magic[..4] != MAGIC[..4] {
        return Err(Error::corrupt("this is no file of chunks: it does not begin with NrAS"));
    }
    if magic[4] != MAGIC[4] {
        return Err(Error::unsupported(format!(
            "version {} of files of chunks is unknown: it is damaged, or of a newer version of Narrows",
            magic[4]
        )));
    }
    let (dtype, order, layout, flags, shape) = read_shape(&mut reader)?;
    let rows = reader.count(usize::MAX, "rows of a chunk")?;
    if flags & 1 != 0 || rows == 0 {
        return Err(Error::corrupt("the header of the file has no meaning"));
    }
    Ok(Chunks { dtype, order, layout, shape, rows, reader })
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.reader.0.is_empty() {
            return None;
        }
        let next = self.reader.count(usize::MAX, "length of a chunk").and_then(|len| self.reader.take(len));
        if next.is_err() {
            self.reader.0 = &[];
        }
        Some(next)
    }
}

impl Chunks<'_> {
    /// Bytes that are still to be read: after the header, or after the chunks so far.
    pub fn unread(&self) -> usize {
        self.reader.0.len()
    }

    fn slowest_first(&self, shape: &[usize]) -> Vec<usize> {
        let mut axes = shape.to_vec();
        if self.layout == Layout::ColumnMajor {
            axes.reverse();
        }
        axes
    }
}

/// Decodes a file whose chunks have at most `raw_max` bytes each, handing on the bytes of each chunk.
///
/// # Errors
/// A chunk is damaged or does not belong to the array, or what `sink` says.
pub fn decode<'a>(mut chunks: Chunks<'a>, raw_max: usize, mut sink: impl FnMut(&Array) -> Result<()>) -> Result<()> {
    let axes = chunks.slowest_first(&chunks.shape);
    let single = axes.is_empty() || axes.contains(&0);
    let mut left = if single { 1 } else { axes[0] };
    let mut coder = Coder::new();
    while let Some(chunk) = chunks.next() {
        let array = coder.decode(chunk?, raw_max)?;
        let mut expected = axes.clone();
        let rows = chunks.rows.min(left);
        if !single {
            expected[0] = rows;
        }
        let same = (array.dtype, array.order, array.layout) == (chunks.dtype, chunks.order, chunks.layout);
        if left == 0 || !same || chunks.slowest_first(&array.shape) != expected {
            return Err(Error::corrupt("a chunk does not belong to the array of its file"));
        }
        sink(&array)?;
        left -= if single { 1 } else { rows };
    }
    if left > 0 {
        return Err(Error::truncated("the file ends before its array does"));
    }
    Ok(())
}
