//! Summaries and errors, as text and as JSON.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result};
use narrows::codec::CodecId;
use narrows::policy::print_method;
use narrows::receiver::RecvSummary;
use narrows::sender::Summary;
use serde_json::{Value, json};

use crate::bound::Bound;
use crate::copy::shown;
use crate::files::StdoutClosed;

/// Error that the other end was told and reports to the user, so that this end prints nothing.
#[derive(Debug)]
pub(crate) struct Told;

impl Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the client was told")
    }
}

impl std::error::Error for Told {}

/// Prints a line to stdout. If the reader has closed it, the error terminates the program by
/// SIGPIPE, as other filters.
pub(crate) fn out(text: impl Display) -> Result<()> {
    match writeln!(io::stdout(), "{text}") {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
        result => result.context("cannot write stdout"),
    }
}

/// Prints a message to stderr. Failures to do so are ignored.
pub(crate) fn note(text: impl Display) {
    whole_line(format!("narrows: {text}\n"));
}

/// Prints a line of JSON to stderr, for when stdout carries data.
pub(crate) fn note_json(json: &Value) {
    whole_line(format!("{json}\n"));
}

/// Writes a line in one call: other processes may write to stderr at the same time, and a killed
/// process leaves no partial line.
fn whole_line(line: String) {
    let _ = io::stderr().write_all(line.as_bytes());
}

/// An error and its causes on one line, outermost first. It is escaped, as it may contain text from
/// the peer.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string().replace(['\n', '\r'], " ");
        let text = without_os_numbers(&shown(text.as_bytes()));
        // An engine error prints its source itself.
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

/// Removes ` (os error 28)`, which the standard library adds to system errors: the text is enough.
pub(crate) fn without_os_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (os error ") {
        out += before;
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(')').unwrap_or(after);
    }
    out + rest
}

/// A number of bytes with a binary unit, such as `18.7 MiB`.
pub(crate) fn bytes(n: f64) -> String {
    for (unit, size) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if n >= size as f64 {
            return format!("{:.1} {unit}", n / size as f64);
        }
    }
    format!("{n:.0} B")
}

/// `64.0 MiB in 1.20 s, 53.3 MiB/s; wire 18.7 MiB, ratio 3.42; 78 % zstd:level=1, 22 % lz4; bound by the link 91 %`
pub(crate) fn line(s: &Summary, elapsed: Duration) -> String {
    let parts = [
        Some(amount(s.raw_bytes, elapsed)),
        Some(wire(s.raw_bytes, s.wire_bytes)),
        Some(mix_words(s)),
        Bound::of_sending(s, 0, false).words(elapsed),
    ];
    join(parts)
}

/// Joins the parts that are present and not empty with `; `.
pub(crate) fn join(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// `64.0 MiB in 1.20 s, 53.3 MiB/s`
pub(crate) fn amount(raw: u64, elapsed: Duration) -> String {
    let goodput = raw as f64 / elapsed.as_secs_f64().max(1e-9);
    format!("{} in {}, {}/s", bytes(raw as f64), time(elapsed), bytes(goodput))
}

/// `wire 18.7 MiB, ratio 3.42`
pub(crate) fn wire(raw: u64, wire: u64) -> String {
    format!("wire {}, ratio {:.2}", bytes(wire as f64), raw as f64 / wire.max(1) as f64)
}

/// A duration with about three digits.
fn time(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match seconds {
        0..10 => format!("{:.2} s", elapsed.as_secs_f64()),
        10..60 => format!("{:.1} s", elapsed.as_secs_f64()),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Methods by share of the raw bytes, the largest first.
pub(crate) fn mix_words(s: &Summary) -> String {
    let mut rows: Vec<_> = s.mix.iter().map(|r| (r.raw_bytes, print_method(r.method, r.linked))).collect();
    rows.sort_by(|a, b| b.cmp(a));
    let share = |n: u64| 100.0 * n as f64 / s.raw_bytes.max(1) as f64;
    let words: Vec<_> =
        rows.iter().filter(|r| share(r.0) >= 0.5).take(4).map(|r| format!("{:.0} % {}", share(r.0), r.1)).collect();
    words.join(", ")
}

fn codec_name(codec: CodecId) -> &'static str {
    codec.codec().map_or("unknown", |c| c.name())
}

/// Summary of a sent flow as JSON.
pub(crate) fn send_json(s: &Summary, elapsed: Duration) -> Value {
    let seconds = elapsed.as_secs_f64();
    let mix: Vec<_> = s
        .mix
        .iter()
        .map(|r| {
            json!({
                "method": print_method(r.method, r.linked),
                "codec": codec_name(r.method.codec),
                "frames": r.frames,
                "raw_bytes": r.raw_bytes,
                "wire_bytes": r.wire_bytes,
            })
        })
        .collect();
    let mut json = json!({
        "raw_bytes": s.raw_bytes,
        "wire_bytes": s.wire_bytes,
        "ratio": s.ratio(),
        "seconds": seconds,
        "goodput_bytes_per_s": s.raw_bytes as f64 / seconds.max(1e-9),
        "frames": s.frames,
        "mix": mix,
        "encode_cpu_ns": s.encode_cpu_ns,
        "decode_cpu_ns": s.decode_cpu_ns,
        "link_busy_ns": s.link_busy_ns,
        "link_dry_ns": s.link_dry_ns,
        "idle_ns": s.idle_ns,
        "confirm_ns": s.confirm_ns,
        "receiver_limited_ns": s.receiver_limited_ns,
        "receiver_blocked_ns": s.receiver_blocked_ns,
        "rate_bytes_per_s": s.rate_bytes_per_s,
        "rescued_blocks": s.rescued_blocks,
        "probed_blocks": s.probed_blocks,
        "memory_peak_bytes": s.memory_peak,
    });
    Bound::of_sending(s, 0, false).put(&mut json);
    json
}

/// Summary of a received flow as JSON.
pub(crate) fn receive_json(s: &RecvSummary, elapsed: Duration) -> Value {
    let seconds = elapsed.as_secs_f64();
    let mix: Vec<_> = s
        .mix
        .iter()
        .map(|r| {
            let codec = codec_name(r.codec);
            // The stream names only the codec of a method, not its setting.
            json!({
                "method": codec,
                "codec": codec,
                "frames": r.frames,
                "raw_bytes": r.raw_bytes,
                "wire_bytes": r.wire_bytes,
            })
        })
        .collect();
    json!({
        "raw_bytes": s.raw_bytes,
        "wire_bytes": s.wire_bytes,
        "ratio": s.raw_bytes as f64 / s.wire_bytes.max(1) as f64,
        "seconds": seconds,
        "goodput_bytes_per_s": s.raw_bytes as f64 / seconds.max(1e-9),
        "frames": s.frames,
        "mix": mix,
        "decode_cpu_ns": s.decode_cpu_ns,
        "sink_ns": s.sink_ns,
        "commit_ns": s.commit_ns,
    })
}

/// Summary of a received flow as one line.
pub(crate) fn receive_line(s: &RecvSummary, elapsed: Duration) -> String {
    join([Some(amount(s.raw_bytes, elapsed)), Some(wire(s.raw_bytes, s.wire_bytes))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_without_numbers_and_repetitions() {
        let io = || io::Error::from_raw_os_error(28);
        let error = anyhow::Error::from(io()).context("cannot write out");
        assert_eq!(one_line(&error), "cannot write out: No space left on device");
        let error = anyhow::Error::from(narrows::Error::from(io())).context("cannot send\nthis");
        assert_eq!(one_line(&error), "cannot send this: input or output failed: No space left on device");
        let told = anyhow::anyhow!("the receiver failed: \u{202e}\u{9b}2J");
        assert_eq!(one_line(&told), "the receiver failed: \\u{202e}\\u{9b}2J");
    }

    #[test]
    fn times_are_as_long_as_they_matter() {
        let words = |ms| time(Duration::from_millis(ms));
        assert_eq!([words(0), words(1204), words(12_040)], ["0.00 s", "1.20 s", "12.0 s"]);
        assert_eq!([words(185_900), words(3_725_000)], ["3 min 05 s", "1 h 02 min"]);
    }

    #[test]
    fn a_summary_of_nothing_divides_nothing_by_zero() {
        assert_eq!(line(&Summary::default(), Duration::ZERO).matches("NaN").count(), 0);
        assert_eq!(receive_line(&RecvSummary::default(), Duration::ZERO).matches("inf").count(), 0);
    }
}
