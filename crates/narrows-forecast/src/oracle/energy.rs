//! Power of encoding, if the CPU has energy counters (RAPL).

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use narrows::codec::{Contexts, Method};

const FOLDER: &str = "/sys/class/powercap";
/// Duration of a measurement. Counters advance every millisecond, so it is accurate to one per
/// cent.
const LISTEN: Duration = Duration::from_millis(100);
/// Number of idle measurements before and after each method; the method encodes for as long as
/// these take. The spread of the idle measurements shows the load of other programs.
const TIMES: usize = 3;
/// Block length, as programs with a fixed method use it.
const BLOCK: usize = 128 << 10;
/// Maximum number of CPU packages and other counters of a host.
const COUNTERS_MAX: usize = 64;

/// Watts above idle while one core encodes, by method; `None` if it cannot be distinguished from
/// other load.
#[derive(Debug, Clone, PartialEq)]
pub struct Watts(Vec<(Method, Option<f64>)>);

/// Whether there are counters that this process may read.
pub fn is_readable() -> bool {
    Rapl::open(Path::new(FOLDER)).is_some()
}

impl Watts {
    /// Measures every method on `bytes`, one after the other; `None` without counters.
    pub fn measure(methods: &[Method], bytes: &[u8]) -> Option<Self> {
        Self::measure_with(&Rapl::open(Path::new(FOLDER))?, methods, bytes)
    }

    fn measure_with(rapl: &Rapl, methods: &[Method], bytes: &[u8]) -> Option<Self> {
        let mut contexts = Contexts::default();
        let mut out = vec![0; BLOCK];
        let idle = || (0..TIMES).map(|_| rapl.watts_of(|| std::thread::sleep(LISTEN))).collect::<Option<Vec<_>>>();
        let mut before = idle()?;
        let mut blocks = bytes.chunks(BLOCK).cycle();
        let mut rows = Vec::new();
        for &method in methods.iter().filter(|m| **m != Method::CONSTANT) {
            let encoder = contexts.encoder(method.info());
            let busy = rapl.watts_of(|| {
                let begin = Instant::now();
                while begin.elapsed() < LISTEN * TIMES as u32 {
                    let Some(block) = blocks.next() else { return };
                    std::hint::black_box(encoder.encode(method.level, &[], block, &mut out[..block.len()]));
                }
            })?;
            let after = idle()?;
            rows.push((method, beyond_idle(busy, &before, &after)));
            before = after;
        }
        Some(Self(rows))
    }

    /// Joules for seconds of encoding by method; `None` if the watts of a method are unknown.
    /// `constant` copies one byte and counts as `store`.
    pub fn joules(&self, encode_s: &[(Method, f64)]) -> Option<f64> {
        let watts = |m: Method| self.0.iter().find(|w| w.0 == m).and_then(|w| w.1);
        let of = |m: Method| if m == Method::CONSTANT { watts(Method::STORE) } else { watts(m) };
        encode_s.iter().map(|(m, s)| of(*m).map(|w| w * s)).sum()
    }

    /// The text form for the cache.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (method, watts) in &self.0 {
            let watts = watts.map_or(NONE.into(), |w| w.to_string());
            let _ = write!(text, "{}{method}={watts}", if text.is_empty() { "" } else { "," });
        }
        text
    }

    /// Parses the text form; `-` is `None`.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        if text == NONE {
            return Ok(None);
        }
        let row = |word: &str| -> Result<(Method, Option<f64>)> {
            let (method, watts) = word.rsplit_once('=').context("no watts")?;
            let method = method.parse()?;
            if watts == NONE {
                return Ok((method, None));
            }
            let watts: f64 = watts.parse()?;
            anyhow::ensure!(watts.is_finite() && watts >= 0.0, "impossible watts");
            Ok((method, Some(watts)))
        };
        Ok(Some(Self(text.split(',').map(row).collect::<Result<_>>()?)))
    }
}

/// Text form of an unknown value.
pub const NONE: &str = "-";

/// The power above the mean of the idle host, if it exceeds the spread of the idle measurements.
fn beyond_idle(busy: f64, before: &[f64], after: &[f64]) -> Option<f64> {
    let idle = || before.iter().chain(after).copied();
    let (least, most) = (idle().fold(f64::INFINITY, f64::min), idle().fold(f64::NEG_INFINITY, f64::max));
    let beyond = busy - idle().sum::<f64>() / idle().count() as f64;
    (beyond > most - least).then_some(beyond)
}

/// The energy counters of all packages.
struct Rapl {
    /// Counter files, and the values at which the counters wrap around.
    packages: Vec<(PathBuf, u64)>,
}

impl Rapl {
    fn open(folder: &Path) -> Option<Self> {
        // intel-rapl:0 is a package, intel-rapl:0:1 a part of it; AMD uses the same names. There
        // may also be `psys`, the whole board including its packages, which is skipped.
        let counter = |n: usize| folder.join(format!("intel-rapl:{n}"));
        let is_package = |p: &PathBuf| fs::read_to_string(p.join("name")).is_ok_and(|name| name.starts_with("package"));
        let there = (0..COUNTERS_MAX).map(counter).filter(is_package);
        let packages: Vec<_> = there
            .map(|p| Some((p.join("energy_uj"), read_number(&p.join("max_energy_range_uj"))?)))
            .collect::<Option<_>>()?;
        let rapl = Self { packages };
        (!rapl.packages.is_empty() && rapl.read().is_some()).then_some(rapl)
    }

    fn read(&self) -> Option<Vec<u64>> {
        self.packages.iter().map(|p| read_number(&p.0)).collect()
    }

    fn watts_of(&self, work: impl FnOnce()) -> Option<f64> {
        let (before, begin) = (self.read()?, Instant::now());
        work();
        let (after, seconds) = (self.read()?, begin.elapsed().as_secs_f64());
        let used =
            |((b, a), p): ((&u64, &u64), &(PathBuf, u64))| if a >= b { a - b } else { p.1.saturating_sub(*b) + a };
        let micro_j: u64 = before.iter().zip(&after).zip(&self.packages).map(used).sum();
        Some(micro_j as f64 * 1e-6 / seconds)
    }
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_and_may_begin_again() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Rapl::open(folder.path()).is_none(), "a host without counters");
        let package = folder.path().join("intel-rapl:0");
        fs::create_dir(&package).unwrap();
        fs::write(package.join("name"), "package-0\n").unwrap();
        fs::write(package.join("max_energy_range_uj"), "1000000\n").unwrap();
        assert!(Rapl::open(folder.path()).is_none(), "one that may not be read");
        fs::write(package.join("energy_uj"), "900000\n").unwrap();
        // The whole board, of which the package is a part.
        let board = folder.path().join("intel-rapl:1");
        fs::create_dir(&board).unwrap();
        for (name, text) in [("name", "psys\n"), ("max_energy_range_uj", "1000000\n"), ("energy_uj", "1\n")] {
            fs::write(board.join(name), text).unwrap();
        }
        let rapl = Rapl::open(folder.path()).unwrap();
        assert_eq!(rapl.packages.len(), 1);
        let work = || {
            fs::write(package.join("energy_uj"), "400000\n").unwrap();
            std::thread::sleep(Duration::from_millis(10));
        };
        // Half a joule in 10 ms or a little more.
        let watts = rapl.watts_of(work).unwrap();
        assert!(watts > 0.0 && watts <= 50.0, "{watts}");
    }

    #[test]
    fn what_others_do_is_no_energy_of_a_method() {
        let calm = [20.0, 20.5, 20.2];
        let watts = beyond_idle(26.2, &calm, &[20.1, 20.3, 20.1]).unwrap();
        assert!((watts - 6.0).abs() < 1e-9, "{watts}");
        // Somebody else began or ended in between, took less meanwhile, or nothing stands out.
        assert_eq!(beyond_idle(26.0, &calm, &[20.0, 25.0, 27.0]), None);
        assert_eq!(beyond_idle(18.0, &calm, &calm), None);
        assert_eq!(beyond_idle(20.4, &calm, &calm), None);
    }

    #[test]
    fn joules_are_only_of_what_was_measured() {
        let watts = Watts::parse("store=1,zstd=4").unwrap().unwrap();
        assert_eq!(watts.joules(&[(Method::zstd(3), 0.5), (Method::CONSTANT, 2.0)]), Some(4.0));
        assert_eq!(watts.joules(&[(Method::zstd(1), 0.5)]), None);
        let part = Watts::parse("store=1,zstd=-").unwrap().unwrap();
        assert_eq!(part.joules(&[(Method::STORE, 1.0), (Method::zstd(3), 0.5)]), None, "a part would be too little");
        assert_eq!(part.to_text(), "store=1,zstd=-");
        assert_eq!(Watts::parse(&watts.to_text()).unwrap(), Some(watts));
        assert_eq!(Watts::parse("-").unwrap(), None);
        for bad in ["", "zstd", "zstd=x", "zstd=-1", "zstd=inf", "what=1"] {
            assert!(Watts::parse(bad).is_err(), "{bad}");
        }
    }
}
