//! Levels of `zstd` and `gzip`, which people type from habit: each stands for a mode.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::Args as ClapArgs;
use narrows::codec::Method;
use narrows::hint::{Hint, Mode};

/// Levels up to this one are for those who have little time: `zstd -1`, `gzip -1`.
const FAST_MAX: u32 = 1;
/// Levels up to this one give about what the mode `balanced` gives: `zstd -3`, the default.
const BALANCED_MAX: u32 = 5;
/// Levels up to this one are for those who want more, soon: `zstd -9`, `gzip -9`.
const SMALL_MAX: u32 = 9;
/// The highest level of zstd, for which it takes all above, with a warning.
const LEVEL_MAX: u32 = 22;
/// What these encode at least, in bytes/s: about as small as `zstd -9` on the files that were tried, most of them smaller
/// than by `gzip -9`.
const SMALL_RATE: u64 = 40_000_000;
/// Short options with a value, behind which digits are no level: `-T4`, `-o1`.
const WITH_VALUE: &[u8] = b"ToSMDBbei";

#[derive(ClapArgs, Clone, Copy)]
pub(crate) struct LevelArgs {
    /// The level N of zstd, as `-N`
    #[arg(long, value_name = "N", hide = true, overrides_with_all = ["fast", "best"], conflicts_with_all = ["mode", "policy"])]
    level: Option<u32>,
    /// Faster than -1
    #[arg(long, value_name = "N", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(overrides_with_all = ["level", "best"], conflicts_with_all = ["mode", "policy"])]
    fast: Option<u32>,
    /// As -19
    #[arg(long, hide = true, overrides_with_all = ["level", "fast"], conflicts_with_all = ["mode", "policy"])]
    best: bool,
    /// Allows levels above 19, which are the same here
    #[arg(long, hide = true)]
    ultra: bool,
}

impl LevelArgs {
    /// What is to be said about a level that there is not.
    pub(super) fn warning(self) -> Option<String> {
        let above = self.level.filter(|level| *level > LEVEL_MAX)?;
        Some(format!("there is no level {above}; it is taken for {LEVEL_MAX}, the highest"))
    }

    /// What the level stands for.
    pub(crate) fn hint(self) -> Hint {
        let mode = |mode| Hint { mode: Some(mode), ..Hint::default() };
        match self.level {
            _ if self.best => mode(Mode::Archive),
            _ if self.fast.is_some() => mode(Mode::Fast),
            // As with zstd, the default.
            None | Some(0) => Hint::default(),
            // The mode `fast` is far above what `zstd -1` is for, and stores most of what it gets on a busy host.
            Some(..=FAST_MAX) => Hint { methods: Some(vec![Method::STORE, Method::zstd(1)]), ..mode(Mode::Balanced) },
            Some(..=BALANCED_MAX) => mode(Mode::Balanced),
            Some(..=SMALL_MAX) => Hint { encode_rate: Some(SMALL_RATE), ..mode(Mode::Archive) },
            Some(_) => mode(Mode::Archive),
        }
    }

    /// The same in the format of zstd, whose modes are levels 1, 3 and 19.
    pub(super) fn mode_of_zstd(self) -> Option<Mode> {
        match self.level {
            _ if self.best => Some(Mode::Archive),
            _ if self.fast.is_some() => Some(Mode::Fast),
            None | Some(0) => None,
            Some(..=FAST_MAX) => Some(Mode::Fast),
            Some(..=SMALL_MAX) => Some(Mode::Balanced),
            Some(_) => Some(Mode::Archive),
        }
    }
}

/// A command line in which levels such as `-19`, also within `-k19`, are written as `--level=19`.
pub(super) fn spelled_out(words: Vec<OsString>) -> Vec<OsString> {
    let mut out = Vec::with_capacity(words.len());
    let mut are_names = false;
    for word in words {
        are_names |= word == "--";
        match (!are_names).then(|| split(word.as_bytes())).flatten() {
            Some((flags, level)) => {
                if flags != b"-" {
                    out.push(OsString::from_vec(flags));
                }
                out.push(format!("--level={level}").into());
            }
            None => out.push(word),
        }
    }
    out
}

/// The word of short options without the levels in it, and the last of them; `None` without a level.
fn split(word: &[u8]) -> Option<(Vec<u8>, String)> {
    let letters = word.strip_prefix(b"-").filter(|letters| letters.first().is_some_and(|first| *first != b'-'))?;
    let end = letters.iter().position(|c| WITH_VALUE.contains(c)).unwrap_or(letters.len());
    let (letters, value) = letters.split_at(end);
    let level = letters.rsplit(|c| !c.is_ascii_digit()).find(|digits| !digits.is_empty())?;
    let level = String::from_utf8_lossy(level).into_owned();
    let flags = letters.iter().filter(|c| !c.is_ascii_digit()).chain(value);
    Some((b"-".iter().chain(flags).copied().collect(), level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_found_in_the_words_that_have_them_and_in_no_others() {
        let of = |line: &str| {
            let words = spelled_out(line.split(' ').map(OsString::from).collect());
            words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        for (line, found) in [
            ("-1 a", "--level=1 a"),
            ("-19", "--level=19"),
            ("-kc19", "-kc --level=19"),
            ("-k9c", "-kc --level=9"),
            ("-3T4", "-T4 --level=3"),
            ("-9k1", "-k --level=1"),
            ("-99999999999", "--level=99999999999"),
        ] {
            assert_eq!(of(line), found);
        }
        for same in ["-T4", "-o1", "-vT0 a", "--long=27", "file1", "-", "-k", "-- -19", "--fast=3"] {
            assert_eq!(of(same), same);
        }
    }

    #[test]
    fn levels_stand_for_modes() {
        let of = |level, fast, best| LevelArgs { level, fast, best, ultra: false }.hint();
        for (level, hint) in [
            (None, ""),
            (Some(0), ""),
            (Some(1), "mode=balanced,methods=store+zstd:level=1"),
            (Some(3), "mode=balanced"),
            (Some(9), "mode=archive,encode_rate=40000000"),
            (Some(19), "mode=archive"),
            (Some(100), "mode=archive"),
        ] {
            assert_eq!(of(level, None, false).to_string(), hint, "{level:?}");
        }
        assert_eq!(of(None, Some(5), false).mode, Some(Mode::Fast));
        assert_eq!(of(None, None, true).mode, Some(Mode::Archive));
    }
}
