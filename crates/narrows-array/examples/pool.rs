//! Encodes .npy files by every candidate and by the chooser and prints ratios and speeds:
//! `cargo run --release -p narrows-array --example pool -- [--rel 1e-3] [--mode archive] [--chunk N] FILE...`
//! With `--probe`, prints for any files how many blocks of 64 KiB, from byte 3 on, look like numbers.

use std::cell::RefCell;
use std::time::Instant;

use narrows_array::{
    ArrayView, BackEnd, Bound, Chooser, Coder, Dtype, Layout, Options, Pipeline, RAW_MAX, candidates, npy,
};

/// Raw and encoded bytes of one way over all files, and its seconds.
#[derive(Default, Clone, Copy)]
struct Sum {
    raw: usize,
    wire: usize,
    encode_s: f64,
    decode_s: f64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.raw += other.raw;
        self.wire += other.wire;
        self.encode_s += other.encode_s;
        self.decode_s += other.decode_s;
    }

    fn line(&self, name: &str) -> String {
        let rate = |s: f64| self.raw as f64 / s / 1e6;
        format!(
            "{name:<44} {:>8.3} {:>8.0} MB/s in {:>8.0} out",
            self.raw as f64 / self.wire as f64,
            rate(self.encode_s),
            rate(self.decode_s)
        )
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = Options::default();
    let (mut chunk_len, mut rel, mut details, mut files) = (256 << 10, None, false, Vec::new());
    let (mut passes, mut rounds, mut probe_only) = (1, 1, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or("an option lacks its value");
        match argument.as_str() {
            "--rel" => rel = Some(value()?.parse::<f64>()?),
            "--mode" => options.mode = value()?.parse()?,
            "--chunk" => chunk_len = value()?.parse()?,
            "--all" => details = true,
            "--probe" => probe_only = true,
            "--rounds" => rounds = value()?.parse()?,
            "--passes" => passes = value()?.parse()?,
            _ => files.push(argument),
        }
    }
    if probe_only {
        return probe(&files);
    }
    let fixed = [
        ("zstd 3", Pipeline::new([], BackEnd::Zstd(3))),
        ("split, zstd 3", Pipeline::new([narrows_array::Step::Split], BackEnd::Zstd(3))),
        ("pco 8", Pipeline::new([], BackEnd::Pco(8))),
    ];
    let mut sums = [Sum::default(); 5];
    for path in &files {
        let bytes = std::fs::read(path)?;
        let header = npy::parse(&bytes)?;
        let data = &bytes[header.data_at..];
        let mut dtype = header.dtype;
        // Bytes of an unknown kind: the chooser has to find what they are.
        if dtype == Dtype::U8 {
            dtype = Dtype::Record(1);
        }
        assert_eq!(header.layout, Layout::RowMajor);
        let pieces = cut(&header.shape, dtype.bytes(), chunk_len);
        let mut views = Vec::new();
        let mut offset = 0;
        for shape in &pieces {
            let len = shape.iter().product::<usize>() * dtype.bytes();
            views.push(ArrayView { order: header.order, ..ArrayView::new(dtype, shape, &data[offset..offset + len]) });
            offset += len;
        }
        assert_eq!(offset, data.len());
        let mut bound = Bound::default();
        if let Some(rel) = rel {
            bound.range_rel = Some(rel);
            bound.fills = vec![1e20, f64::from(1e20f32), 9.969_209_968_386_869e36];
            bound.range = range(&views, &bound);
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        println!("{name} {dtype} {:?} in {} chunks", header.shape, views.len());
        for (i, (name, pipeline)) in fixed.iter().enumerate() {
            let sum = measure(&views, rounds, || {
                let mut coder = Coder::new();
                move |view: &ArrayView<'_>| {
                    coder
                        .encode_with(view, pipeline, &Bound::default())
                        .expect("valid")
                        .filter(|c| c.len() < view.bytes.len())
                }
            });
            sums[i].add(sum);
            println!("  {}", sum.line(name));
        }
        // The chooser; with several passes, as on an array so many times as long.
        let views: Vec<_> = std::iter::repeat_n(&views, passes).flatten().copied().collect();
        let chooser = RefCell::new(Chooser::new(options.clone(), bound.clone())?);
        let sum = measure(&views, rounds, || {
            chooser.replace(Chooser::new(options.clone(), bound.clone()).expect("checked"));
            |view: &ArrayView<'_>| chooser.borrow_mut().encode(view).ok()
        });
        let chooser = chooser.into_inner();
        sums[3].add(sum);
        let pipeline = chooser.pipeline().map(ToString::to_string).unwrap_or_default();
        println!("  {}", sum.line(&format!("chooser, {} trials", chooser.trials())));
        println!("    {pipeline}");
        if let Some(winner) = chooser.pipeline().cloned().filter(|_| passes > 1) {
            let alone = measure(&views, rounds, || {
                let mut coder = Coder::new();
                let (winner, bound) = (&winner, &bound);
                move |view: &ArrayView<'_>| coder.encode_with(view, winner, bound).expect("valid")
            });
            println!("    its time for all chunks / the chooser's: {:.2}", alone.encode_s / sum.encode_s);
        }
        // Everything, in hindsight.
        let mut coder = Coder::new();
        let (mut best_sum, mut best_names) =
            (Sum::default(), std::collections::BTreeMap::<String, (usize, f64)>::new());
        for view in views.iter().take(if passes > 1 { 0 } else { views.len() }) {
            let mut best: Option<(usize, String)> = None;
            for pipeline in candidates(view, &options, &bound)? {
                let started = core_s();
                let Some(chunk) = coder.encode_with(view, &pipeline, &bound)? else { continue };
                let seconds = core_s() - started;
                let name = pipeline.to_string();
                let entry = best_names.entry(name.clone()).or_default();
                entry.0 += chunk.len();
                entry.1 += seconds;
                // Lossless ones are what is left of lossy ones.
                if best.as_ref().is_none_or(|b| chunk.len() < b.0) {
                    best = Some((chunk.len(), name));
                }
            }
            let (len, _) = best.expect("store is always there");
            best_sum.add(Sum { raw: view.bytes.len(), wire: len.min(view.bytes.len()), ..Sum::default() });
        }
        sums[4].add(best_sum);
        println!("  {:<44} {:>8.3}", "full trial for each chunk", best_sum.raw as f64 / best_sum.wire as f64);
        if details {
            let mut names: Vec<_> = best_names.into_iter().collect();
            names.sort_by_key(|n| n.1.0);
            for (name, (len, seconds)) in names.iter().take(30) {
                println!(
                    "      {:>8.3} {:>6.0} MB/s {name}",
                    data.len() as f64 / *len as f64,
                    data.len() as f64 / seconds / 1e6
                );
            }
        }
    }
    println!("whole pool");
    for (sum, name) in sums.iter().zip(["zstd 3", "split, zstd 3", "pco 8", "chooser", "full trial"]) {
        println!("  {}", sum.line(name));
    }
    println!("  choice / full trial {:.4}", sums[4].wire as f64 / sums[3].wire as f64);
    Ok(())
}

fn probe(files: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let (mut blocks, mut yes, mut seconds) = (0, 0, 0.0);
    let mut widths = std::collections::BTreeMap::<u8, usize>::new();
    for path in files {
        let bytes = std::fs::read(path)?;
        for block in bytes.get(3..).unwrap_or_default().chunks(64 << 10).filter(|b| b.len() >= 8192) {
            let started = core_s();
            let found = narrows_array::probe(block);
            seconds += core_s() - started;
            blocks += 1;
            if let Some(found) = found {
                yes += 1;
                *widths.entry(found.width).or_default() += 1;
            }
        }
    }
    println!("{yes} of {blocks} blocks, {:.1} us each, widths {widths:?}", seconds / blocks as f64 * 1e6);
    Ok(())
}

/// Seconds of this thread on a core, which other programs do not lengthen as they do time.
fn core_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

/// Encodes and decodes all chunks. The fastest of several rounds counts for each: other programs only
/// lengthen times. `start` gives the encoder of a round.
fn measure<'a, E>(views: &[ArrayView<'_>], rounds: usize, mut start: impl FnMut() -> E) -> Sum
where
    E: FnMut(&ArrayView<'_>) -> Option<Vec<u8>> + 'a,
{
    let mut fastest = vec![(f64::INFINITY, f64::INFINITY); views.len()];
    let mut sum = Sum::default();
    let mut coder = Coder::new();
    for round in 0..rounds {
        let mut encode = start();
        for (view, fastest) in views.iter().zip(&mut fastest) {
            let started = Instant::now();
            let chunk = encode(view);
            fastest.0 = fastest.0.min(started.elapsed().as_secs_f64());
            let wire = chunk.as_ref().map_or(view.bytes.len(), Vec::len);
            if round == 0 {
                sum.raw += view.bytes.len();
                sum.wire += wire;
            }
            let Some(chunk) = chunk else { continue };
            let started = Instant::now();
            let array = coder.decode(&chunk, RAW_MAX).expect("decodes");
            fastest.1 = fastest.1.min(started.elapsed().as_secs_f64());
            let lossy = narrows_array::info(&chunk).expect("valid").bound.is_some();
            assert!(lossy || array.bytes == view.bytes);
        }
    }
    sum.encode_s = fastest.iter().map(|f| f.0).filter(|s| s.is_finite()).sum();
    sum.decode_s = fastest.iter().map(|f| f.1).filter(|s| s.is_finite()).sum();
    sum
}

/// Range of all values that are no fill.
fn range(views: &[ArrayView<'_>], bound: &Bound) -> Option<f64> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for view in views {
        let values: Vec<f64> = match view.dtype {
            Dtype::F32 => {
                view.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("4")).into()).collect()
            }
            Dtype::F64 => view.bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8"))).collect(),
            _ => return None,
        };
        for v in values {
            if v.is_finite() && !bound.fills.contains(&v) {
                (low, high) = (low.min(v), high.max(v));
            }
        }
    }
    (low < high).then_some(high - low)
}

/// Shapes of consecutive chunks of at most `chunk_len` bytes, contiguous in memory.
fn cut(shape: &[usize], element: usize, chunk_len: usize) -> Vec<Vec<usize>> {
    let inner = |axis: usize| shape[axis + 1..].iter().product::<usize>() * element;
    let axis = (0..shape.len()).find(|&axis| inner(axis) <= chunk_len).unwrap_or(shape.len() - 1);
    let rows = (chunk_len / inner(axis)).max(1);
    let blocks: usize = shape[..axis].iter().product();
    let mut pieces = Vec::new();
    for _ in 0..blocks {
        let mut left = shape[axis];
        while left > 0 {
            let now = rows.min(left);
            let mut piece = vec![1; axis];
            piece.push(now);
            piece.extend(&shape[axis + 1..]);
            pieces.push(piece);
            left -= now;
        }
    }
    pieces
}
