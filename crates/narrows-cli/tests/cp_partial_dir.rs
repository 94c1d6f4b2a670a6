//! `narrows cp --partial-dir`: files that are not whole live in a folder, as rsync's do.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::copies::*;
use crate::common::world::*;
use crate::common::*;
use crate::cp_habits::{as_rsync, put, source, tree};

#[test]
fn what_is_left_in_the_folder_is_used_and_goes_as_with_rsync() {
    let world = World::new();
    let from = source(&world);
    put(&from.join(".part/mine"), "not copied", 1_500_000_000);
    put(&from.join("sub/.part"), "a file is copied", 1_500_000_000);
    let fill = |top: &Path| {
        put(&top.join("to/b"), "content of b", 1_500_000_000);
        put(&top.join("to/.part/a"), "content", 1_400_000_000);
        put(&top.join("to/.part/other"), "of no file of the source", 1_400_000_000);
        put(&top.join("to/sub/deep/.part/d"), "content", 1_400_000_000);
        let own = top.join("to/sub/deep/.part").join(partial_name("d", "-1"));
        put(&own, "", 1_400_000_000);
        mark_partial(&own);
        put(&top.join("to/gone/.part/x"), "its folder goes", 1_400_000_000);
        // rsync knows no temporary files of narrows.
        if top.ends_with("by-rsync") {
            fs::remove_file(own).unwrap();
        }
    };
    for flags in ["-a --partial-dir=.part", "-a --delete --partial-dir=./.part/", "-a --partial --partial-dir=.part -c"]
    {
        as_rsync(&world, &BOTH, flags, "from/", fill);
    }
    as_rsync(&world, &BOTH, "-a --partial-dir=p/q", "from/", |top| {
        put(&top.join("to/p/q/a"), "content", 1_400_000_000);
        put(&top.join("to/sub/p/q/c"), "content", 1_400_000_000);
    });
    // The same as no folder at all.
    as_rsync(&world, &BOTH, "-a --partial-dir=.", "from/", |_| ());
    for bad in ["--partial-dir=..", "--partial-dir=a/../../b"] {
        let output = world.cp(Way::Put, &["-a", bad], &["from/"], "refused");
        assert!(code(&output) == 2 && !world.path("refused").exists(), "{bad}: {}", stderr(&output));
    }
}

#[test]
fn one_folder_may_be_that_of_all_files() {
    let world = World::new();
    let from = source(&world);
    for way in BOTH {
        // A server takes it as below its folder.
        let dir = match way {
            Way::PutDirect => "/all".to_owned(),
            _ => world.path("all").display().to_string(),
        };
        put(&world.path("all/a"), "content", 1_400_000_000);
        let (flag, to) = (format!("--partial-dir={dir}"), format!("to-{way:?}"));
        world.copies(way, &["-a", &flag], &["from/"], &to);
        assert_eq!(tree(&world.path(&to)), tree(&from), "{way:?}");
        assert!(entries(&world.path("all")).is_empty(), "{way:?}");
        fs::remove_dir(world.path("all")).unwrap();
        world.copies(way, &["-an", &flag], &["from/"], "dry");
        assert!(!world.path("all").exists());
        world.copies(way, &["-ac", &flag], &["from/"], &to);
        assert_eq!(fs::metadata(world.path("all")).unwrap().permissions().mode() & 0o7777, 0o700, "{way:?}");
        // Others could put another file in the place of one that is whole.
        fs::set_permissions(world.path("all"), fs::Permissions::from_mode(0o777)).unwrap();
        let output = world.cp(way, &["-a", &flag], &["from/"], "refused");
        assert!(code(&output) != 0 && stderr(&output).contains("take one of your own"), "{}", stderr(&output));
        fs::remove_dir(world.path("all")).unwrap();
    }
    for outside in ["/", "/../x"] {
        let output = world.cp(Way::PutDirect, &["-a", "--partial-dir", outside], &["from/"], "refused");
        assert_ne!(code(&output), 0, "{outside}: {}", stderr(&output));
    }
}

#[test]
fn a_link_in_the_place_of_the_folder_is_not_followed() {
    let world = World::new();
    let from = world.path("from");
    put(&from.join("large"), &"x".repeat(300_000), 1_500_000_000);
    put(&from.join("small"), "y", 1_500_000_000);
    put(&world.path("outside/large"), "precious", 1_400_000_000);
    for way in BOTH {
        let to = world.path("to");
        fs::create_dir(&to).unwrap();
        symlink("../outside", to.join(".part")).unwrap();
        let output = world.cp(way, &["-a", "--partial-dir=.part"], &["from/"], "to");
        assert_eq!(code(&output), 3, "{way:?}: {}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("cannot store large: .part is no folder"), "{way:?}: {said}");
        assert_eq!(fs::read(world.path("outside/large")).unwrap(), b"precious");
        assert_eq!(entries(&world.path("outside")).len(), 1);
        assert!(to.join("small").exists() && !to.join("large").exists());
        // A link in the folder is passed over.
        fs::remove_file(to.join(".part")).unwrap();
        fs::create_dir(to.join(".part")).unwrap();
        symlink("../../outside/large", to.join(".part/large")).unwrap();
        world.copies(way, &["-a", "--partial-dir=.part"], &["from/"], "to");
        assert_eq!(fs::read(world.path("outside/large")).unwrap(), b"precious");
        assert!(fs::read(to.join("large")).unwrap() == fs::read(from.join("large")).unwrap());
        fs::remove_dir_all(&to).unwrap();
    }
}

/// It could lead to another folder of this user.
#[test]
fn a_link_of_another_user_is_no_folder_for_all_files() {
    let world = World::new();
    source(&world);
    let (link, private) = (world.path("link"), world.path("private"));
    put(&private.join("a"), "precious", 1_400_000_000);
    symlink(&private, &link).unwrap();
    if std::os::unix::fs::lchown(&link, Some(65_534), None).is_err() {
        return narrows_test::skip("a link of another user needs root");
    }
    let flag = format!("--partial-dir={}", link.display());
    let output = world.cp(Way::Put, &["-a", &flag], &["from/"], "to");
    assert!(code(&output) != 0 && stderr(&output).contains("link of another user"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(private.join("a")).unwrap(), "precious");
}

#[test]
fn a_copy_that_is_cut_off_leaves_its_file_in_the_folder_and_goes_on_from_there() {
    let world = World::new();
    let content = random(1 << 20);
    fs::create_dir_all(world.path("from/sub")).unwrap();
    fs::write(world.path("from/sub/f"), &content).unwrap();
    let cut_off = |way, flag: &str, folder: &Path| {
        // A block that is as long as the file would come all at once.
        let flags = ["-a", "--bwlimit=500kb", "--policy=fixed:store", flag];
        let mut child = world.command(way, "cp", &flags, &["from/"], "to").spawn().unwrap();
        let begun = Instant::now();
        let len = || folder.join("f").metadata().map_or(0, |data| data.len());
        while len() < 400_000 {
            assert!(begun.elapsed() < PATIENCE, "{way:?}: it never came so far");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, "-TERM");
        assert!(!child.wait().unwrap().success());
        // A server may still be about to keep it; a lock says that it is not.
        let is_left = || {
            let file = fs::File::open(folder.join("f")).ok();
            file.is_some_and(|f| rustix::fs::flock(&f, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        while !is_left() {
            assert!(begun.elapsed() < PATIENCE, "{way:?}: it is not let go");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!world.path("to/sub/f").exists() && entries(folder).len() == 1, "{way:?}: {:?}", entries(folder));
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o7777, 0o700, "{way:?}");
        len()
    };
    let beside = world.path("to/sub/.part");
    for way in BOTH {
        let apart = world.path("all");
        for (flag, folder) in [("--partial-dir=.part".to_owned(), &beside), (apart_flag(way, &apart), &apart)] {
            let kept = cut_off(way, &flag, folder);
            let output = world.cp(way, &["-a", "--json", &flag], &["from/"], "to");
            let json = json(&output);
            assert!(fs::read(world.path("to/sub/f")).unwrap() == content, "{way:?}");
            if way != Way::Local {
                let wire = json["wire_bytes"].as_u64().unwrap();
                assert!(wire < content.len() as u64 - kept / 2, "{way:?}, {kept} were there: {json}");
            }
            assert!(!beside.exists() && (!apart.exists() || entries(&apart).is_empty()), "{way:?}");
            fs::remove_dir_all(world.path("to")).unwrap();
            let _ = fs::remove_dir(&apart);
        }
    }
    // What narrows left is as good for rsync.
    cut_off(Way::Local, "--partial-dir=.part", &beside);
    if world.by("rsync -a --no-whole-file --partial-dir=.part from/ to") {
        assert!(fs::read(world.path("to/sub/f")).unwrap() == content);
        assert!(!beside.exists());
    }
}

/// A server takes an absolute path as below its folder.
fn apart_flag(way: Way, apart: &Path) -> String {
    match way {
        Way::PutDirect => "--partial-dir=/all".to_owned(),
        _ => format!("--partial-dir={}", apart.display()),
    }
}
