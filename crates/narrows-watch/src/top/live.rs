//! Frames of what runs: live in a terminal, or as text.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use narrows::Error;
use narrows_host::output::out;
use narrows_host::signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

use super::frame::{Form, draw};
use super::picture;
use super::screen::{Input, Screen};
use super::view::{Next, Sort, View};
use super::world::{Look, World};
use crate::ask;

/// Interval at which signals and answers are looked for; a key is noticed at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Interval at which the terminal is looked for.
const HANGUP_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// Columns of a frame as text, where there is no terminal.
const COLUMNS: usize = 80;

/// What is shown, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// What comes first.
    pub sort: Sort,
    /// Only lines that contain it are shown.
    pub filter: String,
    /// The table of processes is shown first, not that of flows.
    pub processes: bool,
    /// Seconds between two frames.
    pub interval_s: f64,
    /// Graphs are drawn with ASCII, as they are where the locale is not UTF-8.
    pub ascii: bool,
    /// Frames after which it ends.
    pub frames: Option<u32>,
    /// The last frame is printed as a picture (SVG).
    pub svg: bool,
    /// Columns of a frame that is printed.
    pub width: Option<usize>,
}

impl Options {
    fn view(&self) -> View {
        View {
            sort: self.sort,
            reverse: false,
            filter: self.filter.clone(),
            typing: false,
            processes: self.processes,
            help: false,
            paused: false,
            interval_s: self.interval_s,
            top: 0,
        }
    }
}

/// Shows frames in the terminal. A signal that ends it gives the terminal back first.
///
/// # Errors
/// If there is no terminal that can show them, or processes cannot be asked.
pub fn watch(options: &Options) -> Result<()> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Error::misuse("top needs a terminal; --once and --batch print text").into());
    }
    if matches!(std::env::var("TERM").as_deref(), Err(_) | Ok("" | "dumb")) {
        return Err(Error::misuse("this terminal (TERM) cannot move its cursor; --once and --batch print text").into());
    }
    std::thread::Builder::new().name("narrows-hangup".into()).spawn(end_with_terminal)?;
    let stopped = Arc::new(AtomicUsize::new(0));
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        signal_hook::flag::register_usize(number, Arc::clone(&stopped), number as usize)?;
    }
    let ended = show(options.view(), options.ascii || !is_utf8(), options.frames, &stopped);
    // The terminal is its owner's again.
    if let Some(signal) = i32::try_from(stopped.load(Ordering::Relaxed)).ok().filter(|signal| *signal != 0) {
        signals::die_of(signal);
    }
    ended
}

/// Prints frames as text, or the last one as a picture.
///
/// # Errors
/// If processes cannot be asked, or stdout cannot be written.
pub fn print(options: &Options) -> Result<()> {
    let (view, ascii) = (options.view(), options.ascii || !is_utf8());
    let width = match options.width {
        Some(width) => width,
        None if io::stdout().is_terminal() => {
            crossterm::terminal::size().map_or(COLUMNS, |(columns, _)| columns.into())
        }
        None => COLUMNS,
    };
    let form = Form { width: width.max(40), height: None, ascii };
    let mut world = World::default();
    world.look(look()?, Instant::now());
    let frames = options.frames;
    let mut printed = 0;
    while frames.is_none_or(|frames| printed < frames) {
        std::thread::sleep(Duration::from_secs_f64(view.interval_s));
        world.look(look()?, Instant::now());
        let lines = draw(&world, &view, form, &clock());
        printed += 1;
        if options.svg {
            if frames == Some(printed) {
                return out(picture::draw(&lines, form.width).trim_end());
            }
            continue;
        }
        let text: Vec<_> = lines.iter().map(|line| line.text()).collect();
        let between = if printed > 1 { "\n" } else { "" };
        out(format_args!("{between}{}", text.join("\n").trim_end()))?;
    }
    Ok(())
}

fn look() -> Result<Look> {
    let (processes, left_out) = ask::all().context("cannot look for processes")?.processes();
    Ok(Look { processes, left_out })
}

/// Shows frames until the person or a signal ends it.
fn show(mut view: View, ascii: bool, frames: Option<u32>, stopped: &AtomicUsize) -> Result<()> {
    // Processes may be slow to answer, and keys are not to wait for them.
    let (ask, asked) = channel::<()>();
    let (tell, told) = channel();
    std::thread::Builder::new().name("narrows-ask".into()).spawn(move || answer(&asked, &tell))?;
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let screen = Screen::take(!no_colour).context("cannot use the terminal")?;
    let mut world = World::default();
    let mut shown = 0;
    let mut due = Instant::now();
    let mut waiting = false;
    loop {
        if stopped.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        if !waiting && !view.paused && Instant::now() >= due {
            due = Instant::now() + Duration::from_secs_f64(view.interval_s);
            waiting = ask.send(()).is_ok();
        }
        let mut draws = false;
        match told.try_recv() {
            Ok(look) => {
                waiting = false;
                // Rates need two looks; the second one is not waited for as long.
                if !world.has_rates() {
                    due = due.min(Instant::now() + Duration::from_secs_f64(view.interval_s.min(1.0)));
                }
                world.look(look?, Instant::now());
                shown += u32::from(world.has_rates());
                draws = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => anyhow::bail!("a thread failed; this is a bug"),
        }
        let (width, height) = screen.size();
        let form = Form { width, height: Some(height), ascii };
        let patience = LOOK_EVERY.min(due.saturating_duration_since(Instant::now())).max(Duration::from_millis(5));
        match screen.input(if draws { Duration::ZERO } else { patience }).context("cannot read the terminal")? {
            None => {}
            Some(Input::Interrupt) => return Ok(()),
            Some(Input::Suspend) => {
                screen
                    .lend(|| {
                        let _ = kill_process(getpid(), Signal::STOP);
                    })
                    .context("cannot use the terminal")?;
                draws = true;
            }
            Some(Input::Resize) => draws = true,
            Some(Input::Key(key)) => match view.press(key, form.page()) {
                Next::Quit => return Ok(()),
                Next::Draw => draws = true,
                Next::Nothing => {}
            },
        }
        if draws {
            // What lies beyond the end of the table is not scrolled back through.
            let rows = if view.processes { view.process_rows(&world).len() } else { view.flows(&world).len() };
            view.top = view.top.min(rows.saturating_sub(form.page()));
            screen.show(&draw(&world, &view, form, &clock())).context("cannot write to the terminal")?;
        }
        if frames.is_some_and(|frames| shown >= frames) {
            return Ok(());
        }
    }
}

/// Ends the program when its terminal is gone, which not every program is sent a signal for: the
/// library that reads keys would read the end of the input for ever.
fn end_with_terminal() {
    let input = io::stdin();
    loop {
        let mut fds = [PollFd::new(&input, PollFlags::empty())];
        // The system does not wake who waits for nothing else.
        match poll(&mut fds, Some(&HANGUP_EVERY)) {
            Ok(_) if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) => {
                signals::die_of(libc::SIGHUP);
            }
            Ok(_) | Err(Errno::INTR) => {}
            // Without it, a signal ends the program.
            Err(_) => return,
        }
    }
}

/// Asks all processes whenever it is told to.
fn answer(asked: &Receiver<()>, tell: &Sender<Result<Look>>) {
    while asked.recv().is_ok() {
        if tell.send(look()).is_err() {
            return;
        }
    }
}

/// Whether the locale's characters are UTF-8, as the C library finds it.
fn is_utf8() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
    let locale = locale.to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The time of day in UTC.
fn clock() -> String {
    let s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("{:02}:{:02}:{:02} UTC", s / 3600 % 24, s / 60 % 60, s % 60)
}
