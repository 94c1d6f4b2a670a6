//! `narrows check`, `list --summary`, `inspect` and `-d` of packs, and their hints.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Output;

use crate::common::calls::{Failing, with_failing};
use crate::common::*;

fn run(folder: &Path, args: &[&str]) -> Output {
    finish_reading(narrows(folder).current_dir(folder).args(args).spawn().unwrap())
}

#[track_caller]
fn good(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Three files of 5 MB that cannot be shrunk, and so lie in blocks of their own.
fn make(home: &Path) {
    fs::create_dir(home.join("tree")).unwrap();
    for (name, content) in ["a", "b", "c"].iter().zip(random(15 << 20).chunks(5 << 20)) {
        fs::write(home.join("tree").join(name), content).unwrap();
    }
    good(home, &["pack", "--order", "path", "tree", "-o", "x.nrw"]);
}

#[test]
fn a_check_names_the_members_that_are_damaged() {
    let home = home();
    let h = home.path();
    make(h);
    assert!(good(h, &["check", "x.nrw"]).ends_with(", a pack of 4 entries\n"));
    assert!(good(h, &["check", "--sums", "x.nrw"]).ends_with(", a pack of 4 entries, 3 files compared\n"));
    let mut bytes = fs::read(h.join("x.nrw")).unwrap();
    // Within the content of b.
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(h.join("x.nrw"), &bytes).unwrap();
    for args in [&["check", "x.nrw"][..], &["check", "--sums", "x.nrw"]] {
        let output = run(h, args);
        assert_eq!(code(&output), 3);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("x.nrw: tree/b is damaged: "), "{said}");
        assert!(!said.contains("tree/a") && !said.contains("tree/c") && !said.contains("good"), "{said}");
    }
    let output = run(h, &["check", "--sums", "--json", "x.nrw"]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["good"], &line["pack"]["files_damaged"]), (&false.into(), &1.into()), "{line}");
    assert_eq!(line["pack"]["damaged"][0]["path"], "tree/b");
}

#[test]
fn a_damaged_directory_is_told_and_the_content_is_compared() {
    let home = home();
    let h = home.path();
    make(h);
    let mut bytes = fs::read(h.join("x.nrw")).unwrap();
    let second = narrows_file::File::open(bytes.clone()).unwrap().members()[1].wire_begin as usize;
    // The only page.
    bytes[second + 60] ^= 1;
    fs::write(h.join("x.nrw"), &bytes).unwrap();
    let output = run(h, &["check", "x.nrw"]);
    assert_eq!(code(&output), 3);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("damaged") && !said.contains("tree/"), "{said}");
}

#[test]
fn a_pack_is_a_file_for_the_other_commands() {
    let home = home();
    let h = home.path();
    make(h);
    let row: serde_json::Value = serde_json::from_str(&good(h, &["list", "--summary", "--json", "x.nrw"])).unwrap();
    assert_eq!((&row["streams"], &row["entries"]), (&2.into(), &4.into()), "{row}");
    good(h, &["inspect", "x.nrw"]);
    good(h, &["-t", "x.nrw"]);
}

/// Its raw bytes are no file that anybody packed.
#[test]
fn no_command_decodes_a_pack_as_if_it_were_a_file() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/a"), random(1 << 20)).unwrap();
    good(h, &["pack", "tree", "-o", "x.nrw"]);
    for args in [
        &["-d", "x.nrw"][..],
        &["-dc", "x.nrw"],
        &["-dcf", "x.nrw"],
        &["-df", "-o", "x", "x.nrw"],
        &["pipe", "-dc", "x.nrw"],
        &["cat", "x.nrw"],
        &["cat", "--range", "0-9", "x.nrw"],
        &["cat", "--skip-damaged", "x.nrw"],
    ] {
        let output = run(h, args);
        assert_one_line_error(&output, 2);
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(stderr(&output).contains("x.nrw: it is a pack: `narrows unpack`"), "{args:?}: {}", stderr(&output));
    }
    assert!(!h.join("x").exists());
    // Also where its output cannot be: what was packed is often there.
    fs::create_dir(h.join("x")).unwrap();
    for args in [&["-d", "x.nrw"][..], &["-df", "x.nrw"], &["pipe", "-d", "x.nrw"]] {
        let output = run(h, args);
        assert_one_line_error(&output, 2);
        assert!(stderr(&output).contains("x.nrw: it is a pack: `narrows unpack`"), "{args:?}: {}", stderr(&output));
    }
    fs::remove_dir(h.join("x")).unwrap();
    // A pipe may have other content that begins so, which nobody may be refused.
    let output = filter(h, &["-d"], &fs::read(h.join("x.nrw")).unwrap());
    assert!(code(&output) == 0 && stderr(&output).contains("begins as a pack does"), "{}", stderr(&output));
    let like = b"\x01\x09\x00\x00\x02\x00\x00\x00\x00\x00\x00\x06\x00";
    fs::write(h.join("like"), like).unwrap();
    good(h, &["like"]);
    for args in [&["-dc", "like.nrw"][..], &["cat", "like.nrw"], &["cat", "--range", "0-", "like.nrw"]] {
        let output = run(h, args);
        assert!(code(&output) == 0 && output.stdout == like, "{args:?}: {}", stderr(&output));
        assert!(output.stderr.is_empty() || stderr(&output).contains("begins as a pack does"), "{}", stderr(&output));
    }
    assert_eq!(filter(h, &["-d"], &fs::read(h.join("like.nrw")).unwrap()).stdout, like);

    // Its raw bytes in a file are what every file is.
    let mut raw = Vec::new();
    narrows_file::File::open(fs::read(h.join("x.nrw")).unwrap()).unwrap().read_to_end(&mut raw).unwrap();
    raw.remove(0);
    fs::write(h.join("raw"), &raw).unwrap();
    good(h, &["raw"]);
    assert!(run(h, &["-dc", "raw.nrw"]).stdout == raw);
}

#[test]
fn of_a_pack_that_is_cut_off_the_command_is_said_that_reads_it() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/a"), text(1 << 20)).unwrap();
    fs::write(h.join("tree/b"), random(5 << 20)).unwrap();
    good(h, &["pack", "--order", "path", "tree", "-o", "x.nrw"]);
    let whole = fs::read(h.join("x.nrw")).unwrap();
    fs::write(h.join("x.nrw"), &whole[..whole.len() / 2]).unwrap();
    for args in
        [&["list", "x.nrw"][..], &["list", "-s", "x.nrw"], &["-t", "x.nrw"], &["cat", "--range", "0-9", "x.nrw"]]
    {
        let output = run(h, args);
        assert_one_line_error(&output, 3);
        let said = stderr(&output);
        assert!(said.contains("narrows unpack") && !said.contains("skip-damaged"), "{args:?}: {said}");
    }
    for args in [&["cat", "x.nrw"][..], &["cat", "--skip-damaged", "x.nrw"], &["-dc", "x.nrw"]] {
        let output = run(h, args);
        assert_one_line_error(&output, 2);
        assert!(
            output.stdout.is_empty() && stderr(&output).contains("narrows unpack"),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    // What it says works.
    fs::create_dir(h.join("out")).unwrap();
    assert_eq!(code(&run(h, &["unpack", "x.nrw", "-C", "out"])), 3);
    assert!(fs::read(h.join("out/tree/a")).unwrap() == text(1 << 20));
}

#[test]
fn a_pack_follows_the_hint_of_the_command_line_and_of_its_name() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/words"), text(1 << 20)).unwrap();
    let len = |args: &[&str]| {
        good(h, &[&["pack", "-f", "tree", "-o", "x.nrw"], args].concat());
        h.join("x.nrw").metadata().unwrap().len()
    };
    let balanced = len(&[]);
    assert!(balanced < 1 << 19);
    assert!(len(&["--hint", "never"]) > 1 << 20);
    assert!(len(&["--hint", "methods=lz4"]) > balanced);
    assert!(len(&["--decode-rate", "2GB/s"]) > balanced);
    assert!(len(&["--mode", "archive"]) <= balanced);
    fs::write(h.join(".narrows.toml"), "[[hint]]\nfiles = \"x.nrw\"\nnever = true\n").unwrap();
    assert!(len(&[]) > 1 << 20);
    assert_eq!(len(&["--mode", "balanced"]), balanced, "the command line counts");
    assert_eq!(code(&run(h, &["pack", "-f", "tree", "-o", "x.nrw", "--hint", "never", "--policy", "balance"])), 2);
    fs::write(h.join(".narrows.toml"), "[[hint]]\nfiles = \"x.nrw\"\nnver = true\n").unwrap();
    let output = run(h, &["pack", "-f", "tree", "-o", "x.nrw"]);
    assert_one_line_error(&output, 2);
}

/// Whatever bit of the header of its frame is wrong, a pack whose directory cannot be read is no plain file.
#[test]
fn a_pack_whose_directory_does_not_decode_is_not_listed_as_a_file() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    for i in 0..20 {
        fs::write(h.join(format!("tree/name {i}")), text(100 + i)).unwrap();
    }
    good(h, &["pack", "tree", "-o", "x.nrw"]);
    let whole = fs::read(h.join("x.nrw")).unwrap();
    let at = {
        let file = narrows_file::File::open(&whole[..]).unwrap();
        let member = &file.members()[1];
        (member.wire_begin + member.entry(0).unwrap().wire_begin) as usize
    };
    let mut damaged = 0;
    for byte in at..at + 16 {
        for bit in [0, 4] {
            let mut bytes = whole.clone();
            bytes[byte] ^= 1 << bit;
            fs::write(h.join("x.nrw"), &bytes).unwrap();
            for args in [&["list", "x.nrw"][..], &["list", "--summary", "x.nrw"], &["-l", "x.nrw"]] {
                let output = run(h, args);
                let listed = String::from_utf8_lossy(&output.stdout).into_owned();
                let is_whole = listed.contains("name 7") || args[0] != "list" || args.len() > 2;
                assert!(code(&output) == 3 || code(&output) == 0 && is_whole, "{byte}.{bit} {args:?}: {listed}");
                damaged += u32::from(code(&output) == 3);
            }
            // Nor are its raw bytes those of a file.
            for args in [&["cat", "x.nrw"][..], &["-dc", "x.nrw"]] {
                let output = run(h, args);
                assert!(code(&output) > 0 && output.stdout.is_empty(), "{byte}.{bit} {args:?}");
            }
        }
    }
    assert!(damaged > 20, "{damaged}");
}

/// Of a file whose end cannot be read nobody knows that it is no pack.
#[test]
fn a_pack_whose_end_cannot_be_read_is_not_decoded() {
    let home = home();
    let h = home.path();
    make(h);
    let len = fs::metadata(h.join("x.nrw")).unwrap().len();
    for args in [&["cat", "x.nrw"][..], &["-dc", "x.nrw"], &["pipe", "-dc", "x.nrw"], &["list", "x.nrw"]] {
        // What is decoded from the beginning is read by another call, which succeeds.
        let failing = [Failing::From(libc::SYS_pread64, len / 2)];
        let Some(output) = with_failing(&failing, libc::EIO, || run(h, args)) else { return };
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains("Input/output error") && output.stdout.is_empty(), "{args:?}");
    }
}
