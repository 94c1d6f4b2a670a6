//! Fields of numbers as pictures: one cell for each number, or for several.

use std::fmt::Write;

use crate::axis::brief;
use crate::colour;
use crate::png::{self, Palette};
use crate::svg::{self, WIDTH};

/// Top of the colour key, below the title, and height of the key.
const KEY: f64 = 36.0;
const KEY_HEIGHT: f64 = 12.0;
const KEY_CELLS: usize = 40;
const KEY_CELL: f64 = 6.0;
const EDGE: f64 = 14.0;
/// Least and greatest height of the field.
const HEIGHTS: (f64, f64) = (120.0, 520.0);
/// Cells along each side; more are joined, since a page with dozens of fields must stay short.
const CELLS_MAX: usize = 480;
/// The colour of what has no value: none.
const GAP: u8 = 255;
/// Colours beside that one.
const COLOURS: usize = 254;

/// A field of numbers, the first row at the top. What is NaN stays empty.
#[derive(Debug, Clone)]
pub struct Raster {
    title: String,
    columns: usize,
    values: Vec<f64>,
    /// Greatest magnitude of colours that part at 0.
    limit: Option<f64>,
}

impl Raster {
    /// A field whose rows have so many columns, from light (least) to dark (greatest).
    pub fn new(title: &str, columns: usize, values: &[f64]) -> Self {
        Self { title: title.into(), columns: columns.max(1), values: values.to_vec(), limit: None }
    }

    /// Colours part at 0, blue below and red above, and are full at this magnitude. Joined cells then show
    /// what is furthest from 0, not the mean.
    #[must_use]
    pub fn around_zero(mut self, limit: f64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The picture as SVG.
    pub fn svg(&self) -> String {
        let (columns, rows, values) = self.joined();
        let finite = values.iter().filter(|v| v.is_finite());
        let (mut low, mut high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
        if let Some(limit) = self.limit {
            (low, high) = (-limit, limit);
        }
        let share = |v: f64| if high > low { ((v - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        let palette = palette(self.limit.is_some());
        let number = |v: f64| if v.is_finite() { (share(v) * COLOURS as f64).round() as u8 } else { GAP };
        let cells: Vec<u8> = values.iter().map(|v| number(*v)).collect();
        let width = WIDTH - 2.0 * EDGE;
        let height = (width * rows as f64 / columns as f64).clamp(HEIGHTS.0, HEIGHTS.1).round();
        let top = KEY + KEY_HEIGHT + 10.0;
        let mut out = svg::open(&self.title, top + height + EDGE);
        if low <= high {
            key(&mut out, low, high, &palette);
        }
        let address = png::address(columns, rows, &cells, &palette);
        let _ = writeln!(
            out,
            "<image x=\"{EDGE}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" \
             style=\"image-rendering:pixelated\" href=\"{address}\"/>\n\
             <rect x=\"{EDGE}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" fill=\"none\" class=\"np-axis\"/>"
        );
        out + "</svg>\n"
    }

    /// Columns, rows and numbers, joined as far as there are too many.
    fn joined(&self) -> (usize, usize, Vec<f64>) {
        let rows = self.values.len() / self.columns;
        let (right, down) = (self.columns.div_ceil(CELLS_MAX).max(1), rows.div_ceil(CELLS_MAX).max(1));
        let (out_columns, out_rows) = (self.columns.div_ceil(right), rows.div_ceil(down));
        let mut out = Vec::with_capacity(out_columns * out_rows);
        for row in (0..rows).step_by(down) {
            for column in (0..self.columns).step_by(right) {
                let part = (row..rows.min(row + down)).flat_map(|r| {
                    let from = r * self.columns;
                    &self.values[from + column..from + self.columns.min(column + right)]
                });
                let part = part.copied().filter(|v| v.is_finite());
                out.push(if self.limit.is_some() {
                    part.max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN)
                } else {
                    let (sum, count) = part.fold((0.0, 0.0), |(s, n), v| (s + v, n + 1.0));
                    sum / count
                });
            }
        }
        (out_columns, out_rows.max(1), out)
    }
}

fn palette(is_around_zero: bool) -> Palette {
    let mut out = [[0; 4]; 256];
    for (i, colour) in out.iter_mut().enumerate().take(COLOURS + 1) {
        let share = i as f64 / COLOURS as f64;
        *colour = if is_around_zero { colour::heat_rgba(2.0 * share - 1.0) } else { colour::scale_rgba(share) };
    }
    out
}

/// Draws the colour key between the least and the greatest value.
fn key(out: &mut String, low: f64, high: f64, palette: &Palette) {
    let mut x = EDGE;
    let number = |out: &mut String, x: &mut f64, value: f64| {
        let words = brief(value);
        svg::text(out, (*x, KEY + 10.0), "start", "np-soft np-small", &words);
        *x += svg::small_width(&words) + 6.0;
    };
    number(out, &mut x, low);
    for i in 0..KEY_CELLS {
        let [r, g, b, a] = palette[i * COLOURS / (KEY_CELLS - 1)];
        let opacity = f64::from(a) / 255.0;
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {KEY}h{KEY_CELL}v{KEY_HEIGHT}h-{KEY_CELL}z\" fill=\"#{r:02x}{g:02x}{b:02x}\" \
             fill-opacity=\"{opacity:.3}\" shape-rendering=\"crispEdges\"/>"
        );
        x += KEY_CELL;
    }
    x += 6.0;
    number(out, &mut x, high);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_cells_show_the_mean_or_the_worst() {
        let mut values = vec![1.0; 2 * CELLS_MAX];
        values[1] = -5.0;
        let raster = Raster::new("t", 2 * CELLS_MAX, &values);
        let (columns, rows, mean) = raster.joined();
        assert_eq!((columns, rows, mean[0], mean[1]), (CELLS_MAX, 1, -2.0, 1.0));
        assert_eq!(raster.around_zero(5.0).joined().2[..2], [-5.0, 1.0]);
    }

    #[test]
    fn any_field_is_a_picture() {
        for values in [&[][..], &[f64::NAN; 4], &[1.0; 4], &[f64::INFINITY, 1.0, 2.0, -1.0]] {
            for raster in [Raster::new("a<b", 2, values), Raster::new("t", 2, values).around_zero(0.0)] {
                let svg = raster.svg();
                assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
                assert!(svg.contains("data:image/png;base64,iVBORw0KGgo"));
            }
        }
    }
}
