//! Policy specifications: their syntax, the settings of a policy, and the entry that registers one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{Policies, Policy};
use crate::calibration::Calibration;
use crate::codec::{Codecs, DEFAULT_METHODS, Method};
use crate::error::{Error, Result};
use crate::hint::{Hint, Mode};
use crate::monitor::cost::Prior;
use crate::monitor::expectation::Kind;

/// The entry of a policy in [`Policies`], at the end of the policy's file.
pub struct Registered {
    /// The name in specification strings: `balance`.
    pub name: &'static str,
    /// The syntax of its specification strings, for errors and help texts.
    pub usage: &'static str,
    /// One line for help texts.
    pub about: &'static str,
    /// Specifications in canonical form (they print as they were parsed); the shared tests run the
    /// policy of each.
    pub examples: &'static [&'static str],
    /// Parses the rest of a specification after the name: empty, or a colon and the settings, which may name
    /// methods of these codecs.
    pub parse: fn(&str, &Codecs) -> Result<Arc<dyn PolicySettings>>,
}

/// The settings of one policy. [`fmt::Display`] prints the specification that parses back to them.
pub trait PolicySettings: fmt::Debug + fmt::Display + Send + Sync {
    /// Makes the policy of one flow.
    fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy>;

    /// The longest block it ever asks for, in raw bytes.
    fn block_max(&self) -> usize;

    /// The methods it chooses from; empty if it uses those of the setup.
    fn methods(&self) -> Vec<Method> {
        Vec::new()
    }

    /// Whether it may link frames.
    fn links(&self) -> bool {
        false
    }

    /// Whether it can choose methods for messages, which are never split.
    fn takes_messages(&self) -> bool {
        false
    }

    /// How long raw bytes may wait until a whole block has gathered. Above 0 only where no reader
    /// waits for the bytes.
    fn gather_ns(&self) -> u64 {
        0
    }

    /// Path of the file that the policy is built from.
    fn file(&self) -> Option<&str> {
        None
    }

    /// Whether the file is written at the end of a flow ([`Policy::save`]); it then need not exist
    /// before the first one.
    fn keeps(&self) -> bool {
        false
    }

    /// Returns the same settings with the contents of their file.
    ///
    /// # Errors
    /// The bytes are not a valid file of this policy, or the settings name no file.
    fn load(&self, bytes: &[u8]) -> Result<Arc<dyn PolicySettings>> {
        let _ = bytes;
        Err(Error::misuse(format!("{self} has no file")))
    }

    /// The loaded contents of the file, for a policy that also writes it.
    fn contents(&self) -> Option<Vec<u8>> {
        None
    }
}

/// A policy with its settings, parsed from text such as `balance` or `fixed:zstd:level=3,link`. Two
/// specifications are equal if they print the same.
#[derive(Clone)]
pub struct PolicySpec {
    name: &'static str,
    settings: Arc<dyn PolicySettings>,
}

/// Inputs from which a policy is built.
#[derive(Clone, Copy)]
pub struct PolicySetup<'a> {
    /// Methods that `balance` may choose from; the other policies have their own.
    pub methods: &'a [Method],
    /// The codecs of the flow.
    pub codecs: &'a Codecs,
    /// Number of cores that encode.
    pub cores: usize,
    /// Costs of methods as measured on other hosts.
    pub prior: &'a Prior,
    /// How much longer methods take on this host than the prior says.
    pub calibration: Option<&'a Calibration>,
    /// Kinds of data that earlier flows to the same peer had.
    pub kinds: &'a [Kind],
    /// JPEG images are recompressed where that pays; for `balance`, whose sender then takes blocks of
    /// [`jpeg::LEN_MAX`](crate::jpeg::LEN_MAX).
    pub images: bool,
}

impl<'a> PolicySetup<'a> {
    /// A setup with the default methods and the codecs of this library, without a calibration and without a memory.
    pub fn new(cores: usize, prior: &'a Prior) -> Self {
        let codecs = Codecs::shipped();
        Self { methods: DEFAULT_METHODS, codecs, cores, prior, calibration: None, kinds: &[], images: false }
    }
}

impl PolicySpec {
    /// The default policy: the method by which each block arrives soonest.
    pub fn balance() -> Self {
        Self::named("balance")
    }

    /// The policy for files and other storage, where the speed of a link does not count.
    pub fn storage() -> Self {
        Self::named("storage")
    }

    /// The policy for message flows, without limits on latency or CPU.
    pub fn messages() -> Self {
        Self::named("messages")
    }

    /// One method for all blocks, linked if `linked`.
    pub fn fixed(method: Method, linked: bool) -> Self {
        Self::new("fixed", Arc::new(super::fixed::Settings::new(method, linked, Codecs::shipped())))
    }

    /// No compression.
    pub fn store() -> Self {
        Self::fixed(Method::STORE, false)
    }

    /// The policy for a file as its user wants it; `default` is the mode where none is said.
    #[doc(hidden)]
    pub fn of_hint(hint: &Hint, default: Mode) -> Self {
        if hint.is_never() {
            return Self::store();
        }
        Self::new("storage", Arc::new(super::storage::Settings::of_hint(hint, default)))
    }

    fn named(text: &str) -> Self {
        text.parse().expect("a registered policy")
    }

    /// A policy with settings of one's own, without a text that was parsed.
    pub fn new(name: &'static str, settings: Arc<dyn PolicySettings>) -> Self {
        Self { name, settings }
    }

    /// The policy's name without its settings, such as `fixed`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// See [`PolicySettings::build`].
    pub fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        self.settings.build(setup)
    }

    /// See [`PolicySettings::block_max`].
    pub fn block_max(&self) -> usize {
        self.settings.block_max()
    }

    /// See [`PolicySettings::methods`].
    pub fn methods(&self) -> Vec<Method> {
        self.settings.methods()
    }

    /// See [`PolicySettings::links`].
    pub fn links(&self) -> bool {
        self.settings.links()
    }

    /// See [`PolicySettings::takes_messages`].
    pub fn takes_messages(&self) -> bool {
        self.settings.takes_messages()
    }

    /// See [`PolicySettings::gather_ns`].
    pub fn gather_ns(&self) -> u64 {
        self.settings.gather_ns()
    }

    /// Path of the file that the policy is built from. The caller reads it and passes the bytes to
    /// [`PolicySpec::load`].
    pub fn file(&self) -> Option<&str> {
        self.settings.file()
    }

    /// See [`PolicySettings::keeps`].
    pub fn keeps(&self) -> bool {
        self.settings.keeps()
    }

    /// Returns the policy with the contents of its file.
    ///
    /// # Errors
    /// The bytes are not a valid file of this policy, or the policy names no file.
    pub fn load(&self, bytes: &[u8]) -> Result<Self> {
        Ok(Self { name: self.name, settings: self.settings.load(bytes)? })
    }

    /// See [`PolicySettings::contents`].
    pub fn contents(&self) -> Option<Vec<u8>> {
        self.settings.contents()
    }
}

impl Default for PolicySpec {
    fn default() -> Self {
        Self::balance()
    }
}

impl PartialEq for PolicySpec {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for PolicySpec {}

impl fmt::Debug for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.settings, f)
    }
}

/// Parses a policy of this library; [`Policies::parse`] those of other crates too.
impl FromStr for PolicySpec {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Policies::shipped().parse(s)
    }
}

/// [`PolicySettings`] of a policy that has nothing to set.
#[derive(Debug, Clone, Copy)]
pub struct NoSettings {
    /// The policy's name, which is its whole specification.
    pub name: &'static str,
    /// See [`PolicySettings::block_max`].
    pub block_max: usize,
    /// See [`PolicySettings::gather_ns`].
    pub gather_ns: u64,
    /// See [`PolicySettings::links`].
    pub links: bool,
    /// See [`PolicySettings::methods`].
    pub methods: fn() -> Vec<Method>,
    /// See [`PolicySettings::build`].
    pub build: fn(&PolicySetup<'_>) -> Box<dyn Policy>,
}

impl NoSettings {
    /// Implements [`Registered::parse`].
    ///
    /// # Errors
    /// Text follows the name.
    pub fn parse(self, rest: &str) -> Result<Arc<dyn PolicySettings>> {
        if rest.is_empty() {
            return Ok(Arc::new(self));
        }
        Err(Error::misuse(format!("{} has no settings such as '{rest}'", self.name)))
    }
}

impl fmt::Display for NoSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PolicySettings for NoSettings {
    fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        (self.build)(setup)
    }

    fn block_max(&self) -> usize {
        self.block_max
    }

    fn links(&self) -> bool {
        self.links
    }

    fn methods(&self) -> Vec<Method> {
        (self.methods)()
    }

    fn gather_ns(&self) -> u64 {
        self.gather_ns
    }
}

#[cfg(test)]
mod tests {
    use super::super::POLICIES;
    use super::*;

    #[test]
    fn each_hint_is_a_policy() {
        let of = |text: &str| PolicySpec::of_hint(&text.parse().unwrap(), Mode::Archive).to_string();
        assert_eq!(of("never"), PolicySpec::store().to_string());
        let fields = "encode_rate=5,decode_rate=6,images=true,methods=lz4+zstd:level=19";
        assert_eq!(of(fields), format!("storage:mode=archive,{fields}"));
        assert_eq!(of(fields).parse::<PolicySpec>().unwrap().to_string(), of(fields));
    }

    #[test]
    fn specifications_print_as_they_parse() {
        for text in POLICIES.iter().flat_map(|p| p.examples) {
            assert_eq!(text.parse::<PolicySpec>().unwrap().to_string(), *text);
        }
        for (text, canonical) in [("fixed:zstd:level=3", "fixed:zstd"), ("fixed:zstd:level=3,link", "fixed:zstd:link")]
        {
            assert_eq!(text.parse::<PolicySpec>().unwrap().to_string(), canonical);
        }
        for bad in ["", "fixed", "fixed:", "fixed:zstd:level=99", "fixed:xz:link", "balance:x", "fixed:nope", "nope"] {
            assert!(bad.parse::<PolicySpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_policy_has_a_name_of_its_own_and_an_example() {
        for (i, policy) in POLICIES.iter().enumerate() {
            assert!(!policy.examples.is_empty() && policy.usage.starts_with(policy.name), "{}", policy.name);
            assert!(POLICIES[..i].iter().all(|p| p.name != policy.name), "{}", policy.name);
            assert!(!policy.about.is_empty() && !policy.about.contains('\n'), "{}", policy.name);
        }
    }
}
