//! Work on several threads.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Items that a thread takes at once: neighbours share what was decoded for them.
const TAKEN: usize = 4;

/// Runs `work` for 0 to `count`, with a state for each thread, and gives back all states.
pub(crate) fn run<S: Send>(
    count: usize,
    threads: NonZero<usize>,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) + Sync,
) -> Vec<S> {
    let next = AtomicUsize::new(0);
    let one = || {
        let mut state = state();
        loop {
            let from = next.fetch_add(TAKEN, Ordering::Relaxed);
            if from >= count {
                return state;
            }
            (from..count.min(from + TAKEN)).for_each(|i| work(&mut state, i));
        }
    };
    let threads = threads.get().min(count.div_ceil(TAKEN)).max(1);
    if threads == 1 {
        return vec![one()];
    }
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|t| t.join().expect("the work does not panic")).collect()
    })
}
