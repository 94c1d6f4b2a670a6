//! The conversation with a remote shell: sends scripts, and exchanges messages and archives.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use narrows::transport::NOISE_MAX;

use super::Order;
use super::tools::{ASK, MARK, Tools};
use crate::carrier::{self, LAST_WORD, Started, shell_command};
use crate::error::{Blame, Error, Result};
use narrows_host::signals;
use narrows_host::words::shown;

/// Interval at which a conversation checks for signals and for progress.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Maximum length of the messages of the storing end: a name of 4 KiB for thousands of entries.
const WORDS_MAX: u64 = 16 << 20;
/// Maximum number of failures that are reported; further ones are only counted.
const FAILURES_MAX: usize = 100;
/// Length of a read in bytes: twice the capacity of a pipe.
const PIECE: usize = 128 << 10;
/// End of the first script: reads the length of the second script, and then that script, from
/// stdin. Neither is on a command line, so that no other kind of login shell sees or changes them.
const NEXT: &str = "IFS= read -r len && eval \"$(dd bs=1 count=\"$len\" 2>/dev/null)\"\n";
/// Number of zero bytes at the end of every archive.
const END_ZEROS: u64 = 1024;

/// The stdin of the remote shell.
pub(super) type Input = File;
/// The stdout of the remote shell.
pub(super) type Output = BufReader<File>;

/// Progress of the copy, for the bar and the summary.
#[derive(Debug, Default)]
pub struct ArchiveProgress {
    raw: AtomicU64,
    wire: AtomicU64,
    /// Approximate length of the content.
    total: AtomicU64,
    crossed: AtomicBool,
    stopped: AtomicBool,
}

impl ArchiveProgress {
    /// Uncompressed bytes of the archive so far.
    pub fn raw_bytes(&self) -> u64 {
        self.raw.load(Ordering::Relaxed)
    }

    /// Bytes that crossed the link so far.
    pub fn wire_bytes(&self) -> u64 {
        self.wire.load(Ordering::Relaxed)
    }

    /// Approximate length of the content; `None` if unknown.
    pub fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total > 0)
    }

    /// Sets the approximate length of the content in bytes.
    pub(super) fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// Notes that everything has crossed the link; the remaining time depends on disks.
    pub(super) fn crossed(&self) {
        self.crossed.store(true, Ordering::Relaxed);
    }
}

/// Starts the remote shell and runs `talk` in a separate thread, so that a signal or a stall can
/// end it whatever it waits for.
pub(super) fn converse<T: Send + 'static>(
    order: &Order<'_>,
    talk: impl FnOnce(Input, Output) -> Result<T> + Send + 'static,
) -> Result<(T, ExitStatus)> {
    let mut command = shell_command(order.shell)?;
    let length = ASK.len() + NEXT.len();
    // Plain words in single quotes mean the same to every login shell.
    command.arg(order.host).arg(format!("sh -c 'eval \"$(dd bs=1 count={length} 2>/dev/null)\"'"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Started(command.spawn().blame_for(Error::Program, "cannot start the remote shell")?);
    let (Some(input), Some(output)) = (child.0.stdin.take(), child.0.stdout.take()) else {
        return Err(Error::Bug("the remote shell has no standard input and output".into()));
    };
    let input = File::from(OwnedFd::from(input));
    let output = BufReader::with_capacity(PIECE, File::from(OwnedFd::from(output)));
    let (tell, told) = mpsc::channel();
    let thread = std::thread::Builder::new().name("narrows-tar".into());
    thread.spawn(move || tell.send(talk(input, output))).blame(Error::Local)?;
    let result = attend(order, &mut child, &told);
    let status = if result.is_ok() { child.0.wait() } else { child.end_soon() };
    let status = status.blame_for(Error::Program, "cannot wait for the remote shell")?;
    let host = shown(order.host.as_encoded_bytes());
    match result {
        Ok(said) => Ok((said, status)),
        Err(e) if status.code() == Some(255) => Err(e.context(format_args!("lost the connection with {host}"))),
        Err(e) => Err(e.context(format_args!("the copy with {host} failed"))),
    }
}

fn attend<T>(order: &Order<'_>, child: &mut Started, told: &mpsc::Receiver<Result<T>>) -> Result<T> {
    let progress = &order.progress;
    let mut moved = (0, Instant::now());
    loop {
        match told.recv_timeout(LOOK_EVERY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Bug("a thread failed; this is a bug".into())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = progress.raw_bytes() + progress.wire_bytes();
        if now != moved.0 || progress.crossed.load(Ordering::Relaxed) {
            moved = (now, Instant::now());
        }
        let ended = match () {
            () if signals::received().is_some() => Err(Error::Interrupted("interrupted".into())),
            () if order.timeout.is_some_and(|limit| moved.1.elapsed() > limit) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "no progress for too long")).blame(Error::Link)
            }
            () => continue,
        };
        // The conversation ends at its next piece, or when the pipes of the shell are closed, and
        // cleans up.
        progress.stopped.store(true, Ordering::Relaxed);
        let _ = child.0.kill();
        let _ = told.recv_timeout(LAST_WORD);
        return ended;
    }
}

/// Asks the other end which tools it has.
pub(super) fn ask(input: &mut Input, output: &mut Output) -> Result<Tools> {
    input.write_all([ASK, NEXT].concat().as_bytes()).blame(Error::Link)?;
    let said = answer(output, "has").map_err(|e| e.context("no POSIX shell answers there"))?;
    let none = || Error::Peer("there is neither narrows nor tar there; install one of them".into());
    Tools::parse(&said)?.ok_or_else(none)
}

/// Makes the other end run another script.
pub(super) fn tell(input: &mut Input, script: &[u8]) -> Result<()> {
    let len = format!("{}\n", script.len());
    input.write_all(len.as_bytes()).and_then(|()| input.write_all(script)).blame(Error::Link)
}

/// The next message of a script that begins with `key`. Output of a login shell before it is shown.
pub(super) fn answer(output: &mut Output, key: &str) -> Result<String> {
    let mut noise = Vec::new();
    let mut limited = output.take(NOISE_MAX as u64);
    loop {
        let mut line = Vec::new();
        if limited.read_until(b'\n', &mut line).blame(Error::Link)? == 0 {
            carrier::noise(&noise);
            if limited.limit() == 0 {
                return Err(Error::Protocol("the remote shell prints too much before it does anything".into()));
            }
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer")).blame(Error::Link);
        }
        let words = line.strip_prefix(MARK.as_bytes()).and_then(|rest| rest.strip_prefix(key.as_bytes()));
        if let Some(words) = words.and_then(|rest| rest.strip_prefix(b" ")) {
            carrier::noise(&noise);
            return Ok(String::from_utf8_lossy(words).trim_end().to_owned());
        }
        noise.extend_from_slice(&line);
    }
}

/// Messages of the other end while it stored.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Texts of the first failures.
    pub(super) failures: Vec<String>,
    pub(super) failed: u64,
    pub(super) lost: Vec<String>,
    pub(super) done: bool,
}

/// Reads the messages of the other end until it closes its output.
pub(super) fn hear(output: Output) -> Result<Heard> {
    let mut heard = Heard::default();
    let mut lines = output.take(WORDS_MAX);
    loop {
        let mut line = Vec::new();
        if lines.read_until(b'\n', &mut line).blame(Error::Link)? == 0 {
            return match lines.limit() {
                0 => Err(Error::Protocol("the other end says too much".into())),
                _ => Ok(heard),
            };
        }
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let words = line.strip_prefix(MARK.as_bytes()).map(shown);
        let words = words.as_deref().map(|w| w.split_once(' ').unwrap_or((w, "")));
        match words {
            Some(("fails", why)) => return Err(Error::Peer(why.into())),
            Some(("cannot", _)) if heard.failures.len() >= FAILURES_MAX => heard.failed += 1,
            Some(("cannot", what)) => {
                heard.failed += 1;
                heard.failures.push(format!("cannot {what}"));
            }
            Some(("lost", what)) => {
                heard.lost.truncate(FAILURES_MAX);
                heard.lost.push(what.to_owned());
            }
            Some(("done", _)) => heard.done = true,
            _ => carrier::noise(line),
        }
    }
}

/// Counts the bytes that cross the link.
pub(super) struct Counted<T> {
    pub(super) inner: T,
    pub(super) progress: Arc<ArchiveProgress>,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.progress.wire.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.progress.wire.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, n: usize) {
        self.progress.wire.fetch_add(n as u64, Ordering::Relaxed);
        self.inner.consume(n);
    }
}

/// Side on which a pump failed.
pub(super) enum Side {
    Read(io::Error),
    Write(io::Error),
}

impl Side {
    /// The error of a sender, which reads from tar and writes to the link.
    pub(super) fn of_sender(self) -> Error {
        match self {
            Self::Read(e) => Error::Program(format!("cannot read from tar: {e}").into()),
            Self::Write(e) => Error::Link(e.into()),
        }
    }

    /// The error of a receiver, which reads from the link and writes to tar. That tar ends early is
    /// no failure of the link.
    pub(super) fn of_receiver(self) -> Error {
        match self {
            Self::Read(e) => Error::Link(e.into()),
            Self::Write(_) => Error::Program("tar could not unpack the archive; nothing was stored".into()),
        }
    }
}

/// Moves an archive, and checks whether it has an end mark.
pub(super) struct Pump {
    progress: Arc<ArchiveProgress>,
    len: u64,
    zeros: u64,
}

impl Pump {
    pub(super) fn new(progress: Arc<ArchiveProgress>) -> Self {
        Self { progress, len: 0, zeros: 0 }
    }

    /// Moves the archive from a reader to a writer, up to its end.
    pub(super) fn run(&mut self, mut from: impl Read, mut to: impl Write) -> Result<(), Side> {
        let mut piece = vec![0; PIECE];
        loop {
            let n = match from.read(&mut piece) {
                Ok(0) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                _ if self.progress.stopped.load(Ordering::Relaxed) => {
                    return Err(Side::Read(io::Error::other("interrupted")));
                }
                read => read.map_err(Side::Read)?,
            };
            self.see(&piece[..n]);
            to.write_all(&piece[..n]).map_err(Side::Write)?;
            self.progress.raw.fetch_add(n as u64, Ordering::Relaxed);
        }
    }

    fn see(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        match bytes.iter().rposition(|b| *b != 0) {
            Some(at) => self.zeros = (bytes.len() - at - 1) as u64,
            None => self.zeros += bytes.len() as u64,
        }
    }

    /// Whether the data so far is an archive with its end mark, which a tar that fails half-way
    /// omits.
    pub(super) fn is_whole(&self) -> bool {
        self.zeros >= END_ZEROS && self.len.is_multiple_of(512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(text: &[u8]) -> Output {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        io::Seek::rewind(&mut file).unwrap();
        BufReader::new(file)
    }

    #[test]
    fn answers_are_found_behind_what_a_login_shell_prints() {
        let mut said = output(b"Welcome\nto narrows-tar has\n\nnarrows-tar has gnu yes no\nPK");
        assert_eq!(answer(&mut said, "has").unwrap(), "gnu yes no");
        let mut rest = Vec::new();
        said.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"PK", "what follows belongs to the archive");
        assert!(answer(&mut output(b"narrows-tar hasty\n"), "has").is_err());
        assert!(answer(&mut output(&[b'x'; NOISE_MAX + 1]), "has").unwrap_err().to_string().contains("too much"));
    }

    #[test]
    fn what_the_storing_end_says_is_told_apart() {
        let heard =
            hear(output(b"narrows-tar cannot store a\x1b[2J\nnarrows-tar lost owner of all\nnarrows-tar done\n"));
        let heard = heard.unwrap();
        assert_eq!(heard.failures, ["cannot store a\\u{1b}[2J"]);
        assert_eq!((heard.failed, heard.lost, heard.done), (1, vec!["owner of all".to_owned()], true));
        assert!(!hear(output(b"narrows-tar don")).unwrap().done);
        let failed = hear(output(b"narrows-tar fails the disk is full\nnarrows-tar done\n"));
        assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
    }

    #[test]
    fn an_archive_is_whole_when_it_has_its_end() {
        let whole = |pieces: &[&[u8]]| {
            let mut pump = Pump::new(Arc::default());
            pieces.iter().for_each(|p| assert!(pump.run(*p, io::sink()).is_ok()));
            pump.is_whole()
        };
        assert!(whole(&[&[1; 512], &[0; 1000], &[0; 24]]));
        assert!(!whole(&[]));
        assert!(!whole(&[&[1; 512], &[0; 512]]));
        assert!(!whole(&[&[0; 1024], &[1; 512]]));
        assert!(!whole(&[&[1; 512], &[0; 1025]]));
    }
}
