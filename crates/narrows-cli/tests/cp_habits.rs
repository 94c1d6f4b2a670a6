//! Options of `narrows cp` that people know from rsync: the same command line makes the same tree, in both
//! directions, within the host, through a remote shell, and from a server.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::copies::*;
use crate::common::world::*;
use crate::common::*;
use narrows_test::has;

/// What of a tree both programs keep: content, mode, time in seconds, targets of links. rsync does not set
/// the time of a folder that it made within the same second, so folders have none here.
pub(crate) fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(path) = left.pop() {
        let data = path.symlink_metadata().unwrap();
        let what = if data.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if data.is_dir() {
            left.extend(entries(&path));
            format!("folder {:o}", data.mode())
        } else {
            format!("{:o} {} {:?}", data.mode(), data.mtime(), String::from_utf8_lossy(&fs::read(&path).unwrap()))
        };
        all.insert(path.strip_prefix(root).unwrap().to_path_buf(), what);
    }
    all
}

/// Runs the same command line with rsync, if it is there, and with narrows in each way: each makes the same
/// of what `fill` puts at the target, which is `to` in a folder of its own.
pub(crate) fn as_rsync(world: &World, ways: &[Way], flags: &str, sources: &str, fill: impl Fn(&Path)) {
    as_rsync_to(world, ways, flags, sources, "to", fill);
}

fn as_rsync_to(world: &World, ways: &[Way], flags: &str, sources: &str, target: &str, fill: impl Fn(&Path)) {
    let top = |name: &str| {
        let top = world.path(name);
        fs::create_dir_all(&top).unwrap();
        fill(&top);
        tree(&top)
    };
    let before = top("by-rsync");
    let line = ["rsync", flags, sources, &format!("by-rsync/{target}")].join(" ");
    let by_rsync = world.by(&line).then(|| tree(&world.path("by-rsync")));
    assert_ne!(by_rsync.as_ref(), Some(&before), "nothing is shown by {line}");
    let flags: Vec<&str> = flags.split(' ').collect();
    let sources: Vec<&str> = sources.split(' ').collect();
    let mut first = None;
    for way in ways {
        let name = format!("{way:?}");
        top(&name);
        world.copies(*way, &flags, &sources, &format!("{name}/{target}"));
        let made = tree(&world.path(&name));
        if let Some(by_rsync) = &by_rsync {
            assert_eq!(made, *by_rsync, "{way:?} {flags:?}");
        }
        assert_eq!(*first.get_or_insert_with(|| made.clone()), made, "{way:?} {flags:?}");
        fs::remove_dir_all(world.path(&name)).unwrap();
    }
    let _ = fs::remove_dir_all(world.path("by-rsync"));
}

pub(crate) fn put(path: &Path, content: &str, mtime: i64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    set_mtime(path, mtime, 0);
}

/// A source with files of several ages, a link, and modes.
pub(crate) fn source(world: &World) -> PathBuf {
    let from = world.path("from");
    put(&from.join("a"), "content of a", 1_500_000_000);
    put(&from.join("b"), "content of b", 1_500_000_000);
    put(&from.join("sub/c"), "content of c", 1_500_000_000);
    put(&from.join("sub/deep/d"), "content of d", 1_500_000_000);
    fs::set_permissions(from.join("b"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("a", from.join("link")).unwrap();
    from
}

#[test]
fn what_is_always_on_is_accepted() {
    let world = World::new();
    source(&world);
    for flags in ["-az", "-rptgolz", "-avz --partial --progress", "-aHAX --numeric-ids", "-avh"] {
        as_rsync(&world, &BOTH, flags, "from/", |_| ());
    }
    // Through ssh only, as of scp.
    let output = world.cp(Way::Put, &["-P", "2222"], &["from/a"], "x");
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("works only with ssh"), "{}", stderr(&output));
    for args in [["-avP", "from/", "x", "-q"], ["-avP", "--delete", "from/", "x"]] {
        let output = finish(narrows(world.home.path()).arg("cp").args(args).spawn().unwrap());
        assert!(code(&output) == 2 && stderr(&output).contains("as scp does"), "{}", stderr(&output));
    }
}

#[test]
fn a_port_is_passed_to_ssh_and_to_servers() {
    let world = World::new();
    source(&world);
    let ssh = world.path("ssh");
    let script = format!("#!/bin/sh\necho \"$@\" >> '{0}/words'\nexit 255\n", world.home.path().display());
    fs::write(&ssh, script).unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    for place in ["host:x", "ssh://host:99/x"] {
        let mut command = narrows(world.home.path());
        command.current_dir(world.home.path()).args(["cp", "-P", "2222", "from/a", place, "-e"]).arg(&ssh);
        assert_eq!(code(&finish(command.spawn().unwrap())), 5);
    }
    let words = fs::read_to_string(world.path("words")).unwrap();
    let ports: Vec<_> = words.lines().map(|line| line.contains("-p 2222")).collect();
    assert_eq!(ports, [true, false], "{words}");
    let (host, port) = world.address.rsplit_once(':').unwrap();
    let mut command = narrows(world.home.path());
    command.current_dir(world.home.path()).args(["cp", "--insecure", "-P", port, "from/a"]);
    command.arg(format!("narrows://{host}/there"));
    assert_eq!(code(&finish(command.spawn().unwrap())), 0);
    assert_eq!(fs::read(world.path("there")).unwrap(), b"content of a");
}

#[test]
fn newer_files_stay_with_update() {
    let world = World::new();
    source(&world);
    as_rsync(&world, &BOTH, "-au", "from/", |top| {
        put(&top.join("to/a"), "newer", 1_600_000_000);
        put(&top.join("to/b"), "older", 1_400_000_000);
        put(&top.join("to/sub/c"), "same time, other length", 1_500_000_000);
    });
}

#[test]
fn contents_are_compared_with_checksum() {
    let world = World::new();
    source(&world);
    let fill = |top: &Path| {
        put(&top.join("to/a"), "CONTENT OF A", 1_500_000_000);
        put(&top.join("to/b"), "content of b", 1_400_000_000);
        put(&top.join("to/sub/c"), "other", 1_500_000_000);
    };
    as_rsync(&world, &BOTH, "-ac", "from/", fill);
    as_rsync(&world, &BOTH, "-a --checksum --delete", "from/", fill);
    // Only what differs is sent.
    for way in BOTH {
        let name = format!("counted-{way:?}");
        fill(&world.path(&name));
        let output = world.cp(way, &["-ac", "--json"], &["from/"], &format!("{name}/to"));
        let json = json(&output);
        assert_eq!((json["files"].as_u64(), json["files_same"].as_u64()), (Some(3), Some(1)), "{way:?}: {json}");
    }
}

#[test]
fn links_are_followed_with_copy_links() {
    let world = World::new();
    let from = source(&world);
    put(&world.path("elsewhere/e"), "from elsewhere", 1_500_000_000);
    symlink("../../elsewhere", from.join("sub/folder")).unwrap();
    symlink("../../elsewhere/e", from.join("sub/file")).unwrap();
    let ways = [Way::Local, Way::Put, Way::Get, Way::PutDirect];
    as_rsync(&world, &ways, "-aL", "from/", |_| ());
    as_rsync(&world, &ways, "-aL --checksum", "from", |_| ());
    // A server does not leave its folder.
    let output = world.cp(Way::GetDirect, &["-aL"], &["from/"], "refused");
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("does not follow symbolic links"), "{}", stderr(&output));
    // A link to a folder above has no end.
    symlink("..", from.join("sub/up")).unwrap();
    symlink("nowhere", from.join("dangling")).unwrap();
    for way in ways {
        let output = world.cp(way, &["-aL"], &["from/"], &format!("cycle-{way:?}"));
        assert_eq!(code(&output), 3, "{}", stderr(&output));
        for words in ["left out sub/up: it leads to a folder that contains it", "cannot find dangling"] {
            assert!(stderr(&output).contains(words), "{way:?}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_list_says_what_is_copied() {
    let world = World::new();
    let from = source(&world);
    put(&from.join("other/x"), "x", 1_500_000_000);
    put(&from.join("other/y/z"), "z", 1_500_000_000);
    fs::write(world.path("list"), "# no comment\n; nor this\n\nb\n/sub/deep/d\nother/\nother/x\n./link\n").unwrap();
    fs::write(world.path("list0"), "sub\0a\0").unwrap();
    for flags in
        ["-a --files-from=list", "-ar --files-from=list", "-a -0 --files-from=list0", "-ar --from0 --files-from=list0"]
    {
        as_rsync(&world, &BOTH, flags, "from", |_| ());
        as_rsync(&world, &BOTH, flags, "from/", |_| ());
    }
    fs::write(world.path("bad"), "a\nnone\n").unwrap();
    fs::write(world.path("out"), "../secret\n").unwrap();
    for way in BOTH {
        let target = format!("bad-{way:?}");
        let output = world.cp(way, &["-a", "--files-from=bad"], &["from"], &target);
        assert_eq!(code(&output), 3, "{way:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot find none") && world.path(&target).join("a").exists());
        let output = world.cp(way, &["-a", "--files-from=out"], &["from"], "refused");
        assert_ne!(code(&output), 0, "{way:?}");
        assert!(stderr(&output).contains("leads out of the source"), "{way:?}: {}", stderr(&output));
    }
    for flags in [&["-r", "--delete", "--files-from=list"][..], &["-0"]] {
        assert_eq!(code(&world.cp(Way::Local, flags, &["from"], "refused")), 2, "{flags:?}");
    }
    // A list of nothing is done at once.
    for way in BOTH {
        let output = world.cp(way, &["-r", "--files-from=/dev/null"], &["from"], "refused");
        assert_eq!((code(&output), &stderr(&output)[..]), (0, "narrows: nothing to do\n"), "{way:?}");
    }
    assert!(!world.path("refused").exists());
}

/// Paths with `/./`, through links, and of what is not there.
#[test]
fn paths_of_a_list_are_those_of_rsync() {
    let world = World::new();
    let from = source(&world);
    put(&from.join("sub/deep/e/f"), "content of f", 1_500_000_000);
    symlink("sub", from.join("folder")).unwrap();
    symlink("../sub/deep", from.join("sub/again")).unwrap();
    symlink("nowhere", from.join("dangling")).unwrap();
    fs::create_dir(world.path("none")).unwrap();
    let mut lists = Vec::new();
    for list in [
        "sub/deep/./e/f",
        "./sub//deep/./d",
        "sub/./deep",
        "sub/./deep/",
        "sub/./",
        "/./",
        "sub/deep/././d",
        "folder",
        "folder/",
        "folder/.",
        "folder/c",
        "folder/deep/e/f",
        "folder/./deep/d",
        "folder/again/d",
        "sub/again/",
        "link/",
        "dangling/",
        "sub/./c\na\nsub/deep/./d",
        "sub/./deep/d\nsub/deep/./e/f\nfolder/c",
    ] {
        lists.push((list, true));
    }
    lists.extend([("sub/*", false), ("sub/none/x", false), ("folder/none\na", false)]);
    for (list, is_there) in lists {
        fs::write(world.path("list"), list).unwrap();
        for flags in ["-a", "-ar"] {
            let flags = format!("{flags} --files-from=list");
            let by_rsync = world.path("by-rsync");
            fs::create_dir(&by_rsync).unwrap();
            let known = has("rsync") && {
                let mut command = Command::new("rsync");
                command.current_dir(world.home.path()).args(flags.split(' ')).args(["from", "by-rsync"]);
                assert_eq!(command.stderr(Stdio::null()).status().unwrap().success(), is_there, "{list}");
                true
            };
            for way in [Way::Local, Way::Get] {
                let to = world.path("to");
                fs::create_dir(&to).unwrap();
                let output = world.cp(way, &flags.split(' ').collect::<Vec<_>>(), &["from"], "to");
                assert_eq!(code(&output) == 0, is_there, "{way:?} {flags} {list}: {}", stderr(&output));
                // rsync leaves the time and mode of the target to its user if that has a name in the list.
                let without_top =
                    |root: &Path| tree(root).into_iter().filter(|(path, _)| path != Path::new("")).collect();
                let made: BTreeMap<_, _> = without_top(&to);
                if known {
                    assert_eq!(made, without_top(&by_rsync), "{way:?} {flags} {list}");
                }
                fs::remove_dir_all(to).unwrap();
            }
            fs::remove_dir_all(by_rsync).unwrap();
        }
    }
    // A server follows no link; what is before /./ is left out there too.
    fs::write(world.path("list"), "sub/deep/./e/f").unwrap();
    world.copies(Way::GetDirect, &["-a", "--files-from=list"], &["from"], "direct");
    assert_eq!(fs::read(world.path("direct/e/f")).unwrap(), b"content of f");
    fs::write(world.path("list"), "folder/c").unwrap();
    let output = world.cp(Way::GetDirect, &["-a", "--files-from=list"], &["from"], "refused");
    assert!(code(&output) > 0 && !world.path("refused/folder/c").exists(), "{}", stderr(&output));
    // The source of what was copied is removed, wherever it was.
    fs::write(world.path("list"), "folder/./deep/d").unwrap();
    world.copies(Way::Local, &["-a", "--files-from=list", "--remove-source-files"], &["from"], "moved");
    assert!(world.path("moved/deep/d").exists() && !from.join("sub/deep/d").exists());
}

#[test]
fn missing_folders_are_made_with_mkpath() {
    let world = World::new();
    source(&world);
    as_rsync_to(&world, &BOTH, "-a --mkpath", "from/", "x/y/z", |_| ());
    as_rsync_to(&world, &BOTH, "-a --mkpath", "from/a", "x/y/z", |_| ());
    as_rsync_to(&world, &BOTH, "-a --mkpath", "from/a from/b", "x/y/z/", |_| ());
    for way in BOTH {
        let output = world.cp(way, &["-a"], &["from/"], "none/of/them");
        assert!(code(&output) != 0 && !world.path("none").exists(), "{way:?}: {}", stderr(&output));
        let output = world.cp(way, &["-an", "--mkpath"], &["from/"], "none/of/them");
        assert!(code(&output) == 0 && !world.path("none").exists(), "{way:?}: {}", stderr(&output));
    }
}

#[test]
fn what_is_replaced_or_removed_is_kept_with_backup() {
    let world = World::new();
    source(&world);
    let fill = |top: &Path| {
        put(&top.join("to/a"), "old a", 1_400_000_000);
        put(&top.join("to/b~"), "an earlier backup", 1_300_000_000);
        put(&top.join("to/b"), "old b", 1_400_000_000);
        put(&top.join("to/gone"), "not in the source", 1_400_000_000);
        put(&top.join("to/sub/deep/gone"), "nor this", 1_400_000_000);
        symlink("elsewhere", top.join("to/link")).unwrap();
    };
    for flags in ["-ab", "-ab --suffix=.old", "-a --backup-dir=.old", "-ab --backup-dir=.old --suffix=.x"] {
        as_rsync(&world, &BOTH, flags, "from/", fill);
    }
    as_rsync(&world, &BOTH, "-ab --delete", "from/", fill);
    // What is included is removed even if it is a backup of an earlier copy, of which there is no backup. That
    // of this copy stays.
    for flags in
        ["--include=*", "--include=*.x~", "--backup-dir=old --include=*", "--suffix=.x", "--suffix=.x --include=*"]
    {
        let flags = format!("-ab --delete {flags}");
        as_rsync(&world, &BOTH, &flags, "from/", |top| {
            fill(top);
            put(&top.join("to/early.x~"), "an earlier backup", 1_300_000_000);
            put(&top.join("to/gone too/early.x"), "not in the source", 1_300_000_000);
        });
    }
    // rsync removes a backup folder that is in the target itself, unless it is told to protect it.
    for way in BOTH {
        let name = format!("kept-{way:?}");
        fill(&world.path(&name));
        for _ in 0..2 {
            let flags = ["-ab", "--delete", "--backup-dir=old", "--include=*"];
            world.copies(way, &flags, &["from/"], &format!("{name}/to"));
            let made = tree(&world.path(&name).join("to"));
            assert!(!made.contains_key(Path::new("gone")) && !made.contains_key(Path::new("b~")), "{made:?}");
            for kept in ["old/gone", "old/sub/deep/gone", "old/a", "old/b~", "old/link"] {
                assert!(made.contains_key(Path::new(kept)), "{way:?} {kept}: {made:?}");
            }
        }
    }
    for bad in ["--backup-dir=../up", "--backup-dir=/tmp", "--suffix=a/b", "--suffix="] {
        let output = world.cp(Way::Put, &["-ab", bad], &["from/"], "refused");
        assert!(code(&output) == 2 && !world.path("refused").exists(), "{bad}: {}", stderr(&output));
    }
}

#[test]
fn files_of_an_earlier_copy_become_links_with_link_dest() {
    let world = World::new();
    let from = source(&world);
    let inode = |path: PathBuf| path.symlink_metadata().unwrap().ino();
    world.copies(Way::Local, &["-a"], &["from/"], "day1");
    fs::write(from.join("b"), "a new content").unwrap();
    for way in BOTH {
        let day = format!("day2-{way:?}");
        world.copies(way, &["-a", "--link-dest=../day1"], &["from/"], &day);
        assert_eq!(tree(&world.path(&day)), tree(&from), "{way:?}");
        for (name, same) in [("a", true), ("sub/c", true), ("sub/deep/d", true), ("b", false)] {
            let linked = inode(world.path(&day).join(name)) == inode(world.path("day1").join(name));
            assert_eq!(linked, same, "{way:?} {name}");
        }
    }
    if world.by("rsync -a --link-dest=../day1 from/ by-rsync") {
        assert_eq!(tree(&world.path("by-rsync")), tree(&from));
        assert_eq!(inode(world.path("by-rsync/a")), inode(world.path("day1/a")));
        assert_ne!(inode(world.path("by-rsync/b")), inode(world.path("day1/b")));
    }
    // There is none before the first copy.
    world.copies(Way::Put, &["-a", "--link-dest=../day0"], &["from/"], "day1 of another");
    // A server leaves its folder for nobody; .. is taken from the target by name.
    for bad in ["../../x", "../../../../etc"] {
        let output = world.cp(Way::PutDirect, &["-a", "--link-dest", bad], &["from/"], "refused");
        assert_ne!(code(&output), 0, "{bad}");
        assert!(stderr(&output).contains("leads out of the served folder"), "{bad}: {}", stderr(&output));
    }
}

#[test]
fn sources_go_when_everything_is_stored() {
    let world = World::new();
    for way in BOTH {
        let from = source(&world);
        fs::hard_link(from.join("a"), from.join("a too")).unwrap();
        let target = format!("to-{way:?}");
        fs::create_dir(world.path(&target)).unwrap();
        // What is there already counts as stored.
        put(&world.path(&target).join("b"), "content of b", 1_500_000_000);
        // What is newer there stays, and so does its source.
        put(&world.path(&target).join("sub/c"), "newer", 1_600_000_000);
        // What fails stays.
        fs::create_dir_all(world.path(&target).join("sub/deep/d/in the way")).unwrap();
        let output = world.cp(way, &["-au", "--remove-source-files"], &["from/"], &target);
        assert_eq!(code(&output), 3, "{way:?}: {}", stderr(&output));
        // The other end removes them once it has heard the last word.
        let left = || tree(&from).into_keys().map(|p| p.display().to_string()).collect::<Vec<_>>();
        let expected = ["", "sub", "sub/c", "sub/deep", "sub/deep/d"];
        let begun = std::time::Instant::now();
        while left() != expected && begun.elapsed() < PATIENCE {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(left(), expected, "{way:?}");
        assert!(world.path(&target).join("a too").exists() && world.path(&target).join("link").is_symlink());
        fs::remove_dir_all(&from).unwrap();
    }
    let from = source(&world);
    let before = tree(&from);
    let output = world.cp(Way::Local, &["-a", "--remove-source-files"], &["from/"], "from");
    assert_eq!(tree(&from), before, "{}", stderr(&output));
    world.copies(Way::Local, &["-an", "--remove-source-files"], &["from/"], "nowhere");
    assert_eq!(tree(&from), before);
    if world.by("rsync -a --remove-source-files from/ by-rsync") {
        assert!(tree(&from).into_keys().all(|path| from.join(path).is_dir()));
    }
}

/// A backup is not to replace what the same copy stores or has found to be there already.
#[test]
fn a_backup_replaces_nothing_that_was_copied() {
    let world = World::new();
    let (from, to) = (world.path("from"), world.path("to"));
    fs::create_dir_all(&from).unwrap();
    fs::create_dir_all(&to).unwrap();
    for folder in [&from, &to] {
        put(&folder.join("f~"), "own", 1_500_000_000);
    }
    put(&from.join("f"), "new", 1_500_000_002);
    put(&to.join("f"), "old", 1_500_000_000);
    let output = world.cp(Way::Local, &["-ab"], &["from/"], "to");
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("use another --suffix"), "{}", stderr(&output));
    assert_eq!([fs::read(to.join("f")).unwrap(), fs::read(to.join("f~")).unwrap()], [b"old".to_vec(), b"own".to_vec()]);
}

/// Through a remote shell too, which takes at once what it is given.
#[test]
fn a_copy_that_a_limit_holds_back_is_bound_by_the_link() {
    let world = World::new();
    fs::create_dir(world.path("from")).unwrap();
    fs::write(world.path("from/f"), random(400_000)).unwrap();
    for way in [Way::Put, Way::PutDirect] {
        let flags = ["--json", "--policy", "fixed:store", "--bwlimit", "400K"];
        let said = json(&world.cp(way, &flags, &["from/f"], &format!("{way:?}")));
        assert_eq!(said["bound_by"], "link", "{way:?}: {said}");
    }
}

#[test]
fn an_option_of_ssh_is_no_source() {
    let world = World::new();
    source(&world);
    for option in [&["-o", "Port=22"][..], &["-oPort=22"]] {
        let output = finish(narrows(world.home.path()).arg("cp").args(option).args(["f", "host:"]).spawn().unwrap());
        assert_one_line_error(&output, 2);
        assert!(stderr(&output).contains("give -e 'ssh -o Port=22'"), "{}", stderr(&output));
    }
}

#[test]
fn the_key_of_an_scp_command_line_is_not_copied() {
    let world = World::new();
    source(&world);
    fs::write(world.path("id"), "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n").unwrap();
    fs::create_dir(world.path("to")).unwrap();
    let mut command = narrows(&world.path(""));
    let line = ["cp", "-r", "-i", "id", "from/", "to"];
    let output = finish(command.current_dir(world.path("")).args(line).spawn().unwrap());
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("is a private key"), "{}", stderr(&output));
    assert!(entries(&world.path("to")).is_empty());
}

/// The paths above a listed one are paths too: a peer or a list with a long one must not take its square.
#[test]
fn a_long_path_in_a_list_is_refused_at_once() {
    let world = World::new();
    source(&world);
    fs::write(world.path("list"), "a/".repeat(1 << 20)).unwrap();
    let output = world.cp(Way::Local, &["--files-from", "list"], &["from"], "to");
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("a path has at most"), "{}", stderr(&output));
}

#[test]
fn a_server_that_is_only_read_removes_nothing() {
    let world = World::new();
    source(&world);
    let mut command = narrows(world.home.path());
    command.args(["serve", "--read-only", "--listen", "127.0.0.1:0", "--insecure", "--dir"]).arg(world.home.path());
    let mut server = command.stdout(Stdio::null()).spawn().unwrap();
    let mut said = std::io::BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let place = format!("narrows://{}/from/", line.trim().rsplit(' ').next().unwrap());
    let mut command = narrows(world.home.path());
    command.args(["cp", "-r", "--insecure", "--remove-source-files", &place]).arg(world.path("to"));
    let output = finish(command.spawn().unwrap());
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(stderr(&output).contains("removes nothing"), "{}", stderr(&output));
    assert!(code(&output) != 0 && world.path("from/a").exists());
}

#[test]
fn other_file_systems_are_left_out() {
    let can = || Command::new("unshare").args(["-rm", "true"]).output().is_ok_and(|o| o.status.success());
    if !has("unshare") || !can() {
        return narrows_test::skip("no mounts can be made here");
    }
    let world = World::new();
    let from = source(&world);
    fs::create_dir(from.join("mounted")).unwrap();
    let script = "mount -t tmpfs none \"$1/mounted\" && echo x > \"$1/mounted/x\" && shift && exec \"$@\"";
    let mount = |command: &Command| {
        let mut own = Command::new("unshare");
        own.args(["-rm", "sh", "-c", script, "sh"]).arg(&from).arg(command.get_program()).args(command.get_args());
        own.current_dir(world.home.path()).env("NARROWS_CONFIG", "").stdin(Stdio::null());
        let output = own.output().unwrap();
        assert!(output.status.success(), "{own:?}: {}", stderr(&output));
    };
    for way in [Way::Local, Way::Put, Way::Get] {
        let target = format!("to-{way:?}");
        put(&world.path(&target).join("mounted/kept"), "it is none of the copy's business", 0);
        put(&world.path(&target).join("gone"), "not in the source", 0);
        mount(&world.command(way, "cp", &["-ax", "--delete"], &["from/"], &target));
        let names = world.names(&target);
        assert!(names.contains(&"mounted/kept".into()) && !names.contains(&"mounted/x".into()), "{way:?}: {names:?}");
        assert!(!names.contains(&"gone".into()), "{names:?}");
    }
    mount(&world.command(Way::Local, "cp", &["-a"], &["from/"], "all"));
    assert!(world.path("all/mounted/x").exists(), "without -x");
    if has("rsync") {
        mount(Command::new("rsync").args(["-ax", "from/", "by-rsync"]));
        mount(&world.command(Way::Local, "cp", &["-ax"], &["from/"], "by-narrows"));
        let without = |name: &str| tree(&world.path(name));
        assert_eq!(
            without("by-rsync").into_keys().collect::<Vec<_>>(),
            without("by-narrows").into_keys().collect::<Vec<_>>()
        );
    }
}

#[test]
fn changes_are_listed_as_by_rsync() {
    let world = World::new();
    let from = source(&world);
    for path in ["sub/deep", "sub", ""] {
        set_mtime(&from.join(path), 1_500_000_000, 0);
    }
    let fill = |name: &str| {
        let to = world.path(name);
        put(&to.join("a"), "old", 1_400_000_000);
        put(&to.join("b"), "content of b", 1_500_000_000);
        put(&to.join("sub/c"), "content of C", 1_400_000_000);
        put(&to.join("gone"), "", 1_400_000_000);
        fs::set_permissions(to.join("b"), fs::Permissions::from_mode(0o600)).unwrap();
        set_mtime(&to.join("sub"), 1_500_000_000, 0);
        set_mtime(&to, 1_400_000_000, 0);
    };
    let lines = |text: &[u8]| {
        let mut lines: Vec<_> = String::from_utf8_lossy(text).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    for flags in ["-ai --delete", "-ain --delete", "-aic --delete"] {
        let mut expected = None;
        if has("rsync") {
            fill("by-rsync");
            let mut command = Command::new("rsync");
            command.current_dir(world.home.path()).args(flags.split(' ')).args(["from/", "by-rsync"]);
            expected = Some(lines(&command.output().unwrap().stdout));
            fs::remove_dir_all(world.path("by-rsync")).unwrap();
        }
        for way in BOTH {
            fill("to");
            let flags: Vec<_> = flags.split(' ').collect();
            let output = world.cp(way, &flags, &["from/"], "to");
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            let puts = matches!(way, Way::Put | Way::PutDirect);
            let made: Vec<_> = lines(&output.stdout);
            assert!(!puts || made.iter().any(|line| line.starts_with("<f")), "{made:?}");
            let mut made: Vec<_> = made.iter().map(|line| line.replacen("<f", ">f", 1)).collect();
            made.sort();
            if let Some(expected) = &expected {
                assert_eq!(made, *expected, "{way:?} {flags:?}");
            }
            assert!(made.contains(&"*deleting   gone".to_owned()), "{made:?}");
            fs::remove_dir_all(world.path("to")).unwrap();
        }
    }
}

#[test]
fn a_limited_copy_is_not_faster() {
    let world = World::new();
    fs::write(world.path("data"), random(300_000)).unwrap();
    for way in BOTH {
        let begun = std::time::Instant::now();
        world.copies(way, &["--bwlimit", "200kb"], &["data"], &format!("to-{way:?}"));
        // 300 KB at 200 KB/s are 1.5 s. It may be slower, but not faster.
        assert!(begun.elapsed().as_secs_f64() > 1.2, "{way:?}: {:?}", begun.elapsed());
        assert_eq!(fs::read(world.path(&format!("to-{way:?}"))).unwrap(), fs::read(world.path("data")).unwrap());
    }
    // One that yields has to see the round trips, and is only as slow as others make it.
    for way in BOTH {
        let target = format!("auto-{way:?}");
        let output = world.cp(way, &["--bwlimit", "auto"], &["data"], &target);
        if matches!(way, Way::Put | Way::Get) {
            assert_eq!(code(&output), 2, "{way:?}: {}", stderr(&output));
            let said = stderr(&output);
            assert!(
                said.contains("give a rate") && said.lines().count() == 1 && !world.path(&target).exists(),
                "{said}"
            );
        } else {
            assert_eq!(code(&output), 0, "{way:?}: {}", stderr(&output));
            assert_eq!(fs::read(world.path(&target)).unwrap(), fs::read(world.path("data")).unwrap());
        }
    }
}

#[test]
fn failures_have_names_in_json() {
    let world = World::new();
    source(&world);
    for way in BOTH {
        let target = format!("to-{way:?}");
        fs::create_dir_all(world.path(&target).join("sub/c/d")).unwrap();
        let output = world.cp(way, &["-a", "--json"], &["from/"], &target);
        assert_eq!(code(&output), 3, "{way:?}: {}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let failures = json["failures"].as_array().unwrap();
        assert!(failures.len() == 1 && failures[0].as_str().unwrap().contains("sub/c: "), "{way:?}: {json}");
        assert_eq!(json["failures_left_out"], 0);
    }
}

#[test]
fn what_needs_narrows_at_both_ends_is_said() {
    let world = World::new();
    source(&world);
    File::create(world.path("list")).unwrap();
    for flags in
        [&["-c"][..], &["-u"], &["-b"], &["--partial-dir=p"], &["-x"], &["--mkpath"], &["-i"], &["--link-dest", "x"]]
    {
        for way in [Way::PutTar, Way::GetTar] {
            let output = world.cp(way, &[&["-r"], flags].concat(), &["from/"], "refused");
            assert_ne!(code(&output), 0, "{way:?} {flags:?}");
            assert!(stderr(&output).contains("needs narrows at both ends"), "{way:?} {flags:?}: {}", stderr(&output));
        }
        let output = world.cp(Way::Put, &[&["-r", "--store-compressed"], flags].concat(), &["from/"], "refused");
        let said = stderr(&output);
        assert!(
            flags[0] == "--mkpath" || code(&output) == 2 && said.contains("does not work with"),
            "{flags:?}: {said}"
        );
    }
}

/// rsync replaces a folder with nothing in it also without --delete, and no other.
#[test]
fn an_empty_folder_makes_way_and_no_other() {
    let world = World::new();
    let from = source(&world);
    fs::hard_link(from.join("a"), from.join("z")).unwrap();
    std::os::unix::fs::symlink("nowhere", from.join("dangling")).unwrap();
    let fill = |top: &Path| {
        ["a", "z", "dangling"].iter().for_each(|name| fs::create_dir_all(top.join("to").join(name)).unwrap());
    };
    as_rsync(&world, &BOTH, "-aH", "from/", fill);
    for way in BOTH {
        let name = format!("{way:?}");
        for inside in ["a", "dangling", "z"] {
            fill(&world.path(&name));
            fs::write(world.path(&name).join("to").join(inside).join("precious"), "x").unwrap();
            for flags in [&["-a", "-n"][..], &["-a"]] {
                let output = world.cp(way, flags, &["from/"], &format!("{name}/to"));
                assert_eq!(code(&output), 3, "{way:?} {inside} {flags:?}: {}", stderr(&output));
                assert!(world.path(&name).join("to").join(inside).join("precious").exists(), "{way:?} {inside}");
            }
            fs::remove_dir_all(world.path(&name)).unwrap();
        }
    }
}
