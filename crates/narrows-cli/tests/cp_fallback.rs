//! `narrows cp` to or from a host without narrows: the same copy through tar, or nothing and a
//! clear error.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::common::copies::*;
use crate::common::sshd::Sshd;
use crate::common::*;
use narrows_test::{has, lacks, skip, which};

/// Programs used on the other host, besides tar and zstd.
const TOOLS: [&str; 15] =
    ["sh", "dd", "cat", "chmod", "chown", "find", "id", "mkdir", "mv", "rm", "rmdir", "sleep", "sync", "touch", "tr"];

/// Another host, which has only the named tools and no narrows.
struct Host {
    home: tempfile::TempDir,
    shell: PathBuf,
}

impl Host {
    fn with(tools: &[&str]) -> Self {
        let home = home();
        let bin = home.path().join("bin");
        fs::create_dir(&bin).unwrap();
        for tool in TOOLS.iter().chain(tools) {
            symlink(which(tool).unwrap_or_else(|| panic!("no {tool} here")), bin.join(tool)).unwrap();
        }
        let shell = home.path().join("shell");
        let text = format!(
            "#!/bin/sh\nshift\nPATH='{}'\nprintf 'Welcome\\nto this host\\n'\nexec sh -c \"$*\"\n",
            bin.display()
        );
        script(&shell, &text);
        Self { home, shell }
    }

    /// A host with tar, and with zstd if this machine has it.
    fn usual() -> Self {
        Self::with(if has("zstd") { &["tar", "zstd"] } else { &["tar"] })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Replaces a program in `folder` (`bin` is that of the other host) by a script; `$real` is the
    /// original.
    fn replace(&self, folder: &str, tool: &str, text: &str) {
        let path = self.path(folder).join(tool);
        let _ = fs::remove_file(&path);
        script(&path, &format!("#!/bin/sh\nreal='{}'\n{text}\n", which(tool).unwrap().display()));
    }

    fn command(&self) -> Command {
        let mut command = narrows(self.home.path());
        command.args(["cp", "--fsync", "none", "-e"]).arg(&self.shell);
        command
    }

    fn cp(&self, args: &[&OsStr]) -> Output {
        finish(self.command().args(args).spawn().unwrap())
    }

    /// Copies, and asserts success.
    fn copies(&self, args: &[&OsStr]) -> String {
        let output = self.cp(args);
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
        stderr(&output)
    }
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn os(text: &str) -> &OsStr {
    OsStr::new(text)
}

fn nothing_is_left(folder: &Path) {
    assert_eq!(partials(folder), Vec::<PathBuf>::new());
}

/// Whether tar is GNU tar, which decides what can be tested.
fn is_gnu() -> bool {
    let said = Command::new("tar").arg("--version").output().unwrap();
    String::from_utf8_lossy(&said.stdout).contains("GNU tar")
}

#[test]
fn a_tree_arrives_as_it_is_both_ways_with_zstd_and_without() {
    if !is_gnu() {
        return lacks("GNU tar");
    }
    for host in [Host::usual(), Host::with(&["tar"])] {
        let (source, there, back) = (host.path("source"), host.path("there"), host.path("back"));
        make_tree(&source);
        let before = snapshot(&source);
        // Existing files are replaced.
        for again in [false, true] {
            if again && !host.path("bin/zstd").exists() {
                continue;
            }
            let steps: [(OsString, OsString, PathBuf); 3] = [
                (source.clone().into(), remote(&there), there.join("source")),
                (source.join("").into(), remote(&there.join("contents")), there.join("contents")),
                (remote(&there.join("source/")), back.clone().into(), back.clone()),
            ];
            for (from, to, copy) in steps {
                let said = host.copies(&[os("-r"), &from, &to]);
                assert!(said.contains("no narrows on host: copying by tar"), "{said}");
                assert_eq!(said.contains("tar and zstd"), host.path("bin/zstd").exists(), "{said}");
                assert!(said.contains("11 files; "), "{said}");
                let after = snapshot(&copy);
                for (path, words) in &before {
                    assert_eq!(after.get(path), Some(words), "{path:?}, again {again}");
                }
                assert_eq!(after.len(), before.len());
            }
        }
        nothing_is_left(host.home.path());
        [source, there.join("source"), there.join("contents"), back].iter().for_each(|p| unlock(p));
    }
}

#[test]
fn a_tree_goes_through_ssh_and_back() {
    let host = Host::usual();
    if !is_gnu() {
        return lacks("GNU tar");
    }
    let Some(sshd) = Sshd::start(host.home.path()) else { return };
    let login = format!("{} 127.0.0.1 true </dev/null", sshd.shell());
    if !Command::new("sh").args(["-c", &login]).status().unwrap().success() {
        return skip("this user cannot log in by ssh");
    }
    let (source, there, back) = (host.path("source"), host.path("there"), host.path("back"));
    make_tree(&source);
    let place = |path: &Path| OsString::from_vec([b"127.0.0.1:", path.as_os_str().as_bytes()].concat());
    for (from, to) in [(source.join("").into(), place(&there)), (place(&there.join("")), back.clone().into_os_string())]
    {
        let mut command = narrows(host.home.path());
        command.args(["cp", "-r", "-e", &sshd.shell(), "--remote-narrows", "/no/such/narrows"]).args([&from, &to]);
        let output = finish(command.spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(stderr(&output).contains("no /no/such/narrows on 127.0.0.1: copying by tar"), "{}", stderr(&output));
    }
    assert_eq!(snapshot(&there), snapshot(&source));
    assert_eq!(snapshot(&back), snapshot(&source));
    [source, there, back].iter().for_each(|p| unlock(p));
}

#[test]
fn a_program_that_loses_its_owner_or_was_not_asked_for_loses_its_set_id_bits() {
    let host = Host::usual();
    let a = host.path("a");
    fs::create_dir(&a).unwrap();
    fs::write(a.join("file"), "x").unwrap();
    let owned = rustix::process::geteuid().is_root();
    if owned {
        std::os::unix::fs::chown(a.join("file"), Some(1), Some(1)).unwrap();
    }
    fs::set_permissions(a.join("file"), fs::Permissions::from_mode(0o6755)).unwrap();
    for (flags, kept) in
        [(&["-r", "--set-id"][..], owned), (&["-r", "--set-id", "--no-owner"], false), (&["-r"], false)]
    {
        for (from, to) in [(a.join("").into(), remote(&host.path("b"))), (remote(&a.join("")), host.path("b").into())] {
            let args: [&OsStr; 2] = [&from, &to];
            let said = host.copies(&[&flags.iter().map(|f| os(f)).collect::<Vec<_>>()[..], &args].concat());
            let stat = host.path("b/file").metadata().unwrap();
            let uid = if owned && !flags.contains(&"--no-owner") { 1 } else { rustix::process::geteuid().as_raw() };
            assert_eq!((stat.mode() & 0o7777, stat.uid()), (if kept { 0o6755 } else { 0o755 }, uid), "{said}");
            assert_eq!(said.contains("not kept: set-id bits"), !kept, "{said}");
            fs::remove_dir_all(host.path("b")).unwrap();
        }
    }
}

#[test]
fn names_of_any_bytes_are_sources_and_targets() {
    let host = Host::usual();
    let odd = [
        &b"it's"[..],
        b"\"$(touch x)\"",
        b"-rf",
        b"--checkpoint=1",
        b" blank ",
        b"new\nline",
        b"back\\nslash",
        b"*",
        b"not \xff utf-8",
        b"end\n",
    ];
    let (from, to) = (host.path("from"), host.path("to"));
    for folder in [&from, &to] {
        fs::create_dir(folder).unwrap();
    }
    for name in odd {
        fs::write(from.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let place = |name: &[u8]| OsString::from_vec([b"host:", name].concat());
    let run = |folder: &Path, args: &[OsString]| {
        let output = finish(host.command().args(args).current_dir(folder).spawn().unwrap());
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    };
    let all_arrived = |folder: &Path| {
        assert_eq!(entries(folder).len(), odd.len());
        for name in odd {
            assert_eq!(fs::read(folder.join(OsStr::from_bytes(name))).unwrap(), name);
        }
    };
    // Relative paths begin with the odd name.
    let here = odd.map(|name| OsString::from_vec([b"./", name].concat()));
    run(&from, &[&here[..], &[remote(&to.join("put"))]].concat());
    run(&from, &[&odd.map(place)[..], &[to.join("got").into()]].concat());
    all_arrived(&to.join("put"));
    all_arrived(&to.join("got"));
    for name in [odd.concat(), b"-o".to_vec(), b"its end\n".to_vec()] {
        let (file, again) = (from.join("-rf").into_os_string(), place(&[&name[..], b"/again"].concat()));
        run(&to, &[file.clone(), place(&name)]);
        let path = to.join(OsStr::from_bytes(&name));
        assert_eq!(fs::read(&path).unwrap(), b"-rf", "{path:?}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        run(&to, &[file, again]);
        run(&to, &["-r".into(), place(&name), "copy of it".into()]);
        assert_eq!(fs::read(to.join("copy of it").join(OsStr::from_bytes(&name)).join("again")).unwrap(), b"-rf");
    }
    assert!(!from.join("x").exists() && !to.join("x").exists(), "a name was run as a command");
}

#[test]
fn a_file_goes_into_a_folder_or_gets_a_new_name() {
    let host = Host::usual();
    fs::write(host.path("file"), "content").unwrap();
    symlink("file", host.path("link")).unwrap();
    fs::create_dir(host.path("folder")).unwrap();
    for (from, to, lands) in [
        ("file", "folder", "folder/file"),
        ("file", "folder/", "folder/file"),
        ("file", "new", "new"),
        // Without -r a link is followed.
        ("link", "folder", "folder/link"),
    ] {
        let (from, to, lands) = (host.path(from), host.path(to), host.path(lands));
        for (from, to) in [(from.clone().into(), remote(&to)), (remote(&from), to.into_os_string())] {
            host.copies(&[&from, &to]);
            assert!(lands.symlink_metadata().unwrap().is_file());
            assert_eq!(fs::read(&lands).unwrap(), b"content");
            fs::remove_file(&lands).unwrap();
        }
    }
    // Several sources need a folder, of which the last component is created.
    let (file, link, new) = (host.path("file"), host.path("link"), host.path("made"));
    host.copies(&[file.as_os_str(), link.as_os_str(), &remote(&new)]);
    host.copies(&[&remote(&new.join("file")), &remote(&link), host.path("made too").as_os_str()]);
    for made in [new, host.path("made too")] {
        assert_eq!(entries(&made).len(), 2);
    }
    // The kind of the source decides, which may be known only when it arrives.
    host.copies(&[os("-r"), &remote(&file), host.path("new file").as_os_str()]);
    host.copies(&[os("-r"), &remote(&host.path("folder")), host.path("new folder").as_os_str()]);
    assert!(host.path("new file").is_file() && host.path("new folder/folder").is_dir());
    let output = host.cp(&[file.as_os_str(), &remote(&host.path("not/there/file"))]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("there is no folder"), "{}", stderr(&output));
    nothing_is_left(host.home.path());
}

#[test]
fn what_is_in_the_way_fails_alone_and_what_is_there_besides_stays() {
    let host = Host::usual();
    let (a, outside) = (host.path("a"), host.path("outside"));
    for folder in ["", "trap", "was file", "both", "both/read-only"] {
        fs::create_dir(a.join(folder)).unwrap();
    }
    for file in ["trap/file", "was file/x", "was folder", "both/was folder", "both/new", "both/read-only/new", "link"] {
        fs::write(a.join(file), "new").unwrap();
    }
    fs::set_permissions(a.join("both/read-only"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "stays").unwrap();
    for put in [true, false] {
        let b = host.path(if put { "put" } else { "got" });
        for folder in ["", "was folder", "both", "both/was folder", "both/read-only"] {
            fs::create_dir(b.join(folder)).unwrap();
        }
        for file in ["was file", "both/new", "both/other", "both/read-only/other"] {
            fs::write(b.join(file), "old").unwrap();
        }
        fs::set_permissions(b.join("both/read-only"), fs::Permissions::from_mode(0o500)).unwrap();
        symlink("../outside", b.join("trap")).unwrap();
        symlink("../outside/file", b.join("link")).unwrap();
        let (from, to) = if put { (a.join("").into(), remote(&b)) } else { (remote(&a.join("")), b.clone().into()) };
        let output = host.cp(&[os("-r"), &from, &to]);
        let said = stderr(&output);
        assert_eq!(code(&output), 3, "{said}");
        for words in [
            "cannot store trap: a symbolic link is in the way",
            "cannot store was file: a file of that name is in the way",
            "cannot store was folder: a folder of that name is in the way",
            "cannot store both/was folder: a folder of that name is in the way",
        ] {
            assert!(said.contains(words), "{put}: {said}");
        }
        let read = |path: &str| fs::read_to_string(b.join(path)).unwrap();
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"stays");
        assert_eq!(entries(&outside).len(), 1);
        assert_eq!(
            (read("was file"), read("both/other"), read("both/read-only/other")),
            ("old".into(), "old".into(), "old".into())
        );
        assert_eq!(
            (read("both/new"), read("both/read-only/new"), read("link")),
            ("new".into(), "new".into(), "new".into())
        );
        assert!(b.join("link").symlink_metadata().unwrap().is_file(), "a link was written through");
        assert!(b.join("was folder").is_dir() && b.join("both/was folder").is_dir());
        let mode = |path: PathBuf| path.metadata().unwrap().mode();
        assert_eq!(mode(b.join("both/read-only")), mode(a.join("both/read-only")));
        assert_eq!(b.metadata().unwrap().mtime_nsec(), a.metadata().unwrap().mtime_nsec());
        nothing_is_left(&b);
        fs::set_permissions(b.join("both/read-only"), fs::Permissions::from_mode(0o700)).unwrap();
    }
    fs::set_permissions(a.join("both/read-only"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_host_without_tar_is_told() {
    let host = Host::with(&[]);
    fs::write(host.path("file"), "x").unwrap();
    let (file, copy) = (host.path("file"), host.path("copy"));
    for args in [[file.as_os_str(), &remote(&copy)], [&remote(&file), copy.as_os_str()]] {
        let output = host.cp(&args);
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains("neither narrows nor tar there"), "{}", stderr(&output));
        assert!(!copy.exists());
    }
    let output = finish(host.command().arg("--no-fallback").args([file.as_os_str(), &remote(&copy)]).spawn().unwrap());
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("there is no narrows on host; install it"), "{}", stderr(&output));
}

/// An archive of the other host, or of this one, that ends early, whatever exit status its tar has.
#[test]
fn what_fails_half_way_leaves_everything_as_it_was() {
    // A file takes 23 blocks with its headers: 299 blocks end where the next file would begin,
    // which no tar treats as an error.
    const CUT: &str = "$real \"$@\" | dd bs=512 count=299 iflag=fullblock 2>/dev/null";
    const DIES: &str = "$real \"$@\"; kill -9 $$";
    const STOPS: &str = "dd bs=1000 count=3 2>/dev/null; exit 1";
    // Whether files are sent, whether there is zstd, which host's program is replaced, the program,
    // and the script.
    let cases = [
        (true, true, "here", "tar", CUT),
        (true, false, "here", "tar", CUT),
        (true, true, "here", "tar", DIES),
        (true, true, "bin", "tar", DIES),
        (true, false, "bin", "tar", STOPS),
        (true, true, "bin", "zstd", "$real \"$@\"; exit 1"),
        (false, true, "bin", "tar", CUT),
        (false, false, "bin", "tar", CUT),
        (false, true, "bin", "tar", DIES),
        (false, true, "bin", "zstd", STOPS),
        (false, false, "here", "tar", DIES),
        (false, true, "here", "tar", STOPS),
    ];
    for (put, zstd, whose, tool, does) in cases {
        if zstd && !has("zstd") {
            continue;
        }
        let host = Host::with(if zstd { &["tar", "zstd"] } else { &["tar"] });
        let (a, b) = (host.path("a"), host.path("b"));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        for i in 0..20 {
            fs::write(a.join(i.to_string()), random(10_000)).unwrap();
        }
        fs::write(b.join("3"), "old").unwrap();
        let before = snapshot(&b);
        let _ = fs::create_dir(host.path("here"));
        host.replace(whose, tool, &format!("case $* in *--version*) exec $real \"$@\" ;; esac; {does}"));
        let path = format!("{}:{}", host.path("here").display(), std::env::var("PATH").unwrap());
        let (from, to) = if put { (a.join("").into(), remote(&b)) } else { (remote(&a.join("")), b.clone().into()) };
        let output = finish(host.command().env("PATH", path).arg("-r").args([&from, &to]).spawn().unwrap());
        let case = format!("put {put}, zstd {zstd}, {tool} in {whose}: {does}: {}", stderr(&output));
        assert!(matches!(code(&output), 1 | 2 | 5), "{case}");
        assert!(!stderr(&output).contains("files; "), "{case}");
        let mut after = snapshot(&b);
        // The folder's own time changes, since temporary files were in it.
        after.insert(PathBuf::new(), before[Path::new("")].clone());
        assert_eq!(after, before, "{case}");
    }
}

#[test]
fn a_signal_leaves_nothing_behind() {
    let host = Host::usual();
    // Slow enough that the signal comes first; it ends when nobody reads what it says.
    let slow = "case $* in *--version*) exec $real \"$@\" ;; esac; for i in $(seq 600); do echo; sleep 1; done";
    host.replace("bin", "tar", slow);
    let (a, b) = (host.path("a"), host.path("b"));
    fs::write(&a, "x").unwrap();
    fs::create_dir(&b).unwrap();
    let mut child = host.command().args([&remote(&a), b.as_os_str()]).spawn().unwrap();
    let begun = Instant::now();
    while entries(&b).is_empty() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "-TERM");
    let status = ended(&mut child);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "{status}");
    assert_eq!(entries(&b), Vec::<PathBuf>::new());
}

#[test]
fn a_link_on_which_nothing_moves_is_given_up() {
    let host = Host::usual();
    let told = host.path("pid");
    let silent = format!("echo $$ >'{}'; exec sleep 600", told.display());
    host.replace("bin", "tar", &format!("case $* in *--version*) exec $real \"$@\" ;; esac; {silent}"));
    fs::write(host.path("a"), "x").unwrap();
    let mut command = host.command();
    command.args(["--timeout", "0.3"]).args([&remote(&host.path("a")), host.path("b").as_os_str()]);
    let mut child = command.spawn().unwrap();
    ended(&mut child);
    // The host's programs keep stderr open while they sleep.
    if let Ok(pid) = fs::read_to_string(&told) {
        assert!(std::process::Command::new("kill").arg(pid.trim()).status().unwrap().success());
    }
    let output = finish(child);
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    assert!(stderr(&output).contains("no progress for too long"), "{}", stderr(&output));
}

#[test]
fn what_tar_cannot_do_is_refused_and_the_rest_is_done() {
    let host = Host::usual();
    let (a, b) = (host.path("a"), host.path("b"));
    fs::create_dir_all(a.join("build")).unwrap();
    for name in ["keep.c", "drop.o", "keep.o", "build/x"] {
        fs::write(a.join(name), name).unwrap();
    }
    rustix::fs::mknodat(rustix::fs::CWD, a.join("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let listener = UnixListener::bind(a.join("socket")).unwrap();
    let (here, there) = (a.join("").into_os_string(), remote(&a.join("")));
    let (to, there_b) = (host.path("refused"), remote(&b));
    for args in [
        vec![os("-rn"), &here, &there_b],
        vec![os("-rn"), &there, to.as_os_str()],
        vec![os("-r"), os("--delete"), &here, &there_b],
        vec![os("-r"), os("--owner"), &there, to.as_os_str()],
        vec![os("-r"), os("--exclude"), os("*.o"), &there, to.as_os_str()],
    ] {
        let output = host.cp(&args);
        assert_eq!(code(&output), 1, "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("needs narrows at both ends"), "{args:?}: {}", stderr(&output));
    }
    // A mirror speaks of itself, not of options that nobody typed.
    for flags in [&["--yes"][..], &["-n"]] {
        let mut sync = narrows(host.home.path());
        sync.arg("sync").args(flags).arg("-e").arg(&host.shell).args([&*here, &*there_b]);
        let output = finish(sync.spawn().unwrap());
        let said = stderr(&output);
        assert!(code(&output) == 1 && said.contains("sync needs narrows at both ends"), "{said}");
        assert!(!said.contains("--delete") && !said.contains("--dry-run"), "{said}");
    }
    // For local sources it is known what is excluded.
    let flags = ["-r", "--json", "--exclude", "*.o", "--exclude", "build/", "--include", "keep.o"].map(os);
    let output = host.cp(&[&flags[..], &[&*here, &*remote(&b)]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    for words in ["skipped fifo: it is a fifo; --devices copies it\n", "skipped socket: it is a socket\n"] {
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    }
    assert_eq!(snapshot(&b).into_keys().collect::<Vec<_>>(), ["", "keep.c", "keep.o"].map(PathBuf::from));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&said["files"], &said["files_failed"]), (&2.into(), &0.into()), "{said}");
    assert!(
        said["fallback"].as_str().unwrap().starts_with("tar") && said["wire_bytes"].as_u64().unwrap() > 0,
        "{said}"
    );
    // The fifo is copied only if it is asked for.
    let output = host.cp(&[os("-rv"), &there, host.path("c").as_os_str()]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("skipped fifo: it is a fifo; --devices copies it\n"), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "build/x\ndrop.o\nkeep.c\nkeep.o\n");
    assert!(!host.path("c/fifo").exists());
    // tar cannot make a socket that is asked for.
    let output = host.cp(&[os("-rD"), &here, &remote(&host.path("with a socket"))]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("left out socket: it is a socket, which tar does not copy"),
        "{}",
        stderr(&output)
    );
    drop(listener);
    fs::remove_file(a.join("socket")).unwrap();
    for (from, to, copy) in [(&here, remote(&host.path("d")), "d"), (&there, host.path("e").into(), "e")] {
        host.copies(&[os("-r"), os("--devices"), os("-q"), from, &to]);
        assert!(rustix::fs::stat(host.path(copy).join("fifo")).unwrap().st_mode & 0o170_000 == 0o010_000);
    }
}

#[test]
fn sources_that_are_not_there_fail_alone() {
    let host = Host::usual();
    fs::create_dir(host.path("folder")).unwrap();
    fs::write(host.path("file"), "x").unwrap();
    let place = |name: &str| remote(&host.path(name));
    let to = host.path("to/");
    let output = host.cp(&[&place("nothing"), &place("file"), &place("folder"), to.as_os_str()]);
    let said = stderr(&output);
    assert_eq!(code(&output), 3, "{said}");
    assert!(
        said.contains("nothing: No such file or directory") && said.contains("folder: it is a folder, and only -r"),
        "{said}"
    );
    assert_eq!(entries(&to).len(), 1);
    let output = host.cp(&[&place("nothing"), to.as_os_str()]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let (file, nothing) = (host.path("file"), host.path("nothing"));
    let output = host.cp(&[file.as_os_str(), nothing.as_os_str(), &place("there/")]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("No such file").count(), 1, "told twice: {}", stderr(&output));
}

/// The other host decides what is in its archive, but not what this host stores.
#[test]
fn nothing_is_stored_that_nobody_asked_for() {
    let host = Host::usual();
    fs::create_dir(host.path("evil")).unwrap();
    for name in ["file", ".bashrc"] {
        fs::write(host.path("evil").join(name), "x").unwrap();
    }
    host.replace("bin", "tar", "case $* in *-c*) exec $real \"$@\" ./.bashrc ;; esac; exec $real \"$@\"");
    let file = remote(&host.path("evil/file"));
    host.copies(&[&file, host.path("").as_os_str()]);
    assert!(host.path("file").exists() && !host.path(".bashrc").exists());
    // A folder with the name of a requested file.
    fs::create_dir_all(host.path("trap/file/in it")).unwrap();
    let trap = host.path("trap");
    host.replace(
        "bin",
        "tar",
        &format!("case $* in *-c*) exec $real -c -f - -C {} ./file ;; esac; exec $real \"$@\"", trap.display()),
    );
    let output = host.cp(&[&file, host.path("to/").as_os_str()]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("it was not requested"), "{}", stderr(&output));
    assert_eq!(entries(&host.path("to")), Vec::<PathBuf>::new());
}
