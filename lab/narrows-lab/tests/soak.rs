//! `narrows-lab soak` for some seconds.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use narrows_test::lacks;

fn soak(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narrows-lab"));
    command.arg("soak").args(words).stdin(Stdio::null()).output().unwrap()
}

/// Whether `narrows` was built: it is with the workspace, but not with this package alone.
fn has_narrows() -> bool {
    let found = Path::new(env!("CARGO_BIN_EXE_narrows-lab")).with_file_name("narrows").is_file();
    if !found {
        lacks("narrows: build the workspace, not this package alone");
    }
    found
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn some_seconds_of_kills_break_nothing_else() {
    if !has_narrows() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("soak");
    let records = folder.path().join("records");
    let (result_word, records_word) = (result.to_str().unwrap(), records.to_str().unwrap());
    let words =
        ["--minutes", "0.07", "--pairs", "3", "--kill-every", "0.5", "--records", records_word, "-o", result_word];
    let output = soak(&words);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("faults: 0") && said(&output).contains("| compressed |"), "{}", said(&output));
    let json = std::fs::read_to_string(result.with_extension("json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let kills = json["counts"]["kills"].as_u64().unwrap();
    let connections = json["counts"]["connections"].as_u64().unwrap();
    assert!(kills > 0 && connections > 0, "{json}");
    assert_eq!(std::fs::read_to_string(result.with_extension("md")).unwrap(), String::from_utf8_lossy(&output.stdout));
    let again = soak(&["--judge", records_word]);
    assert_eq!(again.stdout, output.stdout, "{}", said(&again));
    // Without the kills that explain how connections ended, the judge must find faults.
    let log = std::fs::read_to_string(records.join("kills")).unwrap();
    let lives: String = log.lines().filter(|l| l.starts_with("life ")).map(|l| format!("{l}\n")).collect();
    std::fs::write(records.join("kills"), lives).unwrap();
    let again = soak(&["--judge", records_word]);
    assert_eq!(again.status.code(), Some(1), "{}", said(&again));
    let unexplained = ["though nobody was killed", "though its writer was not killed"];
    assert!(unexplained.iter().any(|words| said(&again).contains(words)), "{}", said(&again));
}

#[test]
fn programs_that_are_killed_after_their_last_write_lose_nothing() {
    if !has_narrows() {
        return;
    }
    let output = soak(&["--kills", "24", "--pairs", "4"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("of which everything arrived: 24\n"), "{}", said(&output));
}

#[test]
fn wrong_usage_is_told() {
    for words in [["--minutes", "0"], ["--kill-every", "-1"], ["--kills", "0"]] {
        assert_eq!(soak(&words).status.code(), Some(2), "{words:?}");
    }
}
