//! Files of chunks: one array as consecutive chunks along its slowest axis (docs/format.md, 14.8).

use narrows::{Error, Result};

use crate::choose::Chooser;
use crate::chunk::{Coder, read_shape, write_shape};
use crate::view::{Array, ArrayView, ByteOrder, Dtype, Layout};
use crate::words::{Reader, put_varint};

/// First bytes of a file.
pub const MAGIC: [u8; 5] = [b'N', b'r', b'A', b'S', 1];

/// Bytes of a chunk if nobody says otherwise: 16 KiB lose 7 %, more than 256 KiB gain 1 to 2 %.
pub const CHUNK_LEN: usize = 256 << 10;

/// Rows of the slowest axis that a chunk of about `chunk_len` bytes has.
pub fn rows_of(dtype: Dtype, slowest_first: &[usize], chunk_len: usize) -> usize {
    let Some((&rows, inner)) = slowest_first.split_first() else { return 1 };
    let row = inner.iter().fold(dtype.bytes(), |product, &d| product.saturating_mul(d));
    (chunk_len / row.max(1)).clamp(1, rows.max(1))
}

/// Encodes an array as a file.
///
/// # Errors
/// As [`Chooser::encode`]; a row of the slowest axis may be too long for a chunk.
pub fn encode(view: &ArrayView<'_>, chooser: &mut Chooser, chunk_len: usize) -> Result<Vec<u8>> {
    let axes = view.slowest_first();
    let mut out = MAGIC.to_vec();
    write_shape(view.dtype, view.order, view.layout, &axes, 0, &mut out);
    let rows = rows_of(view.dtype, &axes, chunk_len);
    put_varint(&mut out, rows as u64);
    let mut put = |view: &ArrayView<'_>| -> Result<()> {
        let chunk = chooser.encode(view)?;
        put_varint(&mut out, chunk.len() as u64);
        out.extend(chunk);
        Ok(())
    };
    if axes.is_empty() || view.bytes.is_empty() {
        put(view)?;
        return Ok(out);
    }
    let row = view.bytes.len() / axes[0];
    if row * axes[0] != view.bytes.len() {
        return Err(Error::misuse("the array's bytes and shape differ"));
    }
    for bytes in view.bytes.chunks(rows * row) {
        let mut shape = axes.clone();
        shape[0] = bytes.len() / row;
        if view.layout == Layout::ColumnMajor {
            shape.reverse();
        }
        put(&ArrayView { shape: &shape, bytes, ..*view })?;
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
    rows: usize,
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
        return Err(Error::unsupported(format!("version {} of such files is unknown; upgrade", magic[4])));
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
