//! Checks of what a host allows the program to do. They change nothing.

use std::path::{Path, PathBuf};

mod folders;
mod host;
mod interception;
mod tools;

/// What was found about one part of the program.
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) state: State,
    /// Whether nothing works without it.
    pub(crate) needed: bool,
    pub(crate) found: String,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Ok,
    /// It works, with less than it could use.
    Limited,
    Missing,
}

impl State {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Ok, needed: false, found: found.into(), advice: None }
    }

    fn limited(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, state: State::Limited, needed: false, found: found.into(), advice: Some(advice.into()) }
    }

    fn missing(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, state: State::Missing, needed: false, found: found.into(), advice: Some(advice.into()) }
    }

    fn needed(self) -> Self {
        Self { needed: true, ..self }
    }

    /// Whether the plain program does not work because of it.
    pub(crate) fn fails(&self) -> bool {
        self.needed && self.state == State::Missing
    }
}

/// All checks, what everything needs first.
pub(crate) fn checks() -> Vec<Check> {
    let mut checks = vec![host::codecs().needed(), host::threads().needed(), host::cores(), host::memory()];
    checks.extend([host::descriptors(), folders::temporary(), folders::cache(), folders::calibration()]);
    checks.extend([folders::keys(), host::ports(), interception::preload(), interception::seccomp()]);
    checks.extend([tools::mount(), tools::ssh(), tools::tar(), tools::hdf5()]);
    checks
}

/// The path of a program, searched in PATH.
fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
