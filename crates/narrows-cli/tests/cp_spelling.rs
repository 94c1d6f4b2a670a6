//! Targets that take names for one which differ only in case: no content replaces another of the same
//! copy, no source goes of which the content is not there, and a mirror keeps what it stored.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::copies::*;
use crate::common::folding::Folding;
use crate::common::store::Bucket;
use crate::common::*;

/// Names of which some are one there: in one folder, and in two folders that are one.
const NAMES: [&str; 5] = ["Dir/b", "README", "dir/B", "other", "readme"];

fn make(root: &Path) {
    for name in NAMES {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        // Of one length and time, so that nothing but the name tells them apart.
        fs::write(&path, format!("{name:8}")).unwrap();
        set_mtime(&path, 1_000_000_000, 0);
    }
}

/// The contents of all files below a folder by their paths.
fn files(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut all, mut left) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(entries(&path));
        } else {
            all.insert(
                path.strip_prefix(root).unwrap().to_path_buf(),
                String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned(),
            );
        }
    }
    all
}

fn run(home: &Path, args: &[&OsStr]) -> Output {
    finish(narrows(home).args(args).spawn().unwrap())
}

fn os(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// A file system without one number for each file, as FUSE has them, and one with.
fn each(home: &Path, test: impl Fn(&Path, bool)) {
    for stable in [true, false] {
        let Some(folding) = Folding::mount(home, stable, stable) else { return };
        fs::write(folding.path().join("Aa"), "x").unwrap();
        assert_eq!(fs::read_to_string(folding.path().join("aA")).unwrap(), "x", "it does not ignore case");
        fs::remove_file(folding.path().join("Aa")).unwrap();
        test(folding.path(), stable);
    }
}

#[test]
fn of_two_names_that_are_one_the_second_is_reported_and_stays() {
    let home = home();
    each(home.path(), |there, stable| {
        let pack = home.path().join(format!("{stable}.nrw"));
        for way in ["local", "put", "get", "compressed", "existing", "unpack", "unpack -f"] {
            let (from, to) = (home.path().join(format!("{stable} {way}")), there.join(way));
            make(&from);
            fs::create_dir(&to).unwrap();
            if way == "existing" || way == "unpack -f" {
                fs::write(to.join("readme"), "from before").unwrap();
            }
            let (source, target) = (from.join(""), to.clone());
            let remove = os("--remove-source-files");
            let output = match way {
                "local" | "existing" => cp(home.path(), &[os("-r"), remove, source.as_os_str(), target.as_os_str()]),
                "put" => cp(home.path(), &[os("-r"), remove, source.as_os_str(), &remote(&target)]),
                "get" => cp(home.path(), &[os("-r"), remove, &remote(&source), target.as_os_str()]),
                "compressed" => {
                    cp(home.path(), &[os("-r"), os("--store-compressed"), source.as_os_str(), &remote(&target)])
                }
                _ => {
                    let made =
                        run(home.path(), &[os("pack"), os("-f"), source.as_os_str(), os("-o"), pack.as_os_str()]);
                    assert_eq!(code(&made), 0, "{}", stderr(&made));
                    let flags = if way == "unpack" { vec![] } else { vec![os("-f")] };
                    let args = [&[os("unpack"), pack.as_os_str(), os("-C"), target.as_os_str()], &flags[..]].concat();
                    run(home.path(), &args)
                }
            };
            let said = stderr(&output);
            let expected = if way.starts_with("unpack") { 1 } else { 3 };
            assert_eq!(code(&output), expected, "{way} {stable}: {said}");
            assert_eq!(said.matches("differs only in case").count(), 3, "{way} {stable}: {said}");
            // Whatever was stored is whole, and of everything else there is the source.
            let (here, stored) = (files(&from), files(&to));
            assert_eq!(stored.len(), 3, "{way} {stable}: {stored:?}");
            if way == "compressed" {
                assert_eq!(here.len(), NAMES.len());
                continue;
            }
            for name in NAMES {
                let content = format!("{name:8}");
                let is_stored = stored.values().any(|stored| *stored == content);
                assert!(is_stored || here.contains_key(Path::new(name)), "{way} {stable}: {name}: {stored:?}");
            }
            if !way.starts_with("unpack") {
                // So does the source of what was stored under the other name, which the next copy would replace.
                let left: Vec<_> = here.keys().map(|path| path.to_str().unwrap()).collect();
                assert_eq!(left, ["Dir/b", "README", "dir/B", "readme"], "{way} {stable}");
            }
        }
    });
}

#[test]
fn a_mirror_keeps_what_it_stored_and_removes_what_went() {
    let home = home();
    each(home.path(), |there, stable| {
        for (at, way) in ["local", "put", "sync"].into_iter().enumerate() {
            let (from, to) = (home.path().join(format!("{stable} {at}")), there.join(way));
            fs::create_dir_all(from.join("Photos")).unwrap();
            for name in ["Photos/IMG_1.JPG", "Photos/IMG_2.JPG", "Top.txt", "gone"] {
                fs::write(from.join(name), name).unwrap();
            }
            let mirror = || {
                let (source, target) = (from.join(""), to.clone());
                match way {
                    "local" => cp(home.path(), &[os("-r"), os("--delete"), source.as_os_str(), target.as_os_str()]),
                    "put" => cp(home.path(), &[os("-r"), os("--delete"), source.as_os_str(), &remote(&target)]),
                    _ => run(home.path(), &[os("sync"), os("--yes"), source.as_os_str(), target.as_os_str()]),
                }
            };
            assert_eq!(code(&mirror()), 0);
            assert_eq!(files(&to).len(), 4);
            fs::rename(from.join("Photos"), from.join("photos")).unwrap();
            fs::rename(from.join("Top.txt"), from.join("TOP.txt")).unwrap();
            fs::remove_file(from.join("gone")).unwrap();
            for round in 0..3 {
                let dry = match way {
                    "local" => cp(home.path(), &[os("-rn"), os("--delete"), from.join("").as_os_str(), to.as_os_str()]),
                    _ => mirror(),
                };
                let deleted = String::from_utf8_lossy(&dry.stdout).into_owned();
                if way == "local" {
                    let expected = if round == 0 { "deleting gone\n" } else { "" };
                    let lines: String =
                        deleted.lines().filter(|l| l.starts_with("deleting")).map(|l| format!("{l}\n")).collect();
                    assert_eq!(lines, expected, "{stable} {round}");
                }
                let output = mirror();
                let stored = files(&to);
                assert_eq!(code(&output), 0, "{way} {stable} {round}: {}", stderr(&output));
                let mut contents: Vec<_> = stored.values().map(String::as_str).collect();
                contents.sort_unstable();
                assert_eq!(contents, ["Photos/IMG_1.JPG", "Photos/IMG_2.JPG", "Top.txt"], "{way} {stable} {round}");
            }
        }
    });
}

/// Where a file has a number for each spelling, only the names tell that it is the target.
#[test]
fn a_source_that_is_its_target_in_another_spelling_stays() {
    let home = home();
    each(home.path(), |there, stable| {
        let (from, to) = (there.join("readme"), there.join("README"));
        fs::write(&from, "precious").unwrap();
        let output = cp(home.path(), &[os("--remove-source-files"), from.as_os_str(), to.as_os_str()]);
        assert!(stderr(&output).contains("it is the target itself"), "{stable}: {}", stderr(&output));
        assert_eq!(fs::read_to_string(&to).unwrap(), "precious", "{stable}");
    });
}

/// Of a killed copy, by its mark, or where there are no attributes by its name, which no other file gets by
/// chance.
#[test]
fn what_a_copy_left_is_gone_on_with_where_there_are_no_attributes_too() {
    let home = home();
    let from = home.path().join("from");
    fs::create_dir(&from).unwrap();
    let content = random(600_000);
    fs::write(from.join("long"), &content).unwrap();
    for xattrs in [true, false] {
        let Some(folding) = Folding::mount(home.path(), true, xattrs) else { return };
        let to = folding.path().join("to");
        fs::create_dir(&to).unwrap();
        let theirs = ".narrows-0123456789abcdef01234567.partial";
        fs::write(to.join(theirs), "precious").unwrap();
        let left = to.join(partial_name("long", ""));
        leave_partial(&left, &content[..500_000]);
        let said = json(&cp(home.path(), &[os("-r"), os("--json"), from.join("").as_os_str(), &remote(&to)]));
        assert!(said["wire_bytes"].as_u64().unwrap() < 300_000, "{xattrs}: {said}");
        assert!(fs::read(to.join("long")).unwrap() == content);
        assert!(!left.exists(), "{xattrs}");
        assert_eq!(fs::read_to_string(to.join(theirs)).unwrap(), "precious");
    }
}

/// Where a file system sets no time if the access time is left out, and says that it did.
#[test]
fn times_are_set_where_none_of_the_two_may_be_left_out() {
    let home = home();
    let from = home.path().join("from");
    fs::create_dir_all(from.join("folder")).unwrap();
    fs::write(from.join("folder/file"), "of a while ago").unwrap();
    fs::write(from.join("long"), random(300_000)).unwrap();
    symlink("file", from.join("folder/link")).unwrap();
    let names = ["folder/file", "folder/link", "folder", "long"];
    for (i, name) in names.iter().enumerate() {
        let time = rustix::fs::Timespec { tv_sec: 1_000_000_000 + i as i64, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(rustix::fs::CWD, from.join(name), &times, flags).unwrap();
    }
    let pack = home.path().join("times.nrw");
    let made = run(home.path(), &[os("pack"), from.join("").as_os_str(), os("-o"), pack.as_os_str()]);
    assert_eq!(code(&made), 0, "{}", stderr(&made));
    let Some(folding) = Folding::mount(home.path(), true, true) else { return };
    for way in ["local", "put", "get", "unpack"] {
        let to = folding.path().join(way);
        fs::create_dir(&to).unwrap();
        let source = from.join("");
        let output = match way {
            "local" => cp(home.path(), &[os("-r"), source.as_os_str(), to.as_os_str()]),
            "put" => cp(home.path(), &[os("-r"), source.as_os_str(), &remote(&to)]),
            "get" => cp(home.path(), &[os("-r"), &remote(&source), to.as_os_str()]),
            _ => run(home.path(), &[os("unpack"), pack.as_os_str(), os("-C"), to.as_os_str()]),
        };
        assert_eq!(code(&output), 0, "{way}: {}", stderr(&output));
        assert!(!stderr(&output).contains("not kept"), "{way}: {}", stderr(&output));
        for (i, name) in names.iter().enumerate() {
            let time = to.join(name).symlink_metadata().unwrap().mtime();
            assert_eq!(time, 1_000_000_000 + i as i64, "{way} {name}");
        }
    }
}

/// Where each name has a number of its own, nothing shows that two are names of one file.
#[test]
fn a_second_copy_of_names_of_one_file_leaves_nothing() {
    let home = home();
    let from = home.path().join("from");
    fs::create_dir_all(from.join("folder")).unwrap();
    fs::write(from.join("first"), "of three names").unwrap();
    for name in ["folder/second", "third"] {
        fs::hard_link(from.join("first"), from.join(name)).unwrap();
    }
    for stable in [true, false] {
        let Some(folding) = Folding::mount(home.path(), stable, stable) else { return };
        for way in ["local", "put"] {
            let to = folding.path().join(way);
            fs::create_dir(&to).unwrap();
            for flags in [&["-i", "-c"][..], &["-i", "-c"], &["-i", "-c", "-b"], &["-i", "-c", "-b"]] {
                let target = if way == "put" { remote(&to) } else { to.clone().into() };
                let source = from.join("");
                let args = [&[os("-r")], &flags.iter().map(|f| os(f)).collect::<Vec<_>>()[..]].concat();
                let output = cp(home.path(), &[&args[..], &[source.as_os_str(), &target]].concat());
                assert_eq!(code(&output), 0, "{way} {stable}: {}", stderr(&output));
                let all = files(&to);
                let partials: Vec<_> = all.keys().filter(|path| path.to_string_lossy().contains("partial")).collect();
                assert!(partials.is_empty(), "{way} {stable} {flags:?}: {partials:?}");
                let names = ["first", "folder/second", "third"];
                assert!(names.iter().all(|name| all[Path::new(name)] == "of three names"), "{way} {stable}: {all:?}");
            }
            fs::write(to.join("first"), "changed").unwrap();
            assert_eq!(fs::read_to_string(to.join("third")).unwrap(), "changed", "{way} {stable}: they are two files");
        }
    }
}

/// A file system may pass over what does not fit where the names of a folder are read: every program reads
/// as much at a time as the C library does.
#[test]
fn all_names_are_copied_where_a_short_read_loses_some() {
    let home = home();
    let Some(folding) = Folding::mount(home.path(), true, true) else { return };
    let from = folding.path().join("many");
    fs::create_dir(&from).unwrap();
    for i in 0..300 {
        fs::write(from.join(format!("name {i}")), format!("{i}")).unwrap();
    }
    assert_eq!(entries(&from).len(), 300, "as the C library lists them");
    let (to, pack) = (home.path().join("to"), home.path().join("many.nrw"));
    let output = cp(home.path(), &[os("-r"), from.join("").as_os_str(), to.join("").as_os_str()]);
    assert_eq!((code(&output), entries(&to).len()), (0, 300), "{}", stderr(&output));
    let output = run(home.path(), &[os("pack"), from.join("").as_os_str(), os("-o"), pack.as_os_str()]);
    assert!(code(&output) == 0 && stderr(&output).contains("300 files"), "{}", stderr(&output));
    // At the target too, where everything else is to go.
    fs::remove_dir_all(&to).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(to.join("one"), "1").unwrap();
    let output = cp(home.path(), &[os("-r"), os("--delete"), to.join("").as_os_str(), from.join("").as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(entries(&from).len(), 1, "{:?}", entries(&from));
}

/// A host without narrows.
#[test]
fn tar_stores_nothing_where_two_names_are_one() {
    if !narrows_test::has("tar") {
        return;
    }
    let home = home();
    let bin = home.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for tool in [
        "sh", "tar", "dd", "sleep", "cat", "chmod", "chown", "find", "id", "mkdir", "mv", "rm", "rmdir", "sync",
        "touch", "tr",
    ] {
        symlink(narrows_test::which(tool).unwrap(), bin.join(tool)).unwrap();
    }
    let shell = home.path().join("bare");
    fs::write(&shell, format!("#!/bin/sh\nshift\nPATH='{}'\nexec sh -c \"$*\"\n", bin.display())).unwrap();
    fs::set_permissions(&shell, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    each(home.path(), |there, stable| {
        for way in ["put", "get"] {
            let (from, to) = (home.path().join(format!("{stable} {way}")), there.join(way));
            make(&from);
            fs::create_dir(&to).unwrap();
            let copy = |from: &Path| -> Output {
                let (source, target): (OsString, OsString) = match way {
                    "put" => (from.into(), remote(&to)),
                    _ => (remote(from), to.clone().into()),
                };
                let mut command = narrows(home.path());
                command.args(["cp", "-r", "-e"]).arg(&shell).arg(source).arg(target);
                finish(command.spawn().unwrap())
            };
            let output = copy(&from);
            assert_ne!(code(&output), 0, "{way} {stable}: {}", stderr(&output));
            assert!(stderr(&output).contains("differ"), "{way} {stable}: {}", stderr(&output));
            assert_eq!(files(&to), BTreeMap::new(), "{way} {stable}");
            // What has no such names is copied.
            for name in ["dir/B", "readme"] {
                fs::remove_file(from.join(name)).unwrap();
            }
            fs::remove_dir(from.join("dir")).unwrap();
            let output = copy(&from);
            assert_eq!(code(&output), 0, "{way} {stable}: {}", stderr(&output));
            assert_eq!(files(&to).len(), 3, "{way} {stable}");
        }
    });
}

#[test]
fn of_two_keys_that_are_one_name_the_second_is_reported() {
    let home = home();
    let Some(bucket) = Bucket::new() else { return };
    for key in ["a/README", "a/readme", "a/x"] {
        bucket.put(key, key.as_bytes());
    }
    each(home.path(), |there, stable| {
        let copy = |flags: &[&str], to: &Path| {
            let (url, to) = (bucket.url("a/"), to.to_str().unwrap());
            finish_reading(bucket.narrows(&[&["cp", "-r"], flags, &[&url, to]].concat()).spawn().unwrap())
        };
        let to = there.join("all");
        let output = copy(&[], &to);
        assert_eq!(code(&output), 3, "{stable}: {}", stderr(&output));
        assert!(stderr(&output).contains("differs only in case"), "{stable}: {}", stderr(&output));
        assert_eq!(files(&to).len(), 2);
        // A mirror keeps what it finds in another spelling.
        let to = there.join("mirror");
        fs::create_dir(&to).unwrap();
        for name in ["X", "old"] {
            fs::write(to.join(name), "from before").unwrap();
        }
        let exclude = ["--delete", "--exclude", "README"];
        for flags in [&["-n"][..], &[]] {
            let output = copy(&[&exclude, flags].concat(), &to);
            assert_eq!(code(&output), 0, "{stable}: {}", stderr(&output));
        }
        let stored: Vec<_> = files(&to).into_values().collect();
        assert_eq!(stored, ["a/x", "a/readme"], "{stable}");
    });
}
