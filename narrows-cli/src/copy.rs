//! Copies of files and folders: read at one end, carried as an entry stream, stored at the other.

pub(crate) mod carrier;
pub(crate) mod delta;
pub(crate) mod direct;
pub(crate) mod filter;
pub(crate) mod hello;
pub(crate) mod meta;
pub(crate) mod place;
pub(crate) mod scan;
pub(crate) mod serve;
pub(crate) mod served;
pub(crate) mod source;
pub(crate) mod store;
pub(crate) mod tree;

/// A path for people: what is not printable is escaped, so that a name cannot drive the terminal.
pub(crate) fn shown(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
        }
        text.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_shown_on_one_line_and_without_controls() {
        assert_eq!(super::shown("größe a".as_bytes()), "größe a");
        assert_eq!(super::shown(b"a\nb\x1b[2Jc\xffd"), "a\\nb\\u{1b}[2Jc\\xffd");
    }
}
