//! Tests of completions and manual pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::*;

fn said(args: &[&str]) -> String {
    let output = finish_reading(narrows(home().path()).args(args).spawn().unwrap());
    assert_eq!(code(&output), 0, "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that `narrows --help` lists.
fn commands() -> BTreeSet<String> {
    let help = said(&["--help"]);
    let list = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: BTreeSet<_> = names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(names.contains("cp") && names.contains("help") && names.len() > 20, "{names:?}");
    names
}

fn accepts(output: &Output, what: &str) {
    assert!(output.status.success(), "{what}: {}{}", stderr(output), String::from_utf8_lossy(&output.stdout));
}

#[test]
fn every_shell_accepts_its_script_which_has_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let commands = commands();
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = said(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
        let path = folder.path().join(shell);
        fs::write(&path, &script).unwrap();
        if narrows_test::has(shell) {
            accepts(&Command::new(shell).arg(check).arg(&path).output().unwrap(), shell);
        }
    }
}

#[test]
fn bash_completes_commands_options_and_values() {
    if !narrows_test::has("bash") {
        return;
    }
    let script = said(&["completions", "bash"]);
    let complete = |words: &[&str]| {
        let text = format!(
            "{script}\nCOMP_WORDS=({}); COMP_CWORD={}; _narrows narrows \"${{COMP_WORDS[COMP_CWORD]}}\" \
             \"${{COMP_WORDS[COMP_CWORD-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1
        );
        let output = Command::new("bash").args(["--norc", "-c", &text]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["narrows", "unp"]), ["unpack"]);
    assert_eq!(complete(&["narrows", "cp", "--del"]), ["--delete"]);
    assert_eq!(complete(&["narrows", "array", "enc"]), ["encode"]);
    assert_eq!(complete(&["narrows", "cp", "--fsync", "ba"]), ["batch"]);
}

#[test]
fn each_command_has_a_page_that_mandoc_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let man = |name: &str| {
        let pages = folder.path().join(name);
        let mut command = narrows(folder.path());
        command.env("SOURCE_DATE_EPOCH", "1764000000").args(["man", pages.to_str().unwrap()]);
        let output = finish(command.spawn().unwrap());
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        pages
    };
    let (pages, again) = (man("one"), man("two"));
    let names: BTreeSet<_> = entries(&pages).iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    for command in commands().iter().filter(|name| *name != "help") {
        assert!(names.contains(Path::new(&format!("narrows-{command}.1")).as_os_str()), "{command}: {names:?}");
    }
    assert!(names.contains(Path::new("narrows.1").as_os_str()));
    assert!(names.contains(Path::new("narrows-array-encode.1").as_os_str()));
    for name in &names {
        let text = fs::read_to_string(pages.join(name)).unwrap();
        assert_eq!(text, fs::read_to_string(again.join(name)).unwrap(), "made again");
        assert!(text.contains("2025-11-24"), "{}: the date", name.display());
    }
    if narrows_test::has("mandoc") {
        accepts(&Command::new("mandoc").args(["-Tlint", "-Wstyle"]).args(entries(&pages)).output().unwrap(), "mandoc");
        let shown = Command::new("mandoc").args(["-Tutf8"]).arg(pages.join("narrows-cp.1")).output().unwrap();
        let text = String::from_utf8(shown.stdout).unwrap().replace('\u{8}', "");
        assert!(text.contains("narrows cp -r photos me@host:backup/"), "examples stay as they are");
    }
}

#[test]
fn what_cannot_be_made_is_refused() {
    let home = home();
    let run = |args: &[&str], epoch: &str| {
        finish(narrows(home.path()).args(args).env("SOURCE_DATE_EPOCH", epoch).spawn().unwrap())
    };
    assert_eq!(code(&run(&["completions", "tcsh"], "")), 2);
    assert_one_line_error(&run(&["man"], "yesterday"), 1);
    assert_one_line_error(&run(&["man", "/dev/null/pages"], "0"), 1);
}

/// Whoever redirects an output learns that it is not all there, and the end of a pipe ends the program.
#[test]
fn an_output_that_cannot_be_written_is_a_failure() {
    let home = home();
    let h = home.path();
    fs::write(h.join("f"), text(5000)).unwrap();
    fs::create_dir(h.join("empty")).unwrap();
    for args in [&["f"][..], &["pack", "f", "-o", "p.nrw"]] {
        assert_eq!(code(&finish(narrows(h).current_dir(h).args(args).spawn().unwrap())), 0);
    }
    for args in [
        &["--help"][..],
        &["-h"],
        &["help", "cp"],
        &["cp", "--help"],
        &["--version"],
        &["-V"],
        &["-d", "--help"],
        &["man"],
        &["completions", "bash"],
        &["list", "p.nrw"],
        &["list", "--json", "f.nrw"],
        &["check", "f.nrw"],
        &["check", "--json", "f.nrw"],
        &["inspect", "f.nrw"],
        &["inspect", "--json", "f.nrw"],
        &["cat", "f.nrw"],
        &["-dc", "f.nrw"],
        &["status", "--json"],
        &["cp", "--json", "f", "g"],
        &["cp", "-n", "f", "new"],
        &["pack", "--json", "f", "-o", "q.nrw"],
        &["unpack", "--json", "-C", ".", "p.nrw"],
        &["repack", "--json", "f.nrw"],
        &["cp", "-v", "f", "h"],
        &["cp", "-i", "f", "i"],
        &["unpack", "-n", "-C", "empty", "p.nrw"],
        &["plan"],
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = finish(narrows(h).current_dir(h).args(args).stdout(full).spawn().unwrap());
        let said = stderr(&output);
        assert!(code(&output) == 1 && said.contains("No space left on device"), "{args:?}: {}: {said}", code(&output));
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = finish(narrows(h).arg("--help").stdout(writer).spawn().unwrap());
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(libc::SIGPIPE));
}
