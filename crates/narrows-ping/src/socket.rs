//! A connection over TCP or a Unix socket, with a time limit on every wait.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Time limit of one attempt to connect; the system's own limit is minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for what the other end has to do at once. The longest message over the slowest
/// emulated link takes 10 s.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Length of the read buffer: the longest message with all that may precede it.
const ROOM: usize = 128 << 10;
/// Maximum time of polling before a read sleeps: a round trip of a full packet over 10 Mbit/s takes
/// 2.5 ms.
const POLL: Duration = Duration::from_millis(5);
/// Counts arrivals on all polled connections of this process. A thread stops polling when another
/// connection gets data, so as not to take the core from it.
static ARRIVALS: AtomicU64 = AtomicU64::new(0);

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Tcp(String),
    Unix(PathBuf),
}

impl Place {
    /// Parses `HOST:PORT`, `tcp://HOST:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// It is neither HOST:PORT nor unix:PATH.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("unix: must be followed by a path".into());
            }
            return Ok(Self::Unix(path.into()));
        }
        let address = text.strip_prefix("tcp://").unwrap_or(text);
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(Self::Tcp(address.to_owned())),
            _ => Err(format!("'{text}' is neither HOST:PORT nor unix:PATH")),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection with its received data.
pub struct BufferedSocket {
    socket: Socket,
    room: Box<[u8]>,
    /// Range of `room` with data that was not taken.
    from: usize,
    to: usize,
    timeout: Option<Duration>,
    polls: bool,
}

impl BufferedSocket {
    /// Connects to a server.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(place: &Place) -> Result<Self> {
        let cannot = || format!("cannot connect to {place}");
        let socket = match place {
            Place::Unix(path) => Socket::Unix(UnixStream::connect(path).with_context(cannot)?),
            Place::Tcp(address) => {
                let mut last = anyhow!("there is no such host");
                let mut found = None;
                for one in address.to_socket_addrs().with_context(cannot)? {
                    match TcpStream::connect_timeout(&one, CONNECT_TIMEOUT) {
                        Ok(socket) => {
                            found = Some(socket);
                            break;
                        }
                        Err(e) => last = e.into(),
                    }
                }
                match found {
                    Some(socket) => Socket::Tcp(socket),
                    None => return Err(last.context(cannot())),
                }
            }
        };
        Self::new(socket).with_context(cannot)
    }

    /// A connection over TCP.
    ///
    /// # Errors
    /// The system does not take its options.
    pub fn tcp(socket: TcpStream) -> io::Result<Self> {
        Self::new(Socket::Tcp(socket))
    }

    /// A connection over a Unix socket.
    ///
    /// # Errors
    /// The system does not take its options.
    pub fn unix(socket: UnixStream) -> io::Result<Self> {
        Self::new(Socket::Unix(socket))
    }

    fn new(socket: Socket) -> io::Result<Self> {
        match &socket {
            Socket::Tcp(s) => {
                s.set_nonblocking(false)?;
                s.set_nodelay(true)?;
                s.set_write_timeout(Some(TIMEOUT))?;
            }
            Socket::Unix(s) => {
                s.set_nonblocking(false)?;
                s.set_write_timeout(Some(TIMEOUT))?;
            }
        }
        Ok(Self { socket, room: vec![0; ROOM].into(), from: 0, to: 0, timeout: None, polls: false })
    }

    /// Whether the data leaves this host, so that others may read it.
    pub fn leaves_host(&self) -> bool {
        match &self.socket {
            Socket::Tcp(s) => s.peer_addr().is_ok_and(|a| !a.ip().is_loopback()),
            Socket::Unix(_) => false,
        }
    }

    /// Sets whether reads poll before they sleep.
    pub fn poll(&mut self, polls: bool) {
        self.polls = polls;
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The other end reads nothing, or has gone.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = match &mut self.socket {
            Socket::Tcp(s) => s.write_all(bytes),
            Socket::Unix(s) => s.write_all(bytes),
        };
        written.map_err(|e| match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => anyhow!("the other end reads nothing"),
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => anyhow!("the other end has gone away"),
            _ => anyhow::Error::from(e).context("cannot write"),
        })
    }

    /// Received data that was not taken.
    pub fn came(&self) -> &[u8] {
        &self.room[self.from..self.to]
    }

    /// Removes `len` bytes from the received data.
    pub fn take(&mut self, len: usize) {
        self.from = self.from.saturating_add(len).min(self.to);
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
    }

    /// Waits for more data; false if the other end has closed the connection between two messages.
    ///
    /// # Errors
    /// Nothing came in that time, or the other end went in the middle of a message.
    pub fn more(&mut self, limit: Duration) -> Result<bool> {
        if self.timeout != Some(limit) {
            match &self.socket {
                Socket::Tcp(s) => s.set_read_timeout(Some(limit))?,
                Socket::Unix(s) => s.set_read_timeout(Some(limit))?,
            }
            self.timeout = Some(limit);
        }
        if self.to == self.room.len() {
            self.room.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        ensure!(self.to < self.room.len(), "a frame is longer than any message");
        let begun = self.polls.then(Instant::now);
        let arrivals = ARRIVALS.load(Ordering::Relaxed);
        loop {
            let room = &mut self.room[self.to..];
            let looks = |begun: Instant| ARRIVALS.load(Ordering::Relaxed) == arrivals && begun.elapsed() < POLL;
            let read = if begun.is_some_and(looks) {
                let fd = match &self.socket {
                    Socket::Tcp(s) => s.as_fd(),
                    Socket::Unix(s) => s.as_fd(),
                };
                match recv(fd, room, RecvFlags::DONTWAIT) {
                    Err(Errno::AGAIN) => {
                        std::hint::spin_loop();
                        continue;
                    }
                    read => read.map(|(len, _)| len).map_err(io::Error::from),
                }
            } else {
                match &mut self.socket {
                    Socket::Tcp(s) => s.read(room),
                    Socket::Unix(s) => s.read(room),
                }
            };
            match read {
                Ok(0) if self.from == self.to => return Ok(false),
                Ok(0) => bail!("the other end went away in the middle of a message"),
                Ok(len) => {
                    self.to += len;
                    if self.polls {
                        ARRIVALS.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(true);
                }
                Err(e) => match e.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                        bail!("the other end sent nothing for {} s", limit.as_secs())
                    }
                    ErrorKind::ConnectionReset => bail!("the other end has gone away"),
                    _ => return Err(anyhow::Error::from(e).context("cannot read")),
                },
            }
        }
    }

    /// Waits for `len` bytes and takes them.
    ///
    /// # Errors
    /// As for [`BufferedSocket::more`].
    pub fn exactly(&mut self, len: usize) -> Result<Vec<u8>> {
        while self.came().len() < len {
            ensure!(self.more(TIMEOUT)?, "the other end has gone away");
        }
        let bytes = self.came()[..len].to_vec();
        self.take(len);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_addresses_or_paths() {
        assert_eq!(Place::parse("unix:a/b"), Ok(Place::Unix("a/b".into())));
        for text in ["host:1", "127.0.0.1:7702", "[::1]:7702"] {
            assert_eq!(Place::parse(text), Ok(Place::Tcp(text.into())));
        }
        assert_eq!(Place::parse("tcp://host:1"), Ok(Place::Tcp("host:1".into())));
        for bad in ["host", "unix:", ":1", "host:", "host:70000", ""] {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_comes_in_pieces_is_put_together_and_an_end_is_told_from_a_cut() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let mut socket = BufferedSocket::unix(other).unwrap();
        one.write_all(b"abc").unwrap();
        assert_eq!(socket.exactly(2).unwrap(), b"ab");
        one.write_all(b"de").unwrap();
        assert_eq!(socket.exactly(3).unwrap(), b"cde");
        one.write_all(b"f").unwrap();
        assert!(socket.more(TIMEOUT).unwrap());
        drop(one);
        assert!(socket.more(TIMEOUT).unwrap_err().to_string().contains("in the middle"));
        socket.take(1);
        assert!(!socket.more(TIMEOUT).unwrap());
    }
}
