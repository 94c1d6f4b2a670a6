//! Parsing of quantities with units: rates, times, lengths, shares.

use std::time::Duration;

/// 100 Gbit/s: far above what a link in user space carries.
const RATE_MAX: f64 = 1e11;
/// A minute: no link on Earth needs more, so a mistyped unit is caught.
const TIME_MAX_S: f64 = 60.0;
/// At 100 bits/s a full packet takes two minutes.
const RATE_MIN: f64 = 100.0;

fn split(text: &str) -> Option<(f64, &str)> {
    let unit = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-')).unwrap_or(text.len());
    Some((text[..unit].parse().ok()?, &text[unit..]))
}

/// Bits per second: `100mbit`.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let no_rate = || format!("'{text}' is not a rate such as 512kbit, 100mbit or 1gbit");
    let (number, unit) = split(text).ok_or_else(no_rate)?;
    let factor = match unit.to_ascii_lowercase().trim_end_matches("/s") {
        "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        "bps" | "kbps" | "mbps" | "gbps" => {
            return Err(format!(
                "'{unit}' in '{text}' means bits to some and bytes to others: write bit, kbit, mbit or gbit"
            ));
        }
        "" => return Err(format!("'{text}' has no unit: write bit, kbit, mbit or gbit")),
        _ => return Err(no_rate()),
    };
    let rate = number * factor;
    if !(RATE_MIN..=RATE_MAX).contains(&rate) {
        return Err(format!("a rate of '{text}' is impossible: from 100bit to 100gbit, or unlimited"));
    }
    Ok(rate as u64)
}

pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let no_time = || format!("'{text}' is not a time such as 500us, 20ms or 1.5s");
    let (number, unit) = split(text).ok_or_else(no_time)?;
    let seconds = match unit.to_ascii_lowercase().as_str() {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "" if number == 0.0 => 1.0,
        "" => return Err(format!("'{text}' has no unit: write us, ms or s")),
        _ => return Err(no_time()),
    } * number;
    if !(0.0..=TIME_MAX_S).contains(&seconds) {
        return Err(format!("a time of '{text}' is impossible: from 0 to 60s"));
    }
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// Bytes: `64kib`, `100kb`, `1500b`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let no_length = || format!("'{text}' is not a length such as 1500b, 100kb or 64kib");
    let (number, unit) = split(text).ok_or_else(no_length)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "" => return Err(format!("'{text}' has no unit: write b, kb, kib, mb or mib")),
        _ => return Err(no_length()),
    };
    let bytes = number * factor;
    if !(0.0..=1e12).contains(&bytes) {
        return Err(format!("a length of '{text}' is impossible"));
    }
    Ok(bytes as u64)
}

/// A share from 0 to 1: `1%` or `0.01`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let no_share = || format!("'{text}' is not a share such as 1% or 0.01");
    let (number, unit) = split(text).ok_or_else(no_share)?;
    let share = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return Err(no_share()),
    };
    if !(0.0..=1.0).contains(&share) {
        return Err(format!("a share of '{text}' is impossible: from 0 to 1, or to 100%"));
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_values() {
        assert_eq!(rate("100mbit"), Ok(100_000_000));
        assert_eq!(rate("1.5Gbit/s"), Ok(1_500_000_000));
        assert_eq!(rate("512kbit"), Ok(512_000));
        assert_eq!(time("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(time("0.1ms"), Ok(Duration::from_micros(100)));
        assert_eq!(time("0"), Ok(Duration::ZERO));
        assert_eq!(bytes("64kib"), Ok(65536));
        assert_eq!(bytes("64kb"), Ok(64000));
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.25"), Ok(0.25));
    }

    #[test]
    fn figures_that_are_wrong_say_what_is_right() {
        let cases: [(Result<(), String>, &str); 17] = [
            (rate("").map(drop), "not a rate such as"),
            (rate("0mbit").map(drop), "impossible"),
            (rate("-5mbit").map(drop), "impossible"),
            (rate("1000gbit").map(drop), "impossible"),
            (rate("100").map(drop), "has no unit"),
            (rate("100mbps").map(drop), "bits to some"),
            (rate("100furlong").map(drop), "not a rate such as"),
            (rate("1.2.3mbit").map(drop), "not a rate such as"),
            (time("20").map(drop), "has no unit"),
            (time("-1ms").map(drop), "impossible"),
            (time("61s").map(drop), "impossible"),
            (time("5h").map(drop), "not a time such as"),
            (bytes("64").map(drop), "has no unit"),
            (bytes("-1b").map(drop), "impossible"),
            (share("2").map(drop), "impossible"),
            (share("101%").map(drop), "impossible"),
            (share("1permille").map(drop), "not a share such as"),
        ];
        for (i, (result, why)) in cases.into_iter().enumerate() {
            let error = result.unwrap_err();
            assert!(error.contains(why), "case {i}: {error}");
        }
    }
}
