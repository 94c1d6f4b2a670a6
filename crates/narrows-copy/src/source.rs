//! The sending end: announces entries, receives answers which files are wanted, and sends those
//! files, all concurrently.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narrows::entry::{Answer, EntryKind, Wanted};
use narrows::stream::{Control, OnNote};
use narrows_host::file_state::FileState;

use super::delta::DELTA_MIN;
use super::filter::Filter;
use super::frames::{Encoder, FramesOptions, OverError, SUFFIX};
use super::scan::{Found, Picks, Root, walk_picked};
use super::tree::Tree;

mod doubts;
mod producer;
mod removable;
mod seen;

use doubts::{Doubted, Doubts};
use producer::{CHUNK_ANSWERS_MAX, Never, Over, Producer, Told};
use removable::Removable;
use seen::Seen;

/// Maximum number of entries that the scan is ahead: enough that it never waits for the link, in
/// less than 1 MiB.
const SCANNED_MAX: usize = 1024;
/// A waiting scan continues when this few entries are left.
const SCANNED_RESUME: usize = SCANNED_MAX / 2;
/// Number of entries that are handed over together. Waking another thread for each entry takes
/// longer than finding it.
const HANDED_MAX: usize = SCANNED_MAX / 4;
/// Time after which fewer entries are handed over.
const HANDED_EVERY: Duration = Duration::from_millis(2);

/// Encoded bytes that wait before the link at least: a few writes of a fast one.
const AHEAD_MIN: u64 = 256 << 10;
/// The same in seconds of the link: short against the time in which a link changes.
const AHEAD_S: f64 = 0.05;
/// Once so much was taken, the rate of the link is more than that of a copy into its buffers.
const PROVEN_BYTES: u64 = 1 << 20;
/// Interval between looks at a link that has taken too little.
const PACE_EVERY: Duration = Duration::from_micros(500);

/// Progress of the copy, for the bar and the summary.
// More than 20 fields, since it is a list: each total has readers of its own, who know it by its name.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The scan is complete, so `files` and `bytes` are totals.
    pub scanned: bool,
    /// The input has an unknown length.
    pub endless: bool,
    /// Files found.
    pub files: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Links, fifos and devices found, of which the receiver does not say whether it has them.
    pub others: u64,
    /// Bytes that were read to compare files by their contents.
    pub bytes_compared: u64,
    /// Files that are unchanged at the receiver.
    pub files_same: u64,
    /// Their length in bytes.
    pub bytes_same: u64,
    /// Bytes of changed files that the receiver already has.
    pub bytes_here: u64,
    /// Bytes of content sent as references to what was sent before.
    pub bytes_repeated: u64,
    /// Bytes of content sent, including the current file.
    pub bytes_done: u64,
    /// Those of them whose records were queued for the link.
    pub bytes_queued: u64,
    /// Bytes of all records that were queued.
    pub record_bytes: u64,
    /// Time in which the engine had nothing to send because everything left depended on answers of
    /// the receiver, in nanoseconds.
    pub answers_ns: u64,
    /// Files sent.
    pub files_sent: u64,
    /// Failures at both ends.
    pub failed: u64,
    /// Those of files whose content the receiver could not store.
    pub not_stored: u64,
    /// Files that changed while they were read, and were stored nevertheless.
    pub changed: u64,
    /// Attributes that the receiver could not preserve.
    pub losses: Option<String>,
    /// Entries that the receiver removed.
    pub removed: u64,
    /// Why the receiver removed nothing.
    pub not_removed: Option<String>,
    /// Number of the reason why it stores nothing at all.
    pub refused: Option<u64>,
}

impl Progress {
    /// Bytes of content that are at the receiver, if so many bytes of records are; never too many.
    pub fn bytes_crossed(&self, records_crossed: u64) -> u64 {
        let under_way = self.record_bytes.saturating_sub(records_crossed);
        // Frames have more content than bytes, and other records no more.
        let content = self.bytes_queued.max(self.record_bytes);
        let content = u128::from(under_way) * u128::from(content) / u128::from(self.record_bytes.max(1));
        self.bytes_queued.saturating_sub(u64::try_from(content).unwrap_or(u64::MAX))
    }

    /// Share of the copy that is done, 0 to 1; `None` until the total is known.
    pub fn share_done(&self) -> Option<f64> {
        let left = self.bytes.saturating_sub(self.bytes_same + self.bytes_here + self.bytes_done);
        let all = self.bytes_done + left;
        (self.scanned && !self.endless && all > 0).then(|| self.bytes_done as f64 / all as f64)
    }
}

type OnWords = Box<dyn Fn(&str) + Send + Sync>;

/// Input of a copy.
pub enum Input {
    /// Files and folders. `unopened` has the errors of sources that could not be opened, which are
    /// reported to both ends.
    Paths { roots: Vec<Root>, unopened: Vec<String>, filter: Filter },
    /// Data up to its end, as one file that gets the name of the target.
    Stream(Box<dyn Read + Send>),
}

/// Options of the sending end.
pub struct SourceOptions {
    /// No content is sent.
    pub dry_run: bool,
    /// Called with every failure at either end.
    pub on_failure: OnWords,
    /// Called with every fifo, device and socket, none of which the receiver makes; `None`: it makes them, or
    /// reports itself that it does not.
    pub on_skipped: Option<OnWords>,
    /// Called with the name of every file that is sent.
    pub on_file: OnWords,
    /// `on_file` is also called for folders and links that the receiver creates.
    pub names: bool,
    /// Announce the totals to the receiver when the scan is complete.
    pub totals: bool,
    /// Called with every entry that the receiver removes; without it, the receiver may remove
    /// nothing.
    pub on_removed: Option<OnWords>,
    /// The flow fails when the receiver owes answers and gives none for this long; `None`: never.
    pub answers_within: Option<Duration>,
    /// Content goes as frames, which are made like this.
    pub frames: Option<FramesOptions>,
    /// What the scan picks.
    pub picks: Picks,
    /// The receiver reports every change, so `on_file` is not called for files by this end.
    pub itemized: bool,
    /// The sources can be removed when all is stored ([`EntrySource::remove_sources`]).
    pub removes: bool,
    /// No record interrupts an image, so that it can be recompressed.
    pub images: bool,
    /// The receiver takes holes among chunks, as far as is known before it answers.
    pub holes: bool,
}

/// The sending end of a copy.
pub struct EntrySource {
    shared: Arc<Shared>,
    /// The sources, if they are removed in the end.
    removed_from: Vec<Root>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    dry_run: bool,
    on_failure: OnWords,
    on_skipped: Option<OnWords>,
    on_file: OnWords,
    names: bool,
    itemized: bool,
    images: bool,
    on_removed: Option<OnWords>,
    answers_within: Option<Duration>,
    /// Bytes that the scan has read for digests.
    compared: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    found: VecDeque<Found>,
    scanned: bool,
    unanswered: VecDeque<File>,
    wanted: VecDeque<File>,
    wanted_bytes: u64,
    /// Answers about the chunks of files, with the number of the file.
    chunk_answers: VecDeque<(u64, Vec<u32>)>,
    /// Answers about frames and sums, with the number of the file.
    told: VecDeque<(u64, Told)>,
    doubts: Doubts,
    /// Records for the engine; `done` is set when no more will follow.
    records: VecDeque<Vec<u8>>,
    records_len: usize,
    done: bool,
    /// The producer waits for answers.
    asking: bool,
    /// Answers so far.
    answers: u64,
    /// The flow has ended: the reader is gone.
    over: bool,
    /// The receiver takes holes among chunks.
    takes_holes: bool,
    /// Sources that may be removed in the end, if that was asked for.
    removable: Option<Removable>,
    progress: Progress,
}

/// An announced file.
struct File {
    id: u64,
    content: Content,
    path: Vec<u8>,
    len: u64,
    mtime: (i64, u32),
    /// The receiver may have an earlier version, so chunks are sent first.
    in_chunks: bool,
    /// The receiver can read its content again, so that other files can refer to it.
    may_repeat: bool,
    /// It is a stored file; `path` and `len` are those of its original.
    stored: bool,
    /// What it was when it was found; `None` of a stream.
    state: Option<FileState>,
}

impl File {
    /// Its path below its root.
    fn place(&self) -> Cow<'_, [u8]> {
        match self.stored {
            true => [&self.path[..], SUFFIX].concat().into(),
            false => (&self.path[..]).into(),
        }
    }
}

/// Source of the content of a file.
enum Content {
    /// The path of the file below the root with this number.
    Below(usize),
    Stream(Box<dyn Read + Send>),
}

impl EntrySource {
    /// Starts scanning and sending.
    pub fn start(input: Input, options: SourceOptions) -> io::Result<Self> {
        let SourceOptions { dry_run, on_failure, on_file, names, totals, on_removed, answers_within, frames, .. } =
            options;
        let on_skipped = options.on_skipped;
        let (picks, itemized, images) = (options.picks, options.itemized, options.images);
        let removable = (options.removes && !dry_run).then(Removable::default);
        let state = Mutex::new(State { removable, takes_holes: options.holes, ..State::default() });
        let shared = Arc::new(Shared {
            state,
            changed: Condvar::new(),
            dry_run,
            on_failure,
            on_skipped,
            on_file,
            names,
            itemized,
            images,
            on_removed,
            answers_within,
            compared: Arc::clone(&picks.compared),
        });
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let roots = match input {
            Input::Paths { roots, unopened, filter } => {
                shared.lock().found.extend(unopened.into_iter().map(Found::Failed));
                let copies = roots.iter().map(Root::try_clone).collect::<io::Result<Vec<_>>>()?;
                let scan = Arc::clone(&shared);
                thread("narrows-scan").spawn(move || {
                    let _guard = StopOnPanic(Arc::clone(&scan));
                    scan.scan(&copies, &filter, &picks);
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
        let removed_from = match options.removes {
            true => roots.iter().map(Root::try_clone).collect::<io::Result<Vec<_>>>()?,
            false => Vec::new(),
        };
        let produce = Arc::clone(&shared);
        let encoder = frames.map(|frames| start_encoder(&shared, frames)).transpose();
        let started = encoder.and_then(|encoder| {
            thread("narrows-files").spawn(move || {
                let _guard = StopOnPanic(Arc::clone(&produce));
                Producer::new(&produce, roots, totals, encoder).run();
            })
        });
        let source = Self { shared, removed_from };
        if let Err(e) = started {
            // Otherwise the scanning thread would wait forever.
            source.stop();
            return Err(e);
        }
        Ok(source)
    }

    /// The stream of records for the engine.
    pub fn reader(&self) -> impl Read + Send + use<> {
        Reader { shared: Arc::clone(&self.shared), current: Vec::new(), at: 0 }
    }

    /// The handler for notes, which contain the answers of the receiver.
    pub fn on_note(&self) -> OnNote {
        let shared = Arc::clone(&self.shared);
        Box::new(move |note| Answer::parse_all(note, |answer| shared.answer(answer)))
    }

    /// Ends the flow: all waiting threads stop.
    pub fn stop(&self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
    }

    /// Removes the sources that are stored at the other end, which has confirmed everything. Returns how
    /// many, and reports those that cannot be removed.
    /// `target`: the folder on this host that they were copied into, and the name of a single file. What was
    /// copied onto itself stays.
    pub fn remove_sources(&mut self, target: Option<(Tree, Option<Vec<u8>>)>, on_failure: &dyn Fn(&str)) -> u64 {
        let removable = self.shared.lock().removable.take();
        removable.map_or(0, |removable| removable.remove(&mut self.removed_from, target, on_failure))
    }

    /// A function that returns the current progress.
    pub fn progress(&self) -> impl Fn() -> Progress + Send + Sync + use<> {
        let shared = Arc::clone(&self.shared);
        move || {
            let bytes_compared = shared.compared.load(Ordering::Relaxed);
            Progress { bytes_compared, ..shared.lock().progress.clone() }
        }
    }
}

/// How content goes as frames.
struct Framing {
    encoder: Encoder,
    /// The sources are stored files.
    unwraps: bool,
    never: Option<Never>,
}

/// Starts the encoder. It hands on its records no faster than the carrier takes them, since all that waits
/// behind it hides from it how fast the link is.
fn start_encoder(shared: &Arc<Shared>, mut frames: FramesOptions) -> io::Result<Framing> {
    let (carrier, unwraps) = (Arc::clone(&frames.carrier), frames.unwraps);
    let never = frames.hint.take().map(Never::new);
    let (queue, end) = (Arc::clone(shared), Arc::clone(shared));
    let mut handed = 0;
    let emit = move |records: Vec<u8>, waiting: usize| {
        handed += records.len() as u64;
        queue.queue(records, AHEAD_MIN as usize, waiting).map_err(|_| OverError)?;
        queue.pace(handed, &carrier).map_err(|_| OverError)
    };
    let encoder = Encoder::start(frames, emit, move |all| {
        let mut state = end.lock();
        (state.done, state.over) = (all, state.over || !all);
        end.changed.notify_all();
    })?;
    Ok(Framing { encoder, unwraps, never })
}

/// Ends the flow with an error if a thread panics, so that the others do not wait forever.
struct StopOnPanic(Arc<Shared>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().over = true;
            self.0.changed.notify_all();
        }
    }
}

impl State {
    /// Keeps an answer about frames or sums for the producer.
    fn tell(&mut self, id: u64, told: Told) -> narrows::Result<()> {
        if self.told.len() > CHUNK_ANSWERS_MAX {
            return Err(narrows::Error::corrupt("the receiver answers more than it was asked"));
        }
        self.told.push_back((id, told));
        Ok(())
    }

    /// Queues a file to be sent again, and undoes its counts. The receiver may have kept a part of
    /// it, as after an interrupted copy.
    fn send_again(&mut self, doubted: Doubted) {
        let Doubted { mut file, done, here, repeated, changed } = doubted;
        self.progress.bytes_done = self.progress.bytes_done.saturating_sub(done);
        self.progress.bytes_here = self.progress.bytes_here.saturating_sub(here);
        self.progress.bytes_repeated = self.progress.bytes_repeated.saturating_sub(repeated);
        self.progress.changed = self.progress.changed.saturating_sub(changed.into());
        if let Some(removable) = &mut self.removable {
            removable.again(file.id);
        }
        file.may_repeat = false;
        file.in_chunks = file.len >= DELTA_MIN;
        self.wanted_bytes = self.wanted_bytes.saturating_add(file.len);
        self.wanted.push_front(file);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues records for the engine once fewer than `most` bytes wait. `waiting`: bytes of content that
    /// are counted and come later.
    fn queue(&self, records: Vec<u8>, most: usize, waiting: usize) -> Result<(), Over> {
        let mut state = self.lock();
        while state.records_len >= most && !state.over {
            state = self.wait(state);
        }
        if state.over {
            return Err(Over);
        }
        state.records_len += records.len();
        let progress = &mut state.progress;
        progress.record_bytes += records.len() as u64;
        progress.bytes_queued = progress.bytes_done.saturating_sub(waiting as u64);
        state.records.push_back(records);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until the link of `carrier` has taken most of `handed` bytes.
    fn pace(&self, handed: u64, carrier: &Control) -> Result<(), Over> {
        loop {
            let summary = carrier.send_summary();
            let is_proven = summary.accepted_bytes >= PROVEN_BYTES;
            let ahead = if is_proven { (summary.rate_bytes_per_s * AHEAD_S) as u64 } else { 0 };
            if handed.saturating_sub(summary.accepted_bytes) <= ahead.max(AHEAD_MIN) {
                return Ok(());
            }
            let state = self.lock();
            if state.over {
                return Err(Over);
            }
            let woken = self.changed.wait_timeout(state, PACE_EVERY);
            drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Waits for answers, and tells the reader that it does.
    fn wait_for_answers<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.asking = true;
        self.changed.notify_all();
        let mut state = self.wait(state);
        state.asking = false;
        state
    }

    fn scan(&self, roots: &[Root], filter: &Filter, picks: &Picks) {
        let mut in_hand = Vec::with_capacity(HANDED_MAX);
        let mut handed = Instant::now();
        walk_picked(roots, filter, picks, |found| {
            in_hand.push(found);
            if in_hand.len() < HANDED_MAX && handed.elapsed() < HANDED_EVERY {
                return true;
            }
            let goes_on = self.hand_over(&mut in_hand);
            handed = Instant::now();
            goes_on
        });
        self.hand_over(&mut in_hand);
        let mut state = self.lock();
        state.scanned = true;
        state.progress.scanned = true;
        self.changed.notify_all();
    }

    /// Hands the found entries to the producer when it has room; false if the flow has ended.
    fn hand_over(&self, found: &mut Vec<Found>) -> bool {
        let mut state = self.lock();
        if state.found.len() + found.len() > SCANNED_MAX {
            // Not at every slot that becomes free, to wake up less often.
            while state.found.len() > SCANNED_RESUME && !state.over {
                state = self.wait(state);
            }
        }
        for found in found.drain(..) {
            if let Found::Entry { entry, .. } = &found {
                match entry.kind {
                    EntryKind::File { len, .. } => {
                        state.progress.files += 1;
                        state.progress.bytes += len;
                    }
                    EntryKind::Folder => {}
                    _ => state.progress.others += 1,
                }
            }
            state.found.push_back(found);
        }
        self.changed.notify_all();
        !state.over
    }

    fn answer(&self, answer: Answer) -> narrows::Result<()> {
        let sent = matches!(answer, Answer::NotStored { .. });
        let mut state = self.lock();
        state.answers += 1;
        match answer {
            Answer::Files { count, wanted } => {
                if count > state.unanswered.len() as u64 {
                    return Err(narrows::Error::corrupt("the receiver answers for more files than were announced"));
                }
                for mut file in state.unanswered.drain(..count as usize).collect::<Vec<_>>() {
                    let known = matches!(file.content, Content::Below(_));
                    let in_chunks = matches!(wanted, Wanted::Chunks | Wanted::ChunksAndHoles);
                    if !known && (in_chunks || matches!(wanted, Wanted::No | Wanted::Repeats)) {
                        return Err(narrows::Error::corrupt(
                            "the receiver claims to have part of a stream that was never sent before",
                        ));
                    }
                    if matches!(wanted, Wanted::No | Wanted::Refused) {
                        if let (Some(removable), Wanted::No, Some(state)) = (&mut state.removable, wanted, file.state) {
                            removable.add(&file, Seen { state, sum: None });
                        }
                        if let (Some(removable), Wanted::Refused) = (&mut state.removable, wanted) {
                            removable.refused(&file);
                        }
                        state.progress.files_same += u64::from(wanted == Wanted::No);
                        state.progress.bytes_same += file.len;
                    } else {
                        file.in_chunks = in_chunks;
                        state.takes_holes |= wanted == Wanted::ChunksAndHoles;
                        file.may_repeat = wanted == Wanted::Repeats;
                        state.wanted_bytes = state.wanted_bytes.saturating_add(file.len);
                        state.wanted.push_back(file);
                    }
                }
            }
            Answer::Chunks { id, runs } => {
                if state.chunk_answers.len() > CHUNK_ANSWERS_MAX {
                    return Err(narrows::Error::corrupt("the receiver answers for more chunks than were sent"));
                }
                state.chunk_answers.push_back((id, runs));
            }
            Answer::Frames { id, frames } => state.tell(id, Told::Frames(frames))?,
            Answer::Sums { id, sums } => state.tell(id, Told::Sums(sums))?,
            Answer::Whole { id } => state.doubts.whole(id),
            Answer::Repeated { len } => state.doubts.taken(len)?,
            Answer::Again { id, of } => {
                if let Some(doubted) = state.doubts.again(id, of)? {
                    state.progress.files_sent = state.progress.files_sent.saturating_sub(1);
                    state.send_again(doubted);
                }
            }
            Answer::Made { .. } if !self.names => {
                return Err(narrows::Error::corrupt("the receiver sends names that were not requested"));
            }
            Answer::Made { text } => {
                drop(state);
                // Any text of the peer's may come here.
                (self.on_file)(&super::shown(text.as_bytes()));
            }
            // The end of the flow has the text.
            Answer::Refused { code, .. } => state.progress.refused = Some(code),
            Answer::Lost { text } => state.progress.losses = Some(super::shown(text.as_bytes())),
            Answer::Removed { count, text } => {
                let Some(on_removed) = &self.on_removed else {
                    return Err(narrows::Error::corrupt("the receiver removes entries without being asked to"));
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
                if let Some(removable) = &mut state.removable {
                    removable.failed(id);
                }
                let in_hand = state.doubts.failed(id);
                state.progress.failed += 1;
                state.progress.not_stored += u64::from(sent);
                if sent && !in_hand {
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
                let mut silence = Duration::ZERO;
                while filled == 0 && state.records.is_empty() && !state.done && !state.over {
                    let (begun, asking, answers) = (Instant::now(), state.asking, state.answers);
                    let limit = self.shared.answers_within.filter(|_| asking);
                    state = match limit.map(|limit| limit.saturating_sub(silence)) {
                        None => self.shared.wait(state),
                        Some(left) => {
                            let woken = self.shared.changed.wait_timeout(state, left);
                            woken.unwrap_or_else(PoisonError::into_inner).0
                        }
                    };
                    if asking {
                        state.progress.answers_ns += begun.elapsed().as_nanos() as u64;
                        silence += begun.elapsed();
                    }
                    if !asking || state.answers > answers {
                        silence = Duration::ZERO;
                    }
                    if limit.is_some_and(|limit| silence >= limit) {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "the receiver gives no answers"));
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
    use narrows::entry::{Chunk, EndState, REPEATED_MAX, Record, RecordParser};
    use narrows_test::noise;

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
            let options = SourceOptions {
                dry_run: false,
                on_failure,
                on_skipped: None,
                on_file,
                names: false,
                totals: false,
                on_removed,
                answers_within: None,
                frames: None,
                picks: Picks::default(),
                itemized: false,
                removes: false,
                images: false,
                holes: false,
            };
            EntrySource::start(input, options).unwrap()
        };
        let mut note = Vec::new();
        Answer::Made { text: "folder/".into() }.put(&mut note);
        assert!(start(None).on_note()(&note).unwrap_err().to_string().contains("not requested"));
        let (plain, note) = (start(None), removed(1, "precious"));
        assert!(plain.on_note()(&note).unwrap_err().to_string().contains("without being asked"));

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
    fn what_is_read_to_compare_contents_is_counted() {
        let home = tempfile::tempdir().unwrap();
        for (name, len) in [("a", 3 << 20), ("b", 5), ("c", 0)] {
            std::fs::write(home.path().join(name), vec![7; len]).unwrap();
        }
        let roots = [Root::open(&home.path().join(""), true).unwrap()];
        for (checksum, bytes) in [(false, 0), (true, (3 << 20) + 5)] {
            let picks = Picks { checksum, ..Picks::default() };
            walk_picked(&roots, &Filter::new(&[]).unwrap(), &picks, |_| true);
            assert_eq!(picks.compared.load(Ordering::Relaxed), bytes);
        }
    }

    /// The other end of a source, as far as a test plays it.
    struct Receiver {
        reader: Box<dyn Read + Send>,
        hear: OnNote,
        parser: RecordParser,
        announced: usize,
        /// Bytes that came as data, and as repeats, of each entry.
        data: [usize; 5],
        repeats: [usize; 5],
        /// Bytes of holes, as records and among chunks.
        holes: [u64; 2],
        /// End states of the files, in order.
        ended: Vec<(usize, EndState)>,
        current: usize,
        finished: bool,
    }

    impl Receiver {
        /// The receiver of a folder with these files, all of which it wants, and the sending end.
        fn of(files: &[(&str, &[u8])], folder: &std::path::Path) -> (Self, EntrySource) {
            Self::answering(files, folder, Wanted::Repeats, false)
        }

        fn answering(
            files: &[(&str, &[u8])],
            folder: &std::path::Path,
            wanted: Wanted,
            removes: bool,
        ) -> (Self, EntrySource) {
            // What is there already is not given.
            let given = files.iter().filter(|(_, content)| !content.is_empty());
            given.for_each(|(name, content)| std::fs::write(folder.join(name), content).unwrap());
            let roots = vec![Root::open(&folder.join(""), true).unwrap()];
            let input = Input::Paths { roots, unopened: Vec::new(), filter: Filter::new(&[]).unwrap() };
            let (on_failure, on_file): (OnWords, OnWords) = (Box::new(|_| ()), Box::new(|_| ()));
            let options = SourceOptions {
                dry_run: false,
                on_failure,
                on_skipped: None,
                on_file,
                names: false,
                totals: false,
                on_removed: None,
                answers_within: None,
                frames: None,
                picks: Picks::default(),
                itemized: false,
                removes,
                images: false,
                holes: false,
            };
            let source = EntrySource::start(input, options).unwrap();
            let mut receiver = Self {
                reader: Box::new(source.reader()),
                hear: source.on_note(),
                parser: RecordParser::default(),
                announced: 0,
                data: [0; 5],
                repeats: [0; 5],
                holes: [0; 2],
                ended: Vec::new(),
                current: 0,
                finished: false,
            };
            receiver.read_until(|r| r.announced > files.len());
            receiver.tell(Answer::Files { count: files.len() as u64, wanted }).unwrap();
            (receiver, source)
        }

        fn tell(&mut self, answer: Answer) -> narrows::Result<()> {
            let mut note = Vec::new();
            answer.put(&mut note);
            (self.hear)(&note)
        }

        /// Takes what comes next; of chunks all are needed.
        fn read(&mut self) {
            let mut buffer = [0; 4096];
            let n = self.reader.read(&mut buffer).unwrap();
            let mut asked = Vec::new();
            let Self { parser, announced, data, repeats, holes, ended, current, finished, .. } = self;
            let each = |record: Record<'_>| {
                match record {
                    Record::Entry(_) => *announced += 1,
                    Record::Begin { id } => *current = id as usize,
                    Record::Data(bytes) => data[*current] += bytes.len(),
                    Record::Repeat { len, .. } => repeats[*current] += len as usize,
                    Record::End { state, .. } => ended.push((*current, state)),
                    Record::Hole(len) => holes[0] += len,
                    Record::Chunks { id, chunks } => {
                        holes[1] += chunks.iter().filter(|c| c.is_hole()).map(Chunk::covers).sum::<u64>();
                        asked.push((id, chunks.len() as u32));
                    }
                    Record::Finish { .. } => *finished = true,
                    _ => {}
                }
                Ok(())
            };
            parser.push(&buffer[..n], each).unwrap();
            asked.into_iter().for_each(|(id, n)| self.tell(Answer::Chunks { id, runs: vec![0, n] }).unwrap());
        }

        fn read_until(&mut self, enough: impl Fn(&Self) -> bool) {
            while !enough(self) {
                assert!(!self.finished, "it finished too early");
                self.read();
            }
        }
    }

    #[test]
    fn a_file_whose_repeats_are_not_there_is_sent_again_without_them_once() {
        let home = tempfile::tempdir().unwrap();
        let content = noise(400_000);
        let len = content.len();
        let (mut receiver, source) = Receiver::of(&[("1", &content), ("2", &content), ("3", &content)], home.path());
        receiver.read_until(|r| r.ended.len() == 3);
        assert_eq!((receiver.data, receiver.repeats), ([0, len, 0, 0, 0], [0, 0, len, len, 0]));
        receiver.tell(Answer::Whole { id: 2 }).unwrap();
        receiver.tell(Answer::Again { id: 3, of: 1 }).unwrap();
        receiver.read_until(|r| r.finished);
        assert_eq!((receiver.data, receiver.repeats), ([0, len, 0, len, 0], [0, 0, len, len, 0]));
        assert_eq!(receiver.ended, [1, 2, 3, 3].map(|id| (id, EndState::Whole)));
        for id in [1, 2, 3] {
            assert!(receiver.tell(Answer::Again { id, of: id }).is_err());
        }
        receiver.tell(Answer::Repeated { len: 2 * len as u64 }).unwrap();
        assert!(receiver.tell(Answer::Repeated { len: 1 }).is_err());
        let progress = source.progress()();
        assert_eq!((progress.files_sent, progress.bytes_done, progress.bytes_here), (3, 2 * len as u64, len as u64));
        // The third file came again, without them.
        assert_eq!(progress.bytes_repeated, len as u64);
    }

    #[test]
    fn holes_are_among_the_chunks_of_who_takes_them_there() {
        for (wanted, in_chunks) in [(Wanted::Chunks, 0), (Wanted::ChunksAndHoles, 8 << 20)] {
            let home = tempfile::tempdir().unwrap();
            let file = std::fs::File::create(home.path().join("1")).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &noise(1 << 20), 8 << 20).unwrap();
            let (mut receiver, _source) = Receiver::answering(&[("1", &[])], home.path(), wanted, false);
            receiver.read_until(|r| r.finished);
            // They are answered as needed here, so they come as records too.
            assert_eq!((receiver.data[1], receiver.holes), (1 << 20, [8 << 20, in_chunks]));
            assert_eq!(receiver.ended, [(1, EndState::Whole)]);
        }
    }

    #[test]
    fn what_was_written_since_it_was_read_is_not_removed_even_if_its_time_was_put_back() {
        use std::os::unix::fs::{FileExt, PermissionsExt};
        // Different ones, so that no answer about repeats is waited for.
        let content = noise(1_200_000);
        for (wanted, left) in [(Wanted::Repeats, &["written"][..]), (Wanted::No, &["mode", "written"])] {
            let home = tempfile::tempdir().unwrap();
            let at = |name: &str| home.path().join(name);
            std::fs::write(at("linked"), &content[..400_000]).unwrap();
            // The second name of a file is no file of its own, and comes last.
            std::fs::hard_link(at("linked"), at("z linked too")).unwrap();
            let files = [("linked", &[][..]), ("mode", &content[400_000..800_000]), ("written", &content[800_000..])];
            let (mut receiver, mut source) = Receiver::answering(&files, home.path(), wanted, true);
            receiver.read_until(|r| r.finished);
            let file = std::fs::File::options().write(true).open(at("written")).unwrap();
            let before = file.metadata().unwrap().modified().unwrap();
            file.write_all_at(b"new", 0).unwrap();
            file.set_modified(before).unwrap();
            std::fs::set_permissions(at("mode"), std::fs::Permissions::from_mode(0o604)).unwrap();
            let failures = std::cell::RefCell::new(Vec::new());
            let removed = source.remove_sources(None, &|text| failures.borrow_mut().push(text.to_owned()));
            let mut names: Vec<_> = std::fs::read_dir(home.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, left, "{wanted:?}");
            assert_eq!((removed as usize, failures.borrow().len()), (4 - left.len(), left.len()), "{failures:?}");
            assert!(failures.borrow().iter().all(|text| text.ends_with("it changed since it was read")));
        }
    }

    #[test]
    fn of_a_file_that_is_given_up_while_it_is_sent_no_answer_is_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let long = [noise(400_000), vec![7; 4 << 20]].concat();
        let files = [("1", &noise(400_000)[..]), ("2", &long[..]), ("3", &long[..])];
        let (mut receiver, source) = Receiver::of(&files, home.path());
        receiver.read_until(|r| r.current == 2);
        receiver.tell(Answer::NotStored { id: 2, text: "no room".into() }).unwrap();
        receiver.read_until(|r| r.current == 3 && r.repeats[3] > 0);
        assert_eq!(receiver.ended, [(1, EndState::Whole), (2, EndState::Partial)]);
        assert!(receiver.data[2] < long.len() / 2);
        // The file in hand has to come again: the rest of it is left out.
        receiver.tell(Answer::Again { id: 3, of: 1 }).unwrap();
        receiver.read_until(|r| r.finished);
        assert_eq!(receiver.ended[2..], [(3, EndState::Partial), (3, EndState::Whole)]);
        assert!(receiver.data[3] > long.len() && receiver.data[3] < long.len() * 3 / 2);
        let progress = source.progress()();
        assert_eq!((progress.files_sent, progress.failed), (2, 1));
        assert_eq!(progress.bytes_done, (files[0].1.len() + receiver.data[2] + long.len()) as u64);
    }

    #[test]
    fn what_is_read_has_not_crossed_before_its_records_have() {
        let home = tempfile::tempdir().unwrap();
        let (mut receiver, source) = Receiver::of(&[("1", &noise(400_000))], home.path());
        receiver.read_until(|r| r.finished);
        let progress = source.progress()();
        assert_eq!((progress.bytes_done, progress.bytes_queued), (400_000, 400_000));
        let all = progress.record_bytes;
        let crossed = [0, all / 2, all - 1, all, u64::MAX].map(|records| progress.bytes_crossed(records));
        assert_eq!((crossed[0], crossed[2..].to_vec()), (0, vec![399_999, 400_000, 400_000]));
        assert!((199_000..200_000).contains(&crossed[1]), "{crossed:?}");
        // Frames are shorter than their content.
        let framed = Progress { bytes_done: 900, bytes_queued: 800, record_bytes: 200, ..Progress::default() };
        assert_eq!([0, 100, 200].map(|records| framed.bytes_crossed(records)), [0, 400, 800]);
        assert_eq!(Progress::default().bytes_crossed(5), 0);
    }

    #[test]
    fn what_is_named_waits_until_the_other_end_has_taken_enough() {
        let home = tempfile::tempdir().unwrap();
        let block = noise(1 << 20);
        let count = REPEATED_MAX as usize / block.len() + 20;
        let (mut receiver, _source) = Receiver::of(&[("1", &block.repeat(count))], home.path());
        receiver.read_until(|r| r.repeats[1] as u64 > REPEATED_MAX - (2 << 20));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(receiver.repeats[1] as u64 <= REPEATED_MAX && receiver.ended.is_empty());
        receiver.tell(Answer::Repeated { len: REPEATED_MAX / 2 }).unwrap();
        receiver.read_until(|r| r.finished);
        assert_eq!(receiver.data[1] + receiver.repeats[1], block.len() * count);
    }
}
