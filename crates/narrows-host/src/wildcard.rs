//! Wildcards of shells for a library that knows more than they do.

/// A pattern for `globset`, with `\` as escape, in which braces stand for themselves, as in a pattern that a shell
/// leaves alone: the library takes them for alternatives.
pub fn with_plain_braces(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if matches!(c, '{' | '}') {
            out.push('\\');
        }
        out.push(c);
        match c {
            '\\' => out.extend(chars.next()),
            // Neither braces nor `\` are special in there.
            '[' => {
                let rest = chars.as_str();
                let (class, rest) = rest.split_at(class_len(rest));
                out.push_str(class);
                chars = rest.chars();
            }
            _ => {}
        }
    }
    out
}

/// Bytes up to the `]` of a class, with it; 0 if it has no end.
fn class_len(rest: &str) -> usize {
    let begin = usize::from(rest.starts_with(['!', '^']));
    // A `]` that comes first is one of the characters.
    let first = begin + usize::from(rest[begin..].starts_with(']'));
    rest[first..].find(']').map_or(0, |at| first + at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_get_one_escape_and_keep_theirs() {
        for (pattern, plain) in [
            ("{a,b}*", r"\{a,b\}*"),
            (r"\{a*", r"\{a*"),
            (r"\\{a*", r"\\\{a*"),
            ("[{}]*", "[{}]*"),
            (r"[\]{", r"[\]\{"),
            ("[]{]{", r"[]{]\{"),
            ("[!]{]{", r"[!]{]\{"),
            ("[{", r"[\{"),
            (r"*\", r"*\"),
            ("ä{*", r"ä\{*"),
        ] {
            assert_eq!(with_plain_braces(pattern), plain, "{pattern}");
        }
    }
}
