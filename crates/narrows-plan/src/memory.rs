//! Memory of nodes that keep a part of it compressed: the text's section 2.2.1.

use crate::interval::Interval;
use crate::method::Method;

/// Memory of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// Gigabytes that programs should find.
    pub wanted_gb: f64,
    /// Gigabytes that stay uncompressed in any case, for fast access.
    pub kept_gb: f64,
}

/// What a node with `installed_gb` offers to programs: the text compresses what would hold the
/// wanted memory alone (wanted / ratio), as far as there is so much, and leaves the rest as it is.
pub fn capacity_gb(memory: Memory, installed_gb: f64, method: &Method) -> Interval {
    if method.is_none() {
        return installed_gb.into();
    }
    let offered = |ratio: f64| {
        let compressed = (memory.wanted_gb / ratio).min(installed_gb - memory.kept_gb).max(0.0);
        compressed * ratio + installed_gb - compressed
    };
    // It does not grow with the ratio throughout: with a higher one less is compressed.
    let ends = [method.ratio.low, method.ratio.high].map(offered);
    Interval::new(ends[0].min(ends[1]), offered(method.ratio.value), ends[0].max(ends[1]))
}

/// Gigabytes of the installed ones that have to be compressed to offer the wanted memory; `None` if
/// even all but the kept ones are not enough.
pub fn needed_gb(memory: Memory, installed_gb: f64, method: &Method) -> Option<Interval> {
    let missing = memory.wanted_gb - installed_gb;
    if missing <= 0.0 {
        return Some(0.0.into());
    }
    let needed = |ratio: f64| if ratio > 1.0 { missing / (ratio - 1.0) } else { f64::INFINITY };
    let needed =
        Interval { low: needed(method.ratio.high), value: needed(method.ratio.value), high: needed(method.ratio.low) };
    (needed.value <= installed_gb - memory.kept_gb).then_some(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Memory = Memory { wanted_gb: 128.0, kept_gb: 4.0 };

    #[test]
    fn the_rule_of_the_text() {
        let lz4 = Method::exact("lz4", 1796.0, 5178.0, 1.923);
        let offered = [128.0, 96.0, 64.0].map(|gb| (capacity_gb(WANTED, gb, &lz4).value * 10.0).round() / 10.0);
        assert_eq!(offered, [189.4, 157.4, 119.4]);
        assert_eq!(capacity_gb(WANTED, 96.0, &Method::none()).value, 96.0);
    }

    #[test]
    fn no_more_is_compressed_than_there_is_or_than_helps() {
        let lz4 = Method::exact("lz4", 1796.0, 5178.0, 1.923);
        assert!((needed_gb(WANTED, 96.0, &lz4).unwrap().value - 34.67).abs() < 0.01);
        assert_eq!(needed_gb(WANTED, 128.0, &lz4).unwrap().value, 0.0);
        assert_eq!(needed_gb(WANTED, 64.0, &lz4), None);
        assert_eq!(needed_gb(WANTED, 96.0, &Method::exact("x", 1.0, 1.0, 1.0)), None);
        assert_eq!(capacity_gb(WANTED, 2.0, &lz4).value, 2.0, "less than is kept anyway");
    }
}
