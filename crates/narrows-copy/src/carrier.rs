//! The carrier of a copy: a `narrows serve --stdio` started through ssh, a connection to a server,
//! or a thread of this process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use narrows::stream::Control;
use narrows::transport::bond::{Bond, GREETING};
use narrows::transport::{Heard, Link};
use narrows_host::{shell, signals, words};

use super::direct::{self, Trust};
use super::error::{Blame, Error, Result};
use super::hello::{self, Request, Session, Task};
use super::measure::{self, MeasureTask};
use super::place::Place;
use super::serve::{self, Manner, Opened, Reachable};
use super::shown;

/// Time that a remote shell gets to exit after the copy has failed.
pub(super) const LAST_WORD: Duration = Duration::from_secs(2);

/// Parameters for reaching the other end.
pub struct Reach<'a> {
    /// The remote shell and its options, split into words by shell rules.
    pub shell: &'a OsStr,
    /// Name of the program on the other host.
    pub program: &'a str,
    /// How this end and a server without a shell authenticate each other.
    pub trust: Option<&'a Trust>,
}

/// The way to the other end of a running copy.
pub enum Carrier {
    /// A `narrows serve --stdio` on another host.
    Shell {
        /// The process of the remote shell.
        child: Started,
        /// `[user@]host`, as ssh takes it.
        host: OsString,
        /// Name of the remote shell program.
        shell: String,
        /// The connection ended before the other end sent anything in our protocol.
        silent: Arc<AtomicBool>,
    },
    /// A thread of this process.
    Local(JoinHandle<Result<()>>),
    /// A `narrows serve --listen`.
    Direct {
        /// `host:port`
        host: String,
        /// The answer was that of a server that requires authentication (TLS).
        encrypted: Arc<AtomicBool>,
    },
}

/// Opens further connections of a copy.
pub struct Growth {
    /// The connections of the copy.
    pub bond: Bond,
    session: Session,
    way: Way,
}

#[derive(Clone)]
enum Way {
    Shell { shell: OsString, program: String, host: OsString },
    Direct { host: String, port: u16, trust: Trust },
}

/// Keeps a further connection open as long as the copy lasts.
pub struct Added {
    _shell: Option<Started>,
}

impl Growth {
    /// Opens a further carrier. It never asks for a password, and failures are not reported: the
    /// copy continues without it.
    pub fn open(&self) -> Result<(Added, Link)> {
        let request = Request::Join(self.session);
        match &self.way {
            Way::Shell { shell, program, host } => {
                let mut command = shell_command(shell)?;
                if shell::is_ssh(&command) {
                    command.args(["-o", "BatchMode=yes"]);
                }
                let (child, link) = start_shell(command.stderr(Stdio::null()), host, program, &request)?;
                Ok((Added { _shell: Some(child) }, link.skip_noise(&GREETING, |_| ())))
            }
            Way::Direct { host, port, trust } => {
                Ok((Added { _shell: None }, direct::connect(host, *port, trust, &request)?))
            }
        }
    }
}

impl Carrier {
    /// Starts the other end and sends it its task. `opened` is the target of a copy within this
    /// host.
    pub fn start(
        place: &Place,
        reach: &Reach<'_>,
        task: &Task,
        opened: Option<Opened>,
    ) -> Result<(Self, Link, Option<Growth>)> {
        if matches!(place, Place::Local(_)) {
            let (carrier, link) = Self::start_local(task.clone(), opened)?;
            return Ok((carrier, link, None));
        }
        let session = Session::random().blame_for(Error::Local, "the system gives no random bytes")?;
        let (carrier, link, way) = Self::open(place, reach, Request::Copy(Box::new(task.clone()), session), &GREETING)?;
        let (link, bond) = link.bonded()?;
        Ok((carrier, link, Some(Growth { bond, session, way })))
    }

    /// Starts the other end of a measurement.
    pub fn start_measuring(place: &Place, reach: &Reach<'_>, task: MeasureTask) -> Result<(Self, Link)> {
        let (carrier, link, _) = Self::open(place, reach, Request::Measure(task), &measure::MAGIC)?;
        Ok((carrier, link))
    }

    /// Reaches another host and sends it a request. Its answer begins with `magic`.
    fn open(place: &Place, reach: &Reach<'_>, request: Request, magic: &'static [u8]) -> Result<(Self, Link, Way)> {
        let silent = Arc::new(AtomicBool::new(true));
        let encrypted = Arc::new(AtomicBool::new(false));
        let (carrier, link, way) = match place {
            Place::Local(_) => return Err(Error::Usage("it is not on another host".into())),
            Place::Ssh { host, .. } => {
                let (shell, program) = (reach.shell.to_owned(), reach.program.to_owned());
                let mut command = shell_command(&shell)?;
                let name = command.get_program().display().to_string();
                let (child, link) = start_shell(&mut command, host, &program, &request)?;
                let carrier = Self::Shell { child, host: host.clone(), shell: name, silent: Arc::clone(&silent) };
                (carrier, link, Way::Shell { shell, program, host: host.clone() })
            }
            Place::Direct { host, port, .. } => {
                let trust = reach.trust.ok_or_else(|| Error::Trust("no token was given".into()))?.clone();
                let way = Way::Direct { host: host.clone(), port: *port, trust: trust.clone() };
                let (at, port) = (host.clone(), *port);
                let link = signals::interruptible(move || direct::connect(&at, port, &trust, &request));
                let whose = if signals::received().is_some() { Error::Interrupted } else { Error::Local };
                let link = link.blame(whose)??;
                (Self::Direct { host: format!("{host}:{port}"), encrypted: Arc::clone(&encrypted) }, link, way)
            }
        };
        let is_insecure = matches!(reach.trust, Some(Trust::Insecure));
        let heard = move |what: Heard<'_>| match what {
            Heard::Magic => silent.store(false, Ordering::Relaxed),
            Heard::Noise(bytes) if is_insecure && direct::is_tls(bytes) => encrypted.store(true, Ordering::Relaxed),
            Heard::Noise(bytes) => noise(bytes),
            Heard::End => {}
        };
        Ok((carrier, link.skip_noise(magic, heard), way))
    }

    fn start_local(task: Task, opened: Option<Opened>) -> Result<(Self, Link)> {
        let (near, far) = UnixStream::pair().blame_for(Error::Local, "cannot make a pair of sockets")?;
        let far = Link::unix(far).blame(Error::Local)?;
        let thread = std::thread::Builder::new().name("narrows-serve".into());
        let served = thread.spawn(move || {
            let control = Arc::new(Control::default());
            match (task, opened) {
                (Task::Put { store, .. }, Some(opened)) => {
                    serve::put(Ok(opened), store, far, Manner::Local, &Reachable::Everything, &control)
                }
                (task, _) => serve::run(task, far, Manner::Local, &Reachable::Everything, false, &control),
            }
        });
        Ok((Self::Local(served.blame(Error::Local)?), Link::unix(near).blame(Error::Local)?))
    }

    /// Waits for the other end to exit. `failed` is the error that this end saw; the messages and
    /// the exit status of the other end are more specific.
    pub fn end(self, failed: Option<narrows::Error>) -> Result<()> {
        match self {
            Self::Local(thread) => {
                let far =
                    thread.join().unwrap_or_else(|_| Err(Error::Bug("the storing end failed; this is a bug".into())));
                let near = failed.map_or(Ok(()), |e| Err(e.into()));
                // The storing end knows why it cannot store, but after a signal it sees only the
                // end of the stream.
                if signals::received().is_some() { near.and(far) } else { far.and(near) }
            }
            Self::Direct { host, encrypted } => failed.map_or(Ok(()), |e| {
                Err(match () {
                    () if encrypted.load(Ordering::Relaxed) => {
                        let what = "wants a token (TLS): leave out --insecure and give --token-file FILE";
                        Error::Trust(format!("{host} {what}").into())
                    }
                    () if is_refused(&e) => Error::Trust(format!("{host} does not accept the token").into()),
                    () => Error::from(e).context(format_args!("the copy with {host} failed")),
                })
            }),
            Self::Shell { mut child, host, shell, silent } => {
                // After a failure the remote shell may never exit by itself.
                let status = if failed.is_some() { child.end_soon() } else { child.0.wait() };
                let status = status.blame_for(Error::Program, "cannot wait for the remote shell")?;
                let Some(failed) = failed else { return Ok(()) };
                let host = shown(host.as_encoded_bytes());
                Err(match status.code() {
                    // The shell did not find the program; this end saw only a lost link.
                    Some(127) => Error::NoNarrows(
                        format!(
                            "there is no narrows on {host}; install it there, or give its path with --remote-narrows"
                        )
                        .into(),
                    ),
                    // ssh printed the reason to stderr.
                    Some(255) if silent.load(Ordering::Relaxed) => {
                        unreachable(format_args!("{host}; {shell} ended with status 255"))
                    }
                    Some(255) => Error::from(failed).context(format_args!("lost the connection with {host}")),
                    // A narrows that exits with status 0 has answered before.
                    Some(0) if silent.load(Ordering::Relaxed) => unreachable(format_args!(
                        "narrows on {host}; the program started there is no narrows: give its path with \
                         --remote-narrows"
                    )),
                    Some(status) if silent.load(Ordering::Relaxed) => {
                        unreachable(format_args!("narrows on {host}; {shell} ended with status {status}"))
                    }
                    _ => Error::from(failed).context(format_args!("the copy with {host} failed")),
                })
            }
        }
    }
}

impl Carrier {
    /// Ends the other end of a measurement that `failed`. What this end saw is told apart by what the
    /// program that carried it says.
    pub fn fail_measuring(self, failed: Error) -> Error {
        let older = |who: &str| {
            Error::Peer(
                format!(
                    "{who} answers no measurement: it is an older narrows, or none; install version {} or later there",
                    env!("CARGO_PKG_VERSION")
                )
                .into(),
            )
        };
        match self {
            Self::Local(_) => failed,
            Self::Direct { host, encrypted } => match &failed {
                _ if encrypted.load(Ordering::Relaxed) => {
                    let what = "wants a token (TLS): leave out --insecure and give --token-file FILE";
                    Error::Trust(format!("{host} {what}").into())
                }
                Error::Link(_) if is_refused_key(&failed) => {
                    Error::Trust(format!("{host} does not accept the token").into())
                }
                _ => failed.context(format_args!("cannot measure {host}")),
            },
            Self::Shell { mut child, host, shell, silent } => {
                let silent = silent.load(Ordering::Relaxed);
                let host = shown(host.as_encoded_bytes());
                if !silent || matches!(failed, Error::Interrupted(_)) {
                    return failed.context(format_args!("cannot measure {host}"));
                }
                // The shell says why, if it ends by itself.
                match child.ended() {
                    Some(127) => Error::NoNarrows(
                        format!(
                            "there is no narrows on {host}; install it there, or give its path with --remote-narrows"
                        )
                        .into(),
                    ),
                    Some(255) => unreachable(format_args!("{host}; {shell} ended with status 255")),
                    Some(_) => older(&format!("the program on {host}")),
                    None => failed.context(format_args!("cannot measure {host}")),
                }
            }
        }
    }
}

fn unreachable(what: impl std::fmt::Display) -> Error {
    Error::Unreachable(format!("cannot reach {what}").into())
}

fn start_shell(command: &mut Command, host: &OsStr, program: &str, request: &Request) -> Result<(Started, Link)> {
    command.arg(host).arg(format!("{program} serve --stdio"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let shell = command.get_program().display().to_string();
    let started = command.spawn();
    let mut child = started.map_err(|e| cannot_start(&shell, e))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Error::Bug(format!("{shell} has no standard input and output").into()));
    };
    let mut input = File::from(OwnedFd::from(input));
    let told = hello::write(request, &mut input).and_then(|()| input.flush());
    // If this failed, the shell prints the reason to stderr, and its exit status is evaluated.
    drop(told);
    let link = Link::pipes(input, File::from(OwnedFd::from(output))).carried_by(child.id());
    Ok((Started(child), link))
}

/// The error of a remote shell that does not start.
fn cannot_start(shell: &str, error: std::io::Error) -> Error {
    let shell = shown(shell.as_bytes());
    let text = if error.kind() == std::io::ErrorKind::NotFound {
        format!(
            "there is no program {shell} on this host to reach the other one with; install it, or name another with -e"
        )
    } else {
        format!("cannot start {shell} to reach the other host with ({error}); name another program with -e")
    };
    Error::Program(text.into())
}

/// The command of a remote shell, with additional options if it is ssh.
pub(super) fn shell_command(shell: &OsStr) -> Result<Command> {
    shell::command(shell).map_err(|why| Error::Program(why.into()))
}

/// Adds the port of a place to the remote shell, which is possible only for ssh.
pub fn shell_for(shell: &OsStr, place: &Place) -> Result<OsString> {
    let mut shell = shell.to_owned();
    if let Place::Ssh { port: Some(port), .. } = place {
        if !shell::is_ssh(&shell_command(&shell)?) {
            return Err(Error::Usage(
                "a port (-P, or of an ssh:// address) works only with ssh; pass it to the program of -e by its own flag"
                    .into(),
            ));
        }
        shell.push(format!(" -p {port}"));
    }
    Ok(shell)
}

/// Shows what a login shell prints before the program starts.
pub(super) fn noise(bytes: &[u8]) {
    for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        words::note(format_args!("remote: {}", shown(line)));
    }
}

/// A remote shell process that is killed with its copy.
pub struct Started(pub(super) Child);

impl Started {
    /// The exit status, if it has one within [`LAST_WORD`].
    fn ended(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return status.code(),
                Ok(None) if begun.elapsed() < LAST_WORD => std::thread::sleep(Duration::from_millis(10)),
                _ => return None,
            }
        }
    }

    /// Waits up to [`LAST_WORD`], so that it can report its error, then kills it.
    pub(super) fn end_soon(&mut self) -> io::Result<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < LAST_WORD {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.0.kill()?;
        self.0.wait()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // This has no effect on a process that was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the other end rejected the key of this end.
fn is_refused(error: &narrows::Error) -> bool {
    error.source.as_ref().is_some_and(|e| {
        e.kind() == io::ErrorKind::PermissionDenied
            && e.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
    })
}

/// The same, of an error of this crate.
fn is_refused_key(error: &Error) -> bool {
    let mut causes = std::iter::successors(std::error::Error::source(error), |e| e.source());
    causes.any(|e| {
        let e = e.downcast_ref::<io::Error>();
        e.is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
    })
}
