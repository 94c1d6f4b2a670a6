//! `include/narrows.h` is generated from the sources and current.

use std::path::Path;
use std::{env, fs};

#[test]
fn the_committed_header_is_current() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(here).with_config(config).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    // Comments in C have no Safety sections.
    let made = c89(&String::from_utf8(made).unwrap().replace(" *\n * # Safety\n", ""));
    let path = here.join("include/narrows.h");
    if env::var_os("NARROWS_WRITE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(made == committed, "include/narrows.h is out of date: make -C bindings/c header");
    for function in [
        "narrows_writer_open",
        "narrows_encode",
        "narrows_file_pread",
        "narrows_message_send",
        "narrows_dictionary_train",
    ] {
        assert!(made.contains(&format!("{function}(")), "{function} is missing");
    }
}

/// C89 has no comments to the end of a line and no comma behind the last enumerator.
fn c89(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once("  // ").or_else(|| line.split_once(" // ")) {
        Some((code, words)) if code.starts_with(['#', '}']) => format!("{code} /* {words} */\n"),
        _ => format!("{line}\n"),
    });
    lines.collect::<String>().replace(",\n}\n", "\n}\n").replace(",\n};\n", "\n};\n")
}
