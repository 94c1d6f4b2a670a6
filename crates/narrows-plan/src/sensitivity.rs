//! Which inputs change an answer, and at what value.

use std::cell::RefCell;

use crate::method::Method;
use crate::network::goodput;
use crate::site::{FIELDS, Site};
use crate::storage::{Storage, System};

/// Inputs are varied by at most this factor: what changes only beyond it does not matter.
const FACTOR_MAX: f64 = 1000.0;
/// Step of the search, small enough that an answer seldom changes and changes back within one.
const STEP: f64 = 1.1;
/// Halvings of the step in which an answer changes; the value is then exact to three digits.
const HALVINGS: usize = 12;

/// Losses that differ by less, relative to their size, are alike.
const ALIKE: f64 = 1e-9;
/// A method that wins fewer of the resamples is no rival.
const SHARE_MIN: f64 = 0.025;

/// A method that may be the answer too.
#[derive(Debug, Clone, PartialEq)]
pub struct Rival {
    /// Its name.
    pub name: String,
    /// Whether it is as good as the answer.
    pub is_alike: bool,
    /// Share of the resamples in which it is the answer; `None` without resamples.
    pub share: Option<f64>,
}

impl Rival {
    /// Its name and why it is a rival.
    pub fn words(&self) -> String {
        match self.share {
            _ if self.is_alike => format!("{} (alike)", self.name),
            Some(share) => format!("{} ({:.0} %)", self.name, 100.0 * share),
            None => self.name.clone(),
        }
    }
}

/// A question that has a method as its answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    /// The fastest on a link, by its position.
    Link(usize),
    /// The cheapest storage that is fast enough, with as few units as possible.
    StorageS1,
    /// The same, with the disks spread over the units there are now.
    StorageS2,
    /// The cheapest archive.
    Archive,
}

/// An input that changes an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Flip {
    /// The input: `archive.reads_per_month`, `zstd: ratio`.
    pub input: String,
    /// Its value.
    pub now: f64,
    /// The nearest value with another answer.
    pub at: f64,
    /// That answer.
    pub then: String,
}

impl Flip {
    /// By what factor the input changes, as its logarithm without sign.
    pub fn distance(&self) -> f64 {
        (self.at / self.now).ln().abs()
    }
}

impl Question {
    /// All questions about a site.
    pub fn all(site: &Site) -> Vec<Self> {
        let links = (0..site.links.len()).map(Self::Link);
        links.chain([Self::StorageS1, Self::StorageS2, Self::Archive]).collect()
    }

    /// The question in words.
    pub fn words(&self, site: &Site) -> String {
        match self {
            Self::Link(i) => format!("fastest on {}", site.links[*i].name),
            Self::StorageS1 => "cheapest storage, S1".into(),
            Self::StorageS2 => "cheapest storage, S2".into(),
            Self::Archive => "cheapest archive".into(),
        }
    }

    /// The answer: the first of the best methods.
    pub fn answer<'a>(&self, site: &Site, methods: &'a [Method]) -> &'a Method {
        let loss = |m: &Method| self.loss(site, m);
        methods.iter().min_by(|a, b| loss(a).total_cmp(&loss(b))).expect("there is always no compression")
    }

    /// What is to be as small as possible.
    fn loss(&self, site: &Site, method: &Method) -> f64 {
        match self {
            Self::Link(i) => -goodput(site.links[*i].mb_per_s(), method, site.cores()).0.value,
            Self::StorageS1 => storage_loss(&site.storage, method, Storage::fewest_units),
            Self::StorageS2 => storage_loss(&site.storage, method, Storage::fewest_disks),
            Self::Archive => site.archive().bill(method).total_price.value,
        }
    }

    /// The other methods that may be the answer: those that are as good, and those that win some of
    /// the resamples of the data; without resamples, those whose intervals meet that of the answer.
    pub fn rivals(&self, site: &Site, methods: &[Method]) -> Vec<Rival> {
        let best = self.answer(site, methods);
        let is_alike = |m: &Method| self.loss(site, m) <= self.loss(site, best) + ALIKE * self.loss(site, best).abs();
        let winners: Vec<String> =
            site.drawn_choices().map(|choices| self.answer(site, &choices).name.clone()).collect();
        let interval = |m: &Method| match self {
            Self::Link(i) => goodput(site.links[*i].mb_per_s(), m, site.cores()).0,
            Self::StorageS1 => site.storage.fewest_units(m).price,
            Self::StorageS2 => site.storage.fewest_disks(m).price,
            Self::Archive => site.archive().bill(m).total_price,
        };
        let rival = |m: &Method| {
            let won = winners.iter().filter(|w| **w == m.name).count() as f64 / winners.len().max(1) as f64;
            let share = (!winners.is_empty()).then_some(won);
            let meets = winners.is_empty() && self.loss(site, m).is_finite() && interval(m).meets(interval(best));
            (is_alike(m) || won >= SHARE_MIN || meets).then(|| Rival {
                name: m.name.clone(),
                is_alike: is_alike(m),
                share,
            })
        };
        methods.iter().filter(|m| m.name != best.name).filter_map(rival).collect()
    }

    /// The inputs that change the answer, nearest first.
    pub fn flips(&self, site: &Site) -> Vec<Flip> {
        let methods = site.choices();
        // Thousands of copies are made of it; the methods are passed beside it.
        let site = &Site { methods: Vec::new(), draws: Vec::new(), ..site.clone() };
        let now = self.answer(site, &methods).name.clone();
        let mut flips = Vec::new();
        for field in FIELDS {
            let value = (field.get)(site);
            let with = |v: f64| {
                let mut other = site.clone();
                *(field.slot)(&mut other) = v;
                self.answer(&other, &methods).name.clone()
            };
            flips.extend(nearest(field.name(), value, field.range, &now, with));
        }
        if let Self::Link(i) = self {
            let with = |v: f64| {
                let mut other = site.clone();
                other.links[*i].rate_mbit_per_s = v;
                self.answer(&other, &methods).name.clone()
            };
            flips.extend(nearest("rate_mbit_per_s".into(), site.links[*i].rate_mbit_per_s, (1e-6, 1e9), &now, with));
        }
        // One copy, of which a single figure at a time differs.
        let other = RefCell::new(methods.clone());
        for (m, method) in methods.iter().enumerate().skip(1) {
            for (figure, range, slot) in FIGURES {
                let value = slot(&mut other.borrow_mut()[m]).value;
                let with = |v: f64| {
                    let mut other = other.borrow_mut();
                    *slot(&mut other[m]) = v.into();
                    self.answer(site, &other).name.clone()
                };
                flips.extend(nearest(format!("{}: {figure}", method.name), value, range, &now, with));
                other.borrow_mut()[m] = method.clone();
            }
        }
        flips.sort_by(|a, b| a.distance().total_cmp(&b.distance()));
        flips
    }
}

type Slot = fn(&mut Method) -> &mut crate::interval::Interval;
/// The figures of a method, with their limits.
const FIGURES: [(&str, (f64, f64), Slot); 3] = [
    ("encode_mb_per_s", (1e-6, 1e7), |m| &mut m.encode_mb_per_s),
    ("decode_mb_per_s", (1e-6, 1e7), |m| &mut m.decode_mb_per_s),
    ("ratio", (1.0, 1e6), |m| &mut m.ratio),
];

/// Price of a system; without limit if it is too slow.
fn storage_loss(storage: &Storage, method: &Method, build: fn(&Storage, &Method) -> System) -> f64 {
    // S1 has fewer units with every ratio, and so a lower rate by design; what compression itself
    // costs shows against the same units without it.
    let system = build(storage, method);
    let units = system.units;
    let plain = System { rate_gb_per_s: units * storage.unit_rate_gb_per_s, ..system };
    if storage.is_fast_enough(&system, &plain) { system.price.value } else { f64::INFINITY }
}

/// The nearest value at which the answer is another one.
fn nearest(
    input: String,
    now: f64,
    (least, most): (f64, f64),
    answer: &str,
    with: impl Fn(f64) -> String,
) -> Option<Flip> {
    // From 0 there is no factor.
    if now <= 0.0 {
        return None;
    }
    let steps = (FACTOR_MAX.ln() / STEP.ln()).ceil() as i32;
    let (mut down, mut up) = (now, now);
    for i in 1..=steps {
        for (last, sign) in [(&mut down, -1), (&mut up, 1)] {
            let value = (now * STEP.powi(sign * i)).clamp(least, most);
            if value == *last {
                continue;
            }
            if with(value) != answer {
                let at = between(*last, value, answer, &with);
                return Some(Flip { input, now, at, then: with(at) });
            }
            *last = value;
        }
    }
    None
}

/// The value nearest to `near` with another answer, between it and `far`.
fn between(near: f64, far: f64, answer: &str, with: &impl Fn(f64) -> String) -> f64 {
    let (mut near, mut far) = (near, far);
    for _ in 0..HALVINGS {
        let middle = (near * far).sqrt();
        if with(middle) == answer { near = middle } else { far = middle }
    }
    far
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Link;
    use crate::seed::climate_2016;

    #[test]
    fn a_link_changes_its_answer_where_two_methods_are_alike() {
        let site = Site {
            methods: vec![Method::exact("fast", 100.0, 1e4, 2.0), Method::exact("slow", 10.0, 1e4, 4.0)],
            links: vec![Link { name: "a".into(), rate_mbit_per_s: 8.0, price_per_port: 0.0, price_per_tb: 0.0 }],
            ..Site::default()
        };
        let question = Question::Link(0);
        // 4 cores: slow gives min(4 p, 40), fast min(2 p, 400).
        assert_eq!(question.answer(&site, &site.choices()).name, "slow");
        let flips = question.flips(&site);
        let at = |input: &str| flips.iter().find(|f| f.input == input).map(|f| (f.at, f.then.clone()));
        let (rate, then) = at("rate_mbit_per_s").unwrap();
        assert!((rate / 160.0 - 1.0).abs() < 0.001 && then == "fast", "{rate}");
        let (cores, _) = at("node.cores_free").unwrap();
        assert!((cores / 0.2 - 1.0).abs() < 0.001, "{cores}");
        assert!((at("slow: ratio").unwrap().0 / 2.0 - 1.0).abs() < 0.001);
        assert!(at("archive.months_kept").is_none(), "no matter for a link");
        assert!(flips.windows(2).all(|w| w[0].distance() <= w[1].distance()));
    }

    #[test]
    fn the_answers_of_the_text() {
        let site = climate_2016();
        let methods = site.choices();
        let name = |q: Question| q.answer(&site, &methods).name.clone();
        assert_eq!(name(Question::StorageS1), "zstd");
        assert_eq!(name(Question::StorageS2), "zstd");
        assert_eq!(name(Question::Link(1)), "lz4", "24 cores of it are fast enough, those of zstd are not");
        assert_eq!(name(Question::Archive), "xz");
    }

    #[test]
    fn rivals_are_those_whose_intervals_meet() {
        let mut site = climate_2016();
        let q = Question::StorageS2;
        assert!(
            q.rivals(&site, &site.choices()).is_empty(),
            "what is known exactly has no rivals but those that are alike"
        );
        for m in &mut site.methods {
            m.ratio = crate::interval::Interval::new(m.ratio.value * 0.8, m.ratio.value, m.ratio.value * 1.2);
        }
        assert!(q.rivals(&site, &site.choices()).iter().any(|m| m.name == "lz4"));
    }

    #[test]
    fn with_resamples_a_rival_is_who_wins_some_of_them() {
        let fixed = |fast: f64| vec![Method::exact("fast", 100.0, 1e4, fast), Method::exact("slow", 10.0, 1e4, 2.5)];
        let mut site = Site { methods: fixed(2.0), ..Site::default() };
        site.draws = (0..100).map(|i| fixed(if i < 10 { 3.0 } else { 2.0 })).collect();
        let rivals = Question::Archive.rivals(&site, &site.choices());
        assert_eq!(rivals.len(), 1);
        assert_eq!((rivals[0].name.as_str(), rivals[0].words().as_str()), ("fast", "fast (10 %)"));
        site.draws.truncate(0);
        assert!(Question::Archive.rivals(&site, &site.choices()).is_empty());
    }
}
