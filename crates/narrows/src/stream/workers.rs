//! Executors of the drivers with threads: they measure the time of jobs, and hand long ones to a pool.

use super::{decode, encode};
use crate::block::BufferPool;
use crate::codec::Contexts;
use crate::flow::{Executor, Work};
use crate::pool::Queue;
use crate::receiver::{DecodeDone, DecodeJob};
use crate::sender::{Done, Job};
use crate::sys;

/// A job whose time can be measured.
pub trait Timed: Work + Send + 'static {
    /// Runs it on this thread and measures its time. `brief`: it takes less time than reading the
    /// thread's CPU clock, which is a system call.
    fn measured(self, brief: bool, contexts: &mut Contexts, buffers: &BufferPool) -> Self::Done;
}

impl Timed for Job {
    fn measured(self, brief: bool, contexts: &mut Contexts, buffers: &BufferPool) -> Done {
        if !brief {
            return encode(self, contexts, buffers);
        }
        let begin_ns = sys::monotonic_ns();
        let mut done = self.run(contexts, buffers);
        done.wall_ns = sys::monotonic_ns() - begin_ns;
        done.cpu_ns = done.wall_ns;
        done
    }
}

impl Timed for DecodeJob {
    fn measured(self, brief: bool, contexts: &mut Contexts, buffers: &BufferPool) -> DecodeDone {
        // Nobody decides by the time of short jobs.
        if brief { self.run(contexts, buffers) } else { decode(self, contexts, buffers) }
    }
}

/// Runs jobs on the calling thread.
pub struct Alone<'a> {
    /// Codec contexts of this thread.
    pub contexts: &'a mut Contexts,
    /// Buffers of the flow.
    pub buffers: &'a BufferPool,
}

impl<J: Timed> Executor<J> for Alone<'_> {
    fn run(&mut self, job: J, brief: bool) -> J::Done {
        job.measured(brief, self.contexts, self.buffers)
    }
}

/// Takes the result of a job, on the worker that ran it.
pub type Told<D> = Box<dyn FnOnce(D) + Send>;

/// Runs jobs on the calling thread, or on a pool.
pub struct Workers<'a, T> {
    /// Codec contexts of this thread.
    pub contexts: &'a mut Contexts,
    /// Buffers of the flow.
    pub buffers: &'a BufferPool,
    /// The flow's queue.
    pub queue: &'a Queue,
    /// Makes what takes the result of a job, on the worker that ran it.
    pub tell: T,
}

impl<J: Timed, T: FnMut() -> Told<J::Done>> Executor<J> for Workers<'_, T> {
    fn run(&mut self, job: J, brief: bool) -> J::Done {
        job.measured(brief, self.contexts, self.buffers)
    }

    fn submit(&mut self, job: J) -> Result<(), J> {
        let (tell, buffers) = ((self.tell)(), self.buffers.clone());
        let task = Box::new(move |contexts: &mut Contexts| tell(job.measured(false, contexts, &buffers)));
        if let Err(task) = self.queue.submit(task) {
            // A queue has more room than an engine gives out at a time; should it ever be full, the block
            // must not be lost.
            task(self.contexts);
        }
        Ok(())
    }
}
