//! Words that somebody may have meant instead of a mistyped one.

/// Most characters of a word that is compared: no command or option is so long, and time grows with the square.
const LEN_MAX: usize = 40;
/// Edits of a key that may have been meant.
const KEY_EDITS_MAX: usize = 3;

/// The word of `known` that differs least, if it differs so little that it was meant: in one of three
/// characters, and in two at most. Of two that are as near, none is.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let len = word.chars().count();
    if len > LEN_MAX {
        return None;
    }
    let most = (len / 3).min(2);
    let mut found: Vec<(usize, &str)> = known.into_iter().map(|known| (distance(word, known), known)).collect();
    found.retain(|(distance, _)| *distance <= most);
    found.sort_unstable();
    found.dedup();
    match found[..] {
        [(_, nearest)] => Some(nearest),
        [(first, nearest), (second, _), ..] if first < second => Some(nearest),
        _ => None,
    }
}

/// The key of a file that was probably meant.
pub fn nearest_key<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    if key.chars().count() > LEN_MAX {
        return None;
    }
    let nearest = known.iter().map(|k| (distance(key, k), *k)).min();
    // Of a short key every letter counts.
    nearest.filter(|(n, _)| *n <= KEY_EDITS_MAX.min(key.chars().count() / 2)).map(|(_, near)| near)
}

/// Characters to insert, remove or replace, and neighbours to swap, to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            next[j] = replaced.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                next[j] = next[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_typing_errors() {
        for (a, b, n) in [
            ("", "", 0),
            ("", "ab", 2),
            ("check", "check", 0),
            ("chekc", "check", 1),
            ("chck", "check", 1),
            ("checkk", "check", 1),
            ("chack", "check", 1),
            ("hcekc", "check", 2),
            ("list", "pipe", 3),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (n, n), "{a} {b}");
        }
    }

    #[test]
    fn only_what_is_near_was_meant() {
        let known = ["check", "cp", "cat", "list", "pack", "unpack", "stream-size", "rm"];
        for (word, meant) in [
            ("chekc", Some("check")),
            ("lits", Some("list")),
            ("unpak", Some("unpack")),
            ("strem-sise", Some("stream-size")),
            // As near to `pack` as to nothing else; two letters are too few to tell.
            ("pakc", Some("pack")),
            ("rn", None),
            ("cd", None),
            ("notes", None),
            ("checksums", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
        assert_eq!(nearest("cut", ["cat", "cot"]), None, "either may be meant");
        assert_eq!(nearest("cat", ["cat", "cot"]), Some("cat"));
        assert_eq!(nearest(&"x".repeat(LEN_MAX + 1), known), None);
    }
}
