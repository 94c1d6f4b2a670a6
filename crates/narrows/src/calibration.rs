//! Speed of this host for each method, relative to the machine on which the shipped prior was made.
//!
//! It is measured once in under two seconds on a generated sample, stored as text by the caller,
//! and refreshed by what flows learn. It is never trusted blindly: shifts are clamped, and every
//! flow corrects them by its own observations.

use std::fmt::Write;

use crate::codec::{Codecs, Contexts, Method};
use crate::error::{Error, Result};
use crate::monitor::cost::Prior;

const MAGIC: &str = "narrows-calibration 1";

/// Largest shift that is accepted: a host eight times as fast or as slow as the reference.
const SHIFT_MAX: f32 = 2.08;
/// Weight of a flow's result in the stored shift.
const BLEND: f32 = 0.3;
/// Length of the sample; slow methods take a part of it.
const SAMPLE_LEN: usize = 256 << 10;
const SLOW_LEN: usize = 32 << 10;
/// Nominal speed from which a method counts as slow: 10 MB/s.
const SLOW_NS_PER_BYTE: f32 = 100.0;
/// Passes of a fast method, of which the quickest counts.
const PASSES: usize = 4;

/// Log shifts of (encode, decode) time per method.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    rows: Vec<(Method, f32, f32)>,
}

impl Calibration {
    /// Measures every method of the prior. `clock` returns nanoseconds, ideally the thread's CPU
    /// time. If `stop` returns true the measurement ends early with `None`.
    pub fn measure(prior: &Prior, clock: &mut dyn FnMut() -> u64, stop: &dyn Fn() -> bool) -> Option<Self> {
        let mut rows = Vec::new();
        for (method, encode_ns, decode_ns) in time_methods(Codecs::shipped(), prior.methods(), clock, stop)? {
            let Some((reference_encode, reference_decode)) = prior.reference(method) else { continue };
            let log = |ns: f32| (ns.max(1e-3) * 1e-9).ln();
            rows.push((method, clamp(log(encode_ns) - reference_encode), clamp(log(decode_ns) - reference_decode)));
        }
        Some(Self { rows })
    }

    /// Log shift of a method's encode and decode time; 0 for one that was not measured.
    pub fn shift(&self, method: Method) -> (f32, f32) {
        self.rows.iter().find(|r| r.0 == method).map_or((0.0, 0.0), |r| (r.1, r.2))
    }

    /// The measured methods with their log shifts of encode and decode time.
    pub fn rows(&self) -> &[(Method, f32, f32)] {
        &self.rows
    }

    /// Merges what a flow observed: log shifts of encode times beyond the stored ones.
    pub fn merge_learned(&mut self, learned: &[(Method, f32)]) {
        for &(method, beyond) in learned.iter().filter(|l| l.1.is_finite()) {
            if let Some(row) = self.rows.iter_mut().find(|r| r.0 == method) {
                row.1 = clamp(row.1 + BLEND * beyond);
            }
        }
    }

    /// The calibration as text, for [`Calibration::parse`].
    pub fn to_text(&self) -> String {
        let mut text = format!("{MAGIC}\n");
        for (method, encode, decode) in &self.rows {
            let _ = writeln!(text, "{method} {encode:.4} {decode:.4}");
        }
        text.push_str("end\n");
        text
    }

    /// Parses the output of [`Calibration::to_text`].
    ///
    /// # Errors
    /// `Misuse` if the text is incomplete or damaged; the caller then goes on without a
    /// calibration.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || Error::misuse("the calibration file is damaged; `narrows calibrate` makes a new one");
        let body = text.strip_prefix(MAGIC).and_then(|t| t.strip_suffix("end\n")).ok_or_else(bad)?;
        let mut rows = Vec::new();
        for line in body.lines().filter(|l| !l.is_empty()).take(64) {
            let mut words = line.split(' ');
            let method: Method = words.next().ok_or_else(bad)?.parse()?;
            let mut shift = || words.next()?.parse().ok().filter(|x: &f32| x.is_finite()).map(clamp);
            rows.push((method, shift().ok_or_else(bad)?, shift().ok_or_else(bad)?));
        }
        Ok(Self { rows })
    }
}

/// Nanoseconds per byte to (encode, decode) the calibration sample with each method of these codecs. `None`
/// if stopped.
pub fn time_methods(
    codecs: &Codecs,
    methods: &[Method],
    clock: &mut dyn FnMut() -> u64,
    stop: &dyn Fn() -> bool,
) -> Option<Vec<(Method, f32, f32)>> {
    let sample = sample();
    let (mut wire, mut back) = (vec![0; SAMPLE_LEN], vec![0; SAMPLE_LEN]);
    let mut contexts = Contexts::default();
    let mut rows = Vec::new();
    for &method in methods {
        let codec = codecs.of(method);
        let slow = codecs.nominal_ns_per_byte(method).0 >= SLOW_NS_PER_BYTE;
        let raw = if slow { &sample[..SLOW_LEN] } else { &sample[..] };
        let (mut encode_ns, mut decode_ns) = (u64::MAX, u64::MAX);
        for _ in 0..if slow { 1 } else { PASSES } {
            if stop() {
                return None;
            }
            let begin = clock();
            let encoded = contexts.encoder(codec).encode(method.level, &[], raw, &mut wire);
            let middle = clock();
            encode_ns = encode_ns.min(middle.saturating_sub(begin));
            if let Some(len) = encoded {
                let _ = contexts.decoder(codec).decode(&[], &wire[..len], &mut back[..raw.len()]);
                decode_ns = decode_ns.min(clock().saturating_sub(middle));
            }
        }
        let per_byte = |ns: u64| if ns == u64::MAX { 1.0 } else { ns as f32 / raw.len() as f32 };
        rows.push((method, per_byte(encode_ns), per_byte(decode_ns)));
    }
    Some(rows)
}

/// A mix of text-like and binary-like data, the same on every host.
fn sample() -> Vec<u8> {
    const WORDS: &[&str] =
        &["link", "block", "price", "window", "flow", "ratio", "queue", "rate", "of", "the", "and", "is"];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) % n
    };
    let mut out = Vec::with_capacity(SAMPLE_LEN + 64);
    while out.len() < SAMPLE_LEN {
        if draw(16) == 0 {
            let base = draw(1 << 20) as u32;
            for i in 0..8 {
                out.extend_from_slice(&(base + i * draw(9) as u32).to_le_bytes());
            }
        } else {
            out.extend_from_slice(WORDS[draw(WORDS.len() as u64) as usize].as_bytes());
            out.push(if draw(9) == 0 { b'\n' } else { b' ' });
            if draw(7) == 0 {
                let _ = write!(StringSink(&mut out), "{}", draw(100_000));
            }
        }
    }
    out.truncate(SAMPLE_LEN);
    out
}

struct StringSink<'a>(&'a mut Vec<u8>);

impl Write for StringSink<'_> {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        self.0.extend_from_slice(s.as_bytes());
        Ok(())
    }
}

fn clamp(shift: f32) -> f32 {
    if shift.is_finite() { shift.clamp(-SHIFT_MAX, SHIFT_MAX) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_reads_back_and_damage_is_an_error() {
        let rows = vec![(Method::zstd(1), 0.25, -0.5), (Method::lz4_accel(16), 0.0, 1.0)];
        let calibration = Calibration { rows };
        let text = calibration.to_text();
        assert_eq!(Calibration::parse(&text).unwrap(), calibration);
        for end in 0..text.len() {
            assert!(Calibration::parse(&text[..end]).is_err(), "{end}");
        }
        assert!(Calibration::parse("rubbish").is_err());
        let far = format!("{MAGIC}\nlz4 99 -99\nend\n");
        assert_eq!(Calibration::parse(&far).unwrap().shift(Method::lz4_accel(1)), (SHIFT_MAX, -SHIFT_MAX));
        assert!(Calibration::parse(&format!("{MAGIC}\nlz4 nan 0\nend\n")).is_err());
    }

    #[test]
    fn measuring_stops_when_told_and_a_clock_that_stands_is_harmless() {
        assert!(Calibration::measure(Prior::shipped(), &mut || 0, &|| true).is_none());
        let calibration = Calibration::measure(Prior::shipped(), &mut || 0, &|| false).unwrap();
        assert!(calibration.rows().iter().all(|r| r.1.is_finite() && r.2.is_finite()));
    }
}
