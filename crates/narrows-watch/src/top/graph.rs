//! A small graph: one character for each of the latest values.

/// Levels of a character, from nothing to the whole height.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 9] = [' ', '_', '.', ':', '-', '=', '+', '*', '#'];

/// Draws the latest `width` values against the largest of them; fewer stand at the right.
pub(crate) fn draw(values: impl DoubleEndedIterator<Item = f64>, width: usize, ascii: bool) -> String {
    let levels = if ascii { &ASCII } else { &BLOCKS };
    let mut latest: Vec<f64> = values.rev().take(width).collect();
    latest.reverse();
    let max = latest.iter().copied().filter(|v| v.is_finite()).fold(0.0, f64::max);
    let mut out = " ".repeat(width - latest.len());
    out.extend(latest.into_iter().map(|value| {
        let share = if max > 0.0 && value > 0.0 { (value / max).min(1.0) } else { 0.0 };
        // What is there at all is seen.
        levels[(share * (levels.len() - 1) as f64).ceil() as usize]
    }));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_value_has_the_whole_height() {
        assert_eq!(draw([0.0, 1.0, 4.0, 8.0].into_iter(), 6, false), "   ▁▄█");
        assert_eq!(draw([0.0, 1.0, 4.0, 8.0].into_iter(), 3, true), "_-#");
        assert_eq!(draw([0.0, 0.0].into_iter(), 2, false), "  ");
        assert_eq!(draw([f64::NAN, f64::INFINITY, 1.0].into_iter(), 3, true).chars().count(), 3);
        assert_eq!(draw(std::iter::empty(), 0, true), "");
    }
}
