//! Timelines: strips of coloured pieces, one above the other.

use std::fmt::Write;

use crate::svg::{self, WIDTH};
use crate::{Axis, Colour};

const RIGHT: f64 = 20.0;
const ROW: f64 = 46.0;
const BAR: f64 = 34.0;
const LEGEND: f64 = 36.0;

/// A picture with one strip for each compared item; every kind of piece has its colour.
#[derive(Debug, Clone)]
pub struct Strips {
    title: String,
    x: Axis,
    kinds: Vec<(String, Colour)>,
    rows: Vec<(String, Vec<Piece>)>,
}

/// From, to, and the index of the kind.
type Piece = (f64, f64, usize);

impl Strips {
    /// A picture without kinds and strips.
    pub fn new(title: &str, x: Axis) -> Self {
        Self { title: title.into(), x, kinds: Vec::new(), rows: Vec::new() }
    }

    /// Adds a kind of piece.
    #[must_use]
    pub fn kind(mut self, name: &str, colour: Colour) -> Self {
        self.kinds.push((name.into(), colour));
        self
    }

    /// Adds a strip of pieces (from, to, index of the kind). Pieces of an unknown kind are left
    /// out.
    #[must_use]
    pub fn strip(mut self, name: &str, pieces: &[Piece]) -> Self {
        self.rows.push((name.into(), pieces.to_vec()));
        self
    }

    /// The picture as SVG.
    pub fn svg(&self) -> String {
        let pieces = || self.rows.iter().flat_map(|r| &r.1);
        let ends = pieces().flat_map(|p| [p.0, p.1]).collect::<Vec<_>>();
        let (low, high) = ends.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
        let axis = if low < high { self.x.clone().with(low, high) } else { self.x.clone() };
        let x = axis.fit(ends.into_iter());
        let used: Vec<_> = self.kinds.iter().enumerate().filter(|(k, _)| pieces().any(|p| p.2 == *k)).collect();
        let names: Vec<_> = used.iter().map(|(_, (name, colour))| (name.as_str(), *colour, false)).collect();
        let mut body = String::new();
        let top = LEGEND + svg::legend(&mut body, &names, LEGEND) + 4.0;
        let bottom = top + ROW * self.rows.len() as f64;
        let left = 24.0 + self.rows.iter().map(|r| svg::width(&r.0)).fold(40.0, f64::max);
        let place = |v: f64| left + x.at(v) * (WIDTH - RIGHT - left);
        for (i, (name, pieces)) in self.rows.iter().enumerate() {
            let y = top + ROW * i as f64;
            svg::text(&mut body, (left - 10.0, y + BAR / 2.0 + 4.0), "end", "np-ink", name);
            // One path per kind keeps the file small with thousands of pieces.
            for (kind, (_, colour)) in &used {
                let mut path = String::new();
                for (from, to) in join(pieces, *kind) {
                    let (a, b) = (place(from), place(to));
                    let _ = write!(path, "M{a:.2} {y:.1}H{b:.2}V{:.1}H{a:.2}Z", y + BAR);
                }
                if !path.is_empty() {
                    let _ = writeln!(body, "<path d=\"{path}\" fill=\"{}\"/>", colour.css());
                }
            }
        }
        for (value, number) in x.ticks() {
            let at = place(value);
            let _ = writeln!(body, "<path d=\"M{at:.1} {bottom:.1}v5\" class=\"np-axis\"/>");
            svg::text(&mut body, (at, bottom + 20.0), "middle", "np-soft", &number);
        }
        svg::text(&mut body, ((left + WIDTH - RIGHT) / 2.0, bottom + 42.0), "middle", "np-ink", &self.x.name);
        svg::open(&self.title, bottom + 54.0) + &body + "</svg>\n"
    }
}

/// The pieces of a kind, with adjacent ones merged.
fn join(pieces: &[Piece], kind: usize) -> Vec<(f64, f64)> {
    let mut out: Vec<(f64, f64)> = Vec::new();
    for (from, to, _) in pieces.iter().filter(|p| p.2 == kind && p.0.is_finite() && p.1.is_finite()) {
        match out.last_mut() {
            Some(last) if last.1 == *from => last.1 = *to,
            _ => out.push((*from, *to)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_a_kind_are_one_piece_and_unused_kinds_are_not_named() {
        let svg = Strips::new("t", Axis::linear("Position, MB"))
            .kind("store", Colour::Scale(0.0))
            .kind("never", Colour::Scale(0.5))
            .kind("xz", Colour::Scale(1.0))
            .strip("oracle", &[(0.0, 1.0, 0), (1.0, 2.0, 0), (2.0, 3.0, 2), (3.0, 4.0, 9)])
            .svg();
        assert!(svg.contains("store") && svg.contains("xz") && !svg.contains("never"));
        assert_eq!(svg.matches('Z').count(), 2);
        assert!(Strips::new("t", Axis::linear("x")).strip("empty", &[]).svg().ends_with("</svg>\n"));
    }
}
