//! Cutting boxes out of arrays, and putting axes in order.

/// Elements between neighbours along each axis, the last one fastest.
fn strides(shape: &[u64]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for i in (0..shape.len().saturating_sub(1)).rev() {
        out[i] = out[i + 1] * shape[i + 1] as usize;
    }
    out
}

/// Counts through a shape, the last axis fastest. The last axis is left at 0 if `rows` says so.
pub(crate) fn each_place(shape: &[u64], mut sink: impl FnMut(&[u64])) {
    if shape.contains(&0) {
        return;
    }
    let mut place = vec![0; shape.len()];
    loop {
        sink(&place);
        let Some(axis) = (0..shape.len()).rev().find(|i| place[*i] + 1 < shape[*i]) else { return };
        place[axis] += 1;
        place[axis + 1..].fill(0);
    }
}

/// Elements stored with axes in another order, the slowest first, as `shape` has them. The bytes are as
/// many as the shape says.
pub(crate) fn to_row_major(bytes: Vec<u8>, width: usize, shape: &[u64], axes: &[usize]) -> Vec<u8> {
    if axes.is_sorted() || bytes.is_empty() {
        return bytes;
    }
    let stored: Vec<u64> = axes.iter().map(|a| shape[*a]).collect();
    let stored_strides = strides(&stored);
    let mut by_axis = vec![0; shape.len()];
    for (stride, axis) in stored_strides.iter().zip(axes) {
        by_axis[*axis] = *stride;
    }
    let mut out = Vec::with_capacity(bytes.len());
    each_place(shape, |place| {
        let from = place.iter().zip(&by_axis).map(|(p, s)| *p as usize * s).sum::<usize>() * width;
        out.extend_from_slice(&bytes[from..from + width]);
    });
    out
}

/// A box within an array of elements in memory.
pub(crate) struct Within<'a> {
    /// Shape of the array.
    pub(crate) shape: &'a [u64],
    /// First element of the box.
    pub(crate) from: &'a [u64],
}

/// Copies a box from one array to another; both have it within their shapes.
pub(crate) fn copy(size: &[u64], width: usize, source: (&[u8], Within<'_>), target: (&mut [u8], Within<'_>)) {
    let (bytes, source) = source;
    let (out, target) = target;
    let (Some(last), from, to) = (size.last(), strides(source.shape), strides(target.shape)) else {
        out[..width].copy_from_slice(&bytes[..width]);
        return;
    };
    let run = *last as usize * width;
    let mut rows = size.to_vec();
    rows[size.len() - 1] = 1;
    if *last == 0 {
        return;
    }
    each_place(&rows, |place| {
        let at = |within: &Within<'_>, strides: &[usize]| {
            place.iter().zip(within.from).zip(strides).map(|((p, f), s)| (p + f) as usize * s).sum::<usize>() * width
        };
        let (a, b) = (at(&source, &from), at(&target, &to));
        out[b..b + run].copy_from_slice(&bytes[a..a + run]);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_cut_and_axes_put_in_order() {
        // 2 x 3, stored with the first axis fastest.
        assert_eq!(to_row_major(vec![0, 3, 1, 4, 2, 5], 1, &[2, 3], &[1, 0]), [0, 1, 2, 3, 4, 5]);
        let mut out = [9; 4];
        let source = Within { shape: &[2, 3], from: &[0, 1] };
        copy(&[2, 2], 1, (&[0, 1, 2, 3, 4, 5], source), (&mut out, Within { shape: &[2, 2], from: &[0, 0] }));
        assert_eq!(out, [1, 2, 4, 5]);
        let mut one = [0];
        copy(&[], 1, (&[7], Within { shape: &[], from: &[] }), (&mut one, Within { shape: &[], from: &[] }));
        assert_eq!(one, [7]);
    }
}
