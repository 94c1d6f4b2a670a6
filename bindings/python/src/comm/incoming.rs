//! The receiving half of a comm: bytes of the socket in, whole messages out. Raw bytes are read, or
//! decoded by workers, directly into the buffers that the message ends up in.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read};
use std::net::TcpStream;
use std::sync::Arc;

use narrows::block::{Block, BlockMut, BufferPool};
use narrows::codec::CodecId;
use narrows::frame::{BASELINE_BLOCK_MAX, BlockHeader, Header, PREFACE_LEN, Preface, ReadLimits, parse_header};
use narrows::pool::Queue;
use narrows::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::decoding::{Decoding, Job};
use super::hub::Signal;
use super::pools;
use super::wire::{self, Kind};
use crate::buffer::Target;
use crate::error::raised;

/// Control messages are read here, many at a time.
const BUFFER: usize = 64 << 10;
/// Reads of less keep the interpreter's lock, as writes do.
const LOCKED_MAX: usize = 64 << 10;
/// Encoded bytes that may wait for workers; more wait in the socket.
const UNDECODED_MAX: usize = 8 << 20;
/// Bytes that are read with the end of a long run, for the header that follows.
const NEXT_LEN: usize = 256;
/// Most frames that one call reads into: results that are fetched together come as many short ones.
const SLICES: usize = 64;
/// Bytes read in one call, so that other comms of the event loop get their turn.
const TURN_MAX: usize = 4 << 20;

pub(super) struct Incoming {
    socket: Arc<TcpStream>,
    /// Bytes that were read and not used, `at..end`.
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    stage: Stage,
    message: Option<Building>,
    raw_max: u64,
    codecs: Option<u64>,
    flow: Option<ReadLimits>,
    /// Raw bytes of the flow so far, which seed its checks.
    raw_offset: u64,
    buffers: BufferPool,
    decoding: Arc<Decoding>,
    queue: Option<Queue>,
}

enum Stage {
    Preface,
    Head,
    Table {
        count: usize,
        raw_len: u64,
    },
    /// Between two segments.
    Segment,
    Plain {
        left: u64,
    },
    /// Between two frames of a segment.
    Flow {
        left: u64,
    },
    /// In the body of a stored frame, whose raw bytes go to their place.
    Stored {
        left: u64,
        header: BlockHeader,
        parts: Vec<Target>,
        filled: usize,
    },
    /// In any other body.
    Body {
        left: u64,
        header: BlockHeader,
        body: BlockMut,
        filled: usize,
    },
}

/// A message that arrives.
struct Building {
    objects: Py<PyList>,
    targets: VecDeque<Target>,
    /// Raw bytes that have no place yet.
    left: u64,
}

impl Building {
    /// The place of the next raw bytes: one piece, `len` at most.
    fn place(&mut self, len: u64) -> Target {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        loop {
            let Some(front) = self.targets.front_mut() else { unreachable!("the lengths of a message add up") };
            if front.len() == 0 {
                self.targets.pop_front();
                continue;
            }
            let part = front.split_to(len);
            self.left -= part.len() as u64;
            return part;
        }
    }

    fn places(&mut self, len: usize) -> Vec<Target> {
        let mut parts = Vec::with_capacity(1);
        let mut left = len;
        while left > 0 {
            let part = self.place(left as u64);
            left -= part.len();
            parts.push(part);
        }
        parts
    }
}

/// What a step came to.
enum Step {
    Went,
    /// More bytes are needed.
    Needs,
    /// The workers have to go on first.
    Waits,
    Whole,
}

/// What a call of `receive` came to.
pub(super) enum Received {
    Message(Py<PyList>),
    /// The socket has no more now.
    Nothing,
    /// Workers decode; they signal.
    Waits,
}

impl Incoming {
    pub(super) fn new(socket: Arc<TcpStream>, raw_max: u64, signal: Signal) -> Self {
        Self {
            socket,
            buffer: Vec::new(),
            at: 0,
            end: 0,
            stage: Stage::Preface,
            message: None,
            raw_max,
            codecs: None,
            flow: None,
            raw_offset: 0,
            buffers: BufferPool::default(),
            decoding: Arc::new(Decoding::new(signal)),
            queue: None,
        }
    }

    /// The codecs of the peer, once it has said.
    pub(super) fn codecs(&self) -> Option<u64> {
        self.codecs
    }

    /// Reads until the preface of the peer is there. Returns whether it is.
    pub(super) fn meet(&mut self) -> PyResult<bool> {
        while matches!(self.stage, Stage::Preface) {
            if let Some(codecs) = wire::parse_preface(&self.buffer[self.at..self.end]).map_err(raised)? {
                self.at += wire::PREFACE_LEN;
                self.codecs = Some(codecs);
                self.stage = Stage::Head;
            } else if self.fill()? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether bytes wait that no `receive` has asked for.
    pub(super) fn has_buffered(&self) -> bool {
        self.at < self.end
    }

    /// Reads ahead, at most one buffer, to notice that the peer has gone.
    pub(super) fn read_ahead(&mut self) -> PyResult<()> {
        if self.has_buffered() { Ok(()) } else { self.fill().map(drop) }
    }

    /// Goes on with the message. `allocate` makes a list of writable buffers of the given lengths.
    pub(super) fn receive(&mut self, py: Python<'_>, allocate: &Py<PyAny>) -> PyResult<Received> {
        let mut read = 0;
        loop {
            match self.step(py, allocate)? {
                Step::Went => {}
                Step::Waits => return Ok(Received::Waits),
                Step::Whole => {
                    if let Some(message) = self.message.take() {
                        self.stage = Stage::Head;
                        return Ok(Received::Message(message.objects));
                    }
                }
                Step::Needs if read >= TURN_MAX => return Ok(Received::Nothing),
                Step::Needs => match self.read(py)? {
                    0 => return Ok(Received::Nothing),
                    n => read += n,
                },
            }
        }
    }

    /// Reads what comes next: the rest of a long run of bytes to its place, anything else into the
    /// buffer. Returns 0 if the socket has nothing.
    fn read(&mut self, py: Python<'_>) -> PyResult<usize> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER];
        }
        let mut bufs = Vec::with_capacity(8);
        match &mut self.stage {
            Stage::Stored { parts, filled, .. } if parts.len() == 1 => {
                bufs.push(IoSliceMut::new(&mut parts[0].bytes_mut()[*filled..]));
            }
            Stage::Body { header, body, filled, .. } => {
                bufs.push(IoSliceMut::new(&mut body.bytes_mut()[*filled..header.wire_len]));
            }
            Stage::Plain { left } => {
                let mut left = usize::try_from(*left).unwrap_or(usize::MAX);
                for target in self.message.iter_mut().flat_map(|m| &mut m.targets) {
                    let len = target.len().min(left);
                    if len > 0 {
                        bufs.push(IoSliceMut::new(&mut target.bytes_mut()[..len]));
                        left -= len;
                    }
                    if left == 0 || bufs.len() == SLICES {
                        break;
                    }
                }
            }
            _ => {}
        }
        let wanted: usize = bufs.iter().map(|b| b.len()).sum();
        if wanted < 4096 {
            drop(bufs);
            return self.fill();
        }
        // What follows is read with it, if it is there: the next header.
        bufs.push(IoSliceMut::new(&mut self.buffer[..NEXT_LEN]));
        let mut socket = &*self.socket;
        let mut read = || socket.read_vectored(&mut bufs);
        let n = taken(if wanted <= LOCKED_MAX { read() } else { py.detach(read) })?;
        drop(bufs);
        let direct = n.min(wanted);
        (self.at, self.end) = (0, n - direct);
        match &mut self.stage {
            Stage::Stored { filled, .. } | Stage::Body { filled, .. } => *filled += direct,
            Stage::Plain { left } => {
                *left -= direct as u64;
                if let Some(message) = &mut self.message {
                    // The bytes are where they belong; only the places are used up.
                    drop(message.places(direct));
                }
            }
            _ => {}
        }
        Ok(n)
    }

    fn fill(&mut self) -> PyResult<usize> {
        if self.buffer.is_empty() {
            self.buffer = vec![0; BUFFER];
        }
        if self.at > 0 {
            self.buffer.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
        }
        if self.end == self.buffer.len() {
            // Only a table is longer than the buffer; it grows as its bytes come.
            self.buffer.resize(2 * self.end, 0);
        }
        let n = taken((&*self.socket).read(&mut self.buffer[self.end..]))?;
        self.end += n;
        Ok(n)
    }

    fn step(&mut self, py: Python<'_>, allocate: &Py<PyAny>) -> PyResult<Step> {
        let ready = &self.buffer[self.at..self.end];
        match &mut self.stage {
            Stage::Preface => {
                let Some(codecs) = wire::parse_preface(ready).map_err(raised)? else { return Ok(Step::Needs) };
                self.at += wire::PREFACE_LEN;
                self.codecs = Some(codecs);
                self.stage = Stage::Head;
            }
            Stage::Head => {
                let Some((count, raw_len)) = wire::parse_head(ready, self.raw_max).map_err(raised)? else {
                    return Ok(Step::Needs);
                };
                self.at += wire::HEAD_LEN;
                self.stage = Stage::Table { count, raw_len };
            }
            Stage::Table { count, raw_len } => {
                let Some(table) = ready.get(..8 * *count) else { return Ok(Step::Needs) };
                let frame_lens = wire::parse_table(table, *raw_len).map_err(raised)?;
                let left = *raw_len;
                self.at += 8 * *count;
                if self.buffer.len() > BUFFER {
                    // The memory of a long table is returned.
                    self.buffer.copy_within(self.at..self.end, 0);
                    (self.at, self.end) = (0, self.end - self.at);
                    self.buffer.truncate(self.end.max(BUFFER));
                    self.buffer.shrink_to_fit();
                }
                self.message = Some(begin(py, allocate, &frame_lens, left)?);
                self.stage = Stage::Segment;
            }
            Stage::Segment => {
                let left = self.message.as_ref().map_or(0, |m| m.left);
                if left == 0 {
                    self.decoding.check().map_err(raised)?;
                    return Ok(if self.decoding.is_idle() { Step::Whole } else { Step::Waits });
                }
                let Some((kind, left)) = wire::parse_segment(ready, left).map_err(raised)? else {
                    return Ok(Step::Needs);
                };
                self.at += wire::SEGMENT_LEN;
                self.stage = match kind {
                    Kind::Plain => Stage::Plain { left },
                    Kind::Flow => Stage::Flow { left },
                };
            }
            Stage::Plain { left: 0 } | Stage::Flow { left: 0 } => self.stage = Stage::Segment,
            Stage::Plain { left } => {
                if ready.is_empty() {
                    return Ok(Step::Needs);
                }
                let Some(message) = &mut self.message else { return Ok(Step::Needs) };
                let mut place = message.place((ready.len() as u64).min(*left));
                let len = place.len();
                place.bytes_mut().copy_from_slice(&ready[..len]);
                *left -= len as u64;
                self.at += len;
            }
            Stage::Flow { left } => {
                let left = *left;
                return self.begin_frame(left).map_err(raised);
            }
            Stage::Stored { left, header, parts, filled } => {
                let mut skip = *filled;
                for part in parts.iter_mut() {
                    let from = skip.min(part.len());
                    let len = (part.len() - from).min(self.end - self.at);
                    part.bytes_mut()[from..from + len].copy_from_slice(&self.buffer[self.at..self.at + len]);
                    self.at += len;
                    *filled += len;
                    skip -= from;
                }
                if *filled < header.wire_len {
                    return Ok(Step::Needs);
                }
                let (left, header, parts) = (*left, *header, std::mem::take(parts));
                self.decode(left, Job { header, body: Block::default(), parts, raw_offset: self.raw_offset });
            }
            Stage::Body { left, header, body, filled } => {
                let len = (header.wire_len - *filled).min(ready.len());
                body.bytes_mut()[*filled..*filled + len].copy_from_slice(&ready[..len]);
                *filled += len;
                self.at += len;
                if *filled < header.wire_len {
                    return Ok(Step::Needs);
                }
                let (left, header) = (*left, *header);
                let body = std::mem::take(body).freeze(header.wire_len);
                self.buffers.recycle(&body);
                let Some(message) = &mut self.message else { return Ok(Step::Needs) };
                let parts = message.places(header.raw_len.unwrap_or(0));
                self.decode(left, Job { header, body, parts, raw_offset: self.raw_offset });
            }
        }
        Ok(Step::Went)
    }

    /// Reads the header of a frame, at first the preface of the flow.
    fn begin_frame(&mut self, left: u64) -> Result<Step> {
        let ready = &self.buffer[self.at..self.end];
        let Some(limits) = &self.flow else {
            let Some(preface) = Preface::parse(ready)? else { return Ok(Step::Needs) };
            if preface.critical != 0 || preface.history > 0 || preface.block_max > BASELINE_BLOCK_MAX {
                return Err(Error::unsupported("a flow of the peer needs more than this end has"));
            }
            self.flow = Some(ReadLimits {
                block_max: preface.block_max,
                history: 0,
                reach: 0,
                codecs: preface.codecs & wire::codecs(),
                check: preface.check,
                messages: false,
            });
            self.at += PREFACE_LEN;
            return Ok(Step::Went);
        };
        self.decoding.check()?;
        if self.decoding.waiting_len() > UNDECODED_MAX {
            return Ok(Step::Waits);
        }
        let header = match parse_header(ready, limits)? {
            None => return Ok(Step::Needs),
            Some(Header::Block(header)) => header,
            Some(Header::Control(_)) => return Err(Error::corrupt("a control frame within a message")),
        };
        let raw_len = header.raw_len.unwrap_or(0);
        if raw_len == 0 || raw_len as u64 > left {
            return Err(Error::corrupt("a block does not end with its message"));
        }
        self.at += header.header_len();
        self.stage = match &mut self.message {
            Some(message) if header.codec == CodecId::STORE => {
                Stage::Stored { left, header, parts: message.places(raw_len), filled: 0 }
            }
            _ => Stage::Body { left, header, body: self.buffers.get(header.wire_len), filled: 0 },
        };
        Ok(Step::Went)
    }

    /// Hands a whole block to the workers.
    fn decode(&mut self, left: u64, job: Job) {
        let raw_len = job.header.raw_len.unwrap_or(0) as u64;
        self.stage = Stage::Flow { left: left - raw_len };
        self.raw_offset += raw_len;
        let decoding = Arc::clone(&self.decoding);
        let queue = self.queue.get_or_insert_with(|| {
            let decoding = Arc::clone(&decoding);
            pools::decoding().flow(move || decoding.fail(Error::misuse("a worker failed; this is a bug")))
        });
        Decoding::submit(&decoding, queue, job);
    }
}

/// Buffers for the frames of a message.
fn begin(py: Python<'_>, allocate: &Py<PyAny>, frame_lens: &[usize], left: u64) -> PyResult<Building> {
    let objects = allocate.bind(py).call1((frame_lens.to_vec(),))?.cast_into::<PyList>()?;
    let targets = objects.iter().map(|object| Target::of(&object)).collect::<PyResult<Vec<_>>>()?;
    let fit = targets.len() == frame_lens.len() && targets.iter().zip(frame_lens).all(|(t, len)| t.len() == *len);
    if !fit {
        return Err(raised(Error::misuse("the buffers of a message do not have the lengths asked for")));
    }
    // Empty frames are there already.
    let targets = targets.into_iter().filter(|target| target.len() > 0).collect();
    Ok(Building { objects: objects.unbind(), targets, left })
}

/// The length of a read; 0 if there is nothing now.
fn taken(read: io::Result<usize>) -> PyResult<usize> {
    match read {
        Ok(0) => Err(raised(Error::truncated("the peer closed the connection"))),
        Ok(n) => Ok(n),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        Err(e) => Err(raised(Error::from(e))),
    }
}
