//! Reading any part of a variable.

use std::collections::HashMap;

use narrows::{Error, ErrorKind, Result};
use narrows_array::{Info, RAW_MAX};

use crate::cut::{Within, copy, each_place, to_row_major};
use crate::filter::Decoders;
use crate::store::Store;
use crate::variable::{Chunk, Variable, product};

/// Bytes of decoded chunks that a reader keeps: a part of a variable of another chunk shape touches the
/// same chunks again and again.
const KEPT_MAX: usize = 128 << 20;

/// Reads boxes of a variable. One for each thread.
pub struct Reader<'a> {
    store: &'a Store,
    variable: &'a Variable,
    chunks: &'a HashMap<Vec<u64>, Chunk>,
    decoders: Decoders,
    kept: Vec<Kept>,
}

struct Kept {
    origin: Vec<u64>,
    bytes: Vec<u8>,
    shape: Vec<u64>,
    info: Option<Info>,
}

/// Chunks of a variable by their first element.
///
/// # Errors
/// The index of the chunks is damaged, or the variable cannot be read for another reason.
pub fn chunks_of(store: &Store, variable: &Variable) -> Result<HashMap<Vec<u64>, Chunk>> {
    if let Some(trouble) = &variable.trouble {
        let kind = if variable.is_damaged { ErrorKind::Corrupt } else { ErrorKind::Unsupported };
        return Err(Error::new(kind, trouble.clone()));
    }
    Ok(store.chunks(variable)?.into_iter().map(|chunk| (chunk.origin.clone(), chunk)).collect())
}

impl<'a> Reader<'a> {
    /// A reader of a variable with its chunks, by [`chunks_of`].
    pub fn new(store: &'a Store, variable: &'a Variable, chunks: &'a HashMap<Vec<u64>, Chunk>) -> Self {
        Self { store, variable, chunks, decoders: Decoders::default(), kept: Vec::new() }
    }

    /// Elements of a box within the shape, the last axis fastest, in the order of the variable's bytes.
    ///
    /// # Errors
    /// A chunk is damaged or cannot be decoded here, or the box is too long.
    pub fn read(&mut self, from: &[u64], size: &[u64]) -> Result<Vec<u8>> {
        let width = self.variable.element.bytes;
        let len = product(size).checked_mul(width as u64).and_then(|len| usize::try_from(len).ok());
        let len =
            len.filter(|len| *len <= RAW_MAX).ok_or_else(|| Error::limit("the chunks are too long to be read"))?;
        let Some(chunk) = &self.variable.chunk else { return self.run(from, size, len) };
        let mut out = self.filled(len);
        // Places in the grid of chunks that the box touches.
        let first: Vec<u64> = from.iter().zip(chunk).map(|(f, c)| f / c).collect();
        let counts: Vec<u64> =
            from.iter().zip(size).zip(chunk).map(|((f, n), c)| (f + n).div_ceil(*c) - f / c).collect();
        let mut origins = Vec::new();
        each_place(&counts, |place| {
            origins.push(place.iter().zip(&first).zip(chunk).map(|((p, f), c)| (p + f) * c).collect::<Vec<_>>());
        });
        for origin in origins {
            let Some(kept) = self.chunk(&origin)? else { continue };
            let low: Vec<u64> = origin.iter().zip(from).map(|(o, f)| *o.max(f)).collect();
            let ends = origin.iter().zip(&kept.shape).zip(from.iter().zip(size));
            let part: Vec<u64> =
                ends.zip(&low).map(|(((o, c), (f, n)), l)| (o + c).min(f + n).saturating_sub(*l)).collect();
            let within = |base: &[u64]| low.iter().zip(base).map(|(l, b)| l - b).collect::<Vec<_>>();
            let (a, b) = (within(&origin), within(from));
            let source = (kept.bytes.as_slice(), Within { shape: &kept.shape, from: &a });
            copy(&part, width, source, (&mut out, Within { shape: size, from: &b }));
        }
        Ok(out)
    }

    /// What Narrows says of the chunk with this first element, if it wrote it.
    pub(crate) fn info(&mut self, origin: &[u64]) -> Result<Option<Info>> {
        Ok(self.chunk(origin)?.and_then(|kept| kept.info.clone()))
    }

    fn chunk(&mut self, origin: &[u64]) -> Result<Option<&Kept>> {
        if let Some(i) = self.kept.iter().position(|kept| kept.origin == origin) {
            return Ok(self.kept.get(i));
        }
        let Some(chunk) = self.chunks.get(origin) else { return Ok(None) };
        let (bytes, shape, info) = self.store.elements(self.variable, chunk, &mut self.decoders)?;
        let mut sum = bytes.len();
        // The oldest ones make room.
        let keep = self.kept.iter().rev().take_while(|kept| {
            sum += kept.bytes.len();
            sum <= KEPT_MAX
        });
        let gone = self.kept.len() - keep.count();
        self.kept.drain(..gone);
        self.kept.push(Kept { origin: origin.to_vec(), bytes, shape, info });
        Ok(self.kept.last())
    }

    /// Elements where nothing was written.
    fn filled(&self, len: usize) -> Vec<u8> {
        let fill = &self.variable.fill;
        if fill.iter().all(|b| *b == 0) {
            return vec![0; len];
        }
        fill.iter().copied().cycle().take(len).collect()
    }

    /// A box of an array in one piece.
    fn run(&self, from: &[u64], size: &[u64], len: usize) -> Result<Vec<u8>> {
        if self.chunks.is_empty() {
            return Ok(self.filled(len));
        }
        let variable = self.variable;
        let width = variable.element.bytes as u64;
        let stored = |v: &[u64]| variable.axes.iter().map(|a| v[*a]).collect::<Vec<_>>();
        let (shape, from, part) = (stored(&variable.shape), stored(from), stored(size));
        // Axes from here on are read in one go: whole ones, and a part of the one before.
        let mut split = shape.len();
        while split > 0 && (split == shape.len() || part[split] == shape[split]) {
            split -= 1;
        }
        let run = product(&part[split.min(part.len())..]).saturating_mul(width);
        let mut rows = part.clone();
        rows[split.min(part.len())..].fill(1);
        let mut strides = vec![width; shape.len()];
        for i in (0..shape.len().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1].saturating_mul(shape[i + 1]);
        }
        let mut out = Vec::with_capacity(len.min(1 << 20));
        let mut result = Ok(());
        if len > 0 {
            each_place(&rows, |place| {
                if result.is_ok() {
                    let steps = place.iter().zip(&from).zip(&strides);
                    let at = steps.map(|((p, f), s)| (p + f).saturating_mul(*s)).fold(0, u64::saturating_add);
                    result = self.store.run(variable, at, run).map(|bytes| out.extend(bytes));
                }
            });
        }
        result?;
        Ok(to_row_major(out, variable.element.bytes, size, &variable.axes))
    }
}
