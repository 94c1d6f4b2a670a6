//! The program `narrows-lab link`, where this machine allows links; elsewhere the tests are skipped (`narrows_test`).

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use narrows_test::{PATIENCE, skip};

fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narrows-lab"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    lab(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn links_are_possible() -> bool {
    let output = run(&["link", "--", "true"]);
    if !output.status.success() {
        skip(stderr(&output));
    }
    output.status.success()
}

/// Waits until `done` returns true.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Live processes whose command line contains `word`, and the link's keepers whose environment
/// does, both found in /proc.
fn alive_with(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let dead = fs::read_to_string(path.join("stat")).map_or(true, |s| s.contains(") Z ") || s.contains(") X "));
        let text = [fs::read(path.join("cmdline")), fs::read(path.join("environ"))].map(Result::unwrap_or_default);
        if !dead && text.iter().any(|t| String::from_utf8_lossy(t).contains(word)) {
            found.push(format!("{} {}", entry.file_name().display(), String::from_utf8_lossy(&text[0])));
        }
    }
    found
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    for (args, why) in [
        (&["link", "--profile", "wlan", "--", "true"][..], "neither a profile"),
        (&["link", "--profile", "rate=0mbit", "--", "true"], "impossible"),
        (&["link", "--profile", "loss=2", "--", "true"], "impossible"),
        (&["link", "--profile", "wifi"], "no command"),
        (&["link", "--plan", "/nonexistent", "--", "true"], "cannot read"),
        (&["link", "--plan", "/dev/zero", "--", "true"], "longer than"),
        (&["link", "--profile", "trace=/dev/zero", "--", "true"], "longer than"),
        (&["link", "--profile", "rate=1mbit;repeat=1ns", "--", "true"], "by 1 ms at least"),
        (&["link", "--backend", "wire", "--", "true"], "not a backend"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn the_status_is_that_of_the_command_and_the_server_is_ended() {
    if !links_are_possible() {
        return;
    }
    let output = run(&["link", "--profile", "wifi", "--server", "sleep 6001", "-v", "--", "sh", "-c", "exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("up:   0 packets"), "{}", stderr(&output));
    assert_eq!(alive_with("sleep\x006001"), Vec::<String>::new());
    let output = run(&["link", "--server", "exit 3", "--", "sleep", "0.3"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("the server ended before the command: exit status: 3"), "{}", stderr(&output));
    let output = run(&["link", "--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot run /no/such/program"), "{}", stderr(&output));
}

#[test]
fn nothing_is_left_of_a_link_that_was_killed() {
    if !links_are_possible() {
        return;
    }
    for signal in ["-KILL", "-TERM"] {
        // Everything that the link starts, including its keeper, has the word in its environment.
        let word = format!("NARROWS_TEST_WORD={}{signal}", std::process::id());
        let (name, value) = word.split_once('=').unwrap();
        let script = "setsid sleep 6002 & echo up; sleep 6003";
        let mut link = lab(&["link", "--profile", "wifi", "--server", "sleep 6004", "--", "sh", "-c", script]);
        let mut child = link.env(name, value).stdout(Stdio::piped()).spawn().unwrap();
        let mut up = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
        // The program, its keeper, and at least a shell and three `sleep` processes.
        assert!(alive_with(&word).len() >= 6, "{:?}", alive_with(&word));
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        child.wait().unwrap();
        wait_until("nothing is left", || alive_with(&word).is_empty());
    }
}

#[test]
fn nothing_is_left_of_a_link_whose_keeper_was_killed() {
    if !links_are_possible() {
        return;
    }
    let word = format!("NARROWS_TEST_WORD={}-keeper", std::process::id());
    let (name, value) = word.split_once('=').unwrap();
    let script = "setsid sleep 6006 & echo up; sleep 6007";
    let mut link = lab(&["link", "--server", "sleep 6008", "--", "sh", "-c", script]);
    let mut child = link.env(name, value).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut stdout, &mut [0; 3]).unwrap();
    let pids = alive_with(&word).into_iter().filter_map(|found| Some(found.split_once(' ')?.0.to_owned()));
    let is_keeper = |pid: &String| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c == "narrows-link\n");
    let keepers: Vec<_> = pids.filter(is_keeper).collect();
    assert_eq!(keepers.len(), 1, "{:?}", alive_with(&word));
    assert!(Command::new("kill").args(["-KILL", &keepers[0]]).status().unwrap().success());
    wait_until("the program ends", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("the link broke down"), "{}", stderr(&output));
    wait_until("nothing is left", || alive_with(&word).is_empty());
}

#[test]
fn paragraphs_of_the_help_are_as_wide_as_the_terminal() {
    for args in [&["link", "--help"][..], &["link", "check", "--help"], &["load", "--help"]] {
        let output = lab(args).env("COLUMNS", "100").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let is_text = |line: &str| line.starts_with(|c: char| c.is_ascii_alphabetic());
        let mut wrapped = 0;
        for pair in lines.windows(2).filter(|pair| is_text(pair[0]) && is_text(pair[1])) {
            let word = pair[1].split(' ').next().unwrap();
            assert!(pair[0].len() <= 100 && pair[0].len() + 1 + word.len() > 100, "{args:?}: {pair:?}");
            wrapped += 1;
        }
        assert!(wrapped > 0, "{args:?}: {text}");
    }
}

#[test]
fn no_device_of_a_link_is_seen_outside() {
    if !links_are_possible() {
        return;
    }
    let devices = || {
        let mut names: Vec<_> = fs::read_dir("/sys/class/net").unwrap().flatten().map(|e| e.file_name()).collect();
        names.sort();
        names
    };
    let before = devices();
    let output = run(&["link", "--profile", "wifi", "--", "ls", "/sys/class/net"]);
    assert!(output.status.success());
    assert_eq!(devices(), before);
}
