//! One direction of a flow with everything but its I/O: a sender or receiver, the jobs that are out,
//! and the choice of the thread for each job. No I/O, no thread, no clock.
//!
//! ```text
//! driver -- push, on_link --> Encoding -- work --> Executor: run here, or submit to a worker
//!        <- poll_transmit --           <- finish -- results of workers
//! ```
//!
//! A driver keeps its descriptors, its clock and its fairness between flows. It calls `work` after
//! everything that may have made jobs: bytes, a result, a sample of the link. A driver whose engine is
//! behind a lock, which a job must not hold, takes single jobs by `next` instead.
//!
//! [`Encoding`] and [`Decoding`] lend the methods of [`Sender`] and [`Receiver`]; theirs for jobs
//! replace those.

use std::ops::{Deref, DerefMut};

use crate::block::BufferPool;
use crate::codec::{Contexts, Method};
use crate::error::Result;
use crate::monitor::cost::Prior;
use crate::policy::{PolicySetup, PolicySpec};
use crate::receiver::{DecodeDone, DecodeJob, Receiver};
use crate::sender::{Done, Job, Sender};

mod memory;

pub use memory::{MEMORY_MIN, Memory, Share};

/// Waking a worker and hearing from it takes some 20 us, which would delay shorter jobs than this;
/// longer ones would hold up the other connections of a thread.
pub const INLINE_NS: u64 = 50_000;
/// Longest piece that is no bulk: a job of it may run on the thread that moves the bytes.
pub const INLINE_LEN: usize = 16 << 10;
/// Blocks this short take less time than reading the thread's CPU clock, which is a system call.
const MESSAGE_LEN: usize = 4 << 10;
/// A block this short is encoded at once, whatever else is under way, if it takes no longer than waking
/// a worker.
const MESSAGE_NS: u64 = 20_000;
/// For decoding short blocks that came together, while other connections wait.
const DECODE_NS: u64 = 200_000;
/// A late block is wanted at once, but other connections want their turn.
const RESCUE_NS: u64 = 500_000;

/// A job of a flow.
pub trait Work {
    /// Its result.
    type Done;

    /// Predicted time of one core.
    fn estimate_ns(&self) -> u64;
}

impl Work for Job {
    type Done = Done;

    fn estimate_ns(&self) -> u64 {
        self.estimate_ns
    }
}

impl Work for DecodeJob {
    type Done = DecodeDone;

    fn estimate_ns(&self) -> u64 {
        self.estimate_ns
    }
}

/// What runs the jobs of a flow. It is the driver's, and it alone knows clocks and threads.
pub trait Executor<J: Work> {
    /// Runs a job on the calling thread. `brief`: it takes less time than reading the thread's CPU
    /// clock.
    fn run(&mut self, job: J, brief: bool) -> J::Done;

    /// Lets a worker run a job, whose result then goes to `finish`. A job that comes back runs here; by
    /// default all do.
    ///
    /// # Errors
    /// The job, if no worker takes it.
    fn submit(&mut self, job: J) -> std::result::Result<(), J> {
        Err(job)
    }
}

/// Runs every job on the calling thread, and measures nothing.
pub struct Here<'a> {
    /// Codec contexts of this thread.
    pub contexts: &'a mut Contexts,
    /// Buffers of the flow.
    pub buffers: &'a BufferPool,
}

impl Executor<Job> for Here<'_> {
    fn run(&mut self, job: Job, _: bool) -> Done {
        job.run(self.contexts, self.buffers)
    }
}

impl Executor<DecodeJob> for Here<'_> {
    fn run(&mut self, job: DecodeJob, _: bool) -> DecodeDone {
        job.run(self.contexts, self.buffers)
    }
}

/// What the calling thread does itself; the rest goes to the workers. Stored blocks run here in any
/// case, and so do messages that are encoded.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Jobs of less time run here, by their estimates.
    pub job_ns: u64,
    /// Time of all of them together.
    pub all_ns: u64,
    /// Longest block of a job that runs here.
    pub len: usize,
    /// Whether they run here only while no other job of the flow is out.
    pub alone: bool,
    /// Number of jobs that run here. No job is begun after the last of them.
    pub jobs: usize,
}

impl Budget {
    /// Every job.
    pub const ALL: Self = Self { job_ns: u64::MAX, all_ns: u64::MAX, len: usize::MAX, alone: false, jobs: usize::MAX };
    /// Every job, one at a time: the caller has something to do after each.
    pub const ONE: Self = Self { jobs: 1, ..Self::ALL };
    /// Bulk is for the workers.
    pub const BULK: Self = Self { job_ns: 0, ..Self::ALL };
    /// Short jobs.
    pub const SHORT: Self = Self { job_ns: INLINE_NS, ..Self::ALL };
    /// A short block that is alone, on a thread with many connections: a small message needs no other
    /// thread.
    pub const LONE: Self = Self { len: INLINE_LEN, alone: true, ..Self::SHORT };
    /// A few short blocks to decode, on such a thread.
    pub const FEW: Self = Self { all_ns: DECODE_NS, alone: true, ..Self::SHORT };
    /// A late block, on such a thread.
    pub const RESCUE: Self = Self { job_ns: RESCUE_NS, ..Self::ALL };

    /// For a piece of `len` bytes that was pushed.
    pub fn for_piece(len: usize) -> Self {
        if len > INLINE_LEN { Self::BULK } else { Self::LONE }
    }

    fn has_time(&self, len: usize, estimate_ns: u64, out: usize) -> bool {
        let free = !self.alone || out == 0;
        free && len <= self.len && estimate_ns < self.job_ns && estimate_ns < self.all_ns
    }

    /// Where a job runs, which is paid for if it runs here, as it does `always` or within the budget.
    fn place(&mut self, always: bool, brief: bool, len: usize, estimate_ns: u64, out: usize) -> Place {
        if !always && !self.has_time(len, estimate_ns, out) {
            return Place::Worker;
        }
        self.jobs -= 1;
        if !always {
            self.all_ns = self.all_ns.saturating_sub(estimate_ns);
        }
        if brief { Place::Brief } else { Place::Here }
    }
}

/// Where a job is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the calling thread, where it takes less time than reading the thread's CPU clock.
    Brief,
    /// On the calling thread.
    Here,
    /// On a worker.
    Worker,
}

/// A job and where it is to run.
#[derive(Debug)]
pub struct Next<J> {
    /// The job. Its result goes to `finish`.
    pub job: J,
    /// Where.
    pub place: Place,
}

impl<J: Work> Next<J> {
    /// Begins the job. Returns its result if it ran here.
    fn begin(self, on: &mut impl Executor<J>) -> Option<J::Done> {
        match self.place {
            Place::Brief => Some(on.run(self.job, true)),
            Place::Here => Some(on.run(self.job, false)),
            Place::Worker => match on.submit(self.job) {
                Ok(()) => None,
                Err(job) => Some(on.run(job, false)),
            },
        }
    }
}

/// A sender and its jobs.
pub struct Encoding {
    sender: Sender,
    /// Jobs that were given out and are not finished.
    jobs: usize,
}

impl Encoding {
    /// For a sender that has given out no job.
    pub fn new(sender: Sender) -> Self {
        Self { sender, jobs: 0 }
    }

    /// The sender, for what it learned.
    pub fn into_sender(self) -> Sender {
        self.sender
    }

    /// Jobs that are out.
    pub fn jobs(&self) -> usize {
        self.jobs
    }

    /// Cuts as many blocks as the window allows, and encodes those within the budget. `clock` is that of
    /// the flow. Returns whether there was any.
    pub fn work(&mut self, clock: impl Fn() -> u64, mut budget: Budget, on: &mut impl Executor<Job>) -> bool {
        let mut any = false;
        while let Some(next) = self.next(clock(), &mut budget) {
            any = true;
            if let Some(done) = next.begin(on) {
                self.finish(done, clock());
            }
        }
        any
    }

    /// The next job, and where it runs by the budget, which pays for it.
    pub fn next(&mut self, now_ns: u64, budget: &mut Budget) -> Option<Next<Job>> {
        if budget.jobs == 0 {
            return None;
        }
        let job = self.sender.poll_job(now_ns)?;
        let (len, estimate_ns) = (job.raw.len(), job.estimate_ns);
        // A long block is timed by the CPU clock also if it is stored: policies compare its cost with others,
        // and on a busy host other threads run meanwhile.
        let brief = len <= MESSAGE_LEN;
        let always = job.method == Method::STORE || brief && estimate_ns < MESSAGE_NS;
        let place = budget.place(always, brief, len, estimate_ns, self.jobs);
        self.jobs += 1;
        Some(Next { job, place })
    }

    /// The next job, for a driver that knows where it runs.
    pub fn next_job(&mut self, now_ns: u64) -> Option<Job> {
        let mut budget = Budget::ALL;
        self.next(now_ns, &mut budget).map(|next| next.job)
    }

    /// Takes the result of a job. Call [`Encoding::work`] next.
    pub fn finish(&mut self, done: Done, now_ns: u64) {
        self.jobs -= 1;
        self.sender.finish(done, now_ns);
    }

    /// The time of [`Sender::next_wakeup`] has come, and the link was looked at: takes over a late
    /// block if the policy wants that. Returns whether there was any. Call [`Encoding::work`] next.
    pub fn rescue(&mut self, clock: impl Fn() -> u64, mut budget: Budget, on: &mut impl Executor<Job>) -> bool {
        let Some(job) = self.late(clock()) else { return false };
        let (always, len) = (job.method == Method::STORE, job.raw.len());
        let place = budget.place(always, len <= MESSAGE_LEN, len, job.estimate_ns, 0);
        if let Some(done) = (Next { job, place }).begin(on) {
            self.finish(done, clock());
        }
        true
    }

    /// As [`Encoding::rescue`], for a driver that runs the job itself, at once.
    pub fn late(&mut self, now_ns: u64) -> Option<Job> {
        let job = self.sender.on_link_dry(now_ns)?;
        self.jobs += 1;
        Some(job)
    }

    /// Stores everything from here on: the data does not shrink.
    pub fn give_up(&mut self) {
        let setup = PolicySetup::new(self.sender.cores(), Prior::shipped());
        self.sender.set_policy(PolicySpec::store().build(&setup));
        self.sender.stop_linking();
    }
}

impl Deref for Encoding {
    type Target = Sender;

    fn deref(&self) -> &Sender {
        &self.sender
    }
}

impl DerefMut for Encoding {
    fn deref_mut(&mut self) -> &mut Sender {
        &mut self.sender
    }
}

/// A receiver and its jobs.
pub struct Decoding {
    receiver: Receiver,
    jobs: usize,
}

impl Decoding {
    /// For a receiver that has given out no job.
    pub fn new(receiver: Receiver) -> Self {
        Self { receiver, jobs: 0 }
    }

    /// Jobs that are out.
    pub fn jobs(&self) -> usize {
        self.jobs
    }

    /// Decodes blocks within the budget, and lets workers do the others. Returns whether there was any.
    ///
    /// # Errors
    /// Those of [`Receiver::finish`].
    pub fn work(&mut self, mut budget: Budget, on: &mut impl Executor<DecodeJob>) -> Result<bool> {
        let mut any = false;
        while let Some(next) = self.next(&mut budget) {
            any = true;
            if let Some(done) = next.begin(on) {
                self.finish(done)?;
            }
        }
        Ok(any)
    }

    /// The next job, and where it runs by the budget, which pays for it.
    pub fn next(&mut self, budget: &mut Budget) -> Option<Next<DecodeJob>> {
        if budget.jobs == 0 {
            return None;
        }
        let job = self.receiver.poll_job()?;
        let (always, len) = (job.is_stored(), job.raw_len_max());
        let place = budget.place(always, always || len <= MESSAGE_LEN, len, job.estimate_ns, self.jobs);
        self.jobs += 1;
        Some(Next { job, place })
    }

    /// The next job, for a driver that knows where it runs.
    pub fn next_job(&mut self) -> Option<DecodeJob> {
        let mut budget = Budget::ALL;
        self.next(&mut budget).map(|next| next.job)
    }

    /// Takes the result of a job. Call [`Decoding::work`] next.
    ///
    /// # Errors
    /// Those of [`Receiver::finish`].
    pub fn finish(&mut self, done: DecodeDone) -> Result<()> {
        self.jobs -= 1;
        self.receiver.finish(done)
    }

    /// Records what the direction holds, the receiver's bytes and `beside` them, and limits the receiver
    /// to what the share allows, `most` at most.
    pub fn count(&mut self, share: &mut Share, beside: usize, most: usize) {
        share.count(self.receiver.held() + beside);
        self.receiver.set_memory_max(share.memory_max().min(most));
    }
}

impl Deref for Decoding {
    type Target = Receiver;

    fn deref(&self) -> &Receiver {
        &self.receiver
    }
}

impl DerefMut for Decoding {
    fn deref_mut(&mut self) -> &mut Receiver {
        &mut self.receiver
    }
}

#[cfg(test)]
mod tests;
