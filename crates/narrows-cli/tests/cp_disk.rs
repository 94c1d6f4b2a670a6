//! `narrows cp` to disks that are full, read-only or failing, from failing disks, and into folders
//! that somebody else changes meanwhile: messages, what is stored, and that nothing is written
//! outside the target.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::common::calls::{Failing, with_failing};
use crate::common::copies::*;
use crate::common::mount::Mount;
use crate::common::*;
use narrows_test::skip;

/// Copies everything in `a` to `b`: to another host, from one, and locally.
fn ways(a: &Path, b: &Path) -> [[OsString; 2]; 3] {
    let (a, b) = (a.join(""), b.join(""));
    [[a.clone().into(), remote(&b)], [remote(&a), b.clone().into()], [a.into(), b.into()]]
}

fn copy(home: &Path, way: &[OsString; 2]) -> Output {
    cp(home, &[OsStr::new("-r"), &way[0], &way[1]])
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        entries(folder).iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn what_finds_no_room_is_named_and_leaves_its_room_to_what_does() {
    let home = home();
    let Some(mount) = Mount::tmpfs(home.path(), "size=6m") else { return };
    let a = home.path().join("a");
    fs::create_dir(&a).unwrap();
    let (small, large) = (text(300_000), random(8 << 20));
    for name in ["a small", "b large", "c small", "d changed", "e large", "f small"] {
        fs::write(a.join(name), if name.contains("large") { &large } else { &small }).unwrap();
    }
    fs::write(a.join("d changed"), random(5 << 20)).unwrap();
    for (i, way) in ways(&a, &mount.path().join("b")).iter().enumerate() {
        let b = mount.path().join("b");
        fs::create_dir(&b).unwrap();
        // An earlier state of this file exists, and the new one does not fit beside it.
        fs::write(b.join("d changed"), random(1 << 20)).unwrap();
        let output = copy(home.path(), way);
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{i}: {said}");
        for name in ["b large", "d changed", "e large"] {
            assert!(said.contains(&format!("cannot store {name}: No space left on device\n")), "{i} {name}: {said}");
        }
        assert!(said.contains("3 files,") && said.contains(", 3 failed;"), "{said}");
        assert_eq!(names(&b), ["a small", "c small", "d changed", "f small"], "{i}");
        assert!(fs::read(b.join("d changed")).unwrap() == random(1 << 20), "the earlier state stays");
        assert!(fs::read(b.join("f small")).unwrap() == small);

        // With more room the same command copies what is missing.
        fs::remove_file(b.join("d changed")).unwrap();
        ["b large", "e large"].iter().for_each(|n| fs::write(a.join(n), "now it fits").unwrap());
        let output = copy(home.path(), way);
        assert_eq!(code(&output), 0, "{i}: {}", stderr(&output));
        assert_eq!(snapshot(&b), snapshot(&a), "{i}");
        ["b large", "e large"].iter().for_each(|n| fs::write(a.join(n), &large).unwrap());
        fs::remove_dir_all(&b).unwrap();
    }
}

#[test]
fn a_disk_without_room_for_names_is_told() {
    let home = home();
    // Inodes for the root, three folders and four files.
    let Some(mount) = Mount::tmpfs(home.path(), "nr_inodes=8") else { return };
    let a = home.path().join("a");
    for i in 0..4 {
        fs::create_dir_all(a.join(format!("folder {i}"))).unwrap();
        fs::write(a.join(format!("folder {i}/file")), "x").unwrap();
    }
    symlink("anywhere", a.join("link")).unwrap();
    for (i, way) in ways(&a, &mount.path().join("b")).iter().enumerate() {
        let output = copy(home.path(), way);
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{i}: {said}");
        assert!(said.lines().filter(|l| l.contains(": No space left on device")).count() >= 2, "{i}: {said}");
        assert_eq!(partials(mount.path()), Vec::<PathBuf>::new(), "{i}");
        fs::remove_dir_all(mount.path().join("b")).unwrap();
    }
}

#[test]
fn a_read_only_disk_is_told_and_what_is_there_is_the_same() {
    let home = home();
    let Some(mut mount) = Mount::tmpfs(home.path(), "size=1m") else { return };
    let (a, b) = (home.path().join("a"), mount.path().join("b"));
    fs::create_dir_all(a.join("folder")).unwrap();
    fs::write(a.join("there"), "the same").unwrap();
    fs::write(a.join("differs"), "new").unwrap();
    fs::create_dir(&b).unwrap();
    fs::write(b.join("differs"), "before").unwrap();
    assert_eq!(code(&cp(home.path(), &[a.join("there").as_os_str(), &remote(&b.join("there"))])), 0);
    mount.make_read_only();
    for (i, way) in ways(&a, &b).iter().enumerate() {
        let output = copy(home.path(), way);
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{i}: {said}");
        for name in ["differs", "folder"] {
            assert!(said.contains(&format!("cannot store {name}: Read-only file system\n")), "{i}: {said}");
        }
        assert!(said.contains("1 already there"), "{i}: {said}");
        assert_eq!(fs::read(b.join("differs")).unwrap(), b"before");
    }
    // A target that has to be created.
    for (i, way) in ways(&a, &b.join("new")).iter().enumerate() {
        let output = copy(home.path(), way);
        assert_eq!(code(&output), 1, "{i}: {}", stderr(&output));
        assert!(stderr(&output).contains("Read-only file system"), "{i}: {}", stderr(&output));
    }
}

#[test]
fn a_folder_that_may_not_be_written_is_told() {
    let home = home();
    if !rustix::process::geteuid().is_root() {
        // The program would make its own folders temporarily writable.
        return skip("only root can make folders of somebody else");
    }
    let other = 65_534;
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    for folder in [&a, &b, &b.join("folder")] {
        fs::create_dir_all(folder.join("folder")).unwrap();
    }
    for name in ["file", "folder/file"] {
        fs::write(a.join(name), "x").unwrap();
    }
    fs::write(b.join("folder/file"), "before").unwrap();
    let shell = shell(home.path());
    for (i, way) in ways(&a, &b).iter().enumerate() {
        for folder in [b.clone(), b.join("folder")] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o555)).unwrap();
        }
        let mut command = cp_command(home.path(), &shell);
        command.arg("-r").args(way);
        command.uid(other).gid(other);
        let Ok(child) = command.spawn() else {
            skip("the program cannot be run as another user here");
            break;
        };
        let output = finish(child);
        let said = stderr(&output);
        for name in ["file", "folder/file"] {
            assert!(said.contains(&format!("cannot store {name}: Permission denied\n")), "{i}: {said}");
        }
        assert_eq!(code(&output), 1, "{i}: {said}");
        assert_eq!(fs::read(b.join("folder/file")).unwrap(), b"before");
        assert!(!b.join("file").exists());
    }
    for folder in [b.clone(), b.join("folder")] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn a_source_that_fails_in_the_middle_is_named_and_the_rest_arrives() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::create_dir(&a).unwrap();
    for name in ["a small", "c small"] {
        fs::write(a.join(name), text(100_000)).unwrap();
    }
    fs::write(a.join("b large"), random(3 << 20)).unwrap();
    for (i, way) in ways(&a, &b).iter().enumerate() {
        for earlier in [false, true] {
            fs::create_dir(&b).unwrap();
            if earlier {
                fs::write(b.join("b large"), random(1 << 20)).unwrap();
            }
            let reading = [Failing::From(libc::SYS_pread64, 2 << 20)];
            let Some(output) = with_failing(&reading, libc::EIO, || copy(home.path(), way)) else { return };
            let said = stderr(&output);
            assert_eq!(code(&output), 3, "{i}: {said}");
            assert!(said.contains("cannot read b large: Input/output error\n"), "{i} {earlier}: {said}");
            assert!(said.contains("2 files,") && said.contains(", 1 failed;"), "{i}: {said}");
            assert_eq!(names(&b), [&["a small"][..], &["b large"][..usize::from(earlier)], &["c small"]].concat());
            if earlier {
                assert!(fs::read(b.join("b large")).unwrap() == random(1 << 20));
            }
            fs::remove_dir_all(&b).unwrap();
        }
    }
}

#[test]
fn a_folder_that_cannot_be_listed_is_told() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::create_dir_all(a.join("folder")).unwrap();
    fs::write(a.join("folder/file"), "x").unwrap();
    for (i, way) in ways(&a.join("folder"), &b).iter().enumerate() {
        let listing = [Failing::All(libc::SYS_getdents64)];
        let Some(output) = with_failing(&listing, libc::EIO, || copy(home.path(), way)) else { return };
        let said = stderr(&output);
        assert_eq!(code(&output), 2, "{i}: {said}");
        assert!(said.contains("cannot read the folder .: Input/output error\n"), "{i}: {said}");
        fs::remove_dir_all(&b).unwrap();
    }
}

#[test]
fn what_the_disk_does_not_take_gets_no_name() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("large"), random(3 << 20)).unwrap();
    for i in 0..20 {
        fs::write(a.join(format!("small {i}")), text(1000)).unwrap();
    }
    let writing = (Failing::From(libc::SYS_pwrite64, 2 << 20), 3, 20, "cannot store large: Input/output error\n");
    let syncing = (Failing::All(libc::SYS_syncfs), 1, 0, "cannot store small 7: Input/output error\n");
    for (i, way) in ways(&a, &b).iter().enumerate() {
        for (call, status, stored, words) in [writing, syncing] {
            let Some(output) = with_failing(&[call], libc::EIO, || copy(home.path(), way)) else { return };
            let said = stderr(&output);
            assert_eq!(code(&output), status, "{i}: {said}");
            assert!(said.contains(words), "{i} {words}: {said}");
            assert_eq!(names(&b).len(), stored, "{i} {words}: {said}");
            fs::remove_dir_all(&b).unwrap();
        }
    }
    // A few files are synced one by one, and their names at the end.
    let one = |call| {
        let args = [a.join("small 1").into_os_string(), remote(&b)];
        with_failing(&[Failing::All(call)], libc::EIO, || cp(home.path(), &args.each_ref().map(|p| &**p)))
    };
    let Some(output) = one(libc::SYS_fdatasync) else { return };
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot store b: Input/output error\n"), "{}", stderr(&output));
    assert!(!b.exists() && partials(home.path()).is_empty());
    let Some(output) = one(libc::SYS_syncfs) else { return };
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("names to the disk: Input/output error\n"), "{}", stderr(&output));
    assert_eq!(fs::read(&b).unwrap(), text(1000));
}

/// Links, folders and hard links are names only; these are flushed too.
#[test]
fn names_without_new_files_are_flushed() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    for folder in [&a, &b] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("f"), "x").unwrap();
        fs::File::open(folder.join("f")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let run = |flags: &[&str]| {
        let flags = flags.iter().map(OsStr::new);
        let args: Vec<_> =
            flags.chain([OsStr::new("-r"), a.join("").as_os_str(), &remote(&b)]).map(OsStr::to_owned).collect();
        let args: Vec<&OsStr> = args.iter().map(|arg| &**arg).collect();
        with_failing(&[Failing::All(libc::SYS_syncfs)], libc::EIO, || cp(home.path(), &args))
    };
    let flushes = |flags: &[&str], what: &str| {
        let Some(output) = run(flags) else { return };
        assert_eq!(code(&output), 3, "{what}: {}", stderr(&output));
        assert!(stderr(&output).contains("names to the disk: Input/output error\n"), "{what}: {}", stderr(&output));
    };
    symlink("f", a.join("link")).unwrap();
    flushes(&[], "a link");
    fs::hard_link(a.join("f"), a.join("hard")).unwrap();
    flushes(&[], "a hard link");
    fs::create_dir(a.join("folder")).unwrap();
    flushes(&[], "a folder");
    fs::remove_file(a.join("link")).unwrap();
    flushes(&["--delete"], "a removal");
    let Some(output) = run(&[]) else { return };
    assert_eq!(code(&output), 0, "nothing got a name: {}", stderr(&output));
}

/// Runs `copy` for a while, while two names are constantly swapped.
fn while_swapping(one: &Path, other: &Path, mut copy: impl FnMut()) {
    let begun = Instant::now();
    let swap = || {
        // A copy with --delete removes a link before it makes the folder in its place.
        while let Err(e) = rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
            assert!(e == Errno::NOENT && begun.elapsed() < 20 * RACE, "{e}");
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // An even number of swaps, so that the names end as they began.
            for round in (0..).take_while(|round| round % 2 == 1 || begun.elapsed() < RACE) {
                swap();
                // Varies how many files are copied between two swaps.
                std::thread::sleep(Duration::from_micros(50 * (round % 23)));
            }
        });
        while begun.elapsed() < RACE {
            copy();
        }
    });
}

/// Makes a folder of files; the names are the same in every such folder.
fn make_folder(folder: &Path, content: &str) {
    fs::create_dir_all(folder.join("sub")).unwrap();
    for i in 0..30 {
        fs::write(folder.join(format!("{i}")), format!("{content} {i}")).unwrap();
        fs::write(folder.join(format!("sub/{i}")), format!("{content} {i}")).unwrap();
    }
    fs::write(folder.join("long"), content.repeat(60_000)).unwrap();
    fs::hard_link(folder.join("1"), folder.join("linked")).unwrap();
    symlink(content, folder.join("link")).unwrap();
}

/// How long links are swapped per way.
const RACE: Duration = Duration::from_millis(700);

#[test]
fn a_link_that_takes_the_place_of_a_target_folder_leads_nothing_out() {
    let home = home();
    let [a, b, outside, aside] = ["a", "b", "outside", "aside"].map(|name| home.path().join(name));
    for (folder, content) in [(a.join("d"), "copied"), (b.join("d"), "earlier"), (outside.clone(), "outside")] {
        make_folder(&folder, content);
    }
    fs::create_dir_all(outside.join("gone/sub")).unwrap();
    fs::write(outside.join("gone/file"), "outside").unwrap();
    symlink(&outside, &aside).unwrap();
    let before = snapshot(&outside);
    let mut round = 0;
    for (i, way) in ways(&a, &b).iter().enumerate() {
        while_swapping(&b.join("d"), &aside, || {
            round += 1;
            make_other(&a.join("d"), round);
            // Deleting searches folders that may have been moved by then.
            fs::create_dir_all(b.join("d/gone/sub")).ok();
            let flags = [OsStr::new("-r"), OsStr::new("--delete")];
            let output = cp(home.path(), &[&flags[..=round as usize % 2], &[&way[0], &way[1]]].concat());
            assert!([0, 1, 2, 3].contains(&code(&output)), "{i}: {}", stderr(&output));
        });
        assert_eq!(snapshot(&outside), before, "{i}");
        if !aside.is_symlink() {
            // With --delete a link in the way of a folder is removed (decision 16), but nothing in
            // its target.
            let _ = fs::remove_dir_all(&aside);
            symlink(&outside, &aside).unwrap();
        }
    }
}

/// Changes the modification times of a folder's files, so that they are copied again.
fn make_other(folder: &Path, round: i64) {
    for path in entries(folder).into_iter().chain(entries(&folder.join("sub"))).filter(|p| p.is_file()) {
        set_mtime(&path, 1_000_000_000 + round, 0);
    }
}

#[test]
fn a_link_that_takes_the_place_of_a_source_folder_brings_nothing_in() {
    let home = home();
    let [a, b, outside] = ["a", "b", "outside"].map(|name| home.path().join(name));
    make_folder(&a.join("d"), "copied");
    make_folder(&outside, "secret");
    symlink(&outside, a.join("x")).unwrap();
    for (i, way) in ways(&a, &b).iter().enumerate() {
        while_swapping(&a.join("d"), &a.join("x"), || {
            let output = copy(home.path(), way);
            assert!([0, 1, 2, 3].contains(&code(&output)), "{i}: {}", stderr(&output));
            for path in snapshot(&b).into_keys().map(|path| b.join(path)) {
                let data = path.symlink_metadata().unwrap();
                let leaked = data.is_file() && fs::read(&path).unwrap().starts_with(b"secret")
                    || data.is_symlink() && fs::read_link(&path).unwrap() == Path::new("secret");
                assert!(!leaked, "{i}: {path:?}");
            }
            let _ = fs::remove_dir_all(&b);
        });
    }
}

#[test]
fn a_system_without_openat2_copies_all_the_same() {
    let home = home();
    let source = home.path().join("source");
    make_tree(&source);
    for (i, way) in ways(&source, &home.path().join("b")).iter().enumerate() {
        let old = [Failing::All(libc::SYS_openat2)];
        let Some(output) = with_failing(&old, libc::ENOSYS, || copy(home.path(), way)) else { break };
        assert_eq!(code(&output), 0, "{i}: {}", stderr(&output));
        assert_eq!(snapshot(&home.path().join("b")), snapshot(&source), "{i}");
        unlock(&home.path().join("b"));
        fs::remove_dir_all(home.path().join("b")).unwrap();
    }
    unlock(&source);
}
