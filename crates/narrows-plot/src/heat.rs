//! Heat maps.

use std::fmt::Write;

use crate::axis::brief;
use crate::frame::{Frame, HEIGHT};
use crate::{Axis, colour, svg};

/// Top of the colour key, below the title.
const KEY: f64 = 36.0;
const KEY_CELL: f64 = 20.0;
/// Cells of the key on each side of the middle.
const KEY_CELLS: usize = 4;
/// Height that a cell needs to hold a number.
const ROOM: f64 = 14.0;

/// A heat map: columns from the left, rows from the bottom, blue below the middle and red above it.
/// Cells show their values where there is room.
#[derive(Debug, Clone)]
pub struct Heat {
    title: String,
    x: Axis,
    y_name: String,
    columns: usize,
    rows: Vec<(String, Vec<Option<f64>>)>,
    middle: Option<f64>,
}

impl Heat {
    /// A heat map without rows.
    pub fn new<N: AsRef<str>>(title: &str, x_name: &str, columns: &[N], y_name: &str) -> Self {
        let x = Axis::names(x_name, columns);
        let (title, y_name) = (title.into(), y_name.into());
        Self { title, x, y_name, columns: columns.len(), rows: Vec::new(), middle: None }
    }

    /// Adds a row with a value for each column; `None` leaves a cell empty.
    #[must_use]
    pub fn row(mut self, name: &str, values: &[Option<f64>]) -> Self {
        let values = values.iter().take(self.columns).map(|v| v.filter(|v| v.is_finite())).collect();
        self.rows.push((name.into(), values));
        self
    }

    /// Sets the value that has no colour; the default is halfway between the least and the
    /// greatest.
    #[must_use]
    pub fn middle(mut self, value: f64) -> Self {
        self.middle = Some(value);
        self
    }

    /// The picture as SVG.
    pub fn svg(&self) -> String {
        let values = self.rows.iter().flat_map(|r| r.1.iter().flatten());
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
        let middle = self.middle.unwrap_or((low + high) / 2.0);
        let share = |v: f64| {
            let side = if v < middle { middle - low } else { high - middle };
            if side > 0.0 { (v - middle) / side } else { 0.0 }
        };
        let names: Vec<&str> = self.rows.iter().map(|r| r.0.as_str()).collect();
        let y = Axis::names(&self.y_name, &names);
        let mut out = svg::open(&self.title, HEIGHT);
        if low <= high {
            key(&mut out, low, middle, high);
        }
        let none = || std::iter::empty();
        let frame = Frame::new((&self.x, self.x.fit(none())), (&y, y.fit(none())), KEY + KEY_CELL);
        frame.draw(&mut out);
        for (r, (name, values)) in self.rows.iter().enumerate() {
            for (c, value) in values.iter().enumerate() {
                let Some(value) = *value else { continue };
                let (c, r) = (c as f64, r as f64);
                // Whole numbers, so that there is neither a gap nor a seam between cells.
                let (left, bottom) = frame.place((c - 0.5, r - 0.5));
                let (right, top) = frame.place((c + 0.5, r + 0.5));
                let [left, bottom, right, top] = [left, bottom, right, top].map(f64::round);
                let (width, height) = (right - left, bottom - top);
                let words = brief(value);
                let _ = writeln!(
                    out,
                    "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" {} shape-rendering=\"crispEdges\"><title>{}: {words}</title></rect>",
                    colour::heat(share(value)),
                    svg::escape(&[frame.name_at(c).unwrap_or_default(), name].join(", ")),
                );
                if svg::small_width(&words) + 2.0 <= width && height >= ROOM {
                    let at = ((left + right) / 2.0, (top + bottom) / 2.0 + 4.0);
                    svg::text(&mut out, at, "middle", "np-ink np-small", &words);
                }
            }
        }
        out + "</svg>\n"
    }
}

/// Draws the colour key: least, middle and greatest value, as far as there are values on both
/// sides.
fn key(out: &mut String, low: f64, middle: f64, high: f64) {
    let steps = (1..=KEY_CELLS).map(|i| i as f64 / KEY_CELLS as f64);
    let below: Vec<f64> = if low < middle { steps.clone().map(|s| -s).rev().collect() } else { Vec::new() };
    let above: Vec<f64> = if high > middle { steps.collect() } else { Vec::new() };
    let mut x = 14.0;
    let number = |out: &mut String, x: &mut f64, value: f64| {
        let words = brief(value);
        svg::text(out, (*x, KEY + 10.0), "start", "np-soft np-small", &words);
        *x += svg::small_width(&words) + 6.0;
    };
    for (end, cells) in [(low, below), (middle, above)] {
        if cells.is_empty() {
            continue;
        }
        number(out, &mut x, end);
        for share in cells {
            let fill = colour::heat(share);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {KEY}h{KEY_CELL}v12h-{KEY_CELL}z\" {fill} shape-rendering=\"crispEdges\"/>"
            );
            x += KEY_CELL;
        }
        x += 6.0;
    }
    number(out, &mut x, high.max(middle));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_part_at_the_middle_and_gaps_stay_gaps() {
        let svg = Heat::new("t", "cores", &["1", "2"], "ratio")
            .middle(1.0)
            .row("a<b", &[Some(0.5), Some(1.0), Some(9.0)])
            .row("b", &[None, Some(3.0)])
            .row("c", &[Some(f64::NAN)])
            .svg();
        let cells: Vec<&str> = svg.lines().filter(|l| l.contains("</title></rect>")).collect();
        assert_eq!(cells.len(), 3, "{svg}");
        let (low, middle, high) = (colour::heat(-1.0), colour::heat(0.0), colour::heat(1.0));
        for (cell, fill) in cells.iter().zip([low, middle, high]) {
            assert!(cell.contains(&fill), "{cell}");
        }
        assert!(svg.contains("<title>1, a&lt;b: 0.50</title>") && svg.contains(">3.00</text>"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("9.00"));
    }

    #[test]
    fn a_map_without_values_or_with_one_is_a_picture() {
        for row in [&[][..], &[None], &[Some(2.0)]] {
            let svg = Heat::new("t", "x", &["1"], "y").row("a", row).svg();
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
