//! Starts the program and its supervisor.
//!
//! Detached: the supervisor is forked off and the program takes over this process, so its pid,
//! signals, terminal and status are its own. Parent: the program is a child, and its status is
//! passed on when everything has drained; that is for pid 1, whose end would take the supervisor
//! along.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use data_encoding::HEXLOWER;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, pidfd_open, set_child_subreaper, setsid,
    waitpid,
};
use signal_hook::consts::{
    FORBIDDEN, SIGABRT, SIGBUS, SIGCHLD, SIGINT, SIGQUIT, SIGSYS, SIGTRAP, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

use super::binary::{self, Kind};
use super::error::{Error, Result};
use super::seccomp::{self, Gateways, Watchdog};
use super::supervisor::{Control, Settings, Supervisor};
use super::wire::{GATEWAY, Scope, VARIABLE, VERSION};
use super::{sys, vital};
use narrows_host::{signals, words};

/// File name of the library that programs load.
pub const LIBRARY: &str = "libnarrows_preload.so";

pub struct Launch<'a> {
    pub command: &'a [OsString],
    pub scope: Scope,
    /// Leave MPTCP sockets as they are; their connections stay plain.
    pub keeps_mptcp: bool,
    pub settings: Settings,
    /// Servers that are reached through gateways on their hosts, if any.
    pub gateways: Option<Scope>,
    pub interception: Interception,
    /// Whether the supervisor is the parent of the program. `None`: only if it must be.
    pub parent: Option<bool>,
}

/// How connections are to be intercepted (`--engine`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interception {
    /// By the library if the program loads it, else by the kernel.
    Auto,
    /// By the preloaded library.
    Preload,
    /// By the kernel, under a seccomp filter.
    Seccomp,
}

/// How the program's connections reach the supervisor.
enum Means {
    Library,
    Filter,
    /// They do not reach it; why.
    Nothing(&'static str),
}

impl Launch<'_> {
    pub fn run(self) -> Result<ExitCode> {
        let (program, args) = self.command.split_first().ok_or(Error::NoProgram)?;
        let mut command = Command::new(program);
        command.args(args);
        sys::keep_pipe_signal(&mut command);
        let means = self.means(program)?;
        let filter = match means {
            Means::Library => false,
            Means::Filter => true,
            Means::Nothing(why) => return Ok(self.run_plain(command, why)),
        };
        // A service may be forbidden to open unix sockets; its programs run all the same.
        let way = if filter { seccomp::post(self.keeps_mptcp).map(Some) } else { Ok(None) };
        let (Ok(control), Ok(way)) = (Control::open(), way) else {
            return Ok(self.run_plain(command, "unix sockets cannot be opened here"));
        };
        if !filter {
            command.env(VARIABLE, self.variable(&control)).env("LD_PRELOAD", preload()?);
        }
        let parent = self.parent.unwrap_or_else(|| std::process::id() == 1 || filter && seccomp::wants_parent());
        if parent { self.run_as_parent(control, command, way) } else { self.run_detached(control, command, way) }
    }

    fn run_plain(&self, mut command: Command, why: &str) -> ExitCode {
        if self.settings.verbose {
            words::note(format_args!("{}: all connections stay plain: {why}", command.get_program().display()));
        }
        failed_to_start(&command.exec(), &command)
    }

    fn means(&self, program: &OsStr) -> Result<Means> {
        let kind = binary::kind(program);
        Ok(match (self.interception, kind) {
            (_, Kind::Unreachable(why)) => Means::Nothing(why),
            (Interception::Preload, _) | (Interception::Auto, Kind::Usual) => Means::Library,
            _ if seccomp::is_possible() => Means::Filter,
            (Interception::Auto, Kind::Unhooked(why)) => Means::Nothing(why),
            _ => return Err(Error::NoNotifications),
        })
    }

    /// The value of the environment variable that the library reads.
    fn variable(&self, control: &Control) -> String {
        let flags = [
            (self.scope.loopback, "l"),
            (self.scope.within, "w"),
            (self.settings.verbose, "v"),
            (self.keeps_mptcp, "m"),
        ];
        let mut flags: String = flags.iter().filter(|(on, _)| *on).map(|(_, flag)| *flag).collect();
        let mut rules: Vec<String> = self.scope.rules().iter().map(ToString::to_string).collect();
        if let Some(gateways) = &self.gateways {
            flags += &format!("g{}", self.settings.service.port);
            rules.extend(gateways.rules().iter().map(|rule| format!("{GATEWAY}{}", &rule.to_string()[1..])));
        }
        let (name, token) = (HEXLOWER.encode(&control.random), HEXLOWER.encode(&control.token));
        let owner = rustix::process::geteuid().as_raw();
        format!("{VERSION}:{name}:{token}:{owner}:{flags}:{}", rules.join(","))
    }

    fn run_detached(self, control: Control, mut command: Command, way: Option<Way>) -> Result<ExitCode> {
        // By descriptor, because the program may end and its pid be reused before the supervisor
        // looks.
        let pid = getpid();
        let Ok(watched) = pidfd_open(pid, PidfdFlags::empty()) else {
            return Ok(self.run_plain(command, "this kernel cannot watch processes"));
        };
        let program = (pid, watched);
        // Forks twice, so that the supervisor is not a child of the program, which waits for its
        // own children only.
        match sys::fork() {
            Err(_) => return Ok(self.run_plain(command, "cannot start a process")),
            Ok(None) => {
                let _ = setsid();
                if let Ok(None) = sys::fork() {
                    self.supervise(control, program, way.map(|(_, to)| to));
                }
                sys::leave();
            }
            Ok(Some(between)) => {
                let _ = waitpid(Pid::from_raw(between), WaitOptions::empty());
            }
        }
        drop((control, program));
        if let Some((post, _)) = way {
            post.install().map_err(Error::start("the supervisor is gone"))?;
        }
        Ok(failed_to_start(&command.exec(), &command))
    }

    /// Runs the detached supervisor. It closes everything inherited that somebody may be waiting to
    /// see closed.
    fn supervise(&self, control: Control, program: (Pid, OwnedFd), to: Option<OwnedFd>) {
        let kept = [Some(&control.listener), Some(&program.1), to.as_ref()];
        sys::close_all_but(&kept.into_iter().flatten().map(AsRawFd::as_raw_fd).collect::<Vec<_>>());
        sys::ignore(&[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE]);
        let watchdog = to.as_ref().map(Watchdog::start).transpose();
        let _ = env::set_current_dir("/");
        if let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()) {
            let _ = rustix::stdio::dup2_stdin(&null);
            let _ = rustix::stdio::dup2_stdout(&null);
            if !self.settings.verbose {
                let _ = rustix::stdio::dup2_stderr(&null);
            }
        }
        let supervisor = Supervisor::new(control, program, to.is_some(), self.settings.clone());
        if let (Ok(watchdog), Ok(supervisor)) = (watchdog, supervisor)
            && self.hear(&supervisor, to.zip(watchdog)).is_ok()
        {
            supervisor.run();
        }
    }

    /// Begins to answer the kernel's notifications, if there is a filter.
    fn hear(&self, supervisor: &Supervisor, filter: Option<(OwnedFd, Watchdog)>) -> io::Result<()> {
        let Some((to, watchdog)) = filter else { return Ok(()) };
        let gateways = self.gateways.map(|servers| Gateways { servers, port: self.settings.service.port });
        seccomp::start(supervisor.intake(), self.scope, gateways, to, watchdog)
    }

    fn run_as_parent(self, control: Control, mut command: Command, way: Option<Way>) -> Result<ExitCode> {
        // The watchdog is forked, so it is started before there are signal handlers and threads.
        let filter = match way {
            Some((post, to)) => {
                let watchdog = Watchdog::start(&to).map_err(Error::start("cannot start the watchdog"))?;
                post.install_before_exec(&mut command);
                Some((to, watchdog))
            }
            None => None,
        };
        // Processes that the program orphans belong to this run too.
        let _ = set_child_subreaper(Some(getpid()));
        // Before the program starts: a signal that comes early must not end this process alone.
        let caught = catch_signals().map_err(Error::Signals)?;
        let child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return Ok(failed_to_start(&e, &command)),
        };
        let pid = Pid::from_child(&child);
        let watch = || pidfd_open(pid, PidfdFlags::empty()).map_err(Error::start("cannot watch the program"));
        let program = (pid, watch()?);
        pass_signals(caught, watch()?).map_err(Error::start("cannot pass signals on"))?;
        let supervisor = Supervisor::new(control, program, filter.is_some(), self.settings.clone())
            .map_err(Error::start("cannot start the supervisor"))?;
        self.hear(&supervisor, filter).map_err(Error::start("cannot start the supervisor"))?;
        let ended = reap(pid).map_err(Error::start("cannot wait for the program"))?;
        supervisor.run();
        let status = ended.recv().map_err(|_| Error::ThreadFailed)?;
        if let Some(signal) = status.terminating_signal() {
            signals::die_of(signal);
        }
        Ok(ExitCode::from(status.exit_status().unwrap_or(1) as u8))
    }
}

/// Both ends of the channel over which a filter's listener is sent.
type Way = (seccomp::Post, OwnedFd);

/// Interval of waiting again while there are no children: as a container's first process, this one
/// adopts some that it never started.
const REAP_AGAIN: Duration = Duration::from_millis(100);

/// Waits for all children as long as this process lives, because those that the program left behind
/// would stay zombies. Reports how the program ended.
fn reap(program: Pid) -> io::Result<Receiver<WaitStatus>> {
    let (tell, told) = mpsc::channel();
    vital::start("narrows-reap", move || {
        loop {
            match rustix::process::wait(WaitOptions::UNTRACED) {
                // Stops this process too, so that a shell sees that its job stopped. Whatever
                // continues the job continues both.
                Ok(Some((pid, status))) if pid == program && status.stopped() => {
                    let _ = kill_process(getpid(), Signal::STOP);
                }
                Ok(Some((pid, status))) if pid == program => drop(tell.send(status)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => thread::sleep(REAP_AGAIN),
            }
        }
    })?;
    Ok(told)
}

/// Catches all signals but those about children and faults of this process. Ignored ones stay
/// ignored, for the program too.
fn catch_signals() -> io::Result<SignalsInfo<WithOrigin>> {
    let own = [SIGCHLD, SIGABRT, SIGBUS, SIGSYS, SIGTRAP];
    let usual = (1..=SIGSYS).filter(|s| !own.contains(s) && !FORBIDDEN.contains(s));
    SignalsInfo::new(usual.chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).filter(|signal| !signals::is_ignored(*signal)))
}

/// Passes signals on to the program, for which they are meant. The terminal sends its signals to
/// both.
fn pass_signals(mut caught: SignalsInfo<WithOrigin>, program: OwnedFd) -> io::Result<()> {
    vital::start("narrows-signals", move || {
        for Origin { signal, cause, .. } in caught.forever() {
            let by_terminal = [SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGWINCH].contains(&signal);
            if !(by_terminal && cause == Cause::Kernel) {
                let _ = sys::send_signal(&program, signal);
            }
        }
    })
}

/// The exit code of shells: 127 if there is no such program, 126 if it cannot be run.
fn failed_to_start(error: &io::Error, command: &Command) -> ExitCode {
    let name = command.get_program().display().to_string();
    words::note(format_args!("{name}: {}", words::without_os_numbers(&error.to_string())));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// The value of LD_PRELOAD with which a program loads the library.
///
/// # Errors
/// There is no library, or the loader takes no such path.
pub fn preload() -> Result<OsString> {
    preloads(&library()?)
}

/// Whether the kernel can ask about the calls of a program, for [`Interception::Seccomp`].
pub fn kernel_asks() -> bool {
    seccomp::is_possible()
}

/// The path of the library: from $NARROWS_PRELOAD, or next to this program.
fn library() -> Result<PathBuf> {
    if let Some(path) = env::var_os("NARROWS_PRELOAD") {
        let path = PathBuf::from(path);
        return if path.is_file() { Ok(path) } else { Err(Error::NoSuchLibrary(path)) };
    }
    // Without /proc the kernel does not tell its own path; argv[0] and PATH do.
    let program = env::current_exe().ok().or_else(|| binary::find(&env::args_os().next()?));
    let program = program.ok_or(Error::NoOwnPath)?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    // In order: where Cargo puts it for tests (the one beside the program may be older), beside the
    // program, as installed below a prefix.
    let places = [folder.join("deps").join(LIBRARY), folder.join(LIBRARY), folder.join("../lib/narrows").join(LIBRARY)];
    let found = places.iter().find(|p| p.is_file()).and_then(|p| p.canonicalize().ok());
    found.ok_or_else(|| Error::NoLibrary { library: LIBRARY, folder: folder.to_owned() })
}

/// The value of LD_PRELOAD: our library behind what is preloaded already.
fn preloads(library: &Path) -> Result<OsString> {
    let path = library.as_os_str().as_bytes();
    if path.iter().any(|b| b" :".contains(b)) {
        return Err(Error::Unloadable(library.to_owned()));
    }
    let mut all = env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()).unwrap_or_default().into_vec();
    if !all.is_empty() {
        all.push(b':');
    }
    all.extend_from_slice(path);
    Ok(OsStr::from_bytes(&all).to_owned())
}
