//! `narrows cp` of sources that change, shrink, vanish or become unreadable during the copy: what
//! is stored, and the messages.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime};

use crate::common::copies::*;
use crate::common::relay::{Hold, Relay, await_that};
use crate::common::*;
use narrows_test::skip;

/// Length in bytes of a file whose end is not yet read when the link stalls after [`BEGUN`] bytes.
const LONG: usize = 40 << 20;
const BEGUN: u64 = 1 << 20;

/// Source and target as arguments, for both directions.
fn places(a: &Path, b: &Path, pull: bool) -> [OsString; 2] {
    if pull { [remote(a), b.into()] } else { [a.into(), remote(b)] }
}

/// Copies all of `a`; `meanwhile` runs when it has been scanned and nothing of it has been read.
fn copy_scanned(home: &Path, a: &Path, b: &Path, pull: bool, meanwhile: impl FnOnce()) -> Output {
    let relay = Relay::new(home, Hold::Down(0));
    let [from, to] = places(&a.join(""), b, pull);
    let mut copy = cp_command(home, &relay.shell());
    copy.arg("-r").args([from, to]);
    relay.run(copy, |client| relay.await_scanned(client, pull), |_| meanwhile())
}

/// Copies one long file; `meanwhile` runs when its first part has been sent.
fn copy_begun(home: &Path, a: &Path, b: &Path, pull: bool, meanwhile: impl FnOnce()) -> Output {
    copy_begun_with(home, &[], a, b, pull, meanwhile)
}

fn copy_begun_with(home: &Path, flags: &[&str], a: &Path, b: &Path, pull: bool, meanwhile: impl FnOnce()) -> Output {
    let relay = Relay::new(home, if pull { Hold::Down(BEGUN) } else { Hold::Up(BEGUN) });
    let mut copy = cp_command(home, &relay.shell());
    copy.args(flags).args(places(a, b, pull));
    relay.run(copy, |_| relay.await_held(), |_| meanwhile())
}

/// Flags of the copies whose content goes as it is, as frames that are made here, and as frames of a stored
/// file, for pushing and pulling.
const FORMS: [(&[&str], bool); 4] =
    [(&[], false), (&[], true), (&["--store-compressed"], false), (&["--store-compressed"], true)];

/// Writes a long file, as a stored one if it is `stored`; returns its path.
fn put_long(a: &Path, stored: bool, content: &[u8]) -> PathBuf {
    fs::write(a, content).unwrap();
    let mut source = a.to_path_buf();
    if stored {
        let output = finish(narrows(a.parent().unwrap()).args(["-q", "--rm"]).arg(a).spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        source.as_mut_os_string().push(".nrw");
    }
    set_mtime(&source, 1_000_000_000, 7);
    source
}

fn time(s: u64, ns: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(s, ns)
}

fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn shorten(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

#[test]
fn what_vanishes_or_becomes_something_else_before_it_is_read_is_named_and_the_rest_arrives() {
    for pull in [false, true] {
        let home = home();
        let (a, b, outside) = (home.path().join("a"), home.path().join("b"), home.path().join("outside"));
        fs::create_dir_all(a.join("gone folder")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "secret").unwrap();
        for name in
            ["first", "gone", "gone folder/file", "now a folder", "now a fifo", "now a link", "shorter", "zz last"]
        {
            fs::write(a.join(name), text(100_000)).unwrap();
        }
        let holes = File::create(a.join("sparse and shorter")).unwrap();
        holes.set_len(8 << 20).unwrap();
        holes.write_all_at(b"begin", 0).unwrap();
        let output = copy_scanned(home.path(), &a, &b, pull, || {
            for name in ["gone", "now a folder", "now a fifo", "now a link"] {
                fs::remove_file(a.join(name)).unwrap();
            }
            fs::remove_dir_all(a.join("gone folder")).unwrap();
            fs::create_dir(a.join("now a folder")).unwrap();
            symlink(outside.join("file"), a.join("now a link")).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(a.join("now a fifo")).status().unwrap().success());
            shorten(&a.join("shorter"), 0);
            shorten(&a.join("sparse and shorter"), 4096);
        });
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{said}");
        for words in [
            "cannot read gone: it has vanished",
            "cannot read gone folder/file: it has vanished",
            "cannot read now a folder: it is not a file any more",
            "cannot read now a fifo: it is not a file any more",
            "cannot read now a link: ",
            "shorter shrank while it was read",
            "sparse and shorter shrank while it was read",
        ] {
            assert!(said.lines().any(|l| l.contains(words)), "{pull} {words}: {said}");
        }
        assert!(!said.contains("os error"), "{said}");
        let mut there: Vec<_> = snapshot(&b).into_keys().collect();
        there.retain(|p| !p.as_os_str().is_empty());
        assert_eq!(there, ["first", "gone folder", "zz last"].map(PathBuf::from));
        assert_eq!(fs::read(b.join("zz last")).unwrap(), text(100_000));
    }
}

#[test]
fn files_that_are_written_before_they_are_read_are_stored_as_read_and_told() {
    for pull in [false, true] {
        let home = home();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        fs::create_dir(&a).unwrap();
        for name in ["grows", "changes", "stays"] {
            fs::write(a.join(name), text(100_000)).unwrap();
            set_mtime(&a.join(name), 1_000_000_000, 0);
        }
        let output = copy_scanned(home.path(), &a, &b, pull, || {
            append(&a.join("grows"), b"more");
            overwrite(&a.join("changes"), 5, b"new");
        });
        let said = stderr(&output);
        assert_eq!(code(&output), 4, "{said}");
        assert!(said.contains("grows changed while it was read"), "{said}");
        assert!(said.contains("changes changed while it was read"), "{said}");
        assert!(!said.contains("stays"), "{said}");
        assert_eq!(fs::read(b.join("grows")).unwrap(), text(100_000), "to the length that was announced");
        assert_eq!(fs::read(b.join("changes")).unwrap(), fs::read(a.join("changes")).unwrap());

        // The same command copies what changed, and nothing else.
        let [from, to] = places(&a.join(""), &b, pull);
        let json = json(&cp(home.path(), &[OsStr::new("-r"), OsStr::new("--json"), &from, &to]));
        assert_eq!((&json["files"], &json["files_same"]), (&2.into(), &1.into()), "{json}");
        assert_eq!(snapshot(&a), snapshot(&b));
    }
}

#[test]
fn a_long_file_that_is_written_while_it_is_read_is_stored_only_if_it_was_read_whole() {
    let content = random(LONG);
    let end = LONG as u64 - 10;
    for pull in [false, true] {
        for what in ["shrinks", "grows", "changes", "is removed"] {
            let home = home();
            let (a, b) = (home.path().join("a"), home.path().join("b"));
            fs::write(&a, &content).unwrap();
            set_mtime(&a, 1_000_000_000, 0);
            let output = copy_begun(home.path(), &a, &b, pull, || match what {
                "shrinks" => shorten(&a, end),
                "grows" => append(&a, b"more"),
                "changes" => overwrite(&a, end, b"new"),
                _ => fs::remove_file(&a).unwrap(),
            });
            let said = stderr(&output);
            let (status, words) = match what {
                "shrinks" => (2, "a shrank while it was read; it was not stored"),
                "grows" | "changes" => {
                    (4, if pull { "the source of b changed while it was read" } else { "a changed while it was read" })
                }
                _ => (0, "1 file;"),
            };
            assert_eq!(code(&output), status, "{pull} {what}: {said}");
            assert!(said.contains(words), "{pull} {what}: {said}");
            let mut expected = content.clone();
            if what == "changes" {
                expected[end as usize..][..3].copy_from_slice(b"new");
            }
            match what {
                "shrinks" => assert!(!b.exists(), "{pull}"),
                _ => assert!(fs::read(&b).unwrap() == expected, "{pull} {what}"),
            }
            assert_eq!(partials(home.path()), Vec::<PathBuf>::new());
        }
    }
}

/// As programs do that write through a mapping, or put the time back: half of the copy is of before, and
/// length and time are those of after.
#[test]
fn a_file_that_is_written_in_place_with_its_time_put_back_is_told_and_copied_again_by_the_next_run() {
    let content = random(LONG);
    let end = LONG as u64 - 10;
    for (flags, pull) in FORMS {
        // Sources are not removed where content goes as frames.
        for removes in [&[][..], &["--remove-source-files"]].into_iter().take(2 - flags.len()) {
            let is_stored = pull && !flags.is_empty();
            let flags = [flags, removes].concat();
            let home = home();
            let (a, b) = (home.path().join("a"), home.path().join("b"));
            let source = put_long(&a, is_stored, &content);
            let other = is_stored.then(|| put_long(&home.path().join("other"), true, &random(LONG + 8)[8..]));
            let output = copy_begun_with(home.path(), &flags, &a, &b, pull, || {
                match &other {
                    // Another stored file of the same length, so that no check of a frame fails.
                    Some(other) => {
                        let new = fs::read(other).unwrap();
                        assert_eq!(new.len() as u64, source.metadata().unwrap().len());
                        overwrite(&source, 0, &new);
                    }
                    None => {
                        overwrite(&source, 0, b"new");
                        overwrite(&source, end, b"new");
                    }
                }
                set_mtime(&source, 1_000_000_000, 7);
            });
            let said = stderr(&output);
            // Of a stored file that was replaced whole, parts of two may not fit together: the end that reads them
            // finds an index of other blocks, or the end that stores them a block of two halves.
            let is_told = code(&output) == 4 && said.contains("changed while it was read")
                || is_stored && code(&output) == 2 && said.contains("damaged")
                || is_stored && code(&output) == 1 && said.contains("a block does not match its check") && !b.exists();
            assert!(is_told, "{flags:?} {pull}: {} {said}", code(&output));
            assert!(source.exists(), "{flags:?} {pull}");

            let flags: Vec<_> = flags.iter().map(OsStr::new).collect();
            let places = places(&a, &b, pull);
            let output = cp(home.path(), &[&flags[..], &[&*places[0], &*places[1]]].concat());
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            // The other end removes it once it has heard the last word.
            await_that("the source to be removed", || removes.is_empty() || !source.exists());
            assert_eq!(source.exists(), removes.is_empty());
            let stored = home.path().join("b.nrw");
            let mut expected = if is_stored { random(LONG + 8)[8..].to_vec() } else { content.clone() };
            if !is_stored {
                expected[..3].copy_from_slice(b"new");
                expected[end as usize..][..3].copy_from_slice(b"new");
            }
            if stored.exists() {
                assert_eq!(code(&finish(narrows(home.path()).args(["-dq"]).arg(&stored).spawn().unwrap())), 0);
            }
            assert!(fs::read(&b).unwrap() == expected, "{flags:?} {pull}");
            assert_eq!(fs::metadata(&b).unwrap().modified().unwrap(), time(1_000_000_000, 7));
        }
    }
}

#[test]
fn a_file_of_which_only_the_status_changes_is_stored_and_removed() {
    let content = random(LONG);
    for (flags, pull) in FORMS {
        let home = home();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        let source = put_long(&a, pull && !flags.is_empty(), &content);
        let removes = flags.is_empty();
        let flags = if removes { &["--remove-source-files"] } else { flags };
        let output = copy_begun_with(home.path(), flags, &a, &b, pull, || {
            fs::set_permissions(&source, fs::Permissions::from_mode(0o604)).unwrap();
            fs::hard_link(&source, home.path().join("another name")).unwrap();
        });
        assert_eq!(code(&output), 0, "{flags:?} {pull}: {}", stderr(&output));
        assert!(!stderr(&output).contains("changed"), "{}", stderr(&output));
        // The other end removes it once it has heard the last word.
        await_that("the source to be removed", || !removes || !source.exists());
    }
}

#[test]
fn a_file_that_changes_behind_its_chunks_never_replaces_the_earlier_state() {
    let (old, new) = (text(LONG), random(LONG));
    for pull in [false, true] {
        let home = home();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        fs::write(&a, &new).unwrap();
        fs::write(&b, &old).unwrap();
        // All chunks were announced before any content.
        let output = copy_begun(home.path(), &a, &b, pull, || overwrite(&a, LONG as u64 - 10, b"new"));
        let said = stderr(&output);
        assert_eq!(code(&output), 1, "{said}");
        assert!(said.contains("its content is not what was read; copy it again"), "{said}");
        assert!(fs::read(&b).unwrap() == old);
        let output = cp(home.path(), &places(&a, &b, pull).each_ref().map(|p| &**p));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(fs::read(&b).unwrap() == fs::read(&a).unwrap());
        assert_eq!(partials(home.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn what_may_not_be_read_is_named_and_the_rest_arrives() {
    let home = home();
    // Root can read everything, so the program then runs as another user.
    let other = rustix::process::geteuid().is_root().then_some(65_534);
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let run = |shell: &Path, args: &[&OsStr]| {
        let mut command = cp_command(home.path(), shell);
        if let Some(id) = other {
            command.uid(id).gid(id);
        }
        command.args(args).spawn().map(finish)
    };
    let a = home.path().join("a");
    fs::create_dir_all(a.join("closed folder")).unwrap();
    for name in ["closed folder/in it", "closed", "open"] {
        fs::write(a.join(name), name).unwrap();
    }
    for name in ["closed folder", "closed"] {
        fs::set_permissions(a.join(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let shell = shell(home.path());
    for pull in [false, true] {
        let b = home.path().join(if pull { "pulled" } else { "pushed" });
        let [from, to] = places(&a.join(""), &b, pull);
        let Ok(output) = run(&shell, &[OsStr::new("-r"), &from, &to]) else {
            skip("the program cannot be run as another user here");
            break;
        };
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{said}");
        assert!(said.contains("cannot read closed: Permission denied\n"), "{said}");
        assert!(said.contains("cannot read the folder closed folder: Permission denied\n"), "{said}");
        assert_eq!(fs::read(b.join("open")).unwrap(), b"open");
        assert!(!b.join("closed").exists());
        // A copy whose only source cannot be read.
        let [from, to] = places(&a.join("closed"), &b.join("x"), pull);
        let output = run(&shell, &[&from, &to]).unwrap();
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        let _ = fs::set_permissions(b.join("closed folder"), fs::Permissions::from_mode(0o700));
    }
    fs::set_permissions(a.join("closed folder"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn times_in_the_future_and_the_far_past_are_kept_and_found_the_same() {
    let home = home();
    let a = home.path().join("a");
    fs::create_dir(&a).unwrap();
    // Times that every common file system can store: ext4 covers 1901 to 2446.
    for (name, s) in
        [("future", 7_000_000_000), ("2038", 1 << 31), ("1970", 0), ("before", -1), ("1902", -2_145_916_800)]
    {
        fs::write(a.join(name), name).unwrap();
        set_mtime(&a.join(name), s, 999_999_999);
    }
    for pull in [false, true] {
        let b = home.path().join(if pull { "pulled" } else { "pushed" });
        let [from, to] = places(&a.join(""), &b, pull);
        for same in [0, 5] {
            let json = json(&cp(home.path(), &[OsStr::new("-r"), OsStr::new("--json"), &from, &to]));
            assert_eq!((&json["files_same"], &json["files"]), (&same.into(), &(5 - same).into()), "{json}");
            assert_eq!(snapshot(&a), snapshot(&b));
        }
    }
}
