//! The command `grid`: every policy on every cell, in virtual time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use clap::Args as ClapArgs;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::monitor::cost::Prior;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_sim::judge::{self, fixed_methods};
use narrows_sim::measure::measurable;
use narrows_sim::table::{self, CLASSES, Table};
use narrows_sim::world::{self, Conditions, Run};

use crate::cells::{Cell, Scenario};
use crate::fit;
use crate::registry;
use crate::report::{self, About, Row};
use crate::units::{parse_len, print_len};

/// Block length of fixed methods, which is the most important one of the tables: programs with one
/// method use one length.
const FIXED_BLOCK: usize = 128 << 10;
/// The engine's own limit until the receiver has announced one.
const BLOCK_MAX: usize = 2 << 20;

/// Run policies in virtual time on every combination of pool, rate, cores and length.
///
/// The engine's real sender decides on the pool's real bytes (repeated up to the length). Times and
/// lengths of codecs come from the tables, the link is an in-order fluid, encoding times vary by 5
/// %, and every decision is charged. Each policy is compared with the bound, which nothing beats,
/// the relaxed schedule (linear program over blocks of one length), the oracle (beam search, up to
/// 8M, and up to 64M where link or cores change), plain (`fixed:store`, not charged) and the best fixed method, chosen in hindsight for each
/// cell.
///
/// A policy that keeps a file (`datacomp:table=FILE`) runs the cells one by one and learns from
/// each; the file is written at the end. Policies that name their own methods (`adoc`, `datacomp`,
/// `stall`, `replay`) need tables of these methods.
///
/// Scenarios: flat; up10 (rate x10 at 80 % of the time), down10 (rate /10 at 15 %), square (up and
/// down, 4 half periods), jitter (rate noise, sigma 0.3), cpu3 (CPU at 1/3 in every second 30 % of
/// the time), slowrx and slowrx3 (receiver with one core, at 0.1 and 0.3 of the speed).
///
/// Writes a summary to the standard output, and all cells to FILE: see docs/experiments/formats.md.
#[derive(ClapArgs)]
pub(crate) struct Args {
    /// Directory written by `tables`.
    #[arg(long, value_name = "DIR")]
    tables: PathBuf,
    /// `shipped`, a file, or a directory with POOL.txt and all.txt.
    #[arg(long, value_name = "PRIOR", default_value = "shipped")]
    prior: String,
    /// Fit a prior for each pool from the tables of the others; only such results may be quoted. If
    /// the tables have more than 16 methods, the prior has only the default ones.
    #[arg(long, conflicts_with = "prior")]
    leave_one_out: bool,
    /// Policies to run.
    #[arg(long, value_name = "SPEC", default_value = "balance", num_args = 1.., value_parser = registry::policy)]
    policy: Vec<PolicySpec>,
    /// Pools, all by default.
    #[arg(long, value_name = "POOL,..", value_delimiter = ',')]
    pools: Vec<String>,
    /// Rates of the link in Mbit/s.
    #[arg(long, value_name = "MBIT,..", value_delimiter = ',', default_value = "1,6,30,100,300,1000,2500,10000,25000")]
    rates: Vec<f64>,
    /// Cores that encode.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4,8")]
    cores: Vec<usize>,
    /// Lengths of the flow. Up to 4M a shorter pool is not repeated; above 8M there is an oracle only
    /// where link or cores change.
    #[arg(long, value_name = "LEN,..", value_delimiter = ',', default_value = "1M,3M", value_parser = parse_len)]
    lens: Vec<usize>,
    /// Scenarios: changes during the transfer.
    #[arg(long, value_name = "NAME", default_value = "flat")]
    scenario: Vec<Scenario>,
    /// Width of the oracle's beam search; 0 compares with the relaxed schedule instead.
    #[arg(long, value_name = "WIDTH", default_value_t = 32)]
    beam: usize,
    /// Longest block of oracle and relaxed schedule: 128K, or 512K for a stricter comparison.
    #[arg(long, value_name = "LEN", default_value = "128K", value_parser = parse_len)]
    oracle_block: usize,
    /// Microseconds that each decision is charged.
    #[arg(long, value_name = "US", default_value_t = 2.0)]
    decision_us: f64,
    /// Also list every fixed method in FILE.
    #[arg(long)]
    every_fixed: bool,
    /// Cells that run at a time; by default one per core of this machine.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// List the N worst cells of each policy.
    #[arg(long, value_name = "N", default_value_t = 10)]
    worst: usize,
    /// Write every cell to FILE, as CSV or, with --json, as JSON.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write FILE and the standard output as JSON.
    #[arg(long)]
    json: bool,
    /// Write the decisions of the policies (not of fixed methods) as JSON lines; meant for one
    /// cell.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let about = About::new();
    let all = table::load_all(&args.tables, &[], registry::codecs())?;
    let priors = priors(args, &all)?;
    let cells = cells(args, &all)?;
    let class_max = CLASSES.iter().rposition(|c| *c <= args.oracle_block).context("--oracle-block is too short")?;
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<CellResult>>> = Mutex::new(vec![None; cells.len()]);
    let policies = load_policies(args, &all)?;
    let in_order = args.policy.iter().any(PolicySpec::keeps);
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1);
    let jobs = if in_order { 1 } else { jobs };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(cell) = cells.get(i) else { return };
                    let rows = run_cell(args, cell, &all[cell.table], &priors[cell.table], class_max, &policies);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(rows);
                }
            });
        }
    });
    write_files(&policies)?;
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (mut rows, mut trace) = (Vec::new(), String::new());
    for (cell_rows, lines) in results.into_iter().flatten() {
        rows.extend(cell_rows);
        trace.push_str(&lines);
    }
    if let Some(path) = &args.output {
        let text = if args.json { report::json(&about, &rows) } else { report::csv(&about, &rows) };
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.trace {
        fs::write(path, trace).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        println!("{}", report::summary_json(&about, &rows));
    } else {
        print!("{}", report::summary(&rows, args.worst));
    }
    Ok(())
}

/// A policy of the command line with the contents of its file, which go from cell to cell.
type Loaded = Mutex<PolicySpec>;

fn lock(policy: &Loaded) -> MutexGuard<'_, PolicySpec> {
    policy.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the policies with their files; and checks that the tables have every method that they may
/// choose.
fn load_policies(args: &Args, tables: &[Table]) -> Result<Vec<Loaded>> {
    let load = |spec: &PolicySpec| -> Result<Loaded> {
        let path = spec.file().map(Path::new).filter(|p| !spec.keeps() || p.exists());
        let about = || format!("cannot use the file of --policy {spec}");
        let spec = match path {
            Some(path) => {
                fs::read(path).map_err(anyhow::Error::from).and_then(|b| Ok(spec.load(&b)?)).with_context(about)?
            }
            None => spec.clone(),
        };
        let lacking = spec.methods().into_iter().find(|m| tables.iter().any(|t| !known(t, *m)));
        if let Some(method) = lacking {
            let methods = registry::codecs().print_list(&measurable(&spec.methods()));
            let method = registry::name(method);
            bail!("the tables have no {method}; for {spec} make them with: narrows-lab tables --methods '{methods}'");
        }
        if spec.links() && spec != PolicySpec::balance() && tables.iter().any(|t| t.linked.is_empty()) {
            bail!("{spec} links blocks, but these tables have separate blocks only: make them anew");
        }
        Ok(Mutex::new(spec))
    };
    args.policy.iter().map(load).collect()
}

fn write_files(policies: &[Loaded]) -> Result<()> {
    for spec in policies.iter().map(|p| lock(p).clone()).filter(PolicySpec::keeps) {
        if let (Some(path), Some(bytes)) = (spec.file(), spec.contents()) {
            fs::write(path, bytes).with_context(|| format!("cannot write {path}"))?;
        }
    }
    Ok(())
}

/// One prior for each table.
fn priors(args: &Args, tables: &[Table]) -> Result<Vec<Prior>> {
    let read = |path: &Path| -> Result<Prior> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Prior::parse_with(&text, registry::codecs()).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))
    };
    let reference = if args.leave_one_out { fit::read_reference(&args.tables)? } else { Vec::new() };
    let fitted = if args.leave_one_out { fit::fitting(tables)? } else { Vec::new() };
    let path = Path::new(&args.prior);
    let prior_of = |table: &Table| -> Result<Prior> {
        if args.leave_one_out {
            let text = fit::fit(&fitted, Some(&table.pool), &reference)?;
            return Prior::parse_with(&text, registry::codecs()).map_err(|e| anyhow::anyhow!("{e}"));
        }
        if args.prior == "shipped" {
            return Ok(Prior::shipped().clone());
        }
        if path.is_file() {
            return read(path);
        }
        let own = path.join(format!("{}.txt", table.pool));
        if own.is_file() { read(&own) } else { read(&path.join("all.txt")) }
    };
    tables.iter().map(prior_of).collect()
}

fn cells(args: &Args, tables: &[Table]) -> Result<Vec<Cell>> {
    if let Some(name) = args.pools.iter().find(|p| !tables.iter().any(|t| t.pool == **p)) {
        bail!("there is no table of a pool '{name}'");
    }
    if args.rates.iter().any(|r| !r.is_finite() || *r <= 0.0) || args.cores.contains(&0) {
        bail!("rates and cores must be positive");
    }
    let mut cells = Vec::new();
    for (i, table) in tables.iter().enumerate() {
        if !args.pools.is_empty() && !args.pools.contains(&table.pool) {
            continue;
        }
        // A short flow, which tests the start, must not see the same data twice.
        let mut lens: Vec<_> =
            args.lens.iter().map(|len| if *len <= 4 << 20 { *len.min(&table.len()) } else { *len }).collect();
        lens.dedup();
        for len in lens {
            if len % CLASSES[CLASSES.len() - 1] != 0 {
                bail!("a flow of {} is not a multiple of 512K", print_len(len));
            }
            for &cores in &args.cores {
                for &rate_mbit in &args.rates {
                    let cell = |scenario| Cell { table: i, rate_mbit, cores, len, scenario };
                    cells.extend(args.scenario.iter().copied().map(cell));
                }
            }
        }
    }
    Ok(cells)
}

/// The rows of a cell, and the trace of its policies.
type CellResult = (Vec<Row>, String);

fn run_cell(
    args: &Args,
    cell: &Cell,
    table: &Table,
    prior: &Prior,
    class_max: usize,
    policies: &[Loaded],
) -> CellResult {
    let conditions = cell.conditions(table, args.decision_us * 1e3, BLOCK_MAX);
    let possible = judge::possible(table, &conditions, class_max, args.beam);
    let methods: Vec<Method> = if DEFAULT_METHODS.iter().all(|m| known(table, *m)) {
        DEFAULT_METHODS.to_vec()
    } else {
        [Method::STORE, Method::CONSTANT].into_iter().chain(table.methods.iter().copied()).collect()
    };
    let codecs = registry::codecs();
    let setup = PolicySetup { methods: &methods, codecs, ..PolicySetup::new(cell.cores, prior) };
    let run_fixed = |method: Method| -> Run {
        let conditions = Conditions { block_max: FIXED_BLOCK, decision_ns: 0.0, ..conditions.clone() };
        world::run(table, &conditions, PolicySpec::fixed(method, false).build(&setup))
    };
    let fixed: Vec<(Method, Run)> = fixed_methods(table).into_iter().map(|m| (m, run_fixed(m))).collect();
    let plain_s = fixed[0].1.seconds;
    let row = |policy: String, run: &Run| Row::new(cell, &table.pool, policy, run, possible, plain_s);

    let mut rows = vec![row("plain".into(), &fixed[0].1)];
    let best = fixed.iter().min_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
    rows.extend(best.map(|(_, run)| row("best-fixed".into(), run)));
    if args.every_fixed {
        rows.extend(fixed.iter().skip(1).map(|(m, run)| row(format!("fixed:{}", registry::name(*m)), run)));
    }
    let mut trace = String::new();
    for policy in policies {
        let spec = lock(policy).clone();
        let conditions = match spec.name() {
            "fixed" => Conditions { block_max: FIXED_BLOCK, ..conditions.clone() },
            _ => Conditions { trace: args.trace.is_some(), ..conditions.clone() },
        };
        let run = world::run(table, &conditions, spec.build(&setup));
        // Only policies with a file pass on what they learned: otherwise the order of cells depends
        // on the threads.
        if spec.keeps()
            && let Some(bytes) = &run.saved
            && let Ok(learned) = spec.load(bytes)
        {
            *lock(policy) = learned;
        }
        trace.push_str(&run.trace);
        rows.push(row(spec.to_string(), &run));
    }
    (rows, trace)
}

fn known(table: &Table, method: Method) -> bool {
    method == Method::STORE || method == Method::CONSTANT || table.methods.contains(&method)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use narrows::block::Block;
    use narrows_sim::rng::Rng;

    /// With policies that learn, a run depends on earlier ones; the result must still not depend on
    /// the threads.
    #[test]
    fn the_same_grid_has_the_same_result_bit_for_bit_on_any_number_of_threads() {
        let directory = tempfile::tempdir().unwrap();
        let methods = measurable(&registry::policy("datacomp").unwrap().methods());
        let mut rng = Rng(5);
        let mut table = Table::of(
            registry::codecs(),
            "drawn",
            Block::from_vec((0..1u64 << 20).map(|i| (i % 251) as u8).collect()),
            methods,
        );
        for (class, class_len) in CLASSES.iter().enumerate() {
            let n = *class_len as f64;
            for _ in 0..(1 << 20) / class_len {
                let cost = |m: usize, rng: &mut Rng| table::Cost {
                    encode_ns: n * (m + 1) as f64 * (1.0 + rng.unit()),
                    decode_ns: n,
                    wire_len: (n * 0.9 / (m + 1) as f64 * (0.5 + rng.unit())).floor(),
                };
                let row = (0..table.methods.len()).map(|m| cost(m, &mut rng)).collect();
                table.push(class, row);
            }
        }
        table.save(directory.path()).unwrap();
        let parse = |jobs: &str, output: &str| {
            let words = ["grid", "--tables", directory.path().to_str().unwrap(), "--policy", "datacomp", "balance"];
            let more =
                ["--cores", "1", "--rates", "30,100", "--lens", "1M,8M", "--beam", "0", "--jobs", jobs, "-o", output];
            Wrapped::parse_from(words.into_iter().chain(more)).args
        };
        let lines = |jobs: &str| {
            let output = directory.path().join("cells");
            run(&parse(jobs, output.to_str().unwrap())).unwrap();
            let text = fs::read_to_string(&output).unwrap();
            text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let one = lines("1");
        assert_eq!(one.len(), 1 + 4 * 4);
        assert_eq!(one, lines("4"));

        let args = parse("1", "unused");
        let policies = load_policies(&args, std::slice::from_ref(&table)).unwrap();
        let cell = &cells(&args, std::slice::from_ref(&table)).unwrap()[0];
        run_cell(&args, cell, &table, Prior::shipped(), 2, &policies);
        assert!(
            policies.iter().all(|p| lock(p).contents().is_none()),
            "without a file, nothing goes from cell to cell"
        );
    }

    #[derive(Parser)]
    struct Wrapped {
        #[command(flatten)]
        args: Args,
    }
}
