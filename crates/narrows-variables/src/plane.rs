//! A plane of a variable, for pictures: the last two axes in the middle of the others.

use narrows::Result;

use crate::number::values;
use crate::reader::{Reader, chunks_of};
use crate::store::Store;
use crate::variable::Variable;

/// Longest side of a plane. Beyond that, its middle is shown.
const SIDE_MAX: u64 = 2048;
/// Longest row of an array with one axis.
const ROW_MAX: u64 = 1 << 20;

/// From this magnitude on, numbers are taken for fill values beside smaller ones: 1e20 in climate models,
/// 9.97e36 by default in NetCDF. Not every file says which are, and one of them hides all else.
const FILL_MIN: f64 = 1e19;

/// Numbers of a plane; what is no number or a fill value is NaN.
#[derive(Debug, Clone, PartialEq)]
pub struct Plane {
    /// First element along each axis.
    pub origin: Vec<u64>,
    /// 1 if the variable has one axis.
    pub rows: usize,
    /// Length of the last axis, or of its middle.
    pub columns: usize,
    /// Row by row. Of complex numbers the real parts.
    pub values: Vec<f64>,
}

/// Where a plane is, by shape alone, so that original and copy have the same one.
fn place(shape: &[u64]) -> Option<(Vec<u64>, Vec<u64>)> {
    let rank = shape.len();
    if rank == 0 || shape.contains(&0) {
        return None;
    }
    let mut origin: Vec<u64> = shape.iter().map(|n| n / 2).collect();
    let mut size = vec![1; rank];
    let side_max = if rank == 1 { ROW_MAX } else { SIDE_MAX };
    for axis in rank.saturating_sub(2)..rank {
        size[axis] = shape[axis].min(side_max);
        origin[axis] = (shape[axis] - size[axis]) / 2;
    }
    Some((origin, size))
}

/// Reads the plane of a variable; `None` if its elements are no numbers, or it has none.
///
/// # Errors
/// A chunk is damaged or cannot be decoded here.
pub fn plane(store: &Store, variable: &Variable) -> Result<Option<Plane>> {
    let Some((origin, size)) = place(&variable.shape).filter(|_| variable.element.is_numeric()) else {
        return Ok(None);
    };
    let chunks = chunks_of(store, variable)?;
    let bytes = Reader::new(store, variable, &chunks).read(&origin, &size)?;
    let mut numbers = values(variable, &bytes);
    let columns = size[size.len() - 1] as usize;
    let rows = if size.len() > 1 { size[size.len() - 2] as usize } else { 1 };
    if numbers.len() == 2 * rows * columns {
        numbers = numbers.into_iter().step_by(2).collect();
    }
    let fill = values(variable, &variable.fill).first().copied().filter(|f| *f != 0.0);
    let has_small = numbers.iter().any(|v| v.abs() < FILL_MIN);
    for v in &mut numbers {
        if !v.is_finite() || Some(*v) == fill || has_small && v.abs() >= FILL_MIN {
            *v = f64::NAN;
        }
    }
    Ok(Some(Plane { origin, rows, columns, values: numbers }))
}
