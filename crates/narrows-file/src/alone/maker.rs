//! Makes the stream of one file from its frames: preface, frames, index, sums, end.

use narrows::codec::CodecId;
use narrows::entry::KnownFrame;
use narrows::frame::{
    BlockHeader, EndTotals, Frame, HeaderBytes, PREFACE_LEN, Preface, Role, SUMS_LOG, Sums, chain_digest,
    codecs_of_this_build, feature, put_varint,
};
use narrows::sender::index_frames;

/// The stream of a file so far.
#[derive(Debug)]
pub struct Maker {
    preface: HeaderBytes,
    pairs: Vec<u8>,
    blocks: u64,
    sums: Sums,
    raw: u64,
    wire: u64,
    digest: u64,
}

impl Maker {
    /// The beginning of a stream with blocks up to this length.
    pub fn new(block_max: usize) -> Self {
        let preface = Preface {
            role: Role::Sender,
            critical: 0,
            optional: feature::INDEX,
            check: true,
            block_max,
            history: 0,
            reach: 0,
            codecs: codecs_of_this_build(),
        };
        Self {
            preface: HeaderBytes::preface(&preface),
            pairs: Vec::new(),
            blocks: 0,
            sums: Sums::new(SUMS_LOG),
            raw: 0,
            wire: PREFACE_LEN as u64,
            digest: 0,
        }
    }

    /// The preface, with which it begins.
    pub fn preface(&self) -> &[u8] {
        &self.preface
    }

    /// Adds a block; returns the header of its frame.
    pub fn block(&mut self, codec: CodecId, raw: &[u8], body: &[u8]) -> HeaderBytes {
        let header = BlockHeader::data(codec, false, raw.len(), body.len());
        let check = header.check_of(raw, body, self.raw);
        let bytes = header.encode(Some(check));
        self.sums.push(raw);
        self.push(raw.len(), bytes.len() + body.len(), check);
        bytes
    }

    /// Adds a frame that is stored at the other end, and has these raw bytes.
    pub fn known(&mut self, frame: &KnownFrame, raw: &[u8]) {
        let header = BlockHeader::data(CodecId(frame.codec), false, raw.len(), frame.wire_len as usize);
        let header_len = header.encode(Some(frame.check)).len();
        self.sums.push(raw);
        self.push(raw.len(), header_len + frame.wire_len as usize, frame.check);
    }

    /// Adds a frame as it is stored at this end; the sums of its raw bytes are those of the file.
    pub fn as_it_is(&mut self, raw_len: usize, frame_len: usize, check: u64) {
        self.push(raw_len, frame_len, check);
    }

    fn push(&mut self, raw_len: usize, frame_len: usize, check: u64) {
        put_varint(&mut self.pairs, raw_len as u64);
        put_varint(&mut self.pairs, frame_len as u64);
        self.blocks += 1;
        self.raw += raw_len as u64;
        self.wire += frame_len as u64;
        self.digest = chain_digest(self.digest, check);
    }

    /// Index and end. `sums`: those of all raw bytes, if not all passed through here.
    pub fn finish(self, sums: Option<Vec<u64>>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |frame: &Frame| {
            out.extend_from_slice(&frame.header);
            out.extend_from_slice(&frame.body);
        };
        let mut totals = EndTotals { raw_total: self.raw, wire_total: self.wire, index_offset: 0, digest: self.digest };
        // A single block is found without.
        if self.blocks > 1 {
            totals.index_offset = self.wire;
            let sums = sums.unwrap_or_else(|| self.sums.finish());
            for frame in index_frames(&self.preface, &self.pairs, &sums, self.raw) {
                totals.wire_total += frame.wire_len() as u64;
                put(&frame);
            }
        }
        put(&totals.frame());
        out
    }
}
