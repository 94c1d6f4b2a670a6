//! A record of the frames that a receiver has seen, for tools that show the structure of a stream.

use std::collections::VecDeque;

use crate::codec::CodecId;
use crate::frame::{BlockHeader, ControlHeader, ControlKind};

/// Most frames that wait to be taken before the receiver has no room. As many as the receiver
/// queues, which may be added to them: 2,047 in all, about 100 KB.
const OBSERVED_MAX: usize = super::FRAMES_MAX;

/// How far an observed receiver looks into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// It decodes them and compares their checks, as a receiver does that is not observed.
    Blocks,
    /// It reads their headers only: there are no jobs, and no raw bytes to read. Headers, lengths
    /// and control frames are compared all the same; a message counts as empty, since its raw
    /// length is not in its header.
    Headers,
}

/// One frame as a receiver saw it. All before it, and what its [`Depth`] demands of this one, is as
/// a sender wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Offset of the frame in the wire stream, in bytes.
    pub wire_offset: u64,
    /// Length of the frame in bytes, header included.
    pub wire_len: usize,
    /// What it is.
    pub kind: ObservedKind,
}

/// Content of an [`Observed`] frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedKind {
    /// A data, copy or message frame.
    Block {
        /// Codec of the body.
        codec: CodecId,
        /// Whether the body was encoded with the history as dictionary.
        linked: bool,
        /// Whether a part of the raw bytes is copied from earlier ones.
        copies: bool,
        /// Raw bytes of the block.
        raw_len: usize,
    },
    /// A control frame.
    Control(ControlKind),
}

pub(super) struct Observer {
    depth: Depth,
    seen: VecDeque<Observed>,
}

impl Observer {
    pub(super) fn new(depth: Depth) -> Self {
        Self { depth, seen: VecDeque::new() }
    }

    /// Whether blocks are passed by their headers.
    pub(super) fn is_shallow(&self) -> bool {
        self.depth == Depth::Headers
    }

    pub(super) fn is_full(&self) -> bool {
        self.seen.len() >= OBSERVED_MAX
    }

    pub(super) fn take(&mut self) -> Option<Observed> {
        self.seen.pop_front()
    }

    pub(super) fn block(&mut self, header: &BlockHeader, raw_len: usize, wire_offset: u64) {
        let &BlockHeader { codec, linked, copies, .. } = header;
        let kind = ObservedKind::Block { codec, linked, copies, raw_len };
        self.seen.push_back(Observed { wire_offset, wire_len: header.header_len() + header.wire_len, kind });
    }

    pub(super) fn control(&mut self, header: &ControlHeader, wire_offset: u64) {
        let kind = ObservedKind::Control(header.kind);
        self.seen.push_back(Observed { wire_offset, wire_len: header.header_len + header.body_len, kind });
    }
}
