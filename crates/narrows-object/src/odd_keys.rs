//! Keys that no file can have. `object_store` fails a whole list because of one, so they are taken out
//! of the answer of the store before it reads that.

use object_store::path::Path;

use crate::url::KEY_LEN_MAX;

/// Most of such keys that are remembered of one list: who makes more wants to use up memory.
const ODD_MAX: usize = 10_000;

/// The answer to a list (of S3 and Google) without its odd keys, which go to `odd`; `None` if there are
/// none.
pub(crate) fn without(answer: &str, odd: &mut Vec<String>) -> Option<String> {
    let mut kept = String::new();
    let mut rest = answer;
    let mut has_odd = false;
    // A `<` within a key is written as an entity, so these words are never part of one.
    while let Some((before, after)) = rest.split_once("<Contents>") {
        let Some((content, behind)) = after.split_once("</Contents>") else { break };
        kept += before;
        rest = behind;
        let key = content.split_once("<Key>").and_then(|(_, key)| key.split_once("</Key>")).map_or("", |(key, _)| key);
        let key = unescaped(key);
        if is_fit(&key) {
            kept += &format!("<Contents>{content}</Contents>");
            continue;
        }
        has_odd = true;
        // Some programs mark folders like this.
        let is_mark = key.ends_with('/') && content.contains("<Size>0</Size>");
        if !is_mark && odd.len() < ODD_MAX {
            // Longer ones are no keys of any store.
            odd.push(key.chars().take(KEY_LEN_MAX).collect());
        }
    }
    kept += rest;
    has_odd.then_some(kept)
}

/// Whether a key stays what it is as a path.
fn is_fit(key: &str) -> bool {
    Path::parse(key).is_ok_and(|path| path.as_ref() == key)
}

/// The text of an element.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out += before;
        let Some((name, behind)) = after.split_once(';') else {
            rest = after;
            out.push('&');
            continue;
        };
        let number =
            name.strip_prefix("#x").map(|n| u32::from_str_radix(n, 16)).or(name.strip_prefix('#').map(str::parse));
        match (name, number.and_then(Result::ok).and_then(char::from_u32)) {
            ("amp", _) => out.push('&'),
            ("lt", _) => out.push('<'),
            ("gt", _) => out.push('>'),
            ("quot", _) => out.push('"'),
            ("apos", _) => out.push('\''),
            (_, Some(c)) => out.push(c),
            _ => {
                out.push('&');
                rest = after;
                continue;
            }
        }
        rest = behind;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_are_taken_out_and_the_rest_stays_byte_for_byte() {
        let content = |key: &str, len: u32| format!("<Contents><Key>{key}</Key><Size>{len}</Size></Contents>");
        let list = |contents: &[String]| format!("<R><N>x</N>{}<T>1</T></R>", contents.concat());
        let good = [content("a/b", 1), content("a &amp; b&lt;Key&gt;", 2), content("ä", 0), content("a/...", 0)];
        let mut odd = Vec::new();
        assert_eq!(without(&list(&good), &mut odd), None);
        let bad =
            ["../x", "a/../b", "a//b", "/abs", "a/.", ".", "a&#x1;b", "a&#10;", "full/"].map(|key| content(key, 7));
        let mark = content("folder/", 0);
        let mixed = [&good[..2], &bad[..4], &[mark], &good[2..], &bad[4..]].concat();
        assert_eq!(without(&list(&mixed), &mut odd).as_deref(), Some(list(&good).as_str()));
        assert_eq!(odd, ["../x", "a/../b", "a//b", "/abs", "a/.", ".", "a\u{1}b", "a\n", "full/"]);
    }

    #[test]
    fn answers_that_break_off_are_left_to_the_parser() {
        for text in [
            "",
            "<Contents>",
            "<Contents><Key>a//b",
            "</Contents><Contents>",
            "&",
            "<Contents><Key>&;&#;&#xd800;</Key></Contents>",
        ] {
            let mut odd = Vec::new();
            assert_eq!(without(text, &mut odd), None, "{text}");
        }
        let many = "<Contents><Key>//</Key></Contents>".repeat(ODD_MAX + 5);
        let mut odd = Vec::new();
        assert_eq!(without(&many, &mut odd).as_deref(), Some(""));
        assert_eq!(odd.len(), ODD_MAX);
    }
}
