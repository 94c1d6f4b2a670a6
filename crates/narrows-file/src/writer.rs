//! Writing files: the engine's sender, with an index and places to begin at.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use narrows::block::{Block, BufferPool};
use narrows::frame::Attempt;
use narrows::hint::{Hint, Mode};
use narrows::policy::PolicySpec;
use narrows::sender::Summary;
use narrows::stream::{self, BlockSource, Control, SendOptions};
use narrows::transport::Link;
use narrows::{Error, ErrorKind, Result};

use crate::effort::Effort;
use crate::file::io_error;

/// Raw bytes of a run where blocks refer to earlier ones: what a reader decodes at most for a byte.
/// Runs of 16 MiB are 1 % smaller than those of 4 MiB where they have a history of 2 MiB.
const RUN_LEN: u64 = 4 << 20;
const RUN_LEN_ARCHIVE: u64 = 16 << 20;
/// Small writes are gathered until there are so many bytes.
const GATHER: usize = 256 << 10;
/// Gathered pieces that wait for the engine.
const PIECES: usize = 4;

/// How a file is written.
#[derive(Debug, Clone)]
#[must_use]
pub struct WriteOptions {
    hint: Hint,
    policy: Option<PolicySpec>,
    threads: Option<usize>,
    block_max: Option<usize>,
    run_len: Option<u64>,
    check: bool,
    raw_len: Option<u64>,
    memory_max: Option<usize>,
    whole_blocks: bool,
    attempt: Option<Attempt>,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            hint: Hint::default(),
            policy: None,
            threads: None,
            block_max: None,
            run_len: None,
            check: true,
            raw_len: None,
            memory_max: None,
            whole_blocks: false,
            attempt: None,
        }
    }
}

impl WriteOptions {
    /// What time and bytes are worth. Default: [`Mode::Balanced`].
    pub fn mode(self, mode: Mode) -> Self {
        Self { hint: Hint { mode: Some(mode), ..self.hint }, ..self }
    }

    /// Raw bytes/s that all cores together must encode at least. Default: as the mode says.
    pub fn encode_rate(self, bytes_per_s: Option<u64>) -> Self {
        Self { hint: Hint { encode_rate: bytes_per_s, ..self.hint }, ..self }
    }

    /// What the user says about the bytes, instead of what was said so far.
    pub fn hint(self, hint: Hint) -> Self {
        Self { hint, ..self }
    }

    /// The policy, instead of that of the mode.
    pub fn policy(self, policy: PolicySpec) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Threads that encode. Default: [`stream::encoders`].
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Longest block in raw bytes. Default: that of the policy.
    pub fn block_max(self, len: usize) -> Self {
        Self { block_max: Some(len), ..self }
    }

    /// Raw bytes of a run where blocks refer to earlier ones. Default: 4 MiB, 16 MiB
    /// for archives.
    pub fn run_len(self, len: u64) -> Self {
        Self { run_len: Some(len.max(1)), ..self }
    }

    /// Whether each block has a check. Without it a reader has to read all headers first, and finds
    /// no damage. Default: true.
    pub fn check(self, check: bool) -> Self {
        Self { check, ..self }
    }

    /// Raw length of the file, if it is known. Default: unknown.
    pub fn raw_len(self, len: impl Into<Option<u64>>) -> Self {
        Self { raw_len: len.into(), ..self }
    }

    /// Most memory of blocks in bytes. Default: that of a flow, in which several blocks of 2 MiB find no
    /// room under the heaviest methods.
    pub fn memory_max(self, bytes: usize) -> Self {
        Self { memory_max: Some(bytes), ..self }
    }

    /// Whether blocks wait until they are whole, however long that takes, so that they do not depend on when
    /// the bytes are written. Default: false: after a second they are written as they are, so that
    /// little is lost of a slow file whose writer dies.
    pub fn whole_blocks(self, whole: bool) -> Self {
        Self { whole_blocks: whole, ..self }
    }

    /// The effort that the file records, also for so many streams right before this one. Default: that of
    /// the mode, if nothing but it was said.
    pub fn attempt(self, effort: Effort, before: u8) -> Self {
        Self { attempt: Some(Attempt { before, ..effort.attempt() }), ..self }
    }

    /// The policy that it stands for.
    pub fn spec(&self) -> PolicySpec {
        self.policy.clone().unwrap_or_else(|| PolicySpec::of_hint(&self.hint, Mode::default()))
    }

    /// The same for [`stream::send`], whose link is the file.
    pub fn send_options(&self) -> SendOptions {
        let mode = self.hint.mode.unwrap_or_default();
        let default = if mode == Mode::Archive { RUN_LEN_ARCHIVE } else { RUN_LEN };
        let run_len = self.run_len.unwrap_or(default);
        let options = SendOptions::new(self.spec()).index(true).run_len(run_len).check(self.check);
        // What a floor or a policy of its own made lighter, repack may still make smaller.
        let has_all = self.policy.is_none() && Hint { mode: None, ..self.hint.clone() }.is_empty();
        let attempt = self.attempt.or_else(|| has_all.then(|| Effort::of(mode).attempt()));
        let options = options.raw_len(self.raw_len).attempt(attempt);
        let options = self.memory_max.into_iter().fold(options, SendOptions::memory_max);
        let options = if self.whole_blocks { options.whole_blocks(true) } else { options };
        let options = self.threads.into_iter().fold(options, SendOptions::threads);
        self.block_max.into_iter().fold(options, SendOptions::block_max)
    }
}

/// Writes a file. [`Writer::finish`] must be called: a file whose writer is dropped breaks off.
pub struct Writer<W> {
    to_flow: Option<SyncSender<Vec<u8>>>,
    flow: Option<JoinHandle<Result<Summary>>>,
    control: Arc<Control>,
    /// Taken out at the end, when threads of the flow may still have a handle.
    sink: Arc<Mutex<Option<W>>>,
    gathered: Vec<u8>,
}

impl<W: Write + Send + 'static> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(sink: W, options: WriteOptions) -> io::Result<Self> {
        let (to_flow, pieces) = sync_channel(PIECES);
        let sink = Arc::new(Mutex::new(Some(sink)));
        let link = Link::writer(Shared(Arc::clone(&sink)));
        let control = Arc::new(Control::default());
        let options = options.send_options().control(&control);
        let flow =
            move || stream::send_blocks(Pieces { pieces, rest: Block::default() }, link, options).map(|(s, _)| s);
        let flow = std::thread::Builder::new().name("narrows-file".into()).spawn(flow)?;
        Ok(Self { to_flow: Some(to_flow), flow: Some(flow), control, sink, gathered: Vec::new() })
    }

    /// Ends the file and returns what it was written to.
    ///
    /// # Errors
    /// The sink has failed.
    pub fn finish(mut self) -> Result<(W, Summary)> {
        let passed = self.pass_on();
        self.to_flow = None;
        let summary = self.join()?;
        passed?;
        let sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok((sink.ok_or_else(|| Error::misuse("the sink is gone; this is a bug"))?, summary))
    }

    fn join(&mut self) -> Result<Summary> {
        match self.flow.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(Error::misuse("the writer has failed already")),
        }
    }

    fn pass_on(&mut self) -> Result<()> {
        let piece = std::mem::take(&mut self.gathered);
        let Some(to_flow) = self.to_flow.as_ref().filter(|_| !piece.is_empty()) else { return Ok(()) };
        if to_flow.send(piece).is_ok() {
            return Ok(());
        }
        self.to_flow = None;
        self.join().and(Err(Error::new(ErrorKind::Io, "the writer has ended")))
    }
}

impl<W: Write + Send + 'static> Write for Writer<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.to_flow.is_none() {
            return Err(io::Error::other("the writer has failed already"));
        }
        let n = buf.len().min(GATHER - self.gathered.len());
        self.gathered.extend_from_slice(&buf[..n]);
        if self.gathered.len() == GATHER {
            self.pass_on().map_err(io_error)?;
        }
        Ok(n)
    }

    /// Hands on what was gathered; the engine writes it soon.
    fn flush(&mut self) -> io::Result<()> {
        self.pass_on().map_err(io_error)?;
        self.control.flush();
        Ok(())
    }
}

impl<W> Drop for Writer<W> {
    fn drop(&mut self) {
        if let Some(flow) = self.flow.take() {
            self.control.stop();
            self.to_flow = None;
            let _ = flow.join();
        }
        // Threads of the flow may keep a handle for a while. What has to be undone of a file without end
        // is undone before this returns: the program may be about to exit.
        drop(self.sink.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A sink that is taken out at the end.
pub(crate) struct Shared<W>(pub(crate) Arc<Mutex<Option<W>>>);

impl<W> Shared<W> {
    fn with<T>(&self, act: impl FnOnce(&mut W) -> io::Result<T>) -> io::Result<T> {
        let mut sink = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sink.as_mut().map_or_else(|| Err(io::ErrorKind::BrokenPipe.into()), act)
    }
}

impl<W: Write> Write for Shared<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.with(|sink| sink.write(buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(Write::flush)
    }
}

/// Gathered pieces as the source of a flow.
struct Pieces {
    pieces: Receiver<Vec<u8>>,
    rest: Block,
}

impl BlockSource for Pieces {
    fn next(&mut self, len: usize, _buffers: &BufferPool) -> io::Result<Block> {
        if self.rest.is_empty() {
            // The end of the channel is that of the file.
            self.rest = self.pieces.recv().map(Block::from_vec).unwrap_or_default();
        }
        let n = self.rest.len().min(len.max(1));
        Ok(self.rest.split_to(n))
    }
}
