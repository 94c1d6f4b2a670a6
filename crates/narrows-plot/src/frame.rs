//! The frame around the data: grid, ticks, and the names of both axes.

use std::fmt::Write;

use crate::Axis;
use crate::axis::Scale;
use crate::marks::Edges;
use crate::svg::{self, WIDTH};

pub(crate) const HEIGHT: f64 = 420.0;
const RIGHT: f64 = 20.0;
/// Width of the y axis' name and the gaps beside its ticks.
const LEFT: f64 = 38.0;
/// Minimum left margin, so that pictures with short ticks are aligned.
const LEFT_MIN: f64 = 72.0;
/// Maximum width of the ticks at the left, as the data need the rest.
const TICKS_MAX: f64 = 180.0;
const BOTTOM: f64 = 54.0;
/// Bottom margin if the x axis has no name.
const BOTTOM_BARE: f64 = 30.0;
const NAME_ROW: f64 = 13.0;
/// Gap between two names of a row.
const GAP: f64 = 3.0;
/// Shortest cut name, in letters, that still means something.
const LETTERS_MIN: usize = 4;

pub(crate) struct Frame<'a> {
    x_axis: &'a Axis,
    y_axis: &'a Axis,
    x: Scale,
    y: Scale,
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
    /// Layout of the names below the x axis.
    names: Names,
}

impl<'a> Frame<'a> {
    /// A frame that begins at the height `top`.
    pub(crate) fn new(x: (&'a Axis, Scale), y: (&'a Axis, Scale), top: f64) -> Self {
        let wide = |name: &String| if y.1.names.is_some() { svg::small_width(name) } else { svg::width(name) };
        let ticks = y.1.ticks().iter().map(|t| wide(&t.1)).fold(0.0, f64::max);
        let (left, right) = ((LEFT + ticks.min(TICKS_MAX)).max(LEFT_MIN), WIDTH - RIGHT);
        let names = x.1.names.as_deref().unwrap_or_default();
        let names = Names::fit(names, (right - left) / names.len().max(1) as f64);
        let below = if x.0.name.is_empty() { BOTTOM_BARE } else { BOTTOM };
        let bottom = HEIGHT - below - NAME_ROW * (names.rows - 1) as f64;
        Self { x_axis: x.0, y_axis: y.0, x: x.1, y: y.1, left, top, right, bottom, names }
    }

    pub(crate) fn edges(&self) -> Edges {
        (self.left, self.top, self.right, self.bottom)
    }

    pub(crate) fn place(&self, point: (f64, f64)) -> (f64, f64) {
        (self.x_at(self.x.at(point.0)), self.y_at(self.y.at(point.1)))
    }

    /// y of a value, clamped to the edges.
    pub(crate) fn held_y(&self, value: f64) -> f64 {
        self.y_at(self.y.held(value))
    }

    /// Width per name; on an axis of numbers, width divided by `count`.
    pub(crate) fn slot(&self, count: usize) -> f64 {
        let count = self.x.names.as_ref().map_or(count, Vec::len);
        (self.right - self.left) / count.max(1) as f64
    }

    pub(crate) fn name_at(&self, x: f64) -> Option<&str> {
        self.x.names.as_ref()?.get(x as usize).map(String::as_str)
    }

    pub(crate) fn draw(&self, out: &mut String) {
        let Self { left, top, right, bottom, .. } = *self;
        let (x_names, y_names) = (self.x.names.is_some(), self.y.names.is_some());
        for (i, (value, words)) in self.x.ticks().into_iter().enumerate() {
            let at = self.x_at(self.x.at(value));
            if x_names {
                self.names.draw(out, (i, &words), (at, bottom + 17.0));
            } else {
                let _ = writeln!(out, "<path d=\"M{at:.1} {top:.1}V{bottom:.1}\" class=\"np-grid\"/>");
                svg::text(out, (at, bottom + 18.0), "middle", "np-soft", &words);
            }
        }
        for (value, words) in self.y.ticks() {
            let at = self.y_at(self.y.at(value));
            if y_names {
                let words = cut(&words, TICKS_MAX);
                svg::text(out, (left - 7.0, at + 4.0), "end", "np-soft np-small", &words);
            } else {
                let _ = writeln!(out, "<path d=\"M{left:.1} {at:.1}H{right:.1}\" class=\"np-grid\"/>");
                svg::text(out, (left - 7.0, at + 4.0), "end", "np-soft", &words);
            }
        }
        let _ =
            writeln!(out, "<path d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" class=\"np-axis\"/>");
        svg::text(out, ((left + right) / 2.0, HEIGHT - 12.0), "middle", "np-ink", &self.x_axis.name);
        let (name, middle) = (svg::escape(&self.y_axis.name), (top + bottom) / 2.0);
        let _ = writeln!(
            out,
            "<text transform=\"translate(18 {middle:.1}) rotate(-90)\" text-anchor=\"middle\" class=\"np-ink\">{name}</text>"
        );
    }

    fn x_at(&self, share: f64) -> f64 {
        self.left + share * (self.right - self.left)
    }

    fn y_at(&self, share: f64) -> f64 {
        self.bottom - share * (self.bottom - self.top)
    }
}

/// Layout of names side by side. With decreasing width they become small, then stand in two rows,
/// then are cut, then are left out.
struct Names {
    is_small: bool,
    rows: usize,
    every: usize,
    width_max: f64,
}

impl Names {
    fn fit(names: &[String], slot: f64) -> Self {
        let longest = |width: fn(&str) -> f64| names.iter().map(|n| width(n)).fold(0.0, f64::max) + GAP;
        if longest(svg::width) <= slot {
            return Self { is_small: false, rows: 1, every: 1, width_max: slot };
        }
        let longest = longest(svg::small_width);
        let least = longest.min(svg::small_width("m") * LETTERS_MIN as f64 + GAP);
        let (rows, every) = if longest <= slot {
            (1, 1)
        } else if least <= 2.0 * slot {
            (2, 1)
        } else {
            (1, (least / slot).ceil() as usize)
        };
        Self { is_small: true, rows, every, width_max: slot * (rows * every) as f64 - GAP }
    }

    fn draw(&self, out: &mut String, (i, name): (usize, &str), (x, y): (f64, f64)) {
        if !i.is_multiple_of(self.every) {
            return;
        }
        if !self.is_small {
            return svg::text(out, (x, y), "middle", "np-soft", name);
        }
        let name = cut(name, self.width_max);
        // Keep names at the edges inside the picture.
        let half = svg::small_width(&name) / 2.0;
        let x = x.min(WIDTH - 2.0 - half).max(2.0 + half);
        svg::text(out, (x, y + NAME_ROW * (i % self.rows) as f64), "middle", "np-soft np-small", &name);
    }
}

/// The name, cut to the width.
fn cut(name: &str, width: f64) -> String {
    if svg::small_width(name) <= width {
        return name.to_owned();
    }
    let letters = (width / svg::small_width("m")) as usize;
    let kept: String = name.chars().take(letters.saturating_sub(1).max(1)).collect();
    kept + "\u{2026}"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(names: &[&str], slot: f64) -> Vec<(String, String)> {
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        let fit = Names::fit(&names, slot);
        let mut out = String::new();
        names.iter().enumerate().for_each(|(i, n)| fit.draw(&mut out, (i, n), (100.0 + slot * i as f64, 10.0)));
        let between = |line: &str, a: &str, b: &str| line.split_once(a).unwrap().1.split_once(b).unwrap().0.to_owned();
        out.lines().map(|l| (between(l, " y=\"", "\""), between(l, ">", "<"))).collect()
    }

    #[test]
    fn names_below_an_axis_share_two_rows_are_cut_and_thinned() {
        let one = drawn(&["text", "logs"], 60.0);
        assert_eq!(one, [("10.0".into(), "text".into()), ("10.0".into(), "logs".into())]);
        let two = drawn(&["a-rather-long-name", "another-long-name", "b"], 70.0);
        assert_eq!(two.iter().map(|n| n.0.as_str()).collect::<Vec<_>>(), ["10.0", "23.0", "10.0"]);
        assert_eq!(two[0].1, "a-rather-long-name");
        let cut = drawn(&["a-rather-long-name", "b"], 30.0);
        assert!(cut[0].1.ends_with('\u{2026}') && cut[0].1.len() < 15 && cut[1].1 == "b", "{cut:?}");
        let many: Vec<String> = (0..200).map(|i| i.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!((20..60).contains(&drawn(&many, 3.3).len()));
    }
}
