//! `fixed`: one method for all blocks, as in common use; the baseline of every comparison.

use std::fmt;
use std::sync::Arc;

use super::{Choice, Policy, PolicySettings, PolicySetup, Registered};
use crate::codec::{Codecs, Method};
use crate::monitor::View;

/// The policy: one method for all blocks.
pub struct Fixed {
    method: Method,
    linked: bool,
    /// Nominal nanoseconds for each raw byte.
    encode_ns: f32,
}

impl Fixed {
    /// A policy that uses `method` for every block, linked if `linked`.
    pub fn new(method: Method, linked: bool) -> Self {
        Self::among(Codecs::shipped(), method, linked)
    }

    fn among(codecs: &Codecs, method: Method, linked: bool) -> Self {
        Self { method, linked, encode_ns: codecs.nominal_ns_per_byte(method).0 }
    }
}

impl Policy for Fixed {
    /// Asks for the longest block that the flow allows, so the user sets the block length with
    /// `block_max`.
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let len = view.upcoming.len().min(view.limits.block_max);
        let block_len = view.limits.block_max;
        if !view.limits.allows(self.method) {
            return Choice::new(Method::STORE, block_len);
        }
        let encode_ns = (self.encode_ns * len as f32) as u64;
        Choice { linked: self.linked, encode_ns, ..Choice::new(self.method, block_len) }
    }
}

#[derive(Debug)]
pub(super) struct Settings {
    method: Method,
    linked: bool,
    /// The method as the codecs print it that read it.
    text: String,
}

impl Settings {
    pub(super) fn new(method: Method, linked: bool, codecs: &Codecs) -> Self {
        Self { method, linked, text: codecs.print_linked(method, linked) }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fixed:{}", self.text)
    }
}

impl PolicySettings for Settings {
    fn build(&self, setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        Box::new(Fixed::among(setup.codecs, self.method, self.linked))
    }

    /// 128 KiB suits most methods. Linked blocks are longer: the time to enter the history counts
    /// once for each.
    fn block_max(&self) -> usize {
        if self.linked { 512 << 10 } else { 128 << 10 }
    }

    fn methods(&self) -> Vec<Method> {
        vec![self.method]
    }

    fn links(&self) -> bool {
        self.linked
    }

    fn takes_messages(&self) -> bool {
        true
    }
}

pub(super) const ENTRY: Registered = Registered {
    name: "fixed",
    usage: "fixed:METHOD",
    about: "one method for all blocks",
    examples: &["fixed:store", "fixed:zstd", "fixed:zstd:level=1,link", "fixed:lz4:accel=16", "fixed:lz4:link"],
    parse: |rest, codecs| {
        let (method, linked) = codecs.parse_linked(rest.strip_prefix(':').unwrap_or_default())?;
        Ok(Arc::new(Settings::new(method, linked, codecs)))
    },
};
