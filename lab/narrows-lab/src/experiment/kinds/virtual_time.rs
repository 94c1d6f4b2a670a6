//! The kind `virtual`: a policy in virtual time, through the engine's real sender, with costs
//! measured on this machine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, ensure};
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::monitor::cost::Prior;
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use xxhash_rust::xxh3::xxh3_64;

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::{Axis, Kind, Lab, Setting, Surroundings, checks};
use crate::cells as grid;
use crate::registry;
use crate::units::parse_len;
use crate::{fit, measure, pools};
use narrows_sim::judge::{self, Possible};
use narrows_sim::table::{self, CLASSES, Table};
use narrows_sim::world::{self, Run};

pub(crate) struct Virtual;

/// Version of the model, raised when the time or the judgement of a cell changes. 2: the I/O
/// thread's jobs share the cores, and all work is slower on a slower core; `of_bound` refers to the
/// bound over all cuts.
pub(super) const WORLD: &str = " world 2";
/// As in `grid`.
const FIXED_BLOCK: usize = 128 << 10;
const BLOCK_MAX: usize = 2 << 20;
/// The oracle and the relaxed schedule cut blocks of up to 128 KiB.
const CLASS_MAX: usize = 2;

pub(super) const AXES: &[Axis] = &[
    Axis { name: "pool", default: "text", check: checks::name },
    Axis { name: "link_mbit", default: "100", check: checks::positive },
    Axis { name: "cores", default: "4", check: checks::count },
    // Busy processes: `n` of them leave `c` encoding cores a share of c / (c + n) each.
    Axis { name: "load", default: "0", check: checks::hogs },
    Axis { name: "scenario", default: "flat", check: checks::scenario },
    Axis { name: "len", default: "3M", check: checks::len },
    Axis { name: "policy", default: "balance", check: checks::policy },
];
pub(super) const SETTINGS: &[Setting] = &[
    Setting { name: "pool_len", default: "3M", check: checks::len },
    // Added to the default methods.
    Setting { name: "methods", default: "", check: methods },
    Setting { name: "prior", default: "shipped", check: prior },
    Setting { name: "beam", default: "16", check: checks::not_negative },
    Setting { name: "decision_us", default: "2", check: checks::not_negative },
];

fn methods(text: &str) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { registry::methods(text).map(|_| ()).map_err(|e| e.to_string()) }
}

fn prior(text: &str) -> Result<(), String> {
    if matches!(text, "shipped" | "leave-one-out") { Ok(()) } else { Err("must be shipped or leave-one-out".into()) }
}

impl Kind for Virtual {
    fn name(&self) -> &'static str {
        "virtual"
    }

    fn axes(&self) -> &'static [Axis] {
        AXES
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn recipe(&self) -> String {
        format!("{}{WORLD}", pools::recipe())
    }

    fn open<'a>(&self, plan: &'a Plan, surroundings: &'a Surroundings) -> Result<Box<dyn Lab + 'a>> {
        Ok(Box::new(VirtualLab(Worlds::open(plan, surroundings)?)))
    }

    fn estimate_s(&self, plan: &Plan, cell: &Cell) -> f64 {
        let mb = parse_len(cell.get("len")).unwrap_or(0) as f64 / 1e6;
        // The cost of plain and the oracle is shared by all policies of a cell.
        let shared = 0.02 * mb * plan.setting("beam").parse::<f64>().unwrap_or(0.0);
        let fixed = if cell.get("policy") == "best-fixed" { 10.0 } else { 1.0 };
        0.005 * mb * fixed + shared / plan.axis("policy").len() as f64
    }

    fn beside(&self) -> bool {
        true
    }
}

struct VirtualLab<'a>(Worlds<'a>);

impl Lab for VirtualLab<'_> {
    fn run(&self, cell: &Cell, _round: u32) -> Result<Values> {
        self.0.run(cell, false).map(|r| r.0)
    }
}

/// Results that all policies of a cell share.
struct Shared {
    possible: Possible,
    plain_s: f64,
}

pub(super) struct Worlds<'a> {
    plan: &'a Plan,
    tables: HashMap<String, (Table, Prior)>,
    shared: Mutex<HashMap<Cell, Arc<OnceLock<Shared>>>>,
}

impl<'a> Worlds<'a> {
    pub(super) fn open(plan: &'a Plan, surroundings: &Surroundings) -> Result<Self> {
        let len = parse_len(&plan.setting("pool_len")).map_err(anyhow::Error::msg)?;
        let class = CLASSES[CLASSES.len() - 1];
        ensure!(len.is_multiple_of(class), "pool_len must be a multiple of 512K");
        let mut methods = narrows_sim::measure::measurable(DEFAULT_METHODS);
        let more = plan.setting("methods");
        let mut add = |list: Vec<Method>| {
            for method in narrows_sim::measure::measurable(&list) {
                if !methods.contains(&method) {
                    methods.push(method);
                }
            }
        };
        if !more.is_empty() {
            add(registry::methods(&more)?);
        }
        for policy in plan.axis("policy") {
            if let Ok(spec) = registry::policy(&policy) {
                add(spec.methods());
            }
        }
        let named: Vec<_> = methods.iter().map(|m| registry::name(*m)).collect();
        let folder = surroundings
            .tables
            .join(format!("{:016x}", xxh3_64(format!("{len} {named:?}{}", pools::recipe()).as_bytes())));
        let leave_one_out = plan.setting("prior") == "leave-one-out";
        let only = if leave_one_out { Vec::new() } else { plan.axis("pool") };
        measure::complete(surroundings.corpus()?, &folder, len, &methods, &only, &|| surroundings.stopped())?;
        let all = table::load_all(&folder, &only, registry::codecs())?;
        let reference = if leave_one_out { fit::read_reference(&folder)? } else { Vec::new() };
        let fitted = if leave_one_out { fit::fitting(&all)? } else { Vec::new() };
        let mut priors = Vec::new();
        for table in &all {
            priors.push(if leave_one_out {
                let text = fit::fit(&fitted, Some(&table.pool), &reference)?;
                Prior::parse_with(&text, registry::codecs())?
            } else {
                Prior::shipped().clone()
            });
        }
        let tables = all.into_iter().zip(priors).map(|(t, p)| (t.pool.clone(), (t, p))).collect();
        Ok(Self { plan, tables, shared: Mutex::default() })
    }

    /// The costs of a pool, and the prior for it.
    pub(super) fn table(&self, pool: &str) -> Result<(&Table, &Prior)> {
        let (table, prior) = self.tables.get(pool).with_context(|| format!("there is no pool '{pool}'"))?;
        Ok((table, prior))
    }

    /// The values of a run, and its trace if requested.
    pub(super) fn run(&self, cell: &Cell, trace: bool) -> Result<(Values, String)> {
        let pool = cell.get("pool");
        let (table, prior) = self.table(pool)?;
        let grid_cell = grid::Cell {
            table: 0,
            rate_mbit: cell.number("link_mbit"),
            cores: cell.number("cores") as usize,
            len: parse_len(cell.get("len")).map_err(anyhow::Error::msg)?,
            scenario: cell.get("scenario").parse().map_err(anyhow::Error::msg)?,
        };
        ensure!(grid_cell.len.is_multiple_of(CLASSES[CLASSES.len() - 1]), "len must be a multiple of 512K");
        let decision_ns = 1e3 * self.plan.setting("decision_us").parse::<f64>()?;
        let mut conditions = grid_cell.conditions(table, decision_ns, BLOCK_MAX);
        let load = cell.number("load");
        if load > 0.0 {
            ensure!(cell.get("scenario") != "cpu3", "load and cpu3 cannot be combined");
            conditions.cpu = Speed::constant(conditions.cores as f64 / (conditions.cores as f64 + load));
        }
        let codecs = registry::codecs();
        let setup = PolicySetup { codecs, methods: DEFAULT_METHODS, ..PolicySetup::new(grid_cell.cores, prior) };
        let fixed = |method: Method, decision_ns: f64| -> Run {
            let conditions = world::Conditions { block_max: FIXED_BLOCK, decision_ns, ..conditions.clone() };
            world::run(table, &conditions, PolicySpec::fixed(method, false).build(&setup))
        };
        let key = cell.with("policy", "");
        let shared = Arc::clone(self.shared.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        let shared = shared.get_or_init(|| Shared {
            possible: judge::possible(table, &conditions, CLASS_MAX, self.plan.setting("beam").parse().unwrap_or(0)),
            plain_s: fixed(Method::STORE, 0.0).seconds,
        });
        let name = cell.get("policy");
        let (run, chosen) = match name {
            "oracle" => {
                let numbers = Self::numbers(shared, shared.possible.oracle, grid_cell.len);
                return Ok((Values::of(&numbers), String::new()));
            }
            "plain" => (fixed(Method::STORE, 0.0), None),
            "best-fixed" => {
                let runs = judge::fixed_methods(table).into_iter().map(|m| (fixed(m, 0.0), m));
                let (run, method) = runs.min_by(|a, b| a.0.seconds.total_cmp(&b.0.seconds)).context("no methods")?;
                (run, Some(method))
            }
            _ => {
                let spec = registry::policy(name)?;
                let block_max = if spec.name() == "fixed" { FIXED_BLOCK } else { conditions.block_max };
                let conditions = world::Conditions { block_max, trace, ..conditions.clone() };
                (world::run(table, &conditions, spec.build(&setup)), None)
            }
        };
        let summary = &run.summary;
        let mut values = Values::of(&Self::numbers(shared, run.seconds, grid_cell.len));
        let more = [
            ("ratio", summary.raw_bytes as f64 / summary.wire_bytes.max(1) as f64),
            ("cpu_s", run.cpu_s),
            ("dry_share", summary.link_dry_ns as f64 * 1e-9 / run.seconds),
        ];
        values.numbers.extend(more.map(|(k, v)| (k.to_owned(), v)));
        let mut mix: Vec<_> = summary.mix.iter().map(|r| (r.raw_bytes, r.method)).collect();
        mix.sort_by_key(|m| std::cmp::Reverse(m.0));
        let share = |(bytes, method): &(u64, Method)| {
            format!("{} {:.2}", registry::name(*method), *bytes as f64 / grid_cell.len as f64)
        };
        let words = mix.iter().take(4).map(share).collect::<Vec<_>>().join(" ");
        values.words.insert("mix".into(), chosen.map_or(words, registry::name));
        Ok((values, run.trace))
    }

    fn numbers(shared: &Shared, seconds: f64, len: usize) -> Vec<(&'static str, f64)> {
        let mut numbers = vec![
            ("seconds", seconds),
            ("goodput_mbit_per_s", len as f64 * 8e-6 / seconds),
            ("of_plain", shared.plain_s / seconds),
            ("of_bound", shared.possible.bound / seconds),
            ("of_relaxed", shared.possible.relaxed / seconds),
        ];
        if shared.possible.has_oracle {
            numbers.push(("of_oracle", shared.possible.oracle / seconds));
        }
        numbers
    }
}
