//! Lines, bars and heat maps as SVG that stands alone.

use std::fmt::Write;

use super::summary::short;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 52.0;
/// Fewer do not tell a logarithm from a line.
const TICKS_MIN: usize = 3;
/// Of one letter in the small type, roughly.
const LETTER: f64 = 6.3;
/// One row of the legend, below the picture.
const LEGEND: f64 = 20.0;
/// Told apart by people who see colours differently (Okabe and Ito), then shades of grey.
const COLOURS: [&str; 12] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#8c6d31", "#7f7fbf", "#999999",
    "#b04040", "#40b0a0",
];

/// x, y and the ends of the interval of y, if it has one.
pub(crate) type Point = (f64, f64, Option<(f64, f64)>);

/// One line or one group of bars.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) y_label: &'a str,
    /// Where x is not a number: one name for each of 0, 1, 2, ...
    pub(crate) x_names: Option<&'a [String]>,
    pub(crate) log_x: bool,
    pub(crate) log_y: bool,
    pub(crate) level: Option<f64>,
}

/// From values to places.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, log: bool, from: f64, to: f64) -> Self {
        let values = values.filter(|v| v.is_finite() && (!log || *v > 0.0));
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (mut low, mut high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        if low == high {
            (low, high) = if log { (low / 2.0, high * 2.0) } else { (low - 0.5, high + 0.5) };
        }
        Self { low, high, log, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        let f = |v: f64| if self.log { v.max(1e-300).ln() } else { v };
        let share = (f(value) - f(self.low)) / (f(self.high) - f(self.low));
        self.from + share.clamp(-0.05, 1.05) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
            for parts in [&[1.0][..], &[1.0, 2.0, 5.0]] {
                let all = (first..=last).flat_map(|e| parts.iter().map(move |p| p * 10f64.powi(e)));
                let all: Vec<f64> = all.filter(|t| *t >= self.low * 0.999 && *t <= self.high * 1.001).collect();
                if all.len() >= TICKS_MIN {
                    return all;
                }
            }
            // A short stretch is as good as linear.
        }
        let rough = (self.high - self.low) / 5.0;
        let ten = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|f| f * ten).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..).map(|i| i as f64 * step).take_while(|t| *t <= self.high + step * 1e-6).take(20).collect()
    }
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn begin(frame: &Frame<'_>, legend_rows: usize) -> String {
    let height = HEIGHT + LEGEND * legend_rows as f64;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\" role=\"img\">\n<title>{0}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\" fill=\"#222\">{0}</text>\n\
         <text x=\"{1}\" y=\"{2}\" text-anchor=\"middle\" fill=\"#333\">{3}</text>\n\
         <text transform=\"translate(12 {4}) rotate(-90)\" text-anchor=\"middle\" fill=\"#333\">{5}</text>\n",
        escape(frame.title),
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        escape(frame.x_label),
        (TOP + HEIGHT - BOTTOM) / 2.0,
        escape(frame.y_label),
    )
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#333\" font-size=\"11\">{}</text>",
        escape(words)
    );
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), style: &str) {
    let _ = writeln!(svg, "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>");
}

fn y_axis(svg: &mut String, y: &Scale, level: Option<f64>) {
    for tick in y.ticks() {
        let at = y.place(tick);
        line(svg, (LEFT, at), (WIDTH - RIGHT, at), "stroke=\"#e4e4e4\"");
        text(svg, (LEFT - 6.0, at + 4.0), "end", &tick_name(tick));
    }
    if let Some(level) = level {
        let at = y.place(level);
        line(svg, (LEFT, at), (WIDTH - RIGHT, at), "stroke=\"#666\" stroke-dasharray=\"4 3\"");
    }
}

fn tick_name(value: f64) -> String {
    if value != 0.0 && (value.abs() >= 1e5 || value.abs() < 1e-3) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Names below the picture, a slot each: without folders, in two rows where one is too narrow, and cut where two are.
fn x_names(svg: &mut String, names: &[String], slot: f64, place: impl Fn(usize) -> f64) {
    let file = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
    let short: Vec<String> = names.iter().map(|n| file(n)).collect();
    let longest = short.iter().map(|n| n.chars().count()).max().unwrap_or(0) as f64 * LETTER;
    let rows = if longest > slot { 2 } else { 1 };
    let most = (slot * rows as f64 / LETTER).max(4.0) as usize;
    for (i, name) in short.iter().enumerate() {
        let cut: String = name.chars().take(most).collect();
        // A name at the edge stays inside.
        let half = cut.chars().count() as f64 * LETTER / 2.0;
        let x = place(i).min(WIDTH - half).max(half);
        text(svg, (x, HEIGHT - BOTTOM + 15.0 + 12.0 * (i % rows) as f64), "middle", &cut);
    }
}

/// Names beside their colours, four in a row.
fn legend(svg: &mut String, names: &[&str]) {
    let width = (WIDTH - LEFT) / 4.0;
    for (i, name) in names.iter().enumerate() {
        let (x, y) = (LEFT + width * (i % 4) as f64, HEIGHT + LEGEND * (i / 4) as f64);
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"11\" height=\"11\" fill=\"{}\"/>",
            COLOURS[i % COLOURS.len()]
        );
        text(svg, (x + 16.0, y + 10.0), "start", name);
    }
}

fn values(series: &[Series]) -> impl Iterator<Item = f64> {
    series.iter().flat_map(|s| &s.points).flat_map(|p| [Some(p.1), p.2.map(|i| i.0), p.2.map(|i| i.1)]).flatten()
}

pub(crate) fn lines(frame: &Frame<'_>, series: &[Series]) -> String {
    let names: Vec<&str> = series.iter().map(|s| s.name.as_str()).collect();
    let mut svg = begin(frame, names.len().div_ceil(4));
    let x = Scale::of(series.iter().flat_map(|s| &s.points).map(|p| p.0), frame.log_x, LEFT, WIDTH - RIGHT);
    let zero = (!frame.log_y).then_some(0.0);
    let y = Scale::of(values(series).chain(zero).chain(frame.level), frame.log_y, HEIGHT - BOTTOM, TOP);
    y_axis(&mut svg, &y, frame.level);
    match frame.x_names {
        Some(names) => {
            let slot = (WIDTH - RIGHT - LEFT) / names.len().max(2).saturating_sub(1) as f64;
            x_names(&mut svg, names, slot, |i| x.place(i as f64));
        }
        None => {
            for tick in x.ticks() {
                let at = x.place(tick);
                line(&mut svg, (at, HEIGHT - BOTTOM), (at, HEIGHT - BOTTOM + 4.0), "stroke=\"#888\"");
                text(&mut svg, (at, HEIGHT - BOTTOM + 17.0), "middle", &tick_name(tick));
            }
        }
    }
    for (i, s) in series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let mut points = String::new();
        for (px, py, interval) in &s.points {
            let (px, at) = (x.place(*px), y.place(*py));
            let _ = write!(points, "{px:.1},{at:.1} ");
            if let Some((low, high)) = interval {
                let style = format!("stroke=\"{colour}\" stroke-opacity=\"0.5\"");
                line(&mut svg, (px, y.place(*low)), (px, y.place(*high)), &style);
            }
            if s.points.len() <= 40 {
                let _ = writeln!(svg, "<circle cx=\"{px:.1}\" cy=\"{at:.1}\" r=\"2.6\" fill=\"{colour}\"/>");
            }
        }
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\"/>",
            points.trim_end()
        );
    }
    legend(&mut svg, &names);
    svg + "</svg>\n"
}

/// Groups side by side; x counts the groups.
pub(crate) fn bars(frame: &Frame<'_>, groups: &[String], series: &[Series]) -> String {
    let names: Vec<&str> = series.iter().map(|s| s.name.as_str()).collect();
    let mut svg = begin(frame, names.len().div_ceil(4));
    // The least bar has a height, too.
    let least = values(series).filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
    let foot = if frame.log_y { least / 2.0 } else { 0.0 };
    let y = Scale::of(values(series).chain([foot]).chain(frame.level), frame.log_y, HEIGHT - BOTTOM, TOP);
    y_axis(&mut svg, &y, frame.level);
    let base = y.place(frame.level.filter(|_| frame.log_y).unwrap_or(if frame.log_y { y.low } else { 0.0 }));
    let group = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let bar = group * 0.84 / series.len().max(1) as f64;
    x_names(&mut svg, groups, group, |g| LEFT + group * (g as f64 + 0.5));
    for (i, s) in series.iter().enumerate() {
        for (g, value, interval) in &s.points {
            let x = LEFT + group * (g + 0.08) + bar * i as f64;
            let at = y.place(*value);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}: {}</title></rect>",
                at.min(base),
                (bar - 1.0).max(0.5),
                (at - base).abs().max(0.5),
                COLOURS[i % COLOURS.len()],
                escape(&s.name),
                short(*value)
            );
            let middle = x + (bar - 1.0) / 2.0;
            if let Some((low, high)) = interval {
                line(&mut svg, (middle, y.place(*low)), (middle, y.place(*high)), "stroke=\"#222\"");
            }
            if bar > 26.0 {
                text(&mut svg, (middle, at.min(base) - 4.0), "middle", &short(*value));
            }
        }
    }
    legend(&mut svg, &names);
    svg + "</svg>\n"
}

/// The least and the greatest stay light enough for dark text. Colours from blue (low) over white (`middle`) to red (high); each field says its number where there is room.
pub(crate) fn heat(
    frame: &Frame<'_>,
    columns: &[String],
    rows: &[String],
    at: impl Fn(usize, usize) -> Option<f64>,
) -> String {
    let mut svg = begin(frame, 0);
    let all: Vec<f64> =
        (0..columns.len()).flat_map(|c| (0..rows.len()).map(move |r| (c, r))).filter_map(|(c, r)| at(c, r)).collect();
    let (low, high) = all.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    let middle = frame.level.unwrap_or((low + high) / 2.0);
    let (width, height) =
        ((WIDTH - LEFT - RIGHT) / columns.len().max(1) as f64, (HEIGHT - TOP - BOTTOM) / rows.len().max(1) as f64);
    for (r, row) in rows.iter().enumerate() {
        let y = HEIGHT - BOTTOM - height * (r + 1) as f64;
        text(&mut svg, (LEFT - 6.0, y + height / 2.0 + 4.0), "end", row);
        for c in 0..columns.len() {
            let Some(value) = at(c, r) else { continue };
            let share = if value >= middle {
                (value - middle) / (high - middle).max(1e-9)
            } else {
                (value - middle) / (middle - low).max(1e-9)
            };
            let fade = (255.0 * (1.0 - 0.55 * share.abs())) as u8;
            let colour = if share >= 0.0 { (255, fade, fade) } else { (fade, fade, 255) };
            let x = LEFT + width * c as f64;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#{:02x}{:02x}{:02x}\"><title>{}</title></rect>",
                width + 0.3,
                height + 0.3,
                colour.0,
                colour.1,
                colour.2,
                short(value)
            );
            if width > 30.0 && height > 13.0 {
                text(&mut svg, (x + width / 2.0, y + height / 2.0 + 4.0), "middle", &format!("{value:.2}"));
            }
        }
    }
    let every = columns.len().div_ceil(24);
    for (c, name) in columns.iter().enumerate().step_by(every.max(1)) {
        text(&mut svg, (LEFT + width * (c as f64 + 0.5), HEIGHT - BOTTOM + 17.0), "middle", name);
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stretch_of_a_scale_has_ticks() {
        for (low, high, log) in [(0.018, 0.041, true), (1.0, 1000.0, true), (0.5, 30.0, true), (-200.0, 70.0, false)] {
            let ticks = Scale { low, high, log, from: 0.0, to: 1.0 }.ticks();
            assert!((TICKS_MIN..=12).contains(&ticks.len()), "{low} to {high}: {ticks:?}");
        }
    }

    #[test]
    fn long_names_share_two_rows_and_lose_their_folders() {
        let rows = |names: &[&str], slot| {
            let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
            let mut svg = String::new();
            x_names(&mut svg, &names, slot, |i| 100.0 + slot * i as f64);
            svg
        };
        let ys = |svg: &str| {
            svg.lines().filter_map(|l| l.split("y=\"").nth(1)).map(|l| l[..5].to_owned()).collect::<Vec<_>>()
        };
        let short = rows(&["text/a", "text/b"], 50.0);
        assert!(short.contains(">a<") && ys(&short)[0] == ys(&short)[1], "{short}");
        let long = rows(&["media/assessment-files-of-a-year.zip", "media/photo1.png"], 50.0);
        assert!(long.contains(">assessment-file<") && ys(&long)[0] != ys(&long)[1], "{long}");
    }
}
