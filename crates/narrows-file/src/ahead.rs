//! Decoding ahead by several threads, for readers that go on from where they are.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use narrows::Result;

use crate::file::File;
use crate::read_at::ReadAt;

/// Blocks of one stream that are decoded in order.
struct Job {
    member: usize,
    last: usize,
    /// Offsets in the file, from the beginning of the run on.
    wire: Range<u64>,
}

impl<R: ReadAt> File<R> {
    /// Decodes the raw bytes from `offset` on, `len` of them, by `threads` threads, and keeps them for
    /// the calls that follow. So [`OpenOptions::cache_max`](crate::OpenOptions::cache_max) must be twice
    /// `len`. Damage is left to those calls. Where there is one run, there is nothing to share.
    ///
    /// # Errors
    /// Those of [`ReadAt::will_read`].
    pub fn read_ahead(&self, offset: u64, len: usize, threads: usize) -> Result<()> {
        let jobs = self.jobs(offset, offset.saturating_add(len as u64));
        let threads = threads.min(jobs.len());
        if threads < 2 {
            return Ok(());
        }
        if let (Some(first), Some(last)) = (jobs.first(), jobs.last()) {
            let begin = first.wire.start;
            self.source().will_read(begin, last.wire.end.saturating_sub(begin))?;
        }
        let jobs = Mutex::new(jobs.into_iter());
        let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
        let worker = || {
            while let Some(job) = next() {
                let _ = self.block(job.member, job.last);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without another thread this one does it all.
                let _ = std::thread::Builder::new().name("narrows-ahead".into()).spawn_scoped(scope, worker);
            }
            worker();
        });
        Ok(())
    }

    /// The runs, or parts of runs, that have bytes of `begin..end`.
    fn jobs(&self, begin: u64, end: u64) -> Vec<Job> {
        let mut jobs: Vec<Job> = Vec::new();
        let first = self.members().partition_point(|m| m.raw_begin + m.frames.raw_total() <= begin);
        for (number, member) in self.members().iter().enumerate().skip(first) {
            if member.raw_begin >= end {
                break;
            }
            let mut i = member.frames.find(begin.saturating_sub(member.raw_begin));
            let mut continues = false;
            while let Some(entry) = member.entry(i).filter(|e| member.raw_begin + e.raw_begin < end) {
                let wire_end = member.wire_begin + entry.wire_end;
                match jobs.last_mut() {
                    Some(job) if continues && !entry.begins_run => {
                        job.last = i;
                        job.wire.end = wire_end;
                    }
                    _ => {
                        let run = if entry.begins_run { i } else { member.frames.run_of(i) };
                        let wire_begin = member.entry(run).map_or(entry.wire_begin, |first| first.wire_begin);
                        jobs.push(Job { member: number, last: i, wire: member.wire_begin + wire_begin..wire_end });
                    }
                }
                continues = true;
                i += 1;
            }
        }
        jobs
    }
}
