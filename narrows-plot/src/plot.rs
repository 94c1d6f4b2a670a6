//! Lines, points and marks between two axes.

use std::fmt::Write;

use crate::svg::{self, FONT, WIDTH};
use crate::{Axis, Colour};

const HEIGHT: f64 = 420.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 20.0;
const BOTTOM: f64 = 54.0;
/// Where the legend begins, below the title.
const LEGEND: f64 = 36.0;

/// A picture with an x and a y axis.
#[derive(Debug, Clone)]
pub struct Plot {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    marks: Vec<(String, Colour, (f64, f64))>,
}

#[derive(Debug, Clone)]
struct Series {
    name: String,
    colour: Colour,
    points: Vec<(f64, f64)>,
    is_line: bool,
}

impl Plot {
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new(), marks: Vec::new() }
    }

    /// A line through points in this order. Without a name it has no place in the legend.
    #[must_use]
    pub fn line(self, name: &str, colour: Colour, points: &[(f64, f64)]) -> Self {
        self.add(name, colour, points, true)
    }

    /// Points that are not joined.
    #[must_use]
    pub fn points(self, name: &str, colour: Colour, points: &[(f64, f64)]) -> Self {
        self.add(name, colour, points, false)
    }

    /// A point with its name beside it.
    #[must_use]
    pub fn mark(mut self, name: &str, colour: Colour, at: (f64, f64)) -> Self {
        self.marks.push((name.into(), colour, at));
        self
    }

    fn add(mut self, name: &str, colour: Colour, points: &[(f64, f64)], is_line: bool) -> Self {
        self.series.push(Series { name: name.into(), colour, points: points.to_vec(), is_line });
        self
    }

    /// The picture. What an axis cannot show is left out.
    pub fn svg(&self) -> String {
        let shown = |p: &&(f64, f64)| self.x.can_show(p.0) && self.y.can_show(p.1);
        let all = || self.series.iter().flat_map(|s| &s.points).chain(self.marks.iter().map(|m| &m.2)).filter(shown);
        let (x, y) = (self.x.fit(all().map(|p| p.0)), self.y.fit(all().map(|p| p.1)));
        let mut out = svg::open(&self.title, HEIGHT);
        let named = self.series.iter().filter(|s| !s.name.is_empty());
        let names: Vec<_> = named.map(|s| (s.name.as_str(), s.colour, s.is_line)).collect();
        let top = LEGEND + svg::legend(&mut out, &names, LEGEND) + 8.0;
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let place = |p: &(f64, f64)| (LEFT + x.at(p.0) * (right - LEFT), bottom - y.at(p.1) * (bottom - top));

        for (value, number) in x.ticks() {
            let at = LEFT + x.at(value) * (right - LEFT);
            let _ = writeln!(out, "<path d=\"M{at:.1} {top:.1}V{bottom:.1}\" class=\"np-grid\"/>");
            svg::text(&mut out, (at, bottom + 18.0), "middle", "np-soft", &number);
        }
        for (value, number) in y.ticks() {
            let at = bottom - y.at(value) * (bottom - top);
            let _ = writeln!(out, "<path d=\"M{LEFT} {at:.1}H{right:.1}\" class=\"np-grid\"/>");
            svg::text(&mut out, (LEFT - 7.0, at + 4.0), "end", "np-soft", &number);
        }
        let _ = writeln!(out, "<path d=\"M{LEFT} {top:.1}V{bottom:.1}H{right:.1}\" fill=\"none\" class=\"np-axis\"/>");
        svg::text(&mut out, ((LEFT + right) / 2.0, HEIGHT - 12.0), "middle", "np-ink", &self.x.name);
        let (name, middle) = (svg::escape(&self.y.name), (top + bottom) / 2.0);
        let _ = writeln!(
            out,
            "<text transform=\"translate(18 {middle:.1}) rotate(-90)\" text-anchor=\"middle\" class=\"np-ink\">{name}</text>"
        );

        for series in &self.series {
            let points: Vec<_> = series.points.iter().filter(shown).map(place).collect();
            let css = series.colour.css();
            if series.is_line {
                let path: Vec<_> = points.iter().map(|p| format!("{:.1} {:.1}", p.0, p.1)).collect();
                let dash = series.colour.dash();
                if !path.is_empty() {
                    let path = path.join("L");
                    let _ = writeln!(
                        out,
                        "<path d=\"M{path}\" fill=\"none\" stroke=\"{css}\" stroke-width=\"2.2\" stroke-linejoin=\"round\"{dash}/>"
                    );
                }
            } else {
                for (px, py) in points {
                    let _ = writeln!(out, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\" fill=\"{css}\"/>");
                }
            }
        }
        let marks: Vec<_> = self.marks.iter().filter(|m| shown(&&m.2)).map(|m| (m, place(&m.2))).collect();
        let mut taken: Vec<Rect> = marks.iter().map(|(_, at)| Rect::around(*at)).collect();
        for ((name, colour, _), at) in &marks {
            let _ = writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4.5\" fill=\"{}\" class=\"np-halo\"/>",
                at.0,
                at.1,
                colour.css()
            );
            let (rect, from, anchor) = free_place(*at, svg::width(name), &taken, (LEFT, top, right, bottom));
            taken.push(rect);
            svg::text(&mut out, from, anchor, "np-ink np-name", name);
        }
        out + "</svg>\n"
    }
}

#[derive(Debug, Clone, Copy)]
struct Rect {
    x: (f64, f64),
    y: (f64, f64),
}

impl Rect {
    fn around(at: (f64, f64)) -> Self {
        Self { x: (at.0 - 5.0, at.0 + 5.0), y: (at.1 - 5.0, at.1 + 5.0) }
    }

    fn overlap(&self, other: &Self) -> f64 {
        let along = |a: (f64, f64), b: (f64, f64)| (a.1.min(b.1) - a.0.max(b.0)).max(0.0);
        along(self.x, other.x) * along(self.y, other.y)
    }

    fn outside(&self, frame: (f64, f64, f64, f64)) -> f64 {
        (frame.0 - self.x.0).max(0.0)
            + (self.x.1 - frame.2).max(0.0)
            + (frame.1 - self.y.0).max(0.0)
            + (self.y.1 - frame.3).max(0.0)
    }
}

/// Where a name beside a mark covers least: its box, its anchor, and how it stands there.
fn free_place(
    at: (f64, f64),
    width: f64,
    taken: &[Rect],
    frame: (f64, f64, f64, f64),
) -> (Rect, (f64, f64), &'static str) {
    let beside = [(8.0, 4.0, "start"), (-8.0, 4.0, "end"), (0.0, -9.0, "middle"), (0.0, 18.0, "middle")];
    let apart = [(9.0, -8.0, "start"), (9.0, 16.0, "start"), (-9.0, -8.0, "end"), (-9.0, 16.0, "end")];
    let far = [(0.0, -24.0, "middle"), (0.0, 33.0, "middle"), (14.0, -22.0, "start"), (14.0, 31.0, "start")];
    let placed = beside.into_iter().chain(apart).chain(far).map(|(dx, dy, anchor)| {
        let (x, y) = (at.0 + dx, at.1 + dy);
        let left = match anchor {
            "start" => x,
            "end" => x - width,
            _ => x - width / 2.0,
        };
        (Rect { x: (left, left + width), y: (y - FONT + 2.0, y + 3.0) }, (x, y), anchor)
    });
    let cost = |r: &Rect| taken.iter().map(|t| r.overlap(t)).sum::<f64>() + 1000.0 * r.outside(frame);
    placed.min_by(|a, b| cost(&a.0).total_cmp(&cost(&b.0))).expect("there are a dozen places")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_is_left_out() {
        let svg = Plot::new("t", Axis::log("x, s"), Axis::log("y, s"))
            .line("a", Colour::Main, &[(1.0, 1.0), (0.0, 2.0), (f64::NAN, 1.0), (10.0, 5.0)])
            .points("b", Colour::Other(0), &[(2.0, 2.0), (-1.0, 2.0)])
            .line("none", Colour::Limit, &[])
            .mark("<xz>", Colour::Muted, (3.0, 3.0))
            .svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("&lt;xz&gt;") && svg.contains("x, s") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn names_of_near_marks_do_not_cover_each_other() {
        let frame = (0.0, 0.0, 760.0, 420.0);
        let marks = [(100.0, 100.0), (104.0, 101.0), (108.0, 99.0), (756.0, 100.0)];
        let mut taken: Vec<Rect> = marks.iter().map(|m| Rect::around(*m)).collect();
        for mark in marks {
            let (rect, ..) = free_place(mark, 60.0, &taken, frame);
            assert!(taken[marks.len()..].iter().all(|t| rect.overlap(t) == 0.0), "{rect:?} on {taken:?}");
            assert_eq!(rect.outside(frame), 0.0);
            taken.push(rect);
        }
    }
}
