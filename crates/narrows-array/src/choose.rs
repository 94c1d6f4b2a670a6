//! The chooser: pipelines are tried on a piece of a chunk, and the array's winner is remembered.

use std::str::FromStr;

use narrows::{Error, Result};

use crate::back_end::{BackEnd, Coders};
use crate::bound::{Bound, Tolerance};
use crate::chunk::{self, Coder};
use crate::pipeline::{self, Making, Pipeline};
use crate::step::{Stage, Step};
use crate::view::ArrayView;
use crate::words::{Kind, Words};

mod cost;
mod fields;
mod memory;
mod piece;

pub use self::memory::Memory;
use self::memory::{Array, RETRY};
use self::piece::{best_axes, cut_piece};

/// What matters: how much time of a core a smaller chunk may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// At least 500 MB/s on an ordinary core.
    Fast,
    /// Some 100 MB/s.
    #[default]
    Balanced,
    /// Whatever is smallest, xz and high levels included.
    Archive,
}

impl Mode {
    /// What a nanosecond for each byte is worth, as a share of the encoded length. Balanced takes zstd 9
    /// instead of 3 (15 ns more) for 4.5 % fewer bytes, about what separates them on arrays. Within a bound
    /// it takes pco instead of zstd 1 (4 ns more) for 6 % fewer bytes: there both shrink arrays to a few
    /// percent, and the time of the quantiser and of the comparison, which neither spares, is short.
    fn price(self, is_lossy: bool) -> f64 {
        match self {
            Self::Fast => 0.05,
            Self::Balanced if is_lossy => 0.015,
            Self::Balanced => 0.003,
            Self::Archive => 0.000_05,
        }
    }

    /// Level of zstd after differences within a bound: level 3 finds no more in them, and takes longer.
    fn zstd_of_noise(self) -> BackEnd {
        BackEnd::Zstd(if self == Self::Archive { 3 } else { 1 })
    }

    fn encode_ns_max(self) -> f64 {
        if self == Self::Fast { 2.0 } else { f64::INFINITY }
    }
}

impl FromStr for Mode {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "fast" => Ok(Self::Fast),
            "balanced" => Ok(Self::Balanced),
            "archive" => Ok(Self::Archive),
            _ => Err(Error::misuse(format!("no mode is called '{s}'; there are fast, balanced and archive"))),
        }
    }
}

/// What a caller may set beside the bound.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// What matters.
    pub mode: Mode,
    /// Bytes per second that one core must encode, by nominal speeds.
    pub encode_rate: Option<f64>,
    /// One pipeline for everything, for tests: where it does not apply, the chunk is stored.
    pub method: Option<Pipeline>,
}

/// How far behind the winner what is compared again may be.
const NEAR: f64 = 0.15;
/// Change of the ratio that makes a new trial.
const MOVED: f64 = 0.10;

/// Most candidates that a trial encodes whole.
const FINALS: usize = 3;

/// The same of chunks that shrink to a few percent: what is estimated from a piece is then mostly what does
/// not grow with it, and is wrong by a factor of two at times.
const FINALS_TINY: usize = 12;

/// How far behind the best score on a piece a candidate is encoded whole, and how many are.
fn closeness(score: f64, raw_len: usize) -> (f64, usize) {
    let ratio = raw_len as f64 / score.exp();
    if ratio > 30.0 { (1.4, FINALS_TINY) } else { (0.04, FINALS) }
}

/// Encodes the chunks of one array. The same chunks in the same order give the same bytes.
pub struct Chooser {
    options: Options,
    bound: Bound,
    coder: Coder,
    memory: Memory,
}

impl Chooser {
    /// A chooser without memory of an array.
    ///
    /// # Errors
    /// The bound is no bound.
    pub fn new(options: Options, bound: Bound) -> Result<Self> {
        Self::with(options, bound, Memory::default(), Coder::new())
    }

    /// A chooser that goes on from the memory of another, by the contexts of its thread: several threads
    /// then serve an array, each chunk with a chooser of its own.
    ///
    /// # Errors
    /// The bound is no bound.
    pub fn with(options: Options, bound: Bound, memory: Memory, coder: Coder) -> Result<Self> {
        bound.check()?;
        Ok(Self { options, bound, coder, memory })
    }

    /// The memory, and the contexts.
    pub fn into_parts(self) -> (Memory, Coder) {
        (self.memory, self.coder)
    }

    /// Encodes the next chunk.
    ///
    /// # Errors
    /// The view's length differs from its shape, or is above the limit.
    pub fn encode(&mut self, view: &ArrayView<'_>) -> Result<Vec<u8>> {
        view.check()?;
        let loaded = chunk::load(view);
        let tolerance = self.bound.for_array(view, &loaded);
        let tolerance = tolerance.as_ref();
        let coders = &mut self.coder.coders;
        let store = |coders: &mut Coders| chunk::store(view, &loaded, tolerance, coders);
        if view.bytes.is_empty() {
            return Ok(store(coders));
        }
        if let Some(method) = &self.options.method {
            let made = chunk::encode_with(view, &loaded, method, tolerance, coders);
            return Ok(made.unwrap_or_else(|| store(coders)));
        }
        let mut remembered = None;
        if let Some(memory) = self.memory.array.as_mut().filter(|m| m.is_of(view)) {
            memory.age += 1;
            if memory.age == RETRY && memory.stands(&loaded, tolerance, self.options.mode, coders) {
                memory.age = 0;
            }
            if memory.age < RETRY {
                let encode = |pipeline: &Pipeline, coders: &mut Coders| {
                    chunk::encode_with(view, &loaded, pipeline, tolerance, coders)
                };
                let mut made = encode(&memory.winners[0], coders);
                let ratio = |made: &Vec<u8>| view.bytes.len() as f64 / made.len() as f64;
                let (low, high) = (memory.ratios.0 * (1.0 - MOVED), memory.ratios.1 * (1.0 + MOVED));
                let mut moved = !made.as_ref().is_some_and(|made| (low..=high).contains(&ratio(made)));
                // Another winner of this array may fit: that is cheaper to find than anything new.
                if moved {
                    for i in 1..memory.winners.len() {
                        let other = encode(&memory.winners[i], coders);
                        let shorter = |o: &Vec<u8>| made.as_ref().is_none_or(|m| o.len() < m.len());
                        if let Some(other) = other.filter(shorter) {
                            moved = !(low..=high).contains(&ratio(&other));
                            made = Some(other);
                            memory.winners.swap(0, i);
                        }
                    }
                }
                if let Some(made) = made.take_if(|_| !moved || memory.age < memory.patience) {
                    let ratio = ratio(&made);
                    memory.ratios = (memory.ratios.0.min(ratio), memory.ratios.1.max(ratio));
                    return Ok(if made.len() > view.bytes.len() { store(coders) } else { made });
                }
                remembered = made;
            }
        }
        self.memory.trials += 1;
        let limits = Limits::new(&self.options);
        let mut best: Option<(f64, Pipeline, Vec<u8>)> = None;
        let mut finals = 0;
        let tried = try_all(&loaded.0, &loaded.1, tolerance, &limits, coders);
        let (close, finals_max) = closeness(tried[0].0, view.bytes.len());
        let first = tried[0].0;
        let near: Vec<_> = tried.iter().take_while(|t| t.0 <= first + NEAR).map(|t| t.1.clone()).collect();
        for (score, candidate) in tried {
            if best.is_some() && (finals >= finals_max || score > first + close) {
                break;
            }
            let same = self.memory.pipeline() == Some(&candidate);
            let made = match remembered.take_if(|_| same) {
                Some(made) => Some(made),
                None => chunk::encode_with(view, &loaded, &candidate, tolerance, coders),
            };
            if let Some(made) = made {
                finals += 1;
                let score = (made.len() as f64).ln()
                    + limits.mode.price(tolerance.is_some()) * cost::pipeline_ns(&candidate, &loaded.1);
                if best.as_ref().is_none_or(|b| score < b.0) {
                    best = Some((score, candidate, made));
                }
            }
        }
        let (pipeline, made) = match best {
            Some((_, pipeline, made)) if made.len() < view.bytes.len() => (pipeline, made),
            _ => (Pipeline::new([], BackEnd::Store), store(coders)),
        };
        let ratio = view.bytes.len() as f64 / made.len() as f64;
        let before = self.memory.array.take().filter(|m| m.is_of(view));
        self.memory.array = Some(Array::after_trial(before, view, pipeline, ratio, near));
        Ok(made)
    }

    /// The remembered winner.
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.memory.pipeline()
    }

    /// Number of trials so far.
    pub fn trials(&self) -> u64 {
        self.memory.trials
    }

    /// Exchanges the contexts, so that many choosers can share those of a thread.
    pub(crate) fn exchange(&mut self, coder: &mut Coder) {
        std::mem::swap(&mut self.coder, coder);
    }

    /// The bound that all chunks keep.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }
}

/// Limits and prices of a choice.
#[derive(Clone)]
struct Limits {
    mode: Mode,
    ns_max: f64,
}

impl Limits {
    fn new(options: &Options) -> Self {
        let floor = options.encode_rate.filter(|r| *r > 0.0).map_or(f64::INFINITY, |rate| 1e9 / rate);
        Self { mode: options.mode, ns_max: options.mode.encode_ns_max().min(floor) }
    }
}

/// Every pipeline that the chooser might take for a chunk, for comparisons: it looks at the elements, but
/// encodes nothing whole.
///
/// # Errors
/// As [`Chooser::encode`].
pub fn candidates(view: &ArrayView<'_>, options: &Options, bound: &Bound) -> Result<Vec<Pipeline>> {
    view.check()?;
    bound.check()?;
    if view.bytes.is_empty() {
        return Ok(vec![Pipeline::new([], BackEnd::Store)]);
    }
    let loaded = chunk::load(view);
    let tolerance = bound.for_array(view, &loaded);
    let (words, stage) = loaded;
    let mut coders = Coders::default();
    let limits = Limits { ns_max: f64::INFINITY, ..Limits::new(options) };
    let tried = try_all(&words, &stage, tolerance.as_ref(), &limits, &mut coders);
    Ok(tried.into_iter().map(|(_, pipeline)| pipeline).collect())
}

/// All candidates with their scores, best first. Lossy ones come before lossless ones, which are what is
/// left if no lossy one holds the bound.
fn try_all(
    words: &Words,
    stage: &Stage,
    tolerance: Option<&Tolerance>,
    limits: &Limits,
    coders: &mut Coders,
) -> Vec<(f64, Pipeline)> {
    let mut tried = Vec::new();
    if let Some(tolerance) = tolerance {
        let mut trial = Trial::new(stage.bytes(), limits, coders, Some(tolerance));
        trial.lossy(words, stage);
        tried = trial.sorted();
    }
    // Bytes are compared by their probable structure, numbers by what numbers can have.
    let mut trial = Trial::new(stage.bytes(), limits, coders, None);
    if tried.is_empty() {
        trial.lossless(words, stage);
        fields::try_fields(words, stage, &mut trial);
        tried = trial.sorted();
    } else {
        // A trial of lossless ones would be for nothing where a lossy one holds, as nearly always.
        let plain = if stage.width > 1 { vec![Step::Split] } else { Vec::new() };
        tried.push((f64::INFINITY, Pipeline::new(plain, BackEnd::Zstd(3))));
    }
    tried.push((f64::INFINITY, Pipeline::new([], BackEnd::Store)));
    tried
}

/// Encodings of pieces, and what they say of the whole.
struct Trial<'a> {
    raw_len: usize,
    limits: Limits,
    coders: &'a mut Coders,
    tolerance: Option<&'a Tolerance>,
    tried: Vec<(f64, Pipeline)>,
}

/// Words after some first steps, and a piece of them.
struct Base {
    steps: Vec<Step>,
    /// Side data of those steps, for the whole chunk.
    side_len: usize,
    stage: Stage,
    piece: Words,
    piece_stage: Stage,
    /// How often the piece goes into the whole.
    times: f64,
    ns: f64,
}

impl<'a> Trial<'a> {
    fn new(raw_len: usize, limits: &Limits, coders: &'a mut Coders, tolerance: Option<&'a Tolerance>) -> Self {
        Self { raw_len, limits: limits.clone(), coders, tolerance, tried: Vec::new() }
    }

    fn sorted(mut self) -> Vec<(f64, Pipeline)> {
        self.tried.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.tried
    }

    /// Words as they are.
    fn plain(&self, words: &Words, stage: &Stage) -> Base {
        let (piece, piece_stage) = cut_piece(words, stage);
        let times = stage.len() as f64 / piece_stage.len().max(1) as f64;
        Base { steps: Vec::new(), side_len: 0, stage: stage.clone(), piece, piece_stage, times, ns: 0.0 }
    }

    /// Words after a step, if it applies to the whole chunk.
    fn behind(&mut self, step: Step, words: &Words, stage: &Stage) -> Option<Base> {
        let ns = cost::step_ns(&step, stage.width);
        if ns > self.limits.ns_max {
            return None;
        }
        let mut side = Vec::new();
        let mut making = Making { coders: self.coders, tolerance: self.tolerance, missed: 0 };
        let (words, stage) = pipeline::apply(&step, words.clone(), stage.clone(), &mut making, &mut side)?;
        if making.missed * 4 > stage.len() {
            return None;
        }
        let base = self.plain(&words, &stage);
        Some(Base { steps: vec![step], side_len: side.len(), ns, ..base })
    }

    /// Tries steps and a back end after a base.
    fn offer(&mut self, base: &Base, steps: &[Step], back_end: BackEnd) {
        let width = base.stage.width;
        // After rank, words are shorter than the elements.
        let share = base.stage.bytes() as f64 / self.raw_len.max(1) as f64;
        let ns = base.ns
            + share
                * (steps.iter().map(|s| cost::step_ns(s, width)).sum::<f64>()
                    + cost::back_end_ns(back_end, width, pipeline::has_differences(steps)));
        if ns > self.limits.ns_max {
            return;
        }
        let mut out = Vec::new();
        let mut making = Making { coders: self.coders, tolerance: self.tolerance, missed: 0 };
        let tail = Pipeline::new(steps, back_end);
        if pipeline::encode(&tail, base.piece.clone(), base.piece_stage.clone(), &mut making, &mut out).is_none() {
            return;
        }
        let fixed = self.coders.fixed_len.min(out.len());
        let estimate = base.side_len as f64 + fixed as f64 + (out.len() - fixed) as f64 * base.times;
        let price = self.limits.mode.price(self.tolerance.is_some());
        let score = estimate.max(1.0).ln() + price * ns;
        let steps: Vec<Step> = base.steps.iter().chain(steps).cloned().collect();
        self.tried.push((score, Pipeline::new(steps, back_end)));
    }

    /// Everything for words that have to come back exactly.
    fn lossless(&mut self, words: &Words, stage: &Stage) {
        let base = self.plain(words, stage);
        let wide = stage.width > 1;
        let mode = self.limits.mode;
        let zstd = BackEnd::Zstd(3);
        let axes = best_axes(&base, 2);
        if mode == Mode::Fast {
            self.offer(&base, &[], BackEnd::Lz4);
            if wide {
                self.offer(&base, &[Step::Split], BackEnd::Lz4);
                let difference = Step::Lorenzo { axes: axes[0], zigzag: true };
                self.offer(&base, &[difference, Step::Split], BackEnd::Lz4);
            }
            return;
        }
        self.offer(&base, &[], zstd);
        if wide {
            self.offer(&base, &[Step::Split], zstd);
        }
        if wide || stage.kind == Kind::Signed || self.tried.len() > 1 {
            self.offer(&base, &[], BackEnd::Pco(8));
        }
        self.differences(&base, &axes, wide, zstd);
        if mode == Mode::Archive {
            self.offer(&base, &[], BackEnd::Zstd(15));
            self.offer(&base, &[], BackEnd::Xz(6));
            if wide {
                self.offer(&base, &[Step::Split], BackEnd::Xz(6));
                self.offer(&base, &[], BackEnd::Pco(12));
                self.offer(&base, &[Step::Lorenzo { axes: axes[0], zigzag: false }], BackEnd::Pco(12));
            }
        }
        if wide {
            if let Some(base) = self.behind(Step::Mask, words, stage) {
                let axes = best_axes(&base, 2);
                self.offer(&base, &[], BackEnd::Pco(8));
                self.differences(&base, &axes, wide, zstd);
            }
            if let Some(base) = self.behind(Step::Rank, words, stage) {
                self.ranked(&base);
            }
        }
    }

    fn ranked(&mut self, base: &Base) {
        let axes = best_axes(base, 2);
        let wide = base.stage.width > 1;
        self.offer(base, &[], BackEnd::Pco(8));
        self.offer(base, &[], BackEnd::Zstd(9));
        for &axes in &axes {
            self.offer(base, &[Step::Lorenzo { axes, zigzag: true }], BackEnd::Zstd(9));
            self.offer(base, &[Step::Lorenzo { axes, zigzag: false }], BackEnd::Pco(8));
            if wide {
                self.offer(base, &[Step::Lorenzo { axes, zigzag: true }, Step::Split], BackEnd::Zstd(3));
            }
        }
        if self.limits.mode == Mode::Archive {
            self.offer(base, &[], BackEnd::Xz(6));
            self.offer(base, &[Step::Lorenzo { axes: axes[0], zigzag: true }], BackEnd::Xz(6));
        }
    }

    fn differences(&mut self, base: &Base, axes: &[u8], wide: bool, zstd: BackEnd) {
        for &axes in axes {
            self.offer(base, &[Step::Lorenzo { axes, zigzag: false }], BackEnd::Pco(8));
            let difference = Step::Lorenzo { axes, zigzag: true };
            if wide {
                self.offer(base, &[difference, Step::Split], zstd);
            } else {
                self.offer(base, &[difference], zstd);
            }
        }
    }

    /// Everything within the bound.
    fn lossy(&mut self, words: &Words, stage: &Stage) {
        for step in [Step::Linear, Step::LogLinear, Step::Bits] {
            let Some(base) = self.behind(step, words, stage) else { continue };
            let axes = best_axes(&base, 2);
            if self.limits.mode == Mode::Fast {
                let difference = Step::Lorenzo { axes: axes[0], zigzag: true };
                self.offer(&base, &[difference, Step::Split], BackEnd::Lz4);
                continue;
            }
            self.offer(&base, &[], BackEnd::Pco(8));
            self.differences(&base, &axes, true, self.limits.mode.zstd_of_noise());
        }
        let base = self.plain(words, stage);
        self.offer(&base, &[Step::Interpolate], BackEnd::Pco(8));
        let zigzag = Step::Lorenzo { axes: 0, zigzag: true };
        self.offer(&base, &[Step::Interpolate, zigzag, Step::Split], BackEnd::Zstd(3));
    }
}
