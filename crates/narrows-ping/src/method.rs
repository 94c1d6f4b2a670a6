//! Methods of `narrows ping`: plain, a method of message mode, a policy, or any codec on each
//! message alone.
//!
//! A method is spelled as everywhere, with words for the context after its settings:
//! `zstd:level=1,dict`, `lz4:link,seeded`. The handshake keeps the older spelling, `zstd-1:dict` and
//! `lz4:linked,seeded`, which the command line accepts too.

use std::fmt;
use std::str::FromStr;

use narrows::Error;
use narrows::codec::{CODECS, CodecId, Method as Codec};
use narrows::policy::print_method;

/// How messages are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A length and the message.
    Plain,
    /// One method of message mode.
    Fixed { codec: Codec, context: Context },
    /// A policy chooses for each message.
    Chosen,
    /// A codec that message mode does not have.
    Alone(Codec),
}

/// Additional data with which a message is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    None,
    Dictionary,
    History,
    /// A history that begins with the dictionary.
    Seeded,
}

/// Maximum length of a name of a method or policy in the handshake.
pub const NAME_MAX: usize = 64;

/// Default methods.
const DEFAULT: &str = "plain,lz4,lz4:link,zstd:level=1,messages";
/// Methods of message mode in `all`. Codecs that it does not have follow, each message alone.
const OWN: &str =
    "plain,store,lz4,lz4:dict,lz4:link,lz4:link,seeded,zstd:level=1,zstd:level=3,zstd:level=1,dict,zstd:level=3,dict";
/// Codecs of message mode, and those that need a block of one repeated byte, an image, or lines of base64.
const NOT_ALONE: [CodecId; 6] =
    [CodecId::STORE, CodecId::CONSTANT, CodecId::LZ4, CodecId::ZSTD, CodecId::LEPTON, CodecId::BASE64];

/// Methods of `all`.
fn all() -> String {
    let alone = CODECS.iter().filter(|c| !NOT_ALONE.contains(&c.id())).map(|c| match c.id() {
        CodecId::XZ => "lzma",
        // The levels of the 2013 experiment.
        CodecId::BZIP2 => "bzip2:level=1",
        _ => c.name(),
    });
    [OWN].into_iter().chain(alone).chain(["messages"]).collect::<Vec<_>>().join(",")
}

impl Method {
    /// Whether the method needs a dictionary.
    pub fn needs_dictionary(self) -> bool {
        matches!(self, Self::Fixed { context: Context::Dictionary | Context::Seeded, .. })
    }

    /// Parses a list. It is split at commas, but `link`, `seeded`, `dict` and items with a `=`
    /// belong to the method before. `plain`, the reference for all others, is always included.
    ///
    /// # Errors
    /// A word is no method, or one needs a dictionary.
    pub fn parse_list(text: &str, has_dictionary: bool) -> Result<Vec<Self>, Error> {
        let text = if text.is_empty() { DEFAULT } else { text };
        let mut specs: Vec<String> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let is_setting = Context::is_word(item) || item.contains('=') && !item.contains(':');
            match specs.last_mut() {
                Some(spec) if is_setting => {
                    spec.push(if spec.contains(':') { ',' } else { ':' });
                    spec.push_str(item);
                }
                _ => specs.push(item.to_owned()),
            }
        }
        let mut methods = vec![Self::Plain];
        for spec in &specs {
            let more = if spec == "all" {
                Self::parse_list(&all(), true)?
                    .into_iter()
                    .filter(|m| has_dictionary || !m.needs_dictionary())
                    .collect()
            } else {
                vec![spec.parse::<Self>()?]
            };
            for method in more {
                if method.needs_dictionary() && !has_dictionary {
                    return Err(Error::misuse(format!("{method} needs a dictionary: --dict FILE")));
                }
                if !methods.contains(&method) {
                    methods.push(method);
                }
            }
        }
        Ok(methods)
    }
}

impl Method {
    /// The name in the handshake, which servers of all versions read.
    pub fn wire_name(self) -> String {
        let Self::Fixed { codec, context } = self else { return self.to_string() };
        let name = match codec.codec {
            CodecId::ZSTD => format!("zstd-{}", codec.level),
            _ => codec.to_string(),
        };
        let words = match context {
            Context::None => "",
            Context::Dictionary => ":dict",
            Context::History => ":linked",
            Context::Seeded => ":linked,seeded",
        };
        name + words
    }

    /// Reads the name in a handshake. There, `zstd` without a level in its name is not of message
    /// mode.
    ///
    /// # Errors
    /// It is none.
    pub fn from_wire_name(name: &str) -> Result<Self, Error> {
        match name.split(':').next() {
            Some("zstd") => name.parse().map(Self::Alone),
            _ => name.parse(),
        }
    }
}

impl Context {
    fn is_word(item: &str) -> bool {
        matches!(item, "dict" | "link" | "linked" | "seeded")
    }

    fn of(words: &[&str]) -> Option<Self> {
        match words {
            [] => Some(Self::None),
            ["dict"] => Some(Self::Dictionary),
            ["link" | "linked"] => Some(Self::History),
            ["link" | "linked", "seeded"] | ["seeded"] => Some(Self::Seeded),
            _ => None,
        }
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() > NAME_MAX {
            return Err(Error::misuse("the name of the method is too long"));
        }
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        match (name, settings) {
            ("plain", "") => return Ok(Self::Plain),
            ("messages", "") => return Ok(Self::Chosen),
            ("store", "") => return Ok(Self::Fixed { codec: Codec::STORE, context: Context::None }),
            ("lzma", _) => {
                // The level of the experiment in the paper.
                let level = if settings.is_empty() { "level=3" } else { settings };
                return format!("xz:{level}").parse().map(Self::Alone);
            }
            _ => {}
        }
        let items = settings.split(',').filter(|item| !item.is_empty());
        let (words, levels): (Vec<&str>, Vec<&str>) = items.partition(|item| Context::is_word(item));
        let spec = match name.strip_prefix("zstd-") {
            Some(level) if levels.is_empty() => format!("zstd:level={level}"),
            _ => format!("{name}:{}", levels.join(",")),
        };
        let codec = spec.parse::<Codec>().map_err(|e| match e.message.starts_with("no method") {
            true => Error::misuse(format!("{}, and plain, lzma, messages, all", e.message)),
            false => e,
        })?;
        let is_own = codec.codec == CodecId::ZSTD || codec == Codec::lz4_accel(1);
        match Context::of(&words) {
            Some(Context::None) if !is_own => Ok(Self::Alone(codec)),
            Some(Context::History | Context::Seeded) if codec.codec != CodecId::LZ4 => {
                Err(Error::misuse(format!("only lz4 can be linked, not {name}")))
            }
            Some(context) if is_own => Ok(Self::Fixed { codec, context }),
            _ => Err(Error::misuse(format!("{name} does not support '{settings}'"))),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Chosen => f.write_str("messages"),
            Self::Alone(codec) => codec.fmt(f),
            Self::Fixed { codec, context } => {
                let is_linked = matches!(context, Context::History | Context::Seeded);
                let text = print_method(*codec, is_linked);
                let word = match context {
                    Context::None | Context::History => return f.write_str(&text),
                    Context::Dictionary => "dict",
                    Context::Seeded => "seeded",
                };
                write!(f, "{text}{}{word}", if text.contains(':') { ',' } else { ':' })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_reads_back_as_it_prints() {
        let all = Method::parse_list("all", true).unwrap();
        assert_eq!(all.len(), 16);
        for method in &all {
            assert_eq!(method.to_string().parse::<Method>().unwrap(), *method, "{method}");
            assert_eq!(Method::from_wire_name(&method.wire_name()).unwrap(), *method, "{method}");
        }
        let without = Method::parse_list("all", false).unwrap();
        assert_eq!(without.len(), 16 - 4, "those with a dictionary");
        assert!(Method::parse_list("", false).unwrap().contains(&Method::Chosen));
    }

    #[test]
    fn settings_belong_to_the_method_before() {
        let list = |text| Method::parse_list(text, true).unwrap().iter().map(Method::to_string).collect::<Vec<_>>();
        assert_eq!(list("lz4:link,lz4,link,seeded,zstd"), ["plain", "lz4:link", "lz4:link,seeded", "zstd"]);
        assert_eq!(list("zstd:level=1,dict,zstd,dict"), ["plain", "zstd:level=1,dict", "zstd:dict"]);
        assert_eq!(list("zlib,level=1,plain,lz4,dict"), ["plain", "zlib:level=1", "lz4:dict"]);
        assert_eq!(list("lz4:hc=9,zstd:level=3"), ["plain", "lz4:hc=9", "zstd"]);
    }

    #[test]
    fn what_is_no_method_is_refused() {
        for bad in [
            "zstd-99",
            "zstd-",
            "zstd-1:linked",
            "zstd-1:level=3",
            "zstd:level=99",
            "zstd:link",
            "snappy:dict",
            "snappy:link",
            "lzo",
            "lz4:linked,dict",
            "lz4:hc=9,dict",
            "nothing",
            "plain:dict",
        ] {
            assert!(Method::parse_list(bad, true).is_err(), "{bad}");
        }
        assert!(Method::parse_list("lz4:dict", false).is_err());
    }

    #[test]
    fn the_older_spelling_is_read_and_stays_in_the_handshake() {
        for (older, common) in [
            ("lz4:linked", "lz4:link"),
            ("lz4:linked,seeded", "lz4:link,seeded"),
            ("zstd-1", "zstd:level=1"),
            ("zstd-3", "zstd"),
            ("zstd-1:dict", "zstd:level=1,dict"),
            ("zstd-3:dict", "zstd:dict"),
        ] {
            let method = older.parse::<Method>().unwrap();
            assert_eq!((method.to_string(), method.wire_name()), (common.into(), older.into()));
            assert_eq!(common.parse::<Method>().unwrap(), method);
        }
        // An older client says so when it means a frame without message mode.
        assert_eq!(Method::from_wire_name("zstd:level=1").unwrap(), Method::Alone("zstd:level=1".parse().unwrap()));
    }
}
