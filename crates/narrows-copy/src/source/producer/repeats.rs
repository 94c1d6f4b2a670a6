//! References to content that was sent before in this copy, in the same or another file. Content is
//! cut at content-defined borders, looked up by hash, compared byte for byte, and then sent as a
//! reference.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use fastcdc::v2020::FastCDC;
use narrows::entry::REPEAT_LEN_MAX;
use xxhash_rust::xxh3::xxh3_64;

use super::{File, GATHER_LEN, Over, Producer, READ_LEN, Verdict, images};
use crate::delta::{CHUNK_LENS, read_at};
use crate::earlier::{Earlier, Opened, REPEAT_MIN};

/// Number of remembered chunks: 1 GiB of content in 4 MiB of memory. A new chunk replaces the old
/// one in its slot.
const SLOTS: usize = 128 << 10;
/// Rate of content below which repeats are looked for. The search takes about a nanosecond per
/// byte, so at most a quarter of a core. At higher rates the link is so fast that references seldom
/// pay off.
const LOOK_BELOW_BYTES_PER_S: f64 = 250e6;
/// Maximum number of unconfirmed files sent as references. Their paths take at most 16 MiB.
const DOUBTED_MAX: usize = 4 << 10;
/// After the receiver has lost this many files, no references to other files are sent: something at
/// the receiver prevents them, and each loss may cost sending a file twice.
const LOST_MAX: usize = 64;
/// Maximum number of referenced bytes that wait in gathered records, because the receiver could
/// already be copying them.
const WAITING_MAX: u64 = 4 << 20;
/// The rate is measured again after this many bytes. The first bytes go into buffers and say
/// nothing about the link.
const PACE_LEN: u64 = 8 << 20;

#[derive(Clone, Copy, Default)]
struct Slot {
    hash: u64,
    id: u64,
    offset: u64,
}

/// Index of the sent content.
#[derive(Default)]
pub(super) struct Repeats {
    slots: Vec<Slot>,
    earlier: Earlier<Sent>,
    /// Open files that were compared last.
    opened: Opened,
    /// Bytes sent as references since records were queued last.
    waiting: u64,
    of_others: bool,
    others_allowed: bool,
    lost: usize,
    pace: Option<Pace>,
}

/// The root, length and time of a file when it was read.
struct Sent {
    root: usize,
    len: u64,
    mtime: (i64, u32),
}

/// Measurement of the rate at which content is sent.
struct Pace {
    since: Instant,
    bytes: u64,
    looking: bool,
}

/// A range of earlier content with the same bytes.
#[derive(Clone, Copy)]
struct Run {
    id: u64,
    offset: u64,
    len: u32,
}

impl Repeats {
    /// Starts a file. `lost` are files that the receiver has lost, `doubted` is the number of
    /// unconfirmed files.
    pub(super) fn begin(&mut self, lost: &[u64], doubted: usize) {
        for id in lost {
            self.earlier.remove(*id);
            self.opened.close(*id);
        }
        self.lost += lost.len();
        self.others_allowed = doubted < DOUBTED_MAX && self.lost < LOST_MAX;
    }

    /// Remembers a file that was sent and did not change meanwhile.
    pub(super) fn sent(&mut self, root: usize, file: &File, mode: u32) {
        // The receiver cannot read a file again that its owner may not read, and would have to
        // request it.
        if file.may_repeat && file.len >= REPEAT_MIN as u64 && mode & 0o400 != 0 {
            self.earlier.push(file.id, file.path.clone(), Sent { root, len: file.len, mtime: file.mtime });
        }
    }

    fn is_looking(&self) -> bool {
        self.pace.as_ref().is_none_or(|pace| pace.looking)
    }

    /// Counts bytes that were sent. References are not counted, as they say nothing about the link.
    fn sent_bytes(&mut self, len: u64) {
        let pace = self.pace.get_or_insert_with(|| Pace { since: Instant::now(), bytes: 0, looking: true });
        pace.bytes += len;
        if pace.bytes >= PACE_LEN {
            let rate = pace.bytes as f64 / pace.since.elapsed().as_secs_f64().max(1e-9);
            *pace = Pace { since: Instant::now(), bytes: 0, looking: rate < LOOK_BELOW_BYTES_PER_S };
        }
    }
}

impl Producer<'_> {
    /// Sends the bytes from `at` to `end`, or references to earlier ones; returns whether the file
    /// had that many.
    pub(super) fn span_or_repeats(
        &mut self,
        file: &File,
        fd: &OwnedFd,
        mut at: u64,
        end: u64,
        hash: &mut blake3::Hasher,
    ) -> Result<io::Result<bool>, Over> {
        let mut buffer = Vec::new();
        let read_len = if self.shared.images { images::READ_LEN } else { READ_LEN } as u64;
        while at < end {
            if self.await_room(read_len)? != Verdict::Nothing {
                return Ok(Ok(false));
            }
            let want = (end - at).min(read_len) as usize;
            if !file.may_repeat || want < REPEAT_MIN || !self.repeats.is_looking() {
                self.repeats.sent_bytes(want as u64);
                match self.span(fd, at, at + want as u64, Some(&mut *hash))? {
                    Ok(true) => at += want as u64,
                    short => return Ok(short),
                }
                continue;
            }
            buffer.resize(want, 0);
            let read = match read_at(fd, &mut buffer, at) {
                Ok(0) => return Ok(Ok(false)),
                Ok(n) => n,
                Err(e) => return Ok(Err(e)),
            };
            let is_last = at + read as u64 == end;
            let record_end = self.shared.images.then(|| images::record_end(&buffer[..read])).flatten();
            let sent = match record_end {
                Some(len) => self.send_or_name(file.id, fd, at, &buffer[..len], true),
                None => self.send_or_name(file.id, fd, at, &buffer[..read], is_last),
            };
            hash.update(&buffer[..sent]);
            at += sent as u64;
            if self.out.len() >= GATHER_LEN || self.repeats.waiting >= WAITING_MAX {
                self.repeats.waiting = 0;
                self.hand_on()?;
            }
        }
        Ok(Ok(true))
    }

    /// Waits until the receiver has processed enough references for so many bytes more; returns its verdict on
    /// the current file.
    fn await_room(&mut self, len: u64) -> Result<Verdict, Over> {
        let mut state = self.shared.lock();
        while !state.doubts.has_room(len) {
            if state.over {
                return Err(Over);
            }
            if !self.out.is_empty() {
                drop(state);
                self.hand_on()?;
                state = self.shared.lock();
                continue;
            }
            state = self.shared.wait_for_answers(state);
        }
        Ok(state.doubts.verdict())
    }

    /// Sends the chunks of `bytes`, which begin at offset `at` of the file, except a last chunk
    /// that may be longer; returns the number of bytes sent.
    fn send_or_name(&mut self, id: u64, fd: &OwnedFd, at: u64, bytes: &[u8], is_last: bool) -> usize {
        let (mut new_from, mut done, mut named) = (0, 0, 0);
        let mut run: Option<Run> = None;
        for chunk in FastCDC::new(bytes, CHUNK_LENS.0, CHUNK_LENS.1, CHUNK_LENS.2) {
            let (begin, end) = (chunk.offset, chunk.offset + chunk.length);
            if end == bytes.len() && !is_last && begin > 0 {
                break;
            }
            let found = self.find(id, fd, at + begin as u64, &bytes[begin..end]);
            if run.is_some() || found.is_some() {
                self.send_new(&bytes[new_from..begin]);
                new_from = begin;
            }
            if let Some(next) = found {
                named += next.len as usize;
                new_from = end;
                run = match run {
                    Some(Run { id, offset, len })
                        if id == next.id
                            && offset + u64::from(len) == next.offset
                            && len + next.len <= REPEAT_LEN_MAX =>
                    {
                        Some(Run { id, offset, len: len + next.len })
                    }
                    _ => {
                        self.send_run(run);
                        Some(next)
                    }
                };
            } else {
                self.send_run(run.take());
            }
            done = end;
        }
        self.send_run(run);
        self.send_new(&bytes[new_from..done]);
        self.repeats.sent_bytes((done - named) as u64);
        self.repeats.waiting += named as u64;
        self.count((done - named) as u64, named as u64);
        self.repeated += named as u64;
        self.shared.lock().progress.bytes_repeated += named as u64;
        done
    }

    fn send_new(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.writer.data(bytes, &mut self.out);
        }
    }

    fn send_run(&mut self, run: Option<Run>) {
        if let Some(Run { id, offset, len }) = run {
            self.writer.repeat(id, offset, len, &mut self.out);
            self.shared.lock().doubts.named(len.into(), std::mem::take(&mut self.repeats.of_others));
        }
    }

    /// Finds earlier content with the same bytes; remembers these bytes if there is none.
    fn find(&mut self, id: u64, fd: &OwnedFd, at: u64, bytes: &[u8]) -> Option<Run> {
        // A run of one byte compresses to almost nothing, so a reference saves nothing.
        if bytes.len() < REPEAT_MIN || bytes[1..] == bytes[..bytes.len() - 1] {
            return None;
        }
        if self.repeats.slots.is_empty() {
            self.repeats.slots = vec![Slot::default(); SLOTS];
        }
        let hash = xxh3_64(bytes);
        let slot = self.repeats.slots[hash as usize % SLOTS];
        let before = slot.id != id || slot.offset + bytes.len() as u64 <= at;
        if slot.hash == hash && before && self.is_same(slot, id, fd, bytes) {
            self.repeats.of_others |= slot.id != id;
            return Some(Run { id: slot.id, offset: slot.offset, len: bytes.len() as u32 });
        }
        self.repeats.slots[hash as usize % SLOTS] = Slot { hash, id, offset: at };
        None
    }

    /// Whether the slot's file has these bytes and has not changed since it was sent.
    fn is_same(&mut self, slot: Slot, id: u64, fd: &OwnedFd, bytes: &[u8]) -> bool {
        let Self { repeats, roots, .. } = self;
        let mut there = [0; CHUNK_LENS.2];
        let there = &mut there[..bytes.len()];
        let mut is_there =
            |fd: &OwnedFd| read_at(fd, there, slot.offset).is_ok_and(|n| n == bytes.len()) && *there == *bytes;
        if slot.id == id {
            return is_there(fd);
        }
        let Some((path, sent)) = repeats.earlier.get(slot.id).filter(|_| repeats.others_allowed) else { return false };
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let opened = repeats.opened.get(slot.id, || roots[sent.root].tree.open_below(path, flags));
        let Ok(file) = opened else { return false };
        let unchanged = rustix::fs::fstat(file)
            .is_ok_and(|s| s.st_size as u64 == sent.len && (s.st_mtime, s.st_mtime_nsec as u32) == sent.mtime);
        unchanged && is_there(file)
    }
}
