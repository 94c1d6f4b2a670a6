//! What encoding takes of the CPU's power, where the CPU counts it (RAPL).

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use narrows::codec::{Contexts, Method};

/// Counters move every millisecond: a measurement of so long is right to a few per cent.
const MEASURE: Duration = Duration::from_millis(300);
/// As long is listened to the idle host.
const BLOCK: usize = 128 << 10;
/// Sockets of a host at most.
const PACKAGES_MAX: usize = 64;

/// Watts beyond idle while one core encodes, by method.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Watts(Vec<(Method, f64)>);

impl Watts {
    /// Measures every method on the first bytes, one after the other; none where there are no counters.
    pub(crate) fn measure(methods: &[Method], bytes: &[u8]) -> Option<Self> {
        Self::measure_with(&Rapl::open(Path::new("/sys/class/powercap"))?, methods, bytes)
    }

    fn measure_with(rapl: &Rapl, methods: &[Method], bytes: &[u8]) -> Option<Self> {
        let mut contexts = Contexts::default();
        let mut out = vec![0; BLOCK];
        let idle = rapl.watts_of(|| std::thread::sleep(MEASURE))?;
        let mut blocks = bytes.chunks(BLOCK).cycle();
        let mut rows = Vec::new();
        for &method in methods.iter().filter(|m| **m != Method::CONSTANT) {
            let encoder = contexts.encoder(method.info());
            let busy = rapl.watts_of(|| {
                let begin = Instant::now();
                while begin.elapsed() < MEASURE {
                    let Some(block) = blocks.next() else { return };
                    std::hint::black_box(encoder.encode(method.level, &[], block, &mut out[..block.len()]));
                }
            })?;
            rows.push((method, (busy - idle).max(0.0)));
        }
        Some(Self(rows))
    }

    /// Joules for seconds of encoding by method. `constant` copies one byte; it counts as `store`.
    pub(crate) fn joules(&self, encode_s: &[(Method, f64)]) -> Option<f64> {
        let watts = |m: Method| self.0.iter().find(|w| w.0 == m).map(|w| w.1);
        let of = |m: Method| if m == Method::CONSTANT { watts(Method::STORE) } else { watts(m) };
        encode_s.iter().map(|(m, s)| of(*m).map(|w| w * s)).sum()
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (method, watts) in &self.0 {
            let _ = write!(text, "{}{method}={watts}", if text.is_empty() { "" } else { "," });
        }
        text
    }

    /// `-` stands for none.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>> {
        if text == "-" {
            return Ok(None);
        }
        let row = |word: &str| -> Result<(Method, f64)> {
            let (method, watts) = word.rsplit_once('=').context("no watts")?;
            let watts: f64 = watts.parse()?;
            anyhow::ensure!(watts.is_finite() && watts >= 0.0, "impossible watts");
            Ok((method.parse()?, watts))
        };
        Ok(Some(Self(text.split(',').map(row).collect::<Result<_>>()?)))
    }
}

/// The energy counters of all packages.
struct Rapl {
    /// Counter, and where it begins again.
    packages: Vec<(PathBuf, u64)>,
}

impl Rapl {
    fn open(folder: &Path) -> Option<Self> {
        // intel-rapl:0 is a package, intel-rapl:0:1 a part of it; AMD's have the same names.
        let package = |n: usize| folder.join(format!("intel-rapl:{n}"));
        let there = (0..PACKAGES_MAX).map(package).take_while(|p| p.exists());
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
        fs::write(package.join("max_energy_range_uj"), "1000000\n").unwrap();
        assert!(Rapl::open(folder.path()).is_none(), "one that may not be read");
        fs::write(package.join("energy_uj"), "900000\n").unwrap();
        let rapl = Rapl::open(folder.path()).unwrap();
        let work = || {
            fs::write(package.join("energy_uj"), "400000\n").unwrap();
            std::thread::sleep(Duration::from_millis(10));
        };
        // Half a joule in 10 ms or a little more.
        let watts = rapl.watts_of(work).unwrap();
        assert!(watts > 0.0 && watts <= 50.0, "{watts}");
    }

    #[test]
    fn joules_are_only_of_what_was_measured() {
        let watts = Watts::parse("store=1,zstd=4").unwrap().unwrap();
        assert_eq!(watts.joules(&[(Method::zstd(3), 0.5), (Method::CONSTANT, 2.0)]), Some(4.0));
        assert_eq!(watts.joules(&[(Method::zstd(1), 0.5)]), None);
        assert_eq!(Watts::parse(&watts.to_text()).unwrap(), Some(watts));
        assert_eq!(Watts::parse("-").unwrap(), None);
        for bad in ["", "zstd", "zstd=x", "zstd=-1", "zstd=inf", "what=1"] {
            assert!(Watts::parse(bad).is_err(), "{bad}");
        }
    }
}
