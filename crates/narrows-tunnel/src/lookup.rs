//! Names of hosts are looked up by threads, since the system's resolver waits. All who ask for a name
//! at a time wait for one answer, and an answer is kept for a few seconds.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use narrows_host::shares::{Share, Shares};

use super::engine::Key;
use super::limits::{LOOKUPS_MAX, NAMES_MAX};

/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;
/// An answer is kept so long: a burst of connections asks once, and a name that has moved is followed
/// soon. A failure may be over sooner.
const KEPT_NS: u64 = 5_000_000_000;
const FAILURE_KEPT_NS: u64 = 1_000_000_000;

/// What a look-up came to: addresses without a port, or why there are none.
pub(super) type Found = Result<Vec<SocketAddr>, String>;

/// Looks up one name, however long it takes.
type Resolve = dyn Fn(&str) -> Found + Send + Sync;
/// Takes the answer of a thread to the one that asked.
type Tell = dyn Fn(String, Found) + Send + Sync;

/// What becomes of a question.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Now(Found),
    /// [`Lookups::finished`] names the asker.
    Later,
    /// Too many names are waiting.
    Busy,
}

/// Look-ups that are under way or wait for a thread, and what was found. Both are shared between
/// hosts, so that the slow names of one hold up no other.
pub(super) struct Lookups {
    resolve: Arc<Resolve>,
    tell: Arc<Tell>,
    threads: Shares,
    places: Shares,
    asked: HashMap<String, Asked>,
    /// Names that wait for a thread.
    queue: VecDeque<String>,
    /// Answers, and until when they are good.
    known: HashMap<String, (Found, u64)>,
}

struct Asked {
    keys: Vec<Key>,
    host: IpAddr,
    _place: Share,
    /// While a thread is at it.
    thread: Option<Share>,
}

impl Lookups {
    pub(super) fn new(
        resolve: impl Fn(&str) -> Found + Send + Sync + 'static,
        tell: impl Fn(String, Found) + Send + Sync + 'static,
    ) -> Self {
        Self {
            resolve: Arc::new(resolve),
            tell: Arc::new(tell),
            threads: Shares::new(LOOKUPS_MAX),
            places: Shares::new(NAMES_MAX),
            asked: HashMap::new(),
            queue: VecDeque::new(),
            known: HashMap::new(),
        }
    }

    /// Asks for the addresses of `name` on behalf of a host.
    pub(super) fn ask(&mut self, name: &str, host: IpAddr, key: Key, now_ns: u64) -> Answer {
        if let Ok(ip) = name.parse::<IpAddr>() {
            return Answer::Now(Ok(vec![SocketAddr::new(ip, 0)]));
        }
        let name = name.to_ascii_lowercase();
        if name == "localhost" {
            // As RFC 6761 asks for. Most services of a host listen on the first one.
            let both: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return Answer::Now(Ok(both.map(|ip| SocketAddr::new(ip, 0)).to_vec()));
        }
        if let Some((found, _)) = self.known.get(&name).filter(|(_, until_ns)| now_ns < *until_ns) {
            return Answer::Now(found.clone());
        }
        if let Some(asked) = self.asked.get_mut(&name) {
            asked.keys.push(key);
            return Answer::Later;
        }
        let mut place = self.places.of(host);
        if !place.grow(1) {
            return Answer::Busy;
        }
        self.asked.insert(name.clone(), Asked { keys: vec![key], host, _place: place, thread: None });
        self.queue.push_back(name);
        self.start();
        Answer::Later
    }

    /// A thread has an answer: returns who waited for it.
    pub(super) fn finished(&mut self, name: String, found: &Found, now_ns: u64) -> Vec<Key> {
        let keys = self.asked.remove(&name).map_or_else(Vec::new, |asked| asked.keys);
        if self.known.len() >= NAMES_MAX {
            self.known.retain(|_, (_, until_ns)| now_ns < *until_ns);
            if self.known.len() >= NAMES_MAX {
                self.known.clear();
            }
        }
        let kept_ns = if found.is_ok() { KEPT_NS } else { FAILURE_KEPT_NS };
        self.known.insert(name, (found.clone(), now_ns + kept_ns));
        self.start();
        keys
    }

    /// Starts threads for the names that may have one.
    fn start(&mut self) {
        let mut waiting = std::mem::take(&mut self.queue);
        waiting.retain(|name| !self.start_one(name));
        self.queue = waiting;
    }

    /// False: it waits for a thread.
    fn start_one(&mut self, name: &str) -> bool {
        let Some(asked) = self.asked.get_mut(name) else { return true };
        let mut thread = self.threads.of(asked.host);
        if !thread.grow(1) {
            return false;
        }
        asked.thread = Some(thread);
        let (name, resolve, tell) = (name.to_owned(), Arc::clone(&self.resolve), Arc::clone(&self.tell));
        let failed_name = name.clone();
        let look = move || {
            let found = resolve(&name);
            tell(name, found);
        };
        if let Err(e) = std::thread::Builder::new().name("narrows-lookup".into()).stack_size(512 << 10).spawn(look) {
            (self.tell)(failed_name, Err(format!("no thread to look it up: {e}")));
        }
        true
    }
}

/// Asks the system.
pub(super) fn resolve(name: &str) -> Found {
    match (name, 0).to_socket_addrs() {
        Ok(found) => Ok(found.take(ADDRESSES_MAX).collect()),
        Err(e) => Err(narrows_host::words::e_text(&e)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const SECOND: u64 = 1_000_000_000;

    fn found() -> Found {
        Ok(vec!["192.0.2.1:0".parse().unwrap()])
    }

    /// Look-ups that come to an end when the returned lock is free, and their answers.
    fn lookups() -> (Lookups, Arc<Mutex<()>>, Receiver<(String, Found)>) {
        let (told, answers) = channel();
        let told = Mutex::new(told);
        let lock = Arc::new(Mutex::new(()));
        let held = Arc::clone(&lock);
        let resolve = move |name: &str| {
            drop(held.lock().unwrap());
            if name.starts_with("bad") { Err("no such name".into()) } else { found() }
        };
        let tell = move |name, found| told.lock().unwrap().send((name, found)).unwrap();
        (Lookups::new(resolve, tell), lock, answers)
    }

    #[test]
    fn all_who_ask_for_a_name_wait_for_one_answer_which_is_kept_a_while() {
        let (mut lookups, lock, answers) = lookups();
        let held = lock.lock().unwrap();
        for key in 0..500 {
            assert_eq!(lookups.ask(if key % 2 == 0 { "db" } else { "DB" }, ONE, key, 0), Answer::Later);
        }
        drop(held);
        let (name, answer) = answers.recv().unwrap();
        assert_eq!(lookups.finished(name, &answer, SECOND), (0..500).collect::<Vec<_>>());
        assert_eq!(lookups.ask("db", OTHER, 1, SECOND + KEPT_NS - 1), Answer::Now(found()));
        assert_eq!(lookups.ask("db", OTHER, 1, SECOND + KEPT_NS), Answer::Later);
        lookups.ask("bad", ONE, 2, 0);
        for _ in 0..2 {
            let (name, answer) = answers.recv().unwrap();
            lookups.finished(name, &answer, SECOND);
        }
        assert!(answers.try_recv().is_err(), "one thread for each");
        assert!(matches!(lookups.ask("bad", ONE, 3, SECOND), Answer::Now(Err(_))));
        assert_eq!(lookups.ask("bad", ONE, 3, SECOND + FAILURE_KEPT_NS), Answer::Later);
    }

    #[test]
    fn the_slow_names_of_one_host_hold_up_no_other() {
        let (mut lookups, lock, answers) = lookups();
        let held = lock.lock().unwrap();
        let mut waiting = 0;
        while lookups.ask(&format!("slow{waiting}"), ONE, waiting, 0) == Answer::Later {
            waiting += 1;
        }
        assert_eq!(waiting as usize, NAMES_MAX / 2);
        assert_eq!(lookups.ask("quick", OTHER, 7, 0), Answer::Later);
        assert!(lookups.asked["quick"].thread.is_some(), "it has a thread at once");
        drop(held);
        let mut told = Vec::new();
        while told.len() < waiting as usize + 1 {
            let (name, answer) = answers.recv().unwrap();
            told.extend(lookups.finished(name, &answer, 0));
        }
        assert!(lookups.asked.is_empty() && lookups.queue.is_empty());
        let threads = lookups.threads.of(ONE).grow(LOOKUPS_MAX);
        assert!(threads, "all threads are free again");
    }

    #[test]
    fn addresses_and_this_host_need_no_thread_and_answers_take_bounded_memory() {
        let (mut lookups, _lock, answers) = lookups();
        let ips = |answer| match answer {
            Answer::Now(Ok(found)) => found.iter().map(|a: &SocketAddr| a.ip().to_string()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(ips(lookups.ask("LocalHost", ONE, 1, 0)), ["127.0.0.1", "::1"]);
        assert_eq!(ips(lookups.ask("::1", ONE, 1, 0)), ["::1"]);
        assert!(answers.try_recv().is_err());
        for i in 0..3 * NAMES_MAX {
            lookups.finished(format!("name{i}"), &found(), 0);
        }
        assert!(lookups.known.len() <= NAMES_MAX);
    }
}
