//! Pictures and text as one self-contained HTML page.

use std::fmt::Write;

use crate::svg::escape;

/// A picture with a caption.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The picture as SVG.
    pub svg: String,
    /// Plain text below the picture.
    pub caption: String,
}

/// CSS that all pages share, for light and dark.
pub const PAGE_STYLE: &str = "body{font:16px/1.5 sans-serif;max-width:800px;margin:2em auto;padding:0 1em;background:#fff;color:#222}\
                     h1{font-size:1.5em}figure{margin:2em 0}svg{width:100%;height:auto}figcaption{color:#5d6269}\
                     pre{overflow-x:auto;font-size:13px;line-height:1.4}@media (prefers-color-scheme:dark){\
                     body{background:#16191d;color:#e8eaed}figcaption{color:#a9afb7}}";

/// An HTML page with a heading, a sentence or two, preformatted text (tables) and pictures.
pub fn page(heading: &str, words: &str, text: &str, figures: &[Figure]) -> String {
    let (heading, words, text) = (escape(heading), escape(words), escape_text(text));
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>{heading}</title>\n<style>{PAGE_STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n<p>{words}</p>\n<pre>{text}</pre>\n"
    );
    for figure in figures {
        let _ =
            writeln!(out, "<figure>\n{}<figcaption>{}</figcaption>\n</figure>", figure.svg, escape(&figure.caption));
    }
    out + "</body>\n</html>\n"
}

/// Escapes text and keeps its line breaks.
fn escape_text(text: &str) -> String {
    text.lines().map(escape).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_closes_what_it_opens_and_fetches_nothing() {
        let figure = Figure { svg: "<svg></svg>\n".into(), caption: "a < b".into() };
        let page = page("H & M", "words", "a  b\n1  2", &[figure]);
        for tag in ["html", "head", "body", "h1", "pre", "figure", "figcaption", "style"] {
            assert_eq!(page.matches(&format!("</{tag}>")).count(), 1, "{tag}");
        }
        assert!(page.contains("H &amp; M") && page.contains("a  b\n1  2") && page.contains("a &lt; b"));
        assert!(!page.contains("<script") && !page.contains("href=") && !page.contains("src="));
    }
}
