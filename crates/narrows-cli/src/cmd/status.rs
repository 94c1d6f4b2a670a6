//! `narrows status`: lists the programs under `narrows run` and their connections.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::args::status::StatusArgs;
use crate::report;
use narrows_host::words::shown;
use narrows_run::status;

const HEAD: [&str; 9] = ["PEER", "STATE", "RAW OUT", "WIRE OUT", "RATIO", "RAW IN", "WIRE IN", "RATIO", "AGE"];

/// Runs `narrows status`.
pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    let status::Answers { supervisors, left_out } = status::ask_all().context("cannot look for supervisors")?;
    if left_out > 0 {
        report::note(format_args!("{left_out} supervisors did not answer in time, or sent too much, and are left out"));
    }
    if args.json {
        return report::out(json!({ "supervisors": supervisors, "left_out": left_out }));
    }
    if supervisors.is_empty() && left_out == 0 {
        report::note("nothing runs under `narrows run`");
    }
    supervisors.iter().try_for_each(|supervisor| report::out(table(supervisor)))
}

fn table(supervisor: &Value) -> String {
    let connections = supervisor["connections"].as_array().map_or(&[][..], Vec::as_slice);
    let mut rows: Vec<Vec<String>> = connections.iter().map(row).collect();
    if !rows.is_empty() {
        rows.insert(0, HEAD.map(String::from).to_vec());
    }
    let widths: Vec<usize> =
        (0..HEAD.len()).map(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0)).collect();
    let mut lines = vec![title(supervisor, connections.len())];
    lines.extend(rows.iter().map(|row| {
        // Text is aligned to the left, numbers to the right.
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, width))| match i {
            0 | 1 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  "))
    }));
    lines.join("\n")
}

fn title(supervisor: &Value, live: usize) -> String {
    let program = shown(supervisor["program"].as_str().unwrap_or("?").as_bytes());
    let ended = supervisor["ended"]["connections"].as_u64().unwrap_or(0);
    let outcomes = supervisor["outcomes"].as_array().map_or(&[][..], Vec::as_slice);
    let counted: Vec<_> =
        outcomes.iter().map(|o| format!("{} {}", number(&o["connections"]), text(&o["outcome"]))).collect();
    let more = supervisor["connections_left_out"].as_u64().filter(|n| *n > 0);
    let more = more.map_or(String::new(), |n| format!(" and {n} that are not listed"));
    let counted = if counted.is_empty() { String::new() } else { format!(": {}", counted.join(", ")) };
    format!("{program} (supervisor {}): {live} live{more}, {ended} ended{counted}", number(&supervisor["pid"]))
}

fn row(connection: &Value) -> Vec<String> {
    let way = if connection["accepted"].as_bool().unwrap_or(false) { "from" } else { "to" };
    let mut row = vec![format!("{way} {}", text(&connection["peer"])), text(&connection["outcome"])];
    for direction in ["out", "back"] {
        let traffic = &connection[direction];
        let [raw, wire] = ["raw_bytes", "wire_bytes"].map(|name| traffic[name].as_u64().unwrap_or(0));
        row.push(report::bytes(raw as f64));
        row.push(report::bytes(wire as f64));
        row.push(format!("{:.2}", raw as f64 / wire.max(1) as f64));
    }
    row.push(format!("{:.0} s", connection["age_s"].as_f64().unwrap_or(0.0)));
    row
}

/// Text from another program, escaped so that it cannot control the terminal.
fn text(value: &Value) -> String {
    shown(value.as_str().unwrap_or("?").as_bytes())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_steers_no_terminal() {
        let traffic = json!({ "raw_bytes": 4096, "wire_bytes": 1024 });
        let connection = |peer| json!({ "peer": peer, "accepted": true, "outcome": "compressed", "age_s": 3.2, "out": traffic, "back": traffic });
        let supervisor = json!({
            "pid": 7, "program": "a\u{1b}[2Jb", "connections": [connection("10.0.0.1:1"), connection("10.0.0.100:40000")],
            "ended": { "connections": 3 }, "outcomes": [{ "outcome": "plain (loopback)", "connections": 3 }],
        });
        let table = table(&supervisor);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].ends_with("(supervisor 7): 2 live, 3 ended: 3 plain (loopback)"), "{}", lines[0]);
        assert!(lines[3].contains("4.0 KiB") && lines[3].contains("4.00"), "{}", lines[3]);
        let ends: Vec<_> = lines[1..].iter().map(|l| l.chars().count()).collect();
        assert!(ends.windows(2).all(|w| w[0] == w[1]), "{table}");
        assert!(!table.contains('\u{1b}'));
        // Unexpected output of another version must not end this program.
        assert!(super::table(&json!({ "connections": [{}] })).contains("?"));
    }
}
