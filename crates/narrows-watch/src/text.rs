//! Metrics as text: the format 0.0.4 of Prometheus, and OpenMetrics 1.0.

use std::fmt::Write;

use super::metric::{Buckets, Families, Family, Kind, Sample, Value};
use super::process;
use super::status::Status;

/// Form of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    OpenMetrics,
}

impl Format {
    /// What a client wants that sends this `Accept` header.
    pub fn of_accept(accept: Option<&str>) -> Self {
        match accept {
            Some(accept) if accept.contains("application/openmetrics-text") => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All metrics of a process: those of every kind, then its own.
pub fn families(status: &Status) -> Families {
    const BYTES: &str = "direction";
    let mut all = Families::default();
    let mut info = Families::default();
    info.gauge("narrows_build_info", "Version and kind of the process; the value is 1.", 1.0);
    if let Some(sample) = info.0[0].samples.first_mut() {
        sample.labels.insert("version".into(), status.narrows.clone());
        sample.labels.insert("kind".into(), status.kind.clone());
    }
    all.0.append(&mut info.0);
    let t = &status.totals;
    let ways = |out: u64, back: u64| [("out", out as f64), ("in", back as f64)];
    let help = "Bytes before encoding and after decoding, by direction as seen from this process.";
    all.counters("narrows_raw_bytes_total", help, BYTES, ways(t.out_raw_bytes, t.back_raw_bytes));
    let help = "Bytes that crossed the link for them.";
    all.counters("narrows_wire_bytes_total", help, BYTES, ways(t.out_wire_bytes, t.back_wire_bytes));
    let open = status.connections.len() as u64 + status.connections_left_out;
    all.gauge("narrows_connections_open", "Connections, flows or copies that are open.", open as f64);
    let help = "Connections, flows or copies since the start, with the open ones.";
    all.counter("narrows_connections_total", help, t.connections as f64);
    let help = "Those that failed or were reset.";
    all.counter("narrows_connections_failed_total", help, t.failed as f64);

    let of = |number: fn(&super::account::MethodAmount) -> u64| {
        status.methods.iter().map(move |m| (m.name.as_str(), number(m) as f64))
    };
    all.counters("narrows_method_frames_total", "Blocks sent, by method.", "method", of(|m| m.frames));
    all.counters("narrows_method_raw_bytes_total", "Raw bytes of these blocks.", "method", of(|m| m.raw_bytes));
    all.counters("narrows_method_wire_bytes_total", "Bytes that they took.", "method", of(|m| m.wire_bytes));
    let s = |ns: u64| ns as f64 / 1e9;
    let help = "CPU time of encoding, and of decoding: of a tunnel its own, of others as their receivers report it.";
    let cpu = [("encode", s(status.times.encode_cpu_ns)), ("decode", s(status.times.decode_cpu_ns))];
    all.counters("narrows_codec_cpu_seconds_total", help, "work", cpu);
    let help = "Time of sending flows: link busy, link without anything to send because blocks were being encoded (dry), \
                nothing to send (idle). Flows at the same time add up.";
    let link = [
        ("busy", s(status.times.link_busy_ns)),
        ("dry", s(status.times.link_dry_ns)),
        ("idle", s(status.times.idle_ns)),
    ];
    all.counters("narrows_link_seconds_total", help, "state", link);
    all.0.extend(status.metrics.0.iter().cloned());

    all.counter("process_cpu_seconds_total", "CPU time of the process.", status.cpu_s);
    all.gauge("process_resident_memory_bytes", "Resident memory of the process.", status.memory_bytes as f64);
    let help = "Start of the process, in seconds since 1970.";
    all.gauge("process_start_time_seconds", help, process::started_s(status.age_s));
    if let Some(n) = process::descriptors() {
        all.gauge("process_open_fds", "Open descriptors of the process.", n as f64);
    }
    all
}

/// The text of these families.
pub fn page(families: &Families, format: Format) -> String {
    let mut out = String::with_capacity(8 << 10);
    families.0.iter().for_each(|family| put(&mut out, family, format));
    if format == Format::OpenMetrics {
        out += "# EOF\n";
    }
    out
}

fn put(out: &mut String, family: &Family, format: Format) {
    let name = match (format, family.kind) {
        (Format::OpenMetrics, Kind::Counter) => family.name.trim_end_matches("_total"),
        _ => &family.name,
    };
    let kind = match family.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    // OpenMetrics escapes quotes here too, and a backslash before one is allowed in both.
    let _ = writeln!(out, "# HELP {name} {}", escaped(&family.help, format == Format::OpenMetrics));
    let _ = writeln!(out, "# TYPE {name} {kind}");
    for sample in &family.samples {
        match &sample.value {
            Value::Value(value) => line(out, &family.name, sample, None, *value),
            Value::Histogram(buckets) => put_histogram(out, &family.name, sample, buckets),
        }
    }
}

fn put_histogram(out: &mut String, name: &str, sample: &Sample, buckets: &Buckets) {
    let mut all = 0u64;
    let bounds = buckets.bounds.iter().copied().chain([f64::INFINITY]);
    for (bound, count) in bounds.zip(&buckets.counts) {
        all += count;
        line(out, &format!("{name}_bucket"), sample, Some(bound), all as f64);
    }
    line(out, &format!("{name}_sum"), sample, None, buckets.sum);
    line(out, &format!("{name}_count"), sample, None, all as f64);
}

fn line(out: &mut String, name: &str, sample: &Sample, bound: Option<f64>, value: f64) {
    *out += name;
    let labels = sample.labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true)));
    let labels: Vec<_> = labels.chain(bound.map(|bound| format!("le=\"{}\"", number(bound)))).collect();
    if !labels.is_empty() {
        let _ = write!(out, "{{{}}}", labels.join(","));
    }
    let _ = writeln!(out, " {}", number(value));
}

fn number(value: f64) -> String {
    match value {
        f64::INFINITY => "+Inf".into(),
        f64::NEG_INFINITY => "-Inf".into(),
        value if value.is_nan() => "NaN".into(),
        value => value.to_string(),
    }
}

fn escaped(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '"' if quotes => out += "\\\"",
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Families {
        let mut families = Families::default();
        families.counters("narrows_a_total", "A \"b\"\\\nc.", "way", [("x\"\\\ny", 3.0)]);
        families.histogram("narrows_h_seconds", "H.", Buckets { bounds: vec![0.5], counts: vec![2, 1], sum: 1.25 });
        families
    }

    #[test]
    fn the_text_is_that_of_the_format() {
        let expected = "# HELP narrows_a_total A \"b\"\\\\\\nc.\n# TYPE narrows_a_total counter\n\
                        narrows_a_total{way=\"x\\\"\\\\\\ny\"} 3\n\
                        # HELP narrows_h_seconds H.\n# TYPE narrows_h_seconds histogram\n\
                        narrows_h_seconds_bucket{le=\"0.5\"} 2\nnarrows_h_seconds_bucket{le=\"+Inf\"} 3\n\
                        narrows_h_seconds_sum 1.25\nnarrows_h_seconds_count 3\n";
        assert_eq!(page(&some(), Format::Text), expected);
        let open = page(&some(), Format::OpenMetrics);
        assert!(open.starts_with("# HELP narrows_a A \\\"b\\\"\\\\\\nc.\n# TYPE narrows_a counter\nnarrows_a_total{"));
        assert!(open.ends_with("narrows_h_seconds_count 3\n# EOF\n"));
    }

    #[test]
    fn a_client_gets_the_form_that_it_asks_for() {
        let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Format::of_accept(Some(accept)), Format::OpenMetrics);
        assert_eq!(Format::of_accept(Some("*/*")), Format::Text);
        assert_eq!(Format::of_accept(None), Format::Text);
    }

    #[test]
    fn every_process_has_the_common_metrics_once() {
        let families = families(&process::status("tunnel", "p", std::time::Duration::ZERO));
        let mut names: Vec<_> = families.0.iter().map(|f| f.name.as_str()).collect();
        assert!(["narrows_wire_bytes_total", "process_cpu_seconds_total"].iter().all(|n| names.contains(n)));
        names.sort_unstable();
        assert!(names.windows(2).all(|w| w[0] != w[1]), "{names:?}");
        assert!(families.0.iter().all(|f| super::super::metric::is_name(&f.name) && f.help.ends_with('.')));
    }
}
