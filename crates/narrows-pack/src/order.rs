//! The order of paths in a directory: that of their components, so that a folder stands right before
//! what is in it.

use std::cmp::Ordering;

/// Compares two paths by their components.
pub fn cmp(a: &[u8], b: &[u8]) -> Ordering {
    // A slash sorts before every other byte of a path, none of which is zero.
    let key = |b: &u8| if *b == b'/' { 0 } else { *b };
    a.iter().map(key).cmp(b.iter().map(key))
}

/// Whether `path` is `folder` or in it.
pub(crate) fn is_within(path: &[u8], folder: &[u8]) -> bool {
    folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.first().is_none_or(|b| *b == b'/'))
}

/// What a name says of its content: the part after its last dot. The rest of the name says less than the
/// folder does: ordered by name within a suffix, a tree of sources gets 3 % larger.
pub(crate) fn suffix(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    match name.iter().rposition(|b| *b == b'.') {
        Some(at) if at > 0 => &name[at + 1..],
        _ => b"",
    }
}

/// A key after `path` and everything in it, and before whatever else comes.
pub(crate) fn behind(path: &[u8]) -> Vec<u8> {
    [path, b"\x01"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_stands_right_before_what_is_in_it() {
        let mut paths = [&b"a-b"[..], b"a/b", b"", b"a", b"a/b/c", b"a.c", b"b", b"a\x01", b"a/\x01"];
        paths.sort_by(|a, b| cmp(a, b));
        assert_eq!(paths, [&b""[..], b"a", b"a/\x01", b"a/b", b"a/b/c", b"a\x01", b"a-b", b"a.c", b"b"]);
        for path in paths {
            assert_eq!(cmp(path, &behind(b"a")) == Ordering::Less, is_within(path, b"a") || path.is_empty());
        }
    }
}
