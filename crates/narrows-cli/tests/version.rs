//! Tests of `-V` and `--version`.

use crate::common::*;

fn said(word: &str) -> String {
    let output = finish(narrows(home().path()).arg(word).spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_short_version_is_one_line_and_the_long_one_has_more() {
    let line = said("-V");
    let version = concat!("narrows ", env!("CARGO_PKG_VERSION"));
    assert!(line.starts_with(&format!("{version} (commit ")) && line.ends_with("mount, tls)\n"), "{line}");
    let long = said("--version");
    assert!(long.starts_with(&format!("{version}\n")), "{long}");
    let value = |name: &str| {
        let found = long.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        found.unwrap_or_else(|| panic!("{name}: {long}")).to_owned()
    };
    let commit = value("commit");
    assert!(commit == "unknown" || commit.len() >= 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()), "{commit}");
    assert!(line.contains(commit.get(..12).unwrap_or(&commit)), "{line}");
    assert!(value("target").contains("linux"));
    assert!(value("codecs").contains("zstd") && value("policies").contains("balance"));
    assert_eq!(value("stream format"), narrows::frame::VERSION.to_string());
    assert!(value("features").contains("tls"));
}

/// The same sources give the same bytes in another folder.
#[test]
fn no_path_of_the_build_is_shown() {
    let here = env!("CARGO_MANIFEST_DIR");
    for word in ["--version", "--help"] {
        assert!(!said(word).contains(here));
    }
}
