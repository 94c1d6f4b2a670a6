//! Hints: what a user says about bytes that will be stored, wherever that is said: by a flag, an
//! attribute of a file or a rule for a tree (format.md section 20).

use std::fmt;
use std::str::FromStr;

use crate::codec::{Codecs, Method};
use crate::error::{Error, Result};

/// Longest text of a hint in bytes: each field once, and some methods.
pub const HINT_MAX: usize = 1 << 10;
/// Most methods that a hint names: more than any policy chooses from.
const METHODS_MAX: usize = 16;

/// What the time of a core and the bytes of a file are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
    /// At least 500 MB/s of each core.
    Fast,
    /// As `zstd -3` about; blocks that are decoded within some 300 µs.
    #[default]
    Balanced,
    /// Small, whatever time it takes.
    Archive,
}

impl Mode {
    /// All of them, lightest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Balanced, Self::Archive];

    /// The word of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Balanced => "balanced",
            Self::Archive => "archive",
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| Error::misuse(format!("`{text}` is no mode: use fast, balanced or archive")))
    }
}

/// What a user says about the bytes of a file. Each field may be left open, for a weaker hint to
/// say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hint {
    /// Do not compress: the bytes are compressed already, or their reader wants them as they are.
    pub never: Option<bool>,
    /// What time and bytes are worth.
    pub mode: Option<Mode>,
    /// Raw bytes/s that all cores together must encode at least.
    pub encode_rate: Option<u64>,
    /// Raw bytes/s that one core must decode at least.
    pub decode_rate: Option<u64>,
    /// Recompress JPEG images, beside what the mode or the methods do.
    pub images: Option<bool>,
    /// Exactly these methods, instead of those of the mode.
    pub methods: Option<Vec<Method>>,
}

impl Hint {
    /// `never`.
    pub fn never() -> Self {
        Self { never: Some(true), ..Self::default() }
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the bytes must not be compressed.
    pub fn is_never(&self) -> bool {
        self.never == Some(true)
    }

    /// Whether JPEG images are to be recompressed.
    pub fn wants_images(&self) -> bool {
        self.images == Some(true)
    }

    /// The fields of this hint, and of a weaker one those that it leaves open. Whoever asks for a mode
    /// or methods takes back a weaker `never`; a `never` takes back everything weaker.
    #[must_use]
    pub fn or(self, weaker: Self) -> Self {
        if self.is_never() {
            return self;
        }
        let asks = self.mode.is_some() || self.methods.is_some() || self.wants_images();
        let weaker = if asks && weaker.is_never() { Self::default() } else { weaker };
        if weaker.is_never() && self.never.is_none() {
            return Self::never();
        }
        // A mode replaces weaker methods, which are another answer to the same question.
        let methods = if self.mode.is_some() { None } else { weaker.methods };
        Self {
            never: self.never,
            mode: self.mode.or(weaker.mode),
            encode_rate: self.encode_rate.or(weaker.encode_rate),
            decode_rate: self.decode_rate.or(weaker.decode_rate),
            images: self.images.or(weaker.images),
            methods: self.methods.or(methods),
        }
    }

    /// Sets a field by its name, as in the text of a hint.
    ///
    /// # Errors
    /// `Misuse` if there is no such field, or the value is none of it.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "never" => self.never = Some(value == "true" || value.is_empty()),
            "images" => self.images = Some(value == "true"),
            "mode" => self.mode = Some(value.parse()?),
            "encode_rate" => self.encode_rate = Some(parse_rate(value)?),
            "decode_rate" => self.decode_rate = Some(parse_rate(value)?),
            "methods" => self.methods = Some(parse_methods(value, Codecs::shipped())?),
            _ => {
                let text =
                    format!("`{key}` is no hint: use never, mode=, encode_rate=, decode_rate=, images= or methods=");
                return Err(Error::misuse(text));
            }
        }
        if matches!(key, "never" | "images") && !matches!(value, "" | "true" | "false") {
            return Err(Error::misuse(format!("`{value}` is not true or false")));
        }
        Ok(())
    }
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            self.never.map(|never| if never { "never".to_owned() } else { "never=false".to_owned() }),
            self.mode.map(|mode| format!("mode={}", mode.name())),
            self.encode_rate.map(|rate| format!("encode_rate={rate}")),
            self.decode_rate.map(|rate| format!("decode_rate={rate}")),
            self.images.map(|images| format!("images={images}")),
            self.methods.as_deref().map(|methods| format!("methods={}", print_methods(methods, Codecs::shipped()))),
        ];
        f.write_str(&fields.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

/// Reads `never` or fields with commas between them, such as `mode=archive,decode_rate=500MB/s`. The
/// methods come last if they have commas themselves.
impl FromStr for Hint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut hint = Self::default();
        if text.len() > HINT_MAX {
            return Err(Error::misuse(format!("a hint has at most {HINT_MAX} bytes")));
        }
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(Error::misuse("the hint is empty: use never, or mode=archive and the like"));
        }
        while !rest.is_empty() {
            // Settings of a method have commas: the list of methods goes to the end.
            let cut = if rest.starts_with("methods=") { rest.len() } else { rest.find(',').unwrap_or(rest.len()) };
            let (field, more) = rest.split_at(cut);
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            if value.is_empty() && key != "never" {
                return Err(Error::misuse(format!("`{field}` is no hint: use {key}=VALUE")));
            }
            hint.set(key, value)?;
            rest = more.strip_prefix(',').unwrap_or(more);
        }
        Ok(hint)
    }
}

/// Methods with `+` between them, which no setting of a method has.
pub(crate) fn parse_methods(text: &str, codecs: &Codecs) -> Result<Vec<Method>> {
    let methods = text.split('+').map(|method| codecs.parse(method.trim())).collect::<Result<Vec<_>>>()?;
    if methods.len() > METHODS_MAX {
        return Err(Error::misuse(format!("a hint names at most {METHODS_MAX} methods")));
    }
    Ok(methods)
}

pub(crate) fn print_methods(methods: &[Method], codecs: &Codecs) -> String {
    methods.iter().map(|method| codecs.print(*method)).collect::<Vec<_>>().join("+")
}

/// Parses bytes/s: a number with an optional suffix kB, MB or GB, powers of 1000, and optionally `/s`.
///
/// # Errors
/// `Misuse` if it is none, or 0.
pub fn parse_rate(text: &str) -> Result<u64> {
    let bad = || Error::misuse(format!("`{text}` is not a rate such as 200MB/s"));
    let rest = text.strip_suffix("/s").unwrap_or(text);
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = rest.split_at(digits);
    let factor = match unit.trim_end_matches('B').to_ascii_uppercase().as_str() {
        "" => 1,
        "K" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return Err(bad()),
    };
    number.parse().ok().and_then(|n: u64| n.checked_mul(factor)).filter(|n| *n > 0).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(text: &str) -> Hint {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn hints_print_as_they_were_parsed_and_others_are_refused() {
        for text in [
            "never",
            "mode=archive",
            "mode=fast,encode_rate=200000000",
            "mode=archive,images=true",
            "images=false",
            "decode_rate=500000000,methods=lz4+zstd:level=4",
        ] {
            assert_eq!(hint(text).to_string(), text);
        }
        assert_eq!(hint("encode_rate=200MB/s").encode_rate, Some(200_000_000));
        for bad in [
            "",
            "mode",
            "mode=slow",
            "never=maybe",
            "rate=5",
            "encode_rate=0",
            "methods=",
            "methods=gif",
            "images=yes",
            "mode=fast,,",
        ] {
            assert!(bad.parse::<Hint>().is_err(), "{bad}");
        }
        assert!("never,".repeat(HINT_MAX).parse::<Hint>().is_err());
    }

    #[test]
    fn the_stronger_hint_wins_field_by_field() {
        let both = hint("encode_rate=1G").or(hint("mode=archive,encode_rate=5"));
        assert_eq!(both, hint("mode=archive,encode_rate=1G"));
        assert_eq!(hint("mode=archive").or(hint("never")), hint("mode=archive"));
        assert_eq!(hint("never").or(hint("mode=archive")), hint("never"));
        assert!(hint("encode_rate=5").or(hint("never")).is_never());
        assert!(!hint("never=false").or(hint("never")).is_never());
        assert_eq!(hint("mode=fast").or(hint("methods=lz4")).methods, None);
        assert!(hint("mode=fast").or(hint("images=true")).wants_images());
        assert!(!hint("images=false").or(hint("images=true")).wants_images());
        assert!(hint("images=true").or(hint("never")).wants_images());
        assert_eq!(Hint::default().or(hint("mode=fast")), hint("mode=fast"));
    }

    #[test]
    fn rates_have_units() {
        assert_eq!(parse_rate("200MB/s").unwrap(), 200_000_000);
        assert_eq!(parse_rate("1G").unwrap(), 1_000_000_000);
        for bad in ["", "0", "MB", "5 MB", "1TB", "99999999999999GB"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }
}
