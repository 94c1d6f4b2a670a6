//! Splits a stream of wire bytes, which may arrive in pieces of any length, into preface, headers
//! and bodies.

use crate::block::{Block, BlockMut, BufferPool};
use crate::error::Result;
use crate::frame::{self, ControlHeader, Header, PREFACE_LEN, Preface, ReadLimits};

/// A parsed item of the stream.
#[derive(Debug)]
pub(super) enum Item {
    Preface(Preface),
    Block(frame::BlockHeader, Block),
    Control(ControlHeader, Block),
}

/// The body of a frame that has arrived in part. What is read into it directly need not be copied
/// there from another buffer.
#[derive(Debug)]
pub struct PartialBody {
    header: Header,
    buffer: BlockMut,
    filled: usize,
}

impl PartialBody {
    /// The place for the missing bytes.
    pub fn rest(&mut self) -> &mut [u8] {
        let len = body_len(&self.header);
        &mut self.buffer.bytes_mut()[self.filled..len]
    }

    fn missing(&self) -> usize {
        body_len(&self.header) - self.filled
    }
}

pub(super) struct Parser {
    pool: BufferPool,
    /// The beginning of a preface or header that is incomplete.
    carry: Vec<u8>,
    body: Option<PartialBody>,
    /// Limits of the stream; `None` until the preface was read.
    limits: Option<ReadLimits>,
    /// Bytes of the stream taken up to the end of the last item.
    wire_offset: u64,
}

impl Parser {
    pub(super) fn new(pool: BufferPool) -> Self {
        Self { pool, carry: Vec::with_capacity(PREFACE_LEN), body: None, limits: None, wire_offset: 0 }
    }

    pub(super) fn set_limits(&mut self, limits: ReadLimits) {
        self.limits = Some(limits);
    }

    /// Begins after so many bytes of the stream.
    pub(super) fn set_wire_offset(&mut self, wire_offset: u64) {
        self.wire_offset = wire_offset;
    }

    /// Wire offset of the next item.
    pub(super) fn wire_offset(&self) -> u64 {
        self.wire_offset
    }

    /// Whether the stream stands between two items.
    pub(super) fn is_between_items(&self) -> bool {
        self.carry.is_empty() && self.body.is_none()
    }

    /// Takes bytes off the front of `wire` until one item is complete; `None` if `wire` is used up
    /// before that.
    pub(super) fn next(&mut self, wire: &mut Block) -> Result<Option<Item>> {
        loop {
            if let Some(body) = self.body.take() {
                return Ok(self.continue_body(body, wire));
            }
            if wire.is_empty() {
                return Ok(None);
            }
            let Some(limits) = self.limits else {
                let Some(preface) = self.read_preface(wire)? else { return Ok(None) };
                self.wire_offset += PREFACE_LEN as u64;
                return Ok(Some(Item::Preface(preface)));
            };
            let Some(header) = self.read_header(wire, &limits)? else { return Ok(None) };
            let body_len = body_len(&header);
            if wire.len() >= body_len {
                let body = wire.split_to(body_len);
                return Ok(Some(self.item(header, body)));
            }
            // The header's parser compared the length with the limits.
            self.body = Some(PartialBody { header, buffer: self.pool.get(body_len), filled: 0 });
        }
    }

    /// Hands out the body under way if at least `least` bytes of it are missing. Nothing may be
    /// parsed until it is back.
    pub(super) fn take_body(&mut self, least: usize) -> Option<PartialBody> {
        self.body.take_if(|body| body.missing() >= least)
    }

    /// Takes the body back, with `read` more bytes in it.
    pub(super) fn put_body(&mut self, mut body: PartialBody, read: usize) {
        body.filled += read.min(body.missing());
        self.body = Some(body);
    }

    fn continue_body(&mut self, mut body: PartialBody, wire: &mut Block) -> Option<Item> {
        let piece = wire.split_to(wire.len().min(body.missing()));
        body.rest()[..piece.len()].copy_from_slice(&piece);
        body.filled += piece.len();
        if body.missing() > 0 {
            self.body = Some(body);
            return None;
        }
        let PartialBody { header, buffer, filled } = body;
        let body = buffer.freeze(filled);
        self.pool.recycle(&body);
        Some(self.item(header, body))
    }

    fn item(&mut self, header: Header, body: Block) -> Item {
        self.wire_offset += (header_len(&header) + body.len()) as u64;
        match header {
            Header::Block(h) => Item::Block(h, body),
            Header::Control(h) => Item::Control(h, body),
        }
    }

    fn read_preface(&mut self, wire: &mut Block) -> Result<Option<Preface>> {
        let carried = self.carry.len();
        self.carry_from(wire);
        let preface = Preface::parse(&self.carry)?;
        self.after_parse(wire, carried, preface.as_ref().map(|_| PREFACE_LEN));
        Ok(preface)
    }

    fn read_header(&mut self, wire: &mut Block, limits: &ReadLimits) -> Result<Option<Header>> {
        if self.carry.is_empty()
            && let Some(header) = frame::parse_header(wire, limits)?
        {
            let _ = wire.split_to(header_len(&header));
            return Ok(Some(header));
        }
        let carried = self.carry.len();
        self.carry_from(wire);
        let header = frame::parse_header(&self.carry, limits)?;
        self.after_parse(wire, carried, header.as_ref().map(header_len));
        Ok(header)
    }

    /// Appends as much of `wire` as a preface or header can need. Takes nothing off `wire` yet.
    fn carry_from(&mut self, wire: &Block) {
        let take = wire.len().min(PREFACE_LEN - self.carry.len());
        self.carry.extend_from_slice(&wire[..take]);
    }

    /// Takes the used bytes off `wire`: an item of `len` bytes, or all that was carried.
    fn after_parse(&mut self, wire: &mut Block, carried: usize, len: Option<usize>) {
        let used = len.unwrap_or(self.carry.len()) - carried;
        let _ = wire.split_to(used);
        if len.is_some() {
            self.carry.clear();
        }
    }
}

fn header_len(header: &Header) -> usize {
    match header {
        Header::Block(h) => h.header_len(),
        Header::Control(h) => h.header_len,
    }
}

fn body_len(header: &Header) -> usize {
    match header {
        Header::Block(h) => h.wire_len,
        Header::Control(h) => h.body_len,
    }
}
