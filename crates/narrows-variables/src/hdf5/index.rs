//! Indexes of chunks: where each chunk of a dataset is stored.

use narrows::{Error, Result};

use super::{Hdf5, array, tree};
use crate::budget::Visits;
use crate::fields::Fields;
use crate::place::{Index, IndexForm};
use crate::variable::{Chunk, Place, Variable};

/// Levels of a B-tree of version 1, above what 2^64 chunks need.
const LEVELS_MAX: u8 = 32;

impl Index {
    /// A B-tree of version 1.
    pub(super) fn tree(at: Option<u64>) -> Place {
        at.map_or(Place::Nowhere, |at| {
            Place::Hdf5(Self { at, form: IndexForm::Tree1, max: Vec::new(), is_edge_raw: false })
        })
    }

    /// Reads what a layout of version 4 or 5 says after the shape of the chunks.
    pub(super) fn read(file: &Hdf5, fields: &mut Fields<'_>, flags: u8, max: Vec<u64>) -> Result<Place> {
        let form = match fields.u8()? {
            1 => {
                let filtered = match flags & 2 {
                    0 => None,
                    _ => Some((file.length(fields)?, fields.u32()?)),
                };
                IndexForm::Single { filtered }
            }
            2 => IndexForm::Implicit,
            3 => {
                fields.skip(1)?;
                IndexForm::Fixed
            }
            4 => {
                fields.skip(5)?;
                IndexForm::Extensible
            }
            5 => {
                fields.skip(6)?;
                IndexForm::Tree2
            }
            kind => return Err(Error::unsupported(format!("an index of chunks of kind {kind}"))),
        };
        let at = file.offset(fields)?;
        Ok(at.map_or(Place::Nowhere, |at| Place::Hdf5(Self { at, form, max, is_edge_raw: flags & 1 != 0 })))
    }

    /// All chunks that are stored and within the array.
    pub(crate) fn chunks(&self, file: &Hdf5, variable: &Variable) -> Result<Vec<Chunk>> {
        let chunk = variable.chunk.as_deref().unwrap_or_default();
        let raw_len = variable.chunk_raw_len().map_or(0, |len| len as u64);
        let mut out = Vec::new();
        let mut held = file.bytes.budget().held();
        let mut add = |scaled: &[u64], at: u64, len: u64, skipped: u32| {
            let origin: Vec<u64> = scaled.iter().zip(chunk).map(|(s, c)| s.saturating_mul(*c)).collect();
            // An array that has been shrunk may have chunks outside.
            if origin.iter().zip(&variable.shape).any(|(o, n)| o >= n) {
                return Ok(());
            }
            let is_edge = origin.iter().zip(chunk).zip(&variable.shape).any(|((o, c), n)| o.saturating_add(*c) > *n);
            let skipped = if self.is_edge_raw && is_edge { u32::MAX } else { skipped };
            held.add(Chunk::memory(chunk.len()))?;
            out.push(Chunk { origin, len, skipped, at, key: None });
            Ok(())
        };
        let is_filtered = !variable.filters.is_empty();
        match &self.form {
            IndexForm::Tree1 => old_tree(file, self.at, chunk, &mut add)?,
            IndexForm::Single { filtered } => {
                let (len, mask) = filtered.unwrap_or((raw_len, 0));
                add(&vec![0; chunk.len()], self.at, len, mask)?;
            }
            IndexForm::Implicit => {
                let grid = Grid::new(&self.max, chunk, None)?;
                // All chunks are there, one after the other.
                let count = file.bytes.len.saturating_sub(self.at) / raw_len.max(1);
                for i in 0..grid.count().min(count) {
                    add(&grid.scaled(i), self.at + i * raw_len, raw_len, 0)?;
                }
            }
            IndexForm::Tree2 => {
                let rank = chunk.len();
                tree::records(file, self.at, &mut |record| {
                    let mut fields = Fields(record);
                    let at = file.offset(&mut fields)?;
                    let (len, mask) = if is_filtered {
                        let size_len = record.len().saturating_sub(file.offset_len() + 4 + 8 * rank);
                        (fields.uint(size_len)?, fields.u32()?)
                    } else {
                        (raw_len, 0)
                    };
                    let scaled = (0..rank).map(|_| fields.uint(8)).collect::<Result<Vec<_>>>()?;
                    at.map_or(Ok(()), |at| add(&scaled, at, len, mask))
                })?;
            }
            IndexForm::Fixed | IndexForm::Extensible => {
                let is_fixed = self.form == IndexForm::Fixed;
                let unlimited = self.max.iter().position(|n| *n == u64::MAX).filter(|_| !is_fixed);
                let grid = Grid::new(&self.max, chunk, unlimited)?;
                let mut element = |i: u64, entry: &[u8]| {
                    let mut fields = Fields(entry);
                    let Some(at) = file.offset(&mut fields)? else { return Ok(()) };
                    let (len, mask) = if is_filtered {
                        (fields.uint(entry.len().saturating_sub(file.offset_len() + 4))?, fields.u32()?)
                    } else {
                        (raw_len, 0)
                    };
                    add(&grid.scaled(i), at, len, mask)
                };
                if is_fixed {
                    array::fixed(file, self.at, &mut element)?;
                } else {
                    array::extensible(file, self.at, &mut element)?;
                }
            }
        }
        Ok(out)
    }
}

/// Chunks along each axis, numbered with the last axis fastest; an axis without limit counts as the first.
struct Grid {
    counts: Vec<u64>,
    unlimited: Option<usize>,
}

impl Grid {
    fn new(max: &[u64], chunk: &[u64], unlimited: Option<usize>) -> Result<Self> {
        if max.len() != chunk.len() {
            return Err(Error::corrupt("chunks have no shape that fits the array"));
        }
        let counts = max.iter().zip(chunk).map(|(n, c)| n.div_ceil((*c).max(1)).max(1)).collect();
        Ok(Self { counts, unlimited })
    }

    fn count(&self) -> u64 {
        self.counts.iter().fold(1, |a, b| a.saturating_mul(*b))
    }

    fn scaled(&self, mut number: u64) -> Vec<u64> {
        let mut out = vec![0; self.counts.len()];
        for axis in (0..out.len()).rev().filter(|axis| Some(*axis) != self.unlimited) {
            out[axis] = number % self.counts[axis];
            number /= self.counts[axis];
        }
        if let Some(axis) = self.unlimited {
            out[axis] = number;
        } else if number > 0 {
            // Beyond the array: as an origin it is outside, and left out.
            if let Some(first) = out.first_mut() {
                *first = u64::MAX;
            }
        }
        out
    }
}

type Add<'a> = dyn FnMut(&[u64], u64, u64, u32) -> Result<()> + 'a;

fn old_tree(file: &Hdf5, root: u64, chunk: &[u64], add: &mut Add<'_>) -> Result<()> {
    let key_len = 8 + 8 * (chunk.len() + 1);
    let step = key_len + file.offset_len();
    let mut seen = Visits::new(file.bytes.budget());
    seen.is_first(root)?;
    let mut waiting = vec![(root, LEVELS_MAX)];
    while let Some((at, above)) = waiting.pop() {
        let head = file.bytes.structure(at, 8)?;
        let mut fields = Fields(&head);
        fields.expect(b"TREE")?;
        let (kind, level, count) = (fields.u8()?, fields.u8()?, fields.u16()?);
        if kind != 1 || level >= above {
            return Err(Error::corrupt("the index of the chunks has nodes that do not belong to it"));
        }
        let node = file.bytes.structure(at + 8 + 2 * file.offset_len() as u64, u64::from(count) * step as u64)?;
        for entry in node.chunks_exact(step) {
            let mut fields = Fields(entry);
            let (len, mask) = (fields.u32()?.into(), fields.u32()?);
            let origin = (0..=chunk.len()).map(|_| fields.uint(8)).collect::<Result<Vec<_>>>()?;
            let Some(child) = file.offset(&mut fields)? else { continue };
            if level > 0 {
                if !seen.is_first(child)? {
                    return Err(Error::corrupt("the index of the chunks leads in circles"));
                }
                waiting.push((child, level));
            } else {
                let scaled: Vec<u64> = origin.iter().zip(chunk).map(|(o, c)| o / (*c).max(1)).collect();
                add(&scaled, child, len, mask)?;
            }
        }
    }
    Ok(())
}
