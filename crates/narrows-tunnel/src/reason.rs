//! Why a flow or a session is over (docs/format.md, section 21.1).

use std::fmt;

use super::frame::TEXT_MAX;

/// Why a flow was refused or reset, or a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Refused,
    Unreachable,
    Timeout,
    Forbidden,
    Busy,
    Lost,
    Reset,
    Damaged,
    Other,
    Replaced,
    Leaving,
}

/// All reasons; the place in the list plus 1 is the number.
const REASONS: [(Reason, &str); 11] = [
    (Reason::Refused, "connection refused"),
    (Reason::Unreachable, "unreachable"),
    (Reason::Timeout, "no answer in time"),
    (Reason::Forbidden, "not allowed by the other end"),
    (Reason::Busy, "a limit was reached"),
    (Reason::Lost, "the tunnel was lost"),
    (Reason::Reset, "connection reset"),
    (Reason::Damaged, "its data was damaged"),
    (Reason::Other, "failed"),
    (Reason::Replaced, "replaced by a later session"),
    (Reason::Leaving, "the other end stops"),
];

impl Reason {
    /// The reason with this number; unknown ones count as [`Reason::Other`].
    pub fn of(number: u8) -> Self {
        let found = usize::from(number).checked_sub(1).and_then(|i| REASONS.get(i));
        found.map_or(Self::Other, |(reason, _)| *reason)
    }

    /// The number on the wire.
    pub fn number(self) -> u8 {
        REASONS.iter().position(|(reason, _)| *reason == self).map_or(0, |i| i as u8 + 1)
    }

    /// A reason and a text as the body of a frame.
    pub fn to_bytes(self, text: &str) -> Vec<u8> {
        let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        [&[self.number()], &text.as_bytes()[..end]].concat()
    }

    /// Reads such a body; `None` if it is not valid.
    pub fn parse(body: &[u8]) -> Option<(Self, String)> {
        let (number, text) = body.split_first()?;
        let text = std::str::from_utf8(text).ok().filter(|t| t.len() <= TEXT_MAX)?;
        Some((Self::of(*number), text.to_owned()))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REASONS.iter().find(|(reason, _)| reason == self).map_or("failed", |(_, text)| text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_and_texts_come_back_and_long_texts_are_cut_between_characters() {
        for (reason, _) in REASONS {
            assert_eq!(Reason::of(reason.number()), reason);
        }
        assert_eq!(Reason::of(0), Reason::Other);
        assert_eq!(Reason::of(200), Reason::Other);
        let text = format!("a{}", "ü".repeat(TEXT_MAX));
        let (reason, back) = Reason::parse(&Reason::Busy.to_bytes(&text)).unwrap();
        assert_eq!((reason, back.len()), (Reason::Busy, TEXT_MAX - 1));
        assert!(text.starts_with(&back));
        assert!(Reason::parse(b"").is_none());
        assert!(Reason::parse(&[1, 0xff]).is_none());
        assert!(Reason::parse(&[1; TEXT_MAX + 2]).is_none());
    }
}
