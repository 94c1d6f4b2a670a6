//! The encoding cores, shared evenly by the workers and the I/O thread, as by a kernel's scheduler.

use narrows::oracle::Speed;
use narrows::sender::Done;

use super::Conditions;
use crate::overhead::ENCODE_FIXED_NS;

/// Part of the fixed work that the worker's CPU clock measures.
const SEEN_FIXED_NS: f64 = 1000.0;
/// Remaining work below this counts as done, because sums are rounded: a thousandth of a
/// nanosecond.
const NOTHING_S: f64 = 1e-12;

pub(super) struct Cores {
    count: usize,
    speed: Speed,
    /// Jobs in the order in which they were taken.
    jobs: Vec<Job>,
    /// Time up to which the jobs have been worked on.
    at_s: f64,
    /// Cores that the link would keep busy. Less than one: its work is that of one thread.
    link_wants: f64,
    /// What the memory moves for all jobs together.
    memory_bytes_per_s: f64,
    /// Bytes that it was asked to move.
    pub(super) moved: f64,
}

/// What occupies a core.
pub(super) enum Task {
    Encode(Done),
    /// A system call that writes to the link.
    Write,
    /// One that reads so many bytes of the source.
    Read(usize),
    /// A thread of its own reads so many bytes of the source.
    Source(usize),
    /// Decoding of a frame at the other end, where both ends share the cores.
    Decode,
}

struct Job {
    task: Task,
    on_io: bool,
    begin_s: f64,
    /// Remaining work, in seconds of a core at speed 1.
    left_s: f64,
    /// Share of its whole work that its CPU clock measures.
    seen_share: f64,
    /// Bytes that the memory moves for each second of its work.
    moves_per_s: f64,
}

impl Cores {
    pub(super) fn new(conditions: &Conditions) -> Self {
        Self {
            count: conditions.cores.max(1),
            speed: conditions.cpu.clone(),
            jobs: Vec::new(),
            at_s: 0.0,
            link_wants: 0.0,
            memory_bytes_per_s: f64::INFINITY,
            moved: 0.0,
        }
    }

    pub(super) fn limit_memory(&mut self, bytes_per_s: f64) {
        self.memory_bytes_per_s = bytes_per_s;
    }

    /// Takes a job that needs `work_ns` of a core, after `decision_ns` for the choice and the fixed work.
    pub(super) fn take(&mut self, now_ns: u64, mut done: Done, decision_ns: f64, work_ns: f64, on_io: bool) {
        self.work_until(now_ns);
        done.cpu_ns = (work_ns + SEEN_FIXED_NS) as u64;
        let whole_ns = decision_ns + ENCODE_FIXED_NS + work_ns;
        let (begin_s, left_s) = (self.at_s, whole_ns * 1e-9);
        let seen_share = work_ns / whole_ns;
        self.jobs.push(Job { task: Task::Encode(done), on_io, begin_s, left_s, seen_share, moves_per_s: 0.0 });
    }

    /// Takes work that is not encoding.
    pub(super) fn take_other(&mut self, now_ns: u64, task: Task, work_ns: f64) {
        self.work_until(now_ns);
        let on_io = matches!(task, Task::Write | Task::Read(_));
        let (begin_s, left_s) = (self.at_s, work_ns * 1e-9);
        self.jobs.push(Job { task, on_io, begin_s, left_s, seen_share: 0.0, moves_per_s: 0.0 });
    }

    /// The memory moves so many bytes for the job that was taken last.
    pub(super) fn moves(&mut self, bytes: f64) {
        self.moved += bytes;
        if let Some(job) = self.jobs.last_mut() {
            job.moves_per_s = bytes / job.left_s.max(NOTHING_S);
        }
    }

    /// Sets how much of a core the link's bytes would take. Returns how much they get.
    pub(super) fn share_with_link(&mut self, now_ns: u64, wants: f64) -> f64 {
        self.work_until(now_ns);
        self.link_wants = wants.min(1.0);
        self.link_wants
            .min((self.count as f64 / (self.jobs.len() + 1) as f64).max(self.count as f64 - self.jobs.len() as f64))
    }

    /// Removes and returns a job that has ended by `now_ns`.
    pub(super) fn finish(&mut self, now_ns: u64) -> Option<Task> {
        if self.next_ns() > now_ns {
            return None;
        }
        self.work_until(now_ns);
        let speed = self.speeds();
        let left_s = |i: &usize| self.jobs[*i].left_s / speed(&self.jobs[*i]);
        let i = (0..self.jobs.len()).min_by(|a, b| left_s(a).total_cmp(&left_s(b)))?;
        let Job { mut task, begin_s, seen_share, .. } = self.jobs.remove(i);
        if let Task::Encode(done) = &mut task {
            done.wall_ns = ((self.at_s - begin_s) * 1e9 * seen_share + SEEN_FIXED_NS) as u64;
        }
        Some(task)
    }

    /// Time at which the next job ends.
    pub(super) fn next_ns(&self) -> u64 {
        let speed = self.speeds();
        let ends_s = self.jobs.iter().map(|job| (job.left_s / speed(job), job.left_s));
        let Some((wait_s, left_s)) = ends_s.min_by(|a, b| a.0.total_cmp(&b.0)) else { return u64::MAX };
        let end_s = if left_s > NOTHING_S { self.speed.finish(self.at_s, wait_s) } else { self.at_s };
        (end_s * 1e9 - NOTHING_S * 1e9).ceil() as u64
    }

    /// Whether the I/O thread encodes; until it has finished it does nothing else.
    pub(super) fn io_is_busy(&self) -> bool {
        self.jobs.iter().any(|job| job.on_io)
    }

    /// Share of a core that each job gets.
    fn share(&self) -> f64 {
        let (count, jobs) = (self.count as f64, self.jobs.len() as f64);
        // Who wants less than an equal share leaves the rest to the others.
        let left = count - self.link_wants.min(count / (jobs + 1.0));
        (left / jobs).min(1.0)
    }

    /// Speed of each job in cores: its share, or less if the memory moves less than it asks for. Jobs
    /// that ask for little get all of it, the others equal parts of the rest.
    fn speeds(&self) -> impl Fn(&Job) -> f64 + use<> {
        let share = self.share();
        let asks = self.jobs.iter().map(|job| job.moves_per_s * share);
        let mut part = f64::INFINITY;
        if asks.clone().sum::<f64>() > self.memory_bytes_per_s {
            let mut asked: Vec<f64> = asks.collect();
            asked.sort_by(f64::total_cmp);
            let mut left = self.memory_bytes_per_s;
            for (i, asked_of) in asked.iter().enumerate() {
                part = left / (asked.len() - i) as f64;
                if *asked_of > part {
                    break;
                }
                left -= asked_of;
            }
        }
        move |job| if job.moves_per_s * share > part { part / job.moves_per_s } else { share }
    }

    fn work_until(&mut self, now_ns: u64) {
        let now_s = (now_ns as f64 * 1e-9).max(self.at_s);
        let passed_s = self.speed.work_until(now_s) - self.speed.work_until(self.at_s);
        let speed = self.speeds();
        self.jobs.iter_mut().for_each(|job| job.left_s -= passed_s * speed(job));
        self.at_s = now_s;
    }
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
            copies: Vec::new(),
            raw_offset: 0,
            history: Block::default(),
            linked: false,
            check: false,
            estimate_ns: 0,
            codec: Method::STORE.info(),
        };
        job.simulated(10, 0, 0)
    }

    fn cores(count: usize, speed: f64) -> Cores {
        Cores {
            count,
            speed: Speed::constant(speed),
            jobs: Vec::new(),
            at_s: 0.0,
            link_wants: 0.0,
            memory_bytes_per_s: f64::INFINITY,
            moved: 0.0,
        }
    }

    /// Runs all jobs: (end, number of the job, its time by the CPU clock). In microseconds, since
    /// the last nanosecond is rounded.
    fn ends(cores: &mut Cores) -> Vec<(f64, u64, f64)> {
        let micros = |ns: u64| (ns as f64 / 10.0).round() / 100.0;
        let mut all = Vec::new();
        while cores.next_ns() < u64::MAX {
            let now_ns = cores.next_ns();
            while let Some(Task::Encode(done)) = cores.finish(now_ns) {
                all.push((micros(now_ns), done.seq, micros(done.wall_ns)));
            }
        }
        all
    }

    #[test]
    fn the_io_thread_has_its_part_of_the_cores_and_gives_it_back() {
        let mut two = cores(2, 1.0);
        two.take(0, job(1), 0.0, 10_000.0, false);
        two.take(1000, job(2), 0.0, 10_000.0, false);
        two.take(4000, job(3), 500.0, 2000.0, true);
        assert!(two.io_is_busy());
        // Each job has 1500 ns of fixed work. From 4000 ns on three jobs have two thirds of a core
        // each, until the third has done its 4000. The clocks measure the encoding and 1000 ns of
        // the fixed work, but not the decision.
        assert_eq!(ends(&mut two), [(10.0, 3, 4.0), (13.5, 1, 12.74), (14.5, 2, 12.74)]);
        assert!(!two.io_is_busy());
    }

    #[test]
    fn one_core_of_half_the_speed_is_half_a_core() {
        let mut one = cores(1, 0.5);
        one.take(0, job(1), 0.0, 1000.0, true);
        one.take(100, job(2), 0.0, 1000.0, false);
        assert_eq!(ends(&mut one), [(9.9, 1, 4.96), (10.0, 2, 4.96)]);
    }

    #[test]
    fn memory_slows_those_that_move_much_and_nobody_else() {
        let mut three = cores(3, 1.0);
        three.limit_memory(10e9);
        // 1500 ns of fixed work each; bytes for each nanosecond of work: 1, 8 and 8.
        for (seq, bytes) in [(1, 6e3), (2, 32e3), (3, 32e3)] {
            three.take(0, job(seq), 0.0, if seq == 1 { 4500.0 } else { 2500.0 }, false);
            three.moves(bytes);
        }
        // Two share 9 bytes a nanosecond until the first has ended, then 10.
        let ends: Vec<_> = ends(&mut three).into_iter().map(|e| (e.1, e.0)).collect();
        assert_eq!(ends, [(1, 6.0), (2, 7.0), (3, 7.0)]);
    }

    /// The bound relies on this.
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
