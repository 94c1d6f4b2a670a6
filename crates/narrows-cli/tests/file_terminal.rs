//! `narrows FILE` on a terminal: what it says when it is done.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::common::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// What the program says on a terminal, without what draws the bar.
fn said(home: &Path, args: &[&str]) -> String {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let other = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let mut child =
        narrows(home).current_dir(home).args(args).stdout(Stdio::null()).stderr(Stdio::from(other)).spawn().unwrap();
    // The last one who has its other end is the program, so that reading ends with an error.
    let mut all = Vec::new();
    let mut buf = [0; 4096];
    let mut terminal = File::from(terminal);
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
