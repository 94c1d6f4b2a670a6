//! Packs of which a block is damaged: everything else is unpacked, and what is not is named.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::*;
use narrows_file::File;
use narrows_pack::{Content, Pack};

fn run(folder: &Path, args: &[&str]) -> Output {
    finish_reading(narrows(folder).current_dir(folder).args(args).spawn().unwrap())
}

/// A pack, in the order of its paths. `d` repeats `a`, so little but its end is where it stands; `f` is empty.
fn make(home: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let noise = random(15 << 20);
    let part = |i: usize| noise[(i * 5) << 20..][..5 << 20].to_vec();
    let files = vec![("a", part(0)), ("b", part(1)), ("d", part(0)), ("e", part(2)), ("f", Vec::new())];
    fs::create_dir(home.join("tree")).unwrap();
    for (name, content) in &files {
        fs::write(home.join("tree").join(name), content).unwrap();
    }
    fs::hard_link(home.join("tree/e"), home.join("tree/g")).unwrap();
    let output = run(home, &["pack", "--order", "path", "tree", "-o", "x.nrw"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    files
}

/// Damages the block that has this raw byte.
fn damage(home: &Path, raw: u64) {
    let mut bytes = fs::read(home.join("x.nrw")).unwrap();
    let at = {
        let file = File::open(&bytes[..]).unwrap();
        let member = &file.members()[0];
        let mut blocks = (0..member.blocks()).map(|i| member.entry(i).unwrap());
        let block = blocks.find(|block| block.raw_end > raw).unwrap();
        member.wire_begin + (block.wire_begin + block.wire_end) / 2
    };
    bytes[at as usize] ^= 1;
    fs::write(home.join("x.nrw"), bytes).unwrap();
}

/// Where the content of a file ends.
fn end_of(home: &Path, path: &str) -> u64 {
    let pack = Pack::open(fs::read(home.join("x.nrw")).unwrap()).unwrap();
    let Content::File { end_at, .. } = pack.find(path.as_bytes()).unwrap().unwrap().content else { panic!() };
    end_at
}

/// Compares what was unpacked; all files but those named are there.
#[track_caller]
fn compare(tree: &Path, files: &[(&str, Vec<u8>)], without: &[&str]) {
    for (name, content) in files {
        match fs::read(tree.join(name)) {
            Ok(there) => assert!(there == *content && !without.contains(name), "{name}"),
            Err(e) => assert!(without.contains(name), "{name}: {e}"),
        }
    }
}

#[test]
fn what_is_whole_behind_a_damaged_block_is_unpacked() {
    let home = home();
    let h = home.path();
    let files = make(h);
    // Within the content of b.
    damage(h, end_of(h, "tree/b") - (3 << 20));
    for (to, paths) in [("whole", &[][..]), ("paths", &["tree"])] {
        fs::create_dir(h.join(to)).unwrap();
        let args = [&["unpack", "x.nrw"], paths, &["-C", to]].concat();
        let output = run(h, &args);
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{to}: {said}");
        assert!(said.contains("cannot unpack tree/b: "), "{to}: {said}");
        assert!(!["a", "d", "e", "f", "g"].iter().any(|n| said.contains(&format!("tree/{n}"))), "{to}: {said}");
        compare(&h.join(to).join("tree"), &files, &["b"]);
        assert_eq!(fs::read(h.join(to).join("tree/g")).unwrap(), files[3].1);
        assert!(said.contains("4 files"), "{to}: {said}");
        assert!(entries(&h.join(to).join("tree")).len() == 5, "nothing else is left");
        // Again: what is there stays, and nothing of it is read.
        let output = run(h, &args);
        assert_eq!(code(&output), 3, "{to}: {}", stderr(&output));
        assert!(stderr(&output).contains("4 already there"), "{to}: {}", stderr(&output));
    }
}

#[test]
fn files_that_only_lost_their_digest_are_unpacked_and_told() {
    let home = home();
    let h = home.path();
    let files = make(h);
    let end = end_of(h, "tree/d");
    damage(h, end);
    for (to, paths) in [("whole", &[][..]), ("paths", &["tree/d", "tree/f"])] {
        fs::create_dir(h.join(to)).unwrap();
        let output = run(h, &[&["unpack", "x.nrw"], paths, &["-C", to]].concat());
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{to}: {said}");
        assert!(said.contains("tree/d is unpacked, but could not be compared"), "{to}: {said}");
        assert_eq!(fs::read(h.join(to).join("tree/d")).unwrap(), files[2].1);
        assert_eq!(fs::read(h.join(to).join("tree/f")).unwrap(), b"");
    }
    let output = run(h, &["check", "--sums", "x.nrw"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("tree/d is damaged: its content is whole, but its digest cannot be read"), "{said}");
}

/// What is left is a stream that is whole to its last byte.
#[test]
fn a_pack_that_is_cut_where_its_directory_begins_is_not_good() {
    let home = home();
    let h = home.path();
    let files = make(h);
    let bytes = fs::read(h.join("x.nrw")).unwrap();
    let cut = File::open(&bytes[..]).unwrap().members()[0].wire_end() as usize;
    assert!(cut < bytes.len());
    fs::write(h.join("x.nrw"), &bytes[..cut]).unwrap();
    let output = run(h, &["check", "x.nrw"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(code(&output) == 3 && said.contains("its directory is missing"), "{said}");
    for args in [&["list", "x.nrw"][..], &["list", "--json", "x.nrw"], &["list", "x.nrw", "x.nrw"]] {
        let output = run(h, args);
        assert!(code(&output) == 3 && stderr(&output).contains("its directory is missing"), "{}", stderr(&output));
    }
    let output = run(h, &["pipe", "-dc", "x.nrw"]);
    assert!(stderr(&output).contains("begins as a pack does"), "{}", stderr(&output));
    let output = run(h, &["unpack", "x.nrw"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    compare(&h.join("tree"), &files, &[]);
    // Other files of one stream are what they were.
    fs::write(h.join("other"), text(100_000)).unwrap();
    assert_eq!(code(&run(h, &["-q", "other"])), 0);
    let output = run(h, &["check", "other.nrw"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}
