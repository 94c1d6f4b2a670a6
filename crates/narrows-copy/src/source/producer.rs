//! Produces the records: announces the found entries, and reads and sends the wanted files.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use narrows::entry::{DATA_LEN_MAX, DIGEST_LEN, EndState, Entry, EntryKind, RecordWriter};
use narrows_host::file_state::{Change, FileState};
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::doubts::{Doubted, Verdict};
use super::seen::{Seen, Sum};
use super::{Content, File, Framing, SCANNED_RESUME, Shared};
use crate::delta::Outline;
use crate::frames::{Encoder, Item};
use crate::holes::{has_hole, next_data};
use crate::reread::{DataSum, Holes};
use crate::scan::{Found, Root, socket_words};
use crate::{e_text, meta, shown};

mod framed;
mod images;
mod never;
mod outlined;
mod repeats;
mod stored_file;

use framed::Asked;
pub(super) use framed::{Told, each_decoded};
pub(super) use never::Never;
use outlined::{Outlined, RECORDS_AHEAD};
use repeats::Repeats;

/// Maximum number of files announced but not answered. Answers come one round trip later: at 40 ms
/// this allows 400,000 files/s.
const UNANSWERED_MAX: usize = 16 << 10;
/// While this many files are known to be wanted, announcing more can wait.
const WANTED_FILES: usize = 1024;
/// While this many bytes are known to be wanted, announcing more can wait.
const WANTED_BYTES: u64 = 8 << 20;
/// Maximum length of queued records in bytes: enough for the next blocks of the engine.
const QUEUE_BYTES: usize = 1 << 20;
/// Length of a read of a file, and of a data record, in bytes.
const READ_LEN: usize = 256 << 10;
const _: () = assert!(READ_LEN <= DATA_LEN_MAX);
/// Small records are gathered up to this length in bytes before they are queued.
const GATHER_LEN: usize = 64 << 10;
/// Maximum number of files whose chunks wait for an answer; each keeps a descriptor and a buffer of
/// 1 MiB.
const OUTLINED_MAX: usize = 16;
/// Maximum number of queued answers about chunks; more than a correct receiver sends.
pub(super) const CHUNK_ANSWERS_MAX: usize = 2 * (OUTLINED_MAX + 1) * RECORDS_AHEAD;

/// Name of a stream in messages.
const STREAM_NAME: &[u8] = b"stdin";

/// The next action of the producer.
enum Step {
    Announce(Found),
    Send(File),
    /// Process answers about chunks.
    Answers(VecDeque<(u64, Vec<u32>)>),
    /// Process answers about what the other end has.
    Told(VecDeque<(u64, Told)>),
    /// Send a file of which the other end has told what it has.
    SendAsked(Box<Asked>),
    /// Send the content of a file whose first chunks were answered.
    SendChunks(Box<Outlined>),
    /// Announce the totals of files and bytes.
    Total(u64, u64),
    Finish,
}

/// The thread that produces the records.
pub(super) struct Producer<'a> {
    shared: &'a Shared,
    roots: Vec<Root>,
    writer: RecordWriter,
    out: Vec<u8>,
    /// Files whose first chunks were announced and are not answered yet.
    outlined: VecDeque<Box<Outlined>>,
    /// Content goes as frames, which it makes.
    encoder: Option<Encoder>,
    /// The sources are stored files.
    unwraps: bool,
    /// Finds files that are to be stored as they are.
    never: Option<Never>,
    /// Files of which the other end was asked what it has.
    asked: VecDeque<Box<Asked>>,
    /// The totals still have to be announced.
    totals: bool,
    /// Files may be removed in the end.
    removes: bool,
    /// Sent content to which later files can refer.
    repeats: Repeats,
    /// Bytes of the current file that were sent (`done`), and that need not be sent (`here`).
    done: u64,
    here: u64,
    /// Of `here`, what was sent as references.
    repeated: u64,
}

/// The flow has ended, so nothing more is read.
pub(super) struct Over;

/// A file that was opened to be read, and what it was before.
struct Opened {
    fd: OwnedFd,
    stat: Stat,
    state: FileState,
}

impl Opened {
    /// Whether a file of that length has holes. Fewer blocks alone may be due to a file system that
    /// compresses.
    fn is_sparse(&self, len: u64) -> bool {
        (self.stat.st_blocks as u64).saturating_mul(512) < len && has_hole(&self.fd, len)
    }
}

impl<'a> Producer<'a> {
    pub(super) fn new(shared: &'a Shared, roots: Vec<Root>, totals: bool, framing: Option<Framing>) -> Self {
        let (mut encoder, mut unwraps, mut never) = (None, false, None);
        if let Some(framing) = framing {
            (encoder, unwraps, never) = (Some(framing.encoder), framing.unwraps, framing.never);
        }
        let removes = shared.lock().removable.is_some();
        Self {
            shared,
            roots,
            writer: RecordWriter::default(),
            out: Vec::new(),
            outlined: VecDeque::new(),
            encoder,
            unwraps,
            never,
            asked: VecDeque::new(),
            totals,
            removes,
            repeats: Repeats::default(),
            done: 0,
            here: 0,
            repeated: 0,
        }
    }

    /// Produces records until the copy is complete or the flow ends.
    pub(super) fn run(mut self) {
        // The end of the flow is not an error of the producer.
        let _ = self.produce();
    }

    fn produce(&mut self) -> Result<(), Over> {
        loop {
            match self.next_step()? {
                Step::Announce(found) => self.announce(found),
                Step::Send(file) => self.send(file)?,
                Step::Answers(answers) => self.take_answers(answers),
                Step::Told(told) => self.take_told(told),
                Step::SendAsked(asked) => self.send_asked(*asked)?,
                Step::SendChunks(outlined) => self.send_chunks(outlined)?,
                Step::Total(files, bytes) => self.writer.total(files, bytes, &mut self.out),
                Step::Finish => {
                    self.writer.finish(&mut self.out);
                    self.hand_on()?;
                    if let Some(encoder) = &mut self.encoder {
                        return encoder.end().map_err(|_| Over);
                    }
                    self.shared.lock().done = true;
                    self.shared.changed.notify_all();
                    return Ok(());
                }
            }
            if self.out.len() >= GATHER_LEN {
                self.hand_on()?;
            }
        }
    }

    /// Chooses the next action. Announcing comes first while few files are known to be wanted, so
    /// that sending never waits for answers.
    fn next_step(&mut self) -> Result<Step, Over> {
        loop {
            let mut state = self.shared.lock();
            if state.over {
                return Err(Over);
            }
            if !state.chunk_answers.is_empty() {
                return Ok(Step::Answers(std::mem::take(&mut state.chunk_answers)));
            }
            if !state.told.is_empty() {
                return Ok(Step::Told(std::mem::take(&mut state.told)));
            }
            // Of stored files the lengths of the originals are known once they were announced.
            if self.totals && state.scanned && (!self.unwraps || state.found.is_empty()) {
                self.totals = false;
                return Ok(Step::Total(state.progress.files, state.progress.bytes));
            }
            let ahead = state.wanted.len() >= WANTED_FILES || state.wanted_bytes >= WANTED_BYTES;
            if !ahead
                && state.unanswered.len() < UNANSWERED_MAX
                && let Some(found) = state.found.pop_front()
            {
                if state.found.len() == SCANNED_RESUME {
                    self.shared.changed.notify_all();
                }
                return Ok(Step::Announce(found));
            }
            if self.outlined.front().is_some_and(|o| o.is_due())
                && let Some(outlined) = self.outlined.pop_front()
            {
                return Ok(Step::SendChunks(outlined));
            }
            if self.asked.front().is_some_and(|asked| asked.is_due())
                && let Some(asked) = self.asked.pop_front()
            {
                return Ok(Step::SendAsked(asked));
            }
            let full = self.outlined.len() + self.asked.len() >= OUTLINED_MAX;
            if state.wanted.front().is_some_and(|file| !(full && file.in_chunks))
                && let Some(file) = state.wanted.pop_front()
            {
                state.wanted_bytes = state.wanted_bytes.saturating_sub(file.len);
                return Ok(Step::Send(file));
            }
            let waits = !self.outlined.is_empty() || !self.asked.is_empty();
            let asked = !state.unanswered.is_empty() || waits || state.doubts.len() > 0;
            if state.scanned && state.found.is_empty() && !asked {
                return Ok(Step::Finish);
            }
            if !self.out.is_empty() {
                // The awaited answers depend on these records.
                drop(state);
                self.hand_on()?;
                continue;
            }
            let looking = state.found.is_empty() && !state.scanned;
            drop(if looking { self.shared.wait(state) } else { self.shared.wait_for_answers(state) });
        }
    }

    fn announce(&mut self, found: Found) {
        let (root, mut entry, state) = match found {
            Found::Failed(text) => return self.failed(&text),
            Found::Socket(path) => return self.failed(&socket_words(&path)),
            Found::Stream(reader) => return self.announce_stream(reader),
            Found::Entry { root, entry, state } => (root, entry, state),
        };
        let mut stored = false;
        if self.unwraps {
            match self.unwrap_entry(root, &mut entry) {
                Ok(is_stored) => stored = is_stored,
                Err(e) => return self.failed(&format!("cannot read {}: {}", shown(&entry.path), e_text(&e))),
            }
        }
        let id = match self.writer.entry(&entry, &mut self.out) {
            Ok(id) => id,
            Err(e) => {
                self.failed(&format!("{}: {e}", shown(&entry.path)));
                entry.xattrs.clear();
                match self.writer.entry(&entry, &mut self.out) {
                    Ok(id) => id,
                    Err(e) => return self.failed(&format!("{}: {e}", shown(&entry.path))),
                }
            }
        };
        if let EntryKind::File { len, .. } = entry.kind {
            let mtime = (entry.mtime_s, entry.mtime_ns);
            let mut file = File {
                id,
                content: Content::Below(root),
                path: entry.path,
                len,
                mtime,
                in_chunks: false,
                may_repeat: false,
                stored,
                state: Some(state),
            };
            if self.removes {
                file.state = Some(self.settled(root, &file.place(), state));
            }
            self.shared.lock().unanswered.push_back(file);
        } else if let Some(on_skipped) = &self.shared.on_skipped
            && let Some(text) = meta::skipped(&entry)
        {
            on_skipped(&text);
        } else if entry.kind != EntryKind::Folder
            && let Some(removable) = &mut self.shared.lock().removable
        {
            removable.add_other(id, root, entry);
        }
    }

    /// What a file that may be removed without being read is, so that a later write shows.
    fn settled(&mut self, root: usize, path: &[u8], found: FileState) -> FileState {
        let tree = &mut self.roots[root].tree;
        let look = || {
            let (folder, name) = tree.parent(path)?;
            Ok(FileState::from(&rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW)?))
        };
        // What was written meanwhile is not what is announced.
        let settled = found.settled(look).ok().filter(|now| found.change(now) != Change::Content);
        settled.unwrap_or(found)
    }

    fn announce_stream(&mut self, reader: Box<dyn Read + Send>) {
        let (path, kind) = (Vec::new(), EntryKind::Stream);
        let entry = Entry { path, kind, mode: 0, uid: 0, gid: 0, mtime_s: 0, mtime_ns: 0, xattrs: Vec::new() };
        match self.writer.entry(&entry, &mut self.out) {
            Ok(id) => {
                let (content, path) = (Content::Stream(reader), STREAM_NAME.to_vec());
                let (in_chunks, may_repeat, stored, state) = (false, false, false, None);
                let file = File { id, content, path, len: 0, mtime: (0, 0), in_chunks, may_repeat, stored, state };
                self.shared.lock().unanswered.push_back(file);
            }
            Err(e) => self.failed(&e.to_string()),
        }
    }

    /// Reports a failure to both ends.
    fn failed(&mut self, text: &str) {
        self.shared.lock().progress.failed += 1;
        (self.shared.on_failure)(text);
        self.writer.failed(text, &mut self.out);
    }

    // --- files ---

    fn send(&mut self, mut file: File) -> Result<(), Over> {
        if self.shared.dry_run {
            self.sent(&file);
            return Ok(());
        }
        let root = match &mut file.content {
            Content::Below(root) => *root,
            Content::Stream(reader) => {
                let read = self.stream(file.id, reader)?;
                if read {
                    self.sent(&file);
                }
                return Ok(());
            }
        };
        let opened = match self.open(root, &file.place()) {
            Ok(opened) => opened,
            Err(e) => {
                let what = match e.kind() {
                    io::ErrorKind::NotFound => "it has vanished".to_owned(),
                    _ => e_text(&e),
                };
                self.failed(&format!("cannot read {}: {what}", shown(&file.path)));
                return Ok(());
            }
        };
        if self.encoder.is_some() {
            return self.send_framed(file, &opened);
        }
        let sparse = opened.is_sparse(file.len);
        let Opened { fd, stat, state: opened_as } = opened;
        // Of a file with holes, leaving them out may save more than its chunks.
        if file.in_chunks && (!sparse || self.shared.lock().takes_holes) {
            let outline = Outline::new(file.len, sparse);
            return self.outline(Box::new(Outlined { file, fd, state: opened_as, outline, unreadable: false }));
        }
        self.writer.begin(file.id, &mut self.out);
        let mut hash = blake3::Hasher::new();
        let mut state = self.shared.lock();
        let lost = state.doubts.begin(file.id);
        self.repeats.begin(&lost, state.doubts.len());
        drop(state);
        (self.done, self.here, self.repeated) = (0, 0, 0);
        let mut holes = sparse.then(Holes::default);
        let read = self.content(&file, &fd, holes.as_mut(), &mut hash)?;
        let verdict = self.shared.lock().doubts.verdict();
        let mut end = EndState::Partial;
        if verdict == Verdict::Nothing {
            let digest = hash.finalize().into();
            let seen = Seen { state: opened_as, sum: Some(Sum::Data(DataSum::new(digest, holes.as_ref()))) };
            end = self.ended(&file, &fd, seen, read, &digest);
        } else {
            self.writer.end(end, &[0; DIGEST_LEN], &mut self.out);
        }
        if end == EndState::Whole {
            self.repeats.sent(root, &file, stat.st_mode);
        }
        let changed = end == EndState::Changed;
        let doubted = Doubted { file, done: self.done, here: self.here, repeated: self.repeated, changed };
        let mut state = self.shared.lock();
        if let Some(doubted) = state.doubts.sent(doubted) {
            // The answer may have arrived since the verdict was read.
            state.progress.files_sent = state.progress.files_sent.saturating_sub((end != EndState::Partial).into());
            state.send_again(doubted);
        }
        Ok(())
    }

    /// Counts bytes of the current file that were sent, and that need not be sent.
    fn count(&mut self, done: u64, here: u64) {
        self.done += done;
        self.here += here;
        let mut state = self.shared.lock();
        state.progress.bytes_done += done;
        state.progress.bytes_here += here;
    }

    fn open(&mut self, root: usize, path: &[u8]) -> io::Result<Opened> {
        let fd = self.roots[root].tree.open_below(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let stat = rustix::fs::fstat(&fd)?;
        // Reading must not block on a fifo that has replaced the file.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a file any more"));
        }
        let state = FileState::from(&stat).settled(|| FileState::of(&fd))?;
        Ok(Opened { fd, stat, state })
    }

    /// Ends the content of a file, completely read or not, and reports the result to both ends.
    fn ended(
        &mut self,
        file: &File,
        fd: &OwnedFd,
        seen: Seen,
        read: io::Result<bool>,
        digest: &[u8; DIGEST_LEN],
    ) -> EndState {
        let (state, seen) = self.end_state(file, fd, seen, &read);
        self.writer.end(state, digest, &mut self.out);
        self.tell_end(file, state, seen, read);
        state
    }

    /// How the content of a file ends, and what the file is then. `seen` is what was read.
    fn end_state(&self, file: &File, fd: &OwnedFd, seen: Seen, read: &io::Result<bool>) -> (EndState, Seen) {
        if !matches!(read, Ok(true)) {
            return (EndState::Partial, seen);
        }
        // Files such as those of /proc have length 0, and their content is generated when they are
        // read.
        if file.len == 0 && !file.stored && rustix::io::pread(fd, &mut [0], 0).is_ok_and(|n| n > 0) {
            return (EndState::Partial, seen);
        }
        // A stored file has another length than its original, and its end was read before.
        let is_announced = |now: &FileState| (file.stored || now.len == file.len) && now.mtime == file.mtime;
        let still = seen.still(file, fd, || !self.shared.lock().over).ok().flatten();
        match still.filter(is_announced) {
            Some(state) => (EndState::Whole, Seen { state, ..seen }),
            None => (EndState::Changed, seen),
        }
    }

    /// Reports the end of a file.
    fn tell_end(&mut self, file: &File, state: EndState, seen: Seen, read: io::Result<bool>) {
        match read {
            Err(e) => self.failed(&format!("cannot read {}: {}", shown(&file.path), e_text(&e))),
            Ok(false) => self.failed(&format!("{} shrank while it was read; it was not stored", shown(&file.path))),
            Ok(true) if state == EndState::Partial => {
                let name = shown(&file.path);
                self.failed(&format!(
                    "{name} has content although its length is 0; pipe it into `narrows cp - TARGET`"
                ));
            }
            Ok(true) => {
                self.sent(file);
                if state == EndState::Whole
                    && let Some(removable) = &mut self.shared.lock().removable
                {
                    removable.add(file, seen);
                }
                if state == EndState::Changed {
                    self.shared.lock().progress.changed += 1;
                    (self.shared.on_failure)(&format!("{} changed while it was read", shown(&file.path)));
                }
            }
        }
    }

    fn sent(&self, file: &File) {
        let mut state = self.shared.lock();
        state.progress.files_sent += 1;
        drop(state);
        if !self.shared.itemized {
            (self.shared.on_file)(&shown(&file.path));
        }
    }

    // --- content ---

    /// Sends the data of a reader as it arrives, and ends the file; returns whether all of it was
    /// read.
    fn stream(&mut self, id: u64, reader: &mut Box<dyn Read + Send>) -> Result<bool, Over> {
        if self.encoder.is_some() {
            let failure = self.stream_framed(id, reader)?;
            self.tell_stream(failure.as_ref());
            return Ok(failure.is_none());
        }
        self.writer.begin(id, &mut self.out);
        let (mut hash, mut buffer) = (blake3::Hasher::new(), vec![0; READ_LEN]);
        let failure = loop {
            // The next data may take long to arrive.
            self.hand_on()?;
            match reader.read(&mut buffer) {
                Ok(0) => break None,
                Ok(n) => {
                    hash.update(&buffer[..n]);
                    self.writer.data(&buffer[..n], &mut self.out);
                    self.shared.lock().progress.bytes_done += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Some(e),
            }
        };
        let state = if failure.is_none() { EndState::Whole } else { EndState::Partial };
        self.writer.end(state, &hash.finalize().into(), &mut self.out);
        self.tell_stream(failure.as_ref());
        Ok(failure.is_none())
    }

    fn tell_stream(&mut self, failure: Option<&io::Error>) {
        if let Some(e) = failure {
            let what = narrows_host::words::without_os_numbers(&e.to_string());
            self.failed(&format!("cannot read {}: {what}; nothing was stored", shown(STREAM_NAME)));
        }
    }

    /// Sends the content of a file, and its holes if they go into `holes`; returns whether it was as long as
    /// announced.
    fn content(
        &mut self,
        file: &File,
        fd: &OwnedFd,
        mut holes: Option<&mut Holes>,
        hash: &mut blake3::Hasher,
    ) -> Result<io::Result<bool>, Over> {
        let (len, mut at) = (file.len, 0);
        while at < len {
            let mut end = len;
            if let Some(holes) = &mut holes {
                match next_data(fd, at, len) {
                    Ok((begin, data_end)) => {
                        if begin > at {
                            holes.add(at, begin - at);
                            self.writer.hole(begin - at, &mut self.out);
                            self.count(0, begin - at);
                            at = begin;
                        }
                        end = data_end;
                    }
                    Err(e) => return Ok(Err(e)),
                }
            }
            match self.span_or_repeats(file, fd, at, end, hash)? {
                Ok(true) => at = end,
                short => return Ok(short),
            }
        }
        Ok(Ok(true))
    }

    /// Sends the bytes from `at` to `end`; returns whether the file had that many.
    fn span(
        &mut self,
        fd: &OwnedFd,
        mut at: u64,
        end: u64,
        mut hash: Option<&mut blake3::Hasher>,
    ) -> Result<io::Result<bool>, Over> {
        while at < end {
            let mut buffer = vec![0; (end - at).min(READ_LEN as u64) as usize];
            let n = loop {
                match rustix::io::pread(fd, &mut buffer[..], at) {
                    Err(Errno::INTR) => {}
                    Err(e) => return Ok(Err(e.into())),
                    Ok(n) => break n,
                }
            };
            if n == 0 {
                return Ok(Ok(false));
            }
            if let Some(hash) = &mut hash {
                hash.update(&buffer[..n]);
            }
            self.writer.data(&buffer[..n], &mut self.out);
            self.count(n as u64, 0);
            at += n as u64;
            if self.out.len() >= GATHER_LEN {
                self.hand_on()?;
            }
        }
        Ok(Ok(true))
    }

    /// Queues the gathered records for the engine when there is room.
    fn hand_on(&mut self) -> Result<(), Over> {
        if self.out.is_empty() {
            return Ok(());
        }
        let records = std::mem::take(&mut self.out);
        match &self.encoder {
            Some(encoder) => encoder.put(Item::Records(records)).map_err(|_| Over),
            None => self.shared.queue(records, QUEUE_BYTES, 0),
        }
    }
}
