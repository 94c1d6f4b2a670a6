//! An axis: its name with the unit, its scale, its ticks.

/// Limit on ticks, so that their numbers do not touch.
const TICKS_MAX: usize = 12;

/// An axis of a plot: name, scale and optional range.
#[derive(Debug, Clone)]
pub struct Axis {
    pub(crate) name: String,
    kind: Kind,
    range: Option<(f64, f64)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Linear,
    Log,
    Names(Vec<String>),
}

impl Axis {
    /// A linear axis. `name` includes the unit: `Link rate, Mbit/s`.
    pub fn linear(name: &str) -> Self {
        Self { name: name.into(), kind: Kind::Linear, range: None }
    }

    /// A logarithmic axis. Values that are not positive are not shown.
    pub fn log(name: &str) -> Self {
        Self { name: name.into(), kind: Kind::Log, range: None }
    }

    /// A categorical axis: the first name is at 0, the next one at 1. Other positions are not
    /// shown.
    pub fn names<N: AsRef<str>>(name: &str, names: &[N]) -> Self {
        let names = names.iter().map(|n| n.as_ref().to_owned()).collect();
        Self { name: name.into(), kind: Kind::Names(names), range: None }
    }

    /// Extends the axis to include these two values, whatever the data.
    #[must_use]
    pub fn with(mut self, low: f64, high: f64) -> Self {
        self.range = Some((low, high));
        self
    }

    pub(crate) fn is_log(&self) -> bool {
        self.kind == Kind::Log
    }

    pub(crate) fn can_show(&self, value: f64) -> bool {
        match &self.kind {
            Kind::Linear => value.is_finite(),
            Kind::Log => value.is_finite() && value > 0.0,
            Kind::Names(names) => value > -0.5 && value < names.len() as f64 - 0.5,
        }
    }

    /// The scale that fits the data, which may be empty.
    pub(crate) fn fit(&self, data: impl Iterator<Item = f64>) -> Scale {
        if let Kind::Names(names) = &self.kind {
            let high = names.len().max(1) as f64 - 0.5;
            return Scale { is_log: false, low: -0.5, high, names: Some(names.clone()) };
        }
        let wanted = self.range.into_iter().flat_map(|r| [r.0, r.1]);
        let all = data.chain(wanted).filter(|v| self.can_show(*v)).map(|v| self.place(v));
        let (mut low, mut high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if high - low < 1e-9 * high.abs().max(1e-9) {
            (low, high) = (low - 0.5, high + 0.5);
        }
        // Add a margin, but not below zero if the data do not go below it.
        let air = 0.03 * (high - low);
        let floor = if !self.is_log() && low >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
        if self.range.is_none_or(|r| self.place(r.0) > low) {
            low = (low - air).max(floor);
        }
        if self.range.is_none_or(|r| self.place(r.1) < high) {
            high += air;
        }
        Scale { is_log: self.is_log(), low, high, names: None }
    }

    fn place(&self, value: f64) -> f64 {
        if self.is_log() { value.log10() } else { value }
    }
}

/// An axis with fixed ends.
pub(crate) struct Scale {
    is_log: bool,
    low: f64,
    high: f64,
    pub(crate) names: Option<Vec<String>>,
}

impl Scale {
    /// Position of a value: 0 to 1 within the axis.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = if self.is_log { value.log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    /// Position of a value, clamped to the ends of the axis.
    pub(crate) fn held(&self, value: f64) -> f64 {
        let at = self.at(value);
        // A value without a logarithm is below every logarithmic axis.
        if at.is_nan() { 0.0 } else { at.clamp(0.0, 1.0) }
    }

    /// Values of the ticks with their labels.
    pub(crate) fn ticks(&self) -> Vec<(f64, String)> {
        if let Some(names) = &self.names {
            return names.iter().enumerate().map(|(i, n)| (i as f64, n.clone())).collect();
        }
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
            // Over less than a factor of two the ticks of a linear axis are more helpful.
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

/// A number in its shortest readable form: `0.05`, `10`, `25 000`.
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

/// A number with about three digits, for comparison with others: `0.97`, `12.9`, `1403`.
pub(crate) fn brief(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 0.1 => {
            let steps = 10f64.powf(1.0 - size.log10().floor());
            number((value * steps).round() / steps)
        }
        // The limits are those of rounding: 9.995 becomes 10.0.
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        // More digits than a number has would be shown.
        size if size >= 1e15 => format!("{value:.2e}"),
        _ => number(value.round()),
    }
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

    #[test]
    fn names_have_their_places_and_nothing_lies_between_them() {
        let axis = Axis::names("x", &["a", "b"]);
        let scale = axis.fit([7.0].into_iter());
        assert_eq!(scale.ticks(), [(0.0, "a".to_owned()), (1.0, "b".to_owned())]);
        assert_eq!((scale.at(0.0), scale.at(1.0)), (0.25, 0.75));
        assert!(axis.can_show(1.0) && !axis.can_show(2.0) && !axis.can_show(f64::NAN));
        assert!(Axis::names::<&str>("x", &[]).fit([].into_iter()).ticks().is_empty());
    }

    #[test]
    fn what_lies_beyond_an_axis_is_held_at_its_end() {
        let scale = Axis::log("x").fit([1.0, 10.0].into_iter());
        assert_eq!([0.0, -1.0, 1e9].map(|v| scale.held(v)), [0.0, 0.0, 1.0]);
    }

    #[test]
    fn brief_numbers_keep_about_three_digits() {
        let brief = [0.0, 0.0123, 0.9, 9.999, 12.94, 99.99, 1403.2, -0.25, 1.2e-7, 1.00000002e20].map(brief);
        assert_eq!(brief, ["0", "0.012", "0.90", "10.0", "12.9", "100", "1403", "-0.25", "1.2e-7", "1.00e20"]);
    }
}
