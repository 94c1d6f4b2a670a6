//! A frame as a picture: SVG that looks like a dark terminal.

use std::fmt::Write;

use super::frame::{Line, Style};

/// Size of a character, and the margin around the text, in pixels.
const WIDTH: f64 = 7.8;
const HEIGHT: f64 = 17.0;
const MARGIN: f64 = 12.0;

const BACK: &str = "#16181d";

impl Style {
    /// Colour of the text, colour behind it, and whether it is bold.
    fn look(self) -> (&'static str, Option<&'static str>, bool) {
        match self {
            Self::Plain => ("#d6d9e0", None, false),
            Self::Bold => ("#ffffff", None, true),
            Self::Dim => ("#8b909c", None, false),
            Self::Head => (BACK, Some("#aab0bd"), false),
            Self::Sorted => (BACK, Some("#ffffff"), true),
            Self::Graph => ("#4fc1d6", None, false),
            Self::Alert => ("#e5c455", None, true),
        }
    }
}

/// Draws lines of at most `columns` characters.
pub(crate) fn draw(lines: &[Line], columns: usize) -> String {
    let (width, height) = (columns as f64 * WIDTH + 2.0 * MARGIN, lines.len() as f64 * HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"13\">\n\
         <title>narrows top</title>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{BACK}\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        let y = MARGIN + row as f64 * HEIGHT;
        let mut column = 0;
        for (style, text) in &line.0 {
            let len = text.chars().count();
            put(&mut svg, *style, text, MARGIN + column as f64 * WIDTH, y);
            column += len;
        }
    }
    svg + "</svg>\n"
}

fn put(svg: &mut String, style: Style, text: &str, x: f64, y: f64) {
    let (colour, back, bold) = style.look();
    let cells = text.chars().count() as f64;
    if let Some(back) = back {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{HEIGHT}\" fill=\"{back}\"/>",
            cells * WIDTH
        );
    }
    // Each word at its own place, as fonts differ in width.
    let mut at = 0;
    for word in text.split(' ') {
        let len = word.chars().count();
        if len > 0 {
            let (x, y, length) = (x + at as f64 * WIDTH, y + 0.75 * HEIGHT, len as f64 * WIDTH);
            let weight = if bold { " font-weight=\"bold\"" } else { "" };
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{colour}\"{weight}>{}</text>",
                escaped(word)
            );
        }
        at += len + 1;
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_every_word_at_its_column() {
        let line = Line(vec![(Style::Bold, "a  <b>".into()), (Style::Head, " c".into())]);
        let svg = draw(&[line], 80);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for (column, word) in [(0.0, "a"), (3.0, "&lt;b&gt;"), (7.0, "c")] {
            let x = format!("<text x=\"{:.1}\" ", MARGIN + column * WIDTH);
            assert!(svg.lines().any(|l| l.starts_with(&x) && l.ends_with(&format!(">{word}</text>"))), "{word}: {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 2);
    }
}
