//! Speeds of some methods on this host, for comparing two hosts.

use std::time::Instant;

use narrows::calibration::time_methods;
use narrows::codec::{Codecs, Method};
use narrows::stream::thread_cpu_ns;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// Passes; of each figure the least counts, since the first one wakes the core.
const PASSES: usize = 3;
/// Most methods that are taken from another host.
const METHODS_MAX: usize = 32;
/// Least share of a core that is believed.
const SHARE_MIN: f64 = 0.02;
/// Slowest speed that is believed, in nanoseconds per byte: 1 KB/s.
const NS_MAX: f64 = 1e6;
/// Least time for a byte: a terabyte a second.
const NS_MIN: f64 = 1e-3;

/// Nanoseconds per byte of one method, on one core.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// The method.
    pub method: Method,
    /// Nanoseconds to encode a byte.
    pub encode_ns: f64,
    /// Nanoseconds to decode a byte.
    pub decode_ns: f64,
}

/// What one host gives.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Speeds {
    /// By method.
    pub each: Vec<Speed>,
    /// CPU time of a thread over the time that passed, while it had work: the rest is for others. 0 to 1.
    pub share: f64,
}

/// Measures on this thread; takes about 0.1 s if it is alone. `None` if `stop` returned true.
pub fn measured(stop: &dyn Fn() -> bool) -> Option<Speeds> {
    let (begun, cpu_begun) = (Instant::now(), thread_cpu_ns());
    let methods = [Method::lz4_accel(1), Method::zstd(1), Method::zstd(3), Method::zstd(9)];
    let mut best: Vec<Speed> = Vec::new();
    for _ in 0..PASSES {
        for (method, encode, decode) in time_methods(Codecs::shipped(), &methods, &mut thread_cpu_ns, stop)? {
            let (encode_ns, decode_ns) = (f64::from(encode), f64::from(decode));
            match best.iter_mut().find(|speed| speed.method == method) {
                Some(speed) => {
                    (speed.encode_ns, speed.decode_ns) =
                        (speed.encode_ns.min(encode_ns), speed.decode_ns.min(decode_ns));
                }
                None => best.push(Speed { method, encode_ns, decode_ns }),
            }
        }
    }
    let share = (thread_cpu_ns() - cpu_begun) as f64 / (begun.elapsed().as_nanos() as f64).max(1.0);
    Some(Speeds { each: best, share: share.clamp(SHARE_MIN, 1.0) })
}

pub(super) fn to_json(speeds: &Speeds) -> Value {
    let each = speeds.each.iter().map(|s| (s.method.to_string(), json!([s.encode_ns, s.decode_ns])));
    json!({ "ns_per_byte": each.collect::<Map<_, _>>(), "share": speeds.share })
}

/// What another host says. Methods that this program does not know are left out.
pub(super) fn from_json(words: &Value) -> Result<Speeds> {
    let wrong = || Error::Protocol("the other end's speeds make no sense".into());
    let rows = words["ns_per_byte"].as_object().filter(|rows| rows.len() <= METHODS_MAX).ok_or_else(wrong)?;
    let share = words["share"].as_f64().unwrap_or(1.0).clamp(SHARE_MIN, 1.0);
    let mut each = Vec::new();
    for (name, row) in rows {
        let Ok(method) = name.parse::<Method>() else { continue };
        let ns = |i: usize| row[i].as_f64().filter(|ns| (NS_MIN..=NS_MAX).contains(ns));
        each.push(Speed { method, encode_ns: ns(0).ok_or_else(wrong)?, decode_ns: ns(1).ok_or_else(wrong)? });
    }
    Ok(Speeds { each, share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_come_back_and_nonsense_is_refused() {
        let speeds = measured(&|| false).unwrap();
        let each = &speeds.each;
        assert!(each.len() == 4 && each.iter().all(|s| s.encode_ns > 0.0 && s.decode_ns > 0.0), "{speeds:?}");
        let mut back = from_json(&to_json(&speeds)).unwrap();
        back.each.sort_by_key(|s| each.iter().position(|o| o.method == s.method));
        assert_eq!(back, speeds);
        assert!(measured(&|| true).is_none());
        for bad in [
            json!({}),
            json!({ "ns_per_byte": { "lz4": [1.0] } }),
            json!({ "ns_per_byte": { "lz4": [-1.0, 1.0] } }),
            json!({ "ns_per_byte": { "lz4": [1e300, 1.0] } }),
            json!({ "ns_per_byte": (0..40).map(|i| (i.to_string(), json!([1, 1]))).collect::<Map<_, _>>() }),
        ] {
            assert!(from_json(&bad).is_err(), "{bad}");
        }
        assert_eq!(from_json(&json!({ "ns_per_byte": { "codec of 2050": [1.0, 1.0] } })).unwrap().each, []);
    }
}
