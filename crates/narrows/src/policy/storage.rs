//! `storage`: for bytes that are stored. A disk accepts them as fast as they come, so its rate says
//! nothing about what a byte is worth; a price does.
//!
//! With the price p of a byte, in seconds of a core, each block takes the method with the lowest
//! `c + p s`: the price at which the best mix for a disk of rate R, `max(sum c/K, sum s/R)`, has both
//! sides equal is one such p. A mode is a price, with block lengths that suit it. `encode_rate` is a
//! floor for `sum c/K`: raw bytes/s that all cores together reach. While the flow is behind it, only
//! methods are chosen that catch up. `decode_rate` leaves out methods that a core decodes slower, by
//! their nominal speed; `methods` are exactly those to choose from, beside `store`.
//!
//! Without a mode it uses one method, zstd at its default level, in blocks so long that few matches
//! are lost at their borders: compared to `zstd` itself on files of 5 to 9 MB, blocks of 2 MiB are at
//! most 1.2 % larger, of 1 MiB 3.5 %, of 512 KiB 5 %. Its blocks are not linked: 64 KiB of history
//! gain nothing for such lengths, and unlinked blocks can be decoded in parallel and found by an
//! index. A block that looks like numbers is split by their width before; its encoder keeps it as it is
//! where that is shorter. In a block that has base64, that is decoded before, whatever level of zstd is
//! chosen; only the mode `fast` leaves it.
//!
//! With `images`, JPEG images become blocks of their own and are recompressed, whatever that takes; so
//! that they can be seen whole, bytes gather as for the longest block.

use std::fmt;
use std::sync::Arc;

use super::images::Images;
use super::{Choice, Outcome, Policy, PolicySettings, PolicySetup, Registered};
use crate::codec::{CodecId, Codecs, Method, Trial};
use crate::error::{Error, Result};
use crate::hint::{Hint, Mode, parse_methods, parse_rate, print_methods};
use crate::monitor::View;
use crate::monitor::cost::{CostModel, METHODS_MAX, Prediction, Seen};
use crate::monitor::data::{Features, is_constant};
use crate::{base64, probe};

/// The policy without a mode: zstd in long, unlinked blocks.
pub struct Storage {
    block_len: usize,
    images: Option<Images>,
}

impl Storage {
    /// Maximum length of a block, in raw bytes; every receiver accepts it.
    pub const BLOCK_MAX: usize = 2 << 20;
    const BLOCK_MIN: usize = 512 << 10;
    const METHOD: Method = Method::zstd(3);
    /// Of blocks that look like numbers.
    const FOR_NUMBERS: Method = Method::split(3);

    /// A policy for one flow, with a block length that suits this number of encoding cores.
    pub fn new(cores: usize) -> Self {
        // The blocks of all cores together hold as much as those of two, so that the memory of a
        // flow keeps all cores busy.
        let block_len = 2 * Self::BLOCK_MAX / cores.max(2).next_power_of_two();
        Self { block_len: block_len.max(Self::BLOCK_MIN), images: None }
    }
}

impl Policy for Storage {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        if let Some(image) = self.images.as_mut().and_then(|images| images.choice(view)) {
            return image;
        }
        let block_len = self.block_len.min(view.limits.block_max);
        let block_len = self.images.as_ref().map_or(block_len, |images| images.before(view, block_len));
        let block = &view.upcoming[..view.upcoming.len().min(block_len)];
        // A probe takes less than a hundredth of the time that such a block does.
        let method = match view.limits.allows(Self::METHOD) {
            true if has_base64(Self::METHOD, block, view) => Method::base64(Self::METHOD.level),
            true if view.limits.allows(Self::FOR_NUMBERS) && probe::probe(block).is_some() => Self::FOR_NUMBERS,
            true => Self::METHOD,
            false => Method::STORE,
        };
        let encode_ns = method.nominal_encode_ns(block_len.min(view.upcoming.len()));
        Choice { encode_ns, ..Choice::new(method, block_len) }
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(if self.images.is_some() { Self::BLOCK_MAX } else { self.block_len })
    }

    fn sight(&self) -> usize {
        if self.images.is_some() { Self::BLOCK_MAX } else { 0 }
    }
}

/// Whether base64 in a block is decoded before this method, which is zstd.
fn has_base64(method: Method, block: &[u8], view: &View<'_>) -> bool {
    method.codec == CodecId::ZSTD && view.limits.allows(Method::base64(method.level)) && base64::probe(block)
}

impl Mode {
    /// Seconds of a core for a byte less. Balanced: against zstd 1, zstd 3 takes some 10 ns more for a
    /// raw byte of the corpora, and saves 0.016 bytes; zstd 6 takes as much again, and saves less.
    /// Archive: what is smallest, at any price.
    fn price(self) -> f32 {
        match self {
            Self::Fast => 6e-9,
            Self::Balanced => 600e-9,
            Self::Archive => 1.0,
        }
    }

    /// Block length in raw bytes. 256 KiB are decoded in some 300 µs, so that a byte is there soon,
    /// and are 3.6 % larger than 2 MiB (60 MB of the corpora, zstd 3).
    fn block_len(self) -> usize {
        match self {
            Self::Fast | Self::Balanced => 256 << 10,
            Self::Archive => Storage::BLOCK_MAX,
        }
    }

    fn methods(self) -> Vec<Method> {
        let mut methods = vec![Method::STORE, Method::CONSTANT, Method::lz4_accel(16), Method::lz4_accel(1)];
        // xz and bzip2 in blocks of 2 MiB are as small as linked zstd 19 (24 MB of the corpora: 3.873,
        // 3.912 and 3.877 MB), and take ten times as long to decode.
        let levels: &[i32] = match self {
            Self::Fast => &[1],
            Self::Balanced => &[1, 3, 6],
            Self::Archive => &[1, 3, 9, 15, 19],
        };
        methods.extend(levels.iter().map(|level| Method::zstd(*level)));
        let for_numbers: &[i32] = match self {
            Self::Fast => &[],
            Self::Balanced => &[3, 6],
            Self::Archive => &[3, 9, 19],
        };
        methods.extend(for_numbers.iter().map(|level| Method::split(*level)));
        methods
    }

    /// Raw bytes/s of one core that are the floor if nobody says.
    fn core_rate(self) -> f32 {
        match self {
            Self::Fast => 500e6,
            Self::Balanced | Self::Archive => 0.0,
        }
    }
}

/// Behind its floor a flow may be by so many seconds of a core: a slow block in the beginning is no
/// reason to store the next ones.
const CREDIT_S: f32 = 0.05;
/// A split must leave this share of what zstd alone does, at most: a linked block gains that much anyway.
const LINK_GAIN: f32 = 0.98;
/// Two parts of a block are tried. Their four encodings take some 20 ms, where such a block takes a second.
const TRIAL_LEN: usize = 128 << 10;
const TRIAL_SPLIT: Method = Method::split(9);
const TRIAL_PLAIN: Method = Method::zstd(9);
/// Choices that are remembered until their outcome comes; more than are in flight.
const REMEMBERED: usize = 64;

/// The policy of a mode.
struct Priced {
    costs: CostModel,
    mode: Mode,
    block_len: usize,
    /// The user named the methods: `store` is only what is left where none of them is in time.
    named: bool,
    /// Raw bytes/s of one core that reading takes at least.
    decode_rate: f32,
    cores: f32,
    /// Seconds of a core that a raw byte may take; infinite without a floor.
    floor_s: f32,
    /// Seconds of a core that the flow is ahead of its floor.
    credit_s: f32,
    infos: Vec<(u64, usize, Features)>,
    trial: Trial,
    images: Option<Images>,
    codecs: Codecs,
}

impl Priced {
    fn new(settings: &Settings, mode: Mode, setup: &PolicySetup<'_>) -> Self {
        let methods: Vec<_> = settings.candidates(mode).into_iter().filter(|m| *m != Method::CONSTANT).collect();
        let costs = match setup.calibration {
            Some(calibration) => {
                CostModel::with(setup.codecs, &methods, &setup.prior.shifted(|m| calibration.shift(m)))
            }
            None => CostModel::with(setup.codecs, &methods, setup.prior),
        };
        let cores = setup.cores.max(1) as f32;
        let rate = settings.encode_rate.map_or(mode.core_rate() * cores, |rate| rate as f32);
        let floor_s = if rate > 0.0 { cores / rate } else { f32::INFINITY };
        let block_len = settings.block.unwrap_or(mode.block_len());
        let named = settings.methods.is_some();
        let decode_rate = settings.decode_rate.unwrap_or(0) as f32;
        Self {
            costs,
            mode,
            block_len,
            named,
            decode_rate,
            cores,
            floor_s,
            credit_s: CREDIT_S,
            infos: Vec::new(),
            trial: Trial::default(),
            images: settings.images.then(Images::default),
            codecs: setup.codecs.clone(),
        }
    }
}

impl Priced {
    /// Whether an archive's block of numbers is split: a trial on parts of the block says so. What was
    /// learned from other blocks depends on which of them are done, and so on the machine.
    fn split_pays(&mut self, block: &[u8]) -> bool {
        if probe::probe(block).is_none() {
            return false;
        }
        let part = TRIAL_LEN.min(block.len() / 2);
        // At one and three quarters, after headers.
        let parts = [1, 3].map(|quarter| &block[(block.len() * quarter / 4).min(block.len() - part)..][..part]);
        let mut len = |method: Method| -> usize { parts.iter().map(|raw| self.trial.encoded_len(method, raw)).sum() };
        (len(TRIAL_SPLIT) as f32) < LINK_GAIN * len(TRIAL_PLAIN) as f32
    }

    /// Whether base64 may be decoded before this method: neither the floor nor the speed of reading forbids
    /// it, nor the user's own list.
    fn decodes_base64(&self, method: Method) -> bool {
        let decode_rate = Method::base64(method.level).nominal_decode_rate();
        self.mode != Mode::Fast && !self.named && decode_rate >= self.decode_rate
    }

    /// The method of an archive's block, instead of method `m`.
    fn split_instead(&mut self, m: usize, block: &[u8], p: &Prediction, allowance_s: f32, view: &View<'_>) -> usize {
        let split = Method::split(self.costs.methods()[m].level);
        let offered = self.costs.index_of(split).filter(|at| {
            let in_time = p.encode_s[*at] <= allowance_s;
            in_time && view.limits.allows(split)
        });
        offered.filter(|_| self.split_pays(block)).unwrap_or(m)
    }
}

impl Policy for Priced {
    fn choose(&mut self, view: &View<'_>) -> Choice {
        if let Some(image) = self.images.as_mut().and_then(|images| images.choice(view)) {
            return image;
        }
        let block_len = self.block_len.min(view.limits.block_max);
        let block_len = self.images.as_ref().map_or(block_len, |images| images.before(view, block_len));
        let block = &view.upcoming[..view.upcoming.len().min(block_len)];
        if is_constant(block) && view.limits.allows(Method::CONSTANT) {
            return Choice::new(Method::CONSTANT, block_len);
        }
        let features = Features::sample(block);
        let context = self.costs.context(&features);
        if self.mode != Mode::Archive
            && view.limits.allows(Method::split(3))
            && self.costs.wants_probe(context, block.len())
        {
            self.costs.observe_probe(context, probe::probe(block).is_some());
        }
        let predicted = self.costs.predict(context, &features, block.len());
        let allowance_s = self.floor_s * block.len() as f32 + self.credit_s.max(0.0) / 4.0;
        let (mut best, mut best_cost) = (0, f32::INFINITY);
        for (m, method) in self.costs.methods().iter().enumerate().take(METHODS_MAX) {
            let in_time = m == 0 || predicted.encode_s[m] <= allowance_s;
            // Archives take the heaviest method that is in time: what it is linked to, the prediction
            // does not know.
            let cost = match self.mode {
                _ if m == 0 && self.named => f32::MAX,
                Mode::Archive if method.is_for_numbers() => continue,
                Mode::Archive => -(m as f32),
                mode => predicted.encode_s[m] + mode.price() * predicted.wire_len[m],
            };
            if in_time && view.limits.allows(*method) && cost < best_cost {
                (best, best_cost) = (m, cost);
            }
        }
        // Lines of one length look like records too.
        let chosen = self.costs.methods()[best];
        let of_zstd = chosen.without_step().unwrap_or(chosen);
        let method = if self.decodes_base64(of_zstd) && has_base64(of_zstd, block, view) {
            Method::base64(of_zstd.level)
        } else {
            if self.mode == Mode::Archive {
                best = self.split_instead(best, block, &predicted, allowance_s, view);
            }
            self.costs.methods()[best]
        };
        if self.infos.len() >= REMEMBERED {
            self.infos.remove(0);
        }
        self.infos.push((view.seq, context, features));
        let encode_ns = (predicted.encode_s[best] * 1e9) as u64;
        // Archives are read from beginning to end; the others at any byte.
        let linked = self.mode == Mode::Archive && self.codecs.can_link(method);
        Choice { linked, encode_ns, ..Choice::new(method, block_len) }
    }

    fn learn(&mut self, outcome: &Outcome) {
        let Outcome::Encoded { seq, method, raw_len, wire_len, wall_ns, cpu_ns, .. } = *outcome else { return };
        if self.floor_s.is_finite() {
            let ahead_s = self.floor_s * raw_len as f32 - cpu_ns as f32 * 1e-9;
            self.credit_s = (self.credit_s + ahead_s).clamp(-CREDIT_S * self.cores, CREDIT_S * self.cores);
        }
        let Some(at) = self.infos.iter().position(|(of, ..)| *of == seq) else { return };
        let (_, context, features) = self.infos.remove(at);
        // What base64 gains is not told from what zstd does: only the level was chosen.
        let known = self.costs.index_of(method).or_else(|| self.costs.index_of(method.without_step()?));
        if let Some(m) = known.filter(|m| *m > 0) {
            let seen = Seen { raw_len, wire_len, wall_ns, cpu_ns, history_len: 0 };
            self.costs.observe(context, &features, m, seen);
        }
    }

    fn whole_blocks(&self) -> Option<usize> {
        Some(if self.images.is_some() { Storage::BLOCK_MAX } else { self.block_len })
    }

    fn sight(&self) -> usize {
        if self.images.is_some() { Storage::BLOCK_MAX } else { 0 }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    mode: Option<Mode>,
    /// Raw bytes/s of all cores together.
    encode_rate: Option<u64>,
    /// Raw bytes of a block, instead of those of the mode.
    block: Option<usize>,
    /// Raw bytes/s of one core.
    decode_rate: Option<u64>,
    /// Recompress JPEG images.
    images: bool,
    /// Beside `store`.
    methods: Option<Vec<Method>>,
    /// Those that `methods` are of.
    codecs: Codecs,
}

impl Settings {
    /// What a hint wants, in this mode if it names none. Rates of 0 and empty lists say nothing.
    pub(super) fn of_hint(hint: &Hint, default: Mode) -> Self {
        Self {
            mode: Some(hint.mode.unwrap_or(default)),
            encode_rate: hint.encode_rate.filter(|rate| *rate > 0),
            block: None,
            decode_rate: hint.decode_rate.filter(|rate| *rate > 0),
            images: hint.wants_images(),
            methods: hint.methods.clone().filter(|methods| !methods.is_empty()),
            codecs: Codecs::default(),
        }
    }

    fn parse(rest: &str, codecs: &Codecs) -> Result<Self> {
        let mut settings = Self { codecs: codecs.clone(), ..Self::default() };
        let Some(list) = rest.strip_prefix(':') else {
            return if rest.is_empty() { Ok(settings) } else { Err(usage(rest)) };
        };
        let mut list = list;
        loop {
            // Settings of a method have commas: the list of methods goes to the end.
            let cut = if list.starts_with("methods=") { list.len() } else { list.find(',').unwrap_or(list.len()) };
            let setting = &list[..cut];
            let (key, value) = setting.split_once('=').ok_or_else(|| usage(setting))?;
            match key {
                "mode" => {
                    settings.mode = Some(value.parse().map_err(|_| usage(setting))?);
                }
                "encode_rate" => {
                    settings.encode_rate = Some(parse_rate(value).map_err(|_| usage(setting))?);
                }
                "block" => {
                    let len = value.parse().ok().filter(|len| (1..=Storage::BLOCK_MAX).contains(len));
                    settings.block = Some(len.ok_or_else(|| usage(setting))?);
                }
                "decode_rate" => {
                    settings.decode_rate = Some(parse_rate(value).map_err(|_| usage(setting))?);
                }
                "images" => settings.images = value.parse().map_err(|_| usage(setting))?,
                "methods" => settings.methods = Some(parse_methods(value, codecs)?),
                _ => return Err(usage(setting)),
            }
            match list[cut..].strip_prefix(',') {
                Some(more) => list = more,
                None => break,
            }
        }
        let needs_mode = settings.encode_rate.is_some() || settings.decode_rate.is_some() || settings.methods.is_some();
        if settings.mode.is_none() && needs_mode {
            return Err(usage(rest));
        }
        Ok(settings)
    }

    /// The methods to choose from; the first one is `store`.
    fn candidates(&self, mode: Mode) -> Vec<Method> {
        let mut methods = match &self.methods {
            Some(named) => {
                let mut named: Vec<_> = named.iter().copied().filter(|m| *m != Method::STORE).collect();
                named.sort_by_key(|method| self.codecs.encode_ns(*method, Storage::BLOCK_MAX));
                std::iter::once(Method::STORE).chain(named).take(METHODS_MAX).collect()
            }
            None => mode.methods(),
        };
        if let Some(rate) = self.decode_rate {
            methods.retain(|m| *m == Method::STORE || self.codecs.decode_rate(*m) >= rate as f32);
        }
        methods
    }
}

fn usage(text: &str) -> Error {
    Error::misuse(format!("`{text}` is no setting of storage: use {USAGE}"))
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("storage")?;
        if let Some(mode) = self.mode {
            write!(f, ":mode={}", mode.name())?;
        }
        self.encode_rate.map_or(Ok(()), |rate| write!(f, ",encode_rate={rate}"))?;
        self.decode_rate.map_or(Ok(()), |rate| write!(f, ",decode_rate={rate}"))?;
        let before = if self.mode.is_some() { ',' } else { ':' };
        self.block.map_or(Ok(()), |len| write!(f, "{before}block={len}"))?;
        if self.images {
            write!(f, "{}images=true", if self.mode.is_some() || self.block.is_some() { ',' } else { ':' })?;
        }
        self.methods.as_deref().map_or(Ok(()), |methods| write!(f, ",methods={}", print_methods(methods, &self.codecs)))
    }
}

impl PolicySettings for Settings {
    fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        match self.mode {
            Some(mode) => Box::new(Priced::new(self, mode, setup)),
            None => {
                let images = self.images.then(Images::default);
                let block_len = self.block.unwrap_or_else(|| Storage::new(setup.cores).block_len);
                Box::new(Storage { block_len, images })
            }
        }
    }

    fn block_max(&self) -> usize {
        if self.images {
            return Storage::BLOCK_MAX;
        }
        self.block.unwrap_or_else(|| self.mode.map_or(Storage::BLOCK_MAX, Mode::block_len))
    }

    fn methods(&self) -> Vec<Method> {
        let mut methods = match self.mode {
            Some(mode) => self.candidates(mode),
            None => vec![Method::STORE, Storage::METHOD, Storage::FOR_NUMBERS],
        };
        if self.mode != Some(Mode::Fast) && self.methods.is_none() {
            let of_zstd = methods.iter().filter(|m| m.codec == CodecId::ZSTD).map(|m| Method::base64(m.level));
            methods.extend(of_zstd.collect::<Vec<_>>());
        }
        methods.extend(self.images.then_some(Method::LEPTON));
        methods
    }

    fn links(&self) -> bool {
        self.mode == Some(Mode::Archive)
    }

    /// Bounds what is lost of a slowly written stream if its writer dies. At 2 MiB/s a whole block
    /// gathers in this time.
    fn gather_ns(&self) -> u64 {
        1_000_000_000
    }
}

const USAGE: &str = "storage[:[mode=fast|balanced|archive[,encode_rate=RATE][,decode_rate=RATE],][block=BYTES][,images=true][,methods=METHOD+METHOD]]";

pub(super) const ENTRY: Registered = Registered {
    name: "storage",
    usage: USAGE,
    about: "for files: zstd in long blocks; with a mode, the method whose time and bytes cost least",
    examples: &[
        "storage",
        "storage:mode=fast",
        "storage:mode=balanced,encode_rate=200000000",
        "storage:mode=archive,block=1048576",
        "storage:block=1048576",
        "storage:block=1048576,images=true",
        "storage:mode=balanced,decode_rate=1000000000,methods=lz4+zstd:level=4",
    ],
    parse: |rest, codecs| Ok(Arc::new(Settings::parse(rest, codecs)?)),
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::cost::Prior;

    #[test]
    fn settings_print_as_they_were_parsed_and_others_are_refused() {
        for text in [
            "",
            ":mode=archive",
            ":mode=fast,encode_rate=5",
            ":mode=fast,encode_rate=5,block=65536",
            ":block=9",
            ":images=true",
            ":mode=fast,images=true,methods=lz4",
            ":mode=fast,decode_rate=5,methods=lz4+zstd:level=4",
        ] {
            assert_eq!(Settings::parse(text, Codecs::shipped()).unwrap().to_string(), format!("storage{text}"));
        }
        for text in [
            ":",
            ":mode=slow",
            ":encode_rate=5",
            ":mode=fast,encode_rate=0",
            ":level=3",
            ":block=0",
            ":mode=fast,block=0",
            "x",
            ":mode=fast,",
            ":mode=fast,methods=gif",
            ":images=1",
        ] {
            assert!(Settings::parse(text, Codecs::shipped()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_flow_behind_its_floor_has_no_credit_left() {
        let settings = Settings::parse(":mode=archive,encode_rate=100000000", Codecs::shipped()).unwrap();
        let mut policy = Priced::new(&settings, Mode::Archive, &PolicySetup::new(1, Prior::shipped()));
        let slow = Outcome::Encoded {
            seq: 0,
            method: Method::zstd(19),
            raw_len: 1 << 20,
            wire_len: 1 << 19,
            wall_ns: 500_000_000,
            cpu_ns: 500_000_000,
            taken_over: false,
        };
        policy.learn(&slow);
        assert!(policy.credit_s < 0.0);
    }
}
