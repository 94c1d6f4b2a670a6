//! Lower bound, best schedule, fixed methods and policies in virtual time, for one link rate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use narrows::codec::Method;
use narrows::monitor::cost::Prior;
use narrows::oracle::Speed;
use narrows::policy::{PolicySetup, PolicySpec};
use narrows_classic::Planned;
use narrows_sim::judge::fixed_methods;
use narrows_sim::limits::Limits;
use narrows_sim::overhead::ENCODE_FIXED_NS;
use narrows_sim::schedule::Schedule;
use narrows_sim::table::{CLASSES, Table};
use narrows_sim::world::{self, Conditions, Run};

use super::energy::Watts;
use crate::Rate;

/// Width of the beam search. A width of 128 finds at most 0.6 % more, mostly 0.1 % (three kinds of
/// data, three rates, 1 and 4 cores).
const BEAM: usize = 32;
/// Measured time of a decision of `balance`, in nanoseconds. Programs with a fixed method decide
/// nothing.
const DECISION_NS: f64 = 2000.0;
/// An arbitrary constant seed, so that the same question has the same answer.
const SEED: u64 = 1;

/// Everything except the rate.
pub struct Question<'a> {
    pub table: &'a Table,
    pub limits: Limits,
    pub watts: Option<&'a Watts>,
    /// Methods for policies that name none themselves.
    pub methods: &'a [Method],
    pub policies: &'a [PolicySpec],
    pub cores: usize,
    pub decoders: usize,
    /// Raw bytes to send: the table's, or more of the same kind.
    pub len: usize,
    /// Speeds of a core that encodes and of one that decodes; 1 is one of this host that is idle.
    pub speeds: [f64; 2],
}

/// Costs of one way to send the data.
#[derive(Debug, Clone)]
pub struct Row {
    /// `bound`, `schedule`, `fixed`, `plain` or `policy`.
    pub kind: &'static str,
    pub name: String,
    pub seconds: f64,
    pub wire_bytes: f64,
    /// CPU time of encoding on all cores, in seconds.
    pub cpu_s: f64,
    /// Energy of encoding; `None` for the bound, and if it could not be measured for every method.
    pub joules: Option<f64>,
    /// Every block, in order.
    pub blocks: Vec<Planned>,
}

/// The answers for one rate.
pub struct Answer {
    pub rate: Rate,
    pub bound: Row,
    pub best: Row,
    /// `store`, which is plain, then every method.
    pub fixed: Vec<Row>,
    pub policies: Vec<Row>,
}

impl Answer {
    /// The row of plain.
    pub fn plain(&self) -> &Row {
        &self.fixed[0]
    }

    /// The fixed method with the lowest figure; `None` unless the figure is known for all methods.
    pub fn winner(&self, figure: impl Fn(&Row) -> Option<f64>) -> Option<&Row> {
        let known: Option<Vec<_>> = self.fixed.iter().map(|r| figure(r).map(|v| (v, r))).collect();
        known?.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, row)| row)
    }

    /// The fixed method with the shortest time.
    pub fn best_fixed(&self) -> &Row {
        self.winner(|r| Some(r.seconds)).unwrap_or(self.plain())
    }
}

impl Question<'_> {
    /// The answers for several rates, computed in parallel.
    pub fn answer(&self, rates: &[Rate], threads: usize) -> Vec<Answer> {
        let next = AtomicUsize::new(0);
        let answers: Mutex<Vec<Option<Answer>>> = Mutex::new(rates.iter().map(|_| None).collect());
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, rates.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        let Some(rate) = rates.get(i) else { return };
                        let answer = self.answer_one(*rate);
                        answers.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(answer);
                    }
                });
            }
        });
        answers.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
    }

    /// The answer for one rate.
    fn answer_one(&self, rate: Rate) -> Answer {
        Answer {
            rate,
            bound: self.bound(rate),
            best: self.best(rate),
            fixed: fixed_methods(self.table).into_iter().map(|method| self.fixed(rate, method)).collect(),
            policies: self.policies.iter().map(|spec| self.policy(rate, spec)).collect(),
        }
    }

    /// How many times the table's bytes are sent, of which the bound and the best schedule are.
    fn times(&self) -> f64 {
        self.len as f64 / self.table.len() as f64
    }

    fn bound(&self, rate: Rate) -> Row {
        Row {
            kind: "bound",
            name: "lower bound".into(),
            seconds: self.limits.seconds(&self.conditions(rate).machine()) * self.times(),
            wire_bytes: self.limits.wire_len() * self.times(),
            cpu_s: self.limits.encode_s() * self.times(),
            joules: None,
            blocks: Vec::new(),
        }
    }

    /// The best schedule.
    pub fn best(&self, rate: Rate) -> Row {
        let (best, times) = (Schedule::best(self.table, &self.conditions(rate).machine(), BEAM), self.times());
        let by_method: Vec<_> = best.blocks.iter().zip(&best.encode_each_s).map(|(b, s)| (b.method, *s)).collect();
        Row {
            kind: "schedule",
            name: "best schedule, T*".into(),
            seconds: best.seconds * times,
            wire_bytes: best.wire_len * times,
            cpu_s: best.encode_s * times,
            joules: self.watts.and_then(|w| w.joules(&by_method)),
            blocks: best.blocks,
        }
    }

    /// One method for all blocks.
    pub fn fixed(&self, rate: Rate, method: Method) -> Row {
        let spec = PolicySpec::fixed(method, false);
        let conditions = Conditions { block_max: spec.block_max(), decision_ns: 0.0, ..self.conditions(rate) };
        let run = world::run(self.table, &conditions, spec.build(&self.setup()));
        let is_plain = method == Method::STORE;
        self.row(
            if is_plain { "plain" } else { "fixed" },
            if is_plain { "plain".into() } else { method.to_string() },
            run,
        )
    }

    /// A policy.
    pub fn policy(&self, rate: Rate, spec: &PolicySpec) -> Row {
        let conditions = self.conditions(rate);
        // The bound holds for blocks up to the longest that was measured.
        let conditions = Conditions { block_max: spec.block_max().min(CLASSES[CLASSES.len() - 1]), ..conditions };
        let run = world::run(self.table, &conditions, spec.build(&self.setup()));
        self.row("policy", spec.to_string(), run)
    }

    fn setup(&self) -> PolicySetup<'_> {
        PolicySetup { methods: self.methods, ..PolicySetup::new(self.cores, Prior::shipped()) }
    }

    fn conditions(&self, rate: Rate) -> Conditions {
        Conditions {
            len: self.len,
            cores: self.cores,
            decoders: self.decoders,
            link: Speed::constant(rate.0),
            cpu: Speed::constant(self.speeds[0]),
            receiver: Speed::constant(self.speeds[1]),
            block_max: CLASSES[CLASSES.len() - 1],
            decision_ns: DECISION_NS,
            seed: SEED,
            trace: false,
            expected_link: None,
        }
    }

    fn row(&self, kind: &'static str, name: String, run: Run) -> Row {
        // The fixed cost of a block besides its codec is counted as work like copying.
        let fixed = (Method::STORE, run.jobs as f64 * ENCODE_FIXED_NS * 1e-9);
        let encode_s: Vec<_> = run.encode_ns.iter().map(|(m, ns)| (*m, ns * 1e-9)).chain([fixed]).collect();
        Row {
            kind,
            name,
            seconds: run.seconds,
            wire_bytes: run.summary.wire_bytes as f64,
            cpu_s: run.work_s(),
            joules: self.watts.and_then(|w| w.joules(&encode_s)),
            blocks: run.sent,
        }
    }
}
