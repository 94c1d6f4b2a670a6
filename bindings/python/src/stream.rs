//! Streams: a writer that the engine's driver empties on threads of its own, a reader that decodes when it is asked,
//! and both at once in memory.
//!
//! No thread of the engine ever needs the interpreter's lock: what it makes for a Python object waits until a call
//! from Python passes it on. So nothing can hang at the end of the interpreter, and exceptions of the object reach
//! its caller.

use std::sync::{Mutex, PoisonError};

use narrows::block::BufferPool;
use narrows::codec::Contexts;
use narrows::policy::PolicySpec;
use narrows::receiver::{DecodeJob, Receiver};
use narrows::stream::{self, SendOptions};
use narrows::{Error, Result};
use pyo3::prelude::*;

mod exchange;
mod memory;
mod reader;
mod totals;
mod writer;

pub(crate) use self::memory::{compress, decompress};
pub(crate) use self::reader::Reader;
pub(crate) use self::totals::{ReceivedTotals, SentTotals};
pub(crate) use self::writer::{Writer, drive};

/// Jobs that together take less run on the thread that has them: starting others takes about 50 us each.
const ALONE_NS: u64 = 500_000;
/// A machine with more cores gains nothing: what is read at a time has a dozen blocks at most.
const THREADS_MAX: usize = 64;

/// How a flow is sent, as the program's `pipe` does it.
fn sending(policy: &str, threads: usize) -> Result<SendOptions> {
    let spec: PolicySpec = policy.parse()?;
    if let Some(file) = spec.file() {
        return Err(Error::misuse(format!("policies with a file such as {file} are for the program `narrows` only")));
    }
    Ok(SendOptions::new(spec).threads(threads))
}

/// Threads that encode, or that decode.
fn threads(asked: Option<usize>, default: fn() -> usize) -> Result<usize> {
    match asked {
        None => Ok(default().min(THREADS_MAX)),
        Some(n @ 1..=THREADS_MAX) => Ok(n),
        Some(n) => Err(Error::misuse(format!("threads are 1 to {THREADS_MAX}, not {n}"))),
    }
}

/// Runs the jobs, on several threads if that is worth starting them, and gives what each came to.
fn run<J: Send, D: Send>(
    jobs: Vec<J>,
    threads: usize,
    contexts: &mut Vec<Contexts>,
    estimate_ns: impl Fn(&J) -> u64,
    work: impl Fn(J, &mut Contexts) -> D + Sync,
) -> Vec<D> {
    let threads = if jobs.iter().map(estimate_ns).sum::<u64>() < ALONE_NS { 1 } else { threads.min(jobs.len()) };
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

/// Decodes what is there to be decoded. Says whether there was anything.
fn decode(receiver: &mut Receiver, contexts: &mut Vec<Contexts>, buffers: &BufferPool) -> Result<bool> {
    let jobs: Vec<DecodeJob> = std::iter::from_fn(|| receiver.poll_job()).collect();
    let (any, threads) = (!jobs.is_empty(), jobs.len());
    for done in
        run(jobs, threads, contexts, |job| job.estimate_ns, |job, contexts| stream::decode(job, contexts, buffers))
    {
        receiver.finish(done)?;
    }
    Ok(any)
}

/// The clock of flows in memory.
fn clock() -> impl Fn() -> u64 {
    let begun = std::time::Instant::now();
    move || begun.elapsed().as_nanos() as u64
}

/// Seconds of Python as a limit; `None` is none.
fn limit(seconds: Option<f64>) -> PyResult<Option<std::time::Duration>> {
    let wrong = |_| crate::error::raised(Error::misuse("a timeout is a number of seconds, 0 or more, or None"));
    seconds.map(|s| std::time::Duration::try_from_secs_f64(s).map_err(wrong)).transpose()
}

fn other_process() -> Error {
    Error::misuse("the stream was opened in another process: its threads are there")
}
