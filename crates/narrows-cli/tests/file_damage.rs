//! Damaged files: every command names the same place, and what helps.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::*;
use narrows_file::File;

fn run(folder: &Path, args: &[&str]) -> Output {
    finish_reading(narrows(folder).current_dir(folder).args(args).spawn().unwrap())
}

#[track_caller]
fn good(folder: &Path, args: &[&str]) -> Vec<u8> {
    let output = run(folder, args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    output.stdout
}

/// The place that an error names.
#[track_caller]
fn place(said: &str) -> &str {
    let begin = said.find("(frame ").unwrap_or_else(|| panic!("no place in {said}"));
    &said[begin..][..said[begin..].find(')').unwrap()]
}

#[test]
fn a_damaged_block_has_one_number_and_is_passed_over() {
    let home = home();
    let h = home.path();
    let raw = text(3 << 20);
    fs::write(h.join("a"), &raw).unwrap();
    for mode in ["balanced", "archive"] {
        good(h, &["-f", "--mode", mode, "--block-max", "128K", "a"]);
        let mut bytes = fs::read(h.join("a.nrw")).unwrap();
        let block = {
            let file = File::open(&bytes[..]).unwrap();
            let member = &file.members()[0];
            assert!(member.blocks() > 8, "{mode}: {} blocks", member.blocks());
            member.entry(5).unwrap()
        };
        bytes[((block.wire_begin + block.wire_end) / 2) as usize] ^= 1;
        fs::write(h.join("a.nrw"), &bytes).unwrap();
        let cat = run(h, &["cat", "a.nrw"]);
        assert_one_line_error(&cat, 3);
        let said = stderr(&cat);
        assert!(place(&said).starts_with("(frame 5, at byte "), "{mode}: {said}");
        assert!(said.contains("a.nrw: ") && said.contains("narrows cat --skip-damaged"), "{mode}: {said}");
        let range = format!("{}-{}", block.raw_begin, raw.len());
        for args in [&["check", "a.nrw"][..], &["-t", "a.nrw"], &["cat", "--range", &range, "a.nrw"]] {
            let output = run(h, args);
            assert_eq!(code(&output), 3, "{mode} {args:?}");
            let all = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
            if args[1] == "--range" {
                // What was read before the damage is text of the file.
                assert_eq!(place(&stderr(&output)), place(&said), "{mode} {args:?}");
            } else {
                assert_eq!(place(&all), place(&said), "{mode} {args:?}: {all}");
            }
        }
        let rest = run(h, &["cat", "--skip-damaged", "a.nrw"]);
        assert_eq!(code(&rest), 3);
        assert!(raw.starts_with(&rest.stdout[..block.raw_begin as usize]), "{mode}");
    }
}

#[test]
fn a_damaged_beginning_or_end_names_what_mends_it() {
    let home = home();
    let h = home.path();
    let raw = text(1 << 20);
    fs::write(h.join("a"), &raw).unwrap();
    good(h, &["a"]);
    let whole = fs::read(h.join("a.nrw")).unwrap();
    for (what, at) in [("beginning", 1), ("end", whole.len() - 5)] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(h.join("a.nrw"), &bytes).unwrap();
        let _ = fs::remove_file(h.join("b"));
        for args in [&["cat", "a.nrw"][..], &["-t", "a.nrw"], &["-d", "a.nrw", "-o", "b"]] {
            let output = run(h, args);
            assert_one_line_error(&output, 3);
            assert!(stderr(&output).contains("narrows check --repair-index"), "{what}: {}", stderr(&output));
        }
        // Whether anything was after a damaged end is not known.
        let status = code(&run(h, &["check", "--repair-index", "a.nrw"]));
        assert_eq!(status, if what == "end" { 3 } else { 0 }, "{what}");
        assert!(good(h, &["cat", "a.nrw"]) == raw, "{what}");
    }
    // A file of another kind is not mended by it.
    fs::write(h.join("words"), "no stream").unwrap();
    assert!(!stderr(&run(h, &["cat", "words"])).contains("--repair-index"));
}
