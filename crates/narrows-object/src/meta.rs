//! User metadata that Narrows keeps with an object (format.md section 19).

use std::collections::BTreeMap;

use crate::url::Scheme;

/// Raw bytes of the file, in decimal digits.
pub const LEN: &str = "narrows-len";
/// Modification time: seconds since 1970, a point, nine digits of nanoseconds; negative before 1970.
pub const MTIME: &str = "narrows-mtime";
/// Permission bits, in octal digits.
pub const MODE: &str = "narrows-mode";
/// Number of the owner.
pub const UID: &str = "narrows-uid";
/// Number of the group.
pub const GID: &str = "narrows-gid";
/// What the object is: [`FORM_FILE`], [`FORM_PLAIN`] or [`FORM_PACK`].
pub const FORM: &str = "narrows-form";
/// Which upload wrote the object, so that its writer knows its own work after a lost answer.
pub const UPLOAD: &str = "narrows-upload";

/// A file of a Narrows stream, with a key that ends in `.nrw`.
pub const FORM_FILE: &str = "nrw";
/// The bytes of the file.
pub const FORM_PLAIN: &str = "plain";
/// A pack: a copy of it is the pack again, not its raw bytes.
pub const FORM_PACK: &str = "pack";

/// How names begin, and how they begin in Azure, where they are identifiers.
const BEGIN: &str = "narrows-";
const BEGIN_IDENTIFIER: &str = "narrows_";

/// How a store spells a name.
pub(crate) fn spelt(name: &str, scheme: Scheme) -> String {
    if scheme == Scheme::Az { name.replace('-', "_") } else { name.to_owned() }
}

/// A name as this module has it, in either spelling.
pub(crate) fn known(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    match name.strip_prefix(BEGIN_IDENTIFIER) {
        Some(rest) => BEGIN.to_owned() + &rest.replace('_', "-"),
        None => name,
    }
}

/// The attributes of a file that an object keeps. Metadata is written by anybody: what does not
/// parse counts as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileMeta {
    /// Raw bytes.
    pub len: Option<u64>,
    /// Seconds and nanoseconds of the modification time.
    pub mtime: Option<(i64, u32)>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Number of the owner.
    pub uid: Option<u32>,
    /// Number of the group.
    pub gid: Option<u32>,
    /// Whether the object is the file as it is; `None` if `cp` did not write it.
    pub plain: Option<bool>,
}

impl FileMeta {
    /// Reads metadata.
    pub fn parse(metadata: &BTreeMap<String, String>) -> Self {
        let get = |key: &str| metadata.get(key).map(String::as_str);
        let number = |key: &str| get(key).filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?.parse().ok();
        Self {
            len: number(LEN),
            mtime: get(MTIME).and_then(parse_time),
            mode: get(MODE).and_then(|text| u32::from_str_radix(text, 8).ok()).filter(|mode| *mode <= 0o7777),
            uid: number(UID).and_then(|n| u32::try_from(n).ok()),
            gid: number(GID).and_then(|n| u32::try_from(n).ok()),
            plain: match get(FORM) {
                Some(FORM_FILE) => Some(false),
                Some(FORM_PLAIN) => Some(true),
                _ => None,
            },
        }
    }

    /// The pairs that state it.
    pub fn pairs(&self) -> Vec<(String, String)> {
        let form = self.plain.map(|plain| if plain { FORM_PLAIN } else { FORM_FILE }.to_owned());
        let time = self.mtime.map(|(s, ns)| {
            // The nanoseconds count forwards from the second before.
            let (sign, s, ns) = match (s, ns) {
                (s, 0) if s < 0 => ("-", s.unsigned_abs(), 0),
                (s, ns) if s < 0 => ("-", s.unsigned_abs() - 1, 1_000_000_000 - ns),
                (s, ns) => ("", s.unsigned_abs(), ns),
            };
            format!("{sign}{s}.{ns:09}")
        });
        let pairs = [
            (FORM, form),
            (LEN, self.len.map(|n| n.to_string())),
            (MTIME, time),
            (MODE, self.mode.map(|n| format!("{n:o}"))),
            (UID, self.uid.map(|n| n.to_string())),
            (GID, self.gid.map(|n| n.to_string())),
        ];
        pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

fn parse_time(text: &str) -> Option<(i64, u32)> {
    let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (s, ns) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    if !is_number(s) || !is_number(ns) || ns.len() > 9 {
        return None;
    }
    let s: i64 = s.parse().ok()?;
    let ns = format!("{ns:0<9}").parse().ok()?;
    Some(match (is_negative, ns) {
        (false, ns) => (s, ns),
        (true, 0) => (-s, 0),
        (true, ns) => (-s - 1, 1_000_000_000 - ns),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for mtime in [(0, 0), (1_700_000_000, 5), (-1, 0), (-1, 999_999_999), (-5, 1), (i64::MAX, 999_999_999)] {
            for plain in [false, true] {
                let meta = FileMeta {
                    len: Some(u64::MAX),
                    mtime: Some(mtime),
                    mode: Some(0o4755),
                    uid: Some(1000),
                    gid: None,
                    plain: Some(plain),
                };
                assert_eq!(FileMeta::parse(&meta.pairs().into_iter().collect()), meta);
            }
        }
        assert!(FileMeta::default().pairs().is_empty());
    }

    #[test]
    fn names_are_known_in_both_spellings() {
        for name in [LEN, MTIME, MODE, UID, GID, FORM, UPLOAD] {
            let identifier = spelt(name, Scheme::Az);
            assert!(identifier.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{identifier}");
            assert_eq!((known(&identifier), known(name)), (name.to_owned(), name.to_owned()));
            assert_eq!(spelt(name, Scheme::S3), name);
        }
        assert_eq!(known("Narrows_Len"), LEN);
        assert_eq!(known("some_other-Name"), "some_other-name");
    }

    #[test]
    fn what_makes_no_sense_is_missing() {
        let of = |key: &str, value: &str| FileMeta::parse(&BTreeMap::from([(key.to_owned(), value.to_owned())]));
        let bad = [
            (LEN, "-1"),
            (LEN, "+1"),
            (LEN, "1e9"),
            (LEN, "99999999999999999999"),
            (LEN, ""),
            (MODE, "8"),
            (MODE, "17777"),
            (MODE, "-1"),
            (MTIME, ""),
            (MTIME, "."),
            (MTIME, "1."),
            (MTIME, "x"),
            (MTIME, "1.0000000000"),
            (MTIME, "--1"),
            (MTIME, "99999999999999999999"),
            (UID, "4294967296"),
            (GID, "root"),
            (FORM, "NRW"),
        ];
        for (key, value) in bad {
            assert_eq!(of(key, value), FileMeta::default(), "{key}: {value}");
        }
        assert_eq!(of(MTIME, "5").mtime, Some((5, 0)));
        assert_eq!(of(MTIME, "5.25").mtime, Some((5, 250_000_000)));
    }
}
