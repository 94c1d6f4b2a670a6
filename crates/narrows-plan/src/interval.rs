//! A value with the interval that it lies in.

use std::ops::{Add, Div, Mul, Sub};

/// A value and its interval, `low <= value <= high`. The operations take the worst combination of
/// the ends, which is exact where each input of an expression occurs in it once: the models are
/// written that way.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The value itself.
    pub value: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// A value that is known exactly.
    pub const fn exact(value: f64) -> Self {
        Self { low: value, value, high: value }
    }

    /// A value with its interval; ends on the wrong side are moved to the value.
    pub fn new(low: f64, value: f64, high: f64) -> Self {
        Self { low: low.min(value), value, high: high.max(value) }
    }

    /// Applies a function that grows with its argument.
    #[must_use]
    pub fn growing(self, f: impl Fn(f64) -> f64) -> Self {
        Self { low: f(self.low), value: f(self.value), high: f(self.high) }
    }

    /// 1 over the value.
    #[must_use]
    pub fn inverse(self) -> Self {
        Self { low: 1.0 / self.high, value: 1.0 / self.value, high: 1.0 / self.low }
    }

    /// The smaller of two values, end by end.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), value: self.value.min(other.value), high: self.high.min(other.high) }
    }

    /// At least `least`, end by end.
    #[must_use]
    pub fn at_least(self, least: f64) -> Self {
        self.growing(|v| v.max(least))
    }

    /// Half of the width, relative to the value; 0 if that says nothing.
    pub fn spread(self) -> f64 {
        let half = (self.high - self.value).max(self.value - self.low);
        let share = half / self.value.abs();
        if share.is_finite() { share } else { 0.0 }
    }

    /// Whether the intervals have a point in common.
    pub fn meets(self, other: Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

impl From<f64> for Interval {
    fn from(value: f64) -> Self {
        Self::exact(value)
    }
}

impl<T: Into<Self>> Add<T> for Interval {
    type Output = Self;
    fn add(self, other: T) -> Self {
        let o = other.into();
        Self { low: self.low + o.low, value: self.value + o.value, high: self.high + o.high }
    }
}

impl<T: Into<Self>> Sub<T> for Interval {
    type Output = Self;
    fn sub(self, other: T) -> Self {
        let o = other.into();
        Self { low: self.low - o.high, value: self.value - o.value, high: self.high - o.low }
    }
}

/// Of values that are not negative, as all of the models' are.
impl<T: Into<Self>> Mul<T> for Interval {
    type Output = Self;
    fn mul(self, other: T) -> Self {
        let o = other.into();
        Self { low: self.low * o.low, value: self.value * o.value, high: self.high * o.high }
    }
}

/// Of values that are not negative.
impl<T: Into<Self>> Div<T> for Interval {
    type Output = Self;
    fn div(self, other: T) -> Self {
        let o = other.into();
        Self { low: self.low / o.high, value: self.value / o.value, high: self.high / o.low }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_ends_meet() {
        let a = Interval::new(1.0, 2.0, 4.0);
        assert_eq!(a + 1.0, Interval::new(2.0, 3.0, 5.0));
        assert_eq!(a / a, Interval { low: 0.25, value: 1.0, high: 4.0 });
        assert_eq!(Interval::exact(5.0) - a, Interval::new(1.0, 3.0, 4.0));
        assert_eq!(a.inverse(), Interval::new(0.25, 0.5, 1.0));
        assert_eq!((a.spread(), Interval::exact(0.0).spread()), (1.0, 0.0));
        assert!(a.meets(Interval::exact(4.0)) && !a.meets(Interval::exact(4.1)));
    }

    #[test]
    fn ends_are_never_on_the_wrong_side() {
        assert_eq!(Interval::new(3.0, 2.0, 1.0), Interval::exact(2.0));
    }
}
