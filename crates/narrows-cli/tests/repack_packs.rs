//! `narrows repack` of packs: as small as if they had been written so, still packs, and done once.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::common::view::mount;
use crate::common::*;
use narrows_file::File as NarrowsFile;
use narrows_pack::Pack;

#[track_caller]
fn good(folder: &Path, args: &[&str]) -> Vec<u8> {
    let output = finish_reading(narrows(folder).current_dir(folder).args(args).spawn().unwrap());
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    output.stdout
}

/// A tree of some megabytes, with content that repeats.
fn make(folder: &Path) {
    fs::create_dir_all(folder.join("sub")).unwrap();
    let words = text(1 << 20);
    for i in 0..40usize {
        fs::write(folder.join(format!("sub/{i}.txt")), &words[i * 7000..i * 7000 + 90_000]).unwrap();
    }
    fs::write(folder.join("twice"), &words).unwrap();
    fs::write(folder.join("again"), &words).unwrap();
    fs::write(folder.join("noise"), random(300_000)).unwrap();
}

fn state(path: &Path) -> (u64, i64, i64, u64) {
    let data = path.metadata().unwrap();
    (data.ino(), data.mtime(), data.mtime_nsec(), data.len())
}

#[test]
fn a_pack_becomes_as_small_as_one_of_the_mode_and_stays_a_pack() {
    let home = home();
    let h = home.path();
    make(&h.join("tree"));
    good(h, &["pack", "tree", "-o", "a.nrw"]);
    good(h, &["pack", "tree", "-o", "at_once.nrw", "--mode", "archive"]);
    let path = h.join("a.nrw");
    let listed = good(h, &["list", "--json", "a.nrw"]);
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 7);
    File::open(&path).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
    let old = path.metadata().unwrap();
    good(h, &["repack", "a.nrw"]);
    let new = path.metadata().unwrap();
    assert!(new.len() < old.len() && new.ino() != old.ino(), "{} {}", new.len(), old.len());
    assert_eq!(new.modified().unwrap(), time);
    let at_once = h.join("at_once.nrw").metadata().unwrap().len();
    assert!(new.len().abs_diff(at_once) * 100 <= at_once, "{} {at_once}", new.len());
    // The directory is a stream of its own, of short blocks that stand alone.
    let file = NarrowsFile::open(File::open(&path).unwrap()).unwrap();
    let [entries, directory] = file.members() else { panic!("{} streams", file.members().len()) };
    let pack = Pack::open(File::open(&path).unwrap()).unwrap();
    assert_eq!(directory.raw_begin, pack.trailer().content_end);
    assert_eq!(directory.runs(), directory.blocks());
    assert!((0..directory.blocks()).all(|i| directory.entry(i).is_some_and(|e| e.raw_end - e.raw_begin <= 128 << 10)));
    assert!(entries.blocks() > 0);
    // It is the pack that it was.
    assert_eq!(good(h, &["list", "--json", "a.nrw"]), listed);
    good(h, &["check", "--sums", "a.nrw"]);
    for (paths, to) in [(&[][..], "all"), (&["tree/sub/7.txt", "tree/again"][..], "some")] {
        fs::create_dir(h.join(to)).unwrap();
        good(h, &[&["unpack", "a.nrw", "-C", to], paths].concat());
        for name in ["sub/7.txt", "again"] {
            assert!(
                fs::read(h.join(to).join("tree").join(name)).unwrap() == fs::read(h.join("tree").join(name)).unwrap()
            );
        }
    }
    assert_eq!(fs::read_dir(h.join("some/tree")).unwrap().count(), 2, "what was not asked for is not there");
    if let Some(mounted) = mount(&mut narrows(h), &path, &h.join("view")) {
        assert!(fs::read(h.join("view/tree/sub/7.txt")).unwrap() == fs::read(h.join("tree/sub/7.txt")).unwrap());
        mounted.unmount();
    }
}

#[test]
fn a_pack_is_done_once() {
    let home = home();
    let h = home.path();
    make(&h.join("tree"));
    good(h, &["pack", "tree", "-o", "late.nrw"]);
    good(h, &["repack", "late.nrw"]);
    good(h, &["pack", "tree", "-o", "at_once.nrw", "--mode", "archive"]);
    for name in ["late.nrw", "at_once.nrw"] {
        let path = h.join(name);
        let before = state(&path);
        let out = String::from_utf8(good(h, &["repack", "--json", name])).unwrap();
        assert!(out.contains("\"result\":\"before\""), "{name}: {out}");
        assert_eq!(state(&path), before, "{name}");
    }
    // Two packs one after another are not one that is done.
    let both = [fs::read(h.join("late.nrw")).unwrap(), fs::read(h.join("late.nrw")).unwrap()].concat();
    fs::write(h.join("both.nrw"), both).unwrap();
    let out = String::from_utf8(good(h, &["repack", "--dry-run", "both.nrw"])).unwrap();
    assert!(out.ends_with("/both.nrw\n"), "{out}");
    // Neither is one whose first stream is missing.
    let file = NarrowsFile::open(File::open(h.join("late.nrw")).unwrap()).unwrap();
    let second = file.members()[1].wire_begin as usize;
    fs::write(h.join("end.nrw"), &fs::read(h.join("late.nrw")).unwrap()[second..]).unwrap();
    let out = String::from_utf8(good(h, &["repack", "--dry-run", "end.nrw"])).unwrap();
    assert!(out.ends_with("/end.nrw\n"), "{out}");
}

#[test]
fn the_second_run_reads_only_the_ends_of_both_streams() {
    if !narrows_test::has("strace") {
        return;
    }
    let home = home();
    let h = home.path();
    make(&h.join("tree"));
    good(h, &["pack", "tree", "-o", "a.nrw", "--mode", "archive"]);
    let path = h.join("a.nrw");
    let file = NarrowsFile::open(File::open(&path).unwrap()).unwrap();
    let (first_end, len) = (file.members()[0].wire_end(), path.metadata().unwrap().len());
    let trace = h.join("trace");
    let output = std::process::Command::new("strace")
        .args(["-f", "-y", "-e", "trace=read,pread64,readv,preadv,preadv2,mmap", "-o"])
        .arg(&trace)
        .args([env!("CARGO_BIN_EXE_narrows"), "repack"])
        .arg(&path)
        .output()
        .unwrap();
    let trace = fs::read_to_string(trace).unwrap_or_default();
    if !output.status.success() && !trace.contains("exited") {
        return narrows_test::skip("processes cannot be traced here");
    }
    let reads: Vec<_> = trace.lines().filter(|line| line.contains("a.nrw>")).collect();
    assert!(!reads.is_empty(), "the trace has the reads:\n{trace}");
    let ends = [format!(", 56, {})", len - 56), format!(", 42, {})", first_end - 42)];
    assert!(reads.iter().all(|line| ends.iter().any(|end| line.contains(end))), "{reads:?} {ends:?}");
}

#[test]
fn a_pack_that_would_not_shrink_is_tried_once_and_a_damaged_one_is_left() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/noise"), random(400_000)).unwrap();
    good(h, &["pack", "tree", "-o", "a.nrw"]);
    let mut bytes = fs::read(h.join("a.nrw")).unwrap();
    for result in ["no_gain", "before"] {
        let out = String::from_utf8(good(h, &["repack", "--json", "a.nrw"])).unwrap();
        assert!(out.contains(&format!("\"result\":\"{result}\"")), "{result}: {out}");
    }
    good(h, &["check", "--sums", "a.nrw"]);
    assert!(good(h, &["list", "a.nrw"]).ends_with(b"tree/noise\n"));
    bytes[100_000] ^= 1;
    fs::write(h.join("bad.nrw"), &bytes).unwrap();
    let output = finish_reading(narrows(h).current_dir(h).args(["repack", "bad.nrw"]).spawn().unwrap());
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(fs::read(h.join("bad.nrw")).unwrap() == bytes);
}
