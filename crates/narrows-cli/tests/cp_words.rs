//! Messages of `narrows cp`, how often they appear, and exit statuses.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::copies::*;
use crate::common::*;

/// A remote shell with this script.
fn shell_of(home: &Path, lines: &str) -> PathBuf {
    let path = home.join("its shell");
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn cp_by(home: &Path, shell: &Path, args: &[&OsStr]) -> Output {
    let mut command = narrows(home);
    command.arg("cp").arg("-e").arg(format!("'{}'", shell.display()));
    command.args(["--remote-narrows", env!("CARGO_BIN_EXE_narrows")]);
    finish(command.args(args).spawn().unwrap())
}

#[test]
fn a_host_that_is_not_reached_is_said_once_and_in_words() {
    let home = home();
    let h = home.path();
    fs::write(h.join("file"), "x").unwrap();
    let (near, far) = (h.join("file").into_os_string(), OsString::from("nowhere:file"));
    for (lines, words) in [
        ("echo 'ssh: Could not resolve hostname nowhere' >&2; exit 255", "cannot reach nowhere; "),
        ("echo 'ssh: connect to host nowhere port 22: Connection refused' >&2; exit 255", "cannot reach nowhere; "),
        ("echo 'docker: no such container' >&2; exit 1", "cannot reach narrows on nowhere; "),
        ("echo 'something else' >&2; exit 0", "the program started there is no narrows: "),
    ] {
        let shell = shell_of(h, lines);
        for args in [[&*near, &*far], [&*far, &*near], [&*far, OsStr::new("-")]] {
            let output = cp_by(h, &shell, &args);
            let said = stderr(&output);
            assert_eq!(code(&output), 5, "{args:?}: {said}");
            assert!(said.contains(words) && said.lines().count() == 2, "{args:?}: {said}");
            assert!(!said.contains("to resume") && !said.contains("confirm"), "{args:?}: {said}");
        }
    }
    // It takes everything and answers nothing.
    let shell = shell_of(h, "exec cat >/dev/null");
    let output = cp_by(h, &shell, &[OsStr::new("--timeout"), OsStr::new("1"), &near, &far]);
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    assert!(stderr(&output).contains("is no narrows"), "{}", stderr(&output));
    // A server that is not running.
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let place = format!("narrows://{address}/x");
    let output = cp(h, &[OsStr::new("--insecure"), &near, place.as_ref()]);
    let said = stderr(&output);
    assert!(code(&output) == 5 && said.lines().count() == 1, "{said}");
    assert!(said.contains(&format!("cannot reach {address}: Connection refused")), "{said}");
}

#[test]
fn what_the_other_end_cannot_do_is_said_once() {
    let home = home();
    let h = home.path();
    for name in ["a", "b", "c"] {
        fs::write(h.join(name), name).unwrap();
    }
    // Without a login shell's greeting, which would be printed too.
    let shell = shell_of(h, "shift\nexec sh -c \"$*\"");
    let (a, b, c) = (h.join("a"), h.join("b"), h.join("c"));
    let slash: OsString = format!("{}/", c.display()).into();
    for (args, status, words) in [
        (vec![a.as_os_str(), b.as_os_str(), &remote(&c)], 1, "it is a file, not a folder"),
        (vec![a.as_os_str(), &remote(Path::new(&slash))], 1, "it is a file, not a folder"),
        (vec![a.as_os_str(), b.as_os_str(), c.as_os_str()], 1, "it is a file, not a folder"),
        (vec![a.as_os_str(), &remote(&h.join("no/such/folder"))], 1, "No such file"),
        (vec![&remote(&h.join("none")), c.as_os_str()], 2, "none: No such file"),
        (vec![h.join("none").as_os_str(), c.as_os_str()], 2, "none: No such file"),
        (vec![h.join("none").as_os_str(), h.join("nothing").as_os_str(), c.as_os_str()], 2, "none: No such file"),
        (vec![&remote(&h.join("none")), OsStr::new("-")], 2, "none: No such file"),
        (vec![h.as_os_str(), c.as_os_str()], 2, "only -r copies folders"),
        (vec![OsStr::new("tcp://host:1/x"), c.as_os_str()], 2, "for send and recv"),
        (vec![OsStr::new("one:x"), OsStr::new("two:y")], 2, "both ends are remote"),
        (vec![OsStr::new("one:x"), OsStr::new("two:y"), c.as_os_str()], 2, "more than one place"),
    ] {
        let output = cp_by(h, &shell, &args);
        let said = stderr(&output);
        assert_eq!(code(&output), status, "{args:?}: {said}");
        assert_eq!(said.matches(words).count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn a_copy_of_nothing_says_so_in_json() {
    let home = home();
    let h = home.path();
    let (none, target) = (h.join("none"), h.join("target"));
    for args in [
        [none.as_os_str(), target.as_os_str()],
        [none.as_os_str(), &remote(&target)],
        [&remote(&none), target.as_os_str()],
    ] {
        let output = cp(h, &[&[OsStr::new("--json")], &args[..]].concat());
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((json["files"].as_u64(), json["files_failed"].as_u64()), (Some(0), Some(1)), "{args:?}: {json}");
    }
}

#[test]
fn a_dry_run_names_folders_and_links_too() {
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("a/sub")).unwrap();
    fs::write(h.join("a/sub/f"), "x").unwrap();
    fs::write(h.join("a/g"), "x").unwrap();
    fs::hard_link(h.join("a/g"), h.join("a/h")).unwrap();
    symlink("sub/f", h.join("a/link")).unwrap();
    let far = |p: &Path| remote(p);
    let near = |p: &Path| p.as_os_str().to_owned();
    for (number, (from, to)) in [
        (near(&h.join("a/")), near(&h.join("t0"))),
        (near(&h.join("a/")), far(&h.join("t1"))),
        (far(&h.join("a/")), near(&h.join("t2"))),
    ]
    .into_iter()
    .enumerate()
    {
        let run = |flags: &str| {
            let output = cp(h, &[OsStr::new(flags), &from, &to]);
            assert_eq!(code(&output), 0, "{}", stderr(&output));
            let mut lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        let all = ["g", "h", "link -> sub/f", "sub/", "sub/f"];
        assert_eq!(run("-rn"), all, "{number}");
        assert_eq!(run("-rv"), all, "{number}");
        assert_eq!(run("-rn"), [""; 0], "{number}");
        let target = h.join(format!("t{number}"));
        fs::remove_file(target.join("link")).unwrap();
        symlink("elsewhere", target.join("link")).unwrap();
        fs::remove_file(target.join("h")).unwrap();
        assert_eq!(run("-rn"), ["h", "link -> sub/f"], "{number}");
        assert_eq!(run("-rv"), ["h", "link -> sub/f"], "{number}");
        assert_eq!(run("-rv"), [""; 0], "{number}");
    }
}

#[test]
fn the_summary_fits_a_terminal_and_the_usage_says_what_goes_where() {
    let home = home();
    let h = home.path();
    fs::write(h.join("file"), [text(3_000_000), random(1_000_000)].concat()).unwrap();
    let output = cp(h, &[OsStr::new("-v"), h.join("file").as_os_str(), &remote(&h.join("copy"))]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stderr(&output);
    let methods = said.lines().find(|line| line.starts_with("narrows: methods: ")).unwrap_or_default();
    assert!((20..=80).contains(&methods.len()), "{said}");
    // Options may be anywhere on the command line.
    let output = finish(narrows(h).arg("cp").arg(h.join("file")).args(["-q"]).arg(h.join("other")).spawn().unwrap());
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
    let output = finish(narrows(h).arg("cp").arg(h.join("file")).spawn().unwrap());
    assert!(code(&output) == 2 && stderr(&output).contains("a source and a target"), "{}", stderr(&output));
    let output = finish(narrows(h).args(["cp", "--help"]).spawn().unwrap());
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(help.contains("Usage: narrows cp [OPTIONS] SRC... DST\n"), "{help}");
    let words: Vec<&str> = help.split_whitespace().collect();
    assert!(words.join(" ").contains("`cp -r SRC DST` makes DST/SRC, as rsync does"), "{help}");
    fs::create_dir(h.join("folder")).unwrap();
    let output = cp(h, &[OsStr::new("-r"), h.join("folder").as_os_str(), h.join("missing").as_os_str()]);
    assert!(code(&output) == 0 && h.join("missing/folder").is_dir(), "{}", stderr(&output));
}

#[test]
fn a_remote_shell_that_does_not_start_is_said_with_its_name_and_what_to_do() {
    let home = home();
    let h = home.path();
    fs::write(h.join("file"), "x").unwrap();
    let (near, far) = (h.join("file").into_os_string(), OsString::from("host:file"));
    let folder = h.to_str().unwrap();
    for (shell, words) in [
        ("no-such-program -p 22", "there is no program no-such-program on this host"),
        ("/no/such/program", "there is no program /no/such/program on this host"),
        (folder, "to reach the other host with (Permission denied"),
    ] {
        for args in [[&*near, &*far], [&*far, &*near], [&*far, OsStr::new("-")]] {
            let mut command = narrows(h);
            command.arg("cp").arg("-e").arg(shell);
            let output = finish(command.args(args).spawn().unwrap());
            assert_one_line_error(&output, 1);
            let said = stderr(&output);
            assert!(said.contains(words) && said.contains("with -e") && said.lines().count() == 1, "{said}");
        }
    }
}

#[test]
fn where_nothing_was_to_do_no_figures_are_told() {
    let home = home();
    let h = home.path();
    fs::create_dir_all(h.join("a/sub")).unwrap();
    for name in ["x", "y", "sub/z"] {
        fs::write(h.join("a").join(name), name).unwrap();
    }
    let (from, here, far) = (h.join("a/").into_os_string(), h.join("here").into_os_string(), h.join("far"));
    let (to, there) = (remote(&far), h.join("there").into_os_string());
    let from_far = remote(&far.join(""));
    let run = |from: &OsStr, to: &OsStr, more: &[&str]| {
        let more: Vec<_> = more.iter().map(OsStr::new).collect();
        let output = cp(h, &[&[OsStr::new("-r"), from, to], &more[..]].concat());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stderr(&output)
    };
    for (from, to) in [(&from, &here), (&from, &to), (&from_far, &there)] {
        assert!(run(from, to, &[]).contains("3 files; "), "the first copy");
        for more in [&[][..], &["-n"], &["--delete"]] {
            // The remote shell greets.
            let said = run(from, to, more);
            assert_eq!(said.lines().last(), Some("narrows: nothing to do, 3 files up to date"), "{more:?}: {said}");
        }
    }
    fs::create_dir(h.join("empty")).unwrap();
    assert_eq!(run(h.join("empty/").as_os_str(), h.join("new").as_os_str(), &[]), "narrows: nothing to do\n");
    // A link may be new.
    symlink("x", h.join("a/link")).unwrap();
    assert_eq!(run(&from, &here, &[]), "narrows: no file to copy, 3 files up to date\n");
}

/// As few descriptors as a shell may leave: fewer files are kept open, and nothing fails.
#[test]
fn a_low_limit_of_descriptors_is_enough() {
    let home = home();
    let h = home.path();
    for folder in 0..12 {
        let path = h.join(format!("a/{folder}"));
        fs::create_dir_all(&path).unwrap();
        (0..12).for_each(|i| fs::write(path.join(i.to_string()), format!("{folder} {i}")).unwrap());
    }
    let deep = (0..30).fold(h.join("a"), |path, _| path.join("deep"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("x"), random(300_000)).unwrap();
    let contents = |root: &Path| {
        let mut find = std::process::Command::new("find");
        find.args(["-type", "f", "-exec", "cksum", "{}", "+"]).current_dir(root);
        let mut lines = stdout_lines(&mut find);
        lines.sort();
        lines
    };
    let whole = contents(&h.join("a"));
    assert_eq!(whole.len(), 145);
    let shell = shell_of(h, "shift\nexec sh -c \"$*\"");
    let shell = format!("'{}'", shell.display());
    let (far, from_far) = (remote(&h.join("far")), remote(&h.join("a/")));
    let (far, from_far) = (far.to_str().unwrap(), from_far.to_str().unwrap());
    fs::create_dir(h.join("unpacked")).unwrap();
    let remote = ["-e", &shell, "--remote-narrows", env!("CARGO_BIN_EXE_narrows")];
    for args in [
        &["pack", "a", "-o", "a.nrw"][..],
        &["check", "a.nrw"],
        &["unpack", "a.nrw", "-C", "unpacked"],
        &["cp", "-r", "a/", "near"],
        &["cp", "-rc", "a/", "near"],
        &[&["cp", "-r"], &remote[..], &["a/", far]].concat(),
        &[&["cp", "-r"], &remote[..], &[from_far, "back"]].concat(),
        &["-qr", "near"],
        &["-qdfr", "near"],
    ] {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -n 24; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_narrows")]).args(args);
        command.current_dir(h).env("XDG_CACHE_HOME", h).env("NARROWS_CONFIG", "").stdin(std::process::Stdio::null());
        let output = command.output().unwrap();
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    }
    for made in ["unpacked/a", "far", "back"] {
        assert_eq!(contents(&h.join(made)), whole, "{made}");
    }
}

fn stdout_lines(command: &mut std::process::Command) -> Vec<String> {
    String::from_utf8(command.output().unwrap().stdout).unwrap().lines().map(str::to_owned).collect()
}
