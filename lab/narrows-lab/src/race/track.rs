//! A track, which is one link for races: starts a tool at both ends, measures the time, and
//! compares the received bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use narrows_link::Backend;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

use super::net::{End, Net};
use super::scratch;
use super::servers::{Server, Sshd};
use super::tools::{self, Tool};

/// Timeout for a receiver to listen.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);
/// Interval for checking the flag to stop while a tool runs.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Seconds between SIGTERM and SIGKILL for a tool that exceeds its limit.
const GRACE_S: u64 = 2;
/// Suffix of the file with the sender's CPU time, beside the received file.
const SENDER_CPU: &str = ".sender.cpu";
const RECEIVER_CPU: &str = ".receiver.cpu";

/// Data to send.
pub(crate) struct Load {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    hash: u64,
}

impl Load {
    pub(crate) fn new(folder: &Path, name: &str, bytes: &[u8]) -> Result<Self> {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, len: bytes.len() as u64, hash: xxh3_64(bytes) })
    }
}

pub(crate) struct Track {
    pub(crate) net: Net,
    folder: TempDir,
    narrows: String,
    ssh: Option<Sshd>,
    tls: Option<Server>,
    stop: Arc<AtomicBool>,
}

pub(crate) struct Lap {
    pub(crate) seconds: f64,
    /// Bytes that the link delivered, including packet headers; those of the last 100 ms may be
    /// missing.
    pub(crate) wire_bytes: Option<u64>,
    /// CPU time of each end's programs; a copy through ssh has no separate receiver.
    pub(crate) sender_cpu_s: Option<f64>,
    pub(crate) receiver_cpu_s: Option<f64>,
}

impl Track {
    /// Starts a track. Each has its own cache, so that runs do not use or change what was learned
    /// about this host.
    pub(crate) fn new(profile: &str, down: bool, stop: Arc<AtomicBool>) -> Result<Self> {
        Self::start(profile, Backend::Auto, down, stop)
    }

    /// As [`Self::new`], with packets carried by `backend`.
    pub(crate) fn start(profile: &str, backend: Backend, down: bool, stop: Arc<AtomicBool>) -> Result<Self> {
        for program in ["sh", "timeout"] {
            ensure!(tools::find(program).is_some(), "PATH has no '{program}'; programs cannot be run without it");
        }
        let folder = scratch::folder()?;
        let narrows = std::env::current_exe().map(|p| p.with_file_name("narrows")).unwrap_or_default();
        ensure!(narrows.is_file(), "{} is missing; build all with cargo build --release", narrows.display());
        let narrows = narrows.to_string_lossy().into_owned();
        let mut calibrate = Command::new(&narrows);
        calibrate.arg("calibrate").env("XDG_CACHE_HOME", folder.path()).stdin(Stdio::null());
        ensure!(calibrate.output().context("cannot run narrows")?.status.success(), "narrows calibrate failed");
        Ok(Self { net: Net::start(profile, backend, down)?, folder, narrows, ssh: None, tls: None, stop })
    }

    /// Checks that the tool can run here, and starts the server that it needs.
    pub(crate) fn prepare(&mut self, tool: &Tool) -> Result<()> {
        let missing = tool.missing();
        ensure!(missing.is_empty(), "{} is not installed", missing.join(", "));
        match tool.server {
            tools::Server::Ssh if self.ssh.is_none() => self.ssh = Some(Sshd::start(&self.net, self.folder.path())?),
            tools::Server::Narrows if self.tls.is_none() => {
                self.tls = Some(Server::start(&self.net, self.folder.path(), &self.narrows)?);
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs a tool once: the time is from the start of the sender until both ends have ended. Then
    /// compares the received bytes.
    pub(crate) fn lap(&self, tool: &Tool, load: &Load, limit: Duration) -> Result<Lap> {
        let out = self.folder.path().join("out");
        let clean = || {
            for end in ["", ".gz", ".sent.gz", SENDER_CPU, RECEIVER_CPU] {
                let _ = fs::remove_file(format!("{}{end}", out.display()));
            }
        };
        clean();
        let (spoilt, before) = (self.net.spoilt(), self.net.delivered_bytes());
        let lap = self.run(tool, load, &out, limit);
        let lap = lap.map(|seconds| {
            let delivered = self.net.delivered_bytes().zip(before).map(|(after, before)| after - before);
            let cpu_s = |name: &str| {
                let text = fs::read_to_string(format!("{}{name}", out.display())).ok()?;
                cpu_s_of_children(&text)
            };
            Lap { seconds, wire_bytes: delivered, sender_cpu_s: cpu_s(SENDER_CPU), receiver_cpu_s: cpu_s(RECEIVER_CPU) }
        });
        let lap = lap.and_then(|lap| {
            let bytes = fs::read(&out).with_context(|| format!("{} stored no file", tool.name))?;
            ensure!(
                bytes.len() as u64 == load.len && xxh3_64(&bytes) == load.hash,
                "other bytes arrived than were sent by {}: {} of {}",
                tool.name,
                bytes.len(),
                load.len
            );
            ensure!(self.net.spoilt() == spoilt, "the emulated link could not keep up; the run is void");
            Ok(lap)
        });
        clean();
        lap
    }

    fn run(&self, tool: &Tool, load: &Load, out: &Path, limit: Duration) -> Result<f64> {
        let port = self.net.free_port()?;
        let (sender, finished) = mpsc::channel();
        let mut running = Running { pids: Vec::new() };
        if !tool.receive.is_empty() {
            let child = self.spawn(End::Receiver, &tool.receive, load, out, port, limit)?;
            let pid = running.watch(End::Receiver, child, &sender);
            wait_for_listener(pid, port, &self.stop);
        }
        let begun = Instant::now();
        let child = self.spawn(End::Sender, &tool.send, load, out, port, limit)?;
        running.watch(End::Sender, child, &sender);
        let mut last = begun;
        let mut left = running.pids.len();
        // `timeout` enforces the limit; this is for a tool that survives it.
        let never = begun + limit + Duration::from_secs(2 * GRACE_S + 2);
        while left > 0 {
            match finished.recv_timeout(LOOK_EVERY) {
                Ok((end, status, at)) => {
                    left -= 1;
                    running.pids.retain(|(e, _)| *e != end);
                    let status: ExitStatus = status?;
                    if !status.success() {
                        // The end that failed first has the reason; the other one only lost its
                        // peer.
                        drop(running);
                        bail!("{}", self.why(tool, end, status, limit));
                    }
                    last = last.max(at);
                }
                Err(_) => {
                    ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
                    ensure!(Instant::now() < never, "{} does not end", tool.name);
                }
            }
        }
        Ok((last - begun).as_secs_f64())
    }

    fn spawn(&self, end: End, line: &str, load: &Load, out: &Path, port: u16, limit: Duration) -> Result<Child> {
        let mut command = self.net.command(end, "timeout");
        let cpu = if end == End::Sender { SENDER_CPU } else { RECEIVER_CPU };
        let line = format!("{line}\nstatus=$?\ntimes >\"$OUT{cpu}\"\nexit $status");
        command.args(["-k", &GRACE_S.to_string(), &limit.as_secs_f64().to_string(), "sh", "-c", &line]);
        command.env("XDG_CACHE_HOME", self.folder.path()).env("NARROWS", &self.narrows).env("FILE", &load.path);
        // Every lap starts as cold as the first.
        command.env("NARROWS_NO_MEMORY", "1");
        command.env("OUT", out).env("ADDR", self.net.address()).env("PORT", port.to_string());
        if let Some(ssh) = &self.ssh {
            command.env("SSH", ssh.ssh(ssh.port)).env("SCP", ssh.options(ssh.port, "-P"));
        }
        if let Some(tls) = &self.tls {
            command.env("TLS", tls.port.to_string()).env("TOKEN", &tls.token);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(self.said_by(end))?);
        command.spawn().context("cannot run timeout")
    }

    fn said_by(&self, end: End) -> PathBuf {
        self.folder.path().join(if end == End::Sender { "sender.err" } else { "receiver.err" })
    }

    fn why(&self, tool: &Tool, end: End, status: ExitStatus, limit: Duration) -> String {
        // Exit statuses of `timeout` after its limit.
        if matches!(status.code(), Some(124 | 137)) {
            return format!("{} took longer than {} s", tool.name, limit.as_secs());
        }
        let said = fs::read_to_string(self.said_by(end)).unwrap_or_default();
        let said: String = said.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
        format!("{} failed ({status}): {said}", tool.name)
    }
}

/// CPU time of the children, from the output of the shell's `times`: a line for itself and one for
/// its children, each with user and system time as `1m2.5s`.
fn cpu_s_of_children(text: &str) -> Option<f64> {
    let part = |word: &str| -> Option<f64> {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        Some(60.0 * minutes.parse::<f64>().ok()? + seconds.parse::<f64>().ok()?)
    };
    text.lines().nth(1)?.split_whitespace().map(part).sum()
}

/// Running tools, which are ended on drop.
struct Running {
    pids: Vec<(End, u32)>,
}

impl Running {
    fn watch(
        &mut self,
        end: End,
        mut child: Child,
        sender: &mpsc::Sender<(End, std::io::Result<ExitStatus>, Instant)>,
    ) -> u32 {
        let (pid, sender) = (child.id(), sender.clone());
        std::thread::spawn(move || {
            let status = child.wait();
            let _ = sender.send((end, status, Instant::now()));
        });
        self.pids.push((end, pid));
        pid
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for (_, pid) in &self.pids {
            // `timeout` passes the signal on to all that it started. Its thread has not reaped it,
            // so the pid is still valid.
            let _ = Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).stderr(Stdio::null()).status();
        }
    }
}

/// Waits until a socket listens at the port in the network namespace of the process, which may not
/// be ours.
fn wait_for_listener(pid: u32, port: u16, stop: &AtomicBool) {
    let until = Instant::now() + LISTENS_WITHIN;
    let wanted = format!(":{port:04X}");
    while Instant::now() < until && !stop.load(Ordering::Relaxed) {
        for table in ["tcp", "tcp6"] {
            let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
            let mut rows = text.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
            // The second column is the local address, the fourth the state: 0A is LISTEN.
            if rows.any(|r| r.len() > 3 && r[1].ends_with(&wanted) && r[3] == "0A") {
                return;
            }
        }
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A track without `narrows`, which tests of this crate cannot rely on.
    fn track(stop: Arc<AtomicBool>) -> Track {
        let folder = tempfile::tempdir().unwrap();
        Track {
            net: Net::start("none", Backend::Auto, false).unwrap(),
            folder,
            narrows: String::new(),
            ssh: None,
            tls: None,
            stop,
        }
    }

    fn present(name: &str) -> Option<Tool> {
        let tool = Tool::parse(name).unwrap();
        let missing = tool.missing();
        if !missing.is_empty() {
            narrows_test::lacks(missing.join(", "));
        }
        missing.is_empty().then_some(tool)
    }

    #[test]
    fn two_programs_of_this_host_race_and_what_arrives_is_compared() {
        let track = track(Arc::default());
        let load = Load::new(track.folder.path(), "load", &b"some words and more\n".repeat(5000)).unwrap();
        for tool in ["nc", "gzip-1-then-nc"].into_iter().filter_map(present) {
            let lap = track.lap(&tool, &load, Duration::from_secs(20)).unwrap();
            assert!(lap.seconds > 0.0);
            assert!(lap.sender_cpu_s.is_some_and(|s| s >= 0.0) && lap.receiver_cpu_s.is_some_and(|s| s >= 0.0));
            let mut liar = tool.clone();
            liar.receive = "nc -l $ADDR $PORT >/dev/null; echo else >$OUT".into();
            let Err(error) = track.lap(&liar, &load, Duration::from_secs(20)) else { panic!("other bytes passed") };
            assert!(error.to_string().contains("other bytes"), "{error}");
        }
        let left = fs::read_dir(track.folder.path()).unwrap().map(|e| e.unwrap().file_name());
        assert!(left.into_iter().all(|f| ["load", "sender.err", "receiver.err"].iter().any(|k| f == *k)));
    }

    #[test]
    fn cpu_times_of_a_shell_are_understood() {
        assert_eq!(cpu_s_of_children("0m0.000s 0m0.001s\n1m2.500s 0m0.250s\n"), Some(62.75));
        for text in ["", "0m0.0s 0m0.0s\n", "0m0.0s 0m0.0s\nsoon 0m0.0s\n"] {
            assert_eq!(cpu_s_of_children(text), None, "{text}");
        }
    }

    #[test]
    fn what_fails_or_does_not_end_is_named() {
        let track = track(Arc::default());
        let load = Load::new(track.folder.path(), "load", b"x").unwrap();
        let line = |send: &str| Tool { receive: String::new(), send: send.into(), ..Tool::parse("narrows").unwrap() };
        let said = |tool: &Tool, limit| format!("{:#}", track.lap(tool, &load, limit).err().unwrap());
        let failed = said(&line("echo it rains >&2; exit 7"), Duration::from_secs(20));
        assert!(failed.contains("it rains") && failed.contains('7'), "{failed}");
        let endless = said(&line("sleep 60"), Duration::from_secs(1));
        assert!(endless.contains("longer than 1 s"), "{endless}");
        track.stop.store(true, Ordering::Relaxed);
        assert!(said(&line("sleep 60"), Duration::from_secs(60)).contains("interrupted"));
    }
}
