//! `narrows run` with real servers and clients: the scripts of `crates/narrows-run/matrix`, with
//! little data and on one host.
//!
//! Each case runs without `narrows run`, with it at both ends, and at one of them; the client's
//! output must be the same. The whole matrix is `narrows-lab experiment run-matrix`. A test whose
//! programs are not installed is skipped (`narrows_test`). No case needs root.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, free_port, random, text};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A case that takes longer counts as hung.
const SPOKEN: Duration = Duration::from_secs(5);
/// More than sockets hold.
const BIG: usize = 6 << 20;

struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("data");
        fs::create_dir_all(data.join("many")).unwrap();
        fs::create_dir(folder.path().join("keep")).unwrap();
        let big = [text(BIG / 2), random(BIG / 2)].concat();
        fs::write(data.join("big"), &big).unwrap();
        fs::write(data.join("small"), &big[..1000]).unwrap();
        for i in 1..=64 {
            fs::write(data.join(format!("many/{i}")), &big[i..i + (i - 1) * (i - 1) * 20]).unwrap();
        }
        File::create(data.join("sparse")).unwrap().set_len(300 << 20).unwrap();
        Self { folder }
    }

    /// The client's output, and the number of connections of each end's supervisor.
    fn play(&self, program: &str, scenario: &str, client: bool, server: bool) -> Result<(String, [usize; 2]), String> {
        let case = self.folder.path().join("case");
        let _ = fs::remove_dir_all(&case);
        fs::create_dir(&case).unwrap();
        let (script, is_python) = script(program);
        fs::write(case.join("script"), script).unwrap();
        let ports: Vec<String> = (0..4).map(|_| free_port().to_string()).collect();
        let start = |role: &str, swapped: bool| {
            let run = format!("{} run -v --loopback --policy balance --", env!("CARGO_BIN_EXE_narrows"));
            let run = if swapped { run } else { String::new() };
            let mut words: Vec<&str> = if is_python { run.split_whitespace().collect() } else { Vec::new() };
            words.extend([if is_python { "python3" } else { "sh" }, "script", role, scenario]);
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(&case).env("RUN", &run).env("PATH", path()).env("DIR", &case);
            command.env("ADDR", "127.0.0.1").env("CLIENT_ADDR", "127.0.0.1").env("HOME", &case);
            command.env("DATA", self.folder.path().join("data")).env("KEEP", self.folder.path().join("keep"));
            command.env("XDG_CACHE_HOME", self.folder.path().join("keep")).env("BIG_LEN", BIG.to_string());
            command.envs(["PORT", "PORT2", "PORT3", "PORT4"].into_iter().zip(&ports)).process_group(0);
            let to = |end: &str| File::create(case.join(format!("{role}.{end}"))).unwrap();
            Group(command.stdin(Stdio::null()).stdout(to("out")).stderr(to("err")).spawn().unwrap())
        };
        let said = |name: &str| String::from_utf8_lossy(&fs::read(case.join(name)).unwrap_or_default()).into_owned();
        let words = || ["client.out", "client.err", "server.out", "server.err"].map(said).join("\n");
        let begun = Instant::now();
        let mut running = start("server", server);
        while !case.join("ready").exists() {
            if running.0.try_wait().unwrap().is_some() || begun.elapsed() > PATIENCE {
                return Err(format!("the server is not ready: {}", words()));
            }
            thread::sleep(Duration::from_millis(2));
        }
        let mut asking = start("client", client);
        let status = loop {
            if let Some(status) = asking.0.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("it hangs: {}", words()));
            }
            thread::sleep(Duration::from_millis(2));
        };
        drop((asking, running));
        if !status.success() {
            return Err(words());
        }
        // Supervisors report a connection once it has drained, which may be after the end of its
        // program.
        let handed = |role: &str, swapped: bool| {
            let begun = Instant::now();
            loop {
                let all = said(&format!("{role}.err"));
                let about = |l: &&str| l.starts_with("narrows: to ") || l.starts_with("narrows: from ");
                let count = all.lines().filter(about).count();
                if count > 0 || !swapped || scenario.contains("refused") || begun.elapsed() > SPOKEN {
                    return count;
                }
                thread::sleep(Duration::from_millis(5));
            }
        };
        Ok((said("client.out"), [handed("client", client), handed("server", server)]))
    }

    fn all(&self, program: &str, scenarios: &[&str]) {
        let missing = missing(program);
        if !missing.is_empty() {
            return narrows_test::lacks(missing.join(", "));
        }
        let mut handed = [0; 2];
        for (number, scenario) in scenarios.iter().enumerate() {
            let told = |how: &str, why: String| -> ! { panic!("{program}/{scenario}, {how}: {why}") };
            let (native, _) = self.play(program, scenario, false, false).unwrap_or_else(|e| told("natively", e));
            // The next scenario runs under narrows at the other end only.
            let alone = if number % 2 == 0 { ("client", true, false) } else { ("server", false, true) };
            for (how, client, server) in [alone, ("both", true, true)] {
                let (played, n) = self.play(program, scenario, client, server).unwrap_or_else(|e| told(how, e));
                assert_eq!(played, native, "{program}/{scenario}, {how}");
                (handed[0], handed[1]) = (handed[0] + n[0], handed[1] + n[1]);
            }
        }
        // Otherwise plain would be compared with plain.
        assert!(handed.iter().all(|n| *n > 0), "{program}: {handed:?} connections were handed over");
    }
}

/// A process group that is killed on drop.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::TERM);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            // It counts as part of the group until it is reaped.
            let _ = self.0.try_wait();
            if test_kill_process_group(group).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../narrows-run/matrix")
}

fn script(program: &str) -> (String, bool) {
    let read = |name: &str| fs::read_to_string(folder().join(name));
    match read(&format!("{program}.py")) {
        Ok(text) => (text, true),
        Err(_) => (format!("{}\n{}", read("common.sh").unwrap(), read(&format!("{program}.sh")).unwrap()), false),
    }
}

/// The missing programs of the line `# needs: ...`.
fn missing(program: &str) -> Vec<String> {
    let (script, _) = script(program);
    let line = script.lines().find_map(|l| l.strip_prefix("# needs: ")).unwrap();
    let there = |word: &str| {
        let mut find = Command::new("sh");
        find.args(["-c", &format!("command -v {word}")]).env("PATH", path()).stdout(Stdio::null());
        find.status().is_ok_and(|s| s.success())
    };
    line.split_whitespace().filter(|w| !there(w)).map(str::to_string).collect()
}

/// PATH plus the directories where systems keep servers.
fn path() -> String {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<String> = versions.map(|v| v.path().join("bin").display().to_string()).collect();
    folders.sort();
    folders.reverse();
    folders.push(std::env::var("PATH").unwrap());
    folders.extend(["/usr/sbin", "/usr/local/sbin"].map(str::to_string));
    folders.join(":")
}

// --- one test for each program, so that they run beside each other ---

#[test]
fn curl() {
    Stage::new().all("curl", &["small", "many", "refused", "killed", "server-killed", "few-descriptors"]);
}

#[test]
fn sockets_that_end() {
    let few = ["killed-after-write", "reset", "half-close", "server-first", "urgent", "many", "threads"];
    Stage::new().all("sockets", &few);
}

#[test]
fn sockets_that_change_hands() {
    Stage::new().all("sockets", &["epoll-before-connect", "fork", "exec", "rights", "closed-all", "refused"]);
}

#[test]
fn asyncio() {
    Stage::new().all("asyncio", &["echo", "refused"]);
}

#[test]
fn nginx() {
    Stage::new().all("nginx", &["big", "many", "proxy-big", "proxy-many", "proxy-refused", "names"]);
}

#[test]
fn redis() {
    Stage::new().all("redis", &["small", "big", "load", "benchmark", "names", "refused", "killed"]);
}

#[test]
fn postgresql() {
    Stage::new().all("postgresql", &["small", "copy", "benchmark", "reconnect", "names", "refused"]);
}

#[test]
fn netcat_and_socat() {
    Stage::new().all("netcat", &["big", "refused"]);
    Stage::new().all("socat", &["fork", "nofork", "relay"]);
}

#[test]
fn node() {
    Stage::new().all("node", &["big", "post", "refused"]);
}

#[test]
fn openssh() {
    Stage::new().all("openssh", &["small", "names", "refused"]);
}
