//! A token bucket in front of the link, as kernels shape: what it has saved up passes at the speed of
//! the line.

pub(super) struct Bucket {
    line: f64,
    burst: f64,
    tokens: f64,
    /// Rate at which it fills, in bytes per second.
    rate: f64,
    /// Rate that the cores allow, in bytes per second.
    pub(super) cap: f64,
}

impl Bucket {
    pub(super) fn new(line: f64, burst: f64, rate: f64) -> Self {
        Self { line: line.max(rate), burst, tokens: burst, rate, cap: f64::INFINITY }
    }

    pub(super) fn set_rate(&mut self, rate: f64) {
        (self.rate, self.line) = (rate, self.line.max(rate));
    }

    /// Rate that bytes would have if the cores allowed it.
    pub(super) fn wants(&self) -> f64 {
        if self.tokens > 0.0 { self.line } else { self.rate }
    }

    pub(super) fn tokens(&self) -> f64 {
        self.tokens
    }

    /// Seconds until the tokens are used up; infinite if they are not.
    pub(super) fn until_empty_s(&self) -> f64 {
        let fast = self.line.min(self.cap);
        if self.tokens > 0.0 && fast > self.rate { self.tokens / (fast - self.rate) } else { f64::INFINITY }
    }

    /// Seconds until `bytes` have passed.
    pub(super) fn finish_s(&self, bytes: f64) -> f64 {
        let (fast, slow) = (self.line.min(self.cap), self.rate.min(self.cap));
        let fast_s = self.until_empty_s();
        if self.tokens <= 0.0 {
            bytes / slow
        } else if bytes <= fast * fast_s {
            bytes / fast
        } else {
            fast_s + (bytes - fast * fast_s) / slow
        }
    }

    /// Lets up to `most` bytes pass for `s` seconds. Returns how many passed, and for how long.
    pub(super) fn pass(&mut self, s: f64, most: f64) -> (f64, f64) {
        let busy_s = self.finish_s(most).min(s);
        let (fast, slow) = (self.line.min(self.cap), self.rate.min(self.cap));
        let fast_s = if self.tokens > 0.0 { self.until_empty_s().min(busy_s) } else { 0.0 };
        let passed = if busy_s < s { most } else { fast * fast_s + slow * (busy_s - fast_s) };
        let tokens = self.tokens + self.rate * s - passed;
        self.tokens = if tokens < 1e-3 { 0.0 } else { tokens.min(self.burst) };
        (passed, busy_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_line_speed_and_comes_back_in_a_pause() {
        let mut bucket = Bucket::new(1e9, 65_536.0, 12.5e6);
        let burst_s = 65_536.0 / (1e9 - 12.5e6);
        assert!((bucket.until_empty_s() - burst_s).abs() < 1e-12);
        let all_s = bucket.finish_s(1e6);
        assert!((all_s - (1e6 - 65_536.0) / 12.5e6).abs() < 1e-4, "{all_s}");
        let (passed, busy_s) = bucket.pass(all_s, 1e6);
        assert!((passed - 1e6).abs() < 1.0 && (busy_s - all_s).abs() < 1e-9);
        assert_eq!(bucket.tokens(), 0.0);
        assert!((bucket.finish_s(12.5e6) - 1.0).abs() < 1e-3);
        bucket.pass(65_536.0 / 12.5e6, 0.0);
        assert!((bucket.until_empty_s() / burst_s - 1.0).abs() < 1e-3);
        bucket.cap = 1e6;
        assert_eq!(bucket.finish_s(1e6), 1.0, "cores that allow less than the link are what bounds");
    }
}
