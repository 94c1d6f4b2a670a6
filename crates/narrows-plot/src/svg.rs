//! Pieces of SVG that every picture shares.

use std::fmt::Write;

use crate::Colour;

pub(crate) const WIDTH: f64 = 760.0;
/// Width of a letter relative to the font size; sans-serif fonts are a little narrower.
const LETTER: f64 = 0.56;
pub(crate) const FONT: f64 = 13.0;
/// Font size of names below an axis, and of numbers beside data.
const SMALL: f64 = 11.0;
const LEGEND_ROW: f64 = 19.0;
/// Rules by class, so that one media query is enough for dark mode. Class names are the same in
/// every picture of a page.
const STYLE: &str = "<style>.np-back{fill:#fff}.np-ink{fill:#222}.np-soft{fill:#5d6269}.np-grid{stroke:#e3e5e8}\
                     .np-axis{stroke:#8a8f96}.np-line{stroke:#222}.np-small{font-size:11px}.np-halo{stroke:#fff}\
                     .np-name{stroke:#fff;stroke-width:3px;paint-order:stroke}\
                     @media (prefers-color-scheme:dark){.np-back{fill:#16191d}.np-ink{fill:#e8eaed}.np-soft{fill:#a9afb7}\
                     .np-grid{stroke:#30353b}.np-axis{stroke:#8a8f96}.np-line{stroke:#e8eaed}\
                     .np-halo,.np-name{stroke:#16191d}}</style>";

/// The opening of a picture, with its title.
pub(crate) fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"{FONT}\" role=\"img\">\n<title>{title}</title>\n{STYLE}\n\
         <rect class=\"np-back\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text x=\"14\" y=\"24\" font-size=\"15\" font-weight=\"600\" class=\"np-ink\">{title}</text>\n"
    )
}

pub(crate) fn text(out: &mut String, at: (f64, f64), anchor: &str, class: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{words}</text>",
        at.0, at.1
    );
}

/// Approximate width of text at the normal font size.
pub(crate) fn width(words: &str) -> f64 {
    words.chars().count() as f64 * LETTER * FONT
}

/// Approximate width at the small size. A point counts as half a letter, which matters in numbers.
pub(crate) fn small_width(words: &str) -> f64 {
    let letters: f64 = words.chars().map(|c| if c == '.' { 0.5 } else { 1.0 }).sum();
    letters * LETTER * SMALL
}

/// Draws names with their colours in as many rows as they need below `top`; returns their height.
pub(crate) fn legend(out: &mut String, names: &[(&str, Colour, bool)], top: f64) -> f64 {
    let (mut x, mut row) = (14.0, 0.0);
    for (name, colour, is_line) in names {
        let needed = 26.0 + width(name) + 12.0;
        if x + needed > WIDTH && x > 14.0 {
            (x, row) = (14.0, row + 1.0);
        }
        let y = top + row * LEGEND_ROW;
        let css = colour.css();
        let _ = if *is_line {
            let (end, at, dash) = (x + 20.0, y + 7.0, colour.dash());
            writeln!(out, "<path d=\"M{x:.1} {at:.1}H{end:.1}\" stroke=\"{css}\" stroke-width=\"2.5\"{dash}/>")
        } else {
            writeln!(out, "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{css}\"/>", x + 6.0, y + 1.0)
        };
        text(out, (x + 26.0, y + 12.0), "start", "np-ink", name);
        x += needed;
    }
    if names.is_empty() { 0.0 } else { (row + 1.0) * LEGEND_ROW + 6.0 }
}

/// Escapes text for SVG and HTML, in elements and in quoted attributes. Control characters, which
/// XML does not allow, become spaces.
pub fn escape(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for c in words.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Not allowed in XML.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_the_picture() {
        assert_eq!(escape("a<b>&\"\u{1}é"), "a&lt;b&gt;&amp;&quot; é");
    }

    #[test]
    fn a_legend_that_is_too_long_takes_more_rows() {
        let mut out = String::new();
        let one = legend(&mut out, &[("a", Colour::Main, true)], 0.0);
        let many = vec![("a rather long name of a thing", Colour::Other(1), false); 9];
        assert!(legend(&mut out, &many, 0.0) >= 2.0 * LEGEND_ROW + one);
        assert_eq!(legend(&mut out, &[], 0.0), 0.0);
    }
}
