//! The kind `model`: when compression pays, from the speeds of methods (Kuhn, Kunkel and Ludwig
//! 2016, equations 2 and 3).
//!
//! `speeds = published` uses the numbers of their Table 2, `measured` those of this machine: the
//! mean over all pools, as theirs is over files. The mean ratio is the inverse of the mean of wire
//! / raw. This is the mean that counts on a link, and it must be theirs: all but one of the ratios
//! in their table are inverses of hundredths (1 / 0.38, 1 / 0.43, 1 / 0.52).

use std::collections::HashMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::codec::{Data, measure};
use super::{Axis, Kind, Lab, Setting, Surroundings, checks};
use crate::registry;
use crate::units::parse_len;

pub(crate) struct Model;

const AXES: &[Axis] = &[
    Axis { name: "speeds", default: "measured", check: speeds },
    Axis { name: "method", default: "lz4", check: method },
    Axis { name: "cores", default: "1", check: checks::count },
    // Wire / raw; `own` is that of the method.
    Axis { name: "inverse_ratio", default: "own", check: inverse_ratio },
    Axis { name: "way", default: "both", check: way },
    Axis { name: "link_mb_per_s", default: "6817", check: checks::positive },
];
const SETTINGS: &[Setting] = &[
    Setting { name: "formula", default: "threshold", check: formula },
    Setting { name: "bytes", default: "2M", check: checks::len },
    Setting { name: "buffer", default: "128K", check: checks::len },
];

/// Table 2: MB/s of compression and decompression, ratio. The speeds of pithy and blosc are not printed.
const PUBLISHED: [(&str, f64, f64, f64); 7] = [
    ("lz4fast", 2945.0, 6460.0, 1.825),
    ("lz4", 1796.0, 5178.0, 1.923),
    ("lz4hc", 258.0, 4333.0, 2.0),
    ("lzo", 380.0, 1938.0, 1.887),
    ("xz", 26.0, 97.0, 2.632),
    ("zlib", 95.0, 610.0, 2.326),
    ("zstd", 658.0, 2019.0, 2.326),
];

fn speeds(text: &str) -> Result<(), String> {
    if matches!(text, "measured" | "published") { Ok(()) } else { Err("must be measured or published".into()) }
}

fn method(text: &str) -> Result<(), String> {
    if PUBLISHED.iter().any(|p| p.0 == text) { Ok(()) } else { checks::method(text) }
}

fn inverse_ratio(text: &str) -> Result<(), String> {
    match text.parse::<f64>() {
        _ if text == "own" => Ok(()),
        Ok(x) if x > 0.0 && x <= 1.0 => Ok(()),
        _ => Err("must be above 0 and at most 1, or own".into()),
    }
}

fn way(text: &str) -> Result<(), String> {
    let fine = matches!(text, "both" | "compress" | "decompress");
    if fine { Ok(()) } else { Err("must be both, compress or decompress".into()) }
}

fn formula(text: &str) -> Result<(), String> {
    if matches!(text, "threshold" | "multiplier") { Ok(()) } else { Err("must be threshold or multiplier".into()) }
}

/// The engine's method that corresponds to a name of Table 2.
fn stands_for(name: &str) -> &str {
    match name {
        // Their acceleration is not printed; this one has about the same speed relative to lz4.
        "lz4fast" => "lz4:accel=16",
        // Their level is not printed; this is the library's default.
        "lz4hc" => "lz4:hc=9",
        other => other,
    }
}

impl Kind for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        Ok(Box::new(ModelLab { plan, surroundings, data: Mutex::default(), known: Mutex::default() }))
    }

    fn estimate_s(&self, plan: &Plan, cell: &Cell) -> f64 {
        // A method is measured once per round, for the first of its cells.
        let others = plan.axis("cores").len() * plan.axis("inverse_ratio").len() * plan.axis("way").len();
        let bytes = 14.0 * parse_len(&plan.setting("bytes")).unwrap_or(0) as f64;
        if cell.get("speeds") == "published" { 0.0 } else { bytes / 60e6 / others as f64 }
    }
}

struct ModelLab<'a> {
    plan: &'a Plan,
    surroundings: &'a Surroundings,
    data: Mutex<Option<Data>>,
    /// Speeds and ratio of each method and round.
    known: Mutex<HashMap<(String, u32), [f64; 3]>>,
}

impl Lab for ModelLab<'_> {
    fn run(&self, cell: &Cell, round: u32) -> Result<Values> {
        let name = cell.get("method");
        let [compress, decompress, own_ratio] = match cell.get("speeds") {
            "published" => {
                let row = PUBLISHED.iter().find(|p| p.0 == name);
                let row = row.with_context(|| format!("no speeds of '{name}' are published"))?;
                [row.1, row.2, row.3]
            }
            _ => self.measured(name, round)?,
        };
        let inverse = match cell.get("inverse_ratio") {
            "own" => 1.0 / own_ratio,
            _ => cell.number("inverse_ratio"),
        };
        let (cores, link) = (cell.number("cores"), cell.number("link_mb_per_s"));
        let mut values =
            vec![("compress_mb_per_s", compress), ("decompress_mb_per_s", decompress), ("ratio", 1.0 / inverse)];
        let (compress_s, decompress_s) = match cell.get("way") {
            "compress" => (1.0 / (cores * compress), 0.0),
            "decompress" => (0.0, 1.0 / (cores * decompress)),
            _ => (1.0 / (cores * compress), 1.0 / (cores * decompress)),
        };
        let wire_s = inverse / link;
        if self.plan.setting("formula") == "multiplier" {
            let plain_s = 1.0 / link;
            values.push(("sequential", plain_s / (wire_s + compress_s + decompress_s)));
            values.push(("pipelined", plain_s / wire_s.max(compress_s).max(decompress_s)));
        } else {
            values.push(("sequential_mb_per_s", (1.0 - inverse) / (compress_s + decompress_s)));
            values.push(("pipelined_mb_per_s", (1.0 - inverse) / compress_s.max(decompress_s)));
        }
        Ok(Values::of(&values))
    }
}

impl ModelLab<'_> {
    fn measured(&self, name: &str, round: u32) -> Result<[f64; 3]> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(speeds) = known.get(&(name.to_owned(), round)) {
            return Ok(*speeds);
        }
        let method = registry::method(stands_for(name))?;
        let buffer = parse_len(&self.plan.setting("buffer")).map_err(anyhow::Error::msg)?;
        let corpus = self.surroundings.corpus()?;
        let mut data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if data.is_none() {
            let len = parse_len(&self.plan.setting("bytes")).map_err(anyhow::Error::msg)?;
            *data = Some(Data::new(corpus, len));
        }
        let data = data.as_ref().context("the data")?;
        let mut rows = Vec::new();
        for entry in fs::read_dir(corpus).with_context(|| format!("cannot read {}", corpus.display()))? {
            let entry = entry?;
            if entry.path().is_dir() {
                let bytes = data.pool(&entry.file_name().to_string_lossy())?;
                let speed = measure(method, &bytes, buffer)?;
                let raw = bytes.len() as f64;
                rows.push([raw / speed.encode_s / 1e6, raw / speed.decode_s / 1e6, speed.wire_len as f64 / raw]);
            }
        }
        let mean = |i: usize| rows.iter().map(|r| r[i]).sum::<f64>() / rows.len() as f64;
        let speeds = [mean(0), mean(1), 1.0 / mean(2)];
        anyhow::ensure!(speeds[0].is_finite(), "{} has no folders with files", corpus.display());
        known.insert((name.to_owned(), round), speeds);
        Ok(speeds)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::experiment::cells::cells;
    use crate::experiment::plan::tests::SMALL;

    #[test]
    fn published_speeds_give_the_published_thresholds() {
        let plan = Plan::parse("p", SMALL, false).unwrap();
        let surroundings = Surroundings { corpus: None, tables: "".into(), stop: std::sync::Arc::default() };
        let lab = Model.open(&plan, &surroundings).unwrap();
        let values = lab.run(&cells(&plan)[0], 0).unwrap().numbers;
        // Table 1: 914 and 1,330 MB/s.
        assert!((values["sequential_mb_per_s"] - 914.0).abs() < 1.0, "{values:?}");
        assert!((values["pipelined_mb_per_s"] - 1330.0).abs() < 2.0, "{values:?}");
        let many = lab.run(&cells(&plan)[1], 0).unwrap().numbers;
        assert!((many["sequential_mb_per_s"] / values["sequential_mb_per_s"] - 24.0).abs() < 1e-9);
    }

    #[test]
    fn every_published_name_stands_for_a_method() {
        for (name, ..) in PUBLISHED {
            assert!(registry::method(stands_for(name)).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_mean_of_ratios_is_that_of_what_is_sent() {
        let corpus = tempfile::tempdir().unwrap();
        let pool = |name: &str, bytes: &[u8]| {
            fs::create_dir(corpus.path().join(name)).unwrap();
            fs::write(corpus.path().join(name).join("data"), bytes).unwrap();
        };
        pool("zero", &[0; 1 << 18]);
        let mut rng = narrows_sim::rng::Rng(1);
        pool("random", &(0..1 << 18).map(|_| rng.next_u64() as u8).collect::<Vec<_>>());
        let plan =
            SMALL.replace("\"published\"", "\"measured\"").replace("formula = \"threshold\"", "bytes = \"256K\"");
        let plan = Plan::parse("p", &plan, false).unwrap();
        let ratio = |corpus: &Path| {
            let corpus = Some(corpus.to_owned());
            let surroundings = Surroundings { corpus, tables: "".into(), stop: std::sync::Arc::default() };
            Model.open(&plan, &surroundings).unwrap().run(&cells(&plan)[0], 0).unwrap().numbers["ratio"]
        };
        // One half of the bytes compresses to almost nothing, the other not at all.
        assert!((ratio(corpus.path()) - 2.0).abs() < 0.05);
    }
}
