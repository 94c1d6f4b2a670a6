//! Points with names beside them.

use std::fmt::Write;

use crate::Colour;
use crate::svg::{self, FONT};

/// Edges of the data area: left, top, right, bottom.
pub(crate) type Edges = (f64, f64, f64, f64);

/// Draws the marks, each name where it covers the least of points and other names.
pub(crate) fn draw(out: &mut String, marks: &[(&str, Colour, (f64, f64))], edges: Edges) {
    let mut taken: Vec<Rect> = marks.iter().map(|m| Rect::around(m.2)).collect();
    for (name, colour, at) in marks {
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4.5\" fill=\"{}\" class=\"np-halo\"/>",
            at.0,
            at.1,
            colour.css()
        );
        let (rect, from, anchor) = free_place(*at, svg::width(name), &taken, edges);
        taken.push(rect);
        svg::text(out, from, anchor, "np-ink np-name", name);
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

    fn outside(&self, edges: Edges) -> f64 {
        (edges.0 - self.x.0).max(0.0)
            + (self.x.1 - edges.2).max(0.0)
            + (edges.1 - self.y.0).max(0.0)
            + (self.y.1 - edges.3).max(0.0)
    }
}

/// The place beside a mark where a name covers the least: its box, its position and its text
/// anchor.
fn free_place(at: (f64, f64), width: f64, taken: &[Rect], edges: Edges) -> (Rect, (f64, f64), &'static str) {
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
    let cost = |r: &Rect| taken.iter().map(|t| r.overlap(t)).sum::<f64>() + 1000.0 * r.outside(edges);
    placed.min_by(|a, b| cost(&a.0).total_cmp(&cost(&b.0))).expect("there are a dozen places")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_near_marks_do_not_cover_each_other() {
        let edges = (0.0, 0.0, 760.0, 420.0);
        let marks = [(100.0, 100.0), (104.0, 101.0), (108.0, 99.0), (756.0, 100.0)];
        let mut taken: Vec<Rect> = marks.iter().map(|m| Rect::around(*m)).collect();
        for mark in marks {
            let (rect, ..) = free_place(mark, 60.0, &taken, edges);
            assert!(taken[marks.len()..].iter().all(|t| rect.overlap(t) == 0.0), "{rect:?} on {taken:?}");
            assert_eq!(rect.outside(edges), 0.0);
            taken.push(rect);
        }
    }
}
