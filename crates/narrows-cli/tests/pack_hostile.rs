//! Packs that somebody made to do harm.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use narrows::entry::{Entry, EntryKind, RecordWriter};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::*;

fn folder(path: String) -> Entry {
    let path = path.into_bytes();
    Entry { path, kind: EntryKind::Folder, mode: 0o755, uid: 0, gid: 0, mtime_s: 1, mtime_ns: 0, xattrs: Vec::new() }
}

/// Writes a pack that has only its entries.
fn make(home: &Path, entries: impl IntoIterator<Item = Entry>) {
    let (mut records, mut raw) = (RecordWriter::default(), Vec::new());
    for entry in entries {
        records.entry(&entry, &mut raw).unwrap();
    }
    records.finish(&mut raw);
    let output = filter(home, &["pipe", "--index"], &raw);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    fs::write(home.join("x.nrw"), output.stdout).unwrap();
}

/// The kernel takes the highest number for "leave it as it is".
#[test]
fn an_owner_that_cannot_be_is_not_kept_and_told() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("out")).unwrap();
    let link = EntryKind::Symlink { target: b"x".to_vec() };
    let of_nobody = |entry| Entry { uid: u32::MAX, gid: u32::MAX, ..entry };
    make(h, [of_nobody(folder("a".into())), of_nobody(Entry { kind: link, ..folder("b".into()) })]);
    let output = finish(narrows(h).current_dir(h).args(["unpack", "--owner", "x.nrw", "-C", "out"]).spawn().unwrap());
    let said = stderr(&output);
    assert!(said.contains("owner of 2") && said.contains("group of 2"), "{said}");
    assert!(h.join("out/a").is_dir() && h.join("out/b").is_symlink(), "{said}");
}

/// A block of some kilobytes can be a hundred thousand folders: the rest of it is not made after a signal.
#[test]
fn a_signal_ends_unpacking_within_a_block() {
    /// Lines about so many folders do not fit a pipe, at which the program waits.
    const FOLDERS: usize = 10_000;
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("out")).unwrap();
    let top = "a".repeat(200);
    make(h, (0..=FOLDERS).map(|i| folder(if i == 0 { top.clone() } else { format!("{top}/{i:05}") })));
    let mut command = narrows(h);
    command.current_dir(h).args(["unpack", "-v", "x.nrw", "-C", "out"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = finish_reading(child);
    assert!(!output.status.success(), "{}", stderr(&output));
    let last = format!("{top}/{FOLDERS:05}");
    assert!(h.join("out").join(&top).is_dir() && !h.join("out").join(last).exists(), "{}", stderr(&output));
}
