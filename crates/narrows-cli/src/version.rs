//! The text of `narrows --version`: commit, target, stream format, codecs and policies.

use std::ffi::OsString;
use std::sync::LazyLock;

use narrows::codec::CODECS;
use narrows::frame;

/// Parts of the crates below that not every build needs to have.
const FEATURES: [&str; 2] = ["mount", "tls"];

const BUILD: &str = if cfg!(debug_assertions) { ", not optimised" } else { "" };

/// What `-V` prints after the program's name: version, commit and features.
pub(crate) fn short() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let commit = env!("NARROWS_COMMIT");
        // As long as git makes them, and some more.
        let short = commit.get(..12).unwrap_or(commit);
        format!("{} (commit {short}; {})", env!("CARGO_PKG_VERSION"), FEATURES.join(", "))
    });
    &TEXT
}

/// The version, and after it the commit, the target and what is built in, a line each.
pub(crate) fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let codecs: Vec<_> = CODECS.iter().map(|codec| codec.name()).collect();
        let policies: Vec<_> = narrows_classic::policies().iter().map(|policy| policy.name).collect();
        [
            env!("CARGO_PKG_VERSION").to_owned(),
            format!("commit: {}", env!("NARROWS_COMMIT")),
            format!("target: {}{}", env!("NARROWS_TARGET"), BUILD),
            format!("stream format: {}", frame::VERSION),
            format!("features: {}", FEATURES.join(" ")),
            format!("codecs: {}", codecs.join(" ")),
            format!("policies: {}", policies.join(" ")),
        ]
        .join("\n")
    });
    &TEXT
}

/// What is printed for a command line that asks for the version and nothing else.
pub(crate) fn asked(words: &[OsString]) -> Option<String> {
    let [_, word] = words else { return None };
    let text = match word.to_str()? {
        "-V" => short(),
        "--version" => long(),
        _ => return None,
    };
    Some(format!("narrows {text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_that_of_the_whole_parser() {
        for word in ["-V", "--version"] {
            let words = ["narrows".into(), OsString::from(word)];
            let Err(whole) = crate::args::command().try_get_matches_from(&words) else { panic!("{word}") };
            assert_eq!(asked(&words), Some(whole.to_string()));
        }
        for words in [&["narrows"][..], &["narrows", "--version", "x"], &["narrows", "--help"]] {
            assert_eq!(asked(&words.iter().map(OsString::from).collect::<Vec<_>>()), None);
        }
    }

    #[test]
    fn features_are_those_of_the_manifest() {
        let manifest = include_str!("../Cargo.toml");
        let of_ours = manifest.lines().filter(|line| line.starts_with("narrows") && line.contains("features"));
        let mut named: Vec<_> = of_ours
            .flat_map(|line| line.split("features = [").nth(1).unwrap_or_default().split('"').skip(1).step_by(2))
            .collect();
        named.sort_unstable();
        assert_eq!(named, FEATURES);
    }
}
