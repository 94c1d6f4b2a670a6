//! A progress bar on a terminal, and nothing elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use narrows::sender::Summary;
use narrows::stream::Control;

use crate::report;

const REDRAW_EVERY: Duration = Duration::from_millis(100);

pub(crate) struct Bar {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// Shows a sending flow of `raw_len` bytes, if somebody is looking.
    pub(crate) fn sending(control: &Arc<Control>, raw_len: Option<u64>, wanted: bool) -> Self {
        let control = Arc::clone(control);
        Self::start(raw_len, wanted, move || {
            let s = control.send_summary();
            (s.raw_bytes, s.wire_bytes, recent_methods(&s))
        })
    }

    /// Shows a receiving flow.
    pub(crate) fn receiving(control: &Arc<Control>, wanted: bool) -> Self {
        let control = Arc::clone(control);
        Self::start(None, wanted, move || {
            let s = control.receive_summary();
            (s.raw_bytes, s.wire_bytes, String::new())
        })
    }

    fn start(raw_len: Option<u64>, wanted: bool, look: impl Fn() -> (u64, u64, String) + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        if !wanted || !std::io::stderr().is_terminal() {
            return Self { over, thread: None };
        }
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let bar = raw_len.map_or_else(ProgressBar::no_length, ProgressBar::new);
            bar.set_style(style(raw_len.is_some()));
            let begun = Instant::now();
            while !told.load(Ordering::Relaxed) {
                let (raw, wire, methods) = look();
                let goodput = raw as f64 / begun.elapsed().as_secs_f64().max(1e-3);
                let ratio = raw as f64 / wire.max(1) as f64;
                bar.set_position(raw);
                bar.set_message(format!(
                    "wire {}, {}/s, ratio {ratio:.2} {methods}",
                    report::bytes(wire as f64),
                    report::bytes(goodput)
                ));
                std::thread::park_timeout(REDRAW_EVERY);
            }
            bar.finish_and_clear();
        });
        Self { over, thread: Some(thread) }
    }

    pub(crate) fn end(mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// indicatif leaves colours out by itself when NO_COLOR is set.
fn style(length_known: bool) -> ProgressStyle {
    let template = if length_known {
        "{bar:24.cyan} {binary_bytes}/{binary_total_bytes} {msg} ETA {eta}"
    } else {
        "{spinner} {binary_bytes} {msg} {elapsed}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn recent_methods(s: &Summary) -> String {
    let words = report::mix_words(s);
    if words.is_empty() { words } else { format!("[{words}]") }
}
