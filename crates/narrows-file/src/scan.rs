//! The index of a stream from the headers of its frames, for files without one.

use narrows::frame::{
    self, Attempt, BLOCK_MAX_HARD, ControlKind, EndTotals, HISTORY_MAX_HARD, Header, PREFACE_LEN, Preface, ReadLimits,
    chain_digest, feature,
};
use narrows::{Error, Result};

use crate::footer::{Tail, read_preface};
use crate::index::{Builder, IndexOrigin, Member};
use crate::read_at::ReadAt;

/// Read at a time: many short frames come with one read, and of long ones little is read in vain.
const WINDOW: usize = 4 << 10;

/// Limits under which headers are parsed: those of the stream and of the format.
pub(crate) fn limits(preface: &Preface) -> ReadLimits {
    ReadLimits {
        block_max: preface.block_max.min(BLOCK_MAX_HARD),
        history: preface.history.min(HISTORY_MAX_HARD),
        reach: if preface.critical & feature::COPIES != 0 { preface.reach } else { 0 },
        codecs: preface.codecs,
        check: preface.check,
        messages: false,
    }
}

/// The stream that begins at `wire_begin` of a file of `len` bytes, of at most `blocks_max` blocks. One that
/// breaks off, or whose headers are damaged, has the frames before that, and `broken` says why.
pub(crate) fn scan(source: &impl ReadAt, tail: &Tail, wire_begin: u64, len: u64, blocks_max: usize) -> Result<Member> {
    let preface = read_preface(source, tail, wire_begin)?;
    if preface.critical & feature::MESSAGES != 0 {
        return Err(Error::unsupported("a stream of messages has no raw offsets; read it from its beginning"));
    }
    let mut walk = Walk { source, tail, end: len, window: Vec::new(), window_begin: 0 };
    let mut builder = Builder::new(&preface, blocks_max);
    let (mut at, mut raw_end, mut digest) = (PREFACE_LEN as u64, 0, 0);
    let limits = limits(&preface);
    let mut totals = EndTotals::default();
    let (mut unknown, mut attempt) = (false, None);
    let broken = loop {
        let header = match walk.header(wire_begin + at, &limits) {
            Ok(header) => header,
            Err(e) if e.source.is_none() => break Some(e.at(at, builder.blocks()).to_string()),
            Err(e) => return Err(e),
        };
        let (header_len, body_len) = match &header {
            Header::Block(h) => (h.header_len(), h.wire_len),
            Header::Control(h) => (h.header_len, h.body_len),
        };
        let wire_len = (header_len + body_len) as u64;
        if wire_begin + at + wire_len > len {
            break Some(Error::truncated("the file ends within a frame").at(at, builder.blocks()).to_string());
        }
        match header {
            Header::Block(h) => {
                let raw_len = h.raw_len.unwrap_or(0) as u64;
                builder.push(raw_len, wire_len)?;
                raw_end += raw_len;
                digest = h.check.map_or(digest, |check| chain_digest(digest, check));
            }
            Header::Control(h) if h.kind == ControlKind::End => {
                let mut body = vec![0; h.body_len];
                tail.read(source, &mut body, wire_begin + at + header_len as u64)?;
                let found = (raw_end, at, digest);
                let read = h.verify(&body, raw_end).and_then(|()| EndTotals::parse(&body));
                match read {
                    Ok(t) if (t.raw_total, t.wire_total, t.digest) == found => {
                        totals = t;
                        break None;
                    }
                    _ => break Some("the totals of the end frame do not match the stream".to_owned()),
                }
            }
            // Index and sums stand after the last block; they are not looked at here.
            Header::Control(h) => {
                unknown |= matches!(h.kind, ControlKind::Unknown(_));
                if h.kind == ControlKind::Attempt && h.body_len < WINDOW {
                    let mut body = vec![0; h.body_len];
                    tail.read(source, &mut body, wire_begin + at + header_len as u64)?;
                    attempt = h.verify(&body, raw_end).and_then(|()| Attempt::parse(&body)).ok();
                }
                builder.push(0, wire_len)?;
            }
        }
        at += wire_len;
    };
    let is_whole = broken.is_none();
    if !is_whole {
        totals = EndTotals { raw_total: raw_end, wire_total: at, index_offset: 0, digest };
    }
    Ok(Member {
        wire_begin,
        raw_begin: 0,
        preface,
        totals,
        origin: IndexOrigin::Scanned,
        sums: (0, Vec::new()),
        broken,
        unknown,
        attempt: attempt.filter(|_| is_whole),
        frames: builder.finish(),
    })
}

struct Walk<'a, R> {
    source: &'a R,
    tail: &'a Tail,
    end: u64,
    window: Vec<u8>,
    window_begin: u64,
}

impl<R: ReadAt> Walk<'_, R> {
    fn header(&mut self, at: u64, limits: &ReadLimits) -> Result<Header> {
        for _ in 0..2 {
            let known = at
                .checked_sub(self.window_begin)
                .and_then(|skip| usize::try_from(skip).ok())
                .and_then(|skip| self.window.get(skip..))
                .unwrap_or_default();
            if !known.is_empty()
                && let Some(header) = frame::parse_header(known, limits)?
            {
                return Ok(header);
            }
            let n = self.end.saturating_sub(at).min(WINDOW as u64) as usize;
            self.window.resize(n, 0);
            self.tail.read(self.source, &mut self.window, at)?;
            self.window_begin = at;
        }
        Err(Error::truncated("the file ends before the end frame of its stream"))
    }
}
