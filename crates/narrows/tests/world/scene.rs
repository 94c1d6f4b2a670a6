//! A hand-made view, as input of a policy without an engine.

use narrows::codec::Method;
use narrows::monitor::{Ask, CpuView, Limits, LinkView, Pending, PendingState, ReceiverView, View};
use narrows::policy::{Choice, Policy};

use super::MS;

/// A view that owns what it shows; every field can be set before [`Scene::ask`].
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) now_ns: u64,
    pub(crate) busy_ns: u64,
    pub(crate) seq: u64,
    pub(crate) raw_offset: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) left: Option<u64>,
    pub(crate) link: LinkView,
    pub(crate) cpu: CpuView,
    pub(crate) receiver: ReceiverView,
    pub(crate) queue: Vec<Pending>,
    pub(crate) limits: Limits,
    pub(crate) ask: Ask,
}

impl std::fmt::Debug for Scene {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let view = View { upcoming: &self.data[..self.data.len().min(16)], ..self.view() };
        write!(f, "{view:?}, {} bytes in all", self.data.len())
    }
}

impl Scene {
    /// A flow that has run for a second on a link of this rate, with two encoded blocks waiting.
    pub(crate) fn new(data: Vec<u8>, mbit_per_s: f64) -> Self {
        let waiting = |seq| Pending {
            seq,
            raw_len: 128 << 10,
            method: Method::STORE,
            chosen_ns: 990 * MS,
            state: PendingState::Ready { unsent_len: 128 << 10 },
        };
        Self {
            now_ns: 1000 * MS,
            busy_ns: 1000 * MS,
            seq: 30,
            raw_offset: 30_000,
            data,
            left: None,
            link: LinkView { rate_bytes_per_s: mbit_per_s * 125e3, known: true, ..LinkView::default() },
            cpu: CpuView { cores: 2, busy: 1 },
            receiver: ReceiverView { reports: true, cores: 4, backlog_bytes: 0 },
            queue: vec![waiting(28), waiting(29)],
            limits: Limits { block_max: 512 << 10, history: 0, codecs: u64::MAX, behind: 0, dictionary: None },
            ask: Ask::Next,
        }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View {
            now_ns: self.now_ns,
            busy_ns: self.busy_ns,
            seq: self.seq,
            raw_offset: self.raw_offset,
            upcoming: &self.data[..self.data.len().min(self.limits.block_max)],
            gathered: self.data.len(),
            left: self.left,
            link: self.link,
            cpu: self.cpu,
            receiver: self.receiver,
            queue: &self.queue,
            limits: self.limits,
            ask: self.ask,
        }
    }

    /// Asks the same question `times` times, so that the price settles; returns the last answer.
    pub(crate) fn ask(&mut self, policy: &mut dyn Policy, times: usize) -> Choice {
        let mut choice = policy.choose(&self.view());
        for _ in 1..times {
            self.seq += 1;
            self.raw_offset += 1000;
            choice = policy.choose(&self.view());
        }
        self.seq += 1;
        self.raw_offset += 1000;
        choice
    }
}
