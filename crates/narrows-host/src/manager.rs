//! Words to the service manager that started this program (sd_notify(3)): datagrams to the socket
//! that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Longest status that is sent; a line of `systemctl status` shows less.
const STATUS_MAX: usize = 200;

/// The service manager of this program, if there is one that listens.
#[derive(Debug, Default)]
pub struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Manager {
    /// The one that the environment names.
    pub fn of_process() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET");
        let text = |name| std::env::var(name).ok();
        Self::new(socket.as_deref(), text("WATCHDOG_USEC").as_deref(), text("WATCHDOG_PID").as_deref())
    }

    fn new(socket: Option<&OsStr>, watchdog_us: Option<&str>, watchdog_pid: Option<&str>) -> Self {
        let socket = socket.and_then(address).and_then(|to| Some((UnixDatagram::unbound().ok()?, to)));
        // A manager that reads nothing must not hold this program up.
        let socket = socket.filter(|(socket, _)| socket.set_nonblocking(true).is_ok());
        let own = watchdog_pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let watchdog = watchdog_us.and_then(|us| us.parse().ok()).filter(|us| own && *us > 0);
        Self { socket, watchdog: watchdog.map(Duration::from_micros) }
    }

    /// The program does its service, or does it again after [`Manager::reloading`].
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\n{}", status_line(status)));
    }

    /// It reads its configuration again.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now_us =
            u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
    }

    /// It ends, which may take time.
    pub fn stopping(&self, status: &str) {
        self.tell(&format!("STOPPING=1\n{}", status_line(status)));
    }

    /// What it does, for people.
    pub fn status(&self, status: &str) {
        self.tell(&status_line(status));
    }

    /// It is alive; to be said at least as often as [`Manager::watchdog_every`] says.
    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// The interval at which the manager wants to hear that the program is alive: half of the time
    /// after which it would end it.
    pub fn watchdog_every(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.socket.is_some()).map(|limit| limit / 2)
    }

    fn tell(&self, words: &str) {
        if let Some((socket, to)) = &self.socket {
            // The manager may have gone, or not read: it misses this.
            let _ = socket.send_to_addr(words.as_bytes(), to);
        }
    }
}

fn status_line(status: &str) -> String {
    let end = (0..=status.len().min(STATUS_MAX)).rev().find(|end| status.is_char_boundary(*end)).unwrap_or(0);
    format!("STATUS={}", crate::words::shown(&status.as_bytes()[..end]))
}

/// `/path`, or `@name` of the abstract namespace.
fn address(text: &OsStr) -> Option<SocketAddr> {
    match text.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(text).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_hears_what_is_said_at_a_path_or_a_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("narrows-test-{}", std::process::id());
        let named = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{name}").into(), UnixDatagram::bind_addr(&named).unwrap()),
        ];
        for (text, socket) in sockets {
            let manager = Manager::new(Some(&text), Some("3000000"), None);
            manager.ready("serving\non two lines");
            assert_eq!(heard(&socket), "READY=1\nSTATUS=serving\\non two lines");
            manager.reloading();
            let said = heard(&socket);
            let us = said.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(us.parse::<u64>().unwrap() > 0);
            manager.stopping(&"ü".repeat(STATUS_MAX));
            assert!(heard(&socket).ends_with("üü"), "it is cut between letters");
            assert_eq!(manager.watchdog_every(), Some(Duration::from_millis(1500)));
        }
    }

    #[test]
    fn without_a_manager_nothing_is_said_and_nothing_fails() {
        let gone = Manager::new(Some(OsStr::new("/nonexistent/socket")), None, None);
        gone.ready("");
        for text in ["", "relative", "vsock:2:1"] {
            Manager::new(Some(OsStr::new(text)), Some("1"), None).alive();
        }
        assert_eq!(Manager::new(None, Some("1000000"), None).watchdog_every(), None);
        let other = Manager::new(Some(OsStr::new("/x")), Some("1000000"), Some("1"));
        assert_eq!(other.watchdog_every(), None, "it is for another process");
    }
}
