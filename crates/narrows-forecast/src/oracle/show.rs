//! Output of the answers as tables and as JSON.

use std::fmt::Write;

use narrows_host::words;
use narrows_sim::table::{CLASSES, Table};
use serde_json::{Value, json};

use super::judge::{Answer, Row};

/// Index of the block length whose figures describe a method: that of programs with a fixed method.
const CLASS: usize = 2;

/// Description of the data and the host of the figures.
pub struct About {
    pub path: String,
    pub raw_len: usize,
    /// Bytes of them that were measured.
    pub measured_len: usize,
    /// Whether the data continues after `raw_len`.
    pub is_cut: bool,
    pub cores: usize,
    pub decoders: usize,
    pub cpu: String,
    /// Whether the measurements come from an earlier run.
    pub from_cache: bool,
    pub has_energy: bool,
}

/// Figures of one method on all data, in blocks of 128 KiB, on one core.
pub struct Speed {
    pub method: String,
    pub ratio: f64,
    pub encode_mb_per_s: f64,
    pub decode_mb_per_s: f64,
}

/// The figures of every method.
pub fn speeds(table: &Table) -> Vec<Speed> {
    let (blocks, raw) = (table.blocks(CLASS), table.len() as f64);
    let of = |(m, method): (usize, &narrows::codec::Method)| {
        let sum = |f: fn(&narrows_sim::table::Cost) -> f64| blocks.iter().map(|b| f(&b[m])).sum::<f64>();
        let mb_per_s = |ns: f64| if ns > 0.0 { 1e3 * raw / ns } else { f64::INFINITY };
        Speed {
            method: method.to_string(),
            ratio: raw / sum(|c| c.wire_len),
            encode_mb_per_s: mb_per_s(sum(|c| c.encode_ns)),
            decode_mb_per_s: mb_per_s(sum(|c| c.decode_ns)),
        }
    };
    table.methods.iter().enumerate().map(of).collect()
}

/// One line that describes the data and the cores.
pub fn headline(about: &About) -> String {
    let first = if about.is_cut { "the first " } else { "" };
    let cores = |n: usize| words::count(n, "core", "cores");
    let measured = match about.measured_len < about.raw_len {
        true => format!(", by {} of them", words::bytes(about.measured_len as f64)),
        false => String::new(),
    };
    format!(
        "{}: {first}{}{measured}; {} to encode, {} to decode, as fast as {}",
        about.path,
        words::bytes(about.raw_len as f64),
        cores(about.cores),
        cores(about.decoders),
        about.cpu
    )
}

/// The answer for one rate in a few words.
pub fn estimate(answer: &Answer) -> String {
    let policies = answer.policies.iter().map(|row| format!(", {} {}", row.name, seconds(row.seconds)));
    let times = [("plain", answer.plain()), ("best schedule", &answer.best)];
    let times = times.map(|(name, row)| format!("{name} {}", seconds(row.seconds))).join(", ");
    format!("{} Mbit/s: {times}{}", answer.rate.mbit(), policies.collect::<String>())
}

/// The table for one rate.
pub fn table(about: &About, answer: &Answer) -> String {
    let best_fixed = answer.best_fixed();
    let mut rows = vec![(answer.bound.name.clone(), &answer.bound), (answer.best.name.clone(), &answer.best)];
    // If no method is better than plain, the row of plain is enough.
    if best_fixed.kind != "plain" {
        rows.push((format!("best fixed: {}", best_fixed.name), best_fixed));
    }
    rows.push(("plain".into(), answer.plain()));
    rows.extend(answer.policies.iter().map(|r| (r.name.clone(), r)));
    let width = rows.iter().map(|r| r.0.chars().count()).max().unwrap_or(0).max(24);
    let rate = format!("{} Mbit/s", answer.rate.mbit());
    let heads = ["time", "T*/time", "goodput", "wire", "ratio", "CPU", "energy"];
    let mut text = format!("{rate:width$}");
    for (head, columns) in heads.iter().zip(WIDTHS) {
        let _ = write!(text, " {head:>columns$}");
    }
    text.push('\n');
    for (name, row) in rows {
        let energy = match row.joules {
            Some(joules) => format!("{} J", short(joules)),
            None if row.kind == "bound" && about.has_energy => "-".into(),
            None => "unavailable".into(),
        };
        let cells = [
            seconds(row.seconds),
            format!("{:.3}", answer.best.seconds / row.seconds),
            format!("{} Mbit/s", short(goodput_mbit(about, row))),
            words::bytes(row.wire_bytes),
            format!("{:.2}", about.raw_len as f64 / row.wire_bytes),
            seconds(row.cpu_s),
            energy,
        ];
        let _ = write!(text, "{name:width$}");
        for (cell, columns) in cells.iter().zip(WIDTHS) {
            let _ = write!(text, " {cell:>columns$}");
        }
        text.push('\n');
    }
    let words =
        winners(answer).map(|(what, winner)| format!("{what}: {}", winner.map_or("unavailable", |r| r.name.as_str())));
    let _ = writeln!(text, "best single method by {}", words.join(", by "));
    text
}

const WIDTHS: [usize; 7] = [9, 8, 13, 10, 6, 9, 11];

fn winners(answer: &Answer) -> [(&'static str, Option<&Row>); 4] {
    [
        ("time", answer.winner(|r| Some(r.seconds))),
        ("bytes", answer.winner(|r| Some(r.wire_bytes))),
        ("CPU", answer.winner(|r| Some(r.cpu_s))),
        ("energy", answer.winner(|r| r.joules)),
    ]
}

/// Goodput in Mbit/s.
pub fn goodput_mbit(about: &About, row: &Row) -> f64 {
    about.raw_len as f64 / row.seconds.max(1e-12) / 125_000.0
}

/// A number with three significant digits.
fn short(value: f64) -> String {
    match value {
        v if v >= 99.95 || v == 0.0 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.9995 => format!("{v:.2}"),
        v => format!("{v:.digits$}", digits = (-v.log10()).ceil().min(12.0) as usize + 2),
    }
}

fn seconds(s: f64) -> String {
    match s {
        s if s >= 0.9995 => format!("{} s", short(s)),
        s if s >= 0.000_999_5 => format!("{} ms", short(s * 1e3)),
        s => format!("{} us", short(s * 1e6)),
    }
}

/// The JSON document.
pub fn json(about: &About, table: &Table, answers: &[Answer]) -> Value {
    let row = |r: &Row| {
        json!({
            "kind": r.kind,
            "name": r.name,
            "seconds": r.seconds,
            "goodput_bytes_per_s": about.raw_len as f64 / r.seconds.max(1e-12),
            "wire_bytes": r.wire_bytes.round() as u64,
            "ratio": about.raw_len as f64 / r.wire_bytes,
            "cpu_s": r.cpu_s,
            "joules": r.joules,
        })
    };
    let link = |a: &Answer| {
        let rows = [&a.bound, &a.best].into_iter().chain(&a.fixed).chain(&a.policies).map(row);
        let winners = winners(a).map(|(what, winner)| (what.to_ascii_lowercase(), json!(winner.map(|r| &r.name))));
        json!({
            "mbit_per_s": a.rate.mbit(),
            "rows": rows.collect::<Vec<_>>(),
            "best_fixed": a.best_fixed().name,
            "winners": winners.into_iter().collect::<serde_json::Map<_, _>>(),
        })
    };
    let speed = |s: Speed| {
        let finite = |v: f64| v.is_finite().then_some(v);
        json!({
            "method": s.method, "ratio": s.ratio,
            "encode_mb_per_s": finite(s.encode_mb_per_s), "decode_mb_per_s": finite(s.decode_mb_per_s),
        })
    };
    json!({
        "path": about.path,
        "raw_bytes": about.raw_len,
        "measured_bytes": about.measured_len,
        "is_cut": about.is_cut,
        "cpu": about.cpu,
        "cores": about.cores,
        "receiver_cores": about.decoders,
        "block_lens": CLASSES,
        "from_cache": about.from_cache,
        "energy": if about.has_energy { "rapl" } else { "unavailable" },
        "methods": speeds(table).into_iter().map(speed).collect::<Vec<_>>(),
        "links": answers.iter().map(link).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [
            (1234.5, "1234"),
            (99.96, "100"),
            (12.345, "12.3"),
            (1.0, "1.00"),
            (0.9996, "1.00"),
            (0.0123, "0.0123"),
            (0.5, "0.500"),
            (0.0, "0"),
        ] {
            assert_eq!(short(value), text);
        }
        assert_eq!(
            (seconds(2.5), seconds(0.0025), seconds(2.5e-6)),
            ("2.50 s".into(), "2.50 ms".into(), "2.50 us".into())
        );
    }
}
