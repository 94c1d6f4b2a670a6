//! `narrows cp` through a remote shell and on one host: content and metadata of the copy, messages,
//! and what is left behind after a failure.

use std::ffi::OsStr;
use std::fs::{self};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::copies::*;
use crate::common::sshd::Sshd;
use crate::common::*;
use narrows_test::skip;

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
    // Two names of one file.
    fs::hard_link(h.join("file"), h.join("link")).unwrap();
    let output = cp(h, &[&remote(&h.join("file")), &remote(&h.join("link")), h.join("linked/").as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let inode = |name: &str| fs::metadata(h.join("linked").join(name)).unwrap().ino();
    assert_eq!(inode("file"), inode("link"));
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
fn wrong_use_and_missing_things_are_told() {
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("x/same")).unwrap();
    fs::create_dir_all(h.join("y/same")).unwrap();
    fs::write(h.join("file"), "x").unwrap();
    let os = |s: &str| std::ffi::OsString::from(s);
    let here = |s: &str| h.join(s).into_os_string();
    for (args, status, words) in [
        (vec![here("x"), os("host:y")], 2, "only -r copies folders"),
        (vec![here("nothing"), os("host:y")], 2, "No such file"),
        (vec![os("one:x"), os("two:y")], 2, "both ends are remote"),
        (vec![here("file"), os("host:/no/such/folder/file")], 1, "No such file"),
        (vec![os("host:/no/such/file"), here("z/")], 2, "No such file"),
        (vec![os(":file"), here("z")], 2, "no host before the colon"),
    ] {
        let output = cp(h, &args.iter().map(|a| &**a).collect::<Vec<_>>());
        assert_eq!(code(&output), status, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{args:?}: {}", stderr(&output));
    }
    let output = finish(
        narrows(h)
            .args(["cp", "-e"])
            .arg(shell(h))
            .args(["--no-fallback", "--remote-narrows", "/no/such/narrows"])
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
fn a_dry_run_names_what_would_be_copied_and_changes_nothing() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    make_tree(&a);
    for target in [remote(&b), b.clone().into_os_string()] {
        let output = cp(home.path(), &[OsStr::new("-rn"), a.join("").as_os_str(), &target]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(names.lines().any(|l| l == "a/b/random") && names.contains("new\\nline"), "{names}");
        assert!(stderr(&output).lines().any(|l| l.ends_with("would copy 11 files")), "{}", stderr(&output));
        assert!(!b.exists());
    }
    let output = cp(home.path(), &[OsStr::new("-rn"), &remote(&a.join("")), b.as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).lines().any(|l| l.ends_with("would copy 11 files")), "{}", stderr(&output));
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
fn attributes_of_what_is_there_are_brought_up_to_date() {
    let home = home();
    let (a, b) = (home.path().join("a"), home.path().join("b"));
    fs::write(&a, "x").unwrap();
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    if !set(&a, "user.narrows", b"first") {
        return skip("this file system has no attributes of files");
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
    // A folder that is not empty is in the way of the first name.
    fs::create_dir_all(b.join("x/kept")).unwrap();
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
    assert!(stderr(&output).contains("has an entry of that name"), "{}", stderr(&output));
    assert_eq!(fs::read(h.join("t/same")).unwrap(), b"a");
    let (a, b) = (remote(&h.join("a/same")), remote(&h.join("b/same")));
    let output = cp(h, &[&a, &b, h.join("u/").as_os_str()]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("has an entry of that name"), "{}", stderr(&output));
    assert_eq!(fs::read(h.join("u/same")).unwrap(), b"a");
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
fn a_tree_goes_through_ssh_and_back() {
    let home = home();
    let Some(sshd) = Sshd::start(home.path()) else { return };
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
