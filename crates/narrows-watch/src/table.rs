//! What a process tells of itself, and the trace of a flow, as text for people.

use narrows_host::words::{bytes, shown, shown_json};
use serde_json::{Map, Value};

use crate::status::{Connection, Status};

const HEAD: [&str; 9] = ["PEER", "STATE", "RAW OUT", "WIRE OUT", "RATIO", "RAW IN", "WIRE IN", "RATIO", "AGE"];

/// A line about the process, and one for each of its connections. Nothing of it steers a terminal.
pub fn table(process: &Status) -> String {
    let mut rows: Vec<Vec<String>> = process.connections.iter().map(row).collect();
    if !rows.is_empty() {
        rows.insert(0, HEAD.map(String::from).to_vec());
    }
    let widths: Vec<usize> =
        (0..HEAD.len()).map(|i| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0)).collect();
    let mut lines = vec![title(process)];
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

fn title(process: &Status) -> String {
    let (program, live) = (text(&process.program), process.connections.len());
    let kind = if process.kind == "run" { "supervisor".into() } else { text(&process.kind) };
    let counted: Vec<_> = process.outcomes.iter().map(|o| format!("{} {}", o.connections, text(&o.outcome))).collect();
    let more = Some(process.connections_left_out).filter(|n| *n > 0);
    let more = more.map_or(String::new(), |n| format!(" and {n} that are not listed"));
    let counted = if counted.is_empty() { String::new() } else { format!(": {}", counted.join(", ")) };
    let ended = process.ended.connections;
    format!("{program} ({kind} {}): {live} live{more}, {ended} ended{counted}", process.pid)
}

fn row(connection: &Connection) -> Vec<String> {
    // A connection that goes on elsewhere is told by both its ends.
    let way = if connection.accepted || !connection.target.is_empty() { "from" } else { "to" };
    let to = if connection.target.is_empty() { String::new() } else { format!(" to {}", text(&connection.target)) };
    let mut row = vec![format!("{way} {}{to}", text(&connection.peer)), text(&connection.outcome)];
    for traffic in [&connection.out, &connection.back] {
        row.push(bytes(traffic.raw_bytes as f64));
        row.push(bytes(traffic.wire_bytes as f64));
        row.push(format!("{:.2}", traffic.raw_bytes as f64 / traffic.wire_bytes.max(1) as f64));
    }
    row.push(format!("{:.0} s", connection.age_s));
    row
}

/// Text from another program, escaped so that it cannot control the terminal.
fn text(text: &str) -> String {
    if text.is_empty() { "?".into() } else { shown(text.as_bytes()) }
}

/// A line of the trace as JSON; `None` for one that is none.
pub fn json_of(line: &str) -> Option<String> {
    serde_json::from_str::<Map<String, Value>>(line).ok().map(|_| shown_json(line))
}

/// A line of the trace for people; `None` for one that they need not see.
pub fn tell(line: &str) -> Option<String> {
    let event: Value = serde_json::from_str(line).ok()?;
    let n = |key: &str| event[key].as_f64().unwrap_or(0.0);
    let word = |key: &str| shown(event[key].as_str().unwrap_or("?").as_bytes());
    let ms = |key: &str| n(key) / 1e6;
    match event["event"].as_str()? {
        "flow" => Some(format!("flow {}: {} to {}", n("id"), word("from"), word("to"))),
        "raw" => Some(format!("raw: {} as they are ({})", bytes(n("raw_len")), word("why"))),
        "choose" => {
            let link = if event["rate_known"] == true { bytes(n("rate_bytes_per_s")) } else { "?".into() };
            let linked = if event["linked"] == true { ", linked" } else { "" };
            let why: Vec<_> = reasons(&event).collect();
            let why = if why.is_empty() { String::new() } else { format!("; {}", why.join(", ")) };
            let (block, at) = (bytes(n("block_len")), bytes(n("raw_offset")));
            let (seq, method, unsent) = (n("seq"), word("method"), bytes(n("unsent_bytes")));
            Some(format!(
                "{:.1} ms block {seq} at {at}: {method}{linked} for {block}; link {link}/s, {unsent} unsent{why}",
                ms("now_ns")
            ))
        }
        "encoded" => {
            let (raw, wire) = (n("raw_len"), n("wire_len"));
            let (late, method) =
                (if event["taken_over"] == true { ", not used: it was late" } else { "" }, word("method"));
            let ratio = raw / wire.max(1.0);
            let (seq, took) = (n("seq"), ms("wall_ns"));
            let (raw, wire) = (bytes(raw), bytes(wire));
            Some(format!(
                "{:.1} ms block {seq}: {raw} to {wire} by {method}, ratio {ratio:.2}, {took:.2} ms{late}",
                ms("now_ns")
            ))
        }
        "wait" => Some(format!("{:.1} ms block {}: late, waited for", ms("now_ns"), n("seq"))),
        "rescue" => {
            Some(format!("{:.1} ms block {}: late, sent by {} instead", ms("now_ns"), n("seq"), word("method")))
        }
        _ => None,
    }
}

/// The policy's own figures, which are after the keys that every choice has.
fn reasons(event: &Value) -> impl Iterator<Item = String> {
    const COMMON: [&str; 17] = [
        "event",
        "now_ns",
        "busy_ns",
        "seq",
        "raw_offset",
        "gathered",
        "queue",
        "unsent_bytes",
        "rate_bytes_per_s",
        "rate_known",
        "cores",
        "jobs",
        "method",
        "linked",
        "history_len",
        "block_len",
        "encode_ns",
    ];
    let own = event.as_object().into_iter().flatten().filter(|(key, _)| !COMMON.contains(&key.as_str()));
    own.filter_map(|(key, value)| Some(format!("{} {:.4}", shown(key.as_bytes()), value.as_f64()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_table_is_aligned_and_steers_no_terminal() {
        let traffic = json!({ "raw_bytes": 4096, "wire_bytes": 1024 });
        let connection = |peer| json!({ "peer": peer, "accepted": true, "outcome": "compressed", "age_s": 3.2, "out": traffic, "back": traffic });
        let supervisor = json!({
            "kind": "run", "pid": 7, "program": "a\u{1b}[2Jb", "connections": [connection("10.0.0.1:1"), connection("10.0.0.100:40000")],
            "ended": { "connections": 3 }, "outcomes": [{ "outcome": "plain (loopback)", "connections": 3 }],
        });
        let table = |json: Value| super::table(&serde_json::from_value(json).unwrap());
        let text = table(supervisor);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].ends_with("(supervisor 7): 2 live, 3 ended: 3 plain (loopback)"), "{}", lines[0]);
        assert!(lines[3].contains("4.0 KiB") && lines[3].contains("4.00"), "{}", lines[3]);
        let ends: Vec<_> = lines[1..].iter().map(|l| l.chars().count()).collect();
        assert!(ends.windows(2).all(|w| w[0] == w[1]), "{text}");
        assert!(!text.contains('\u{1b}'));
        // Unexpected output of another version must not end this program.
        assert!(table(json!({ "connections": [{}] })).contains("?"));
        let tunnel = json!({ "kind": "tunnel", "pid": 9, "program": "-L 1:a:2 b", "connections": [
            { "peer": "10.0.0.1:9", "target": "a:2", "accepted": true, "outcome": "raw (short)" }] });
        let text = table(tunnel);
        assert!(text.starts_with("-L 1:a:2 b (tunnel 9): 1 live, 0 ended\n"), "{text}");
        assert!(text.contains("from 10.0.0.1:9 to a:2"), "{text}");
    }

    #[test]
    fn a_trace_as_json_steers_no_terminal() {
        let line = "{\"event\":\"\u{9b}2J\u{202e}\"}";
        assert_eq!(json_of(line).as_deref(), Some(r#"{"event":"\u009b2J\u202e"}"#));
        for other in ["", "hello", "7", "\u{1b}[2J", "{\"a\":\"\u{1b}\"}"] {
            assert_eq!(json_of(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_trace_is_told_in_words() {
        let choose = r#"{"event":"choose","now_ns":1500000,"busy_ns":0,"seq":3,"raw_offset":2048,"gathered":true,"queue":1,"unsent_bytes":10,"rate_bytes_per_s":1048576,"rate_known":true,"cores":2,"jobs":0,"method":"zstd:level=1","linked":true,"history_len":8192,"block_len":4096,"encode_ns":9,"price":0.250000}"#;
        let words =
            "1.5 ms block 3 at 2.0 KiB: zstd:level=1, linked for 4.0 KiB; link 1.0 MiB/s, 10 B unsent; price 0.2500";
        assert_eq!(tell(choose).unwrap(), words);
        let encoded = r#"{"event":"encoded","now_ns":2000000,"seq":3,"method":"zstd:level=1","raw_len":4096,"wire_len":1024,"wall_ns":50000,"cpu_ns":1,"taken_over":false}"#;
        assert_eq!(tell(encoded).unwrap(), "2.0 ms block 3: 4.0 KiB to 1.0 KiB by zstd:level=1, ratio 4.00, 0.05 ms");
        assert_eq!(tell(r#"{"event":"raw","raw_len":5,"why":"short"}"#).unwrap(), "raw: 5 B as they are (short)");
        for other in ["", "{}", "[1]", r#"{"event":"later"}"#] {
            assert_eq!(tell(other), None, "{other}");
        }
    }
}
