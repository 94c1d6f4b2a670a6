//! Checks of the values of axes and settings, and threads that load the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cells::Scenario;
use crate::registry;
use crate::units::parse_len;

/// Checks a value; the error says what is wrong with it.
pub(crate) type Check = fn(&str) -> Result<(), String>;

pub(super) fn name(text: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !text.is_empty() && text.chars().all(fine) && !text.starts_with('.') { Ok(()) } else { Err("no name".into()) }
}

/// A folder of the corpus, or a file in one: FOLDER/FILE.
pub(super) fn name_or_file(text: &str) -> Result<(), String> {
    text.split_once('/').map_or_else(|| name(text), |(folder, file)| name(folder).and_then(|()| name(file)))
}

pub(super) fn positive(text: &str) -> Result<(), String> {
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() && x > 0.0 => Ok(()),
        _ => Err("must be a number above 0".into()),
    }
}

pub(super) fn not_negative(text: &str) -> Result<(), String> {
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() && x >= 0.0 => Ok(()),
        _ => Err("must be a number, 0 or above".into()),
    }
}

/// A positive number, or `-` if the value is given elsewhere.
pub(super) fn positive_or_not(text: &str) -> Result<(), String> {
    if text == "-" { Ok(()) } else { positive(text) }
}

pub(super) fn not_negative_or_not(text: &str) -> Result<(), String> {
    if text == "-" { Ok(()) } else { not_negative(text) }
}

/// Flags of `narrows run`, as words without quotes; `-` is none.
pub(super) fn flags(text: &str) -> Result<(), String> {
    let plain = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:,/=*[]{}".contains(c));
    match text.split(' ').find(|w| !plain(w)) {
        Some(word) => Err(format!("'{word}' has characters that are not allowed in a flag")),
        None => Ok(()),
    }
}

pub(super) fn count(text: &str) -> Result<(), String> {
    match text.parse::<u32>() {
        Ok(1..=1024) => Ok(()),
        _ => Err("must be 1 to 1024".into()),
    }
}

/// Number of processes that only use CPU.
pub(super) fn hogs(text: &str) -> Result<(), String> {
    match text.parse::<u32>() {
        Ok(0..=64) => Ok(()),
        _ => Err("must be 0 to 64".into()),
    }
}

pub(super) fn len(text: &str) -> Result<(), String> {
    parse_len(text).map(|_| ())
}

pub(super) fn len_or_whole(text: &str) -> Result<(), String> {
    if text == "whole" { Ok(()) } else { len(text) }
}

pub(super) fn method(text: &str) -> Result<(), String> {
    registry::method(text).map(|_| ()).map_err(|e| e.to_string())
}

pub(super) fn policy(text: &str) -> Result<(), String> {
    if matches!(text, "plain" | "best-fixed" | "oracle") {
        return Ok(());
    }
    registry::policy(text).map(|_| ()).map_err(|e| e.to_string())
}

pub(super) fn scenario(text: &str) -> Result<(), String> {
    text.parse::<Scenario>().map(|_| ())
}

/// Threads that use CPU until this value is dropped.
pub(crate) struct Hogs {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Hogs {
    pub(crate) fn start(count: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let work = || {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut x = 1u64;
                while !stop.load(Ordering::Relaxed) {
                    // Enough work between checks of the flag that the check costs nothing.
                    for _ in 0..10_000 {
                        x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                    }
                }
            })
        };
        Self { threads: (0..count).map(|_| work()).collect(), stop }
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}
