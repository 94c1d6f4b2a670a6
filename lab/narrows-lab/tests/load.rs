//! The program `narrows-lab load`.

use std::process::{Command, Output, Stdio};

fn load(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narrows-lab"));
    command.args(["load", "-n", "1"]).args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_status_is_that_of_the_command_or_of_the_signal_that_killed_it() {
    for (script, status) in [("exit 7", 7), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9)] {
        assert_eq!(load(&["--", "sh", "-c", script]).status.code(), Some(status), "{script}");
    }
}

#[test]
fn a_time_and_a_command_contradict_each_other() {
    let output = load(&["--seconds", "1", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("--seconds <SECONDS>' cannot be used with"), "{stderr}");
}
