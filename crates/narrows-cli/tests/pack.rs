//! `narrows pack`, `unpack`, `list` and `mount`: what a tree has comes back, whole or in part, from
//! files and pipes; hostile packs; the view for other programs.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::copies::*;
use crate::common::view::{Mounted, is_mounted, mount};
use crate::common::*;
use narrows::entry::{EndState, Entry, EntryKind, RecordWriter};
use narrows_file::{WriteOptions, Writer};

fn run(home: &Path, args: &[&dyn AsRef<OsStr>]) -> Output {
    finish_reading(narrows(home).current_dir(home).args(args.iter().map(|a| a.as_ref())).spawn().unwrap())
}

#[track_caller]
fn good(home: &Path, args: &[&dyn AsRef<OsStr>]) -> Output {
    let output = run(home, args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    output
}

fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn everything_of_a_tree_comes_back() {
    let home = home();
    let h = home.path();
    make_tree(&h.join("tree"));
    let before = snapshot(&h.join("tree"));
    for mode in ["fast", "balanced", "archive"] {
        good(h, &[&"pack", &"tree", &"-o", &"x.nrw", &"-f", &"--mode", &mode]);
        let back = h.join(mode);
        fs::create_dir(&back).unwrap();
        let output = good(h, &[&"unpack", &"x.nrw", &"-C", &back]);
        assert!(stderr(&output).contains("11 files;"), "{}", stderr(&output));
        assert_eq!(snapshot(&back.join("tree")), before, "{mode}");
        // Again: everything is there.
        let output = good(h, &[&"unpack", &"x.nrw", &"-C", &back, &"--json"]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["files"], &json["files_same"]), (&0.into(), &11.into()), "{json}");
        // By the directory alone it is the same.
        let some = h.join(format!("{mode} by paths"));
        fs::create_dir(&some).unwrap();
        good(h, &[&"unpack", &"x.nrw", &"tree", &"-C", &some]);
        assert_eq!(snapshot(&some.join("tree")), before, "{mode}");
        good(h, &[&"check", &"x.nrw"]);
        [back, some].iter().for_each(|p| unlock(&p.join("tree")));
    }
    unlock(&h.join("tree"));
}

/// Images are recompressed if that is asked for, and come back bit by bit from a file, a pipe, at any byte,
/// and from what repack makes. Damage in one of them is that of one file.
#[test]
fn images_of_a_tree_come_back_bit_by_bit() {
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("tree/photos")).unwrap();
    fs::write(h.join("tree/notes.txt"), text(100_000)).unwrap();
    let images: Vec<_> = (0..3).map(|i| narrows_test::jpeg(480 + i, 360, i != 1, i.into())).collect();
    for (i, image) in images.iter().enumerate() {
        fs::write(h.join(format!("tree/photos/{i}.jpg")), image).unwrap();
    }
    // No image, and one that is cut off.
    fs::write(h.join("tree/photos/empty.jpg"), b"\xff\xd8\xff").unwrap();
    fs::write(h.join("tree/photos/half.jpg"), &narrows_test::jpeg(480, 360, true, 9)[..9000]).unwrap();
    let before = snapshot(&h.join("tree"));
    let len = |name: &str| fs::metadata(h.join(name)).unwrap().len();
    for mode in ["fast", "balanced", "archive"] {
        good(h, &[&"pack", &"tree", &"-o", &"plain.nrw", &"-f", &"--mode", &mode]);
        good(h, &[&"pack", &"tree", &"-o", &"x.nrw", &"-f", &"--mode", &mode, &"--images"]);
        assert!(len("x.nrw") < len("plain.nrw"), "{mode}: {} {}", len("x.nrw"), len("plain.nrw"));
        good(h, &[&"check", &"x.nrw"]);
        let back = h.join(mode);
        fs::create_dir(&back).unwrap();
        good(h, &[&"unpack", &"x.nrw", &"-C", &back]);
        assert_eq!(snapshot(&back.join("tree")), before, "{mode}");
        let one = h.join(format!("{mode} one"));
        fs::create_dir(&one).unwrap();
        good(h, &[&"unpack", &"x.nrw", &"tree/photos/1.jpg", &"-C", &one]);
        assert!(fs::read(one.join("tree/photos/1.jpg")).unwrap() == images[1]);
    }
    let piped = h.join("piped");
    fs::create_dir(&piped).unwrap();
    let mut unpack = narrows(h).args(["unpack", "-", "-C"]).arg(&piped).stdin(Stdio::piped()).spawn().unwrap();
    unpack.stdin.take().unwrap().write_all(&fs::read(h.join("x.nrw")).unwrap()).unwrap();
    assert!(unpack.wait().unwrap().success());
    assert_eq!(snapshot(&piped.join("tree")), before);
    // Packed without images, and recompressed with them.
    good(h, &[&"pack", &"tree", &"-o", &"plain.nrw", &"-f"]);
    good(h, &[&"repack", &"--images", &"plain.nrw"]);
    assert!(len("plain.nrw") <= len("x.nrw") + 200, "{} {}", len("plain.nrw"), len("x.nrw"));
    good(h, &[&"unpack", &"plain.nrw", &"-C", &piped, &"-f"]);
    assert_eq!(snapshot(&piped.join("tree")), before);

    // Blocks of an archive need those before them.
    good(h, &[&"pack", &"tree", &"-o", &"x.nrw", &"-f", &"--images"]);
    let mut bytes = fs::read(h.join("x.nrw")).unwrap();
    let mark = bytes.windows(5).position(|w| w == b"\xcf\x84\x01Z\x01").expect("a recompressed image");
    bytes[mark + 2000] ^= 1;
    fs::write(h.join("x.nrw"), bytes).unwrap();
    assert_eq!(code(&run(h, &[&"check", &"x.nrw"])), 3);
    let rest = h.join("rest");
    fs::create_dir(&rest).unwrap();
    let output = run(h, &[&"unpack", &"x.nrw", &"-C", &rest]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let there = (0..3).filter(|i| fs::read(rest.join(format!("tree/photos/{i}.jpg"))).is_ok_and(|b| b == images[*i]));
    assert_eq!(there.count(), 2);
}

#[test]
fn fifos_devices_and_contents_of_folders_are_packed() {
    if !narrows_test::has("mkfifo") {
        return;
    }
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("tree/sub")).unwrap();
    let made = Command::new("mkfifo").arg(h.join("tree/fifo")).status().unwrap();
    assert!(made.success());
    let device = Command::new("mknod").arg(h.join("tree/null")).args(["c", "1", "3"]).stderr(Stdio::null()).status();
    let has_device = device.is_ok_and(|status| status.success());
    good(h, &[&"pack", &"tree/", &"-o", &"x.nrw"]);
    assert!(lines(&good(h, &[&"list", &"-l", &"x.nrw", &"fifo"]))[0].starts_with("prw-"));
    fs::create_dir(h.join("back")).unwrap();
    let output = run(h, &[&"unpack", &"x.nrw", &"-C", &"back"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("skipped fifo: it is a fifo; --devices"), "{}", stderr(&output));
    assert!(!h.join("back/fifo").exists());
    good(h, &[&"unpack", &"x.nrw", &"-C", &"back", &"--devices"]);
    if has_device {
        let rdev = |path: &str| fs::symlink_metadata(h.join(path)).unwrap().rdev();
        assert_eq!(rdev("back/null"), rdev("tree/null"));
    }
    assert!(h.join("back/fifo").exists() && h.join("back/sub").is_dir());
}

/// As with tar: whoever listens makes a new one.
#[test]
fn a_socket_is_left_out_with_a_warning() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/a"), "a").unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(h.join("tree/socket")).unwrap();
    let output = good(h, &[&"pack", &"tree", &"-o", &"x.nrw"]);
    assert!(stderr(&output).contains("left out tree/socket: it is a socket"), "{}", stderr(&output));
    assert_eq!(lines(&good(h, &[&"list", &"x.nrw"])), ["tree/", "tree/a"]);
    // One that was not to be packed is not worth a word.
    let output = good(h, &[&"pack", &"tree", &"-f", &"-o", &"x.nrw", &"--exclude", &"socket"]);
    assert!(!stderr(&output).contains("socket"), "{}", stderr(&output));
    fs::create_dir(h.join("back")).unwrap();
    good(h, &[&"unpack", &"x.nrw", &"-C", &"back"]);
}

#[test]
fn a_pack_goes_through_a_pipe() {
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("tree")).unwrap();
    let noise = random(100_000);
    for i in 0..50 {
        fs::write(h.join(format!("tree/{i}")), &noise).unwrap();
    }
    let packed = good(h, &[&"pack", &"tree", &"-o", &"-"]);
    assert!(packed.stdout.len() < 150_000, "{}", packed.stdout.len());
    fs::create_dir(h.join("back")).unwrap();
    let mut child = narrows(h).args(["unpack", "-", "-C"]).arg(h.join("back")).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = packed.stdout.clone();
    let feed = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = finish(child);
    feed.join().unwrap().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(snapshot(&h.join("back/tree")), snapshot(&h.join("tree")));
    // Some paths need a file.
    let output = run(h, &[&"unpack", &"-", &"tree/1"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
}

/// The folder that contents are unpacked into is the user's, unless that was asked for.
#[test]
fn an_existing_folder_keeps_its_mode_without_force() {
    let home = home();
    let h = home.path();
    ["tree", "back"].iter().for_each(|name| fs::create_dir(h.join(name)).unwrap());
    fs::write(h.join("tree/a"), "a").unwrap();
    fs::set_permissions(h.join("tree"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(h.join("back"), fs::Permissions::from_mode(0o700)).unwrap();
    good(h, &[&"pack", &"tree/", &"-o", &"x.nrw"]);
    let mode = || h.join("back").metadata().unwrap().mode() & 0o777;
    good(h, &[&"unpack", &"x.nrw", &"-C", &"back"]);
    assert_eq!((mode(), h.join("back/a").exists()), (0o700, true));
    good(h, &[&"unpack", &"x.nrw", &"-C", &"back", &"-f"]);
    assert_eq!(mode(), 0o755);
}

/// Only root can set these, and file systems such as overlays obey them: anybody may have made the pack.
#[test]
fn trusted_attributes_of_a_pack_are_not_set_without_being_asked_for() {
    let home = home();
    let h = home.path();
    ["tree", "one", "two"].iter().for_each(|name| fs::create_dir(h.join(name)).unwrap());
    fs::write(h.join("tree/a"), "a").unwrap();
    let name = "trusted.narrows";
    for path in ["tree", "tree/a"] {
        if rustix::fs::setxattr(h.join(path), name, b"x", rustix::fs::XattrFlags::empty()).is_err() {
            return narrows_test::skip("this user, or this file system, sets no trusted attributes");
        }
    }
    good(h, &[&"pack", &"tree", &"-o", &"x.nrw"]);
    let output = good(h, &[&"unpack", &"x.nrw", &"-C", &"one"]);
    assert!(stderr(&output).contains("trusted attributes"), "{}", stderr(&output));
    good(h, &[&"unpack", &"x.nrw", &"-C", &"two", &"--set-id"]);
    for path in ["tree", "tree/a"] {
        let has = |folder: &str| rustix::fs::getxattr(h.join(folder).join(path), name, &mut [0u8; 9][..]).is_ok();
        assert!(!has("one") && has("two"), "{path}");
    }
}

/// A link may lead to a file that would be replaced, and another program may have used the name meanwhile.
#[test]
fn a_pack_takes_no_name_that_is_used() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/noise"), random(20 << 20)).unwrap();
    fs::write(h.join("mine"), "mine").unwrap();
    symlink("mine", h.join("link.nrw")).unwrap();
    let output = run(h, &[&"pack", &"tree", &"-o", &"link.nrw"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("already exists; use -f"), "{}", stderr(&output));

    let part = |path: &PathBuf| path.extension().is_some_and(|e| e == "part");
    let child = narrows(h).current_dir(h).args(["pack", "tree", "-o", "x.nrw"]).spawn().unwrap();
    wait_until_it_writes_in(h, 0, &child);
    fs::write(h.join("x.nrw"), "mine").unwrap();
    let output = finish(child);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("already exists; use -f"), "{}", stderr(&output));
    for name in ["mine", "x.nrw"] {
        assert_eq!(fs::read(h.join(name)).unwrap(), b"mine");
    }
    assert!(!entries(h).iter().any(part));
    good(h, &[&"pack", &"tree", &"-o", &"link.nrw", &"-f"]);
    assert!(h.join("link.nrw").is_symlink() && h.join("mine").metadata().unwrap().len() > 20 << 20);

    // Through a link into the tree it leaves itself out.
    fs::write(h.join("tree/itself"), "old").unwrap();
    symlink("tree/itself", h.join("into.nrw")).unwrap();
    good(h, &[&"pack", &"tree", &"-o", &"into.nrw", &"-f"]);
    assert_eq!(lines(&good(h, &[&"list", &"into.nrw"])), ["tree/", "tree/noise"]);
}

#[test]
fn nothing_is_overwritten_without_force() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(h.join("tree").join(name), "packed").unwrap();
    }
    // It repeats what is not replaced.
    fs::write(h.join("tree/big"), random(50_000)).unwrap();
    fs::copy(h.join("tree/big"), h.join("tree/same as big")).unwrap();
    symlink("packed", h.join("tree/link")).unwrap();
    good(h, &[&"pack", &"tree", &"-o", &"x.nrw"]);
    let output = run(h, &[&"pack", &"tree", &"-o", &"x.nrw"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("already exists; use -f"), "{}", stderr(&output));
    fs::write(h.join("tree/a"), "mine").unwrap();
    fs::write(h.join("tree/big"), "mine").unwrap();
    fs::remove_file(h.join("tree/same as big")).unwrap();
    fs::remove_file(h.join("tree/link")).unwrap();
    symlink("mine", h.join("tree/link")).unwrap();
    let output = run(h, &[&"unpack", &"x.nrw"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("tree/a: it is there already"), "{}", stderr(&output));
    assert_eq!(fs::read(h.join("tree/a")).unwrap(), b"mine");
    assert_eq!(fs::read_link(h.join("tree/link")).unwrap(), Path::new("mine"));
    assert_eq!(fs::read(h.join("tree/same as big")).unwrap().len(), 50_000, "read from the pack itself");
    good(h, &[&"unpack", &"x.nrw", &"-f"]);
    assert_eq!(fs::read(h.join("tree/a")).unwrap(), b"packed");
    assert_eq!(fs::read_link(h.join("tree/link")).unwrap(), Path::new("packed"));
}

#[test]
fn some_paths_are_unpacked_and_listed() {
    let home = home();
    let h = home.path();
    for path in ["tree/src/a.rs", "tree/src/b.rs", "tree/src/c.txt", "tree/doc/a.md"] {
        fs::create_dir_all(h.join(path).parent().unwrap()).unwrap();
        fs::write(h.join(path), path).unwrap();
    }
    good(h, &[&"pack", &"tree", &"-o", &"x.nrw", &"--exclude", &"*.txt"]);
    let all = ["tree/", "tree/doc/", "tree/doc/a.md", "tree/src/", "tree/src/a.rs", "tree/src/b.rs"];
    assert_eq!(lines(&good(h, &[&"list", &"x.nrw"])), all);
    assert_eq!(lines(&good(h, &[&"list", &"x.nrw", &"*.rs"])), all[4..]);
    let long = lines(&good(h, &[&"list", &"-l", &"x.nrw", &"tree/doc"]));
    assert!(long[0].starts_with("drwx") && long[1].ends_with("tree/doc/a.md"), "{long:?}");
    let json: serde_json::Value =
        serde_json::from_str(&lines(&good(h, &[&"list", &"--json", &"x.nrw", &"tree/doc/a.md"]))[0]).unwrap();
    assert_eq!((&json["kind"], &json["bytes"]), (&"file".into(), &13.into()));
    let summary = lines(&good(h, &[&"list", &"--summary", &"x.nrw"]));
    assert!(summary[0].contains("Ratio") && summary[1].ends_with("x.nrw"), "{summary:?}");
    let output = run(h, &[&"list", &"x.nrw", &"tree/none"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("tree/none is not in x.nrw"), "{}", stderr(&output));
    fs::create_dir(h.join("back")).unwrap();
    let output = run(h, &[&"unpack", &"x.nrw", &"tree/s*/a.rs", &"nothing", &"-C", &"back"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing is not in x.nrw"), "{}", stderr(&output));
    assert_eq!(names(&h.join("back/tree")), ["src"]);
    assert_eq!(names(&h.join("back/tree/src")), ["a.rs"]);
    // What is no pack.
    fs::write(h.join("plain"), text(10_000)).unwrap();
    good(h, &[&"plain"]);
    assert!(lines(&good(h, &[&"list", &"plain.nrw"]))[0].contains("Ratio"));
    for args in [&["unpack", "plain.nrw", "a"][..], &["unpack", "plain.nrw"], &["mount", "plain.nrw", "back"]] {
        let args: Vec<&dyn AsRef<OsStr>> = args.iter().map(|a| a as &dyn AsRef<OsStr>).collect();
        assert_eq!(code(&run(h, &args)), 3, "{}", stderr(&run(h, &args)));
    }
}

#[test]
fn a_pack_does_not_pack_itself() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree [1]")).unwrap();
    fs::write(h.join("tree [1]/a"), "a").unwrap();
    for _ in 0..2 {
        good(h, &[&"pack", &"tree [1]", &"-f", &"-o", &"tree [1]/x#!.nrw"]);
        assert_eq!(lines(&good(h, &[&"list", &"tree [1]/x#!.nrw"])), ["tree [1]/", "tree [1]/a"]);
    }
    assert_eq!(names(&h.join("tree [1]")), ["a", "x#!.nrw"]);
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_packed() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/a"), "a").unwrap();
    let output = run(h, &[&"pack", &"tree", &"nothing", &"-o", &"x.nrw"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("cannot pack nothing"), "{}", stderr(&output));
    assert_eq!(lines(&good(h, &[&"list", &"x.nrw"])), ["tree/", "tree/a"]);
    // Whoever unpacks it hears of it too.
    fs::create_dir(h.join("back")).unwrap();
    let output = run(h, &[&"unpack", &"x.nrw", &"-C", &"back"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("cannot pack nothing") && h.join("back/tree/a").exists(), "{}", stderr(&output));
    let output = run(h, &[&"pack", &"nothing", &"-o", &"y.nrw"]);
    assert_eq!(code(&output), 1);
    assert!(!h.join("y.nrw").exists());
}

#[test]
fn a_file_that_changes_while_it_is_packed_is_told_with_status_1() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/a"), random(100 << 20)).unwrap();
    let mut child = narrows(h).current_dir(h).args(["pack", "tree", "-o", "-"]).spawn().unwrap();
    // The file is being read then, not only listed; the rest waits until the pipe is read.
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut vec![0; 1 << 20]).unwrap();
    fs::File::options().append(true).open(h.join("tree/a")).unwrap().write_all(b"more").unwrap();
    let output = finish_reading(child);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("tree/a changed while it was read"), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 changed"), "{}", stderr(&output));
}

#[test]
fn a_file_that_is_written_in_place_with_its_time_put_back_is_told_and_a_new_mode_is_not() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    let path = h.join("tree/a");
    // Holes are compared too.
    fs::write(&path, random(100 << 20)).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(110 << 20).unwrap();
    for writes in [false, true] {
        let mut child = narrows(h).current_dir(h).args(["pack", "tree", "-o", "-"]).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut vec![0; 1 << 20]).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let before = file.metadata().unwrap().modified().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600 + u32::from(writes))).unwrap();
        if writes {
            std::os::unix::fs::FileExt::write_all_at(&file, b"new", 0).unwrap();
            file.set_modified(before).unwrap();
        }
        let output = finish_reading(child);
        assert_eq!(code(&output), i32::from(writes), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("tree/a changed while it was read"), writes, "{}", stderr(&output));
    }
}

#[test]
fn a_full_disk_is_named_and_is_no_link() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/a"), random(3 << 20)).unwrap();
    let output = run(h, &[&"pack", &"tree", &"-o", &"/dev/full"]);
    assert_eq!(code(&output), 1);
    assert_eq!(stderr(&output), "narrows: cannot write /dev/full: No space left on device\n");
}

/// All commands agree that a file with something after a pack is damaged, and nothing is left out silently.
#[test]
fn what_follows_a_pack_is_refused() {
    let home = home();
    let h = home.path();
    for name in ["a", "b"] {
        fs::create_dir(h.join(name)).unwrap();
        fs::write(h.join(name).join("file"), text(300_000)).unwrap();
        good(h, &[&"pack", &name, &"-o", &format!("{name}.nrw")]);
    }
    let [a, b] = ["a.nrw", "b.nrw"].map(|name| fs::read(h.join(name)).unwrap());
    let words = filter(h, &[], b"hello\n").stdout;
    for (what, rest) in [("a pack", &b), ("itself", &a), ("a stream", &words)] {
        fs::write(h.join("c.nrw"), [&a[..], rest].concat()).unwrap();
        for args in [
            &["check", "c.nrw"][..],
            &["list", "c.nrw"],
            &["unpack", "c.nrw", "-C", "out"],
            &["unpack", "c.nrw", "a/file", "-C", "out"],
        ] {
            let _ = fs::remove_dir_all(h.join("out"));
            fs::create_dir(h.join("out")).unwrap();
            let output = finish_reading(narrows(h).current_dir(h).args(args).spawn().unwrap());
            let said = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
            assert_eq!(code(&output), 3, "{what} {args:?}: {said}");
            assert!(said.contains("follows the pack"), "{what} {args:?}: {said}");
            assert_eq!(names(&h.join("out")), [""; 0], "{what} {args:?}");
        }
        // A pipe says it at its end.
        let output =
            filter(h, &["unpack", "-", "-C", h.join("out").to_str().unwrap()], &fs::read(h.join("c.nrw")).unwrap());
        assert_eq!(code(&output), 3, "{what}: {}", stderr(&output));
        assert!(stderr(&output).contains("something else than their directory follows"), "{}", stderr(&output));
        assert_eq!(fs::read(h.join("out/a/file")).unwrap(), text(300_000));
    }
    // What is no pack may be several streams.
    fs::write(h.join("d.nrw"), words.repeat(3)).unwrap();
    good(h, &[&"check", &"d.nrw"]);
    good(h, &[&"list", &"d.nrw"]);
}

#[test]
fn names_with_backslashes_do_not_look_like_others() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("t")).unwrap();
    for name in ["a\nb", "a\\nb"] {
        fs::write(h.join("t").join(name), "").unwrap();
    }
    let packed = good(h, &[&"pack", &"-v", &"t", &"-o", &"x.nrw"]);
    for output in [packed, good(h, &[&"list", &"x.nrw"])] {
        let mut lines = lines(&output);
        lines.retain(|line| line.starts_with("t/a"));
        lines.sort();
        assert_eq!(lines, ["t/a\\\\nb", "t/a\\nb"]);
    }
}

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry { path: path.into(), kind, mode: 0o755, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() }
}

/// A stream of these records, which ends as a pack does but for the directory.
fn stream(make: impl Fn(&mut RecordWriter, &mut Vec<u8>)) -> Vec<u8> {
    let (mut records, mut raw) = (RecordWriter::default(), Vec::new());
    make(&mut records, &mut raw);
    records.finish(&mut raw);
    let mut writer = Writer::new(Vec::new(), WriteOptions::default()).unwrap();
    writer.write_all(&raw).unwrap();
    writer.finish().unwrap().0
}

fn content(records: &RecordWriter, id: u64, bytes: &[u8], raw: &mut Vec<u8>) {
    records.begin(id, raw);
    records.data(bytes, raw);
    records.end(EndState::Whole, blake3::hash(bytes).as_bytes(), raw);
}

#[test]
fn hostile_packs_store_nothing_outside() {
    let home = home();
    let h = home.path();
    let outside = h.join("outside");
    fs::create_dir(&outside).unwrap();
    let target = outside.to_str().unwrap().as_bytes().to_vec();
    let through_a_link = stream(|records, raw| {
        records.entry(&entry("out", EntryKind::Symlink { target: target.clone() }), raw).unwrap();
        let file = records.entry(&entry("out/evil", EntryKind::File { len: 4, linked: false }), raw).unwrap();
        content(records, file, b"evil", raw);
        records.entry(&entry("out/folder", EntryKind::Folder), raw).unwrap();
    });
    let twice = stream(|records, raw| {
        let kind = EntryKind::File { len: 1, linked: false };
        let one = records.entry(&entry("twice", kind.clone()), raw).unwrap();
        let two = records.entry(&entry("twice", kind), raw).unwrap();
        content(records, one, b"1", raw);
        content(records, two, b"2", raw);
    });
    let lies = stream(|records, raw| {
        let file = records.entry(&entry("lies", EntryKind::File { len: 4, linked: false }), raw).unwrap();
        records.begin(file, raw);
        records.data(b"evil", raw);
        records.end(EndState::Whole, blake3::hash(b"good").as_bytes(), raw);
        let exabytes = records.entry(&entry("huge", EntryKind::File { len: u64::MAX, linked: false }), raw).unwrap();
        records.begin(exabytes, raw);
        records.hole(u64::MAX, raw);
        records.end(EndState::Whole, blake3::hash(b"").as_bytes(), raw);
    });
    let mut leaves = stream(|records, raw| {
        records.entry(&entry("../evil", EntryKind::Folder), raw).unwrap_err();
        // Kind, length, nothing shared, the path, a folder, and zeros.
        raw.extend_from_slice(&[1, 16, 0, 7, b'.', b'.', b'/', b'e', b'v', b'i', b'l', 2, 0, 0, 0, 0, 0, 0]);
    });
    leaves.shrink_to_fit();
    for (name, bytes) in [("link", through_a_link), ("twice", twice), ("lies", lies), ("leaves", leaves)] {
        let to = h.join(name);
        fs::create_dir(&to).unwrap();
        fs::write(h.join("bad.nrw"), bytes).unwrap();
        let output = run(h, &[&"unpack", &"bad.nrw", &"-C", &to]);
        assert!([1, 3].contains(&code(&output)), "{name}: {}", stderr(&output));
        assert!(names(&outside).is_empty() && !h.join("evil").exists(), "{name}");
        assert!(names(&to).iter().all(|n| ["out", "twice"].contains(&&n[..])), "{name}: {:?}", names(&to));
    }
    assert_eq!(fs::read(h.join("twice/twice")).unwrap(), b"1");
}

#[test]
fn set_id_bits_are_kept_only_when_asked_for() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/su"), "x").unwrap();
    fs::set_permissions(h.join("tree/su"), fs::Permissions::from_mode(0o4755)).unwrap();
    good(h, &[&"pack", &"tree", &"-o", &"x.nrw"]);
    for (flag, mode) in [("--set-id", 0o104755), ("--quiet", 0o100755)] {
        let to = h.join(flag);
        fs::create_dir(&to).unwrap();
        good(h, &[&"unpack", &"x.nrw", &flag, &"-C", &to]);
        assert_eq!(fs::metadata(to.join("tree/su")).unwrap().mode(), mode, "{flag}");
    }
}

#[test]
fn other_programs_read_a_mounted_pack() {
    let home = home();
    let h = home.path();
    make_tree(&h.join("tree"));
    for i in 0..3000 {
        fs::create_dir_all(h.join(format!("tree/many/{}", i % 7))).unwrap();
        fs::write(h.join(format!("tree/many/{}/{i}", i % 7)), i.to_string()).unwrap();
    }
    good(h, &[&"pack", &"tree", &"-o", &"x.nrw"]);
    let before = snapshot(&h.join("tree"));
    let Some(mounted) = mount(&mut narrows(h), &h.join("x.nrw"), &h.join("view")) else {
        return unlock(&h.join("tree"));
    };
    let plain = |all: std::collections::BTreeMap<PathBuf, String>| {
        // A view has no holes.
        all.into_iter().map(|(path, words)| (path, words.replace("sparse true", "sparse false"))).collect::<Vec<_>>()
    };
    assert_eq!(plain(snapshot(&h.join("view/tree"))), plain(before));
    assert!(
        Command::new("diff")
            .args(["-r", "--no-dereference"])
            .arg(h.join("tree"))
            .arg(h.join("view/tree"))
            .status()
            .unwrap()
            .success()
    );
    assert!(fs::write(h.join("view/tree/new"), "x").is_err(), "it is read-only");
    assert_eq!(fs::read(h.join("view/tree/nothing")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    mounted.unmount();
    unlock(&h.join("tree"));
}

#[test]
fn a_mounted_pack_that_is_damaged_gives_errors_and_ends_at_a_signal() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/noise"), random(3 << 20)).unwrap();
    fs::write(h.join("tree/z"), "fine").unwrap();
    good(h, &[&"pack", &"tree", &"-o", &"x.nrw"]);
    let mut bytes = fs::read(h.join("x.nrw")).unwrap();
    bytes[1000] ^= 1;
    fs::write(h.join("x.nrw"), bytes).unwrap();
    let Some(mut mounted) = mount(&mut narrows(h), &h.join("x.nrw"), &h.join("view")) else { return };
    assert_eq!(fs::read(h.join("view/tree/noise")).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::read(h.join("view/tree/z")).unwrap(), b"fine");
    let child = mounted.child.take().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    finish(child);
    assert!(!is_mounted(&h.join("view")));
}

#[test]
fn a_mount_goes_on_in_the_background() {
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("tree")).unwrap();
    fs::create_dir(h.join("view")).unwrap();
    fs::write(h.join("tree/a"), "a").unwrap();
    good(h, &[&"pack", &"tree", &"-o", &"x.nrw"]);
    let Some(first) = mount(&mut narrows(h), &h.join("x.nrw"), &h.join("view")) else { return };
    first.unmount();
    good(h, &[&"mount", &"x.nrw", &"view"]);
    let background = Mounted { child: None, folder: h.join("view") };
    assert_eq!(fs::read(h.join("view/tree/a")).unwrap(), b"a");
    assert!(Command::new("umount").arg(&background.folder).status().unwrap().success());
    assert_eq!(names(&h.join("view")), [""; 0]);
    let output = run(h, &[&"mount", &"x.nrw", &"nowhere"]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("cannot mount on nowhere"), "{}", stderr(&output));
}
