//! `narrows oracle`: computes the best schedule for given data on a given link.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use narrows::Error;
use narrows::block::Block;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::policy::Schedule;
use narrows::stream;
use narrows_sim::limits::Limits;
use narrows_sim::measure::{linkable, measurable, measure};
use narrows_sim::table::{CLASSES, Table};

use crate::args::oracle::OracleArgs;
use crate::oracle::cache::{self, Cache};
use crate::oracle::energy::{self, Watts};
use crate::oracle::judge::{Answer, Question};
use crate::oracle::show::{self, About};
use crate::oracle::{input, page};
use crate::{files, flow, report};

/// Runs `narrows oracle`.
pub(crate) fn run(args: &OracleArgs) -> Result<()> {
    if args.replay.is_some() && args.link.len() != 1 {
        return Err(Error::misuse("--replay takes one --link: each rate has its own schedule").into());
    }
    let policies: Vec<_> = args.policy.iter().cloned().map(flow::with_file).collect::<Result<_>>()?;
    files::refuse_same(&args.path, [args.replay.as_deref(), args.html.as_deref()])?;
    let input = input::read(&args.path, args.max_len)?;
    if input.is_cut && !args.quiet {
        report::note(format_args!(
            "only the first {} are analysed; raise --max-len to include more",
            report::bytes(input.bytes.len() as f64)
        ));
    }
    let chosen: Vec<Method> = args.methods.as_ref().map_or(DEFAULT_METHODS, |l| &l.0).to_vec();
    let mut methods = chosen.clone();
    for method in policies.iter().flat_map(narrows::policy::PolicySpec::methods) {
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    let measured = measurable(&methods);
    let bytes = Block::from_vec(input.bytes);
    let (table, watts, from_cache) = figures(args, &bytes, &measured)?;

    let cores = args.cores.map_or_else(stream::encoders, usize::from);
    let decoders = args.receiver_cores.map_or(cores, usize::from);
    let limits = Limits::new(&table);
    let watts = watts.as_ref();
    let question = Question {
        table: &table,
        limits,
        watts,
        methods: &chosen,
        policies: &policies,
        cores,
        decoders,
        len: table.len(),
        speeds: [1.0; 2],
    };
    let threads = stream::cores();
    let answers = question.answer(&args.link, threads);
    let about = About {
        path: args.path.display().to_string(),
        raw_len: table.len(),
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

/// The costs of every method on every block, and the power if it is known; from the cache or
/// measured. The flag says whether they come from the cache.
fn figures(args: &OracleArgs, bytes: &Block, methods: &[Method]) -> Result<(Table, Option<Watts>, bool)> {
    let cache = Cache::new(bytes, methods).filter(|_| !args.no_cache);
    if let Some((table, watts)) = cache.as_ref().and_then(|c| c.load(bytes, energy::is_readable())) {
        return Ok((table, watts, true));
    }
    let bar = bar(bytes.len(), methods.len(), args.quiet);
    // A signal terminates the program here, since nothing has been written yet.
    let measured =
        measure("oracle", bytes, (methods, &linkable(methods)), stream::cores(), &|n| bar.inc(n as u64), &|| false);
    bar.finish_and_clear();
    let text = measured.context("the measurement was stopped")?.to_text();
    let with_store: Vec<_> = [Method::STORE].into_iter().chain(methods.iter().copied()).collect();
    let watts = Watts::measure(&with_store, &bytes[..bytes.len().min(CLASSES[CLASSES.len() - 1])]);
    if let Some(Err(e)) = cache.map(|c| c.store(&text, watts.as_ref()))
        && !args.quiet
    {
        report::note(format_args!("the measurement was not cached: {}", report::one_line(&e)));
    }
    // Parsed from the text form, as from the cache, so that both runs show the same figures.
    Ok((Table::from_text(&text, bytes.clone())?, watts, false))
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
