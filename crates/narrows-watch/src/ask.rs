//! Asks all processes of this user for their status; root asks everybody's.

use std::io::{ErrorKind, Read, Result};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde_json::Value;

use super::name::{self, Name};
use super::status::Status;

/// Time for one answer. A process answers within a turn of its threads.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum answer in bytes: some ten thousand connections.
const ANSWER_MAX: u64 = 16 << 20;
/// Maximum bytes of all answers from untrusted users: some ten thousand connections too. Parsed it
/// takes up to forty times as much memory.
const STRANGERS_MAX: u64 = 8 << 20;
/// Time limit for all answers together, so that many processes that do not answer are not each
/// waited for.
const ALL_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of processes asked.
const PROCESSES_MAX: usize = 4096;

/// Answers of the processes.
#[derive(Default)]
pub struct Answers {
    /// As they came, with whatever keys another version has.
    pub documents: Vec<Value>,
    /// Processes that did not answer, not in time, or with too much.
    pub left_out: usize,
}

impl Answers {
    /// The documents as this version understands them. Others count as left out.
    pub fn processes(&self) -> (Vec<Status>, usize) {
        let read: Vec<_> = self.documents.iter().filter_map(|d| understand(d).ok()).collect();
        let unread = self.documents.len() - read.len();
        (read, self.left_out + unread)
    }
}

fn understand(document: &Value) -> serde_json::Result<Status> {
    let mut status: Status = serde::Deserialize::deserialize(document)?;
    if status.kind.is_empty() {
        // The first version was of `run` alone and did not say so.
        status.kind = "run".into();
        status.totals = status.ended;
        let live = std::mem::take(&mut status.connections);
        live.iter().for_each(|connection| status.totals.add(connection));
        status.connections = live;
    }
    Ok(status)
}

/// Asks all.
///
/// # Errors
/// If the names of sockets cannot be read.
pub fn all() -> Result<Answers> {
    let own = geteuid();
    let mut found = name::taken(name::STATUS)?;
    found.retain(|name| own.is_root() || name.user == own.as_raw());
    Ok(ask_these(found, own.as_raw(), ask))
}

fn ask_these(mut found: Vec<Name>, own: u32, ask: impl Fn(UnixStream, u64) -> Result<(Value, u64)>) -> Answers {
    // Own processes first: other users may take names, many of them, and be slow.
    found.sort_unstable_by(|a, b| (a.user != own).cmp(&(b.user != own)).then_with(|| a.cmp(b)));
    // Accepted sockets also carry their listener's name.
    found.dedup();
    let begun = Instant::now();
    let mut answers = Answers::default();
    let mut strangers = STRANGERS_MAX;
    for name in found {
        // A name that another user holds is not that of a process of ours, which then has another.
        let Ok(socket) = name::reach(name::STATUS, &name) else { continue };
        let is_stranger = name.user != own;
        let max = if is_stranger { strangers } else { ANSWER_MAX };
        let full = answers.documents.len() >= PROCESSES_MAX || begun.elapsed() >= ALL_PATIENCE || max == 0;
        match (!full).then(|| ask(socket, max)) {
            Some(Ok((answer, len))) => {
                answers.documents.push(answer);
                strangers -= if is_stranger { len } else { 0 };
            }
            Some(Err(_)) | None => answers.left_out += 1,
        }
    }
    answers
}

/// Reads its answer of at most `max` bytes, and returns its length too.
fn ask(socket: UnixStream, max: u64) -> Result<(Value, u64)> {
    let begun = Instant::now();
    let mut socket = socket.take(max);
    let mut answer = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        socket.get_ref().set_read_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
        match socket.read(&mut part)? {
            0 => break,
            n => answer.extend_from_slice(&part[..n]),
        }
    }
    Ok((serde_json::from_slice(&answer)?, answer.len() as u64))
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use serde_json::json;

    use super::*;

    #[test]
    fn what_strangers_say_is_bounded_and_comes_last() {
        let own = geteuid().as_raw();
        let pids: Vec<_> = (0..4).map(|n| -i32::try_from(std::process::id()).unwrap() - n).collect();
        let at = |pid: &i32| {
            let name = format!("{}{}", name::STATUS, Name::new(own, *pid));
            SocketAddr::from_abstract_name(name).unwrap()
        };
        let listeners: Vec<_> = pids.iter().map(|pid| UnixListener::bind_addr(&at(pid)).unwrap()).collect();
        let found = || pids.iter().map(|pid| Name::new(own, *pid)).collect();
        let said = std::cell::RefCell::new(Vec::new());
        let ask = |_, max| {
            said.borrow_mut().push(max);
            if said.borrow().len() == 2 { Err(ErrorKind::InvalidData.into()) } else { Ok((json!(1), max / 2 + 1)) }
        };
        // As seen by a different user.
        let answers = ask_these(found(), own + 1, ask);
        assert_eq!((answers.documents.len(), answers.left_out), (3, 1));
        assert_eq!(answers.processes().1, 4, "a number is no status");
        let maxima = std::mem::take(&mut *said.borrow_mut());
        assert!(maxima[0] == STRANGERS_MAX && maxima.windows(2).all(|m| m[1] <= m[0]) && maxima[3] < maxima[0] / 2);
        let answers = ask_these(found(), own, ask);
        assert_eq!((answers.documents.len(), answers.left_out), (3, 1));
        assert_eq!(*said.borrow(), [ANSWER_MAX; 4]);
        drop(listeners);
        assert!(ask_these(found(), own, ask).documents.is_empty());
    }

    #[test]
    fn a_supervisor_of_the_first_version_is_understood() {
        let traffic = json!({ "raw_bytes": 4, "wire_bytes": 2 });
        let connection = json!({ "id": 1, "peer": "h:1", "out": traffic, "back": traffic });
        let ended = json!({ "connections": 2, "failed": 0, "out_raw_bytes": 10, "out_wire_bytes": 5 });
        let document = json!({ "pid": 1, "program": "p", "connections": [connection], "ended": ended });
        let status = understand(&document).unwrap();
        assert_eq!((status.kind.as_str(), status.totals.out_raw_bytes, status.totals.back_wire_bytes), ("run", 14, 2));
    }
}
