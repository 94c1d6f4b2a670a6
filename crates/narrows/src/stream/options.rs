//! Options of a flow, as the user chooses them. The driver adds the rest: link, workers, clock.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use super::{Control, Notes, cores, encoders};
use crate::block::BufferPool;
use crate::calibration::Calibration;
use crate::codec::{Codecs, DEFAULT_METHODS, Method};
use crate::flow::{Decoding, Encoding};
use crate::frame::{Attempt, HISTORY_DEFAULT};
use crate::jpeg;
use crate::monitor::cost::Prior;
use crate::monitor::expectation::{Expectation, Kind};
use crate::policy::{Policy, PolicySetup, PolicySpec};
use crate::receiver::{Receiver, ReceiverConfig};
use crate::sender::{Sender, SenderConfig};
use crate::stored::Stored;

/// Memory that an image of 1 MiB may take while it is recompressed, and how many may take it at once: more
/// cores than that make more than the links need for which images are recompressed.
const IMAGE_MEMORY: usize = 40 << 20;
const IMAGES_AT_ONCE: usize = 4;

/// Callback for the notes of the receiver's application ([`Notes`]). It must not wait for the flow;
/// an error that it returns ends the flow.
pub type OnNote = Box<dyn FnMut(&[u8]) -> crate::Result<()> + Send>;

/// Options of a flow that is sent. The defaults are those of `narrows send`.
///
/// ```
/// use narrows::stream::SendOptions;
///
/// let options = SendOptions::new("fixed:zstd:level=1".parse()?).threads(2).raw_len(1 << 20);
/// # Ok::<(), narrows::Error>(())
/// ```
// More than 20 fields, each of them an option with a method of its own.
#[must_use]
pub struct SendOptions {
    chooser: Chooser,
    methods: Option<Vec<Method>>,
    prior: Option<Prior>,
    calibration: Option<Calibration>,
    kinds: Vec<Kind>,
    /// The system is asked only if nobody says: that reads files, and `run` makes options for every
    /// connection.
    threads: Option<usize>,
    block_max: Option<usize>,
    history: Option<usize>,
    gather_ns: Option<u64>,
    raw_len: Option<u64>,
    images: bool,
    rest: SenderConfig,
    pub(super) search_always: bool,
    pub(super) search_if_asked: bool,
    pub(super) read_back: Option<Arc<dyn Stored>>,
    pub(super) stall_timeout: Option<Duration>,
    pub(super) from_file: bool,
    pub(super) trace: Option<Box<dyn Write + Send>>,
    pub(super) on_note: Option<OnNote>,
    pub(super) later: Option<Later>,
    pub(super) control: Arc<Control>,
}

/// What is done once a flow has lasted so long.
pub(super) type Later = (Duration, Box<dyn FnOnce() + Send>);

enum Chooser {
    Spec(PolicySpec),
    Own(Box<dyn Policy>),
}

impl Default for SendOptions {
    fn default() -> Self {
        Self::new(PolicySpec::balance())
    }
}

impl SendOptions {
    /// Options with this policy. If the policy has a file, it must be loaded
    /// ([`PolicySpec::load`]).
    pub fn new(policy: PolicySpec) -> Self {
        Self::with(Chooser::Spec(policy))
    }

    /// Options for streams that are kept, in a file or in memory: they are made as small as is worth the time
    /// ([`PolicySpec::storage`]). The default adapts to the time that a link takes, and a file in memory takes
    /// none.
    pub fn storage() -> Self {
        Self::new(PolicySpec::storage())
    }

    /// Options with a policy of the caller's own. Its blocks have up to 2 MiB, and it can link to
    /// 2 MiB of history.
    pub fn with_policy(policy: Box<dyn Policy>) -> Self {
        Self::with(Chooser::Own(policy))
    }

    fn with(chooser: Chooser) -> Self {
        Self {
            chooser,
            methods: None,
            prior: None,
            calibration: None,
            kinds: Vec::new(),
            threads: None,
            block_max: None,
            history: None,
            gather_ns: None,
            raw_len: None,
            images: false,
            rest: SenderConfig::default(),
            search_always: false,
            search_if_asked: false,
            read_back: None,
            stall_timeout: None,
            from_file: false,
            trace: None,
            on_note: None,
            later: None,
            control: Arc::default(),
        }
    }

    /// Number of worker threads that encode, at least 1; other threads read and write. Default:
    /// [`encoders`].
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads.max(1)), ..self }
    }

    /// Calls `act` on the thread that writes the link, once the flow has lasted `delay`: what shorter
    /// flows should not pay for.
    #[doc(hidden)]
    pub fn later(self, delay: Duration, act: impl FnOnce() + Send + 'static) -> Self {
        Self { later: Some((delay, Box::new(act))), ..self }
    }

    /// The methods that `balance` chooses from. Default: [`DEFAULT_METHODS`].
    pub fn methods(self, methods: &[Method]) -> Self {
        Self { methods: Some(methods.to_vec()), ..self }
    }

    /// Costs of methods before anything is measured. Default: [`Prior::shipped`].
    #[doc(hidden)]
    pub fn prior(self, prior: Prior) -> Self {
        Self { prior: Some(prior), ..self }
    }

    /// Calibration of this host. Default: none.
    #[doc(hidden)]
    pub fn calibration(self, calibration: Option<&Calibration>) -> Self {
        Self { calibration: calibration.cloned(), ..self }
    }

    /// What earlier flows to the same peer found, assumed until this one has evidence of its own.
    /// Default: nothing.
    #[doc(hidden)]
    pub fn expect(self, expectation: Option<&Expectation>) -> Self {
        let Expectation { link, kinds } = expectation.cloned().unwrap_or_default();
        Self { kinds, rest: SenderConfig { expected_link: link, ..self.rest }, ..self }
    }

    /// Whether `balance` recompresses JPEG images of which the source gives all bytes at once, where the link
    /// is so slow that this pays and the receiver decodes them ([`ReceiveOptions::images`]). An image
    /// is a block then, and up to four of them take 40 MiB each beside
    /// [`SendOptions::memory_max`]. Default: false.
    pub fn images(self, recompressed: bool) -> Self {
        Self { images: recompressed, ..self }
    }

    /// Maximum length of a block, in raw bytes. Default: that of the policy. Set more than 2 MiB
    /// only for receivers that are known to accept it.
    pub fn block_max(self, raw_len: usize) -> Self {
        Self { block_max: Some(raw_len), ..self }
    }

    /// Bytes of history for linked frames; 0 forbids linking. Default: 2 MiB if the policy links, which
    /// every reader accepts by default; on a duplex link the receiver decides too.
    pub fn history(self, len: usize) -> Self {
        Self { history: Some(len), ..self }
    }

    /// The codecs of this end. Default: [`Codecs::shipped`]. A duplex receiver is asked before one is used
    /// that not every reader of version 1 has; on a one-way link choose only what the reader has.
    pub fn registry(self, codecs: &Codecs) -> Self {
        Self { rest: SenderConfig { registry: codecs.clone(), ..self.rest }, ..self }
    }

    /// Codecs that may be used, bit n for codec n. Default: all of the registry. A duplex receiver decides
    /// too; for a one-way link leave out what its reader may lack
    /// ([`NAMED_CODECS`](crate::frame::NAMED_CODECS)).
    pub fn codecs(self, codecs: u64) -> Self {
        Self { rest: SenderConfig { codecs, ..self.rest }, ..self }
    }

    /// How far back repeats are looked for and sent as copies, in raw bytes, rounded down to a power
    /// of two, 1 GiB at most, and to the known length. Both ends keep so much in memory, unless they
    /// read it back, and the sender an index of 8 MiB.
    /// They are looked for while that gains time on the link, and from 4 MiB of known length on. On
    /// a duplex link the receiver decides too; a one-way one must allow as much. Default: 0, none.
    pub fn reach(self, len: usize) -> Self {
        Self { rest: SenderConfig { reach: len, ..self.rest }, ..self }
    }

    /// Whether repeats are looked for whatever time it takes. Default: false.
    #[doc(hidden)]
    pub fn search_always(self, always: bool) -> Self {
        Self { search_always: always, ..self }
    }

    /// Whether repeats are looked for only once a duplex receiver has stated a reach of its own, so
    /// that a sender may offer them to all. Default: false: from the first byte on.
    #[doc(hidden)]
    pub fn search_if_asked(self, asked: bool) -> Self {
        Self { search_if_asked: asked, ..self }
    }

    /// The bytes with which repeats are compared are read from `stored` instead of being kept in
    /// memory: from where the source reads, from its first byte on. If that is changed meanwhile, a
    /// check of the receiver fails; so without checks they are kept. Default: none.
    #[doc(hidden)]
    pub fn read_back(self, stored: Arc<dyn Stored>) -> Self {
        Self { read_back: Some(stored), ..self }
    }

    /// How long raw bytes may wait until a whole block has gathered, in ns. Default: that of the
    /// policy, which is 0 on links.
    pub fn gather_ns(self, ns: u64) -> Self {
        Self { gather_ns: Some(ns), ..self }
    }

    /// Maximum memory of the flow in bytes: raw and encoded data in flight and encoder contexts.
    /// Default: 20 MiB.
    pub fn memory_max(self, len: usize) -> Self {
        Self { rest: SenderConfig { memory_max: len, ..self.rest }, ..self }
    }

    /// Whether each block carries a 64-bit check. Default: true.
    pub fn check(self, check: bool) -> Self {
        Self { rest: SenderConfig { check, ..self.rest }, ..self }
    }

    /// Whether an index is appended, so that the stream serves as a seekable file. Default: false.
    pub fn index(self, index: bool) -> Self {
        Self { rest: SenderConfig { index, ..self.rest }, ..self }
    }

    /// Raw bytes after which the history is dropped, so that a reader of a file can begin there; 0:
    /// never. Default: 0.
    #[doc(hidden)]
    pub fn run_len(self, len: u64) -> Self {
        Self { rest: SenderConfig { run_len: len, ..self.rest }, ..self }
    }

    /// The effort that a file says it was encoded with. Default: none.
    #[doc(hidden)]
    pub fn attempt(self, attempt: Option<Attempt>) -> Self {
        Self { rest: SenderConfig { attempt, ..self.rest }, ..self }
    }

    /// Whether what a [`BlockSource`](super::BlockSource) gives at once is never joined with what it gives
    /// next: then no block has bytes of two. Default: false.
    #[doc(hidden)]
    pub fn separate(self, separate: bool) -> Self {
        Self { rest: SenderConfig { separate, ..self.rest }, ..self }
    }

    /// Whether every block but the last has the length that the policy chose, however long its bytes take to
    /// come, except where the flow is flushed. A policy that looks at the block alone then gives the
    /// same stream for the same bytes. Default: false.
    #[doc(hidden)]
    pub fn whole_blocks(self, whole: bool) -> Self {
        let gather_ns = if whole { Some(u64::MAX) } else { self.gather_ns };
        Self { gather_ns, rest: SenderConfig { whole_blocks: whole, ..self.rest }, ..self }
    }

    /// Whether the driver tells in this stream how much of the other direction was delivered
    /// ([`Sender::delivered`]). Default: false.
    #[doc(hidden)]
    pub fn tells_delivered(self, tells: bool) -> Self {
        Self { rest: SenderConfig { tells_delivered: tells, ..self.rest }, ..self }
    }

    /// Raw length of the whole flow in bytes, if it is known. Default: unknown.
    pub fn raw_len(self, len: impl Into<Option<u64>>) -> Self {
        Self { raw_len: len.into(), ..self }
    }

    /// The flow fails when the link takes no bytes, or a duplex peer confirms nothing, for this
    /// long. Default: never.
    pub fn stall_timeout(self, limit: Option<Duration>) -> Self {
        Self { stall_timeout: limit, ..self }
    }

    /// Whether the source is a regular file, so that reading it waits for no other program. Short
    /// and fast flows then need no thread for it. Default: false.
    #[doc(hidden)]
    pub fn from_file(self, from_file: bool) -> Self {
        Self { from_file, ..self }
    }

    /// Writes a JSON line for every decision. Default: no trace.
    pub fn trace(self, to: Box<dyn Write + Send>) -> Self {
        Self { trace: Some(to), ..self }
    }

    /// Calls `hear` for each note of the receiver's application ([`Notes`]).
    #[doc(hidden)]
    pub fn on_note(self, hear: OnNote) -> Self {
        Self { on_note: Some(hear), ..self }
    }

    /// By which other threads see and stop the flow.
    pub fn control(self, control: &Arc<Control>) -> Self {
        Self { control: Arc::clone(control), ..self }
    }

    /// A flow with these options, for drivers. Link, trace and notes are not set in it.
    #[doc(hidden)]
    pub fn encoding(self, buffers: &BufferPool) -> Encoding {
        let (config, policy) = self.into_engine();
        Encoding::new(Sender::new(config, policy, buffers.clone()))
    }

    /// Splits off the parts that an engine needs, for drivers. Link, trace and notes are not set in
    /// the result.
    #[doc(hidden)]
    pub fn into_engine(self) -> (SenderConfig, Box<dyn Policy>) {
        let (block_max, history, gather_ns) = match &self.chooser {
            Chooser::Spec(spec) => (spec.block_max(), if spec.links() { HISTORY_DEFAULT } else { 0 }, spec.gather_ns()),
            Chooser::Own(_) => (self.rest.block_max, HISTORY_DEFAULT, 0),
        };
        let threads = self.threads.unwrap_or_else(encoders);
        let (block_max, images_memory) = match self.images {
            true => (block_max.max(jpeg::LEN_MAX), threads.min(IMAGES_AT_ONCE) * IMAGE_MEMORY),
            false => (block_max, 0),
        };
        let config = SenderConfig {
            memory_max: self.rest.memory_max.saturating_add(images_memory),
            block_max: self.block_max.unwrap_or(block_max),
            history: self.history.unwrap_or(history),
            gather_ns: self.gather_ns.unwrap_or(gather_ns),
            cores: threads,
            raw_len: self.raw_len,
            ..self.rest
        };
        let policy = match self.chooser {
            Chooser::Own(policy) => policy,
            Chooser::Spec(spec) => spec.build(&PolicySetup {
                methods: self.methods.as_deref().unwrap_or(DEFAULT_METHODS),
                codecs: &config.registry,
                cores: threads,
                prior: self.prior.as_ref().unwrap_or(Prior::shipped()),
                calibration: self.calibration.as_ref(),
                kinds: &self.kinds,
                images: self.images,
            }),
        };
        (config, policy)
    }
}

/// Options of a flow that is received. The defaults are those of `narrows recv`.
#[derive(Default)]
#[must_use]
pub struct ReceiveOptions {
    threads: Option<usize>,
    rest: ReceiverConfig,
    pub(super) stall_timeout: Option<Duration>,
    pub(super) to_file: bool,
    pub(super) read_back: Option<(Arc<dyn Stored>, usize)>,
    pub(super) notes: Option<Notes>,
    pub(super) control: Arc<Control>,
}

impl ReceiveOptions {
    /// The codecs of this end. A stream that uses another one is refused. Default: [`Codecs::shipped`].
    pub fn registry(self, codecs: &Codecs) -> Self {
        Self { rest: ReceiverConfig { registry: codecs.clone(), ..self.rest }, ..self }
    }

    /// Worker threads that decode, at least 1. Default: [`cores`].
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads.max(1)), ..self }
    }

    /// Maximum number of wire and raw bytes held. Default: 32 MiB.
    pub fn memory_max(self, len: usize) -> Self {
        Self { rest: ReceiverConfig { memory_max: len, ..self.rest }, ..self }
    }

    /// Most bytes of history that are kept, beside `memory_max`. A one-way stream that needs more is
    /// refused, and a duplex sender takes no more. Default: 2 MiB.
    pub fn history_max(self, len: usize) -> Self {
        Self { rest: ReceiverConfig { history_max: len, ..self.rest }, ..self }
    }

    /// Most raw bytes that are kept for copies, beside `memory_max`, rounded down to a power of two.
    /// Only a stream that has copies takes them, and no more than its length. Default: 0; a stream
    /// with copies is refused, and a duplex sender sends none.
    pub fn reach_max(self, len: usize) -> Self {
        Self { rest: ReceiverConfig { reach_max: len, ..self.rest }, ..self }
    }

    /// Copies may refer up to `reach_max` bytes back, which are read from `stored` instead of being
    /// kept in memory: where the sink stores everything that is written to it, from its first byte on
    /// and at once. Of a stream without checks, which alone tell whether another program changed it,
    /// they are kept in memory, with [`ReceiveOptions::reach_max`] as limit. Default: none.
    #[doc(hidden)]
    pub fn read_back(self, stored: Arc<dyn Stored>, reach_max: usize) -> Self {
        Self { read_back: Some((stored, reach_max)), ..self }
    }

    /// Whether recompressed images are decoded, as files and some copies have them: that takes up to 64 MiB beside
    /// `memory_max` in each decoding thread. Default: false; a stream with images is refused at the first.
    pub fn images(self, decoded: bool) -> Self {
        Self { rest: ReceiverConfig { images: decoded, ..self.rest }, ..self }
    }

    /// Whether the end frame ends the stream on a one-way link too, for example on a pipe that
    /// another process keeps open. Default: false: the link is read to its end, since nothing may
    /// follow the end frame.
    pub fn ends_at_frame(self, ends: bool) -> Self {
        Self { rest: ReceiverConfig { ends_at_frame: ends, ..self.rest }, ..self }
    }

    /// The flow fails when nothing arrives for this long. Default: never.
    pub fn stall_timeout(self, limit: Option<Duration>) -> Self {
        Self { stall_timeout: limit, ..self }
    }

    /// Whether the sink is a regular file, so that writing it waits for no other program. Short and
    /// fast flows then need no thread for it. Default: false.
    #[doc(hidden)]
    pub fn to_file(self, to_file: bool) -> Self {
        Self { to_file, ..self }
    }

    /// Channel by which the sink sends notes to the sender's application.
    #[doc(hidden)]
    pub fn notes(self, notes: &Notes) -> Self {
        Self { notes: Some(notes.clone()), ..self }
    }

    /// By which other threads see and stop the flow.
    pub fn control(self, control: &Arc<Control>) -> Self {
        Self { control: Arc::clone(control), ..self }
    }

    /// A flow with these options, for drivers.
    #[doc(hidden)]
    pub fn decoding(self, buffers: &BufferPool) -> Decoding {
        Decoding::new(Receiver::new(self.into_engine(), buffers.clone()))
    }

    /// The engine's configuration, for drivers.
    #[doc(hidden)]
    pub fn into_engine(self) -> ReceiverConfig {
        ReceiverConfig { cores: self.threads.unwrap_or_else(cores), ..self.rest }
    }
}
