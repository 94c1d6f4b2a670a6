//! Speed at which the reader of a pipe empties it: the only sign by which a link without
//! acknowledgements shows that it lies within memory.

use super::LinkSample;

/// In bytes/s. A program that relays what it reads to another one of this host takes 500 MB/s and
/// more, even on two busy cores. Behind a network of 1 Gbit/s it takes 250 MB/s at most, which is
/// TCP's growth by a byte for each byte acknowledged.
const MEMORY_ABOVE: f64 = 400e6;
/// A reader that was fast and takes less than this waits for something else than memory.
const MEMORY_BELOW: f64 = 200e6;
/// Bytes that must have been read before: a reader that is slow itself (`pv -L` has 400 KB), or the
/// socket behind it, takes as much at once. What is raw on a slow link costs more than what was encoded
/// for one within memory.
const PROVEN_BYTES: f64 = 524_288.0;
/// Bytes over which the speed is averaged: half of what was read so far, within these limits. A
/// reader may lose its core for a slice of the scheduler. One that has stopped is noticed within 40
/// ms, and nothing is sent meanwhile.
const AVERAGED_MIN: f64 = 524_288.0;
const AVERAGED_MAX: f64 = 8_388_608.0;
/// While blocks are encoded, workers take cores from a reader on this host, and a pipe that is found
/// empty says nothing about how fast it could be emptied. So now and then raw blocks are tried. A
/// trial is over after as many bytes as this.
const TRIAL_BYTES: f64 = 262_144.0;
/// Wire bytes before the first trial, and the factor by which later ones are further apart: all
/// together cost less than a hundredth of a long flow.
const TRIAL_AFTER_BYTES: u64 = 524_288;
const TRIAL_GROWTH: u64 = 4;
/// In bytes/s: a link may be memory if it is faster than networks of 1 Gbit/s, or if half of all
/// writes find it empty and the trial takes at most some 10 ms.
const TRIED_ABOVE: f64 = 150e6;
const TRIED_IF_EMPTY_ABOVE: f64 = 30e6;
/// Starting a program and connecting takes less. After this time silence is evidence of a slow link.
const STARTED_WITHIN_NS: u64 = 20_000_000;
/// Smoothing of the share of writes that find the pipe empty.
const EMPTY_GAIN: f64 = 0.1;

/// Whether a link without acknowledgements lies within memory.
#[derive(Debug, Clone)]
pub(super) struct Drain {
    /// Bytes read and the time in which there was something to read, both fading.
    bytes: f64,
    ns: f64,
    /// All bytes read.
    read: f64,
    /// When the first bytes were written.
    first_ns: Option<u64>,
    /// Share of writes that found nothing unread.
    empty: f64,
    in_memory: bool,
    /// Bytes read when the present trial began.
    trial: Option<f64>,
    next_trial_at: u64,
    trial_after: u64,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            bytes: 0.0,
            ns: 0.0,
            read: 0.0,
            first_ns: None,
            empty: 0.0,
            in_memory: false,
            trial: None,
            next_trial_at: TRIAL_AFTER_BYTES,
            trial_after: TRIAL_AFTER_BYTES,
        }
    }
}

impl Drain {
    /// Whether anything was read by `now_ns`. Before, the reader is being started, for a while.
    pub(super) fn has_begun(&self, now_ns: u64) -> bool {
        self.read > 0.0 || self.first_ns.is_some_and(|first_ns| now_ns - first_ns.min(now_ns) > STARTED_WITHIN_NS)
    }

    /// Takes a write or a look; `last_ns` and `unread` are time and rest of the one before,
    /// `accepted` and `rate_bytes_per_s` the bytes written and the estimate so far. Returns whether
    /// the link counts as memory.
    pub(super) fn observe(
        &mut self,
        (last_ns, unread): (u64, u64),
        accepted: u64,
        rate_bytes_per_s: f64,
        s: &LinkSample,
    ) -> bool {
        self.add(unread, s.unsent_before, s.begin_ns.saturating_sub(last_ns));
        self.add(s.unsent_before + s.accepted, s.unsent_after, s.end_ns.saturating_sub(s.begin_ns));
        if s.accepted > 0 {
            self.first_ns.get_or_insert(s.end_ns);
            self.empty += EMPTY_GAIN * (f64::from(u8::from(s.unsent_before == 0)) - self.empty);
        }
        let speed = self.bytes / self.ns.max(1.0) * 1e9;
        let is_over = self.trial.is_none_or(|begun| self.read - begun >= TRIAL_BYTES);
        match self.in_memory {
            true if is_over || speed < MEMORY_BELOW && self.ns > TRIAL_BYTES / MEMORY_BELOW * 1e9 => {
                let least = if self.trial.take().is_some() { MEMORY_ABOVE } else { MEMORY_BELOW };
                if speed < least {
                    self.in_memory = false;
                    self.next_trial_at = accepted + self.trial_after;
                    self.trial_after *= TRIAL_GROWTH;
                }
            }
            true => {}
            false if self.read >= PROVEN_BYTES && speed > MEMORY_ABOVE => self.in_memory = true,
            false if accepted >= self.next_trial_at && self.may_be_memory(rate_bytes_per_s) => {
                (self.in_memory, self.trial) = (true, Some(self.read));
                (self.bytes, self.ns) = (0.0, 0.0);
            }
            false => {}
        }
        self.in_memory
    }

    fn may_be_memory(&self, rate_bytes_per_s: f64) -> bool {
        rate_bytes_per_s > TRIED_ABOVE || self.empty > 0.5 && rate_bytes_per_s > TRIED_IF_EMPTY_ABOVE
    }

    /// Of `begin` bytes `end` are left after `ns`.
    fn add(&mut self, begin: u64, end: u64, ns: u64) {
        let (bytes, ns) = (begin.saturating_sub(end) as f64, ns as f64);
        // In the time before its first read the reader was being started.
        let has_read = self.read > 0.0;
        self.read += bytes;
        if begin == 0 || !has_read {
            return;
        }
        // All was read at some time in between, so the speed is a lower bound.
        if end == 0 && bytes < MEMORY_ABOVE * 1e-9 * ns {
            return;
        }
        let kept = (-bytes / (self.read / 2.0).clamp(AVERAGED_MIN, AVERAGED_MAX)).exp();
        (self.bytes, self.ns) = (kept * self.bytes + bytes, kept * self.ns + ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verdicts for a reader that takes `at_once` bytes at the speed of memory, then `rate` bytes/s,
    /// from `begin_ns` on. The writer finds the pipe of 64 KiB not empty and fills it every 30 us.
    fn verdicts(rate: f64, at_once: u64, begin_ns: u64) -> Vec<bool> {
        const PIPE: u64 = 64 << 10;
        const TURN_NS: u64 = 30_000;
        let (mut drain, mut taken, mut last_ns, mut accepted) = (Drain::default(), 0, 0, 0);
        let turns = (0..4000u64).map(|turn| {
            let unread = if turn == 0 { 0 } else { PIPE };
            let now_ns = turn * TURN_NS + if turn == 0 { 0 } else { begin_ns };
            let speed = if taken < at_once { 2e9 } else { rate };
            let read = ((TURN_NS as f64 * speed * 1e-9) as u64).clamp(1, PIPE - 1).min(unread);
            taken += read;
            let before = unread - read;
            let sample = LinkSample {
                begin_ns: now_ns,
                end_ns: now_ns + 1000,
                unsent_before: before,
                unsent_after: PIPE,
                accepted: PIPE - before,
                ..LinkSample::default()
            };
            let in_memory = drain.observe((last_ns, unread), accepted, rate, &sample);
            accepted += PIPE - before;
            last_ns = now_ns + 1000;
            in_memory
        });
        turns.collect()
    }

    #[test]
    fn a_reader_as_fast_as_memory_is_told_from_one_behind_a_network() {
        for rate in [600e6, 1e9, 2e9] {
            let all = verdicts(rate, 0, 0);
            let first = all.iter().position(|m| *m).expect("it is memory");
            assert!(all[first..].iter().all(|m| *m) && first < 40, "{rate}: {first}");
        }
        for rate in [1.25e6, 12.5e6, 125e6] {
            assert!(!verdicts(rate, 0, 0).contains(&true), "{rate}");
        }
    }

    /// A reader that is still being started while the pipe is full is not slow.
    #[test]
    fn the_start_of_the_reader_does_not_count() {
        let (early, late) = (verdicts(1e9, 0, 0), verdicts(1e9, 0, 50_000_000));
        assert_eq!(early.iter().position(|m| *m), late.iter().position(|m| *m));
    }

    /// Socket buffers behind the reader take what fits at the speed of memory. The verdict changes
    /// before much more was sent.
    #[test]
    fn buffers_behind_the_reader_mislead_for_a_moment_only() {
        for rate in [1.25e6, 12.5e6, 125e6] {
            assert!(!verdicts(rate, 400 << 10, 0)[..100].contains(&true), "{rate}: the buffer of one reader");
            let all = verdicts(rate, 800 << 10, 0);
            let turns = all.iter().filter(|m| **m).count();
            assert!(turns > 0, "at first it looks like memory");
            assert!(turns < 10_000_000 / 30_000 && !all.last().unwrap(), "{rate}: {turns}");
        }
    }

    /// A network of 5 Gbit/s is tried, more and more rarely, and given up each time; here the bytes
    /// of a trial are a quarter of what follows it.
    #[test]
    fn trials_become_rare() {
        let all = verdicts(300e6, 0, 0);
        let begins = all.windows(2).filter(|w| w[1] && !w[0]).count();
        assert!((1..=5).contains(&begins), "{begins}");
        assert!(all.iter().filter(|m| **m).count() < all.len() / 4);
    }
}
