//! Real links, replayed: what the sender saw of veth links behind a token bucket goes through the
//! link monitor again, and its estimates are held to bounds.
//!
//! A file has the rate of the link in its first line, then an observation per line: begin and end
//! of the write in ns, unsent bytes before and after, bytes accepted, bytes unacknowledged, round
//! trip in ns. They were taken from the `link` events of `narrows send --trace`, transfers of 4 MB
//! on two cores with a bucket of 64 KB and a queue of 250 KB.

use std::fs;
use std::path::{Path, PathBuf};

use narrows::monitor::expectation::PeerLink;
use narrows::monitor::link::{LinkMonitor, LinkSample};

/// Bytes that the bucket lets through at once, twice: before them nothing shows the rate.
const UNSEEN_BYTES: u64 = 128 << 10;
/// Share of a segment that is payload: 1,448 of the 1,514 bytes that the bucket counts.
const PAYLOAD_SHARE: f64 = 1448.0 / 1514.0;

/// Estimates / true rate, once enough bytes have crossed. `expected`: the rate of an earlier flow, over
/// the true one.
fn replay(path: &Path, expected: Option<f64>) -> Vec<f64> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let mbit: f64 = lines.next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
    let true_rate = mbit * 125_000.0 * PAYLOAD_SHARE;
    let mut monitor = LinkMonitor::default();
    let memory = expected.map(|share| PeerLink { rate_bytes_per_s: share * true_rate, rtt_ns: None });
    memory.iter().for_each(|link| monitor.expect(link));
    let mut estimates = Vec::new();
    let mut accepted = 0;
    for line in lines {
        let fields: Vec<Option<u64>> = line.split(' ').map(|f| f.parse().ok()).collect();
        let [begin_ns, end_ns, unsent_before, unsent_after, bytes] = [0, 1, 2, 3, 4].map(|i| fields[i].unwrap());
        let sample = LinkSample {
            begin_ns,
            end_ns,
            unsent_before,
            unsent_after,
            accepted: bytes,
            unacked: fields[5],
            rtt_ns: fields[6],
            ..LinkSample::default()
        };
        monitor.observe(&sample);
        accepted += bytes;
        if accepted - fields[5].unwrap_or(0) > UNSEEN_BYTES && monitor.is_known() {
            estimates.push(monitor.rate_bytes_per_s() / true_rate);
        }
    }
    estimates
}

fn traces() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/link_traces");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 9);
    files
}

fn is_near(mut estimates: Vec<f64>, name: &str) {
    assert!(estimates.len() >= 3, "{name}: the rate was never known");
    let last = *estimates.last().unwrap();
    estimates.sort_by(f64::total_cmp);
    let (n, least, most) = (estimates.len(), estimates[0], estimates[estimates.len() - 1]);
    let median = estimates[n / 2];
    println!("{name}: {n} estimates, {least:.2} to {most:.2}, median {median:.2}, last {last:.2} of the rate");
    assert!((0.7..1.7).contains(&median), "{name}: median {median}");
    assert!(most < 4.0, "{name}: up to {most}");
}

#[test]
fn estimates_of_real_links_are_near_their_rates() {
    for path in traces() {
        is_near(replay(&path, None), &path.file_name().unwrap().to_string_lossy());
    }
}

#[test]
fn so_they_are_after_a_memory_that_is_right_or_wrong() {
    for path in traces() {
        for expected in [0.01, 0.1, 1.0, 10.0, 100.0] {
            let name = format!("{}, expected {expected}", path.file_name().unwrap().to_string_lossy());
            is_near(replay(&path, Some(expected)), &name);
        }
    }
}
