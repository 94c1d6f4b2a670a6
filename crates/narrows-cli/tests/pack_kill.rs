//! `narrows pack` and `unpack` that are killed at any moment: nothing under a final name that is not
//! whole, and the same command completes the work.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::copies::*;
use crate::common::*;

/// Rounds at least, and at most: when a kill hits depends on the load of the machine.
const ROUNDS: u32 = 24;
const ROUNDS_MAX: u32 = 8 * ROUNDS;

fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = narrows(home);
    command.current_dir(home).args(args.iter().map(OsStr::new));
    command
}

/// A tree whose packing takes a while: text, numbers, repeats, a large file.
fn make_source(tree: &Path) {
    make_tree(tree);
    for i in 0..60 {
        let path = tree.join(["", "a", "a/b"][i % 3]).join(format!("small {i}"));
        fs::write(path, if i % 2 == 0 { text(2000 + 1500 * i) } else { random(700 * i) }).unwrap();
    }
    let large = random(3 << 20);
    fs::write(tree.join("a/large"), &large).unwrap();
    fs::write(tree.join("repeated"), [&large[..2 << 20], &text(1 << 20)].concat()).unwrap();
}

/// Runs a command and kills it at a moment of the time that it takes, as `share` says.
fn killed(mut command: Command, whole: Duration, share: f64) -> (Output, Duration) {
    let begun = Instant::now();
    let mut child = command.spawn().unwrap();
    while begun.elapsed() < whole.mul_f64(share) && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    (finish_reading(child), begun.elapsed())
}

/// Kills a command in rounds until some were killed and some were completed. `check` looks at what is
/// there, `completed` also undoes it.
fn in_rounds(make: impl Fn() -> Command, check: impl Fn(), completed: impl Fn()) {
    let (mut done, mut broken, mut x) = (0, 0, 88_172_645_463_325_252u64);
    let mut whole = Duration::from_millis(100);
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS && done > 0 && broken > 0 {
            break;
        }
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (output, took) = killed(make(), whole, 1.2 * (x >> 40) as f64 / f64::from(1 << 24));
        check();
        match output.status.code() {
            None => {
                broken += 1;
                // Else no kill ever comes late enough on a slow machine.
                whole = whole.mul_f64(1.05);
            }
            Some(0) => {
                done += 1;
                whole = (whole + took) / 2;
                completed();
            }
            status => panic!("{round}: {status:?}, {}", stderr(&output)),
        }
    }
    assert!(done > 0 && broken > 0, "{done} were completed, {broken} killed");
}

/// What a program that was killed before its file was whole may have left.
fn parts(folder: &Path) -> Vec<PathBuf> {
    let is_part = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(".narrows-");
    entries(folder).into_iter().filter(is_part).collect()
}

fn has_nameless_files(folder: &Path) -> bool {
    use rustix::fs::{Mode, OFlags};
    let opened = rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR);
    if let Err(e) = &opened {
        narrows_test::skip(format!("this file system has no files without names: {e}"));
    }
    opened.is_ok()
}

#[test]
fn a_pack_that_is_killed_is_not_there_or_whole() {
    let home = home();
    let h = home.path();
    make_source(&h.join("tree"));
    let pack = || command(h, &["pack", "tree", "-o", "x.nrw", "-f", "--threads", "2"]);
    let output = finish_reading(pack().spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let x = h.join("x.nrw");
    let leaves_nothing = has_nameless_files(h);
    let whole = fs::read(&x).unwrap();
    for there_before in [true, false] {
        let is_whole = || match fs::read(&x) {
            Ok(bytes) => assert!(bytes == whole, "{} of {} bytes", bytes.len(), whole.len()),
            Err(_) => assert!(!there_before, "it was there before"),
        };
        let is_whole = || {
            is_whole();
            if leaves_nothing {
                assert_eq!(parts(h), Vec::<PathBuf>::new(), "nothing else is there");
            }
        };
        if !there_before {
            fs::remove_file(&x).unwrap();
        }
        in_rounds(pack, is_whole, || {
            is_whole();
            if !there_before {
                fs::remove_file(&x).unwrap();
            }
        });
    }
    unlock(&h.join("tree"));
}

#[test]
fn files_of_an_unpacking_that_is_killed_are_not_there_or_whole() {
    let home = home();
    let h = home.path();
    let (tree, back) = (h.join("tree"), h.join("back"));
    make_source(&tree);
    let output = finish_reading(command(h, &["pack", "tree", "-o", "x.nrw"]).spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let before = snapshot(&tree);
    let is_file = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_file());
    fs::create_dir(&back).unwrap();
    for paths in [&["unpack", "x.nrw", "-C", "back"][..], &["unpack", "x.nrw", "tree", "-C", "back"]] {
        let unpack = || command(h, paths);
        let are_whole = || {
            for path in before.keys().filter(|path| is_file(&tree.join(path))) {
                if let Ok(content) = fs::read(back.join("tree").join(path)) {
                    assert!(content == fs::read(tree.join(path)).unwrap(), "{path:?} is there and not whole");
                }
            }
        };
        in_rounds(unpack, are_whole, || {
            assert_eq!(snapshot(&back.join("tree")), before);
            assert_eq!(partials(&back), Vec::<PathBuf>::new());
            unlock(&back.join("tree"));
            fs::remove_dir_all(back.join("tree")).unwrap();
        });
        let output = finish_reading(unpack().spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(snapshot(&back.join("tree")), before);
        unlock(&back.join("tree"));
        fs::remove_dir_all(back.join("tree")).unwrap();
    }
    unlock(&tree);
}
