//! The command `experiment`: runs plans, one figure or table each, and joins their results on a
//! page.
//!
//! ```text
//! plan.toml -> cells x rounds, shuffled -> samples.jsonl -> summary.json, summary.md, *.svg, section.html -> index.html
//! ```

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use cells::Cell;
use kinds::{Lab, Surroundings};
use plan::Plan;
use samples::{Sample, Samples};
use summary::Figures;

mod cells;
mod kinds;
mod page;
mod pictures;
mod plan;
mod samples;
mod summary;
mod tables;

use crate::stats::shuffled;
use narrows_host::whole::write_whole;

/// Run plans: each gives one figure or table in its own folder; one page joins them
///
/// PLAN is a file, a name in the folder of plans (`*` matches anything), or `all`. Each plan writes
/// samples.jsonl (the first line has machine, kernel, cores, commit, command and date; then one
/// sample per line), summary.json, summary.md and pictures; index.html in DIR joins the results of
/// all plans. The format of plans is described in docs/experiments/plans.md.
///
/// A second run keeps the samples of the same plan on the same machine and runs only missing or
/// failed cells. Ctrl-C ends the run soon and keeps the samples so far.
///
/// Exit status: 0, 1 if a cell failed or the run was interrupted, 2 for wrong usage.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Plans to run
    #[arg(value_name = "PLAN", default_value = "all")]
    plans: Vec<String>,
    /// Fewer and smaller cells, as each plan defines: minutes instead of most of an hour
    #[arg(long)]
    quick: bool,
    /// Rounds of every cell, instead of those of the plan
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Only plans whose name matches; `*` matches anything
    #[arg(long, value_name = "GLOB")]
    only: Option<String>,
    /// Folder for the results
    #[arg(long, short, value_name = "DIR", default_value = "experiments")]
    output: PathBuf,
    /// Folder with one folder for each kind of data
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// Folder with the plans [default: lab/narrows-lab/plans, in the current folder or where this
    /// program was built]
    #[arg(long, value_name = "DIR")]
    plans_dir: Option<PathBuf>,
    /// Run nothing; write summaries, pictures and index.html again from the samples in DIR
    #[arg(long, conflicts_with_all = ["quick", "rounds", "corpus"])]
    redraw: bool,
    /// List the plans and exit
    #[arg(long)]
    list: bool,
    /// List the cells with the time that they may take, and exit
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let plans = read(args).map_err(|e| anyhow::Error::new(crate::Usage(format!("{e:#}"))))?;
    if args.list {
        for plan in &plans {
            println!("{:<36} {:<8} {}: {}", plan.name, plan.kind.to_string(), plan.figure, plan.title);
        }
        return Ok(());
    }
    if args.dry_run {
        return dry_run(&plans);
    }
    if args.redraw {
        return redraw(&plans, &args.output);
    }
    fs::create_dir_all(&args.output).with_context(|| format!("cannot make {}", args.output.display()))?;
    if let Some(corpus) = &args.corpus {
        ensure!(corpus.is_dir(), "{} is not a folder", corpus.display());
    }
    let stop = crate::stop::on_signals()?;
    let surroundings =
        Surroundings { corpus: args.corpus.clone(), tables: args.output.join(".tables"), stop: Arc::clone(&stop) };
    let (mut wrong, mut ran) = (Vec::new(), 0);
    for plan in &plans {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        match one(plan, &args.output, &surroundings) {
            Ok(outcome) => {
                ran += 1;
                println!("{:<36} {outcome}, {:.0} s", plan.name, begun.elapsed().as_secs_f64());
                if outcome.failed > 0 {
                    wrong.push(plan.name.clone());
                }
            }
            Err(error) => {
                eprintln!("experiment: {}: {error:#}", plan.name);
                wrong.push(plan.name.clone());
            }
        }
    }
    let page = page::join(&args.output)?;
    println!("{}", page.display());
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted after {ran} of {} plans; the same command resumes", plans.len());
    }
    ensure!(wrong.is_empty(), "cells failed in {}; the same command runs them again", wrong.join(", "));
    Ok(())
}

/// Writes the results of stored samples, whatever machine they are of.
fn redraw(plans: &[Plan], output: &Path) -> Result<()> {
    for plan in plans {
        let folder = output.join(&plan.name);
        if let Some((all, about)) = samples::read(&folder, &cells::cells(plan))? {
            write(plan, &folder, &all, &about)?;
        }
    }
    println!("{}", page::join(output)?.display());
    Ok(())
}

fn read(args: &Args) -> Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for path in plan::find(&args.plans, args.plans_dir.as_deref())? {
        let mut plan = Plan::read(&path, args.quick)?;
        plan.rounds = args.rounds.unwrap_or(plan.rounds);
        if args.only.as_ref().is_none_or(|glob| plan::matches(glob, &plan.name)) {
            plans.push(plan);
        }
    }
    ensure!(!plans.is_empty(), "no plan matches '{}'", args.only.as_deref().unwrap_or_default());
    Ok(plans)
}

fn dry_run(plans: &[Plan]) -> Result<()> {
    let mut total_s = 0.0;
    for plan in plans {
        let cells = cells::cells(plan);
        let seconds = estimate_s(plan, &cells);
        total_s += seconds;
        println!("{}: {} cells, {} rounds, about {seconds:.0} s", plan.name, cells.len(), plan.rounds);
        if plans.len() == 1 {
            cells.iter().for_each(|c| println!("  {}", c.name(plan)));
        }
    }
    println!(
        "about {:.0} minutes, and up to 20 s for each pool whose costs are not measured yet",
        (total_s / 60.0).ceil()
    );
    Ok(())
}

fn estimate_s(plan: &Plan, cells: &[Cell]) -> f64 {
    let kind = plan.kind.kind();
    let one: f64 = cells.iter().map(|c| kind.estimate_s(plan, c)).sum();
    let beside = if kind.beside() { jobs() as f64 } else { 1.0 };
    one * f64::from(plan.rounds) / beside
}

fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

struct Outcome {
    samples: usize,
    kept: usize,
    failed: usize,
    missing: usize,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} samples ({} kept)", self.samples, self.kept)?;
        if self.failed > 0 {
            write!(f, ", {} FAILED", self.failed)?;
        }
        if self.missing > 0 {
            write!(f, ", {} missing", self.missing)?;
        }
        Ok(())
    }
}

/// Runs the missing cells of a plan, and writes its results.
fn one(plan: &Plan, output: &Path, surroundings: &Surroundings) -> Result<Outcome> {
    let folder = output.join(&plan.name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let cells = cells::cells(plan);
    let mut samples = Samples::open(&folder, plan, &cells)?;
    let known = samples.known();
    let order = shuffled(cells.len(), plan.rounds, plan.order_seed());
    let left: Vec<(u32, &Cell)> = order.into_iter().map(|(r, i)| (r, &cells[i])).collect();
    let left: Vec<_> = left.into_iter().filter(|(r, c)| !known.contains(&((*c).clone(), *r))).collect();
    if !left.is_empty() {
        let lab = plan.kind.kind().open(plan, surroundings)?;
        run_cells(plan, &*lab, &left, &mut samples, &surroundings.stop)?;
    }
    let figures = write(plan, &folder, &samples.all, &samples.about)?;
    Ok(Outcome { samples: figures.samples, kept: samples.kept, failed: figures.failed.len(), missing: figures.missing })
}

/// Writes summaries, pictures and the plan's section of the page.
fn write(plan: &Plan, folder: &Path, all: &[Sample], about: &Value) -> Result<Figures> {
    let figures = Figures::of(plan, &cells::cells(plan), all);
    let drawn = pictures::draw(plan, &figures);
    for old in fs::read_dir(folder)?.filter_map(|e| e.ok().map(|e| e.path())) {
        if old.extension().is_some_and(|e| e == "svg") {
            fs::remove_file(old)?;
        }
    }
    for picture in &drawn {
        write_whole(&folder.join(&picture.name), picture.svg.as_bytes())?;
    }
    write_whole(&folder.join("summary.json"), figures.json(plan, about).as_bytes())?;
    write_whole(&folder.join("summary.md"), figures.markdown(plan, about).as_bytes())?;
    write_whole(&folder.join("section.html"), page::section(plan, &figures, about, &drawn).as_bytes())?;
    Ok(figures)
}

fn run_cells(
    plan: &Plan,
    lab: &dyn Lab,
    left: &[(u32, &Cell)],
    samples: &mut Samples,
    stop: &AtomicBool,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let shared = Mutex::new((samples, Ok(())));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let Some((round, cell)) = left.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let ran = catch_unwind(AssertUnwindSafe(|| lab.run(cell, *round)));
            // A cell that the user interrupted is neither a result nor a failure.
            if stop.load(Ordering::Relaxed) && !matches!(ran, Ok(Ok(_))) {
                return;
            }
            let outcome = match ran {
                Ok(Ok(values)) => Ok(values),
                Ok(Err(error)) => Err(format!("{error:#}").replace('\n', " ")),
                Err(panic) => Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "it panicked".into())),
            };
            if let Err(error) = &outcome {
                eprintln!("experiment: {}: {}, round {round}: {error}", plan.name, cell.name(plan));
            }
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let added = shared.0.add(Sample { cell: (*cell).clone(), round: *round, outcome });
            if added.is_err() {
                // The disk may be full: the other threads need not try.
                next.store(left.len(), Ordering::Relaxed);
                shared.1 = added;
                return;
            }
        }
    };
    let jobs = if plan.kind.kind().beside() { jobs() } else { 1 };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    shared.into_inner().unwrap_or_else(PoisonError::into_inner).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_runs_resumes_and_makes_its_page() {
        let folder = tempfile::tempdir().unwrap();
        let more = "[[picture]]\nform = \"bars\"\nx = \"cores\"\nseries = \"method\"\nvalue = \"sequential_mb_per_s\"\n\
                    y_label = \"MB/s\"\ncaption = \"Thresholds.\"\n";
        let plan = Plan::parse("small", &format!("{}{more}", plan::tests::SMALL), false).unwrap();
        let surroundings = Surroundings { corpus: None, tables: folder.path().join("t"), stop: Arc::default() };
        let first = one(&plan, folder.path(), &surroundings).unwrap();
        assert_eq!((first.samples, first.kept, first.failed, first.missing), (8, 0, 0, 0));
        let again = one(&plan, folder.path(), &surroundings).unwrap();
        assert_eq!((again.samples, again.kept), (8, 8));
        for file in ["samples.jsonl", "summary.json", "summary.md", "section.html", "1.svg"] {
            assert!(folder.path().join("small").join(file).is_file(), "{file}");
        }
        let html = fs::read_to_string(page::join(folder.path()).unwrap()).unwrap();
        assert!(html.contains("Thresholds.") && html.contains("<svg"));
        // From the samples alone.
        let small = folder.path().join("small");
        let made = ["summary.json", "summary.md", "section.html", "1.svg"].map(|file| small.join(file));
        let before = made.each_ref().map(|file| fs::read(file).unwrap());
        made.iter().for_each(|file| fs::remove_file(file).unwrap());
        redraw(&[plan], folder.path()).unwrap();
        assert!(made.map(|file| fs::read(file).unwrap()) == before);
    }

    #[test]
    fn stopped_it_keeps_what_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan::parse("small", plan::tests::SMALL, false).unwrap();
        let surroundings =
            Surroundings { corpus: None, tables: folder.path().join("t"), stop: Arc::new(AtomicBool::new(true)) };
        let outcome = one(&plan, folder.path(), &surroundings).unwrap();
        assert_eq!((outcome.samples, outcome.missing), (0, 8));
        surroundings.stop.store(false, Ordering::Relaxed);
        assert_eq!(one(&plan, folder.path(), &surroundings).unwrap().missing, 0);
    }

    #[test]
    fn a_cell_that_fails_leaves_the_others() {
        let folder = tempfile::tempdir().unwrap();
        // Speeds of bzip2 are not published.
        let text = plan::tests::SMALL.replace("\"zstd\"", "\"bzip2\"");
        let plan = Plan::parse("small", &text, false).unwrap();
        let surroundings = Surroundings { corpus: None, tables: folder.path().join("t"), stop: Arc::default() };
        let outcome = one(&plan, folder.path(), &surroundings).unwrap();
        assert_eq!((outcome.samples, outcome.failed, outcome.missing), (4, 4, 0));
    }
}
