//! `narrows cp --store-compressed` and `serve --store-as-is`: files are stored as the client encodes
//! them and come back as they were, whatever the names; what was interrupted or changed is not sent
//! again in full; a peer that lies and a disk that is full or damaged store nothing wrong.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Cursor, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use narrows::codec::CodecId;
use narrows::entry::{Answer, DIGEST_LEN, EndState, Entry, EntryKind, RecordWriter, Wanted};
use narrows::frame::{BlockHeader, ControlKind, EndTotals, Frame, chain_digest, control_frame, reset_frame};
use narrows::policy::PolicySpec;
use narrows::stream::{self, SendOptions};
use narrows::transport::Link;

use crate::common::copies::*;
use crate::common::mount::Mount;
use crate::common::relay::{Hold, Relay};
use crate::common::*;

const MODE: &str = "--store-compressed";

/// Copies with the mode on.
fn store(home: &Path, args: &[&OsStr]) -> Output {
    let mut all = vec![OsStr::new(MODE), OsStr::new("--json")];
    all.extend(args);
    cp(home, &all)
}

fn args(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

fn contents(folder: &Path) -> OsString {
    folder.join("").into()
}

/// Stores the content of a folder, and copies it back.
fn put(home: &Path, from: &Path, to: &Path, flags: &[&str]) -> Output {
    let mut all = args(flags);
    all.extend([OsString::from("-r"), contents(from), remote(&to.join(""))]);
    store(home, &all.iter().map(OsString::as_os_str).collect::<Vec<_>>())
}

fn get(home: &Path, from: &Path, to: &Path, flags: &[&str]) -> Output {
    let mut all = args(flags);
    all.extend([OsString::from("-r"), remote(&from.join("")), contents(to)]);
    store(home, &all.iter().map(OsString::as_os_str).collect::<Vec<_>>())
}

/// Everything that a copy keeps, except whether a file has holes: blocks of zeros become some.
fn same(root: &Path) -> Vec<(PathBuf, String)> {
    let without = |words: String| words.replace("sparse true", "").replace("sparse false", "");
    snapshot(root).into_iter().map(|(path, words)| (path, without(words))).collect()
}

fn files(root: &Path) -> Vec<PathBuf> {
    let paths = snapshot(root).into_keys().map(|path| root.join(path));
    paths.filter(|path| path.symlink_metadata().unwrap().is_file()).collect()
}

fn server(home: &Path, dir: &Path, flags: &[&str]) -> (Child, String) {
    let mut command = narrows(home);
    command.env("XDG_STATE_HOME", home).args(["serve", "--listen", "127.0.0.1:0", "--token-out"]);
    let mut child = command.arg(home.join("token")).arg("--dir").arg(dir).args(flags).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_owned();
    (child, format!("narrows://{address}/"))
}

fn direct(home: &Path, args: &[&OsStr]) -> Output {
    let mut command = narrows(home);
    finish(command.args(["cp", "--token-file"]).arg(home.join("token")).args(args).spawn().unwrap())
}

/// What the command line says is about all files, whatever the link is.
#[test]
fn a_hint_of_the_command_line_is_followed() {
    let home = home();
    let a = home.path().join("a");
    fs::create_dir(&a).unwrap();
    fs::write(a.join("words"), text(1 << 20)).unwrap();
    let mut lens = Vec::new();
    for flags in [["--hint", "never"], ["--mode", "fast"], ["--mode", "archive"]] {
        let b = home.path().join(flags[1]);
        assert_eq!(json(&put(home.path(), &a, &b, &flags))["files_failed"], 0, "{flags:?}");
        lens.push(b.join("words.nrw").metadata().unwrap().len());
    }
    // How small `fast` makes it follows the load of the machine.
    assert!(lens[0] > 1 << 20 && lens[1] <= lens[0] && lens[2] < lens[1], "{lens:?}");
}

/// Rules and the attribute of a file may say `never`; a mode of the command line is stronger, and a hint
/// that is none is a failure of its file.
#[test]
fn files_that_say_never_are_stored_as_they_are() {
    let home = home();
    let a = home.path().join("a");
    fs::create_dir_all(a.join("sub")).unwrap();
    let names = ["words", "sub/ruled.h5", "marked"];
    names.iter().for_each(|name| fs::write(a.join(name), text(1 << 20)).unwrap());
    fs::write(a.join(".narrows.toml"), "[[hint]]\nfiles = \"*.h5\"\nnever = true\n").unwrap();
    let mark = |hint: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(a.join("marked"), "user.narrows.hint", hint.as_bytes(), flags).is_ok()
    };
    let marked = mark("never");
    let stored = |to: &str, flags: &[&str]| {
        let b = home.path().join(to);
        let said = json(&put(home.path(), &a, &b, flags));
        assert_eq!(said["files_failed"], 0, "{said}");
        names.map(|name| b.join(format!("{name}.nrw")).metadata().unwrap().len() > 1 << 20)
    };
    // With a rate the link does not decide.
    assert_eq!(stored("b", &["--encode-rate", "1MB/s"]), [false, true, marked]);
    assert_eq!(stored("c", &["--mode", "balanced"]), [false; 3]);
    if mark("sometimes") {
        let b = home.path().join("d");
        let output = put(home.path(), &a, &b, &["--encode-rate", "1MB/s"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("marked: user.narrows.hint"), "{said}");
        assert!(!output.status.success() && b.join("words.nrw").exists() && !b.join("marked.nrw").exists());
    }
}

#[test]
fn trees_are_stored_encoded_and_come_back_as_they_were() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    make_tree(&a);
    fs::write(a.join("a/long"), text(3 << 20)).unwrap();
    fs::write(a.join("a/noise"), random(1 << 20)).unwrap();
    let put_all = || put(home.path(), &a, &b, &["--policy", "fixed:zstd:level=1"]);
    let said = json(&put_all());
    assert_eq!(said["files_failed"], 0);
    for path in files(&b) {
        assert!(path.as_os_str().to_string_lossy().ends_with(".nrw"), "{path:?}");
        let output = finish(narrows(home.path()).arg("check").arg(&path).spawn().unwrap());
        assert_eq!(code(&output), 0, "{path:?}: {}", stderr(&output));
    }
    let long = b.join("a/long.nrw");
    assert!(long.metadata().unwrap().len() < 1 << 20, "it is stored as it was encoded");
    for (name, nrw) in [("a/long", "a/long.nrw"), ("a/b/random", "a/b/random.nrw")] {
        let (of, stored) = (a.join(name).metadata().unwrap(), b.join(nrw).metadata().unwrap());
        assert_eq!((of.mode(), of.mtime(), of.mtime_nsec()), (stored.mode(), stored.mtime(), stored.mtime_nsec()));
    }
    assert_eq!(attribute(&b.join("a/text.nrw")), attribute(&a.join("a/text")));

    // Ordinary readers read them.
    let whole = narrows(home.path()).args(["-d", "-c"]).arg(&long).spawn().unwrap();
    assert!(finish_reading(whole).stdout == text(3 << 20));
    let range = narrows(home.path()).args(["cat", "--range", "2000000-2000100"]).arg(&long).spawn().unwrap();
    let range = finish_reading(range).stdout;
    assert!(!range.is_empty() && text(3 << 20)[2_000_000..].starts_with(&range));

    let said = json(&put_all());
    assert_eq!((&said["files"], said["files_same"].as_u64().unwrap() > 10), (&0.into(), true), "{said}");
    assert!(said["wire_bytes"].as_u64().unwrap() < 10_000, "{said}");

    json(&get(home.path(), &b, &c, &[]));
    assert_eq!(same(&c), same(&a));
    let said = json(&get(home.path(), &b, &c, &[]));
    assert_eq!(said["files"], 0, "{said}");
    [&a, &b, &c].iter().for_each(|root| unlock(root));
}

#[test]
fn a_server_that_keeps_what_comes_makes_all_copies_such() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    [&a, &b].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(a.join("text"), text(700_000)).unwrap();
    fs::write(a.join("short"), "x").unwrap();
    let (mut child, place) = server(home.path(), &b, &["--store-as-is"]);
    let output = direct(home.path(), &["-r".as_ref(), &contents(&a), place.as_ref()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(files(&b), [b.join("short.nrw"), b.join("text.nrw")]);
    let output = direct(home.path(), &["-r".as_ref(), place.as_ref(), &contents(&c)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(snapshot(&c), snapshot(&a));
    let one = format!("{place}text");
    let output = direct(home.path(), &[one.as_ref(), home.path().join("one").as_ref()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(fs::read(home.path().join("one")).unwrap() == text(700_000));
    // Nothing is read from stdin before it is known how.
    let output = direct(home.path(), &["-".as_ref(), format!("{place}stream").as_ref()]);
    assert!(code(&output) != 0 && stderr(&output).contains(MODE), "{}", stderr(&output));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Files of long blocks that `narrows FILE` made: a frame of them may be longer than a record.
#[test]
fn files_of_long_blocks_come_back() {
    let home = home();
    let [a, c] = ["a", "c"].map(|name| home.path().join(name));
    fs::create_dir(&a).unwrap();
    // Every second byte of it is noise, so that a frame is half as long as its block.
    let half: Vec<u8> = random(3 << 20).into_iter().flat_map(|byte| [byte, 0]).collect();
    fs::write(home.path().join("f"), &half).unwrap();
    for len in [600_000, 1 << 20, 2 << 20] {
        let mut command = narrows(home.path());
        command.args(["--policy", "fixed:zstd:level=1", "--block-max", &len.to_string()]).arg(home.path().join("f"));
        let output = finish(command.arg("-o").arg(a.join(format!("{len}.nrw"))).spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    assert_eq!(json(&get(home.path(), &a, &c, &[]))["files_failed"], 0);
    for len in [600_000, 1 << 20, 2 << 20] {
        assert!(fs::read(c.join(len.to_string())).unwrap() == half, "{len}");
    }
}

#[test]
fn one_suffix_is_added_and_one_is_taken_whatever_the_name() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    fs::create_dir(&a).unwrap();
    for name in ["x", "x.nrw", "x.nrw.nrw", ".nrw"] {
        fs::write(a.join(name), name).unwrap();
    }
    json(&put(home.path(), &a, &b, &[]));
    let mut stored: Vec<_> = entries(&b).iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    stored.sort();
    assert_eq!(stored, [".nrw.nrw", "x.nrw", "x.nrw.nrw", "x.nrw.nrw.nrw"]);
    json(&get(home.path(), &b, &c, &[]));
    assert_eq!(snapshot(&c), snapshot(&a));

    // A name that leaves no room for the suffix is refused, in one line.
    fs::write(a.join("y".repeat(252)), "").unwrap();
    let output = put(home.path(), &a, &b, &[]);
    assert_eq!(code(&output), 3);
    assert!(stderr(&output).contains("too long to end in .nrw"), "{}", stderr(&output));

    // Sources are named as their originals, patterns too.
    let one = home.path().join("one/");
    let output = store(home.path(), &[&remote(&b.join("x.nrw*")), one.as_ref()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(files(&one), [one.join("x.nrw"), one.join("x.nrw.nrw")]);
}

#[test]
fn patterns_and_removal_know_the_names_of_the_originals() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    fs::create_dir(&a).unwrap();
    for name in ["keep.log", "old", "x.o", "y"] {
        fs::write(a.join(name), name).unwrap();
    }
    json(&put(home.path(), &a, &b, &[]));
    fs::remove_file(a.join("old")).unwrap();
    fs::remove_file(a.join("x.o")).unwrap();
    let said = json(&put(home.path(), &a, &b, &["--delete", "--exclude", "*.o", "-n"]));
    assert_eq!(said["deleted"], 1);
    json(&put(home.path(), &a, &b, &["--delete", "--exclude", "*.o"]));
    assert_eq!(files(&b), ["keep.log.nrw", "x.o.nrw", "y.nrw"].map(|name| b.join(name)));
    json(&get(home.path(), &b, &c, &["--exclude", "*.log"]));
    assert_eq!(files(&c), ["x.o", "y"].map(|name| c.join(name)));
}

#[test]
fn what_cannot_be_done_so_is_refused_in_one_line() {
    let home = home();
    let a = home.path().join("a");
    fs::write(&a, "x").unwrap();
    let there = remote(&a);
    let [a, b] = [a, home.path().join("b")];
    for (words, why) in [
        (vec![a.as_os_str(), b.as_os_str()], "another host"),
        (vec![&there, OsStr::new("-")], "stdout"),
        (vec![OsStr::new("--long"), a.as_os_str(), &there], "--long"),
    ] {
        let output = store(home.path(), &words);
        assert_eq!(code(&output), 2, "{why}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn stdin_is_stored_as_a_stream_that_ends() {
    let home = home();
    let b = home.path().join("b");
    let mut command = cp_command(home.path(), &shell(home.path()));
    command.args([MODE, "-"]).arg(remote(&b)).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::spawn(move || drop(stdin.write_all(&text(2_000_000))));
    let output = finish(child);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let output = narrows(home.path()).args(["-d", "-c"]).arg(home.path().join("b.nrw")).spawn().unwrap();
    assert!(finish_reading(output).stdout == text(2_000_000));
}

#[test]
fn files_whose_blocks_do_not_stand_alone_come_back_too() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    [&a, &b].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(a.join("linked"), text(3 << 20)).unwrap();
    let output = finish(narrows(home.path()).args(["--mode", "archive", "-k"]).arg(a.join("linked")).spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    fs::rename(a.join("linked.nrw"), b.join("linked.nrw")).unwrap();
    let one = fs::read(b.join("linked.nrw")).unwrap();
    fs::write(b.join("two.nrw"), [&one[..], &one].concat()).unwrap();
    json(&get(home.path(), &b, &c, &[]));
    assert!(fs::read(c.join("linked")).unwrap() == text(3 << 20));
    assert!(fs::read(c.join("two")).unwrap() == [text(3 << 20), text(3 << 20)].concat());
}

// --- interrupted and changed ---

/// Runs a copy that is ended when its link has carried so many bytes.
fn interrupted(home: &Path, hold: Hold, words: &[OsString]) -> Output {
    let relay = Relay::new(home, hold);
    let mut command = cp_command(home, &relay.shell());
    command.args([MODE, "--policy", "fixed:store"]).args(words);
    relay.run(command, |_| relay.await_held(), |client| signal(client, "-TERM"))
}

#[test]
fn an_interrupted_long_file_goes_on_with_what_is_there() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    [&a, &b, &c].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    fs::write(a.join("long"), random(8 << 20)).unwrap();
    let up = args(&[a.join("long").to_str().unwrap(), &format!("host:{}/", b.display())]);
    let output = interrupted(home.path(), Hold::Up(6 << 20), &up);
    assert!(output.status.code().is_none() || code(&output) != 0);
    crate::common::relay::await_that("the part to be kept", || partials(&b).len() == 1);
    assert!(!b.join("long.nrw").exists());
    // How much of the held bytes reached the file by then is a matter of scheduling: some did.
    let said = json(&put(home.path(), &a, &b, &["--policy", "fixed:store"]));
    let wire = said["wire_bytes"].as_u64().unwrap();
    assert!((1 << 20..15 << 19).contains(&wire), "{said}");
    assert_eq!(files(&b), [b.join("long.nrw")], "nothing else is left");

    let down = args(&[&format!("host:{}/long", b.display()), c.join("long").to_str().unwrap()]);
    interrupted(home.path(), Hold::Down(6 << 20), &down);
    crate::common::relay::await_that("the part to be kept", || partials(&c).len() == 1);
    assert!(!c.join("long").exists());
    let said = json(&get(home.path(), &b, &c, &[]));
    let wire = said["wire_bytes"].as_u64().unwrap();
    assert!((1 << 20..15 << 19).contains(&wire), "{said}");
    assert_eq!(snapshot(&c), snapshot(&a));
}

#[test]
fn of_a_changed_long_file_only_the_changed_blocks_are_sent() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("long"), random(8 << 20)).unwrap();
    json(&put(home.path(), &a, &b, &["--policy", "fixed:zstd:level=1"]));
    json(&get(home.path(), &b, &c, &[]));
    let file = fs::OpenOptions::new().write(true).open(a.join("long")).unwrap();
    file.write_all_at(b"another", 5_000_000).unwrap();
    file.write_all_at(b"and longer", 8 << 20).unwrap();
    set_mtime(&a.join("long"), 1_500_000_000, 5);
    for said in [json(&put(home.path(), &a, &b, &[])), json(&get(home.path(), &b, &c, &[]))] {
        assert_eq!(said["files"], 1);
        assert!(said["wire_bytes"].as_u64().unwrap() < 2 << 20, "{said}");
    }
    assert_eq!(snapshot(&c), snapshot(&a));
    let output = finish(narrows(home.path()).args(["check", "--sums"]).arg(b.join("long.nrw")).spawn().unwrap());
    assert!(code(&output) != 3, "{}", stderr(&output));

    // Where everything moved, all of it is sent, and it is right.
    let moved = [b"in front".to_vec(), fs::read(a.join("long")).unwrap()].concat();
    fs::write(a.join("long"), moved).unwrap();
    json(&put(home.path(), &a, &b, &[]));
    json(&get(home.path(), &b, &c, &[]));
    assert_eq!(snapshot(&c), snapshot(&a));
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let home = home();
    let Some(mount) = Mount::tmpfs(home.path(), "size=6m") else { return };
    let a = home.path().join("a");
    fs::create_dir(&a).unwrap();
    fs::write(a.join("large"), random(8 << 20)).unwrap();
    fs::write(a.join("small"), text(10_000)).unwrap();
    let b = mount.path().join("b");
    fs::create_dir(&b).unwrap();
    let output = put(home.path(), &a, &b, &[]);
    let said = stderr(&output);
    assert_eq!(code(&output), 3, "{said}");
    assert!(said.contains("cannot store large.nrw: No space left on device"), "{said}");
    assert_eq!(files(&b), [b.join("small.nrw")]);
}

#[test]
fn killed_at_any_moment_no_file_is_half() {
    let home = home();
    let [a, b] = ["a", "b"].map(|name| home.path().join(name));
    [&a, &b].iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let (old, new) = (random(2 << 20), text(2 << 20));
    fs::write(a.join("long"), &old).unwrap();
    json(&put(home.path(), &a, &b, &[]));
    fs::write(a.join("long"), &new).unwrap();
    for round in 0..12u64 {
        let mut command = cp_command(home.path(), &shell(home.path()));
        command.args([MODE, "-r"]).arg(contents(&a)).arg(remote(&b.join("")));
        let mut child = command.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(7 * round));
        let _ = child.kill();
        child.wait().unwrap();
        let output = narrows(home.path()).args(["-d", "-c"]).arg(b.join("long.nrw")).spawn().unwrap();
        let got = finish_reading(output).stdout;
        assert!(got == old || got == new, "round {round}");
        fs::write(a.join("long"), if round % 2 == 0 { &old } else { &new }).unwrap();
    }
    let last = fs::read(a.join("long")).unwrap();
    crate::common::relay::await_that("the copy to be whole", || code(&put(home.path(), &a, &b, &[])) == 0);
    let output = narrows(home.path()).args(["-d", "-c"]).arg(b.join("long.nrw")).spawn().unwrap();
    assert!(finish_reading(output).stdout == last);
}

#[test]
fn damage_at_the_server_is_found_by_the_client_and_named() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    fs::create_dir(&a).unwrap();
    for name in ["body", "end", "good", "header", "stored"] {
        fs::write(a.join(name), if name == "stored" { random(600_000) } else { text(600_000) }).unwrap();
    }
    json(&put(home.path(), &a, &b, &["--policy", "fixed:zstd:level=1"]));
    let flip = |name: &str, at: i64| {
        let mut bytes = fs::read(b.join(name)).unwrap();
        let at = if at < 0 { bytes.len() - at.unsigned_abs() as usize } else { at as usize };
        bytes[at] ^= 4;
        fs::write(b.join(name), bytes).unwrap();
    };
    flip("body.nrw", 1000);
    flip("end.nrw", -5);
    flip("header.nrw", 34);
    flip("stored.nrw", 5000);
    let output = get(home.path(), &b, &c, &[]);
    let said = stderr(&output);
    assert_eq!(code(&output), 3, "{said}");
    for name in ["body", "end", "header", "stored"] {
        assert!(said.lines().any(|line| line.contains(name)), "{name}: {said}");
    }
    assert_eq!(files(&c), [c.join("good")]);
}

// --- a client that lies ---

/// An entry stream of a client.
#[derive(Default)]
struct Records {
    writer: RecordWriter,
    out: Vec<u8>,
}

impl Records {
    fn file(&mut self, path: &str, len: u64) -> u64 {
        let kind = EntryKind::File { len, linked: false };
        let path = path.as_bytes().to_vec();
        let entry = Entry { path, kind, mode: 0o644, uid: 0, gid: 0, mtime_s: 1, mtime_ns: 0, xattrs: Vec::new() };
        self.writer.entry(&entry, &mut self.out).unwrap()
    }

    fn content(&mut self, path: &str, len: u64, content: &[u8]) {
        let id = self.file(path, len);
        self.writer.begin(id, &mut self.out);
        content.chunks(1000).for_each(|part| self.writer.data(part, &mut self.out));
        self.writer.end(EndState::Whole, &[0; DIGEST_LEN], &mut self.out);
    }

    fn finished(mut self) -> Vec<u8> {
        self.writer.finish(&mut self.out);
        self.out
    }
}

/// Has a server store these records as they come; returns the answers.
fn lie(home: &Path, target: &Path, records: Vec<u8>) -> Vec<Answer> {
    let mut server = narrows(home).args(["serve", "--stdio"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = File::from(OwnedFd::from(server.stdin.take().unwrap()));
    let output = File::from(OwnedFd::from(server.stdout.take().unwrap()));
    let words = serde_json::json!({
        "version": 4,
        "session": "00".repeat(16),
        "task": "put",
        "frames": true,
        "target": target.to_str().unwrap(),
    });
    let words = words.to_string();
    let mut request = b"\x93NRSV\r\n\x1a".to_vec();
    request.extend_from_slice(&(words.len() as u32).to_le_bytes());
    request.extend_from_slice(words.as_bytes());
    input.write_all(&request).unwrap();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&answers);
    let on_note = move |note: &[u8]| {
        Answer::parse_all(note, |answer| {
            heard.lock().unwrap().push(answer);
            Ok(())
        })
    };
    let options =
        SendOptions::new(PolicySpec::store()).threads(1).stall_timeout(Some(PATIENCE)).on_note(Box::new(on_note));
    let (link, _bond) = Link::pipes(input, output).bonded().unwrap();
    let _ = stream::send(Cursor::new(records), link, options);
    finish(server);
    std::mem::take(&mut *answers.lock().unwrap())
}

fn bytes(frame: &Frame) -> Vec<u8> {
    [&frame.header[..], &frame.body[..]].concat()
}

/// A block that is stored, at a raw offset, and its check.
fn block(raw: &[u8], at: u64) -> (Vec<u8>, u64) {
    let header = BlockHeader::data(CodecId::STORE, false, raw.len(), raw.len());
    let check = header.check_of(raw, raw, at);
    ([&header.encode(Some(check))[..], raw].concat(), check)
}

fn preface() -> Vec<u8> {
    // That of a file of this program.
    let options = narrows_file::WriteOptions::default().policy(PolicySpec::store());
    let mut writer = narrows_file::Writer::new(Vec::new(), options).unwrap();
    writer.write_all(b"x").unwrap();
    writer.finish().unwrap().0[..32].to_vec()
}

/// A file of one block as it should be.
fn honest(raw: &[u8]) -> Vec<u8> {
    let (frame, check) = block(raw, 0);
    let wire_total = 32 + frame.len() as u64;
    let totals = EndTotals { raw_total: raw.len() as u64, wire_total, index_offset: 0, digest: chain_digest(0, check) };
    [preface(), frame, bytes(&totals.frame())].concat()
}

#[test]
fn frames_that_lie_are_not_stored() {
    let home = home();
    let b = home.path().join("b");
    fs::create_dir(&b).unwrap();
    let raw = text(5000);
    let len = raw.len() as u64;
    let good = honest(&raw);
    let tail = good.len() - 42;
    let totals = |raw_total, wire_total, index_offset, digest| {
        bytes(&EndTotals { raw_total, wire_total, index_offset, digest }.frame())
    };
    let check = block(&raw, 0).1;
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    // Two blocks with an index that is right in itself, and says other lengths.
    let ((one, _), (two, _)) = (block(&raw[..2500], 0), block(&raw[2500..], 2500));
    let index = bytes(&control_frame(ControlKind::Index, &[1, 2, 3, 4], len));
    let frames = [preface(), one, two].concat();
    let digest = chain_digest(chain_digest(0, block(&raw[..2500], 0).1), block(&raw[2500..], 2500).1);
    let at = frames.len() as u64;
    let other_index = [&frames[..], &index, &totals(len, at + index.len() as u64, at, digest)].concat();
    let no_index = [&frames[..], &totals(len, at, 0, digest)].concat();
    // A frame that says less body than it has, of an encoded block.
    let header = BlockHeader::data(CodecId(3), false, 5000, 4999);
    let endless = [&preface()[..], &header.encode(Some(7)), &raw[..100]].concat();
    let lies: Vec<(&str, u64, Vec<u8>)> = vec![
        ("no-end", len, good[..tail].to_vec()),
        ("cut", len, good[..100].to_vec()),
        ("behind", len, [&good[..], b"x"].concat()),
        ("twice", len, [&good[..], &good].concat()),
        ("body", len, flipped(2000)),
        ("check", len, flipped(40)),
        ("preface", len, flipped(5)),
        ("longer", len - 1, good.clone()),
        ("shorter", len + 1, good.clone()),
        ("raw", len, [&good[..tail], &totals(len + 1, tail as u64, 0, chain_digest(0, check))[..]].concat()),
        ("wire", len, [&good[..tail], &totals(len, tail as u64 - 1, 0, chain_digest(0, check))[..]].concat()),
        ("digest", len, [&good[..tail], &totals(len, tail as u64, 0, 5)[..]].concat()),
        ("index-offset", len, [&good[..tail], &totals(len, tail as u64, 32, chain_digest(0, check))[..]].concat()),
        ("other-index", len, other_index),
        ("no-index", len, no_index),
        ("endless", len, endless),
        ("reset", len, [&preface()[..], &bytes(&reset_frame(0)), &good[32..]].concat()),
        ("plain", len, raw.clone()),
        ("empty", 0, Vec::new()),
    ];
    let mut records = Records::default();
    records.content("honest", len, &good);
    lies.iter().for_each(|(name, len, content)| records.content(name, *len, content));
    // Content of another file's, holes, and frames that nobody told.
    for name in ["repeat", "hole", "have"] {
        let id = records.file(name, len);
        records.writer.begin(id, &mut records.out);
        records.writer.data(&preface(), &mut records.out);
        match name {
            "repeat" => records.writer.repeat(0, 0, 100, &mut records.out),
            "hole" => records.writer.hole(len, &mut records.out),
            _ => records.writer.have(len, &mut records.out),
        }
        records.writer.end(EndState::Whole, &[0; DIGEST_LEN], &mut records.out);
    }
    let answers = lie(home.path(), &b, records.finished());
    let refused = answers.iter().filter(|a| matches!(a, Answer::NotStored { .. })).count();
    assert_eq!(refused, lies.len() + 3, "{answers:?}");
    assert_eq!(files(&b), [b.join("honest.nrw")]);
    assert!(fs::read(b.join("honest.nrw")).unwrap() == good);
}

#[test]
fn a_client_that_never_ends_a_file_fills_no_more_than_it_announced() {
    let home = home();
    let b = home.path().join("b");
    fs::create_dir(&b).unwrap();
    let mut records = Records::default();
    let id = records.file("endless", 1000);
    records.writer.begin(id, &mut records.out);
    records.writer.data(&preface(), &mut records.out);
    for at in 0..5000u64 {
        records.writer.data(&block(&[7; 1000], 1000 * at).0, &mut records.out);
    }
    let answers = lie(home.path(), &b, records.out);
    assert!(answers.iter().all(|a| matches!(a, Answer::Files { wanted: Wanted::Repeats | Wanted::Whole, .. })));
    assert!(files(&b).iter().all(|path| path.metadata().unwrap().len() < 10_000), "{:?}", files(&b));
    assert!(!b.join("endless.nrw").exists());
}

#[test]
fn a_client_is_asked_for_nothing_of_files_that_it_did_not_announce() {
    let home = home();
    let b = home.path().join("b");
    fs::create_dir(&b).unwrap();
    fs::write(b.join("old.nrw"), [honest(&random(100_000)), random(100)].concat()).unwrap();
    let mut records = Records::default();
    let id = records.file("old", 100_000);
    records.writer.ask(id, 0, &mut records.out);
    records.writer.ask(id, u64::MAX, &mut records.out);
    records.writer.ask(id, 1, &mut records.out);
    records.writer.begin(id, &mut records.out);
    records.writer.data(&preface(), &mut records.out);
    records.writer.have(100_001, &mut records.out);
    records.writer.end(EndState::Whole, &[0; DIGEST_LEN], &mut records.out);
    let answers = lie(home.path(), &b, records.finished());
    let told: Vec<usize> = answers
        .iter()
        .filter_map(|a| if let Answer::Frames { frames, .. } = a { Some(frames.len()) } else { None })
        .collect();
    assert_eq!(told, [1, 0, 0], "{answers:?}");
    assert!(answers.iter().any(|a| matches!(a, Answer::NotStored { .. })));
    assert_eq!(files(&b), [b.join("old.nrw")], "it stays as it was");
}

/// Copies from a server that sends these records whatever it is asked for.
fn lied_to(home: &Path, target: &Path, records: Vec<u8>) -> Output {
    for name in ["up", "down"] {
        assert!(Command::new("mkfifo").arg(home.join(name)).status().unwrap().success());
    }
    let shell = home.join("fake");
    fs::write(&shell, "#!/bin/sh\ncd \"${0%/*}\"\nexec 3<&0\ncat <&3 > up &\nexec cat down\n").unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = cp_command(home, &shell);
    let child = command.args(["--carriers", "1", MODE, "-r", "host:there/"]).arg(target).spawn();
    let (up, down) = (home.join("up"), home.join("down"));
    let server = std::thread::spawn(move || {
        let (mut read, write) = (File::open(up).unwrap(), File::create(down).unwrap());
        let mut head = [0; 12];
        read.read_exact(&mut head).unwrap();
        let len = u32::from_le_bytes(head[8..].try_into().unwrap());
        io::copy(&mut (&mut read).take(len.into()), &mut io::sink()).unwrap();
        let (link, _bond) = Link::pipes(write, read).bonded().unwrap();
        let options = SendOptions::new(PolicySpec::store()).threads(1).stall_timeout(Some(PATIENCE));
        let _ = stream::send(Cursor::new(records), link, options.on_note(Box::new(|_| Ok(()))));
    });
    let output = finish(child.unwrap());
    server.join().unwrap();
    output
}

#[test]
fn a_server_that_lies_has_nothing_wrong_stored() {
    let home = home();
    let c = home.path().join("c");
    fs::create_dir(&c).unwrap();
    fs::write(c.join("have"), random(400_000)).unwrap();
    let raw = text(5000);
    let len = raw.len() as u64;
    let good = honest(&raw);
    // An encoded block that is none, with a check that nobody can compare without decoding it.
    let header = BlockHeader::data(CodecId(3), false, 5000, 100);
    let check = header.check_of(&raw, &raw[..100], 0);
    let frame = [&header.encode(Some(check))[..], &raw[..100]].concat();
    let wire_total = 32 + frame.len() as u64;
    let totals = EndTotals { raw_total: len, wire_total, index_offset: 0, digest: chain_digest(0, check) };
    let undecodable = [preface(), frame, bytes(&totals.frame())].concat();
    let mut records = Records::default();
    records.content("good", len, &good);
    records.content("undecodable", len, &undecodable);
    records.content("longer", len - 1, &good);
    records.content("shorter", len + 1, &good);
    records.content("cut", len, &good[..good.len() - 42]);
    let id = records.file("have", 400_000);
    records.writer.ask(id, 0, &mut records.out);
    records.writer.begin(id, &mut records.out);
    records.writer.data(&preface(), &mut records.out);
    // What the client has, under sums that are not those of any content.
    records.writer.have(400_000, &mut records.out);
    let totals = EndTotals { raw_total: 400_000, wire_total: 32, index_offset: 0, digest: 0 };
    records.writer.data(&bytes(&totals.frame()), &mut records.out);
    records.writer.end(EndState::Whole, &[0; DIGEST_LEN], &mut records.out);
    let output = lied_to(home.path(), &c, records.finished());
    let said = stderr(&output);
    assert_eq!(code(&output), 3, "{said}");
    for name in ["undecodable", "longer", "shorter", "cut", "have"] {
        assert!(said.contains(&format!("cannot store {name}: ")), "{name}: {said}");
    }
    assert_eq!(files(&c), [c.join("good"), c.join("have")]);
    assert!(fs::read(c.join("good")).unwrap() == raw && fs::read(c.join("have")).unwrap() == random(400_000));
}

#[test]
fn thousands_of_small_files_are_stored_one_by_one() {
    let home = home();
    let [a, b, c] = ["a", "b", "c"].map(|name| home.path().join(name));
    fs::create_dir(&a).unwrap();
    for i in 0..2000 {
        fs::write(a.join(format!("{i}")), &text(40_000)[..i * 3]).unwrap();
    }
    let said = json(&put(home.path(), &a, &b, &["--policy", "fixed:zstd:level=1"]));
    assert_eq!(said["files"], 2000);
    let [whole, stored] = [&a, &b].map(|root| files(root).iter().map(|p| p.metadata().unwrap().len()).sum::<u64>());
    assert!(stored < whole, "{stored} of {whole}");
    json(&get(home.path(), &b, &c, &[]));
    assert_eq!(snapshot(&c), snapshot(&a));
}

#[test]
fn a_forced_command_makes_all_copies_through_a_shell_such() {
    let home = home();
    let [a, b] = ["a", "b"].map(|name| home.path().join(name));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("x"), text(1000)).unwrap();
    let shell = home.path().join("forced");
    let line = format!("#!/bin/sh\nexec '{}' serve --stdio --store-as-is\n", env!("CARGO_BIN_EXE_narrows"));
    fs::write(&shell, line).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command: Command = cp_command(home.path(), &shell);
    let output = finish(command.arg("-r").arg(contents(&a)).arg(remote(&b.join(""))).spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(files(&b), [b.join("x.nrw")]);
}
