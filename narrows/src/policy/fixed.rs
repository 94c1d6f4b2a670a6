//! One method for all blocks: what people use today, and the baseline of every comparison.

use super::{Choice, Policy};
use crate::codec::Method;
use crate::monitor::View;

pub struct Fixed {
    method: Method,
    linked: bool,
}

impl Fixed {
    pub fn new(method: Method, linked: bool) -> Self {
        Self { method, linked }
    }
}

impl Policy for Fixed {
    /// The longest block that the flow allows: who fixes the method fixes the block length with `block_max`.
    fn choose(&mut self, view: &View<'_>) -> Choice {
        let len = view.upcoming.len().min(view.limits.block_max);
        let block_len = view.limits.block_max;
        if !view.limits.allows(self.method) {
            return Choice::new(Method::STORE, block_len);
        }
        let encode_ns = self.method.nominal_encode_ns(len);
        Choice { method: self.method, block_len, linked: self.linked, threads_max: None, encode_ns }
    }
}
