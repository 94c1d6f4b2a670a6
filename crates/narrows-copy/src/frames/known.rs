//! Frames of a file that are stored here already, by an earlier copy or a part of one.

use std::io;
use std::os::fd::OwnedFd;

use narrows::codec::CodecId;
use narrows::entry::{FRAMES_MAX, KnownFrame};
use narrows::frame::{self, Header, PREFACE_LEN, Preface, ReadLimits};
use xxhash_rust::xxh3::xxh3_64;

use super::{BLOCK_LEN, limits, stands_alone};
use crate::delta::read_at;
use narrows_host::shares::Share;

/// Most frames that are remembered of a file: 128 GiB in blocks of 512 KiB, and 18 MiB of memory. What
/// lies after them is sent again.
const KNOWN_MAX: usize = 256 << 10;
/// Most frames of a file that are looked at: those that are known from the file before it, and as many.
const STEPS_MAX: usize = 2 * KNOWN_MAX;
/// Shortest frame: header, check and one byte.
const FRAME_MIN: u64 = 13;
/// Longest header of a block: kind, codec, two lengths and the check.
const HEADER_LEN: usize = 19;
/// Most bodies that are hashed for one answer, in bytes. Nothing else is done meanwhile.
const HASHED_MAX: usize = 64 << 20;

/// The frames of one file, in ascending order of their raw bytes.
pub(crate) struct KnownFrames {
    files: Vec<OwnedFd>,
    frames: Vec<Place>,
    _memory: Share,
}

/// Where a frame is.
struct Place {
    file: usize,
    /// Offset of the frame in the file.
    at: u64,
    header_len: usize,
    frame: KnownFrame,
    /// The hash of the body was made, and told.
    is_told: bool,
}

impl KnownFrames {
    /// Upper limit of the memory of the frames of these files.
    pub(crate) fn len_max(files: &[OwnedFd]) -> usize {
        let len: u64 = files.iter().map(|f| rustix::fs::fstat(f).map_or(0, |s| s.st_size as u64)).sum();
        (len / FRAME_MIN).min(KNOWN_MAX as u64) as usize * size_of::<Place>()
    }

    /// Finds the frames of `files`; of a later file only those after the ones before.
    pub(crate) fn new(files: Vec<OwnedFd>, memory: Share) -> Self {
        let mut known = Self { files, frames: Vec::new(), _memory: memory };
        for file in 0..known.files.len() {
            known.scan(file);
        }
        known
    }

    fn scan(&mut self, number: usize) {
        let file = &self.files[number];
        let begin = self.frames.last().map_or(0, |p| p.frame.raw_offset + u64::from(p.frame.raw_len));
        let len = rustix::fs::fstat(file).map_or(0, |s| s.st_size as u64);
        let mut preface = [0; PREFACE_LEN];
        let read = read_at(file, &mut preface, 0).is_ok_and(|n| n == PREFACE_LEN);
        let Some(preface) = Preface::parse(&preface).ok().flatten().filter(|p| read && stands_alone(p)) else { return };
        let limits = limits(&preface);
        let (mut at, mut raw_offset, mut steps) = (PREFACE_LEN as u64, 0u64, 0);
        // Whatever is no whole frame ends what is known: an index, or the end of a part.
        while self.frames.len() < KNOWN_MAX
            && steps < STEPS_MAX
            && let Some((frame, header_len)) = header(file, at, raw_offset, &limits)
        {
            let end = at + header_len as u64 + u64::from(frame.wire_len);
            if end > len {
                break;
            }
            if frame.raw_offset >= begin && frame.raw_len as usize <= BLOCK_LEN {
                self.frames.push(Place { file: number, at, header_len, frame, is_told: false });
            }
            raw_offset += u64::from(frame.raw_len);
            (at, steps) = (end, steps + 1);
        }
    }

    /// The frames from number `from` on, for one answer; none if there are no more.
    pub(crate) fn tell(&mut self, from: u64) -> Vec<KnownFrame> {
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(self.frames.len());
        let (mut told, mut hashed, mut body) = (Vec::new(), 0, Vec::new());
        for place in self.frames[from..].iter_mut().take(FRAMES_MAX) {
            if place.frame.codec != CodecId::STORE.0 {
                if read_body(&self.files[place.file], place, &mut body).is_err() {
                    break;
                }
                place.frame.body_hash = xxh3_64(&body);
                hashed += body.len();
            }
            place.is_told = true;
            told.push(place.frame);
            if hashed > HASHED_MAX {
                break;
            }
        }
        told
    }

    /// Passes on the frames that have exactly `len` raw bytes from `raw_offset` on.
    ///
    /// # Errors
    /// Such frames are not there, or have changed since they were told.
    pub(crate) fn take(
        &self,
        raw_offset: u64,
        len: u64,
        mut on_frame: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let other = || io::Error::other("it refers to frames that are not there; copy it again");
        let (mut at, end) = (raw_offset, raw_offset.checked_add(len).ok_or_else(other)?);
        let first = self.frames.partition_point(|place| place.frame.raw_offset < raw_offset);
        let mut frame = Vec::new();
        for place in &self.frames[first..] {
            if at >= end {
                break;
            }
            if place.frame.raw_offset != at || !place.is_told {
                return Err(other());
            }
            let file = &self.files[place.file];
            frame.resize(place.header_len + place.frame.wire_len as usize, 0);
            let n = read_at(file, &mut frame, place.at)?;
            let body = &frame[place.header_len..];
            let hash = if place.frame.codec == CodecId::STORE.0 { 0 } else { xxh3_64(body) };
            if n < frame.len() || hash != place.frame.body_hash || check_of(&frame, place) != place.frame.check {
                return Err(other());
            }
            on_frame(&frame)?;
            at += u64::from(place.frame.raw_len);
        }
        if at == end { Ok(()) } else { Err(other()) }
    }

    /// The files, in order.
    pub(crate) fn files(&self) -> impl Iterator<Item = &OwnedFd> {
        self.files.iter()
    }
}

/// The check that stands in a frame.
fn check_of(frame: &[u8], place: &Place) -> u64 {
    let at = place.header_len - 8;
    frame[at..place.header_len].try_into().map_or(0, u64::from_le_bytes)
}

fn read_body(file: &OwnedFd, place: &Place, body: &mut Vec<u8>) -> io::Result<()> {
    body.resize(place.frame.wire_len as usize, 0);
    match read_at(file, body, place.at + place.header_len as u64)? {
        n if n < body.len() => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// The frame of a block at `at`, and the length of its header.
fn header(file: &OwnedFd, at: u64, raw_offset: u64, limits: &ReadLimits) -> Option<(KnownFrame, usize)> {
    let mut bytes = [0; HEADER_LEN];
    let n = read_at(file, &mut bytes, at).ok()?;
    let Ok(Some(Header::Block(h))) = frame::parse_header(&bytes[..n], limits) else { return None };
    let frame = KnownFrame {
        codec: h.codec.0,
        raw_offset,
        raw_len: h.raw_len? as u32,
        wire_len: h.wire_len as u32,
        check: h.check?,
        body_hash: 0,
    };
    Some((frame, h.header_len()))
}
