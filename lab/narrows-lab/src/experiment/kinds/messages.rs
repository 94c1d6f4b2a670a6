//! The kind `messages`: round trips of single messages by `narrows ping`, over a link that its two
//! ends emulate, each on its own core.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::sched_getaffinity;
use serde_json::Value;
use tempfile::TempDir;

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::{Axis, Kind, Lab, Setting, Surroundings, checks};
use crate::race::scratch;
use crate::registry;
use crate::units::parse_len;

mod sets;

pub(crate) struct Messages;

const AXES: &[Axis] = &[
    Axis { name: "link_mbit", default: "100", check: link },
    // `natural`: single messages of 450 to 1450 bytes as captured.
    Axis { name: "size", default: "natural", check: size },
    Axis { name: "method", default: "plain", check: method },
];
const SETTINGS: &[Setting] = &[
    Setting { name: "hops", default: "0", check: hops },
    // Messages of each size and protocol.
    Setting { name: "count", default: "150", check: checks::count },
    Setting { name: "history", default: "64K", check: checks::len },
    // Protocols that messages of a size are cut from, each on a separate flow.
    Setting { name: "protocols", default: "sip,diameter,sbi-http", check: protocols },
];
/// Raised with every change of the meaning of a cell.
const RECIPE: u32 = 1;
/// Methods slower than a fast link. They run once where the others are repeated, with a separate
/// run of plain.
const SLOW: [&str; 4] = ["lzw", "xz", "bzip2", "zlib"];
const PLAIN: &str = "plain";
const CHOSEN: &str = "messages";
/// (Mbit/s up to which it applies, rounds). On fast links wake-ups and other disturbances take as
/// long as a message, so the median needs more rounds.
const ROUNDS: [(f64, u32); 3] = [(20.0, 1), (200.0, 3), (f64::INFINITY, 9)];
const RUN_MAX: Duration = Duration::from_secs(600);
const START_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Rate in Mbit/s; `-` is the unshaped loopback device.
fn link(text: &str) -> Result<(), String> {
    if text == "-" {
        return Ok(());
    }
    match text.parse::<f64>() {
        Ok(mbit) if (1.0..=1e6).contains(&mbit) => Ok(()),
        _ => Err("must be 1 to 1000000, or -".into()),
    }
}

fn size(text: &str) -> Result<(), String> {
    match text.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ if text == "natural" => Ok(()),
        _ => Err("must be natural or 1 to 65535".into()),
    }
}

fn method(text: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-:=,".contains(c);
    if !text.is_empty() && text.chars().all(fine) { Ok(()) } else { Err("not a name of a method".into()) }
}

fn hops(text: &str) -> Result<(), String> {
    match text.parse::<u8>() {
        Ok(0..=16) => Ok(()),
        _ => Err("must be 0 to 16".into()),
    }
}

fn protocols(text: &str) -> Result<(), String> {
    text.split(',').try_for_each(checks::name)
}

fn is_slow(method: &str) -> bool {
    SLOW.contains(&method.split(':').next().unwrap_or_default())
}

/// Whether only the laboratory has the codec, so that `narrows ping` refuses it.
fn is_older(method: &str) -> bool {
    registry::method(method).is_ok_and(|method| registry::is_older(method.codec))
}

/// The spelling of a method that `narrows ping` prints, for the older one of plans with stored
/// samples: `zstd-1:dict` and `lz4:linked`.
fn common(method: &str) -> String {
    let (name, words) = method.split_once(':').unwrap_or((method, ""));
    let name = match name.strip_prefix("zstd-") {
        // Ping prints no level where it is the default.
        Some("3") => "zstd".to_owned(),
        Some(level) => format!("zstd:level={level}"),
        None => name.to_owned(),
    };
    let words = words.replace("linked", "link");
    match (words.is_empty(), name.contains(':')) {
        (true, _) => name,
        (false, false) => format!("{name}:{words}"),
        (false, true) => format!("{name},{words}"),
    }
}

impl Kind for Messages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn recipe(&self) -> String {
        format!("messages {RECIPE}")
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        let folder = scratch::folder()?;
        let corpus = surroundings.corpus()?;
        let protocols = plan.setting("protocols");
        let mut names: Vec<&str> = protocols.split(',').collect();
        names.push("natural");
        for name in names {
            sets::prepare(corpus, name, folder.path()).with_context(|| format!("the messages of {name}"))?;
        }
        let narrows = std::env::current_exe().map(|p| p.with_file_name("narrows")).unwrap_or_default();
        ensure!(narrows.is_file(), "there is no {}; build it with: cargo build --release", narrows.display());
        Ok(Box::new(MessagesLab { plan, surroundings, folder, narrows, cores: cores(), done: Mutex::default() }))
    }

    /// A cell's share of the time of the run of all methods.
    fn estimate_s(&self, plan: &Plan, cell: &Cell) -> f64 {
        let count: f64 = plan.setting("count").parse().unwrap_or(100.0);
        let (messages, len) = match cell.get("size").parse::<f64>() {
            Ok(len) => (count * plan.setting("protocols").split(',').count() as f64, len),
            Err(_) => (500.0, 700.0),
        };
        let hops: f64 = plan.setting("hops").parse().unwrap_or(0.0);
        let method = cell.get("method");
        let codec_us = match method.split(':').next().unwrap_or_default() {
            "xz" | "bzip2" => 1200.0,
            "lzw" | "zlib" => 90.0,
            _ => 10.0,
        };
        let shrinks = if matches!(method, "plain" | "store") { 1.0 } else { 2.5 };
        let wire_us = cell.number("link_mbit").recip() * 16.0 * (len / shrinks + 90.0) * (1.0 + hops);
        let wire_us = if wire_us.is_finite() { wire_us } else { 0.0 };
        let rounds = if is_slow(method) { 1.0 } else { f64::from(rounds(cell.number("link_mbit"))) };
        0.05 + messages * rounds * (20.0 + wire_us + codec_us) * 1e-6
    }
}

fn rounds(mbit: f64) -> u32 {
    ROUNDS.iter().find(|(most, _)| mbit <= *most).map_or(ROUNDS[ROUNDS.len() - 1].1, |r| r.1)
}

/// The last two cores that this process may use: on many hosts the first one serves interrupts.
fn cores() -> Option<[usize; 2]> {
    let may = sched_getaffinity(None).ok()?;
    let mut cores = (0..1024).filter(|c| may.is_set(*c)).collect::<Vec<_>>().into_iter().rev();
    Some([cores.next()?, cores.next()?])
}

/// The values of all methods for one link and size, or an error.
type Rows = Result<BTreeMap<String, Values>, String>;

struct MessagesLab<'a> {
    plan: &'a Plan,
    surroundings: &'a Surroundings,
    folder: TempDir,
    narrows: PathBuf,
    cores: Option<[usize; 2]>,
    /// By round, link and size.
    done: Mutex<HashMap<(u32, String, String), Rows>>,
}

impl Lab for MessagesLab<'_> {
    /// The first cell of a link and size runs all methods in turn; the other cells take their
    /// values from that run.
    fn run(&self, cell: &Cell, round: u32) -> Result<Values> {
        let (link, size) = (cell.get("link_mbit").to_owned(), cell.get("size").to_owned());
        ensure!(
            !is_older(cell.get("method")),
            "`narrows ping` has no codec {}, only the laboratory does",
            cell.get("method")
        );
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (round, link.clone(), size.clone());
        if !done.contains_key(&key) {
            let rows = self.all_methods(&link, &size).map_err(|e| format!("{e:#}"));
            // A run that the user interrupted is not a result.
            ensure!(!self.surroundings.stopped(), "interrupted");
            done.insert(key.clone(), rows);
        }
        match &done[&key] {
            Ok(rows) => {
                let method = common(cell.get("method"));
                rows.get(&method).cloned().context("`narrows ping` printed nothing about this method")
            }
            Err(error) => bail!("{error}"),
        }
    }
}

/// Sums of a method over all sets of a cell.
#[derive(Default)]
struct Sum {
    sets: f64,
    raw_bytes: f64,
    wire_bytes: f64,
    means: BTreeMap<&'static str, f64>,
    ln_quotient: f64,
    /// Quotient of each set, if there are several.
    quotients: Vec<(String, f64)>,
    mean_len: f64,
    mix: String,
}

impl MessagesLab<'_> {
    fn all_methods(&self, link: &str, size: &str) -> Result<BTreeMap<String, Values>> {
        let protocols = self.plan.setting("protocols");
        let names: Vec<&str> = if size == "natural" { vec!["natural"] } else { protocols.split(',').collect() };
        let methods = self.plan.axis("method");
        let (slow, fast): (Vec<&String>, Vec<&String>) =
            methods.iter().filter(|m| !is_older(m)).partition(|m| is_slow(m));
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        for name in names {
            for (methods, rounds) in [(&fast, rounds(link.parse().unwrap_or(f64::INFINITY))), (&slow, 1)] {
                if methods.is_empty() {
                    continue;
                }
                let rows = self.ping(name, link, size, methods, rounds)?;
                for row in rows["rows"].as_array().into_iter().flatten() {
                    let method = row["method"].as_str().unwrap_or_default();
                    // Ignore the plain of the slow methods: that of the others was repeated more
                    // often.
                    if method == PLAIN && !methods.iter().any(|m| *m == PLAIN) {
                        continue;
                    }
                    let sum = sums.entry(method.to_owned()).or_default();
                    sum.add(name, row, rows["mean_bytes"].as_f64().unwrap_or(f64::NAN));
                }
            }
        }
        let best = sums.iter().filter(|(method, _)| *method != CHOSEN).map(|(_, sum)| sum.quotient());
        let best = best.fold(f64::NAN, f64::max);
        Ok(sums.into_iter().map(|(method, sum)| (method, sum.values(best))).collect())
    }

    fn ping(&self, name: &str, link: &str, size: &str, methods: &[&String], rounds: u32) -> Result<Value> {
        let path = |ending: &str| file(self.folder.path(), name, ending);
        let pinned = |end: usize| {
            let mut command = Command::new(&self.narrows);
            command.arg("ping").stdin(Stdio::null());
            if let Some(cores) = self.cores {
                command.args(["--core", &cores[end].to_string()]);
            }
            command
        };
        let mut server = pinned(0);
        server.args(["--serve", "127.0.0.1:0", "--once", "--json", "--quiet"]).stdout(Stdio::piped());
        let mut server = Ended(server.spawn().context("cannot start narrows")?);
        let mut said = String::new();
        BufReader::new(server.0.stdout.take().context("stdout")?).read_line(&mut said)?;
        let place: Value = serde_json::from_str(&said).context("the server did not say where it is")?;
        let place = place["listening"].as_str().context("the server did not say where it is")?;

        let mut client = pinned(1);
        client.args([place, "--json", "--quiet", "--poll", "--rounds", &rounds.to_string()]);
        client.arg("--messages").arg(path("msgs")).arg("--dict").arg(path("dict"));
        client.args(["--history", &parse_len(&self.plan.setting("history")).unwrap_or(0).to_string()]);
        let list: Vec<&str> = methods.iter().map(|m| m.as_str()).collect();
        client.args(["--methods", &list.join(",")]);
        if link != "-" {
            client.args(["--link-rate", &format!("{link}mbit"), "--hops", &self.plan.setting("hops")]);
        }
        if size == "natural" {
            // Send all messages.
            client.args(["--count", "1000000"]);
        } else {
            client.args(["--sizes", size, "--count", &self.plan.setting("count")]);
        }
        let out = self.folder.path().join("out");
        let err = self.folder.path().join("err");
        client.stdout(File::create(&out)?).stderr(File::create(&err)?);
        let mut client = Ended(client.spawn().context("cannot start narrows")?);
        let status = self.wait(&mut client, RUN_MAX)?;
        ensure!(status, "narrows ping: {}", fs::read_to_string(&err).unwrap_or_default().trim());
        ensure!(self.wait(&mut server, START_MAX)?, "the server failed");
        let all: Value = serde_json::from_slice(&fs::read(&out)?).context("narrows ping printed no JSON")?;
        Ok(all["sets"][0].clone())
    }

    /// Waits for the end of a process; true if it succeeded.
    fn wait(&self, child: &mut Ended, limit: Duration) -> Result<bool> {
        let begun = Instant::now();
        loop {
            if let Some(status) = child.0.try_wait()? {
                return Ok(status.success());
            }
            ensure!(!self.surroundings.stopped(), "interrupted");
            ensure!(begun.elapsed() < limit, "narrows ping took longer than {} s", limit.as_secs());
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// A process that is killed when this value is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Sum {
    fn add(&mut self, set: &str, row: &Value, mean_len: f64) {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        self.sets += 1.0;
        self.raw_bytes += number("raw_bytes");
        self.wire_bytes += number("wire_bytes");
        self.mean_len += mean_len;
        for key in ["round_trip_us", "p50_us", "p90_us", "p99_us"] {
            *self.means.entry(key).or_default() += number(key);
        }
        self.ln_quotient += number("quotient").ln();
        self.quotients.push((set.to_owned(), number("quotient")));
        if let Some(mix) = row["mix"].as_object().filter(|_| row["method"] == CHOSEN) {
            let all: u64 = mix.values().filter_map(Value::as_u64).sum();
            let share = |n: &Value| 100.0 * n.as_f64().unwrap_or(0.0) / all.max(1) as f64;
            let mut parts: Vec<_> = mix.iter().map(|(name, n)| (share(n), name)).collect();
            parts.sort_by(|a, b| b.0.total_cmp(&a.0));
            let words: Vec<_> = parts.iter().map(|(share, name)| format!("{share:.0} % {name}")).collect();
            self.mix = format!("{}{}{set} {}", self.mix, if self.mix.is_empty() { "" } else { "; " }, words.join(", "));
        }
    }

    /// The geometric mean over the sets.
    fn quotient(&self) -> f64 {
        (self.ln_quotient / self.sets).exp()
    }

    fn values(&self, best: f64) -> Values {
        let mean = |key: &str| self.means.get(key).copied().unwrap_or(f64::NAN) / self.sets;
        let quotient = self.quotient();
        let mut values = Values::of(&[
            ("round_trip_us", mean("round_trip_us")),
            ("p50_us", mean("p50_us")),
            ("p90_us", mean("p90_us")),
            ("p99_us", mean("p99_us")),
            ("ratio", self.raw_bytes / self.wire_bytes),
            // Bits of one direction / half a round trip in us = Mbit/s.
            ("goodput_mbit_per_s", 16.0 * self.mean_len / self.sets / mean("round_trip_us")),
            ("quotient", quotient),
            ("of_best_fixed", quotient / best),
        ]);
        if self.quotients.len() > 1 {
            values.numbers.extend(self.quotients.iter().map(|(set, q)| (format!("quotient_{set}"), *q)));
        }
        if !self.mix.is_empty() {
            values.words.insert("mix".into(), self.mix.clone());
        }
        values
    }
}

/// Path of a prepared file.
fn file(folder: &Path, name: &str, ending: &str) -> PathBuf {
    folder.join(format!("{name}.{ending}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_is_the_mean_over_its_sets() {
        let row = |rtt: f64, quotient: f64| {
            json!({ "method": "lz4", "raw_bytes": 1000, "wire_bytes": 400, "quotient": quotient, "round_trip_us": rtt,
                    "p50_us": rtt, "p90_us": rtt, "p99_us": rtt, "mix": { "lz4": 3 } })
        };
        let mut sum = Sum::default();
        sum.add("sip", &row(100.0, 1.0), 500.0);
        sum.add("diameter", &row(300.0, 4.0), 500.0);
        let values = sum.values(4.0);
        for (name, value) in [
            ("quotient", 2.0),
            ("of_best_fixed", 0.5),
            ("ratio", 2.5),
            ("round_trip_us", 200.0),
            ("goodput_mbit_per_s", 40.0),
            ("quotient_diameter", 4.0),
        ] {
            assert!((values.numbers[name] - value).abs() < 1e-9, "{name} {}", values.numbers[name]);
        }
        assert!(values.words.is_empty(), "only a chooser has a mix");
    }

    #[test]
    fn plans_may_have_the_older_spelling_of_a_method() {
        for (plan, printed) in [
            ("zstd-1", "zstd:level=1"),
            ("zstd-3:dict", "zstd:dict"),
            ("zstd-1:dict", "zstd:level=1,dict"),
            ("lz4:linked,seeded", "lz4:link,seeded"),
            ("zstd:level=1,dict", "zstd:level=1,dict"),
            ("xz:level=3", "xz:level=3"),
            ("plain", "plain"),
        ] {
            assert_eq!(common(plan), printed);
        }
    }

    #[test]
    fn slow_codecs_are_known_with_their_settings_and_fast_links_repeat() {
        assert!(is_slow("xz:level=3") && is_slow("lzw") && !is_slow("lz4:linked,seeded") && !is_slow("zstd-3:dict"));
        assert_eq!([10.0, 100.0, 1000.0, f64::NAN].map(rounds), [1, 3, 9, 9]);
    }
}
