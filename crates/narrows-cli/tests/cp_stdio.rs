//! `narrows cp` from stdin and to stdout: content, metadata of the file, refused copies, and what
//! is left when it ends early.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::copies::*;
use crate::common::*;

const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;

fn dash(home: &Path, args: &[&OsStr]) -> Command {
    let mut command = cp_command(home, &shell(home));
    command.args(args);
    command
}

/// Stores `input` as `target`.
fn store(home: &Path, target: &OsStr, input: &[u8]) -> Output {
    let mut child = dash(home, &[OsStr::new("-"), target]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = finish(child);
    feeder.join().unwrap();
    output
}

/// Copies `source` to stdout. Reads all output while the program runs, so that no pipe fills.
fn show(home: &Path, source: &OsStr) -> Output {
    let child = dash(home, &[source, OsStr::new("-")]).spawn().unwrap();
    child.wait_with_output().unwrap()
}

fn await_that(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A target on this host and on another one.
fn places(path: &Path) -> [OsString; 2] {
    [path.into(), remote(path)]
}

#[test]
fn what_comes_on_stdin_is_stored_and_what_is_stored_goes_to_stdout() {
    let home = home();
    let path = home.path().join("file");
    for content in [Vec::new(), b"x".to_vec(), text(3 << 20), random((1 << 20) + 1)] {
        for place in places(&path) {
            let output = store(home.path(), &place, &content);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            assert!(output.stdout.is_empty() && stderr(&output).contains("1 file"), "{}", stderr(&output));
            assert!(fs::read(&path).unwrap() == content);
            let output = show(home.path(), &place);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            assert!(output.stdout == content, "stdout has the data and nothing else");
            assert!(stderr(&output).contains("1 file"), "{}", stderr(&output));
            fs::remove_file(&path).unwrap();
        }
    }
    let mut left = entries(home.path());
    left.sort();
    assert_eq!(left, ["narrows", "shell"].map(|name| home.path().join(name)), "the cache and the shell: {left:?}");
}

#[test]
fn a_new_file_gets_what_the_umask_leaves_and_an_old_one_keeps_its_mode() {
    let home = home();
    for place in ["near", "far"] {
        let path = home.path().join(place);
        let target = if place == "far" { remote(&path) } else { path.clone().into_os_string() };
        let begun = std::time::SystemTime::now();
        let script = "umask 027; exec \"$0\" \"$@\"";
        let mut child = Command::new("sh");
        child.args(["-c", script]).arg(env!("CARGO_BIN_EXE_narrows")).args(["cp", "-q", "-e"]).arg(shell(home.path()));
        child.args(["--remote-narrows", env!("CARGO_BIN_EXE_narrows"), "-"]).arg(&target);
        child.env("XDG_CACHE_HOME", home.path()).stdin(Stdio::null()).stderr(Stdio::piped());
        let output = finish(child.spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let data = path.metadata().unwrap();
        assert_eq!(data.mode() & 0o7777, 0o640);
        let age = data.modified().unwrap().duration_since(begun - Duration::from_secs(2));
        assert!(age.is_ok(), "it is as new as it is");

        // A secret file stays secret, and overwriting a set-id program clears its set-id bit.
        for (mode, kept) in [(0o600, 0o600), (0o4751, 0o751), (0o444, 0o444)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let _ = rustix::fs::setxattr(&path, "user.narrows", b"stays", rustix::fs::XattrFlags::empty());
            let attribute_before = attribute(&path);
            let output = store(home.path(), &target, b"secret");
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, kept);
            assert_eq!(attribute(&path), attribute_before);
            assert_eq!(fs::read(&path).unwrap(), b"secret");
        }
    }
}

#[test]
fn a_file_appears_when_stdin_has_ended_and_not_before() {
    let home = home();
    let path = home.path().join("log");
    for target in places(&path) {
        let mut child = dash(home.path(), &[OsStr::new("-"), &target]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"first ").unwrap();
        // Bytes are sent at once although more may follow.
        let first = |p: &PathBuf| p.to_string_lossy().ends_with(".partial") && p.metadata().is_ok_and(|m| m.len() == 6);
        await_that("the first bytes never arrived", || entries(home.path()).iter().any(first));
        stdin.write_all(b"last").unwrap();
        assert!(!path.exists());
        drop(stdin);
        let output = finish(child);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(fs::read(&path).unwrap(), b"first last");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn what_ends_early_is_not_stored() {
    let home = home();
    let path = home.path().join("file");
    for target in places(&path) {
        fs::write(&path, "old").unwrap();
        // A signal, while stdin says nothing.
        let mut child = dash(home.path(), &[OsStr::new("-"), &target]).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(&random(600_000)).unwrap();
        let begun = |p: &PathBuf| p.to_string_lossy().ends_with(".partial");
        await_that("it never began", || entries(home.path()).iter().any(begun));
        signal(&child, "-TERM");
        let output = finish(child);
        assert_eq!(output.status.signal(), Some(SIGTERM), "{}", stderr(&output));
        // The server takes some time to notice.
        await_that("the temporary file stays", || !entries(home.path()).iter().any(begun));
        assert_eq!(fs::read(&path).unwrap(), b"old");

        // A stdin that cannot be read.
        let mut child = dash(home.path(), &[OsStr::new("-"), &target]);
        let output = finish(child.stdin(File::open(home.path()).unwrap()).spawn().unwrap());
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        assert!(stderr(&output).contains("cannot read stdin: Is a directory"), "{}", stderr(&output));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(!entries(home.path()).iter().any(begun));
    }
}

#[test]
fn a_lost_link_ends_a_copy_whose_stdin_says_nothing() {
    let home = home();
    let path = home.path().join("file");
    // A remote shell that writes its process id, so that it can be killed.
    let mortal = home.path().join("mortal");
    let script = "#!/bin/sh\nshift\necho $$ > \"$(dirname \"$0\")/pid\"\nexec $*\n";
    fs::write(&mortal, script).unwrap();
    fs::set_permissions(&mortal, fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = cp_command(home.path(), &mortal).arg("-").arg(remote(&path)).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"begun").unwrap();
    let begun = |p: &PathBuf| p.to_string_lossy().ends_with(".partial");
    await_that("it never began", || entries(home.path()).iter().any(begun));
    let pid = fs::read_to_string(home.path().join("pid")).unwrap();
    assert!(Command::new("kill").args(["-KILL", pid.trim()]).status().unwrap().success());
    let output = finish(child);
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    assert!(!stderr(&output).contains("to resume"), "stdin cannot be read again: {}", stderr(&output));
    assert!(!path.exists());
    drop(stdin);
}

#[test]
fn a_reader_that_goes_away_ends_the_program_as_any_filter() {
    let home = home();
    let path = home.path().join("file");
    fs::write(&path, random(4 << 20)).unwrap();
    for source in places(&path) {
        let mut child = dash(home.path(), &[&source, OsStr::new("-")]).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 1000]).unwrap();
        drop(stdout);
        let output = finish(child);
        assert_eq!(output.status.signal(), Some(SIGPIPE), "{}", stderr(&output));
        // The shell's greeting may be printed.
        assert!(!stderr(&output).contains("narrows: cannot"), "{}", stderr(&output));
    }
}

#[test]
fn a_full_output_is_told() {
    let home = home();
    let path = home.path().join("file");
    fs::write(&path, random(300_000)).unwrap();
    for source in places(&path) {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = finish(dash(home.path(), &[&source, OsStr::new("-")]).stdout(full).spawn().unwrap());
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains("cannot write stdout: No space left on device"), "{}", stderr(&output));
    }
}

#[test]
fn holes_come_as_zeros() {
    let home = home();
    let path = home.path().join("holes");
    let file = File::create(&path).unwrap();
    file.set_len(5 << 20).unwrap();
    file.write_all_at(b"in the middle", 3 << 20).unwrap();
    for source in places(&path) {
        let output = show(home.path(), &source);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(output.stdout == fs::read(&path).unwrap());
    }
}

#[test]
fn a_file_that_changes_or_shrinks_while_it_is_written_to_stdout_is_told() {
    let home = home();
    let path = home.path().join("file");
    // More than both ends and all pipes hold, so that the sending end is still reading.
    let content = text(100 << 20);
    type Change = fn(&File);
    let changed: Change = |file| file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let shrunk: Change = |file| file.set_len(99 << 20).unwrap();
    for (change, status, words, whole) in [(changed, 4, "changed", true), (shrunk, 3, "shrank", false)] {
        fs::write(&path, &content).unwrap();
        let mut child = dash(home.path(), &[&remote(&path), OsStr::new("-")]).spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut first = vec![0; 100];
        stdout.read_exact(&mut first).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        change(&File::options().write(true).open(&path).unwrap());
        let reader = std::thread::spawn(move || {
            stdout.read_to_end(&mut first).unwrap();
            first
        });
        let output = finish(child);
        let came = reader.join().unwrap();
        assert_eq!(code(&output), status, "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
        assert!(content.starts_with(&came) && (came.len() == content.len()) == whole, "{}", came.len());
    }
}

#[test]
fn what_is_no_file_gives_nothing() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(h.join("fifo")).status().unwrap().success());
    symlink("nowhere", h.join("dangling")).unwrap();
    for (name, words) in [
        ("folder", "it is a folder"),
        ("folder/", "it is a folder"),
        ("fifo", "it is not a file"),
        ("nothing", "No such file"),
        ("dangling", "No such file"),
    ] {
        for source in places(&h.join(name)) {
            let output = show(h, &source);
            assert_eq!(code(&output), 2, "{name}: {}", stderr(&output));
            assert!(stderr(&output).contains(words) && output.stdout.is_empty(), "{name}: {}", stderr(&output));
        }
    }
    // A link given by the user is followed.
    fs::write(h.join("file"), "content").unwrap();
    symlink("file", h.join("link")).unwrap();
    for source in places(&h.join("link")) {
        assert_eq!(show(h, &source).stdout, b"content");
    }
}

#[test]
fn a_name_is_needed_and_one_file_is_enough() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("folder")).unwrap();
    fs::write(h.join("file"), "x").unwrap();
    let (folder, slash, file) = (h.join("folder"), h.join("new/"), h.join("file"));
    let os = OsStr::new;
    let far = (remote(&folder), remote(&slash), remote(&file));
    for (args, words) in [
        (vec![os("-"), folder.as_os_str()], "name the file"),
        (vec![os("-"), slash.as_os_str()], "name the file"),
        (vec![os("-"), os("host:")], "name the file"),
        (vec![os("-"), &far.1], "name the file"),
        // Cases that only the other end can detect.
        (vec![os("-"), &far.0], "name the file"),
        (vec![os("-"), os("-")], "use cat"),
        (vec![os("-"), file.as_os_str(), &far.0], "one file"),
        (vec![file.as_os_str(), &far.2, os("-")], "one file"),
        (vec![os("-r"), &far.0, os("-")], "one file"),
        (vec![os("-r"), os("-"), &far.2], "one file"),
        (vec![os("--exclude"), os("x"), os("-"), &far.2], "one file"),
        (vec![os("-n"), os("-"), &far.2], "--dry-run"),
        (vec![os("-n"), &far.2, os("-")], "--dry-run"),
    ] {
        // A stdin that never ends: refused without waiting for it.
        let mut child = dash(h, &args).stdin(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let output = finish(child);
        assert_eq!(code(&output), 2, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words) && output.stdout.is_empty(), "{args:?}: {}", stderr(&output));
        drop(stdin);
    }
    assert!(entries(&folder).is_empty() && !slash.exists());
}

#[test]
fn a_file_named_dash_is_written_with_its_folder() {
    let home = home();
    let h = home.path();
    fs::write(h.join("-"), "dash").unwrap();
    let run = |args: &[&str]| finish(in_folder(h, args));
    assert_eq!(code(&run(&["./-", "copy"])), 0);
    assert_eq!(fs::read(h.join("copy")).unwrap(), b"dash");
    fs::remove_file(h.join("-")).unwrap();
    assert_eq!(code(&run(&["copy", "./-"])), 0);
    assert_eq!(fs::read(h.join("-")).unwrap(), b"dash");
    assert_eq!(run(&["./-", "-"]).stdout, b"dash");
}

fn in_folder(home: &Path, args: &[&str]) -> Child {
    cp_command(home, &shell(home)).current_dir(home).args(args).spawn().unwrap()
}

#[test]
fn what_the_copy_waited_for_is_named() {
    let home = home();
    let path = home.path().join("file");
    // Every pause is many times as long as what came before it, so the load of the machine, which slows
    // both, does not decide the shares.
    let pause = |begun: Instant| std::thread::sleep((begun.elapsed() * 8).max(Duration::from_millis(500)));
    // A slow source.
    let begun = Instant::now();
    let mut child =
        dash(home.path(), &["--json", "-"].map(OsStr::new)).arg(&path).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&[7; 1000]).unwrap();
    await_that("it never began", || entries(home.path()).iter().any(|p| p.to_string_lossy().ends_with(".partial")));
    pause(begun);
    stdin.write_all(&[7; 1000]).unwrap();
    drop(stdin);
    let source = json(&finish(child));
    assert_eq!(source["bound_by"], "source", "{source}");
    // A slow method.
    fs::write(&path, text(5 << 20)).unwrap();
    let flags = ["--json", "--policy", "fixed:xz:level=9", "-T", "1"].map(OsStr::new);
    let mut slow = dash(home.path(), &flags);
    slow.args([&path.clone().into(), &remote(&home.path().join("copy"))]);
    let cpu = json(&finish(slow.spawn().unwrap()));
    assert_eq!(cpu["bound_by"], "cpu", "{cpu}");
    // A slow reader of stdout.
    fs::write(&path, random(6 << 20)).unwrap();
    let begun = Instant::now();
    let mut child = dash(home.path(), &["--json"].map(OsStr::new)).arg(remote(&path)).arg("-").spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1000]).unwrap();
    pause(begun);
    // It stays slower than what it reads from, whatever that is slowed by.
    let mut piece = vec![0; 64 << 10];
    loop {
        let begun = Instant::now();
        if stdout.read(&mut piece).unwrap() == 0 {
            break;
        }
        std::thread::sleep((begun.elapsed() * 8).max(Duration::from_millis(5)));
    }
    let output = finish(child);
    let reader: serde_json::Value = serde_json::from_str(stderr(&output).lines().last().unwrap()).unwrap();
    assert_eq!(reader["bound_by"], "stdout", "{reader}");
    let shares = reader["bound_shares"].as_object().unwrap();
    assert!((shares.values().map(|s| s.as_f64().unwrap()).sum::<f64>() - 1.0).abs() < 1e-6, "{reader}");
}

#[test]
fn talk_goes_where_the_data_is_not() {
    let home = home();
    let path = home.path().join("file");
    fs::write(&path, "content").unwrap();
    for flags in [&["--json"][..], &["-v"], &["-q"]] {
        let mut args: Vec<&OsStr> = flags.iter().map(OsStr::new).collect();
        let source = remote(&path);
        args.extend([&*source, OsStr::new("-")]);
        let output = finish(dash(home.path(), &args).spawn().unwrap());
        assert_eq!((code(&output), &output.stdout[..]), (0, &b"content"[..]), "{flags:?}: {}", stderr(&output));
        let said = stderr(&output);
        let told = said.lines().filter(|l| !l.contains("remote:")).collect::<Vec<_>>();
        match flags {
            ["--json"] => {
                let json: serde_json::Value = serde_json::from_str(told.last().unwrap()).unwrap();
                assert_eq!(json["files"], 1, "{json}");
            }
            ["-q"] => assert!(told.is_empty(), "{said}"),
            _ => assert!(told.last().unwrap().contains("1 file"), "{said}"),
        }
    }
    let output = finish(
        dash(home.path(), &[OsStr::new("--json"), OsStr::new("-"), &remote(&path)])
            .stdin(Stdio::null())
            .spawn()
            .unwrap(),
    );
    assert_eq!(json(&output)["files"], 1);
    assert!(fs::read(&path).unwrap().is_empty());
}
