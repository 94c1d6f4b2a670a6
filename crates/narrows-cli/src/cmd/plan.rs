//! `narrows plan`: computes what compression would do for a site, in time and money.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use narrows::Error;
use narrows::codec::{DEFAULT_METHODS, Method as Codec};
use narrows_forecast::plan::sample::{Sample, class_names};
use narrows_forecast::plan::{defaults, measure, page, show};
use narrows_plan::method::{Measured, Method, draws};
use narrows_plan::site::Site;
use narrows_plan::{config, report as plan_report, seed};
use narrows_sim::measure::measurable;

use crate::args::plan::PlanArgs;
use crate::{files, report};

/// Longest file of a site: many times one with every field, link and method.
const CONFIG_MAX: u64 = 1 << 20;

/// Runs `narrows plan`.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    if let Some(html) = &args.html {
        for path in &args.paths {
            files::refuse_same(path, [Some(html.as_path())])?;
        }
    }
    let mut site = args.seed.as_ref().map_or_else(Site::default, |_| seed::climate_2016());
    if let Some(path) = &args.config {
        site = read_config(path, site)?;
    }
    for setting in &args.set {
        site = set(setting, site)?;
    }
    let typed = site.methods.len();
    let mut from = match (&args.seed, typed) {
        (_, 0) => String::new(),
        (Some(_), _) if args.config.is_none() => "Table 2 of the text".into(),
        _ => "as typed in the file".into(),
    };
    if !args.paths.is_empty() {
        let (measured, words) = measured(args)?;
        site.draws = draws(&measured);
        let measured: Vec<Method> = measured.iter().filter_map(Measured::method).collect();
        let is_new = |m: &Method| !measured.iter().any(|n| n.name == m.name);
        // The text's methods are of the text's data.
        let kept: Vec<Method> =
            site.methods.into_iter().filter(|m| is_new(m) && (args.seed.is_none() || args.config.is_some())).collect();
        from = if kept.is_empty() { words } else { format!("{words}; {} typed in the file", kept.len()) };
        site.methods = measured;
        site.methods.extend(kept);
    }
    config::check_shares(&site).map_err(|e| Error::misuse(e.to_string()))?;
    if let Some(path) = &args.init {
        return init(path, &site, args.quiet);
    }
    if site.methods.is_empty() {
        (site.methods, from) = defaults::without_data();
    }
    let headline = format!("narrows plan: methods are {from}.");
    let mut sheets = plan_report::sheets(&site, &capital(&from));
    if args.seed.is_some() {
        sheets.insert(0, plan_report::published());
    }
    if let Some(path) = &args.html {
        files::write_whole(path, page::html(&headline, &site, &sheets).as_bytes())?;
    }
    if args.json {
        report::out(show::json(&headline, &site.currency, &sheets))
    } else if args.csv {
        report::out(show::csv(&sheets))
    } else {
        report::out(show::text(&headline, &sheets, args.verbose).trim_end())
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + letters.as_str())
}

fn read_config(path: &Path, site: Site) -> Result<Site> {
    let cannot = || format!("cannot read {}", path.display());
    let file = if files::is_dash(path) { files::stdin()? } else { File::open(path).with_context(cannot)? };
    let mut bytes = Vec::new();
    file.take(CONFIG_MAX + 1).read_to_end(&mut bytes).with_context(cannot)?;
    let mistake = |what: String| Error::misuse(format!("{}: {what}", path.display()));
    if bytes.len() as u64 > CONFIG_MAX {
        return Err(mistake("it is longer than 1 MiB, so it is not the file of a site".into()).into());
    }
    let text = String::from_utf8(bytes).map_err(|_| mistake("it is not text in UTF-8".into()))?;
    Ok(config::parse(&text, site).map_err(|e| mistake(e.to_string()))?)
}

/// One number of the site, as `section.key=value`.
fn set(setting: &str, site: Site) -> Result<Site> {
    let wrong = |what: String| Error::misuse(format!("--set {setting}: {what}"));
    let parts = setting.split_once('=').and_then(|(name, value)| Some((name.split_once('.')?, value)));
    let Some(((section, key), value)) = parts else {
        return Err(wrong("write it as node.cores_free=8".into()).into());
    };
    let Ok(number) = value.trim().parse::<f64>() else {
        return Err(wrong(format!("'{value}' is not a number")).into());
    };
    Ok(config::set(section.trim(), key.trim(), number, site).map_err(|e| wrong(e.to_string()))?)
}

fn init(path: &Path, site: &Site, quiet: bool) -> Result<()> {
    let text = config::write(site);
    if files::is_dash(path) {
        return report::out(text.trim_end());
    }
    if path.symlink_metadata().is_ok() {
        let name = path.display();
        return Err(Error::misuse(format!("{name} is there already; name another file: --init=FILE")).into());
    }
    files::write_whole(path, text.as_bytes())?;
    if !quiet {
        report::note(format_args!("wrote {0}; edit it, then: narrows plan --config {0}", path.display()));
    }
    Ok(())
}

/// Measures all paths, each a class of data; with words about how.
fn measured(args: &PlanArgs) -> Result<(Vec<Measured>, String)> {
    let codecs: Vec<Codec> = measurable(args.methods.as_ref().map_or(DEFAULT_METHODS, |l| &l.0));
    if codecs.is_empty() {
        return Err(Error::misuse("--methods has nothing to measure besides store and constant").into());
    }
    let count = args.paths.len();
    let share = (args.sample / count).max(1);
    let samples: Vec<Sample> = args.paths.iter().map(|p| Sample::of(p, share)).collect::<Result<_>>()?;
    let names = class_names(&args.paths);
    let total: usize = samples.iter().map(Sample::len).sum();
    let bar = bar(total as u64, codecs.len(), args.quiet);
    let (mut methods, mut done) = (Vec::new(), 0);
    for (sample, name) in samples.iter().zip(&names) {
        let within = Duration::from_secs(args.seconds) / count as u32;
        let (of_class, len) = measure::measure(sample, name, &codecs, within, &|n| bar.inc(n));
        methods.extend(of_class);
        done += len;
        if !args.quiet {
            remarks(sample, name);
        }
    }
    bar.finish_and_clear();
    let all: u64 = samples.iter().map(|s| s.total_len).sum();
    let paths = if count == 1 { args.paths[0].display().to_string() } else { format!("{count} paths") };
    let (some, whole) = (report::bytes(done as f64), report::bytes(all as f64));
    let some = if done as u64 == all { "all".into() } else { format!("{some} of the") };
    Ok((methods, format!("measured on this host, on {some} {whole} of {paths}")))
}

fn remarks(sample: &Sample, name: &str) {
    if sample.unreadable > 0 {
        report::note(format_args!(
            "{name}: left out, since it cannot be read: {}",
            report::count(sample.unreadable, "file or folder", "files or folders")
        ));
    }
    if sample.is_cut {
        report::note(format_args!("{name}: there is more than was looked at; the sample is of the first part"));
    }
}

fn bar(len: u64, methods: usize, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len);
    let template = "{bar:16.cyan} {binary_bytes}/{binary_total_bytes} ETA {eta} {wide_msg}";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(format!("measuring {}", report::count(methods, "method", "methods")));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
