//! Further connections for a copy that is limited by a single connection: an ssh channel has a
//! window of 2 MiB and one thread for its cipher, and a TCP flow gets a share of the link.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use narrows::transport::Link;
use narrows::transport::bond::Bond;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use super::carrier::Added;
use super::error::{Blame, Error, Result};
use super::hello::Session;

/// Default maximum number of carriers of a copy; more would mean more logins at a time than a
/// server may accept.
pub const CARRIERS: u8 = 4;
/// A carrier is added if the copy will last at least this many times as long as a login. A login
/// costs both ends as much CPU as copying 50 MB, and most of a second on a long link.
const WORTH: u32 = 2;
/// If the first login takes longer than this, each of its twelve round trips takes 30 ms or more,
/// and one window of 2 MiB carries less than 70 MB/s. Then a copy of [`LARGE`] bytes gets a second
/// carrier at once.
const LOGIN_LONG: Duration = Duration::from_millis(350);
/// Length in bytes from which a copy over a long link gets a second carrier at once.
const LARGE: u64 = 64 << 20;
/// Gain in rate that new carriers must bring, or no further ones are added.
const GAIN: f64 = 1.15;
/// Duration of a rate measurement.
const MEASURED: Duration = Duration::from_millis(100);
/// Time that a new carrier gets to reach its full rate before the rate is measured.
const SETTLED: Duration = Duration::from_millis(100);
/// Interval of checks for the end of the copy.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Rate in bytes/s below which a window of 2 MiB does not limit a copy, unless the round trip takes
/// half a second.
const RATE_MIN: f64 = 4e6;
/// How long the end of a copy waits for the thread that adds carriers: longer than [`LOOK_EVERY`].
const LEFT_ALONE: Duration = Duration::from_millis(100);
/// A carrier over which nothing has arrived after this time has failed.
const HEARD_MAX: Duration = Duration::from_secs(20);

// --- the end that asks ---

/// Adds carriers while they make the copy faster, until it is dropped.
pub struct Grower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Progress of a running copy.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Bytes on the wire so far.
    pub wire_bytes: u64,
    /// Bytes of content known so far.
    pub bytes: u64,
    /// Share of the copy that is done, 0 to 1; `None` if unknown.
    pub done: Option<f64>,
}

impl Grower {
    /// Starts the thread that adds carriers, up to `most` in all.
    pub fn start(
        bond: Bond,
        most: u8,
        seen: impl Fn() -> Seen + Send + 'static,
        open: impl FnMut() -> Result<(Added, Link)> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let watch = Watch { stop: Arc::clone(&stop), bond, most: usize::from(most), seen, open, added: Vec::new() };
        // If the thread cannot be started, the copy has one carrier.
        let thread = std::thread::Builder::new().name("narrows-carriers".into()).spawn(move || watch.run()).ok();
        Self { stop, thread }
    }
}

impl Drop for Grower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let begun = Instant::now();
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // A connection that is still being made is not waited for; the thread closes it.
        while !thread.is_finished() && begun.elapsed() < LEFT_ALONE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

struct Watch<S, O> {
    stop: Arc<AtomicBool>,
    bond: Bond,
    most: usize,
    seen: S,
    open: O,
    /// Kept until the copy is over.
    added: Vec<Added>,
}

impl<S: Fn() -> Seen, O: FnMut() -> Result<(Added, Link)>> Watch<S, O> {
    fn run(mut self) {
        let begun = Instant::now();
        let mut carriers = 1;
        // The first carrier is waited for without limit, since the user may have to enter a
        // password.
        while self.bond.heard() == 0 {
            if carriers == 1 && self.most > 1 && begun.elapsed() > LOGIN_LONG && (self.seen)().bytes >= LARGE {
                if !self.add() {
                    return self.wait();
                }
                carriers = 2;
            }
            if self.pause() {
                return;
            }
        }
        let mut connect = begun.elapsed();
        if !self.heard(carriers, HEARD_MAX) {
            return self.wait();
        }
        let Some(mut rate) = self.measure() else { return };
        while carriers < self.most && rate >= RATE_MIN && self.left(rate, begun) > WORTH * connect {
            let begun = Instant::now();
            let more = carriers.min(self.most - carriers);
            if !(0..more).all(|_| self.add()) {
                return self.wait();
            }
            carriers += more;
            if !self.heard(carriers, HEARD_MAX) {
                return self.wait();
            }
            connect = begun.elapsed();
            let Some(now) = self.measure() else { return };
            if now < GAIN * rate {
                break;
            }
            rate = now;
        }
        self.wait();
    }

    fn add(&mut self) -> bool {
        let Ok((added, link)) = (self.open)() else { return false };
        if self.stop.load(Ordering::Relaxed) {
            return false;
        }
        self.added.push(added);
        self.bond.add(link).is_ok()
    }

    /// Waits for the end of the copy, which the added carriers must not outlive.
    fn wait(&self) {
        while !self.pause() {}
    }

    /// Waits for [`LOOK_EVERY`]; returns whether the copy is over.
    fn pause(&self) -> bool {
        std::thread::park_timeout(LOOK_EVERY);
        self.stop.load(Ordering::Relaxed)
    }

    fn heard(&self, carriers: usize, most: Duration) -> bool {
        let begun = Instant::now();
        while self.bond.heard() < carriers {
            if begun.elapsed() > most || self.pause() {
                return false;
            }
        }
        true
    }

    /// Bytes per second on the wire; `None` if the copy is over.
    fn measure(&self) -> Option<f64> {
        let settled = Instant::now();
        while settled.elapsed() < SETTLED {
            if self.pause() {
                return None;
            }
        }
        let (begun, before) = (Instant::now(), (self.seen)().wire_bytes);
        while begun.elapsed() < MEASURED {
            if self.pause() {
                return None;
            }
        }
        let bytes = (self.seen)().wire_bytes.saturating_sub(before);
        Some(bytes as f64 / begun.elapsed().as_secs_f64())
    }

    /// Estimated remaining time at this rate; `Duration::MAX` if unknown.
    fn left(&self, rate: f64, begun: Instant) -> Duration {
        let seen = (self.seen)();
        match seen.done {
            Some(done) if done > 0.0 && rate > 0.0 => {
                let left = seen.wire_bytes as f64 * (1.0 - done) / done / rate;
                Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX)
            }
            Some(_) => begun.elapsed(),
            None => Duration::MAX,
        }
    }
}

// --- the end that is asked, where a shell starts a process for each carrier ---

/// Lets further processes of the same user pass their stdin and stdout to the copy of this process.
pub fn accept(session: Session, bond: Bond) -> Result<()> {
    let listener = UnixListener::bind_addr(&address(session)?).blame(Error::Local)?;
    let thread = std::thread::Builder::new().name("narrows-join".into());
    let accepting = thread.spawn(move || {
        // The sockets are kept open: each joined process ends when this one does.
        let mut joined = Vec::new();
        while let Ok((socket, _)) = listener.accept() {
            match take_pipes(&socket) {
                Ok((input, output)) => {
                    if bond.add(Link::pipes(output, input)).is_err() {
                        return;
                    }
                    joined.push(socket);
                }
                // Another user, or a process that is gone.
                Err(_) => drop(socket),
            }
        }
    });
    accepting.blame(Error::Local)?;
    Ok(())
}

/// Passes stdin and stdout of this process to the copy `session` of another process, and waits for
/// its end.
pub fn join(session: Session, input: &File, output: &File) -> Result<()> {
    let socket = UnixStream::connect_addr(&address(session)?);
    let socket = socket.blame_for(Error::Peer, "there is no such copy")?;
    check_user(&socket)?;
    let fds = [input.as_fd(), output.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Error::Bug("two descriptors do not fit; this is a bug".into()));
    }
    let sent = rustix::net::sendmsg(&socket, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL);
    sent.map_err(io::Error::from).blame(Error::Link)?;
    let _ = (&socket).read(&mut [0; 1]);
    Ok(())
}

/// The abstract socket address of a copy. Other users cannot guess it, and it vanishes with the
/// process.
fn address(session: Session) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("narrows-{session}")).blame(Error::Local)
}

fn check_user(socket: &UnixStream) -> Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(socket).map_err(io::Error::from).blame(Error::Local)?;
    if peer.uid == rustix::process::geteuid() {
        Ok(())
    } else {
        Err(Error::Trust("the copy belongs to another user".into()))
    }
}

fn take_pipes(socket: &UnixStream) -> Result<(File, File)> {
    check_user(socket)?;
    socket.set_read_timeout(Some(Duration::from_secs(1))).blame(Error::Local)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags);
    received.map_err(io::Error::from).blame(Error::Link)?;
    let mut fds: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    match <[OwnedFd; 2]>::try_from(fds) {
        Ok([input, output]) => Ok((input.into(), output.into())),
        Err(_) => Err(Error::Protocol("it passed no pipes".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn pipes_come_from_one_process_to_another() {
        let session = Session::random().unwrap();
        let (first, kept) = UnixStream::pair().unwrap();
        let (_, bond) = Link::unix(first).unwrap().bonded().unwrap();
        accept(session, bond.clone()).unwrap();
        assert!(accept(session, bond).is_err(), "the name is taken");
        let (mut near, far) = UnixStream::pair().unwrap();
        let far = File::from(OwnedFd::from(far));
        let joined = std::thread::spawn(move || join(session, &far.try_clone().unwrap(), &far));
        near.write_all(b"x").unwrap();
        // It stays until the end of the copy, which never comes here.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!joined.is_finished());
        assert!(
            join(Session::random().unwrap(), &File::open("/dev/null").unwrap(), &File::open("/dev/null").unwrap())
                .is_err()
        );
        drop(kept);
    }
}
