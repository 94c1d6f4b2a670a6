//! Steps of a pipeline: their numbers, what they take and give, and how they stand in a header.

use narrows::{Error, Result};

use crate::words::{Kind, Reader, put_varint};

pub(crate) mod lorenzo;
pub(crate) mod mask;
pub(crate) mod rank;
pub(crate) mod split;
pub(crate) mod unpack;

/// Most steps before a back end.
pub const STEPS_MAX: usize = 3;

/// Most columns of a record: each has a header and contexts of its own.
pub const COLUMNS_MAX: usize = 1024;

/// One reversible step, or the one that quantises.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// Byte 0 of all words, then byte 1 of all, and so on.
    Split,
    /// Columns of records, with these widths in bytes.
    Columns(Vec<u16>),
    /// Differences along axes: bit 0 of `axes` is the last one.
    Lorenzo {
        /// The axes, as bits.
        axes: u8,
        /// Whether differences become unsigned, small ones first.
        zigzag: bool,
    },
    /// Indices into the list of distinct values.
    Rank,
    /// Two 12-bit numbers from three bytes.
    Unpack12,
    /// Places of one value, which then no longer matters.
    Mask,
    /// Multiples of a width.
    Linear,
    /// Multiples of a width, of the logarithm, of another width.
    LogLinear,
    /// The leading bits of a float.
    Bits,
    /// Quantised differences from values between already known ones.
    Interpolate,
}

impl Step {
    /// Whether the step loses information within a bound.
    pub fn is_lossy(&self) -> bool {
        matches!(self, Self::Linear | Self::LogLinear | Self::Bits | Self::Interpolate)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Split => out.push(1),
            Self::Columns(widths) => {
                out.push(2);
                put_varint(out, widths.len() as u64);
                widths.iter().for_each(|&w| put_varint(out, w.into()));
            }
            Self::Lorenzo { axes, zigzag } => out.extend([3, axes | u8::from(*zigzag) << 4]),
            Self::Rank => out.push(4),
            Self::Unpack12 => out.push(5),
            Self::Mask => out.push(6),
            Self::Linear => out.push(7),
            Self::LogLinear => out.push(8),
            Self::Bits => out.push(9),
            Self::Interpolate => out.push(10),
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match reader.byte()? {
            1 => Self::Split,
            2 => {
                let count = reader.count(COLUMNS_MAX, "columns")?;
                if count < 2 {
                    return Err(Error::corrupt("columns: fewer than 2"));
                }
                let mut widths = Vec::with_capacity(count);
                for _ in 0..count {
                    match reader.count(u16::MAX.into(), "width of a column")? {
                        0 => return Err(Error::corrupt("a column without bytes")),
                        width => widths.push(width as u16),
                    }
                }
                Self::Columns(widths)
            }
            3 => match reader.byte()? {
                b if b != 0 && b < 32 => Self::Lorenzo { axes: b & 15, zigzag: b >= 16 },
                _ => return Err(Error::corrupt("differences along no axis")),
            },
            4 => Self::Rank,
            5 => Self::Unpack12,
            6 => Self::Mask,
            7 => Self::Linear,
            8 => Self::LogLinear,
            9 => Self::Bits,
            10 => Self::Interpolate,
            other => {
                return Err(Error::unsupported(format!(
                    "step {other} is unknown: the chunk is damaged, or of a newer version of Narrows"
                )));
            }
        })
    }
}

/// What stands between two steps: how many words of which kind, and their axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stage {
    pub kind: Kind,
    /// Bytes of a word: 1, 2, 4 or 8.
    pub width: usize,
    /// Slowest axis first; the product is the number of words.
    pub axes: Vec<usize>,
}

impl Stage {
    pub(crate) fn len(&self) -> usize {
        // Axes beside one of length 0 may be huge.
        if self.axes.contains(&0) { 0 } else { self.axes.iter().product() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len() * self.width
    }

    fn flat(kind: Kind, width: usize, len: usize) -> Self {
        Self { kind, width, axes: vec![len] }
    }

    /// What a step gives, if it takes this. `detail` is the number of values of a rank, the phase of 12-bit
    /// numbers.
    pub(crate) fn after(&self, step: &Step, detail: usize) -> Option<Self> {
        let quantised = if self.width == 8 { 8 } else { 4 };
        Some(match step {
            Step::Split if self.width > 1 => Self::flat(Kind::Unsigned, 1, self.bytes()),
            Step::Lorenzo { axes, zigzag } if axes >> squeeze(&self.axes, 4).len() == 0 && self.len() > 0 => {
                let kind = if *zigzag { Kind::Unsigned } else { Kind::Signed };
                Self { kind, ..self.clone() }
            }
            Step::Rank if self.len() > 0 => {
                Self { kind: Kind::Unsigned, width: if detail <= 256 { 1 } else { 2 }, axes: self.axes.clone() }
            }
            Step::Unpack12 if self.width == 1 => Self::flat(Kind::Unsigned, 2, unpack::words_of(self.len(), detail)),
            Step::Mask if self.len() > 0 => self.clone(),
            Step::Linear if self.len() > 0 => Self { kind: Kind::Signed, width: quantised, axes: self.axes.clone() },
            Step::LogLinear | Step::Bits if self.len() > 0 && self.kind == Kind::Float => {
                Self { kind: Kind::Signed, width: quantised, axes: self.axes.clone() }
            }
            Step::Interpolate if self.len() > 0 && self.kind == Kind::Float => {
                Self::flat(Kind::Signed, quantised, self.len())
            }
            _ => return None,
        })
    }

    /// The stages of the columns, if they fit, and the bytes of a row.
    pub(crate) fn columns(&self, widths: &[u16]) -> Option<(Vec<Self>, usize)> {
        let row: usize = widths.iter().map(|&w| usize::from(w)).sum();
        let (&last, outer) = self.axes.split_last()?;
        let axes = if last * self.width == row {
            outer.to_vec()
        } else if self.axes.len() == 1 && self.bytes().is_multiple_of(row) {
            vec![self.bytes() / row]
        } else {
            return None;
        };
        let rows = Self { kind: self.kind, width: 1, axes };
        if rows.len().checked_mul(row)? != self.bytes() {
            return None;
        }
        let column = |&w: &u16| match usize::from(w) {
            width if width == self.width => Self { width, ..rows.clone() },
            width @ (1 | 2 | 4 | 8) => Self { kind: Kind::Unsigned, width, ..rows.clone() },
            other => {
                let axes = rows.axes.iter().copied().chain([other]).collect();
                Self { kind: Kind::Unsigned, width: 1, axes }
            }
        };
        Some((widths.iter().map(column).collect(), row))
    }
}

/// Removes axes of length 1 and joins the first ones until at most `max` are left; at least one is.
pub(crate) fn squeeze(axes: &[usize], max: usize) -> Vec<usize> {
    let mut squeezed: Vec<usize> = axes.iter().copied().filter(|&d| d != 1).collect();
    while squeezed.len() > max {
        let first = squeezed.remove(0);
        squeezed[0] *= first;
    }
    if squeezed.is_empty() {
        squeezed.push(1);
    }
    squeezed
}
