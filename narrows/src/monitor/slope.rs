//! Microseconds per wire byte, from how much later longer messages are answered.
//!
//! Where messages go to and fro, the link is never busy, so no rate can be measured; but a longer message arrives later. The
//! shortest of the last times of each size class says what the link takes without what disturbs.

/// Classes of size by powers of two: 32 bytes and less, ..., 64 KiB.
const CLASSES: usize = 12;
const CLASS_FIRST: u32 = 5;
/// Times remembered of a class: the shortest of six is within a few per cent of the undisturbed one.
const SAMPLES: usize = 6;
/// Fewer say nothing of how disturbed they were.
const SAMPLES_MIN: usize = 2;
/// What was seen so many answers ago may have been another link.
const STALE: u32 = 4096;
/// A class whose shortest time changed by this factor tells of another link, or another load: what is known of other
/// classes was another's.
const CHANGE: f32 = 1.5;
/// Sizes closer than this differ in time by less than what disturbs.
const SPREAD_MIN: f32 = 64.0;

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    wire_len: u32,
    span_us: f32,
    stamp: u32,
}

/// The estimator.
#[derive(Debug, Clone, Default)]
pub struct Slope {
    samples: [[Sample; SAMPLES]; CLASSES],
    count: [u8; CLASSES],
    next: [u8; CLASSES],
    /// The shortest of each class, as of its last time.
    shortest: [Sample; CLASSES],
    /// The shortest time of the class when it was last looked at.
    level_us: [f32; CLASSES],
    clock: u32,
}

impl Slope {
    /// A message that took `wire_len` bytes was answered after `span_us`. Says whether the link seems to have changed.
    pub fn observe(&mut self, wire_len: usize, span_us: f32) -> bool {
        if !span_us.is_finite() || span_us <= 0.0 {
            return false;
        }
        self.clock += 1;
        let class = class(wire_len);
        let at = usize::from(self.next[class]);
        let wire_len = wire_len.min(u32::MAX as usize) as u32;
        self.samples[class][at] = Sample { wire_len, span_us, stamp: self.clock };
        self.next[class] = ((at + 1) % SAMPLES) as u8;
        self.count[class] = (self.count[class] + 1).min(SAMPLES as u8);
        let found = self.shortest_of(class).unwrap_or(self.samples[class][at]);
        self.shortest[class] = found;
        let shortest = found.span_us;
        let level = self.level_us[class];
        let full = usize::from(self.count[class]) == SAMPLES;
        if level == 0.0 || !full {
            self.level_us[class] = shortest;
            return false;
        }
        let changed = shortest > CHANGE * level || shortest * CHANGE < level;
        if changed {
            self.level_us[class] = shortest;
            for other in (0..CLASSES).filter(|c| *c != class) {
                (self.count[other], self.next[other], self.level_us[other]) = (0, 0, 0.0);
            }
        }
        changed
    }

    fn shortest_of(&self, class: usize) -> Option<Sample> {
        let fresh = self.samples[class][..usize::from(self.count[class])].iter();
        let fresh = fresh.filter(|s| self.clock - s.stamp <= STALE);
        fresh.copied().min_by(|a, b| a.span_us.total_cmp(&b.span_us))
    }

    /// Whether anything was ever answered.
    pub fn heard(&self) -> bool {
        self.clock > 0
    }

    /// Microseconds per wire byte; `None` while sizes did not differ enough to tell. Never negative.
    pub fn us_per_byte(&self) -> Option<f32> {
        let (mut w, mut x, mut y, mut xx, mut xy) = (0.0f64, 0.0, 0.0, 0.0, 0.0);
        let (mut least, mut most) = (f32::MAX, 0.0f32);
        for class in 0..CLASSES {
            if usize::from(self.count[class]) < SAMPLES_MIN {
                continue;
            }
            let kept = self.shortest[class];
            let fresh = self.clock - kept.stamp <= STALE;
            let Some(s) = (if fresh { Some(kept) } else { self.shortest_of(class) }) else { continue };
            let (weight, len, span) = (f64::from(self.count[class]), s.wire_len as f32, f64::from(s.span_us));
            (least, most) = (least.min(len), most.max(len));
            let len = f64::from(len);
            w += weight;
            x += weight * len;
            y += weight * span;
            xx += weight * len * len;
            xy += weight * len * span;
        }
        if most - least < SPREAD_MIN {
            return None;
        }
        let spread = w * xx - x * x;
        (spread > 0.0).then(|| (((w * xy - x * y) / spread) as f32).max(0.0))
    }
}

fn class(wire_len: usize) -> usize {
    let log = (wire_len as u64).max(1).ilog2();
    (log.saturating_sub(CLASS_FIRST) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times with up to half as much again of what disturbs, the same each time.
    fn noise(i: u32) -> f32 {
        1.0 + 0.5 * (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 255.0
    }

    fn feed(slope: &mut Slope, us_per_byte: f32, sizes: &[usize], rounds: u32) {
        for i in 0..rounds {
            for (k, size) in sizes.iter().enumerate() {
                slope.observe(*size, 40.0 * noise(i * 7 + k as u32) + us_per_byte * *size as f32);
            }
        }
    }

    #[test]
    fn the_rate_of_a_link_that_is_never_busy_shows() {
        for mbit in [10.0f32, 100.0] {
            let mut slope = Slope::default();
            feed(&mut slope, 8.0 / mbit, &[90, 200, 500, 1000, 1400], 30);
            let u = slope.us_per_byte().unwrap();
            assert!((u * mbit / 8.0 - 1.0).abs() < 0.25, "{u} us per byte at {mbit} Mbit/s");
        }
        let mut slope = Slope::default();
        feed(&mut slope, 0.0, &[90, 200, 500, 1000], 30);
        assert!(slope.us_per_byte().unwrap() < 0.01);
    }

    #[test]
    fn without_sizes_there_is_no_slope() {
        let mut slope = Slope::default();
        assert!(!slope.heard());
        assert_eq!(slope.us_per_byte(), None);
        feed(&mut slope, 0.8, &[500, 510], 50);
        assert_eq!(slope.us_per_byte(), None);
        assert!(slope.heard());
    }

    #[test]
    fn another_link_is_noticed_and_old_times_of_other_sizes_forgotten() {
        let mut slope = Slope::default();
        feed(&mut slope, 0.8, &[100, 1000], 10);
        assert!(slope.us_per_byte().unwrap() > 0.7);
        let mut changed = false;
        for i in 0..100 {
            changed |= slope.observe(100, 10.0 * noise(i));
        }
        assert!(changed);
        assert_eq!(slope.us_per_byte(), None, "nothing is known of long ones");
    }

    #[test]
    fn absurd_times_leave_a_finite_slope() {
        let mut slope = Slope::default();
        for (len, span) in [(0, f32::NAN), (usize::MAX, f32::INFINITY), (0, 1.0), (usize::MAX, 1e30), (7, -1.0)] {
            for _ in 0..4 {
                slope.observe(len, span);
            }
        }
        assert!(slope.us_per_byte().is_none_or(f32::is_finite));
    }
}
