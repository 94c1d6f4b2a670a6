//! The command `soak`: programs under `narrows run` at both ends exchange bytes while programs and
//! supervisors are killed, for an hour or any other time; or many programs are killed right after
//! their last write.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use content::Behaviour;
use host::World;
use judge::{Judge, Place, Verdict, pair_up};
use log::{Life, Log};
use pair::Pair;
use report::Report;

mod content;
mod ends;
mod host;
mod judge;
mod kills;
mod log;
mod pair;
mod record;
mod report;
mod talk;

/// Kill programs and supervisors of `narrows run` at random, and check that no bytes are lost or
/// wrong
///
/// Pairs of a client and a server, each under `narrows run`, exchange streams of random lengths in
/// random pieces over loopback: several connections at a time, both directions at once or one after
/// the other, some with blocking calls and some polled, text and noise. Half of the pairs
/// negotiate, half begin with frames; policy and engine are random for each program. At random
/// moments a program, a supervisor, or several are killed (SIGKILL) and replaced. Every byte is
/// checked by its position. A stream may end early only if the program that wrote it was killed,
/// and then after all bytes for which its write calls had returned. A program whose supervisor is
/// killed gets ECONNRESET. Nothing may hang.
///
/// With --kills instead: N programs under `narrows run` are killed right after their last write to
/// a server under `narrows run`; all that they wrote must arrive, followed by a regular end of
/// stream.
///
/// Exit status: 0, 1 if a check failed or the run was interrupted, 2 for wrong usage.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Duration in minutes
    #[arg(long, value_name = "M", default_value_t = 60.0)]
    minutes: f64,
    /// Instead: number of programs that are killed after their last write
    #[arg(long, value_name = "N", conflicts_with = "minutes", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    kills: Option<u64>,
    /// Seed of all random choices; the timing of programs still depends on the machine
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Clients, each with a server; with --kills servers, each with one client at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    pairs: u64,
    /// Mean time between two kills in a pair
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    kill_every: f64,
    /// Write the result to FILE.json, and as a page to FILE.md
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Keep the records of each end about its connections, and the log of kills, in this folder
    #[arg(long, value_name = "DIR")]
    records: Option<PathBuf>,
    /// Start and kill nothing: judge the records of an earlier run with --records in this folder
    /// again
    #[arg(long, value_name = "DIR", conflicts_with_all = ["minutes", "kills", "records"])]
    judge: Option<PathBuf>,
    /// Internal: the role of this process as one of the programs
    #[arg(long, hide = true, num_args = 1..)]
    end: Vec<String>,
}

/// File of the log, beside the records.
const LOG: &str = "kills";
const RESULT: &str = "result.json";
const LOOK_EVERY: Duration = Duration::from_millis(100);
const TELL_EVERY: Duration = Duration::from_secs(60);

pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.end.is_empty() {
        return ends::run(&args.end);
    }
    for (what, value, most) in [("--minutes", args.minutes, 1e5), ("--kill-every", args.kill_every, 1e4)] {
        if !(value > 0.0 && value <= most) {
            return Err(anyhow::Error::new(crate::Usage(format!("{what} must be above 0 and at most {most}"))));
        }
    }
    if let Some(folder) = &args.judge {
        let path = folder.join(RESULT);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut report =
            Report::again(args, &text).with_context(|| format!("{} is not a valid result", path.display()))?;
        let log = Log::read(&folder.join(LOG))?;
        report.soaked(&log.kills(), &log.lives(), judged(&log, folder, true)?);
        return tell(args, &report);
    }
    // Must precede the thread that reaps children, because it runs programs itself.
    let mut report = Report::new(args);
    let world = World::new(crate::stop::on_signals()?, args.records.as_deref())?;
    let begun = Instant::now();
    match args.kills {
        Some(count) => kills::run(args, &world, count, &mut report)?,
        None => soak(args, &world, &mut report)?,
    }
    report.finish(&world, begun.elapsed());
    fs::write(world.path(RESULT), report.json())?;
    tell(args, &report)?;
    ensure!(!world.stopped(), "interrupted");
    Ok(())
}

fn tell(args: &Args, report: &Report) -> Result<()> {
    print!("{}", report.markdown());
    if let Some(path) = &args.output {
        for (extension, text) in [("json", report.json()), ("md", report.markdown())] {
            let path = path.with_extension(extension);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    ensure!(report.faults() == 0, "{} faults", report.faults());
    Ok(())
}

fn soak(args: &Args, world: &World, report: &mut Report) -> Result<()> {
    let log = Log::default();
    let begun = Instant::now();
    let until = begun + Duration::from_secs_f64(60.0 * args.minutes);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..args.pairs {
            let pair = Pair::new(world, &log, number, args.seed);
            let failed = &failed;
            threads.push(scope.spawn(move || {
                if let Err(e) = pair.run(until, Duration::from_secs_f64(args.kill_every)) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{e:#}"));
                }
            }));
        }
        let mut told = Instant::now();
        while threads.iter().any(|t| !t.is_finished()) {
            std::thread::sleep(LOOK_EVERY);
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                if let Ok(verdict) = judged(&log, world.folder(), false) {
                    report.minute(log.kills().len(), &verdict);
                    verdict.faults.iter().take(3).for_each(|f| eprintln!("soak: {f}"));
                }
            }
        }
    });
    failed.into_inner().unwrap_or_default().into_iter().for_each(|e| world.fault(e));
    fs::write(world.path(LOG), log.to_string())?;
    let verdict = judged(&log, world.folder(), true)?;
    report.soaked(&log.kills(), &log.lives(), verdict);
    Ok(())
}

fn judged(log: &Log, folder: &Path, complete: bool) -> Result<Verdict> {
    // Read the records before the kills, so that every kill that explains a recorded end is known,
    // or the connection is judged again later.
    let (mut places, lives) = (Vec::new(), log.lives());
    for Life { pair, side, life, .. } in &lives {
        let entries = record::read(&record::path(folder, *pair, *side, *life))?;
        places.extend(entries.into_iter().map(|entry| Place { side: *side, pair: *pair, life: *life, entry }));
    }
    let kills = log.kills();
    let direct: HashSet<u64> = lives.iter().filter(|l| l.direct).map(|l| l.pair).collect();
    let direct = |pair| direct.contains(&pair);
    let mut verdict = Judge::new(&kills, &direct, Behaviour::of, complete).all(&pair_up(places));
    if complete {
        verdict.wants_something();
    }
    Ok(verdict)
}
