//! The kind `scale`: a policy in virtual time between hosts that are larger than any at hand, with
//! stated limits of memory and threads.

use anyhow::{Context, Result};
use narrows::codec::{DEFAULT_METHODS, Method};
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_sim::world::{self, Conditions, Hardware, Run};

use super::super::cells::Cell;
use super::super::plan::Plan;
use super::super::samples::Values;
use super::virtual_time::{SETTINGS as TABLES, Worlds};
use super::{Axis, Kind, Lab, Setting, Surroundings, checks};
use crate::pools;
use crate::registry;
use crate::units::parse_len;

pub(crate) struct Scale;

/// Version of the model, raised when a cell's values change.
const WORLD: &str = " scale 1";
/// The longest that was measured, for which the bound holds.
const BLOCK_MAX: usize = 512 << 10;
const FIXED_BLOCK: usize = 128 << 10;
/// Less busy than this, a resource is not what holds up the others.
const BINDING: f64 = 0.85;

const AXES: &[Axis] = &[
    Axis { name: "pool", default: "text", check: checks::name },
    Axis { name: "link_mbit", default: "25000", check: checks::positive },
    // Of each end.
    Axis { name: "cores", default: "16", check: checks::count },
    Axis { name: "threads", default: "1", check: checks::count },
    Axis { name: "memory_gb_per_s", default: "200", check: checks::positive },
    Axis { name: "len", default: "128M", check: checks::len },
    Axis { name: "policy", default: "balance", check: checks::policy },
];
const SETTINGS: &[Setting] = &[
    TABLES[0],
    TABLES[1],
    TABLES[2],
    Setting { name: "decision_us", default: "2", check: checks::not_negative },
    Setting { name: "source_ns_per_kb", default: "170", check: checks::not_negative },
    Setting { name: "write_ns_per_kb", default: "210", check: checks::not_negative },
    Setting { name: "read_ns_per_kb", default: "180", check: checks::not_negative },
    Setting { name: "sink_ns_per_kb", default: "280", check: checks::not_negative },
];

impl Kind for Scale {
    fn name(&self) -> &'static str {
        "scale"
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
        Ok(Box::new(ScaleLab { plan, worlds: Worlds::open(plan, surroundings)? }))
    }

    fn estimate_s(&self, _plan: &Plan, cell: &Cell) -> f64 {
        0.003 * parse_len(cell.get("len")).unwrap_or(0) as f64 / 1e6
    }

    fn beside(&self) -> bool {
        true
    }
}

struct ScaleLab<'a> {
    plan: &'a Plan,
    worlds: Worlds<'a>,
}

impl Lab for ScaleLab<'_> {
    fn run(&self, cell: &Cell, _round: u32) -> Result<Values> {
        let (table, prior) = self.worlds.table(cell.get("pool"))?;
        let setting = |name: &str| self.plan.setting(name).parse::<f64>().context("not a number");
        let (cores, one) = (cell.number("cores") as usize, Speed::constant(1.0));
        let conditions = Conditions {
            len: parse_len(cell.get("len")).map_err(anyhow::Error::msg)?,
            cores,
            decoders: cores,
            link: Speed::constant(cell.number("link_mbit") * 125_000.0),
            cpu: one.clone(),
            receiver: one,
            block_max: BLOCK_MAX,
            decision_ns: 1e3 * setting("decision_us")?,
            seed: 1,
            trace: false,
            expected_link: None,
        };
        let hardware = Hardware {
            memory_bytes_per_s: 1e9 * cell.number("memory_gb_per_s"),
            source_ns_per_byte: 1e-3 * setting("source_ns_per_kb")?,
            write_ns_per_byte: 1e-3 * setting("write_ns_per_kb")?,
            read_ns_per_byte: 1e-3 * setting("read_ns_per_kb")?,
            sink_ns_per_byte: 1e-3 * setting("sink_ns_per_kb")?,
            threads: cell.number("threads") as usize,
        };
        let codecs = registry::codecs();
        let setup = PolicySetup { codecs, methods: DEFAULT_METHODS, ..PolicySetup::new(cores, prior) };
        let fixed = |method: Method| -> Run {
            let conditions = Conditions { block_max: FIXED_BLOCK, decision_ns: 0.0, ..conditions.clone() };
            world::run_on(table, &conditions, &hardware, PolicySpec::fixed(method, false).build(&setup))
        };
        let plain = fixed(Method::STORE);
        let run = match cell.get("policy") {
            "plain" => plain.clone(),
            "best-fixed" => {
                let runs = narrows_sim::judge::fixed_methods(table).into_iter().map(fixed);
                runs.min_by(|a, b| a.seconds.total_cmp(&b.seconds)).context("no methods")?
            }
            name => world::run_on(table, &conditions, &hardware, registry::policy(name)?.build(&setup)),
        };
        let bound_s = hardware.bound(table, &conditions);
        let goodput = |seconds: f64| conditions.len as f64 * 8e-9 / seconds;
        let mut values = Values::of(&[
            ("seconds", run.seconds),
            ("goodput_gbit_per_s", goodput(run.seconds)),
            ("bound_gbit_per_s", goodput(bound_s)),
            ("of_bound", bound_s / run.seconds),
            ("of_plain", plain.seconds / run.seconds),
            ("ratio", run.summary.raw_bytes as f64 / run.summary.wire_bytes.max(1) as f64),
        ]);
        let loads = hardware.loads(&conditions, &run);
        let most = loads.iter().max_by(|a, b| a.1.total_cmp(&b.1)).context("no resources")?;
        let binds = if most.1 < BINDING { format!("none ({} {:.2})", most.0, most.1) } else { most.0.to_owned() };
        values.words.insert("binds".into(), binds);
        let name = |name: &str| format!("busy_{}", name.replace([' ', '\''], "_"));
        values.numbers.extend(loads.iter().map(|(n, share)| (name(n), *share)));
        Ok(values)
    }
}
