//! Shared helpers for the tests of several crates, and the record of skipped tests.
//!
//! A test that cannot run passes, but records that by `skip`, or by `lacks` if a program could be
//! installed. `make test` names a file in `NARROWS_SKIPPED` and prints at its end what tests wrote
//! into it. Continuous integration installs the programs of `.ci/packages` and sets `CI=true`: a
//! missing program is then a failure. `bindings/python/tests/conftest.py` does the same.

pub mod authority;
mod content;
pub mod far;
mod jpeg;
mod mail;

pub use content::{noise, noise_of, text};
pub use jpeg::jpeg;
pub use mail::{base64_lines, mail};

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for what a test waits for: a hang fails its test. Nothing that works comes near it, however
/// loaded the machine: beside eight busy loops on two cores the longest wait takes half a minute.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Records that this machine cannot provide what the test needs: root, a feature of its kernel,
/// another kind of processor.
#[track_caller]
pub fn skip(reason: impl Display) {
    record(&line(&reason), env::var_os("NARROWS_SKIPPED").as_deref().map(Path::new));
}

/// Records that the machine lacks a program that could be installed.
///
/// # Panics
/// With `CI=true`.
#[track_caller]
pub fn lacks(program: impl Display) {
    let reason = format!("there is no {program}");
    assert!(!is_ci(env::var("CI").ok().as_deref()), "{reason}: install it (.ci/packages), or set CI=false");
    skip(reason);
}

/// Whether `program` is in PATH; if not, records it by [`lacks`].
#[track_caller]
pub fn has(program: &str) -> bool {
    let found = which(program).is_some();
    if !found {
        lacks(program);
    }
    found
}

/// The path of `program`, searched in PATH.
pub fn which(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The blocks of Rust in a page, without what a list indents them by.
///
/// # Panics
/// The page cannot be read, or a block has no end.
pub fn rust_blocks(page: &Path) -> Vec<String> {
    const BEGIN: &str = "```rust";
    let text = std::fs::read_to_string(page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let (mut blocks, mut lines) = (Vec::new(), text.lines());
    while let Some(line) = lines.next() {
        let Some(indent) = line.find(BEGIN).filter(|n| line[..*n].trim().is_empty()) else { continue };
        let mut block = String::new();
        loop {
            let line = lines.next().unwrap_or_else(|| panic!("{}: a block has no end", page.display()));
            if line.trim() == "```" {
                break;
            }
            block += line.get(indent..).unwrap_or("");
            block.push('\n');
        }
        blocks.push(block);
    }
    blocks
}

/// Fails unless every block of Rust in a page stands in `source`, a file of code that is compiled, line by line
/// but for spaces.
///
/// # Panics
/// One does not, or there is none.
#[track_caller]
pub fn assert_compiled(page: &Path, source: &str) {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = source.lines().map(words).collect();
    let blocks = rust_blocks(page);
    assert!(!blocks.is_empty(), "{} has no block of Rust", page.display());
    for block in blocks {
        let block: Vec<_> = block.lines().map(words).collect();
        let is_there = lines.windows(block.len()).any(|lines| lines == block);
        assert!(is_there, "{}: nothing compiles this:\n{}", page.display(), block.join("\n"));
    }
}

fn is_ci(value: Option<&str>) -> bool {
    value.is_some_and(|v| v == "true" || v == "1")
}

#[track_caller]
fn line(reason: &dyn Display) -> String {
    let thread = std::thread::current();
    let reason = reason.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{} {}: {reason}", Location::caller().file(), thread.name().unwrap_or("in a thread"))
}

fn record(line: &str, list: Option<&Path>) {
    eprintln!("skipped: {line}");
    if let Some(list) = list {
        // One write per line, so that lines of concurrent test programs do not mix.
        let opened = OpenOptions::new().append(true).create(true).open(list);
        let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|e| panic!("cannot write to {}, which NARROWS_SKIPPED names: {e}", list.display()));
    }
}
