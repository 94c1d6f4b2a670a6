//! The stage on which cases run: one or two hosts, data, ports, a folder, and the cleanup of
//! everything that a case started.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use narrows_link::{Backend, end_group};
use narrows_sim::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Case, search_path};
use crate::race::net::{End, Net};
use crate::race::scratch;

/// Time for servers to end by themselves before they are killed.
const SERVER_ENDS: Duration = Duration::from_secs(5);
/// Timeout for the end of all processes: supervisors drain data in flight, which takes a moment.
const ALL_END: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Limit on the output of a script, more than any prints.
const OUTPUT_MAX: u64 = 64 << 10;
/// Length of the sparse file: more than sockets, pipes and programs buffer between two ends.
const SPARSE_LEN: u64 = 300 << 20;
const FILES: u64 = 64;
/// Environment variable that marks every process that a case starts.
pub(crate) const MARK: &str = "NARROWS_LAB_CASE";
/// Number of runs on all stages, which makes the marks of different runs distinct.
static PLAYED: AtomicU64 = AtomicU64::new(0);

/// Which ends are under `narrows run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    Neither,
    Client,
    Server,
    Both,
}

impl Under {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "neither" => Ok(Self::Neither),
            "client" => Ok(Self::Client),
            "server" => Ok(Self::Server),
            "both" => Ok(Self::Both),
            _ => Err("expected client, server, both or neither".into()),
        }
    }

    pub(crate) fn has(self, end: End) -> bool {
        match self {
            Self::Neither => false,
            Self::Client => end == End::Sender,
            Self::Server => end == End::Receiver,
            Self::Both => true,
        }
    }
}

/// Result of one run of a case.
#[derive(Debug, Clone, Default)]
pub(crate) struct Played {
    /// Output of the client, without its figures.
    pub(crate) transcript: String,
    /// Time from the start of the client to its end.
    pub(crate) seconds: f64,
    /// Values of the lines `figure NAME VALUE`.
    pub(crate) figures: BTreeMap<String, f64>,
    /// Connections held by the supervisors at the client and at the server.
    pub(crate) handed: [u64; 2],
    /// Those of them that carried frames.
    pub(crate) framed: [u64; 2],
    /// Bytes that the link delivered in both directions.
    pub(crate) wire_bytes: Option<u64>,
}

pub(crate) struct Stage {
    pub(crate) net: Net,
    folder: TempDir,
    narrows: String,
    big_len: u64,
    stop: Arc<AtomicBool>,
}

impl Stage {
    /// Sets up a stage. `big` is the content of the file of that name.
    pub(crate) fn new(link: &str, big: &[u8], stop: Arc<AtomicBool>) -> Result<Self> {
        let folder = scratch::folder()?;
        // Servers that refuse to run as root must be able to traverse the folder.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        for name in ["data", "data/many", "keep"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let data = folder.path().join("data");
        fs::write(data.join("big"), big)?;
        fs::write(data.join("small"), mixed(1000, 2))?;
        let mut rng = Rng(3);
        for i in 1..=FILES {
            // The first files have 0, 1 and few bytes; the others may be longer than a socket's
            // buffer.
            let len = if i <= 8 { (i - 1) * (i - 1) } else { rng.next_u64() % 300_000 };
            fs::write(data.join(format!("many/{i}")), mixed(len as usize, i))?;
        }
        File::create(data.join("sparse"))?.set_len(SPARSE_LEN)?;
        let narrows = std::env::current_exe().map(|p| p.with_file_name("narrows")).unwrap_or_default();
        ensure!(narrows.is_file(), "{} is missing; build all with cargo build --release", narrows.display());
        let narrows = narrows.to_string_lossy().into_owned();
        ensure!(!narrows.contains(char::is_whitespace), "scripts cannot run {narrows}: its path has a space");
        let net = Net::start(link, Backend::Auto, false)?;
        Ok(Self { net, folder, narrows, big_len: big.len() as u64, stop })
    }

    /// Runs a case once. `flags` are those of `narrows run`, with `{server}` and `{client}` for
    /// addresses and `{port}`.
    pub(crate) fn play(&self, case: &Case, under: Under, flags: &str, limit: Duration) -> Result<Played> {
        let number = PLAYED.fetch_add(1, Ordering::Relaxed);
        let cell = Cell {
            mark: format!("{}-{number}", std::process::id()),
            folder: self.folder.path().join(format!("case-{number}")),
            ports: [(); 4].map(|()| self.net.free_port()),
        };
        fs::create_dir(&cell.folder)?;
        let script = cell.folder.join(if case.is_python() { "script.py" } else { "script.sh" });
        fs::write(&script, case.script())?;
        let before = self.net.delivered_both();
        let played = self.play_in(&cell, case, under, flags, limit);
        let left = end_marked(&cell.mark, if played.is_ok() { ALL_END } else { Duration::ZERO });
        let played = played.and_then(|mut played| {
            if under != Under::Neither {
                ensure!(left.is_empty(), "did not end: {}", left.join(", "));
            }
            let said = [End::Sender, End::Receiver].map(|end| read(&cell.said(end)));
            played.handed = [0, 1].map(|i| handed(&said[i]).count() as u64);
            played.framed = [0, 1].map(|i| handed(&said[i]).filter(|l| l.contains(", wire ")).count() as u64);
            played.wire_bytes = self.net.delivered_both().zip(before).map(|(after, before)| after - before);
            Ok(played)
        });
        let _ = fs::remove_dir_all(&cell.folder);
        played
    }

    fn play_in(&self, cell: &Cell, case: &Case, under: Under, flags: &str, limit: Duration) -> Result<Played> {
        let until = Instant::now() + limit;
        let server = self.spawn(cell, case, End::Receiver, under, flags)?;
        let mut server = Ended(server);
        while !cell.folder.join("ready").exists() {
            let ended = server.0.try_wait()?.is_some();
            if ended || Instant::now() > until {
                let how = if ended { "ended early" } else { "is not ready in time" };
                bail!("the server {how}: {}", cell.words(End::Receiver));
            }
            self.pause()?;
        }
        let begun = Instant::now();
        let mut client = Ended(self.spawn(cell, case, End::Sender, under, flags)?);
        let status = loop {
            if let Some(status) = client.0.try_wait()? {
                break status;
            }
            if Instant::now() > until {
                bail!("the case takes longer than {} s: {}", limit.as_secs(), cell.words(End::Sender));
            }
            self.pause()?;
        };
        let seconds = begun.elapsed().as_secs_f64();
        if !status.success() {
            bail!("the client failed ({status}): {}; server: {}", cell.words(End::Sender), cell.words(End::Receiver));
        }
        let mut played = Played { seconds, ..Played::default() };
        for line in read(&cell.output(End::Sender)).lines() {
            let figure = line.strip_prefix("figure ").and_then(|f| f.split_once(' '));
            if let Some((name, value)) = figure.and_then(|(name, value)| Some((name, value.parse().ok()?))) {
                played.figures.insert(name.to_owned(), value);
            } else {
                played.transcript += line;
                played.transcript.push('\n');
            }
        }
        Ok(played)
    }

    fn pause(&self) -> Result<()> {
        ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
        std::thread::sleep(LOOK_EVERY);
        Ok(())
    }

    fn spawn(&self, cell: &Cell, case: &Case, end: End, under: Under, flags: &str) -> Result<Child> {
        let (program, script) = if case.is_python() { ("python3", "script.py") } else { ("sh", "script.sh") };
        let (server, client) = (self.net.address_of(End::Receiver), self.net.address_of(End::Sender));
        let mut ports = Vec::new();
        for port in &cell.ports {
            ports.push(port.as_ref().map_err(|e| anyhow::anyhow!("{e:#}"))?.to_string());
        }
        let run = if under.has(end) {
            let flags = flags.replace("{server}", &server).replace("{client}", &client).replace("{port}", &ports[0]);
            format!("{} run -v --loopback {} {flags} --", self.narrows, policy_beside(&flags))
        } else {
            String::new()
        };
        // A Python script itself runs under narrows; a shell script decides which of its programs
        // do.
        let mut words: Vec<&str> = if case.is_python() { run.split_whitespace().collect() } else { Vec::new() };
        words.extend([program, script, if end == End::Receiver { "server" } else { "client" }, case.scenario]);
        let mut command = self.net.command(end, words[0]);
        command.args(&words[1..]).current_dir(&cell.folder).process_group(0);
        let base = self.folder.path();
        let variables = [
            (MARK, cell.mark.as_str()),
            ("RUN", &run),
            ("ADDR", &server),
            ("CLIENT_ADDR", &client),
            ("PORT", &ports[0]),
            ("PORT2", &ports[1]),
            ("PORT3", &ports[2]),
            ("PORT4", &ports[3]),
        ];
        command.envs(variables).env("BIG_LEN", self.big_len.to_string()).env("PATH", search_path());
        let folders = [("DIR", cell.folder.clone()), ("DATA", base.join("data")), ("KEEP", base.join("keep"))];
        command.envs(folders).env("HOME", &cell.folder).env("XDG_CACHE_HOME", base.join("keep"));
        command.stdin(Stdio::null()).stdout(File::create(cell.output(end))?).stderr(File::create(cell.said(end))?);
        command.spawn().with_context(|| format!("cannot run {}", words[0]))
    }
}

/// The default policy: without one nothing is compressed within a host, and nothing would be
/// tested.
pub(crate) fn policy_beside(flags: &str) -> &'static str {
    if flags.contains("--policy") { "" } else { "--policy balance" }
}

/// Files and ports of one run.
struct Cell {
    mark: String,
    folder: PathBuf,
    ports: [Result<u16>; 4],
}

impl Cell {
    fn output(&self, end: End) -> PathBuf {
        self.folder.join(if end == End::Sender { ".client.out" } else { ".server.out" })
    }

    fn said(&self, end: End) -> PathBuf {
        self.folder.join(if end == End::Sender { ".client.err" } else { ".server.err" })
    }

    /// The last lines of an end's output, joined into one.
    fn words(&self, end: End) -> String {
        let all = read(&self.output(end)) + &read(&self.said(end));
        let lines: Vec<&str> = all.lines().filter(|l| !l.starts_with("narrows: ") && !l.trim().is_empty()).collect();
        let last: Vec<&str> = lines.iter().skip(lines.len().saturating_sub(4)).copied().collect();
        last.join(" | ").chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect()
    }
}

/// A process group that is killed when this value is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        end_group(&mut self.0, SERVER_ENDS);
    }
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(OUTPUT_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Lines about connections that a supervisor held to the end. Connections that were not handed over
/// have other lines.
fn handed(said: &str) -> impl Iterator<Item = &str> {
    said.lines().filter(|l| l.starts_with("narrows: to ") || l.starts_with("narrows: from "))
}

/// Waits for the end of every process with the mark, then kills those that are left and returns
/// them.
pub(crate) fn end_marked(mark: &str, patience: Duration) -> Vec<String> {
    let begun = Instant::now();
    let mut left = marked(mark);
    while !left.is_empty() && begun.elapsed() < patience {
        std::thread::sleep(LOOK_EVERY);
        left = marked(mark);
    }
    for (pid, _) in &left {
        let _ = kill_process(*pid, Signal::KILL);
    }
    left.into_iter().map(|(pid, name)| format!("{name} ({pid})")).collect()
}

pub(crate) fn marked(mark: &str) -> Vec<(Pid, String)> {
    let wanted = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|n| n.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|b| *b == 0).any(|v| v == wanted.as_bytes()) {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push((pid, name.trim().to_owned()));
        }
    }
    found
}

/// Half noise and half compressible text, in pieces of 32 KiB.
pub(crate) fn mixed(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed);
    let words = ["GET /item/", " 200 OK\n", "value=", "some words of ", "{\"id\": ", "\n"];
    let mut out = Vec::with_capacity(len + 64);
    while out.len() < len {
        if out.len() / 32_768 % 2 == 0 {
            out.extend_from_slice(words[rng.below(words.len())].as_bytes());
            out.extend_from_slice(rng.below(100_000).to_string().as_bytes());
        } else {
            out.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_bears_the_mark_is_found_and_ended() {
        let mark = format!("test-{}", std::process::id());
        assert!(end_marked(&mark, Duration::ZERO).is_empty());
        let mut child = std::process::Command::new("sleep").arg("600").env(MARK, &mark).spawn().unwrap();
        // The child has the environment only after exec.
        let begun = Instant::now();
        let mut left = Vec::new();
        while left.is_empty() && begun.elapsed() < Duration::from_secs(20) {
            left = end_marked(&mark, Duration::ZERO);
        }
        let _ = child.kill();
        assert!(!child.wait().unwrap().success());
        assert!(left.len() == 1 && left[0].contains(&child.id().to_string()), "{left:?}");
    }

    #[test]
    fn connections_are_counted_by_what_is_said() {
        let said =
            "narrows: to 10.0.0.1:80: passed, 1 B out, 2 B in\nother\nnarrows: with 10.0.0.1:80: plain (loopback)\n";
        assert_eq!(handed(&format!("{said}narrows: from 10.0.0.2:5: passed\n")).count(), 2);
    }

    #[test]
    fn data_is_of_its_length_and_the_same_every_time() {
        for len in [0, 1, 1000, 100_000] {
            assert!(mixed(len, 1).len() == len && mixed(len, 1) == mixed(len, 1));
        }
        assert_ne!(mixed(1000, 1), mixed(1000, 2));
    }
}
