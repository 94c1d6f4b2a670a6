//! `narrows cp` when something is in the way, ends early or sends garbage: messages, what is left
//! behind, and how the same command resumes.

use std::ffi::OsStr;
use std::fs::{self};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::copies::*;
use crate::common::*;

#[test]
fn what_is_in_the_way_fails_alone_and_nothing_leaves_the_folder() {
    for pull in [false, true] {
        let home = home();
        let (a, b, outside) = (home.path().join("a"), home.path().join("b"), home.path().join("outside"));
        for folder in [&a, &b, &outside, &a.join("trap"), &a.join("was file"), &b.join("was folder")] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(a.join("trap/file"), "must not get out").unwrap();
        fs::write(a.join("was file/x"), "x").unwrap();
        fs::write(a.join("was folder"), "x").unwrap();
        symlink("x", a.join("was folder too")).unwrap();
        fs::create_dir_all(b.join("was folder too/kept")).unwrap();
        fs::create_dir(b.join("was folder/kept")).unwrap();
        fs::write(a.join("good"), "good").unwrap();
        symlink("../outside", b.join("trap")).unwrap();
        fs::write(b.join("was file"), "x").unwrap();
        let from = if pull { remote(&a.join("")) } else { a.join("").into() };
        let to = if pull { b.clone().into() } else { remote(&b) };
        let output = cp(home.path(), &[OsStr::new("-r"), &from, &to]);
        assert_eq!(code(&output), 3, "{}", stderr(&output));
        let said = stderr(&output);
        for words in [
            "cannot store trap: a symbolic link is in the way",
            "cannot store was file: a file of that name is in the way",
            "cannot store was folder: a folder of that name is in the way",
            "cannot store was folder too: a folder of that name is in the way",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert_eq!(fs::read(b.join("good")).unwrap(), b"good");
        assert!(entries(&outside).is_empty());
        assert_eq!(partials(&b), Vec::<PathBuf>::new());
    }
}

#[test]
fn links_planted_under_the_names_of_temporary_files_lead_nowhere() {
    let home = home();
    let (a, b, outside) = (home.path().join("a"), home.path().join("b"), home.path().join("outside"));
    for folder in [&a, &b, &outside] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(outside.join("file"), random(1 << 20)).unwrap();
    symlink("anywhere", a.join("link")).unwrap();
    fs::write(a.join("short"), "short").unwrap();
    fs::write(a.join("long"), text(1 << 20)).unwrap();
    fs::write(a.join("linked"), "x").unwrap();
    fs::hard_link(a.join("linked"), a.join("linked too")).unwrap();
    for name in ["link", "short", "long", "linked", "linked too"] {
        for attempt in ["", "-1", "-8"] {
            symlink(outside.join("file"), b.join(partial_name(name, attempt))).unwrap();
        }
    }
    let before = snapshot(&outside);
    for (from, to) in [(a.join("").into_os_string(), remote(&b)), (remote(&a.join("")), b.clone().into())] {
        let output = cp(home.path(), &[OsStr::new("-r"), &from, &to]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let there = snapshot(&b);
        assert!(snapshot(&a).iter().all(|(path, words)| there.get(path) == Some(words)), "{there:?}");
        assert_eq!(snapshot(&outside), before);
        fs::remove_file(b.join("short")).unwrap();
        fs::remove_file(b.join("long")).unwrap();
    }
}

#[test]
fn what_several_cut_off_copies_left_goes() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    for folder in [&a, &b] {
        fs::create_dir(folder).unwrap();
        fs::create_dir(folder.join("in")).unwrap();
    }
    fs::write(a.join("in/long"), random(400_000)).unwrap();
    let (from, to) = (a.join(""), remote(&b));
    let args = [OsStr::new("-r"), from.as_os_str(), &to];
    for stored_before in [false, true] {
        for attempt in ["", "-1", "-7"] {
            leave_partial(&b.join("in").join(partial_name("long", attempt)), &random(300_000));
        }
        assert_eq!(code(&cp(home.path(), &args)), 0);
        assert_eq!(partials(&b), Vec::<PathBuf>::new(), "{stored_before}");
    }
}

#[test]
fn a_copy_that_ends_behind_another_of_the_same_file_leaves_nothing() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::create_dir(&b).unwrap();
    fs::write(&a, random(12 << 20)).unwrap();
    let to = remote(&b.join("a"));
    // A slow method, so that the copy can be hit in the middle.
    let slow = ["--policy", "fixed:xz", "-T", "1"];
    let mut first = cp_command(home.path(), &shell(home.path())).args(slow).arg(&a).arg(&to).spawn().unwrap();
    let begun = Instant::now();
    let large = |p: &PathBuf| p.metadata().is_ok_and(|m| m.len() > 1 << 20);
    while !entries(&b).iter().any(large) {
        assert!(begun.elapsed() < PATIENCE, "it never came so far");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&first, "-STOP");
    assert_eq!(code(&cp(home.path(), &[a.as_os_str(), &to])), 0);
    assert_eq!(partials(&b).len(), 1, "the first is still there");
    first.kill().unwrap();
    first.wait().unwrap();
    let begun = Instant::now();
    while !partials(&b).is_empty() {
        assert!(begun.elapsed() < PATIENCE, "{:?}", partials(&b));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(fs::read(b.join("a")).unwrap() == fs::read(&a).unwrap());
}

#[test]
fn a_long_file_goes_on_where_a_killed_copy_stopped() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    let content = random(60 << 20);
    fs::write(&a, &content).unwrap();
    let shell = shell(home.path());
    let mut kept = 0;
    for pause in std::iter::successors(Some(100), |pause| Some(pause * 5 / 4)) {
        // A slow method, so that the copy can be hit in the middle.
        let slow = ["--policy", "fixed:xz"];
        let mut child = cp_command(home.path(), &shell).args(slow).arg(&a).arg(remote(&b)).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        let _ = child.kill();
        child.wait().unwrap();
        // The server notices and keeps what arrived.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(10));
            let partial = entries(home.path()).into_iter().find(|p| p.to_string_lossy().ends_with(".partial"));
            kept = partial.and_then(|p| p.metadata().ok()).map_or(0, |m| m.len());
        }
        assert!(!b.exists());
        if kept > 4 << 20 {
            break;
        }
    }
    assert!(kept > 4 << 20, "the test never met a copy in the middle");
    let json = json(&cp(home.path(), &[OsStr::new("--json"), a.as_os_str(), &remote(&b)]));
    assert!(fs::read(&b).unwrap() == content);
    let wire = json["wire_bytes"].as_u64().unwrap();
    assert!(wire < content.len() as u64 - kept / 10 * 9 + 400_000, "{kept}: {json}");
    assert!(entries(home.path()).iter().all(|p| !p.to_string_lossy().ends_with(".partial")));
}

#[test]
fn a_signal_ends_a_copy_whose_other_end_says_nothing() {
    let home = home();
    fs::write(home.path().join("file"), "x").unwrap();
    let silent = home.path().join("silent");
    fs::write(&silent, "#!/bin/sh\nexec sleep 600\n").unwrap();
    fs::set_permissions(&silent, fs::Permissions::from_mode(0o755)).unwrap();
    for pull in [false, true] {
        let (here, there) = (home.path().join("file").into_os_string(), remote(Path::new("/x")));
        let (from, to) = if pull { (there, home.path().join("y").into()) } else { (here, there) };
        let child = cp_command(home.path(), &silent).args([from, to]).spawn().unwrap();
        wait_until_signals_are_caught(&child);
        signal(&child, "-TERM");
        let output = finish(child);
        assert!(output.status.code().is_none(), "it dies of the signal");
    }
}

#[test]
fn a_server_told_rubbish_says_so_and_ends() {
    let home = home();
    for words in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"", b"\x93NRSV\r\n\x1a\xff\xff\xff\xff", b"\x93NRSV\r\n\x1a\x02\0\0\0{}"]
    {
        let output = filter(home.path(), &["serve", "--stdio"], words);
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(output.stdout.is_empty());
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    }
}

#[test]
fn a_few_descriptors_are_enough_for_many_files() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::create_dir(&a).unwrap();
    for i in 0..400 {
        fs::write(a.join(i.to_string()), format!("file {i}")).unwrap();
    }
    let program = env!("CARGO_BIN_EXE_narrows");
    for round in ["first", "again"] {
        let script = format!("ulimit -n 64; exec {program} cp -r {}/ {}", a.display(), b.display());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).env("XDG_CACHE_HOME", home.path());
        let output = command.output().unwrap();
        assert_eq!(code(&output), 0, "{round}: {}", stderr(&output));
        assert_eq!(snapshot(&a), snapshot(&b), "{round}");
        // Each replaces a file.
        for i in 0..200 {
            fs::write(a.join(i.to_string()), format!("another file {i}")).unwrap();
        }
    }
}
