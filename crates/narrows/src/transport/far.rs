//! The TCP connection behind the programs that read a pipe: `| ssh`, `| nc`, `| mbuffer | ssh`.
//!
//! A pipe shows how fast its reader takes bytes, and the reader takes what fits into its buffers at
//! the speed of memory. Its socket shows the link. What cannot be seen (another user's program, a
//! shared connection of ssh, another network namespace, a host with very many sockets) leaves the
//! pipe what it is.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use crate::sys;

mod account;
mod readers;
mod sockets;

use account::Account;
use readers::{Held, Way};
use sockets::{Kernel, Missing, Socket, Told};

/// Pauses between searches, while the programs start and connect: from the first to the last, each
/// twice the one before. A search takes some 0.1 ms.
const PAUSE_FIRST_NS: u64 = 500_000;
const PAUSE_LAST_NS: u64 = 512_000_000;
/// Searches: half a minute, in which a person types a password.
const SEARCHES_MAX: u32 = 70;
/// Dumps of the sockets of this host, of up to 2 ms each, for one flow.
const DUMPS_MAX: u32 = 12;
/// A look takes some 10 us. At 10 Gbit/s 100 KB cross meanwhile.
const LOOK_NS: u64 = 100_000;

/// Which programs may read the pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Near {
    /// Those of the same pipeline.
    Siblings,
    /// A child of this process.
    Child(u32),
}

/// The connection behind a pipe, as far as it is known.
pub(crate) struct Far {
    near: Near,
    pipe: u64,
    state: State,
    account: Account,
    /// Whether a connection within this host counts as the link. In tests only.
    within_host: bool,
    seen: Option<Seen>,
    searches: u32,
    dumps: u32,
}

enum State {
    /// The next search is due at `at_ns`.
    Sought {
        at_ns: u64,
        pause_ns: u64,
    },
    Found(Box<Found>),
    /// It cannot be seen.
    Unseen,
}

struct Found {
    kernel: Kernel,
    socket: Socket,
    pipes: Vec<Held>,
    held: Held,
    looked_ns: u64,
}

/// What the connection tells of the flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Bytes of the flow that left this host, and those acknowledged.
    pub(crate) left: u64,
    pub(crate) acked: u64,
    /// `None` where it says nothing of the bytes on their way.
    pub(crate) rtt_ns: Option<u64>,
}

impl Far {
    /// Behind the pipe that `file` writes to; `None` if the pipe has no number.
    pub(crate) fn new(file: &File, near: Near) -> Option<Self> {
        let pipe = file.metadata().ok()?.ino();
        let state = State::Sought { at_ns: 0, pause_ns: PAUSE_FIRST_NS };
        Some(Self {
            near,
            pipe,
            state,
            account: Account::default(),
            within_host: false,
            seen: None,
            searches: 0,
            dumps: 0,
        })
    }

    /// What was seen at the last look. Nothing before the reader has taken the first byte: it may be
    /// waiting for a password.
    pub(crate) fn seen(&self) -> Option<Seen> {
        self.seen
    }

    /// Looks, if the last look was not just now. `accepted` bytes went into the pipe so far, and
    /// `unread` tells how many of them are there.
    pub(crate) fn look(&mut self, accepted: u64, unread: impl Fn() -> Option<u64>) {
        let now_ns = sys::monotonic_ns();
        if let State::Sought { at_ns, pause_ns } = self.state
            && now_ns >= at_ns
        {
            self.state = self.search(now_ns, pause_ns);
        }
        let State::Found(found) = &mut self.state else { return };
        if self.seen.is_some() && now_ns < found.looked_ns + LOOK_NS {
            return;
        }
        found.looked_ns = now_ns;
        let Some(told) = found.look() else {
            (self.state, self.seen) = (State::Sought { at_ns: now_ns, pause_ns: PAUSE_FIRST_NS }, None);
            self.account.change();
            return;
        };
        let Some(unread) = unread().filter(|unread| *unread < accepted) else { return };
        let is_wrong = self.account.observe(now_ns, accepted - unread, &told);
        let mut seen = Seen { left: self.account.left, acked: self.account.acked, rtt_ns: None };
        if self.account.wakes(now_ns, unread, &told) {
            // As if it had them: they are on their way, but in no queue that a round trip tells of.
            seen.left = accepted;
        } else {
            seen.rtt_ns = Some(1000 * u64::from(told.info.rtt_us));
        }
        // A look without an answer lets the flow start again: it would take the leap for a burst.
        self.seen = (!is_wrong).then_some(seen);
    }

    fn search(&mut self, now_ns: u64, pause_ns: u64) -> State {
        self.searches += 1;
        let again = State::Sought { at_ns: now_ns + pause_ns, pause_ns: (2 * pause_ns).min(PAUSE_LAST_NS) };
        let again = if self.searches < SEARCHES_MAX { again } else { State::Unseen };
        let way = match self.near {
            Near::Siblings => readers::find(self.pipe, std::os::unix::process::parent_id(), std::process::id()),
            Near::Child(child) => readers::find_in(self.pipe, child),
        };
        let Some(Way { pipes, sockets }) = way else { return again };
        if self.dumps == DUMPS_MAX {
            return State::Unseen;
        }
        self.dumps += 1;
        let Some(mut kernel) = Kernel::open() else { return State::Unseen };
        // The kernel's messages have the lower half of the number only.
        let number = |held: &Held| held.inode().map(|inode| inode as u32);
        let inodes: Vec<u32> = sockets.iter().filter_map(number).collect();
        match kernel.find(&inodes) {
            // What lies behind another program of this host is not seen.
            Ok(socket) if socket.is_within_host() && !self.within_host => State::Unseen,
            Ok(socket) => match sockets.into_iter().find(|held| number(held) == Some(socket.inode)) {
                Some(held) => State::Found(Box::new(Found { kernel, socket, pipes, held, looked_ns: 0 })),
                None => State::Unseen,
            },
            Err(Missing::Unconnected) => again,
            Err(Missing::Several | Missing::Unknown) => State::Unseen,
        }
    }
}

impl Found {
    /// The state of the connection, if the same programs still hold pipes and socket.
    fn look(&mut self) -> Option<Told> {
        let is_there = self.pipes.iter().chain([&self.held]).all(Held::is_there);
        if is_there { self.kernel.look(&self.socket) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, OwnedFd};
    use std::process::{Child, Command};
    use std::time::Instant;

    use narrows_test::PATIENCE;

    use super::*;

    /// A program that copies a pipe to a connection, as `nc` does.
    struct Relay {
        program: Child,
        pipe: File,
        far: TcpStream,
    }

    impl Relay {
        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (reader, writer) = std::io::pipe().unwrap();
            let program = Command::new("cat").stdin(reader).stdout(OwnedFd::from(near)).spawn().unwrap();
            let pipe = File::from(OwnedFd::from(writer));
            Self { program, pipe, far: listener.accept().unwrap().0 }
        }

        fn far(&self) -> Far {
            let far = Far::new(&self.pipe, Near::Child(self.program.id())).unwrap();
            Far { within_host: true, ..far }
        }

        fn unread(&self) -> Option<u64> {
            sys::pipe_unread(self.pipe.as_fd())
        }
    }

    impl Drop for Relay {
        fn drop(&mut self) {
            let _ = self.program.kill();
            let _ = self.program.wait();
        }
    }

    /// Looks until what is seen satisfies `is_so`. `None`: this host does not tell.
    fn look_until(far: &mut Far, relay: &Relay, accepted: u64, is_so: impl Fn(Option<Seen>) -> bool) -> Option<()> {
        let begun = Instant::now();
        loop {
            far.look(accepted, || relay.unread());
            if is_so(far.seen()) {
                return Some(());
            }
            if matches!(far.state, State::Unseen) {
                narrows_test::skip("this host does not tell of sockets");
                return None;
            }
            assert!(begun.elapsed() < PATIENCE, "{:?}", far.seen());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn what_the_far_end_did_not_read_is_not_acknowledged_and_later_it_is() {
        let mut relay = Relay::start();
        let mut far = relay.far();
        far.look(0, || relay.unread());
        assert_eq!(far.seen(), None, "nothing was written");
        relay.pipe.write_all(&[1; 1000]).unwrap();
        if look_until(&mut far, &relay, 1000, |seen| seen.is_some_and(|s| s.acked == 1000)).is_none() {
            return;
        }
        // More than all buffers hold, until nothing more fits.
        let (mut accepted, mut stood) = (1000, Instant::now());
        while stood.elapsed().as_millis() < 300 {
            if let Ok(n) = sys::pipe_write_nowait(relay.pipe.as_fd(), &[std::io::IoSlice::new(&[1; 65536])]) {
                (accepted, stood) = (accepted + n as u64, Instant::now());
            }
            far.look(accepted, || relay.unread());
            let seen = far.seen().unwrap();
            assert!(seen.acked <= seen.left && seen.left <= accepted);
        }
        assert!(far.seen().unwrap().left < accepted, "it waits in socket and pipe");
        let mut rest = accepted;
        let mut reader = relay.far.try_clone().unwrap();
        let reading = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            while rest > 0 {
                rest -= reader.read(&mut buffer).unwrap() as u64;
            }
        });
        look_until(&mut far, &relay, accepted, |seen| seen.is_some_and(|s| s.acked == accepted && s.left == accepted));
        reading.join().unwrap();
    }

    #[test]
    fn a_program_that_ended_is_not_seen_any_more() {
        let mut relay = Relay::start();
        let mut far = relay.far();
        relay.pipe.write_all(&[1; 10]).unwrap();
        if look_until(&mut far, &relay, 10, |seen| seen.is_some()).is_none() {
            return;
        }
        relay.program.kill().unwrap();
        relay.program.wait().unwrap();
        look_until(&mut far, &relay, 10, |seen| seen.is_none());
        assert!(matches!(far.state, State::Sought { .. }));
    }

    #[test]
    fn a_connection_within_this_host_is_not_the_link() {
        let relay = Relay::start();
        let mut far = Far { within_host: false, ..relay.far() };
        let begun = Instant::now();
        while !matches!(far.state, State::Unseen) {
            far.look(0, || Some(0));
            assert!(begun.elapsed() < PATIENCE);
        }
        assert!(far.dumps <= DUMPS_MAX && far.seen().is_none());
    }

    #[test]
    fn a_program_without_a_connection_is_asked_less_and_less() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut program = Command::new("cat").stdin(reader).stdout(std::process::Stdio::null()).spawn().unwrap();
        let mut far = Far::new(&File::from(OwnedFd::from(writer)), Near::Child(program.id())).unwrap();
        for i in 1..SEARCHES_MAX {
            let State::Sought { pause_ns, .. } = far.state else { panic!("given up after {i} searches") };
            assert!(pause_ns == PAUSE_LAST_NS || pause_ns == PAUSE_FIRST_NS << (i - 1));
            far.state = far.search(0, pause_ns);
        }
        far.state = far.search(0, PAUSE_LAST_NS);
        assert!(matches!(far.state, State::Unseen) && far.dumps == 0);
        let _ = (program.kill(), program.wait());
    }
}
