//! Lengths as people write them, and the random numbers of the laboratory.

/// Parses `64M`, `128K`, `5000`: powers of 1024.
pub(crate) fn parse_len(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.trim_end_matches(['B', 'b']).char_indices().last() {
        Some((i, 'K' | 'k')) => (&text[..i], 1 << 10),
        Some((i, 'M' | 'm')) => (&text[..i], 1 << 20),
        Some((i, 'G' | 'g')) => (&text[..i], 1 << 30),
        _ => (text, 1),
    };
    let number: usize = digits.parse().map_err(|_| format!("'{text}' is no length such as 3M or 512K"))?;
    number.checked_mul(unit).filter(|n| *n > 0).ok_or_else(|| format!("'{text}' is out of range"))
}

/// `3M` for 3145728.
pub(crate) fn print_len(len: usize) -> String {
    match len {
        n if n > 0 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n > 0 && n.is_multiple_of(1 << 10) => format!("{}K", n >> 10),
        n => n.to_string(),
    }
}

/// splitmix64: the same numbers on every machine.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which must not be 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// From 0 to 1, never 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box-Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_read_as_they_print() {
        for (text, len) in [("3M", 3 << 20), ("512K", 512 << 10), ("1000", 1000), ("1M", 1 << 20)] {
            assert_eq!(parse_len(text), Ok(len));
            assert_eq!(print_len(len), text);
        }
        for bad in ["", "M", "0", "-1", "3.5M", "99999999999999999999"] {
            assert!(parse_len(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn random_numbers_have_the_moments_they_should() {
        let mut rng = Rng(1);
        let n = 20_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..n {
            let x = rng.normal();
            sum += x;
            squares += x * x;
        }
        assert!((sum / f64::from(n)).abs() < 0.03 && (squares / f64::from(n) - 1.0).abs() < 0.05);
    }
}
