//! Streams: a writer that the engine's driver drains on its own threads, a reader that decodes on
//! demand, and encoding and decoding of streams in memory, whole or piece by piece.
//!
//! No thread of the engine ever needs the interpreter's lock: its output for a Python object waits
//! until a call from Python passes it on. So nothing can hang at interpreter shutdown, and
//! exceptions of the object reach the caller.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use narrows::block::BufferPool;
use narrows::codec::Contexts;
use narrows::flow::{Budget, Decoding, Executor};
use narrows::frame::BASELINE_HISTORY;
use narrows::stream::{SendOptions, Timed};
use narrows::{Error, Result};
use narrows_file::{Mode, WriteOptions};
use pyo3::prelude::*;

mod compressor;
mod decompressor;
mod exchange;
mod flow;
mod memory;
mod reader;
mod totals;
mod turn;
mod writer;

pub(crate) use self::compressor::Compressor;
pub(crate) use self::decompressor::Decompressor;
pub(crate) use self::flow::Flow;
pub(crate) use self::memory::{compress, decompress};
pub(crate) use self::reader::Reader;
pub(crate) use self::totals::{Received, ReceivedTotals, SentTotals};
pub(crate) use self::writer::{Writer, drive};

/// Jobs that take less than this in total run on the calling thread: starting another thread takes
/// about 50 us.
const ALONE_NS: u64 = 500_000;
/// More threads gain nothing: what is read at a time has a dozen blocks at most.
const THREADS_MAX: usize = 64;

/// Configuration and policy of a sender, as those of `narrows pipe` with less history.
fn sending(policy: &str, threads: usize) -> Result<SendOptions> {
    let spec = narrows_classic::policies().parse(policy)?;
    if let Some(file) = spec.file() {
        return Err(Error::misuse(format!("only the program `narrows` supports policies with a file such as {file}")));
    }
    // A program may have many flows open, so each keeps little.
    let history = if spec.links() { BASELINE_HISTORY } else { 0 };
    Ok(SendOptions::new(spec).threads(threads).history(history))
}

/// `policy` with this level of its method.
pub(crate) fn with_level(policy: &str, level: Option<i32>) -> Result<Cow<'_, str>> {
    let Some(level) = level else { return Ok(policy.into()) };
    let method = policy.strip_prefix("fixed:").filter(|method| !method.contains("level="));
    let none =
        || Error::misuse(format!("level= needs a fixed method without a level, such as fixed:zstd, not {policy}"));
    let (codec, rest) = match method.ok_or_else(none)?.split_once(':') {
        Some((codec, rest)) => (codec, format!(",{rest}")),
        None => (method.unwrap_or_default(), String::new()),
    };
    Ok(format!("fixed:{codec}:level={level}{rest}").into())
}

/// Private: the policy with this level of its method.
#[pyfunction]
#[pyo3(signature = (policy, level, /), name = "with_level")]
pub(crate) fn leveled(policy: &str, level: i32) -> PyResult<String> {
    with_level(policy, Some(level)).map(Cow::into_owned).map_err(crate::error::raised)
}

/// Configuration of a file that is read at any byte, as `narrows FILE` writes them.
fn storing(preset: &str, encode_rate: Option<u64>, threads: usize) -> Result<SendOptions> {
    let mode = Mode::ALL.into_iter().find(|mode| mode.name() == preset);
    let none = || Error::misuse(format!("no preset is called {preset:?}; there are fast, balanced and archive"));
    let options = WriteOptions::default().mode(mode.ok_or_else(none)?).encode_rate(encode_rate);
    Ok(options.threads(threads).send_options())
}

/// Number of threads that encode or decode: `asked`, else the default, at most [`THREADS_MAX`].
pub(crate) fn threads(asked: Option<usize>, default: fn() -> usize) -> Result<usize> {
    match asked {
        None => Ok(default().min(THREADS_MAX)),
        Some(n @ 1..=THREADS_MAX) => Ok(n),
        Some(n) => Err(Error::misuse(format!("threads must be 1 to {THREADS_MAX}, not {n}"))),
    }
}

/// Jobs that are run together.
struct Batch<'a, J> {
    contexts: &'a mut Vec<Contexts>,
    buffers: &'a BufferPool,
    /// Whether their CPU time is measured, which takes longer than a short job.
    timed: bool,
    jobs: Vec<J>,
}

impl<J: Timed> Executor<J> for Batch<'_, J> {
    fn run(&mut self, job: J, brief: bool) -> J::Done {
        self.contexts.resize_with(self.contexts.len().max(1), Contexts::default);
        job.measured(brief || !self.timed, &mut self.contexts[0], self.buffers)
    }

    fn submit(&mut self, job: J) -> std::result::Result<(), J> {
        self.jobs.push(job);
        Ok(())
    }
}

impl<J: Timed<Done: Send>> Batch<'_, J> {
    /// Runs the jobs, on several threads if that is worth starting them. Returns their results.
    fn run_all(self, threads: usize) -> Vec<J::Done> {
        let Self { contexts, buffers, timed, jobs } = self;
        let work = |job: J, contexts: &mut Contexts| job.measured(!timed, contexts, buffers);
        let threads = if jobs.iter().map(J::estimate_ns).sum::<u64>() < ALONE_NS { 1 } else { threads.min(jobs.len()) };
        contexts.resize_with(contexts.len().max(threads).max(1), Contexts::default);
        if threads < 2 {
            return jobs.into_iter().map(|job| work(job, &mut contexts[0])).collect();
        }
        let jobs = Mutex::new(jobs.into_iter());
        let worker = |contexts: &mut Contexts| {
            let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
            std::iter::from_fn(next).map(|job| work(job, contexts)).collect::<Vec<_>>()
        };
        let (own, others) = contexts.split_at_mut(1);
        std::thread::scope(|scope| {
            let worker = &worker;
            let begin = |contexts| scope.spawn(move || worker(contexts));
            let others: Vec<_> = others[..threads - 1].iter_mut().map(begin).collect();
            let mut done = worker(&mut own[0]);
            for thread in others {
                done.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            done
        })
    }
}

/// Decodes all available blocks. Returns whether there were any.
fn decode(
    decoding: &mut Decoding,
    threads: usize,
    timed: bool,
    contexts: &mut Vec<Contexts>,
    buffers: &BufferPool,
) -> Result<bool> {
    let mut batch = Batch { contexts, buffers, timed, jobs: Vec::new() };
    let mut worked = decoding.work(Budget::BULK, &mut batch);
    for done in batch.run_all(threads) {
        // After a failure too: what comes before the damage is delivered.
        let finished = decoding.finish(done);
        worked = worked.and_then(|any| finished.map(|()| any));
    }
    worked
}

/// The clock of flows in memory.
fn clock() -> impl Fn() -> u64 {
    let begun = std::time::Instant::now();
    move || begun.elapsed().as_nanos() as u64
}

/// A timeout in seconds from Python as a duration; `None` is no limit.
fn limit(seconds: Option<f64>) -> PyResult<Option<std::time::Duration>> {
    let wrong = |_| crate::error::raised(Error::misuse("a timeout must be a number of seconds, 0 or more, or None"));
    seconds.map(|s| std::time::Duration::try_from_secs_f64(s).map_err(wrong)).transpose()
}

fn other_process() -> Error {
    Error::misuse("the stream was opened in another process, which has its threads")
}
