//! The log of services: lines with time, level and part on stderr, as text or as JSON.
//!
//! Without `--log`, `--log-level` and `NARROWS_LOG` there is none, and messages are short lines for
//! people.

use std::io;
use std::sync::OnceLock;

use anyhow::Result;
use narrows::Error;
use narrows_host::words;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::{Registry, fmt};

use crate::outlet;

/// Variable with the levels of the log, as for `--log-level`.
const VARIABLE: &str = "NARROWS_LOG";

/// Parts that have messages.
const PARTS: [&str; 5] = ["tunnel", "flow", "peer", "serve", "agent"];

/// The part that messages without one belong to.
static PART: OnceLock<&'static str> = OnceLock::new();

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Json,
}

impl Form {
    /// All forms, with their names.
    pub const ALL: [(&'static str, Self); 2] = [("text", Self::Text), ("json", Self::Json)];
}

/// What a user says of the log; nothing of it is said by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    pub form: Option<Form>,
    /// Levels, one for all or for each part, such as `info,flow=debug`.
    pub levels: Option<String>,
}

/// Starts the log of this process, if there is to be one. `usual`: the level that the other options ask
/// for.
///
/// # Errors
/// If the levels are none.
pub fn start(part: &'static str, wanted: &Wanted, usual: LevelFilter) -> Result<()> {
    let variable = std::env::var(VARIABLE).ok().filter(|levels| !levels.is_empty());
    if wanted.form.is_none() && wanted.levels.is_none() && variable.is_none() {
        return Ok(());
    }
    let (source, levels) = match (&wanted.levels, variable) {
        (Some(levels), _) => ("--log-level", levels.clone()),
        (None, Some(levels)) => (VARIABLE, levels),
        (None, None) => ("", usual.to_string()),
    };
    let targets = parse(&levels).ok_or_else(|| Error::misuse(format!("{source}: {}", wrong(&levels))))?;
    let form = wanted.form.unwrap_or(Form::Text);
    let writer = fmt::layer().with_writer(Lines(form)).with_ansi(false);
    let subscriber = match form {
        Form::Text => Registry::default().with(writer.with_filter(targets).boxed()),
        Form::Json => Registry::default().with(writer.json().flatten_event(true).with_filter(targets).boxed()),
    };
    let _ = PART.set(part);
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        words::redirect(note);
    }
    Ok(())
}

/// Writes lines of the log to stderr. What others say comes into it, so nothing of it may steer a
/// terminal or look like a further line.
#[derive(Clone, Copy)]
struct Lines(Form);

impl MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

impl io::Write for Lines {
    /// A line comes in one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        outlet::to_stderr(self.escaped(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn escaped(self, line: &[u8]) -> Vec<u8> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let text = match self.0 {
            Form::Text => words::shown(line),
            Form::Json => words::shown_json(&String::from_utf8_lossy(line)),
        };
        format!("{text}\n").into_bytes()
    }
}

/// Whether these are levels.
///
/// # Errors
/// What they have to be.
pub fn check(levels: &str) -> Result<(), String> {
    parse(levels).map(drop).ok_or_else(|| wrong(levels))
}

fn wrong(levels: &str) -> String {
    let (levels, parts) = (words::shown(levels.as_bytes()), PARTS.join(", "));
    format!("'{levels}' is no list of levels such as info,flow=debug; parts are {parts}")
}

/// Levels, one for all and one for each part that has its own.
fn parse(levels: &str) -> Option<Targets> {
    // The library takes an empty word for a level.
    let level = |word: &str| word.parse::<LevelFilter>().ok().filter(|_| !word.is_empty());
    let mut targets = Targets::new();
    for word in levels.split(',').map(str::trim) {
        targets = match word.split_once('=') {
            Some((part, word)) if PARTS.contains(&part) => targets.with_target(part, level(word)?),
            Some(_) => return None,
            None => targets.with_default(level(word)?),
        };
    }
    Some(targets)
}

/// The level that `--quiet` and `--verbose` ask for.
pub fn usual(quiet: bool, verbose: bool) -> LevelFilter {
    match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (_, true) => LevelFilter::DEBUG,
        _ => LevelFilter::INFO,
    }
}

/// Whether messages go to the log.
pub fn is_on() -> bool {
    PART.get().is_some()
}

/// A message of a library.
fn note(text: &str) {
    // A target has to be a constant.
    match PART.get().copied() {
        Some("tunnel") => tracing::info!(target: "tunnel", "{text}"),
        Some("serve") => tracing::info!(target: "serve", "{text}"),
        Some("agent") => tracing::info!(target: "agent", "{text}"),
        _ => tracing::info!(target: "narrows", "{text}"),
    }
}

/// The error that ends the program.
pub fn failure(text: &str) {
    match PART.get().copied() {
        Some("tunnel") => tracing::error!(target: "tunnel", "{text}"),
        Some("serve") => tracing::error!(target: "serve", "{text}"),
        Some("agent") => tracing::error!(target: "agent", "{text}"),
        _ => tracing::error!(target: "narrows", "{text}"),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_message_is_one_line_that_steers_no_terminal() {
        let said = "refused \u{1b}[2J\u{9b}2J\u{202e}gpj\r\n2026 INFO tunnel: all is well\u{7f}";
        let text = String::from_utf8(Lines(Form::Text).escaped(format!("{said}\n").as_bytes())).unwrap();
        let json = serde_json::json!({ "message": said }).to_string() + "\n";
        let json = String::from_utf8(Lines(Form::Json).escaped(json.as_bytes())).unwrap();
        for line in [&text, &json] {
            let (line, end) = line.split_at(line.len() - 1);
            assert!(end == "\n" && words::shown(line.as_bytes()) == line, "{line:?}");
        }
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["message"], said);
    }

    #[test]
    fn each_part_can_have_its_own_level() {
        let targets = parse("warn, flow=debug,peer=off").unwrap();
        assert!(targets.would_enable("flow", &Level::DEBUG) && !targets.would_enable("peer", &Level::ERROR));
        assert!(targets.would_enable("tunnel", &Level::WARN) && !targets.would_enable("tunnel", &Level::INFO));
        for wrong in ["", "loud", "flow", "flow=", "flow=loud", "else=info", "info,,flow=info"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
