//! What carries a copy: a `narrows serve --stdio` that ssh starts, or one in this process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use narrows::frame::MAGIC;
use narrows::stream::Control;
use narrows::transport::Link;

use super::direct::{self, Trust};
use super::hello::{self, Task};
use super::place::Place;
use super::serve::{self, Manner, Reachable};
use super::shown;
use crate::{report, signals};

/// How long a remote shell may go on after the copy has failed.
const LAST_WORD: Duration = Duration::from_secs(2);

/// How the other end is reached.
pub(crate) struct Reach<'a> {
    /// The remote shell and its flags, split at blanks as rsync does.
    pub(crate) shell: &'a OsStr,
    /// The program's name at the other host.
    pub(crate) program: &'a str,
    /// How a server without a shell and this end know one another.
    pub(crate) trust: Option<&'a Trust>,
}

pub(crate) enum Carrier {
    Shell {
        child: Started,
        host: OsString,
    },
    Local(JoinHandle<Result<()>>),
    /// `host:port`
    Direct(String),
}

impl Carrier {
    /// Starts the other end and tells it its task.
    pub(crate) fn start(place: &Place, reach: &Reach<'_>, task: &Task) -> Result<(Self, Link)> {
        match place {
            Place::Local(_) => Self::start_local(task.clone()),
            Place::Ssh { host, .. } => Self::start_shell(host, reach, task),
            Place::Direct { host, port, .. } => Self::start_direct(host, *port, reach.trust, task),
        }
    }

    fn start_local(task: Task) -> Result<(Self, Link)> {
        let (near, far) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let far = Link::unix(far)?;
        let thread = std::thread::Builder::new().name("narrows-serve".into());
        let thread = thread.spawn(move || {
            let control = Arc::new(Control::default());
            serve::run(task, far, Manner::Local, &Reachable::Everything, &control)
        })?;
        Ok((Self::Local(thread), Link::unix(near)?))
    }

    fn start_direct(host: &str, port: u16, trust: Option<&Trust>, task: &Task) -> Result<(Self, Link)> {
        let trust = trust.context("no token was given")?.clone();
        let (at, task) = (host.to_owned(), task.clone());
        let link = signals::interruptible(move || direct::connect(&at, port, &trust, &task))??;
        Ok((Self::Direct(format!("{host}:{port}")), link.skip_noise(&MAGIC, noise)))
    }

    fn start_shell(host: &OsStr, reach: &Reach<'_>, task: &Task) -> Result<(Self, Link)> {
        let mut command = shell_command(reach.shell)?;
        command.arg(host).arg(format!("{} serve --stdio", reach.program));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let shell = command.get_program().display().to_string();
        let mut child =
            command.spawn().with_context(|| format!("cannot start {shell}; -e names another remote shell"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{shell} has no standard input and output");
        };
        let mut input = File::from(OwnedFd::from(input));
        let told = hello::write(task, &mut input).and_then(|()| input.flush());
        // If that failed, the shell will say why on stderr, and its exit status counts.
        drop(told);
        let link = Link::pipes(input, File::from(OwnedFd::from(output))).skip_noise(&MAGIC, noise);
        Ok((Self::Shell { child: Started(child), host: host.to_owned() }, link))
    }

    /// Waits for the other end. `failed` is what this end saw; the other end's own words and status say more.
    pub(crate) fn end(self, failed: Option<anyhow::Error>) -> Result<()> {
        match self {
            Self::Local(thread) => {
                let far = thread.join().unwrap_or_else(|_| bail!("the storing end failed; this is a bug"));
                far.and(failed.map_or(Ok(()), Err))
            }
            Self::Direct(host) => failed.map_or(Ok(()), |e| {
                Err(match () {
                    () if is_refused(&e) => anyhow!("{host} does not accept the token"),
                    () => e.context(format!("the copy with {host} failed")),
                })
            }),
            Self::Shell { mut child, host } => {
                // After a failure there may be nobody who would end it.
                let status = if failed.is_some() { child.end_soon() } else { child.0.wait() };
                let status = status.context("cannot wait for the remote shell")?;
                let Some(failed) = failed else { return Ok(()) };
                let host = shown(host.as_encoded_bytes());
                Err(match status.code() {
                    // What this end saw is a lost link, which it is not.
                    Some(127) => anyhow!(
                        "there is no narrows on {host}; install it there, or say where it is with --remote-narrows"
                    ),
                    Some(255) => failed.context(format!("cannot reach {host}")),
                    _ => failed.context(format!("the copy with {host} failed")),
                })
            }
        }
    }
}

fn shell_command(shell: &OsStr) -> Result<Command> {
    let text = shell.to_str().context("the remote shell of -e is not text")?;
    let mut words = text.split_whitespace();
    let program = words.next().context("the remote shell of -e is empty")?;
    let mut command = Command::new(program);
    command.args(words);
    let name = std::path::Path::new(program).file_name();
    if name == Some(OsStr::new("ssh")) {
        // Compressing twice costs time and saves nothing; no terminal and no forwarded agent are needed.
        command.args(["-o", "Compression=no", "-T", "-a", "-x"]);
    }
    Ok(command)
}

/// What a login shell prints before the program starts.
fn noise(bytes: &[u8]) {
    for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        report::note(format_args!("remote: {}", shown(line)));
    }
}

/// A remote shell that does not outlive its copy.
pub(crate) struct Started(Child);

impl Started {
    /// Waits a little, so that it can say what went wrong.
    fn end_soon(&mut self) -> io::Result<ExitStatus> {
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
        // Nothing happens to one that was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether the other end did not accept this end's key.
fn is_refused(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let source = cause.downcast_ref::<narrows::Error>().and_then(|e| e.source.as_ref());
        source.is_some_and(|e| {
            e.kind() == io::ErrorKind::PermissionDenied
                && e.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
        })
    })
}

/// Whether there is anything of `io` in an error, for exit statuses.
pub(crate) fn is_link_lost(error: &anyhow::Error) -> bool {
    let kinds = [
        io::ErrorKind::BrokenPipe,
        io::ErrorKind::ConnectionReset,
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::UnexpectedEof,
        io::ErrorKind::TimedOut,
    ];
    error.chain().any(|cause| {
        let own = cause.downcast_ref::<narrows::Error>();
        own.is_some_and(|e| e.kind == narrows::ErrorKind::Truncated)
            || cause.downcast_ref::<io::Error>().is_some_and(|e| kinds.contains(&e.kind()))
            || own.and_then(|e| e.source.as_ref()).is_some_and(|e| kinds.contains(&e.kind()))
    })
}
