//! The kind `sets`: the experiment of Datacomp (2016). Every round sends another random set of
//! files of a pool, by strategies that differ in how they choose the next method. In virtual time,
//! like `virtual`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use narrows::block::Block;
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::monitor::cost::Prior;
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_sim::judge;
use narrows_sim::measure::{measurable, measure};
use narrows_sim::rng::Rng;
use narrows_sim::table::{CLASSES, Table};
use narrows_sim::world::{self, Run};
use xxhash_rust::xxh3::xxh3_64;

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::virtual_time::WORLD;
use super::{Axis, Kind, Lab, Setting, Surroundings, checks};
use crate::pools;
use crate::registry;

pub(crate) struct Sets;

/// The nine pools of the text and their substitutes: folders of the corpus with their shares of the
/// bytes. Four fifths of the mail are media as attachments in base64: with this share zlib and LZO
/// reach the ratios that the text gives for mail.
const POOLS: &[(&str, &[(&str, f64)])] = &[
    ("zero", &[]),
    ("random", &[]),
    ("wikipedia", &[("web", 1.0)]),
    ("facebook", &[("web", 0.5), ("media", 0.5)]),
    ("youtube", &[("media", 1.0)]),
    ("mail", &[("mail", 0.2), ("media.base64", 0.8)]),
    ("binaries", &[("binaries", 1.0)]),
    ("user-web", &[("web", 0.45), ("json", 0.1), ("media", 0.45)]),
    ("user-files", &[("media", 0.85), ("text", 0.05), ("binaries", 0.05), ("database", 0.05)]),
];
/// Raised when the sampling of the pools changes. 2: folders are weighted by bytes, not by files.
const DRAWN: u32 = 2;
const STRATEGIES: &[&str] = &["comptool", "datacomp", "lzo", "zlib", "oracle", "balance", "plain"];
/// Bytes of a set, as in the text.
const SET_LEN: usize = 1 << 20;
/// Longer files are cut into several pieces, so that a set has at least eight.
const PIECE_MAX: usize = 128 << 10;
/// Cores of the text's machines.
const CORES: usize = 4;
/// Static strategies have one thread and blocks of 512 KiB.
const STATIC_BLOCK: usize = 512 << 10;
/// Bytes that training sends of each pool in each environment: 130 variants twice, in blocks of 198
/// KiB on average.
const TRAIN_LEN: usize = 64 << 20;
/// Decoding speed of a receiver that discards its input: practically infinite.
const NO_DECODING: f64 = 1e6;
/// Time that `datacomp` needs before it chooses, to count the bytes of a block at 1.5 GB/s: 170 us
/// for 256 KiB.
const COUNT_NS: f64 = 170e3;
const DECISION_NS: f64 = 2e3;

const AXES: &[Axis] = &[
    Axis { name: "pool", default: "wikipedia", check: pool },
    Axis { name: "link_mbit", default: "100", check: checks::positive },
    // Busy processes that compete for the four cores.
    Axis { name: "load", default: "0", check: checks::hogs },
    Axis { name: "strategy", default: "datacomp", check: strategy },
];
const SETTINGS: &[Setting] = &[
    // Sets of a pool that `datacomp` learns from. It is tested on others.
    Setting { name: "train_sets", default: "4", check: checks::count },
    Setting { name: "beam", default: "8", check: checks::positive },
];

fn pool(text: &str) -> Result<(), String> {
    one_of(text, POOLS.iter().map(|p| p.0))
}

fn strategy(text: &str) -> Result<(), String> {
    one_of(text, STRATEGIES.iter().copied())
}

fn one_of<'a>(text: &str, known: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
    if known.clone().any(|k| k == text) {
        Ok(())
    } else {
        Err(format!("must be one of {}", known.collect::<Vec<_>>().join(", ")))
    }
}

impl Kind for Sets {
    fn name(&self) -> &'static str {
        "sets"
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn recipe(&self) -> String {
        format!("{}{WORLD}", drawn())
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        Ok(Box::new(SetsLab::open(plan, surroundings)?))
    }

    fn estimate_s(&self, _plan: &Plan, cell: &Cell) -> f64 {
        if matches!(cell.get("strategy"), "comptool" | "oracle") { 0.5 } else { 0.02 }
    }

    fn beside(&self) -> bool {
        true
    }
}

struct SetsLab {
    /// The costs of each test set, by pool and number.
    tests: HashMap<(String, u32), Table>,
    sets: u32,
    beam: usize,
    datacomp: PolicySpec,
    learned: Option<PolicySpec>,
    /// Seconds of plain, by cell without its strategy and by round.
    plain: Mutex<HashMap<(Cell, u32), Once>>,
}

type Once = Arc<OnceLock<f64>>;

impl SetsLab {
    fn open(plan: &Plan, surroundings: &Surroundings) -> Result<Self> {
        let train_sets: u32 = plan.setting("train_sets").parse()?;
        let pools = plan.axis("pool");
        let learns = plan.axis("strategy").iter().any(|s| s == "datacomp");
        let wanted = pools.iter().flat_map(|pool| {
            let tests = (0..plan.rounds).map(|n| Key { pool: pool.clone(), train: false, number: n });
            let trains =
                (0..if learns { train_sets } else { 0 }).map(|n| Key { pool: pool.clone(), train: true, number: n });
            tests.chain(trains).collect::<Vec<_>>()
        });
        let wanted: Vec<Key> = wanted.collect();
        let tables = tables(&wanted, surroundings)?;
        let datacomp = registry::policy("datacomp")?;
        let learned = if learns { Some(train(plan, &datacomp, &wanted, &tables, surroundings)?) } else { None };
        let tests = wanted.into_iter().zip(tables).filter(|(k, _)| !k.train).map(|(k, t)| ((k.pool, k.number), t));
        Ok(Self {
            tests: tests.collect(),
            sets: plan.rounds,
            beam: plan.setting("beam").parse::<f64>()? as usize,
            datacomp,
            learned,
            plain: Mutex::default(),
        })
    }

    fn possible(&self, table: &Table, conditions: &world::Conditions) -> f64 {
        judge::possible(table, conditions, CLASSES.len() - 1, self.beam).oracle
    }
}

impl Lab for SetsLab {
    fn run(&self, cell: &Cell, round: u32) -> Result<Values> {
        let number = round % self.sets;
        let table = self.tests.get(&(cell.get("pool").to_owned(), number)).context("the set was not measured")?;
        let link_mbit = cell.number("link_mbit");
        let world = |workers: usize| {
            let conditions = environment(link_mbit, cell.number("load"), workers);
            world::Conditions { seed: u64::from(round) + 1, ..conditions }
        };
        let fixed = |method: Method| -> Run {
            let conditions = world::Conditions { block_max: STATIC_BLOCK, ..world(1) };
            world::run(table, &conditions, PolicySpec::fixed(method, false).build(&setup(1)))
        };
        let key = (cell.with("strategy", ""), number);
        let plain = Arc::clone(self.plain.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        let plain_s = *plain.get_or_init(|| fixed(Method::STORE).seconds);
        let (seconds, run) = match cell.get("strategy") {
            // Only one thread and the methods of the text, like its oracle.
            "comptool" => (self.possible(&table.only(&self.datacomp.methods()), &world(1)), None),
            "oracle" => (self.possible(table, &world(CORES)), None),
            "lzo" => with_seconds(fixed(registry::method("lzo")?)),
            "zlib" => with_seconds(fixed(registry::method("zlib:level=6")?)),
            "plain" => with_seconds(fixed(Method::STORE)),
            "balance" => {
                let policy = PolicySpec::balance().build(&setup(CORES));
                let block_max = PolicySpec::balance().block_max();
                with_seconds(world::run(
                    table,
                    &world::Conditions { block_max, decision_ns: DECISION_NS, ..world(CORES) },
                    policy,
                ))
            }
            "datacomp" => {
                let reads = registry::policy("datacomp:table=learned,mode=read")?;
                let learned = self.learned.as_ref().and_then(PolicySpec::contents);
                let reads = reads.load(&learned.context("datacomp has not learned")?)?;
                let conditions = datacomp_conditions(world(CORES), &reads);
                with_seconds(world::run(table, &conditions, reads.build(&setup(CORES))))
            }
            other => bail!("there is no strategy '{other}'"),
        };
        let mut values = Values::of(&[
            ("seconds", seconds),
            ("improvement_percent", 100.0 * (1.0 - seconds / plain_s)),
            ("goodput_mbit_per_s", SET_LEN as f64 * 8e-6 / seconds),
        ]);
        if let Some(run) = run {
            let ratio = run.summary.raw_bytes as f64 / run.summary.wire_bytes.max(1) as f64;
            values.numbers.insert("ratio".into(), ratio);
            values.numbers.insert("cpu_s".into(), run.cpu_s);
        }
        Ok(values)
    }
}

fn setup(cores: usize) -> PolicySetup<'static> {
    PolicySetup { codecs: registry::codecs(), ..PolicySetup::new(cores, Prior::shipped()) }
}

fn with_seconds(run: Run) -> (f64, Option<Run>) {
    (run.seconds, Some(run))
}

/// The environment of a strategy with this number of workers. Workers and busy processes share the
/// cores evenly.
fn environment(link_mbit: f64, load: f64, workers: usize) -> world::Conditions {
    world::Conditions {
        len: SET_LEN,
        cores: workers,
        decoders: CORES,
        link: Speed::constant(link_mbit * 125_000.0),
        cpu: Speed::constant((CORES as f64 / (workers as f64 + load)).min(1.0)),
        receiver: Speed::constant(NO_DECODING),
        block_max: STATIC_BLOCK,
        decision_ns: 0.0,
        seed: 1,
        trace: false,
        expected_link: None,
    }
}

fn datacomp_conditions(conditions: world::Conditions, spec: &PolicySpec) -> world::Conditions {
    world::Conditions { block_max: spec.block_max(), decision_ns: COUNT_NS, ..conditions }
}

/// Trains `datacomp`: one table of events for all environments and pools, learned before the test.
fn train(
    plan: &Plan,
    datacomp: &PolicySpec,
    keys: &[Key],
    tables: &[Table],
    surroundings: &Surroundings,
) -> Result<PolicySpec> {
    let mut spec = registry::policy("datacomp:table=learned")?;
    let sets = || keys.iter().zip(tables).filter(|(k, _)| k.train);
    eprintln!("experiment: datacomp learns from {} sets", sets().count());
    for link in plan.axis("link_mbit") {
        for load in plan.axis("load") {
            for (key, table) in sets() {
                ensure!(!surroundings.stopped(), "interrupted while datacomp learned");
                let sets = keys.iter().filter(|k| k.train && k.pool == key.pool).count();
                let len = TRAIN_LEN / sets / SET_LEN * SET_LEN;
                let world = environment(link.parse()?, load.parse()?, CORES);
                let world = datacomp_conditions(world::Conditions { len: len.max(SET_LEN), ..world }, datacomp);
                let saved =
                    world::run(table, &world, spec.build(&setup(CORES))).saved.context("datacomp learned nothing")?;
                spec = spec.load(&saved)?;
            }
        }
    }
    ensure!(spec.contents().is_some(), "there was nothing to learn from");
    Ok(spec)
}

/// A set of files: one MiB of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    pool: String,
    train: bool,
    number: u32,
}

impl Key {
    fn name(&self) -> String {
        format!("{}-{}-{}", self.pool, if self.train { "train" } else { "test" }, self.number)
    }
}

/// Everything besides the corpus that the bytes of the sets depend on.
fn drawn() -> String {
    format!(" {POOLS:?} drawn {DRAWN} {SET_LEN} {PIECE_MAX}{}", pools::recipe())
}

/// Tables of these sets, in order. Those measured before are read from the folder of tables.
fn tables(keys: &[Key], surroundings: &Surroundings) -> Result<Vec<Table>> {
    let mut methods = measurable(DEFAULT_METHODS);
    let datacomp = registry::policy("datacomp")?.methods();
    for method in measurable(&datacomp) {
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    let named: Vec<_> = methods.iter().map(|m| registry::name(*m)).collect();
    let folder = surroundings.tables.join(format!("sets-{:016x}", xxh3_64(format!("{named:?}{}", drawn()).as_bytes())));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = |key: &Key| folder.join(format!("{}.table", key.name()));
    let missing: Vec<&Key> = keys.iter().filter(|k| !path(k).is_file()).collect();
    if !missing.is_empty() {
        eprintln!("experiment: measuring the costs of methods on {} sets", missing.len());
        measure_all(&missing, &methods, &folder, surroundings)?;
    }
    keys.iter().map(|k| Table::load(&path(k), registry::codecs())).collect()
}

fn measure_all(keys: &[&Key], methods: &[Method], folder: &Path, surroundings: &Surroundings) -> Result<()> {
    let mut folders = HashMap::new();
    for (folder, _) in keys.iter().flat_map(|k| recipe(&k.pool)) {
        if !folders.contains_key(folder) {
            let (name, coded) = folder.strip_suffix(".base64").map_or((*folder, false), |name| (name, true));
            let mut pieces = pools::pieces(&surroundings.corpus()?.join(name), PIECE_MAX)?;
            if coded {
                pieces.iter_mut().for_each(|p| *p = base64_lines(p));
            }
            folders.insert(*folder, pieces);
        }
    }
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let work = || -> Result<()> {
        while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
            let bytes = Block::from_vec(draw(key, &folders)?);
            let table = measure(&key.name(), &bytes, (methods, &[]), 1, &|_| (), &|| surroundings.stopped());
            table.context("interrupted while the costs of methods were measured")?.save(folder)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(keys.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().unwrap_or_else(|_| bail!("a measuring thread panicked")))
    })
}

/// Base64 as in mail: 76 characters a line.
fn base64_lines(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut coded = Vec::with_capacity(bytes.len() * 3 / 2);
    for line in bytes.chunks(57) {
        for three in line.chunks(3) {
            let bits = (0..3).fold(0u32, |bits, i| bits << 8 | u32::from(*three.get(i).unwrap_or(&0)));
            let digit = |i: usize| if i <= three.len() { DIGITS[(bits >> (18 - 6 * i)) as usize & 63] } else { b'=' };
            coded.extend((0..4).map(digit));
        }
        coded.push(b'\n');
    }
    coded
}

fn recipe(pool: &str) -> &'static [(&'static str, f64)] {
    POOLS.iter().find(|p| p.0 == pool).map_or(&[], |p| p.1)
}

/// Draws random files from the half of the pool that is for training or for tests: every second
/// piece.
fn draw(key: &Key, folders: &HashMap<&str, Vec<Vec<u8>>>) -> Result<Vec<u8>> {
    let mut rng = Rng(xxh3_64(key.name().as_bytes()) | 1);
    let recipe = recipe(&key.pool);
    if recipe.is_empty() {
        let noise = key.pool == "random";
        return Ok((0..SET_LEN).map(|_| if noise { rng.next_u64() as u8 } else { 0 }).collect());
    }
    let mut bytes = Vec::with_capacity(SET_LEN + PIECE_MAX);
    while bytes.len() < SET_LEN {
        // Choose a folder with the probability of its share; take as many bytes of it each time.
        let mut left = rng.unit();
        let passed = |r: &&(&str, f64)| {
            left -= r.1;
            left < 0.0
        };
        let name = recipe.iter().find(passed).unwrap_or(&recipe[0]).0;
        let all = folders.get(name).context("a folder was not read")?;
        let half = (all.len() + usize::from(!key.train)) / 2;
        ensure!(half > 0, "the folder {name} of the corpus has fewer than two pieces");
        let until = bytes.len() + PIECE_MAX;
        while bytes.len() < until {
            bytes.extend_from_slice(&all[2 * rng.below(half) + usize::from(key.train)]);
        }
    }
    bytes.truncate(SET_LEN);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pool: &str, train: bool, number: u32) -> Key {
        Key { pool: pool.into(), train, number }
    }

    #[test]
    fn sets_are_drawn_alike_every_time_and_what_is_learned_from_is_not_tested() {
        // Each piece repeats one byte value, so a byte shows which piece it came from.
        let pieces = |from: u8| (from..from + 20).map(|v| vec![v; 60_000]).collect::<Vec<_>>();
        let folders = HashMap::from([("web", pieces(0)), ("media", pieces(100)), ("binaries", pieces(0))]);
        let facebook = draw(&key("facebook", false, 0), &folders).unwrap();
        assert_eq!(facebook.len(), SET_LEN);
        assert_eq!(facebook, draw(&key("facebook", false, 0), &folders).unwrap());
        assert_ne!(facebook, draw(&key("facebook", false, 1), &folders).unwrap());
        let web = |n: u32| draw(&key("facebook", false, n), &folders).unwrap().iter().filter(|b| **b < 50).count();
        let share = (0..20).map(web).sum::<usize>() as f64 / (20 * SET_LEN) as f64;
        assert!((0.35..0.65).contains(&share), "half of it is web: {share}");
        let learned = draw(&key("binaries", true, 0), &folders).unwrap();
        let tested = draw(&key("binaries", false, 0), &folders).unwrap();
        assert!(learned.iter().all(|b| b % 2 == 1) && tested.iter().all(|b| b % 2 == 0));
        assert!(draw(&key("zero", false, 0), &folders).unwrap().iter().all(|b| *b == 0));
    }

    #[test]
    fn attachments_are_base64_in_lines() {
        assert_eq!(base64_lines(b"Man"), b"TWFu\n");
        assert_eq!(base64_lines(b"light w"), b"bGlnaHQgdw==\n");
        let coded = base64_lines(&[0; 60]);
        assert_eq!((coded.len(), coded[76]), (76 + 1 + 4 + 1, b'\n'));
    }

    #[test]
    fn busy_processes_take_their_share_of_the_cores() {
        let speed = |load, workers| environment(1.0, load, workers).cpu.at(0.0);
        assert_eq!((speed(0.0, 4), speed(4.0, 4), speed(2.0, 1), speed(4.0, 1)), (1.0, 0.5, 1.0, 0.8));
    }
}
