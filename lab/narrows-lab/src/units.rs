//! Parsing and printing of lengths.

/// Parses a length such as `64M`, `128K`, `5000`; units are powers of 1024.
pub(crate) fn parse_len(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.trim_end_matches(['B', 'b']).char_indices().last() {
        Some((i, 'K' | 'k')) => (&text[..i], 1 << 10),
        Some((i, 'M' | 'm')) => (&text[..i], 1 << 20),
        Some((i, 'G' | 'g')) => (&text[..i], 1 << 30),
        _ => (text, 1),
    };
    let number: usize = digits.parse().map_err(|_| format!("'{text}' is not a length such as 3M or 512K"))?;
    number.checked_mul(unit).filter(|n| *n > 0).ok_or_else(|| format!("'{text}' is out of range"))
}

/// Prints a length such as `3M` for 3145728.
pub(crate) fn print_len(len: usize) -> String {
    match len {
        n if n > 0 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n > 0 && n.is_multiple_of(1 << 10) => format!("{}K", n >> 10),
        n => n.to_string(),
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
}
