//! The effort that a file was encoded with, as its end says (format.md section 20.1).

use narrows::frame::{self, ATTEMPT_FRAME_LEN, Attempt, ControlKind, END_FRAME_LEN, EndTotals, Header};
use narrows::hint::Mode;
use narrows::{ErrorKind, Result};

use crate::footer::{CONTROL_ONLY, Tail, read_totals};
use crate::read_at::ReadAt;

/// Version of the methods of the modes. Raise it when a mode's files get smaller by 1 % or more, so that
/// repack tries again.
pub const METHODS_VERSION: u16 = 1;
/// Read at the end of a file to learn its effort.
const END_LEN: usize = ATTEMPT_FRAME_LEN + END_FRAME_LEN;

/// A mode, and the version of its methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    mode: Mode,
    version: u16,
}

impl Effort {
    /// That of this build.
    pub fn of(mode: Mode) -> Self {
        Self { mode, version: METHODS_VERSION }
    }

    /// The mode.
    pub fn mode(self) -> Mode {
        self.mode
    }

    /// Whether a file with this effort gains nothing from `other`.
    pub fn covers(self, other: Self) -> bool {
        self.mode >= other.mode && self.version >= other.version
    }

    /// The same as the engine writes it.
    pub fn attempt(self) -> Attempt {
        let mode = match self.mode {
            Mode::Fast => 1,
            Mode::Balanced => 2,
            Mode::Archive => 3,
        };
        Attempt { mode, version: self.version, before: 0 }
    }

    /// `None` for modes that this build does not know.
    fn of_attempt(attempt: Attempt) -> Option<Self> {
        let mode = Mode::ALL.into_iter().find(|mode| Self::of(*mode).attempt().mode == attempt.mode)?;
        Some(Self { mode, version: attempt.version })
    }

    /// Reads the text of [`Record::text`] before its seal.
    fn parse(mode: &str, version: &str) -> Option<Self> {
        Some(Self { mode: mode.parse().ok()?, version: version.parse().ok()? })
    }
}

/// What the last bytes of a file say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The effort that it was encoded with.
    pub effort: Option<Effort>,
    /// A number that belongs to this content: the check of its end frame.
    pub seal: u64,
}

/// What the last bytes of a file say, by one read of 56 bytes, and one of 42 for each stream before the
/// last one. `None` if it does not end as a stream does. An effort counts only if it speaks for all streams
/// of the file: others gain by becoming one.
///
/// # Errors
/// The source fails.
pub fn end_of(source: &impl ReadAt) -> Result<Option<End>> {
    let (len, tail) = source.read_tail(END_LEN)?;
    let Some(end) = tail.len().checked_sub(END_FRAME_LEN) else { return Ok(None) };
    // The check of a control frame follows kind and length.
    let seal = tail[end + 2..].first_chunk().map_or(0, |check| u64::from_le_bytes(*check));
    let (frame, known) = (tail[..end].to_vec(), Tail::new(len, tail));
    let Some(totals) = totals(source, &known, len)? else { return Ok(None) };
    let attempt = attempt_of(&frame, totals.raw_total);
    let begin = len - END_FRAME_LEN as u64 - totals.wire_total;
    let counts = attempt.map(|attempt| speaks_for_all(source, &known, begin, attempt.before)).transpose()?;
    let effort = attempt.filter(|_| counts == Some(true)).and_then(Effort::of_attempt);
    Ok(Some(End { effort, seal }))
}

fn totals(source: &impl ReadAt, known: &Tail, end: u64) -> Result<Option<EndTotals>> {
    match read_totals(source, known, end) {
        Err(e) if e.source.is_none() && e.kind != ErrorKind::Io => Ok(None),
        result => result.map(Some),
    }
}

/// Whether exactly `before` streams are in front of the one that begins at `end`.
fn speaks_for_all(source: &impl ReadAt, known: &Tail, mut end: u64, before: u8) -> Result<bool> {
    for _ in 0..before {
        let Some(totals) = totals(source, known, end)? else { return Ok(false) };
        end -= END_FRAME_LEN as u64 + totals.wire_total;
    }
    Ok(end == 0)
}

/// The attempt frame that these bytes are, if they are one.
pub(crate) fn attempt_of(bytes: &[u8], raw_total: u64) -> Option<Attempt> {
    let Ok(Some(Header::Control(header))) = frame::parse_header(bytes, &CONTROL_ONLY) else { return None };
    let body = bytes.get(header.header_len..).filter(|body| <[u8]>::len(body) == header.body_len)?;
    let is_one = header.kind == ControlKind::Attempt && header.verify(body, raw_total).is_ok();
    Attempt::parse(body).ok().filter(|_| is_one)
}

/// A record beside a file, for those that did not shrink: the effort that was tried in vain, and the
/// seal of the content that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// What was tried.
    pub effort: Effort,
    /// [`End::seal`] of the file.
    pub seal: u64,
}

impl Record {
    /// Its text: mode, version and seal.
    pub fn text(self) -> String {
        format!("{} {} {:016x}", self.effort.mode.name(), self.effort.version, self.seal)
    }

    /// Reads it; `None` if it is none.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let effort = Effort::parse(words.next()?, words.next()?)?;
        let seal = u64::from_str_radix(words.next()?, 16).ok()?;
        words.next().is_none().then_some(Self { effort, seal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_and_others_are_none() {
        for mode in Mode::ALL {
            let record = Record { effort: Effort::of(mode), seal: u64::MAX - 5 };
            assert_eq!(Record::parse(record.text().as_bytes()), Some(record));
        }
        for bad in ["", "archive", "archive 1", "archive 1 x", "slow 1 5", "archive 99999 5", "archive 1 5 6", "\u{ff}"]
        {
            assert_eq!(Record::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn heavier_modes_cover_lighter_ones_of_the_same_version() {
        assert!(Effort::of(Mode::Archive).covers(Effort::of(Mode::Balanced)));
        assert!(!Effort::of(Mode::Balanced).covers(Effort::of(Mode::Archive)));
        let newer = Effort { version: METHODS_VERSION + 1, ..Effort::of(Mode::Fast) };
        assert!(!Effort::of(Mode::Archive).covers(newer));
    }
}
