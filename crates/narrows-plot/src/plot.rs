//! Lines, points, bars and marks between two axes.

use std::fmt::Write;

use crate::axis::brief;
use crate::frame::Frame;
use crate::{Axis, Colour, marks, svg};

/// Top of the legend, below the title.
const LEGEND: f64 = 36.0;
/// Share of the width per name that its bars take.
const GROUP: f64 = 0.88;
/// Half of the stroke at a whisker's end; less where bars are narrow.
const CAP: f64 = 3.0;

/// A picture with an x and a y axis.
#[derive(Debug, Clone)]
pub struct Plot {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    marks: Vec<(String, Colour, (f64, f64))>,
    level: Option<f64>,
}

#[derive(Debug, Clone)]
struct Series {
    name: String,
    colour: Colour,
    points: Vec<(f64, f64)>,
    /// Low and high end of each point that has a whisker.
    ends: Vec<Option<(f64, f64)>>,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Line,
    Points,
    Bars,
}

impl Plot {
    /// A plot without data.
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new(), marks: Vec::new(), level: None }
    }

    /// Adds a line through points in this order. With an empty name it is left out of the legend.
    #[must_use]
    pub fn line(self, name: &str, colour: Colour, points: &[(f64, f64)]) -> Self {
        self.add(name, colour, points, Form::Line)
    }

    /// Adds points that are not joined.
    #[must_use]
    pub fn points(self, name: &str, colour: Colour, points: &[(f64, f64)]) -> Self {
        self.add(name, colour, points, Form::Points)
    }

    /// Adds a bar for each point, beside those of other calls, on an axis of [names](Axis::names).
    /// Bars begin at 0; on a logarithmic axis at the level, or at the end of the axis. They show
    /// their values where there is room.
    #[must_use]
    pub fn bars(self, name: &str, colour: Colour, points: &[(f64, f64)]) -> Self {
        self.add(name, colour, points, Form::Bars)
    }

    /// Sets intervals (low, high) for the points of the series that was added last.
    #[must_use]
    pub fn whiskers(mut self, ends: &[Option<(f64, f64)>]) -> Self {
        if let Some(last) = self.series.last_mut() {
            last.ends = ends.to_vec();
        }
        self
    }

    /// Sets a dashed horizontal line, such as 1 for "as fast as".
    #[must_use]
    pub fn level(mut self, y: f64) -> Self {
        self.level = Some(y);
        self
    }

    /// Adds a point with its name beside it.
    #[must_use]
    pub fn mark(mut self, name: &str, colour: Colour, at: (f64, f64)) -> Self {
        self.marks.push((name.into(), colour, at));
        self
    }

    fn add(mut self, name: &str, colour: Colour, points: &[(f64, f64)], form: Form) -> Self {
        let (name, points) = (name.into(), points.to_vec());
        self.series.push(Series { name, colour, points, ends: Vec::new(), form });
        self
    }

    /// The picture as SVG. Values that an axis cannot show are left out.
    pub fn svg(&self) -> String {
        let marks = self.marks.iter().map(|m| m.2);
        let all: Vec<_> =
            self.series.iter().flat_map(|s| &s.points).copied().chain(marks).filter(|p| self.shows(*p)).collect();
        let ends = self.series.iter().flat_map(|s| &s.ends).flatten().flat_map(|e| [e.0, e.1]);
        let x = self.x.fit(all.iter().map(|p| p.0));
        let y = self.y.fit(all.iter().map(|p| p.1).chain(ends).chain(self.level).chain(self.foot()));
        let mut out = svg::open(&self.title, crate::frame::HEIGHT);
        let named = self.series.iter().filter(|s| !s.name.is_empty());
        let names: Vec<_> = named.map(|s| (s.name.as_str(), s.colour, s.form == Form::Line)).collect();
        let top = LEGEND + svg::legend(&mut out, &names, LEGEND) + 8.0;
        let frame = Frame::new((&self.x, x), (&self.y, y), top);
        frame.draw(&mut out);
        self.draw_bars(&mut out, &frame);
        if let Some(level) = self.level.filter(|l| self.y.can_show(*l)) {
            let (left, at, right) = (frame.left, frame.held_y(level), frame.right);
            let _ =
                writeln!(out, "<path d=\"M{left:.1} {at:.1}H{right:.1}\" class=\"np-axis\" stroke-dasharray=\"4 3\"/>");
        }
        for series in self.series.iter().filter(|s| s.form != Form::Bars) {
            self.draw_points(&mut out, &frame, series);
        }
        let marks: Vec<_> = self.marks.iter().filter(|m| self.shows(m.2)).collect();
        let marks: Vec<_> = marks.into_iter().map(|m| (m.0.as_str(), m.1, frame.place(m.2))).collect();
        marks::draw(&mut out, &marks, frame.edges());
        out + "</svg>\n"
    }

    fn shows(&self, point: (f64, f64)) -> bool {
        self.x.can_show(point.0) && self.y.can_show(point.1)
    }

    /// Value at which bars begin on a logarithmic axis; `None` is the end of the axis.
    fn log_base(&self) -> Option<f64> {
        self.level.filter(|l| self.y.is_log() && self.y.can_show(*l))
    }

    /// Value that the axis must include so that every bar has a height.
    fn foot(&self) -> Option<f64> {
        let bars = self.series.iter().filter(|s| s.form == Form::Bars);
        let heights = bars.flat_map(|s| &s.points).map(|p| p.1).filter(|v| self.y.can_show(*v));
        let least = heights.min_by(f64::total_cmp)?;
        if self.y.is_log() { self.log_base().or(Some(least / 2.0)) } else { Some(0.0) }
    }

    fn draw_points(&self, out: &mut String, frame: &Frame<'_>, series: &Series) {
        let css = series.colour.css();
        for (point, ends) in series.points.iter().zip(&series.ends).filter(|(p, _)| self.shows(**p)) {
            let Some((low, high)) = ends else { continue };
            let stroke = format!("stroke=\"{css}\" stroke-opacity=\"0.6\"");
            whisker(out, frame.place(*point).0, (frame.held_y(*low), frame.held_y(*high)), CAP, &stroke);
        }
        let points: Vec<_> = series.points.iter().filter(|p| self.shows(**p)).map(|p| frame.place(*p)).collect();
        if series.form == Form::Points {
            for (px, py) in points {
                let _ = writeln!(out, "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\" fill=\"{css}\"/>");
            }
        } else if !points.is_empty() {
            let path: Vec<_> = points.iter().map(|p| format!("{:.1} {:.1}", p.0, p.1)).collect();
            let (path, dash) = (path.join("L"), series.colour.dash());
            let _ = writeln!(
                out,
                "<path d=\"M{path}\" fill=\"none\" stroke=\"{css}\" stroke-width=\"2.2\" stroke-linejoin=\"round\"{dash}/>"
            );
        }
    }

    fn draw_bars(&self, out: &mut String, frame: &Frame<'_>) {
        let all: Vec<&Series> = self.series.iter().filter(|s| s.form == Form::Bars).collect();
        let most = all.iter().map(|s| s.points.len()).max().unwrap_or(0);
        let group = GROUP * frame.slot(most);
        let pitch = group / all.len().max(1) as f64;
        // 0 is below every logarithmic axis, and is clamped to its end.
        let base = frame.held_y(self.log_base().unwrap_or(0.0));
        let values = all.iter().flat_map(|s| &s.points).filter(|p| self.shows(**p));
        let has_room = values.map(|p| svg::small_width(&brief(p.1))).fold(0.0, f64::max) <= pitch;
        for (i, series) in all.iter().enumerate() {
            let css = series.colour.css();
            for (p, point) in series.points.iter().enumerate().filter(|(_, p)| self.shows(**p)) {
                let (centre, at) = frame.place(*point);
                let (left, width) = (centre - group / 2.0 + pitch * i as f64, (pitch - 1.0).max(0.5));
                let names = frame.name_at(point.0).into_iter().chain([series.name.as_str()]);
                let name: Vec<&str> = names.filter(|n| !n.is_empty()).collect();
                let _ = writeln!(
                    out,
                    "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{css}\"><title>{}: {}</title></rect>",
                    at.min(base),
                    (at - base).abs().max(0.5),
                    svg::escape(&name.join(", ")),
                    brief(point.1)
                );
                let middle = left + width / 2.0;
                let ends = series.ends.get(p).copied().flatten().map(|e| (frame.held_y(e.0), frame.held_y(e.1)));
                if let Some(ends) = ends {
                    whisker(out, middle, ends, CAP.min(width / 3.0), "class=\"np-line\"");
                }
                if has_room {
                    let (low, high) = ends.unwrap_or((at, at));
                    let y = if at > base { at.max(low) + 12.0 } else { at.min(high) - 4.0 };
                    svg::text(out, (middle, y), "middle", "np-ink np-small np-name", &brief(point.1));
                }
            }
        }
    }
}

/// Draws a vertical interval with a stroke at both ends; nothing if it is too short to be visible.
fn whisker(out: &mut String, x: f64, (low, high): (f64, f64), cap: f64, stroke: &str) {
    if (low - high).abs() < 0.5 {
        return;
    }
    let (a, b) = (x - cap, x + cap);
    let _ = writeln!(
        out,
        "<path d=\"M{x:.1} {low:.1}V{high:.1}M{a:.1} {low:.1}H{b:.1}M{a:.1} {high:.1}H{b:.1}\" fill=\"none\" {stroke}/>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_shown_is_left_out() {
        let svg = Plot::new("t", Axis::log("x, s"), Axis::log("y, s"))
            .line("a", Colour::Main, &[(1.0, 1.0), (0.0, 2.0), (f64::NAN, 1.0), (10.0, 5.0)])
            .points("b", Colour::Other(0), &[(2.0, 2.0), (-1.0, 2.0)])
            .whiskers(&[Some((-1.0, f64::INFINITY)), None])
            .line("none", Colour::Limit, &[])
            .mark("<xz>", Colour::Muted, (3.0, 3.0))
            .level(-1.0)
            .svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("&lt;xz&gt;") && svg.contains("x, s") && svg.ends_with("</svg>\n"));
    }

    /// y and height of every bar.
    fn bars(svg: &str) -> Vec<(f64, f64)> {
        let number = |line: &str, key: &str| -> f64 {
            line.split_once(key).unwrap().1.split_once('"').unwrap().0.parse().unwrap()
        };
        let lines = svg.lines().filter(|l| l.contains("</title></rect>"));
        lines.map(|l| (number(l, " y=\""), number(l, "height=\""))).collect()
    }

    #[test]
    fn bars_begin_at_zero_or_at_the_level_of_a_logarithmic_axis() {
        let names = Axis::names("", &["a", "b"]);
        let points = [(0.0, 4.0), (1.0, -2.0), (9.0, 1.0)];
        let linear = bars(&Plot::new("t", names.clone(), Axis::linear("y")).bars("s", Colour::Main, &points).svg());
        assert_eq!(linear.len(), 2, "the third has no name");
        assert!((linear[0].0 + linear[0].1 - linear[1].0).abs() < 0.2, "{linear:?}");
        assert!((linear[0].1 - 2.0 * linear[1].1).abs() < 0.3, "{linear:?}");
        let plot = Plot::new("t", names, Axis::log("y")).bars("s", Colour::Main, &[(0.0, 4.0), (1.0, 0.5)]);
        let level = bars(&plot.clone().level(1.0).svg());
        assert!((level[0].0 + level[0].1 - level[1].0).abs() < 0.2 && level[0].1 > level[1].1, "{level:?}");
        let none = bars(&plot.svg());
        assert!((none[0].0 + none[0].1 - none[1].0 - none[1].1).abs() < 0.2, "one foot: {none:?}");
        assert!(none[1].1 > 20.0, "the least has a height, too: {none:?}");
    }

    #[test]
    fn bars_say_what_they_are_and_their_intervals_are_on_the_axis() {
        let plot = Plot::new("t", Axis::names("link", &["10 <M>"]), Axis::linear("y"));
        let svg = plot.bars("s", Colour::Main, &[(0.0, 2.0)]).whiskers(&[Some((1.0, 30.0))]).svg();
        assert!(svg.contains("<title>10 &lt;M&gt;, s: 2.00</title>") && svg.contains(">2.00</text>"), "{svg}");
        let whisker = svg.lines().find(|l| l.contains("class=\"np-line\"")).unwrap();
        assert_eq!(whisker.matches('H').count(), 2, "a stroke at both ends");
        assert!(svg.contains(">30</text>"), "the axis reaches the end of the interval");
    }

    #[test]
    fn narrow_bars_keep_their_values_to_themselves() {
        let mut plot = Plot::new("t", Axis::names("", &["a", "b", "c", "d"]), Axis::linear("y"));
        for i in 0..9 {
            plot = plot.bars(&format!("s{i}"), Colour::Other(i), &[(0.0, 1.23), (1.0, 2.34)]);
        }
        assert!(!plot.svg().contains(">1.23</text>"));
    }
}
