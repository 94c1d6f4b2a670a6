//! `narrows bench codecs`: every method on every kind of data.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use narrows::codec::{Contexts, DEFAULT_METHODS, Method};
use narrows::stream::thread_cpu_ns;
use serde_json::json;

use crate::args::BenchCodecsArgs;
use crate::{files, report};

/// Passes over each block with a fast method, of which the fastest counts. Slow methods get one
/// pass.
const PASSES: usize = 3;
/// A method with a higher nominal encoding cost is slow.
const SLOW_NS_PER_BYTE: f32 = 20.0;

/// Runs `narrows bench codecs`.
pub(crate) fn codecs(args: &BenchCodecsArgs) -> Result<()> {
    let methods: Vec<Method> = args.methods.as_ref().map_or_else(|| DEFAULT_METHODS.to_vec(), |l| l.0.clone());
    let mut pools: Vec<PathBuf> = fs::read_dir(&args.corpus)
        .with_context(|| format!("cannot read {}", args.corpus.display()))?
        .filter_map(|e| e.ok().map(|e| e.path()).filter(|p| p.is_dir()))
        .collect();
    pools.sort();
    if pools.is_empty() {
        pools.push(args.corpus.clone());
    }
    let mut contexts = Contexts::default();
    let mut rows = Vec::new();
    let head = ["kind", "method", "ratio", "encode MB/s", "decode MB/s"];
    report::out(format_args!("{:<10} {:<16} {:>9} {:>12} {:>12}", head[0], head[1], head[2], head[3], head[4]))?;
    for pool in &pools {
        let name = pool.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let sample = sample(pool, args.sample)?;
        ensure!(!sample.is_empty(), "{} has no data", pool.display());
        for &method in &methods {
            let r = measure(&mut contexts, method, &sample, args.block)?;
            let Measured { ratio, encode_mb_s, decode_mb_s } = r;
            let method = method.to_string();
            let [encode, decode] =
                [encode_mb_s, decode_mb_s].map(|rate| rate.map_or("-".into(), |n| format!("{n:.1}")));
            report::out(format_args!("{name:<10} {method:<16} {ratio:>9.3} {encode:>12} {decode:>12}"))?;
            rows.push(json!({
                "kind": name,
                "method": method,
                "block_len": args.block,
                "raw_bytes": sample.len(),
                "ratio": ratio,
                "encode_mb_per_s": encode_mb_s,
                "decode_mb_per_s": decode_mb_s,
            }));
        }
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&json!({ "rows": rows }))?;
        let written = files::create(path)?.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The beginning of every file below `folder`, in proportion to its length, up to `len` bytes in
/// all.
fn sample(folder: &Path, len: usize) -> Result<Vec<u8>> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort();
    let total: u64 = files.iter().map(|f| f.1).sum();
    let mut out = Vec::with_capacity(len);
    for (path, file_len) in files {
        let share = if total <= len as u64 { file_len } else { file_len * len as u64 / total + 1 };
        let read = File::open(&path).and_then(|file| file.take(share).read_to_end(&mut out));
        read.with_context(|| format!("cannot read {}", path.display()))?;
    }
    out.truncate(len);
    Ok(out)
}

fn collect(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let Ok(data) = path.symlink_metadata() else { continue };
        if data.is_dir() {
            collect(&path, files)?;
        } else if data.is_file() && data.len() > 0 {
            files.push((path, data.len()));
        }
    }
    Ok(())
}

struct Measured {
    ratio: f64,
    /// `None` if it took no time that can be measured.
    encode_mb_s: Option<f64>,
    /// Of the blocks that were encoded; `None` if none was.
    decode_mb_s: Option<f64>,
}

fn measure(contexts: &mut Contexts, method: Method, sample: &[u8], block: usize) -> Result<Measured> {
    let passes = if method.info().nominal_ns_per_byte(method.level).0 > SLOW_NS_PER_BYTE { 1 } else { PASSES };
    let (mut wire, mut raw) = (vec![0; block], vec![0; block]);
    let (mut wire_bytes, mut encode_ns, mut decode_ns, mut decoded_bytes) = (0, 0, 0, 0);
    for piece in sample.chunks(block) {
        let (mut best_encode, mut best_decode, mut encoded) = (u64::MAX, u64::MAX, None);
        for _ in 0..passes {
            let room = if method == Method::STORE { piece.len() } else { piece.len() - 1 };
            let begin = thread_cpu_ns();
            encoded = contexts.encoder(method.info()).encode(method.level, &[], piece, &mut wire[..room]);
            let middle = thread_cpu_ns();
            best_encode = best_encode.min(middle - begin);
            let Some(len) = encoded else { continue };
            let decoded = contexts.decoder(method.info()).decode(&[], &wire[..len], &mut raw[..piece.len()]);
            best_decode = best_decode.min(thread_cpu_ns() - middle);
            ensure!(
                decoded == Ok(piece.len()) && raw[..piece.len()] == *piece,
                "{method} does not decode to its input"
            );
        }
        encode_ns += best_encode;
        if encoded.is_some() {
            decode_ns += best_decode;
            decoded_bytes += piece.len();
        }
        wire_bytes += encoded.unwrap_or(piece.len());
    }
    Ok(Measured {
        ratio: sample.len() as f64 / wire_bytes.max(1) as f64,
        encode_mb_s: mb_s(sample.len(), encode_ns),
        decode_mb_s: mb_s(decoded_bytes, decode_ns),
    })
}

/// A rate; `None` where nothing was done, or so little that the clock did not move.
fn mb_s(bytes: usize, ns: u64) -> Option<f64> {
    (bytes > 0 && ns > 0).then(|| bytes as f64 * 1e3 / ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_was_not_measured_is_none() {
        assert_eq!((mb_s(0, 100), mb_s(100, 0), mb_s(100, 1000)), (None, None, Some(100.0)));
        // Counting bytes that never repeat cannot be shrunk, so that none is decoded.
        let noise: Vec<u8> = (0..=255).collect();
        let measured = measure(&mut Contexts::default(), Method::zstd(1), &noise, 128).unwrap();
        assert!(measured.decode_mb_s.is_none() && measured.encode_mb_s.is_some() && measured.ratio == 1.0);
    }
}
