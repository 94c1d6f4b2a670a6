//! Estimates microseconds per wire byte from how much later longer messages are answered.
//!
//! With request and reply the link is never busy, so no rate can be measured; but a longer message
//! arrives later. The estimate of each size class is the 0.3 quantile of its times, which excludes
//! most disturbance; the shortest of a few times would be found faster, but depends on luck.
//!
//! Longer messages also cost the hosts more time, and for messages that are all encoded one way
//! wire bytes and raw bytes are proportional. So both are fitted:
//! `span = base + u * wire_len + v * raw_len`, where v is held near the usual cost of hosts.

/// Size classes by powers of two: 32 bytes and less, ..., 64 KiB.
const CLASSES: usize = 12;
const CLASS_FIRST: u32 = 5;
/// Fewer times in a class do not show how disturbed they were.
const SAMPLES_MIN: u16 = 2;
/// Of this many first times the shortest counts; later ones move the estimate.
const SAMPLES_FIRST: u16 = 4;
/// Later times weigh as if there had been at most this many: an estimate follows a slowly changing
/// link within some messages.
const SAMPLES_MAX: u16 = 32;
/// The quantile that is estimated: the share of times below the estimate.
const QUANTILE: f32 = 0.3;
/// The deviation of a single time is limited to this multiple of the usual one.
const SPREAD_MAX: f32 = 4.0;
/// Smallest spread of a class, as a share of its time.
const SPREAD_MIN: f32 = 0.01;
/// Classes not updated for this many answers are ignored: they may belong to another link.
const STALE: u32 = 4096;
/// This many times in a row that differ from the estimate by this factor indicate another link or
/// load: the other classes are then outdated.
const CHANGE: f32 = 1.5;
const CHANGE_RUN: i8 = 6;
/// Prior of the hosts' cost in microseconds per raw byte, including all processing at both ends:
/// mean and standard deviation.
const HOST_US_PER_BYTE: f64 = 0.001;
const HOST_US_PER_BYTE_ERROR: f64 = 0.003;
/// Sizes closer than this differ in time by less than the disturbance.
const LEN_SPREAD_MIN: f32 = 64.0;

/// Estimate of a size class.
#[derive(Debug, Clone, Copy, Default)]
struct Class {
    wire_len: f32,
    raw_len: f32,
    /// The estimate, for a message of these lengths.
    span_us: f32,
    /// Mean deviation of the times from it.
    spread_us: f32,
    count: u16,
    /// Number of times in a row that were far above it; negative: far below.
    far: i8,
    stamp: u32,
}

/// The estimator.
#[derive(Debug, Clone, Default)]
pub struct Slope {
    classes: [Class; CLASSES],
    clock: u32,
    found: Option<Found>,
}

/// The fitted slope, which disturbance may make negative, and its standard error.
#[derive(Debug, Clone, Copy)]
struct Found {
    us_per_byte: f32,
    error: f32,
    host_us_per_byte: f32,
}

impl Found {
    /// Expected slope, given that it cannot be negative: the mean of a normal distribution cut off
    /// at 0. The larger the error, the larger it is.
    fn expected(self) -> f32 {
        let Self { us_per_byte, error, .. } = self;
        // ln(1 + exp(1.7 z)) / 1.7 is within 0.02 of that mean of deviation 1, and does not
        // overflow below 20.
        let z = 1.7 * us_per_byte / error.max(f32::MIN_POSITIVE);
        if z > 20.0 { us_per_byte } else { error / 1.7 * z.exp().ln_1p() }
    }
}

impl Slope {
    /// A message of `raw_len` bytes, sent as `wire_len` bytes, was answered after `span_us`.
    /// Returns whether the link seems to have changed.
    pub fn observe(&mut self, wire_len: usize, raw_len: usize, span_us: f32) -> bool {
        if !span_us.is_finite() || span_us <= 0.0 {
            return false;
        }
        self.clock = self.clock.saturating_add(1);
        let found = self.found.unwrap_or(Found { us_per_byte: 0.0, error: 0.0, host_us_per_byte: 0.0 });
        let at = class(wire_len);
        let lens = [wire_len, raw_len].map(|len| len.min(u32::MAX as usize) as f32);
        let changed = self.classes[at].observe(lens, span_us, found, self.clock);
        if changed {
            let class = self.classes[at];
            self.classes = Default::default();
            self.classes[at] = class;
        }
        self.found = self.find();
        changed
    }

    /// Whether any answer was observed.
    pub fn heard(&self) -> bool {
        self.clock > 0
    }

    /// Microseconds per wire byte, never negative; `None` until sizes differed enough.
    pub fn us_per_byte(&self) -> Option<f32> {
        self.found.map(|f| f.us_per_byte.max(0.0))
    }

    /// Expected microseconds per wire byte: the larger, the less certain it is.
    pub fn expected(&self) -> Option<f32> {
        self.found.map(Found::expected)
    }

    /// Whether the slope is significant: more than twice its error.
    pub fn is_sure(&self) -> bool {
        self.found.is_some_and(|f| f.us_per_byte > 2.0 * f.error)
    }

    /// Fits a plane through the classes, weighted by their certainty.
    fn find(&self) -> Option<Found> {
        let known = |c: &&Class| c.count >= SAMPLES_MIN && self.clock - c.stamp <= STALE;
        let classes = || self.classes.iter().filter(known);
        let (mut all, mut means) = (0.0f64, [0.0f64; 3]);
        let (mut least, mut most) = (f32::MAX, 0.0f32);
        for class in classes() {
            (least, most) = (least.min(class.wire_len), most.max(class.wire_len));
            let weight = 1.0 / f64::from(class.variance());
            all += weight;
            means.iter_mut().zip(class.point()).for_each(|(mean, value)| *mean += weight * value);
        }
        if most - least < LEN_SPREAD_MIN {
            return None;
        }
        // Least squares around the means, with the prior of the hosts' cost.
        let certainty = 1.0 / (HOST_US_PER_BYTE_ERROR * HOST_US_PER_BYTE_ERROR);
        let (mut xx, mut xr, mut rr, mut xy, mut ry) = (0.0, 0.0, certainty, 0.0, certainty * HOST_US_PER_BYTE);
        for class in classes() {
            let weight = 1.0 / f64::from(class.variance());
            let [x, r, y] = class.point();
            let (x, r, y) = (x - means[0] / all, r - means[1] / all, y - means[2] / all);
            xx += weight * x * x;
            xr += weight * x * r;
            rr += weight * r * r;
            xy += weight * x * y;
            ry += weight * r * y;
        }
        let spread = xx * rr - xr * xr;
        let us_per_byte = ((xy * rr - ry * xr) / spread) as f32;
        let host_us_per_byte = ((ry * xx - xy * xr) / spread) as f32;
        let error = (rr / spread).sqrt() as f32;
        let sound = spread > 0.0 && [us_per_byte, host_us_per_byte, error].iter().all(|value| value.is_finite());
        sound.then_some(Found { us_per_byte, error, host_us_per_byte })
    }
}

impl Class {
    /// `found`: the current fit, by which times of other lengths are made comparable.
    fn observe(&mut self, [wire_len, raw_len]: [f32; 2], span_us: f32, found: Found, stamp: u32) -> bool {
        self.stamp = stamp;
        let first = Self { wire_len, raw_len, span_us, spread_us: SPREAD_MIN * span_us, count: 1, far: 0, stamp };
        if self.count == 0 {
            *self = first;
            return false;
        }
        let (u, v) = (found.us_per_byte.max(0.0), found.host_us_per_byte);
        let comparable_us = span_us - u * (wire_len - self.wire_len) - v * (raw_len - self.raw_len);
        let far = i8::from(comparable_us > CHANGE * self.span_us) - i8::from(comparable_us * CHANGE < self.span_us);
        self.far = if far == 0 || far.signum() != self.far.signum() { far } else { self.far + far };
        if self.far.abs() >= CHANGE_RUN {
            *self = first;
            return true;
        }
        self.count = (self.count + 1).min(SAMPLES_MAX);
        let gain = 1.0 / f32::from(self.count);
        let off_us = comparable_us - self.span_us;
        let most = if self.count <= SAMPLES_FIRST { f32::MAX } else { SPREAD_MAX * self.spread_us };
        self.spread_us += gain * (off_us.abs().min(most) - self.spread_us);
        self.spread_us = self.spread_us.max(SPREAD_MIN * self.span_us.abs());
        let step_us = if self.count <= SAMPLES_FIRST {
            off_us.min(0.0)
        } else {
            // For times with the density of an exponential distribution of this spread, this
            // converges as fast as a count of all times.
            2.0 * gain * self.spread_us * if off_us > 0.0 { QUANTILE } else { QUANTILE - 1.0 }
        };
        let (wire_step, raw_step) = (gain * (wire_len - self.wire_len), gain * (raw_len - self.raw_len));
        self.wire_len += wire_step;
        self.raw_len += raw_step;
        self.span_us = (self.span_us + step_us + u * wire_step + v * raw_step).max(f32::MIN_POSITIVE);
        false
    }

    fn point(&self) -> [f64; 3] {
        [self.wire_len, self.raw_len, self.span_us].map(f64::from)
    }

    /// Variance of the estimate, a quantile of `count` times.
    fn variance(&self) -> f32 {
        let spread = self.spread_us.max(SPREAD_MIN * self.span_us);
        (spread * spread / f32::from(self.count)).max(f32::MIN_POSITIVE)
    }
}

fn class(wire_len: usize) -> usize {
    let log = (wire_len as u64).max(1).ilog2();
    (log.saturating_sub(CLASS_FIRST) as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times with a disturbance of up to half as much again, the same in each run.
    fn noise(i: u32) -> f32 {
        1.0 + 0.5 * (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 255.0
    }

    fn feed(slope: &mut Slope, us_per_byte: f32, sizes: &[usize], rounds: u32) {
        for i in 0..rounds {
            for (k, size) in sizes.iter().enumerate() {
                slope.observe(*size, *size, 40.0 * noise(i * 7 + k as u32) + us_per_byte * *size as f32);
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

    /// Linked messages, the longer of which take the hosts longer, and occasional stored ones, on a
    /// link that takes next to no time.
    #[test]
    fn what_hosts_take_for_long_messages_is_not_the_links() {
        for (u, most) in [(0.0003f32, 0.002), (0.016, 0.019)] {
            let mut slope = Slope::default();
            for i in 0..2000u32 {
                let raw_len = 450 + i.wrapping_mul(2_654_435_761) % 1000;
                let wire_len = if i % 32 == 0 { raw_len } else { raw_len / 8 };
                let hosts_us = 20.0 * noise(i) + 0.004 * raw_len as f32;
                slope.observe(wire_len as usize, raw_len as usize, hosts_us + u * wire_len as f32);
            }
            let found = slope.us_per_byte().unwrap();
            assert!(found < most && found > 0.6 * u - 0.001, "{found} us per byte instead of {u}");
        }
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
            changed |= slope.observe(100, 100, 10.0 * noise(i));
        }
        assert!(changed);
        assert_eq!(slope.us_per_byte(), None, "nothing is known of long ones");
    }

    #[test]
    fn absurd_times_leave_a_finite_slope() {
        let mut slope = Slope::default();
        for (len, span) in [(0, f32::NAN), (usize::MAX, f32::INFINITY), (0, 1.0), (usize::MAX, 1e30), (7, -1.0)] {
            for _ in 0..4 {
                slope.observe(len, len, span);
            }
        }
        assert!(slope.us_per_byte().is_none_or(f32::is_finite));
    }
}
