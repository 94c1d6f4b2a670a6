//! The blocking driver: moves bytes between an engine, the source or sink, and a link, and runs
//! jobs on a pool.
//!
//! One mutex holds the engine; jobs, reads and writes run outside it. Only the thread that has
//! locked the link's write half takes frames out of the engine. Frames thus stay in order although
//! several threads may write: a single small message is written by the thread that read it, without
//! waking another.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::block::BufferPool;
use crate::codec::Contexts;
use crate::error::{Error, ErrorKind};
use crate::receiver::{DecodeDone, DecodeJob, RecvSummary};
use crate::sender::{Done, Job, Summary};
use crate::sys;

mod coder;
mod compression;
mod notes;
mod options;
mod receive;
mod repeats;
mod send;
mod source;
mod stored;
mod workers;

#[cfg(feature = "tokio")]
pub use coder::{AsyncDecoder, AsyncEncoder};
pub use coder::{Decoder, Encoder};
pub use compression::{Compression, MEMORY_TOTAL, MESSAGE_HISTORY, RECEIVED_MAX};
pub use notes::Notes;
pub use options::{OnNote, ReceiveOptions, SendOptions};
pub use receive::{receive, receive_then};
pub use send::{send, send_blocks};
pub use source::BlockSource;
pub use workers::{Alone, Timed, Told, Workers};

/// Frames and raw data up to this length are written by the thread that made them.
const DIRECT_MAX: usize = 16 << 10;
/// With fewer cores than this, which both ends and the link may share, one thread that reads and
/// writes is as fast as two that wake each other.
const PARALLEL_CORES: usize = 3;
/// Interval at which a thread that waits for I/O checks whether it must stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A handle by which other threads observe and stop a flow.
#[derive(Default)]
pub struct Control {
    stop: AtomicBool,
    flush: OnceLock<Box<dyn Fn() + Send + Sync>>,
    send: Seen<Summary>,
    receive: Seen<RecvSummary>,
}

/// Totals of a running flow, and the final ones, which are needed after a failure above all.
struct Seen<T> {
    now: OnceLock<Box<dyn Fn() -> Option<T> + Send + Sync>>,
    last: OnceLock<T>,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self { now: OnceLock::new(), last: OnceLock::new() }
    }
}

impl<T: Clone + Default> Seen<T> {
    fn get(&self) -> T {
        // The final totals are set before the flow is dropped.
        self.now.get().and_then(|f| f()).or_else(|| self.last.get().cloned()).unwrap_or_default()
    }
}

impl Control {
    /// Ends the flow soon, with an error. For SIGINT.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether [`Control::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Sends the bytes that a sending flow has gathered: they wait neither for a whole block
    /// ([`PolicySettings::gather_ns`](crate::policy::PolicySettings::gather_ns)) nor, while the link
    /// is busy, for more bytes.
    pub fn flush(&self) {
        self.flush.get().iter().for_each(|flush| flush());
    }

    /// Totals of a sending flow so far.
    pub fn send_summary(&self) -> Summary {
        self.send.get()
    }

    /// Totals of a receiving flow so far.
    pub fn receive_summary(&self) -> RecvSummary {
        self.receive.get()
    }

    fn check(&self) -> crate::Result<()> {
        if self.is_stopped() {
            return Err(Error::new(ErrorKind::Io, "interrupted"));
        }
        Ok(())
    }
}

/// Number of cores that this process may use, by affinity and cgroup quota.
pub fn cores() -> usize {
    sys::cores()
}

/// Default number of encoding workers. With four cores or more, one core is left for reading,
/// checking and writing, and for the other programs of a transfer: a worker that is interrupted for
/// a scheduler slice of 3 ms delays all blocks behind its own.
pub fn encoders() -> usize {
    match cores() {
        n @ 1..4 => n,
        n => n - 1,
    }
}

/// CPU time of the calling thread in ns; 0 if unavailable.
pub fn thread_cpu_ns() -> u64 {
    sys::thread_cpu_ns().unwrap_or(0)
}

/// Runs a sender's job on this thread and measures its time.
pub fn encode(job: Job, contexts: &mut Contexts, buffers: &BufferPool) -> Done {
    let (wall, cpu) = (sys::monotonic_ns(), sys::thread_cpu_ns());
    let mut done = job.run(contexts, buffers);
    done.wall_ns = sys::monotonic_ns() - wall;
    done.cpu_ns = match (cpu, sys::thread_cpu_ns()) {
        (Some(begin), Some(end)) => end - begin,
        _ => done.wall_ns,
    };
    done
}

/// Runs a receiver's job on this thread and measures its CPU time.
pub fn decode(job: DecodeJob, contexts: &mut Contexts, buffers: &BufferPool) -> DecodeDone {
    let (begin_ns, begin) = (sys::monotonic_ns(), sys::thread_cpu_ns());
    let mut done = job.run(contexts, buffers);
    done.cpu_ns = begin.zip(sys::thread_cpu_ns()).map_or(0, |(b, e)| e - b);
    done.wall_ns = sys::monotonic_ns() - begin_ns;
    done
}

/// Gives the calling thread the lowest scheduling priority.
pub fn lower_thread_priority() {
    sys::set_thread_nice(19);
}

/// Starts to write a range of a file to the disk, so that a later fsync has less to do. A hint: it
/// does not wait, and reports no failures; the fsync does.
#[cfg(unix)]
pub fn start_writeback(file: &impl std::os::fd::AsFd, offset: u64, len: u64) {
    sys::start_writeback(file.as_fd(), offset, len);
}

/// Returns memory to the system that was freed in small pieces: after many flows have ended in a
/// program that goes on. It takes some milliseconds for 100 MB.
pub fn return_free_memory() {
    sys::return_free_memory();
}

/// Returns the tables of slow codecs to the system as soon as a block is done, for programs that
/// must use little memory. It changes the C library's allocator for the whole process, so a library
/// must never call it by itself.
pub fn return_memory_early() {
    sys::return_large_blocks();
}

/// A time limit that restarts at every progress.
struct Stall {
    limit: Option<Duration>,
    last_ns: u64,
}

impl Stall {
    fn new(limit: Option<Duration>) -> Self {
        Self { limit, last_ns: sys::monotonic_ns() }
    }

    fn progress(&mut self) {
        self.last_ns = sys::monotonic_ns();
    }

    fn check(&self, what: &str) -> crate::Result<()> {
        match self.limit {
            Some(limit) if sys::monotonic_ns().saturating_sub(self.last_ns) > limit.as_nanos() as u64 => {
                let text = format!("no progress for {} s: {what}", limit.as_secs_f64());
                Err(Error { source: Some(io::ErrorKind::TimedOut.into()), ..Error::new(ErrorKind::Io, text) })
            }
            _ => Ok(()),
        }
    }
}

/// Calls the function if the thread panics in the caller's source or sink, so that the flow ends.
struct FailOnPanic<F: Fn()>(F);

impl<F: Fn()> Drop for FailOnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// A condition variable that is rung without a system call where nobody waits. What a waiting thread
/// looks for must change under the same mutex before the bell is rung.
#[derive(Default)]
struct Bell {
    condvar: Condvar,
    /// Changes under the mutex, so that whoever changed something under it sees who began to wait
    /// before.
    waiting: AtomicUsize,
}

impl Bell {
    /// Waits until it rings, at most `most`. Returns false after that time.
    fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, most: Duration) -> (MutexGuard<'a, T>, bool) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let (guard, timeout) = self.condvar.wait_timeout(guard, most).unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        (guard, !timeout.timed_out())
    }

    fn ring(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.condvar.notify_all();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic is a bug and fails its flow; the other threads must still end in order.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn peer_gone(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted)
}
