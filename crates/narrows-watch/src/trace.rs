//! The trace of one flow on demand: a client names the flow and a time, and gets a line of JSON for
//! every decision about it until the time is over or the flow ends.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::name;

/// Begins to trace the flow of this number for this time. It ends early when the receiver is gone. Without
/// a line, there is no such flow.
pub type Trace = Arc<dyn Fn(u64, Duration) -> Receiver<String> + Send + Sync>;

/// Traces at a time: each slows its flow a little.
const TRACES_MAX: usize = 4;
/// Time of a trace at most. Whoever wants more asks again.
pub const TIME_MAX: Duration = Duration::from_secs(3600);
/// A request: two numbers.
const REQUEST_MAX: u64 = 64;
/// Time for a request, and for a client to take a line.
const PATIENCE: Duration = Duration::from_secs(2);
/// A line of JSON. A decision has some 500 bytes.
const LINE_MAX: u64 = 64 << 10;
/// Interval at which an idle trace looks whether its client is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause without descriptors.
const BREATH: Duration = Duration::from_secs(2);

/// Starts a thread that takes requests.
///
/// # Errors
/// If the name is taken, or the system gives no thread. A process works without it.
pub fn start(trace: Trace) -> Result<()> {
    let listener = name::listen(name::TRACE)?;
    let traces = Arc::new(AtomicUsize::new(0));
    let work = move || {
        for socket in listener.incoming() {
            let Ok(socket) = socket else {
                std::thread::sleep(BREATH);
                continue;
            };
            let (trace, held) = (Arc::clone(&trace), Arc::clone(&traces));
            if !name::may_ask(&socket) || held.load(Ordering::Acquire) >= TRACES_MAX {
                continue;
            }
            held.fetch_add(1, Ordering::AcqRel);
            let place = Place(held);
            let answer = move || {
                let _place = place;
                let _ = tell(&socket, &trace);
            };
            // If the thread cannot be started, its place is dropped.
            let _ = std::thread::Builder::new().name("narrows-trace".into()).spawn(answer);
        }
    };
    std::thread::Builder::new().name("narrows-traces".into()).spawn(work)?;
    Ok(())
}

struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn tell(socket: &UnixStream, trace: &Trace) -> Result<()> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    BufReader::new(socket.take(REQUEST_MAX)).read_line(&mut request)?;
    let (id, limit) = parse(&request).ok_or(ErrorKind::InvalidData)?;
    let until = Instant::now() + limit;
    let lines = trace(id, limit);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left.min(LOOK_EVERY)) {
            Ok(line) => write_line(socket, &line)?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if left <= LOOK_EVERY => return Ok(()),
            // An empty line is no event, and fails if nobody is there.
            Err(RecvTimeoutError::Timeout) => write_line(socket, "")?,
        }
    }
}

fn write_line(mut socket: &UnixStream, line: &str) -> Result<()> {
    socket.write_all(format!("{}\n", line.trim_end()).as_bytes())
}

/// `ID MILLISECONDS`
fn parse(request: &str) -> Option<(u64, Duration)> {
    let (id, limit) = request.strip_suffix('\n')?.split_once(' ')?;
    Some((id.parse().ok()?, Duration::from_millis(limit.parse().ok()?).min(TIME_MAX)))
}

/// Follows a flow of a process of this host: `each` gets every line of JSON. False if there is no such
/// flow.
///
/// # Errors
/// If no such process of this user traces flows, or the connection breaks, or `each` fails.
pub fn follow(pid: i32, id: u64, limit: Duration, mut each: impl FnMut(&str) -> Result<()>) -> Result<bool> {
    let none = || Error::new(ErrorKind::NotFound, format!("no process {pid} that traces flows"));
    // Anybody can take a name with this number.
    let user = user_of(pid).ok_or_else(none)?;
    let names = name::taken(name::TRACE)?.into_iter().filter(|name| name.user == user && name.pid == pid);
    let socket = names.map(|name| name::reach_process(name::TRACE, &name)).find_map(Result::ok).ok_or_else(none)?;
    (&socket).write_all(format!("{id} {}\n", limit.min(TIME_MAX).as_millis()).as_bytes())?;
    socket.set_read_timeout(Some(limit + PATIENCE))?;
    let mut socket = BufReader::new(socket);
    let mut known = false;
    loop {
        let mut line = String::new();
        if socket.by_ref().take(LINE_MAX).read_line(&mut line)? == 0 {
            return Ok(known);
        }
        let line = line.trim_end();
        if !line.is_empty() {
            known = true;
            each(line)?;
        }
    }
}

/// Whose process this is, if this user may ask it: root may ask all.
fn user_of(pid: i32) -> Option<u32> {
    let own = geteuid();
    if !own.is_root() {
        return Some(own.as_raw());
    }
    // The folder of a process that keeps its memory to itself is of root.
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn only_two_numbers_are_a_request() {
        assert_eq!(parse("7 1500\n"), Some((7, Duration::from_millis(1500))));
        assert_eq!(parse("7 99999999999\n"), Some((7, TIME_MAX)));
        for wrong in ["", "\n", "7 1", "7\n", "-7 1\n", "7 1 1\n", "7 99999999999999999999\n"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_flow_is_followed_until_it_ends() {
        let trace = |id: u64, _| {
            let (told, lines) = channel();
            (0..if id == 7 { 3 } else { 0 }).for_each(|n| told.send(format!("{{\"n\":{n}}}\n")).unwrap());
            lines
        };
        start(Arc::new(trace)).unwrap();
        let mut got = Vec::new();
        let own = std::process::id() as i32;
        let mut follow = |id| {
            follow(own, id, Duration::from_secs(30), |line| {
                got.push(line.to_owned());
                Ok(())
            })
        };
        assert!(follow(7).unwrap());
        assert!(!follow(8).unwrap());
        assert_eq!(got, ["{\"n\":0}", "{\"n\":1}", "{\"n\":2}"]);
        assert!(super::follow(-1, 7, Duration::ZERO, |_| Ok(())).is_err());
    }
}
