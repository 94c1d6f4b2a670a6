//! One folder that copies reach in several ways: within the host, through a remote shell, from a server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use narrows_test::has;

use super::copies::snapshot;
use super::{code, finish, home, narrows, stderr};

/// Location of the two ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Way {
    Local,
    Put,
    Get,
    /// To a `narrows serve --listen`.
    PutDirect,
    GetDirect,
    /// To a host without narrows.
    PutTar,
    GetTar,
}

pub(crate) const ALL: [Way; 7] =
    [Way::Local, Way::Put, Way::Get, Way::PutDirect, Way::GetDirect, Way::PutTar, Way::GetTar];
/// Ways with narrows at both ends.
pub(crate) const BOTH: [Way; 5] = [Way::Local, Way::Put, Way::Get, Way::PutDirect, Way::GetDirect];

/// A served folder, which is also the home of a remote shell.
pub(crate) struct World {
    pub(crate) home: tempfile::TempDir,
    pub(crate) server: Child,
    pub(crate) address: String,
    pub(crate) shell: PathBuf,
}

impl World {
    pub(crate) fn new() -> Self {
        let home = home();
        let h = home.path();
        let shell = h.join("a shell");
        let text = format!("#!/bin/sh\nshift\ncd '{0}'\nHOME='{0}' exec sh -c \"$*\"\n", h.display());
        fs::write(&shell, text).unwrap();
        fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = narrows(h);
        command.args(["serve", "--listen", "127.0.0.1:0", "--insecure", "-v", "--dir"]).arg(h);
        let mut server = command.stdout(Stdio::null()).spawn().unwrap();
        let mut said = BufReader::new(server.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { home, server, address, shell }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Makes files in the folder `below`, with their paths as content.
    pub(crate) fn write(&self, below: &str, paths: &[&str]) {
        for path in paths {
            let path = self.path(below).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, path.strip_prefix(self.home.path()).unwrap().as_os_str().as_encoded_bytes()).unwrap();
        }
    }

    /// Runs a copy with these arguments in this folder; the places are written as the way requires.
    pub(crate) fn cp(&self, way: Way, flags: &[&str], sources: &[&str], target: &str) -> Output {
        finish(self.command(way, "cp", flags, sources, target).spawn().unwrap())
    }

    /// The command line of a copy, or of `sync`.
    pub(crate) fn command(&self, way: Way, word: &str, flags: &[&str], sources: &[&str], target: &str) -> Command {
        let place = |remote: bool, path: &str| match way {
            _ if !remote => path.to_owned(),
            Way::PutDirect | Way::GetDirect => format!("narrows://{}/{path}", self.address),
            _ => format!("host:{path}"),
        };
        let gets = matches!(way, Way::Get | Way::GetDirect | Way::GetTar);
        let puts = !gets && way != Way::Local;
        let mut command = narrows(self.home.path());
        command.current_dir(self.home.path()).arg(word).args(flags);
        match way {
            Way::PutDirect | Way::GetDirect => command.arg("--insecure"),
            Way::PutTar | Way::GetTar => command.args(["--remote-narrows", "/no/such/narrows"]),
            _ => command.args(["--remote-narrows", env!("CARGO_BIN_EXE_narrows")]),
        };
        command.arg("-e").arg(format!("'{}'", self.shell.display()));
        command.args(sources.iter().map(|path| place(gets, path))).arg(place(puts, target));
        command
    }

    pub(crate) fn copies(&self, way: Way, flags: &[&str], sources: &[&str], target: &str) {
        let output = self.cp(way, flags, sources, target);
        assert_eq!(code(&output), 0, "{way:?} {flags:?} {sources:?} {target}: {}", stderr(&output));
    }

    /// Runs the same copy with another program, if it is installed.
    pub(crate) fn by(&self, words: &str) -> bool {
        let mut words = words.split(' ');
        let program = words.next().unwrap();
        if !has(program) {
            return false;
        }
        let mut command = Command::new(program);
        command.current_dir(self.home.path()).args(words).stdin(Stdio::null()).stdout(Stdio::null());
        assert!(command.stderr(Stdio::null()).status().unwrap().success(), "{command:?}");
        true
    }

    pub(crate) fn names(&self, below: &str) -> Vec<String> {
        let all = snapshot(&self.path(below)).into_keys();
        all.filter(|p| !p.as_os_str().is_empty()).map(|p| p.to_string_lossy().into_owned()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
