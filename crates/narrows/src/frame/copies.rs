//! The plan of a copy frame: how its raw bytes are put together of literals and of bytes that came
//! before in the flow (format.md section 3.9).

use super::{put_varint, varint};
use crate::error::{Error, Result};

/// Shortest copy in bytes. It bounds the instructions of a block to one for 32 raw bytes, each of
/// which may cost the reader a cache miss.
pub const COPY_MIN: usize = 32;
/// Longest reach in bytes: distances then fit five bytes, and readers of any host can think of
/// keeping it.
pub const REACH_MAX_HARD: usize = 1 << 30;

/// Longest encodings of a length, and of a distance of up to the longest reach.
const LENGTH_LEN: usize = 4;
const DISTANCE_LEN: usize = 5;

/// One instruction of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// Literals between the copy before, or the begin of the block, and this copy, in bytes.
    pub gap: usize,
    /// Bytes copied.
    pub length: usize,
    /// How far before the place of the copy these bytes begin, in bytes.
    pub distance: u64,
}

/// Lengths of the parts of a copy frame's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanLengths {
    /// Bytes of the plan, at the front of the body.
    pub plan: usize,
    /// Bytes of the literals that the rest of the body decodes to.
    pub literals: usize,
}

/// Appends a plan.
///
/// # Panics
/// In debug builds, if it has no copies.
pub fn put_plan(out: &mut Vec<u8>, copies: impl ExactSizeIterator<Item = Copy>) {
    debug_assert!(copies.len() > 0);
    put_varint(out, copies.len() as u64);
    let mut last = 0;
    for copy in copies {
        put_varint(out, copy.gap as u64);
        put_varint(out, copy.length as u64);
        put_varint(out, if copy.distance == last { 0 } else { copy.distance });
        last = copy.distance;
    }
}

/// Reads the plan at the front of `body` and compares every field with its limits: the block's
/// `raw_len` and the stream's `reach`, both in bytes.
///
/// # Errors
/// `Corrupt` if the plan is malformed or contradicts a limit.
pub fn check_plan(body: &[u8], raw_len: usize, reach: usize) -> Result<PlanLengths> {
    let mut plan = Plan::new(body)?;
    let corrupt = || Error::corrupt("the plan of a copy frame contradicts itself or its limits");
    if plan.left == 0 || plan.left > raw_len / COPY_MIN {
        return Err(corrupt());
    }
    let (mut gaps, mut copied) = (0, 0);
    while let Some(copy) = plan.next()? {
        gaps += copy.gap;
        copied += copy.length;
        // At most `raw_len / COPY_MIN` summands of 28 bits each.
        let fits = gaps + copied <= raw_len && copy.length >= COPY_MIN;
        if !fits || copy.distance < copy.length as u64 || copy.distance > reach as u64 {
            return Err(corrupt());
        }
    }
    Ok(PlanLengths { plan: body.len() - plan.rest.len(), literals: raw_len - copied })
}

/// Reader of a plan, one copy after the other.
pub struct Plan<'a> {
    rest: &'a [u8],
    left: usize,
    distance: u64,
}

impl<'a> Plan<'a> {
    /// The plan at the front of `body`.
    ///
    /// # Errors
    /// `Corrupt` if it is malformed.
    pub fn new(body: &'a [u8]) -> Result<Self> {
        let mut plan = Self { rest: body, left: 0, distance: 0 };
        plan.left = plan.number(LENGTH_LEN)? as usize;
        Ok(plan)
    }

    /// The next copy, `None` after the last.
    ///
    /// # Errors
    /// `Corrupt` if it is malformed.
    #[allow(clippy::should_implement_trait, reason = "an iterator of results would have to be unwrapped twice")]
    pub fn next(&mut self) -> Result<Option<Copy>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let (gap, length) = (self.number(LENGTH_LEN)? as usize, self.number(LENGTH_LEN)? as usize);
        match self.number(DISTANCE_LEN)? {
            0 => {}
            distance => self.distance = distance,
        }
        Ok(Some(Copy { gap, length, distance: self.distance }))
    }

    fn number(&mut self, len_max: usize) -> Result<u64> {
        let (value, len) =
            varint(self.rest, len_max)?.ok_or_else(|| Error::corrupt("a copy frame ends inside its plan"))?;
        self.rest = &self.rest[len..];
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const COPIES: [Copy; 3] = [
        Copy { gap: 0, length: 32, distance: 1000 },
        Copy { gap: 300, length: 5000, distance: 70_000 },
        Copy { gap: 1, length: 64, distance: 70_000 },
    ];

    fn plan(copies: &[Copy]) -> Vec<u8> {
        let mut body = Vec::new();
        put_plan(&mut body, copies.iter().copied());
        body
    }

    #[test]
    fn a_plan_reads_back_and_every_prefix_is_refused() {
        let bytes = plan(&COPIES);
        let body = [&bytes[..], b"literals"].concat();
        let lengths = PlanLengths { plan: bytes.len(), literals: 6000 - 5096 };
        assert_eq!(check_plan(&body, 6000, 1 << 20).unwrap(), lengths);
        let mut read = Plan::new(&body).unwrap();
        let copies: Vec<_> = std::iter::from_fn(|| read.next().unwrap()).collect();
        assert_eq!(copies, COPIES);
        for n in 0..bytes.len() {
            assert_eq!(check_plan(&bytes[..n], 6000, 1 << 20).unwrap_err().kind, ErrorKind::Corrupt, "{n}");
        }
    }

    #[test]
    fn plans_that_lie_are_refused() {
        let allowed = |copy: Copy, raw_len| check_plan(&plan(&[copy]), raw_len, 70_000).is_ok();
        let good = Copy { gap: 10, length: 40, distance: 40 };
        assert!(allowed(good, 50) && !allowed(good, 49), "a copy ends with its block");
        assert!(allowed(Copy { distance: 70_000, ..good }, 50));
        for bad in [
            Copy { distance: 70_001, ..good },
            Copy { distance: 39, ..good },
            Copy { distance: 0, ..good },
            Copy { length: 31, ..good },
            Copy { length: 0, ..good },
            Copy { gap: (1 << 28) - 1, ..good },
        ] {
            assert!(!allowed(bad, 50), "{bad:?}");
        }
        assert!(check_plan(&[0], 100, 70_000).is_err(), "a copy frame has copies");
        // More copies than the block has room for, each of the right length.
        assert!(check_plan(&plan(&[Copy { gap: 0, length: 32, distance: 99 }; 4]), 127, 70_000).is_err());
    }
}
