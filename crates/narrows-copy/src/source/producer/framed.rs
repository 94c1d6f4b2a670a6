//! Sending content as frames (format.md section 18).

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use narrows::block::Block;
use narrows::codec::CodecId;
use narrows::entry::{EndState, Entry, EntryKind, KnownFrame};
use narrows::frame::{BlockHeader, PREFACE_LEN, SUMS_LOG, codecs_of_this_build};
use rustix::fs::OFlags;
use xxhash_rust::xxh3::Xxh3;

use super::super::doubts::{Doubted, Verdict};
use super::super::seen::{Seen, Sum};
use super::stored_file::{Stored, Window, changed, damaged, open_any, open_stored, read_block};
use super::{File, Opened, Over, Producer, next_data};
use crate::frames::{self, BLOCK_LEN, Item, Known};
use crate::{e_text, meta, shown};

/// Most frames or sums that are asked for, of all files that wait for answers: 128 GiB in blocks of 512
/// KiB, in 12 MiB. What lies after them is sent again.
const KNOWN_MAX: usize = 256 << 10;

/// An answer about what the other end has of a file.
pub(in crate::source) enum Told {
    Frames(Vec<KnownFrame>),
    Sums(Vec<u64>),
}

/// A file of which the other end may have a part, which was asked for.
pub(super) struct Asked {
    file: File,
    frames: Vec<KnownFrame>,
    sums: Vec<u64>,
    is_whole: bool,
}

impl Asked {
    /// Frames and sums that were told so far.
    fn known(&self) -> usize {
        self.frames.len() + self.sums.len()
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_whole
    }
}

/// How the content of a file was read.
type Read = io::Result<bool>;

/// Whether a stored file was read to its end, the sums of its raw bytes, and what was read.
type Sent = (bool, Option<Vec<u64>>, Sum);

impl Producer<'_> {
    /// Turns the entry of a stored file into that of its original.
    pub(super) fn unwrap_entry(&mut self, root: usize, entry: &mut Entry) -> io::Result<bool> {
        let Some(original) = frames::original(&entry.path) else { return Ok(false) };
        let original = original.to_vec();
        let is_socket = meta::is_socket(entry);
        match &mut entry.kind {
            EntryKind::File { len, .. } => {
                let fd = self.roots[root].tree.open_below(&entry.path, OFlags::RDONLY | OFlags::NONBLOCK)?;
                let stored = *len;
                *len = match frames::totals(&fd) {
                    Ok(totals) => totals.raw_total,
                    // Several streams one after another, perhaps.
                    Err(e) => open_any(&fd).map_err(|_| e)?.raw_len(),
                };
                let mut state = self.shared.lock();
                state.progress.bytes = state.progress.bytes.saturating_sub(stored).saturating_add(*len);
            }
            EntryKind::HardLink { .. } if !is_socket => {}
            _ => return Ok(false),
        }
        entry.path = original;
        Ok(true)
    }

    /// Sends a file as frames, or asks first what the other end has of it.
    pub(super) fn send_framed(&mut self, file: File, opened: &Opened) -> Result<(), Over> {
        if file.in_chunks {
            self.writer.ask(file.id, 0, &mut self.out);
            self.asked.push_back(Box::new(Asked { file, frames: Vec::new(), sums: Vec::new(), is_whole: false }));
            return Ok(());
        }
        self.send_frames(file, opened, &[], &[])
    }

    /// Takes answers about what the other end has.
    pub(super) fn take_told(&mut self, told: VecDeque<(u64, Told)>) {
        for (id, told) in told {
            let all: usize = self.asked.iter().map(|asked| asked.known()).sum();
            let Some(asked) = self.asked.iter_mut().find(|asked| asked.file.id == id && !asked.is_whole) else {
                continue;
            };
            let before = asked.known();
            let of_others = all - before;
            match told {
                // Frames of one's own are compared by sums, others by the hashes of theirs.
                Told::Frames(frames) if !asked.file.stored => asked.frames.extend(frames),
                Told::Sums(sums) if asked.file.stored => asked.sums.extend(sums),
                _ => {}
            }
            let known = asked.known();
            asked.is_whole = known == before || of_others + known >= KNOWN_MAX;
            if !asked.is_whole {
                self.writer.ask(id, known as u64, &mut self.out);
            }
        }
    }

    /// Sends a file of which the other end has told what it has.
    pub(super) fn send_asked(&mut self, asked: Asked) -> Result<(), Over> {
        let Asked { file, frames, sums, .. } = asked;
        match self.opened(&file) {
            Some(opened) => self.send_frames(file, &opened, &frames, &sums),
            None => Ok(()),
        }
    }

    fn send_frames(&mut self, file: File, source: &Opened, known: &[KnownFrame], sums: &[u64]) -> Result<(), Over> {
        let fd = &source.fd;
        let opened = if file.stored { open_stored(fd, file.len) } else { Ok(None) };
        let never = match self.says_never(&file, fd) {
            Ok(never) => never,
            Err(why) => {
                self.failed(&why);
                return Ok(());
            }
        };
        let block_max = opened.as_ref().ok().and_then(Option::as_ref).map_or(BLOCK_LEN, |s| s.limits.block_max);
        self.writer.begin(file.id, &mut self.out);
        self.hand_on()?;
        self.put(Item::Begin(block_max))?;
        drop(self.shared.lock().doubts.begin(file.id));
        (self.done, self.here, self.repeated) = (0, 0, 0);
        let (mut own_sums, mut sum) = (None, None);
        let read = if file.stored {
            self.stored(opened, fd, file.len, sums)?.map(|(read, found, seen)| {
                (own_sums, sum) = (found, Some(seen));
                read
            })
        } else {
            let mut hash = Xxh3::new();
            let read = self.plain(&file, fd, source.is_sparse(file.len), never, known, &mut hash)?;
            sum = Some(Sum::Raw(hash.digest128()));
            read
        };
        let seen = Seen { state: source.state, sum };
        let verdict = self.shared.lock().doubts.verdict();
        let (state, seen) = match verdict {
            Verdict::Nothing => self.end_state(&file, fd, seen, &read),
            _ => (EndState::Partial, seen),
        };
        self.put(Item::End(state, own_sums))?;
        if verdict == Verdict::Nothing {
            self.tell_end(&file, state, seen, read);
        }
        let changed = state == EndState::Changed;
        let doubted = Doubted { file, done: self.done, here: self.here, repeated: 0, changed };
        let mut state = self.shared.lock();
        if let Some(doubted) = state.doubts.sent(doubted) {
            state.send_again(doubted);
        }
        Ok(())
    }

    /// Sends the data of a reader as it arrives.
    pub(super) fn stream_framed(
        &mut self,
        id: u64,
        reader: &mut Box<dyn io::Read + Send>,
    ) -> Result<Option<io::Error>, Over> {
        self.writer.begin(id, &mut self.out);
        self.hand_on()?;
        self.put(Item::Begin(BLOCK_LEN))?;
        let mut buffer = Vec::new();
        let failure = loop {
            // What a reader gives at a time may be short, and a block has bytes of one read only.
            buffer.resize(BLOCK_LEN, 0);
            let mut filled = 0;
            let failure = loop {
                match reader.read(&mut buffer[filled..]) {
                    Ok(0) => break None,
                    Ok(n) => {
                        filled += n;
                        if filled >= super::READ_LEN {
                            break None;
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => break Some(e),
                }
            };
            if filled == 0 || failure.is_some() {
                break failure;
            }
            buffer.truncate(filled);
            self.block(Block::from_vec(std::mem::take(&mut buffer)))?;
            self.shared.lock().progress.bytes_done += filled as u64;
        };
        let state = if failure.is_none() { EndState::Whole } else { EndState::Partial };
        self.put(Item::End(state, None))?;
        Ok(failure)
    }

    fn put(&mut self, item: Item) -> Result<(), Over> {
        self.encoder.as_ref().ok_or(Over)?.put(item).map_err(|_| Over)
    }

    fn block(&mut self, raw: Block) -> Result<(), Over> {
        self.encoder.as_mut().ok_or(Over)?.block(raw).map_err(|_| Over)
    }

    /// Whether the other end has given the file up.
    fn is_given_up(&self) -> bool {
        self.shared.lock().doubts.verdict() != Verdict::Nothing
    }

    // --- a file with its content as it is ---

    /// Sends the blocks of a file, except those of which the other end has frames; returns whether it
    /// was as long as announced.
    fn plain(
        &mut self,
        file: &File,
        fd: &OwnedFd,
        sparse: bool,
        never: bool,
        known: &[KnownFrame],
        hash: &mut Xxh3,
    ) -> Result<Read, Over> {
        let mut known = known.iter().filter(|frame| frame.raw_len as usize <= BLOCK_LEN).peekable();
        let (mut at, mut data) = (0, 0..0);
        while at < file.len {
            if self.is_given_up() {
                return Ok(Ok(false));
            }
            while known.next_if(|frame| frame.raw_offset < at).is_some() {}
            let next = known.peek().map_or(u64::MAX, |frame| frame.raw_offset);
            let is_known = next == at;
            let mut len = (file.len - at).min(BLOCK_LEN as u64);
            len = match known.peek() {
                Some(frame) if is_known && u64::from(frame.raw_len) <= file.len - at => frame.raw_len.into(),
                _ if is_known => len,
                _ => len.min(next - at),
            };
            if sparse && at >= data.end {
                match next_data(fd, at, file.len) {
                    Ok((begin, end)) => data = begin..end,
                    Err(e) => return Ok(Err(e)),
                }
            }
            // The zeros of a hole are not read.
            let raw = if sparse && at.saturating_add(len) <= data.start {
                Block::zeros(len as usize)
            } else {
                match read_block(fd, at, len as usize) {
                    Ok(raw) if raw.len() as u64 == len => Block::from_vec(raw),
                    Ok(_) => return Ok(Ok(false)),
                    Err(e) => return Ok(Err(e)),
                }
            };
            hash.update(&raw);
            match known.peek() {
                Some(frame) if is_known && is_of(frame, &raw) => {
                    self.put(Item::Known(Known::Stored(**frame, raw)))?;
                    self.count(0, len);
                }
                _ => {
                    if never {
                        self.put(Item::Plain(raw))?
                    } else {
                        self.block(raw)?
                    }
                    self.count(len, 0);
                }
            }
            at += len;
        }
        Ok(Ok(true))
    }

    // --- a stored file ---

    /// Sends the frames of a stored file; returns also the sums of its raw bytes.
    fn stored(
        &mut self,
        opened: io::Result<Option<Stored>>,
        fd: &OwnedFd,
        len: u64,
        sums: &[u64],
    ) -> Result<io::Result<Sent>, Over> {
        let stored = match opened {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(self.decoded(fd, len)?.map(|(all, sum)| (all, None, Sum::Decoded(sum)))),
            Err(e) => return Ok(Err(e)),
        };
        let same = |begin: u64, end: u64| {
            let Some(own) = &stored.sums else { return false };
            let (first, last) = ((begin >> SUMS_LOG) as usize, ((end - 1) >> SUMS_LOG) as usize);
            (first..=last).all(|i| sums.get(i).is_some_and(|sum| own.get(i) == Some(sum)))
        };
        let (mut at, mut raw_at) = (PREFACE_LEN as u64, 0u64);
        let mut window = Window::new(fd);
        let mut hash = Xxh3::new();
        let sum = |hash: &Xxh3| Sum::Frames { end: stored.index_offset, sum: hash.digest128() };
        while at < stored.index_offset {
            if self.is_given_up() {
                return Ok(Ok((false, None, sum(&hash))));
            }
            let (header, frame) = match window.frame(at, stored.index_offset, &stored.limits) {
                Ok(found) => found,
                Err(e) => return Ok(Err(e)),
            };
            let (Some(raw_len), Some(check)) = (header.raw_len, header.check) else { return Ok(Err(damaged())) };
            let raw_end = raw_at + raw_len as u64;
            if raw_end > stored.raw_len {
                return Ok(Err(damaged()));
            }
            let frame_len = frame.len();
            hash.update(frame);
            if same(raw_at, raw_end) {
                self.put(Item::Known(Known::Raw { raw_len, frame_len, check }))?;
                self.count(0, raw_len as u64);
            } else {
                let encoder = self.encoder.as_mut().ok_or(Over)?;
                if !encoder.stored(header, frame, raw_at).map_err(|_| Over)? {
                    return Ok(Err(damaged()));
                }
                self.count(raw_len as u64, 0);
            }
            (at, raw_at) = (at + frame_len as u64, raw_end);
        }
        if raw_at != stored.raw_len {
            return Ok(Err(damaged()));
        }
        // Those of the blocks that were encoded again alone would be wrong.
        let sum = sum(&hash);
        Ok(Ok((true, Some(stored.sums.unwrap_or_default()), sum)))
    }
}

impl Producer<'_> {
    /// Sends a stored file whose frames do not stand alone: it is decoded, and encoded for this link.
    fn decoded(&mut self, fd: &OwnedFd, len: u64) -> Result<io::Result<(bool, u128)>, Over> {
        let mut hash = Xxh3::new();
        let mut over = None;
        let read = {
            let mut each = |raw: Vec<u8>| {
                let filled = raw.len() as u64;
                hash.update(&raw);
                if let Err(e) = self.block(Block::from_vec(raw)) {
                    over = Some(e);
                    return false;
                }
                self.count(filled, 0);
                !self.is_given_up()
            };
            each_block_decoded(fd, len, &mut each)
        };
        match over {
            Some(over) => Err(over),
            None => Ok(read.map(|all| (all, hash.digest128()))),
        }
    }
}

/// Hands on what a stored file decodes to, block by block; returns whether it was `len` bytes and `each` was
/// never false.
fn each_block_decoded(fd: &OwnedFd, len: u64, each: &mut dyn FnMut(Vec<u8>) -> bool) -> Read {
    let file = open_any(fd)?;
    if file.raw_len() != len {
        return Err(changed());
    }
    let mut at = 0;
    while at < len {
        let mut raw = vec![0; (len - at).min(BLOCK_LEN as u64) as usize];
        let mut filled = 0;
        while filled < raw.len() {
            match file.read_at(&mut raw[filled..], at + filled as u64) {
                Ok(0) => return Ok(false),
                Ok(n) => filled += n,
                Err(_) => return Err(damaged()),
            }
        }
        at += filled as u64;
        if !each(raw) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// As [`each_block_decoded`], for who only looks at the bytes.
pub(in crate::source) fn each_decoded(
    fd: &OwnedFd,
    len: u64,
    goes_on: impl Fn() -> bool,
    mut each: impl FnMut(&[u8]),
) -> io::Result<bool> {
    each_block_decoded(fd, len, &mut |raw| {
        each(&raw);
        goes_on()
    })
}

/// Whether a frame that the other end has is of these raw bytes.
fn is_of(frame: &KnownFrame, raw: &[u8]) -> bool {
    let header = BlockHeader::data(CodecId(frame.codec), false, raw.len(), frame.wire_len as usize);
    let is_stored = frame.codec == CodecId::STORE.0;
    let body_hash = if is_stored { 0 } else { frame.body_hash };
    frame.raw_len as usize == raw.len()
        && codecs_of_this_build() >> frame.codec.min(63) & 1 == 1
        && (if is_stored { frame.wire_len == frame.raw_len } else { frame.wire_len < frame.raw_len })
        && header.check_of_parts([raw].into_iter(), body_hash, frame.raw_offset) == frame.check
}

impl Producer<'_> {
    /// Opens an announced file; reports a failure.
    fn opened(&mut self, file: &File) -> Option<Opened> {
        let super::Content::Below(root) = file.content else { return None };
        match self.open(root, &file.place()) {
            Ok(opened) => Some(opened),
            Err(e) => {
                self.failed(&format!("cannot read {}: {}", shown(&file.path), e_text(&e)));
                None
            }
        }
    }
}
