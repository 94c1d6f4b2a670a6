//! The cores that encode. As many jobs run at once as there are cores, those of the I/O thread among them.

use narrows::oracle::Speed;
use narrows::sender::Done;

use super::Plan;
use crate::overhead::ENCODE_FIXED_NS;

/// The part of the fixed work that the worker's CPU clock sees.
const SEEN_FIXED_NS: f64 = 1000.0;

pub(super) struct Cores {
    count: usize,
    speed: Speed,
    /// In the order in which they were taken.
    jobs: Vec<Job>,
}

struct Job {
    done: Done,
    /// Of the I/O thread, which has slept and is given a core at once.
    on_io: bool,
    state: State,
    /// From when on the worker's clocks see it; unknown before it first had a core.
    seen_from_s: Option<f64>,
    unseen_s: f64,
}

enum State {
    /// For a core, with so much work left, in seconds at speed 1.
    Waits(f64),
    /// Until then.
    Runs(f64),
}

impl Cores {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { count: plan.cores.max(1), speed: plan.cpu.clone(), jobs: Vec::new() }
    }

    /// Takes a job that needs `work_ns` of a core, after `decision_ns` for the choice and the fixed work. What has no core
    /// waits for one; for the I/O thread the job that was taken last makes room.
    pub(super) fn take(&mut self, now_ns: u64, mut done: Done, decision_ns: f64, work_ns: f64, on_io: bool) {
        let now_s = now_ns as f64 * 1e-9;
        done.cpu_ns = (work_ns + SEEN_FIXED_NS) as u64;
        if on_io && self.running() >= self.count {
            self.suspend_last(now_s);
        }
        let unseen_s = (decision_ns + ENCODE_FIXED_NS) * 1e-9;
        let state = State::Waits(unseen_s + work_ns * 1e-9);
        self.jobs.push(Job { done, on_io, state, seen_from_s: None, unseen_s });
        self.resume(now_s);
    }

    /// A job that has ended by now.
    pub(super) fn finish(&mut self, now_ns: u64) -> Option<Done> {
        let ended = |job: &Job| matches!(job.state, State::Runs(end_s) if end_ns(end_s) <= now_ns);
        let Job { mut done, state, seen_from_s, .. } = self.jobs.remove(self.jobs.iter().position(ended)?);
        if let (State::Runs(end_s), Some(from_s)) = (state, seen_from_s) {
            done.wall_ns = ((end_s - from_s).max(0.0) * 1e9 + SEEN_FIXED_NS) as u64;
        }
        self.resume(now_ns as f64 * 1e-9);
        Some(done)
    }

    /// When the next job ends.
    pub(super) fn next_ns(&self) -> u64 {
        let ends = self.jobs.iter().filter_map(|job| match job.state {
            State::Runs(end_s) => Some(end_ns(end_s)),
            State::Waits(_) => None,
        });
        ends.min().unwrap_or(u64::MAX)
    }

    /// Whether the I/O thread encodes: until it has ended it looks at nothing else.
    pub(super) fn io_is_busy(&self) -> bool {
        self.jobs.iter().any(|job| job.on_io)
    }

    fn running(&self) -> usize {
        self.jobs.iter().filter(|job| matches!(job.state, State::Runs(_))).count()
    }

    fn suspend_last(&mut self, now_s: f64) {
        for job in self.jobs.iter_mut().rev() {
            if let State::Runs(end_s) = job.state {
                let left_s = self.speed.work_until(end_s) - self.speed.work_until(now_s);
                job.state = State::Waits(left_s.max(0.0));
                return;
            }
        }
    }

    /// Gives free cores to what waits: the I/O thread's first, then the oldest.
    fn resume(&mut self, now_s: f64) {
        let mut free = self.count.saturating_sub(self.running());
        for on_io in [true, false] {
            for job in self.jobs.iter_mut().filter(|job| job.on_io == on_io) {
                let State::Waits(left_s) = job.state else { continue };
                if free == 0 {
                    return;
                }
                free -= 1;
                job.state = State::Runs(self.speed.finish(now_s, left_s));
                job.seen_from_s.get_or_insert(self.speed.finish(now_s, job.unseen_s));
            }
        }
    }
}

fn end_ns(end_s: f64) -> u64 {
    (end_s * 1e9).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use narrows::block::Block;
    use narrows::codec::Method;
    use narrows::sender::{Job, JobKind};

    fn job(seq: u64) -> Done {
        let job = Job {
            seq,
            kind: JobKind::Encode,
            method: Method::STORE,
            raw: Block::zeros(10),
            raw_offset: 0,
            history: Block::default(),
            linked: false,
            check: false,
            estimate_ns: 0,
        };
        job.simulated(10, 0, 0)
    }

    fn cores(count: usize, speed: f64) -> Cores {
        Cores { count, speed: Speed::constant(speed), jobs: Vec::new() }
    }

    /// Microseconds, since the last nanosecond is rounded: (when, which job, its time on the clock) until nothing is left.
    fn ends(cores: &mut Cores) -> Vec<(f64, u64, f64)> {
        let micros = |ns: u64| (ns as f64 / 10.0).round() / 100.0;
        let mut all = Vec::new();
        while cores.next_ns() < u64::MAX {
            let now_ns = cores.next_ns();
            while let Some(done) = cores.finish(now_ns) {
                all.push((micros(now_ns), done.seq, micros(done.wall_ns)));
            }
        }
        all
    }

    #[test]
    fn the_io_thread_takes_a_core_from_the_youngest_job_and_gives_it_back() {
        let mut two = cores(2, 1.0);
        two.take(0, job(1), 0.0, 10_000.0, false);
        two.take(1000, job(2), 0.0, 10_000.0, false);
        two.take(4000, job(3), 500.0, 2000.0, true);
        assert!(two.io_is_busy());
        // 1500 ns of fixed work each; the second job stands still for the 4000 ns of the third.
        assert_eq!(ends(&mut two), [(8.0, 3, 3.0), (11.5, 1, 11.0), (16.5, 2, 15.0)]);
        assert!(!two.io_is_busy());
    }

    #[test]
    fn a_worker_waits_while_the_io_thread_has_the_last_core() {
        let mut one = cores(1, 0.5);
        one.take(0, job(1), 0.0, 1000.0, true);
        one.take(100, job(2), 0.0, 1000.0, false);
        assert_eq!(ends(&mut one), [(5.0, 1, 3.0), (10.0, 2, 3.0)], "at half the speed all work takes twice as long");
    }

    /// What the bound rests on.
    #[test]
    fn cores_are_never_idle_while_work_waits_and_never_more_than_there_are() {
        for count in [1, 2, 3] {
            let mut cores = cores(count, 1.0);
            cores.take(0, job(0), 0.0, 7000.0, true);
            for seq in 1..9 {
                cores.take(0, job(seq), 0.0, 500.0 + 100.0 * seq as f64, false);
            }
            let work_ns = 9.0 * ENCODE_FIXED_NS + 7000.0 + 8.0 * 500.0 + 3600.0;
            let last_ns = ends(&mut cores).last().unwrap().0 * 1e3 + 10.0;
            assert!(
                last_ns >= work_ns / count as f64 && last_ns <= work_ns / count as f64 + 8510.0,
                "{count}: {last_ns}"
            );
        }
    }
}
