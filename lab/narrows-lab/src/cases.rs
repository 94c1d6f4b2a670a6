//! Cases of the compatibility matrix: a program with a scenario of connections, as scripts in
//! `crates/narrows-run/matrix`.
//!
//! The first lines of a script name the programs that it needs (`# needs: curl python3`, or
//! `file:/usr/include/x.h`) and its scenarios. It is run as `server SCENARIO` and as `client
//! SCENARIO`; `common.sh` describes their environment.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(crate) mod stage;

/// Prepended to every shell script.
const COMMON: &str = include_str!("../../../crates/narrows-run/matrix/common.sh");

macro_rules! scripts {
    ($($file:literal)*) => { &[$(($file, include_str!(concat!("../../../crates/narrows-run/matrix/", $file)))),*] };
}

const SCRIPTS: &[(&str, &str)] = scripts![
    "apache-event.sh" "apache-prefork.sh" "asio.sh" "asyncio.py" "curl.sh" "dbus.sh" "dotnet.sh" "envoy.sh" "etcd.sh"
    "ftp.sh" "git-http.sh" "git.sh" "go-http.sh" "go.sh" "gunicorn.sh" "haproxy.sh" "io-uring.sh" "iperf3.sh" "java.sh"
    "libevent.sh" "libuv.sh" "lighttpd.sh" "links-file.sh" "links-http.sh" "links-postgresql.sh" "links-redis.sh"
    "mariadb.sh" "memcached.sh" "mosquitto.sh" "multiprocessing.sh" "ncat.sh" "netcat.sh" "nginx.sh" "node.sh"
    "openssh.sh" "openssl.sh" "perl.sh" "php.sh" "postgresql.sh" "puma.sh" "python-http.sh" "redis.sh" "rsync.sh"
    "ruby.sh" "socat.sh" "sockets.py" "static.sh" "tinyproxy.sh" "tokio.sh" "uvicorn.sh" "uvloop.sh" "wget.sh"
];

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) program: &'static str,
    pub(crate) scenario: &'static str,
    file: &'static str,
    text: &'static str,
}

impl Case {
    /// Parses `PROGRAM/SCENARIO`.
    pub(crate) fn parse(name: &str) -> Result<Self, String> {
        let (program, scenario) = name.split_once('/').ok_or("it is not PROGRAM/SCENARIO, such as curl/big")?;
        let found = SCRIPTS.iter().find(|s| stem(s.0) == program);
        let (file, text) = found.ok_or_else(|| {
            let all: Vec<_> = SCRIPTS.iter().map(|s| stem(s.0)).collect();
            format!("there is no program '{program}'; there are {}", all.join(", "))
        })?;
        let scenarios = words(text, "scenarios");
        let scenario = scenarios.iter().find(|s| **s == scenario).ok_or_else(|| {
            format!("there is no scenario '{scenario}' of {program}; there are {}", scenarios.join(", "))
        })?;
        Ok(Self { program: stem(file), scenario, file, text })
    }

    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let of = |(file, text): &'static (&'static str, &'static str)| {
            let case = |scenario| Self { program: stem(file), scenario, file, text };
            words(text, "scenarios").into_iter().map(case)
        };
        SCRIPTS.iter().flat_map(of)
    }

    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.program, self.scenario)
    }

    /// The requirements that this machine does not meet.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        let there = |word: &str| match word.strip_prefix("file:") {
            Some(path) => Path::new(path).exists(),
            None => find(word).is_some(),
        };
        words(self.text, "needs").into_iter().filter(|word| !there(word)).collect()
    }

    fn is_python(&self) -> bool {
        self.file.ends_with(".py")
    }

    /// The complete script.
    fn script(&self) -> String {
        if self.is_python() { self.text.to_owned() } else { format!("{COMMON}\n{}", self.text) }
    }
}

fn stem(file: &'static str) -> &'static str {
    file.rsplit_once('.').map_or(file, |f| f.0)
}

/// The words of the line `# KEY: WORDS`.
fn words(text: &'static str, key: &str) -> Vec<&'static str> {
    let line = text.lines().find_map(|l| l.strip_prefix("# ")?.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_default().split_whitespace().collect()
}

fn find(program: &str) -> Option<PathBuf> {
    let is_program = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    env::split_paths(&search_path()).map(|folder| folder.join(program)).find(is_program)
}

/// PATH, plus the folders in which systems keep servers.
fn search_path() -> OsString {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).filter(|p| !p.as_os_str().is_empty()).collect();
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|v| v.path().join("bin")).collect();
    versions.sort();
    // Before PATH, so that all programs of PostgreSQL and its data are of one version.
    folders.splice(0..0, versions.pop());
    folders.extend(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    env::join_paths(folders).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_of_the_folder_is_known_and_says_what_it_needs() {
        let folder =
            fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/narrows-run/matrix")).unwrap();
        let mut files: Vec<_> = folder.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        files.retain(|f| (f.ends_with(".sh") || f.ends_with(".py")) && f != "common.sh");
        files.sort();
        assert_eq!(files, SCRIPTS.iter().map(|s| s.0).collect::<Vec<_>>());
        for (file, text) in SCRIPTS {
            assert!(!words(text, "needs").is_empty() && !words(text, "scenarios").is_empty(), "{file}");
        }
        for case in Case::all() {
            let parsed = Case::parse(&case.name()).unwrap();
            assert_eq!((parsed.program, parsed.scenario), (case.program, case.scenario));
        }
    }

    #[test]
    fn what_is_no_case_is_named() {
        for (name, said) in [("curl", "PROGRAM/"), ("curly/big", "no program 'curly'"), ("curl/bigger", "few-descr")] {
            let error = Case::parse(name).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(find("sh").is_some() && find("no-such-program").is_none());
    }
}
