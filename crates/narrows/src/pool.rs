//! The CPU pool of a process: plain threads, one short bounded queue per flow served round-robin,
//! and reusable codec contexts owned by each worker.
//!
//! Round-robin over flows and not over jobs: a bulk flow with a full window cannot starve thousands
//! of interactive flows with one job each. Workers start when the first task needs them, so flows
//! whose blocks are all encoded in place cost no thread.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::codec::Contexts;
use crate::policy::WINDOW_MAX;

/// A piece of work, with the contexts of the worker that runs it.
pub type Task = Box<dyn FnOnce(&mut Contexts) + Send>;

/// Most waiting jobs of one flow: a full window, and as many probes; with many workers two for each.
const QUEUE_MAX: usize = 2 * WINDOW_MAX;

/// A pool with a fixed maximum of workers. Dropping it drops waiting tasks, finishes running ones,
/// and joins the workers.
pub struct Pool {
    shared: Arc<Shared>,
    threads: usize,
}

/// A flow's queue in a pool.
pub struct Queue {
    shared: Arc<Shared>,
    id: u64,
    threads: usize,
}

fn queue_max(threads: usize) -> usize {
    QUEUE_MAX.max(2 * threads)
}

struct Shared {
    state: Mutex<State>,
    /// Workers wait here for something to do.
    work: Condvar,
}

#[derive(Default)]
struct State {
    lanes: HashMap<u64, Lane>,
    /// Flows with waiting tasks, each once, the next to be served first.
    ready: VecDeque<u64>,
    next_id: u64,
    idle: usize,
    workers: Vec<JoinHandle<()>>,
    closed: bool,
}

struct Lane {
    tasks: VecDeque<Task>,
    /// Called when a task of this flow panicked.
    on_panic: Arc<dyn Fn() + Send + Sync>,
}

impl Pool {
    /// A pool of at most `threads` workers. With 0 every [`Queue`] is always full.
    pub fn new(threads: usize) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), work: Condvar::new() }), threads }
    }

    /// Maximum number of workers.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// A queue for a new flow. `on_panic` is called on a worker if one of its tasks panics, which
    /// is a bug: it should fail the flow. Other flows and the worker go on.
    pub fn flow(&self, on_panic: impl Fn() + Send + Sync + 'static) -> Queue {
        let mut state = self.shared.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.lanes.insert(id, Lane { tasks: VecDeque::new(), on_panic: Arc::new(on_panic) });
        Queue { shared: Arc::clone(&self.shared), id, threads: self.threads }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        // Tasks own handles of their flows: they are dropped outside the lock.
        let dropped = std::mem::take(&mut state.lanes);
        let workers = std::mem::take(&mut state.workers);
        drop(state);
        drop(dropped);
        self.shared.work.notify_all();
        for worker in workers {
            // A worker catches the panics of its tasks, so the result carries no information.
            let _ = worker.join();
        }
    }
}

impl Queue {
    /// Appends a task to this flow's queue. Nothing piles up: if the queue is full the caller gets
    /// the task back, and runs or drops it.
    ///
    /// # Errors
    /// The task, if the queue is full.
    pub fn submit(&self, task: Task) -> Result<(), Task> {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let Some(lane) = state.lanes.get_mut(&self.id) else { return Err(task) };
        if self.threads == 0 || lane.tasks.len() >= queue_max(self.threads) {
            return Err(task);
        }
        if state.idle == 0 && state.workers.len() < self.threads {
            let shared = Arc::clone(&self.shared);
            let name = format!("narrows-cpu-{}", state.workers.len());
            match std::thread::Builder::new().name(name).spawn(move || shared.serve()) {
                Ok(worker) => state.workers.push(worker),
                // Without any worker the task would wait for ever.
                Err(_) if state.workers.is_empty() => return Err(task),
                Err(_) => {}
            }
        }
        lane.tasks.push_back(task);
        if lane.tasks.len() == 1 {
            state.ready.push_back(self.id);
        }
        if state.idle > 0 {
            self.shared.work.notify_one();
        }
        Ok(())
    }

    /// Whether the queue has room for a task. Stays true while only the caller submits to it.
    pub fn has_room(&self) -> bool {
        let state = self.shared.lock();
        self.threads > 0 && state.lanes.get(&self.id).is_some_and(|l| l.tasks.len() < queue_max(self.threads))
    }

    /// Drops waiting tasks; running ones are finished.
    pub fn clear(&self) {
        let mut state = self.shared.lock();
        state.ready.retain(|id| *id != self.id);
        let dropped = state.lanes.get_mut(&self.id).map(|l| std::mem::take(&mut l.tasks));
        drop(state);
        drop(dropped);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ready.retain(|id| *id != self.id);
        let dropped = state.lanes.remove(&self.id);
        drop(state);
        drop(dropped);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut contexts = Contexts::default();
        while let Some((task, on_panic)) = self.next() {
            if catch_unwind(AssertUnwindSafe(|| task(&mut contexts))).is_err() {
                contexts = Contexts::default();
                let _ = catch_unwind(AssertUnwindSafe(|| on_panic()));
            }
        }
    }

    fn next(&self) -> Option<(Task, Arc<dyn Fn() + Send + Sync>)> {
        let mut guard = self.lock();
        loop {
            let state = &mut *guard;
            if state.closed {
                return None;
            }
            while let Some(id) = state.ready.pop_front() {
                let Some(lane) = state.lanes.get_mut(&id) else { continue };
                let Some(task) = lane.tasks.pop_front() else { continue };
                if !lane.tasks.is_empty() {
                    state.ready.push_back(id);
                }
                return Some((task, Arc::clone(&lane.on_panic)));
            }
            state.idle += 1;
            guard = self.work.wait(guard).unwrap_or_else(PoisonError::into_inner);
            guard.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn flows_are_served_in_turn() {
        let pool = Pool::new(1);
        let (gate, wait) = mpsc::channel::<()>();
        let (out, order) = mpsc::channel();
        let (bulk, chat) = (pool.flow(|| ()), pool.flow(|| ()));
        let (started, running) = mpsc::channel::<()>();
        let first = move |_: &mut Contexts| {
            started.send(()).expect("open");
            let _ = wait.recv();
        };
        bulk.submit(Box::new(first)).ok().expect("room");
        running.recv().expect("the first task runs");
        for i in 0..3 {
            let out = out.clone();
            bulk.submit(Box::new(move |_| out.send(('b', i)).expect("open"))).ok().expect("room");
        }
        let last = out.clone();
        chat.submit(Box::new(move |_| last.send(('c', 0)).expect("open"))).ok().expect("room");
        drop((gate, out));
        let order: Vec<_> = order.iter().collect();
        assert_eq!(order, [('b', 0), ('c', 0), ('b', 1), ('b', 2)]);
    }

    #[test]
    fn a_full_queue_gives_the_task_back() {
        let pool = Pool::new(1);
        let queue = pool.flow(|| ());
        let (gate, wait) = mpsc::channel::<()>();
        let (started, running) = mpsc::channel::<()>();
        queue
            .submit(Box::new(move |_| {
                started.send(()).expect("open");
                let _ = wait.recv();
            }))
            .ok()
            .expect("room");
        running.recv().expect("the first task runs");
        for _ in 0..QUEUE_MAX {
            assert!(queue.has_room());
            assert!(queue.submit(Box::new(|_| ())).is_ok());
        }
        assert!(!queue.has_room());
        assert!(queue.submit(Box::new(|_| ())).is_err());
        drop(gate);
        assert!(Pool::new(0).flow(|| ()).submit(Box::new(|_| ())).is_err());
    }

    #[test]
    fn a_panic_fails_its_flow_only() {
        let pool = Pool::new(1);
        let (out, seen) = mpsc::channel();
        let told = out.clone();
        let (bad, good) = (pool.flow(move || told.send("failed").expect("open")), pool.flow(|| ()));
        bad.submit(Box::new(|_| panic!("a bug in a job"))).ok().expect("room");
        good.submit(Box::new(move |_| out.send("done").expect("open"))).ok().expect("room");
        assert_eq!([seen.recv(), seen.recv()], [Ok("failed"), Ok("done")]);
    }
}
