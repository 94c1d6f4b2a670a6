//! `narrows cp` compared with cp, scp and rsync: the meaning of paths, several sources, preserved
//! metadata. If rsync and cp are installed, they make the same copy, and the trees are compared.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::common::copies::*;
use crate::common::world::*;
use crate::common::*;
use narrows_test::{has, skip};

#[test]
fn a_dot_behind_a_folder_means_what_is_in_it() {
    let world = World::new();
    world.write("a", &["f", "sub/g", ".hidden"]);
    // rsync compares whole seconds, and does not set the time of a folder that it made within the
    // second of its source.
    for folder in ["a/sub", "a"] {
        let past = SystemTime::now() - Duration::from_secs(100);
        File::open(world.path(folder)).unwrap().set_modified(past).unwrap();
    }
    for way in ALL {
        for (number, source) in ["a/.", "a/", "a/sub/.."].iter().enumerate() {
            // Paths of a server cannot leave its root.
            if source.ends_with("..") && matches!(way, Way::GetDirect) {
                continue;
            }
            let target = format!("{way:?}{number}");
            world.copies(way, &["-r"], &[source], &target);
            assert_eq!(snapshot(&world.path(&target)), snapshot(&world.path("a")), "{way:?} {source}");
        }
    }
    if world.by("cp -a a/. by-cp") && world.by("rsync -a a/. by-rsync") {
        assert_eq!(world.names("by-cp"), world.names("Local0"));
        assert_eq!(snapshot(&world.path("by-rsync")), snapshot(&world.path("Local0")));
    }
}

#[test]
fn home_folders_and_wildcards_are_those_of_the_other_side() {
    let world = World::new();
    world.write("logs", &["1.log", "2.log", "3.txt", ".x.log", "[a].log", "deep/er/4.log"]);
    for way in [Way::Get, Way::GetTar] {
        world.copies(way, &[], &["~/logs/3.txt"], &format!("{way:?} file"));
        assert_eq!(fs::read(world.path(&format!("{way:?} file"))).unwrap(), b"logs/3.txt");
        world.copies(way, &["-r"], &["~/logs"], &format!("{way:?} folder/"));
        assert_eq!(world.names(&format!("{way:?} folder/logs")), world.names("logs"));
    }
    for way in [Way::Put, Way::PutTar] {
        let target = format!("~/{way:?}/");
        world.copies(way, &[], &["logs/1.log", "logs/2.log"], &target);
        assert_eq!(world.names(&format!("{way:?}")), ["1.log", "2.log"]);
    }
    for (number, (pattern, named)) in [
        ("logs/*.log", &["1.log", "2.log", "[a].log"][..]),
        ("~/logs/?.log", &["1.log", "2.log"]),
        ("logs/[a].log", &["[a].log"]),
        ("logs/.*.log", &[".x.log"]),
        ("l*s/deep/*/4.log", &["4.log"]),
        ("logs/\\[a\\].*", &["[a].log"]),
    ]
    .iter()
    .enumerate()
    {
        let target = format!("named{number}/");
        world.copies(Way::Get, &[], &[pattern], &target);
        assert_eq!(world.names(&target), *named, "{pattern}");
    }
    world.copies(Way::Get, &["-r"], &["logs/d*", "logs/?.txt"], "both");
    assert_eq!(world.names("both"), ["3.txt", "deep", "deep/er", "deep/er/4.log"]);
    let output = world.cp(Way::Get, &[], &["logs/*.none"], "none");
    assert!(code(&output) == 2 && stderr(&output).contains("logs/*.none: No such file"), "{}", stderr(&output));
    let output = world.cp(Way::Get, &[], &["~no-such-user/x"], "none");
    assert!(code(&output) == 2 && stderr(&output).contains("no home folder"), "{}", stderr(&output));
    let output = world.cp(Way::GetTar, &[], &["logs/*.log"], "none/");
    assert!(code(&output) == 2 && stderr(&output).contains("wildcards need narrows"), "{}", stderr(&output));
}

#[test]
fn several_sources_become_one_folder() {
    let world = World::new();
    world.write("x/same", &["1", "sub/1"]);
    world.write("y/same", &["2", "sub/2"]);
    let expected = ["same", "same/1", "same/2", "same/sub", "same/sub/1", "same/sub/2"];
    // tar overwrites such files without noticing.
    let ways = ALL.into_iter().filter(|way| *way != Way::GetTar);
    for way in ways.clone() {
        world.copies(way, &["-r"], &["x/same", "y/same"], &format!("{way:?}"));
        assert_eq!(world.names(&format!("{way:?}")), expected, "{way:?}");
        // The same file may be given twice.
        world.copies(way, &["-r"], &["x/same", "x/same"], &format!("{way:?} twice"));
        assert_eq!(world.names(&format!("{way:?} twice")).len(), 4, "{way:?}");
    }
    world.copies(Way::Local, &["-r"], &["x", "x/same", "y/"], "mixed");
    for way in ways.clone() {
        world.copies(way, &["-r"], &["x/", "y/"], &format!("{way:?} content"));
        assert_eq!(world.names(&format!("{way:?} content")), expected, "{way:?}");
    }
    if world.by("rsync -a x/same y/same by-rsync") && world.by("rsync -a x x/same y/ mixed-by-rsync") {
        assert_eq!(world.names("by-rsync"), expected);
        assert_eq!(world.names("mixed-by-rsync"), world.names("mixed"));
    }
    // Of two files with the same name the first is copied, and the conflict is reported.
    world.write("y/same", &["1"]);
    for way in ways {
        let output = world.cp(way, &["-r"], &["x/same", "y/same"], &format!("{way:?} conflict"));
        assert_eq!(code(&output), 3, "{way:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("same/1: another source has an entry of that name"),
            "{way:?}: {}",
            stderr(&output)
        );
        assert_eq!(fs::read(world.path(&format!("{way:?} conflict/same/1"))).unwrap(), b"x/same/1", "{way:?}");
    }
    let output = world.cp(Way::GetTar, &["-r"], &["x/same", "y/same"], "none/");
    assert!(code(&output) == 1 && stderr(&output).contains("two sources are named 'same'"), "{}", stderr(&output));
}

#[test]
fn files_that_are_named_nearly_as_ours_are_the_users() {
    let world = World::new();
    // The last is the name of the temporary file for the first; the one before it that of an older version.
    let own = partial_name(".narrows-notes.partial", "");
    let names = [
        ".narrows-notes.partial",
        ".narrows-.partial",
        ".narrows-0123456789abcdef0123456g.partial",
        ".narrows-0123456789abcdef.partial",
        ".narrows-0123456789abcdef01234567-7.partial",
        &own,
    ];
    let theirs =
        [".narrows-theirs.partial", ".narrows-76543210fedcba9876543210.partial", &partial_name("theirs", "-1")];
    let names = if has_attributes(&world.path("")) { &names[..] } else { &names[..5] };
    let theirs = if names.len() == 6 { &theirs[..] } else { &theirs[..2] };
    world.write("a", names);
    let mut expected = [names, theirs].concat();
    expected.sort_unstable();
    for way in ALL {
        let target = format!("{way:?}");
        world.write(&target, theirs);
        world.copies(way, &["-r"], &["a/"], &target);
        // Their files are not mistaken for leftovers of a killed copy.
        world.copies(way, &["-r"], &["a/"], &target);
        assert_eq!(world.names(&target), expected, "{way:?}");
    }
    let pack = world.path("pack.nrw");
    for args in [
        [OsStr::new("pack"), world.path("a/").as_os_str(), OsStr::new("-o"), pack.as_os_str()],
        [OsStr::new("unpack"), pack.as_os_str(), OsStr::new("-C"), world.path("unpacked").as_os_str()],
    ] {
        fs::create_dir_all(world.path("unpacked")).unwrap();
        let output = finish(narrows(&world.path("")).args(args).spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    expected.retain(|name| names.contains(name));
    assert_eq!(world.names("unpacked"), expected);
}

#[test]
fn links_that_are_one_file_stay_one() {
    let world = World::new();
    world.write("a", &["f"]);
    symlink("f", world.path("a/link")).unwrap();
    fs::create_dir(world.path("a/sub")).unwrap();
    for name in ["a/other", "a/sub/third"] {
        fs::hard_link(world.path("a/link"), world.path(name)).unwrap();
    }
    let inode = |path: String| fs::symlink_metadata(world.path(&path)).unwrap().ino();
    for way in ALL {
        for run in 0..2 {
            world.copies(way, &["-r"], &["a"], &format!("{way:?}"));
            let at = |name: &str| inode(format!("{way:?}/a/{name}"));
            assert!(at("link") == at("other") && at("link") == at("sub/third"), "{way:?}, run {run}");
            assert_eq!(fs::read_link(world.path(&format!("{way:?}/a/other"))).unwrap(), Path::new("f"));
        }
    }
    if world.by("rsync -aH a by-rsync") {
        assert_eq!(inode("by-rsync/a/link".into()), inode("by-rsync/a/other".into()));
    }
}

/// Runs a command as another user if the test is root; `groups` are the user's supplementary
/// groups.
fn as_nobody(command: &mut Command, groups: &str) -> Command {
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--groups", groups]).arg(command.get_program());
    other.args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        other.env(name, value.unwrap_or_default());
    }
    other
}

fn is_root_with_setpriv() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("needs root, to become somebody else");
    }
    is_root && has("setpriv")
}

#[test]
fn a_group_of_the_users_own_is_brought_up_to_date() {
    if !is_root_with_setpriv() {
        return;
    }
    let home = home();
    let h = home.path();
    fs::set_permissions(h, fs::Permissions::from_mode(0o755)).unwrap();
    let dir = h.join("dir");
    fs::create_dir(&dir).unwrap();
    for name in ["a", "foreign"] {
        fs::write(dir.join(name), "x").unwrap();
        chown(dir.join(name), Some(65534), Some(65534)).unwrap();
    }
    chown(&dir, Some(65534), Some(65534)).unwrap();
    let copy = |name: &str| {
        let mut command = narrows(&dir);
        command.arg("cp").arg(dir.join(name)).arg(dir.join(format!("{name} copy")));
        let output = finish(as_nobody(&mut command, "65534,4321").spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        fs::metadata(dir.join(format!("{name} copy"))).unwrap().gid()
    };
    assert_eq!((copy("a"), copy("foreign")), (65534, 65534));
    chown(dir.join("a"), None, Some(4321)).unwrap();
    chown(dir.join("foreign"), None, Some(0)).unwrap();
    assert_eq!((copy("a"), copy("foreign")), (4321, 65534), "as chgrp would");
}

#[test]
fn folders_that_their_owner_cannot_read_are_copied_again() {
    if !is_root_with_setpriv() {
        return;
    }
    let home = home();
    let h = home.path();
    fs::set_permissions(h, fs::Permissions::from_mode(0o755)).unwrap();
    let (source, target) = (h.join("source"), h.join("target"));
    for (name, mode) in [("write", 0o300), ("none", 0o000), ("none/in/it", 0o100), ("read", 0o500)] {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("file"), name).unwrap();
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(&target).unwrap();
    chown(&target, Some(65534), Some(65534)).unwrap();
    let shell = h.join("nobody");
    let lines = "#!/bin/sh\nshift\nexec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \"$*\"\n";
    fs::write(&shell, lines).unwrap();
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
    for root_mode in [0o755, 0o300, 0o000] {
        for content in [true, false] {
            fs::set_permissions(&source, fs::Permissions::from_mode(root_mode)).unwrap();
            let from = if content { source.join("") } else { source.clone() };
            for run in 0..2 {
                let mut command = cp_command(h, &shell);
                let output =
                    finish(command.args([OsStr::new("-r"), from.as_os_str(), &remote(&target)]).spawn().unwrap());
                assert_eq!(code(&output), 0, "{root_mode:o}, content {content}, run {run}: {}", stderr(&output));
            }
            let copy = if content { target.clone() } else { target.join("source") };
            for (name, mode) in [("", root_mode), ("write", 0o300), ("none", 0), ("none/in/it", 0o100), ("read", 0o500)]
            {
                assert_eq!(fs::metadata(copy.join(name)).unwrap().mode() & 0o7777, mode, "{name}");
            }
            fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
}

#[test]
fn attributes_are_kept_without_proc() {
    let home = home();
    let h = home.path();
    fs::write(h.join("a"), "x").unwrap();
    if rustix::fs::setxattr(h.join("a"), "user.narrows", b"kept", rustix::fs::XattrFlags::empty()).is_err() {
        return;
    }
    let lines = "mount -t tmpfs none /proc || exit 77; exec \"$0\" cp a b";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", lines, env!("CARGO_BIN_EXE_narrows")]).current_dir(h).env("XDG_CACHE_HOME", h);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let output = finish(child.unwrap());
    if !h.join("b").exists() && !stderr(&output).contains("narrows") {
        skip("this user cannot mount anything here");
        return;
    }
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(attribute(&h.join("b")), Some(b"kept".to_vec()));
}

/// A file system with times in whole seconds, on a loop device in a namespace that ends with its
/// holder.
#[test]
fn times_that_the_target_cannot_keep_are_no_reason_to_copy_again() {
    let world = World::new();
    world.write("a", &["f", "sub/g"]);
    if !has("mke2fs") {
        return;
    }
    let image = world.path("image");
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    fs::create_dir(world.path("mounted")).unwrap();
    let lines = "mke2fs -q -F -t ext4 -I 128 image >&2 && mount -o loop image mounted || exit 77; \
                 \"$0\" cp -r --json a mounted && \"$0\" cp -r --json a mounted && umount mounted && \
                 mount -o loop image mounted && \"$0\" cp -r --json a mounted && echo y > a/f && \"$0\" cp -r --json a mounted";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", lines, env!("CARGO_BIN_EXE_narrows")]);
    command.current_dir(world.home.path()).env("XDG_CACHE_HOME", world.home.path());
    let output = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    if output.stdout.is_empty() {
        skip("no ext4 of old can be mounted here");
        return;
    }
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let figures = |i: usize| (said[i]["files"].as_u64().unwrap(), said[i]["files_same"].as_u64().unwrap());
    assert_eq!([figures(0), figures(1), figures(2), figures(3)], [(2, 0), (0, 2), (0, 2), (1, 1)]);
}

#[test]
fn words_of_the_remote_shell_may_be_quoted() {
    let world = World::new();
    world.write("", &["f"]);
    for shell in [format!("'{}'", world.shell.display()), format!("\"{}\" ", world.shell.display())] {
        let mut command = narrows(world.home.path());
        command.current_dir(world.home.path()).args(["cp", "--remote-narrows", env!("CARGO_BIN_EXE_narrows")]);
        let output = finish(command.args(["-e", &shell, "f", "host:copy"]).spawn().unwrap());
        assert_eq!(code(&output), 0, "{shell}: {}", stderr(&output));
    }
    let output =
        finish(narrows(world.home.path()).args(["cp", "-e", "ssh 'x", "/etc/hostname", "host:"]).spawn().unwrap());
    assert!(stderr(&output).contains("a quote that does not end"), "{}", stderr(&output));
}

// --- other kinds in the way ---

const KINDS: [&str; 5] = ["file", "folder", "link", "link to folder", "missing"];

fn make(path: &Path, kind: &str, content: &str) {
    match kind {
        "file" => fs::write(path, content).unwrap(),
        "folder" => {
            fs::create_dir_all(path.join("sub")).unwrap();
            fs::write(path.join("sub/in it"), content).unwrap();
        }
        "link" => symlink(content, path).unwrap(),
        "link to folder" => symlink("../elsewhere", path).unwrap(),
        _ => {}
    }
}

#[test]
fn with_delete_whatever_is_in_the_way_is_replaced_as_by_rsync() {
    let world = World::new();
    world.write("elsewhere", &["precious"]);
    let fill = |below: &str, source: bool| {
        fs::create_dir_all(world.path(below)).unwrap();
        for here in KINDS {
            for there in KINDS {
                let path = world.path(below).join(format!("{here} for {there}"));
                make(&path, if source { here } else { there }, if source { "new" } else { "old content" });
            }
        }
        fs::hard_link(world.path(below).join("file for file"), world.path(below).join("another name")).unwrap();
    };
    // rsync treats times within one second as equal.
    let without_times = |below: &str| {
        let words = |words: String| words.split(' ').filter(|word| !word.contains('.')).collect::<Vec<_>>().join(" ");
        let all = snapshot(&world.path(below)).into_iter();
        all.map(|(path, about)| (path, words(about))).collect::<Vec<_>>()
    };
    fill("source", true);
    let by_rsync = {
        fill("by-rsync", false);
        world.by("rsync -aH --delete source/ by-rsync").then(|| without_times("by-rsync"))
    };
    let source = snapshot(&world.path("source"));
    for way in BOTH {
        let target = format!("{way:?}");
        fill(&target, false);
        let before = snapshot(&world.path(&target));
        world.copies(way, &["-rn", "--delete"], &["source/"], &target);
        assert_eq!(snapshot(&world.path(&target)), before, "{way:?}");
        // Without --delete no folder with content is removed.
        let output = world.cp(way, &["-r"], &["source/"], &target);
        assert_eq!(code(&output), 3, "{way:?}: {}", stderr(&output));
        assert!(world.path(&target).join("file for folder/sub/in it").exists(), "{way:?}");
        world.copies(way, &["-r", "--delete"], &["source/"], &target);
        assert_eq!(snapshot(&world.path(&target)), source, "{way:?}");
        if let Some(by_rsync) = &by_rsync {
            assert_eq!(*by_rsync, without_times(&target), "rsync does otherwise");
        }
        assert_eq!(world.names("elsewhere"), ["precious"], "{way:?}: a link was followed");
    }
}

#[test]
fn a_folder_in_the_way_stays_if_anything_fails_or_the_limit_or_a_pattern_says_so() {
    let world = World::new();
    world.write("source", &["a/f", "b"]);
    for (number, (flags, words)) in [
        (&["--max-delete", "1"][..], "--max-delete"),
        (&["--exclude", "kept"], "in the way"),
        (&["--exclude", "b/"], "in the way"),
    ]
    .iter()
    .enumerate()
    {
        for way in BOTH {
            let target = format!("{way:?}{number}");
            world.write(&target, &["b/kept", "b/old", "a/g"]);
            let output = world.cp(way, &[&["-r", "--delete"], *flags].concat(), &["source/"], &target);
            assert_eq!(code(&output), 3, "{way:?} {flags:?}: {}", stderr(&output));
            assert!(stderr(&output).contains(words), "{way:?} {flags:?}: {}", stderr(&output));
            assert!(world.path(&target).join("b/kept").exists(), "{way:?} {flags:?}");
            assert!(partials(&world.path(&target)).is_empty(), "{way:?} {flags:?}");
        }
    }
    // If something fails, the content of folders stays.
    for way in BOTH {
        let target = format!("{way:?} failing");
        world.write(&target, &["b/old", "old"]);
        let output = world.cp(way, &["-r", "--delete"], &["source/", "missing/"], &target);
        assert_eq!(code(&output), 3, "{way:?}: {}", stderr(&output));
        assert!(world.path(&target).join("b/old").exists() && world.path(&target).join("old").exists(), "{way:?}");
    }
}

#[test]
fn an_address_of_ssh_may_name_a_port() {
    let world = World::new();
    world.write("", &["f"]);
    // The arguments with which ssh is called.
    let bin = world.path("bin");
    fs::create_dir(&bin).unwrap();
    let lines = format!(
        "#!/bin/sh\nprintf '%s ' \"$@\" > '{}'\nfor last; do :; done\nexec sh -c \"$last\"\n",
        world.path("words").display()
    );
    fs::write(bin.join("ssh"), lines).unwrap();
    fs::set_permissions(bin.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
    let path: OsString = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()).into();
    let place = format!("ssh://me@there:2222{}", world.path("a%20copy").display());
    let mut command = narrows(world.home.path());
    command.current_dir(world.home.path()).env("PATH", path);
    command.args(["cp", "--remote-narrows", env!("CARGO_BIN_EXE_narrows"), "--carriers", "1", "f", &place]);
    let output = finish(command.spawn().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(world.path("a copy").exists());
    let words = fs::read_to_string(world.path("words")).unwrap();
    assert!(words.contains("-p 2222 ") && words.contains(" me@there "), "{words}");
    let mut command = narrows(world.home.path());
    let output = finish(command.args(["cp", "-e", "other", "/etc/hostname", "ssh://h:1/x"]).spawn().unwrap());
    assert!(code(&output) == 2 && stderr(&output).contains("by its own flag"), "{}", stderr(&output));
}
