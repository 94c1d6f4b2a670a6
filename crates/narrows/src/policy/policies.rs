//! The policies that texts may name, as a value.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::spec::PolicySpec;
use super::{POLICIES, Registered};
use crate::codec::Codecs;
use crate::error::{Error, Result};

/// Policies that a text may name. A clone costs nothing.
///
/// The default are those of this library. A policy of another crate is a value like them:
///
/// ```
/// use narrows::policy::{Balance, NoSettings, Policies, Registered};
///
/// static MINE: Registered = Registered {
///     name: "mine",
///     usage: "mine",
///     about: "the same as balance",
///     examples: &["mine"],
///     parse: |rest, _codecs| {
///         let settings = NoSettings {
///             name: "mine",
///             block_max: 512 << 10,
///             gather_ns: 0,
///             links: true,
///             methods: Vec::new,
///             build: |setup| Box::new(Balance::new(setup)),
///         };
///         settings.parse(rest)
///     },
/// };
///
/// let policies = Policies::default().with(&[&MINE])?;
/// assert_eq!(policies.parse("mine")?.name(), "mine");
/// # Ok::<(), narrows::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Policies(List);

#[derive(Clone, Default)]
enum List {
    #[default]
    Shipped,
    Own(Arc<[&'static Registered]>),
}

impl Policies {
    /// Those of this library: [`POLICIES`].
    pub fn shipped() -> &'static Self {
        static SHIPPED: Policies = Policies(List::Shipped);
        &SHIPPED
    }

    /// Exactly these policies, in the order of help texts.
    ///
    /// # Errors
    /// `Misuse` if two have the same name, or a name is empty or has a colon.
    pub fn new(policies: &[&'static Registered]) -> Result<Self> {
        let mut names = BTreeSet::new();
        for Registered { name, .. } in policies {
            if name.is_empty() || name.contains(':') {
                return Err(Error::misuse(format!("'{name}' is no name of a policy")));
            }
            if !names.insert(name) {
                return Err(Error::misuse(format!("two policies are called {name}")));
            }
        }
        Ok(Self(List::Own(policies.into())))
    }

    /// These policies and others after them.
    ///
    /// # Errors
    /// As [`Policies::new`].
    pub fn with(&self, others: &[&'static Registered]) -> Result<Self> {
        Self::new(&[self.list(), others].concat())
    }

    fn list(&self) -> &[&'static Registered] {
        match &self.0 {
            List::Shipped => POLICIES,
            List::Own(policies) => policies,
        }
    }

    /// All of them, in the order of help texts.
    pub fn iter(&self) -> impl Iterator<Item = &'static Registered> {
        self.list().iter().copied()
    }

    /// Parses a policy such as `balance` or `fixed:zstd:level=3,link`, with methods of this library.
    ///
    /// # Errors
    /// `Misuse` if no policy has the name, or it does not know the settings.
    pub fn parse(&self, text: &str) -> Result<PolicySpec> {
        self.parse_with(text, Codecs::shipped())
    }

    /// Parses a policy whose text may name methods of these codecs.
    ///
    /// # Errors
    /// As [`Policies::parse`].
    pub fn parse_with(&self, text: &str, codecs: &Codecs) -> Result<PolicySpec> {
        let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
        match self.iter().find(|policy| policy.name == name) {
            Some(entry) => Ok(PolicySpec::new(entry.name, (entry.parse)(rest, codecs)?)),
            None => {
                let known: Vec<_> = self.iter().map(|policy| policy.usage).collect();
                Err(Error::misuse(format!("no policy is called '{name}'; there are {}", known.join(", "))))
            }
        }
    }
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|policy| policy.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_there_once() {
        let shipped = Policies::shipped();
        assert_eq!(shipped.iter().count(), POLICIES.len());
        assert!(shipped.with(&POLICIES[..1]).unwrap_err().message.contains("two policies are called balance"));
        let one = Policies::new(&POLICIES[..1]).unwrap();
        assert_eq!(format!("{one:?}"), "[\"balance\"]");
        assert!(one.parse("storage").unwrap_err().message.contains("there are balance"));
        assert!(Policies::new(&[]).unwrap().parse("balance").is_err());
    }
}
