//! Finds out for each connection whether the other end has Narrows. The pumps' side of it: what they say goes here, what
//! comes of it goes to them as `Order::Hear`.

use narrows::upgrade::{Tuple, Word};

/// The way to the thread that negotiates. Nobody waits for it.
#[derive(Clone)]
pub(crate) struct Negotiator;

impl Negotiator {
    /// A program connects. `clock_ms`: the TCP timestamp clock of the socket, as it was when its SYN left.
    pub(crate) fn connecting(&self, _id: u64, _addresses: Tuple, _clock_ms: u32) {}

    /// A program accepted a connection; its client's clock as its SYN told it.
    pub(crate) fn accepted(&self, _id: u64, _addresses: Tuple, _syn_clock_ms: Option<u32>) {}

    pub(crate) fn say(&self, _id: u64, _word: Word) {}

    /// It is over.
    pub(crate) fn ended(&self, _id: u64) {}
}
