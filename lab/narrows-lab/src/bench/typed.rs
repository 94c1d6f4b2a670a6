//! `typed`: numbers in plain bytes. What the probe says of every kind of data, what splitting by width
//! saves where it is tried only then, and what it would save if everything were tried on every block.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use narrows::codec::{CodecId, Contexts, Method};
use narrows::probe::{self, Probe};
use narrows::sender::worthwhile_len;
use narrows::stream::thread_cpu_ns;
use serde_json::{Value, json};

use super::Args;
use crate::pools;

/// Blocks as the prototypes had them, and as most links get them.
const BLOCK: usize = 64 << 10;
/// A kind of data is probed once for so many blocks.
const PROBE_EVERY: f64 = 16.0;
/// Widths that are tried on every block, each with and without differences.
const WIDTHS: [usize; 9] = [2, 3, 4, 6, 8, 12, 16, 24, 32];
/// Places at which an array may begin in a stream.
const PLACES: [usize; 4] = [0, 1, 3, 5];

/// What was found on one kind of data.
#[derive(Default)]
struct Row {
    blocks: usize,
    yes: usize,
    /// Probes of blocks of known arrays, and those that found the width.
    arrays: usize,
    right: usize,
    wrong: BTreeMap<(usize, usize), usize>,
    plain: usize,
    ours: usize,
    best: usize,
    probe_ns: u64,
    lz4_ns: u64,
    plain_ns: u64,
    split_ns: u64,
    split_raw: usize,
    winners: BTreeMap<(usize, bool), (usize, usize)>,
    log_gains: Vec<f64>,
}

pub(super) fn run(args: &Args) -> Result<Value> {
    let corpus = args.corpus.as_deref().context("`typed` needs --corpus")?;
    println!(
        "typed  kind        blocks  yes %  width right %   zstd 3 bytes   with split   saved %   over all %   probe/LZ4 %"
    );
    let (mut rows, mut sum) = (Vec::new(), Row::default());
    for (kind, files) in pools::files_by_kind(corpus, args.half)? {
        if !args.pools.is_empty() && !args.pools.contains(&kind) {
            continue;
        }
        let mut row = Row::default();
        let mut bench = Bench { contexts: Contexts::default(), out: vec![0; BLOCK], planes: vec![0; BLOCK] };
        for (path, bytes) in &files {
            let truth = width_of(path);
            for block in bytes.chunks(BLOCK) {
                bench.block(block, &mut row);
            }
            for (&place, width) in PLACES.iter().filter_map(|place| Some((place, truth?))) {
                for block in bytes.get(place..).unwrap_or_default().chunks_exact(BLOCK) {
                    let found = probe::probe(block).map_or(0, |p| usize::from(p.width));
                    row.arrays += 1;
                    row.right += usize::from(found == width);
                    if found != width {
                        *row.wrong.entry((width, found)).or_default() += 1;
                    }
                }
            }
        }
        rows.push(row.report(&kind));
        sum.add(&row);
    }
    rows.push(sum.report("all"));
    Ok(json!({ "block": BLOCK, "half": format!("{:?}", args.half), "rows": rows }))
}

/// Bytes of an element of a file that holds nothing but numbers of one width, by its name.
fn width_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_string_lossy();
    match path.extension()?.to_str()? {
        "f32" => Some(4),
        "f64" => Some(8),
        // Two channels of 16 bits; the other files of this kind are packed.
        "dat" if name.starts_with("wfdb-3") => Some(2),
        _ if name.starts_with("silesia-mr") => Some(2),
        _ => None,
    }
}

struct Bench {
    contexts: Contexts,
    out: Vec<u8>,
    planes: Vec<u8>,
}

impl Bench {
    fn block(&mut self, block: &[u8], row: &mut Row) {
        row.blocks += 1;
        let begin = thread_cpu_ns();
        let found: Option<Probe> = probe::probe(block);
        row.probe_ns += thread_cpu_ns() - begin;
        row.yes += usize::from(found.is_some());
        row.lz4_ns += self.encoded(Method::lz4_accel(1), block).1;
        let (plain, plain_ns) = self.encoded(Method::zstd(3), block);
        let mut ours = plain;
        if found.is_some() {
            let (split, split_ns) = self.encoded(Method::new(CodecId::SPLIT, 3), block);
            row.plain_ns += plain_ns;
            row.split_ns += split_ns;
            row.split_raw += block.len();
            row.log_gains.push((plain as f64 / split as f64).ln());
            ours = split;
        }
        let mut best = (plain, (1, false));
        for width in WIDTHS {
            for delta in [false, true] {
                split(block, width, delta, &mut self.planes[..block.len()]);
                let planes = std::mem::take(&mut self.planes);
                let len = self.encoded(Method::zstd(3), &planes[..block.len()]).0 + 2;
                self.planes = planes;
                best = best.min((len, (width, delta)));
            }
        }
        if best.0 < plain {
            let winner = row.winners.entry(best.1).or_default();
            *winner = (winner.0 + 1, winner.1 + plain - best.0);
        }
        row.plain += plain;
        row.ours += ours;
        row.best += best.0;
    }

    /// Encoded length, as a sender counts it, and the time of the encoding.
    fn encoded(&mut self, method: Method, block: &[u8]) -> (usize, u64) {
        let room = &mut self.out[..worthwhile_len(block.len())];
        let begin = thread_cpu_ns();
        let len = self.contexts.encoder(method.info()).encode(method.level, &[], block, room);
        (len.unwrap_or(block.len()), thread_cpu_ns() - begin)
    }
}

/// The sorting of format.md, section 5.2, rewritten so that it checks the product's gain.
fn split(block: &[u8], width: usize, delta: bool, planes: &mut [u8]) {
    let count = block.len() / width;
    for place in 0..width {
        let mut before = 0;
        for i in 0..count {
            let b = block[i * width + place];
            planes[place * count + i] = if delta { b.wrapping_sub(before) } else { b };
            before = b;
        }
    }
    planes[count * width..].copy_from_slice(&block[count * width..]);
}

impl Row {
    fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.yes += other.yes;
        self.arrays += other.arrays;
        self.right += other.right;
        self.plain += other.plain;
        self.ours += other.ours;
        self.best += other.best;
        self.probe_ns += other.probe_ns;
        self.lz4_ns += other.lz4_ns;
        self.plain_ns += other.plain_ns;
        self.split_ns += other.split_ns;
        self.split_raw += other.split_raw;
        self.log_gains.extend(&other.log_gains);
        for (width, (blocks, saved)) in &other.winners {
            let winner = self.winners.entry(*width).or_default();
            *winner = (winner.0 + blocks, winner.1 + saved);
        }
        other.wrong.iter().for_each(|(k, n)| *self.wrong.entry(*k).or_default() += n);
    }

    fn report(&self, kind: &str) -> Value {
        let percent = |part: f64, of: f64| 100.0 * part / of.max(1.0);
        let yes = percent(self.yes as f64, self.blocks as f64);
        let right = (self.arrays > 0).then(|| percent(self.right as f64, self.arrays as f64));
        let saved = percent((self.plain - self.ours.min(self.plain)) as f64, self.plain as f64);
        let over = percent(self.ours as f64 - self.best as f64, self.best as f64);
        let probe = percent(self.probe_ns as f64 / PROBE_EVERY, self.lz4_ns as f64);
        let slower = self.split_ns as f64 / self.plain_ns.max(1) as f64;
        let n = self.log_gains.len().max(1) as f64;
        let mean = self.log_gains.iter().sum::<f64>() / n;
        let deviation = (self.log_gains.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n).sqrt();
        println!(
            "typed  {kind:<10} {:>7} {yes:>6.1} {:>14} {:>14} {:>12} {saved:>9.2} {over:>12.2} {probe:>13.2}   split {slower:.2} of zstd's time; log gain {mean:.3} +- {deviation:.3}",
            self.blocks,
            right.map_or("-".into(), |r| format!("{r:.1}")),
            self.plain,
            self.ours,
        );
        for ((width, found), count) in &self.wrong {
            println!("typed      width {width} taken for {found}: {count}");
        }
        let mut winners: Vec<_> = self.winners.iter().collect();
        winners.sort_by_key(|w| std::cmp::Reverse(w.1.1));
        let winners: Vec<_> = winners
            .iter()
            .take(6)
            .map(|((width, delta), (blocks, saved))| {
                json!({ "width": width, "delta": delta, "blocks": blocks, "saved_bytes": saved })
            })
            .collect();
        json!({
            "kind": kind, "blocks": self.blocks, "yes_percent": yes, "array_probes": self.arrays,
            "width_right_percent": right, "plain_bytes": self.plain, "split_bytes": self.ours,
            "best_bytes": self.best, "saved_percent": saved, "over_best_percent": over,
            "probe_ns": self.probe_ns, "lz4_ns": self.lz4_ns, "probe_of_lz4_percent": probe,
            "split_of_zstd_time": slower, "log_gain_mean": mean, "log_gain_deviation": deviation,
            "winners": winners,
        })
    }
}
