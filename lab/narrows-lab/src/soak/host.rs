//! Programs under `narrows run`, each with its supervisor: starting, killing and reaping them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use narrows_sim::rng::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, set_child_subreaper, wait};
use tempfile::TempDir;

use super::record::{self, now_ns};
use crate::cases::stage::{MARK, end_marked, marked};
use crate::race::scratch;

/// Policies that always compress, that decide, and that never compress.
const POLICIES: [&str; 4] = ["fixed:lz4", "fixed:zstd:level=1", "balance", "fixed:store"];
/// Timeout for the start of a program, which normally takes some 20 ms.
const STARTS: Duration = Duration::from_secs(30);
/// Timeout for the exit of a supervisor. It exits when everything that its program wrote has
/// arrived, which pauses of the reader delay by seconds.
pub(super) const LEAVES: Duration = Duration::from_secs(100);
/// Ports of servers: below the kernel's ephemeral ports, so that no connection takes one while its
/// server is down.
const PORTS: Range<u32> = 10_000..32_000;
/// Ports for negotiation: not among `PORTS`, as the service port is free while no server runs.
const SERVICE_PORTS: Range<u32> = 8000..10_000;
/// Limit on recorded faults: more would not help a reader.
const FAULTS_MAX: usize = 200;
const REAP_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// State that all pairs share.
pub(super) struct World {
    narrows: String,
    own: String,
    folder: PathBuf,
    _temporary: Option<TempDir>,
    /// Port for negotiation; all programs of this test are on one host and share it.
    service_port: u16,
    next_port: AtomicU32,
    pub(super) stop: Arc<AtomicBool>,
    faults: Mutex<Vec<String>>,
    accounts: Mutex<Accounts>,
}

/// Outcomes that supervisors printed, and how long they took to exit.
#[derive(Debug, Clone, Default)]
pub(super) struct Accounts {
    pub(super) outcomes: BTreeMap<String, u64>,
    pub(super) started: u64,
    pub(super) leaving_max: Duration,
}

impl World {
    /// Sets up the test. `records` is the folder in which to keep the ends' records.
    pub(super) fn new(stop: Arc<AtomicBool>, records: Option<&Path>) -> Result<Self> {
        let own = std::env::current_exe()?;
        let narrows = own.with_file_name("narrows");
        ensure!(narrows.is_file(), "{} is missing; build all with cargo build --release", narrows.display());
        // Makes this process the parent of programs whose supervisor was killed.
        set_child_subreaper(Some(rustix::process::getpid())).context("cannot take over orphans")?;
        thread::spawn(|| {
            loop {
                if !matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {
                    thread::sleep(REAP_EVERY);
                }
            }
        });
        let temporary = if records.is_none() { Some(scratch::folder()?) } else { None };
        let folder = records.or(temporary.as_ref().map(TempDir::path)).context("a folder")?.to_owned();
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        // Several soaks may run at the same time: spread their starting points by process id.
        let start = std::process::id().wrapping_mul(4099);
        let service_port = free_port(&SERVICE_PORTS, start)?;
        Ok(Self {
            narrows: narrows.to_string_lossy().into_owned(),
            own: own.to_string_lossy().into_owned(),
            folder,
            _temporary: temporary,
            service_port,
            next_port: AtomicU32::new(start),
            stop,
            faults: Mutex::default(),
            accounts: Mutex::default(),
        })
    }

    /// A free port that was not used recently.
    pub(super) fn free_port(&self) -> Result<u16> {
        free_port(&PORTS, self.next_port.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn record(&self, pair: u64, side: Side, life: u64) -> PathBuf {
        record::path(&self.folder, pair, side, life)
    }

    pub(super) fn fault(&self, what: String) {
        eprintln!("soak: {what}");
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < FAULTS_MAX {
            faults.push(what);
        }
    }

    pub(super) fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn accounts(&self) -> Accounts {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn free_port(ports: &Range<u32>, start: u32) -> Result<u16> {
    let count = ports.end - ports.start;
    let all = (0..count).map(|i| (ports.start + start.wrapping_add(i) % count) as u16);
    let mut free = all.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.next().context("no port is free")
}

/// Settings with which a program is run.
#[derive(Debug, Clone)]
pub(super) struct How {
    pub(super) policy: &'static str,
    /// Frames from the first byte, as the operator says that the peer has narrows; otherwise the
    /// supervisors negotiate.
    pub(super) direct: bool,
    pub(super) seccomp: bool,
    /// The supervisor is the parent of the program.
    pub(super) parent: bool,
    pub(super) polls: bool,
}

impl How {
    pub(super) fn draw(rng: &mut Rng, direct: bool) -> Self {
        let seccomp = rng.below(8) == 0;
        Self {
            policy: POLICIES[rng.below(POLICIES.len())],
            direct,
            seccomp,
            // With seccomp and a detached supervisor, the watchdog would be taken for the
            // supervisor.
            parent: seccomp || rng.below(2) == 0,
            polls: rng.below(2) == 0,
        }
    }
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |is: bool, yes: &'static str, no: &'static str| if is { yes } else { no };
        write!(
            f,
            "{} {} {} {} {}",
            self.policy,
            word(self.direct, "direct", "negotiated"),
            word(self.seccomp, "seccomp", "preload"),
            word(self.parent, "parent", "detached"),
            word(self.polls, "polls", "blocks")
        )
    }
}

/// A process, held by a pidfd, because pids are reused.
pub(super) struct Process(OwnedFd);

impl Process {
    fn open(pid: Pid) -> Result<Self> {
        Ok(Self(pidfd_open(pid, PidfdFlags::empty()).context("a process ended before its time")?))
    }

    /// Kills the process. Returns the times before and after the call.
    pub(super) fn kill(&self) -> (u64, u64) {
        let before = now_ns();
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
        (before, now_ns())
    }

    pub(super) fn is_over(&self) -> bool {
        becomes(&self.0, Duration::ZERO)
    }

    pub(super) fn ends_within(&self, patience: Duration) -> bool {
        becomes(&self.0, patience)
    }
}

/// Waits until a descriptor is readable or at its end; false if that takes longer than `patience`.
fn becomes(fd: &impl AsFd, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Ok(n) if n > 0 => return true,
            _ if Instant::now() >= until => return false,
            _ => {}
        }
    }
}

/// A program with its supervisor.
pub(super) struct Running {
    pub(super) program: Process,
    pub(super) supervisor: Process,
    pub(super) how: How,
    /// Port, if it is a server.
    pub(super) port: u16,
    name: String,
    mark: String,
    said: PathBuf,
    stdin: Option<ChildStdin>,
    _stdout: ChildStdout,
    /// Time since which the supervisor is expected to exit.
    leaves: Option<Instant>,
}

impl Running {
    /// Starts a program. `words` are the arguments of its role; `{port}` is replaced by a free
    /// port.
    pub(super) fn start(world: &World, name: &str, side: Side, how: &How, words: &[&str]) -> Result<Self> {
        let mut last = None;
        // Retry: another process may have taken the port, or the machine may be out of processes
        // for a moment.
        for _ in 0..3 {
            match Self::try_start(world, name, side, how, words) {
                Ok(running) => return Ok(running),
                Err(e) => last = Some(e),
            }
            thread::sleep(Duration::from_millis(500));
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no attempt was made")))
    }

    fn try_start(world: &World, name: &str, side: Side, how: &How, words: &[&str]) -> Result<Self> {
        let mark = format!("soak-{}-{name}", std::process::id());
        let said = world.path(&format!("{name}.said"));
        let mut command = Command::new(&world.narrows);
        command.args(["run", "-v", "--loopback", "--policy", how.policy, "--service-address", "127.0.0.1"]);
        command.arg(if how.parent { "--supervisor=parent" } else { "--supervisor=detached" });
        if how.seccomp {
            command.arg("--engine=seccomp");
        }
        if how.direct {
            command.args(["--no-agent", "--service-port", "1"]);
            match side {
                Side::Client => command.args(["--peer", "127.0.0.1"]),
                Side::Server => command.arg("--accept-direct"),
            };
        } else {
            command.args(["--service-port", &world.service_port.to_string()]);
        }
        let port = world.free_port()?;
        let word = |w: &&str| if *w == "{port}" { port.to_string() } else { (*w).to_owned() };
        command.args(["--", &world.own, "soak", "--end"]).args(words.iter().map(word)).env(MARK, &mark);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&said)?);
        let mut child = command.spawn().context("cannot run narrows")?;
        let pid = Pid::from_child(&child);
        let first = Process::open(pid)?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a pipe")?;
        let program = match ready(&stdout) {
            Ok(program) => program,
            Err(e) => {
                first.kill();
                end_marked(&mark, Duration::ZERO);
                let words = fs::read_to_string(&said).unwrap_or_default();
                return Err(e.context(format!("{name} ({how}): {}", words.trim().replace('\n', " | "))));
            }
        };
        ensure!((program != pid) == how.parent, "{name}: the supervisor has the wrong place in the process tree");
        let (program, supervisor) = if how.parent {
            (Process::open(program)?, first)
        } else {
            (first, Process::open(supervisor_of(&mark, program)?)?)
        };
        world.accounts.lock().unwrap_or_else(PoisonError::into_inner).started += 1;
        Ok(Self {
            program,
            supervisor,
            how: how.clone(),
            port,
            name: name.to_owned(),
            mark,
            said,
            stdin,
            _stdout: stdout,
            leaves: None,
        })
    }

    /// Asks the program to finish its work and end.
    pub(super) fn finish(&mut self) {
        self.stdin = None;
    }

    pub(super) fn kill_program(&mut self) -> (u64, u64) {
        let killed = self.program.kill();
        self.leaves = Some(Instant::now());
        killed
    }

    pub(super) fn kill_supervisor(&mut self) -> (u64, u64) {
        self.supervisor.kill()
    }

    /// Called after the program has ended. True once the supervisor and every other process are
    /// gone.
    pub(super) fn has_left(&mut self, world: &World) -> bool {
        let since = *self.leaves.get_or_insert_with(Instant::now);
        let over = self.program.is_over() && self.supervisor.is_over();
        if !over && since.elapsed() < LEAVES {
            return false;
        }
        // The watchdog of the seccomp engine must end with the supervisor: wait for that.
        let left = if over && !self.how.seccomp {
            Vec::new()
        } else {
            end_marked(&self.mark, if over { Duration::from_secs(10) } else { Duration::ZERO })
        };
        if !left.is_empty() {
            world.fault(format!("{} ({}) does not end: {}", self.name, self.how, left.join(", ")));
        }
        let mut accounts = world.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.leaving_max = accounts.leaving_max.max(since.elapsed());
        let mut said = Vec::new();
        if let Ok(mut file) = File::open(&self.said) {
            let _ = file.read_to_end(&mut said);
        }
        for line in String::from_utf8_lossy(&said).lines() {
            if let Some(outcome) = outcome(line) {
                *accounts.outcomes.entry(outcome).or_default() += 1;
            } else {
                drop(accounts);
                world.fault(format!("{} ({}) says: {line}", self.name, self.how));
                accounts = world.accounts.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
        let _ = fs::remove_file(&self.said);
        true
    }
}

/// Expected outcomes of connections. A connection stays plain if there was no time, or if a kill
/// took a process that was needed to upgrade it. On this host it is a fault if a proof fails, a
/// limit is reached or a socket cannot be handed over.
const OUTCOMES: [&str; 10] = [
    "compressed",
    "compressed one way",
    "plain (it was about to end)",
    "plain (it was over before the other end answered)",
    "plain (its client did not ask for more)",
    "plain (no narrows at the other end)",
    "plain (the other program does not run under narrows)",
    "plain (the other end did not answer in time)",
    "plain (the other program did not accept it in time, or it is not the one reached)",
    "plain (encrypted already)",
];
/// Expected reasons for a reset after the other end was killed: the stream stops, or the process
/// that could say what the bytes are is gone. Any other reason means bytes that no sender wrote, or
/// a bug.
const RESETS: [&str; 4] = [
    "the stream is empty",
    "the stream ends before its end frame",
    "the connection ended in the middle of a marker",
    "the side channel did not answer whether received bytes are data",
];
/// Expected notes of a supervisor that takes over the service port from a killed one.
const OF_SERVICE: [&str; 2] = ["the service port is open", "cannot open the service port"];

/// Outcome in a line such as `narrows: to 127.0.0.1:10000: compressed; out ...`; `None` if nothing
/// in this test explains the line.
fn outcome(line: &str) -> Option<String> {
    let said = line.strip_prefix("narrows: ")?;
    if let Some(about) = OF_SERVICE.into_iter().find(|about| said.starts_with(about)) {
        return Some(about.to_owned());
    }
    let rest = ["to ", "from "].into_iter().find_map(|way| said.strip_prefix(way))?;
    let (_, rest) = rest.split_once(": ")?;
    let word = rest.split(';').next().filter(|word| OUTCOMES.contains(word))?;
    // The rest of the line is the reason of the reset. The position in the stream differs each
    // time, so cut it off.
    let Some((_, why)) = rest.split_once("; reset, since ") else { return Some(word.to_owned()) };
    let why = why.split(" (frame ").next().filter(|why| RESETS.contains(why))?;
    Some(format!("{word}; reset, since {why}"))
}

/// Reads the program's pid, which it prints first.
fn ready(stdout: &ChildStdout) -> Result<Pid> {
    let (mut line, begun) = (Vec::new(), Instant::now());
    while !line.ends_with(b"\n") {
        ensure!(becomes(stdout, STARTS.saturating_sub(begun.elapsed())), "it does not start");
        let mut part = [0; 64];
        let n = rustix::io::read(stdout, &mut part)?;
        ensure!(n > 0, "it ended instead of starting");
        line.extend_from_slice(&part[..n]);
    }
    let line = String::from_utf8_lossy(&line);
    let pid = line.trim().strip_prefix("ready ").and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    pid.with_context(|| format!("it says '{line}'"))
}

fn supervisor_of(mark: &str, program: Pid) -> Result<Pid> {
    let begun = Instant::now();
    loop {
        let others: Vec<Pid> = marked(mark).into_iter().map(|(pid, _)| pid).filter(|pid| *pid != program).collect();
        match others[..] {
            [supervisor] => return Ok(supervisor),
            // The intermediate process of the double fork has not ended yet.
            _ if begun.elapsed() < STARTS => thread::sleep(Duration::from_millis(2)),
            _ => bail!("{} processes could be the supervisor", others.len()),
        }
    }
}

pub(super) fn write_port(path: &Path, port: u16) -> Result<()> {
    narrows_host::whole::write_whole(path, port.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_kill_explains_is_no_outcome() {
        for line in [
            "narrows: to 127.0.0.1:1: compressed; in 5 B; reset, since a block does not match its check (frame 0, at byte 32)",
            "narrows: to 127.0.0.1:1: compressed; in 5 B; reset, since a worker failed; this is a bug",
            "narrows: to 127.0.0.1:1: plain (the other end sees another address (NAT)); passed 1 B out, 0 B in",
            "narrows: with 127.0.0.1:1: plain (could not be handed over)",
            "narrows: the kernel rejected the filter: all connections stay plain",
            "narrows: something new",
            "",
        ] {
            assert_eq!(outcome(line), None, "{line}");
        }
    }

    #[test]
    fn outcomes_are_read_from_what_supervisors_say() {
        let line = "narrows: to 127.0.0.1:10000: compressed; out 1 B, wire 2 B (ratio 0.50)";
        assert_eq!(outcome(line).as_deref(), Some("compressed"));
        let line =
            "narrows: from 127.0.0.1:1: plain (it was about to end); passed 1 B out, 0 B in; Connection reset by peer";
        assert_eq!(outcome(line).as_deref(), Some("plain (it was about to end)"));
        let line =
            "narrows: to 127.0.0.1:1: compressed; in 5 B; reset, since the stream is empty (frame 0, at byte 32)";
        assert_eq!(outcome(line).as_deref(), Some("compressed; reset, since the stream is empty"));
        let line = "narrows: the service port is open at 127.0.0.1:8001";
        assert_eq!(outcome(line).as_deref(), Some("the service port is open"));
        assert_eq!(outcome("thread 'main' panicked"), None);
    }
}
