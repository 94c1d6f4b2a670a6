//! The prediction: how long a copy of the folder takes, and how sure that is.

use narrows::codec::Method;
use narrows::policy::PolicySpec;
use narrows::stream;
use narrows_copy::measure::{Found, Series, Speed};
use narrows_plan::interval::Interval;
use narrows_sim::limits::Limits;
use narrows_sim::table::{CLASSES, Table};

use super::folder::Folder;
use crate::Rate;
use crate::oracle::judge::{Question, Row};

/// Bytes that are played in virtual time at most; longer copies go on at the pace of the second half.
const PLAYED_MAX: usize = 16 << 20;
/// CPU of a copy besides coding and link, per raw byte, in nanoseconds: reading, comparing and cutting at
/// the one end, comparing and writing at the other (`cp` with `--policy store` within one host).
const SOURCE_NS: f64 = 0.8;
const SINK_NS: f64 = 1.2;
/// Seconds of a file besides its bytes: found, announced, created, named. Creating one takes a file system 0.1
/// to 1 ms, by how full it is.
const FILE_S: f64 = 150e-6;
const FILE_SPREAD_S: f64 = 250e-6;
/// Copies take this much longer than what is played: the flow has a beginning and an end, and a token bucket
/// makes the measured rate a little better than it is. Set by hand on the tuning half of
/// docs/experiments/measure.md, as are the next four.
const LONGER: f64 = 1.03;
/// Share of the time that the measurement loses while its window opens that a copy loses, too: its
/// connection has carried more before, and has no window but TCP's.
const LATE: f64 = 0.5;
/// Standard error of predictions as a share, where the link is the limit and where the hosts are.
const MODEL_LINK: f64 = 0.06;
const MODEL_HOSTS: f64 = 0.35;
/// Where other programs leave no core at all, copies take this much longer than by their share alone, and
/// vary by the other share: threads wait for their turn.
const BUSY_LONGER: f64 = 0.2;
const BUSY_SPREAD: f64 = 0.3;
/// Seconds by which the beginning and the end of a copy vary.
const MODEL_S: f64 = 0.03;
/// Standard deviations on each side that hold 80 % of a normal distribution.
const DEVIATIONS: f64 = 1.2816;
/// Round trips of a copy that nothing overlaps: the request with the first answers, and the confirmation.
const ROUND_TRIPS: f64 = 2.0;
/// CPU of decoding over that of encoding, for two ends that share the cores.
const DECODING: f64 = 0.2;

/// One way to copy the folder.
pub struct Way {
    /// `narrows`, `plain`, `zstd -1`, `zstd -3`, `best`.
    pub name: &'static str,
    pub seconds: Interval,
    pub wire_bytes: f64,
}

/// The prediction for a folder.
pub struct Prediction {
    pub raw_bytes: f64,
    /// Narrows first.
    pub ways: Vec<Way>,
    /// Share of the time in which the link is the limit, 0 to 1.
    pub by_link: f64,
    /// Of narrows: share of the bytes by method, the largest first.
    pub mix: Vec<(String, f64)>,
    /// Cores that encode and decode.
    pub cores: [usize; 2],
}

/// How many times as fast a core of the other host decodes and encodes.
pub fn quickness(own: &[Speed], theirs: &[Speed]) -> Option<[f64; 2]> {
    let mean = |ns: fn(&Speed) -> f64| {
        let logs = own.iter().filter_map(|a| {
            let b = theirs.iter().find(|b| b.method == a.method)?;
            Some((ns(a) / ns(b)).ln())
        });
        let logs: Vec<f64> = logs.collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    };
    Some([mean(|s| s.decode_ns)?, mean(|s| s.encode_ns)?])
}

/// Predicts a copy to the other host. `begin_s`: from the start of the command until the other end spoke.
/// Once `over` says so, only what is missing of narrows and plain is played.
pub fn predict(found: &Found, folder: &Folder, begin_s: f64, over: &dyn Fn() -> bool) -> Option<Prediction> {
    let sketch = folder.sketch.as_ref()?;
    let table = &sketch.table;
    let rate = found.up.rate.bytes_per_s;
    let peer = &found.peer;
    // Two ends on one host share its cores.
    let cores = if peer.same_host {
        let all = stream::cores().min(peer.cores);
        [all.div_ceil(2), (all / 2).max(1)]
    } else {
        [stream::encoders(), peer.cores]
    };
    let [own, theirs] = &found.speeds;
    // Other programs take their part of the cores.
    let (share, far_share) = (sketch.share, if peer.same_host { sketch.share } else { theirs.share });
    let quick = if peer.same_host { 1.0 } else { quickness(&own.each, &theirs.each).map_or(1.0, |q| q[0]) };
    let speeds = [share, quick * far_share].map(|speed| speed.clamp(0.02, 50.0));
    let [send_ns, receive_ns] = found.up.cpu_ns_per_byte.map(|ns| ns.unwrap_or(1.0).clamp(0.05, 100.0));
    let total = folder.len.max(table.len() as u64);
    let len = usize::try_from(total).unwrap_or(usize::MAX).min(PLAYED_MAX.max(table.len()));
    let balance = PolicySpec::balance();
    let question = |len: usize| Question {
        table,
        limits: Limits::new(table),
        watts: None,
        methods: &table.methods,
        policies: &[],
        cores: cores[0],
        decoders: cores[1],
        len,
        speeds,
    };
    let whole = question(len);
    let half = (total > len as u64).then(|| question(len / 2));
    let left = total as f64 - len as f64;
    // Seconds and wire bytes of all of the folder, and the methods of what was played.
    let all = |play: &dyn Fn(&Question<'_>) -> Row| {
        let row = play(&whole);
        let Some(half) = half.as_ref().map(play) else { return row };
        let per_byte = (row.seconds - half.seconds).max(0.0) / (len - len / 2) as f64;
        let wire_bytes = row.wire_bytes * total as f64 / len as f64;
        let cpu_s = row.cpu_s * total as f64 / len as f64;
        Row { seconds: row.seconds + left * per_byte, wire_bytes, cpu_s, ..row }
    };
    let busy = 1.0 - share.min(far_share).clamp(0.0, 1.0);
    let longer = LONGER + BUSY_LONGER * busy;
    let fixed = |q: &Question<'_>, method: Method| q.fixed(Rate(rate), method);
    let sampled = table.len() as f64 / total as f64;
    let own = begin_s + ROUND_TRIPS * median(&found.round_trips) + folder.files as f64 * FILE_S;
    let way = |name: &'static str, row: &Row| -> (Way, f64) {
        let wire_bytes = row.wire_bytes;
        // The cores that encode also read, compare and write; those of two ends on one host decode, too.
        let sending_s = row.cpu_s + 1e-9 * (total as f64 * SOURCE_NS + wire_bytes * send_ns);
        let receiving_s = 1e-9 * (total as f64 * SINK_NS + wire_bytes * receive_ns);
        let hosts_s = if peer.same_host {
            (sending_s + receiving_s + DECODING * row.cpu_s) / ((cores[0] + cores[1]) as f64 * speeds[0])
        } else {
            (sending_s / (cores[0] as f64 * speeds[0])).max(receiving_s / (cores[1] as f64 * speeds[1]))
        };
        let played_s = row.seconds.max(hosts_s);
        let by_link = (wire_bytes / rate / played_s.max(1e-9)).min(1.0);
        let copied_s =
            (played_s + LATE * by_link * late(&found.up.series, found.up.rate.lag_s, wire_bytes, rate)) * longer;
        let seconds = own + copied_s.max(0.0);
        let spreads = [
            by_link * found.up.rate.spread,
            by_link * spread_of_data(table) * (1.0 - sampled).max(0.0).sqrt(),
            by_link * sketch.spread,
            by_link * MODEL_LINK + (1.0 - by_link) * MODEL_HOSTS,
            MODEL_S / seconds,
            FILE_SPREAD_S * folder.files as f64 / seconds,
            BUSY_SPREAD * busy,
        ];
        let spread = spreads.iter().map(|s| s * s).sum::<f64>().sqrt() * DEVIATIONS;
        let seconds = Interval::new(seconds / (1.0 + spread), seconds, seconds * (1.0 + spread));
        (Way { name, seconds, wire_bytes }, by_link)
    };
    let played = all(&|q| q.policy(Rate(rate), &balance));
    let (narrows, by_link) = way("narrows", &played);
    let mut ways = vec![narrows, way("plain", &all(&|q| fixed(q, Method::STORE))).0];
    for (name, method) in [("zstd -1", Method::zstd(1)), ("zstd -3", Method::zstd(3))] {
        if table.methods.contains(&method) && !over() {
            ways.push(way(name, &all(&|q| fixed(q, method))).0);
        }
    }
    if !over() {
        ways.push(way("best", &whole_of(whole.best(Rate(rate)), total as f64 / len as f64)).0);
    }
    Some(Prediction { raw_bytes: total as f64, ways, by_link, mix: mix(&played), cores })
}

/// A row of the best schedule for more of the same bytes.
fn whole_of(row: Row, times: f64) -> Row {
    Row { seconds: row.seconds * times, wire_bytes: row.wire_bytes * times, cpu_s: row.cpu_s * times, ..row }
}

/// By how much bytes arrive later than at the steady rate from the first one on: a window that opens.
fn late(series: &Series, lag_s: f64, wire_bytes: f64, rate: f64) -> f64 {
    series.when(wire_bytes).map_or(lag_s, |seconds| seconds - wire_bytes / rate)
}

pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Standard error of the encoded length as a share, from how much the pieces differ.
fn spread_of_data(table: &Table) -> f64 {
    let guide = table.methods.iter().position(|m| *m == Method::zstd(3)).unwrap_or(0);
    let class = CLASSES.len() - 1;
    let shares: Vec<f64> = table
        .blocks(class)
        .iter()
        .enumerate()
        .filter_map(|(i, row)| Some(row.get(guide)?.wire_len / table.block(class, i).len().max(1) as f64))
        .collect();
    let n = shares.len() as f64;
    let mean = shares.iter().sum::<f64>() / n.max(1.0);
    if shares.len() < 2 || mean <= 0.0 {
        // One piece says nothing of others.
        return 0.3;
    }
    let variance = shares.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (variance / n).sqrt() / mean
}

/// Shares of raw bytes by method, the largest first.
fn mix(row: &Row) -> Vec<(String, f64)> {
    let mut mix: Vec<(String, f64)> = Vec::new();
    let all: usize = row.blocks.iter().map(|b| b.raw_len).sum();
    for block in &row.blocks {
        let (name, share) = (block.method.to_string(), block.raw_len as f64 / all.max(1) as f64);
        match mix.iter_mut().find(|m| m.0 == name) {
            Some(sum) => sum.1 += share,
            None => mix.push((name, share)),
        }
    }
    mix.sort_by(|a, b| b.1.total_cmp(&a.1));
    mix
}

#[cfg(test)]
mod tests {
    use narrows::block::Block;
    use narrows_copy::measure::{Direction, Peer, Rate as LinkRate, Speeds};
    use narrows_sim::sketch::{Sketch, sketch};
    use narrows_test::noise;

    use super::*;

    fn found(bytes_per_s: f64, spread: f64) -> Found {
        let mut series = Series::default();
        (0..200).for_each(|i| series.push(0.01 * f64::from(i), 0.01 * f64::from(i) * bytes_per_s));
        let rate = LinkRate { bytes_per_s, spread, steady: true, lag_s: 0.0 };
        let way = Direction { series, rate, segments: None, cpu_ns_per_byte: [Some(1.0), Some(1.0)] };
        let peer = Peer { program: "x".into(), version: 1, cores: 2, encoders: 2, same_host: false };
        Found {
            peer,
            round_trips: vec![0.001; 9],
            up: way.clone(),
            down: way,
            speeds: [Speeds { each: Vec::new(), share: 1.0 }, Speeds { each: Vec::new(), share: 1.0 }],
        }
    }

    fn folder(bytes: Vec<u8>, times: u64) -> Folder {
        let block = Block::from_vec(bytes);
        let methods = [Method::lz4_accel(1), Method::zstd(1), Method::zstd(3)];
        // As on an idle host, whatever this one does.
        let sketch = sketch("x", &block, &methods, 1, &|| false).map(|s| Sketch { share: 1.0, ..s });
        let len = block.len() as u64 * times;
        Folder { name: "x".into(), files: 1, len, unreadable: 0, is_cut: false, sketch }
    }

    fn text() -> Vec<u8> {
        let words: String = (0..200_000u64).map(|i| format!("{} ", i.wrapping_mul(0x9e37_79b9) >> 20)).collect();
        words.into_bytes()[..1 << 20].to_vec()
    }

    const NEVER: &dyn Fn() -> bool = &|| false;

    #[test]
    fn without_time_narrows_and_plain_are_played_alone() {
        let predicted = predict(&found(1e6, 0.0), &folder(text(), 1), 0.0, &|| true).unwrap();
        assert_eq!(predicted.ways.iter().map(|w| w.name).collect::<Vec<_>>(), ["narrows", "plain"]);
    }

    #[test]
    fn what_shrinks_is_predicted_faster_than_plain_and_noise_is_not() {
        let of_text = predict(&found(1e6, 0.0), &folder(text(), 1), 0.0, NEVER).unwrap();
        let seconds = |p: &Prediction, name: &str| p.ways.iter().find(|w| w.name == name).unwrap().seconds;
        let (narrows, plain) = (seconds(&of_text, "narrows"), seconds(&of_text, "plain"));
        assert!(narrows.value < 0.8 * plain.value && of_text.by_link > 0.8, "{narrows:?} {plain:?}");
        assert!((0.95..1.25).contains(&plain.value), "{plain:?}");
        assert!(narrows.low < narrows.value && narrows.value < narrows.high);
        assert!(seconds(&of_text, "best").value <= narrows.value);
        let of_noise = predict(&found(1e6, 0.0), &folder(noise(1 << 20), 1), 0.0, NEVER).unwrap();
        let ratio = seconds(&of_noise, "narrows").value / seconds(&of_noise, "plain").value;
        assert!((0.98..1.05).contains(&ratio), "{ratio}");
    }

    #[test]
    fn longer_folders_take_longer_and_less_knowledge_makes_wider_intervals() {
        let time = |times, spread| {
            let predicted = predict(&found(1e6, spread), &folder(text(), times), 0.0, NEVER).unwrap();
            predicted.ways[0].seconds
        };
        let (one, many) = (time(1, 0.0), time(100, 0.0));
        assert!((80.0..105.0).contains(&(many.value / one.value)), "{one:?} {many:?}");
        let width = |i: Interval| i.high / i.low;
        assert!(width(time(1, 0.3)) > 1.3 * width(one));
        assert!(predict(&found(1e6, 0.0), &Folder { sketch: None, ..folder(text(), 1) }, 0.0, NEVER).is_none());
    }

    #[test]
    fn hosts_are_compared_by_the_methods_that_both_have() {
        let speed = |method, encode_ns, decode_ns| Speed { method, encode_ns, decode_ns };
        let own = [speed(Method::zstd(1), 4.0, 2.0), speed(Method::lz4_accel(1), 2.0, 1.0)];
        let theirs = [speed(Method::zstd(1), 2.0, 4.0)];
        assert_eq!(quickness(&own, &theirs), Some([0.5, 2.0]));
        assert_eq!(quickness(&own, &[]), None);
    }
}
