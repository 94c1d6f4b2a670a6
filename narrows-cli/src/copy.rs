//! Copies of files and folders: read at one end, sent as an entry stream, stored at the other.

pub(crate) mod carrier;
pub(crate) mod carriers;
pub(crate) mod delta;
pub(crate) mod direct;
mod earlier;
pub(crate) mod fallback;
pub(crate) mod filter;
mod hash;
pub(crate) mod hello;
pub(crate) mod meta;
pub(crate) mod outlet;
pub(crate) mod place;
pub(crate) mod remote_path;
pub(crate) mod scan;
pub(crate) mod serve;
pub(crate) mod served;
pub(crate) mod source;
pub(crate) mod special;
pub(crate) mod store;
pub(crate) mod tree;

/// The text of a system error, without its number.
pub(crate) fn e_text(e: &std::io::Error) -> String {
    crate::report::without_os_numbers(&e.to_string())
}

/// A path for display: characters that are not printable are escaped, so that a name neither
/// controls the terminal nor looks like another name.
pub(crate) fn shown(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || is_invisible(c) { text.extend(c.escape_default()) } else { text.push(c) }
        }
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
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
    #[test]
    fn names_are_shown_on_one_line_and_without_controls() {
        assert_eq!(super::shown("größe a".as_bytes()), "größe a");
        assert_eq!(super::shown(b"a\nb\x1b[2Jc\xffd"), "a\\nb\\u{1b}[2Jc\\xffd");
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
