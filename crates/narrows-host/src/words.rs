//! Words for people: one line on stderr, errors, names and amounts.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;

use serde_json::Value;

mod stale;

/// Where messages go instead of stderr.
static SINK: OnceLock<fn(&str)> = OnceLock::new();

/// Prints a message to stderr. Failures to do so are ignored.
pub fn note(text: impl Display) {
    match SINK.get() {
        Some(sink) => sink(&text.to_string()),
        None => whole_line(format!("narrows: {text}\n")),
    }
}

/// Gives all further messages to `sink`; the first call counts.
pub fn redirect(sink: fn(&str)) {
    let _ = SINK.set(sink);
}

/// Prints a line of JSON to stderr, for when stdout carries data.
pub fn note_json(json: &Value) {
    whole_line(format!("{json}\n"));
}

/// Writes a line in one call: other processes may write to stderr at the same time, and a killed
/// process leaves no partial line.
fn whole_line(line: String) {
    let _ = io::stderr().write_all(line.as_bytes());
}

/// An error and its causes on one line, outermost first.
pub fn one_line(error: &anyhow::Error) -> String {
    on_one_line(error.chain().map(ToString::to_string))
}

/// The texts of an error and its causes on one line, outermost first. It is escaped, as it may
/// contain text from the peer.
pub fn on_one_line(texts: impl Iterator<Item = String>) -> String {
    let mut parts: Vec<String> = Vec::new();
    let texts: Vec<String> = texts.collect();
    let advice = stale::advice(&texts.join(": "));
    for text in texts {
        let text = text.replace(['\n', '\r'], " ");
        let text = without_os_numbers(&shown(text.as_bytes()));
        // An engine error prints its source itself.
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
    }
    let line = parts.join(": ");
    match advice.filter(|advice| !line.contains(advice)) {
        Some(advice) => format!("{line}; {advice}"),
        None => line,
    }
}

/// Removes ` (os error 28)`, which the standard library adds to system errors: the text is enough.
pub fn without_os_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        out += before;
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(')').unwrap_or(after);
    }
    out + rest
}

pub fn bytes(n: f64) -> String {
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if n >= size as f64 {
            return format!("{:.1} {unit}", n / size as f64);
        }
    }
    format!("{n:.0} B")
}

/// `1 file`, `2 files`
pub fn count<N: Display + PartialEq + From<u8>>(n: N, one: &str, more: &str) -> String {
    let what = if n == N::from(1) { one } else { more };
    format!("{n} {what}")
}

/// `wire 18.7 MiB, ratio 3.42`
pub fn wire(raw: u64, wire: u64) -> String {
    format!("wire {}, ratio {:.2}", bytes(wire as f64), raw as f64 / wire.max(1) as f64)
}

/// The text of a system error of a file, without its number, and with what to do where only that helps.
pub fn e_text(e: &std::io::Error) -> String {
    let text = without_os_numbers(&e.to_string());
    stale::advice_of(e).map_or(text.clone(), |advice| format!("{text}; {advice}"))
}

/// Removes the name of a temporary file from an error, since the user asked for another file.
pub fn without_temporary_name(e: io::Error) -> io::Error {
    let text = e.to_string();
    io::Error::new(e.kind(), text.split(" at path ").next().unwrap_or_default())
}

/// A path for display: characters that are not printable are escaped, so that a name neither
/// controls the terminal nor looks like another name.
pub fn shown(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_invisible(c) { text.extend(c.escape_default()) } else { text.push(c) }
        }
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

/// JSON with such characters as escapes, so that it stays one line of the same meaning.
pub fn shown_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            // JSON has these only between its texts.
            '\t' | '\n' | '\r' => text.push(' '),
            c if c.is_control() || is_invisible(c) => {
                let units = c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
                text.push_str(&units);
            }
            c => text.push(c),
        }
    }
    text
}

/// A name in a list that programs may read: as [`shown`], with the backslash escaped too, so that no two names
/// look alike. Text that has such names in it already is shown without this.
pub fn shown_name(path: &[u8]) -> String {
    let parts: Vec<String> = path.split(|b| *b == b'\\').map(shown).collect();
    parts.join("\\\\")
}

/// Whether a character is invisible: it changes the text direction, ends a line, or only makes
/// names differ. The variation selectors U+FE00 to U+FE0F are part of many emoji and are not
/// escaped.
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_something_is_no_plural() {
        let words = [0u64, 1, 2].map(|n| count(n, "entry", "entries"));
        assert_eq!(words, ["0 entries", "1 entry", "2 entries"]);
        assert_eq!(count(1usize, "round", "rounds"), "1 round");
    }

    #[test]
    fn an_error_is_one_line_without_numbers_and_repetitions() {
        let io = || io::Error::from_raw_os_error(28);
        let error = anyhow::Error::from(io()).context("cannot write out");
        assert_eq!(one_line(&error), "cannot write out: No space left on device");
        let error = anyhow::Error::from(narrows::Error::from(io())).context("cannot send\nthis");
        assert_eq!(one_line(&error), "cannot send this: input or output failed: No space left on device");
        let told = anyhow::anyhow!("the receiver failed: \u{202e}\u{9b}2J");
        assert_eq!(one_line(&told), "the receiver failed: \\u{202e}\\u{9b}2J");
    }

    #[test]
    fn names_are_shown_on_one_line_and_without_controls() {
        assert_eq!(super::shown("größe a".as_bytes()), "größe a");
        assert_eq!(super::shown(b"a\nb\x1b[2Jc\xffd"), "a\\nb\\u{1b}[2Jc\\xffd");
    }

    #[test]
    fn json_keeps_its_meaning_and_steers_no_terminal() {
        let value = Value::from("a\u{9b}2J\u{202e}\u{e0041}\u{7f}\n\t\u{1b}größe");
        let shown = shown_json(&format!("{{\t\"a\":\r{value}}}"));
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap()["a"], value);
        assert!(!shown.chars().any(|c| c.is_control() || is_invisible(c)) && shown.contains("größe"), "{shown}");
    }

    #[test]
    fn names_in_lists_are_told_apart() {
        let names: [&[u8]; 5] = [b"a\nb", b"a\\nb", b"a\\\nb", b"a\xffb", b"a\\xffb"];
        let shown = names.map(super::shown_name);
        assert_eq!(shown, ["a\\nb", "a\\\\nb", "a\\\\\\nb", "a\\xffb", "a\\\\xffb"]);
    }

    #[test]
    fn names_cannot_turn_the_direction_of_the_text_or_hide_a_difference() {
        for c in
            ['\u{202e}', '\u{2066}', '\u{2069}', '\u{200b}', '\u{200f}', '\u{2028}', '\u{feff}', '\u{e0041}', '\u{ad}']
        {
            let text = super::shown(format!("photo{c}gpj.exe").as_bytes());
            assert_eq!(text, format!("photo{}gpj.exe", c.escape_unicode()));
        }
        assert_eq!(super::shown("שלום ❤️ e\u{301}".as_bytes()), "שלום ❤️ e\u{301}");
    }
}
