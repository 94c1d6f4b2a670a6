//! `narrows FILE` and `narrows pipe FILE` on a terminal: what they ask, refuse, and say when they are done.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

use crate::common::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// What the program says on a terminal, without what draws the bar.
fn said(home: &Path, args: &[&str]) -> String {
    let (mut terminal, other) = terminal();
    let mut child =
        narrows(home).current_dir(home).args(args).stdout(Stdio::null()).stderr(Stdio::from(other)).spawn().unwrap();
    // The last one who has its other end is the program, so that reading ends with an error.
    let mut all = Vec::new();
    let mut buf = [0; 4096];
    while let Ok(n @ 1..) = terminal.read(&mut buf) {
        all.extend_from_slice(&buf[..n]);
    }
    let status = child.wait().unwrap();
    let text = String::from_utf8_lossy(&all).into_owned();
    assert!(status.success(), "{args:?}: {text}");
    let lines = text.split(['\r', '\n']).filter(|line| line.contains("narrows: "));
    lines.map(|line| line[line.find("narrows: ").unwrap()..].trim_end().to_owned() + "\n").collect()
}

#[test]
fn a_terminal_is_told_what_became_of_files() {
    let home = home();
    let h = home.path();
    fs::write(h.join("a"), vec![7; 4 << 20]).unwrap();
    fs::write(h.join("b"), random(1 << 20)).unwrap();
    let line = said(h, &["a"]);
    assert!(line.starts_with("narrows: a: 0.0") && line.contains("% (4.0 MiB => "), "{line}");
    assert!(line.ends_with("), a.nrw\n") && line.lines().count() == 1, "{line}");
    let line = said(h, &["-f", "a", "b"]);
    assert!(line.starts_with("narrows: 2 files compressed: ") && line.lines().count() == 1, "{line}");
    assert_eq!(said(h, &["-d", "a.nrw", "-o", "c"]), "narrows: a.nrw: 4.0 MiB, c\n");
    assert_eq!(said(h, &["-t", "a.nrw"]), "narrows: a.nrw: 4.0 MiB\n");
    for quiet in [&["-fq", "a"][..], &["-c", "a"], &["-dc", "a.nrw"]] {
        assert_eq!(said(h, quiet), "", "{quiet:?}");
    }
    // Nobody else hears anything.
    let output = finish(narrows(h).current_dir(h).args(["-f", "a", "b"]).spawn().unwrap());
    assert_eq!((code(&output), stderr(&output)), (0, String::new()));
}

/// A terminal as stdin, stdout or stderr, and its other end.
fn terminal() -> (File, File) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(terminal), other)
}

/// Runs the program on a terminal on which somebody answers; stdout is none.
fn answered(home: &Path, args: &[&str], answer: &str) -> (i32, String) {
    let (mut terminal, other) = terminal();
    let mut command = narrows(home);
    command.current_dir(home).args(args).stdin(other.try_clone().unwrap()).stderr(other);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    // It has the last descriptors of its end.
    drop(command);
    terminal.write_all(answer.as_bytes()).unwrap();
    let mut all = Vec::new();
    let mut buf = [0; 4096];
    while let Ok(n @ 1..) = terminal.read(&mut buf) {
        all.extend_from_slice(&buf[..n]);
    }
    (child.wait().unwrap().code().unwrap(), String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn a_terminal_is_asked_before_a_file_is_replaced() {
    let home = home();
    let h = home.path();
    for name in ["a", "b"] {
        fs::write(h.join(name), random(3000)).unwrap();
    }
    let is_old = |name: &str| fs::read(h.join(name)).unwrap() == b"old";
    for command in [&["pipe"][..], &["-k"]] {
        let run = |args: &[&str], answer: &str| {
            for name in ["a.nrw", "b.nrw"] {
                fs::write(h.join(name), "old").unwrap();
            }
            answered(h, &[command, args].concat(), answer)
        };
        let (status, said) = run(&["a", "b"], "n\ny\n");
        assert!(said.contains("a.nrw already exists; overwrite it? [y/N]"), "{said}");
        assert_eq!((status, is_old("a.nrw"), is_old("b.nrw")), (1, true, false), "{said}");
        let (status, said) = run(&["a"], "y\n");
        assert_eq!((status, is_old("a.nrw")), (0, false), "{said}");
        // Whoever wants no words is not asked, nor is one whose answers are the data.
        for args in [&["-q", "a"][..], &["a", "-"]] {
            let (status, said) = run(args, "y\n\u{4}");
            assert!(status == 1 && is_old("a.nrw") && said.contains("use -f to overwrite"), "{args:?}: {said}");
        }
    }
}

#[test]
fn a_terminal_gets_no_compressed_bytes() {
    let home = home();
    let h = home.path();
    fs::write(h.join("a"), random(3000)).unwrap();
    for (args, words) in [
        (&["pipe", "-c", "a"][..], "not written to a terminal"),
        (&["-c", "a"], "not written to a terminal"),
        (&["pipe", "-d"], "not read from a terminal"),
        (&["-d", "-"], "not read from a terminal"),
        (&["-t"], "not read from a terminal"),
    ] {
        let (_held, other) = terminal();
        let mut command = narrows(h);
        command.current_dir(h).args(args).stdin(other.try_clone().unwrap()).stdout(other);
        let output = finish(command.stderr(Stdio::piped()).spawn().unwrap());
        assert_one_line_error(&output, 1);
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
    let (mut held, other) = terminal();
    let child = narrows(h).current_dir(h).args(["pipe", "-cf", "a"]).stdout(other).spawn().unwrap();
    let mut begin = [0; 4];
    held.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"NRW\x1a");
    drop(held);
    let _ = child.wait_with_output();
}
