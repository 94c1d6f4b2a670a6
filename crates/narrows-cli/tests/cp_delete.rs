//! `narrows cp --delete`: removes everything at the target that the sources do not have, nothing
//! else, and nothing at all if the copy is incomplete. Also `--owner`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::copies::*;
use crate::common::*;
use narrows_test::{has, skip};

/// Location of the two ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Put,
    Get,
    Local,
}

const WAYS: [Way; 3] = [Way::Put, Way::Get, Way::Local];

/// Copies `from` (with or without a slash at its end) to `to`, with `-r --delete`.
fn delete(home: &Path, way: Way, flags: &[&str], from: &Path, to: &Path) -> Output {
    let from = if way == Way::Get { remote(from) } else { from.into() };
    let to = if way == Way::Put { remote(to) } else { to.into() };
    let args = ["-r", "--delete"].iter().chain(flags).map(OsStr::new);
    cp(home, &args.chain([&*from, &*to]).collect::<Vec<_>>())
}

fn write(root: &Path, paths: &[&str]) {
    for path in paths {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, path.file_name().unwrap().as_encoded_bytes()).unwrap();
    }
}

/// All paths below a folder, without the folder itself.
fn names(root: &Path) -> Vec<String> {
    let names = snapshot(root).into_keys().filter(|p| !p.as_os_str().is_empty());
    names.map(|p| p.to_string_lossy().into_owned()).collect()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_target_becomes_what_the_source_is_times_of_folders_included() {
    let home = home();
    for way in WAYS {
        let (a, b) = (home.path().join(format!("{way:?} a")), home.path().join(format!("{way:?} b")));
        make_tree(&a);
        let output = delete(home.path(), way, &[], &a.join(""), &b);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(snapshot(&b), snapshot(&a), "nothing is removed of what came");
        unlock(&b);
        write(&b, &["old", "a/old", "read-only/old", "deep/er/and/deeper", "locked/in"]);
        fs::remove_dir(b.join("empty")).unwrap();
        fs::write(b.join("new\nline"), "changed").unwrap();
        symlink("nowhere", b.join("a/old link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, b.join("fifo"), rustix::fs::Mode::RUSR).unwrap();
        for folder in ["read-only", "locked", "deep/er", ""] {
            fs::set_permissions(b.join(folder), fs::Permissions::from_mode(0o555)).unwrap();
        }
        let output = delete(home.path(), way, &["-v"], &a.join(""), &b);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(snapshot(&b), snapshot(&a), "{way:?}");
        let told = stdout(&output);
        let deleted: Vec<_> = told.lines().filter_map(|l| l.strip_prefix("deleting ")).collect();
        let all = ["deep/er/and/deeper", "deep/er/and/", "deep/er/", "deep/", "fifo", "locked/in", "locked/", "old"];
        for name in all.iter().chain(&["a/old", "a/old link", "read-only/old"]) {
            assert!(deleted.contains(name), "{name}: {told}");
        }
        assert_eq!(deleted.len(), 11, "{told}");
        assert!(stderr(&output).contains(", 11 removed;"), "{}", stderr(&output));
        [a, b].iter().for_each(|p| unlock(p));
    }
}

#[test]
fn beside_what_is_copied_nothing_is_touched() {
    let home = home();
    for way in WAYS {
        let h = home.path().join(format!("{way:?}"));
        write(&h, &["a/f", "b/a/f", "b/a/old", "b/sibling/f", "b/file", "outside/precious"]);
        symlink("../../outside", h.join("b/a/link")).unwrap();
        symlink("../outside", h.join("b/link")).unwrap();
        let output = delete(home.path(), way, &[], &h.join("a"), &h.join("b"));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(names(&h.join("b")), ["a", "a/f", "file", "link", "sibling", "sibling/f"], "{way:?}");
        assert_eq!(names(&h.join("outside")), ["precious"], "a link was followed");
        // What is in it: then it is the folder itself.
        let output = delete(home.path(), way, &[], &h.join("a/"), &h.join("b"));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(names(&h.join("b")), ["f"], "{way:?}");
        assert_eq!(names(&h.join("outside")), ["precious"], "a link was followed");
    }
}

#[test]
fn without_it_nothing_is_removed_and_with_two_sources_what_neither_has() {
    let home = home();
    let h = home.path();
    write(h, &["a/sub/f", "b/sub/g", "t/sub/old", "t/old", "t/f"]);
    let sources = [h.join("a/"), h.join("b/")];
    let run = |flags: &[&str]| {
        let mut args: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
        args.extend(sources.iter().map(|p| p.as_os_str()));
        let to = remote(&h.join("t"));
        let output = cp(h, &[&args[..], &[&to]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        names(&h.join("t"))
    };
    assert_eq!(run(&["-r"]), ["f", "old", "sub", "sub/f", "sub/g", "sub/old"]);
    assert_eq!(run(&["-r", "--delete"]), ["sub", "sub/f", "sub/g"]);
}

#[test]
fn a_dry_run_names_what_would_be_removed_and_removes_nothing() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    write(&a, &["f", "sub/f"]);
    write(&b, &["old/in", "sub/old", "sub/f"]);
    let before = snapshot(&b);
    for way in WAYS {
        let output = delete(home.path(), way, &["-n"], &a.join(""), &b);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let told = stdout(&output);
        let mut lines: Vec<_> = told.lines().filter(|l| l.starts_with("deleting ")).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["deleting old/", "deleting old/in", "deleting sub/old"], "{way:?}");
        assert!(stderr(&output).contains(", 3 to be removed"), "{}", stderr(&output));
        let told = json(&delete(home.path(), way, &["-n", "--json"], &a.join(""), &b));
        assert_eq!((&told["deleted"], &told["not_deleted"]), (&3.into(), &serde_json::Value::Null));
        assert_eq!(snapshot(&b), before, "{way:?}");
        // Into a folder that does not exist.
        let output = delete(home.path(), way, &["-n"], &a, &home.path().join("none"));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(!stdout(&output).contains("deleting"), "{}", stdout(&output));
    }
}

#[test]
fn what_is_excluded_is_protected_there_too() {
    let home = home();
    for way in WAYS {
        let (a, b) = (home.path().join(format!("{way:?} a")), home.path().join(format!("{way:?} b")));
        write(&a, &["f", "build/new", "x.o"]);
        write(&b, &["old", "build/there", "there.o", "gone/deep/there.o", "gone/deep/old", "gone/other/old", "keep.o"]);
        let flags = ["--exclude", "*.o", "--exclude", "build/", "--include", "keep.o"];
        let output = delete(home.path(), way, &flags, &a.join(""), &b);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let left = ["build", "build/there", "f", "gone", "gone/deep", "gone/deep/there.o", "there.o"];
        assert_eq!(names(&b), left, "{way:?}");
    }
}

#[test]
fn when_anything_fails_nothing_is_removed() {
    let home = home();
    for way in WAYS {
        let h = home.path().join(format!("{way:?}"));
        let (a, b) = (h.join("a"), h.join("b"));
        write(&a, &["f", "sub/f"]);
        write(&b, &["old", "sub/old"]);
        let refused = |flags: &[&str], words: &str| {
            let output = delete(home.path(), way, flags, &a.join(""), &b);
            assert_eq!(code(&output), 3, "{way:?}: {}", stderr(&output));
            let said = stderr(&output);
            assert!(said.contains(words) && said.contains("nothing is removed: not everything"), "{way:?}: {said}");
            assert!(b.join("old").exists() && b.join("sub/old").exists(), "{way:?}: {said}");
        };
        // Sources that the sender cannot send.
        symlink("nowhere", a.join("broken")).unwrap();
        refused(&["-L"], "cannot find broken");
        refused(&["-L", "-n"], "cannot find broken");
        fs::remove_file(a.join("broken")).unwrap();
        // A folder with excluded files is not replaced by a file, nor is an excluded file.
        write(&b, &["f2/precious"]);
        write(&a, &["f2"]);
        refused(&["--exclude", "f2/"], "a folder of that name is in the way");
        fs::remove_file(a.join("f2")).unwrap();
        fs::remove_dir_all(b.join("f2")).unwrap();
        write(&a, &["old/f"]);
        let flags = ["--exclude", "old", "--include", "old/"];
        refused(&flags, "a file of that name is in the way");
        refused(&[&flags[..], &["-n"]].concat(), "a file of that name is in the way");
        fs::remove_dir_all(a.join("old")).unwrap();
        // When nothing fails any more, it is removed.
        let output = delete(home.path(), way, &[], &a.join(""), &b);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(names(&b), ["f", "sub", "sub/f"], "{way:?}");
    }
    // A missing source.
    let h = home.path();
    write(h, &["a/f", "t/old"]);
    let sources = [h.join("a/"), h.join("none/")];
    let args =
        ["-r".into(), "--delete".into(), sources[0].clone().into(), sources[1].clone().into(), remote(&h.join("t"))];
    let output = cp(h, &args.iter().map(OsString::as_os_str).collect::<Vec<_>>());
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(h.join("t/old").exists());
}

/// A single fifo or socket must not keep a mirror from removing anything, and what has its name stays.
#[test]
fn what_is_copied_only_with_devices_is_passed_over_as_by_rsync() {
    let home = home();
    let (h, a, b) = (home.path(), home.path().join("a"), home.path().join("b"));
    write(&a, &["f", "sub/f"]);
    for name in ["fifo", "folder", "sub/fifo"] {
        rustix::fs::mkfifoat(rustix::fs::CWD, a.join(name), rustix::fs::Mode::RUSR).unwrap();
    }
    let _socket = UnixListener::bind(a.join("socket")).unwrap();
    let fill = || {
        let _ = fs::remove_dir_all(&b);
        write(&b, &["old", "fifo", "folder/kept", "socket", "sub/old"]);
    };
    let expected = ["f", "fifo", "folder", "folder/kept", "socket", "sub", "sub/f"];
    if has("rsync") {
        fill();
        let output = Command::new("rsync").args(["-rt", "--delete"]).args([&a.join(""), &b.join("")]).output().unwrap();
        assert!(output.status.success() && names(&b) == expected, "{:?} {}", names(&b), stderr(&output));
    }
    for way in WAYS {
        fill();
        for flags in [&["-n"][..], &[]] {
            let output = delete(h, way, flags, &a.join(""), &b);
            assert_eq!(code(&output), 0, "{way:?} {flags:?}: {}", stderr(&output));
            for (name, kind) in [("fifo", "fifo"), ("folder", "fifo"), ("socket", "socket"), ("sub/fifo", "fifo")] {
                let words = format!("skipped {name}: it is a {kind}; --devices copies it\n");
                assert_eq!(stderr(&output).matches(&words).count(), 1, "{way:?} {flags:?}: {}", stderr(&output));
            }
            assert_eq!(stdout(&output).contains("deleting sub/old"), !flags.is_empty(), "{}", stdout(&output));
        }
        assert_eq!(names(&b), expected, "{way:?}");
        assert_eq!(fs::read(b.join("fifo")).unwrap(), b"fifo", "{way:?}");
        let output = delete(h, way, &["--json"], &a.join(""), &b);
        let told = json(&output);
        assert!(code(&output) == 0 && told["files_failed"] == 0 && told["failures"] == serde_json::json!([]), "{told}");
        let output = delete(h, way, &["-q"], &a.join(""), &b);
        assert!(code(&output) == 0 && !stderr(&output).contains("skipped"), "{way:?}: {}", stderr(&output));
        // With --devices they are made, also in the place of what is there.
        let output = delete(h, way, &["-D"], &a.join(""), &b);
        assert!(code(&output) == 0 && stderr(&output).find("skipped").is_none(), "{way:?}: {}", stderr(&output));
        let kind = |name: &str| b.join(name).symlink_metadata().unwrap().file_type();
        assert!(["fifo", "folder", "sub/fifo"].iter().all(|name| kind(name).is_fifo()), "{way:?}");
        assert!(kind("socket").is_socket(), "{way:?}");
    }
}

#[test]
fn names_of_one_socket_are_names_of_one_copy() {
    let home = home();
    let (h, a, b) = (home.path(), home.path().join("a"), home.path().join("b"));
    write(&a, &["sub/f"]);
    let _socket = UnixListener::bind(a.join("socket")).unwrap();
    let _other = UnixListener::bind(a.join("other")).unwrap();
    let names = ["again", "socket", "sub/again"];
    names.iter().filter(|name| **name != "socket").for_each(|n| fs::hard_link(a.join("socket"), a.join(n)).unwrap());
    for way in WAYS {
        let _ = fs::remove_dir_all(&b);
        // The second copy finds them there.
        for _ in 0..2 {
            let output = delete(h, way, &["-D"], &a.join(""), &b);
            assert_eq!(code(&output), 0, "{way:?}: {}", stderr(&output));
            let data = |name: &str| b.join(name).symlink_metadata().unwrap();
            assert!(names.iter().all(|name| data(name).file_type().is_socket()), "{way:?}");
            assert!(names.iter().all(|name| data(name).ino() == data("socket").ino()), "{way:?}");
            assert_eq!((data("socket").nlink(), data("other").nlink()), (3, 1), "{way:?}");
        }
    }
}

/// A program that has it open goes on with the one it knows; a copy of its own makes no other one.
#[test]
fn a_fifo_or_socket_that_is_there_stays_the_one_it_is() {
    let home = home();
    let (h, a) = (home.path(), home.path().join("a"));
    write(&a, &["f"]);
    let make = |path: &Path| rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::from_raw_mode(0o640));
    make(&a.join("fifo")).unwrap();
    fs::hard_link(a.join("fifo"), a.join("other name")).unwrap();
    let _socket = UnixListener::bind(a.join("socket")).unwrap();
    for way in WAYS {
        let b = h.join(format!("{way:?}"));
        let data = |name: &str| b.join(name).symlink_metadata().unwrap();
        let all = || ["fifo", "other name", "socket"].map(|name| data(name).ino());
        assert_eq!(code(&delete(h, way, &["-D"], &a.join(""), &b)), 0, "{way:?}");
        let made = all();
        for flags in [&["-D", "-i"][..], &["-D", "-n"], &["-D", "--backup"]] {
            let output = delete(h, way, flags, &a.join(""), &b);
            assert!(code(&output) == 0 && stdout(&output).is_empty(), "{way:?} {flags:?}: {}", stdout(&output));
            assert_eq!(all(), made, "{way:?} {flags:?}");
            assert_eq!(entries(&b).len(), 4, "{way:?} {flags:?}: {:?}", entries(&b));
        }
        // What differs is set, and another kind is replaced.
        fs::set_permissions(b.join("fifo"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::remove_file(b.join("socket")).unwrap();
        make(&b.join("socket")).unwrap();
        assert_eq!(code(&delete(h, way, &["-D"], &a.join(""), &b)), 0, "{way:?}");
        assert_eq!(data("fifo").permissions().mode(), a.join("fifo").symlink_metadata().unwrap().permissions().mode());
        assert!(data("socket").file_type().is_socket() && data("fifo").ino() == made[0], "{way:?}");
    }
}

/// Only what is stored at the other end may go.
#[test]
fn what_is_passed_over_is_not_removed_from_the_source() {
    let home = home();
    for way in WAYS {
        let (a, b) = (home.path().join(format!("{way:?} a")), home.path().join(format!("{way:?} b")));
        write(&a, &["f"]);
        rustix::fs::mkfifoat(rustix::fs::CWD, a.join("fifo"), rustix::fs::Mode::RUSR).unwrap();
        let listener = UnixListener::bind(a.join("socket")).unwrap();
        let is_there = |name: &str| a.join(name).symlink_metadata().is_ok();
        let output = delete(home.path(), way, &["--remove-source-files"], &a.join(""), &b);
        assert_eq!(code(&output), 0, "{way:?}: {}", stderr(&output));
        assert!(!is_there("f") && is_there("fifo") && is_there("socket"), "{way:?}");
        let output = delete(home.path(), way, &["--remove-source-files", "-D"], &a.join(""), &b);
        assert_eq!(code(&output), 0, "{way:?}: {}", stderr(&output));
        assert!(!is_there("fifo") && !is_there("socket"), "{way:?}");
        drop(listener);
    }
}

#[test]
fn a_limit_removes_all_or_nothing() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    write(&a, &["f"]);
    for way in WAYS {
        write(&b, &["1", "2", "folder/3"]);
        for flags in [&["--max-delete", "3"][..], &["--max-delete", "0"], &["-n", "--max-delete", "3"]] {
            let output = delete(home.path(), way, flags, &a.join(""), &b);
            assert_eq!(code(&output), 3, "{way:?} {flags:?}: {}", stderr(&output));
            assert!(stderr(&output).contains("the limit of --max-delete"), "{}", stderr(&output));
            assert_eq!(stdout(&output).contains("deleting folder/3"), flags.contains(&"-n"), "{}", stdout(&output));
            assert!(["1", "2", "folder/3"].iter().all(|name| b.join(name).exists()), "{way:?} {flags:?}");
        }
        let told = json(&delete(home.path(), way, &["--json", "--max-delete", "4"], &a.join(""), &b));
        assert_eq!(told["deleted"], 4, "{told}");
        assert_eq!(names(&b), ["f"], "{way:?}");
    }
}

#[test]
fn wrong_use_is_refused_before_anything_happens() {
    let home = home();
    let h = home.path();
    write(h, &["file", "b/old", "a/f", "b/inner/f"]);
    symlink("a", h.join("link to folder")).unwrap();
    let here = |s: &str| h.join(s).into_os_string();
    for (args, words) in [
        (["-r", "--delete"].map(OsString::from).into_iter().chain([here("file"), here("b/")]), "is for folders"),
        (
            ["-r", "--delete"].map(OsString::from).into_iter().chain([here("file"), remote(&h.join("b"))]),
            "is for folders",
        ),
        (
            ["-r", "--delete"].map(OsString::from).into_iter().chain([remote(&h.join("file")), here("b")]),
            "is for folders",
        ),
        (
            ["-rn", "--delete"].map(OsString::from).into_iter().chain([here("link to folder"), here("b")]),
            "is for folders",
        ),
        (["-r", "--delete"].map(OsString::from).into_iter().chain([here("b/inner/"), here("b")]), "is in the target"),
        (["-q", "--delete"].map(OsString::from).into_iter().chain([here("a/"), here("b")]), "--recursive"),
        (["-r", "--max-delete=3"].map(OsString::from).into_iter().chain([here("a/"), here("b")]), "--delete"),
    ] {
        let args: Vec<_> = args.collect();
        let output = cp(h, &args.iter().map(OsString::as_os_str).collect::<Vec<_>>());
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
        assert_eq!(names(&h.join("b")), ["inner", "inner/f", "old"], "{args:?}");
    }
}

#[test]
fn what_killed_copies_left_goes_and_what_others_are_writing_stays() {
    let home = home();
    for way in WAYS {
        let (a, b) = (home.path().join(format!("{way:?} a")), home.path().join(format!("{way:?} b")));
        let partial = |n: u32| partial_name(&n.to_string(), "");
        write(&a, &["f"]);
        write(&b, &[&partial(1), &partial(2), &format!("old/{}", partial(3)), &format!("older/{}", partial(4))]);
        // Long ones are kept for their file until it is known that the file is not among the
        // sources.
        fs::write(b.join(partial(1)), random(300_000)).unwrap();
        for path in [partial(1), partial(2), format!("old/{}", partial(3)), format!("older/{}", partial(4))] {
            mark_partial(&b.join(path));
        }
        let held = [b.join(partial(2)), b.join("old").join(partial(3))].map(|path| fs::File::open(path).unwrap());
        for file in &held {
            rustix::fs::flock(file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        }
        let output = delete(home.path(), way, &[], &a.join(""), &b);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(names(&b), [&partial(2), "f", "old", &format!("old/{}", partial(3))], "{way:?}");
        drop(held);
        let told = json(&delete(home.path(), way, &["--json"], &a.join(""), &b));
        assert_eq!(names(&b), ["f"], "{way:?}");
        assert_eq!(told["deleted"], 1, "the folder; a temporary file is nobody's: {told}");
    }
}

#[test]
fn much_is_removed_and_told_to_whoever_reads_slowly() {
    const FILES: usize = 4000;
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    write(&a, &["f"]);
    let fill = || {
        fs::create_dir_all(b.join("many")).unwrap();
        (0..FILES).for_each(|i| drop(fs::File::create(b.join(format!("many/{i} {}", "x".repeat(200)))).unwrap()));
    };
    fill();
    let mut command = cp_command(home.path(), &shell(home.path()));
    let mut child = command.args(["-rv", "--delete"]).args([a.join("").into(), remote(&b)]).spawn().unwrap();
    let mut told = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        // Reads slowly, so that emptying the pipes takes longer than the wait for a last word.
        let mut text = Vec::new();
        while (&mut told).take(64 << 10).read_to_end(&mut text).unwrap() > 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
        String::from_utf8(text).unwrap()
    });
    let output = finish(child);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let told = reader.join().unwrap();
    assert_eq!(told.lines().filter(|l| l.starts_with("deleting many/")).count(), FILES + 1);
    assert_eq!(names(&b), ["f"]);
    fill();
    let told = json(&delete(home.path(), Way::Put, &["--json"], &a.join(""), &b));
    assert_eq!(told["deleted"], FILES + 1);
    assert_eq!(names(&b), ["f"]);
}

#[test]
fn folders_in_one_another_without_end_are_left() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    write(&a, &["f"]);
    let deep: PathBuf = std::iter::repeat_n("d", 140).collect();
    fs::create_dir_all(b.join("deep").join(&deep)).unwrap();
    write(&b, &["old"]);
    let output = delete(home.path(), Way::Local, &[], &a.join(""), &b);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("remove them manually"), "{}", stderr(&output));
    assert!(b.join("deep").join(&deep).exists() && !b.join("old").exists());
}

#[test]
fn what_is_mounted_in_the_target_is_left() {
    if !has("unshare") {
        return;
    }
    let home = home();
    let h = home.path();
    write(h, &["a/f", "a/came/f", "b/gone/old", "b/gone/m/x", "b/came/x", "other/precious"]);
    // Mounts of the same file system and of another, both in a folder to be removed, and one on a
    // folder that was copied.
    let script = "set -e; mkdir b/gone/tmp; mount -t tmpfs none b/gone/tmp; echo precious > b/gone/tmp/precious
        mount --bind other b/gone/m; mount -t tmpfs none b/came; echo precious > b/came/precious; set +e
        \"$0\" cp -r --delete a/ b; echo status $?; cat b/gone/tmp/precious b/came/precious";
    let run = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script, env!("CARGO_BIN_EXE_narrows")]).current_dir(h);
        command.env("XDG_CACHE_HOME", h).stdin(Stdio::null()).output()
    };
    if !run("mount -t tmpfs none b/came").is_ok_and(|o| o.status.success()) {
        return skip("nothing can be mounted here");
    }
    let output = run(script).unwrap();
    assert_eq!(stdout(&output), "status 3\nprecious\nprecious\n", "{}", stderr(&output));
    for words in ["remove gone/tmp: another file", "remove gone/m: another file", "anything in came: it is on another"]
    {
        assert!(stderr(&output).contains(words), "{words}: {}", stderr(&output));
    }
    assert_eq!(names(&h.join("other")), ["precious"]);
    assert!(!h.join("b/gone/old").exists());
}

#[test]
fn a_server_that_listens_removes_below_its_folder_only() {
    let home = home();
    let h = home.path();
    write(h, &["a/f", "served/b/old", "served/other/f", "outside/f"]);
    let mut server = narrows(h);
    server.args(["serve", "--listen", "127.0.0.1:0", "--insecure", "--json", "--dir"]).arg(h.join("served"));
    struct Ended(std::process::Child);
    impl Drop for Ended {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let mut server = Ended(server.spawn().unwrap());
    let mut line = String::new();
    let mut told = std::io::BufReader::new(server.0.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut told, &mut line).unwrap();
    let told: serde_json::Value = serde_json::from_str(&line).unwrap();
    let place = |path: &str| format!("narrows://{}/{path}", told["listening"].as_str().unwrap());
    let from = h.join("a/");
    let run = |to: &str| cp(h, &["-r", "--insecure", "--delete", &*from.to_string_lossy(), &place(to)].map(OsStr::new));
    let outputs = [run("b"), run("../outside")];
    assert_eq!(code(&outputs[0]), 0, "{}", stderr(&outputs[0]));
    assert_ne!(code(&outputs[1]), 0);
    assert_eq!(names(&h.join("served")), ["b", "b/f", "other", "other/f"]);
    assert_eq!(names(&h.join("outside")), ["f"]);
}

#[test]
fn owners_are_kept_as_far_as_asked_for_and_possible() {
    const USER: u32 = 54_321;
    let home = home();
    let h = home.path();
    write(h, &["a/f", "a/g"]);
    if chown(h.join("a/f"), Some(12_345), Some(12_346)).is_err() {
        return skip("only root can give files away");
    }
    chown(h.join("a/g"), Some(USER), Some(USER + 1)).unwrap();
    let of = |path: &str| h.join(path).metadata().map(|m| (m.uid(), m.gid())).unwrap();
    let own = of("a");
    for (flags, kept) in
        [(&[][..], true), (&["--owner"], true), (&["--no-owner"], false), (&["--owner", "--no-owner"], false)]
    {
        for far in [true, false] {
            let to = if far { remote(&h.join("b")) } else { h.join("b").into() };
            let from = h.join("a/");
            let args: Vec<_> =
                [&["-r"], flags].concat().into_iter().map(OsStr::new).chain([from.as_os_str(), &to]).collect();
            let output = cp(h, &args);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            assert!(!stderr(&output).contains("not kept"), "{}", stderr(&output));
            assert_eq!(of("b/f"), if kept { (12_345, 12_346) } else { own }, "{flags:?}");
            fs::remove_dir_all(h.join("b")).unwrap();
        }
    }
    // A user who is not root, but a member of another group.
    let as_user = |flags: &[&str], to: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--groups", &(USER + 1).to_string()]);
        command.arg(env!("CARGO_BIN_EXE_narrows")).args(flags).env("XDG_CACHE_HOME", h.join("user"));
        command.args(if to.is_empty() { vec![] } else { vec![h.join("a/"), h.join("user").join(to)] });
        command.stdin(Stdio::null()).output()
    };
    fs::create_dir(h.join("user")).unwrap();
    chown(h.join("user"), Some(USER), Some(USER)).unwrap();
    fs::set_permissions(h, fs::Permissions::from_mode(0o755)).unwrap();
    if !has("setpriv") {
        return;
    }
    if !as_user(&["--version"], "").is_ok_and(|o| o.status.success()) {
        return skip("this cannot be run as another user");
    }
    // The group is always tried; the owner only with --owner.
    for (flags, to, lost) in [
        (&["cp", "-rq"][..], "plain", None),
        // As by rsync, nobody is told of groups unless asked.
        (&["cp", "-r"], "plain", None),
        (&["cp", "-rv"], "verbose", Some("not kept: group of 2")),
        (&["cp", "-r", "--owner"], "all", Some("not kept: group of 2, owner of 2")),
        (&["cp", "-r", "--owner"], "all", Some("not kept: group of 2, owner of 2")),
        (&["cp", "-r", "--no-owner"], "none", None),
    ] {
        let output = as_user(flags, to).unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let said = stderr(&output);
        assert_eq!(
            said.lines().find_map(|l| l.strip_prefix("narrows: ").filter(|l| l.starts_with("not kept"))),
            lost,
            "{said}"
        );
        let group = if to == "none" { USER } else { USER + 1 };
        assert_eq!((of(&format!("user/{to}/f")), of(&format!("user/{to}/g"))), ((USER, USER), (USER, group)), "{to}");
    }
}
