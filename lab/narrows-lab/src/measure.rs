//! The command `tables`: measures every method on every block of every pool.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use narrows::block::Block;
use narrows::calibration::time_methods;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::stream::thread_cpu_ns;
use narrows_sim::measure::{Bench, history_of, linkable, measurable};

use crate::pools::{self, Half, Pool};
use crate::registry;
use crate::units::parse_len;
use narrows_sim::table::{CLASSES, Cost, Table};

/// Runs of the calibration sample; the quickest counts.
const RUNS: usize = 3;
/// The speeds of this machine on the calibration sample, in the directory of the tables.
pub(crate) const REFERENCE_FILE: &str = "reference.txt";

/// Make the pools of a corpus and measure every method on every block.
///
/// Makes a pool of each directory of the corpus: up to 700 KB of each file in a fixed shuffled
/// order, LEN bytes in total. Further pools are `random`, and `mixfine` and `mixwide`, which change
/// kind every 4-64 KiB and every 4 KiB-1 MiB. Every aligned block of 8, 32, 128 and 512 KiB is
/// encoded and decoded by every default method, with contexts that are reused as in the engine; the
/// quickest of up to three runs counts.
///
/// Writes POOL.pool (the bytes), POOL.table (text, format in docs/experiments/formats.md) and
/// reference.txt (speeds on the calibration sample) into DIR. Times are those of the CPU, but run it
/// on an idle machine: others take the caches too. Times of disturbed runs are capped when the table
/// is read, but only roughly.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Directory with one directory for each kind of data.
    #[arg(long, value_name = "DIR")]
    corpus: PathBuf,
    /// Directory for the pools and tables; created if absent.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Measure only this pool (may be repeated).
    #[arg(long, value_name = "POOL")]
    pool: Vec<String>,
    /// Bytes of a pool, rounded down to a multiple of 512K.
    #[arg(long, value_name = "LEN", default_value = "3M", value_parser = parse_len)]
    len: usize,
    /// Files of the corpus: constants are tuned on one half and figures quoted from the other.
    #[arg(long, value_name = "HALF", default_value = "both")]
    half: Half,
    /// Methods to measure; `store` and `constant` need no table.
    #[arg(long, value_name = "LIST", value_parser = parse_methods)]
    methods: Option<MethodList>,
}

#[derive(Clone)]
struct MethodList(Vec<Method>);

fn parse_methods(text: &str) -> Result<MethodList, String> {
    registry::methods(text).map(MethodList).map_err(|e| e.to_string())
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let methods = args.methods.as_ref().map_or(DEFAULT_METHODS, |m| &m.0);
    let methods = measurable(methods);
    fs::create_dir_all(&args.output).with_context(|| format!("cannot make {}", args.output.display()))?;
    let pools = pools::make(&args.corpus, args.len, args.half)?;
    write_reference(&args.output, &methods)?;
    for pool in pools.into_iter().filter(|p| args.pool.is_empty() || args.pool.contains(&p.name)) {
        let begin = Instant::now();
        let table = measure(pool, &methods);
        table.save(&args.output)?;
        println!("{:10} {:5.1} s  {}", table.pool, begin.elapsed().as_secs_f64(), summary(&table));
    }
    Ok(())
}

/// Measures the missing tables of these pools (all if none is named) in `folder`. After an
/// interruption the next call resumes.
pub(crate) fn complete(
    corpus: &Path,
    folder: &Path,
    len: usize,
    methods: &[Method],
    only: &[String],
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let there = |name: &str| folder.join(format!("{name}.table")).is_file();
    let all_there = !only.is_empty() && only.iter().all(|name| there(name));
    if all_there && folder.join(REFERENCE_FILE).is_file() {
        return Ok(());
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let methods = measurable(methods);
    let pools = pools::make(corpus, len, Half::Both)?;
    if let Some(name) = only.iter().find(|name| !pools.iter().any(|p| p.name == **name)) {
        bail!("{} has no pool '{name}'", corpus.display());
    }
    if !folder.join(REFERENCE_FILE).is_file() {
        write_reference(folder, &methods)?;
    }
    for pool in pools.into_iter().filter(|p| (only.is_empty() || only.contains(&p.name)) && !there(&p.name)) {
        if stopped() {
            bail!("interrupted while the costs of methods were measured");
        }
        eprintln!("experiment: measuring the costs of methods on {}", pool.name);
        measure(pool, &methods).save(folder)?;
    }
    Ok(())
}

fn write_reference(folder: &Path, methods: &[Method]) -> Result<()> {
    let start = Instant::now();
    let mut clock = || start.elapsed().as_nanos() as u64;
    let mut rows = Vec::new();
    for _ in 0..RUNS {
        rows.push(
            time_methods(registry::codecs(), methods, &mut clock, &|| false).context("the calibration was stopped")?,
        );
    }
    let mut text = String::new();
    for (i, method) in methods.iter().enumerate() {
        let least = |f: fn(&(Method, f32, f32)) -> f32| rows.iter().map(|r| f(&r[i])).fold(f32::INFINITY, f32::min);
        writeln!(text, "{} {} {}", registry::name(*method), least(|r| r.1), least(|r| r.2))?;
    }
    fs::write(folder.join(REFERENCE_FILE), text)?;
    Ok(())
}

fn measure(pool: Pool, methods: &[Method]) -> Table {
    // Not the time of day: others may use the cores.
    let mut bench = Bench::of(registry::codecs(), thread_cpu_ns);
    let mut table = Table::of(registry::codecs(), &pool.name, Block::from_vec(pool.bytes), methods.to_vec());
    table.linked = linkable(methods);
    for (class, class_len) in CLASSES.into_iter().enumerate() {
        let bytes = table.bytes.clone();
        for (i, block) in bytes.chunks_exact(class_len).enumerate() {
            let begin = i * class_len;
            let alone = methods.iter().map(|m| (m, &[][..]));
            let columns = alone.chain(table.linked.iter().map(|c| (&c.0, history_of(&bytes, begin, class_len, *c))));
            let costs = columns.map(|(m, history)| bench.cost(*m, history, block)).collect();
            table.push(class, costs);
        }
    }
    table
}

/// Ratio and speeds of every method for blocks of 128 KiB.
fn summary(table: &Table) -> String {
    let blocks = table.blocks(2);
    let raw_len = (blocks.len() * CLASSES[2]) as f64;
    let describe = |(m, method): (usize, &Method)| {
        let total = |f: fn(&Cost) -> f64| blocks.iter().map(|b| f(&b[m])).sum::<f64>();
        let (encode_ns, decode_ns, wire_len) = (total(|c| c.encode_ns), total(|c| c.decode_ns), total(|c| c.wire_len));
        let speed = |ns: f64| 1e3 * raw_len / ns.max(1.0);
        format!("{method} {:.2} {:.0}/{:.0}", raw_len / wire_len, speed(encode_ns), speed(decode_ns).min(99_999.0))
    };
    table.methods.iter().enumerate().map(describe).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_blocks_have_sizes_and_times() {
        let text = b"the same words in another order, and again the words\n".repeat(10_000);
        let pool = Pool { name: "text".into(), bytes: text[..512 << 10].to_vec() };
        let table = measure(pool, &[Method::lz4_accel(1), Method::zstd(1)]);
        for (class, class_len) in CLASSES.iter().enumerate() {
            assert_eq!(table.blocks(class).len(), (512 << 10) / class_len);
            for cost in table.blocks(class).iter().flatten() {
                assert!(cost.encode_ns > 0.0 && cost.decode_ns > 0.0 && cost.wire_len < *class_len as f64 / 5.0);
            }
        }
    }
}
