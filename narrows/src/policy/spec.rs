//! Policies by name: how a person writes them, what they are built from, and the one list of them all.

use std::fmt;
use std::str::FromStr;

use super::{
    Adoc, Balance, Datacomp, EventTable, Fixed, Messages, MessagesSpec, Policy, Replay, Schedule, Stall, Storage,
    parse_method, print_method,
};
use crate::calibration::Calibration;
use crate::codec::{DEFAULT_METHODS, Level, Method};
use crate::error::{Error, Result};
use crate::monitor::cost::Prior;

/// Every receiver takes blocks of this length (docs/format.md, section 6).
const BASELINE_BLOCK_MAX: usize = 2 << 20;

/// What may be lost of a stream that is written slowly, if its writer dies; and a whole block comes meanwhile from whoever
/// writes 2 MiB/s.
const STORAGE_GATHER_NS: u64 = 1_000_000_000;

/// A policy as a person writes it: `balance`, `fixed:zstd:level=3,link`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicySpec {
    Balance,
    Fixed {
        method: Method,
        linked: bool,
    },
    Adoc,
    /// `learns`: trained and adapted as it goes; else the table is only read.
    Datacomp {
        table: Option<String>,
        learns: bool,
    },
    /// For message flows.
    Messages(MessagesSpec),
    Stall {
        min: Level,
        max: Level,
    },
    Replay {
        file: String,
    },
    /// For what is kept.
    Storage,
}

/// An entry of [`POLICIES`].
pub struct Registered {
    pub name: &'static str,
    /// How it is written.
    pub usage: &'static str,
    /// Specifications that print as they parse; the shared tests run the policy of each.
    pub examples: &'static [&'static str],
    /// From what stands behind the name: nothing, or a colon and more.
    parse: fn(&str) -> Result<PolicySpec>,
}

/// Every policy. One that stands here can be named wherever a policy can be, and inherits the tests of
/// `tests/policies_unit.rs` and `tests/policies_shared.rs`.
pub const POLICIES: &[Registered] = &[
    Registered {
        name: "balance",
        usage: "balance",
        examples: &["balance"],
        parse: |rest| nothing("balance", rest, PolicySpec::Balance),
    },
    Registered {
        name: "fixed",
        usage: "fixed:METHOD",
        examples: &["fixed:store", "fixed:zstd", "fixed:zstd:level=1,link", "fixed:lz4:accel=16", "fixed:lz4:link"],
        parse: |rest| {
            let (method, linked) = parse_method(rest.strip_prefix(':').unwrap_or_default())?;
            Ok(PolicySpec::Fixed { method, linked })
        },
    },
    Registered {
        name: "messages",
        usage: "messages[:latency_us=US][,cpu_percent=PERCENT]",
        examples: &["messages", "messages:latency_us=20,cpu_percent=5"],
        parse: |rest| Ok(PolicySpec::Messages(MessagesSpec::parse(rest.strip_prefix(':').unwrap_or(rest))?)),
    },
    Registered {
        name: "storage",
        usage: "storage",
        examples: &["storage"],
        parse: |rest| nothing("storage", rest, PolicySpec::Storage),
    },
    Registered {
        name: "adoc",
        usage: "adoc",
        examples: &["adoc"],
        parse: |rest| nothing("adoc", rest, PolicySpec::Adoc),
    },
    Registered {
        name: "datacomp",
        usage: "datacomp[:table=FILE][,mode=train|read]",
        examples: &["datacomp", "datacomp:table=FILE", "datacomp:table=FILE,mode=read"],
        parse: parse_datacomp,
    },
    Registered {
        name: "stall",
        usage: "stall[:min=LEVEL][,max=LEVEL]",
        examples: &["stall", "stall:min=1,max=9"],
        parse: parse_stall,
    },
    Registered { name: "replay", usage: "replay:FILE", examples: &["replay:FILE"], parse: parse_replay },
];

/// What a policy is built from.
pub struct PolicySetup<'a> {
    /// Methods that `balance` may choose from; the others name their own.
    pub methods: &'a [Method],
    /// Cores that encode.
    pub cores: usize,
    pub prior: &'a Prior,
    pub calibration: Option<&'a Calibration>,
    /// What was in the policy's file, if it has one.
    pub file: Option<&'a PolicyData>,
}

impl<'a> PolicySetup<'a> {
    pub fn new(cores: usize, prior: &'a Prior) -> Self {
        Self { methods: DEFAULT_METHODS, cores, prior, calibration: None, file: None }
    }
}

/// What a policy keeps in a file.
#[derive(Debug, Clone)]
pub enum PolicyData {
    Schedule(Schedule),
    Events(EventTable),
}

impl PolicyData {
    /// The file anew, if it is one that is kept.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Schedule(_) => None,
            Self::Events(table) => Some(table.bytes()),
        }
    }
}

impl PolicySpec {
    pub fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        match self {
            Self::Balance => Box::new(Balance::new(setup)),
            Self::Fixed { method, linked } => Box::new(Fixed::new(*method, *linked)),
            Self::Messages(spec) => Box::new(Messages::new(*spec)),
            Self::Storage => Box::new(Storage::new(setup.cores)),
            Self::Adoc => Box::new(Adoc::default()),
            Self::Stall { min, max } => Box::new(Stall::new(*min, *max, setup.cores)),
            Self::Datacomp { learns, .. } => {
                let table = match setup.file {
                    Some(PolicyData::Events(table)) => table.clone(),
                    _ => EventTable::default(),
                };
                Box::new(Datacomp::new(table, *learns, setup.cores))
            }
            Self::Replay { .. } => {
                let schedule = match setup.file {
                    Some(PolicyData::Schedule(schedule)) => schedule.clone(),
                    _ => Schedule::default(),
                };
                Box::new(Replay::new(schedule))
            }
        }
    }

    /// The file that the policy is built from: the caller reads it and gives it to [`PolicySpec::read_file`].
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Replay { file } => Some(file),
            Self::Datacomp { table, .. } => table.as_deref(),
            _ => None,
        }
    }

    /// Whether it writes its file at the end of a flow ([`Policy::save`]), so that at first there need be none.
    pub fn keeps(&self) -> bool {
        matches!(self, Self::Datacomp { table: Some(_), learns: true })
    }

    /// Understands what was in [`PolicySpec::file`].
    pub fn read_file(&self, bytes: &[u8]) -> Result<PolicyData> {
        match self {
            Self::Replay { .. } => {
                let text = std::str::from_utf8(bytes).map_err(|_| Error::misuse("a schedule or a trace is text"))?;
                Ok(PolicyData::Schedule(Schedule::parse(text)?))
            }
            Self::Datacomp { .. } => Ok(PolicyData::Events(EventTable::parse(bytes)?)),
            _ => Err(Error::misuse(format!("{self} has no file"))),
        }
    }

    /// The methods that it names itself; none if it takes those of the setup.
    pub fn methods(&self, file: Option<&PolicyData>) -> Vec<Method> {
        match (self, file) {
            (Self::Balance, _) => Vec::new(),
            (Self::Fixed { method, .. }, _) => vec![*method],
            (Self::Messages(_), _) => Messages::methods(),
            (Self::Storage, _) => Storage::methods(),
            (Self::Adoc, _) => Adoc::methods(),
            (Self::Datacomp { .. }, _) => Datacomp::methods(),
            (Self::Stall { min, max }, _) => Stall::methods(*min, *max),
            (Self::Replay { .. }, Some(PolicyData::Schedule(schedule))) => schedule.methods(),
            (Self::Replay { .. }, _) => vec![Method::STORE],
        }
    }

    /// The longest blocks that it ever wants, or for `fixed` what suits most methods.
    pub fn block_max(&self) -> usize {
        match self {
            Self::Balance => 512 << 10,
            Self::Fixed { .. } => 128 << 10,
            Self::Messages(_) => Messages::BLOCK_LEN,
            Self::Storage => Storage::BLOCK_MAX,
            Self::Adoc => Adoc::BLOCK_MAX,
            Self::Datacomp { .. } => Datacomp::BLOCK_MAX,
            Self::Stall { .. } => Stall::BLOCK_LEN,
            Self::Replay { .. } => BASELINE_BLOCK_MAX,
        }
    }

    /// How long raw bytes may wait for a whole block ([`SenderConfig::gather_ns`](crate::sender::SenderConfig)): where
    /// nobody waits for them.
    pub fn gather_ns(&self) -> u64 {
        if *self == Self::Storage { STORAGE_GATHER_NS } else { 0 }
    }

    /// Whether it may link frames. A schedule that was not read may.
    pub fn links(&self, file: Option<&PolicyData>) -> bool {
        match (self, file) {
            (Self::Fixed { linked, .. }, _) => *linked,
            (Self::Replay { .. }, Some(PolicyData::Schedule(schedule))) => schedule.blocks().iter().any(|b| b.linked),
            (Self::Replay { .. } | Self::Messages(_), _) => true,
            _ => false,
        }
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Balance => f.write_str("balance"),
            Self::Fixed { method, linked } => write!(f, "fixed:{}", print_method(*method, *linked)),
            Self::Messages(spec) if *spec == MessagesSpec::default() => f.write_str("messages"),
            Self::Messages(spec) => write!(f, "messages:{}", spec.print()),
            Self::Storage => f.write_str("storage"),
            Self::Adoc => f.write_str("adoc"),
            Self::Datacomp { table, learns } => {
                f.write_str("datacomp")?;
                if let Some(file) = table {
                    write!(f, ":table={file}")?;
                }
                f.write_str(if *learns { "" } else { ",mode=read" })
            }
            Self::Stall { min, max } if (*min, *max) == (Stall::LEVEL_MIN, Stall::LEVEL_MAX) => f.write_str("stall"),
            Self::Stall { min, max } => write!(f, "stall:min={min},max={max}"),
            Self::Replay { file } => write!(f, "replay:{file}"),
        }
    }
}

impl FromStr for PolicySpec {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let (name, rest) = s.split_at(s.find(':').unwrap_or(s.len()));
        match POLICIES.iter().find(|p| p.name == name) {
            Some(policy) => (policy.parse)(rest),
            None => {
                let known: Vec<_> = POLICIES.iter().map(|p| p.usage).collect();
                Err(Error::misuse(format!("no policy is called '{name}'; there are {}", known.join(", "))))
            }
        }
    }
}

fn nothing(name: &str, rest: &str, spec: PolicySpec) -> Result<PolicySpec> {
    if rest.is_empty() { Ok(spec) } else { Err(Error::misuse(format!("{name} has no settings such as '{rest}'"))) }
}

fn parse_datacomp(rest: &str) -> Result<PolicySpec> {
    let rest = rest.strip_prefix(':').unwrap_or_default();
    // A mode stands at the end, since the name of a file may have commas.
    let (rest, learns) = match rest.rsplit_once("mode=") {
        Some((rest, "train")) => (rest.trim_end_matches(','), true),
        Some((rest, "read")) => (rest.trim_end_matches(','), false),
        _ => (rest, true),
    };
    let table = match rest.strip_prefix("table=") {
        Some(file) if !file.is_empty() => Some(file.to_owned()),
        None if rest.is_empty() => None,
        _ => {
            return Err(Error::misuse(format!(
                "'{rest}' is not a setting of datacomp; it takes table=FILE and then mode=train or mode=read"
            )));
        }
    };
    if table.is_none() && !learns {
        return Err(Error::misuse("datacomp needs a table to read: datacomp:table=FILE,mode=read"));
    }
    Ok(PolicySpec::Datacomp { table, learns })
}

fn parse_stall(rest: &str) -> Result<PolicySpec> {
    let (mut min, mut max) = (Stall::LEVEL_MIN, Stall::LEVEL_MAX);
    for item in rest.strip_prefix(':').unwrap_or_default().split(',').filter(|i| !i.is_empty()) {
        let level = item.split_once('=').and_then(|(key, level)| Some((key, level.parse::<Level>().ok()?)));
        match level.filter(|(_, level)| (Stall::LEVEL_MIN..=Stall::LEVEL_MAX).contains(level) && *level != 0) {
            Some(("min", level)) => min = level,
            Some(("max", level)) => max = level,
            _ => {
                return Err(Error::misuse(format!(
                    "'{item}' is not a setting of stall; it takes min=LEVEL and max=LEVEL, {} to {} and not 0",
                    Stall::LEVEL_MIN,
                    Stall::LEVEL_MAX
                )));
            }
        }
    }
    if min > max {
        return Err(Error::misuse(format!("the lowest level of stall is {min} and the highest {max}")));
    }
    Ok(PolicySpec::Stall { min, max })
}

fn parse_replay(rest: &str) -> Result<PolicySpec> {
    match rest.strip_prefix(':').filter(|file| !file.is_empty()) {
        Some(file) => Ok(PolicySpec::Replay { file: file.to_owned() }),
        None => Err(Error::misuse("replay needs the file of a schedule or trace: replay:FILE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_print_as_they_parse() {
        for text in POLICIES.iter().flat_map(|p| p.examples) {
            assert_eq!(text.parse::<PolicySpec>().unwrap().to_string(), *text);
        }
        for (text, canonical) in [
            ("fixed:zstd:level=3", "fixed:zstd"),
            ("fixed:zstd:level=3,link", "fixed:zstd:link"),
            ("stall:max=9", "stall:min=-7,max=9"),
            ("datacomp:mode=train", "datacomp"),
            ("datacomp:table=a,b,mode=train", "datacomp:table=a,b"),
        ] {
            assert_eq!(text.parse::<PolicySpec>().unwrap().to_string(), canonical);
        }
        for bad in [
            "",
            "fixed",
            "fixed:",
            "fixed:zstd:level=99",
            "fixed:xz:link",
            "balance:x",
            "fixed:nope",
            "nope",
            "replay",
            "replay:",
            "stall:0",
            "stall:min=0",
            "stall:min=9,max=3",
            "stall:max=99",
            "datacomp:mode=read",
            "datacomp:x",
            "datacomp:table=",
            "datacomp:mode=x",
        ] {
            assert!(bad.parse::<PolicySpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_policy_has_a_name_of_its_own_and_an_example() {
        for (i, policy) in POLICIES.iter().enumerate() {
            assert!(!policy.examples.is_empty() && policy.usage.starts_with(policy.name), "{}", policy.name);
            assert!(POLICIES[..i].iter().all(|p| p.name != policy.name), "{}", policy.name);
        }
    }
}
