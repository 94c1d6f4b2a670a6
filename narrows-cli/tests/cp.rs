//! `narrows cp` through a remote shell and on one host: content and metadata at the other end, what is said, and what is
//! left behind when something fails.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

mod common;

use common::*;

/// A remote shell that runs its command here, after a greeting as login shells have it.
fn shell(folder: &Path) -> PathBuf {
    let path = folder.join("shell");
    fs::write(&path, "#!/bin/sh\nshift\nprintf 'Welcome\\nto this host\\n'\nexec sh -c \"$*\"\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn cp_command(home: &Path, shell: &Path) -> Command {
    let mut command = narrows(home);
    command.arg("cp").arg("-e").arg(shell).args(["--remote-narrows", env!("CARGO_BIN_EXE_narrows")]);
    command
}

fn cp(home: &Path, args: &[&OsStr]) -> Output {
    finish(cp_command(home, &shell(home)).args(args).spawn().unwrap())
}

fn remote(path: &Path) -> std::ffi::OsString {
    let mut place = std::ffi::OsString::from("host:");
    place.push(path);
    place
}

/// All that a copy keeps: by path, in words.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(path) = left.pop() {
        let data = path.symlink_metadata().unwrap();
        let own = path.strip_prefix(root).unwrap().to_path_buf();
        let mut words = format!("mode {:o} mtime {}.{:09}", data.mode(), data.mtime(), data.mtime_nsec());
        if data.is_symlink() {
            words += &format!(" -> {}", fs::read_link(&path).unwrap().display());
        } else if data.is_file() {
            let first = names.entry((data.dev(), data.ino())).or_insert_with(|| own.clone()).clone();
            let content = fs::read(&path).unwrap();
            let sparse = data.blocks() * 512 < data.len();
            words += &format!(" {} bytes, sum {}, same as {first:?}, sparse {sparse}", data.len(), sum(&content));
            words += &format!(", attribute {:?}", attribute(&path));
        } else if data.is_dir() {
            left.extend(entries(&path));
            left.sort();
            left.reverse();
        }
        all.insert(own, words);
    }
    all
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |h: u64, b| h.wrapping_mul(1_099_511_628_211) ^ u64::from(*b))
}

fn attribute(path: &Path) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let len = rustix::fs::getxattr(path, "user.narrows", &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

fn set_mtime(path: &Path, s: i64, ns: u32) {
    let at = if s >= 0 {
        SystemTime::UNIX_EPOCH + Duration::new(s as u64, ns)
    } else {
        SystemTime::UNIX_EPOCH - Duration::new(s.unsigned_abs(), 0) + Duration::new(0, ns)
    };
    File::open(path).unwrap().set_modified(at).unwrap();
}

/// The tree that most tools lose something of.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("a/text"), text(300_000)).unwrap();
    fs::write(root.join("a/b/random"), random(200_000)).unwrap();
    fs::write(root.join("a/b/c/nothing"), "").unwrap();
    fs::hard_link(root.join("a/text"), root.join("a/b/another name")).unwrap();
    symlink("a/text", root.join("link")).unwrap();
    symlink("../not/there", root.join("dangling")).unwrap();
    symlink("a", root.join("link to folder")).unwrap();
    let holes = File::create(root.join("holes")).unwrap();
    holes.set_len(8 << 20).unwrap();
    holes.write_all_at(b"in the middle", 5 << 20).unwrap();
    for name in [&b"new\nline"[..], b"not \xff utf-8", b"-rf", b" blank ", &[b'x'; 250], b"colon:name"] {
        fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let _ = rustix::fs::setxattr(root.join("a/text"), "user.narrows", b"kept \0 too", rustix::fs::XattrFlags::empty());
    fs::set_permissions(root.join("a/b/random"), fs::Permissions::from_mode(0o4751)).unwrap();
    set_mtime(&root.join("a/b/random"), 1_234_567_890, 123_456_789);
    set_mtime(&root.join("-rf"), -86_400, 5);
    fs::create_dir(root.join("read-only")).unwrap();
    fs::write(root.join("read-only/file"), "in it").unwrap();
    fs::set_permissions(root.join("read-only/file"), fs::Permissions::from_mode(0o400)).unwrap();
    set_mtime(&root.join("read-only"), 1_000_000_000, 1);
    fs::set_permissions(root.join("read-only"), fs::Permissions::from_mode(0o555)).unwrap();
    set_mtime(root, 1_100_000_000, 999_999_999);
}

/// So that the test's folder can be removed by anybody.
fn unlock(root: &Path) {
    let _ = fs::set_permissions(root.join("read-only"), fs::Permissions::from_mode(0o755));
}

fn partials(root: &Path) -> Vec<PathBuf> {
    snapshot(root).into_keys().filter(|p| p.to_string_lossy().contains(".narrows-")).collect()
}

#[test]
fn everything_of_a_tree_arrives_both_ways_and_on_one_host() {
    let home = home();
    let source = home.path().join("source");
    make_tree(&source);
    let before = snapshot(&source);
    let there = home.path().join("there");
    let back = home.path().join("back");
    let beside = home.path().join("beside");
    let steps: [(std::ffi::OsString, std::ffi::OsString, PathBuf); 3] = [
        (source.clone().into(), remote(&there), there.join("source")),
        (remote(&there.join("source/")), back.clone().into(), back.clone()),
        (back.join("").into(), beside.clone().into(), beside.clone()),
    ];
    for (from, to, copy) in steps {
        let output = cp(home.path(), &[OsStr::new("-r"), &from, &to]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(stderr(&output).contains("files;"), "{}", stderr(&output));
        let after = snapshot(&copy);
        for (path, words) in &before {
            assert_eq!(after.get(path), Some(words), "{path:?}");
        }
        assert_eq!(after.len(), before.len());

        // Again: nothing is sent, nothing changes.
        let output = cp(home.path(), &[OsStr::new("-r"), OsStr::new("--json"), &from, &to]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["files"], 0, "{json}");
        assert!(json["files_same"].as_u64().unwrap() == 11 && json["raw_bytes"].as_u64().unwrap() < 4096, "{json}");
        assert_eq!(snapshot(&copy), after);
        unlock(&copy);
        fs::set_permissions(copy.join("read-only"), fs::Permissions::from_mode(0o555)).unwrap();
    }
    [source, there.join("source"), back, beside].iter().for_each(|p| unlock(p));
}

#[test]
fn a_file_goes_into_a_folder_or_gets_a_new_name() {
    let home = home();
    let h = home.path();
    fs::write(h.join("file"), "content").unwrap();
    fs::create_dir(h.join("folder")).unwrap();
    for (to, lands) in [("folder", "folder/file"), ("folder/", "folder/file"), ("new", "new"), ("folder/x", "folder/x")]
    {
        for far in [false, true] {
            let to = h.join(to);
            let place = if far { remote(&to) } else { to.into() };
            let output = cp(h, &[h.join("file").as_os_str(), &place]);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            assert_eq!(fs::read(h.join(lands)).unwrap(), b"content");
            fs::remove_file(h.join(lands)).unwrap();
        }
    }
    // And back.
    let output = cp(h, &[&remote(&h.join("file")), h.join("fetched").as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(fs::read(h.join("fetched")).unwrap(), b"content");
    let output = cp(h, &[&remote(&h.join("file")), &remote(&h.join("fetched")), h.join("both/").as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(entries(&h.join("both")).len(), 2);
}

#[test]
fn what_changed_is_replaced_and_what_is_there_besides_stays() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    fs::write(a.join("changed"), "new content").unwrap();
    fs::write(b.join("changed"), "old").unwrap();
    fs::write(b.join("other"), "stays").unwrap();
    symlink("other", b.join("was a link")).unwrap();
    fs::write(a.join("was a link"), "now a file").unwrap();
    let output = cp(home.path(), &[OsStr::new("-r"), a.join("").as_os_str(), &remote(&b)]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(fs::read(b.join("changed")).unwrap(), b"new content");
    assert_eq!(fs::read(b.join("other")).unwrap(), b"stays", "a link's target is not written through it");
    assert_eq!(fs::read(b.join("was a link")).unwrap(), b"now a file");
}

#[test]
fn what_is_in_the_way_fails_alone_and_nothing_leaves_the_folder() {
    let home = home();
    let (a, b, outside) = (home.path().join("a"), home.path().join("b"), home.path().join("outside"));
    for folder in [&a, &b, &outside, &a.join("trap"), &a.join("was file"), &b.join("was folder")] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(a.join("trap/file"), "must not get out").unwrap();
    fs::write(a.join("was file/x"), "x").unwrap();
    fs::write(a.join("was folder"), "x").unwrap();
    fs::write(a.join("good"), "good").unwrap();
    symlink("../outside", b.join("trap")).unwrap();
    fs::write(b.join("was file"), "x").unwrap();
    let output = cp(home.path(), &[OsStr::new("-r"), a.join("").as_os_str(), &remote(&b)]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let said = stderr(&output);
    for words in ["store trap:", "store was file:", "store was folder:", "in the way"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(fs::read(b.join("good")).unwrap(), b"good");
    assert!(entries(&outside).is_empty());
    assert_eq!(partials(&b), Vec::<PathBuf>::new());
}

#[test]
fn wrong_use_and_missing_things_are_told() {
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("x/same")).unwrap();
    fs::create_dir_all(h.join("y/same")).unwrap();
    fs::write(h.join("file"), "x").unwrap();
    let os = |s: &str| std::ffi::OsString::from(s);
    let here = |s: &str| h.join(s).into_os_string();
    for (args, status, words) in [
        (vec![here("x"), os("host:y")], 1, "add -r"),
        (vec![here("nothing"), os("host:y")], 1, "No such file"),
        (vec![os("one:x"), os("two:y")], 1, "both ends are remote"),
        (vec![os("-r"), here("x/same"), here("y/same"), here("z")], 1, "two sources are named 'same'"),
        (vec![here("file"), os("host:/no/such/folder/file")], 1, "No such file"),
        (vec![os("host:/no/such/file"), here("z/")], 2, "No such file"),
        (vec![os(":file"), here("z")], 1, "no host before the colon"),
    ] {
        let output = cp(h, &args.iter().map(|a| &**a).collect::<Vec<_>>());
        assert_eq!(code(&output), status, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
    let output = finish(
        narrows(h)
            .args(["cp", "-e"])
            .arg(shell(h))
            .args(["--remote-narrows", "/no/such/narrows"])
            .arg(h.join("file"))
            .arg("host:x")
            .spawn()
            .unwrap(),
    );
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("there is no narrows on host"), "{}", stderr(&output));
}

#[test]
fn what_the_remote_login_prints_is_shown_and_harms_nothing() {
    let home = home();
    fs::write(home.path().join("file"), "x").unwrap();
    let output = cp(home.path(), &[home.path().join("file").as_os_str(), &remote(&home.path().join("copy"))]);
    assert_eq!(code(&output), 0);
    assert!(stderr(&output).contains("remote: Welcome\nnarrows: remote: to this host\n"), "{}", stderr(&output));
}

#[test]
fn a_copy_that_is_killed_at_any_moment_is_completed_by_the_same_command() {
    let home = home();
    let (source, target) = (home.path().join("source"), home.path().join("target"));
    make_tree(&source);
    fs::create_dir(&target).unwrap();
    for i in 0..60 {
        fs::write(source.join(format!("a/more {i}")), random(50_000 + 1000 * i)).unwrap();
    }
    let before = snapshot(&source);
    let shell = shell(home.path());
    let mut stored = 0;
    for round in 0..25u64 {
        let mut child =
            cp_command(home.path(), &shell).arg("-r").arg(source.join("")).arg(remote(&target)).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 + round * 7 % 80));
        let _ = child.kill();
        child.wait().unwrap();
        for folder in [target.clone(), target.join("a")] {
            for path in fs::read_dir(&folder).into_iter().flatten().map(|e| e.unwrap().path()) {
                if path.is_file() && !path.file_name().unwrap().as_bytes().starts_with(b".narrows-") {
                    let own = source.join(path.strip_prefix(&target).unwrap());
                    assert!(fs::read(&path).unwrap() == fs::read(own).unwrap(), "{path:?} is not whole");
                    stored += 1;
                }
            }
        }
        unlock(&target);
    }
    assert!(stored > 0, "no round got anywhere");
    // Servers of killed clients may still be on their way out, and store what was whole.
    let begun = Instant::now();
    loop {
        let output = finish(
            cp_command(home.path(), &shell).arg("-r").arg(source.join("")).arg(remote(&target)).spawn().unwrap(),
        );
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        if snapshot(&target) == before {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", partials(&target));
        std::thread::sleep(Duration::from_millis(100));
    }
    unlock(&source);
    unlock(&target);
}

#[test]
fn a_dry_run_names_what_would_be_copied_and_changes_nothing() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    make_tree(&a);
    for target in [remote(&b), b.clone().into_os_string()] {
        let output = cp(home.path(), &[OsStr::new("-rn"), a.join("").as_os_str(), &target]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(names.lines().any(|l| l == "a/b/random") && names.contains("new\\nline"), "{names}");
        assert!(stderr(&output).contains("would copy 11 files"), "{}", stderr(&output));
        assert!(!b.exists());
    }
    let output = cp(home.path(), &[OsStr::new("-rn"), &remote(&a.join("")), b.as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("would copy 11 files"), "{}", stderr(&output));
    let output = cp(home.path(), &[OsStr::new("-rn"), OsStr::new("--json"), &remote(&a.join("")), b.as_os_str()]);
    assert!(json(&output)["raw_bytes"].as_u64().unwrap() < 4096, "content crossed for nothing");
    assert!(!b.exists());
    unlock(&a);
}

#[test]
fn what_is_excluded_stays_here_both_ways() {
    let home = home();
    let a = home.path().join("a");
    fs::create_dir_all(a.join("build")).unwrap();
    for name in ["keep.c", "drop.o", "keep.o", "build/x"] {
        fs::write(a.join(name), name).unwrap();
    }
    fs::hard_link(a.join("drop.o"), a.join("other name")).unwrap();
    let flags = ["-r", "--exclude", "*.o", "--exclude", "build/", "--include", "keep.o"].map(OsStr::new);
    for (from, to) in [(a.join("").into_os_string(), "put"), (remote(&a.join("")), "got")] {
        let to = home.path().join(to);
        let place = if from.as_bytes().starts_with(b"host:") { to.clone().into() } else { remote(&to) };
        let output = cp(home.path(), &[&flags[..], &[&*from, &*place]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let mut names: Vec<_> = snapshot(&to).into_keys().collect();
        names.retain(|n| !n.as_os_str().is_empty());
        assert_eq!(names, ["keep.c", "keep.o", "other name"].map(PathBuf::from));
    }
}

fn json(output: &Output) -> serde_json::Value {
    assert_eq!(code(output), 0, "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn of_a_file_that_changed_a_little_little_is_sent() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    let old = random(40 << 20);
    let mut new = old.clone();
    new.splice(30_000_000..30_000_000, *b"an insertion");
    for at in [5, 1_000_000, 39_999_999] {
        new[at] ^= 0x55;
    }
    for pull in [false, true] {
        fs::write(&a, &new).unwrap();
        fs::write(&b, &old).unwrap();
        let (from, to) = if pull { (remote(&a), b.clone().into_os_string()) } else { (a.clone().into(), remote(&b)) };
        let json = json(&cp(home.path(), &[OsStr::new("--json"), &from, &to]));
        assert!(fs::read(&b).unwrap() == new);
        let wire = json["wire_bytes"].as_u64().unwrap();
        // Ten thousand hashes of 10 bytes, and a few chunks.
        assert!(wire < 400_000, "{json}");
    }
}

#[test]
fn a_long_file_goes_on_where_a_killed_copy_stopped() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    let content = random(60 << 20);
    fs::write(&a, &content).unwrap();
    let shell = shell(home.path());
    let mut kept = 0;
    for pause in (100..).step_by(50) {
        // A slow method, so that there is a middle to be met.
        let slow = ["--policy", "fixed:xz"];
        let mut child = cp_command(home.path(), &shell).args(slow).arg(&a).arg(remote(&b)).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        let _ = child.kill();
        child.wait().unwrap();
        // The server at the other end notices and leaves what came.
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
fn attributes_of_what_is_there_are_brought_up_to_date() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::write(&a, "x").unwrap();
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    if !set(&a, "user.narrows", b"first") {
        // A file system without attributes has none to lose.
        return;
    }
    let copy = || {
        let output = cp(home.path(), &[a.as_os_str(), &remote(&b)]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    };
    copy();
    assert_eq!(attribute(&b), Some(b"first".to_vec()));
    assert!(set(&a, "user.narrows", b"second") && set(&b, "user.other", b"must go"));
    copy();
    assert_eq!(attribute(&b), Some(b"second".to_vec()));
    assert!(rustix::fs::getxattr(&b, "user.other", &mut [0; 10][..]).is_err());
}

#[test]
fn a_hard_link_never_gets_the_content_of_another_file() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::write(a.join("x"), "one file of two names").unwrap();
    fs::hard_link(a.join("x"), a.join("y")).unwrap();
    // What the first name cannot be stored under is in the way.
    fs::create_dir_all(b.join("x")).unwrap();
    let output = cp(home.path(), &[OsStr::new("-r"), a.join("").as_os_str(), &remote(&b)]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("link y:"), "{}", stderr(&output));
    assert!(!b.join("y").exists());
}

#[test]
fn two_sources_never_replace_one_another() {
    let home = home();
    let h = home.path();
    for name in ["a", "b"] {
        fs::create_dir(h.join(name)).unwrap();
        fs::write(h.join(name).join("same"), name).unwrap();
    }
    let (a, b) = (h.join("a/"), h.join("b/"));
    let output = cp(h, &[OsStr::new("-r"), a.as_os_str(), b.as_os_str(), &remote(&h.join("t"))]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("another one of that name"), "{}", stderr(&output));
    assert_eq!(fs::read(h.join("t/same")).unwrap(), b"a");
    let (a, b) = (remote(&h.join("a/same")), remote(&h.join("b/same")));
    let output = cp(h, &[&a, &b, h.join("u/").as_os_str()]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("two sources are named 'same'"), "{}", stderr(&output));
}

#[test]
fn many_folders_need_few_descriptors() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    for i in 0..700 {
        fs::create_dir_all(a.join(i.to_string())).unwrap();
        fs::write(a.join(i.to_string()).join("file"), i.to_string()).unwrap();
    }
    let line = format!("ulimit -n 400; exec {} cp -r {}/ {}", env!("CARGO_BIN_EXE_narrows"), a.display(), b.display());
    let child = Command::new("sh")
        .args(["-c", &line])
        .env("XDG_CACHE_HOME", home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = finish(child);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(snapshot(&b).len(), 1 + 2 * 700);
}

#[test]
fn a_signal_ends_a_copy_whose_other_end_says_nothing() {
    let home = home();
    fs::write(home.path().join("file"), "x").unwrap();
    let silent = home.path().join("silent");
    fs::write(&silent, "#!/bin/sh\nexec sleep 50\n").unwrap();
    fs::set_permissions(&silent, fs::Permissions::from_mode(0o755)).unwrap();
    for pull in [false, true] {
        let (here, there) = (home.path().join("file").into_os_string(), remote(Path::new("/x")));
        let (from, to) = if pull { (there, home.path().join("y").into()) } else { (here, there) };
        let child = cp_command(home.path(), &silent).args([from, to]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        signal(&child, "-TERM");
        let output = finish(child);
        assert!(output.status.code().is_none(), "it dies of the signal");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}

/// A peer that is not ours, or wrong in its words.
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

/// An OpenSSH server of the test's own on a free port of the loopback device, if one is installed.
struct Sshd {
    child: Child,
    port: u16,
    key: PathBuf,
}

impl Sshd {
    fn start(folder: &Path) -> Option<Self> {
        let sshd = ["/usr/sbin/sshd", "/usr/bin/sshd"].iter().find(|p| Path::new(p).exists())?;
        for key in ["host", "user"] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key));
            assert!(make.status().ok()?.success());
        }
        // Where it runs as root it wants this folder; it is made by its start script elsewhere.
        let _ = fs::create_dir("/run/sshd");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let option = |text: String| ["-o".to_owned(), text];
        let mut child = Command::new(sshd)
            .args(["-D", "-e", "-f", "/dev/null"])
            .args(option(format!("Port={port}")))
            .args(option("ListenAddress=127.0.0.1".into()))
            .args(option(format!("HostKey={}", folder.join("host").display())))
            .args(option(format!("AuthorizedKeysFile={}", folder.join("user.pub").display())))
            .args(option("StrictModes=no".into()))
            .args(option("PidFile=none".into()))
            .args(option("PasswordAuthentication=no".into()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut log = child.stderr.take()?;
        let mut seen = [0; 4096];
        let n = log.read(&mut seen).ok()?;
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let listening = String::from_utf8_lossy(&seen[..n]).contains("listening");
        let own = Self { child, port, key: folder.join("user") };
        listening.then_some(own)
    }

    fn shell(&self) -> String {
        format!(
            "ssh -F /dev/null -p {} -i {} -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
             -o LogLevel=ERROR -o IdentitiesOnly=yes",
            self.port,
            self.key.display()
        )
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_tree_goes_through_ssh_and_back() {
    let home = home();
    let Some(sshd) = Sshd::start(home.path()) else {
        let _ = writeln!(std::io::stderr(), "no OpenSSH server can be started here: not tested");
        return;
    };
    let source = home.path().join("source");
    make_tree(&source);
    let (there, back) = (home.path().join("there"), home.path().join("back"));
    let place = |path: &Path| {
        let mut place = std::ffi::OsString::from("127.0.0.1:");
        place.push(path);
        place
    };
    let run = |args: [&OsStr; 2]| {
        let mut command = narrows(home.path());
        command.args(["cp", "-r", "-e", &sshd.shell(), "--remote-narrows", env!("CARGO_BIN_EXE_narrows")]).args(args);
        let output = finish(command.spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    };
    run([source.join("").as_os_str(), &place(&there)]);
    assert_eq!(snapshot(&there), snapshot(&source));
    run([&place(&there.join("")), back.as_os_str()]);
    assert_eq!(snapshot(&back), snapshot(&source));
    [source, there, back].iter().for_each(|p| unlock(p));
}
