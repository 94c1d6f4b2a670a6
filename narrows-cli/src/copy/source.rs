//! The sending end: announces entries, hears which files are wanted and sends them, all at once.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use narrows::entry::{Answer, EntryKind, Wanted};
use narrows::stream::OnNote;

use super::filter::Filter;
use super::scan::{Found, Root, walk};

mod producer;

use producer::{CHUNK_ANSWERS_MAX, Producer};

/// Entries that the scan may be ahead: it never waits for the link with so many, and they take less than 1 MiB.
const SCANNED_MAX: usize = 1024;

/// How the copy goes, for the bar and the summary.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// Files and bytes are all that there are.
    pub(crate) scanned: bool,
    /// Bytes come of which nobody knows how many.
    pub(crate) endless: bool,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Files that were the same at the other end.
    pub(crate) files_same: u64,
    pub(crate) bytes_same: u64,
    /// Content of changed files that is there already.
    pub(crate) bytes_here: u64,
    /// Content that was sent, of files in hand too.
    pub(crate) bytes_done: u64,
    /// Time in which the engine had nothing to send, since all that was left depended on the receiver's answers.
    pub(crate) answers_ns: u64,
    pub(crate) files_sent: u64,
    pub(crate) failed: u64,
    /// Files that changed while they were read, and were stored nevertheless.
    pub(crate) changed: u64,
    /// What the other end could not keep.
    pub(crate) losses: Option<String>,
    /// Entries that the other end removed, and why it removed nothing.
    pub(crate) removed: u64,
    pub(crate) not_removed: Option<String>,
}

impl Progress {
    /// How much of the copy is done, once all is known that there is.
    pub(crate) fn share_done(&self) -> Option<f64> {
        let left = self.bytes.saturating_sub(self.bytes_same + self.bytes_here + self.bytes_done);
        let all = self.bytes_done + left;
        (self.scanned && !self.endless && all > 0).then(|| self.bytes_done as f64 / all as f64)
    }
}

type OnWords = Box<dyn Fn(&str) + Send + Sync>;

/// What is sent.
pub(crate) enum Input {
    /// What is found there. Every source that could not be opened is told to both ends by its text.
    Paths { roots: Vec<Root>, unopened: Vec<String>, filter: Filter },
    /// What comes, up to its end, as one file that gets the name of the target.
    Stream(Box<dyn Read + Send>),
}

pub(crate) struct SourceOptions {
    /// No content is sent.
    pub(crate) dry_run: bool,
    /// Told of everything that failed, at either end.
    pub(crate) on_failure: OnWords,
    /// Told of every file that is sent.
    pub(crate) on_file: OnWords,
    /// Told of all that the other end removes; without it that may remove nothing.
    pub(crate) on_removed: Option<OnWords>,
}

pub(crate) struct EntrySource {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    dry_run: bool,
    on_failure: OnWords,
    on_file: OnWords,
    on_removed: Option<OnWords>,
}

#[derive(Default)]
struct State {
    found: VecDeque<Found>,
    scanned: bool,
    unanswered: VecDeque<File>,
    wanted: VecDeque<File>,
    wanted_bytes: u64,
    /// Which chunks of a file are needed, by its number.
    chunk_answers: VecDeque<(u64, Vec<u32>)>,
    /// Files that repeat others, by their number, until the other end has them whole.
    doubted: HashMap<u64, Doubted>,
    /// Records on their way to the engine; `done` when there will be no more.
    records: VecDeque<Vec<u8>>,
    records_len: usize,
    done: bool,
    /// The producer waits for answers.
    asking: bool,
    /// The reader went away: the flow is over.
    over: bool,
    progress: Progress,
}

/// A file that was announced.
struct File {
    id: u64,
    content: Content,
    path: Vec<u8>,
    len: u64,
    mtime: (i64, u32),
    /// An earlier state of it may be there.
    in_chunks: bool,
    /// The other end can read again what came.
    may_repeat: bool,
}

/// A file that was sent and may have to be sent again.
struct Doubted {
    file: File,
    /// Bytes of it that were only named.
    repeated: u64,
}

/// Where the content of a file is.
enum Content {
    /// Below the root of this number, at the file's path.
    Below(usize),
    Stream(Box<dyn Read + Send>),
}

impl EntrySource {
    /// Begins to scan, and to send.
    pub(crate) fn start(input: Input, options: SourceOptions) -> io::Result<Self> {
        let SourceOptions { dry_run, on_failure, on_file, on_removed } = options;
        let state = Mutex::new(State::default());
        let shared = Arc::new(Shared { state, changed: Condvar::new(), dry_run, on_failure, on_file, on_removed });
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let roots = match input {
            Input::Paths { roots, unopened, filter } => {
                shared.lock().found.extend(unopened.into_iter().map(Found::Failed));
                let copies = roots.iter().map(Root::try_clone).collect::<io::Result<Vec<_>>>()?;
                let scan = Arc::clone(&shared);
                thread("narrows-scan").spawn(move || {
                    let _guard = StopOnPanic(Arc::clone(&scan));
                    scan.scan(&copies, &filter);
                })?;
                roots
            }
            Input::Stream(reader) => {
                let mut state = shared.lock();
                state.found.push_back(Found::Stream(reader));
                state.scanned = true;
                state.progress = Progress { scanned: true, endless: true, files: 1, ..Progress::default() };
                drop(state);
                Vec::new()
            }
        };
        let produce = Arc::clone(&shared);
        thread("narrows-files").spawn(move || {
            let _guard = StopOnPanic(Arc::clone(&produce));
            Producer::new(&produce, roots).run();
        })?;
        Ok(Self { shared })
    }

    /// The records, for the engine.
    pub(crate) fn reader(&self) -> impl Read + Send + use<> {
        Reader { shared: Arc::clone(&self.shared), current: Vec::new(), at: 0 }
    }

    /// Hears the answers.
    pub(crate) fn on_note(&self) -> OnNote {
        let shared = Arc::clone(&self.shared);
        Box::new(move |note| Answer::parse_all(note, |answer| shared.answer(answer)))
    }

    /// The flow is over: whoever waits for it stops.
    pub(crate) fn stop(&self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
    }

    pub(crate) fn progress(&self) -> impl Fn() -> Progress + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || shared.lock().progress.clone()
    }
}

/// A thread that panics ends the flow with an error instead of leaving the others waiting.
struct StopOnPanic(Arc<Shared>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().over = true;
            self.0.changed.notify_all();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for answers, and lets the reader know that it does.
    fn wait_for_answers<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.asking = true;
        self.changed.notify_all();
        let mut state = self.wait(state);
        state.asking = false;
        state
    }

    fn scan(&self, roots: &[Root], filter: &Filter) {
        walk(roots, filter, |found| {
            let mut state = self.lock();
            while state.found.len() >= SCANNED_MAX && !state.over {
                state = self.wait(state);
            }
            if let Found::Entry { entry, .. } = &found
                && let EntryKind::File { len, .. } = entry.kind
            {
                state.progress.files += 1;
                state.progress.bytes += len;
            }
            state.found.push_back(found);
            self.changed.notify_all();
            !state.over
        });
        let mut state = self.lock();
        state.scanned = true;
        state.progress.scanned = true;
        self.changed.notify_all();
    }

    fn answer(&self, answer: Answer) -> narrows::Result<()> {
        let sent = matches!(answer, Answer::NotStored { .. });
        let mut state = self.lock();
        match answer {
            Answer::Files { count, wanted } => {
                if count > state.unanswered.len() as u64 {
                    return Err(narrows::Error::corrupt("the receiver answers more files than were announced"));
                }
                for mut file in state.unanswered.drain(..count as usize).collect::<Vec<_>>() {
                    let known = matches!(file.content, Content::Below(_));
                    if !known && matches!(wanted, Wanted::No | Wanted::Chunks | Wanted::Repeats) {
                        return Err(narrows::Error::corrupt("the receiver takes for known what nobody has seen"));
                    }
                    if matches!(wanted, Wanted::No | Wanted::Refused) {
                        state.progress.files_same += u64::from(wanted == Wanted::No);
                        state.progress.bytes_same += file.len;
                    } else {
                        file.in_chunks = wanted == Wanted::Chunks;
                        file.may_repeat = wanted == Wanted::Repeats;
                        state.wanted_bytes = state.wanted_bytes.saturating_add(file.len);
                        state.wanted.push_back(file);
                    }
                }
            }
            Answer::Chunks { id, runs } => {
                if state.chunk_answers.len() > CHUNK_ANSWERS_MAX {
                    return Err(narrows::Error::corrupt("the receiver answers more chunks than were sent"));
                }
                state.chunk_answers.push_back((id, runs));
            }
            Answer::Whole { id } => drop(state.doubted.remove(&id)),
            Answer::Again { id } => {
                let Some(Doubted { mut file, repeated }) = state.doubted.remove(&id) else {
                    return Err(narrows::Error::corrupt("the receiver wants a file again that repeats none"));
                };
                state.progress.files_sent = state.progress.files_sent.saturating_sub(1);
                state.progress.bytes_here = state.progress.bytes_here.saturating_sub(repeated);
                state.progress.bytes_done = state.progress.bytes_done.saturating_sub(file.len.saturating_sub(repeated));
                file.may_repeat = false;
                state.wanted_bytes = state.wanted_bytes.saturating_add(file.len);
                state.wanted.push_front(file);
            }
            Answer::Lost { text } => state.progress.losses = Some(super::shown(text.as_bytes())),
            Answer::Removed { count, text } => {
                let Some(on_removed) = &self.on_removed else {
                    return Err(narrows::Error::corrupt("the receiver removes what nobody asked it to"));
                };
                // Any text of the peer's may come here.
                let text = super::shown(text.as_bytes());
                state.progress.removed = state.progress.removed.saturating_add(count);
                if count == 0 {
                    state.progress.not_removed = Some(text);
                } else if !text.is_empty() {
                    drop(state);
                    on_removed(&text);
                }
            }
            Answer::Failed { id, text } | Answer::NotStored { id, text } => {
                state.doubted.remove(&id);
                state.progress.failed += 1;
                if sent {
                    state.progress.files_sent = state.progress.files_sent.saturating_sub(1);
                }
                drop(state);
                // Any text of the peer's may come here.
                (self.on_failure)(&super::shown(text.as_bytes()));
            }
        }
        self.changed.notify_all();
        Ok(())
    }
}

struct Reader {
    shared: Arc<Shared>,
    current: Vec<u8>,
    at: usize,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            if self.at == self.current.len() {
                let mut state = self.shared.lock();
                while filled == 0 && state.records.is_empty() && !state.done && !state.over {
                    let (begun, asking) = (Instant::now(), state.asking);
                    state = self.shared.wait(state);
                    if asking {
                        state.progress.answers_ns += begun.elapsed().as_nanos() as u64;
                    }
                }
                if state.over {
                    return Err(io::Error::other("the copy is over"));
                }
                let Some(next) = state.records.pop_front() else { break };
                state.records_len -= next.len();
                self.shared.changed.notify_all();
                drop(state);
                (self.current, self.at) = (next, 0);
            }
            let n = (buf.len() - filled).min(self.current.len() - self.at);
            buf[filled..filled + n].copy_from_slice(&self.current[self.at..self.at + n]);
            filled += n;
            self.at += n;
        }
        Ok(filled)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use narrows::entry::Record;

    #[test]
    fn a_receiver_that_removes_what_nobody_asked_it_to_fails() {
        let removed = |count, text: &str| {
            let mut note = Vec::new();
            Answer::Removed { count, text: text.into() }.put(&mut note);
            note
        };
        let start = |on_removed| {
            let input = Input::Paths { roots: Vec::new(), unopened: Vec::new(), filter: Filter::new(&[]).unwrap() };
            let (on_failure, on_file): (OnWords, OnWords) = (Box::new(|_| ()), Box::new(|_| ()));
            let options = SourceOptions { dry_run: false, on_failure, on_file, on_removed };
            EntrySource::start(input, options).unwrap()
        };
        let (plain, note) = (start(None), removed(1, "precious"));
        assert!(plain.on_note()(&note).unwrap_err().to_string().contains("nobody asked"));

        let names = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&names);
        let asked = start(Some(Box::new(move |name: &str| heard.lock().unwrap().push(name.to_owned()))));
        let mut hear = asked.on_note();
        for (count, text) in [(1, "a\x1b[2J"), (u64::MAX, ""), (7, ""), (0, "too\nmany")] {
            hear(&removed(count, text)).unwrap();
        }
        assert_eq!(*names.lock().unwrap(), ["a\\u{1b}[2J"]);
        let progress = asked.progress()();
        assert_eq!((progress.removed, progress.not_removed.as_deref()), (u64::MAX, Some("too\\nmany")));
        [plain, asked].iter().for_each(EntrySource::stop);
    }

    #[test]
    fn a_file_whose_repeats_are_not_there_is_sent_again_without_them_once() {
        let home = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..100_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        ["1", "2", "3"].iter().for_each(|name| std::fs::write(home.path().join(name), &content).unwrap());
        let roots = vec![Root::open(&home.path().join(""), true).unwrap()];
        let input = Input::Paths { roots, unopened: Vec::new(), filter: Filter::new(&[]).unwrap() };
        let (on_failure, on_file): (OnWords, OnWords) = (Box::new(|_| ()), Box::new(|_| ()));
        let source =
            EntrySource::start(input, SourceOptions { dry_run: false, on_failure, on_file, on_removed: None }).unwrap();
        let (mut reader, mut hear) = (source.reader(), source.on_note());
        let mut tell = |answer: Answer| {
            let mut note = Vec::new();
            answer.put(&mut note);
            hear(&note)
        };
        let mut parser = narrows::entry::RecordParser::default();
        // Lengths of what came of each file: as data, as repeats, and the numbers of those that ended.
        let (mut data, mut repeats, mut ended, mut current, mut finished) = ([0; 4], [0; 4], Vec::new(), 0, false);
        let mut until = |ends: usize| {
            let mut buffer = [0; 4096];
            let mut announced = 0;
            while ended.len() < ends && announced < 4 && !finished {
                let n = reader.read(&mut buffer).unwrap();
                let each = |record: Record<'_>| {
                    match record {
                        Record::Entry(_) => announced += 1,
                        Record::Begin { id } => current = id as usize,
                        Record::Data(bytes) => data[current] += bytes.len(),
                        Record::Repeat { len, .. } => repeats[current] += len as usize,
                        Record::End { .. } => ended.push(current),
                        Record::Finish { .. } => finished = true,
                        _ => {}
                    }
                    Ok(())
                };
                parser.push(&buffer[..n], each).unwrap();
                if n == 0 {
                    break;
                }
            }
            (data, repeats, ended.clone(), finished)
        };
        until(1);
        tell(Answer::Files { count: 3, wanted: Wanted::Repeats }).unwrap();
        let len = content.len();
        let (data, repeats, ended, finished) = until(3);
        assert_eq!((data, ended, finished), ([0, len, 0, 0], vec![1, 2, 3], false));
        assert_eq!(repeats, [0, 0, len, len]);
        tell(Answer::Whole { id: 2 }).unwrap();
        tell(Answer::Again { id: 3 }).unwrap();
        let (data, repeats, ended, _) = until(4);
        assert_eq!((data, repeats, ended), ([0, len, 0, len], [0, 0, len, len], vec![1, 2, 3, 3]));
        assert!(until(usize::MAX).3, "it waits for nothing more");
        assert!(tell(Answer::Again { id: 3 }).is_err() && tell(Answer::Again { id: 1 }).is_err());
        let progress = source.progress()();
        assert_eq!((progress.files_sent, progress.bytes_done, progress.bytes_here), (3, 2 * len as u64, len as u64));
    }
}
