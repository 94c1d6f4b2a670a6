//! `narrows cp` to special targets: devices, fifos, open descriptors, and folders that are part of
//! the sources.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::copies::*;
use crate::common::*;
use narrows_test::{has, skip};

fn mkfifo(path: &Path) {
    rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
}

/// Makes a null device. False if this process may not, as root outside a container may.
fn mknod_null(path: &Path) -> bool {
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o666),
        rustix::fs::makedev(1, 3),
    );
    if made.is_err() {
        skip("this user makes no devices");
    }
    made.is_ok()
}

fn is_device(path: &Path) -> bool {
    path.symlink_metadata().unwrap().file_type().is_char_device()
}

#[test]
fn a_file_is_written_into_a_fifo_and_never_put_in_its_place() {
    let home = home();
    let h = home.path();
    let content = text(300_000);
    fs::write(h.join("file"), &content).unwrap();
    mkfifo(&h.join("fifo"));
    symlink("fifo", h.join("link")).unwrap();
    for (from, to) in [
        (h.join("file").into_os_string(), h.join("fifo").into_os_string()),
        (h.join("file").into(), h.join("link").into()),
        (h.join("file").into(), remote(&h.join("fifo"))),
        (remote(&h.join("file")), h.join("fifo").into()),
        ("-".into(), h.join("fifo").into()),
        ("-".into(), remote(&h.join("fifo"))),
    ] {
        let fifo = h.join("fifo");
        let reader = std::thread::spawn(move || fs::read(fifo).unwrap());
        let mut command = cp_command(h, &shell(h));
        if from == "-" {
            command.stdin(fs::File::open(h.join("file")).unwrap());
        }
        let output = finish(command.args([&from, &to]).spawn().unwrap());
        assert_eq!(code(&output), 0, "{from:?} {to:?}: {}", stderr(&output));
        assert!(fs::symlink_metadata(h.join("fifo")).unwrap().file_type().is_fifo(), "{to:?}");
        assert!(reader.join().unwrap() == content, "{from:?} {to:?}");
        assert!(stderr(&output).contains("1 file;"), "{}", stderr(&output));
    }
    assert!(partials(h).is_empty());
    let output = cp(h, &[OsStr::new("-n"), h.join("file").as_os_str(), h.join("fifo").as_os_str()]);
    assert!(code(&output) == 0 && stderr(&output).contains("would copy 1 file"), "{}", stderr(&output));
}

#[test]
fn a_device_named_as_target_is_written_and_one_in_the_way_stays() {
    let home = home();
    let h = home.path();
    let null = h.join("null");
    fs::write(h.join("file"), text(100_000)).unwrap();
    if mknod_null(&null) {
        fs::create_dir(h.join("tree")).unwrap();
        fs::write(h.join("tree/null"), "replaces nothing").unwrap();
        for to in [null.clone().into_os_string(), remote(&null)] {
            let output = cp(h, &[h.join("file").as_os_str(), &to]);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            let output = cp(h, &[OsStr::new("-r"), h.join("tree/").as_os_str(), &to_parent(&to)]);
            assert_eq!(code(&output), 2, "{}", stderr(&output));
            assert!(stderr(&output).contains("a device of that name is in the way"), "{}", stderr(&output));
            assert!(is_device(&null), "{to:?}");
        }
        let output = cp(h, &[&remote(&h.join("file")), null.as_os_str()]);
        assert!(code(&output) == 0 && is_device(&null), "{}", stderr(&output));
        let output = cp(h, &[OsStr::new("--devices"), h.join("tree/null").as_os_str(), h.as_os_str()]);
        assert!(code(&output) == 0 && !is_device(&null), "{}", stderr(&output));
    }
    // Even root must not lose anything in /dev.
    let output = cp(h, &[h.join("file").as_os_str(), OsStr::new("/dev/full")]);
    assert!(code(&output) != 0 && stderr(&output).contains("No space left"), "{}", stderr(&output));
    let listener = UnixListener::bind(h.join("socket")).unwrap();
    let output = cp(h, &[h.join("file").as_os_str(), h.join("socket").as_os_str()]);
    assert!(code(&output) != 0 && stderr(&output).contains("it is a socket"), "{}", stderr(&output));
    drop(listener);
}

/// The parent folder of a place.
fn to_parent(place: &OsStr) -> OsString {
    let text = place.to_str().unwrap();
    text.rsplit_once('/').unwrap().0.into()
}

#[test]
fn dev_stdout_is_written_whatever_it_is() {
    let home = home();
    let h = home.path();
    fs::write(h.join("file"), text(100_000)).unwrap();
    let run = |line: &str| {
        let line = line.replace("narrows", env!("CARGO_BIN_EXE_narrows"));
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).current_dir(h).env("XDG_CACHE_HOME", h).stdin(Stdio::null());
        finish_reading(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let output = run("narrows cp file /dev/stdout");
    assert!(code(&output) == 0 && output.stdout == text(100_000), "{}", stderr(&output));
    let output = run("narrows cp file /dev/stdout > redirected");
    assert!(code(&output) == 0 && fs::read(h.join("redirected")).unwrap() == text(100_000), "{}", stderr(&output));
    let output = run("narrows cp file /dev/fd/3 3> third");
    assert!(code(&output) == 0 && fs::read(h.join("third")).unwrap() == text(100_000), "{}", stderr(&output));
    assert!(fs::symlink_metadata("/dev/stdout").unwrap().is_symlink());
    // Whoever has the file open goes on where the program ended, and everything is in the file.
    run("narrows -q file");
    for way in [
        "pipe -q -d -f -o /dev/stdout file.nrw",
        "pipe -q -d -f -o /proc/self/fd/1 file.nrw",
        "pipe -q -d -f -o link file.nrw",
        "pipe -q -d -c file.nrw",
    ] {
        let _ = std::os::unix::fs::symlink("/dev/stdout", h.join("link"));
        let output = run(&format!("(echo before; narrows {way}; echo $?) > redirected"));
        let all = fs::read(h.join("redirected")).unwrap();
        let is_all = all == [&b"before\n"[..], &text(100_000), b"0\n"].concat();
        assert!(is_all, "{way}: {} bytes, {}", all.len(), stderr(&output));
    }
    for way in ["pack -q -f -o /dev/stdout file", "array encode -q --type u8 -o /dev/stdout file"] {
        let output = run(&format!("(narrows {way}; echo end) > redirected"));
        assert!(fs::read(h.join("redirected")).unwrap().ends_with(b"end\n"), "{way}: {}", stderr(&output));
    }
    let output = run("narrows pipe -q -d -f -o /dev/fd/3 file.nrw 3> third");
    assert!(code(&output) == 0 && fs::read(h.join("third")).unwrap() == text(100_000), "{}", stderr(&output));
    // Files that are input and output at once.
    let output = run("narrows cp file - >> file");
    assert!(code(&output) == 2 && stderr(&output).contains("is input and output"), "{}", stderr(&output));
    let output = run("narrows cp file copy --trace file");
    assert!(code(&output) == 2 && fs::read(h.join("file")).unwrap() == text(100_000), "{}", stderr(&output));
}

#[test]
fn the_content_of_a_fifo_is_copied_where_it_is_named_alone() {
    let home = home();
    let h = home.path();
    mkfifo(&h.join("fifo"));
    symlink("fifo", h.join("link")).unwrap();
    for from in ["fifo", "link"] {
        for to in [h.join("copy").into_os_string(), remote(&h.join("copy"))] {
            let fifo = h.join("fifo");
            let writer = std::thread::spawn(move || fs::write(fifo, text(100_000)).unwrap());
            let output = cp(h, &[h.join(from).as_os_str(), &to]);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            writer.join().unwrap();
            assert!(fs::read(h.join("copy")).unwrap() == text(100_000));
            fs::remove_file(h.join("copy")).unwrap();
        }
    }
}

#[test]
fn a_socket_that_is_named_itself_is_skipped_as_by_rsync() {
    let home = home();
    let h = home.path();
    let _listener = UnixListener::bind(h.join("socket")).unwrap();
    let (from, to) = (h.join("socket"), h.join("to"));
    fs::create_dir(&to).unwrap();
    if has("rsync") {
        let output = Command::new("rsync").args([&from, &to]).output().unwrap();
        assert!(output.status.success() && entries(&to).is_empty(), "{}", stderr(&output));
    }
    for (i, (from, to)) in [
        (from.clone().into(), to.clone().into()),
        (from.clone().into(), remote(&to)),
        (remote(&from), to.clone().into()),
    ]
    .into_iter()
    .enumerate()
    {
        let (from, to): (OsString, OsString) = (from, to);
        let output = cp(h, &[&from, &to]);
        assert_eq!(code(&output), 0, "{i}: {}", stderr(&output));
        let words = "skipped socket: it is a socket; --devices copies it\n";
        assert_eq!(stderr(&output).matches(words).count(), 1, "{i}: {}", stderr(&output));
        assert!(entries(&h.join("to")).is_empty(), "{i}");
        let output = cp(h, &[OsStr::new("-D"), &from, &to]);
        assert_eq!(code(&output), 0, "{i}: {}", stderr(&output));
        let made = h.join("to/socket");
        assert!(made.symlink_metadata().unwrap().file_type().is_socket(), "{i}");
        fs::remove_file(made).unwrap();
    }
}

/// Files such as those of /proc, whose content the kernel generates when they are read.
#[test]
fn a_file_with_content_that_says_it_is_empty_is_not_stored_as_empty() {
    let home = home();
    let h = home.path();
    let output = cp(h, &[OsStr::new("/proc/version"), h.join("copy").as_os_str()]);
    assert_ne!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("has content although its length is 0"), "{}", stderr(&output));
    assert!(!h.join("copy").exists());
    fs::write(h.join("empty"), "").unwrap();
    let output = cp(h, &[h.join("empty").as_os_str(), h.join("copy").as_os_str()]);
    assert!(code(&output) == 0 && h.join("copy").metadata().unwrap().len() == 0, "{}", stderr(&output));
}

/// As with `scp -r`: the kind of the source is not known before it arrives.
#[test]
fn the_target_of_a_recursive_copy_is_what_comes() {
    let home = home();
    let h = home.path();
    write(h, &["file", "tree/sub/inner"]);
    symlink("file", h.join("link")).unwrap();
    let recursive = |from: &str, to: &str, flags: &[&str]| {
        let (from, to) = (remote(&h.join(from)), h.join(to).into_os_string());
        let flags = flags.iter().map(OsStr::new);
        let all: Vec<_> = flags.chain([OsStr::new("-r"), &from, &to]).collect();
        cp(h, &all)
    };
    for (from, to) in [("file", "new file"), ("link", "new link"), ("tree", "new tree")] {
        let output = recursive(from, to, &["-n"]);
        assert!(code(&output) == 0 && h.join(to).symlink_metadata().is_err(), "{to}: {}", stderr(&output));
        // The second time the target exists, and keeps its kind.
        for flags in [&[][..], &[]] {
            let output = recursive(from, to, flags);
            assert_eq!(code(&output), 0, "{to}: {}", stderr(&output));
        }
    }
    assert!(h.join("new file").symlink_metadata().unwrap().is_file());
    assert!(h.join("new link").symlink_metadata().unwrap().is_symlink());
    assert!(h.join("new tree/tree/sub/inner").is_file());
    let output = recursive("missing", "new", &[]);
    assert!(code(&output) != 0 && h.join("new").symlink_metadata().is_err(), "{}", stderr(&output));
    // A trailing slash requires a folder.
    let output = recursive("file", "folder/", &[]);
    assert!(code(&output) == 0 && h.join("folder/file").is_file(), "{}", stderr(&output));
    let output = recursive("tree", "new file", &[]);
    assert!(code(&output) != 0 && stderr(&output).contains("it is a file, not a folder"), "{}", stderr(&output));
    assert!(h.join("new file").is_file());
    let output = recursive("tree/.", "contents", &[]);
    assert!(code(&output) == 0 && h.join("contents/sub/inner").is_file(), "{}", stderr(&output));
    let output = recursive("file", "no/such", &[]);
    assert!(code(&output) != 0 && stderr(&output).contains("cannot store in"), "{}", stderr(&output));
}

// --- targets that are part of the sources ---

fn write(root: &Path, paths: &[&str]) {
    for path in paths {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, path.file_name().unwrap().as_encoded_bytes()).unwrap();
    }
}

fn names(root: &Path) -> Vec<String> {
    let names = snapshot(root).into_keys().filter(|p| !p.as_os_str().is_empty());
    names.map(|p| p.to_string_lossy().into_owned()).collect()
}

/// Runs `cp -r` in `folder` with these arguments.
fn cp_in(folder: &Path, words: &str) -> Output {
    let mut command = narrows(folder.parent().unwrap());
    finish(command.current_dir(folder).args(["cp", "-r"]).args(words.split(' ')).spawn().unwrap())
}

#[test]
fn removing_never_takes_a_file_of_a_source() {
    let home = home();
    for (number, words) in [
        // The target is in the source, under various names.
        "--delete d/ d/s",
        "--delete d/. d/s",
        "--delete d/ d/s/",
        "--delete d/ link",
        "--delete d/ d/../d/./s",
        "--delete link-to-d/ d/s",
        "--delete d d/s",
        "--delete d/ d/s/deeper",
        // The source is in the target.
        "--delete d/s/ d",
        "--delete d/s/deeper/ d",
        "--delete link/ d",
        "--delete d/s/ link-to-d",
        "--delete d/s/deeper/../ d/",
        // Both are the same folder.
        "--delete d/ d",
        "--delete d .",
        "--delete d/ link-to-d",
        "--delete d/s/ link",
        "--delete d/ d/s/..",
    ]
    .iter()
    .enumerate()
    {
        let h = home.path().join(number.to_string());
        write(&h, &["d/f", "d/s/only here", "d/s/deeper/f"]);
        symlink("d/s", h.join("link")).unwrap();
        symlink("d", h.join("link-to-d")).unwrap();
        let before = names(&h.join("d"));
        let output = cp_in(&h, words);
        let after = names(&h.join("d"));
        assert!(before.iter().all(|name| after.contains(name)), "{words}: {after:?}: {}", stderr(&output));
        assert!(code(&output) != 0 || after.len() == before.len() || words.ends_with("d d/s"), "{words}: {after:?}");
        // The target folder is left out, so it is not copied into itself.
        assert!(!h.join("d/s/s/s").exists() && !h.join("d/s/d/s/d").exists(), "{words}: {after:?}");
    }
}

#[test]
fn a_folder_copied_into_itself_does_not_copy_its_copy() {
    let home = home();
    let h = home.path().join("h");
    write(&h, &["d/f", "d/sub/g", "e/f"]);
    // Into a new folder, then again: the copy does not grow.
    for run in 0..3 {
        let output = cp_in(&h, "d d/new");
        assert_eq!(code(&output), if run == 0 { 0 } else { 3 }, "{}", stderr(&output));
        assert!(run == 0 || stderr(&output).contains("left out d/new/d: the copy goes there"), "{}", stderr(&output));
        let inner = names(&h.join("d/new/d"));
        let expected: &[&str] = if run == 0 { &["f", "sub", "sub/g"] } else { &["f", "new", "sub", "sub/g"] };
        assert_eq!(inner, expected, "run {run}");
    }
    let output = cp_in(&h, "e/ e/copy");
    assert_eq!((code(&output), names(&h.join("e"))), (0, ["copy", "copy/f", "f"].map(String::from).to_vec()));
    let output = cp_in(&h, "e/ e/copy");
    assert_eq!((code(&output), names(&h.join("e"))), (3, ["copy", "copy/f", "f"].map(String::from).to_vec()));
    assert!(stderr(&output).contains("left out copy: it is the target"), "{}", stderr(&output));
    // An excluded target does not make the copy incomplete, so other files are removed.
    fs::write(h.join("e/copy/old"), "").unwrap();
    let output = cp_in(&h, "--delete --exclude /copy e/ e/copy");
    assert_eq!((code(&output), names(&h.join("e"))), (0, ["copy", "copy/f", "f"].map(String::from).to_vec()));
}

#[test]
fn a_source_that_a_mount_shows_in_the_target_is_not_removed() {
    let home = home();
    let h = home.path().join("h");
    write(&h, &["a/sub/x/precious", "a/old", "b/in the way"]);
    let lines = "mount --bind a/sub b || exit 77; exec \"$0\" cp -r --delete b/x/ a";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", lines, env!("CARGO_BIN_EXE_narrows")]).current_dir(&h).env("XDG_CACHE_HOME", &h);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let output = child.map(finish);
    let Some(output) = output.ok().filter(|o| !matches!(code(o), 1 | 77) || stderr(o).contains("narrows")) else {
        skip("this user cannot mount anything here");
        return;
    };
    assert!(h.join("a/sub/x/precious").exists(), "{}", stderr(&output));
    assert!(stderr(&output).contains("it is a source of this copy"), "{}", stderr(&output));
    assert_eq!(code(&output), 3, "{}", stderr(&output));
}
