//! Summaries and errors, as text and as JSON.

use std::fmt::Display;
use std::time::Duration;

use narrows::ErrorKind;
use narrows::codec::CodecId;
use narrows::policy::print_method;
use narrows::receiver::RecvSummary;
use narrows::sender::Summary;
use serde_json::{Value, json};

pub(crate) use narrows_host::output::{ask, is_all_out, out, out_meanwhile};
pub(crate) use narrows_host::words::{bytes, count, note, note_json, one_line, wire};
use narrows_watch::bottleneck::Bottleneck;

/// Error that the other end was told and reports to the user, so that this end prints nothing.
#[derive(Debug)]
pub(crate) struct Told;

impl Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the client was told")
    }
}

impl std::error::Error for Told {}

/// The class of an error, if it is one of the engine or of a copy.
pub(crate) fn kind(error: &anyhow::Error) -> Option<ErrorKind> {
    match error.downcast_ref() {
        Some(narrows_copy::Error::Usage(_)) => Some(ErrorKind::Misuse),
        Some(narrows_copy::Error::Flow { error, .. }) => Some(error.kind),
        _ => error.downcast_ref::<narrows::Error>().map(|e| e.kind),
    }
}

/// The exit status of an error, as `--help` documents it.
pub(crate) fn status(error: &anyhow::Error) -> u8 {
    match kind(error) {
        Some(ErrorKind::Corrupt | ErrorKind::Truncated | ErrorKind::Unsupported | ErrorKind::Limit) => 3,
        Some(ErrorKind::Misuse) => 2,
        _ => 1,
    }
}

/// `64.0 MiB in 1.20 s, 53.3 MiB/s; wire 18.7 MiB, ratio 3.42; 78 % zstd:level=1, 22 % lz4; bound by the link 91 %`
pub(crate) fn line(s: &Summary, elapsed: Duration) -> String {
    let parts = [
        Some(amount(s.raw_bytes, elapsed)),
        Some(wire(s.raw_bytes, s.wire_bytes)),
        Some(mix_words(s)),
        Bottleneck::of_sending(s, 0, false).words(elapsed),
    ];
    join(parts)
}

/// What is told of attributes that could not be kept, such as `group of 2, times of 1`; `None` if nothing is.
pub(crate) fn losses(losses: &str, tells_groups: bool) -> Option<String> {
    let told = losses.split(", ").filter(|loss| tells_groups || !loss.starts_with("group of "));
    let told = told.collect::<Vec<_>>().join(", ");
    Some(told).filter(|told| !told.is_empty())
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

/// `pack 18.7 MiB, ratio 3.42`
pub(crate) fn packed(raw: u64, packed: u64) -> String {
    format!("pack {}, ratio {:.2}", bytes(packed as f64), raw as f64 / packed.max(1) as f64)
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

/// Columns of the methods in a summary: 80 less the words before them.
const MIX_COLUMNS: usize = 60;

/// Methods by share of the raw bytes, the largest first; at most four, and as many as fit in a line.
pub(crate) fn mix_words(s: &Summary) -> String {
    let mut rows: Vec<_> = s.mix.iter().map(|r| (r.raw_bytes, print_method(r.method, r.linked))).collect();
    rows.push((s.copied_bytes, "copied".to_owned()));
    rows.sort_by(|a, b| b.cmp(a));
    let share = |n: u64| 100.0 * n as f64 / s.raw_bytes.max(1) as f64;
    let mut line = String::new();
    for (bytes, name) in rows.iter().filter(|r| share(r.0) >= 0.5).take(4) {
        let word = format!("{}{:.0} % {name}", if line.is_empty() { "" } else { ", " }, share(*bytes));
        if line.len() + word.len() > MIX_COLUMNS {
            break;
        }
        line += &word;
    }
    line
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
        "copied_bytes": s.copied_bytes,
        "searched_bytes": s.searched_bytes,
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
    Bottleneck::of_sending(s, 0, false).put(&mut json);
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
        "copied_bytes": s.copied_bytes,
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
    use std::io;

    use super::*;

    #[test]
    fn times_are_as_long_as_they_matter() {
        let words = |ms| time(Duration::from_millis(ms));
        assert_eq!([words(0), words(1204), words(12_040)], ["0.00 s", "1.20 s", "12.0 s"]);
        assert_eq!([words(185_900), words(3_725_000)], ["3 min 05 s", "1 h 02 min"]);
    }

    #[test]
    fn a_full_disk_is_no_link() {
        let full = || io::Error::from_raw_os_error(28);
        let link = narrows::Error::system("cannot write to the link", full());
        assert_eq!(crate::files::innermost(io::Error::other(link)).to_string(), full().to_string());
        assert_eq!(crate::files::innermost(full()).to_string(), full().to_string());
    }

    #[test]
    fn a_summary_of_nothing_divides_nothing_by_zero() {
        assert_eq!(line(&Summary::default(), Duration::ZERO).matches("NaN").count(), 0);
        assert_eq!(receive_line(&RecvSummary::default(), Duration::ZERO).matches("inf").count(), 0);
    }
}
