//! Status of supervisors: `narrows status` finds them by their abstract names and asks them.

use std::io::{ErrorKind, Read, Result, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{geteuid, getpid};
use serde_json::{Value, json};

use super::account::{LiveConnection, Traffic};
use super::agent_socket::user_at;
use super::proof;
use super::shared::{Inlet, Order, Shared};

const PREFIX: &str = "narrows-status:";
/// Timeout. A supervisor answers within a turn of its pumps; a client that asks and does not read
/// is not waited for either.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum answer in bytes: some ten thousand connections.
const ANSWER_MAX: u64 = 16 << 20;
/// Maximum bytes of all answers from untrusted users: some ten thousand connections too. Parsed it
/// takes up to forty times as much memory.
const STRANGERS_MAX: u64 = 8 << 20;
/// Time limit for all answers together, so that many supervisors that do not answer are not each
/// waited for.
const ALL_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of supervisors asked.
const SUPERVISORS_MAX: usize = 4096;

fn name(user: u32, pid: i32) -> String {
    format!("{PREFIX}{user}:{pid}")
}

/// Starts a thread that answers the same user and root with the result of `answer`.
pub fn start(answer: impl Fn() -> Value + Send + 'static) -> Result<()> {
    let name = name(geteuid().as_raw(), getpid().as_raw_pid());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    let work = move || {
        for socket in listener.incoming() {
            match socket {
                Ok(socket) => drop(tell(socket, &answer)),
                // For example without descriptors, where it would fail again at once.
                Err(_) => std::thread::sleep(PATIENCE),
            }
        }
    };
    std::thread::Builder::new().name("narrows-status".into()).spawn(work)?;
    Ok(())
}

/// Connections listed; further ones are only counted.
const LISTED_MAX: usize = 10_000;

/// The status of this supervisor, as JSON.
pub fn describe(program: &str, shared: &Shared, pumps: &[Inlet]) -> Value {
    let (answer, answers) = channel();
    pumps.iter().for_each(|pump| pump.send(Order::Snapshot { answer: answer.clone() }));
    drop(answer);
    let begun = Instant::now();
    let mut live = Vec::new();
    // A pump that does not answer in time is left out.
    while let Ok(some) = answers.recv_timeout((PATIENCE / 2).saturating_sub(begun.elapsed())) {
        live.extend(some);
    }
    live.sort_by_key(|c| std::cmp::Reverse(c.age));
    let totals = &shared.totals;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let outcomes = totals.outcomes();
    let outcomes: Vec<_> =
        outcomes.iter().map(|(o, n)| json!({ "outcome": o.to_string(), "connections": n })).collect();
    json!({
        "pid": getpid().as_raw_pid(),
        "program": program,
        "age_s": shared.begun.elapsed().as_secs_f64(),
        "connections": live.iter().take(LISTED_MAX).map(connection).collect::<Vec<_>>(),
        "connections_left_out": live.len().saturating_sub(LISTED_MAX),
        "ended": {
            "connections": count(&totals.connections),
            "failed": count(&totals.failed),
            "out_raw_bytes": count(&totals.out_raw_bytes),
            "out_wire_bytes": count(&totals.out_wire_bytes),
            "back_raw_bytes": count(&totals.back_raw_bytes),
            "back_wire_bytes": count(&totals.back_wire_bytes),
        },
        "outcomes": outcomes,
    })
}

fn connection(live: &LiveConnection) -> Value {
    let traffic = |t: &Traffic| {
        let methods: Vec<_> =
            t.methods.iter().map(|(name, share)| json!({ "name": name, "share_percent": share })).collect();
        json!({
            "raw_bytes": t.raw_bytes, "wire_bytes": t.wire_bytes, "ratio": t.raw_bytes as f64 / t.wire_bytes.max(1) as f64, "framed": t.framed, "methods": methods,
        })
    };
    let peer = proof::address(&live.peer).map(|a| std::net::SocketAddr::new(a.ip().to_canonical(), a.port()));
    json!({
        "id": live.id,
        "peer": peer.map_or("an unknown peer".into(), |p| p.to_string()),
        "accepted": live.accepted,
        "age_s": live.age.as_secs_f64(),
        "outcome": live.outcome.to_string(),
        "encrypted": live.encrypted,
        "within_host": live.within_host,
        "out": traffic(&live.out),
        "back": traffic(&live.back),
    })
}

fn tell(socket: UnixStream, answer: &impl Fn() -> Value) -> Result<()> {
    socket.set_write_timeout(Some(PATIENCE))?;
    let socket = OwnedFd::from(socket);
    let user = user_at(&socket);
    if user != Some(0) && user != Some(geteuid().as_raw()) {
        return Ok(());
    }
    UnixStream::from(socket).write_all(answer().to_string().as_bytes())
}

/// Answers of the supervisors.
pub struct Answers {
    pub supervisors: Vec<Value>,
    /// Number of supervisors that did not answer, not in time, or with too much.
    pub left_out: usize,
}

/// Asks all supervisors of this user; root asks everybody's.
pub fn ask_all() -> Result<Answers> {
    let own = geteuid();
    // Names of other programs may contain any bytes.
    let table = String::from_utf8_lossy(&std::fs::read("/proc/self/net/unix")?).into_owned();
    let names = table.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    let found: Vec<(u32, i32)> = names
        .filter_map(|name| {
            let (user, pid) = name.strip_prefix(PREFIX)?.split_once(':')?;
            Some((user.parse().ok()?, pid.parse().ok()?))
        })
        .filter(|(user, _)| own.is_root() || *user == own.as_raw())
        .collect();
    Ok(ask_these(found, own.as_raw(), ask))
}

fn ask_these(mut found: Vec<(u32, i32)>, own: u32, ask: impl Fn(UnixStream, u64) -> Result<(Value, u64)>) -> Answers {
    // Own supervisors first: other users may take names, many of them, and be slow.
    found.sort_unstable_by_key(|(user, pid)| (*user != own, *user, *pid));
    // Accepted sockets also carry their listener's name.
    found.dedup();
    let begun = Instant::now();
    let mut answers = Answers { supervisors: Vec::new(), left_out: 0 };
    let mut strangers = STRANGERS_MAX;
    for (user, pid) in found {
        // A name that another user holds is not a supervisor's.
        let Ok(socket) = reach(user, &name(user, pid)) else { continue };
        let is_stranger = user != own;
        let max = if is_stranger { strangers } else { ANSWER_MAX };
        let full = answers.supervisors.len() >= SUPERVISORS_MAX || begun.elapsed() >= ALL_PATIENCE || max == 0;
        match (!full).then(|| ask(socket, max)) {
            Some(Ok((answer, len))) => {
                answers.supervisors.push(answer);
                strangers -= if is_stranger { len } else { 0 };
            }
            Some(Err(_)) | None => answers.left_out += 1,
        }
    }
    answers
}

/// Connects to that name if that user holds it. Does not block: the holder may never accept a
/// connection, and is known only once connected.
fn reach(user: u32, name: &str) -> Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    if user_at(&socket) != Some(user) {
        return Err(ErrorKind::PermissionDenied.into());
    }
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
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
    use rustix::net::{bind, listen};

    use super::*;

    #[test]
    fn what_strangers_say_is_bounded_and_comes_last() {
        let own = geteuid().as_raw();
        let names: Vec<_> = (0..4).map(|n| -i32::try_from(std::process::id()).unwrap() - n).collect();
        let listeners: Vec<_> = names
            .iter()
            .map(|pid| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(own, *pid)).unwrap()).unwrap())
            .collect();
        let found = || names.iter().map(|pid| (own, *pid)).collect();
        let said = std::cell::RefCell::new(Vec::new());
        let ask = |_, max| {
            said.borrow_mut().push(max);
            if said.borrow().len() == 2 { Err(ErrorKind::InvalidData.into()) } else { Ok((json!(1), max / 2 + 1)) }
        };
        // As seen by a different user.
        let answers = ask_these(found(), own + 1, ask);
        assert_eq!((answers.supervisors.len(), answers.left_out), (3, 1));
        let maxima = std::mem::take(&mut *said.borrow_mut());
        assert!(maxima[0] == STRANGERS_MAX && maxima.windows(2).all(|m| m[1] <= m[0]) && maxima[3] < maxima[0] / 2);
        let answers = ask_these(found(), own, ask);
        assert_eq!((answers.supervisors.len(), answers.left_out), (3, 1));
        assert_eq!(*said.borrow(), [ANSWER_MAX; 4]);
        drop(listeners);
        assert!(ask_these(found(), own, ask).supervisors.is_empty());
    }

    #[test]
    fn nobody_is_waited_for_who_has_a_name_and_takes_no_connection() {
        let name = format!("narrows-test-of-status:{}", getpid().as_raw_pid());
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let own = geteuid().as_raw();
        assert_eq!(reach(own + 1, &name).unwrap_err().kind(), ErrorKind::PermissionDenied);
        // These fill the listener's backlog, so that a blocking connect would wait for ever.
        let reached: Vec<_> = std::iter::from_fn(|| reach(own, &name).ok()).take(100).collect();
        assert!(reached.len() < 100);
        assert_eq!(reach(own, &name).unwrap_err().kind(), ErrorKind::WouldBlock);
    }
}
