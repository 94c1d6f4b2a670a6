//! `narrows oracle`: computes the best schedule for given data on a given link.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use narrows::Error;
use narrows::block::Block;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::policy::PolicySpec;
use narrows::stream;
use narrows_classic::Schedule;
use narrows_sim::limits::Limits;
use narrows_sim::measure::{linkable, measurable, measure, measure_until};
use narrows_sim::table::{CLASSES, Table};

use crate::args::oracle::OracleArgs;
use crate::{files, flow, report};
use narrows_forecast::oracle::cache::{self, Cache};
use narrows_forecast::oracle::energy::{self, Watts};
use narrows_forecast::oracle::judge::{Answer, Question};
use narrows_forecast::oracle::show::{self, About};
use narrows_forecast::oracle::{input, page};

/// Data of which there is a first estimate: all of less is soon measured.
const ESTIMATE_FROM: usize = 1 << 20;
/// Pieces of the data that it is made from. All methods take less than a second for these 128 KiB.
const ESTIMATE_PIECES: usize = 4;
/// Length of each of them.
const ESTIMATE_PIECE: usize = 32 << 10;

/// Runs `narrows oracle`.
pub(crate) fn run(args: &OracleArgs) -> Result<()> {
    if args.replay.is_some() && args.link.len() != 1 {
        return Err(Error::misuse("--replay takes one --link: each rate has its own schedule").into());
    }
    let policies: Vec<_> = args.policy.iter().cloned().map(flow::with_file).collect::<Result<_>>()?;
    files::refuse_same(&args.path, [args.replay.as_deref(), args.html.as_deref()])?;
    let input = input::read(&args.path, args.max_len)?;
    if input.is_cut && !args.quiet {
        let of = input.len.map_or_else(String::new, |len| format!(" of {}", report::bytes(len as f64)));
        let first = report::bytes(input.bytes.len() as f64);
        report::note(format_args!("only the first {first}{of} are analysed (--max-len)"));
    }
    let chosen: Vec<Method> = args.methods.as_ref().map_or(DEFAULT_METHODS, |l| &l.0).to_vec();
    let mut methods = chosen.clone();
    for method in policies.iter().flat_map(PolicySpec::methods) {
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    let measured = measurable(&methods);
    let bytes = Block::from_vec(input.bytes);
    let raw_len = bytes.len();
    let cores = args.cores.map_or_else(stream::encoders, usize::from);
    let decoders = args.receiver_cores.map_or(cores, usize::from);
    let (methods, policies) = (&chosen[..], &policies[..]);
    let ends = Ends { methods, policies, cores, decoders, len: raw_len };
    let (table, watts, from_cache) = figures(args, &bytes, &measured, &ends)?;

    let watts = watts.as_ref();
    let question = ends.question(&table, watts);
    let threads = stream::cores();
    let answers = question.answer(&args.link, threads);
    let about = About {
        path: args.path.display().to_string(),
        raw_len,
        measured_len: table.len(),
        is_cut: input.is_cut,
        cores,
        decoders,
        cpu: cache::cpu_model(),
        from_cache,
        has_energy: watts.is_some(),
    };
    let tables: Vec<String> = answers.iter().map(|a| show::table(&about, a)).collect();
    if let (Some(path), [answer]) = (&args.replay, &answers[..]) {
        files::write_whole(path, schedule_text(answer).as_bytes())?;
    }
    if let Some(path) = &args.html {
        let sweep = question.answer(&page::sweep(), threads);
        let html = page::html(&about, &tables.join("\n"), &show::speeds(&table), &answers, &sweep);
        files::write_whole(path, html.as_bytes())?;
    }
    if args.json {
        return report::out(show::json(&about, &table, &answers));
    }
    report::out(format_args!("{}\n\n{}", show::headline(&about), tables.join("\n").trim_end()))
}

/// What is asked, without the figures.
struct Ends<'a> {
    methods: &'a [Method],
    policies: &'a [PolicySpec],
    cores: usize,
    decoders: usize,
    len: usize,
}

impl<'a> Ends<'a> {
    fn question<'q>(&self, table: &'q Table, watts: Option<&'q Watts>) -> Question<'q>
    where
        'a: 'q,
    {
        let Self { methods, policies, cores, decoders, len } = *self;
        let limits = Limits::new(table);
        Question { table, limits, watts, methods, policies, cores, decoders, len, speeds: [1.0; 2] }
    }
}

/// The costs of every method on every block, or on those that were measured in time, and the power if it is known;
/// from the cache or measured. The flag says whether they come from the cache.
fn figures(
    args: &OracleArgs,
    bytes: &Block,
    methods: &[Method],
    ends: &Ends<'_>,
) -> Result<(Table, Option<Watts>, bool)> {
    let cache = Cache::new(bytes, methods).filter(|_| !args.no_cache);
    if let Some((table, watts)) = cache.as_ref().and_then(|c| c.load(bytes, energy::is_readable())) {
        return Ok((table, watts, true));
    }
    let begun = Instant::now();
    if bytes.len() > ESTIMATE_FROM && !args.quiet {
        estimate(args, bytes, methods, ends);
    }
    let limit = Some(args.time).filter(|limit| *limit > 0.0 && args.replay.is_none()).map(Duration::from_secs_f64);
    let bar = bar(bytes.len(), methods.len(), args.quiet);
    let done = AtomicUsize::new(0);
    let tick = |n| {
        done.fetch_add(n, Ordering::Relaxed);
        bar.inc(n as u64);
    };
    // There is no answer without a piece. A signal terminates the program here, since nothing has been written yet.
    let stop = || done.load(Ordering::Relaxed) > 0 && limit.is_some_and(|limit| begun.elapsed() >= limit);
    let measured = measure_until("oracle", bytes, (methods, &linkable(methods)), stream::cores(), &tick, &stop);
    bar.finish_and_clear();
    let measured = measured.context("the measurement was stopped")?;
    let is_whole = measured.len() == bytes.len();
    let (text, taken) = (measured.to_text(), measured.bytes.clone());
    let with_store: Vec<_> = [Method::STORE].into_iter().chain(methods.iter().copied()).collect();
    let watts = Watts::measure(&with_store, &bytes[..bytes.len().min(CLASSES[CLASSES.len() - 1])]);
    if let Some(Err(e)) = cache.filter(|_| is_whole).map(|c| c.store(&text, watts.as_ref()))
        && !args.quiet
    {
        report::note(format_args!("the measurement was not cached: {}", report::one_line(&e)));
    }
    if !is_whole && !args.quiet {
        let (part, all) = (report::bytes(taken.len() as f64), report::bytes(bytes.len() as f64));
        report::note(format_args!("{part} of {all} were measured in {} s; --time 0 measures all", args.time));
    }
    // Parsed from the text form, as from the cache, so that both runs show the same figures.
    Ok((Table::from_text(&text, taken)?, watts, false))
}

/// Tells what to expect from a few pieces of the data, soon.
fn estimate(args: &OracleArgs, bytes: &Block, methods: &[Method], ends: &Ends<'_>) {
    let begins = (0..ESTIMATE_PIECES).map(|i| i * (bytes.len() - ESTIMATE_PIECE) / (ESTIMATE_PIECES - 1));
    let pieces: Vec<u8> = begins.flat_map(|begin| bytes[begin..begin + ESTIMATE_PIECE].to_vec()).collect();
    let from = report::bytes(pieces.len() as f64);
    let never = || false;
    let Some(table) = measure("estimate", &Block::from_vec(pieces), (methods, &[]), 1, &|_| (), &never) else { return };
    for answer in ends.question(&table, None).answer(&args.link, stream::cores()) {
        report::note(format_args!("first estimate, from {from}: {}", show::estimate(&answer)));
    }
}

fn bar(len: usize, methods: usize, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len as u64);
    let template = "{bar:16.cyan} {binary_bytes}/{binary_total_bytes} ETA {eta} {wide_msg}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(format!("measuring {}", report::count(methods, "method", "methods")));
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

fn schedule_text(answer: &Answer) -> String {
    Schedule::new(answer.best.blocks.clone()).to_string()
}
