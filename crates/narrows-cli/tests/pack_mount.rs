//! `narrows mount`: mounts that lie on one another, folders that are not empty, what programs are told of
//! files.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use crate::common::view::{Mounted, mount};
use crate::common::*;
use rustix::process::{Pid, Signal, kill_process};

#[track_caller]
fn pack(home: &Path, tree: &str) {
    let child = narrows(home).current_dir(home).args(["pack", tree, "-o", &format!("{tree}.nrw")]).spawn().unwrap();
    let output = finish(child);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

/// How many mounts lie on a folder.
fn mounts(folder: &Path) -> usize {
    let place = format!(" {} ", folder.canonicalize().unwrap().display());
    fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|line| line.contains(&place)).count()
}

/// Mounts a pack over what is there.
fn mount_over(home: &Path, pack: &str, folder: &Path) -> Child {
    let before = mounts(folder);
    let child = narrows(home).current_dir(home).args(["mount", "-f", "--nonempty", pack]).arg(folder).spawn().unwrap();
    let begun = Instant::now();
    while mounts(folder) == before {
        assert!(begun.elapsed() < PATIENCE, "it does not mount");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child
}

fn umount(folder: &Path) {
    assert!(Command::new("umount").arg(folder).status().unwrap().success());
}

#[test]
fn a_mount_that_ends_leaves_the_one_below_it() {
    let home = home();
    let h = home.path();
    for tree in ["lower", "upper"] {
        fs::create_dir(h.join(tree)).unwrap();
        fs::write(h.join(tree).join("name"), tree).unwrap();
        pack(h, tree);
    }
    let view = h.join("view");
    let Some(mut lower) = mount(&mut narrows(h), &h.join("lower.nrw"), &view) else { return };
    // A folder with something in it is refused.
    let output = finish(narrows(h).arg("mount").arg(h.join("upper.nrw")).arg(&view).spawn().unwrap());
    assert_one_line_error(&output, 1);
    assert!(stderr(&output).contains("--nonempty"), "{}", stderr(&output));
    assert_eq!(mounts(&view), 1);

    let mut upper = Mounted { child: Some(mount_over(h, "upper.nrw", &view)), folder: view.clone() };
    assert_eq!(fs::read(view.join("upper/name")).unwrap(), b"upper");
    umount(&view);
    let output = finish(upper.child.take().unwrap());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(mounts(&view), 1);
    assert_eq!(fs::read(view.join("lower/name")).unwrap(), b"lower");

    // One that is covered ends when it is not any more, and what covers it stays.
    let mut upper = mount_over(h, "upper.nrw", &view);
    let mut below = lower.child.take().unwrap();
    kill_process(Pid::from_child(&below), Signal::TERM).unwrap();
    let mut said = String::new();
    BufReader::new(below.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("something else is mounted over it"), "{said}");
    assert_eq!(fs::read(view.join("upper/name")).unwrap(), b"upper");
    kill_process(Pid::from_child(&upper), Signal::TERM).unwrap();
    let begun = Instant::now();
    while upper.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    finish(below);
    assert_eq!(mounts(&view), 0);
    assert!(fs::read_dir(&view).unwrap().next().is_none());
}

#[test]
fn programs_see_names_and_holes() {
    let home = home();
    let h = home.path();
    let tree = h.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("alone"), "alone").unwrap();
    fs::write(tree.join("a"), "linked").unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    fs::hard_link(tree.join("a"), tree.join("c")).unwrap();
    // Its other name is not packed.
    fs::write(tree.join("left"), "left").unwrap();
    fs::hard_link(tree.join("left"), h.join("right")).unwrap();
    let sparse = fs::File::create(tree.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"end", (64 << 20) - 3).unwrap();
    let has_holes = sparse.metadata().unwrap().blocks() < 1 << 10;
    pack(h, "tree");
    let Some(mounted) = mount(&mut narrows(h), &h.join("tree.nrw"), &h.join("view")) else { return };
    let of = |name: &str| fs::metadata(h.join("view/tree").join(name)).unwrap();
    let names: Vec<u64> = ["alone", "a", "b", "c", "left"].iter().map(|name| of(name).nlink()).collect();
    assert_eq!(names, [1, 3, 3, 3, 1]);
    assert_eq!(of("a").ino(), of("c").ino());
    assert_eq!((of("sparse").len(), of("alone").blocks()), (64 << 20, 1));
    assert!(!has_holes || of("sparse").blocks() < 1 << 10, "{} blocks", of("sparse").blocks());
    mounted.unmount();
}

/// A killed mount leaves a folder with which nothing can be done but to unmount it.
#[test]
fn every_command_that_meets_a_killed_mount_says_how_to_end_it() {
    let home = home();
    let h = home.path();
    fs::create_dir(h.join("tree")).unwrap();
    fs::write(h.join("tree/a"), "a").unwrap();
    fs::write(h.join("f"), "f").unwrap();
    pack(h, "tree");
    let view = h.join("view");
    let Some(mut mounted) = mount(&mut narrows(h), &h.join("tree.nrw"), &view) else { return };
    let mut child = mounted.child.take().unwrap();
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    let shown = view.canonicalize().unwrap();
    let advice =
        format!("{0} is a mount whose program was killed; `umount {0}` or `fusermount3 -u {0}`", shown.display());
    for args in [
        &["mount", "tree.nrw", "view"][..],
        &["cat", "view/tree/a"],
        &["list", "view/tree/a"],
        &["check", "view/tree/a"],
        &["check", "view"],
        &["inspect", "view/tree/a"],
        &["repack", "view"],
        &["-k", "view/tree/a"],
        &["-r", "view"],
        &["-d", "tree.nrw", "-o", "view/x"],
        &["pipe", "f", "-o", "view/x"],
        &["cp", "view/tree/a", "to"],
        &["cp", "-r", "view", "to"],
        &["cp", "-r", "view/", "to"],
        &["cp", "-r", "./", "to"],
        &["cp", "f", "view"],
        &["cp", "f", "view/"],
        &["cp", "f", "view/x"],
        &["cp", "-r", "tree", "view"],
        &["sync", "--yes", "tree/", "view/"],
        &["pack", "view", "-o", "x.nrw"],
        &["pack", "tree", "-o", "view/x.nrw"],
        &["unpack", "tree.nrw", "-C", "view"],
        &["oracle", "view"],
        &["train", "view", "-o", "dictionary"],
    ] {
        let output = finish_reading(narrows(h).current_dir(h).args(args).spawn().unwrap());
        let said = stderr(&output);
        // Copies do not name it where there are more mounts.
        let is_told =
            said.contains(&advice) || args[0] != "mount" && said.contains(" whose program was killed; `umount");
        assert!(code(&output) > 0 && is_told, "{args:?}: {}: {said}", code(&output));
        let _ = fs::remove_dir_all(h.join("to"));
        let _ = fs::remove_file(h.join("to"));
    }
    umount(&view);
}
