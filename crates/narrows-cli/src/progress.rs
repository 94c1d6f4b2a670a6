//! Progress bar, shown only on a terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use narrows::sender::Summary;
use narrows::stream::Control;

use crate::counts::Counts;
use crate::report;
use narrows_copy::fallback::ArchiveProgress;
use narrows_copy::source::Progress;
use narrows_copy::store::{EntryStore, Stored};
use narrows_pack::Progress as PackProgress;

const REDRAW_EVERY: Duration = Duration::from_millis(100);

/// The state to show at one moment.
struct Look {
    done: u64,
    total: Option<u64>,
    wire: u64,
    words: String,
}

/// A progress bar that a thread of its own redraws.
pub(crate) struct Bar {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// Shows a sending flow of `raw_len` bytes, if `wanted` and stderr is a terminal.
    pub(crate) fn sending(control: &Arc<Control>, raw_len: Option<u64>, wanted: bool) -> Self {
        let control = Arc::clone(control);
        Self::start(wanted, move || {
            let s = control.send_summary();
            let words = recent_methods(&s);
            Look { done: s.crossed_raw_bytes, total: raw_len, wire: s.crossed_wire_bytes, words }
        })
    }

    /// Shows a copy that is sent. Its length is known when everything is scanned; data that exists
    /// at the target does not count.
    pub(crate) fn copying(
        control: &Arc<Control>,
        progress: impl Fn() -> Progress + Send + 'static,
        wanted: bool,
    ) -> Self {
        let control = Arc::clone(control);
        let mut crossed = 0;
        Self::start(wanted, move || {
            let (s, p) = (control.send_summary(), progress());
            // It falls by a little where the names of files are under way.
            crossed = p.bytes_crossed(s.crossed_raw_bytes).max(crossed);
            let total = (p.scanned && !p.endless).then(|| p.bytes.saturating_sub(p.bytes_same + p.bytes_here));
            let at_least = if p.scanned { "" } else { ">= " };
            let done = p.files_sent + p.files_same;
            // What the other end has read is not known here.
            let waits = p.bytes_compared > 0 && p.scanned && done < p.files && crossed == 0;
            let compared = compared(p.bytes_compared) + if waits { "the target compares, " } else { "" };
            let files = report::count(p.files, "file", "files");
            let files = format!("{compared}{done}/{at_least}{files} {}", recent_methods(&s));
            Look { done: crossed, total, wire: s.crossed_wire_bytes, words: files }
        })
    }

    /// Shows a receiving flow.
    pub(crate) fn receiving(control: &Arc<Control>, wanted: bool) -> Self {
        let control = Arc::clone(control);
        Self::start(wanted, move || {
            let s = control.receive_summary();
            Look { done: s.raw_bytes, total: None, wire: s.wire_bytes, words: String::new() }
        })
    }

    /// Shows a copy that is received. The sender announces the total when it has scanned
    /// everything; data that exists at the target does not count.
    pub(crate) fn storing(control: &Arc<Control>, store: EntryStore, wanted: bool) -> Self {
        let control = Arc::clone(control);
        let mut stored = Stored::default();
        Self::start(wanted, move || {
            let s = control.receive_summary();
            stored = store.stored_now().unwrap_or_else(|| std::mem::take(&mut stored));
            let total = stored.total.map(|(_, bytes)| bytes.saturating_sub(stored.bytes_same));
            let files = stored.files + stored.files_same;
            let files = match stored.total {
                Some((all, _)) => format!("{files}/{}", report::count(all, "file", "files")),
                None => report::count(files, "file", "files"),
            };
            let words = compared(store.compared()) + &files;
            Look { done: stored.bytes_done, total, wire: s.wire_bytes, words }
        })
    }

    /// Shows a tree that is packed.
    pub(crate) fn packing(progress: &Arc<PackProgress>, wanted: bool) -> Self {
        let p = Arc::clone(progress);
        Self::start(wanted, move || {
            let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
            let total = p.scanned.load(Ordering::Relaxed).then(|| get(&p.bytes));
            let words = format!("{}/{}", get(&p.files_done), report::count(get(&p.files), "file", "files"));
            Look { done: get(&p.bytes_done), total, wire: 0, words }
        })
    }

    /// Shows a copy to or from an object store.
    pub(crate) fn objects(counts: &Arc<Counts>, wanted: bool) -> Self {
        let counts = Arc::clone(counts);
        Self::start(wanted, move || {
            let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
            let words = report::count(of(&counts.files) + of(&counts.same), "file", "files");
            let total = counts.has_total.load(Ordering::Relaxed).then(|| of(&counts.raw_total));
            // Stored bytes are known when a file is complete, and raw ones before.
            Look { done: of(&counts.raw), total, wire: 0, words }
        })
    }

    /// Shows a copy with tar.
    pub(crate) fn archive(progress: &Arc<ArchiveProgress>, wanted: bool) -> Self {
        let progress = Arc::clone(progress);
        Self::start(wanted, move || Look {
            done: progress.raw_bytes(),
            total: progress.total(),
            wire: progress.wire_bytes(),
            words: String::new(),
        })
    }

    fn start(wanted: bool, mut look: impl FnMut() -> Look + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        if !wanted || !std::io::stderr().is_terminal() {
            return Self { over, thread: None };
        }
        let told = Arc::clone(&over);
        let work = move || {
            let bar = ProgressBar::no_length();
            bar.set_style(style(false));
            let begun = Instant::now();
            while !told.load(Ordering::Relaxed) {
                let Look { done, total, wire, words } = look();
                if let Some(total) = total
                    && bar.length() != Some(total)
                {
                    bar.set_length(total);
                    bar.set_style(style(true));
                }
                let goodput = done as f64 / begun.elapsed().as_secs_f64().max(1e-3);
                let ratio = if wire > 0 { format!(", ratio {:.2}", done as f64 / wire as f64) } else { String::new() };
                bar.set_position(done);
                // Before the first byte there is no speed to show, as while files are compared.
                let speed = if done > 0 { format!("{}/s{ratio} ", report::bytes(goodput)) } else { String::new() };
                bar.set_message(speed + &words);
                std::thread::park_timeout(REDRAW_EVERY);
            }
            bar.finish_and_clear();
        };
        // If the thread cannot be started, there is no bar.
        Self { over, thread: std::thread::Builder::new().name("narrows-bar".into()).spawn(work).ok() }
    }

    /// Removes the bar.
    pub(crate) fn end(self) {}
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// One line, truncated to the width of the terminal. indicatif itself omits colours if NO_COLOR is
/// set.
fn style(length_known: bool) -> ProgressStyle {
    let template = if length_known {
        "{bar:10.cyan} {binary_bytes}/{binary_total_bytes} ETA {eta} {wide_msg}"
    } else {
        "{spinner} {binary_bytes} {elapsed} {wide_msg}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// What was read to compare files by their contents, before which nothing is sent.
fn compared(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!("compared {}, ", report::bytes(bytes as f64)) }
}

/// The method of the largest share; 80 columns have no room for more.
fn recent_methods(s: &Summary) -> String {
    let words = report::mix_words(s);
    words.split(", ").next().filter(|first| !first.is_empty()).map_or(String::new(), |first| format!("[{first}]"))
}
