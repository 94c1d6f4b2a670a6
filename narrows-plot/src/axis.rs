//! An axis: its name with the unit, its scale, its ticks.

/// Ticks at most, so that their numbers do not touch.
const TICKS_MAX: usize = 12;

#[derive(Debug, Clone)]
pub struct Axis {
    pub(crate) name: String,
    is_log: bool,
    range: Option<(f64, f64)>,
}

impl Axis {
    /// `name` says the unit: `Link rate, Mbit/s`.
    pub fn linear(name: &str) -> Self {
        Self { name: name.into(), is_log: false, range: None }
    }

    /// Values that are not positive are not shown.
    pub fn log(name: &str) -> Self {
        Self { name: name.into(), is_log: true, range: None }
    }

    /// Shows at least these values, whatever the data.
    #[must_use]
    pub fn with(mut self, low: f64, high: f64) -> Self {
        self.range = Some((low, high));
        self
    }

    pub(crate) fn can_show(&self, value: f64) -> bool {
        value.is_finite() && (!self.is_log || value > 0.0)
    }

    /// The scale for data, which may be none.
    pub(crate) fn fit(&self, data: impl Iterator<Item = f64>) -> Scale {
        let wanted = self.range.into_iter().flat_map(|r| [r.0, r.1]);
        let all = data.chain(wanted).filter(|v| self.can_show(*v)).map(|v| self.place(v));
        let (mut low, mut high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if high - low < 1e-9 * high.abs().max(1e-9) {
            (low, high) = (low - 0.5, high + 0.5);
        }
        // A little air, but not below a zero that the data do not pass.
        let air = 0.03 * (high - low);
        let floor = if !self.is_log && low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
        if self.range.is_none_or(|r| self.place(r.0) > low) {
            low = (low - air).max(floor);
        }
        if self.range.is_none_or(|r| self.place(r.1) < high) {
            high += air;
        }
        Scale { is_log: self.is_log, low, high }
    }

    fn place(&self, value: f64) -> f64 {
        if self.is_log { value.log10() } else { value }
    }
}

/// An axis that knows its ends.
pub(crate) struct Scale {
    is_log: bool,
    low: f64,
    high: f64,
}

impl Scale {
    /// From 0 to 1 within the axis.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = if self.is_log { value.log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    /// Values with their numbers.
    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        let values = if self.is_log { self.log_ticks() } else { self.linear_ticks(self.low, self.high) };
        values.into_iter().map(|v| (v, number(v))).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let (first, last) = (self.low.floor() as i32, self.high.ceil() as i32);
        for steps in [&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0][..], &[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]] {
            let all = (first..=last).flat_map(|e| steps.iter().map(move |s| s * 10f64.powi(e)));
            let ticks: Vec<f64> = all.filter(|v| (0.0..=1.0).contains(&self.at(*v))).collect();
            if (3..=TICKS_MAX).contains(&ticks.len()) {
                return ticks;
            }
            // Less than a factor of two: the marks of a linear axis are the ones that help.
            if ticks.len() < 3 && steps.len() == 9 {
                return self.linear_ticks(10f64.powf(self.low), 10f64.powf(self.high));
            }
        }
        let every = ((last - first) as usize / TICKS_MAX + 1).max(1);
        (first..=last).step_by(every).map(|e| 10f64.powi(e)).filter(|v| (0.0..=1.0).contains(&self.at(*v))).collect()
    }

    fn linear_ticks(&self, low: f64, high: f64) -> Vec<f64> {
        let rough = (high - low) / 6.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * decade).find(|s| *s >= rough).unwrap_or(rough);
        let first = (low / step).ceil();
        // Rounding must not add a tick beyond the end, nor a number such as 0.30000000000000004.
        let count = ((high / step + 1e-9).floor() - first).clamp(0.0, TICKS_MAX as f64) as usize;
        (0..=count).map(|i| (first + i as f64) * step).collect()
    }
}

/// As short as it can be read: `0.05`, `10`, `25 000`.
fn number(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e12).contains(&value.abs()) {
        return format!("{value:e}");
    }
    let text = format!("{value:.5}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, part) = text.split_once('.').map_or((text, None), |(w, p)| (w, Some(p)));
    let digits = whole.trim_start_matches('-');
    if digits.len() < 5 {
        return text.to_owned();
    }
    let mut out = String::from(if whole.len() > digits.len() { "-" } else { "" });
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    part.map_or(out.clone(), |p| format!("{out}.{p}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(axis: &Axis, data: &[f64]) -> Vec<String> {
        axis.fit(data.iter().copied()).ticks().into_iter().map(|t| t.1).collect()
    }

    #[test]
    fn ticks_are_few_round_and_inside() {
        assert_eq!(
            numbers(&Axis::log("x"), &[1.0, 10_000.0]),
            ["1", "3", "10", "30", "100", "300", "1000", "3000", "10\u{202f}000"]
        );
        assert_eq!(numbers(&Axis::linear("x"), &[0.0, 10.0]), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(numbers(&Axis::linear("x"), &[0.1, 0.35]), ["0.1", "0.15", "0.2", "0.25", "0.3", "0.35"]);
        let narrow = numbers(&Axis::log("x"), &[10.0, 12.0]);
        assert!((3..=12).contains(&narrow.len()), "{narrow:?}");
        for data in [&[][..], &[5.0], &[1e-9, 1e12], &[0.0, f64::NAN, -1.0, f64::INFINITY]] {
            for axis in [Axis::log("x"), Axis::linear("x")] {
                let scale = axis.fit(data.iter().copied());
                let ticks = scale.ticks();
                assert!((1..=13).contains(&ticks.len()), "{data:?} {ticks:?}");
                assert!(ticks.iter().all(|t| (-1e-6..=1.0 + 1e-6).contains(&scale.at(t.0))), "{data:?} {ticks:?}");
            }
        }
    }

    #[test]
    fn a_range_that_was_asked_for_is_shown() {
        let scale = Axis::linear("x").with(0.0, 4.0).fit([1.0, 2.0].into_iter());
        assert_eq!((scale.at(0.0), scale.at(4.0)), (0.0, 1.0));
    }
}
