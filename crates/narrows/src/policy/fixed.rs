//! `fixed`: one method for all blocks, as in common use; the baseline of every comparison.

use std::fmt;
use std::sync::Arc;

use super::{Choice, Policy, PolicySettings, PolicySetup, Registered, parse_method, print_method};
use crate::codec::Method;
use crate::monitor::View;

/// The policy: one method for all blocks.
pub struct Fixed {
    method: Method,
    linked: bool,
}

impl Fixed {
    /// A policy that uses `method` for every block, linked if `linked`.
    pub fn new(method: Method, linked: bool) -> Self {
        Self { method, linked }
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
        let encode_ns = self.method.nominal_encode_ns(len);
        Choice { linked: self.linked, encode_ns, ..Choice::new(self.method, block_len) }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) method: Method,
    pub(super) linked: bool,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fixed:{}", print_method(self.method, self.linked))
    }
}

impl PolicySettings for Settings {
    fn build(&self, _setup: &PolicySetup<'_>) -> Box<dyn Policy> {
        Box::new(Fixed::new(self.method, self.linked))
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
    parse: |rest| {
        let (method, linked) = parse_method(rest.strip_prefix(':').unwrap_or_default())?;
        Ok(Arc::new(Settings { method, linked }))
    },
};
