//! Skipped tests are listed; in continuous integration a missing program is a failure. No test
//! skips in another way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use narrows_test::{has, skip};

/// Environment variable with the role of a child process.
const PART: &str = "NARROWS_TEST_PART";

/// Skips if run as a child process, which has its own environment; does nothing in a normal run.
#[test]
fn part() {
    match std::env::var(PART).as_deref() {
        Ok("lacks") => assert!(!has("no-such-program")),
        Ok("skips") => skip("no such\n  kernel"),
        _ => {}
    }
}

fn passes(part: &str, ci: Option<&str>, list: &Path) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "part"]).env_remove("CI").env(PART, part).env("NARROWS_SKIPPED", list);
    command.envs(ci.map(|value| ("CI", value))).output().unwrap().status.success()
}

#[test]
fn what_is_lacking_is_listed_and_fails_in_ci_only() {
    let list = Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped");
    let _ = fs::remove_file(&list);
    for (part, ci, expected) in [
        ("lacks", None, true),
        ("lacks", Some("false"), true),
        ("lacks", Some("true"), false),
        ("skips", None, true),
        ("skips", Some("true"), true),
        ("neither", Some("true"), true),
    ] {
        assert_eq!(passes(part, ci, &list), expected, "{part} with CI={ci:?}");
    }
    let place = "crates/narrows-test/tests/record.rs part";
    let (lacks, skips) = (format!("{place}: there is no no-such-program\n"), format!("{place}: no such kernel\n"));
    assert_eq!(fs::read_to_string(&list).unwrap(), [&*lacks, &lacks, &skips, &skips].concat());
}

/// Nobody sees captured output.
#[test]
fn no_test_skips_by_printing() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut files = Vec::new();
    for member in ["crates", "bindings", "lab"].iter().flat_map(|all| fs::read_dir(workspace.join(all)).unwrap()) {
        for folder in ["src", "tests"] {
            find(&member.as_ref().unwrap().path().join(folder), &mut files);
        }
    }
    let own = [Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs"), workspace.join(file!())];
    files.retain(|file| !own.contains(file));
    assert!(files.len() > 100, "the sources were not found");
    let printing = |line: &&str| {
        let print = line.contains("print!(") || line.contains("println!(") || line.contains("writeln!(");
        print && (line.contains("\"skipped: ") || line.contains(": not tested") || line.contains("not tested: "))
    };
    let found: Vec<_> = files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            text.lines().filter(printing).map(|line| format!("{}: {}", file.display(), line.trim())).collect::<Vec<_>>()
        })
        .collect();
    assert!(found.is_empty(), "use narrows_test::skip or lacks:\n{}", found.join("\n"));
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}
