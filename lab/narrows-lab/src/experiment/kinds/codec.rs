//! The kind `codec`: ratio and times of a method on a pool that is cut into buffers of one length.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use narrows::codec::{Contexts, Method};

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::checks::{self, Hogs};
use super::{Axis, Kind, Lab, Setting, Surroundings};
use crate::pools;
use crate::registry;
use crate::units::parse_len;

pub(crate) struct Codec;

const AXES: &[Axis] = &[
    Axis { name: "pool", default: "text", check: checks::name_or_file },
    Axis { name: "method", default: "zlib:level=6", check: checks::method },
    Axis { name: "buffer", default: "128K", check: checks::len_or_whole },
    Axis { name: "load", default: "0", check: checks::hogs },
];
const SETTINGS: &[Setting] = &[
    // Takes a slow method a few hundred milliseconds.
    Setting { name: "bytes", default: "2M", check: checks::len },
];

impl Kind for Codec {
    fn name(&self) -> &'static str {
        "codec"
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        let len = parse_len(&plan.setting("bytes")).map_err(anyhow::Error::msg)?;
        let corpus = surroundings.corpus()?;
        Ok(Box::new(CodecLab { data: Data::new(corpus, len) }))
    }

    fn estimate_s(&self, plan: &Plan, cell: &Cell) -> f64 {
        let len = parse_len(&plan.setting("bytes")).unwrap_or(0);
        let method = registry::method(cell.get("method")).unwrap_or(Method::STORE);
        registry::codecs().encode_ns(method, len) as f64 * 1e-9 * 1.5 * (1.0 + cell.number("load") / 4.0)
    }
}

/// Cache of pools, each read once.
pub(super) struct Data {
    corpus: std::path::PathBuf,
    len: usize,
    known: Mutex<HashMap<String, Arc<Vec<u8>>>>,
}

impl Data {
    pub(super) fn new(corpus: &Path, len: usize) -> Self {
        Self { corpus: corpus.to_owned(), len, known: Mutex::default() }
    }

    /// The first `len` bytes of the pool, which is repeated if it is shorter.
    pub(super) fn pool(&self, name: &str) -> Result<Arc<Vec<u8>>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = known.get(name) {
            return Ok(Arc::clone(bytes));
        }
        let bytes = pools::named_bytes(&self.corpus, name, self.len)?;
        ensure!(!bytes.is_empty(), "the pool '{name}' is empty");
        let bytes = Arc::new(bytes);
        known.insert(name.to_owned(), Arc::clone(&bytes));
        Ok(bytes)
    }
}

struct CodecLab {
    data: Data,
}

impl Lab for CodecLab {
    fn run(&self, cell: &Cell, _round: u32) -> Result<Values> {
        let bytes = self.data.pool(cell.get("pool"))?;
        let method = registry::method(cell.get("method"))?;
        let buffer = match cell.get("buffer") {
            "whole" => bytes.len(),
            text => parse_len(text).map_err(anyhow::Error::msg)?.min(bytes.len()),
        };
        let _hogs = Hogs::start(cell.number("load") as u32);
        let speed = measure(method, &bytes, buffer)?;
        let raw = bytes.len() as f64;
        Ok(Values::of(&[
            ("ratio", raw / speed.wire_len as f64),
            ("encode_s", speed.encode_s),
            ("decode_s", speed.decode_s),
            ("encode_mb_per_s", raw / speed.encode_s / 1e6),
            ("decode_mb_per_s", raw / speed.decode_s / 1e6),
            ("encode_us_per_buffer", speed.encode_s * 1e6 / raw * buffer as f64),
            ("decode_us_per_buffer", speed.decode_s * 1e6 / raw * buffer as f64),
            ("ratio_mean", speed.ratios.iter().sum::<f64>() / speed.ratios.len() as f64),
            ("ratio_quarter", quantile(&speed.ratios, 0.25)),
            ("ratio_middle", quantile(&speed.ratios, 0.5)),
            ("ratio_three_quarters", quantile(&speed.ratios, 0.75)),
        ]))
    }
}

/// The quantile of values in ascending order.
fn quantile(ascending: &[f64], share: f64) -> f64 {
    ascending[((ascending.len() - 1) as f64 * share).round() as usize]
}

pub(super) struct Speeds {
    /// Ratio of each buffer, ascending.
    pub(super) ratios: Vec<f64>,
    pub(super) wire_len: usize,
    pub(super) encode_s: f64,
    pub(super) decode_s: f64,
}

/// Encodes every buffer separately, like frames. A buffer that does not shrink is sent raw and
/// costs the decoder a copy.
pub(super) fn measure(method: Method, bytes: &[u8], buffer: usize) -> Result<Speeds> {
    let codec = registry::codecs().of(method);
    let mut contexts = Contexts::default();
    let mut wire = vec![0; buffer];
    let mut back = vec![0; buffer];
    let mut speeds = Speeds { ratios: Vec::new(), wire_len: 0, encode_s: 0.0, decode_s: 0.0 };
    for block in bytes.chunks(buffer) {
        let room = &mut wire[..block.len() - 1];
        let begun = Instant::now();
        let shrunk = contexts.encoder(codec).encode(method.level, &[], block, room);
        speeds.encode_s += begun.elapsed().as_secs_f64();
        let back = &mut back[..block.len()];
        speeds.ratios.push(block.len() as f64 / shrunk.unwrap_or(block.len()) as f64);
        let begun = Instant::now();
        match shrunk {
            Some(len) => {
                let decoded = contexts.decoder(codec).decode(&[], &wire[..len], back);
                ensure!(decoded.is_ok_and(|n| n == block.len()), "{} cannot decode what it encoded", codec.name());
                speeds.wire_len += len;
            }
            None => {
                back.copy_from_slice(block);
                speeds.wire_len += block.len();
            }
        }
        speeds.decode_s += begun.elapsed().as_secs_f64();
        ensure!(back == block, "{method} does not give back what it was given");
    }
    speeds.ratios.sort_by(f64::total_cmp);
    // If the clock does not advance, the speed must not be infinite.
    speeds.decode_s = speeds.decode_s.max(1e-9);
    Some(speeds).filter(|s| s.encode_s > 0.0).context("the clock does not advance")
}
