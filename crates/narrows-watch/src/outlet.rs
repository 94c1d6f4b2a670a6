//! Lines of a service on stdout and stderr: threads of their own write them, so that nobody stops the
//! service by not reading what it says.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use narrows_host::{files, output, words};

/// Bytes that wait for a reader; further lines are lost. Thousands of lines, some seconds of a busy
/// service.
const HELD_MAX: usize = 1 << 20;
/// Time for what waits when the program ends.
const END_TIME: Duration = Duration::from_millis(500);

static STDOUT: OnceLock<Arc<Outlet>> = OnceLock::new();
static STDERR: OnceLock<Arc<Outlet>> = OnceLock::new();

/// Begins to write lines by threads. `on_stdout`: stdout is for lines, not for data.
///
/// # Errors
/// If stdout is closed, or the system gives no thread.
pub fn start(on_stdout: bool) -> Result<()> {
    if on_stdout {
        files::stdout_is_given()?;
        begin(&STDOUT, "stdout", io::stdout)?;
    }
    begin(&STDERR, "stderr", io::stderr)?;
    // The log has its own words, and writes them here too.
    words::redirect(|text| to_stderr(format!("narrows: {}\n", words::shown(text.as_bytes())).into_bytes()));
    Ok(())
}

/// Writes a line of JSON to stdout.
pub fn json(line: impl Display) -> Result<()> {
    let line = words::shown_json(&line.to_string());
    match STDOUT.get() {
        Some(outlet) => outlet.push(format!("{line}\n").into_bytes()),
        None => output::out(line)?,
    }
    Ok(())
}

/// Writes a line, with its end, to stderr. Failures are ignored.
pub fn to_stderr(line: Vec<u8>) {
    match STDERR.get() {
        Some(outlet) => outlet.push(line),
        None => drop(io::stderr().write_all(&line)),
    }
}

/// Waits until all is written, for a program that ends, but not for long.
pub fn end() {
    let until = Instant::now() + END_TIME;
    [&STDOUT, &STDERR].into_iter().filter_map(OnceLock::get).for_each(|outlet| outlet.wait(until));
}

fn begin<W: Write + 'static>(place: &OnceLock<Arc<Outlet>>, name: &'static str, to: fn() -> W) -> Result<()> {
    let outlet = Arc::new(Outlet { name, ..Outlet::default() });
    let held = Arc::clone(&outlet);
    std::thread::Builder::new().name(format!("narrows-{name}")).spawn(move || {
        held.run(|line| {
            let mut to = to();
            to.write_all(line).and_then(|()| to.flush())
        })
    })?;
    let _ = place.set(outlet);
    Ok(())
}

#[derive(Default)]
struct Outlet {
    name: &'static str,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// Their bytes.
    held: usize,
    /// Lines for which there was no room, and that were not told yet.
    lost: u64,
    /// A line is being written.
    writes: bool,
    /// Nobody reads any more.
    closed: bool,
}

impl Outlet {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: Vec<u8>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        if state.held + line.len() > HELD_MAX {
            state.lost += 1;
            return;
        }
        state.held += line.len();
        state.lines.push_back(line);
        self.changed.notify_all();
    }

    /// Writes what comes, until nobody reads any more.
    fn run(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>) {
        loop {
            let mut state = self.lock();
            state.writes = false;
            self.changed.notify_all();
            while state.lines.is_empty() && state.lost == 0 {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.writes = true;
            let Some(line) = state.lines.pop_front() else {
                let lost = std::mem::take(&mut state.lost);
                drop(state);
                let lost = words::count(lost, "line", "lines");
                words::note(format_args!("lost {lost} for {}: nobody read in time", self.name));
                continue;
            };
            state.held -= line.len();
            drop(state);
            match write(&line) {
                Err(e) if e.kind() == ErrorKind::BrokenPipe => break,
                // For example a full disk: later lines may find room. That lines for stderr are lost could
                // only be said there.
                Err(_) if self.name != "stderr" => self.lock().lost += 1,
                Ok(()) | Err(_) => {}
            }
        }
        let mut state = self.lock();
        *state = State { closed: true, ..State::default() };
        self.changed.notify_all();
        drop(state);
        words::note(format_args!("nobody reads {} any more; nothing more is written to it", self.name));
    }

    fn wait(&self, until: Instant) {
        let mut state = self.lock();
        while !state.lines.is_empty() || state.lost > 0 || state.writes {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_stops_nobody() {
        let outlet = Arc::new(Outlet { name: "test", ..Outlet::default() });
        let (held, (reads, reader), (wrote, written)) = (Arc::clone(&outlet), channel::<()>(), channel());
        let writing = std::thread::spawn(move || {
            held.run(|line| {
                reader.recv().map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?;
                wrote.send(line.to_vec()).unwrap();
                Ok(())
            });
        });
        let line = |n: u8| vec![n; 64 << 10];
        // More than it holds: these return although nobody reads.
        (0..100).for_each(|n| outlet.push(line(n)));
        let lost = outlet.lock().lost;
        let most = (HELD_MAX / line(0).len()) as u64;
        assert!((100 - most - 1..=100 - most).contains(&lost), "{lost} of 100");
        outlet.wait(Instant::now());
        for n in 0..(100 - lost) as u8 {
            reads.send(()).unwrap();
            assert!(written.recv().unwrap() == line(n), "in order, {n}");
        }
        outlet.wait(Instant::now() + Duration::from_secs(60));
        assert_eq!(outlet.lock().lost, 0);
        drop(reads);
        outlet.push(line(0));
        writing.join().unwrap();
        outlet.push(line(0));
        assert!(outlet.lock().closed && outlet.lock().lines.is_empty());
    }
}
