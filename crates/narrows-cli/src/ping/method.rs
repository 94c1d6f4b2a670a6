//! Methods of `narrows ping`: plain, a method of message mode, a policy, or any codec on each
//! message alone.

use std::fmt;
use std::str::FromStr;

use narrows::Error;
use narrows::codec::{CODECS, CodecId, Method as Codec};

/// How messages are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
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
pub(crate) enum Context {
    None,
    Dictionary,
    History,
    /// A history that begins with the dictionary.
    Seeded,
}

/// Maximum length of a name of a method or policy in the handshake.
pub(crate) const NAME_MAX: usize = 64;

/// Default methods.
const DEFAULT: &str = "plain,lz4,lz4:linked,zstd-1,messages";
/// Methods of message mode in `all`. Codecs that it does not have follow, each message alone.
const OWN: &str = "plain,store,lz4,lz4:dict,lz4:linked,lz4:linked,seeded,zstd-1,zstd-3,zstd-1:dict,zstd-3:dict";
/// Codecs of message mode, and the one that needs a block of one repeated byte.
const NOT_ALONE: [CodecId; 4] = [CodecId::STORE, CodecId::CONSTANT, CodecId::LZ4, CodecId::ZSTD];

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
    pub(crate) fn needs_dictionary(self) -> bool {
        matches!(self, Self::Fixed { context: Context::Dictionary | Context::Seeded, .. })
    }

    /// Parses a list. It is split at commas, but `linked`, `seeded`, `dict` and items with a `=`
    /// belong to the method before. `plain`, the reference for all others, is always included.
    pub(crate) fn parse_list(text: &str, has_dictionary: bool) -> Result<Vec<Self>, Error> {
        let text = if text.is_empty() { DEFAULT } else { text };
        let mut specs: Vec<String> = Vec::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let is_setting = matches!(item, "linked" | "seeded" | "dict") || item.contains('=') && !item.contains(':');
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
        let context = match settings {
            "" => Context::None,
            "dict" => Context::Dictionary,
            "linked" => Context::History,
            "linked,seeded" | "seeded" => Context::Seeded,
            _ => return Ok(Self::Alone(text.parse()?)),
        };
        let codec = match name.strip_prefix("zstd-") {
            Some(level) => format!("zstd:level={level}").parse()?,
            None if name == "lz4" => Codec::lz4_accel(1),
            None => {
                let codec = name
                    .parse::<Codec>()
                    .map_err(|e| Error::misuse(format!("{}, and plain, zstd-LEVEL, lzma, messages, all", e.message)))?;
                if context != Context::None {
                    return Err(Error::misuse(format!("{name} does not support '{settings}'")));
                }
                return Ok(Self::Alone(codec));
            }
        };
        if codec.codec != CodecId::LZ4 && matches!(context, Context::History | Context::Seeded) {
            return Err(Error::misuse(format!("only lz4 can be linked, not {name}")));
        }
        Ok(Self::Fixed { codec, context })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Chosen => f.write_str("messages"),
            Self::Alone(codec) => codec.fmt(f),
            Self::Fixed { codec, context } => {
                match codec.codec {
                    CodecId::ZSTD => write!(f, "zstd-{}", codec.level)?,
                    _ => codec.fmt(f)?,
                }
                f.write_str(match context {
                    Context::None => "",
                    Context::Dictionary => ":dict",
                    Context::History => ":linked",
                    Context::Seeded => ":linked,seeded",
                })
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
        assert_eq!(all.len(), 18);
        for method in &all {
            assert_eq!(method.to_string().parse::<Method>().unwrap(), *method, "{method}");
        }
        let without = Method::parse_list("all", false).unwrap();
        assert_eq!(without.len(), 18 - 4, "those with a dictionary");
        assert!(Method::parse_list("", false).unwrap().contains(&Method::Chosen));
    }

    #[test]
    fn settings_belong_to_the_method_before() {
        let list = |text| Method::parse_list(text, true).unwrap().iter().map(Method::to_string).collect::<Vec<_>>();
        assert_eq!(list("lz4:linked,lz4:linked,seeded,zstd-1"), ["plain", "lz4:linked", "lz4:linked,seeded", "zstd-1"]);
        assert_eq!(list("zlib,level=1,plain,lz4,dict"), ["plain", "zlib:level=1", "lz4:dict"]);
        assert_eq!(list("lz4:hc=9,zstd:level=3"), ["plain", "lz4:hc=9", "zstd"]);
    }

    #[test]
    fn what_is_no_method_is_refused() {
        for bad in ["zstd-99", "zstd-1:linked", "lzo:dict", "lz4:linked,dict", "nothing", "plain:dict", "lz4:", "zstd-"]
        {
            let refused = Method::parse_list(bad, true);
            assert!(refused.is_err() || bad == "lz4:", "{bad}: {refused:?}");
        }
        assert!(Method::parse_list("lz4:dict", false).is_err());
    }
}
